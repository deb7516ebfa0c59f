package raise

import (
	"slices"

	"fusec/graph"
	"fusec/graph/trace"
	pat "fusec/passes/pattern"
)

// convPatterns find convolutions that were written with other operations. First, as a matrix product of patches:
//
//	x ─ im2col ─ reshape[n·h·w, c·kh·kw] ─┐
//	                                    matmul(transB) ─ reshape[n,h,w,o] ─ transpose[0,3,1,2] ─►      x ─ conv2d ─►
//	f ─ reshape[o, c·kh·kw] ──────────────┘                                                        f ─┘
//
// The Transpose is absent where there is one filter or one position only. Where the product is used in another form, it is
// a transposed convolution's result. Second, as a product of filters and pixels:
//
//	f[o,c] ─────────────────────┐
//	x ─ reshape[n, c, h·w] ─ matmul ─ reshape[n,o,h,w] ─►      x ─ conv2d ─►   with filters of 1×1
//
// Third, by channels, as the sum of the products of patches and one filter for each channel:
//
//	x ─ im2col ─ reshape[n·h·w, c, kh·kw] ─ ⊙ ─ Σ[2] ─►      x ─ conv2d(groups=c) ─ transpose[0,2,3,1] ─ reshape[n·h·w, c] ─►
//	f[c, kh·kw] ─ broadcast ────────────────┘
//
// Fourth, group by group:
//
//	x ─┬ slice[c] ─ conv2d ─ concat[c] ─►      x ─ conv2d(groups) ─►
//	   └ slice[c] ─ conv2d ─┘
//
// And a mean, a sum or a maximum over the pixels of an image in a row is one over its height and width, as in a global
// pool:
//
//	x ─ reshape[n, c, h·w] ─ mean[2] ─►      x ─ mean[2,3] ─►
var convPatterns = []raising{
	{name: "conv2d", doc: "patches of an image times filters", numeric: trace.Reassociated, expr: pat.Or(
		pat.Is("a transpose from n,h,w,c to n,c,h,w", func(op graph.Transpose) bool { return op.Perm == graph.IntsOf(0, 3, 1, 2) },
			pat.Op("reshape", patchProduct)),
		pat.Op("reshape", patchProduct)),
		kind: "conv2d", make: makeConv},
	{name: "conv2d-rows", doc: "patches of an image times filters, as rows or columns", numeric: trace.Reassociated, expr: pat.Or(
		patchProduct,
		pat.Is("a product of filters with transposed patches", func(op graph.MatMul) bool { return op.TransB },
			pat.Capture("filters", pat.Any()), rows)),
		kind: "conv2d", make: makeConvRows},
	{name: "conv2d-pointwise", doc: "filters times the pixels of images", numeric: trace.Reassociated,
		expr: pat.Op("reshape", pat.Capture("product",
			pat.Is("a product with untransposed pixels", func(op graph.MatMul) bool { return !op.TransB },
				pat.Capture("filters", pat.Any()), pat.Op("reshape", pat.Capture("x", pat.Any()))))),
		kind: "conv2d", make: makePointwise},
	{name: "conv2d-channels", doc: "sums of products of patches with a filter for each channel", numeric: trace.Reassociated,
		expr: pat.Capture("sum", pat.Reduce(graph.Sum, pat.Commute(graph.Mul,
			pat.OneUse(pat.Op("reshape", pat.Key(pat.Capture("patches", pat.Op("im2col", pat.Same("x")))))),
			pat.Capture("filters", pat.Any())))),
		kind: "conv2d", make: makeChannels},
	{name: "conv2d-groups", doc: "convolutions of parts of the channels, joined", numeric: trace.Reassociated,
		expr: pat.Where("convolutions of successive channels", func(_ *pat.Match, n *graph.Node) bool { return groupsOf(n) != nil },
			pat.Is("channels joined", func(op graph.Concat) bool { return op.Axis == 1 })),
		kind: "conv2d", make: makeGroups},
	{name: "global-pool", doc: "a reduction over the pixels of images in a row", numeric: trace.Reassociated,
		expr: pat.Capture("reduction", pat.Is("a reduction over the last axis",
			func(op graph.Reduce) bool { return op.Axes == graph.IntsOf(2) },
			pat.OneUse(pat.Op("reshape", pat.Capture("x", pat.Any()))))),
		kind: "reduce", make: makeGlobalPool},
}

var (
	patches      = pat.Key(pat.Capture("patches", pat.Op("im2col", pat.Same("x"))))
	rows         = pat.Capture("rows", pat.Or(pat.Op("reshape", patches), patches))
	patchProduct = pat.Capture("product", pat.Is("a product of patches with filters",
		func(op graph.MatMul) bool { return !op.TransA },
		rows, pat.Capture("filters", pat.Any())))
)

