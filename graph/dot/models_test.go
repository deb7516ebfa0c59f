package dot

import (
	"fmt"
	"testing"
	"time"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/trace"
)

// finish verifies a test graph and replaces positions by ones that do not depend on the tests' lines.
func finish(t testing.TB, b *graph.Builder) *graph.Graph {
	t.Helper()
	g := graphtest.Graph(t, b)
	for i, n := range g.Nodes {
		for j := range n.Origin {
			n.Origin[j].Pos = fmt.Sprintf("/src/model/model.go:%d", 10+i)
		}
	}
	return g
}

// body makes the body of a fusion. Inputs have no names, as fuse-regions makes them.
func body(t testing.TB, make func(b *graph.Builder, in func(dims ...int) *graph.Node) []*graph.Node) *graph.Graph {
	t.Helper()
	b := graph.NewBuilder("")
	inputs := 0
	out := make(b, func(dims ...int) *graph.Node {
		inputs++
		return b.Input(fmt.Sprint(inputs), graph.TypeOf(graph.F32, dims...))
	})
	for i, o := range out {
		b.Output(fmt.Sprint(i), o)
	}
	g := graphtest.Graph(t, b)
	for _, n := range g.Nodes {
		n.Name, n.Origin = "", nil
	}
	return g
}

// mlp is a two-layer perceptron with a softmax, as a user writes it.
func mlp(t testing.TB) *graph.Graph {
	b := graph.NewBuilder("digits-mlp")
	x := b.Input("x", graph.TypeOf(graph.F32, 32, 64))
	w1, b1 := b.Param("w1", graph.TypeOf(graph.F32, 64, 128)), b.Param("b1", graph.TypeOf(graph.F32, 128))
	w2, b2 := b.Param("w2", graph.TypeOf(graph.F32, 128, 10)), b.Param("b2", graph.TypeOf(graph.F32, 10))
	h := b.Binary(graph.Add, b.MatMul(x, w1, false, false), b.Broadcast(b1, graph.ShapeOf(32, 128)))
	h = b.Named(b.Unary(graph.GeluTanh, h), "hidden")
	y := b.Binary(graph.Add, b.MatMul(h, w2, false, false), b.Broadcast(b2, graph.ShapeOf(32, 10)))
	y = b.Named(b.BinaryScalar(graph.Mul, y, 0.5), "logits")
	p := b.Named(b.Add(graph.Softmax{Axis: 1}, y), "probs")
	b.Output("probs", p)
	return finish(t, b)
}

// linearBody is act(x·w + bias [+ r]).
func linearBody(t testing.TB, rows, in, out int, bias, residual bool,
	act func(b *graph.Builder, x *graph.Node) *graph.Node) *graph.Graph {
	return body(t, func(b *graph.Builder, input func(...int) *graph.Node) []*graph.Node {
		x, w := input(rows, in), input(in, out)
		var v, r *graph.Node
		if bias {
			v = input(out)
		}
		if residual {
			r = input(rows, out)
		}
		y := b.MatMul(x, w, false, false)
		if bias {
			y = b.Binary(graph.Add, y, b.Broadcast(v, y.Type.Shape))
		}
		if act != nil {
			y = act(b, y)
		}
		if residual {
			y = b.Binary(graph.Add, y, r)
		}
		return []*graph.Node{y}
	})
}

func gelu(b *graph.Builder, x *graph.Node) *graph.Node { return b.Unary(graph.GeluTanh, x) }

func linear(t testing.TB, b *graph.Builder, act func(*graph.Builder, *graph.Node) *graph.Node, x, w, bias,
	residual *graph.Node) *graph.Node {
	rows, in := x.Type.Shape.At(0), x.Type.Shape.At(1)
	args := []*graph.Node{x, w}
	if bias != nil {
		args = append(args, bias)
	}
	if residual != nil {
		args = append(args, residual)
	}
	f := linearBody(t, rows, in, w.Type.Shape.At(1), bias != nil, residual != nil, act)
	return b.Add(graph.Fusion{Anchor: graph.AnchorMatMul, Kind: graph.KindLinear, Body: f}, args...)
}

