package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/ref"
)

// A mixtureCase is a mixture of experts with its sizes: of x [Lead..., d], the hidden values and the result.
type mixtureCase struct {
	op      graph.MoE
	lead    []int
	d, f, o int
	open    func(r *rand.Rand, token, expert int) bool // whether a gate is
}

// draw draws the operands of the mixture, and dy. Weights are small enough for the sums to stay so, too.
func (c mixtureCase) draw(r *rand.Rand, t graph.DType) (args []*graph.Tensor, dy *graph.Tensor) {
	gates := drawTensor(r, t, 0.1, 1, append(c.lead[:len(c.lead):len(c.lead)], c.op.Experts)...)
	for i := range gates.Type.Shape.Elems() {
		if c.open != nil && !c.open(r, i/c.op.Experts, i%c.op.Experts) {
			gates.SetFloat(i, 0)
		}
	}
	lo, hi := -1.0, 1.0
	switch c.op.Activation { // where they are defined
	case graph.Log, graph.Log2, graph.Log1p, graph.Sqrt, graph.Rsqrt, graph.Recip:
		lo = 0.1
	case graph.Asin, graph.Acos, graph.Atanh:
		lo, hi = -0.4, 0.4
	case graph.Acosh:
		lo, hi = 1, 1.5
	}
	args = []*graph.Tensor{drawTensor(r, t, lo, hi, append(c.lead[:len(c.lead):len(c.lead)], c.d)...), gates}
	for _, w := range c.op.Weights() {
		s := c.op.WeightShape(graph.MoEDims{Width: c.d, Hidden: c.f, Result: c.o}, w)
		n := c.op.Experts
		if c.op.Stacked {
			n = 1
		}
		for range n {
			args = append(args, drawTensor(r, t, lo, hi, s.Slice()...))
		}
	}
	return args, drawTensor(r, t, -1, 1, append(c.lead[:len(c.lead):len(c.lead)], c.o)...)
}

// checkMixture compares a mixture and its gradient with the reference's decompositions.
func checkMixture(t *testing.T, r *rand.Rand, d graph.DType, c mixtureCase) {
	t.Helper()
	args, dy := c.draw(r, d)
	checkDecomposed(t, c.op, args...)
	checkDecomposed(t, graph.MoEGrad(c.op), append(args, dy)...)
}

// checkDecomposed is checkOp by an operation's decomposition.
func checkDecomposed(t *testing.T, op graph.Op, args ...*graph.Tensor) {
	t.Helper()
	in := make([]ref.Value, len(args))
	for i, a := range args {
		in[i] = ref.FromTensor(a)
	}
	want, err := ref.Decomposed(op, in)
	if err != nil {
		t.Fatalf("%#v: reference: %v", op, err)
	}
	checkAgainst(t, want, op, args...)
}

// someGates opens k gates of each token on average, of experts but the last.
func someGates(experts, k int) func(r *rand.Rand, _, e int) bool {
	return func(r *rand.Rand, _, e int) bool { return (experts == 1 || e < experts-1) && r.IntN(experts) < k }
}

func coin(r *rand.Rand) bool { return r.IntN(2) == 0 }

func TestMoEActivations(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, fn := range graph.UnaryFnsOf(graph.F32) {
		for _, d := range []graph.DType{graph.F32, graph.F64} {
			op := graph.MoE{Experts: 2, Activation: fn, Gated: coin(r), Bias: coin(r), Stacked: coin(r)}
			if fn.HasAlpha() {
				op.Alpha = 0.3
			}
			checkMixture(t, r, d, mixtureCase{op: op, lead: []int{5}, d: 2, f: 9, o: 3, open: someGates(2, 1)})
		}
	}
}

