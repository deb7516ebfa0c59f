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

func TestAttentionCases(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, d := range []graph.DType{graph.F32, graph.F64} {
		for _, c := range cases.All(d) {
			if _, ok := c.Op.(graph.Attention); !ok {
				continue
			}
			t.Run(d.String()+"/"+c.Name, func(t *testing.T) {
				args := make([]*graph.Tensor, len(c.Args))
				for i, a := range c.Args {
					args[i] = a.Draw(r)
				}
				checkOp(t, c.Op, args...)
			})
		}
	}
}

var attentionSizes = cases.AttentionSizes{Queries: 90, Keys: 450, Few: 450, Columns: []int{20}, Heads: 3}

func TestAttentionRandom(t *testing.T) {
	n := 60
	if testing.Short() {
		n = 20
	}
	r := rand.New(rand.NewPCG(3, 4))
	for range n {
		for _, d := range []graph.DType{graph.F32, graph.F64} {
			op, args := cases.RandomAttention(r, d, attentionSizes)
			checkOp(t, op, args...)
		}
	}
}

// TestAttentionBlocks has more queries and keys than a block, and depths larger than usual.
func TestAttentionBlocks(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for n, c := range []struct {
		op             graph.Attention
		sq, sk, dq, dv int
		mask           []int
	}{
		{op: graph.Attention{Causal: true}, sq: 300, sk: 300, dq: 64, dv: 64},
		{op: graph.Attention{Causal: true, Window: 70}, sq: 310, sk: 500, dq: 33, dv: 17},
		{op: graph.Attention{Window: 33}, sq: 290, sk: 290, dq: 8, dv: 9},
		{op: graph.Attention{HasMask: true}, sq: 270, sk: 401, dq: 12, dv: 5, mask: []int{1, 401}},
		{op: graph.Attention{}, sq: 65, sk: 130, dq: 300, dv: 270},
		{op: graph.Attention{}, sq: 1, sk: 3000, dq: 64, dv: 64},
	} {
		for m, d := range []graph.DType{graph.F32, graph.F64} {
			if testing.Short() && n%2 != m {
				continue // each in one type
			}
			c.op.Scale = 1 / math.Sqrt(float64(c.dq))
			args := []*graph.Tensor{drawTensor(r, d, -2, 2, 2, c.sq, c.dq), drawTensor(r, d, -2, 2, 2, c.sk, c.dq),
				drawTensor(r, d, -2, 2, 2, c.sk, c.dv)}
			if c.mask != nil {
				args = append(args, drawTensor(r, d, -1, 1, c.mask...))
			}
			checkOp(t, c.op, args...)
		}
	}
}

// TestAttentionExtremes has scores far beyond what an exponential can take, and infinite and undefined ones.
func TestAttentionExtremes(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for _, sq := range []int{1, 20} {
		for _, bad := range []float64{0, math.Inf(1), math.NaN()} {
			q, k, v := drawTensor(r, graph.F32, -1e4, 1e4, sq, 8), drawTensor(r, graph.F32, -1e4, 1e4, 300, 8),
				drawTensor(r, graph.F32, -1, 1, 300, 8)
			if bad == 0 {
				checkOp(t, graph.Attention{Scale: 1}, q, k, v)
				continue
			}
			for i := range 8 {
				q.SetFloat(i, 1)
				k.SetFloat(8*250+i, bad)
			}
			p := pool.New(1)
			s, err := stand(graph.Attention{Scale: 1}, []*graph.Tensor{q, k, v}, p)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.run(); err != nil {
				t.Fatal(err)
			}
			if y := s.out[0].Float(0); y == y {
				t.Errorf("%d queries, a key of %v: result %v", sq, bad, y)
			}
			p.Close()
		}
	}
}