// mlpFused is mlp after fusion.
func mlpFused(t testing.TB) *graph.Graph {
	b := graph.NewBuilder("digits-mlp")
	x := b.Input("x", graph.TypeOf(graph.F32, 32, 64))
	w1, b1 := b.Param("w1", graph.TypeOf(graph.F32, 64, 128)), b.Param("b1", graph.TypeOf(graph.F32, 128))
	w2, b2 := b.Param("w2", graph.TypeOf(graph.F32, 128, 10)), b.Param("b2", graph.TypeOf(graph.F32, 10))
	h := b.Named(linear(t, b, gelu, x, w1, b1, nil), "hidden")
	y := b.Named(linear(t, b, func(b *graph.Builder, x *graph.Node) *graph.Node { return b.BinaryScalar(graph.Mul, x, 0.5) }, h, w2,
		b2, nil), "logits")
	p := b.Named(b.Add(graph.Fusion{Anchor: graph.AnchorRow, Kind: graph.KindSoftmax, Body: softmaxBody(t, 32, 10)}, y), "probs")
	b.Output("probs", p)
	return finish(t, b)
}

// softmaxBody is a softmax over rows, in primitives.
func softmaxBody(t testing.TB, dims ...int) *graph.Graph {
	return body(t, func(b *graph.Builder, input func(...int) *graph.Node) []*graph.Node {
		x := input(dims...)
		s, axis := x.Type.Shape, len(dims)-1
		e := b.Unary(graph.Exp, b.Binary(graph.Sub, x, b.Broadcast(b.Reduce(graph.MaxOf, x, true, axis), s)))
		return []*graph.Node{b.Binary(graph.Div, e, b.Broadcast(b.Reduce(graph.Sum, e, true, axis), s))}
	})
}

// mlpTrace is a compilation of mlp, with everything that a trace can hold.
func mlpTrace(t testing.TB) *trace.Trace {
	first, last := mlp(t), mlpFused(t)
	tr := &trace.Trace{Target: "cpu", Stages: []trace.Stage{
		{Name: "import", Doc: "the graph as it came", Graph: first, Took: 40 * time.Microsecond},
		{Name: "fuse-regions", Doc: "elementwise work joins its anchor", Graph: last, Took: 90 * time.Microsecond,
			Misses: []trace.Miss{{Pattern: "linear-residual", Node: 9, At: `binary "skip" (model.go:18)`, Reason: "wants one reader, has 2",
				Origin: []graph.Origin{{Name: "logits", Pos: "/src/model/model.go:18"}}, Nodes: []int{5, 6}, Joins: []int{5, 6}, Became: 6}},
			Notes: []trace.Note{{Node: -1, Text: "nothing stays on the host"},
				{Node: 5, Text: "w1 is packed once", Origin: []graph.Origin{{Pos: "/src/model/model.go:11"}}}}},
	}}
	p := &trace.Program{Target: "cpu", ArenaBytes: 17664, BufferBytes: 18944, ParamBytes: 38440}
	made := map[*graph.Node]int{} // buffers
	kernels := map[graph.Kind]string{graph.KindLinear: "gemm 6x16", graph.KindSoftmax: "row"}
	for _, n := range last.Nodes {
		f, ok := n.Op.(graph.Fusion)
		if !ok {
			continue
		}
		c := graph.CostOf(n)
		read, ok := made[n.Args[0]]
		if !ok {
			read = len(p.Buffers)
			p.Buffers = append(p.Buffers, trace.Buffer{Name: n.Args[0].Name, Role: "input", Type: n.Args[0].Type})
		}
		made[n] = len(p.Buffers)
		p.Buffers = append(p.Buffers, trace.Buffer{Name: n.Name, Role: "temp", Type: n.Type})
		p.Launches = append(p.Launches, trace.Launch{Node: n.ID, Kernel: kernels[f.Kind], Kind: f.Kind.String(), Name: n.Name,
			Device: "cpu",
			Reads:  []int{read}, Writes: []int{made[n]}, FLOPs: c.FLOPs, Bytes: c.Bytes(), Origin: n.Origin,
			Measured: 12345 * time.Nanosecond})
		tr.Stages[1].Matches = append(tr.Stages[1].Matches, trace.Match{Pattern: "region", Kind: f.Kind.String(), Node: n.ID,
			Origin: n.Origin})
	}
	tr.Program = p
	return tr
}

// Sizes of the transformers.
const (
	tokens, dim, heads, hidden = 128, 64, 4, 256
)

