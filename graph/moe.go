package graph

import (
	"fmt"
	"slices"
)

var moeRow = OpInfo{
	Name:     "moe",
	Doc:      "a mixture of experts: the tokens of each expert through its feed-forward network, weighted; results y, loads",
	Operands: "x, gates, weights...", Proto: MoE{}, Class: ClassComposite, Fuses: true, Anchor: AnchorMoE,
	Kind: KindMoE, MinArgs: 4, MaxArgs: -1, Infer: inferMoE, FLOPs: flopsMoE, Decompose: decomposeMoE,
	Chooses: func(i int) bool { return i == 1 },
	Grad:    gradMoE, Contracts: func(op Op, i int) bool { return op.(MoE).contracts(i) },
}

var moeGradRow = OpInfo{
	Name: "moe_grad", Doc: "gradient of moe; results those of its operands", Operands: "x, gates, weights..., dy",
	Proto: MoEGrad{}, Class: ClassComposite, Fuses: true, Anchor: AnchorMoE, Kind: KindMoE, MinArgs: 5, MaxArgs: -1,
	Infer: inferMoEGrad, FLOPs: flopsMoEGrad, Decompose: decomposeMoEGrad,
	Contracts: func(op Op, i int) bool {
		m := op.(MoEGrad).MoE()
		return i == m.Operands() || m.contracts(i)
	},
	Chooses: func(i int) bool { return i == 1 },
}

// MoE is a mixture of experts: y[t] = Σ_e gates[t,e]·FFN_e(x[t]) for x [..., d] and gates [..., Experts], where
//
//	FFN_e(x) = act(x·w1_e + b1_e)·w2_e + b2_e                       or, if Gated,
//	FFN_e(x) = (act(x·w1_e + b1_e) ⊙ (x·w3_e + b3_e))·w2_e + b2_e   (Shazeer, arXiv 2002.05202)
//
// with w1_e and w3_e [d, f], w2_e [f, o], and biases b1_e and b3_e [f], b2_e [o] if Bias. The activation is a function
// of one variable.
//
// A token whose gate for an expert is exactly zero is not sent to it: the pair adds nothing to y, whatever the expert
// would compute, costs nothing, and passes no gradient (Shazeer et al., arXiv 1701.06538). With Dense every expert gets
// every token, for gates that are zero only by accident. TopK > 0 is the largest number of gates of a token that are
// not zero, if known, without ties of scores. It is used only for the cost, unless Exact says that a Route has chosen the
// experts: then ties give a token no more. Only gates of NaN may be more than TopK, of which a kernel uses as many at least.
//
// The operands are x, gates, and then the weights in the order w1, b1, w3, b3, w2, b2. b1, b3 and b2 exist only with
// Bias, w3 and b3 only with Gated. If Stacked each of these is one operand with a leading axis of Experts; else each is
// Experts operands, one for each expert in turn.
//
// With x and w1, w3 and w2 of a 16-bit type, gates, biases and y are F32, and hidden values are rounded before they are
// multiplied by w2.
//
// Result 0 is y [..., o]; result 1 the load [Experts] of each expert, the number of tokens sent to it, as I64.
type MoE struct {
	Experts     int
	Activation  UnaryFn
	Alpha       float64 // of the activation
	AtZero      Slope   `attr:"optional"` // of the activation
	Gated, Bias bool
	Stacked     bool
	Dense       bool
	TopK        int
	Exact       bool `attr:"optional"`
}

// OpName implements Op.
func (MoE) OpName() string { return "moe" }

// Act is the activation as an operation.
func (m MoE) Act() Unary { return Unary{m.Activation, m.Alpha, m.AtZero} }

// MoEWeight names one of the weights that each expert has.
type MoEWeight uint8

// The weights, in the order of the operands.
const (
	MoEW1 MoEWeight = iota
	MoEB1
	MoEW3
	MoEB3
	MoEW2
	MoEB2
)

var moeWeights = [...]string{"w1", "b1", "w3", "b3", "w2", "b2"}

