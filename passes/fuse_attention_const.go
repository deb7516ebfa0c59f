package passes

import "fusec/graph"

// maxConstant is the most elements that constantOf computes.
const maxConstant = 1 << 24

// maxConstantNodes is the most nodes that constantOf looks at.
const maxConstantNodes = 64

// constantOf computes what follows from constants alone by elementwise work and views, as masks do: 1 less a triangle
// of ones, times −1e9, or the indices of keys compared with those of queries. It returns nil for anything else.
// simplify folds the same as long as it is small; this value is only looked at.
func constantOf(n *graph.Node) *graph.Tensor {
	looks := maxConstantNodes
	return constantWithin(n, &looks)
}

// constantWithin is constantOf with so many looks at nodes.
func constantWithin(n *graph.Node, looks *int) *graph.Tensor {
	if *looks--; *looks < 0 || n.Type.Shape.Elems() > maxConstant {
		return nil
	}
	if c, ok := n.Op.(graph.Const); ok {
		return c.Value
	}
	if !graph.Elementwise(n.Op) && !graph.IsView(n.Op) {
		return nil
	}
	in := make([]*graph.Tensor, len(n.Args))
	for i, a := range n.Args {
		if in[i] = constantWithin(a, looks); in[i] == nil {
			return nil
		}
	}
	if graph.IsView(n.Op) {
		return constantView(n, in[0])
	}
	return evaluate(n, in)
}

// constantView reads a value through a view.
func constantView(n *graph.Node, x *graph.Tensor) *graph.Tensor {
	l, ok := graph.Contiguous(x.Type.Shape).View(n)
	if !ok {
		return nil
	}
	out := graph.NewTensor(n.Type)
	eachIndex(n.Type.Shape, func(i int, ix []int) {
		at := l.Offset
		for d, x := range ix {
			at += x * l.Stride[d]
		}
		out.SetElem(i, x, at)
	})
	return out
}
