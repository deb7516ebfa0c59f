package passtest

import "fusec/graph"

// Scale is x⊙c.
func Scale(b *graph.Builder, x *graph.Node, c float64) *graph.Node {
	return b.BinaryScalar(graph.Mul, x, c)
}

// Shift is x+c.
func Shift(b *graph.Builder, x *graph.Node, c float64) *graph.Node {
	return b.BinaryScalar(graph.Add, x, c)
}

// Times is x⊙y.
func Times(b *graph.Builder, x, y *graph.Node) *graph.Node { return b.Binary(graph.Mul, x, y) }

// Plus is x+y.
func Plus(b *graph.Builder, x, y *graph.Node) *graph.Node { return b.Binary(graph.Add, x, y) }

// Test0 is 1 where x compares so with 0, else 0.
func Test0(b *graph.Builder, f graph.BinaryFn, x *graph.Node) *graph.Node {
	return b.Add(graph.Cast{To: graph.F64}, b.BinaryScalar(f, x, 0))
}

// The constants of GELU in its form with tanh.
const (
	Sqrt2Pi = 0.7978845608028654 // √(2/π)
	CubicC  = 0.044715           // of the cube
)