// Bias reports whether w is a bias, which is added and not contracted.
func (w MoEWeight) Bias() bool { return w == MoEB1 || w == MoEB3 || w == MoEB2 }

// String gives the weight's name.
func (w MoEWeight) String() string { return moeWeights[w] }

// Operand indices of a MoE; those of the weights are given by [MoE.Weight].
const (
	moeX = iota
	moeGates
	moeFirst // the first weight
)

// Weights lists the weights that each expert has, in the order of the operands.
func (m MoE) Weights() []MoEWeight {
	var list []MoEWeight
	for w := MoEW1; w <= MoEB2; w++ {
		gate := w == MoEW3 || w == MoEB3
		if (m.Bias || !w.Bias()) && (m.Gated || !gate) {
			list = append(list, w)
		}
	}
	return list
}

// Weight is the index of the operand that holds weight w of expert e (if Stacked, of all experts); -1 if there is none.
func (m MoE) Weight(w MoEWeight, e int) int {
	i := slices.Index(m.Weights(), w)
	switch {
	case i < 0:
		return -1
	case m.Stacked:
		return moeFirst + i
	}
	return moeFirst + i*m.Experts + e
}

// Operands is the number of operands.
func (m MoE) Operands() int {
	n := len(m.Weights())
	if !m.Stacked {
		n *= m.Experts
	}
	return moeFirst + n
}

// contracts reports whether operand i is x, w1, w3 or w2; see [Contracts].
func (m MoE) contracts(i int) bool {
	if i < moeFirst {
		return i == moeX
	}
	w, _ := m.weightAt(i - moeFirst)
	return !w.Bias()
}

// MoEDims are the sizes of a mixture of experts.
type MoEDims struct {
	Tokens                int // the product of the axes of x before the last
	Width, Hidden, Result int // d, f and o
}

// Dims returns the sizes for operands of types that the type rule accepts.
func (m MoE) Dims(args []Type) MoEDims {
	x, w1, w2 := args[moeX].Shape, args[m.Weight(MoEW1, 0)].Shape, args[m.Weight(MoEW2, 0)].Shape
	d := MoEDims{Width: x.At(x.Rank() - 1), Hidden: w1.At(w1.Rank() - 1), Result: w2.At(w2.Rank() - 1)}
	d.Tokens = x.Drop(IntsOf(x.Rank() - 1)).Elems()
	return d
}

func inferMoE(op Op, args []Type) ([]Type, error) {
	m := op.(MoE)
	if m.Experts < 1 || m.TopK < 0 {
		return nil, fmt.Errorf("%d experts, of which a token uses %d", m.Experts, m.TopK)
	}
	if int(m.Activation) >= numUnary {
		return nil, fmt.Errorf("unknown function %d", m.Activation)
	}
	if m.Activation.Info().Of&Floats == 0 {
		return nil, fmt.Errorf("%v is no activation", m.Activation)
	}
	if err := m.Act().checkSlope(); err != nil {
		return nil, err
	}
	if !m.Stacked && m.Experts > len(args) || len(args) != m.Operands() {
		return nil, fmt.Errorf("needs %d operands with these attributes, not %d", m.Operands(), len(args))
	}
	x, gates := args[moeX], args[moeGates]
	if err := wantContracted(x); err != nil {
		return nil, err
	}
	r := x.Shape.Rank()
	if r < 1 {
		return nil, fmt.Errorf("needs x of rank 1 or more, not %v", x)
	}
	if want := x.Accumulator().Reshaped(x.Shape.With(r-1, m.Experts)); gates != want {
		return nil, fmt.Errorf("the gates are %v, not %v", gates, want)
	}
	rank := 2
	if m.Stacked {
		rank = 3
	}
	for _, w := range []MoEWeight{MoEW1, MoEW2} {
		if s := args[m.Weight(w, 0)].Shape; s.Rank() != rank {
			return nil, fmt.Errorf("%v has shape %v, not %d axes", w, s, rank)
		}
	}
	d := m.Dims(args)
	for i, got := range args[moeFirst:] {
		w, of := m.weightAt(i)
		want := x.Reshaped(m.WeightShape(d, w))
		if w.Bias() {
			want = want.Accumulator()
		}
		if got != want {
			return nil, fmt.Errorf("%v of %s is %v, not %v", w, of, got, want)
		}
	}
	y := x.Accumulator().Reshaped(x.Shape.With(r-1, d.Result))
	return []Type{y, TypeOf(I64, m.Experts)}, nil
}

