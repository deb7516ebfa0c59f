package graph

// Cost is the cost of one evaluation of a node if nothing is fused or cached: its arithmetic, and one read of each
// operand and one write of each result.
type Cost struct {
	FLOPs      int64
	ReadBytes  int64
	WriteBytes int64
}

// Bytes is all traffic.
func (c Cost) Bytes() int64 { return c.ReadBytes + c.WriteBytes }

// CostOf is the cost of a node. Sources, views and Results cost nothing.
func CostOf(n *Node) Cost {
	info := InfoOf(n.Op)
	if info == nil || info.Class == ClassSource || info.Class == ClassView {
		return Cost{}
	}
	if _, ok := n.Op.(Result); ok {
		return Cost{}
	}
	out, err := ResultTypes(n.Op, n.Args)
	if err != nil {
		return Cost{}
	}
	args := make([]Type, len(n.Args))
	var c Cost
	for i, a := range n.Args {
		if args[i] = a.Type; i < Reads(n.Op, len(args)) {
			c.ReadBytes += a.Type.Bytes()
		}
	}
	for _, t := range out {
		c.WriteBytes += t.Bytes()
	}
	if info.FLOPs != nil {
		c.FLOPs = info.FLOPs(n.Op, args, out)
	} else {
		c.FLOPs = elems(out[0])
	}
	return c
}
