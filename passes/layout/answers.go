package layout

import (
	"slices"
	"time"

	"fusec/graph"
)

// A form is how an operation is computed in NHWC.
type form struct {
	image  bool          // the result is in NHWC, too; else it is the same in both layouts
	args   []*graph.Node // what it reads; nil: its operands
	reads  []bool        // which of these are images in NHWC
	planes bool          // it reads these as they lie in NCHW, too
	rounds bool          // it may round otherwise
	time   [2]time.Duration
	own    time.Duration // of converting filters
	build  func(w *writer, args []*graph.Node) *graph.Node
}

// A former finds how n can be computed in NHWC, or nil. The error is why the target computes an operation on images only in
// NCHW.
type former func(p *plan, n *graph.Node) (*form, error)

// forms has the formers of operations of which the row does not say it all; see [plan.formOf].
var forms = graph.NewAnswers[former]("the pass layout")

func init() {
	for _, f := range []struct {
		former former
		names  []string
	}{
		{imageForm, []string{"conv2d", "conv2d_transpose", "conv2d_filter_grad", "pool", "pool_grad"}},
		{same, []string{"copy", "all_reduce", "permute", "broadcast_from"}},
		{byIndex, []string{"gather", "scatter_add"}},
		{padForm, []string{"pad"}},
		{reduceForm, []string{"reduce"}},
		{transposeForm, []string{"transpose"}},
		{reshapeForm, []string{"reshape"}},
		{broadcastForm, []string{"broadcast"}},
		{batchNormForm, []string{"batch_norm"}},
		{groupNormForm, []string{"group_norm"}},
		{dropoutForm, []string{"dropout"}},
		{flattenedForm, []string{"matmul"}},
	} {
		for _, name := range f.names {
			forms.Add(name, f.former)
		}
	}
	forms.Rest("it is computed as it is")
	if err := forms.Check(); err != nil {
		panic(err)
	}
}

// formOf is how n can be computed in NHWC; see [former]. The choice of layouts stops at operations of which it is not known.
func (p *plan) formOf(n *graph.Node) (*form, error) {
	if f, ok := forms.Lookup(n.Op); ok {
		return f(p, n)
	}
	if graph.Elementwise(n.Op) {
		return same(p, n)
	}
	if _, ok := graph.AxisOf(n.Op); ok {
		return along(p, n)
	}
	return nil, nil
}

// as is the form of an operation whose operands of an image's rank are images: op in NHWC, with the other operands as they
// are.
func as(n *graph.Node, op graph.Op) *form {
	f := &form{image: true, build: func(w *writer, args []*graph.Node) *graph.Node { return w.b.From(n).Add(op, args...) }}
	for _, a := range n.Args {
		f.reads = append(f.reads, isImage(a))
	}
	return f
}

// same is the form of an operation on elements.
func same(_ *plan, n *graph.Node) (*form, error) {
	if !isImage(n) {
		return nil, nil
	}
	return as(n, n.Op), nil
}

// along is the form of an operation with an attribute Axis.
func along(_ *plan, n *graph.Node) (*form, error) {
	if !isImage(n) {
		return nil, nil
	}
	return as(n, graph.ReplaceAxis(n.Op, func(axis int) int { return axisIn(axis, n.Type.Shape.Rank()) })), nil
}

// byIndex is the form of an operation that a list of indices moves along an axis.
func byIndex(p *plan, n *graph.Node) (*form, error) {
	for _, a := range n.Args {
		if !isImage(a) && a.Type.Shape.Rank() != 1 {
			return nil, nil
		}
	}
	if x := n.Args[0]; isImage(x) == isImage(n.Args[1]) {
		return nil, nil // indices with as many axes as images
	}
	return along(p, n)
}

func padForm(_ *plan, n *graph.Node) (*form, error) {
	if !isImage(n) {
		return nil, nil
	}
	op, perm := n.Op.(graph.Pad), toNHWC(n.Type.Shape.Rank())
	op.Lo, op.Hi = graph.IntsOf(inNHWC(op.Lo.Slice(), perm)...), graph.IntsOf(inNHWC(op.Hi.Slice(), perm)...)
	f := as(n, op)
	f.planes = true // it moves all elements in any case
	return f, nil
}

