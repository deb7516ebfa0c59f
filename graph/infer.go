package graph

import (
	"fmt"
	"slices"
)

// The type rules of the operation table. Each returns the types of the results, or an error that says what does not
// fit; the caller adds the operation's and the operands' names.

// one is a list of one result. It lies behind the operands' types if there is room, so that a rule which asks another rule
// about some of its operands clips their list.
func one(args []Type, t Type) ([]Type, error) { return append(args, t)[len(args):], nil }

func declared(args []Type, t Type) ([]Type, error) {
	if t.DType == Invalid || int(t.DType) >= len(dtypes) {
		return nil, fmt.Errorf("has no element type")
	}
	return one(args, t)
}

// accumulators are the types of the gradients of values of the given ones.
func accumulators(types []Type) []Type {
	out := make([]Type, len(types))
	for i, t := range types {
		out[i] = t.Accumulator()
	}
	return out
}

func inferConst(op Op, args []Type) ([]Type, error) {
	v := op.(Const).Value
	if v == nil {
		return nil, fmt.Errorf("has no value")
	}
	return declared(args, v.Type)
}

func inferSame(_ Op, args []Type) ([]Type, error) { return args[:1], nil }

// wantFloat refuses what nothing computes in.
func wantFloat(t Type) error {
	if !t.DType.IsFloat() {
		return fmt.Errorf("wants f32 or f64, not %v", t.DType)
	}
	return nil
}

// wantComputed refuses 16-bit types, which are only moved, converted and contracted.
func wantComputed(t Type) error {
	if t.DType.Is16() {
		return fmt.Errorf("of %v: only casts, moves and contractions take 16-bit elements; cast to f32 first", t.DType)
	}
	return nil
}

// wantSummed refuses what has no sum.
func wantSummed(t Type) error {
	if t.DType == Bool {
		return fmt.Errorf("of %v", t.DType)
	}
	return wantComputed(t)
}

// wantContracted refuses what contractions do not read.
func wantContracted(t Type) error {
	if !t.DType.IsReal() {
		return fmt.Errorf("wants f32, f64, bf16 or f16, not %v", t.DType)
	}
	return nil
}

func inferUnary(op Op, args []Type) ([]Type, error) {
	u, t := op.(Unary), args[0]
	if int(u.Fn) >= numUnary {
		return nil, fmt.Errorf("unknown function %d", u.Fn)
	}
	if err := u.checkSlope(); err != nil {
		return nil, err
	}
	if err := u.Fn.Info().Of.check(u.Fn, t); err != nil {
		return nil, err
	}
	return one(args, t)
}

// checkSlope refuses a derivative at 0 of functions that have no kink there.
func (u Unary) checkSlope() error {
	switch {
	case int(u.AtZero) >= len(slopes):
		return fmt.Errorf("unknown slope %d", u.AtZero)
	case u.AtZero != 0 && !u.Fn.Info().Kink:
		return fmt.Errorf("%v has no slope at 0 to choose", u.Fn)
	}
	return nil
}

// elementwiseShape is the shape of an elementwise result: that of the operands that are not scalars.
func elementwiseShape(args ...Type) (Shape, error) {
	var s Shape
	for _, t := range args {
		switch {
		case t.Shape.Rank() == 0 || t.Shape == s:
		case s.Rank() == 0:
			s = t.Shape
		default:
			return s, fmt.Errorf("shapes %v and %v differ (and neither is a scalar)", s, t.Shape)
		}
	}
	return s, nil
}

func inferBinary(op Op, args []Type) ([]Type, error) {
	f := op.(Binary).Fn
	if int(f) >= numBinary {
		return nil, fmt.Errorf("unknown function %d", f)
	}
	s, err := elementwiseShape(args...)
	if err != nil {
		return nil, err
	}
	d := args[0].DType
	if d != args[1].DType {
		return nil, fmt.Errorf("element types %v and %v differ", d, args[1].DType)
	}
	if err := f.Info().Of.check(f, args[0]); err != nil {
		return nil, err
	}
	if f.Compares() {
		d = Bool
	}
	return one(args, Type{d, s})
}