// weightAt says which weight, and of which expert, the i-th of the weight operands is.
func (m MoE) weightAt(i int) (w MoEWeight, of string) {
	if m.Stacked {
		return m.Weights()[i], "all experts"
	}
	return m.Weights()[i/m.Experts], fmt.Sprintf("expert %d", i%m.Experts)
}

// WeightShape is the shape of an operand that holds weight w.
func (m MoE) WeightShape(d MoEDims, w MoEWeight) Shape {
	var dims []int
	if m.Stacked {
		dims = append(dims, m.Experts)
	}
	switch w {
	case MoEW1, MoEW3:
		dims = append(dims, d.Width, d.Hidden)
	case MoEB1, MoEB3:
		dims = append(dims, d.Hidden)
	case MoEW2:
		dims = append(dims, d.Hidden, d.Result)
	case MoEB2:
		dims = append(dims, d.Result)
	}
	return ShapeOf(dims...)
}

// MoEGrad is the gradient of a MoE of the same attributes. Its operands are those of the MoE and then dy, the gradient
// of its result 0. Its results are the gradients of the MoE's operands, in their order. Tokens are grouped as in the
// MoE, and hidden values are computed again. If x has a 16-bit type, dy has it, too; the results are F32. A gate that
// is zero gets no gradient, unless Dense.
type MoEGrad struct {
	Experts     int
	Activation  UnaryFn
	Alpha       float64
	AtZero      Slope `attr:"optional"`
	Gated, Bias bool
	Stacked     bool
	Dense       bool
	TopK        int
	Exact       bool `attr:"optional"`
}

// OpName implements Op.
func (MoEGrad) OpName() string { return "moe_grad" }

// MoE is the operation that this is the gradient of.
func (g MoEGrad) MoE() MoE { return MoE(g) }

func inferMoEGrad(op Op, args []Type) ([]Type, error) {
	m := op.(MoEGrad).MoE()
	n := len(args) - 1
	out, err := inferMoE(m, args[:max(n, 0)])
	if err != nil {
		return nil, err
	}
	if want := out[0].With(args[moeX].DType); args[n] != want {
		return nil, fmt.Errorf("dy is %v, not %v", args[n], want)
	}
	return accumulators(args[:n]), nil
}

// decomposeMoE sends every token to every expert, and removes the results whose gates are zero afterwards.
func decomposeMoE(b *Builder, op Op, args []*Node) []*Node {
	m := op.(MoE)
	d, dtype := m.Dims(Types(args)), args[moeX].Type.DType.Accumulator()
	x := b.Reshape(args[moeX], d.Tokens, d.Width)
	gates := b.Reshape(args[moeGates], d.Tokens, m.Experts)
	open := b.Binary(Ne, gates, b.Broadcast(b.Scalar(dtype, 0), gates.Type.Shape))
	if m.Dense {
		open = b.Binary(Eq, open, open)
	}
	out := ShapeOf(d.Tokens, d.Result)
	var y *Node
	for e := range m.Experts {
		column := func(n *Node) *Node { return b.Broadcast(b.Slice(n, 1, e, 1, 1), out) }
		term := b.Binary(Mul, column(gates), m.expert(b, d, args, e, x))
		if !m.Dense {
			term = b.Add(Select{}, column(open), term, b.Scalar(dtype, 0))
		}
		if y == nil {
			y = term
		} else {
			y = b.Binary(Add, y, term)
		}
	}
	r := args[moeX].Type.Shape.Rank()
	y = b.Reshape(y, args[moeX].Type.Shape.With(r-1, d.Result).Slice()...)
	return []*Node{y, b.Reduce(Sum, b.Add(Cast{I64}, open), false, 0)}
}