// TestAttentionNothing has queries that may attend no key.
func TestAttentionNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	for _, sq := range []int{2, 40} {
		args := []*graph.Tensor{drawTensor(r, graph.F32, -1, 1, 1, sq, 8), drawTensor(r, graph.F32, -1, 1, 1, 5, 8),
			drawTensor(r, graph.F32, -1, 1, 1, 5, 8)}
		none := graph.Filled(graph.TypeOf(graph.F32, 5), math.Inf(-1))
		checkOp(t, graph.Attention{Scale: 1, HasMask: true}, append(args, none)...)
		checkOp(t, graph.Attention{Scale: 1, HasMask: true}, append(args, graph.NewTensor(graph.TypeOf(graph.Bool, sq, 5)))...)
		checkOp(t, graph.Attention{Scale: 1, HasLengths: true, Tail: true}, append(args, graph.Scalar(graph.I64, 0))...)
		far := graph.Filled(graph.TypeOf(graph.F32, 5), -1e9) // a finite mask is arithmetic: all keys count the same
		checkOp(t, graph.Attention{Scale: 1, HasMask: true}, append(args, far)...)
	}
}

// TestAttentionGarbage checks that keys and values beyond the lengths are not read.
func TestAttentionGarbage(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	p := pool.New(1)
	defer p.Close()
	for _, sq := range []int{1, 30} {
		op := graph.Attention{Scale: 1, HasLengths: true, Tail: true, Causal: true}
		args := []*graph.Tensor{drawTensor(r, graph.F32, -1, 1, 1, sq, 4), drawTensor(r, graph.F32, -1, 1, 1, 700, 4),
			drawTensor(r, graph.F32, -1, 1, 1, 700, 4), graph.Scalar(graph.I32, 333)}
		checkOp(t, op, args...)
		var clean *graph.Tensor
		for range 2 {
			s, err := stand(op, args, p)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.run(); err != nil {
				t.Fatal(err)
			}
			if clean != nil && !s.out[0].Equal(clean) {
				t.Errorf("%d queries read what is beyond the lengths", sq)
			}
			clean = s.out[0]
			for i := 333 * 4; i < 700*4; i++ {
				args[1].SetFloat(i, math.NaN())
				args[2].SetFloat(i, math.NaN())
			}
		}
	}
}

// TestAttentionPages has pages that several sequences share, in any order, entries of the table that do not count, and
// a pool seen through strides.
func TestAttentionPages(t *testing.T) {
	r := rand.New(rand.NewPCG(17, 18))
	table := graph.NewTensor(graph.TypeOf(graph.I64, 2, 30))
	for i := range 60 {
		table.SetFloat(i, float64(r.IntN(9)))
	}
	lengths := drawTensor(r, graph.I64, 0, 1, 2)
	lengths.SetFloat(0, 333)
	lengths.SetFloat(1, 5)
	for i := range 29 {
		table.SetFloat(31+i, []float64{-1, 9, 1 << 40}[i%3])
	}
	for _, sq := range []int{1, 5, 70} {
		op := graph.Attention{Scale: 0.4, HasLengths: true, Tail: true, Causal: true, Page: 12}
		q := drawTensor(r, graph.F32, -1, 1, 2, 4, sq, 8)
		k, v := drawTensor(r, graph.F32, -1, 1, 9, 2, 12, 8), drawTensor(r, graph.F32, -1, 1, 9, 2, 12, 6)
		checkOp(t, op, q, k, v, lengths, table)

		body := graph.NewBuilder("pages")
		rows, columns := drawTensor(r, graph.F32, -1, 1, 9, 12, 2, 8), drawTensor(r, graph.F32, -1, 1, 6, 9, 2, 12)
		keys := body.Transpose(body.Input("k", rows.Type), 0, 2, 1, 3) // a token's heads side by side
		values := body.Transpose(body.Input("v", columns.Type), 1, 2, 3, 0)
		y := body.Add(op, body.Input("q", q.Type), keys, values, body.Input("l", lengths.Type), body.Input("t", table.Type))
		body.Output("y", y)
		body.Output("lse", body.Add(graph.Result{Index: 1}, y))
		g, err := body.Graph()
		if err != nil {
			t.Fatal(err)
		}
		checkOp(t, graph.Fusion{Anchor: graph.AnchorAttention, Body: g}, rows, columns, q, lengths, table)

		for entry, want := range map[int]string{0: "page 9, entry 0 of the table of batch 0, is outside 0..8",
			30: "entry 0 of the table of batch 1"} {
			bad := table.Clone()
			bad.SetFloat(entry, 9)
			wantError(t, op, []*graph.Tensor{q, k, v, lengths, bad}, want)
		}
	}
}

