package gorgonia

import (
	"errors"
	"fmt"
	"slices"

	"fusec/graph"

	gorg "gorgonia.org/gorgonia"
)

// A hostGradient is what the SymDiff of an operation adds to a graph, imported. Its body has an input for each operand,
// then the result, then the gradient of the result; and an output for each operand that has a gradient.
type hostGradient struct {
	body *graph.Graph
	of   []int // the operand of each output
	err  error
}

// Gradient implements graph.HostGradient: it runs the operation's SymDiff on a graph of its own, once, and imports what
// that adds there. Operations that fusec does not know run on the host again.
func (h *hostOp) Gradient(b *graph.Builder, n, dy *graph.Node) ([]*graph.Node, error) {
	h.once.Do(func() { h.grad.body, h.grad.of, h.grad.err = h.derive() })
	if h.grad.err != nil {
		return nil, h.grad.err
	}
	args := append(slices.Clone(n.Args), n, dy)
	for i, s := range h.grad.body.Nodes[:len(args)] {
		if s.Type != args[i].Type {
			return nil, fmt.Errorf("operand %d is %v, not %v", i, args[i].Type, s.Type)
		}
	}
	grads := make([]*graph.Node, len(n.Args))
	for i, d := range b.Inline(h.grad.body, args) {
		grads[h.grad.of[i]] = d
	}
	return grads, b.Err()
}

// derive makes the body. What the user's code does wrong is an error.
func (h *hostOp) derive() (body *graph.Graph, of []int, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("its SymDiff panicked: %v", r)
		}
	}()
	op, ok := h.op.(gorg.SDOp)
	if !ok {
		if _, ok := h.op.(gorg.ADOp); ok {
			return nil, nil, errors.New("it has no SymDiff, and its DoDiff wants values that a machine keeps at the nodes")
		}
		return nil, nil, errors.New("it has no SymDiff")
	}
	wrt := op.DiffWRT(len(h.in))
	if len(wrt) != len(h.in) {
		return nil, nil, fmt.Errorf("its DiffWRT speaks of %d operands instead of %d", len(wrt), len(h.in))
	}
	g := gorg.NewGraph()
	in := make(gorg.Nodes, len(h.in))
	for i, a := range h.in {
		in[i] = a.node(g, fmt.Sprintf("operand %d", i))
	}
	out, err := gorg.ApplyOp(op, in...)
	if err != nil {
		return nil, nil, fmt.Errorf("it cannot be applied to operands of its types: %w", err)
	}
	dy := hostArg{typ: out.Type(), shape: out.Shape()}.node(g, "gradient")
	ds := make(gorg.Nodes, len(in))
	if slices.Contains(wrt, true) {
		if ds, err = op.SymDiff(in, out, dy); err != nil {
			return nil, nil, fmt.Errorf("its SymDiff: %w", err)
		}
	}
	if len(ds) != len(in) {
		return nil, nil, fmt.Errorf("its SymDiff gives %d derivatives of %d operands", len(ds), len(in))
	}
	for i, d := range ds {
		if wrt[i] && d == nil {
			return nil, nil, fmt.Errorf("its SymDiff gives no derivative of operand %d", i)
		}
		if wrt[i] {
			of = append(of, i)
		}
	}
	body, err = h.importGradient(g, append(append(gorg.Nodes{}, in...), out, dy), ds, of)
	return body, of, err
}

// node is an input of the operand's type in g.
func (a hostArg) node(g *gorg.ExprGraph, name string) *gorg.Node {
	opts := []gorg.NodeConsOpt{gorg.WithType(a.typ), gorg.In(g), gorg.WithName(name)}
	if len(a.shape) > 0 {
		opts = append(opts, gorg.WithShape(a.shape...))
	}
	return gorg.NewUniqueNode(opts...)
}

// importGradient makes the body of g. Its inputs are to be the given nodes: the operands, the result, which in g is the
// operation itself, and the gradient.
func (h *hostOp) importGradient(g *gorg.ExprGraph, given, ds gorg.Nodes, of []int) (*graph.Graph, error) {
	im, err := Import(g, Options{Kind: func(*gorg.Node) Kind { return AsInput }})
	if err != nil {
		return nil, fmt.Errorf("what its SymDiff adds: %w", err)
	}
	if len(im.States)+len(im.Fills) > 0 {
		return nil, errors.New("what its SymDiff adds keeps state between runs")
	}
	b := graph.Extend(im.Graph)
	out := len(given) - 2
	inputs := make([]*graph.Node, len(given))
	for i, n := range given {
		inputs[i] = im.Node(n)
	}
	inputs[out] = b.Input("result", h.out)
	im.Graph.Replace(map[*graph.Node]*graph.Node{im.Node(given[out]): inputs[out]})
	im.Graph.Outputs, im.Graph.Updates = nil, nil
	for _, i := range of {
		d, x := im.Node(ds[i]), inputs[i].Type
		if d == im.Node(given[out]) {
			d = inputs[out]
		}
		if d == nil {
			return nil, fmt.Errorf("its SymDiff gives a derivative of operand %d that is of another graph", i)
		}
		if d.Type.DType != x.DType || d.Type.Shape.Elems() != x.Shape.Elems() {
			return nil, fmt.Errorf("its SymDiff gives a derivative of operand %d that is %v, not %v", i, d.Type, x)
		}
		b.Output(fmt.Sprintf("d%d", i), b.Reshape(d, x.Shape.Slice()...))
	}
	if b.Err() != nil {
		return nil, b.Err()
	}
	rest := slices.DeleteFunc(im.Graph.Nodes, func(n *graph.Node) bool { return slices.Contains(inputs, n) })
	im.Graph.Nodes = append(inputs, rest...)
	for _, n := range im.Graph.Nodes {
		if graph.IsSource(n.Op) && !slices.Contains(inputs, n) {
			if _, constant := n.Op.(graph.Const); !constant {
				return nil, fmt.Errorf("its SymDiff adds %s, which nobody gives a value", n.Where())
			}
		}
	}
	for _, n := range im.Graph.Nodes {
		n.Name, n.Origin = "", nil // the nodes that they become stand for the operation
	}
	if err := im.Graph.Tidy(); err != nil {
		return nil, err
	}
	return im.Graph, nil
}
