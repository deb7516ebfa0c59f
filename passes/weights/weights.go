// Package weights moves what is done to each channel of a contraction's result to its frozen weights:
//
//	x, w ─► conv2d ─► batch_norm ─►             x, w⊙s ─► conv2d ─► + ─►
//	 γ, β, μ, σ² ────────┘           to                  t ─────────┘
//
// with s = γ/√(σ²+ε) and t = β − μ⊙s. Both, and w⊙s, follow from frozen parameters and constants alone, so that they are
// computed once. The same is done for a product or quotient with a vector along the channels, with sums around it. A batch
// norm of anything else in evaluation becomes x⊙s + t, and so do all steps behind sums of integers, whose weights stay as they are.
// Scales of the channels that a convolution reads move as well; see [Scaler].
package weights

import (
	"slices"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/passes/rewrite"
)

// Fold is the pass fold-weights. Without frozen parameters it changes nothing.
func Fold(c *rewrite.Context) error {
	if !c.Frozen {
		return nil
	}
	if err := fold(c); err != nil {
		return err
	}
	return scaleFilters(c)
}

// fold moves what follows contractions, and rewrites batch norms in evaluation.
func fold(c *rewrite.Context) error {
	g := c.Graph
	f := folder{c: c, b: graph.Extend(g), frozen: c.FrozenNodes(), uses: c.Uses(), done: map[*graph.Node]bool{},
		with: map[*graph.Node]*graph.Node{}}
	for _, n := range slices.Clone(g.Nodes) {
		if !f.done[n] && !f.frozen.Get(n) && n.Type.DType.IsFloat() && n.Type.Shape.Elems() > 0 {
			f.visit(n)
		}
	}
	if err := f.b.Err(); err != nil || len(f.with) == 0 {
		return err
	}
	g.Replace(f.with)
	return g.Tidy()
}

type folder struct {
	c      *rewrite.Context
	b      *graph.Builder
	frozen graph.PerNode[bool]
	uses   *graph.Uses
	done   map[*graph.Node]bool // steps that were moved
	with   map[*graph.Node]*graph.Node
}

// visit moves the steps that follow a contraction with frozen weights, or rewrites a batch norm with the steps behind it.
func (f *folder) visit(n *graph.Node) {
	weight, axis, at := f.weight(n)
	var steps []*graph.Node
	integers := false
	switch {
	case f.normalises(n):
		axis, steps = 1, []*graph.Node{n}
	case weight < 0:
		if axis = sumsIntegers(n); axis < 0 {
			return
		}
		integers = true
	}
	for last := n; f.uses.One(last); {
		next := f.uses.Readers(last)[0]
		if !f.isStep(next, last, axis) {
			break
		}
		last, steps = next, append(steps, next)
	}
	if integers && len(steps) < 3 || !integers && !slices.ContainsFunc(steps, scales) {
		return
	}
	f.b.From(append(slices.Clip(steps), n)...)
	s, t := f.affine(steps, axis)
	y := n.Args[0]
	switch {
	case weight >= 0:
		args := slices.Clone(n.Args)
		args[weight] = f.b.Binary(graph.Mul, args[weight], f.spread(s, args[weight].Type.Shape, at))
		y = f.b.Add(n.Op, args...)
	case integers && s == nil:
		y = n
	case integers:
		y = f.b.Binary(graph.Mul, n, f.spread(s, n.Type.Shape, axis))
	default:
		y = f.b.Binary(graph.Mul, y, f.spread(s, n.Type.Shape, axis))
	}
	if t != nil {
		y = f.b.Binary(graph.Add, y, f.spread(t, n.Type.Shape, axis))
	}
	if f.b.Err() != nil {
		return
	}
	last := steps[len(steps)-1]
	y.Name = last.Name
	for _, r := range f.uses.Readers(last) {
		if further, ok := r.Op.(graph.Result); ok { // of a batch norm: its running statistics, unchanged
			f.with[r] = last.Args[2+further.Index]
		}
	}
	f.with[last] = y
	for _, k := range steps {
		f.done[k] = true
	}
	f.c.Match("fold-weights", trace.Reassociated, graph.KindOf(n.Op).String(), y, append(steps, n)...)
}

// weight tells which operand of n is frozen weights of a contraction, and the axis of the channels in the result and in
// the weights; the operand is −1 if there are none.
func (f *folder) weight(n *graph.Node) (operand, axis, at int) {
	switch op := n.Op.(type) {
	case graph.MatMul:
		last := n.Type.Shape.Rank() - 1
		for i, a := range n.Args {
			if !f.frozen.Get(a) || a.Type.DType != n.Type.DType {
				continue
			}
			rank := a.Type.Shape.Rank()
			if transposed := []bool{op.TransA, op.TransB}[i]; (i == 1) == transposed {
				return i, last - 1 + i, rank - 2
			}
			return i, last - 1 + i, rank - 1
		}
	case graph.Conv2D:
		operand, axis, at = 1, 1, 0
		if op.Layout == graph.NHWC {
			axis, at = 3, 3
		}
	case graph.Conv2DTranspose:
		if op.Groups != 1 { // its channels are those of the filters in each group
			return -1, 0, 0
		}
		operand, axis, at = 1, 1, 1
		if op.Layout == graph.NHWC {
			axis, at = 3, 2
		}
	}
	if operand == 0 || !f.frozen.Get(n.Args[operand]) || n.Args[operand].Type.DType != n.Type.DType {
		return -1, 0, 0
	}
	return operand, axis, at
}

