package fusec_test

import (
	"math"
	"testing"

	"fusec"
	"fusec/graph"
)

// TestLogOfSoftmax takes the logarithm of a softmax of rows with and without a finite number, with the passes that make
// one operation of it and without.
func TestLogOfSoftmax(t *testing.T) {
	inf := math.Inf(-1)
	b := graph.NewBuilder("log")
	x := b.Input("x", graph.TypeOf(graph.F64, 3, 3))
	for axis, name := range []string{"columns", "rows"} {
		b.Output(name, b.Unary(graph.Log, b.Add(graph.Softmax{Axis: axis}, x)))
	}
	g := built(t, b)
	half := math.Log(0.5)
	v, err := graph.TensorOf([]float64{inf, inf, inf, inf, 1, 1, inf, 1, 1}, 3, 3)
	if err != nil {
		t.Fatal(err)
	}
	in := map[string]*graph.Tensor{"x": v}
	want := []float64{inf, inf, inf, inf, half, half, inf, half, half}
	for _, off := range []string{"", "raise", "fuse-regions"} {
		var opts []fusec.CompileOption
		if off != "" {
			opts = append(opts, fusec.WithoutPass(off))
		}
		p, err := fusec.Compile(g, opts...)
		if err != nil {
			t.Fatal(err)
		}
		out, err := p.Run(in)
		if err != nil {
			t.Fatal(err)
		}
		p.Close()
		for name, y := range out {
			sameFloats(t, name+" without "+off, y.Floats(), want, 1e-15)
		}
	}
}
