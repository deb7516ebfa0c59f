package graph

import "fmt"

// LayerNorm normalises the last axis to mean 0 and variance 1 (biased, plus Eps), times gamma, plus beta.
type LayerNorm struct{ Eps float64 }

// RMSNorm divides by √(mean of squares along the last axis + Eps), times gamma.
type RMSNorm struct{ Eps float64 }

// BatchNorm normalises x [N,C,...] per channel. In training it uses the batch's mean and biased variance. Results 1 and
// 2 are then the new running statistics, Momentum·old + (1−Momentum)·batch (unbiased variance). Otherwise it uses the
// running statistics, and results 1 and 2 are these, unchanged.
type BatchNorm struct {
	Eps, Momentum float64
	Train         bool
}

// GroupNorm normalises x [N,C,...] over groups of C/Groups channels, times gamma [C], plus beta [C].
type GroupNorm struct {
	Groups int
	Eps    float64
}

// OpName implements Op.
func (LayerNorm) OpName() string { return "layer_norm" }

// OpName implements Op.
func (RMSNorm) OpName() string { return "rms_norm" }

// OpName implements Op.
func (BatchNorm) OpName() string { return "batch_norm" }

// OpName implements Op.
func (GroupNorm) OpName() string { return "group_norm" }

// usualEps is the Eps that frameworks take if the user says nothing.
const usualEps = 1e-5

var layerNormRow = OpInfo{
	Name: "layer_norm", Doc: "last axis normalised to mean 0 and variance 1, scaled and shifted",
	Operands: "x, gamma, beta", Proto: LayerNorm{}, Class: ClassComposite, Fuses: true, Anchor: AnchorRow,
	RowAxes: lastAxis, RowWeights: true, Kind: KindNorm, MinArgs: 3, MaxArgs: 3, Infer: inferNorm, FLOPs: times(8),
	Decompose: decomposeLayerNorm, Grad: gradLayerNorm, Usual: func(*Node) Op { return LayerNorm{usualEps} },
}

var rmsNormRow = OpInfo{
	Name: "rms_norm", Doc: "last axis divided by its root mean square, scaled", Operands: "x, gamma",
	Proto: RMSNorm{}, Class: ClassComposite, Fuses: true, Anchor: AnchorRow, RowAxes: lastAxis, RowWeights: true, Kind: KindNorm,
	MinArgs: 2, MaxArgs: 2, Infer: inferNorm, FLOPs: times(4), Decompose: decomposeRMSNorm, Grad: gradRMSNorm,
	Usual: func(*Node) Op { return RMSNorm{usualEps} },
}

var batchNormRow = OpInfo{
	Name: "batch_norm", Doc: "channels normalised over the batch; results y, running mean, running variance",
	Operands: "x, gamma, beta, mean, variance", Proto: BatchNorm{}, Class: ClassComposite, Kind: KindNorm,
	ChannelWeights: true, MinArgs: 5, MaxArgs: 5, Infer: inferBatchNorm, FLOPs: times(8), Decompose: decomposeBatchNorm,
	Grad: gradBatchNorm, Usual: func(n *Node) Op {
		if op := n.Op.(BatchNorm); !op.Train { // the momentum is not read
			return BatchNorm{Eps: usualEps, Momentum: op.Momentum}
		}
		return BatchNorm{Eps: usualEps, Momentum: 0.9}
	},
}