// imageForm is the form of an operation on images in NCHW.
func imageForm(p *plan, n *graph.Node) (*form, error) {
	op := n.Op.(graph.ImageOp)
	if op.ImageLayout() != graph.NCHW {
		return nil, nil
	}
	to, args := typesInNHWC(n, op)
	f := &form{image: op.FilterAt() != graph.FiltersOut, rounds: true}
	f.time[0], _ = p.timeOf(op, graph.Types(n.Args))
	for i, a := range n.Args {
		f.reads = append(f.reads, i != op.FilterAt())
		if !f.reads[i] && !p.frozen.Get(a) {
			f.own = p.moving(a.Type, graph.FilterPerm(graph.NCHW, graph.NHWC))
		}
	}
	var err error
	if f.time[1], err = p.timeOf(to, args); err != nil {
		return nil, err
	}
	if t, ok := p.c.Target.(PlanesReader); ok && f.image && op.FilterAt() >= 0 && p.frozen.Get(n.Args[op.FilterAt()]) {
		f.planes = t.ReadsPlanes(to, args)
	}
	back := graph.OperandPerm(op, graph.FiltersOut, graph.NHWC, graph.NCHW)
	if !f.image {
		f.own = p.moving(turnedType(n.Type, graph.FilterPerm(graph.NCHW, graph.NHWC)), back)
	}
	f.build = func(w *writer, args []*graph.Node) *graph.Node {
		if i := op.FilterAt(); i >= 0 {
			args[i] = w.filtersOf(n, op, args[i])
		}
		m := w.b.From(n).Add(to, args...)
		if !f.image {
			m = w.turned(m, back)
		}
		return m
	}
	return f, nil
}

// reduceForm is the form of a reduction of images to images, or to what has its elements in the same order.
func reduceForm(p *plan, n *graph.Node) (*form, error) {
	x, op := n.Args[0].Type, n.Op.(graph.Reduce)
	if !isImage(n.Args[0]) {
		return nil, nil
	}
	perm := toNHWC(x.Shape.Rank())
	var kept, axes []int // in the order of NHWC
	for i := range perm.Len() {
		axis := perm.At(i)
		if op.Axes.Has(axis) {
			axes = append(axes, i)
		} else if x.Shape.At(axis) != 1 {
			kept = append(kept, axis)
		}
	}
	to := op
	to.Axes = graph.IntsOf(axes...)
	f := &form{reads: []bool{true}}
	switch {
	case slices.IsSorted(kept):
		to.Keep = false
		f.build = func(w *writer, args []*graph.Node) *graph.Node {
			return w.b.From(n).Reshape(w.b.Add(to, args...), n.Type.Shape.Slice()...)
		}
	case isImage(n) && !op.Axes.Has(0) && !op.Axes.Has(1):
		f.image = true
		f.build = func(w *writer, args []*graph.Node) *graph.Node { return w.b.From(n).Add(to, args...) }
	default:
		return nil, nil
	}
	f.time[0], _ = p.timeOf(op, []graph.Type{x})
	f.time[1], _ = p.timeOf(to, []graph.Type{turnedType(x, perm)})
	return f, nil
}

func transposeForm(_ *plan, n *graph.Node) (*form, error) {
	if !isImage(n) {
		return nil, nil
	}
	op := n.Op.(graph.Transpose)
	perm := make([]int, op.Perm.Len())
	for i := range perm {
		perm[i] = axisIn(op.Perm.At(i), len(perm))
	}
	return &form{reads: []bool{true}, build: func(w *writer, args []*graph.Node) *graph.Node {
		return w.turned(args[0], graph.IntsOf(perm...))
	}}, nil
}

// reshapeForm is the form of a reshape of the axes of space alone.
func reshapeForm(_ *plan, n *graph.Node) (*form, error) {
	from, to := n.Args[0].Type.Shape, n.Type.Shape
	if !isImage(n) || !isImage(n.Args[0]) || from.At(0) != to.At(0) || from.At(1) != to.At(1) {
		return nil, nil
	}
	return as(n, graph.Reshape{Shape: permuted(to, toNHWC(to.Rank()))}), nil
}

// broadcastForm is the form of a broadcast of images, such as those that become larger; others are free.
func broadcastForm(p *plan, n *graph.Node) (*form, error) {
	x, s := n.Args[0], n.Type.Shape
	if k := p.at.Get(x); k == nil || !k.image || x.Type.Shape.Rank() != s.Rank() {
		return nil, nil
	}
	return as(n, graph.Broadcast{Shape: permuted(s, toNHWC(s.Rank()))}), nil
}

// batchNormForm is a BatchNorm of rows, one for each pixel.
func batchNormForm(p *plan, n *graph.Node) (*form, error) {
	if !isImage(n) {
		return nil, nil
	}
	s := n.Type.Shape
	rows := func(t graph.Type) graph.Type {
		outer, c, inner := s.Around(1, 1)
		return t.Reshaped(graph.ShapeOf(outer*inner, c))
	}
	f := &form{image: true, reads: []bool{true, false, false, false, false}}
	args := graph.Types(n.Args)
	f.time[0], _ = p.timeOf(n.Op, args)
	args[0] = rows(args[0])
	f.time[1], _ = p.timeOf(n.Op, args)
	f.build = func(w *writer, args []*graph.Node) *graph.Node {
		args[0] = w.b.From(n).Reshape(args[0], rows(n.Type).Shape.Slice()...)
		m := w.b.Add(n.Op, args...)
		m.Name = n.Name
		w.whole[n] = m
		w.c.Became(n, m)
		return w.b.Reshape(m, permuted(s, toNHWC(s.Rank())).Slice()...)
	}
	return f, nil
}