func TestMoERandom(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	n := 25
	if testing.Short() {
		n = 8
	}
	size := func(most int) int {
		switch r.IntN(10) {
		case 0:
			return 0
		case 1:
			return 1
		}
		return 1 + r.IntN(most)
	}
	for range n {
		for _, d := range []graph.DType{graph.F32, graph.F64} {
			fn := []graph.UnaryFn{graph.Relu, graph.GeluErf, graph.Silu}[r.IntN(3)]
			op := graph.MoE{Experts: 1 + r.IntN(6), Activation: fn, Gated: coin(r), Bias: coin(r), Stacked: coin(r),
				Dense: r.IntN(4) == 0}
			c := mixtureCase{op: op, lead: []int{size(150)}, d: size(40), f: size(70), o: size(40),
				open: someGates(op.Experts, 1+r.IntN(3))}
			if coin(r) {
				c.lead = []int{1 + r.IntN(3), size(50)}
			}
			checkMixture(t, r, d, c)
		}
	}
}

// TestMoEBlocks has reductions, hidden columns, tokens and weights of more than one block, chunk and piece. Package moe
// tests what segments and waves do.
func TestMoEBlocks(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	silu := graph.MoE{Experts: 3, Activation: graph.Silu, Gated: true, Bias: true}
	relu := graph.MoE{Experts: 4, Activation: graph.Relu, Stacked: true}
	dense := graph.MoE{Experts: 2, Activation: graph.Tanh, Dense: true, Bias: true}
	for _, c := range []mixtureCase{
		{op: silu, lead: []int{3}, d: 300, f: 600, o: 290, open: someGates(3, 2)},
		{op: silu, lead: []int{170}, d: 30, f: 200, o: 262, open: someGates(3, 1)},
		{op: relu, lead: []int{900}, d: 7, f: 33, o: 5, open: func(_ *rand.Rand, _, e int) bool { return e == 1 }},
		{op: relu, lead: []int{50}, d: 520, f: 20, o: 17, open: someGates(4, 2)},
		{op: dense, lead: []int{700}, d: 5, f: 300, o: 4},
		{op: relu, lead: nil, d: 40, f: 700, o: 9, open: someGates(4, 3)},
	} {
		checkMixture(t, r, graph.F32, c)
	}
}

// TestMoEWide has rows of results and inputs that are packed in several pieces, of few values otherwise.
func TestMoEWide(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	op := graph.MoE{Experts: 2, Activation: graph.Relu, Bias: true}
	for _, c := range []mixtureCase{
		{op: op, lead: []int{9}, d: 5, f: 7, o: 530, open: someGates(2, 1)},
		{op: op, lead: []int{9}, d: 530, f: 7, o: 5, open: someGates(2, 1)},
	} {
		checkMixture(t, r, graph.F32, c)
		checkMixture(t, r, graph.F64, c)
	}
}

// TestMoEClosed checks that nothing comes through closed gates, not even what is not finite.
func TestMoEClosed(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	p := pool.New(2)
	defer p.Close()
	c := mixtureCase{op: graph.MoE{Experts: 2, Activation: graph.Relu, Bias: true}, lead: []int{30}, d: 3, f: 5, o: 4,
		open: func(_ *rand.Rand, token, e int) bool { return e == 0 && token != 7 }}
	args, dy := c.draw(r, graph.F32)
	for i := 3; i < len(args); i += 2 { // all of expert 1
		for j := range args[i].Type.Shape.Elems() {
			args[i].SetFloat(j, math.NaN())
		}
	}
	for j := range 3 {
		args[0].SetFloat(7*3+j, math.NaN())
	}
	for _, op := range []graph.Op{c.op, graph.MoEGrad(c.op)} {
		in := args
		if _, ok := op.(graph.MoEGrad); ok {
			in = append(args[:len(args):len(args)], dy)
		}
		s, err := stand(op, in, p)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.run(); err != nil {
			t.Fatal(err)
		}
		for i, y := range s.out {
			for j := range y.Type.Shape.Elems() {
				if v := y.Float(j); v != v {
					t.Fatalf("%s: element %d of result %d is %v", op.OpName(), j, i, v)
				}
			}
		}
	}
}