// attentionBody is a fusion whose operands come out of one projection [b, s, 3·h·d], and whose result goes to
// [b, s, h·d]: all of it strides.
func attentionBody(t *testing.T, b, s, h, d int, causal bool) graph.Fusion {
	t.Helper()
	body := graph.NewBuilder("attention")
	x := body.Reshape(body.Input("qkv", graph.TypeOf(graph.F32, b, s, 3*h*d)), b, s, 3, h, d)
	var part [3]*graph.Node
	for i := range part {
		p := body.Reshape(body.Slice(x, 2, i, 1, 1), b, s, h, d)
		part[i] = body.Transpose(p, 0, 2, 1, 3)
	}
	y := body.Add(graph.Attention{Scale: 0.5, Causal: causal}, part[0], part[1], part[2])
	body.Output("y", body.Reshape(body.Transpose(y, 0, 2, 1, 3), b, s, h*d))
	body.Output("lse", body.Transpose(body.Add(graph.Result{Index: 1}, y), 0, 2, 1))
	g, err := body.Graph()
	if err != nil {
		t.Fatal(err)
	}
	return graph.Fusion{Anchor: graph.AnchorAttention, Kind: graph.KindAttention, Body: g}
}

func TestAttentionViews(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	for _, s := range []int{1, 7, 40} {
		for _, causal := range []bool{false, true} {
			checkOp(t, attentionBody(t, 2, s, 3, 8, causal), drawTensor(r, graph.F32, -2, 2, 2, s, 24*3))
		}
	}
	// Depths and widths that are not side by side, a broadcast key, a seed that is a constant.
	for _, s := range []int{2, 50, -2, -50} {
		mask := drawTensor(r, graph.F32, -1, 1, 70, max(s, -s))
		if s < 0 {
			s = -s
			mask = drawTensor(r, graph.Bool, 0, 1, 70, s)
		}
		for i := range 30 * s { // a block of keys that no query may attend
			mask.SetFloat(i, []float64{math.Inf(-1), 0}[max(0, 1-int(mask.Type.DType.Size())/4)])
		}
		for i := range s {
			mask.SetFloat(69*s+i, 1)
		}
		body := graph.NewBuilder("strided")
		q := body.Transpose(body.Input("q", graph.TypeOf(graph.F32, 8, s)), 1, 0)
		k := body.Broadcast(body.Input("k", graph.TypeOf(graph.F32, 1, 8)), graph.ShapeOf(70, 8))
		v := body.Transpose(body.Input("v", graph.TypeOf(graph.F32, 5, 70)), 1, 0)
		m := body.Transpose(body.Input("m", mask.Type), 1, 0)
		y := body.Add(graph.Attention{Scale: 1, HasMask: true, Dropout: 0.5}, q, k, v, m, body.Scalar(graph.I64, 5))
		body.Output("y", body.Transpose(y, 1, 0))
		g, err := body.Graph()
		if err != nil {
			t.Fatal(err)
		}
		checkOp(t, graph.Fusion{Anchor: graph.AnchorAttention, Body: g}, drawTensor(r, graph.F32, -2, 2, 8, s),
			drawTensor(r, graph.F32, -2, 2, 1, 8), drawTensor(r, graph.F32, -2, 2, 5, 70), mask)
	}
}

