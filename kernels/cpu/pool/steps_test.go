package pool

import (
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// orderly counts the items of each step, and notes an item that begins before the step before it has ended.
type orderly struct {
	ended []atomic.Int32
	n     int32
	wrong atomic.Bool
	slow  bool
}

func (o *orderly) Step(worker, step, item int) {
	if step > 0 && o.ended[step-1].Load() != o.n {
		o.wrong.Store(true)
	}
	if o.slow && worker > 0 && step%7 == item {
		time.Sleep(100 * time.Microsecond)
	}
	o.ended[step].Add(1)
}

func TestSteps(t *testing.T) {
	for _, workers := range []int{1, 2, 3, 8} {
		p := New(workers)
		for _, n := range []int{0, 1, 2, 5, 16} {
			o := &orderly{ended: make([]atomic.Int32, 300), n: int32(n), slow: n == 5}
			s := NewSteps(p, n, o)
			for _, steps := range []int{0, 1, 300} {
				clear(o.ended)
				s.Run(steps)
				for i := range o.ended {
					want := o.n
					if i >= steps {
						want = 0
					}
					if got := o.ended[i].Load(); got != want {
						t.Fatalf("%d workers, %d steps: %d items of step %d ended, want %d", workers, steps, got, i, want)
					}
				}
			}
			if o.wrong.Load() {
				t.Errorf("%d workers, %d items: a step began before the one before it had ended", workers, n)
			}
		}
		p.Close()
	}
}

// stepFunc makes a StepTask of a function.
type stepFunc func(worker, step, item int)

func (f stepFunc) Step(worker, step, item int) { f(worker, step, item) }

// TestStepsLate has a helper that joins when the caller has done some steps by itself.
func TestStepsLate(t *testing.T) {
	p := New(2)
	defer p.Close()
	var joined atomic.Bool
	s := NewSteps(p, 2, stepFunc(func(worker, step, _ int) {
		if worker == 1 {
			joined.Store(true)
		}
		if step == 1000 && worker == 0 { // long enough for a helper that sleeps to come
			for start := time.Now(); !joined.Load() && time.Since(start) < 10*time.Second; {
				runtime.Gosched()
			}
		}
	}))
	s.Run(1001)
	if !joined.Load() {
		t.Error("the helper did not join")
	}
}

// TestStepsPanic ends a run in which an item fails while another worker waits for it, and runs again.
func TestStepsPanic(t *testing.T) {
	for range 20 {
		p := New(3)
		fails, cause := true, errors.New("no luck")
		s := NewSteps(p, 3, stepFunc(func(_, step, item int) {
			if fails && step == 2 && item == 1 {
				time.Sleep(time.Millisecond)
				panic(cause)
			}
		}))
		func() {
			defer func() {
				err, _ := recover().(error)
				if !errors.Is(err, cause) || !strings.Contains(err.Error(), "panicked") {
					t.Errorf("Run panicked with %v", err)
				}
			}()
			s.Run(5)
			t.Error("Run returned")
		}()
		fails = false
		s.Run(5)
		p.Close()
	}
}

func TestStepsAllocateNothing(t *testing.T) {
	p := New(2)
	defer p.Close()
	s := NewSteps(p, 2, stepFunc(func(_, _, _ int) {}))
	s.Run(1)
	if n := testing.AllocsPerRun(100, func() { s.Run(10) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkSteps is the time of a step of nothing.
func BenchmarkSteps(b *testing.B) {
	p := New(runtime.GOMAXPROCS(0))
	defer p.Close()
	s := NewSteps(p, p.Workers(), stepFunc(func(_, _, _ int) {}))
	b.ResetTimer()
	s.Run(b.N)
}