func inferSelect(_ Op, args []Type) ([]Type, error) {
	if args[0].DType != Bool {
		return nil, fmt.Errorf("the condition is %v, not bool", args[0].DType)
	}
	if args[1].DType != args[2].DType {
		return nil, fmt.Errorf("element types %v and %v differ", args[1].DType, args[2].DType)
	}
	if err := wantComputed(args[1]); err != nil {
		return nil, err
	}
	s, err := elementwiseShape(args...)
	if err != nil {
		return nil, err
	}
	return one(args, Type{args[1].DType, s})
}

func inferCast(op Op, args []Type) ([]Type, error) {
	d := op.(Cast).To
	if d == Invalid || int(d) >= len(dtypes) {
		return nil, fmt.Errorf("to no element type")
	}
	return one(args, args[0].With(d))
}

// Dims returns the sizes of the product of shapes a and b: the broadcast batch axes, rows, the contracted size and
// columns. It is meaningful only for shapes that the type rule accepts.
func (m MatMul) Dims(a, b Shape) (batch []int, rows, inner, cols int) {
	ra, rb := a.Rank(), b.Rank()
	rows, inner, cols = a.At(ra-2), a.At(ra-1), b.At(rb-1)
	if m.TransA {
		rows, inner = inner, rows
	}
	if m.TransB {
		cols = b.At(rb - 2)
	}
	n := max(ra, rb) - 2
	batch = make([]int, n)
	for i := range batch {
		x, y := 1, 1
		if j := i - (n - (ra - 2)); j >= 0 {
			x = a.At(j)
		}
		if j := i - (n - (rb - 2)); j >= 0 {
			y = b.At(j)
		}
		batch[i] = x
		if x == 1 {
			batch[i] = y
		}
	}
	return
}

func inferMatMul(op Op, args []Type) ([]Type, error) {
	m, a, b := op.(MatMul), args[0].Shape, args[1].Shape
	if a.Rank() < 2 || b.Rank() < 2 {
		return nil, fmt.Errorf("wants operands of rank 2 or more, not %v and %v", a, b)
	}
	if args[0].DType != args[1].DType {
		return nil, fmt.Errorf("element types %v and %v differ", args[0].DType, args[1].DType)
	}
	if err := wantContracted(args[0]); err != nil {
		return nil, err
	}
	batch, rows, inner, cols := m.Dims(a, b)
	innerB := b.At(b.Rank() - 2)
	if m.TransB {
		innerB = b.At(b.Rank() - 1)
	}
	if inner != innerB {
		return nil, fmt.Errorf("contracts %d with %d elements (shapes %v and %v, transA %v, transB %v)", inner, innerB, a, b, m.TransA, m.TransB)
	}
	for _, s := range []Shape{a, b} {
		for i := range s.Rank() - 2 {
			want := batch[len(batch)-(s.Rank()-2)+i]
			if d := s.At(i); d != 1 && d != want {
				return nil, fmt.Errorf("batch axes of %v and %v do not broadcast", a, b)
			}
		}
	}
	return one(args, Type{args[0].DType.Accumulator(), ShapeOf(append(batch, rows, cols)...)})
}

// maxWindow bounds the attributes of windows, so that no product of two of them overflows.
const maxWindow = 1 << 30

// maxPool bounds the windows of pools that are larger than the image.
const maxPool = 1 << 16

// window is the number of positions of a window along an axis.
func window(size, lo, hi, kernel, stride, dilation int) (int, error) {
	if kernel < 1 || stride < 1 || dilation < 1 || lo < 0 || hi < 0 || max(kernel, stride, dilation, lo, hi) > maxWindow {
		return 0, fmt.Errorf("window of size %d, stride %d, dilation %d, padding %d and %d is not valid", kernel, stride, dilation, lo, hi)
	}
	span := dilation*(kernel-1) + 1
	if size+lo+hi < span {
		return 0, fmt.Errorf("a window of %d does not fit into %d elements with padding %d and %d", span, size, lo, hi)
	}
	return (size+lo+hi-span)/stride + 1, nil
}

func wantLens(want int, l ...Ints) error {
	for _, x := range l {
		if x.Len() != want {
			return fmt.Errorf("attribute %v should have %d values", x, want)
		}
	}
	return nil
}

