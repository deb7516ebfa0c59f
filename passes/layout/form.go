package layout

import (
	"slices"
	"time"

	"fusec/graph"
	"fusec/passes/rewrite"
)

// toNHWC and toNCHW are the permutations of conversions.
var (
	toNHWC = graph.ImagePerm(graph.NCHW, graph.NHWC)
	toNCHW = graph.ImagePerm(graph.NHWC, graph.NCHW)
)

// axisIn is where an axis of NCHW is in NHWC.
func axisIn(axis int) int { return slices.Index(toNHWC.Slice(), axis) }

// permuted is a shape under a Transpose.
func permuted(s graph.Shape, perm graph.Ints) graph.Shape {
	return graph.ShapeOf(inNHWC(s.Slice(), perm)...)
}

// inNHWC is a list of something for each axis under a permutation of the axes.
func inNHWC(list []int, perm graph.Ints) []int {
	r := make([]int, len(list))
	for i := range list {
		r[i] = list[perm.At(i)]
	}
	return r
}

// inOrder reports whether a Transpose leaves the elements of a value of shape s in their order.
func inOrder(s graph.Shape, perm graph.Ints) bool {
	last := -1
	for i := range perm.Len() {
		if s.At(perm.At(i)) == 1 {
			continue
		}
		if perm.At(i) < last {
			return false
		}
		last = perm.At(i)
	}
	return true
}

// A form is how an operation is computed in NHWC.
type form struct {
	image bool // the result is in NHWC, too; else it is the same in both layouts
	reads []bool
	time  [2]time.Duration // in NCHW and in NHWC
	own   time.Duration    // of converting filters
	build func(w *writer, args []*graph.Node) *graph.Node
}

// simple is the form of an operation whose operands of rank 4 are images: op in NHWC, with the other operands as they are.
func simple(n *graph.Node, op graph.Op) *form {
	f := &form{image: true, build: func(w *writer, args []*graph.Node) *graph.Node { return w.b.From(n).Add(op, args...) }}
	for _, a := range n.Args {
		f.reads = append(f.reads, a.Type.Shape.Rank() == 4)
	}
	return f
}

// formOf is how n can be computed in NHWC, or nil. The error is why the target computes an operation on images only in NCHW.
func (p *plan) formOf(n *graph.Node) (*form, error) {
	if op, ok := n.Op.(graph.ImageOp); ok {
		if op.ImageLayout() != graph.NCHW {
			return nil, nil
		}
		return p.imageForm(n, op)
	}
	if len(n.Args) == 0 || n.Args[0].Type.Shape.Rank() != 4 && !graph.Elementwise(n.Op) {
		return nil, nil
	}
	switch op := n.Op.(type) {
	case graph.Reduce:
		return p.reduceForm(n, op), nil
	case graph.Transpose:
		perm := make([]int, 4)
		for i := range perm {
			perm[i] = axisIn(op.Perm.At(i))
		}
		return &form{reads: []bool{true}, build: func(w *writer, args []*graph.Node) *graph.Node {
			return w.turned(args[0], graph.IntsOf(perm...))
		}}, nil
	case graph.BatchNorm:
		return p.batchNormForm(n), nil
	}
	if n.Type.Shape.Rank() != 4 {
		return nil, nil
	}
	switch op := n.Op.(type) {
	case graph.Copy:
		return simple(n, op), nil
	case graph.Concat:
		op.Axis = axisIn(op.Axis)
		return simple(n, op), nil
	case graph.Slice:
		op.Axis = axisIn(op.Axis)
		return simple(n, op), nil
	case graph.Unslice:
		op.Axis = axisIn(op.Axis)
		return simple(n, op), nil
	case graph.UpdateSlice:
		op.Axis = axisIn(op.Axis)
		return simple(n, op), nil
	case graph.Softmax:
		op.Axis = axisIn(op.Axis)
		return simple(n, op), nil
	case graph.LogSoftmax:
		op.Axis = axisIn(op.Axis)
		return simple(n, op), nil
	case graph.Pad:
		op.Lo, op.Hi = graph.IntsOf(inNHWC(op.Lo.Slice(), toNHWC)...), graph.IntsOf(inNHWC(op.Hi.Slice(), toNHWC)...)
		return simple(n, op), nil
	}
	if graph.Elementwise(n.Op) {
		return simple(n, n.Op), nil
	}
	return nil, nil
}

// timeOf is the time of an operation, if it is computed.
func (p *plan) timeOf(op graph.Op, args []graph.Type) (time.Duration, error) {
	results, err := graph.InfoOf(op).Infer(op, args)
	if err != nil {
		return refused, err
	}
	if err := p.c.Target.Accepts(op, args, results); err != nil {
		return refused, err
	}
	return p.cost.ImageTime(op, args, results), nil
}

// Accepts reports whether n is an operation on images in NCHW that the target computes in NHWC.
func Accepts(c *rewrite.Context, n *graph.Node) bool {
	op, ok := n.Op.(graph.ImageOp)
	if !ok || op.ImageLayout() != graph.NCHW || c.Target == nil {
		return false
	}
	to, args := typesInNHWC(n, op)
	results, err := graph.InfoOf(to).Infer(to, args)
	return err == nil && c.Target.Accepts(to, args, results) == nil
}

// typesInNHWC is an operation on images in NCHW in the other layout, with the types of its operands there.
func typesInNHWC(n *graph.Node, op graph.ImageOp) (graph.ImageOp, []graph.Type) {
	args := typesOf(n.Args)
	for i := range args {
		args[i] = turnedType(args[i], graph.OperandPerm(op, i, graph.NCHW, graph.NHWC))
	}
	return op.InLayout(graph.NHWC), args
}

