package narrow_test

import (
	"errors"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/optim"
	"fusec/graph/precision"
	"fusec/kernels/ref"
	"fusec/passes"
	"fusec/passes/narrow"
	"fusec/passes/passtest"
)

func f32(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }

// dense is x·w + b through an activation.
func dense(b *graph.Builder, x *graph.Node, name string, out int, f graph.UnaryFn) *graph.Node {
	last := x.Type.Shape.Rank() - 1
	y := b.MatMul(x, b.Param(name, f32(x.Type.Shape.At(last), out)), false, false)
	y = b.Binary(graph.Add, y, b.Broadcast(b.Param(name+"b", f32(out)), y.Type.Shape))
	if f == graph.Neg { // none
		return y
	}
	return b.Unary(f, y)
}

// trainedMLP is two hidden layers with a squared error, stepped by Adam.
func trainedMLP(t *testing.T) (*graph.Graph, passes.Config) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		h := dense(b, b.Input("x", f32(64, 64)), "w1", 128, graph.GeluErf)
		h = dense(b, h, "w2", 96, graph.GeluErf)
		y := dense(b, h, "w3", 4, graph.Neg)
		b.Output("cost", b.Reduce(graph.Mean, b.Unary(graph.Square, y), false, 0, 1))
	})
	return g, stepping(g, "w1", "w1b", "w2", "w2b", "w3", "w3b")
}

func stepping(g *graph.Graph, params ...string) passes.Config {
	cfg := passes.Config{Optimizer: &optim.Optimizer{Rule: optim.SGD{}, Rate: optim.Constant(0.1),
		Clip: 1}}
	for _, name := range params {
		cfg.Steps = append(cfg.Steps, passes.Step{Param: g.Lookup(name), Cost: g.Outputs[0].Node})
	}
	return cfg
}

// compareHalves compiles g in a precision of 16 bits and in f32, and compares what both compute: in norm, output by
// output and update by update.
func compareHalves(t *testing.T, g *graph.Graph, cfg passes.Config, limit float64) *graph.Graph {
	t.Helper()
	cfg.Verify = true
	full, _, err := passes.Run(g, cfg)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Precision = precision.BF16
	half, tr, err := passes.Run(g, cfg)
	if err != nil {
		t.Fatal(err)
	}
	in := graphtest.Values(rand.New(rand.NewPCG(1, 2)), full)
	for name, v := range in {
		if n := full.Lookup(name); n != nil && v.Type.Shape.Rank() > 1 && graph.IsSource(n.Op) {
			for i := range v.Type.Shape.Elems() {
				v.SetFloat(i, v.Float(i)/8)
			}
		}
	}
	passtest.Near(t, full, half, in, limit)
	if tr.Precision != "bf16" {
		t.Errorf("the trace says %q", tr.Precision)
	}
	return half
}

// contractionTypes lists, in the fused graph, each contraction with the types of its operands and of what the launch hands out.
func contractionTypes(g *graph.Graph) []string {
	var list []string
	for _, n := range g.Nodes {
		f, _, ok := narrow.Contraction(n)
		if _, isResult := n.Op.(graph.Result); !ok || isResult {
			continue
		}
		var s []string
		for _, a := range narrow.Contracted(f.Anchored()) {
			s = append(s, a.Type.String())
		}
		s = append(s, "→")
		for _, o := range f.Body.Outputs {
			s = append(s, o.Node.Type.String())
		}
		list = append(list, strings.Join(s, " "))
	}
	return list
}

