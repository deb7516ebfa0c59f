package graphtest

import (
	"math"

	"fusec/graph"
)

// MoEWriter writes mixtures of experts in one of the usual ways, chosen at random.
type MoEWriter struct {
	Writer
	X              *graph.Node // the tokens [lead..., width]
	Experts        int
	Hidden, Result int
	Activation     graph.Unary
	Gated, Bias    bool
	Flat           bool // experts see the tokens along one axis
	Closed         bool // set by Write: gates are zero by construction
}

// lead is the dimensions of X without the last.
func (w *MoEWriter) lead() []int { s := w.X.Type.Shape; return s.Slice()[:s.Rank()-1] }

func (w *MoEWriter) tokens() int { return graph.ShapeOf(w.lead()...).Elems() }

// Write writes one form and returns its result [lead..., Result].
func (w *MoEWriter) Write() *graph.Node {
	gates := w.gates()
	if w.coin() {
		return w.chain(gates)
	}
	return w.batched(gates)
}

// under is the shape of a value with the given width for each token.
func (w *MoEWriter) under(width int) []int { return append(w.lead(), width) }

func (w *MoEWriter) weight(dims ...int) *graph.Node {
	return w.param("w", graph.TypeOf(w.D, dims...))
}

// product multiplies x by a weight [in, out], which may be transposed.
func (w *MoEWriter) product(x *graph.Node, in, out int) *graph.Node {
	switch w.R.IntN(3) {
	case 0:
		return w.B.MatMul(x, w.weight(out, in), false, true)
	case 1:
		return w.B.MatMul(x, w.B.Transpose(w.weight(out, in), 1, 0), false, false)
	}
	return w.B.MatMul(x, w.weight(in, out), false, false)
}

func (w *MoEWriter) biased(y *graph.Node, experts ...int) *graph.Node {
	if !w.Bias {
		return y
	}
	bias := w.weight(append(experts, last(y))...)
	if len(experts) > 0 {
		ones := []int{experts[0]}
		for range y.Type.Shape.Rank() - 2 {
			ones = append(ones, 1)
		}
		bias = w.B.Reshape(bias, append(ones, last(y))...)
	}
	bias = w.B.Broadcast(bias, y.Type.Shape)
	if w.coin() {
		return w.B.Binary(graph.Add, bias, y)
	}
	return w.B.Binary(graph.Add, y, bias)
}

// activated joins the hidden layers.
func (w *MoEWriter) activated(linear func() *graph.Node) *graph.Node {
	h := w.B.Add(w.Activation, linear())
	if !w.Gated {
		return h
	}
	if w.coin() {
		return w.B.Binary(graph.Mul, linear(), h)
	}
	return w.B.Binary(graph.Mul, h, linear())
}

// expert is one network of the tokens.
func (w *MoEWriter) expert() *graph.Node {
	x := w.X
	if w.Flat {
		x = w.B.Reshape(x, w.tokens(), last(x))
	}
	h := w.activated(func() *graph.Node { return w.biased(w.product(x, last(x), w.Hidden)) })
	y := w.biased(w.product(h, w.Hidden, w.Result))
	return w.B.Reshape(y, w.under(w.Result)...)
}

