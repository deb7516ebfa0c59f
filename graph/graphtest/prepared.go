package graphtest

import (
	"fmt"
	"math/rand/v2"

	"fusec/graph"
)

// Prepared makes a random layer whose parameters pass through transposes, casts, scales, norms, joins and products of each
// other before the input meets them, some in several products of one operand. Some of what follows from them alone is an
// output, and one parameter is updated.
func Prepared(r *rand.Rand) *graph.Graph {
	whole := graph.New("prepared")
	b := graph.Extend(whole)
	dim := func() int { return []int{1, 1, 2, 3, 5, 7, 16, 33}[r.IntN(8)] }
	params := 0
	param := func(dims ...int) *graph.Node {
		params++
		return b.Param(fmt.Sprint("w", params), graph.TypeOf(graph.F32, dims...))
	}
	var formed func(depth, rows, cols int) *graph.Node
	formed = func(depth, rows, cols int) *graph.Node {
		if depth == 0 {
			return param(rows, cols)
		}
		of := func() *graph.Node { return formed(depth-1, rows, cols) }
		switch r.IntN(9) {
		case 0:
			return b.Transpose(formed(depth-1, cols, rows), 1, 0)
		case 1: // a scale for each column, as batch norm has it
			s := b.Unary(graph.Rsqrt, b.BinaryScalar(graph.Add, b.Unary(graph.Square, param(cols)), 0.5))
			return b.Binary(graph.Mul, of(), b.Broadcast(s, graph.ShapeOf(rows, cols)))
		case 2:
			return b.CastTo(graph.F32, b.CastTo([]graph.DType{graph.BF16, graph.F64}[r.IntN(2)], of()))
		case 3: // weight norm
			w := of()
			n := b.Unary(graph.Rsqrt, b.BinaryScalar(graph.Add, b.Reduce(graph.Sum, b.Unary(graph.Square, w), true, 1), 1))
			return b.Binary(graph.Mul, w, b.Broadcast(n, w.Type.Shape))
		case 4:
			k := dim()
			return b.MatMul(formed(depth-1, rows, k), param(k, cols), false, false)
		case 5:
			if rows > 1 {
				k := 1 + r.IntN(rows-1)
				return b.Add(graph.Concat{Axis: 0}, formed(depth-1, k, cols), param(rows-k, cols))
			}
			return b.Unary(graph.Tanh, of())
		case 6:
			return b.Add(graph.Softmax{Axis: 1}, of())
		case 7: // more elements than what it is made of
			return b.Binary(graph.Add, b.Broadcast(param(1, cols), graph.ShapeOf(rows, cols)),
				b.Broadcast(param(rows, 1), graph.ShapeOf(rows, cols)))
		}
		return b.Add(graph.Copy{}, b.Transpose(formed(depth-1, cols, rows), 1, 0))
	}
	m, k, n := dim(), dim(), dim()
	y := b.Input("x", graph.TypeOf(graph.F32, m, k))
	for layer := range 1 + r.IntN(2) {
		if r.IntN(3) == 0 { // products of one operand
			of := func(n int) *graph.Node {
				p := b.MatMul(y, formed(r.IntN(2), k, n), false, false)
				if r.IntN(2) == 0 {
					p = b.Binary(graph.Add, p, b.Broadcast(param(n), p.Type.Shape))
				}
				return p
			}
			p, q, v := of(k), of(k), of(k)
			y = b.MatMul(b.Unary(graph.Tanh, b.MatMul(p, q, false, true)), v, false, false)
		}
		w := formed(1+r.IntN(3), k, n)
		if r.IntN(4) == 0 {
			b.Output(fmt.Sprint("weights ", layer), b.Unary(graph.Neg, w))
		}
		y = b.MatMul(y, w, false, false)
		if r.IntN(2) == 0 {
			y = b.Binary(graph.Mul, y, b.Broadcast(b.Reshape(formed(1, 1, n), n), y.Type.Shape))
		}
		if r.IntN(2) == 0 {
			y = b.Binary(graph.Add, y, b.Broadcast(b.Unary(graph.Exp, b.Unary(graph.Sin, param(n))), y.Type.Shape))
		}
		if r.IntN(3) == 0 {
			y = b.Binary(graph.Add, y, formed(2, m, n))
		}
		y = b.Unary(graph.Tanh, y)
		k, n = n, dim()
	}
	changing := param(y.Type.Shape.Slice()...)
	y = b.Binary(graph.Add, y, b.Unary(graph.Sin, changing))
	b.Output("y", y)
	if r.IntN(2) == 0 {
		b.Update(changing, b.BinaryScalar(graph.Mul, changing, 0.5))
	}
	if err := b.Err(); err != nil {
		panic(err) // a mistake in this function
	}
	return whole
}
