package nn

import (
	"fmt"

	"fusec/graph"

	"gorgonia.org/gorgonia"
)

// Message passing on graphs. A graph of n vertices and e edges is two vectors of e integers, the source and the
// target of each edge, in 0 to n−1; an index outside is an error of the run. An undirected edge is listed in both
// directions.

// GatherRows returns the rows of x [n, ...] at index [e], as [e, ...]. With the edges' sources it gives each edge the
// features of its source vertex.
func GatherRows(x, index *gorgonia.Node) (*gorgonia.Node, error) {
	return apply(single{graph.Gather{Axis: 0}, "GatherRows"}, operand{"x", x}, operand{"index", index})
}

// ScatterAdd sums rows: row i of the result [n, ...] is the sum of the rows of x [e, ...] whose index [e] is i, or
// zeros.
func ScatterAdd(x, index *gorgonia.Node, n int) (*gorgonia.Node, error) {
	return apply(scatter{n: n}, operand{"x", x}, operand{"index", index})
}

// ScatterMean is [ScatterAdd] with the mean instead of the sum.
func ScatterMean(x, index *gorgonia.Node, n int) (*gorgonia.Node, error) {
	return apply(scatter{n: n, mean: true}, operand{"x", x}, operand{"index", index})
}

type scatter struct {
	n    int
	mean bool
}

func (d scatter) name() string {
	if d.mean {
		return fmt.Sprintf("ScatterMean(%d)", d.n)
	}
	return fmt.Sprintf("ScatterAdd(%d)", d.n)
}

func (d scatter) build(b *graph.Builder, args []*graph.Node) *graph.Node {
	x, index := args[0], args[1]
	if x.Type.Shape.Rank() == 0 || !x.Type.DType.IsFloat() || index.Type.Shape != graph.ShapeOf(x.Type.Shape.At(0)) {
		return b.Fail(fmt.Errorf("%s of type %v and %s of type %v: want floats [e, ...] and integers [e]",
			x.Where(), x.Type, index.Where(), index.Type))
	}
	y := b.Add(graph.ScatterAdd{Size: d.n}, index, x)
	if !d.mean || b.Err() != nil {
		return y
	}
	count := b.BinaryScalar(graph.Max, occurrences(b, x.Type.DType, index, d.n), 1)
	return b.Binary(graph.Div, y, perRow(b, count, y.Type.Shape))
}

// occurrences counts how often each of 0 to n−1 occurs in index.
func occurrences(b *graph.Builder, d graph.DType, index *graph.Node, n int) *graph.Node {
	ones := b.Broadcast(b.Scalar(d, 1), index.Type.Shape)
	return b.Add(graph.ScatterAdd{Size: n}, index, ones)
}

// perRow broadcasts a vector [n] over s, [n, ...].
func perRow(b *graph.Builder, v *graph.Node, s graph.Shape) *graph.Node {
	if b.Err() != nil {
		return v
	}
	dims := make([]int, s.Rank())
	for i := range dims {
		dims[i] = 1
	}
	dims[0] = s.At(0)
	return b.Broadcast(b.Reshape(v, dims...), s)
}

// Propagate is one step of a graph convolution (Kipf and Welling, arXiv 1609.02907): D^−½·(A+I)·D^−½·x for x [n, d],
// with A the adjacency matrix of the edges, each from its source to its target, and D the number of edges into each
// vertex plus one.
func Propagate(x, source, target *gorgonia.Node) (*gorgonia.Node, error) {
	return apply(propagate{}, operand{"x", x}, operand{"source", source}, operand{"target", target})
}

type propagate struct{}

func (propagate) name() string { return "Propagate" }

func (propagate) build(b *graph.Builder, args []*graph.Node) *graph.Node {
	x, source, target := args[0], args[1], args[2]
	s := x.Type.Shape
	e := source.Type.Shape
	if s.Rank() != 2 || !x.Type.DType.IsFloat() || e.Rank() != 1 || e != target.Type.Shape {
		return b.Fail(fmt.Errorf("%s of type %v, %s of type %v and %s of type %v: want floats [n, d] and integers [e], twice",
			x.Where(), x.Type, source.Where(), source.Type, target.Where(), target.Type))
	}
	n := s.At(0)
	degree := b.BinaryScalar(graph.Add, occurrences(b, x.Type.DType, target, n), 1)
	r := perRow(b, b.Unary(graph.Rsqrt, degree), s)
	x = b.Binary(graph.Mul, x, r)
	along := b.Add(graph.ScatterAdd{Size: n}, target, b.Add(graph.Gather{}, x, source))
	return b.Binary(graph.Mul, b.Binary(graph.Add, along, x), r)
}