// groupNormForm is a GroupNorm by the means of each channel of an image, of which those of the groups are made.
func groupNormForm(p *plan, n *graph.Node) (*form, error) {
	op, s := n.Op.(graph.GroupNorm), n.Type.Shape
	if !isImage(n) || n.Type.DType.Is16() || s.Elems() == 0 {
		return nil, nil
	}
	rank, count, c := s.Rank(), s.At(0), s.At(1)
	turned := permuted(s, toNHWC(rank))
	var space []int
	for i := 1; i < rank-1; i++ {
		space = append(space, i)
	}
	f := &form{image: true, reads: []bool{true, false, false}, rounds: true}
	f.time[0], _ = p.timeOf(op, graph.Types(n.Args))
	mean := graph.Reduce{Fn: graph.Mean, Axes: graph.IntsOf(space...)}
	once, _ := p.timeOf(mean, []graph.Type{n.Type.Reshaped(turned)})
	f.time[1] = 2*once + 2*f.time[0] // a kernel of its own reads and writes less often
	f.build = func(w *writer, args []*graph.Node) *graph.Node {
		b, x := w.b.From(n), args[0]
		means := func(x *graph.Node) *graph.Node { // [n,c]
			m := b.Add(mean, x)
			if op.Groups == c {
				return m
			}
			grouped := graph.ShapeOf(count, op.Groups, c/op.Groups)
			m = b.Broadcast(b.Reduce(graph.Mean, b.Reshape(m, grouped.Slice()...), true, 2), grouped)
			return b.Reshape(m, count, c)
		}
		spread := func(m *graph.Node) *graph.Node {
			return b.Broadcast(b.Reshape(m, slices.Concat([]int{count}, slices.Repeat([]int{1}, rank-2), []int{c})...), turned)
		}
		d := b.Binary(graph.Sub, x, spread(means(x)))
		r := b.Unary(graph.Rsqrt, b.BinaryScalar(graph.Add, means(b.Unary(graph.Square, d)), op.Eps))
		y := b.Binary(graph.Mul, d, spread(b.Binary(graph.Mul, r, b.Broadcast(args[1], r.Type.Shape))))
		return b.Binary(graph.Add, y, b.Broadcast(args[2], turned))
	}
	return f, nil
}

// dropoutForm draws as in NCHW, where an element's place decides.
func dropoutForm(p *plan, n *graph.Node) (*form, error) {
	if !isImage(n) {
		return nil, nil
	}
	perm := toNHWC(n.Type.Shape.Rank())
	if inOrder(n.Type.Shape, perm) {
		return as(n, n.Op), nil
	}
	return &form{image: true, reads: []bool{true, false}, own: p.moving(n.Type, perm), rounds: true,
		build: func(w *writer, args []*graph.Node) *graph.Node {
			b, zero := w.b.From(n), w.b.Scalar(n.Type.DType, 0)
			kept := b.Add(n.Op, b.Broadcast(b.Scalar(n.Type.DType, 1), n.Type.Shape), args[1])
			kept = b.Add(graph.Copy{}, b.Add(graph.Transpose{Perm: perm}, kept))
			return b.Add(graph.Select{}, b.Binary(graph.Gt, kept, zero), b.Binary(graph.Mul, args[0], kept), zero)
		}}, nil
}

// flattenedForm is the form of a product of flattened images with a frozen matrix, whose rows take the order of NHWC.
func flattenedForm(p *plan, n *graph.Node) (*form, error) {
	op, flat, matrix := n.Op.(graph.MatMul), n.Args[0], n.Args[1]
	r, ok := flat.Op.(graph.Reshape)
	if !ok || op.TransA || r.Shape.Rank() != 2 || matrix.Type.Shape.Rank() != 2 || !p.frozen.Get(matrix) {
		return nil, nil
	}
	x := flat.Args[0]
	if !isImage(x) || x.Type.Shape.At(0) != r.Shape.At(0) || len(p.uses.Readers(flat)) != 1 || p.uses.Escapes(flat) ||
		inOrder(x.Type.Shape, toNHWC(x.Type.Shape.Rank())) {
		return nil, nil
	}
	p.through[flat] = n
	dims := x.Type.Shape.Slice()[1:] // of the matrix: channels, space, and the axis that is not flattened, first or last
	perm := toNHWC(len(dims) + 1).Slice()[1:]
	if op.TransB {
		dims, perm = slices.Insert(dims, 0, matrix.Type.Shape.At(0)), slices.Insert(perm, 0, 0)
	} else {
		for i := range perm {
			perm[i]--
		}
		dims, perm = append(dims, matrix.Type.Shape.At(1)), append(perm, len(dims))
	}
	return &form{args: []*graph.Node{x, matrix}, reads: []bool{true, false}, rounds: true,
		build: func(w *writer, args []*graph.Node) *graph.Node {
			b := w.b.From(n)
			m := b.Transpose(b.Reshape(args[1], dims...), perm...)
			m = b.Reshape(b.Add(graph.Copy{}, m), matrix.Type.Shape.Slice()...)
			return b.Add(op, b.Reshape(args[0], r.Shape.Slice()...), m)
		}}, nil
}
