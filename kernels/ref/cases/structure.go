package cases

import "fusec/graph"

func (m *maker) structure() {
	// A Fusion of linear, bias and activation with two results, and the Result that reads the second.
	b := graph.NewBuilder("body")
	x, w, c := b.Input("x", graph.TypeOf(m.d, 3, 5)), b.Input("w", graph.TypeOf(m.d, 5, 4)), b.Input("c", graph.TypeOf(m.d, 4))
	h := b.Binary(graph.Add, b.MatMul(x, w, false, false), b.Broadcast(c, graph.ShapeOf(3, 4)))
	b.Output("y", b.Unary(graph.Tanh, h))
	b.Output("h", h)
	body, err := b.Graph()
	if err != nil {
		panic("cases: " + err.Error())
	}
	m.add("linear", graph.Fusion{Anchor: graph.AnchorMatMul, Kind: graph.KindLinear, Body: body}, m.real(3, 5), m.real(5, 4),
		m.real(4))
	m.add("reversal", graph.Host{Name: "reversal", Type: graph.TypeOf(m.d, 5), Impl: &reversal{}}, m.real(5))
}

// reversal is a host operation: the elements of a vector from last to first.
type reversal struct {
	_ byte // so that two instances have two addresses
}

// Do implements graph.HostImpl.
func (*reversal) Do(args []*graph.Tensor) (*graph.Tensor, error) {
	x := args[0]
	y := graph.NewTensor(x.Type)
	n := x.Type.Shape.Elems()
	for i := range n {
		y.SetFloat(i, x.Float(n-1-i))
	}
	return y, nil
}

// Gradient implements graph.HostGradient.
func (*reversal) Gradient(b *graph.Builder, n, dy *graph.Node) ([]*graph.Node, error) {
	return []*graph.Node{b.Add(n.Op, dy)}, nil
}
