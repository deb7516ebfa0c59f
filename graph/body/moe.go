package body

import "fusec/graph"

// Hidden is the elementwise part of an expert as a body over n elements: of u and, if the mixture is gated, v, which are
// products of the token with w1 and w3, it makes h = act(u) ⊙ v. With backward it also takes da, the gradient of h, and
// makes du and, if gated, dv by the gradient rules of the operations.
func Hidden(op graph.MoE, d graph.DType, n int, backward bool) (graph.Fusion, error) {
	b, t := graph.NewBuilder("hidden"), graph.TypeOf(d, n)
	in := []*graph.Node{b.Input("u", t)}
	h := b.Add(op.Act(), in[0])
	if op.Gated {
		in = append(in, b.Input("v", t))
		h = b.Binary(graph.Mul, h, in[1])
	}
	b.Output("h", h)
	g, err := b.Graph()
	if err != nil || !backward {
		return graph.Fusion{Body: g}, err
	}
	b = graph.Extend(g)
	grads, err := graph.VJP(g, []*graph.Node{h}, []*graph.Node{b.Input("da", t)}, in)
	if err != nil {
		return graph.Fusion{}, err
	}
	for i, d := range grads {
		b.Output([]string{"du", "dv"}[i], d)
	}
	return graph.Fusion{Body: g}, b.Err()
}

// Expert is where an expert's weight lies, given the layout of the operand that holds it. The elements of row i begin at
// Offset + i·row, col apart; a vector is one row.
func Expert(op graph.MoE, l graph.Layout, expert int) (of graph.Layout, row, col int) {
	if op.Stacked {
		of = graph.Layout{Shape: graph.ShapeOf(l.Shape.Slice()[1:]...), Offset: l.Offset + expert*l.Stride[0]}
		copy(of.Stride[:], l.Stride[1:])
	} else {
		of = l
	}
	if l.Shape.Elems() == 0 { // it has no place
		of.Offset = 0
	}
	last := of.Shape.Rank() - 1
	if last == 1 {
		row = of.Stride[0]
	}
	return of, row, of.Stride[last]
}
