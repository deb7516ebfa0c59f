package fuse

import (
	"fmt"
	"slices"

	"fusec/graph"
	"fusec/graph/trace"
)

// build replaces every region by its Fusion.
func (f *fuser) build() error {
	with := graph.NewPerNode[*graph.Node](f.g)
	outs := make([][]output, len(f.regions))
	for i, r := range f.regions {
		outs[i] = f.outputs(r)
		for _, o := range outs[i] {
			f.stored[o.stored.ID] = true
		}
	}
	for i, r := range f.regions {
		if err := f.emit(r, outs[i], &with); err != nil {
			return err
		}
	}
	f.g.Redirect(func(n *graph.Node) *graph.Node {
		if m := with.Get(n); m != nil {
			return m
		}
		return n
	})
	return f.g.Tidy()
}

// An output of a region: the value that is computed and the last of the views it is stored through.
type output struct {
	value  *graph.Node
	stored *graph.Node // value itself, or the end of a chain of store views
	views  []*graph.Node
}

// outputs lists the region's values that are read outside it, in graph order.
func (f *fuser) outputs(r *region) []output {
	var out []output
	for _, n := range r.nodes {
		outside := f.uses.Escapes(n) || n == r.root && r.whole() && !f.rounded(r) // whose operation always has its result
		for _, u := range f.uses.Readers(n) {
			outside = outside || f.in[u.ID] != r
		}
		if outside {
			out = append(out, f.storeViews(r, n))
		}
	}
	return out
}

// storeViews follows the only reader of value v as long as it is a Reshape or Transpose, and stores v through as much
// of the chain as it can, unless the readers at the end can take v through strides. Contractions and attentions that
// read v itself do not count: they take it from where it is stored, through the views' inverses.
func (f *fuser) storeViews(r *region, v *graph.Node) output {
	plain := output{value: v, stored: v}
	load, free := graph.Contiguous(v.Type.Shape), true
	var views []*graph.Node
	var strided []bool // whether v, stored as it is, has strides when seen from there
	end := v
	for !f.uses.Escapes(end) {
		u := f.storeView(r, end, end == v)
		if u == nil {
			break
		}
		if free {
			load, free = load.View(u)
		}
		end, views, strided = u, append(views, u), append(strided, free)
	}
	readable := !f.uses.Escapes(end)
	for _, u := range f.uses.Readers(end) {
		_, pads := u.Op.(graph.Pad) // which moves each element by itself
		readable = readable && (f.in[u.ID] != nil || graph.IsView(u.Op) || pads)
	}
	if free && (readable || load.IsContiguous()) {
		return plain
	}
	for n := len(views); n > 0 && (n == len(views) || !strided[n-1]); n-- {
		if r.storable(v, views[:n]) {
			return output{value: v, stored: views[n-1], views: views[:n]}
		}
	}
	return plain
}

// storeView returns the Reshape or Transpose that alone reads n, or nil. Further results of the region's operations are
// no readers; others may read n through strides if strided is set.
func (f *fuser) storeView(r *region, n *graph.Node, strided bool) *graph.Node {
	var view *graph.Node
	for _, u := range f.uses.Readers(n) {
		q := f.in[u.ID]
		switch u.Op.(type) {
		case graph.Result:
			if q == r {
				continue
			}
		case graph.Reshape, graph.Transpose:
			if q == nil && view == nil {
				view = u
				continue
			}
		}
		if !strided || q == nil || q == r || q.anchor != graph.AnchorMatMul && q.anchor != graph.AnchorAttention {
			return nil
		}
	}
	return view
}

// storable reports whether the buffer of the last of the views has strides when seen as v.
func (r *region) storable(v *graph.Node, views []*graph.Node) bool {
	at := graph.Contiguous(views[len(views)-1].Type.Shape)
	for i := len(views) - 1; i >= 0; i-- {
		var ok bool
		if at, ok = at.Invert(views[i]); !ok {
			return false
		}
	}
	if r.contracts() { // products are written a row at a time
		last := v.Type.Shape.Rank() - 1
		return at.Stride[last] == 1 || v.Type.Shape.At(last) == 1
	}
	return true
}

