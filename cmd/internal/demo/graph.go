package demo

import (
	"fmt"
	"math"

	"fusec/cmd/internal/bench"
	"fusec/graph"
)

// demoShape is the sizes that fusec demo shows the fusions at.
type demoShape struct {
	Batch    int     `json:"batch_size"`
	Seq      int     `json:"seq_len"`
	Model    int     `json:"d_model"`
	Heads    int     `json:"heads"`
	Hidden   int     `json:"hidden"` // width of a feed-forward network
	Experts  int     `json:"num_experts"`
	TopK     int     `json:"top_k"`
	Factor   float64 `json:"capacity_factor"`
	Capacity int     `json:"capacity"` // tokens that an expert takes at most; 0: any number
	Causal   bool    `json:"causal"`
	FFN      bool    `json:"ffn"` // the block has one feed-forward network, and no experts
}

// hiddenFactor is how many times as wide as the model a feed-forward network is.
const hiddenFactor = 4

func (s *demoShape) tokens() int { return s.Batch * s.Seq }

// The outputs of the demo's graphs. Of the graphs with a mixture, routes tells which token is sent to which expert.
const (
	demoY, demoRoutes, demoLoads, demoDropped = "y", "routes", "loads", "dropped"
	demoBalance, demoZ                        = "balance loss", "z loss"
)

// demoBias is the name of the router's bias.
const demoBias = "gate.bias"

// demoGraphs builds the graphs that the demo runs, as a user writes them without any operation of a fusion's own:
// attention and mixture are written out in their parts.
func (s *demoShape) demoGraphs() ([]*graph.Graph, error) {
	var list []*graph.Graph
	for _, d := range []struct {
		name  string
		build func(*graph.Builder)
	}{{"attention", s.attentionGraph}, {"mixture of experts", s.mixtureGraph}, {"transformer block", s.blockGraph}} {
		b := graph.NewBuilder(d.name)
		d.build(b)
		g, err := b.Graph()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d.name, err)
		}
		list = append(list, g)
	}
	return list, nil
}

// input declares the tokens x, side by side.
func (s *demoShape) input(b *graph.Builder, name string) *graph.Node {
	return b.Input(name, graph.TypeOf(graph.F32, s.tokens(), s.Model))
}

// attentionGraph attends queries to keys and values that are given.
func (s *demoShape) attentionGraph(b *graph.Builder) {
	heads := func(name string) *graph.Node {
		return b.Transpose(b.Reshape(s.input(b, name), s.Batch, s.Seq, s.Heads, s.Model/s.Heads), 0, 2, 1, 3)
	}
	b.Output(demoY, s.attend(b, heads("q"), heads("k"), heads("v")))
}

// attend is softmax(q·kᵀ/√width + mask)·v of q, k and v [batch, heads, seq, width], as tokens [batch·seq, model].
func (s *demoShape) attend(b *graph.Builder, q, k, v *graph.Node) *graph.Node {
	width := q.Type.Shape.At(3)
	scores := b.Named(b.MatMul(q, k, false, true), "scores")
	scores = b.Named(b.BinaryScalar(graph.Mul, scores, 1/math.Sqrt(float64(width))), "scaled scores")
	if s.Causal {
		mask := b.Broadcast(b.Const(causalMask(s.Seq)), scores.Type.Shape)
		scores = b.Named(b.Binary(graph.Add, scores, mask), "masked scores")
	}
	p := b.Named(b.Add(graph.Softmax{Axis: 3}, scores), "probabilities")
	y := b.Named(b.MatMul(p, v, false, false), "attended")
	return b.Named(b.Reshape(b.Transpose(y, 0, 2, 1, 3), s.tokens(), s.Model), "heads merged")
}

// causalMask is 0 where a query may attend a key, and −Inf where the key comes after it.
func causalMask(n int) *graph.Tensor {
	t := graph.NewTensor(graph.TypeOf(graph.F32, n, n))
	data, low := t.Data.([]float32), float32(math.Inf(-1))
	for i := range n {
		for j := i + 1; j < n; j++ {
			data[i*n+j] = low
		}
	}
	return t
}

