package cpu

import (
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	kernels "fusec/kernels/cpu"
	"fusec/lowering"
)

// panicking is a kernel with a mistake in it.
type panicking struct{}

func (panicking) Run(_, _ []kernels.Memory) error { panic("index out of range") }

// TestKernelPanic turns a panic in a kernel into an error that names the launch and the user's node.
func TestKernelPanic(t *testing.T) {
	b := graph.NewBuilder("test")
	b.Output("y", b.Named(b.Unary(graph.Exp, b.Input("x", graph.TypeOf(graph.F32, 4))), "mine"))
	g := graphtest.Graph(t, b)
	d := New(Workers(1))
	p, err := lowering.Lower(g, d.Name())
	if err != nil {
		t.Fatal(err)
	}
	e, err := d.Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err := e.Bind(0, graph.NewTensor(graph.TypeOf(graph.F32, 4))); err != nil {
		t.Fatal(err)
	}
	e.(*executable).launches[0].kernel = panicking{}
	want := `launch 1, exp "mine" (`
	if err := e.Run(); err == nil || !strings.HasPrefix(err.Error(), want) ||
		!strings.HasSuffix(err.Error(), "kernel failed: index out of range") {
		t.Errorf("error %v, want %s…", err, want)
	}
}