// TestAttentionMemory checks that the memory of a kernel does not grow with the sequence.
func TestAttentionMemory(t *testing.T) {
	p := pool.New(2)
	defer p.Close()
	for _, s := range [][2]int{{16384, 16384}, {32768, 32768}, {1, 1 << 20}} {
		q, k := Contiguous(graph.TypeOf(graph.F32, 8, s[0], 64)), Contiguous(graph.TypeOf(graph.F32, 8, s[1], 64))
		lse := Contiguous(graph.TypeOf(graph.F32, 8, s[0]))
		env := NewEnv(p)
		kernel, err := Compile(graph.Attention{Scale: 1, Causal: true}, []Operand{q, k, k}, []Operand{q, lse}, env)
		if err != nil {
			t.Fatal(err)
		}
		if n := Bytes(kernel) + env.WorkspaceBytes(); n > 4<<20 {
			t.Errorf("%v queries and keys: %d bytes", s, n)
		}
	}
}

func TestAttentionErrors(t *testing.T) {
	p := pool.New(1)
	defer p.Close()
	f := func(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }
	for want, build := range map[string]func(b *graph.Builder, x *graph.Node){
		"has no place in a body beside attention %2": func(b *graph.Builder, x *graph.Node) {
			b.Output("y", b.Add(graph.Attention{}, b.Unary(graph.Exp, x), x, x))
		},
		"through strides": func(b *graph.Builder, x *graph.Node) {
			y := b.Reshape(b.Transpose(x, 1, 0), 3, 8)
			b.Output("y", b.Add(graph.Attention{}, y, y, y))
		},
		"has no place in a body beside attention %1": func(b *graph.Builder, x *graph.Node) {
			b.Output("y", b.Unary(graph.Exp, b.Add(graph.Attention{}, x, x, x)))
		},
		"stored through strides": func(b *graph.Builder, x *graph.Node) {
			b.Output("y", b.Reshape(b.Add(graph.Attention{}, x, x, x), 2, 12))
		},
		"not handed out": func(b *graph.Builder, x *graph.Node) {
			b.Output("lse", b.Add(graph.Result{Index: 1}, b.Add(graph.Attention{}, x, x, x)))
		},
		"anchor attention without one": func(b *graph.Builder, x *graph.Node) { b.Output("y", b.Unary(graph.Exp, x)) },
	} {
		b := graph.NewBuilder("bad")
		build(b, b.Input("x", f(6, 4)))
		g, err := b.Graph()
		if err != nil {
			t.Fatal(err)
		}
		out := make([]Operand, len(g.Outputs))
		for i, o := range g.Outputs {
			out[i] = Contiguous(o.Node.Type)
			out[i].Layout.Stride = [graph.MaxRank]int{1, o.Node.Type.Shape.At(0)} // columns side by side
		}
		_, err = Compile(graph.Fusion{Anchor: graph.AnchorAttention, Body: g}, []Operand{Contiguous(f(6, 4))}, out, NewEnv(p))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// TestAttentionBackward runs the gradient's operations, one kernel each, against the reference.
func TestAttentionBackward(t *testing.T) {
	b := graph.NewBuilder("train")
	q, k := b.Input("q", graph.TypeOf(graph.F64, 2, 5, 4)), b.Input("k", graph.TypeOf(graph.F64, 1, 5, 4))
	y := b.Add(graph.Attention{Scale: 0.5, Causal: true}, q, k, k)
	cost := b.Reduce(graph.Sum, b.Unary(graph.Square, y), false, 0, 1, 2)
	b.Output("cost", cost)
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	grads, err := graph.Gradients(g, cost, []*graph.Node{q, k})
	if err != nil {
		t.Fatal(err)
	}
	b.Output("dq", grads[0])
	b.Output("dk", grads[1])
	if g, err = b.Graph(); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(15, 16))
	in := map[string]*graph.Tensor{"q": drawTensor(r, graph.F64, -1, 1, 2, 5, 4), "k": drawTensor(r, graph.F64, -1, 1, 1, 5, 4)}
	values, err := ref.Nodes(g, in, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range g.Nodes {
		if graph.ClassOf(n.Op) != graph.ClassSource && !graph.IsView(n.Op) && n.Op.OpName() != "result" {
			args := make([]*graph.Tensor, len(n.Args))
			for i, a := range n.Args {
				args[i] = values[a][0].Rounded()
			}
			checkOp(t, n.Op, args...)
		}
	}
}