// convOf is the convolution of the captured patches with filters [o, k], or [k, o] if they are columns; nil if these are
// of another shape.
func convOf(b *graph.Builder, m *pat.Match, f *graph.Node, columns bool) *graph.Node {
	x, patches := m.Get("x"), m.Get("patches")
	fs, k := f.Type.Shape, patches.Type.Shape.At(3)
	if fs.Rank() != 2 {
		return nil
	}
	o, length := fs.At(0), fs.At(1)
	if columns {
		o, length = length, o
	}
	if length != k {
		return nil
	}
	if columns {
		f = b.Transpose(f, 1, 0)
	} else if _, ok := f.Op.(graph.Reshape); ok {
		f = f.Args[0] // most often the filters as they were
	}
	col := patches.Op.(graph.Im2Col)
	w := b.Reshape(f, o, x.Type.Shape.At(1), col.Kernel.At(0), col.Kernel.At(1))
	return b.Add(graph.Conv2D{Stride: col.Stride, Dilation: col.Dilation, Pad: col.Pad, Groups: 1}, x, w)
}

func makeConv(b *graph.Builder, m *pat.Match) *graph.Node {
	p, out := m.Get("patches").Type.Shape, m.Root.Type.Shape
	if out.Rank() != 4 || m.Get("rows").Type.Shape.Rank() != 2 || out != graph.ShapeOf(p.At(0), out.At(1), p.At(1), p.At(2)) {
		return nil
	}
	if _, ok := m.Root.Op.(graph.Reshape); ok && out.At(1) != 1 && p.At(1)*p.At(2) != 1 {
		return nil // the same shape, but other elements
	}
	return convOf(b, m, m.Get("filters"), !m.Get("product").Op.(graph.MatMul).TransB)
}

// makeConvRows gives the convolution's result the order of the product.
func makeConvRows(b *graph.Builder, m *pat.Match) *graph.Node {
	op, p, r := m.Root.Op.(graph.MatMul), m.Get("patches").Type.Shape, m.Get("rows").Type.Shape
	rank := r.Rank()
	if r.At(rank-1) != p.At(3) {
		return nil
	}
	filters := m.Get("filters")
	if m.Root.Args[0] == m.Get("rows") {
		y := convOf(b, m, filters, !op.TransB)
		if y == nil {
			return nil
		}
		return b.Reshape(b.Transpose(y, 0, 2, 3, 1), m.Root.Type.Shape.Slice()...)
	}
	if rank != 2 && (rank != 3 || r.At(0) != p.At(0)) {
		return nil
	}
	y := convOf(b, m, filters, op.TransA)
	if y == nil {
		return nil
	}
	if rank == 2 {
		y = b.Transpose(y, 1, 0, 2, 3)
	}
	return b.Reshape(y, m.Root.Type.Shape.Slice()...)
}

// becomesImage reports whether the pattern conv2d fits a product with what reads it.
func becomesImage(u *graph.Uses, m *pat.Match) bool {
	p, n := m.Get("patches").Type.Shape, m.Root
	if n.Args[0] != m.Get("rows") || n.Type.Shape.Rank() != 2 {
		return false
	}
	o := n.Type.Shape.At(1)
	for _, r := range u.Readers(n) {
		if _, ok := r.Op.(graph.Reshape); !ok {
			continue
		}
		if r.Type.Shape == graph.ShapeOf(p.At(0), o, p.At(1), p.At(2)) && (o == 1 || p.At(1)*p.At(2) == 1) {
			return true
		}
		if r.Type.Shape == graph.ShapeOf(p.At(0), p.At(1), p.At(2), o) &&
			slices.ContainsFunc(u.Readers(r), func(t *graph.Node) bool {
				return t.Op == graph.Op(graph.Transpose{Perm: graph.IntsOf(0, 3, 1, 2)})
			}) {
			return true
		}
	}
	return false
}

func makePointwise(b *graph.Builder, m *pat.Match) *graph.Node {
	x, f, product := m.Get("x"), m.Get("filters"), m.Get("product")
	s, out, pixels := x.Type.Shape, m.Root.Type.Shape, product.Args[1].Type.Shape
	if s.Rank() != 4 || f.Type.Shape.Rank() != 2 || out.Rank() != 4 {
		return nil
	}
	n, c, area := s.At(0), s.At(1), s.At(2)*s.At(3)
	if area < 2 || pixels != graph.ShapeOf(n, c, area) && (n != 1 || pixels != graph.ShapeOf(c, area)) {
		return nil
	}
	if product.Op.(graph.MatMul).TransA {
		f = b.Transpose(f, 1, 0)
	}
	o := f.Type.Shape.At(0)
	if out != graph.ShapeOf(n, o, s.At(2), s.At(3)) {
		return nil
	}
	one := graph.IntsOf(1, 1)
	return b.Add(graph.Conv2D{Stride: one, Dilation: one, Pad: graph.IntsOf(0, 0, 0, 0), Groups: 1}, x, b.Reshape(f, o, c, 1, 1))
}