// mixtureBody is a fusion whose operands and results are seen through views.
func mixtureBody(t *testing.T, op graph.MoE, backward bool) (graph.Fusion, []*graph.Tensor) {
	t.Helper()
	r := rand.New(rand.NewPCG(9, 10))
	const tokens, d, f, o = 33, 6, 10, 8
	b := graph.NewBuilder("mixture")
	var in []*graph.Tensor
	input := func(dims ...int) *graph.Node {
		in = append(in, drawTensor(r, graph.F32, -1, 1, dims...))
		return b.Input(fmt.Sprint("x", len(in)), in[len(in)-1].Type)
	}
	args := []*graph.Node{b.Reshape(b.Transpose(input(d, tokens), 1, 0), 3, 11, d),
		b.Slice(input(3, 11, 2*op.Experts), 2, 1, op.Experts, 2)}
	for _, w := range op.Weights() {
		s := op.WeightShape(graph.MoEDims{Width: d, Hidden: f, Result: o}, w)
		n := op.Experts
		if op.Stacked {
			n = 1
		}
		all := input(append([]int{n + 1}, s.Slice()...)...) // experts in one value, the first unused
		for e := range n {
			x := b.Reshape(b.Slice(all, 0, e+1, 1, 1), s.Slice()...)
			if e%2 == 1 && s.Rank() == 2 { // and transposed
				x = b.Transpose(input(s.At(1), s.At(0)), 1, 0)
			}
			args = append(args, x)
		}
	}
	if !backward {
		y := b.Add(op, args...)
		b.Output("load", b.Reshape(b.Add(graph.Result{Index: 1}, y), op.Experts, 1))
		b.Output("y", b.Transpose(b.Reshape(y, tokens, o), 1, 0))
	} else {
		args = append(args, b.Broadcast(input(3, 1, o), graph.ShapeOf(3, 11, o)))
		y := b.Add(graph.MoEGrad(op), args...)
		b.Output("dx", b.Transpose(y, 2, 0, 1))
		for i := 1; i < len(args)-1; i++ {
			if n := b.Add(graph.Result{Index: i}, y); i%3 != 0 {
				b.Output(fmt.Sprint(i), b.Transpose(n, []int{1, 0, 2}[:n.Type.Shape.Rank()]...))
			}
		}
	}
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	return graph.Fusion{Anchor: graph.AnchorMoE, Kind: graph.KindMoE, Body: g}, in
}

func TestMoEViews(t *testing.T) {
	for _, op := range []graph.MoE{
		{Experts: 3, Activation: graph.Silu, Gated: true},
		{Experts: 2, Activation: graph.Relu, Stacked: true},
		{Experts: 3, Activation: graph.Tanh, Dense: true},
	} {
		for _, backward := range []bool{false, true} {
			f, in := mixtureBody(t, op, backward)
			checkBody(t, f, in)
		}
	}
}

// checkBody is checkOp for a fusion that holds an operation which is decomposed for the reference.
func checkBody(t *testing.T, f graph.Fusion, in []*graph.Tensor) {
	t.Helper()
	b := graph.NewBuilder("meaning")
	meaning := map[*graph.Node][]*graph.Node{}
	values := map[string]*graph.Tensor{}
	for _, n := range f.Body.Nodes {
		args := make([]*graph.Node, len(n.Args))
		for i, a := range n.Args {
			args[i] = meaning[a][0]
		}
		switch op := n.Op.(type) {
		case graph.Input:
			meaning[n] = []*graph.Node{b.Input(fmt.Sprint(len(values)), n.Type)}
			values[fmt.Sprint(len(values))] = in[len(values)]
		case graph.MoE, graph.MoEGrad:
			meaning[n] = graph.InfoOf(op).Decompose(b, op, args)
		case graph.Result:
			meaning[n] = meaning[n.Args[0]][op.Index:]
		case graph.Const:
			meaning[n] = []*graph.Node{b.Const(op.Value)}
		default:
			meaning[n] = []*graph.Node{b.Add(op, args...)}
		}
	}
	for i, o := range f.Body.Outputs {
		b.Output(fmt.Sprint("y", i), meaning[o.Node][0])
	}
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	out, _, err := ref.EvalBound(g, values)
	if err != nil {
		t.Fatal(err)
	}
	want := make([]ref.Value, len(f.Body.Outputs))
	for i := range want {
		want[i] = out[fmt.Sprint("y", i)]
	}
	checkAgainst(t, want, f, in...)
}