// windows2D is the height and width of the result of sliding a window over an image.
func windows2D(h, w int, kernel, stride, dilation, pad Ints) (oh, ow int, err error) {
	if err = wantLens(2, kernel, stride, dilation); err == nil {
		err = wantLens(4, pad)
	}
	if err != nil {
		return
	}
	if oh, err = window(h, pad.At(0), pad.At(2), kernel.At(0), stride.At(0), dilation.At(0)); err != nil {
		return
	}
	ow, err = window(w, pad.At(1), pad.At(3), kernel.At(1), stride.At(1), dilation.At(1))
	return
}

func wantRank(s Shape, r int) error {
	if s.Rank() != r {
		return fmt.Errorf("wants rank %d, not shape %v", r, s)
	}
	return nil
}

func inferConv2D(op Op, args []Type) ([]Type, error) {
	c, x, w := op.(Conv2D), args[0].Shape, args[1].Shape
	if err := wantRank(x, 4); err != nil {
		return nil, err
	}
	if err := wantRank(w, 4); err != nil {
		return nil, err
	}
	if args[0].DType != args[1].DType {
		return nil, fmt.Errorf("element types %v and %v differ", args[0].DType, args[1].DType)
	}
	if err := wantContracted(args[0]); err != nil {
		return nil, err
	}
	if c.Groups < 1 || x.At(1)%c.Groups != 0 || w.At(0)%c.Groups != 0 || w.At(1) != x.At(1)/c.Groups {
		return nil, fmt.Errorf("channels do not fit: image %v, filters %v, %d groups", x, w, c.Groups)
	}
	oh, ow, err := windows2D(x.At(2), x.At(3), IntsOf(w.At(2), w.At(3)), c.Stride, c.Dilation, c.Pad)
	if err != nil {
		return nil, err
	}
	return one(args, TypeOf(args[0].DType.Accumulator(), x.At(0), w.At(0), oh, ow))
}

func checkAxes(axes Ints, rank int) error {
	var seen Ints
	for i := range axes.Len() {
		a := axes.At(i)
		if a < 0 || a >= rank {
			return fmt.Errorf("axis %d of a tensor of rank %d", a, rank)
		}
		if seen.Has(a) {
			return fmt.Errorf("axis %d is given twice", a)
		}
		seen.v[seen.n] = a
		seen.n++
	}
	return nil
}

func inferReduce(op Op, args []Type) ([]Type, error) {
	r, s := op.(Reduce), args[0].Shape
	if int(r.Fn) >= len(reduceFns) {
		return nil, fmt.Errorf("unknown reduction %d", r.Fn)
	}
	if err := wantSummed(args[0]); err != nil {
		return nil, fmt.Errorf("%v %w", r.Fn, err)
	}
	if r.Fn == Mean && !args[0].DType.IsFloat() {
		return nil, fmt.Errorf("%v of %v", r.Fn, args[0].DType)
	}
	if err := checkAxes(r.Axes, s.Rank()); err != nil {
		return nil, err
	}
	out := s.Drop(r.Axes)
	if r.Keep {
		out = s
		for i := range r.Axes.Len() {
			out = out.With(r.Axes.At(i), 1)
		}
	}
	return one(args, args[0].Reshaped(out))
}

func inferReshape(op Op, args []Type) ([]Type, error) {
	s := op.(Reshape).Shape
	if err := s.Check(); err != nil {
		return nil, err
	}
	if s.Elems() != args[0].Shape.Elems() {
		return nil, fmt.Errorf("%v has %d elements, %v has %d", args[0].Shape, args[0].Shape.Elems(), s, s.Elems())
	}
	return one(args, args[0].Reshaped(s))
}

func inferTranspose(op Op, args []Type) ([]Type, error) {
	p, s := op.(Transpose).Perm, args[0].Shape
	if p.Len() != s.Rank() {
		return nil, fmt.Errorf("permutation %v of a tensor of rank %d", p, s.Rank())
	}
	if err := checkAxes(p, s.Rank()); err != nil {
		return nil, err
	}
	out := s
	for i := range s.Rank() {
		out = out.With(i, s.At(p.At(i)))
	}
	return one(args, args[0].Reshaped(out))
}