// TestPrecisionOfTrainedMLP has what is kept for the backward in bf16, what the optimiser reads in f32, and one launch that
// rounds parameters and inputs.
func TestPrecisionOfTrainedMLP(t *testing.T) {
	g, cfg := trainedMLP(t)
	h := compareHalves(t, g, cfg, 2e-2)
	expect(t, h, []string{
		"bf16[64,64] bf16[64,128] → bf16[64,128] bf16[64,128]", // the activation and its derivative
		"bf16[64,128] bf16[128,96] → bf16[64,96] bf16[64,96]",
		"bf16[64,96] bf16[96,4] → f32[64,4] f32[64,4] f32[4] bf16[64,4]",
		"f32[64,4] f32[96,4] → f32[96] bf16[64,96]", // both operands are small
		"bf16[64,96] bf16[128,96] → f32[128] bf16[64,128]",
		"bf16[64,64] bf16[64,128] → f32[64,128]", // gradients of weights
		"bf16[64,128] bf16[64,96] → f32[128,96]",
		"bf16[64,96] bf16[64,4] → f32[96,4]",
	})
	casts := 0
	for _, n := range h.Nodes {
		if f, ok := n.Op.(graph.Fusion); ok && !slices.ContainsFunc(f.Body.Nodes, func(m *graph.Node) bool {
			cast, isCast := m.Op.(graph.Cast)
			return !graph.IsSource(m.Op) && !(isCast && cast.To.Is16())
		}) {
			casts++
		}
	}
	if casts != 1 {
		t.Errorf("%d launches round parameters and inputs: %s", casts, passtest.Launches(h))
	}
}

// expect compares the contractions of a graph with those wanted.
func expect(t *testing.T, h *graph.Graph, want []string) {
	t.Helper()
	if got := contractionTypes(h); !slices.Equal(got, want) {
		t.Errorf("the contractions are\n\t%s\nwant\n\t%s\n%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"),
			passtest.Launches(h))
	}
}

// TestPrecisionOfGathers: parts are rounded before they are gathered, unless something reads the whole value in f32.
func TestPrecisionOfGathers(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		whole := func(name string) *graph.Node {
			return b.Add(graph.AllGather{Group: graph.Group{Over: "data", Parts: 2}}, b.Param(name, f32(64, 128)))
		}
		x, w, u, v := b.Input("x", f32(128, 128)), whole("w"), whole("u"), whole("v")
		y := b.MatMul(b.MatMul(x, w, false, false), b.Transpose(w, 1, 0), false, false)
		y = b.Binary(graph.Add, b.MatMul(y, u, false, false), u)
		b.Output("y", b.MatMul(y, v, false, false))
		b.Output("v", v)
	})
	g.Mesh, g.Parts = graph.Mesh{{Name: "data", Size: 2}}, true
	h, _, err := passes.Run(g, passes.Config{Precision: precision.BF16, Verify: true})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]graph.DType{}
	for _, n := range h.Nodes {
		if _, ok := n.Op.(graph.AllGather); ok {
			from := n.Args[0]
			for !graph.IsSource(from.Op) {
				from = from.Args[0]
			}
			got[from.Name] = n.Type.DType
		}
	}
	if want := map[string]graph.DType{"w": graph.BF16, "u": graph.F32, "v": graph.F32}; !maps.Equal(got, want) {
		t.Errorf("gathers are of %v, want %v\n%s", got, want, graph.Print(h))
	}
}