// TestMoEFrozen packs frozen weights when an expert first gets a token, and again after a thaw.
func TestMoEFrozen(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	p := pool.New(2)
	defer p.Close()
	only := 0
	op := graph.MoE{Experts: 3, Activation: graph.Relu, Stacked: true}
	c := mixtureCase{op: op, lead: []int{20}, d: 4, f: 6, o: 5,
		open: func(_ *rand.Rand, _, e int) bool { return e == only }}
	args, _ := c.draw(r, graph.F32)
	var from []Operand
	var memory []Memory
	for i, a := range args {
		from, memory = append(from, Contiguous(a.Type)), append(memory, MemoryOf(a))
		from[i].Frozen = i > 1
	}
	y, load := graph.NewTensor(graph.TypeOf(graph.F32, 20, 5)), graph.NewTensor(graph.TypeOf(graph.I64, 3))
	k, err := Compile(c.op, from, []Operand{Contiguous(y.Type), Contiguous(load.Type)}, NewEnv(p))
	if err != nil {
		t.Fatal(err)
	}
	check := func(t *testing.T) {
		t.Helper()
		in := make([]ref.Value, len(args))
		for i, a := range args {
			in[i] = ref.FromTensor(a)
		}
		want, err := ref.Decomposed(c.op, in)
		if err != nil {
			t.Fatal(err)
		}
		if err := k.Run(memory, []Memory{MemoryOf(y), MemoryOf(load)}); err != nil {
			t.Fatal(err)
		}
		if err := ref.Check(y, want[0]); err != nil {
			t.Error(err)
		}
	}
	check(t)
	if Bytes(k) < 3*4*6*4 {
		t.Errorf("frozen weights are not kept: %d bytes", Bytes(k))
	}
	fresh, _ := c.draw(r, graph.F32)
	only = 2
	again, _ := c.draw(r, graph.F32)
	copy(args[1].Data.([]float32), again[1].Data.([]float32))
	check(t) // another expert
	for i := range args {
		copy(args[i].Data.([]float32), fresh[i].Data.([]float32))
	}
	Thaw(k)
	check(t)
}

// TestMoETies has tokens with more experts than TopK says.
func TestMoETies(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	op := graph.MoE{Experts: 3, Activation: graph.Relu, TopK: 1}
	checkMixture(t, r, graph.F32, mixtureCase{op: op, lead: []int{40}, d: 3, f: 4, o: 5})
	op.TopK = 2
	checkMixture(t, r, graph.F32, mixtureCase{op: op, lead: []int{40}, d: 3, f: 4, o: 5, open: someGates(3, 1)})
}

