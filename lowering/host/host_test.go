package host

import (
	"math"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/lowering"
)

// TestLaunches runs the second of two launches, and a part of its body, on copies; the first is another device's.
func TestLaunches(t *testing.T) {
	fuse := func(fns ...graph.UnaryFn) graph.Fusion {
		b := graph.NewBuilder("body")
		x := b.Input("x", graph.TypeOf(graph.F32, 4))
		for _, fn := range fns {
			x = b.Unary(fn, x)
		}
		b.Output("y", x)
		g, err := b.Graph()
		if err != nil {
			t.Fatal(err)
		}
		return graph.Fusion{Anchor: graph.AnchorNone, Body: g}
	}
	b := graph.NewBuilder("test")
	x := b.Input("x", graph.TypeOf(graph.F32, 4))
	b.Output("y", b.Add(fuse(graph.Square, graph.Neg), b.Add(fuse(graph.Neg), x)))
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	p, err := lowering.Lower(g, "other", lowering.CannotUndo())
	if err != nil {
		t.Fatal(err)
	}
	h, _, err := New(p, 1, func(l *lowering.Launch) bool { return l == &p.Launches[1] })
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	in, out := p.Launches[1].Args[0], p.Launches[1].Results[0]
	values := []float32{1, -2, 3, 0.5}
	if h.Copies[in.Buffer], err = graph.TensorOf(values, 4); err != nil {
		t.Fatal(err)
	}
	if err := h.Run(1); err != nil {
		t.Fatal(err)
	}
	square, err := h.Compute(fuse(graph.Square), []lowering.View{in}, graph.TypeOf(graph.F32, 4))
	if err != nil {
		t.Fatal(err)
	}
	y, err := h.Value(h.Copies[out.Buffer], out)
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range values {
		if want := float64(v * v); math.Abs(y.Float(i)+want) > 1e-6 || math.Abs(square.Float(i)-want) > 1e-6 {
			t.Errorf("of %v the launch makes %v and a part of it %v", v, y.Float(i), square.Float(i))
		}
	}
	if err := h.Run(0); err == nil || !strings.Contains(err.Error(), "was not compiled for the processor") {
		t.Errorf("another device's launch: %v", err)
	}
	h.Copies[in.Buffer] = &graph.Tensor{Type: graph.TypeOf(graph.F32, 4), Data: []float32{1}}
	if err := h.Run(1); err == nil {
		t.Error("an operand that is too short is read")
	}
}