var groupNormRow = OpInfo{
	Name: "group_norm", Doc: "groups of channels normalised", Operands: "x, gamma, beta", Proto: GroupNorm{},
	Class: ClassComposite, ChannelWeights: true, Kind: KindNorm, MinArgs: 3, MaxArgs: 3, Infer: inferGroupNorm, FLOPs: times(8),
	Decompose: decomposeGroupNorm, Grad: gradGroupNorm, Usual: func(*Node) Op { return GroupNorm{1, usualEps} },
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

// standardised is x̂ = (x − mean)·r along axes, with r = 1/√(variance + eps), or, uncentred, x·r with r = 1/√(mean of
// squares + eps). It returns x̂ and r, the latter in x's shape.
func standardised(b *Builder, x *Node, eps float64, centred bool, axes ...int) (xhat, r *Node) {
	s := x.Type.Shape
	if centred {
		x = b.Binary(Sub, x, b.Broadcast(b.Reduce(Mean, x, true, axes...), s))
	}
	v := b.Reduce(Mean, b.Unary(Square, x), true, axes...)
	r = b.Broadcast(b.Unary(Rsqrt, b.BinaryScalar(Add, v, eps)), s)
	return b.Binary(Mul, x, r), r
}

// gradStandardised is the gradient of x for the gradient g of x̂: r·(g − mean g − x̂·mean(g⊙x̂)), uncentred without
// the mean of g.
func gradStandardised(b *Builder, xhat, r, g *Node, centred bool, axes ...int) *Node {
	s := xhat.Type.Shape
	along := b.Broadcast(b.Reduce(Mean, b.Binary(Mul, g, xhat), true, axes...), s)
	d := b.Binary(Sub, g, b.Binary(Mul, xhat, along))
	if centred {
		d = b.Binary(Sub, d, b.Broadcast(b.Reduce(Mean, g, true, axes...), s))
	}
	return b.Binary(Mul, r, d)
}

func gradLayerNorm(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	dx, dgamma := gradScaled(b, n, dys[0], n.Op.(LayerNorm).Eps, true)
	return []*Node{dx, dgamma, b.SumTo(dys[0], n.Args[2].Type.Shape)}, nil
}

func gradRMSNorm(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	dx, dgamma := gradScaled(b, n, dys[0], n.Op.(RMSNorm).Eps, false)
	return []*Node{dx, dgamma}, nil
}

// gradScaled is the gradients of x and gamma of a norm n = x̂·gamma over the last axis.
func gradScaled(b *Builder, n, dy *Node, eps float64, centred bool) (dx, dgamma *Node) {
	x, gamma := n.Args[0], n.Args[1]
	s := x.Type.Shape
	last := s.Rank() - 1
	xhat, r := standardised(b, x, eps, centred, last)
	dx = gradStandardised(b, xhat, r, b.Binary(Mul, dy, b.Broadcast(gamma, s)), centred, last)
	return dx, b.SumTo(b.Binary(Mul, dy, xhat), gamma.Type.Shape)
}

// otherAxes are the axes of [n,c,...] except the channels.
func otherAxes(s Shape) []int {
	var axes []int
	for i := range s.Rank() {
		if i != 1 {
			axes = append(axes, i)
		}
	}
	return axes
}

// gradBatchNorm is the gradient through the first result. The running statistics have none, as operands or as results.
func gradBatchNorm(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	op, x, gamma, dy := n.Op.(BatchNorm), n.Args[0], n.Args[1], dys[0]
	if dy == nil {
		return make([]*Node, len(n.Args)), nil
	}
	s := x.Type.Shape
	axes := otherAxes(s)
	mean, variance := n.Args[3], n.Args[4]
	if op.Train {
		mean = b.Reduce(Mean, x, false, axes...)
	}
	d := b.Binary(Sub, x, perChannel(b, mean, s))
	if op.Train {
		variance = b.Reduce(Mean, b.Unary(Square, d), false, axes...)
	}
	r := b.Unary(Rsqrt, b.BinaryScalar(Add, variance, op.Eps))
	xhat := b.Binary(Mul, d, perChannel(b, r, s))
	dgamma, dbeta := b.Reduce(Sum, b.Binary(Mul, dy, xhat), false, axes...), b.Reduce(Sum, dy, false, axes...)
	g := dy // γ·r times it is the gradient of x: in training dy − (dbeta + x̂·dgamma)/n, for n elements of a channel
	if op.Train {
		share := 1 / float64(max(s.Elems()/max(s.At(1), 1), 1))
		along := b.Binary(Mul, xhat, perChannel(b, b.BinaryScalar(Mul, dgamma, share), s))
		g = b.Binary(Sub, b.Binary(Sub, dy, perChannel(b, b.BinaryScalar(Mul, dbeta, share), s)), along)
	}
	dx := b.Binary(Mul, g, perChannel(b, b.Binary(Mul, gamma, r), s))
	return []*Node{dx, dgamma, dbeta, nil, nil}, nil
}

func gradGroupNorm(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	op, x, gamma, dy := n.Op.(GroupNorm), n.Args[0], n.Args[1], dys[0]
	s := x.Type.Shape
	grouped := func(t *Node) *Node {
		return b.Reshape(t, s.At(0), op.Groups, s.Elems()/max(s.At(0)*op.Groups, 1))
	}
	xhat, r := standardised(b, grouped(x), op.Eps, true, 2)
	g := grouped(b.Binary(Mul, dy, perChannel(b, gamma, s)))
	dx := b.Reshape(gradStandardised(b, xhat, r, g, true, 2), s.Slice()...)
	axes := otherAxes(s)
	dgamma := b.Reduce(Sum, b.Binary(Mul, dy, b.Reshape(xhat, s.Slice()...)), false, axes...)
	return []*Node{dx, dgamma, b.Reduce(Sum, dy, false, axes...)}, nil
}

// inferNorm requires x [..., d] and vectors [d].
func inferNorm(_ Op, args []Type) ([]Type, error) {
	x := args[0]
	if err := wantFloat(x); err != nil {
		return nil, err
	}
	if x.Shape.Rank() == 0 {
		return nil, fmt.Errorf("needs at least one axis")
	}
	return args[:1], wantVectors(x.DType, x.Shape.At(x.Shape.Rank()-1), args[1:])
}

func inferBatchNorm(_ Op, args []Type) ([]Type, error) {
	x := args[0]
	if err := wantFloat(x); err != nil {
		return nil, err
	}
	if x.Shape.Rank() < 2 {
		return nil, fmt.Errorf("needs [n,c,...], not %v", x.Shape)
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
