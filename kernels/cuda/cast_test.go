package cuda_test

import (
	"fmt"
	"testing"

	"fusec/graph"
	"fusec/kernels/ref/cases"
)

// TestCastsBesideTies rounds to 16 bits once, whether the number is stored so or computed on with.
func TestCastsBesideTies(t *testing.T) {
	l := newList(43)
	for _, to := range []graph.DType{graph.BF16, graph.F16} {
		for _, from := range []graph.DType{graph.F64, graph.I32, graph.I64} {
			x := cases.BesideTies(from, to)
			op, _, err := cases.Bodied(graph.AnchorNone, func(b *graph.Builder, in cases.Inputs) {
				y := b.Add(graph.Cast{To: to}, in(from, x.Type.Shape.Slice()...))
				b.Output("stored", y)
				b.Output("computed", b.Unary(graph.Neg, b.CastTo(graph.F32, y)))
			})
			if err != nil {
				t.Fatal(err)
			}
			l.add(op, x).Name = fmt.Sprint(from, " to ", to)
		}
	}
	l.run(t)
}