func inferBroadcast(op Op, args []Type) ([]Type, error) {
	to, from := op.(Broadcast).Shape, args[0].Shape
	if err := to.Check(); err != nil {
		return nil, err
	}
	lead := to.Rank() - from.Rank()
	for i := range from.Rank() {
		if lead < 0 || from.At(i) != 1 && from.At(i) != to.At(lead+i) {
			return nil, fmt.Errorf("%v does not broadcast to %v", from, to)
		}
	}
	if lead < 0 {
		return nil, fmt.Errorf("%v does not broadcast to %v", from, to)
	}
	return one(args, args[0].Reshaped(to))
}

func checkSlice(axis, size, step, dim int, s Shape, start Type) error {
	if axis < 0 || axis >= s.Rank() {
		return fmt.Errorf("axis %d of a tensor of rank %d", axis, s.Rank())
	}
	if start.DType != I64 || start.Shape.Rank() != 0 {
		return fmt.Errorf("start is %v, not an i64 scalar", start)
	}
	if size < 0 || step < 1 || size > 0 && (dim < 1 || size-1 > (dim-1)/step) {
		return fmt.Errorf("%d elements, %d apart, do not fit into %d", size, step, dim)
	}
	return nil
}

// startFits reports whether size elements, step apart, that checkSlice accepts can begin at start along an axis of dim.
func startFits(start int64, size, step, dim int) bool {
	return start >= 0 && start <= int64(dim) && (size == 0 || int(start) < dim-(size-1)*step)
}

// ConstStart is where n, a Slice, starts; false if that is not constant or out of range, which is an error at run time.
func (o Slice) ConstStart(n *Node) (int, bool) {
	c, ok := n.Args[1].Op.(Const)
	if !ok || !startFits(c.Value.Int(0), o.Size, o.Step, n.Args[0].Type.Shape.At(o.Axis)) {
		return 0, false
	}
	return int(c.Value.Int(0)), true
}

func inferSlice(op Op, args []Type) ([]Type, error) {
	o, s := op.(Slice), args[0].Shape
	dim := 0
	if o.Axis >= 0 && o.Axis < s.Rank() {
		dim = s.At(o.Axis)
	}
	if err := checkSlice(o.Axis, o.Size, o.Step, dim, s, args[1]); err != nil {
		return nil, err
	}
	return one(args, args[0].Reshaped(s.With(o.Axis, o.Size)))
}

func inferUnslice(op Op, args []Type) ([]Type, error) {
	o, s := op.(Unslice), args[0].Shape
	dim := 0
	if o.Axis >= 0 && o.Axis < s.Rank() {
		dim = s.At(o.Axis)
	}
	if err := checkSlice(o.Axis, dim, o.Step, o.Size, s, args[1]); err != nil {
		return nil, err
	}
	return one(args, args[0].Reshaped(s.With(o.Axis, o.Size)))
}

func inferConcat(op Op, args []Type) ([]Type, error) {
	axis, t := op.(Concat).Axis, args[0]
	if axis < 0 || axis >= t.Shape.Rank() {
		return nil, fmt.Errorf("axis %d of a tensor of rank %d", axis, t.Shape.Rank())
	}
	sum := 0
	for _, u := range args {
		if u.Shape.Rank() != t.Shape.Rank() || u.DType != t.DType || u.Shape.With(axis, 0) != t.Shape.With(axis, 0) {
			return nil, fmt.Errorf("%v and %v differ elsewhere than in axis %d", t, u, axis)
		}
		sum += u.Shape.At(axis)
	}
	return one(args, t.Reshaped(t.Shape.With(axis, sum)))
}

func inferPad(op Op, args []Type) ([]Type, error) {
	p, s := op.(Pad), args[0].Shape
	if err := wantLens(s.Rank(), p.Lo, p.Hi); err != nil {
		return nil, err
	}
	for i := range s.Rank() {
		if p.Lo.At(i) < 0 || p.Hi.At(i) < 0 || p.Lo.At(i) > MaxElems || p.Hi.At(i) > MaxElems {
			return nil, fmt.Errorf("padding %v and %v", p.Lo, p.Hi)
		}
		s = s.With(i, p.Lo.At(i)+s.At(i)+p.Hi.At(i))
	}
	return one(args, args[0].Reshaped(s))
}

