package fuse

import (
	"slices"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/passes/rewrite"
)

// Three passes arrange views for [Regions].

// arrange visits the nodes in order, each with its operands replaced already, and puts what visit returns, unless that
// is nil, in the node's place.
func arrange(c *rewrite.Context, visit func(n *graph.Node) *graph.Node) error {
	g := c.Graph
	had := len(g.Nodes)
	with := map[*graph.Node]*graph.Node{}
	for _, n := range slices.Clone(g.Nodes) {
		for i, a := range n.Args {
			if k := with[a]; k != nil {
				n.Args[i] = k
			}
		}
		if k := visit(n); k != nil {
			with[n] = k
			c.Became(n, k)
		}
	}
	if len(g.Nodes) == had && len(with) == 0 {
		return nil
	}
	g.Replace(with)
	return g.Tidy()
}

// SinkReshapes moves a Reshape after a contraction below the elementwise work that follows it,
//
//	MatMul ─► Reshape ─► Add ─►   to   MatMul ─► Add ─► Reshape ─►
//
// where the other operands can be read in the contraction's shape, so that the work can join the contraction's launch. Elementwise
// work of which another operand is made, of values reshaped from that shape, is done in that shape, too. A cast to
// 16 bits moves above the reshape of any elementwise work, and a maximum of windows above the cast from 16 bits.
func SinkReshapes(c *rewrite.Context) error {
	g := c.Graph
	hot := graph.NewPerNode[bool](g) // contractions and the elementwise work on them
	uses := c.Uses()
	return arrange(c, func(n *graph.Node) *graph.Node {
		if a, _ := graph.AnchorOf(n.Op); a.Contracts() && !a.Whole() {
			hot.Set(n, true)
			return nil
		}
		if _, ok := n.Op.(graph.Reshape); ok && reshapes(n.Args[0], n.Type.Shape) && hot.Get(n.Args[0].Args[0]) {
			return n.Args[0].Args[0] // back where the work was
		}
		if k := poolOfHalf(c, n); k != nil {
			return k
		}
		if !graph.Elementwise(n.Op) {
			return nil
		}
		if k := castFirst(c, n, uses); k != nil {
			return k
		}
		var from *graph.Node
		for _, a := range n.Args {
			_, isReshape := a.Op.(graph.Reshape)
			switch {
			case hot.Get(a):
				hot.Set(n, true)
			case isReshape && hot.Get(a.Args[0]) && uses.One(a) && a.Type.Shape == n.Type.Shape:
				from = a.Args[0]
			}
		}
		if from == nil || hot.Get(n) {
			return nil
		}
		b := graph.Extend(g).From(n)
		args := make([]*graph.Node, len(n.Args))
		for i, a := range n.Args {
			args[i] = reshapedTo(b, a, from.Type.Shape, g, uses)
		}
		if slices.Contains(args, nil) {
			return nil
		}
		k := b.Add(n.Op, args...)
		k.Name = n.Name
		hot.Set(k, true)
		c.Match("sink-reshapes", trace.Exact, "", k)
		back := b.Reshape(k, n.Type.Shape.Slice()...)
		uses.Move(n, back)
		return back
	})
}

// poolOfHalf lets a maximum of windows, or its gradient, read values of 16 bits as they are, where the target can: their cast is
// not kept for it.
func poolOfHalf(c *rewrite.Context, n *graph.Node) *graph.Node {
	var op graph.PoolFn
	switch p := n.Op.(type) {
	case graph.Pool:
		op = p.Fn
	case graph.PoolGrad:
		op = p.Fn
	default:
		return nil
	}
	wide := n.Args[0]
	_, cast := wide.Op.(graph.Cast)
	if !cast || op != graph.MaxPool || wide.Type.DType != graph.F32 || !wide.Args[0].Type.DType.Is16() {
		return nil
	}
	args := append([]*graph.Node{wide.Args[0]}, n.Args[1:]...)
	if c.Target == nil || c.Accepts(n.Op, args...) != nil {
		return nil
	}
	b := graph.Extend(c.Graph).From(n)
	k := b.Add(n.Op, args...)
	c.Match("sink-reshapes", trace.Exact, "", k)
	back := b.CastTo(n.Type.DType, k)
	back.Name = n.Name
	return back
}

// castFirst puts a cast to 16 bits before the reshape that it reads, so that it joins the elementwise work that makes the value.
func castFirst(c *rewrite.Context, n *graph.Node, uses *graph.Uses) *graph.Node {
	op, ok := n.Op.(graph.Cast)
	if !ok || !op.To.Is16() {
		return nil
	}
	r := n.Args[0]
	if _, cast := r.Op.(graph.Cast); cast && r.Args[0].Type.DType == op.To {
		return r.Args[0] // it was cast from these very bits
	}
	if _, ok := r.Op.(graph.Reshape); !ok || !uses.One(r) || !graph.Elementwise(r.Args[0].Op) || !uses.One(r.Args[0]) {
		return nil
	}
	b := graph.Extend(c.Graph).From(n)
	k := b.CastTo(op.To, r.Args[0])
	c.Match("sink-reshapes", trace.Exact, "", k)
	back := b.Reshape(k, n.Type.Shape.Slice()...)
	back.Name = n.Name
	uses.Move(n, back)
	return back
}

