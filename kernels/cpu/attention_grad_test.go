package cpu

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/ref"
	"fusec/kernels/ref/cases"
)

// gradientOf is the gradient of an attention of the given operands, with drawn gradients of its results.
func gradientOf(t *testing.T, r *rand.Rand, op graph.Attention, args []*graph.Tensor, dlse bool) (graph.AttentionGrad,
	[]*graph.Tensor) {
	t.Helper()
	in := make([]ref.Value, len(args))
	for i, a := range args {
		in[i] = ref.FromTensor(a)
	}
	results, err := ref.Op(op, in)
	if err != nil {
		t.Fatal(err)
	}
	y, lse := results[0].Rounded(), results[1].Rounded()
	dout := drawTensor(r, y.Type.DType, -1, 1, y.Type.Shape.Slice()...)
	args = append(append([]*graph.Tensor(nil), args...), y, lse, dout)
	if dlse {
		args = append(args, drawTensor(r, y.Type.DType, -1, 1, lse.Type.Shape.Slice()...))
	}
	return graph.AttentionGrad{Attention: op, HasDlse: dlse}, args
}

func checkGradient(t *testing.T, r *rand.Rand, op graph.Attention, args ...*graph.Tensor) {
	t.Helper()
	grad, args := gradientOf(t, r, op, args, r.IntN(2) == 0)
	checkOp(t, grad, args...)
}

// TestAttentionGradRandom goes through attributes and shapes, few and many heads, at random.
func TestAttentionGradRandom(t *testing.T) {
	n := 60
	if testing.Short() {
		n = 20
	}
	r := rand.New(rand.NewPCG(21, 22))
	for range n {
		for _, d := range []graph.DType{graph.F32, graph.F64} {
			op, args := cases.RandomAttention(r, d, attentionSizes)
			if op.Page > 0 || op.HasScales {
				continue // the gradient is that of gathered keys, or of what integers stand for
			}
			checkGradient(t, r, op, args...)
		}
	}
}

// TestAttentionGradBlocks has more queries and keys than a block, in both ways of handing out the work.
func TestAttentionGradBlocks(t *testing.T) {
	r := rand.New(rand.NewPCG(23, 24))
	for n, c := range []struct {
		op                  graph.Attention
		heads, group        int
		sq, sk, depth, wide int
		mask                []int
	}{
		{op: graph.Attention{}, heads: 8, group: 1, sq: 100, sk: 210, depth: 13, wide: 12},
		{op: graph.Attention{Causal: true}, heads: 1, group: 1, sq: 230, sk: 210, depth: 64, wide: 64},
		{op: graph.Attention{Causal: true}, heads: 8, group: 2, sq: 110, sk: 101, depth: 7, wide: 3},
		{op: graph.Attention{Causal: true, Window: 70}, heads: 1, group: 3, sq: 110, sk: 300, depth: 33, wide: 17},
		{op: graph.Attention{Window: 33}, heads: 9, group: 1, sq: 120, sk: 130, depth: 8, wide: 9},
		{op: graph.Attention{Window: 1}, heads: 8, group: 1, sq: 100, sk: 300, depth: 5, wide: 3},
		{op: graph.Attention{HasMask: true}, heads: 8, group: 1, sq: 120, sk: 221, depth: 12, wide: 5,
			mask: []int{120, 221}},
		{op: graph.Attention{Dropout: 0.4, Causal: true}, heads: 8, group: 1, sq: 120, sk: 220, depth: 12, wide: 5},
		{op: graph.Attention{}, heads: 1, group: 1, sq: 65, sk: 80, depth: 300, wide: 270},
		{op: graph.Attention{}, heads: 2, group: 1, sq: 1, sk: 900, depth: 64, wide: 64},
	} {
		for m, d := range []graph.DType{graph.F32, graph.F64} {
			if testing.Short() && n%2 != m {
				continue // each in one type
			}
			c.op.Scale = 1 / math.Sqrt(float64(c.depth))
			args := []*graph.Tensor{drawTensor(r, d, -2, 2, c.heads*c.group, c.sq, c.depth),
				drawTensor(r, d, -2, 2, c.heads, c.sk, c.depth), drawTensor(r, d, -2, 2, c.heads, c.sk, c.wide)}
			if c.mask != nil {
				m := drawTensor(r, d, -1, 1, c.mask...)
				for i := range c.mask[0] * c.mask[1] / 2 { // whole blocks that are skipped
					m.SetFloat(i, math.Inf(-1))
				}
				args = append(args, m)
			}
			if c.op.Dropout > 0 {
				args = append(args, graph.Scalar(graph.I64, 11))
			}
			checkGradient(t, r, c.op, args...)
		}
	}
}

