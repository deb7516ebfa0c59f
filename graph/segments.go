package graph

import "slices"

// A Segment is a part of a Fusion's body that shares only inputs with the others: a body with its own iteration space.
// Its i-th Input is operand Args[i] of the Fusion, and its i-th output is result Results[i].
type Segment struct {
	Body          *Graph
	Args, Results []int
}

// Segments splits the body into its segments, in the order of their first outputs. A body of one segment is returned
// unchanged; one with an anchor is a segment. The time is linear in the number of nodes of all segments.
func (f Fusion) Segments() []Segment {
	body := f.Body
	at := Positions(body)
	// Computing nodes belong to the same segment if one reads the other. Sources, and views of them, belong to every
	// reader.
	group := make([]int32, len(body.Nodes)) // the parent in a forest whose trees are the groups; -1 of what belongs to no group
	find := func(i int) int {
		for int(group[i]) != i {
			group[i] = group[group[i]]
			i = int(group[i])
		}
		return i
	}
	for i, n := range body.Nodes {
		if ClassOf(n.Op) == ClassSource || IsView(n.Op) && group[at.Of(n.Args[0])] < 0 {
			group[i] = -1
			continue
		}
		group[i] = int32(i)
		for _, a := range n.Args {
			if k := at.Of(a); group[k] >= 0 {
				group[find(k)] = int32(i)
			}
		}
	}
	of := make([]int, len(body.Nodes)) // by the root of a group: one more than its segment
	var segments []Segment
	for i, o := range body.Outputs {
		root := at.Of(o.Node)
		if group[root] >= 0 {
			root = find(root)
		}
		if f.Anchor != AnchorNone {
			root = 0
		}
		if of[root] == 0 {
			segments = append(segments, Segment{})
			of[root] = len(segments)
		}
		s := &segments[of[root]-1]
		s.Results = append(s.Results, i)
	}
	if len(segments) == 1 {
		s := &segments[0]
		s.Body = body
		for _, n := range body.Nodes {
			if _, ok := n.Op.(Input); ok {
				s.Args = append(s.Args, len(s.Args))
			}
		}
		return segments
	}
	c := cutter{body: body, at: at, arg: make([]int, len(body.Nodes)), inside: make([]*Node, len(body.Nodes))}
	args := 0
	for i, n := range body.Nodes {
		if _, ok := n.Op.(Input); ok {
			c.arg[i] = args
			args++
		}
	}
	for k := range segments {
		c.cut(&segments[k])
	}
	return segments
}

// A cutter extracts segments from a body.
type cutter struct {
	body   *Graph
	at     NodePositions
	arg    []int   // by position of an input: which operand of the fusion it is
	inside []*Node // by position: the copy in the current segment, or the node itself if there is no copy yet
}

// cut copies to the segment the nodes of the body that its outputs need.
func (c *cutter) cut(s *Segment) {
	var need []int // positions
	add := func(n *Node) {
		if i := c.at.Of(n); c.inside[i] == nil {
			c.inside[i] = n
			need = append(need, i)
		}
	}
	for _, i := range s.Results {
		add(c.body.Outputs[i].Node)
	}
	for k := 0; k < len(need); k++ {
		for _, a := range c.body.Nodes[need[k]].Args {
			add(a)
		}
	}
	slices.Sort(need)
	part := New(c.body.Name)
	part.nextID = c.body.nextID
	part.Nodes = make([]*Node, len(need))
	for j, i := range need {
		n := *c.body.Nodes[i]
		n.Args = make([]*Node, len(n.Args))
		for k, a := range c.body.Nodes[i].Args {
			n.Args[k] = c.inside[c.at.Of(a)]
		}
		c.inside[i], part.Nodes[j] = &n, &n
		if _, ok := n.Op.(Input); ok {
			s.Args = append(s.Args, c.arg[i])
		}
	}
	for _, i := range s.Results {
		o := c.body.Outputs[i]
		part.Outputs = append(part.Outputs, Output{o.Name, c.inside[c.at.Of(o.Node)]})
	}
	for _, i := range need {
		c.inside[i] = nil
	}
	s.Body = part
}