// LiftTransposes moves a Transpose of joined values to what is joined,
//
//	a ─► Concat ─► Transpose ─►      a ─► Transpose ─► Concat ─►
//	b ──┘                        to  b ─► Transpose ──┘
//
// so that the launches that make a and b can store them transposed. All that reads the joined values transposes them in the same
// way, possibly after a Cast.
func LiftTransposes(c *rewrite.Context) error {
	g := c.Graph
	if !graph.Has[graph.Concat](g) {
		return nil
	}
	uses := c.Uses()
	lifted := map[*graph.Node]*graph.Node{} // by the Concat that it replaces
	return arrange(c, func(n *graph.Node) *graph.Node {
		t, ok := n.Op.(graph.Transpose)
		if !ok {
			return nil
		}
		cat := n.Args[0]
		cast, casts := cat.Op.(graph.Cast)
		if casts {
			cat = cat.Args[0]
		}
		op, ok := cat.Op.(graph.Concat)
		if !ok || !onlyTransposed(uses, cat, t, true) {
			return nil
		}
		k := lifted[cat]
		if k == nil {
			b := graph.Extend(g).From(cat, n)
			args := make([]*graph.Node, len(cat.Args))
			for i, a := range cat.Args {
				args[i] = b.Transpose(a, t.Perm.Slice()...)
			}
			k = b.Add(graph.Concat{Axis: slices.Index(t.Perm.Slice(), op.Axis)}, args...)
			lifted[cat] = k
			c.Match("lift-transposes", trace.Exact, "", k)
		}
		if casts {
			k = graph.Extend(g).From(n).CastTo(cast.To, k)
		}
		if k.Name == "" {
			k.Name = n.Name
		}
		return k
	})
}

// onlyTransposed reports whether all that reads a value is t, or if casts is set a Cast that only t reads.
func onlyTransposed(uses *graph.Uses, n *graph.Node, t graph.Transpose, casts bool) bool {
	readers := uses.Readers(n)
	return len(readers) > 0 && !uses.Escapes(n) && !slices.ContainsFunc(readers, func(r *graph.Node) bool {
		if _, cast := r.Op.(graph.Cast); cast && casts {
			return !onlyTransposed(uses, r, t, false)
		}
		return r.Op != graph.Op(t)
	})
}

// CopyFilters puts a Copy before the filters of a convolution where views separate the weights of one filter: a fused
// convolution of NCHW reads each filter as one row of a matrix.
func CopyFilters(c *rewrite.Context) error {
	if !graph.Has[graph.Conv2D](c.Graph) {
		return nil
	}
	return arrange(c, func(n *graph.Node) *graph.Node {
		if op, ok := n.Op.(graph.Conv2D); !ok || op.Layout != graph.NCHW {
			return nil
		}
		w := n.Args[1]
		s := w.Type.Shape
		_, _, at := strided(w, func(*graph.Node) bool { return false })
		if _, ok := at.Reshape(graph.ShapeOf(s.At(0), s.At(1)*s.At(2)*s.At(3))); !ok {
			n.Args[1] = graph.Extend(c.Graph).From(w).Add(graph.Copy{}, w)
			c.Match("copy-filters", trace.Exact, "", n.Args[1])
		}
		return nil
	})
}

// reshapedTo is the node a in shape s, or nil if reading it so would need a copy.
func reshapedTo(b *graph.Builder, a *graph.Node, s graph.Shape, g *graph.Graph, uses *graph.Uses) *graph.Node {
	if a.Type.Shape.Rank() == 0 {
		return a
	}
	if list := madeIn(a, s, uses); list != nil {
		return remake(list, s, g)
	}
	if reshapes(a, s) {
		return a.Args[0]
	}
	switch a.Op.(type) {
	case graph.Broadcast:
		if _, ok := graph.Contiguous(a.Args[0].Type.Shape).Broadcast(a.Type.Shape).Reshape(s); !ok {
			return nil
		}
	case graph.Transpose, graph.Slice:
		return nil
	}
	return b.Reshape(a, s.Slice()...)
}

// remake makes work that [madeIn] has listed in shape s, and returns its last value.
func remake(list []*graph.Node, s graph.Shape, g *graph.Graph) *graph.Node {
	made := map[*graph.Node]*graph.Node{}
	var k *graph.Node
	for _, n := range list {
		args := make([]*graph.Node, len(n.Args))
		for i, x := range n.Args {
			switch {
			case x.Type.Shape.Rank() == 0:
				args[i] = x
			case made[x] != nil:
				args[i] = made[x]
			default:
				args[i] = x.Args[0]
			}
		}
		k = graph.Extend(g).From(n).Add(n.Op, args...)
		k.Name = n.Name
		made[n] = k
	}
	return k
}

// madeIn lists the elementwise work of which a is made, on scalars and on values that are reshaped from shape s. Nothing else reads
// any of it, and a is read once. The list is nil if a is made of anything else, or of more than a launch takes.
func madeIn(a *graph.Node, s graph.Shape, uses *graph.Uses) (list []*graph.Node) {
	if !uses.One(a) {
		return nil
	}
	in := map[*graph.Node]bool{}
	var add func(n *graph.Node) bool
	add = func(n *graph.Node) bool {
		if in[n] {
			return true
		}
		if !graph.Elementwise(n.Op) || n != a && uses.Escapes(n) || len(in) == maxRegion {
			return false
		}
		in[n] = true
		for _, x := range n.Args {
			if x.Type.Shape.Rank() > 0 && !reshapes(x, s) && !add(x) {
				return false
			}
		}
		list = append(list, n)
		return true
	}
	if !add(a) || slices.ContainsFunc(list[:len(list)-1], func(n *graph.Node) bool {
		return slices.ContainsFunc(uses.Readers(n), func(u *graph.Node) bool { return !in[u] })
	}) {
		return nil
	}
	return list
}

// reshapes reports whether n is the Reshape of a value of shape s.
func reshapes(n *graph.Node, s graph.Shape) bool {
	_, ok := n.Op.(graph.Reshape)
	return ok && n.Args[0].Type.Shape == s
}
