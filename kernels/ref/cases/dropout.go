package cases

import (
	"fmt"
	"math/rand/v2"

	"fusec/graph"
)

// Dropouts draws bodies with a dropout each, of every form and of odd sizes, so that the number of an element is not
// often a multiple of what a target draws at once.
func Dropouts(r *rand.Rand, n int) []Fusion {
	var list []Fusion
	for i := range n {
		d := []graph.DType{graph.F32, graph.F64}[r.IntN(2)]
		rows, cols := 1+r.IntN(1<<r.IntN(8)), 1+r.IntN(1<<r.IntN(12))
		op := graph.Dropout{P: float64(1+r.IntN(9)) / 10}
		f := Fusion{Name: fmt.Sprintf("%d: %v %d×%d", i, d, rows, cols)}
		switch i % 4 {
		case 0: // in a chain, read at once and through strides
			f.build = func(b *graph.Builder, in Inputs) {
				x := b.Unary(graph.Square, b.Transpose(in(d, cols, rows), 1, 0))
				b.Output("", b.Unary(graph.Neg, b.Add(op, x, in(graph.I64))))
			}
		case 1: // and its gradient, by the same seed
			f.build = func(b *graph.Builder, in Inputs) {
				x, dy, seed := in(d, 3, rows, cols), in(d, 3, rows, cols), in(graph.I64)
				b.Output("", b.Add(op, b.Unary(graph.Sigmoid, x), seed))
				b.Output("", b.Binary(graph.Mul, b.Add(op, dy, seed), x))
			}
		case 2: // of the probabilities of a softmax
			f.Anchor = graph.AnchorRow
			f.build = func(b *graph.Builder, in Inputs) {
				b.Output("", b.Add(op, b.Add(graph.Softmax{Axis: 1}, in(d, rows, cols)), in(graph.I64)))
			}
		case 3: // of a product
			f.Anchor = graph.AnchorMatMul
			cols := min(cols, 300)
			f.build = func(b *graph.Builder, in Inputs) {
				y := b.MatMul(in(d, rows, 5), in(d, 5, cols), false, false)
				b.Output("", b.Unary(graph.Square, b.Add(op, y, in(graph.I64))))
			}
		}
		list = append(list, f)
	}
	return list
}
