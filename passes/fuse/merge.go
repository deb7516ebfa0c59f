package fuse

import (
	"fmt"
	"strings"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/passes/rewrite"
)

// Merge makes one launch of elementwise fusions that do the same to different values:
//
//	w1, g1 ─► Fusion{w − r·g} ─► update of w1        w1, g1, w2, g2 ─► Fusion{w1 − r·g1 │ w2 − r·g2} ─► updates
//	w2, g2 ─► Fusion{w − r·g} ─► update of w2   to
//
// Their bodies are the same but for shapes, and become the segments of one body. Only fusions are merged whose results
// nothing reads within the graph, such as an optimiser's updates: they do not depend on each other, and nothing waits
// for one of them while the others are computed. Fusions that round parameters and inputs to 16 bits are merged as well: they
// depend on nothing, and all rounded values are there before the first of them is read. Frozen ones are rounded apart from
// others.
func Merge(c *rewrite.Context) error {
	g := c.Graph
	uses := c.Uses()
	frozen := c.FrozenNodes()
	groups := map[string][]*graph.Node{}
	var order []string
	for _, n := range g.Nodes {
		f, ok := n.Op.(graph.Fusion)
		if !ok || f.Anchor != graph.AnchorNone {
			continue
		}
		last := isLast(n, uses)
		if !last && !roundsSources(n, f) {
			continue
		}
		s := signature(f)
		if !last {
			s = fmt.Sprintf("first, frozen %v: %s", frozen.Get(n), s)
		}
		if groups[s] == nil {
			order = append(order, s)
		}
		groups[s] = append(groups[s], n)
	}
	with := map[*graph.Node]*graph.Node{}
	for _, s := range order {
		if len(groups[s]) > 1 {
			if err := mergeGroup(c, groups[s], uses, with); err != nil {
				return err
			}
		}
	}
	if len(with) == 0 {
		return nil
	}
	g.Replace(with)
	return g.Tidy()
}

// isLast reports whether nothing in the graph computes with n's results, through views or without.
func isLast(n *graph.Node, uses *graph.Uses) bool {
	for list := []*graph.Node{n}; len(list) > 0; {
		last := len(list) - 1
		readers := uses.Readers(list[last])
		list = list[:last]
		for _, r := range readers {
			if _, ok := r.Op.(graph.Result); !ok && !graph.IsView(r.Op) {
				return false
			}
		}
		list = append(list, readers...)
	}
	return !uses.None(n)
}

// roundsSources reports whether a fusion does nothing but cast parameters and inputs to 16 bits, and perhaps back.
func roundsSources(n *graph.Node, f graph.Fusion) bool {
	for _, a := range n.Args {
		switch a.Op.(type) {
		case graph.Param, graph.Input:
		default:
			return false
		}
	}
	rounds := false
	for _, m := range f.Body.Nodes {
		_, input := m.Op.(graph.Input)
		op, cast := m.Op.(graph.Cast)
		if !input && !(cast && op.To.IsReal()) {
			return false
		}
		rounds = rounds || cast && op.To.Is16()
	}
	return rounds
}

// signature describes what a body computes for each element: its operations in order, with what they read. Shapes, and the
// views through which inputs are read and outputs stored, do not count.
func signature(f graph.Fusion) string {
	var s strings.Builder
	fmt.Fprint(&s, f.Kind)
	name := map[*graph.Node]string{}
	inputs, values := 0, 0
	for _, n := range f.Body.Nodes {
		switch op := n.Op.(type) {
		case graph.Input:
			name[n] = fmt.Sprint("in", inputs)
			inputs++
			if n.Type.Shape.Rank() == 0 {
				name[n] += "number"
			}
			fmt.Fprintf(&s, " %s:%v", name[n], n.Type.DType)
			continue
		case graph.Const:
			name[n] = fmt.Sprintf("%v%v", op.Value.Type.DType, op.Value.Data)
			continue
		}
		if graph.IsView(n.Op) {
			name[n] = name[n.Args[0]]
			continue
		}
		name[n] = fmt.Sprint("v", values)
		values++
		fmt.Fprintf(&s, " %s=%s%v:%v(", name[n], n.Op.OpName(), graph.Attrs(n.Op), n.Type.DType)
		for _, a := range n.Args {
			fmt.Fprint(&s, " ", name[a])
		}
		s.WriteByte(')')
	}
	for _, o := range f.Body.Outputs {
		fmt.Fprint(&s, " →", name[o.Node])
	}
	return s.String()
}

// mergeGroup makes one Fusion of several and records what replaces their results.
func mergeGroup(c *rewrite.Context, group []*graph.Node, uses *graph.Uses,
	with map[*graph.Node]*graph.Node) error {
	body := graph.New("")
	b := graph.Extend(body)
	var args []*graph.Node
	inputs := map[*graph.Node]*graph.Node{} // by operand
	for _, n := range group {
		for _, a := range n.Args {
			if inputs[a] == nil {
				inputs[a] = b.Add(graph.Input{Type: a.Type})
				inputs[a].Name, inputs[a].Phase = a.Name, a.Phase
				args = append(args, a)
			}
		}
	}
	first := make([]int, len(group)) // the number of each one's first result
	for i, n := range group {
		first[i] = len(body.Outputs)
		in := make([]*graph.Node, len(n.Args))
		for j, a := range n.Args {
			in[j] = inputs[a]
		}
		for _, y := range b.Inline(n.Op.(graph.Fusion).Body, in) {
			b.Output(fmt.Sprint(len(body.Outputs)), y)
		}
	}
	if err := b.Err(); err != nil {
		return fmt.Errorf("merging %d launches: %w", len(group), err)
	}
	merged := graph.Fusion{Anchor: graph.AnchorNone, Kind: group[0].Op.(graph.Fusion).Kind, Body: body}
	if err := c.Accepts(merged, args...); err != nil {
		c.Note(group[0], "%d launches that do the same stay apart: %v", len(group), err)
		return nil
	}
	gb := graph.Extend(c.Graph).From(group...)
	one := gb.Add(merged, args...)
	replace := func(old *graph.Node, i int) {
		with[old] = one
		if i > 0 {
			with[old] = gb.From(old).Add(graph.Result{Index: i}, one)
		}
		with[old].Name = old.Name
	}
	for i, n := range group {
		c.Merged(n, one)
		replace(n, first[i])
		for _, r := range uses.Readers(n) {
			if further, ok := r.Op.(graph.Result); ok {
				replace(r, first[i]+further.Index)
			}
		}
	}
	c.Match("merge-launches", trace.Exact, merged.Kind.String(), one, group...)
	return gb.Err()
}