// TestPrecisionOfTransformer has a block with a residual stream, trained.
func TestPrecisionOfTransformer(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		x := b.Unary(graph.Tanh, b.Input("x", f32(2, 32, 64)))
		norm := func(name string, x *graph.Node) *graph.Node {
			return b.Add(graph.LayerNorm{Eps: 1e-5}, x, b.Param(name, f32(64)), b.Param(name+"b", f32(64)))
		}
		qkv := dense(b, norm("n1", x), "wqkv", 192, graph.Neg)
		head := func(i int) *graph.Node {
			return b.Transpose(b.Reshape(b.Slice(qkv, 2, 64*i, 64, 1), 2, 32, 2, 32), 0, 2, 1, 3)
		}
		a := b.Add(graph.Attention{Scale: 0.2, Causal: true}, head(0), head(1), head(2))
		x = b.Binary(graph.Add, x, dense(b, b.Reshape(b.Transpose(a, 0, 2, 1, 3), 2, 32, 64), "wo", 64, graph.Neg))
		h := dense(b, norm("n2", x), "w1", 128, graph.GeluTanh)
		x = b.Binary(graph.Add, x, dense(b, h, "w2", 64, graph.Neg))
		b.Output("cost", b.Reduce(graph.Mean, b.Unary(graph.Square, norm("n3", x)), false, 0, 1, 2))
	})
	cfg := stepping(g, "n1", "n1b", "wqkv", "wqkvb", "wo", "wob", "n2", "n2b", "w1", "w1b", "w2", "w2b", "n3", "n3b")
	h := compareHalves(t, g, cfg, 2e-2)
	expect(t, h, []string{
		"bf16[2,32,64] bf16[64,192] → bf16[2,32,192]",
		"bf16[2,2,32,32] bf16[2,2,32,32] bf16[2,2,32,32] → bf16[2,2,32,32] f32[2,2,32]",
		"bf16[2,32,64] bf16[64,64] → f32[2,32,64]", // added to the residual stream
		"bf16[2,32,64] bf16[64,128] → bf16[2,32,128] bf16[2,32,128]",
		"bf16[2,32,128] bf16[128,64] → f32[2,32,64]",
		"bf16[2,32,64] bf16[128,64] → f32[128] bf16[2,32,128]",
		"bf16[2,32,128] bf16[64,128] → bf16[2,32,64] f32[64]",
		"bf16[2,32,64] bf16[64,64] → bf16[2,32,64]",
		"bf16[2,2,32,32] bf16[2,2,32,32] bf16[2,2,32,32] bf16[2,2,32,32] bf16[2,2,32,32] → bf16[2,32,64] bf16[2,32,64] bf16[2,32,64]",
		"bf16[2,32,192] bf16[64,192] → f32[64] f32[64]",
		"bf16[64,64] bf16[64,192] → f32[64,192]",
		"bf16[64,64] bf16[64,64] → f32[64,64]",
		"bf16[64,64] bf16[64,128] → f32[64,128]",
		"bf16[64,128] bf16[64,64] → f32[128,64]",
	})
}

// TestPrecisionOfMoE keeps the router in f32.
func TestPrecisionOfMoE(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		x := b.Unary(graph.Tanh, b.Input("x", f32(128, 64)))
		gates := b.Add(graph.Softmax{Axis: 1}, b.MatMul(x, b.Param("router", f32(64, 2)), false, false))
		args := []*graph.Node{x, gates}
		m := graph.MoE{Experts: 2, Activation: graph.Silu, Gated: true, Bias: true, Stacked: true}
		for _, w := range m.Weights() {
			args = append(args,
				b.Param(w.String(), graph.Type{DType: graph.F32, Shape: m.WeightShape(graph.MoEDims{Width: 64, Hidden: 64, Result: 64}, w)}))
		}
		y := b.MatMul(b.Add(m, args...), b.Param("out", f32(64, 64)), false, false)
		b.Output("cost", b.Reduce(graph.Mean, b.Unary(graph.Square, y), false, 0, 1))
	})
	h := compareHalves(t, g, stepping(g, "router", "w1", "b1", "w3", "b3", "w2", "b2", "out"), 2e-2)
	expect(t, h, []string{
		"f32[128,64] f32[64,2] → f32[128,2]", // the router
		"bf16[128,64] bf16[2,64,64] bf16[2,64,64] bf16[2,64,64] → bf16[128,64]",
		"bf16[128,64] bf16[64,64] → bf16[128,64] bf16[128,64]",
		"bf16[128,64] bf16[64,64] → bf16[128,64]",
		"bf16[128,64] bf16[2,64,64] bf16[2,64,64] bf16[2,64,64] bf16[128,64] → bf16[128,64] f32[128,2] " +
			"f32[2,64,64] f32[2,64] f32[2,64,64] f32[2,64] f32[2,64,64] f32[2,64]",
		"bf16[128,64] bf16[128,2] → f32[64,2]",
		"bf16[128,64] bf16[128,64] → f32[64,64]",
	})
}