// blockWeights are the parameters of one transformer layer.
type blockWeights struct{ g1, e1, wq, wk, wv, wo, bo, g2, e2, w1, b1, w2, b2 *graph.Node }

func weights(b *graph.Builder, prefix string) blockWeights {
	p := func(name string, dims ...int) *graph.Node {
		return b.Param(prefix+name, graph.TypeOf(graph.F32, dims...))
	}
	return blockWeights{p("norm1.gamma", dim), p("norm1.beta", dim), p("wq", dim, dim), p("wk", dim, dim), p("wv", dim, dim),
		p("wo", dim, dim),
		p("bo", dim), p("norm2.gamma", dim), p("norm2.beta", dim), p("w1", dim, hidden), p("b1", hidden), p("w2", hidden, dim),
		p("b2", dim)}
}

// layerOf is a transformer layer of primitives and raised composites.
func layerOf(b *graph.Builder, x *graph.Node, w blockWeights) *graph.Node {
	lin := func(x, w, bias *graph.Node) *graph.Node {
		y := b.MatMul(x, w, false, false)
		if bias != nil {
			y = b.Binary(graph.Add, y, b.Broadcast(bias, y.Type.Shape))
		}
		return y
	}
	split := func(x *graph.Node) *graph.Node {
		return b.Transpose(b.Reshape(x, tokens, heads, dim/heads), 1, 0, 2)
	}
	n := b.Add(graph.LayerNorm{Eps: 1e-5}, x, w.g1, w.e1)
	q, k, v := split(lin(n, w.wq, nil)), split(lin(n, w.wk, nil)), split(lin(n, w.wv, nil))
	s := b.BinaryScalar(graph.Mul, b.MatMul(q, k, false, true), 0.25)
	a := b.MatMul(b.Add(graph.Softmax{Axis: 2}, s), v, false, false)
	x = b.Binary(graph.Add, x, lin(b.Reshape(b.Transpose(a, 1, 0, 2), tokens, dim), w.wo, w.bo))
	n = b.Add(graph.LayerNorm{Eps: 1e-5}, x, w.g2, w.e2)
	return b.Binary(graph.Add, x, lin(b.Unary(graph.GeluTanh, lin(n, w.w1, w.b1)), w.w2, w.b2))
}

// layerFused is layerOf after fusion: nine launches.
func layerFused(t testing.TB, b *graph.Builder, x *graph.Node, w blockWeights, prefix string) *graph.Node {
	norm := func(x, gamma, beta *graph.Node) *graph.Node {
		f := body(t, func(b *graph.Builder, in func(...int) *graph.Node) []*graph.Node {
			return []*graph.Node{b.Add(graph.LayerNorm{Eps: 1e-5}, in(tokens, dim), in(dim), in(dim))}
		})
		return b.Add(graph.Fusion{Anchor: graph.AnchorRow, Kind: graph.KindNorm, Body: f}, x, gamma, beta)
	}
	const d = dim / heads
	n := norm(x, w.g1, w.e1)
	q, k, v := linear(t, b, nil, n, w.wq, nil, nil), linear(t, b, nil, n, w.wk, nil, nil), linear(t, b, nil, n, w.wv, nil, nil)
	split := func(b *graph.Builder, x *graph.Node) *graph.Node {
		return b.Transpose(b.Reshape(x, tokens, heads, d), 1, 0, 2)
	}
	scores := b.Named(b.Add(graph.Fusion{Anchor: graph.AnchorMatMul, Kind: graph.KindMatMul, Body: body(t,
		func(b *graph.Builder, in func(...int) *graph.Node) []*graph.Node {
			q, k := in(tokens, dim), in(tokens, dim)
			return []*graph.Node{b.BinaryScalar(graph.Mul, b.MatMul(split(b, q), split(b, k), false, true), 0.25)}
		})}, q, k), prefix+"scores")
	p := b.Add(graph.Fusion{Anchor: graph.AnchorRow, Kind: graph.KindSoftmax, Body: softmaxBody(t, heads, tokens, tokens)}, scores)
	a := b.Add(graph.Fusion{Anchor: graph.AnchorMatMul, Kind: graph.KindMatMul, Body: body(t,
		func(b *graph.Builder, in func(...int) *graph.Node) []*graph.Node {
			p, v := in(heads, tokens, tokens), in(tokens, dim)
			return []*graph.Node{b.Reshape(b.Transpose(b.MatMul(p, split(b, v), false, false), 1, 0, 2), tokens, dim)}
		})}, p, v)
	x = linear(t, b, nil, a, w.wo, w.bo, x)
	n = norm(x, w.g2, w.e2)
	return b.Named(linear(t, b, nil, linear(t, b, gelu, n, w.w1, w.b1, nil), w.w2, w.b2, x), prefix+"out")
}