// sumsIntegers is the axis of the channels of n, if it is a contraction of images or rows of U8, whose sums are exact; else −1.
func sumsIntegers(n *graph.Node) int {
	switch op := n.Op.(type) {
	case graph.Conv2D:
		if n.Args[0].Type.DType == graph.U8 && op.Layout == graph.NCHW {
			return 1
		}
	case graph.PanelMatMul:
		if n.Args[0].Type.DType == graph.U8 {
			return n.Type.Shape.Rank() - 1
		}
	}
	return -1
}

// normalises reports whether n is a batch norm by frozen statistics.
func (f *folder) normalises(n *graph.Node) bool {
	op, ok := n.Op.(graph.BatchNorm)
	return ok && !op.Train && !slices.ContainsFunc(n.Args[1:], func(a *graph.Node) bool { return !f.frozen.Get(a) })
}

// isStep reports whether n computes y⊙v, y÷v, y+v or y−v for each channel of y by a frozen vector v, or its batch norm.
func (f *folder) isStep(n, y *graph.Node, axis int) bool {
	if n.Type != y.Type {
		return false
	}
	if f.normalises(n) {
		return n.Args[0] == y && axis == 1
	}
	op, ok := n.Op.(graph.Binary)
	if !ok {
		return false
	}
	v := n.Args[1]
	if v == y {
		v = n.Args[0]
	}
	switch op.Fn {
	case graph.Mul, graph.Add:
	case graph.Div, graph.Sub:
		if n.Args[0] != y {
			return false
		}
	default:
		return false
	}
	return v != y && f.frozen.Get(v) && channels(v, y.Type.Shape, axis) != nil
}

// scales reports whether a step is worth moving: it multiplies each channel by a number of its own.
func scales(n *graph.Node) bool {
	op, ok := n.Op.(graph.Binary)
	if !ok {
		return true // a batch norm
	}
	_, one := n.Args[0].Uniform()
	_, two := n.Args[1].Uniform()
	return (op.Fn == graph.Mul || op.Fn == graph.Div) && !one && !two
}

// channels is the value whose elements v repeats along all axes of shape s but one, in order, or one number; nil if there
// is none.
func channels(v *graph.Node, s graph.Shape, axis int) *graph.Node {
	if v.Type.Shape.Rank() == 0 {
		return v
	}
	if _, ok := v.Op.(graph.Broadcast); ok {
		v = v.Args[0]
	}
	from := v.Type.Shape
	lead := s.Rank() - from.Rank()
	for i := range from.Rank() {
		if from.At(i) != 1 && i+lead != axis {
			return nil
		}
	}
	return v
}

// affine is what steps do together, y⊙s + t, as vectors of the channels; t is nil for 0.
func (f *folder) affine(steps []*graph.Node, axis int) (s, t *graph.Node) {
	c := graph.ShapeOf(steps[0].Type.Shape.At(axis))
	scale := func(fn graph.BinaryFn, v *graph.Node) {
		if s == nil && fn == graph.Mul {
			s = v
		} else if s == nil {
			s = f.b.Unary(graph.Recip, v)
		} else {
			s = f.b.Binary(fn, s, v)
		}
		if t != nil {
			t = f.b.Binary(fn, t, v)
		}
	}
	shift := func(fn graph.BinaryFn, v *graph.Node) {
		switch {
		case t != nil:
			t = f.b.Binary(fn, t, v)
		case fn == graph.Sub:
			t = f.b.Unary(graph.Neg, v)
		default:
			t = v
		}
	}
	for _, n := range steps {
		if op, ok := n.Op.(graph.BatchNorm); ok {
			gamma, beta, mean, variance := n.Args[1], n.Args[2], n.Args[3], n.Args[4]
			shift(graph.Sub, mean)
			scale(graph.Mul, f.b.Binary(graph.Mul, gamma, f.b.Unary(graph.Rsqrt, f.b.BinaryScalar(graph.Add, variance, op.Eps))))
			shift(graph.Add, beta)
		} else {
			v := n.Args[1]
			if f.frozen.Get(n.Args[0]) {
				v = n.Args[0]
			}
			v = channels(v, n.Type.Shape, axis)
			if v.Type.Shape.Elems() == 1 {
				v = f.b.Broadcast(f.b.Reshape(v), c)
			} else {
				v = f.b.Reshape(v, c.At(0))
			}
			switch fn := n.Op.(graph.Binary).Fn; fn {
			case graph.Mul, graph.Div:
				scale(fn, v)
			default:
				shift(fn, v)
			}
		}
	}
	return s, t
}

// spread repeats a vector along all axes of a shape but one.
func (f *folder) spread(v *graph.Node, s graph.Shape, axis int) *graph.Node {
	dims := make([]int, s.Rank()-axis)
	for i := range dims {
		dims[i] = 1
	}
	dims[0] = s.At(axis)
	return f.b.Broadcast(f.b.Reshape(v, dims...), s)
}