// TestPrecisionNotes tells what is left in f32, and why.
func TestPrecisionNotes(t *testing.T) {
	cached := func(b *graph.Builder) {
		cache := b.State("cache", f32(2, 64, 64))
		x := b.Unary(graph.Tanh, b.Input("x", f32(2, 64, 64)))
		keys := b.Add(graph.UpdateSlice{Axis: 1}, cache, b.Slice(x, 1, 0, 1, 1), b.Scalar(graph.I64, 3))
		b.Update(cache, keys)
		b.Output("y", b.Add(graph.Attention{Scale: 1}, x, keys, keys))
	}
	product := func(build func(b *graph.Builder, y *graph.Node)) func(b *graph.Builder) {
		return func(b *graph.Builder) {
			build(b, b.MatMul(b.Input("x", f32(64, 64)), b.Param("w", f32(64, 64)), false, false))
		}
	}
	for _, c := range []struct {
		name, stage, want string
		p                 precision.Precision
		build             func(b *graph.Builder)
	}{
		{"f32", "precision", "", precision.F32, product(func(b *graph.Builder, y *graph.Node) { b.Output("y", y) })},
		{"tf32", "precision", "products of f32 round their operands to tf32 on the target; no values are cast", precision.TF32,
			product(func(b *graph.Builder, y *graph.Node) { b.Output("y", y) })},
		{"small", "precision", "matmul stays in f32: its operands have less than 4096 elements", precision.BF16, func(b *graph.Builder) {
			b.Output("y", b.MatMul(b.Input("x", f32(8, 8)), b.Param("w", f32(8, 8)), false, false))
		}},
		{"gradient", "precision", "attention stays in f32: its operands have less than 4096 elements; " +
			"attention_grad stays in f32: the attention that it is the gradient of does", precision.BF16, func(b *graph.Builder) {
			q, k, v := b.Input("q", f32(64, 16, 1)), b.Input("k", f32(64, 8, 1)), b.Input("v", f32(64, 8, 4))
			y := b.Add(graph.Attention{Scale: 1}, q, k, v)
			dy := b.Input("dy", f32(64, 16, 4)) // 4096 elements
			b.Output("dq", b.Add(graph.AttentionGrad{Attention: graph.Attention{Scale: 1}}, q, k, v, y, b.Add(graph.Result{Index: 1}, y),
				dy))
		}},
		{"state", "precision", "attention stays in f32: its keys are state, which each run would cast", precision.F16, cached},
		{"state of 8 bits", "precision", "", precision.BF16, func(b *graph.Builder) { // queries are rounded, although they are small
			cache, scale := b.State("cache", graph.TypeOf(graph.I8, 2, 64, 64)), b.State("scale", f32(2, 64, 1))
			keys := b.Add(graph.Dequantize{Axis: 2, Block: 64}, cache, scale)
			b.Output("y", b.Add(graph.Attention{Scale: 1}, b.Unary(graph.Tanh, b.Input("x", f32(2, 1, 64))), keys, keys))
		}},
		{"router", "precision", "matmul stays in f32: it decides which experts a token goes to", precision.BF16,
			product(func(b *graph.Builder, y *graph.Node) { b.Output("y", b.Add(graph.TopK{K: 2}, b.Unary(graph.Tanh, y))) })},
		{"output", "narrow", "the result f32[64,64] stays in f32: it is handed out, or updates are made of it", precision.BF16,
			product(func(b *graph.Builder, y *graph.Node) { b.Output("y", y) })},
		{"residual", "narrow", "the result f32[64,64] stays in f32: it is a sum with another value of its size", precision.BF16,
			product(func(b *graph.Builder, y *graph.Node) {
				y = b.Binary(graph.Add, y, b.Input("r", f32(64, 64)))
				b.Output("y", b.Reduce(graph.Sum, b.Unary(graph.Exp, y), false, 1))
			})},
		{"gather", "narrow", "the result f32[64,64] stays in f32: gather reads it", precision.BF16,
			product(func(b *graph.Builder, y *graph.Node) {
				rows := b.Add(graph.Gather{Axis: 0}, y, b.Input("i", graph.TypeOf(graph.I64, 70)))
				b.Output("y", b.Reduce(graph.Sum, b.Unary(graph.Exp, rows), false, 1))
			})},
	} {
		_, tr, err := passes.Run(graphtest.Built(t, c.build), passes.Config{Verify: true, Precision: c.p})
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		var notes []string
		for _, n := range passtest.Stage(t, tr, c.stage).Notes {
			notes = append(notes, n.Text)
		}
		if got := strings.Join(notes, "; "); got != c.want {
			t.Errorf("%s: the notes are %q, want %q", c.name, got, c.want)
		}
	}
}