func makeChannels(b *graph.Builder, m *pat.Match) *graph.Node {
	x, patches, f, sum := m.Get("x"), m.Get("patches"), m.Get("filters"), m.Get("sum")
	col, p, s, axes := patches.Op.(graph.Im2Col), patches.Type.Shape, sum.Args[0].Type.Shape, sum.Op.(graph.Reduce).Axes
	c, k, last := x.Type.Shape.At(1), col.Kernel.At(0)*col.Kernel.At(1), s.Rank()-1
	if last < 1 || axes != graph.IntsOf(last) || s.At(last) != k || s.At(last-1) != c || f.Type.Shape != s {
		return nil
	}
	if _, ok := f.Op.(graph.Broadcast); ok {
		f = f.Args[0]
	}
	fs := f.Type.Shape
	if fs.Rank() < 2 || fs.Elems() != c*k || fs.At(fs.Rank()-1) != k || fs.At(fs.Rank()-2) != c {
		return nil
	}
	op := graph.Conv2D{Stride: col.Stride, Dilation: col.Dilation, Pad: col.Pad, Groups: c}
	y := b.Add(op, x, b.Reshape(f, c, 1, col.Kernel.At(0), col.Kernel.At(1)))
	if p.Elems() == 0 {
		return nil
	}
	return b.Reshape(b.Transpose(y, 0, 2, 3, 1), m.Root.Type.Shape.Slice()...)
}

// groupsOf lists the convolutions that n joins if they are those of successive parts of one image's channels, with filters
// and options alike; else it is nil.
func groupsOf(n *graph.Node) []*graph.Node {
	if len(n.Args) < 2 {
		return nil
	}
	first := n.Args[0]
	op, ok := first.Op.(graph.Conv2D)
	if !ok || op.Layout != graph.NCHW {
		return nil
	}
	at := 0
	var x *graph.Node
	for _, y := range n.Args {
		if y.Op != first.Op || y.Args[1].Type != first.Args[1].Type {
			return nil
		}
		from, start, ok := part(y.Args[0], 1)
		if !ok || start != at || x != nil && from != x {
			return nil
		}
		x, at = from, at+y.Args[0].Type.Shape.At(1)
	}
	if at != x.Type.Shape.At(1) {
		return nil
	}
	return n.Args
}

// part is the node of which n is a slice along an axis of successive elements, and where the slice starts.
func part(n *graph.Node, axis int) (of *graph.Node, start int, ok bool) {
	op, isSlice := n.Op.(graph.Slice)
	if !isSlice || op.Axis != axis || op.Step != 1 && op.Size > 1 {
		return nil, 0, false
	}
	v, isConst := n.Args[1].ConstScalar()
	return n.Args[0], int(v), isConst
}

func makeGroups(b *graph.Builder, m *pat.Match) *graph.Node {
	convs := groupsOf(m.Root)
	op := convs[0].Op.(graph.Conv2D)
	op.Groups *= len(convs)
	x, _, _ := part(convs[0].Args[0], 1)
	filters := make([]*graph.Node, len(convs))
	at := 0
	whole, _, _ := part(convs[0].Args[1], 0)
	for i, y := range convs {
		m.Covered = append(m.Covered, y)
		filters[i] = y.Args[1]
		if of, start, ok := part(y.Args[1], 0); !ok || of != whole || start != at {
			whole = nil
		}
		at += y.Args[1].Type.Shape.At(0)
	}
	w := whole
	if w == nil || w.Type.Shape.At(0) != at {
		w = b.Add(graph.Concat{Axis: 0}, filters...)
	}
	return b.From(m.Covered...).Add(op, x, w)
}

func makeGlobalPool(b *graph.Builder, m *pat.Match) *graph.Node {
	x, n := m.Get("x"), m.Get("reduction")
	s, flat := x.Type.Shape, n.Args[0].Type.Shape
	if s.Rank() != 4 || flat != graph.ShapeOf(s.At(0), s.At(1), s.At(2)*s.At(3)) || s.Elems() == 0 {
		return nil
	}
	return b.Reshape(b.Reduce(n.Op.(graph.Reduce).Fn, x, false, 2, 3), n.Type.Shape.Slice()...)
}
