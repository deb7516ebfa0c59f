package lowering

import (
	"slices"

	"fusec/graph"
)

// An inPlace says which updates launches may write directly into the State or Param, instead of into memory that is
// copied there at the end of a successful run. It proves three conditions:
//
//   - Nothing that can fail runs after the first such write: these launches only compute updates, so they run after all
//     others, and none of them has an operation that can fail.
//   - The old value is not read after it has been overwritten: no other of these launches reads it, and the launch
//     itself reads each element only to compute its new value.
//   - Segments of a launch run in any order, so only the segment that writes a value reads it.
//
// An update for which this cannot be proved is copied.
type inPlace struct {
	late   map[*graph.Node]bool          // launches that run last
	target map[*graph.Node][]*graph.Node // of a late launch: for each result, the node into which it is written, or nil
}

func findInPlace(g *graph.Graph) inPlace {
	p := inPlace{late: map[*graph.Node]bool{}, target: map[*graph.Node][]*graph.Node{}}
	into, out := map[*graph.Node]*graph.Node{}, map[*graph.Node]bool{}
	for _, u := range g.Updates {
		into[u.Value] = u.Target
	}
	for _, o := range g.Outputs {
		out[o.Node] = true
	}
	uses := g.Uses()
	readers := map[*graph.Node]int{} // late launches that read a source, possibly through views
	for _, n := range g.Nodes {
		f, ok := n.Op.(graph.Fusion)
		if !ok || f.Anchor != graph.AnchorNone || f.Fails() {
			continue
		}
		results := append([]*graph.Node{n}, uses.Readers(n)...)
		onlyUpdates := func(r *graph.Node) bool {
			_, further := r.Op.(graph.Result)
			return !out[r] && into[r] != nil && (r == n || further && len(uses.Readers(r)) == 0)
		}
		if !allOf(results, onlyUpdates) {
			continue
		}
		p.late[n] = true
		p.target[n] = make([]*graph.Node, len(f.Body.Outputs))
		for _, r := range results {
			i := 0
			if further, ok := r.Op.(graph.Result); ok {
				i = further.Index
			}
			p.target[n][i] = into[r]
		}
		for _, a := range slices.Compact(sortedBases(n)) {
			readers[a]++
		}
	}
	for n, targets := range p.target {
		f := n.Op.(graph.Fusion)
		segments := f.Segments()
		over := map[*graph.Node][]int{} // operands in the memory of a source
		for i, a := range n.Args {
			b := baseOf(a)
			over[b] = append(over[b], i)
		}
		readBy := make([]int, len(n.Args)) // how many segments read an operand
		for _, s := range segments {
			for _, i := range s.Args {
				readBy[i]++
			}
		}
		for _, s := range segments {
			for k, i := range s.Results {
				t := targets[i]
				if t == nil {
					continue
				}
				reads := min(len(over[t]), 1)
				if readers[t] > reads || graph.IsView(s.Body.Outputs[k].Node.Op) || !overwritable(n, s, readBy, over[t], t) {
					targets[i] = nil
				}
			}
		}
	}
	return p
}

// allOf reports whether f holds for all nodes.
func allOf(nodes []*graph.Node, f func(*graph.Node) bool) bool {
	return !slices.ContainsFunc(nodes, func(n *graph.Node) bool { return !f(n) })
}

// baseOf is the node in whose memory a value is.
func baseOf(n *graph.Node) *graph.Node {
	for graph.IsView(n.Op) {
		n = n.Args[0]
	}
	return n
}

// sortedBases lists the bases of n's operands, sorted.
func sortedBases(n *graph.Node) []*graph.Node {
	var b []*graph.Node
	for _, a := range n.Args {
		b = append(b, baseOf(a))
	}
	slices.SortFunc(b, func(x, y *graph.Node) int { return x.ID - y.ID })
	return b
}

// overwritable reports whether segment s of launch n may write a result over t, in whose memory the given operands are:
// no other segment reads them, and s reads t without views.
func overwritable(n *graph.Node, s graph.Segment, readBy, operands []int, t *graph.Node) bool {
	for _, i := range operands {
		k := slices.Index(s.Args, i)
		if n.Args[i] != t || k < 0 && readBy[i] > 0 || k >= 0 && (readBy[i] > 1 || viewed(s.Body, k)) {
			return false
		}
	}
	return true
}

// viewed reports whether a view is taken of the body's k-th input.
func viewed(body *graph.Graph, k int) bool {
	var input *graph.Node
	for _, n := range body.Nodes {
		if _, ok := n.Op.(graph.Input); ok {
			if k == 0 {
				input = n
			}
			k--
		}
		if graph.IsView(n.Op) && n.Args[0] == input {
			return true
		}
	}
	return false
}

// order is g's nodes with the late launches last.
func (p *inPlace) order(g *graph.Graph) []*graph.Node {
	var first, last []*graph.Node
	for _, n := range g.Nodes {
		_, further := n.Op.(graph.Result)
		if p.late[n] || further && p.late[n.Args[0]] {
			last = append(last, n)
		} else {
			first = append(first, n)
		}
	}
	return append(first, last...)
}