// refusesHalf is a target without contractions of 16 bits.
type refusesHalf struct{}

func (refusesHalf) Name() string { return "wide" }

func (refusesHalf) Accepts(op graph.Op, args, _ []graph.Type) error {
	if slices.ContainsFunc(args, func(t graph.Type) bool { return t.DType.Is16() }) {
		return errors.New("it has no 16 bits")
	}
	return nil
}

// wideGradients is a target whose gradients of attention are in f32 alone.
type wideGradients struct{}

func (wideGradients) Name() string { return "wide gradients" }

func (wideGradients) Accepts(op graph.Op, args, results []graph.Type) error {
	if _, ok := op.(graph.AttentionGrad); !ok {
		return nil
	}
	return refusesHalf{}.Accepts(op, args, results)
}

// TestWideGradient looks at the probabilities that a gradient in f32 computes again of the log-sum-exp of an attention in
// 16 bits: they add up to 1. Large scores, as here, move by whole units when their operands are rounded.
func TestWideGradient(t *testing.T) {
	const rows, keys, width = 64, 64, 64
	op := graph.Attention{Scale: 1}
	g := graphtest.Built(t, func(b *graph.Builder) {
		q, k, v := b.Input("q", f32(1, rows, width)), b.Input("k", f32(1, keys, width)), b.Input("v", f32(1, keys, width))
		y := b.Add(op, q, k, v)
		dy := b.Input("dy", f32(1, rows, width))
		b.Output("dq", b.Add(graph.AttentionGrad{Attention: op}, q, k, v, y, b.Add(graph.Result{Index: 1}, y), dy))
	})
	h, tr, err := passes.Run(g, passes.Config{Target: wideGradients{}, Precision: precision.BF16, Verify: true, Stop: "precision"})
	if err != nil {
		t.Fatal(err)
	}
	notes := passtest.Stage(t, tr, "precision").Notes
	want := "attention_grad stays in f32: it has no 16 bits; it reads what the attention that it is the gradient of has rounded"
	if len(notes) != 1 || notes[0].Text != want {
		t.Errorf("the notes are %v, want %q", notes, want)
	}
	r := rand.New(rand.NewPCG(1, 2))
	in := map[string]*graph.Tensor{}
	for _, n := range g.Sources() {
		in[n.Name] = graph.NewTensor(n.Type)
		for i := range n.Type.Shape.Elems() {
			in[n.Name].SetFloat(i, 4*r.NormFloat64())
		}
	}
	grad := h.Outputs[0].Node
	args := grad.Args
	lse := args[graph.AttentionGrad{Attention: op}.LSEArg()]
	h.Outputs = []graph.Output{{Name: "q", Node: args[0]}, {Name: "k", Node: args[1]}, {Name: "lse", Node: lse}}
	got, _, err := ref.Eval(h, in)
	if err != nil {
		t.Fatal(err)
	}
	if args[0].Type.DType != graph.F32 || args[2].Type.DType != graph.F32 {
		t.Errorf("the gradient's operands are %v and %v", args[0].Type, args[2].Type)
	}
	for i := range rows {
		sum := 0.0
		for j := range keys {
			s := 0.0
			for c := range width {
				s += got["q"].Float(i*width+c) * got["k"].Float(j*width+c)
			}
			sum += math.Exp(s - got["lse"].Float(i))
		}
		if math.Abs(sum-1) > 1e-3 {
			t.Errorf("the probabilities of query %d add up to %v", i, sum)
		}
	}
}

