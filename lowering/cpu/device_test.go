package cpu_test

import (
	"errors"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/ref"
	"fusec/lowering"
	"fusec/lowering/cpu"
)

// built is the graph that a function makes.
var built = graphtest.Built

// bufferOf finds a buffer by its name.
func bufferOf(t testing.TB, p *lowering.Program, name string) int {
	t.Helper()
	for i, b := range p.Buffers {
		if b.Name == name {
			return i
		}
	}
	t.Fatalf("no buffer %q in\n%v", name, p)
	return 0
}

// everything has a launch of each kind that runs code of this project: linear, row, reduction, elementwise,
// convolution, pooling, and moves.
func everything(b *graph.Builder) {
	x := b.Input("x", graph.TypeOf(graph.F32, 6, 8))
	y := b.MatMul(x, b.Param("w", graph.TypeOf(graph.F32, 8, 8)), false, false)
	y = b.Unary(graph.GeluTanh, b.Binary(graph.Add, y, b.Broadcast(b.Param("b", graph.TypeOf(graph.F32, 8)), y.Type.Shape)))
	p := b.Add(graph.Softmax{Axis: 1}, b.BinaryScalar(graph.Mul, y, 0.5))
	b.Output("p", p)
	b.Output("columns", b.Reduce(graph.Sum, b.Unary(graph.Square, p), false, 0))
	seed := b.State("seed", graph.TypeOf(graph.I64))
	b.Output("dropped", b.Add(graph.Dropout{P: 0.5}, b.Transpose(p, 1, 0), seed))
	b.Update(seed, b.BinaryScalar(graph.Add, seed, 1))
	op := graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(1, 1, 1, 1), Groups: 1}
	c := b.Add(op, b.Input("image", graph.TypeOf(graph.F32, 2, 2, 6, 6)), b.Param("filters", graph.TypeOf(graph.F32, 3, 2, 3, 3)))
	b.Output("conv", b.Unary(graph.Relu, c))
	b.Output("joined", b.Add(graph.Concat{Axis: 0}, p, x))
}

// TestNoAllocations runs every kind of launch and requires that nothing is allocated after the first run.
func TestNoAllocations(t *testing.T) {
	g := built(t, everything)
	for workers := range 3 {
		e, _ := compiledOf(t, g, values(g), workers == 1, cpu.Workers(1+workers))
		if err := e.Run(); err != nil {
			t.Fatal(err)
		}
		if n := testing.AllocsPerRun(10, func() {
			if err := e.Run(); err != nil {
				t.Error(err)
			}
		}); n > 0 {
			t.Errorf("%v allocations per run", n)
		}
		if e.Memory().Bytes() <= 0 {
			t.Errorf("an executable of %d bytes", e.Memory().Bytes())
		}
		e.Close()
	}
}

// TestProfile measures launches only when asked.
func TestProfile(t *testing.T) {
	g := built(t, everything)
	e, p := compiled(t, g, values(g))
	defer e.Close()
	total := func() (sum int64) {
		if err := e.Run(); err != nil {
			t.Fatal(err)
		}
		for _, d := range e.Times() {
			sum += int64(d)
		}
		return sum
	}
	if total() != 0 || len(e.Times()) != len(p.Launches) {
		t.Errorf("times %v of %d launches that were not measured", e.Times(), len(p.Launches))
	}
	e.Profile(true)
	if total() == 0 {
		t.Error("no times")
	}
}

// TestBindErrors names what is missing or does not fit.
func TestBindErrors(t *testing.T) {
	g := built(t, everything)
	d := cpu.New(cpu.Workers(1))
	in := values(g)
	p := lowered(t, g, d)
	e, err := d.Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	wants := func(err error, text string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("error %v, want %q", err, text)
		}
	}
	wants(e.Run(), " has no value")
	x := bufferOf(t, p, "x")
	wants(e.Bind(x, nil), `input "x" was given no value`)
	wants(e.Bind(x, graph.NewTensor(graph.TypeOf(graph.F32, 8, 6))), `input "x" is f32[6,8]; it was given a value of type f32[8,6]`)
	wants(e.Bind(bufferOf(t, p, "p"), graph.NewTensor(graph.TypeOf(graph.F32, 6, 8))),
		`buffer "p" cannot be bound: its role is output`)
	for name, v := range in {
		if name != "w" {
			if err := e.Bind(bufferOf(t, p, name), v); err != nil {
				t.Fatal(err)
			}
		}
	}
	wants(e.Run(), `param "w" has no value`)
	short := &graph.Tensor{Type: in["w"].Type, Data: make([]float32, 3)}
	if err := e.Bind(bufferOf(t, p, "w"), short); err != nil {
		t.Fatal(err)
	}
	wants(e.Run(), "operand 1 holds 3 elements of f32; its layout needs 64")
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	wants(e.Run(), "the program is closed")
}

// unknown is an operation that is in no table.
type unknown struct{}

func (unknown) OpName() string { return "unknown" }

