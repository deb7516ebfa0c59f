package passes

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/lowering/cpu"
)

// moeComposer writes mixtures of experts in one of the ways in which people do, drawn at random.
type moeComposer struct {
	moeWriter
	r           *rand.Rand
	d           graph.DType
	lead        []int
	tokens      int
	hidden, out int
	act         graph.Unary
	gated, bias bool
	flat        bool // experts see the tokens along one axis
	closed      bool // gates are zero by construction
}

func (w *moeComposer) coin() bool { return w.r.IntN(2) == 0 }

// under is the dimensions of a value of the given width for each token.
func (w *moeComposer) under(width int) []int { return append(slices.Clone(w.lead), width) }

func (w *moeComposer) weight(dims ...int) *graph.Node {
	w.names++
	return w.b.Param(fmt.Sprint("w", w.names), graph.TypeOf(w.d, dims...))
}

// product multiplies x by a weight [in, out], which stands transposed or not.
func (w *moeComposer) product(x *graph.Node, in, out int) *graph.Node {
	switch w.r.IntN(3) {
	case 0:
		return w.b.MatMul(x, w.weight(out, in), false, true)
	case 1:
		return w.b.MatMul(x, w.b.Transpose(w.weight(out, in), 1, 0), false, false)
	}
	return w.b.MatMul(x, w.weight(in, out), false, false)
}

func (w *moeComposer) biased(y *graph.Node, experts ...int) *graph.Node {
	if !w.bias {
		return y
	}
	bias := w.weight(append(experts, lastOf(y.Type.Shape))...)
	if len(experts) > 0 {
		ones := []int{experts[0]}
		for range y.Type.Shape.Rank() - 2 {
			ones = append(ones, 1)
		}
		bias = w.b.Reshape(bias, append(ones, lastOf(y.Type.Shape))...)
	}
	bias = w.b.Broadcast(bias, y.Type.Shape)
	if w.coin() {
		return w.b.Binary(graph.Add, bias, y)
	}
	return w.b.Binary(graph.Add, y, bias)
}

// activated joins the hidden layers.
func (w *moeComposer) activated(linear func() *graph.Node) *graph.Node {
	h := w.b.Add(w.act, linear())
	if !w.gated {
		return h
	}
	if w.coin() {
		return w.b.Binary(graph.Mul, linear(), h)
	}
	return w.b.Binary(graph.Mul, h, linear())
}

// expert is one network of the tokens.
func (w *moeComposer) expert() *graph.Node {
	x := w.x
	if w.flat {
		x = w.b.Reshape(x, w.tokens, lastOf(x.Type.Shape))
	}
	h := w.activated(func() *graph.Node { return w.biased(w.product(x, lastOf(x.Type.Shape), w.hidden)) })
	y := w.biased(w.product(h, w.hidden, w.out))
	return w.b.Reshape(y, w.under(w.out)...)
}

// gates are [lead..., experts].
func (w *moeComposer) gates() *graph.Node {
	b := w.b
	full := graph.ShapeOf(w.under(w.experts)...)
	l := w.biased(w.product(w.x, lastOf(w.x.Type.Shape), w.experts))
	last := full.Rank() - 1
	zero, one := b.Scalar(w.d, 0), func(c *graph.Node) *graph.Node { return b.Add(graph.Cast{To: w.d}, c) }
	switch w.r.IntN(7) {
	case 0:
		return softmax(b, l)
	case 1:
		return b.Unary(graph.Sigmoid, l)
	case 2:
		w.closed = true
		l = b.Add(graph.Select{}, b.Add(graph.Route{K: 1 + w.r.IntN(w.experts)}, l), l, b.Scalar(w.d, inf))
		return softmax(b, l)
	}
	w.closed = true
	p := softmax(b, l)
	switch w.r.IntN(4) {
	case 0:
		p = b.Binary(graph.Mul, p, one(b.Input("mask", graph.Type{DType: graph.Bool, Shape: full})))
	case 1:
		p = b.Add(graph.Select{}, b.Add(graph.Route{K: 1}, p), p, zero)
	case 2:
		p = b.Binary(graph.Mul, p, b.Input("mask", graph.Type{DType: w.d, Shape: full}))
	case 3:
		p = b.Binary(graph.Mul, one(b.Binary(graph.Ge, p, b.Broadcast(b.Reduce(graph.MaxOf, p, true, last), full))), p)
	}
	if w.coin() {
		sum := b.BinaryScalar(graph.Add, b.Unary(graph.Abs, b.Reduce(graph.Sum, p, true, last)), 1e-3)
		p = b.Binary(graph.Div, p, b.Broadcast(sum, full))
	}
	return p
}

