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
// or the transpose of such a product, of one image. Third, by channels, as the sum of the products of patches and one filter
// for each channel:
//
//	x ─ im2col ─ reshape[n·h·w, c, kh·kw] ─ ⊙ ─ Σ[2] ─►      x ─ conv2d(groups=c) ─ transpose[0,2,3,1] ─ reshape[n·h·w, c] ─►
//	f[c, kh·kw] ─ broadcast ────────────────┘
//
// Fourth, group by group, each perhaps with its activation:
//
//	x ─┬ slice[c] ─ conv2d ─ concat[c] ─►      x ─ conv2d(groups) ─►
//	   └ slice[c] ─ conv2d ─┘
//
// Fifth, as a product of the pixels of images as rows, perhaps with a bias and an activation:
//
//	x ─ transpose[0,2,3,1] ─ reshape[n·h·w, c] ─ matmul ─ reshape[n,h,w,o] ─ transpose[0,3,1,2] ─►      x ─ conv2d ─►
//	f[c,o] ──────────────────────────────────────┘
//
// Sixth, as a sum of shifted images, each times a number for each channel:
//
//	x ─┬ slice[h] ─ slice[w] ─ ⊙ v ─ + ─►      x ─ conv2d(groups=c) ─►
//	   └ slice[h] ─ slice[w] ─ ⊙ w ──┘
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
		expr: pat.Op("reshape", pat.Or(
			pat.Capture("product", pat.Is("a product with untransposed pixels", func(op graph.MatMul) bool { return !op.TransB },
				pat.Capture("filters", pat.Any()), pat.Op("reshape", pat.Capture("x", pat.Any())))),
			pat.Is("a transpose", func(op graph.Transpose) bool { return op.Perm == graph.IntsOf(1, 0) },
				pat.OneUse(pat.Capture("turned", pat.Is("a product of transposed pixels", func(op graph.MatMul) bool { return op.TransA },
					pat.Op("reshape", pat.Capture("x", pat.Any())), pat.Capture("filters", pat.Any()))))))),
		kind: "conv2d", make: makePointwise},
	{name: "conv2d-channels", doc: "sums of products of patches with a filter for each channel", numeric: trace.Reassociated,
		expr: pat.Capture("sum", pat.Reduce(graph.Sum, pat.Commute(graph.Mul,
			pat.OneUse(pat.Op("reshape", pat.Key(pat.Capture("patches", pat.Op("im2col", pat.Same("x")))))),
			pat.Capture("filters", pat.Any())))),
		kind: "conv2d", make: makeChannels},
	{name: "conv2d-groups", doc: "convolutions of parts of the channels, joined", numeric: trace.Reassociated,
		expr: pat.Where("convolutions of successive channels", func(_ *pat.Match, n *graph.Node) bool { return groupsOf(n).convs != nil },
			pat.Is("channels joined", func(op graph.Concat) bool { return op.Axis == 1 })),
		kind: "conv2d", make: makeGroups},
	{name: "conv2d-pixels", doc: "rows of the pixels of images times filters, as images", numeric: trace.Reassociated,
		expr: pat.Where("a product of an image's pixels", func(_ *pat.Match, n *graph.Node) bool { return pixelsOf(n) != nil },
			pat.Is("a transpose from n,h,w,c to n,c,h,w", func(op graph.Transpose) bool { return op.Perm == graph.IntsOf(0, 3, 1, 2) })),
		kind: "conv2d", make: makePixels},
	{name: "conv2d-shifts", doc: "a sum of shifted images, each times a number for each channel", numeric: trace.Reassociated,
		expr: pat.Where("shifts that fill a window", func(_ *pat.Match, n *graph.Node) bool { return shiftsOf(n) != nil },
			pat.Is("a sum", func(op graph.Binary) bool { return op.Fn == graph.Add })),
		kind: "conv2d", make: makeShifts},
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
	var columns bool
	var pixels graph.Shape
	if product != nil {
		pixels, columns = product.Args[1].Type.Shape, product.Op.(graph.MatMul).TransA
	} else {
		turned := m.Get("turned")
		pixels, columns = turned.Args[0].Type.Shape, !turned.Op.(graph.MatMul).TransB
	}
	s, out := x.Type.Shape, m.Root.Type.Shape
	if s.Rank() != 4 || f.Type.Shape.Rank() != 2 || out.Rank() != 4 {
		return nil
	}
	n, c, area := s.At(0), s.At(1), s.At(2)*s.At(3)
	if area < 2 || pixels != graph.ShapeOf(n, c, area) && (n != 1 || pixels != graph.ShapeOf(c, area)) {
		return nil
	}
	if columns {
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

// A grouping is convolutions of successive parts of one image's channels.
type grouping struct {
	convs   []*graph.Node
	covered []*graph.Node // the convolutions, and what follows each
	then    []graph.Op    // what follows each, the last first
}

// groupsOf finds the convolutions that n joins if they are those of successive parts of one image's channels, with filters,
// options and activations alike; else there are none.
func groupsOf(n *graph.Node) (g grouping) {
	if len(n.Args) < 2 {
		return g
	}
	at := 0
	var x *graph.Node
	for i, y := range n.Args {
		var then []graph.Op
		for {
			g.covered = append(g.covered, y)
			if _, ok := y.Op.(graph.Unary); !ok {
				break
			}
			then, y = append(then, y.Op), y.Args[0]
		}
		op, ok := y.Op.(graph.Conv2D)
		if !ok || op.Layout != graph.NCHW {
			return grouping{}
		}
		if i == 0 {
			g.then = then
		} else if first := g.convs[0]; y.Op != first.Op || y.Args[1].Type != first.Args[1].Type || !slices.Equal(then, g.then) {
			return grouping{}
		}
		from, start, ok := part(y.Args[0], 1)
		if !ok || start != at || x != nil && from != x {
			return grouping{}
		}
		x, at = from, at+y.Args[0].Type.Shape.At(1)
		g.convs = append(g.convs, y)
	}
	if at != x.Type.Shape.At(1) {
		return grouping{}
	}
	return g
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
	g := groupsOf(m.Root)
	convs := g.convs
	m.Covered = append(m.Covered, g.covered...)
	op := convs[0].Op.(graph.Conv2D)
	op.Groups *= len(convs)
	x, _, _ := part(convs[0].Args[0], 1)
	filters := make([]*graph.Node, len(convs))
	at := 0
	whole, _, _ := part(convs[0].Args[1], 0)
	for i, y := range convs {
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
	y := b.From(m.Covered...).Add(op, x, w)
	for _, op := range slices.Backward(g.then) {
		y = b.Add(op, y)
	}
	return y
}

// A pixelProduct is a product of the pixels of images x with filters, and what follows it.
type pixelProduct struct {
	x, filters *graph.Node
	columns    bool          // the filters are columns
	then       []*graph.Node // elementwise work on the rows, the last first
	covered    []*graph.Node // all between x and the root
}

// pixelsOf finds the product whose rows a Transpose makes images; nil if there is none.
func pixelsOf(root *graph.Node) *pixelProduct {
	r := root.Args[0]
	if _, ok := r.Op.(graph.Reshape); !ok || r.Type.Shape.Rank() != 4 || !r.Type.DType.IsFloat() {
		return nil
	}
	p, s := &pixelProduct{covered: []*graph.Node{r}}, r.Type.Shape
	pixels, filters := s.At(0)*s.At(1)*s.At(2), s.At(3)
	for y := r.Args[0]; y.Type.Shape == graph.ShapeOf(pixels, filters) && y.Type.DType == r.Type.DType; {
		p.covered = append(p.covered, y)
		switch op := y.Op.(type) {
		case graph.MatMul:
			rows := y.Args[0]
			if _, ok := rows.Op.(graph.Reshape); !ok || op.TransA {
				return nil
			}
			t, ok := rows.Args[0].Op.(graph.Transpose)
			if !ok || t.Perm != graph.IntsOf(0, 2, 3, 1) {
				return nil
			}
			p.x, p.filters, p.columns = rows.Args[0].Args[0], y.Args[1], !op.TransB
			if is := p.x.Type.Shape; is != graph.ShapeOf(s.At(0), is.At(1), s.At(1), s.At(2)) || rows.Type.Shape !=
				graph.ShapeOf(pixels, is.At(1)) || is.Elems() == 0 || filters == 0 {
				return nil
			}
			return p
		case graph.Unary:
			p.then, y = append(p.then, y), y.Args[0]
		case graph.Binary:
			p.then = append(p.then, y)
			switch {
			case perColumn(y.Args[1], filters) != nil:
				y = y.Args[0]
			case perColumn(y.Args[0], filters) != nil:
				y = y.Args[1]
			default:
				return nil
			}
		default:
			return nil
		}
	}
	return nil
}

// perColumn is the vector, or the number, that n repeats in each of its rows of so many elements; or nil.
func perColumn(n *graph.Node, columns int) *graph.Node {
	if n.Type.Shape.Rank() == 0 {
		return n
	}
	if _, ok := n.Op.(graph.Broadcast); !ok {
		return nil
	}
	v := n.Args[0]
	if s := v.Type.Shape; s.Elems() == 1 || s.Elems() == columns && s.At(s.Rank()-1) == columns {
		return v
	}
	return nil
}

func makePixels(b *graph.Builder, m *pat.Match) *graph.Node {
	p := pixelsOf(m.Root)
	f := p.filters
	if p.columns {
		f = b.Transpose(f, 1, 0)
	}
	channels, filters := p.x.Type.Shape.At(1), f.Type.Shape.At(0)
	one := graph.IntsOf(1, 1)
	y := b.Add(graph.Conv2D{Stride: one, Dilation: one, Pad: graph.IntsOf(0, 0, 0, 0), Groups: 1}, p.x,
		b.Reshape(f, filters, channels, 1, 1))
	m.Covered = append(m.Covered, p.covered...)
	for _, n := range slices.Backward(p.then) {
		args := []*graph.Node{y}
		if _, ok := n.Op.(graph.Binary); ok {
			v, at := perColumn(n.Args[1], filters), 1
			if v == nil {
				v, at = perColumn(n.Args[0], filters), 0
			}
			if v.Type.Shape.Rank() > 0 {
				v = b.Broadcast(b.Reshape(v, 1, v.Type.Shape.Elems(), 1, 1), y.Type.Shape)
			}
			args = slices.Insert(args, at, v)
		}
		y = b.Add(n.Op, args...)
	}
	return y
}

// leavesPixels reports whether others read what is between the pixels and the images.
func leavesPixels(u *graph.Uses, m *pat.Match) bool {
	return slices.ContainsFunc(pixelsOf(m.Root).covered, func(n *graph.Node) bool { return !u.One(n) })
}

// A shiftedSum is the terms of a sum that are parts of images x [n,c,h,w], each times a number for each channel, and that are
// together a depthwise convolution.
type shiftedSum struct {
	x              *graph.Node
	kernel, stride [2]int
	dilation       [2]int
	first          [2]int        // where the part for the first tap begins
	filters        []*graph.Node // of c elements, one for each tap
	rest, covered  []*graph.Node // other terms, and what the convolution stands for
}

// A shift is a part of images, and the numbers that it is multiplied by.
type shift struct {
	x, w  *graph.Node
	start [2]int
	step  [2]int
}

// fewestShifts is the number of such terms from which on a sum is a convolution, mostShifts how many are looked at, and
// restOfShifts how many others may be among them.
const fewestShifts, mostShifts, restOfShifts = 3, 256, 2

// shiftsOf finds such a sum in the terms of n; nil if there is none.
func shiftsOf(n *graph.Node) *shiftedSum {
	if n.Type.Shape.Rank() != 4 || !n.Type.DType.IsFloat() {
		return nil
	}
	s, shifts := &shiftedSum{}, []shift{}
	var visit func(n *graph.Node)
	visit = func(n *graph.Node) {
		if len(s.rest) > restOfShifts || len(s.covered) > 2*mostShifts {
			return
		}
		if op, ok := n.Op.(graph.Binary); ok && op.Fn == graph.Add {
			s.covered = append(s.covered, n)
			visit(n.Args[0])
			visit(n.Args[1])
		} else if t, ok := shiftOf(n); ok && (len(shifts) == 0 || t.x == shifts[0].x && t.step == shifts[0].step) {
			s.covered = append(s.covered, n)
			shifts = append(shifts, t)
		} else {
			s.rest = append(s.rest, n)
		}
	}
	if visit(n); len(shifts) < fewestShifts || len(shifts) > mostShifts || len(s.rest) > restOfShifts {
		return nil
	}
	s.x, s.stride = shifts[0].x, shifts[0].step
	for i := range 2 {
		var starts []int
		for _, t := range shifts {
			starts = append(starts, t.start[i])
		}
		slices.Sort(starts)
		starts = slices.Compact(starts)
		s.first[i], s.kernel[i], s.dilation[i] = starts[0], len(starts), 1
		if len(starts) > 1 {
			s.dilation[i] = starts[1] - starts[0]
		}
		for j, at := range starts {
			if at != starts[0]+j*s.dilation[i] {
				return nil
			}
		}
	}
	s.filters = make([]*graph.Node, s.kernel[0]*s.kernel[1])
	if len(shifts) != len(s.filters) {
		return nil
	}
	for _, t := range shifts {
		tap := (t.start[0]-s.first[0])/s.dilation[0]*s.kernel[1] + (t.start[1]-s.first[1])/s.dilation[1]
		if s.filters[tap] != nil {
			return nil
		}
		s.filters[tap] = t.w
	}
	return s
}

// shiftOf reads a product of a part of images with a number for each channel.
func shiftOf(n *graph.Node) (s shift, ok bool) {
	if op, isBinary := n.Op.(graph.Binary); !isBinary || op.Fn != graph.Mul || n.Type.Shape.Elems() == 0 {
		return s, false
	}
	for i, w := range n.Args {
		if s.w = perChannel(w); s.w == nil {
			continue
		}
		s.x, s.step = n.Args[1-i], [2]int{1, 1}
		for seen := [2]bool{}; ; {
			op, isSlice := s.x.Op.(graph.Slice)
			at := op.Axis - 2
			if !isSlice || at < 0 || seen[at] {
				break
			}
			start, isConst := s.x.Args[1].ConstScalar()
			if !isConst {
				return s, false
			}
			s.start[at], s.x, seen[at] = int(start), s.x.Args[0], true
			if op.Size > 1 {
				s.step[at] = op.Step
			}
		}
		return s, s.x.Type.Shape.Rank() == 4
	}
	return s, false
}

// perChannel is the value of which n [n,c,h,w] repeats a number for each channel, or nil.
func perChannel(n *graph.Node) *graph.Node {
	if _, ok := n.Op.(graph.Broadcast); !ok {
		return nil
	}
	v, channels := n.Args[0], n.Type.Shape.At(1)
	s := v.Type.Shape
	if s.Rank() < 3 || s.Elems() != channels || s.At(s.Rank()-3) != channels {
		return nil
	}
	return v
}

func makeShifts(b *graph.Builder, m *pat.Match) *graph.Node {
	s := shiftsOf(m.Root)
	m.Covered = append(m.Covered, s.covered...)
	x, out, c := s.x, m.Root.Type.Shape, s.x.Type.Shape.At(1)
	for i := range 2 {
		if need := (out.At(2+i)-1)*s.stride[i] + (s.kernel[i]-1)*s.dilation[i] + 1; s.first[i] != 0 || x.Type.Shape.At(2+i) != need {
			x = b.Slice(x, 2+i, s.first[i], need, 1)
		}
	}
	var taps []*graph.Node
	for _, f := range s.filters {
		taps = append(taps, b.Reshape(f, c, 1))
	}
	w := b.Reshape(b.Add(graph.Concat{Axis: 1}, taps...), c, 1, s.kernel[0], s.kernel[1])
	y := b.From(m.Covered...).Add(graph.Conv2D{Stride: graph.IntsOf(s.stride[:]...), Dilation: graph.IntsOf(s.dilation[:]...),
		Pad: graph.IntsOf(0, 0, 0, 0), Groups: c}, x, w)
	for _, r := range s.rest {
		y = b.Binary(graph.Add, y, r)
	}
	return y
}

// leavesShifts reports whether a sum is a part of another one, or others read terms of it.
func leavesShifts(u *graph.Uses, m *pat.Match) bool {
	for _, r := range u.Readers(m.Root) {
		if op, ok := r.Op.(graph.Binary); ok && op.Fn == graph.Add {
			return true
		}
	}
	return slices.ContainsFunc(shiftsOf(m.Root).covered, func(n *graph.Node) bool { return n != m.Root && !u.One(n) })
}

func makeGlobalPool(b *graph.Builder, m *pat.Match) *graph.Node {
	x, n := m.Get("x"), m.Get("reduction")
	s, flat := x.Type.Shape, n.Args[0].Type.Shape
	if s.Rank() != 4 || flat != graph.ShapeOf(s.At(0), s.At(1), s.At(2)*s.At(3)) || s.Elems() == 0 {
		return nil
	}
	return b.Reshape(b.Reduce(n.Op.(graph.Reduce).Fn, x, false, 2, 3), n.Type.Shape.Slice()...)
}