// mixtureGraph is a mixture of experts with what one watches of it: loads, dropped choices, and the losses that keep
// its router in shape.
func (s *demoShape) mixtureGraph(b *graph.Builder) {
	m := s.mixture(b, s.input(b, "x"))
	b.Output(demoY, m.y)
	b.Output(demoRoutes, m.routes)
	taken := b.Reduce(graph.Sum, b.Add(graph.Cast{To: graph.F32}, m.routes), false, 0)
	b.Output(demoLoads, taken)
	b.Output(demoDropped, m.dropped)

	// The loss of the Switch Transformer (Fedus et al., arXiv 2101.03961): E·Σ f·P over the experts, f the share of the
	// choices that fall on one, P the mean of its probability. It is 1 where all are used alike.
	choices := b.Binary(graph.Add, taken, b.Add(graph.Cast{To: graph.F32}, m.dropped))
	f := b.BinaryScalar(graph.Div, choices, float64(s.tokens()*s.TopK))
	balance := b.Binary(graph.Mul, f, b.Reduce(graph.Mean, m.probabilities, false, 0))
	b.Output(demoBalance, b.BinaryScalar(graph.Mul, b.Reduce(graph.Sum, balance, false, 0), float64(s.Experts)))

	// The router's z-loss (Zoph et al., arXiv 2202.08906): the mean of log(Σ e^logit)².
	top := b.Reduce(graph.MaxOf, m.logits, true, 1)
	e := b.Unary(graph.Exp, b.Binary(graph.Sub, m.logits, b.Broadcast(top, m.logits.Type.Shape)))
	z := b.Binary(graph.Add, top, b.Unary(graph.Log, b.Reduce(graph.Sum, e, true, 1)))
	b.Output(demoZ, b.Reduce(graph.Mean, b.Unary(graph.Square, z), false, 0, 1))
}

// demoMixture is a mixture of experts and what its router decided.
type demoMixture struct{ y, logits, probabilities, routes, dropped *graph.Node }

// mixture sends each of the tokens x [tokens, model] to top-k experts, weighted by their probabilities, which are made
// to sum to 1 again. In these parts every expert computes every token.
func (s *demoShape) mixture(b *graph.Builder, x *graph.Node) demoMixture {
	weight := func(name string, dims ...int) *graph.Node { return b.Param(name, graph.TypeOf(graph.F32, dims...)) }
	var m demoMixture
	m.logits = b.Named(bench.Linear(b, x, weight("gate.weight", s.Model, s.Experts), weight(demoBias, s.Experts)), "logits")
	m.probabilities = b.Named(b.Add(graph.Softmax{Axis: 1}, m.logits), "gate")
	m.routes = b.Named(b.Add(graph.Route{K: s.TopK, Capacity: s.Capacity}, m.probabilities), "routes")
	m.dropped = b.Add(graph.Result{Index: 1}, m.routes)
	gates := b.Add(graph.Select{}, m.routes, m.probabilities, b.Scalar(graph.F32, 0))
	sum := b.BinaryScalar(graph.Add, b.Reduce(graph.Sum, gates, true, 1), 1e-9) // a token may have lost all its experts
	gates = b.Named(b.Binary(graph.Div, gates, b.Broadcast(sum, gates.Type.Shape)), "gates")
	for e := range s.Experts {
		name := func(part string) string { return fmt.Sprintf("expert%d.%s", e, part) }
		h := b.MatMul(x, weight(name("up"), s.Model, s.Hidden), false, false)
		h = b.Named(b.Unary(graph.GeluTanh, b.Named(h, name("hidden"))), name("activated"))
		y := b.Named(b.MatMul(h, weight(name("down"), s.Hidden, s.Model), false, false), name("y"))
		y = b.Binary(graph.Mul, y, b.Broadcast(b.Slice(gates, 1, e, 1, 1), y.Type.Shape))
		if m.y == nil {
			m.y = y
		} else {
			m.y = b.Binary(graph.Add, m.y, y)
		}
	}
	return m
}

// blockGraph is a transformer block: attention, then a mixture of experts or a feed-forward network, each of normalised
// tokens and added to what came in.
func (s *demoShape) blockGraph(b *graph.Builder) {
	weight := func(name string, dims ...int) *graph.Node { return b.Param(name, graph.TypeOf(graph.F32, dims...)) }
	norm := func(x *graph.Node, name string) *graph.Node {
		y := b.Add(graph.LayerNorm{Eps: 1e-5}, x, weight(name+".gamma", s.Model), weight(name+".beta", s.Model))
		return b.Named(y, name)
	}
	dense := func(x *graph.Node, name string, out int) *graph.Node {
		w := weight(name+".weight", x.Type.Shape.At(1), out)
		return b.Named(bench.Linear(b, x, w, weight(name+".bias", out)), name)
	}
	x := s.input(b, "x")
	qkv := b.Reshape(dense(norm(x, "norm1"), "qkv", 3*s.Model), s.Batch, s.Seq, 3, s.Heads, s.Model/s.Heads)
	qkv = b.Transpose(qkv, 2, 0, 3, 1, 4)
	part := func(i int) *graph.Node {
		return b.Reshape(b.Slice(qkv, 0, i, 1, 1), s.Batch, s.Heads, s.Seq, s.Model/s.Heads)
	}
	x = b.Named(b.Binary(graph.Add, x, dense(s.attend(b, part(0), part(1), part(2)), "out", s.Model)), "residual1")
	h := norm(x, "norm2")
	if s.FFN {
		h = b.Named(b.Unary(graph.GeluTanh, dense(h, "up", s.Hidden)), "activated")
		h = dense(h, "down", s.Model)
	} else {
		m := s.mixture(b, h)
		b.Output(demoRoutes, m.routes)
		h = m.y
	}
	b.Output(demoY, b.Binary(graph.Add, x, h))
}