// gates are [lead..., experts].
func (w *MoEWriter) gates() *graph.Node {
	b := w.B
	full := graph.ShapeOf(w.under(w.Experts)...)
	l := w.biased(w.product(w.X, last(w.X), w.Experts))
	last := full.Rank() - 1
	zero, one := b.Scalar(w.D, 0), func(c *graph.Node) *graph.Node { return b.Add(graph.Cast{To: w.D}, c) }
	switch w.R.IntN(7) {
	case 0:
		return w.softmax(l)
	case 1:
		return b.Unary(graph.Sigmoid, l)
	case 2:
		w.Closed = true
		l = b.Add(graph.Select{}, b.Add(graph.Route{K: 1 + w.R.IntN(w.Experts)}, l), l, b.Scalar(w.D, math.Inf(-1)))
		return w.softmax(l)
	}
	w.Closed = true
	p := w.softmax(l)
	switch w.R.IntN(4) {
	case 0:
		p = b.Binary(graph.Mul, p, one(w.operand("mask", graph.Type{DType: graph.Bool, Shape: full})))
	case 1:
		p = b.Add(graph.Select{}, b.Add(graph.Route{K: 1}, p), p, zero)
	case 2:
		p = b.Binary(graph.Mul, p, w.operand("mask", graph.Type{DType: w.D, Shape: full}))
	case 3:
		p = b.Binary(graph.Mul, one(b.Binary(graph.Ge, p, b.Broadcast(b.Reduce(graph.MaxOf, p, true, last), full))), p)
	}
	if w.coin() {
		sum := b.BinaryScalar(graph.Add, b.Unary(graph.Abs, b.Reduce(graph.Sum, p, true, last)), 1e-3)
		p = b.Binary(graph.Div, p, b.Broadcast(sum, full))
	}
	return p
}

// chain adds the experts in a chain or a tree, sometimes with another term in between.
func (w *MoEWriter) chain(gates *graph.Node) *graph.Node {
	b := w.B
	full := graph.ShapeOf(w.under(w.Result)...)
	var terms []*graph.Node
	for _, e := range w.R.Perm(w.Experts) {
		c := b.Slice(gates, gates.Type.Shape.Rank()-1, e, 1, 1)
		if w.coin() {
			c = b.Reshape(c, w.tokens(), 1)
			c = b.Reshape(c, w.under(1)...)
		}
		y, g := w.expert(), b.Broadcast(c, full)
		if w.Flat && w.coin() {
			y, g = b.Reshape(y, w.tokens(), w.Result), b.Broadcast(b.Reshape(c, w.tokens(), 1), graph.ShapeOf(w.tokens(), w.Result))
		}
		if w.coin() {
			y, g = g, y
		}
		terms = append(terms, b.Reshape(b.Binary(graph.Mul, y, g), full.Slice()...))
	}
	if w.coin() {
		at := w.R.IntN(len(terms) + 1)
		terms = append(terms[:at], append([]*graph.Node{w.operand("r", graph.Type{DType: w.D, Shape: full})}, terms[at:]...)...)
	}
	for len(terms) > 1 {
		i := 0
		if w.coin() {
			i = w.R.IntN(len(terms) - 1)
		}
		terms[i] = b.Binary(graph.Add, terms[i], terms[i+1])
		terms = append(terms[:i+1], terms[i+2:]...)
	}
	return terms[0]
}

// batched computes all experts at once, and sums along their axis.
func (w *MoEWriter) batched(gates *graph.Node) *graph.Node {
	b, width := w.B, last(w.X)
	x := b.Reshape(w.X, w.tokens(), width)
	if w.coin() {
		x = b.Broadcast(x, graph.ShapeOf(w.Experts, w.tokens(), width))
	}
	product := func(x *graph.Node, in, out int) *graph.Node {
		if w.coin() {
			return w.biased(b.MatMul(x, w.weight(w.Experts, out, in), false, true), w.Experts)
		}
		return w.biased(b.MatMul(x, w.weight(w.Experts, in, out), false, false), w.Experts)
	}
	y := product(w.activated(func() *graph.Node { return product(x, width, w.Hidden) }), w.Hidden, w.Result)
	g := b.Reshape(gates, w.tokens(), w.Experts)
	axis := 0
	if w.coin() {
		y, g, axis = b.Transpose(y, 1, 0, 2), b.Reshape(g, w.tokens(), w.Experts, 1), 1
	} else {
		g = b.Reshape(b.Transpose(g, 1, 0), w.Experts, w.tokens(), 1)
	}
	y = b.Reduce(graph.Sum, b.Binary(graph.Mul, b.Broadcast(g, y.Type.Shape), y), w.coin(), axis)
	return b.Reshape(y, w.under(w.Result)...)
}
