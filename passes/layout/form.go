package layout

import (
	"slices"
	"time"

	"fusec/graph"
	"fusec/passes/rewrite"
)

// toNHWC is the permutation that moves the channels of images of a rank behind their axes of space.
func toNHWC(rank int) graph.Ints {
	perm := append(make([]int, 0, graph.MaxRank), 0)
	for i := 2; i < rank; i++ {
		perm = append(perm, i)
	}
	return graph.IntsOf(append(perm, 1)...)
}

// toNCHW undoes [toNHWC].
func toNCHW(rank int) graph.Ints {
	perm := append(make([]int, 0, graph.MaxRank), 0, rank-1)
	for i := 1; i < rank-1; i++ {
		perm = append(perm, i)
	}
	return graph.IntsOf(perm...)
}

// axisIn is where an axis of images of a rank is in NHWC.
func axisIn(axis, rank int) int { return slices.Index(toNHWC(rank).Slice(), axis) }

// imageRank is the least rank of images: [n,c,l].
const imageRank = 3

// isImage reports whether a value may be images.
func isImage(n *graph.Node) bool { return n.Type.Shape.Rank() >= imageRank }

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
	args := graph.Types(n.Args)
	for i := range args {
		args[i] = turnedType(args[i], graph.OperandPerm(op, i, graph.NCHW, graph.NHWC))
	}
	return op.InLayout(graph.NHWC), args
}

// turnedType is a type under a Transpose.
func turnedType(t graph.Type, perm graph.Ints) graph.Type { return t.Reshaped(permuted(t.Shape, perm)) }

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
// side by side, unless the target packs them itself: once, or in each run what nothing else reads.
func (w *writer) filtersOf(n *graph.Node, op graph.ImageOp, f *graph.Node) *graph.Node {
	perm := graph.FilterPerm(graph.NCHW, graph.NHWC)
	t, ok := w.c.Target.(Packer)
	once := w.frozen.Get(f) || w.uses.One(f) && graph.Elementwise(f.Op)
	if once && ok && t.PacksFilters(op, turnedType(f.Type, perm)) {
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
	rank := n.Type.Shape.Rank()
	if inOrder(n.Type.Shape, toNHWC(rank)) {
		return func(w *writer, n *graph.Node) *graph.Node { return w.turned(w.asNCHW(n), toNHWC(rank)) }
	}
	switch op := n.Op.(type) {
	case graph.Transpose: // of what was in NHWC
		if op.Perm == toNCHW(rank) {
			return func(w *writer, n *graph.Node) *graph.Node { return w.asNCHW(n.Args[0]) }
		}
	case graph.Broadcast:
		return func(w *writer, n *graph.Node) *graph.Node {
			x := w.asNCHW(n.Args[0])
			if s := x.Type.Shape; s.Rank() > 0 {
				dims := append(slices.Repeat([]int{1}, rank-s.Rank()), s.Slice()...)
				x = w.turned(w.b.From(n).Reshape(x, dims...), toNHWC(rank))
			}
			return w.b.From(n).Broadcast(x, permuted(n.Type.Shape, toNHWC(rank)))
		}
	}
	return nil
}
