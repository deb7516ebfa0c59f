package cpu_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/group"
	"fusec/lowering"
	"fusec/lowering/cpu"
)

// slow is a transport of two participants of which the other answers when it is told to.
type slow struct {
	answer chan error
}

func (slow) Rank() int { return 0 }
func (slow) Size() int { return 2 }
func (s slow) Exchange(_, receive []group.Message) error {
	for _, m := range receive {
		clear(m.Bytes)
	}
	return <-s.answer
}
func (slow) Abort(error)  {}
func (slow) Close() error { return nil }

// tell is an operation of the user's that answers for the other participant.
type tell struct{ answer chan error }

// Do implements graph.HostImpl.
func (t *tell) Do(args []*graph.Tensor) (*graph.Tensor, error) {
	for range 2 { // the two halves of an all-reduce
		t.answer <- nil
	}
	return args[0].Clone(), nil
}

// beside is x all-reduced, and an operation that does not wait for it.
func beside(t *testing.T, answer chan error, waits bool) lowering.Executable {
	t.Helper()
	f := graph.TypeOf(graph.F32, 64)
	b := graph.NewBuilder("beside")
	x := b.Input("x", f)
	r := b.Add(graph.AllReduce{Fn: graph.Sum, Group: graph.Group{Over: "data", Parts: 2}}, x)
	next := x
	if waits {
		next = r
	}
	h := b.Add(graph.Host{Name: "tell", Type: f, Impl: &tell{answer}}, next)
	b.Output("y", b.Add(graph.Copy{}, b.Binary(graph.Add, b.Add(graph.Copy{}, r), h)))
	g := graphtest.Graph(t, b)
	g.Mesh, g.Parts = graph.Mesh{{Name: "data", Size: 2}}, true
	p, err := lowering.Lower(g, "cpu")
	if err != nil {
		t.Fatal(err)
	}
	d, err := cpu.Target.Open(lowering.Setup{Name: "cpu", Group: group.New(slow{answer})})
	if err != nil {
		t.Fatal(err)
	}
	if d.Shared() != nil {
		t.Error("a device in a group shares its programs")
	}
	e, err := d.Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	for i, u := range p.Buffers {
		if u.Role == lowering.Input {
			if err := e.Bind(i, graph.Filled(f, 3)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return e
}

// TestBeside has the other participant answer only when a launch after the collective operation has begun.
func TestBeside(t *testing.T) {
	e := beside(t, make(chan error), false)
	for range 2 {
		done := make(chan error, 1)
		go func() { done <- e.Run() }()
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("the launches wait for the collective operation")
		}
	}
}

// TestBesideFails names the collective operation that failed.
func TestBesideFails(t *testing.T) {
	answer := make(chan error, 8)
	e := beside(t, answer, true)
	answer <- errors.New("the cable is cut")
	err := e.Run()
	var failed *lowering.LaunchError
	if !errors.As(err, &failed) || !strings.Contains(err.Error(), "all_reduce") || !strings.Contains(err.Error(), "the cable is cut") {
		t.Errorf("error %v", err)
	}
}
