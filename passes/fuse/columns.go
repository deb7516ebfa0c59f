package fuse

import (
	"slices"

	"fusec/graph"
	"fusec/passes/rewrite"
)

// A backward pass needs, besides products, sums of gradients over the rows for biases and for the weights of norms, and
// work that reads the result of a product together with sums along its rows.

// sumColumns lets a launch that makes a value also hand out the value's column sums,
//
//	x, w ─► MatMul ─► Mul ─► dx                x, w ─► Fusion{matmul} ─► dx
//	                     └─► Reduce ─► db   to                      └─► db
//
// so that nothing reads the value again for them. A launch over rows may do so for a value that it reads, too.
func (f *fuser) sumColumns() {
	for _, n := range f.g.Nodes {
		if !graph.SumsColumns(n) || f.in[n.ID] != nil {
			continue
		}
		from := []*region{f.in[n.Args[0].ID]}
		for _, u := range f.uses.Readers(n.Args[0]) {
			if r := f.in[u.ID]; r != nil && r.anchor == graph.AnchorRow {
				from = append(from, r)
			}
		}
		for _, r := range from {
			if r == nil || f.sumsAlong(r, n) != "" || f.once.apart(r.root, n) != nil || f.order.between(r.root, n) ||
				slices.ContainsFunc(f.uses.Readers(n), func(u *graph.Node) bool { return f.in[u.ID] == r }) {
				continue
			}
			f.add(r, n)
			if r.columns == nil {
				r.columns = map[*graph.Node]bool{}
			}
			r.columns[n] = true
			break
		}
	}
}

// sumBeforeReshape sums the columns of values in the shape in which they are made:
//
//	y ─► Reshape ─┬─► MatMul             y ─┬─► Reshape ─► MatMul
//	              └─► Cast ─► Reduce  to    └─► Cast ─► Reduce ─►
//
// where the shapes have the same columns, and no other elementwise work is done in the later one.
func sumBeforeReshape(g *graph.Graph) error {
	if !slices.ContainsFunc(g.Nodes, graph.SumsColumns) {
		return nil
	}
	uses := g.Uses()
	b := graph.Extend(g)
	with := map[*graph.Node]*graph.Node{}
	works := func(n *graph.Node) bool { _, isRow := graph.RowAxes(n); return isRow || graph.Joins(n.Op) }
	for _, n := range g.Nodes {
		if axes, _ := graph.RowAxes(n); !graph.SumsColumns(n) || axes.Len() != n.Args[0].Type.Shape.Rank()-1 {
			continue
		}
		x, only := n.Args[0], n // what reads it
		cast, casts := x.Op.(graph.Cast)
		if casts {
			x, only = x.Args[0], x
		}
		if _, ok := x.Op.(graph.Reshape); !ok || casts && !uses.One(only) ||
			slices.ContainsFunc(uses.Readers(x), func(u *graph.Node) bool { return u != only && works(u) }) {
			continue
		}
		y := x.Args[0]
		last := y.Type.Shape.Rank() - 1
		if last < 1 || y.Type.Shape.At(last) != n.Type.Shape.Elems() || graph.IsSource(y.Op) || graph.IsView(y.Op) {
			continue
		}
		b.From(n).In(n.Phase)
		if casts {
			y = b.CastTo(cast.To, y)
		}
		rows := make([]int, last)
		for i := range rows {
			rows[i] = i
		}
		with[n] = b.Reshape(b.Reduce(graph.Sum, y, false, rows...), n.Type.Shape.Slice()...)
		with[n].Name = n.Name
	}
	if err := b.Err(); err != nil || len(with) == 0 {
		return err
	}
	g.Replace(with)
	return g.Tidy()
}

// add puts a node that fits into a region.
func (f *fuser) add(r *region, n *graph.Node) {
	f.order.join(r.root, n)
	f.in[n.ID] = r
	r.nodes = append(r.nodes, n)
	slices.SortFunc(r.nodes, func(a, b *graph.Node) int { return f.at[a.ID] - f.at[b.ID] })
}

// sumsAlong returns why region r cannot hand out the column sum n of a value that it makes, or "".
func (f *fuser) sumsAlong(r *region, n *graph.Node) string {
	x := n.Args[0]
	axes, _ := graph.RowAxes(n)
	kept := x.Type.Shape.Rank() - axes.Len() // axes
	switch {
	case x.Type.Shape != r.shape:
		return "it sums a value of another shape"
	case n.Type.DType != r.lane || graph.LaneOf(n) != r.lane:
		return "it sums in another type"
	case len(r.nodes) >= maxRegion:
		return "the launch is full"
	case r.anchor == graph.AnchorMatMul && kept == 1 || r.anchor == graph.AnchorConv && kept == 1 && f.sumsConv && isNHWC(r.root):
		return ""
	case r.anchor == graph.AnchorRow && r.trailing && r.axes.Len() == kept && !r.axes.Has(axes.Len()-1) && r.axes.Has(axes.Len()):
		return ""
	}
	return "the launch's rows are not those that it sums over"
}