// TestAccepts refuses operations that are in no table, and says so again when compiling.
func TestAccepts(t *testing.T) {
	d := cpu.New(cpu.Workers(1))
	if err := d.Accepts(unknown{}, nil, nil); err == nil || err.Error() != "the CPU does not know unknown" {
		t.Errorf("error %v", err)
	}
	half := []graph.Type{graph.TypeOf(graph.BF16, 2, 2), graph.TypeOf(graph.BF16, 2, 2)}
	b := graph.NewBuilder("body")
	x := b.Input("x", graph.TypeOf(graph.F32, 2))
	b.Output("y", b.CastTo(graph.F32, b.CastTo(graph.F16, x)))
	body := graphtest.Graph(t, b)
	for want, err := range map[string]error{
		"no contractions with bf16": d.Accepts(graph.MatMul{}, half, []graph.Type{graph.TypeOf(graph.F32, 2, 2)}),
		"no pools of bf16":          d.Accepts(graph.Pool{}, half, half),
		"no contractions with f16": d.Accepts(graph.Fusion{Anchor: graph.AnchorMatMul, Body: body}, []graph.Type{x.Type},
			[]graph.Type{x.Type}),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	if err := d.Accepts(graph.Fusion{Body: body}, []graph.Type{x.Type}, []graph.Type{x.Type}); err != nil {
		t.Error(err)
	}
	if err := d.Accepts(graph.MatMul{}, nil, nil); err != nil {
		t.Error(err)
	}
	one := []graph.Type{graph.TypeOf(graph.F32, 2), graph.TypeOf(graph.F32)}
	for want, err := range map[string]error{
		"quantize to i8 is computed by simpler operations":    d.Accepts(graph.Quantize{To: graph.I8}, one, one[:1]),
		"dequantize of f32 is computed by simpler operations": d.Accepts(graph.Dequantize{}, one, one[:1]),
		"the CPU has no products with weights of f32":         d.PacksWeights(one[0], graph.F32),
	} {
		if err == nil || err.Error() != want {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if err := d.PacksWeights(one[0], graph.I4); err != nil {
		t.Error(err)
	}
	if d.Workers() != 1 {
		t.Errorf("%d workers", d.Workers())
	}
	p := lowered(t, built(t, everything), d)
	p.Launches[1].Op = unknown{}
	if _, err := d.Compile(p); err == nil || !strings.HasPrefix(err.Error(), "launch 2, ") ||
		!strings.Contains(err.Error(), "unknown") {
		t.Errorf("error %v", err)
	}
}

// failing is a Host operation that fails, or panics, on demand.
type failing struct {
	err   error
	panic bool
}

func (f *failing) Do(args []*graph.Tensor) (*graph.Tensor, error) {
	if f.panic {
		panic("out of luck")
	}
	return args[0], f.err
}

// TestFailedRun: a failed run leaves the state unchanged, its error names the launch and its node, and later runs work.
func TestFailedRun(t *testing.T) {
	host := &failing{}
	x := graph.TypeOf(graph.F32, 3)
	g := built(t, func(b *graph.Builder) {
		s := b.State("s", x)
		b.Update(s, b.Binary(graph.Add, s, b.Input("x", x)))
		y := b.Named(b.Add(graph.Host{Name: "user op", Type: x, Impl: host}, s), "mine")
		b.Output("y", b.Unary(graph.Neg, y))
	})
	in := values(g)
	e, p := compiled(t, g, in)
	defer e.Close()
	state := e.Output(bufferOf(t, p, "s"))
	for _, step := range []struct {
		failing failing
		want    string
	}{{failing{}, ""}, {failing{err: errors.New("no more")}, "no more"}, {failing{panic: true}, "out of luck"}, {failing{}, ""}} {
		*host = step.failing
		before := state.Clone()
		err := e.Run()
		if step.want == "" {
			if err != nil || state.Equal(before) {
				t.Errorf("error %v; the state changed: %v", err, !state.Equal(before))
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), step.want) || !strings.Contains(err.Error(), `host "mine" (`) {
			t.Errorf("error %v, want one about %q of the launch of %q", err, step.want, "mine")
		}
		if !state.Equal(before) {
			t.Error("a run that failed changed the state")
		}
	}
}

// TestDivisionByZero: a division by zero ends a run with an error, in every kind of launch.
func TestDivisionByZero(t *testing.T) {
	ints := graph.TypeOf(graph.I64, 5)
	for _, g := range []*graph.Graph{
		built(t, func(b *graph.Builder) { b.Output("y", b.Binary(graph.Div, b.Input("x", ints), b.Input("z", ints))) }),
		built(t, func(b *graph.Builder) {
			b.Output("y", b.Binary(graph.Pow, b.Input("z", ints), b.Scalar(graph.I64, -1)))
		}),
	} {
		in := values(g)
		in["z"] = graph.NewTensor(ints)
		e, _ := compiled(t, g, in)
		if err := e.Run(); err == nil || !strings.Contains(err.Error(), "zero") {
			t.Errorf("error %v", err)
		}
		e.Close()
	}
}

// TestFrozen packs weights once, and again when they are bound again.
func TestFrozen(t *testing.T) {
	for _, rows := range []int{1, 2, 5, 70} {
		g := built(t, func(b *graph.Builder) {
			x := b.Input("x", graph.TypeOf(graph.F32, 3, rows, 33))
			y := b.MatMul(x, b.Param("w", graph.TypeOf(graph.F32, 33, 17)), false, false)
			b.Output("y", b.Unary(graph.Tanh, y))
			z := b.MatMul(b.Transpose(x, 1, 0, 2), b.Param("v", graph.TypeOf(graph.F32, rows, 33, 9)), false, false)
			b.Output("z", z)
			b.Output("c", b.MatMul(x, b.Const(graph.Filled(graph.TypeOf(graph.F32, 33, 20), 0.5)), false, false))
		})
		in := values(g)
		e, p := compiledOf(t, g, in, true, cpu.Workers(2))
		w := bufferOf(t, p, "w")
		agree := func() {
			t.Helper()
			want, _, err := ref.EvalBound(g, in)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := e.Run(); err != nil {
					t.Fatal(err)
				}
			}
			for _, o := range p.Outputs {
				if err := ref.Check(e.Output(o.Buffer), want[o.Name]); err != nil {
					t.Errorf("%d rows, output %q: %v", rows, o.Name, err)
				}
			}
		}
		agree()
		for i := range in["w"].Type.Shape.Elems() { // the same tensor with other values
			in["w"].SetFloat(i, -in["w"].Float(i))
		}
		if err := e.Bind(w, in["w"]); err != nil {
			t.Fatal(err)
		}
		agree()
		e.Close()
	}
}

// TestFrozenEmpty multiplies by weights and constants where any of the sizes may be 0.
func TestFrozenEmpty(t *testing.T) {
	sizes := []int{0, 1, 3}
	for i := range 81 {
		batch, m, k, n := sizes[i%3], sizes[i/3%3], sizes[i/9%3], sizes[i/27]
		g := built(t, func(b *graph.Builder) {
			x := b.Input("x", graph.TypeOf(graph.F32, 1, batch, m, k))
			w := graph.TypeOf(graph.F32, 1, batch, k, n)
			b.Output("param", b.Unary(graph.Tanh, b.MatMul(x, b.Param("w", w), false, false)))
			b.Output("const", b.MatMul(x, b.Const(graph.Filled(w, 0.5)), false, false))
			b.Output("transposed", b.MatMul(b.Transpose(x, 0, 1, 3, 2), b.Param("v", graph.TypeOf(graph.F32, 1, batch, n, m)), false, true))
			b.Output("one", b.MatMul(x, b.Param("u", graph.TypeOf(graph.F32, k, n)), false, false))
			if n > 0 && k > 0 {
				stacked := graph.MoE{Experts: 2, TopK: 1, Activation: graph.Relu, Stacked: true}
				y := b.Reshape(x, batch*m, k)
				b.Output("moe", b.Add(stacked, y, b.Input("gates", graph.TypeOf(graph.F32, batch*m, 2)),
					b.Param("w1", graph.TypeOf(graph.F32, 2, k, n)), b.Param("w2", graph.TypeOf(graph.F32, 2, n, k))))
			}
		})
		in := values(g)
		e, p := compiledOf(t, g, in, true, cpu.Workers(2))
		want, _, err := ref.EvalBound(g, in)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := e.Run(); err != nil {
				t.Fatalf("batch %d, %d×%d×%d: %v", batch, m, k, n, err)
			}
		}
		for _, o := range p.Outputs {
			if err := ref.Check(e.Output(o.Buffer), want[o.Name]); err != nil {
				t.Errorf("batch %d, %d×%d×%d, output %q: %v", batch, m, k, n, o.Name, err)
			}
		}
		e.Close()
	}
}

// TestFrozenUpdate does not pack a parameter that the program itself changes.
func TestFrozenUpdate(t *testing.T) {
	g := built(t, func(b *graph.Builder) {
		w := b.Param("w", graph.TypeOf(graph.F32, 8, 8))
		b.Output("y", b.MatMul(b.Input("x", graph.TypeOf(graph.F32, 8, 8)), w, false, false))
		b.Update(w, b.BinaryScalar(graph.Mul, w, 0.5))
	})
	in := values(g)
	e, p := compiledOf(t, g, in, true)
	defer e.Close()
	for range 3 {
		want, _, err := ref.EvalBound(g, in)
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Run(); err != nil {
			t.Fatal(err)
		}
		if err := ref.Check(e.Output(p.Outputs[0].Buffer), want["y"]); err != nil {
			t.Error(err)
		}
		in["w"] = e.Output(bufferOf(t, p, "w")).Clone()
	}
}

// TestSwap exchanges two states.
func TestSwap(t *testing.T) {
	g := built(t, func(b *graph.Builder) {
		s, u := b.State("s", graph.TypeOf(graph.F32, 3)), b.State("u", graph.TypeOf(graph.F32, 3))
		b.Update(s, u)
		b.Update(u, s)
		b.Output("y", s)
		b.Output("again", s)
	})
	in := values(g)
	check(t, g, in, 2)
}