// TestAttentionGradNothing has queries that may attend no key: they get zeros, and give none.
func TestAttentionGradNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(25, 26))
	for _, heads := range []int{1, 8} {
		x := func(rows int) *graph.Tensor { return drawTensor(r, graph.F32, -1, 1, 1, heads, rows, 8) }
		args := []*graph.Tensor{x(40), x(70), x(70)}
		for _, c := range []struct {
			op   graph.Attention
			more *graph.Tensor
		}{
			{graph.Attention{HasMask: true}, graph.Filled(graph.TypeOf(graph.F32, 70), math.Inf(-1))},
			{graph.Attention{HasMask: true}, graph.NewTensor(graph.TypeOf(graph.Bool, 40, 70))},
			{graph.Attention{HasLengths: true, Tail: true, Causal: true}, graph.NewTensor(graph.TypeOf(graph.I32, 1))},
		} {
			c.op.Scale = 1
			op, args := gradientOf(t, r, c.op, append(args[:3:3], c.more), true)
			checkOp(t, op, args...)
			p := pool.New(1)
			s, err := stand(op, args, p)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.run(); err != nil {
				t.Fatal(err)
			}
			for i, y := range s.out {
				for j, x := range y.Floats() {
					if x != 0 {
						t.Fatalf("%+v: element %d of result %d is %v", op, j, i, x)
					}
				}
			}
			p.Close()
		}
	}
}

// TestAttentionGradGarbage checks that keys and values beyond the lengths are not read, and get zeros.
func TestAttentionGradGarbage(t *testing.T) {
	r := rand.New(rand.NewPCG(27, 28))
	for _, heads := range []int{1, 8} {
		x := func(rows int) *graph.Tensor { return drawTensor(r, graph.F32, -1, 1, 1, heads, rows, 4) }
		args := []*graph.Tensor{x(30), x(400), x(400)}
		const valid = 213
		lengths, err := graph.TensorOf([]int32{valid}, 1)
		if err != nil {
			t.Fatal(err)
		}
		forward := graph.Attention{Scale: 1, HasLengths: true, Tail: true, Causal: true}
		op, args := gradientOf(t, r, forward, append(args, lengths), true)
		checkOp(t, op, args...)
		p := pool.New(1)
		var clean []*graph.Tensor
		for range 2 {
			s, err := stand(op, args, p)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second time in a scratch that was used
				if err := s.run(); err != nil {
					t.Fatal(err)
				}
			}
			for i := range clean {
				if !s.out[i].Equal(clean[i]) {
					t.Errorf("%d heads: result %d reads what is beyond the lengths", heads, i)
				}
			}
			clean = s.out
			for h := range heads {
				for i := valid * 4; i < 400*4; i++ {
					args[1].SetFloat(h*1600+i, math.NaN())
					args[2].SetFloat(h*1600+i, math.NaN())
					if s.out[1].Float(h*1600+i) != 0 || s.out[2].Float(h*1600+i) != 0 {
						t.Fatalf("%d heads: a key beyond the lengths has a gradient", heads)
					}
				}
			}
		}
		p.Close()
	}
}

// viewed is the attention of the tests of views.
var viewed = graph.Attention{Scale: 0.5, Causal: true}

// headsOf is an input [b, s, h·d] seen as [b, h, s, d].
func headsOf(g *graph.Builder, name string, b, s, h, d int) *graph.Node {
	return g.Transpose(g.Reshape(g.Input(name, graph.TypeOf(graph.F32, b, s, h*d)), b, s, h, d), 0, 2, 1, 3)
}

// viewedLSE is the log-sum-exp [b, s, h] of the attention of q, k and v [b, s, h·d].
func viewedLSE(t *testing.T, b, s, h, d int, q, k, v *graph.Tensor) *graph.Tensor {
	t.Helper()
	f := graph.NewBuilder("forward")
	y := f.Add(viewed, headsOf(f, "q", b, s, h, d), headsOf(f, "k", b, s, h, d), headsOf(f, "v", b, s, h, d))
	f.Output("lse", f.Transpose(f.Add(graph.Result{Index: 1}, y), 0, 2, 1))
	g, err := f.Graph()
	if err != nil {
		t.Fatal(err)
	}
	out, _, err := ref.Eval(g, map[string]*graph.Tensor{"q": q, "k": k, "v": v})
	if err != nil {
		t.Fatal(err)
	}
	lse := graph.NewTensor(graph.TypeOf(graph.F32, b, s, h))
	for i := range b * s * h {
		lse.SetFloat(i, out["lse"].Float(i))
	}
	return lse
}