func inferIm2Col(op Op, args []Type) ([]Type, error) {
	o, s := op.(Im2Col), args[0].Shape
	if err := wantRank(s, 4); err != nil {
		return nil, err
	}
	oh, ow, err := windows2D(s.At(2), s.At(3), o.Kernel, o.Stride, o.Dilation, o.Pad)
	if err != nil {
		return nil, err
	}
	k := o.Kernel.At(0) * o.Kernel.At(1)
	if s.At(1) > MaxElems/k {
		return nil, fmt.Errorf("patches of %d channels and %v elements are too large", s.At(1), o.Kernel)
	}
	return one(args, args[0].Reshaped(ShapeOf(s.At(0), oh, ow, s.At(1)*k)))
}

func inferCol2Im(op Op, args []Type) ([]Type, error) {
	o, s := op.(Col2Im), args[0].Shape
	if err := wantRank(s, 4); err != nil {
		return nil, err
	}
	oh, ow, err := windows2D(o.H, o.W, o.Kernel, o.Stride, o.Dilation, o.Pad)
	if err != nil {
		return nil, err
	}
	if err := wantSummed(args[0]); err != nil {
		return nil, fmt.Errorf("sums %w", err)
	}
	k := o.Kernel.At(0) * o.Kernel.At(1)
	if s.At(1) != oh || s.At(2) != ow || s.At(3)%k != 0 {
		return nil, fmt.Errorf("patches %v are not those of an image of %d×%d (want [n,%d,%d,%d·c])", s, o.H, o.W, oh, ow, k)
	}
	return one(args, args[0].Reshaped(ShapeOf(s.At(0), s.At(3)/k, o.H, o.W)))
}

func wantIndices(t Type) error {
	if !t.DType.IsInt() {
		return fmt.Errorf("indices are %v, not i32 or i64", t.DType)
	}
	return nil
}

func inferGather(op Op, args []Type) ([]Type, error) {
	axis, s, ix := op.(Gather).Axis, args[0].Shape, args[1].Shape
	if err := wantIndices(args[1]); err != nil {
		return nil, err
	}
	if axis < 0 || axis >= s.Rank() {
		return nil, fmt.Errorf("axis %d of a tensor of rank %d", axis, s.Rank())
	}
	if s.Rank()-1+ix.Rank() > MaxRank {
		return nil, fmt.Errorf("result has more than %d axes", MaxRank)
	}
	dims := s.Slice()
	out := append(append(append([]int(nil), dims[:axis]...), ix.Slice()...), dims[axis+1:]...)
	return one(args, args[0].Reshaped(ShapeOf(out...)))
}

func inferScatterAdd(op Op, args []Type) ([]Type, error) {
	o, ix, u := op.(ScatterAdd), args[0].Shape, args[1].Shape
	if err := wantIndices(args[0]); err != nil {
		return nil, err
	}
	if err := wantSummed(args[1]); err != nil {
		return nil, fmt.Errorf("sums %w", err)
	}
	if o.Axis < 0 || o.Size < 0 || o.Axis+ix.Rank() > u.Rank() || u.Rank()-ix.Rank()+1 > MaxRank {
		return nil, fmt.Errorf("updates %v do not hold indices %v at axis %d", u, ix, o.Axis)
	}
	dims := u.Slice()
	for i := range ix.Rank() {
		if dims[o.Axis+i] != ix.At(i) {
			return nil, fmt.Errorf("updates %v do not hold indices %v at axis %d", u, ix, o.Axis)
		}
	}
	out := append(append(append([]int(nil), dims[:o.Axis]...), o.Size), dims[o.Axis+ix.Rank():]...)
	return one(args, args[1].Reshaped(ShapeOf(out...)))
}

func wantSeed(t Type) error {
	if t.DType != I64 || t.Shape.Rank() != 0 {
		return fmt.Errorf("the seed is %v, not an i64 scalar", t)
	}
	return nil
}

func inferDropout(op Op, args []Type) ([]Type, error) {
	if p := op.(Dropout).P; !(p >= 0 && p < 1) {
		return nil, fmt.Errorf("probability %v is outside [0,1)", p)
	}
	if err := wantFloat(args[0]); err != nil {
		return nil, err
	}
	return args[:1], wantSeed(args[1])
}

func inferRandom(op Op, args []Type) ([]Type, error) {
	t := op.(Random).Type
	if err := wantFloat(t); err != nil {
		return nil, err
	}
	return []Type{t}, wantSeed(args[0])
}

