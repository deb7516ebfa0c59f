package graph

import "slices"

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
	list := typeLists.Get().(*[]Type)
	defer typeLists.Put(list)
	args := slices.Grow((*list)[:0], 2*len(n.Args)+1)
	*list = args
	var c Cost
	for i, a := range n.Args {
		if args = append(args, a.Type); i < Reads(n.Op, len(n.Args)) {
			c.ReadBytes += a.Type.Bytes()
		}
	}
	out, err := resultTypes(n.Op, n.Args, args[len(args):])
	if err != nil {
		return Cost{}
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
