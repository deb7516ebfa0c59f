package fusec_test

import (
	"math/rand/v2"
	"testing"

	"fusec"
	"fusec/graph"
	"fusec/lowering/cpu"
)

// Attentions and their gradients are the same, up to rounding, in blocks of every size; smaller ones need less scratch.
func TestWithAttentionBlock(t *testing.T) {
	const seq, depth = 70, 8
	var want map[string]*graph.Tensor
	scratch := map[int]int64{}
	for _, n := range []int{0, 1, 16, 33, 1000} {
		b := graph.NewBuilder("attention")
		var in [3]*graph.Node
		values := map[string]*graph.Tensor{}
		for i, name := range []string{"q", "k", "v"} {
			in[i] = b.Input(name, f32(2, seq, depth))
			x := graph.NewTensor(f32(2, seq, depth))
			for j := range 2 * seq * depth {
				x.SetFloat(j, float64((j*(i+3)+i)%17)/8-1)
			}
			values[name] = x
		}
		y := b.Add(graph.Attention{Scale: 0.5, Causal: true}, in[0], in[1], in[2])
		b.Output("y", y)
		cost := b.Reduce(graph.Sum, b.Unary(graph.Square, y), false, 0, 1, 2)
		b.Output("cost", cost)
		p := compiled(t, b, fusec.WithTarget("cpu", cpu.AttentionBlock(n)), fusec.WithWorkers(2),
			fusec.WithGradient("dq", cost, in[0]), fusec.WithGradient("dk", cost, in[1]))
		out, err := p.Run(values)
		if err != nil {
			t.Fatal(err)
		}
		m := p.Memory()
		scratch[n] = m.Scratch
		if m.Bytes() != p.Bytes() || m.Bytes() != m.Arena+m.Outputs+m.Scratch+m.Kernels || m.Outputs <= 0 {
			t.Errorf("memory %+v of %d", m, p.Bytes())
		}
		if want == nil {
			want = out
		}
		for name, w := range want {
			sameFloats(t, name, out[name].Floats(), w.Floats(), 1e-5)
		}
	}
	if !(scratch[16] < scratch[0]) {
		t.Errorf("blocks of 16 take %d bytes of scratch, those chosen by the shape %d", scratch[16], scratch[0])
	}
	_, err := fusec.Compile(built(t, linearGraph()), fusec.WithTarget("cpu", cpu.AttentionBlock(-1)))
	wantError(t, err, "AttentionBlock(-1)")
}

// An f32 attention whose mask moves every score to −1e9 is a plain mean over the keys, as arithmetic says, and its
// gradients are those of a mean: that of the values in the attention's own kernel, that of the mask in primitives.
func TestAttentionAllMasked(t *testing.T) {
	const queries, keys, depth = 5, 70, 4
	b := graph.NewBuilder("masked")
	q, k, v := b.Input("q", f32(queries, depth)), b.Input("k", f32(keys, depth)), b.Input("v", f32(keys, depth))
	mask, weigh := b.Input("mask", f32(queries, keys)), b.Input("weigh", f32(queries, depth))
	y := b.Add(graph.Attention{Scale: 1, HasMask: true}, q, k, v, mask)
	cost := b.Reduce(graph.Sum, b.Binary(graph.Mul, y, weigh), false, 0, 1)
	b.Output("cost", cost)
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	d, err := graph.Gradients(g, cost, []*graph.Node{q, v, mask})
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"dq", "dv", "dmask"} {
		b.Output(name, d[i])
	}
	r := rand.New(rand.NewPCG(1, 2))
	in := map[string]*graph.Tensor{"mask": graph.Filled(mask.Type, -1e9)}
	for _, n := range []*graph.Node{q, k, v, weigh} {
		x := graph.NewTensor(n.Type)
		for i := range n.Type.Shape.Elems() {
			x.SetFloat(i, 2*r.Float64()-1) // scores far below the 64 that −1e9 has room for
		}
		in[n.Name] = x
	}
	out, err := compiled(t, b).Run(in)
	if err != nil {
		t.Fatal(err)
	}
	dq, dv, dmask := make([]float64, queries*depth), make([]float64, keys*depth), make([]float64, queries*keys)
	for i := range queries {
		mean := 0.0
		for j := range keys {
			for c := range depth {
				w := in["weigh"].Float(i*depth+c) / keys
				dv[j*depth+c] += w
				dmask[i*keys+j] += w * in["v"].Float(j*depth+c)
			}
			mean += dmask[i*keys+j] / keys
		}
		for j := range keys {
			dmask[i*keys+j] -= mean
			for c := range depth {
				dq[i*depth+c] += dmask[i*keys+j] * in["k"].Float(j*depth+c)
			}
		}
	}
	sameFloats(t, "dq", out["dq"].Floats(), dq, 1e-6)
	sameFloats(t, "dv", out["dv"].Floats(), dv, 1e-6)
	sameFloats(t, "dmask", out["dmask"].Floats(), dmask, 1e-6)
}

