package graph

// The decompositions of the composites define their meaning in primitives.

// Decompose rebuilds n from primitives at the end of the graph that b extends and returns n's results, or nil if n is
// not a composite.
func Decompose(b *Builder, n *Node) []*Node {
	info := InfoOf(n.Op)
	if info == nil || info.Decompose == nil {
		return nil
	}
	return info.Decompose(b.From(n), n.Op, n.Args)
}

// Lower rebuilds n from simpler operations at the end of the graph that b extends and returns its results, or nil if there
// are none. See [OpInfo].
func Lower(b *Builder, n *Node) []*Node {
	info := InfoOf(n.Op)
	if info == nil || info.Lower == nil {
		return nil
	}
	return info.Lower(b.From(n), n.Op, n.Args)
}
