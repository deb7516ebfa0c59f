package fuse

import (
	"slices"

	"fusec/graph"
	"fusec/passes/rewrite"
)

// A MomentsTaker is a target whose launches compute mean and variance of columns in one pass over them.
type MomentsTaker interface{ TakesMoments() bool }

// TakesMoments reports whether the target is one.
func TakesMoments(c *rewrite.Context) bool {
	t, ok := c.Target.(MomentsTaker)
	return ok && t.TakesMoments()
}

// repeatNormed gives each reader of a normalised value a value of its own, where the value is normalised by what is reduced
// along other than the innermost axes:
//
//	x, mean ─► Sub ─┬─► Square ─► Reduce        x, mean ─► Sub ─► Square ─► Reduce
//	                └─► Mul ─► y           to   x, mean ─► Sub ─► Mul ─► y
//
// No launch that makes x or the mean can make it, since all columns have to be finished first; a launch that reads it reads x
// instead, which is as large. So nothing writes it.
func repeatNormed(g *graph.Graph) error {
	along := columnValues(g)
	if len(along) == 0 {
		return nil
	}
	uses := g.Uses()
	normed := map[*graph.Node]bool{}
	for _, n := range g.Nodes {
		op, ok := n.Op.(graph.Binary)
		if !ok || op.Fn != graph.Sub && op.Fn != graph.Mul || uses.Escapes(n) {
			continue
		}
		x, v := n.Args[0], n.Args[1]
		if along[x] {
			x, v = v, x
		}
		normed[n] = along[v] && v.Type.Shape == n.Type.Shape && x.Type.Shape == n.Type.Shape && !along[x] &&
			(op.Fn == graph.Sub || normed[x])
	}
	b := graph.Extend(g)
	made := false
	for _, n := range slices.Backward(slices.Clone(g.Nodes)) {
		if !normed[n] {
			continue
		}
		first := true
		for _, u := range slices.Compact(slices.Clone(uses.Readers(n))) {
			for i, a := range u.Args {
				if a != n {
					continue
				}
				if !first {
					k := b.From(n).In(u.Phase).Add(n.Op, n.Args...)
					for j, v := range k.Args {
						k.Args[j] = ownView(b, uses, v)
						uses.Add(k.Args[j], k)
					}
					u.Args[i], made = k, true
				}
				first = false
			}
		}
	}
	if err := b.Err(); err != nil || !made {
		return err
	}
	return g.Tidy()
}

// ownView makes a further view of what a chain of views shows, which the uses then have.
func ownView(b *graph.Builder, uses *graph.Uses, v *graph.Node) *graph.Node {
	if !graph.IsView(v.Op) {
		return v
	}
	x := ownView(b, uses, v.Args[0])
	k := b.From(v).In(v.Phase).Add(v.Op, v.Args...)
	k.Args[0] = x
	for _, a := range k.Args {
		uses.Add(a, k)
	}
	return k
}

// columnValues finds the values that repeat, along other than the innermost axes, numbers made of reductions along them.
func columnValues(g *graph.Graph) map[*graph.Node]bool {
	reduced, along := map[*graph.Node]bool{}, map[*graph.Node]bool{}
	for _, n := range g.Nodes {
		axes, isRow := rowAxes(n)
		_, reduces := n.Op.(graph.Reduce)
		from := len(reduced) > 0 && slices.ContainsFunc(n.Args, func(a *graph.Node) bool { return reduced[a] })
		_, repeats := n.Op.(graph.Broadcast)
		switch {
		case isRow && reduces && !innermost(n.Args[0].Type.Shape, axes):
			reduced[n] = true
		case !from:
		case repeats:
			along[n] = true
		case graph.Joins(n.Op) || graph.IsView(n.Op):
			reduced[n] = true
		}
	}
	return along
}

// startMoments makes a region of a variance of columns and the mean that it is about, if n is that mean:
//
//	x ─┬─► Reduce ─► Broadcast ─┐
//	   └────────────────────── Sub ─► Square ─► Reduce ─►
func (f *fuser) startMoments(n *graph.Node) *region {
	for _, view := range f.uses.Readers(n) {
		chain := []*graph.Node{view}
		for graph.IsView(view.Op) && f.uses.One(view) {
			view = f.uses.Readers(view)[0]
			chain = append(chain, view)
		}
		if !f.isVariance(n, &chain) {
			continue
		}
		r := f.start(graph.AnchorRow, n, n.Args[0].Type.Shape)
		for _, m := range chain {
			f.add(r, m)
		}
		return r
	}
	return nil
}

// isVariance reports whether a chain of values, which begins with views of mean n and ends with a difference, leads to the
// variance about n, to which it is continued.
func (f *fuser) isVariance(n *graph.Node, chain *[]*graph.Node) bool {
	isMean := func(m *graph.Node) bool { op, ok := m.Op.(graph.Reduce); return ok && op.Fn == graph.Mean }
	c := *chain
	d := c[len(c)-1]
	op, ok := d.Op.(graph.Binary)
	if !ok || len(c) < 2 || op.Fn != graph.Sub || d.Args[0] != n.Args[0] || d.Args[1] != c[len(c)-2] {
		return false
	}
	if !isMean(n) || !f.uses.One(d) {
		return false
	}
	for i, view := range c[:len(c)-1] { // only the last may be of full shape
		if _, repeats := view.Op.(graph.Broadcast); repeats != (i == len(c)-2) {
			return false
		}
	}
	square := f.uses.Readers(d)[0]
	if op, ok := square.Op.(graph.Unary); !ok || op.Fn != graph.Square || !f.uses.One(square) {
		return false
	}
	v := f.uses.Readers(square)[0]
	axes, _ := rowAxes(n)
	if of, ok := rowAxes(v); !ok || of != axes || !isMean(v) || v.Type != n.Type {
		return false
	}
	*chain = append(c, square, v)
	return !slices.ContainsFunc(*chain, func(m *graph.Node) bool { return f.in[m.ID] != nil })
}