// attentionGradBody is the fusion of an attention's gradient in a model whose q, k, v and out are [b, s, h·d]: all of
// it strides. Further results are handed out as want says.
func attentionGradBody(t *testing.T, b, s, h, d int, wantK, wantV bool) graph.Fusion {
	t.Helper()
	body := graph.NewBuilder("gradient")
	heads := func(name string) *graph.Node { return headsOf(body, name, b, s, h, d) }
	merged := func(x *graph.Node) *graph.Node {
		return body.Reshape(body.Transpose(x, 0, 2, 1, 3), b, s, h*d)
	}
	q, k, v, out := heads("q"), heads("k"), heads("v"), heads("out")
	lse := body.Transpose(body.Input("lse", graph.TypeOf(graph.F32, b, s, h)), 0, 2, 1)
	dout := body.Broadcast(body.Input("dout", graph.TypeOf(graph.F32, b, h, 1, d)), out.Type.Shape)
	dlse := body.Transpose(body.Input("dlse", graph.TypeOf(graph.F32, b, s, h)), 0, 2, 1)
	dq := body.Add(graph.AttentionGrad{Attention: viewed, HasDlse: true}, q, k, v, out, lse, dout, dlse)
	if wantV {
		body.Output("dv", body.Transpose(body.Add(graph.Result{Index: 2}, dq), 0, 1, 3, 2))
	}
	body.Output("dq", merged(dq))
	if wantK {
		body.Output("dk", merged(body.Add(graph.Result{Index: 1}, dq)))
	}
	g, err := body.Graph()
	if err != nil {
		t.Fatal(err)
	}
	return graph.Fusion{Anchor: graph.AnchorAttention, Kind: graph.KindAttention, Body: g}
}

func TestAttentionGradViews(t *testing.T) {
	r := rand.New(rand.NewPCG(29, 30))
	for i := range 8 {
		b, h, d := 1+i/4, 3, 8
		for _, s := range []int{1, 7, 40} {
			all := []int{b, s, h * d}
			f := attentionGradBody(t, b, s, h, d, i%2 == 0, i/2%2 == 0)
			x := func(dims ...int) *graph.Tensor { return drawTensor(r, graph.F32, -2, 2, dims...) }
			q, k, v := x(all...), x(all...), x(all...)
			checkOp(t, f, q, k, v, x(all...), viewedLSE(t, b, s, h, d, q, k, v), x(b, h, 1, d), x(b, s, h))
		}
	}
}

// TestAttentionGradMemory checks that the memory of a kernel grows by three numbers a query, and a flag a block.
func TestAttentionGradMemory(t *testing.T) {
	p := pool.New(2)
	defer p.Close()
	for _, c := range []struct{ heads, s int }{{8, 16384}, {1, 65536}} {
		x := Contiguous(graph.TypeOf(graph.F32, c.heads, c.s, 64))
		lse := Contiguous(graph.TypeOf(graph.F32, c.heads, c.s))
		env := NewEnv(p)
		op := graph.AttentionGrad{Attention: graph.Attention{Scale: 1, Causal: true}}
		kernel, err := Compile(op, []Operand{x, x, x, x, lse, x}, []Operand{x, x, x}, env)
		if err != nil {
			t.Fatal(err)
		}
		if n := Bytes(kernel); n < int64(12*c.heads*c.s) || n > int64(12*c.heads*c.s+c.heads*c.s/48+c.heads) {
			t.Errorf("%+v: the kernel keeps %d bytes", c, n)
		}
		if n := env.WorkspaceBytes(); n > 2<<20 {
			t.Errorf("%+v: %d bytes of scratch", c, n)
		}
	}
}

func TestAttentionGradErrors(t *testing.T) {
	p := pool.New(1)
	defer p.Close()
	x, lse := graph.TypeOf(graph.F32, 6, 4), graph.TypeOf(graph.F32, 6)
	for want, build := range map[string]func(b *graph.Builder, x, lse *graph.Node){
		"has no place in a body beside attention_grad %3": func(b *graph.Builder, x, lse *graph.Node) {
			b.Output("dq", b.Add(graph.AttentionGrad{}, x, x, x, x, lse, b.Unary(graph.Exp, x)))
		},
		"has no place in a body beside attention_grad %2": func(b *graph.Builder, x, lse *graph.Node) {
			b.Output("dq", b.Unary(graph.Exp, b.Add(graph.AttentionGrad{}, x, x, x, x, lse, x)))
		},
		"stored through strides": func(b *graph.Builder, x, lse *graph.Node) {
			b.Output("dq", b.Reshape(b.Add(graph.AttentionGrad{}, x, x, x, x, lse, x), 2, 12))
		},
		"not handed out": func(b *graph.Builder, x, lse *graph.Node) {
			b.Output("dk", b.Add(graph.Result{Index: 1}, b.Add(graph.AttentionGrad{}, x, x, x, x, lse, x)))
		},
	} {
		b := graph.NewBuilder("bad")
		build(b, b.Input("x", x), b.Input("lse", lse))
		g, err := b.Graph()
		if err != nil {
			t.Fatal(err)
		}
		out := Contiguous(g.Outputs[0].Node.Type)
		out.Layout.Stride = [graph.MaxRank]int{1, out.Layout.Shape.At(0)} // columns side by side
		f := graph.Fusion{Anchor: graph.AnchorAttention, Body: g}
		_, err = Compile(f, []Operand{Contiguous(x), Contiguous(lse)}, []Operand{out}, NewEnv(p))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