// TestPrecisionRefused leaves what the target has no kernels for as it was, and says so.
func TestPrecisionRefused(t *testing.T) {
	g, cfg := trainedMLP(t)
	cfg.Target, cfg.Precision, cfg.Verify = refusesHalf{}, precision.BF16, true
	h, tr, err := passes.Run(g, cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range h.Nodes {
		if n.Type.DType.Is16() {
			t.Errorf("%s is %v", n.Where(), n.Type)
		}
	}
	notes := passtest.Stage(t, tr, "precision").Notes
	if len(notes) == 0 || notes[0].Text != "matmul stays in f32: it has no 16 bits" {
		t.Errorf("notes %v", notes)
	}
}

func TestUnknownPrecision(t *testing.T) {
	g, cfg := trainedMLP(t)
	cfg.Precision = precision.F16 + 1
	if _, _, err := passes.Run(g, cfg); err == nil || err.Error() != "precision 4 is not known" {
		t.Errorf("error %v", err)
	}
}

// TestHalfAttentionRaised recognises attentions that are written out in 16 bits.
func TestHalfAttentionRaised(t *testing.T) {
	bf := func(dims ...int) graph.Type { return graph.TypeOf(graph.BF16, dims...) }
	for _, c := range []struct {
		values graph.Type
		want   string
	}{
		{bf(2, 5, 4), "attention"},
		{f32(2, 5, 4), "the queries and keys are bf16, the values and the probabilities f32"},
	} {
		g := graphtest.Built(t, func(b *graph.Builder) {
			s := b.MatMul(b.Input("q", bf(2, 5, 4)), b.Input("k", bf(2, 5, 4)), false, true)
			p := b.Add(graph.Softmax{Axis: 2}, b.BinaryScalar(graph.Mul, s, 0.5))
			b.Output("y", b.MatMul(b.CastTo(c.values.DType, p), b.Input("v", c.values), false, false))
		})
		h, tr, err := passes.Run(g, passes.Config{Verify: true, Stop: "fuse-attention"})
		if err != nil {
			t.Fatal(err)
		}
		got := passtest.Ops(h)
		for _, m := range passtest.Stage(t, tr, "fuse-attention").Misses {
			got = m.Reason
		}
		if got != c.want {
			t.Errorf("values of %v: %s, want %s", c.values, got, c.want)
		}
		if err := passtest.Same(g, h, graphtest.Values(rand.New(rand.NewPCG(1, 2)), g)); err != nil {
			t.Errorf("values of %v: %v", c.values, err)
		}
	}
}

// TestHalfValuesStay runs all passes on random graphs with values of 16 bits, as their users wrote them.
func TestHalfValuesStay(t *testing.T) {
	allow := func(name string) bool { return name != "host" }
	for seed := range uint64(150) {
		g := graphtest.Random(rand.New(rand.NewPCG(seed, 11)), graphtest.Options{Nodes: 30, Halves: true, Allow: allow})
		h, _, err := passes.Run(g, passes.Config{Verify: true})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if err := passtest.Same(g, h, graphtest.Values(rand.New(rand.NewPCG(seed, 7)), g)); err != nil {
			t.Errorf("seed %d: %v\n%s\n%s", seed, err, passtest.Ops(g), passtest.Ops(h))
		}
	}
}

// TestPrecisionOfWinograd: a convolution that Winograd's algorithm may compute in f32 is computed without it in 16 bits.
func TestPrecisionOfWinograd(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		ones := graph.IntsOf(1, 1)
		op := graph.Conv2D{Stride: ones, Dilation: ones, Pad: graph.IntsOf(1, 1, 1, 1), Groups: 1, Winograd: 4}
		b.Output("y", b.Add(op, b.Input("x", f32(2, 16, 16, 16)), b.Param("w", f32(16, 16, 3, 3))))
	})
	half := compareHalves(t, g, passes.Config{}, 2e-2)
	if got := contractionTypes(half); !slices.Contains(got, "bf16[2,16,16,16] bf16[16,16,3,3] → f32[2,16,16,16]") {
		t.Errorf("contractions %v", got)
	}
}