// expert is FFN_e of the tokens x [Tokens, Width].
func (m MoE) expert(b *Builder, d MoEDims, args []*Node, e int, x *Node) *Node {
	weight := func(w MoEWeight) *Node {
		n := args[m.Weight(w, e)]
		if m.Stacked {
			s := n.Type.Shape
			n = b.Reshape(b.Slice(n, 0, e, 1, 1), s.Slice()[1:]...)
		}
		return n
	}
	linear := func(x *Node, w, bias MoEWeight) *Node {
		y := b.MatMul(b.CastTo(weight(w).Type.DType, x), weight(w), false, false)
		if m.Bias {
			y = b.Binary(Add, y, b.Broadcast(weight(bias), y.Type.Shape))
		}
		return y
	}
	h := b.Add(m.Act(), linear(x, MoEW1, MoEB1))
	if m.Gated {
		h = b.Binary(Mul, h, linear(x, MoEW3, MoEB3))
	}
	return linear(h, MoEW2, MoEB2)
}

// gradMoE computes the gradients of all operands in one operation.
func gradMoE(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	if dys[0] == nil {
		return make([]*Node, len(n.Args)), nil
	}
	dy := b.CastTo(n.Args[moeX].Type.DType, dys[0])
	dx := b.Add(MoEGrad(n.Op.(MoE)), append(slices.Clone(n.Args), dy)...)
	grads := []*Node{dx}
	for i := 1; i < len(n.Args); i++ {
		grads = append(grads, b.Add(Result{i}, dx))
	}
	return grads, nil
}

// decomposeMoEGrad differentiates the decomposition of the MoE.
func decomposeMoEGrad(b *Builder, op Op, args []*Node) []*Node {
	m := op.(MoEGrad).MoE()
	g := New("") // a separate graph, in which an operand that is given twice counts as two
	body := Extend(g, b.origin...)
	in := make([]*Node, len(args))
	for i, a := range args {
		in[i] = body.Input(fmt.Sprint("x", i), a.Type)
	}
	last := len(args) - 1
	y := decomposeMoE(body, m, in[:last])
	grads, err := VJP(g, y[:1], []*Node{body.CastTo(y[0].Type.DType, in[last])}, in[:last])
	if err != nil {
		b.Fail(err)
		return nil
	}
	for i, d := range grads {
		body.Output(fmt.Sprint("d", i), d)
	}
	if err := body.Err(); err != nil {
		b.Fail(err)
		return nil
	}
	return b.Inline(g, args)
}

// flopsMoE counts the products and activations of the tokens that are sent, as far as their number is known.
func flopsMoE(op Op, args, _ []Type) int64 {
	m := op.(MoE)
	return product(m.pairs(args), m.flopsPerPair(args))
}

// flopsMoEGrad counts the hidden values again and two products for each of the MoE's.
func flopsMoEGrad(op Op, args, _ []Type) int64 {
	m := op.(MoEGrad).MoE()
	return product(m.pairs(args), 3*m.flopsPerPair(args))
}

// pairs is the number of pairs of a token and an expert that it may be sent to.
func (m MoE) pairs(args []Type) int64 {
	k := m.Experts
	if m.TopK > 0 && !m.Dense {
		k = min(k, m.TopK)
	}
	return product(int64(m.Dims(args).Tokens), int64(k))
}

func (m MoE) flopsPerPair(args []Type) int64 {
	d := m.Dims(args)
	in := 2 * int64(d.Width) * int64(d.Hidden)
	if m.Gated {
		in *= 2
	}
	return in + 2*int64(d.Hidden)*int64(d.Result) + m.Activation.Info().FLOPs*int64(d.Hidden) + 2*int64(d.Result)
}
