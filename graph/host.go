package graph

import "fmt"

// A HostGradient is a HostImpl that knows the gradient of its operation.
type HostGradient interface {
	HostImpl
	// Gradient appends to b the gradient of the operands of n, a Host of this implementation, given the gradient dy of
	// its result. It returns one node per operand, of the operand's type, nil where no gradient flows. It must be
	// deterministic: each call adds the same nodes, or each call fails.
	Gradient(b *Builder, n, dy *Node) ([]*Node, error)
}

// Host runs an opaque operation, whose code the user wrote.
type Host struct {
	Name string
	Type Type
	Impl HostImpl // nil in a graph that was read from a file
}

// HostImpl is the code behind a Host operation. Implementations are pointers, so that Host stays comparable.
type HostImpl interface {
	// Do computes the operation. It must not keep or change its operands.
	Do(args []*Tensor) (*Tensor, error)
}

// A Placeholder is a HostImpl that a pass puts into the graph and a later pass replaces. It never runs.
type Placeholder interface {
	HostImpl
	Placeholder()
}

// IsPlaceholder reports whether op waits for a pass that replaces it.
func IsPlaceholder(op Op) bool {
	h, ok := op.(Host)
	if ok {
		_, ok = h.Impl.(Placeholder)
	}
	return ok
}

// OpName implements Op.
func (Host) OpName() string { return "host" }

var hostRow = OpInfo{
	Name: "host", Doc: "an opaque operation that runs as Go code", Operands: "x...", Proto: Host{},
	Class: ClassFusion, Fails: always, MaxArgs: -1,
	Infer: func(op Op, args []Type) ([]Type, error) { return declared(args, op.(Host).Type) }, FLOPs: free,
	Grad: gradHost, Verb: func(op Op) string { return "host " + op.(Host).Name },
}

func gradHost(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	h, ok := n.Op.(Host).Impl.(HostGradient)
	if !ok {
		return nil, fmt.Errorf("%q is opaque and has no gradient", n.Op.(Host).Name)
	}
	d, err := h.Gradient(b, n, dys[0])
	if err == nil && len(d) != len(n.Args) {
		err = fmt.Errorf("%d gradients of %d operands", len(d), len(n.Args))
	}
	for i := 0; err == nil && i < len(d); i++ {
		if x := n.Args[i].Type; d[i] != nil && d[i].Type != x {
			err = fmt.Errorf("the gradient of operand %d is %v, not %v", i, d[i].Type, x)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%q: %w", n.Op.(Host).Name, err)
	}
	return d, nil
}
