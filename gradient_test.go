package fusec_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/graph"
)

// squareGraph is Σ (x·w)², and its nodes.
func squareGraph() (b *graph.Builder, x, w, cost *graph.Node) {
	b = graph.NewBuilder("square")
	x, w = b.Input("x", f32(1, 2)), b.Param("w", f32(2, 2))
	cost = b.Reduce(graph.Sum, b.Unary(graph.Square, b.MatMul(x, w, false, false)), false, 0, 1)
	b.Output("cost", cost)
	return b, x, w, cost
}

func TestWithGradient(t *testing.T) {
	b, x, w, cost := squareGraph()
	p := compiled(t, b, fusec.WithGradient("dw", cost, w), fusec.WithGradient("dx", cost, x))
	out, err := p.Run(map[string]*graph.Tensor{"x": tensorOf(t, []float32{1, 2}, 1, 2),
		"w": tensorOf(t, []float32{1, 0, 1, -1}, 2, 2)})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]float64{"cost": {13}, "dw": {6, -4, 12, -8}, "dx": {6, 10}} {
		if got := out[name].Floats(); !slices.Equal(got, want) {
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
}

func TestWithGradientErrors(t *testing.T) {
	b, x, w, cost := squareGraph()
	stranger := graph.NewBuilder("other").Input("stranger", f32())
	g := built(t, b)
	for _, c := range []struct {
		opt  fusec.CompileOption
		want string
	}{
		{fusec.WithGradient("dw", nil, w), `WithGradient("dw"): the cost or the node is nil`},
		{fusec.WithGradient("dw", cost, nil), `WithGradient("dw"): the cost or the node is nil`},
		{fusec.WithGradient("dw", x, w), "requires a scalar"},
		{fusec.WithGradient("dw", stranger, w), "stranger"},
		{fusec.WithGradient("cost", cost, w), "cost"},
		{fusec.WithGradient("dw", cost, &graph.Node{}), "%0 without an operation, which is not a node of the graph"},
	} {
		p, err := fusec.Compile(g, c.opt, fusec.WithVerify())
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v does not say %q", err, c.want)
		}
		p.Close()
	}
}

// TestGradientsOfEqualNodes binds the gradients of two inner nodes of a Gorgonia graph that compute the same.
func TestGradientsOfEqualNodes(t *testing.T) {
	b := newNet(tensor.Float64)
	x := b.in("x", 3)
	u := must(gorgonia.Tanh(x))
	v := must(gorgonia.Tanh(must(gorgonia.Mul(x, b.constant(1)))))
	cost := must(gorgonia.Sum(must(gorgonia.Add(must(gorgonia.Mul(u, b.constant(2))), must(gorgonia.Mul(v, b.constant(5)))))))
	if _, err := gorgonia.Grad(cost, x); err != nil {
		t.Fatal(err)
	}
	run(t, machine(t, b.g, gorgonia.BindDualValues(u, v, x)))
	for n, want := range map[*gorgonia.Node]float64{u: 2, v: 5} {
		d, err := n.Grad()
		if err != nil {
			t.Fatal(err)
		}
		sameFloats(t, "the gradient", floats(t, d), []float64{want, want, want}, 0)
	}
}

// TestGradientByOneOfSeveralResults asks for the gradient by the first result of an operation while the cost depends on a
// further one as well, with and without the passes that merge equal results.
func TestGradientByOneOfSeveralResults(t *testing.T) {
	in := graph.Filled(f32(5, 4), 0)
	for i := range in.Floats() {
		in.SetFloat(i, float64(i*7%11)/5-1)
	}
	values := map[string]*graph.Tensor{"x": in}
	for _, tt := range []struct {
		name  string
		op    graph.Op
		terms func(b *graph.Builder, u, further *graph.Node) *graph.Node // whose sum is the cost
	}{
		{"attention", graph.Attention{Scale: 0.5}, func(b *graph.Builder, u, lse *graph.Node) *graph.Node {
			return b.Binary(graph.Mul, b.Reduce(graph.Sum, u, false, 1), lse)
		}},
		{"top-k", graph.TopK{K: 2}, func(b *graph.Builder, u, index *graph.Node) *graph.Node {
			return b.Reduce(graph.Sum, b.Binary(graph.Mul, u, b.CastTo(graph.F32, index)), false, 1)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := graph.NewBuilder("results")
			x := b.Input("x", f32(5, 4))
			args := []*graph.Node{x, x, x}[:graph.InfoOf(tt.op).MinArgs]
			u := b.Add(tt.op, args...)
			further := b.Add(graph.Result{Index: 1}, u)
			cost := b.Reduce(graph.Sum, tt.terms(b, u, further), false, 0)
			b.Output("cost", cost)
			b.Output("further", further)
			g := built(t, b)
			want := map[string]*graph.Tensor{}
			for _, off := range [][]string{nil, {"simplify-again"}, {"simplify"}, {"simplify", "simplify-again"}} {
				opts := []fusec.CompileOption{fusec.WithGradient("du", cost, u), fusec.WithGradient("dx", cost, x), fusec.WithVerify()}
				for _, name := range off {
					opts = append(opts, fusec.WithoutPass(name))
				}
				p, err := fusec.Compile(g, opts...)
				if err != nil {
					t.Fatalf("without %v: %v", off, err)
				}
				out, err := p.Run(values)
				if err != nil {
					t.Fatalf("without %v: %v", off, err)
				}
				p.Close()
				// d(Σ uᵢⱼ·fᵢ)/du = fᵢ for the attention, and fᵢⱼ for the indices of the top.
				du, f := out["du"], out["further"]
				for i := range du.Floats() {
					k := i * f.Type.Shape.Elems() / du.Type.Shape.Elems()
					if math.Abs(du.Float(i)-f.Float(k)) > 1e-6 {
						t.Errorf("without %v: du[%d] is %v, want %v", off, i, du.Float(i), f.Float(k))
					}
				}
				if len(off) == 0 {
					want = out
				}
				for name, w := range want {
					sameFloats(t, name, out[name].Floats(), w.Floats(), 1e-5)
				}
			}
		})
	}
}