// stacked is a self-attention whose queries, keys and values are slices, in the given order, of one projection.
func stacked(t *testing.T, order ...int) *graph.Graph {
	t.Helper()
	const batch, seq, heads, depth = 2, 6, 2, 4
	b := graph.NewBuilder("stacked")
	x, w := b.Input("x", f32(batch, seq, heads*depth)), b.Param("w", f32(heads*depth, 3*heads*depth))
	all := b.MatMul(x, w, false, false)
	var qkv [3]*graph.Node
	for _, i := range order {
		part := b.Slice(all, 2, i*heads*depth, heads*depth, 1)
		qkv[i] = b.Transpose(b.Reshape(part, batch, seq, heads, depth), 0, 2, 1, 3)
	}
	y := b.Add(graph.Attention{Scale: 0.5, Causal: true}, qkv[0], qkv[1], qkv[2])
	cost := b.Reduce(graph.Sum, b.Unary(graph.Square, y), false, 0, 1, 2, 3)
	b.Output("cost", cost)
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	d, err := graph.Gradients(g, cost, []*graph.Node{w})
	if err != nil {
		t.Fatal(err)
	}
	b.Output("dw", d[0])
	return g
}

// The gradient of a stacked projection is put together where attention's gradient writes its parts, in whatever order it
// was sliced: no value of zeros is filled or summed, and no part is copied.
func TestStackedProjection(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2}, {2, 0, 1}, {1, 2, 0}} {
		g := stacked(t, order...)
		_, program, err := fusec.Plan(g)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range program.Launches {
			switch l.Op.(type) {
			case graph.Unslice, graph.Concat:
				t.Errorf("%v: a launch joins parts: %s", order, l.Op)
			}
		}
		// The projection, the attention, the cost and its gradient, the attention's gradient, dw.
		if n := len(program.Launches); n != 6 {
			t.Errorf("%v: %d launches", order, n)
		}
	}
}

// Results of an attention without further axes, whose gradient is asked for, lie in place in what joins them.
func TestAttentionJoined(t *testing.T) {
	b := graph.NewBuilder("joined")
	var in [3]*graph.Node
	values := map[string]*graph.Tensor{}
	for i, name := range []string{"q", "k", "v"} {
		in[i] = b.Input(name, f32(5, 3))
		values[name] = tensorOf(t, []float32{1, -2, 3, 0.5, 2, -1, 0, 1, 2, 3, -1, 1, 0.25, 2, float32(i)}, 5, 3)
	}
	y := b.Add(graph.Attention{Scale: 0.5}, in[0], in[1], in[2])
	joined := b.Add(graph.Concat{Axis: 0}, y, in[2])
	cost := b.Reduce(graph.Sum, b.Unary(graph.Square, joined), false, 0, 1)
	b.Output("cost", cost)
	var outs [2]map[string]*graph.Tensor
	for i, target := range []string{"cpu", "ref"} {
		var err error
		p := compiled(t, b, fusec.WithTarget(target), fusec.WithGradient("dq", cost, in[0]), fusec.WithGradient("dv", cost, in[2]))
		if outs[i], err = p.Run(values); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range outs[1] {
		sameFloats(t, name, outs[0][name].Floats(), want.Floats(), 1e-5)
	}
}