func inferSoftmax(op Op, args []Type) ([]Type, error) {
	axis := 0
	switch o := op.(type) {
	case Softmax:
		axis = o.Axis
	case LogSoftmax:
		axis = o.Axis
	}
	if err := wantFloat(args[0]); err != nil {
		return nil, err
	}
	return args[:1], checkAxes(IntsOf(axis), args[0].Shape.Rank())
}

// inferNorm wants x [..., d] and vectors [d].
func inferNorm(_ Op, args []Type) ([]Type, error) {
	x := args[0]
	if err := wantFloat(x); err != nil {
		return nil, err
	}
	if x.Shape.Rank() == 0 {
		return nil, fmt.Errorf("wants at least one axis")
	}
	return args[:1], wantVectors(x.DType, x.Shape.At(x.Shape.Rank()-1), args[1:])
}

func wantVectors(d DType, n int, args []Type) error {
	for _, t := range args {
		if t != TypeOf(d, n) {
			return fmt.Errorf("wants %v, not %v", TypeOf(d, n), t)
		}
	}
	return nil
}

func inferBatchNorm(_ Op, args []Type) ([]Type, error) {
	x := args[0]
	if err := wantFloat(x); err != nil {
		return nil, err
	}
	if x.Shape.Rank() < 2 {
		return nil, fmt.Errorf("wants [n,c,...], not %v", x.Shape)
	}
	if err := wantVectors(x.DType, x.Shape.At(1), args[1:]); err != nil {
		return nil, err
	}
	return []Type{x, args[3], args[4]}, nil
}

func inferGroupNorm(op Op, args []Type) ([]Type, error) {
	x, g := args[0], op.(GroupNorm).Groups
	if err := wantFloat(x); err != nil {
		return nil, err
	}
	if x.Shape.Rank() < 2 || g < 1 || x.Shape.At(1)%g != 0 {
		return nil, fmt.Errorf("%v is not [n,c,...] with c a multiple of %d groups", x.Shape, g)
	}
	return args[:1], wantVectors(x.DType, x.Shape.At(1), args[1:])
}

func inferPool(op Op, args []Type) ([]Type, error) {
	p, s := op.(Pool), args[0].Shape
	if err := wantFloat(args[0]); err != nil {
		return nil, err
	}
	if err := wantRank(s, 4); err != nil {
		return nil, err
	}
	oh, ow, err := windows2D(s.At(2), s.At(3), p.Kernel, p.Stride, IntsOf(1, 1), p.Pad)
	if err != nil {
		return nil, err
	}
	for i := range 2 { // kernels keep what they know of each row and column of a window
		if k := p.Kernel.At(i); k > max(maxPool, s.At(2+i)) {
			return nil, fmt.Errorf("a window of %d is larger than the image, of %d, and than %d", k, s.At(2+i), maxPool)
		}
	}
	return one(args, args[0].Reshaped(s.With(2, oh).With(3, ow)))
}

func inferPoolGrad(op Op, args []Type) ([]Type, error) {
	y, err := inferPool(Pool(op.(PoolGrad)), slices.Clip(args[:1]))
	if err != nil {
		return nil, err
	}
	if y[0] != args[1] {
		return nil, fmt.Errorf("dy is %v, not %v", args[1], y[0])
	}
	return args[:1], nil
}

func inferFusion(op Op, args []Type) ([]Type, error) {
	f := op.(Fusion)
	if f.Body == nil {
		return nil, fmt.Errorf("has no body")
	}
	i := 0
	for _, n := range f.Body.Nodes {
		if _, ok := n.Op.(Input); !ok {
			continue
		}
		if i == len(args) {
			return nil, fmt.Errorf("body has more inputs than the %d operands", len(args))
		}
		if n.Type != args[i] {
			return nil, fmt.Errorf("operand %d is %v, the body's input is %v", i, args[i], n.Type)
		}
		i++
	}
	if i != len(args) {
		return nil, fmt.Errorf("body has %d inputs for %d operands", i, len(args))
	}
	if len(f.Body.Outputs) == 0 || len(f.Body.Updates) > 0 {
		return nil, fmt.Errorf("body has %d outputs and %d updates", len(f.Body.Outputs), len(f.Body.Updates))
	}
	out := make([]Type, len(f.Body.Outputs))
	for j, o := range f.Body.Outputs {
		out[j] = o.Node.Type
	}
	return out, nil
}