// A ConvSummer is a target whose convolutions of images in NHWC hand out sums of each channel, too.
type ConvSummer interface{ SumsConvolutions() bool }

// isNHWC reports whether n is an operation on images in NHWC.
func isNHWC(n *graph.Node) bool {
	op, ok := n.Op.(graph.ImageOp)
	return ok && op.ImageLayout() == graph.NHWC
}

// missColumns records why region r does not hand out the column sum n.
func (f *fuser) missColumns(r *region, n *graph.Node) {
	reason := f.sumsAlong(r, n)
	if why := f.once.apart(r.root, n); why != nil {
		reason = why()
	}
	if reason == "" {
		reason = "its launch would depend on itself by another way"
	}
	f.ctx.Miss(f.kind(r).String(), n, reason, r.nodes)
}

// recompute takes out of contractions the elementwise work that reads values which are handed out anyway, and that is
// better done again where it is read: in a launch over rows, or in another contraction's epilogue, which takes it.
//
//	MatMul ─► Relu ─► h                 MatMul ─► Relu ─► h
//	             └─► Gt ─► mask    to
//	MatMul ─► Select(mask) ─► dx        MatMul ─► Select(Gt(h)) ─► dx
func (f *fuser) recompute() {
	for _, r := range f.regions {
		if r.anchor != graph.AnchorMatMul {
			continue
		}
		out := map[*graph.Node]bool{}
		for _, n := range slices.Backward(r.nodes) {
			out[n] = n != r.root && f.leaves(r, n, out)
		}
		left := slices.DeleteFunc(slices.Clone(r.nodes), func(n *graph.Node) bool { return !out[n] })
		f.drop(r, func(n *graph.Node) bool { return out[n] })
		for _, n := range slices.Backward(left) {
			if q := f.in[f.uses.Readers(n)[0].ID]; q != nil && f.onlyFor(q, n) && f.fits(q, n) == nil {
				f.add(q, n)
			}
		}
	}
}

// leaves reports whether n, of contraction r, is better computed where it is read. out is what has left already.
func (f *fuser) leaves(r *region, n *graph.Node, out map[*graph.Node]bool) bool {
	inside := func(u *graph.Node) bool { return f.in[u.ID] == r && !out[u] }
	outside := func(u *graph.Node) bool { return !inside(u) }
	handedOut := func(a *graph.Node) bool { // even if n stays
		return f.uses.Escapes(a) || slices.ContainsFunc(f.uses.Readers(a), func(u *graph.Node) bool { return u != n && !inside(u) })
	}
	if f.uses.Escapes(n) || slices.ContainsFunc(n.Args, func(a *graph.Node) bool { return inside(a) && !handedOut(a) }) {
		return false
	}
	var to *region // that reads it
	for i, u := range f.uses.Readers(n) {
		q := f.in[u.ID]
		if out[u] {
			q = nil
		}
		_, isRow := rowAxes(u)
		if q == r || !isRow && !graph.Joins(u.Op) || i > 0 && q != to {
			return false
		}
		if graph.SumsColumns(u) && f.sumsAlong(r, u) == "" && !slices.ContainsFunc(n.Args, outside) {
			return false // the sum stays, too, and reads nothing again
		}
		to = q
	}
	return to == nil || to.shape == n.Type.Shape && to.lane == graph.LaneOf(n)
}

// part takes nodes out of a row region that are linked with its root only by reading the same value, where they would be
// handed out in full to other work on such rows. So the backward of a norm computes the statistics that it needs again
// from a row that it reads anyway, and the forward does not keep them.
func (f *fuser) part(r *region) {
	if !r.trailing {
		return
	}
	linked := rewrite.Groups{}
	for _, n := range r.nodes {
		for _, a := range n.Args {
			if f.in[a.ID] == r {
				linked.Join(n, a)
			}
		}
	}
	full, bound := map[*graph.Node]bool{}, map[*graph.Node]bool{linked.Find(r.root): true}
	for _, n := range r.nodes {
		bound[linked.Find(n)] = bound[linked.Find(n)] || f.uses.Escapes(n)
		for _, u := range f.uses.Readers(n) {
			if f.in[u.ID] == r {
				continue
			}
			_, isRow := rowAxes(u)
			bound[linked.Find(n)] = bound[linked.Find(n)] || f.in[u.ID] != nil || !isRow && !graph.Joins(u.Op)
			full[linked.Find(n)] = full[linked.Find(n)] || n.Type.Shape == r.shape
		}
	}
	f.drop(r, func(n *graph.Node) bool { return full[linked.Find(n)] && !bound[linked.Find(n)] })
}

// drop takes nodes out of a region. Nothing that stays depends on them.
func (f *fuser) drop(r *region, out func(*graph.Node) bool) {
	var dropped []*graph.Node
	r.nodes = slices.DeleteFunc(r.nodes, func(n *graph.Node) bool {
		if !out(n) {
			return false
		}
		f.in[n.ID] = nil
		dropped = append(dropped, n)
		return true
	})
	if len(dropped) > 0 {
		f.order.split(r.root, dropped)
	}
}
