package graph

import "math"

// The decompositions of the composites: their meaning in primitives.

// Decompose rebuilds n from primitives at the end of the graph that b extends and returns n's results, or nil if n is
// not a composite.
func Decompose(b *Builder, n *Node) []*Node {
	info := InfoOf(n.Op)
	if info == nil || info.Decompose == nil {
		return nil
	}
	return info.Decompose(b.From(n), n.Op, n.Args)
}

// shifted is x − max x along axis, with the maximum taken as the nearest finite number where it is infinite: exponentials
// of a slice wholly at −Inf are 0 and not NaN, and so are those beside +Inf, which alone is +Inf.
func shifted(b *Builder, x *Node, axis int) *Node {
	most := math.MaxFloat64
	if x.Type.DType == F32 {
		most = math.MaxFloat32
	}
	m := b.BinaryScalar(Max, b.BinaryScalar(Min, b.Reduce(MaxOf, x, true, axis), most), -most)
	return b.Binary(Sub, x, b.Broadcast(m, x.Type.Shape))
}

func decomposeSoftmax(b *Builder, op Op, args []*Node) []*Node {
	axis, x := op.(Softmax).Axis, args[0]
	e := b.Unary(Exp, shifted(b, x, axis))
	return []*Node{b.Binary(Div, e, b.Broadcast(sumOrOne(b, e, axis), x.Type.Shape))}
}

// sumOrOne is the sum of exponentials along axis, or 1 where all of them are 0.
func sumOrOne(b *Builder, e *Node, axis int) *Node {
	sum := b.Reduce(Sum, e, true, axis)
	return b.Add(Select{}, b.BinaryScalar(Eq, sum, 0), b.Scalar(e.Type.DType, 1), sum)
}

func decomposeLogSoftmax(b *Builder, op Op, args []*Node) []*Node {
	axis, x := op.(LogSoftmax).Axis, args[0]
	d := shifted(b, x, axis)
	lse := b.Unary(Log, sumOrOne(b, b.Unary(Exp, d), axis))
	return []*Node{b.Binary(Sub, d, b.Broadcast(lse, x.Type.Shape))}
}

// normalise is (x − mean) ÷ √(variance + eps) along the given axes.
func normalise(b *Builder, x *Node, eps float64, axes ...int) *Node {
	s := x.Type.Shape
	d := b.Binary(Sub, x, b.Broadcast(b.Reduce(Mean, x, true, axes...), s))
	v := b.Reduce(Mean, b.Unary(Square, d), true, axes...)
	r := b.Unary(Rsqrt, b.BinaryScalar(Add, v, eps))
	return b.Binary(Mul, d, b.Broadcast(r, s))
}

func decomposeLayerNorm(b *Builder, op Op, args []*Node) []*Node {
	x := args[0]
	s := x.Type.Shape
	y := normalise(b, x, op.(LayerNorm).Eps, s.Rank()-1)
	y = b.Binary(Mul, y, b.Broadcast(args[1], s))
	return []*Node{b.Binary(Add, y, b.Broadcast(args[2], s))}
}

func decomposeRMSNorm(b *Builder, op Op, args []*Node) []*Node {
	x := args[0]
	s := x.Type.Shape
	v := b.Reduce(Mean, b.Unary(Square, x), true, s.Rank()-1)
	r := b.Unary(Rsqrt, b.BinaryScalar(Add, v, op.(RMSNorm).Eps))
	return []*Node{b.Binary(Mul, b.Binary(Mul, x, b.Broadcast(r, s)), b.Broadcast(args[1], s))}
}

// perChannel broadcasts a vector [c] over x [n,c,...].
func perChannel(b *Builder, v *Node, s Shape) *Node {
	dims := make([]int, s.Rank()-1)
	for i := range dims {
		dims[i] = 1
	}
	dims[0] = s.At(1)
	return b.Broadcast(b.Reshape(v, dims...), s)
}

func decomposeBatchNorm(b *Builder, op Op, args []*Node) []*Node {
	o, x := op.(BatchNorm), args[0]
	s, mean, variance := x.Type.Shape, args[3], args[4]
	if !o.Train {
		r := b.Unary(Rsqrt, b.BinaryScalar(Add, variance, o.Eps))
		y := b.Binary(Mul, b.Binary(Sub, x, perChannel(b, mean, s)), perChannel(b, r, s))
		y = b.Binary(Add, b.Binary(Mul, y, perChannel(b, args[1], s)), perChannel(b, args[2], s))
		return []*Node{y, mean, variance}
	}
	var axes []int
	for i := range s.Rank() {
		if i != 1 {
			axes = append(axes, i)
		}
	}
	m := b.Reduce(Mean, x, false, axes...)
	d := b.Binary(Sub, x, perChannel(b, m, s))
	v := b.Reduce(Mean, b.Unary(Square, d), false, axes...)
	r := b.Unary(Rsqrt, b.BinaryScalar(Add, v, o.Eps))
	y := b.Binary(Mul, d, perChannel(b, r, s))
	y = b.Binary(Add, b.Binary(Mul, y, perChannel(b, args[1], s)), perChannel(b, args[2], s))
	n := float64(s.Elems()) / float64(max(s.At(1), 1))
	mix := func(old, batch *Node, scale float64) *Node {
		return b.Binary(Add, b.BinaryScalar(Mul, old, o.Momentum), b.BinaryScalar(Mul, batch, (1-o.Momentum)*scale))
	}
	return []*Node{y, mix(mean, m, 1), mix(variance, v, n/max(n-1, 1))}
}

func decomposeGroupNorm(b *Builder, op Op, args []*Node) []*Node {
	o, x := op.(GroupNorm), args[0]
	s := x.Type.Shape
	n := s.At(0)
	rest := s.Elems() / max(n*o.Groups, 1)
	y := normalise(b, b.Reshape(x, n, o.Groups, rest), o.Eps, 2)
	y = b.Reshape(y, s.Slice()...)
	y = b.Binary(Mul, y, perChannel(b, args[1], s))
	return []*Node{b.Binary(Add, y, perChannel(b, args[2], s))}
}
