package graph

// A Segment is a part of a Fusion's body that shares nothing with the others but inputs: a body with an iteration space
// of its own. Its i-th Input is operand Args[i] of the Fusion, and its i-th output is result Results[i].
type Segment struct {
	Body          *Graph
	Args, Results []int
}

// Segments takes the body apart into its segments, in the order of their first outputs. A body of one segment is
// returned as it is.
func (f Fusion) Segments() []Segment {
	body := f.Body
	// Nodes that compute belong together if one reads the other. Sources, and views of them, belong to every reader.
	group := map[*Node]*Node{}
	find := func(n *Node) *Node {
		for group[n] != n {
			n = group[n]
		}
		return n
	}
	for _, n := range body.Nodes {
		if ClassOf(n.Op) == ClassSource || IsView(n.Op) && group[n.Args[0]] == nil {
			continue
		}
		group[n] = n
		for _, a := range n.Args {
			if group[a] != nil {
				group[find(a)] = n
			}
		}
	}
	at := map[*Node]int{}
	var segments []Segment
	for i, o := range body.Outputs {
		root := o.Node
		if group[root] != nil {
			root = find(root)
		}
		k, ok := at[root]
		if !ok {
			k = len(segments)
			at[root] = k
			segments = append(segments, Segment{})
		}
		segments[k].Results = append(segments[k].Results, i)
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
	for k := range segments {
		segments[k].cut(body)
	}
	return segments
}

// cut fills the segment with what its outputs need of the body.
func (s *Segment) cut(body *Graph) {
	need := map[*Node]bool{}
	for _, i := range s.Results {
		need[body.Outputs[i].Node] = true
	}
	for i := len(body.Nodes) - 1; i >= 0; i-- {
		if n := body.Nodes[i]; need[n] {
			for _, a := range n.Args {
				need[a] = true
			}
		}
	}
	part := New(body.Name)
	part.nextID = body.nextID
	inside := map[*Node]*Node{}
	arg := 0
	for _, n := range body.Nodes {
		_, isInput := n.Op.(Input)
		if need[n] {
			k := *n
			k.Args = make([]*Node, len(n.Args))
			for j, a := range n.Args {
				k.Args[j] = inside[a]
			}
			inside[n] = &k
			part.Nodes = append(part.Nodes, &k)
			if isInput {
				s.Args = append(s.Args, arg)
			}
		}
		if isInput {
			arg++
		}
	}
	for _, i := range s.Results {
		o := body.Outputs[i]
		part.Outputs = append(part.Outputs, Output{o.Name, inside[o.Node]})
	}
	s.Body = part
}