func typesOf(args []*graph.Node) []graph.Type {
	types := make([]graph.Type, len(args))
	for i, a := range args {
		types[i] = a.Type
	}
	return types
}

// turnedType is a type under a Transpose.
func turnedType(t graph.Type, perm graph.Ints) graph.Type { return t.Reshaped(permuted(t.Shape, perm)) }

// imageForm is the form of an operation on images in NCHW.
func (p *plan) imageForm(n *graph.Node, op graph.ImageOp) (*form, error) {
	to, args := typesInNHWC(n, op)
	f := &form{image: op.FilterAt() != graph.FiltersOut}
	f.time[0], _ = p.timeOf(op, typesOf(n.Args))
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

// reduceForm is the form of a reduction of images whose result has its elements in the same order, or nil.
func (p *plan) reduceForm(n *graph.Node, op graph.Reduce) *form {
	var kept, axes []int // in the order of NHWC
	for i := range 4 {
		axis := toNHWC.At(i)
		if slices.Contains(op.Axes.Slice(), axis) {
			axes = append(axes, i)
		} else if n.Args[0].Type.Shape.At(axis) != 1 {
			kept = append(kept, axis)
		}
	}
	if !slices.IsSorted(kept) {
		return nil
	}
	to := op
	to.Axes, to.Keep = graph.IntsOf(axes...), false
	f := &form{reads: []bool{true}, build: func(w *writer, args []*graph.Node) *graph.Node {
		return w.b.From(n).Reshape(w.b.Add(to, args...), n.Type.Shape.Slice()...)
	}}
	args := typesOf(n.Args)
	f.time[0], _ = p.timeOf(op, args)
	f.time[1], _ = p.timeOf(to, []graph.Type{turnedType(args[0], toNHWC)})
	return f
}

// batchNormForm is a BatchNorm of rows, one for each pixel.
func (p *plan) batchNormForm(n *graph.Node) *form {
	s := n.Type.Shape
	rows := func(t graph.Type) graph.Type {
		return t.Reshaped(graph.ShapeOf(s.At(0)*s.At(2)*s.At(3), s.At(1)))
	}
	f := &form{image: true, reads: []bool{true, false, false, false, false}}
	args := typesOf(n.Args)
	f.time[0], _ = p.timeOf(n.Op, args)
	args[0] = rows(args[0])
	f.time[1], _ = p.timeOf(n.Op, args)
	f.build = func(w *writer, args []*graph.Node) *graph.Node {
		args[0] = w.b.From(n).Reshape(args[0], rows(n.Type).Shape.Slice()...)
		m := w.b.Add(n.Op, args...)
		m.Name = n.Name
		w.whole[n] = m
		w.c.Became(n, m)
		return w.b.Reshape(m, permuted(s, toNHWC).Slice()...)
	}
	return f
}

func isResult(n *graph.Node) bool { _, ok := n.Op.(graph.Result); return ok }

// turned is a value under a Transpose, as a Reshape if that moves nothing.
func (w *writer) turned(n *graph.Node, perm graph.Ints) *graph.Node {
	switch {
	case slices.IsSorted(perm.Slice()):
		return n
	case inOrder(n.Type.Shape, perm):
		if _, ok := n.Op.(graph.Reshape); ok {
			return w.b.From(n).Reshape(n.Args[0], permuted(n.Type.Shape, perm).Slice()...)
		}
		return w.b.From(n).Reshape(n, permuted(n.Type.Shape, perm).Slice()...)
	}
	return w.b.From(n).Add(graph.Transpose{Perm: perm}, n)
}

// filtersOf is the filters of an operation on images in NHWC. They are copied, since kernels read the channels of a filter
// side by side, unless the target reads them once and keeps them.
func (w *writer) filtersOf(n *graph.Node, op graph.ImageOp, f *graph.Node) *graph.Node {
	perm := graph.FilterPerm(graph.NCHW, graph.NHWC)
	t, ok := w.c.Target.(Packer)
	if w.frozen.Get(n.Args[op.FilterAt()]) && ok && t.PacksFilters(op, turnedType(f.Type, perm)) {
		return w.turned(f, perm)
	}
	k := w.filters[f]
	if k == nil {
		if k = w.turned(f, perm); graph.IsView(k.Op) && !inOrder(f.Type.Shape, perm) {
			k = w.b.Add(graph.Copy{}, k)
		}
		w.filters[f] = k
	}
	return k
}

// free is how to make the images n in NHWC without moving many elements, or nil.
func free(n *graph.Node) func(w *writer, n *graph.Node) *graph.Node {
	if inOrder(n.Type.Shape, toNHWC) {
		return func(w *writer, n *graph.Node) *graph.Node { return w.turned(w.asNCHW(n), toNHWC) }
	}
	switch op := n.Op.(type) {
	case graph.Transpose: // of what was in NHWC
		if op.Perm == toNCHW {
			return func(w *writer, n *graph.Node) *graph.Node { return w.asNCHW(n.Args[0]) }
		}
	case graph.Broadcast:
		return func(w *writer, n *graph.Node) *graph.Node {
			x := w.asNCHW(n.Args[0])
			if s := x.Type.Shape; s.Rank() > 0 {
				dims := append(slices.Repeat([]int{1}, 4-s.Rank()), s.Slice()...)
				x = w.turned(w.b.From(n).Reshape(x, dims...), toNHWC)
			}
			return w.b.From(n).Broadcast(x, permuted(n.Type.Shape, toNHWC))
		}
	}
	return nil
}
