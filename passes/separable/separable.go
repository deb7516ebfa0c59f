// Package separable makes one launch of a depthwise convolution and the convolutions of 1×1 around it, where the target says
// that it is faster. What lies between them is then never in memory as a whole:
//
//	x ─► conv2d 1×1 ─► + bias ─► bounds ─► conv2d depthwise ─► + bias ─► bounds ─► conv2d 1×1 ─►
//
// becomes
//
//	x, weights, biases ─► separable_conv2d ─►
//
// The first convolution may be missing. Images are in NHWC, and filters frozen. Bounds are maxima and minima with constants,
// such as rectifiers and relu6; both have to be the same. Nothing else may read what lies between.
package separable

import (
	"math"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/passes/rewrite"
)

// A Chooser is a target that has a kernel for [graph.SeparableConv2D].
type Chooser interface {
	// FusesSeparable reports whether op is faster than its convolutions one by one, if filters are frozen.
	FusesSeparable(op graph.SeparableConv2D, args []graph.Type, result graph.Type) bool
}

// Run is the pass.
func Run(c *rewrite.Context) error {
	target, ok := c.Target.(Chooser)
	if !ok || !graph.Has[graph.Conv2D](c.Graph) {
		return nil
	}
	g := c.Graph
	f := &finder{uses: c.Uses(), frozen: c.FrozenNodes(), taken: map[*graph.Node]bool{}}
	b, with := graph.Extend(g), map[*graph.Node]*graph.Node{}
	for _, n := range g.Nodes {
		if !f.pointwise(n) || f.frozen.Get(n) || f.taken[n] {
			continue
		}
		middle := f.stage(n.Args[0])
		if middle == nil || !f.depthwise(middle.conv) {
			continue
		}
		found := []*stage{middle}
		if first := f.stage(middle.conv.Args[0]); first != nil && f.pointwise(first.conv) && !f.taken[first.conv] &&
			first.low == middle.low && first.high == middle.high {
			found = append(found, first)
		}
		for ; len(found) > 0; found = found[:len(found)-1] {
			m := build(b.From(n), n, found)
			if b.Err() != nil {
				return b.Err()
			}
			if !target.FusesSeparable(m.Op.(graph.SeparableConv2D), graph.Types(m.Args), m.Type) {
				continue // what is built and not read goes
			}
			m.Name = n.Name
			with[n], f.taken[n] = m, true
			covered := []*graph.Node{n}
			for _, s := range found {
				f.taken[s.conv] = true
				covered = append(covered, s.nodes...)
			}
			for _, k := range covered {
				c.Became(k, m)
			}
			c.Match("separable", trace.Reassociated, graph.KindOf(m.Op).String(), m, covered...)
			break
		}
	}
	if len(with) > 0 {
		g.Replace(with)
	}
	return g.Tidy()
}

// build appends the operation for the last convolution and the stages before it, the nearest first.
func build(b *graph.Builder, last *graph.Node, found []*stage) *graph.Node {
	middle := found[0].conv.Op.(graph.Conv2D)
	op := graph.SeparableConv2D{Stride: middle.Stride, Dilation: middle.Dilation, Pad: middle.Pad, Low: found[0].low,
		High: found[0].high}
	args := []*graph.Node{found[len(found)-1].conv.Args[0], found[0].conv.Args[1], found[0].vector(b), last.Args[1]}
	if len(found) > 1 {
		args = append(args, found[1].conv.Args[1], found[1].vector(b))
	}
	return b.Add(op, args...)
}

// A finder looks for convolutions that nothing else reads.
type finder struct {
	uses   *graph.Uses
	frozen graph.PerNode[bool]
	taken  map[*graph.Node]bool
}

// conv reports whether n is a convolution in NHWC with frozen filters.
func (f *finder) conv(n *graph.Node) (op graph.Conv2D, ok bool) {
	op, ok = n.Op.(graph.Conv2D)
	return op, ok && op.Layout == graph.NHWC && n.Type.DType.IsFloat() && n.Args[0].Type.DType == n.Type.DType &&
		f.frozen.Get(n.Args[1])
}

// pointwise reports whether n is a convolution of 1×1.
func (f *finder) pointwise(n *graph.Node) bool {
	op, ok := f.conv(n)
	s := n.Args
	return ok && op.Groups == 1 && op.Stride == graph.IntsOf(1, 1) && op.Pad == graph.IntsOf(0, 0, 0, 0) &&
		s[1].Type.Shape.At(0)*s[1].Type.Shape.At(1) == 1
}

// depthwise reports whether n is a convolution with one filter for each channel.
func (f *finder) depthwise(n *graph.Node) bool {
	op, ok := f.conv(n)
	channels := n.Args[0].Type.Shape.At(3)
	return ok && op.Groups == channels && channels > 1 && n.Type.Shape.At(3) == channels
}

// A stage is a convolution with a bias and bounds.
type stage struct {
	conv, bias *graph.Node
	low, high  float64
	nodes      []*graph.Node // all of it
}

// vector is the bias, as a vector.
func (s *stage) vector(b *graph.Builder) *graph.Node {
	if s.bias.Type.Shape.Rank() == 1 {
		return s.bias
	}
	return b.Reshape(s.bias, s.bias.Type.Shape.Elems())
}

// stage is what makes n, or nil.
func (f *finder) stage(n *graph.Node) *stage {
	s := &stage{low: math.Inf(-1), high: math.Inf(1)}
	for ; f.uses.One(n); n = n.Args[0] {
		s.nodes = append(s.nodes, n)
		fn, bound := boundOf(n)
		switch {
		case fn == graph.Max && bound <= s.high:
			s.low = max(s.low, bound)
		case fn == graph.Min && bound >= s.low:
			s.high = min(s.high, bound)
		default:
			op, ok := n.Op.(graph.Binary)
			if !ok || op.Fn != graph.Add {
				return nil
			}
			s.conv, s.bias = n.Args[0], vectorOf(n.Args[1])
			if s.bias == nil {
				s.conv, s.bias = n.Args[1], vectorOf(n.Args[0])
			}
			if _, ok := s.conv.Op.(graph.Conv2D); !ok || s.bias == nil || !f.frozen.Get(s.bias) || !f.uses.One(s.conv) {
				return nil
			}
			s.nodes = append(s.nodes, s.conv)
			return s
		}
	}
	return nil
}

// boundOf reads a maximum or minimum of the first operand with a constant; bound is NaN for others.
func boundOf(n *graph.Node) (fn graph.BinaryFn, bound float64) {
	switch op := n.Op.(type) {
	case graph.Unary:
		if op.Fn == graph.Relu {
			return graph.Max, 0
		}
	case graph.Binary:
		if v, ok := n.Args[1].Uniform(); ok && (op.Fn == graph.Max || op.Fn == graph.Min) {
			return op.Fn, v.Float(0)
		}
	}
	return graph.Add, math.NaN()
}

// vectorOf is the value of which n repeats the elements of the last axis over all others, or nil.
func vectorOf(n *graph.Node) *graph.Node {
	if _, ok := n.Op.(graph.Broadcast); !ok {
		return nil
	}
	v, channels := n.Args[0], n.Type.Shape.At(n.Type.Shape.Rank()-1)
	s := v.Type.Shape
	if s.Rank() == 0 || s.At(s.Rank()-1) != channels || s.Elems() != channels {
		return nil
	}
	return v
}
