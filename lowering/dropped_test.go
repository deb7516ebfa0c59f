package lowering

import (
	"errors"
	"runtime"
	"slices"
	"testing"
	"time"

	"fusec/graph"
)

// logged notes what is called.
type logged struct {
	Executable
	calls chan string
}

func (l *logged) call(name string) error { l.calls <- name; return nil }

func (l *logged) Bind(int, *graph.Tensor) error             { return l.call("bind") }
func (l *logged) Run() error                                { return l.call("run") }
func (l *logged) Start() error                              { return l.call("start") }
func (l *logged) Wait() error                               { return l.call("wait") }
func (l *logged) Prefetch(int, *graph.Tensor) (bool, error) { return true, l.call("prefetch") }
func (l *logged) Sync(...int) error                         { return l.call("sync") }
func (l *logged) Measure(int) ([]time.Duration, error)      { return nil, l.call("measure") }
func (l *logged) Inspect() (*Inspection, error)             { return nil, l.call("inspect") }
func (l *logged) Close() error                              { return l.call("close") }

// TestCloseWhenDropped closes what nobody has any more, after it has taken the tensors from the device; what was closed or
// is kept is left alone.
func TestCloseWhenDropped(t *testing.T) {
	f32 := graph.TypeOf(graph.F32, 2)
	p := &Program{Buffers: []Buffer{{Role: State, Type: f32}}, Updates: []Update{{Target: 0, Value: 0}}}
	for _, c := range []struct {
		name string
		use  func(*Owned) error
		want []string
	}{
		{"dropped", func(o *Owned) error { o.BeforeDrop(func() {}); return nil }, []string{"wait", "bind", "close"}},
		{"closed", (*Owned).Close, []string{"close"}},
		{"kept", func(o *Owned) error { o.Keep(); return nil }, nil},
		{"used", func(o *Owned) error {
			_, measured := o.Measure(1)
			_, inspected := o.Inspect()
			_, fetched := o.Prefetch(0, nil)
			return errors.Join(o.Bind(0, nil), o.Run(), o.Start(), o.Wait(), fetched, o.Sync(), measured, inspected, o.Close())
		}, []string{"measure", "inspect", "prefetch", "bind", "run", "start", "wait", "sync", "close"}},
	} {
		l := &logged{calls: make(chan string, 20)}
		func() {
			if err := c.use(CloseWhenDropped(l, p)); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
		}()
		var got []string
		for wait := time.Millisecond; wait < 4*time.Second && len(got) < len(c.want); wait *= 2 {
			runtime.GC()
			select {
			case name := <-l.calls:
				got = append(got, name)
			case <-time.After(wait):
			}
		}
		runtime.GC()
		time.Sleep(10 * time.Millisecond)
		for len(l.calls) > 0 {
			got = append(got, <-l.calls)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: calls %v, want %v", c.name, got, c.want)
		}
	}
}