// chain adds the experts one by one, in a chain or a tree, with something else among the terms now and then.
func (w *moeComposer) chain(gates *graph.Node) *graph.Node {
	b := w.b
	full := graph.ShapeOf(w.under(w.out)...)
	var terms []*graph.Node
	for _, e := range w.r.Perm(w.experts) {
		c := b.Slice(gates, gates.Type.Shape.Rank()-1, e, 1, 1)
		if w.coin() {
			c = b.Reshape(c, w.tokens, 1)
			c = b.Reshape(c, w.under(1)...)
		}
		y, g := w.expert(), b.Broadcast(c, full)
		if w.flat && w.coin() {
			y, g = b.Reshape(y, w.tokens, w.out), b.Broadcast(b.Reshape(c, w.tokens, 1), graph.ShapeOf(w.tokens, w.out))
		}
		if w.coin() {
			y, g = g, y
		}
		terms = append(terms, b.Reshape(b.Binary(graph.Mul, y, g), full.Slice()...))
	}
	if w.coin() {
		at := w.r.IntN(len(terms) + 1)
		terms = append(terms[:at], append([]*graph.Node{b.Input("r", graph.Type{DType: w.d, Shape: full})}, terms[at:]...)...)
	}
	for len(terms) > 1 {
		i := 0
		if w.coin() {
			i = w.r.IntN(len(terms) - 1)
		}
		terms[i] = b.Binary(graph.Add, terms[i], terms[i+1])
		terms = append(terms[:i+1], terms[i+2:]...)
	}
	return terms[0]
}

// batched computes all experts at once, and sums along their axis.
func (w *moeComposer) batched(gates *graph.Node) *graph.Node {
	b, width := w.b, lastOf(w.x.Type.Shape)
	x := b.Reshape(w.x, w.tokens, width)
	if w.coin() {
		x = b.Broadcast(x, graph.ShapeOf(w.experts, w.tokens, width))
	}
	product := func(x *graph.Node, in, out int) *graph.Node {
		if w.coin() {
			return w.biased(b.MatMul(x, w.weight(w.experts, out, in), false, true), w.experts)
		}
		return w.biased(b.MatMul(x, w.weight(w.experts, in, out), false, false), w.experts)
	}
	y := product(w.activated(func() *graph.Node { return product(x, width, w.hidden) }), w.hidden, w.out)
	g := b.Reshape(gates, w.tokens, w.experts)
	axis := 0
	if w.coin() {
		y, g, axis = b.Transpose(y, 1, 0, 2), b.Reshape(g, w.tokens, w.experts, 1), 1
	} else {
		g = b.Reshape(b.Transpose(g, 1, 0), w.experts, w.tokens, 1)
	}
	y = b.Reduce(graph.Sum, b.Binary(graph.Mul, b.Broadcast(g, y.Type.Shape), y), w.coin(), axis)
	return b.Reshape(y, w.under(w.out)...)
}

// composeMoE writes a mixture drawn at random.
func composeMoE(t *testing.T, r *rand.Rand) (*moeComposer, *graph.Graph) {
	t.Helper()
	b := graph.NewBuilder("random")
	one := func(of ...int) int { return of[r.IntN(len(of))] }
	w := &moeComposer{r: r, d: []graph.DType{graph.F32, graph.F64}[r.IntN(2)], lead: []int{one(1, 2, 5)}}
	w.b, w.experts, w.hidden, w.out = b, one(2, 3, 5), one(1, 2, 5), one(1, 2, 3)
	if w.coin() {
		w.lead = append(w.lead, one(1, 3))
	}
	w.tokens = graph.ShapeOf(w.lead...).Elems()
	w.x = b.Input("x", graph.TypeOf(w.d, append(slices.Clone(w.lead), one(1, 2, 4))...))
	w.act = []graph.Unary{{Fn: graph.Relu}, {Fn: graph.Silu}, {Fn: graph.GeluErf}, {Fn: graph.Tanh},
		{Fn: graph.LeakyRelu, Alpha: 0.25}}[r.IntN(5)]
	w.gated, w.bias, w.flat = w.coin(), w.coin(), w.coin()
	gates := w.gates()
	if w.coin() {
		b.Output("y", w.chain(gates))
	} else {
		b.Output("y", w.batched(gates))
	}
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	return w, g
}

// TestMoERandom composes spellings at random. Each becomes one mixture of the same values.
func TestMoERandom(t *testing.T) {
	n := uint64(600)
	if testing.Short() {
		n = 100
	}
	for seed := range n {
		r := rand.New(rand.NewPCG(seed, 21))
		w, g := composeMoE(t, r)
		h, tr, err := Run(g, Config{Verify: true})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		sameNumbers(t, g, h, graphtest.Values(r, g))
		again := stageOf(t, tr, "simplify-again").Graph
		left := moeOf(again)
		if left == "" || strings.Contains(left, ",") || strings.Contains(left, "dense") == w.closed ||
			strings.Contains(left, "gated") != w.gated {
			t.Errorf("%s became %q: %s\nmisses %+v", opsOf(stageOf(t, tr, "raise").Graph), left, opsOf(again),
				stageOf(t, tr, "fuse-moe").Misses)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// TestMoERandomOnCPU runs some of them.
func TestMoERandomOnCPU(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 22))
		_, g := composeMoE(t, r)
		h, _, err := Run(g, Config{Target: cpu.New(), Verify: true})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		sameOnCPU(t, g, h, graphtest.Values(r, g))
	}
}