// emit makes the Fusion of a region and records what replaces its outputs.
func (f *fuser) emit(r *region, outs []output, with *graph.PerNode[*graph.Node]) error {
	body := graph.New("")
	bb := graph.Extend(body)
	inside := map[*graph.Node]*graph.Node{}

	// Inputs first: every operand from outside, seen through the views that cost nothing.
	var inputs, chains []*graph.Node
	seen := map[*graph.Node]bool{}
	for _, n := range r.nodes {
		for _, a := range n.Args {
			if f.in[a.ID] == r || seen[a] {
				continue
			}
			seen[a] = true
			base, views := f.loadViews(a)
			_, isConst := constScalar(base)
			if inside[base] == nil && (!isConst || n == r.root && r.contracts()) {
				in := bb.Add(graph.Input{Type: base.Type})
				in.Like(base)
				inside[base] = in
				inputs = append(inputs, base)
			}
			chains = append(chains, views...)
		}
	}
	copyIn := func(n *graph.Node) *graph.Node {
		args := make([]*graph.Node, len(n.Args))
		for i, a := range n.Args {
			if inside[a] == nil {
				if t, ok := constScalar(a); ok {
					c := bb.Const(t)
					c.Like(a)
					inside[a] = c
				}
			}
			args[i] = inside[a]
		}
		k := bb.Add(n.Op, args...)
		k.Like(n)
		inside[n] = k
		return k
	}
	for _, v := range chains {
		if inside[v] == nil {
			copyIn(v)
		}
	}
	for _, n := range r.nodes {
		copyIn(n)
	}
	for i, o := range outs {
		for _, v := range o.views {
			copyIn(v)
		}
		bb.Output(fmt.Sprint(i), inside[o.stored])
	}
	if err := bb.Err(); err != nil {
		return fmt.Errorf("fuse-regions at %s: %w", r.root.Where(), err)
	}
	if err := body.Tidy(); err != nil {
		return err
	}
	gb := graph.Extend(f.g).From(r.nodes...)
	if r.anchor != graph.AnchorNone {
		gb.In(r.root.Phase)
	}
	fusion := gb.Add(graph.Fusion{Anchor: r.anchor, Kind: f.kind(r), Body: body}, inputs...)
	if err := gb.Err(); err != nil {
		return fmt.Errorf("fuse-regions at %s: %w", r.root.Where(), err)
	}
	for _, n := range r.nodes {
		f.ctx.Became(n, fusion)
	}
	for i, o := range outs {
		v := fusion
		if i > 0 {
			v = gb.Add(graph.Result{Index: i}, fusion)
		}
		v.Name = o.value.Name
		if o.stored.Name != "" {
			v.Name = o.stored.Name
		}
		with.Set(o.stored, v)
		if o.stored != o.value && f.alsoRead(r, o) {
			with.Set(o.value, undo(gb, v, o.views))
		}
	}
	if len(r.nodes) > 1 || r.anchor != graph.AnchorNone {
		f.ctx.Match("fuse-regions", trace.Exact, f.kind(r).String(), fusion)
	}
	return gb.Err()
}

// alsoRead reports whether a value has readers outside its region beside the views that it is stored through.
func (f *fuser) alsoRead(r *region, o output) bool {
	return slices.ContainsFunc(f.uses.Readers(o.value), func(u *graph.Node) bool {
		return f.in[u.ID] != r && u != o.views[0]
	})
}

// undo inverts the chain of store views that ends in n.
func undo(b *graph.Builder, n *graph.Node, views []*graph.Node) *graph.Node {
	for _, v := range slices.Backward(views) {
		if t, ok := v.Op.(graph.Transpose); ok {
			n = b.Transpose(n, t.Inverse()...)
		} else {
			n = b.Reshape(n, v.Args[0].Type.Shape.Slice()...)
		}
	}
	return n
}

// constScalar returns the tensor of a constant of rank 0, which is part of a body and no input.
func constScalar(n *graph.Node) (*graph.Tensor, bool) {
	c, ok := n.Op.(graph.Const)
	if !ok || c.Value.Type.Shape.Rank() != 0 {
		return nil, false
	}
	return c.Value, true
}

// loadViews follows a chain of views up from a and returns the value at which a kernel starts to read, and the views
// from there to a that strides can express. A view that a region hands out is read like any other value.
func (f *fuser) loadViews(a *graph.Node) (base *graph.Node, views []*graph.Node) {
	base, views, _ = strided(a, func(n *graph.Node) bool { return f.stored[n.ID] })
	return base, views
}

// strided follows a chain of views up from a, as far as a node that is stored, and returns the last value on the way that
// strides cannot express, the views from there to a, and the layout of a in that value's memory.
func strided(a *graph.Node, stored func(*graph.Node) bool) (base *graph.Node, views []*graph.Node, at graph.Layout) {
	for base = a; graph.IsView(base.Op) && !stored(base); base = base.Args[0] {
		views = append(views, base)
	}
	slices.Reverse(views)
	at = graph.Contiguous(base.Type.Shape)
	start := 0
	for i, v := range views {
		next, ok := at.View(v)
		if !ok { // v has to be copied: read from there
			base, start, next = v, i+1, graph.Contiguous(v.Type.Shape)
		}
		at = next
	}
	return base, views[start:], at
}

// kind says what the region is to the user.
func (f *fuser) kind(r *region) graph.Kind {
	kind := graph.KindOf(r.root.Op)
	for _, n := range r.nodes {
		switch k := graph.KindOf(n.Op); {
		case r.anchor == graph.AnchorMatMul && slices.ContainsFunc(n.Args, f.isWeight):
			return graph.KindLinear
		case r.anchor != graph.AnchorRow:
		case k == graph.KindSoftmax:
			return k
		case k == graph.KindNorm:
			kind = k
		}
	}
	return kind
}

// isWeight reports whether n is a parameter, perhaps seen through views, or several that are stacked.
func (f *fuser) isWeight(n *graph.Node) bool {
	base, _ := f.loadViews(n)
	if _, ok := base.Op.(graph.Concat); ok {
		return !slices.ContainsFunc(base.Args, func(a *graph.Node) bool { return !f.isWeight(a) })
	}
	_, ok := base.Op.(graph.Param)
	return ok
}

// report records, for every value that leaves a contraction or a row and is read by elementwise work elsewhere, why
// that work did not join.
func (f *fuser) report() {
	for _, r := range f.regions {
		if r.anchor == graph.AnchorNone {
			continue
		}
		for _, n := range r.nodes {
			for _, u := range f.uses.Readers(n) {
				if graph.SumsColumns(u) && f.in[u.ID] != r && r.anchor != graph.AnchorAttention {
					f.missColumns(r, u)
					continue
				}
				if q := f.in[u.ID]; q == r || q != nil && q.anchor != graph.AnchorNone || !graph.Joins(u.Op) {
					continue // it has found a launch
				}
				reason := f.fits(r, u)
				if reason == nil {
					reason = because("the launch already holds %d operations", len(r.nodes))
				}
				f.ctx.Miss(f.kind(r).String(), u, reason(), r.nodes)
			}
		}
	}
}