// TestMoEMemory checks that scratch does not grow with the number of pairs of a token and an expert.
func TestMoEMemory(t *testing.T) {
	p := pool.New(2)
	defer p.Close()
	f32 := func(dims ...int) Operand { return Contiguous(graph.TypeOf(graph.F32, dims...)) }
	for _, tokens := range []int{1 << 14, 1 << 17} {
		op := graph.MoE{Experts: 64, Activation: graph.Relu, Stacked: true, Dense: true}
		args := []Operand{f32(tokens, 256), f32(tokens, 64), f32(64, 256, 1024), f32(64, 1024, 256)}
		y, load := f32(tokens, 256), Contiguous(graph.TypeOf(graph.I64, 64))
		for _, op := range []graph.Op{op, graph.MoEGrad(op)} {
			in, out := args, []Operand{y, load}
			if op.OpName() == "moe_grad" {
				in, out = append(args, y), args
			}
			env := NewEnv(p)
			k, err := Compile(op, in, out, env)
			if err != nil {
				t.Fatal(err)
			}
			if n := Bytes(k) + env.WorkspaceBytes(); n > 36<<20 {
				t.Errorf("%s of %d tokens: %d bytes", op.OpName(), tokens, n)
			}
		}
	}
}

func TestMoEErrors(t *testing.T) {
	p := pool.New(1)
	defer p.Close()
	op := graph.MoE{Experts: 1, Activation: graph.Relu}
	x := graph.TypeOf(graph.F32, 6, 6)
	for want, build := range map[string]func(b *graph.Builder, x, gates *graph.Node){
		"has no place in a body beside moe %3": func(b *graph.Builder, x, gates *graph.Node) {
			b.Output("y", b.Add(op, b.Unary(graph.Exp, x), gates, x, x))
		},
		"has no place in a body beside moe %2": func(b *graph.Builder, x, gates *graph.Node) {
			b.Output("y", b.Unary(graph.Exp, b.Add(op, x, gates, x, x)))
		},
		"is handed out twice": func(b *graph.Builder, x, gates *graph.Node) {
			y := b.Add(op, x, gates, x, x)
			b.Output("y", y)
			b.Output("z", y)
		},
		"stored through strides": func(b *graph.Builder, x, gates *graph.Node) {
			b.Output("y", b.Reshape(b.Add(op, x, gates, x, x), 4, 9))
		},
		"not handed out": func(b *graph.Builder, x, gates *graph.Node) {
			b.Output("load", b.Add(graph.Result{Index: 1}, b.Add(op, x, gates, x, x)))
		},
	} {
		b := graph.NewBuilder("bad")
		build(b, b.Input("x", x), b.Input("gates", graph.TypeOf(graph.F32, 6, 1)))
		g, err := b.Graph()
		if err != nil {
			t.Fatal(err)
		}
		out := make([]Operand, len(g.Outputs))
		for i, o := range g.Outputs {
			out[i] = Contiguous(o.Node.Type)
			out[i].Layout.Stride = [graph.MaxRank]int{1, o.Node.Type.Shape.At(0)} // columns side by side
		}
		in := []Operand{Contiguous(x), Contiguous(graph.TypeOf(graph.F32, 6, 1))}
		_, err = Compile(graph.Fusion{Anchor: graph.AnchorMoE, Kind: graph.KindMoE, Body: g}, in, out, NewEnv(p))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// TestMoESpecial has infinities, NaN and numbers that overflow among the operands.
func TestMoESpecial(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 7))
	for i := range 48 {
		c := mixtureCase{op: graph.MoE{Experts: 3, Activation: []graph.UnaryFn{graph.GeluTanh, graph.Relu, graph.Floor}[i%3],
			Gated: coin(r), Bias: coin(r), TopK: 2}, lead: []int{9}, d: 5, f: 7, o: []int{3, 0}[i/6%2], open: someGates(3, 2)}
		args, dy := c.draw(r, []graph.DType{graph.F32, graph.F64}[i%2])
		args = append(args, dy)
		for _, x := range args {
			for i := range x.Type.Shape.Elems() {
				if r.IntN(20) == 0 {
					x.SetFloat(i, []float64{math.NaN(), math.Inf(1), math.Inf(-1), 1e15, 0}[r.IntN(5)])
				}
			}
		}
		checkOp(t, c.op, args[:len(args)-1]...)
		checkOp(t, graph.MoEGrad(c.op), args...)
	}
}
