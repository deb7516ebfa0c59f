package gorgonia

import gorg "gorgonia.org/gorgonia"

// positions numbers nodes of Gorgonia's in the order in which they were added. A node is found by its ID where that is
// small and no other node's, as those of one graph are, and else in a map.
type positions struct {
	nodes []*gorg.Node
	byID  []int32            // one more than the position, by ID
	other map[*gorg.Node]int // nodes that are not in byID
}

// newPositions makes room for the nodes of a graph, of which none is added yet.
func newPositions(graph []*gorg.Node) *positions {
	most := int64(-1)
	for _, n := range graph {
		if id := n.ID(); id < 8*int64(len(graph))+1024 {
			most = max(most, id)
		}
	}
	return &positions{nodes: make([]*gorg.Node, 0, len(graph)), byID: make([]int32, most+1)}
}

// add numbers n, which has no number yet.
func (p *positions) add(n *gorg.Node) {
	p.nodes = append(p.nodes, n)
	if id := n.ID(); uint64(id) < uint64(len(p.byID)) && p.byID[id] == 0 {
		p.byID[id] = int32(len(p.nodes))
		return
	}
	if p.other == nil {
		p.other = map[*gorg.Node]int{}
	}
	p.other[n] = len(p.nodes) - 1
}

// of is the number of n, or -1 if it has none; n may be nil.
func (p *positions) of(n *gorg.Node) int {
	if n == nil {
		return -1
	}
	if id := n.ID(); uint64(id) < uint64(len(p.byID)) {
		if i := int(p.byID[id]) - 1; i >= 0 && p.nodes[i] == n {
			return i
		}
	}
	if i, ok := p.other[n]; ok {
		return i
	}
	return -1
}