// transformer has an embedding, layers and a head.
func transformer(t testing.TB, layers int, fused bool) *graph.Graph {
	b := graph.NewBuilder("transformer")
	ids := b.Input("tokens", graph.TypeOf(graph.I64, tokens))
	x := b.Named(b.Add(graph.Gather{Axis: 0}, b.Param("embedding", graph.TypeOf(graph.F32, 1000, dim)), ids), "embedded")
	for i := range layers {
		prefix := fmt.Sprintf("blocks.%d.", i)
		w := weights(b, prefix)
		if fused {
			x = layerFused(t, b, x, w, prefix)
		} else {
			x = b.Named(layerOf(b, x, w), prefix+"out")
		}
	}
	x = b.Add(graph.LayerNorm{Eps: 1e-5}, x, b.Param("norm.gamma", graph.TypeOf(graph.F32, dim)),
		b.Param("norm.beta", graph.TypeOf(graph.F32, dim)))
	b.Output("logits", b.Named(b.MatMul(x, b.Param("head", graph.TypeOf(graph.F32, dim, 1000)), false, false), "logits"))
	return finish(t, b)
}

// transformerTrace is a compilation whose last stage is the fused transformer.
func transformerTrace(t testing.TB, layers int) *trace.Trace {
	last := transformer(t, layers, true)
	p := &trace.Program{Target: "cpu", ArenaBytes: 1 << 20, BufferBytes: 9 << 20, ParamBytes: 3 << 20}
	for _, n := range last.Nodes {
		if trace.NeedsLaunch(n.Op) {
			c := graph.CostOf(n)
			p.Launches = append(p.Launches, trace.Launch{Node: n.ID, Kernel: "gemm 6x16", Kind: opName(n.Op), Name: n.Name, Device: "cpu",
				FLOPs: c.FLOPs, Bytes: c.Bytes()})
		}
	}
	return &trace.Trace{Target: "cpu", Program: p, Stages: []trace.Stage{{Name: "import", Graph: transformer(t, layers, false)},
		{Name: "fuse-regions", Graph: last}}}
}

// mixtureTrace is a mixture of experts with weights of their own, before and after fusion.
func mixtureTrace(t testing.TB) *trace.Trace {
	op := graph.MoE{Experts: 4, Activation: graph.Relu, Bias: true, TopK: 2}
	types := []graph.Type{graph.TypeOf(graph.F32, 6, 8), graph.TypeOf(graph.F32, 6, 4)}
	for _, dims := range [][]int{{8, 16}, {16}, {16, 8}, {8}} {
		for range op.Experts {
			types = append(types, graph.TypeOf(graph.F32, dims...))
		}
	}
	names := []string{"up.weight", "up.bias", "down.weight", "down.bias"}
	sources := func(b *graph.Builder) []*graph.Node {
		args := []*graph.Node{b.Input("x", types[0]), b.Input("gates", types[1])}
		for i, typ := range types[2:] {
			args = append(args, b.Param(fmt.Sprintf("expert%d.%s", i%op.Experts, names[i/op.Experts]), typ))
		}
		return args
	}
	plain := graph.NewBuilder("mixture")
	plain.Output("y", plain.Add(op, sources(plain)...))
	fused := graph.NewBuilder("mixture")
	in := sources(fused)
	inner := body(t, func(b *graph.Builder, input func(dims ...int) *graph.Node) []*graph.Node {
		var args []*graph.Node
		for _, typ := range types {
			args = append(args, input(typ.Shape.Slice()...))
		}
		return []*graph.Node{b.Add(op, args...)}
	})
	fused.Output("y", fused.Add(graph.Fusion{Anchor: graph.AnchorMoE, Kind: graph.KindMoE, Body: inner}, in...))
	return &trace.Trace{Target: "cpu", Stages: []trace.Stage{
		{Name: "import", Graph: finish(t, plain)}, {Name: trace.Final, Graph: finish(t, fused)}}}
}
