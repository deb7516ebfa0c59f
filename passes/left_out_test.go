package passes_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/optim"
	"fusec/graph/precision"
	"fusec/lowering/cpu"
	"fusec/passes"
	"fusec/passes/passtest"
)

func f32(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }

// leftOut are programs that together give every pass something to do.
var leftOut = map[string]func(b *graph.Builder) (cost *graph.Node, weights []*graph.Node){
	"layers": func(b *graph.Builder) (*graph.Node, []*graph.Node) {
		x, w, v, bias := b.Input("x", f32(6, 8)), b.Param("w", f32(8, 12)), b.Param("v", f32(12, 8)), b.Param("b", f32(3, 4))
		h := b.Reshape(b.MatMul(x, w, false, false), 6, 3, 4)
		h = b.Reshape(passtest.Relu(b, b.Binary(graph.Add, h, b.Broadcast(bias, h.Type.Shape))), 6, 12)
		y := passtest.LayerNorm(b, b.Binary(graph.Add, b.MatMul(h, v, false, false), x), nil, nil)
		b.Output("y", y)
		return b.Reduce(graph.Mean, b.Unary(graph.Square, y), false, 0, 1), []*graph.Node{w, v, bias}
	},
	"attention of joined heads": func(b *graph.Builder) (*graph.Node, []*graph.Node) {
		x, w := b.Input("x", f32(5, 8)), b.Param("w", f32(8, 8))
		var heads []*graph.Node
		for i := range 2 {
			q := b.Slice(b.MatMul(x, w, false, false), 1, 4*i, 4, 1)
			heads = append(heads, b.Transpose(b.Unary(graph.Tanh, passtest.Attend(b, q, q, q)), 1, 0))
		}
		y := b.Transpose(b.Add(graph.Concat{Axis: 0}, heads...), 1, 0)
		b.Output("y", b.MatMul(b.Unary(graph.Tanh, y), w, false, false))
		return b.Reduce(graph.Sum, b.Unary(graph.Square, y), false, 0, 1), []*graph.Node{w}
	},
	"mixture": func(b *graph.Builder) (*graph.Node, []*graph.Node) {
		w := passtest.NewMoEWriter(b, 3, 5)
		y := w.Sum(w.Softmax(w.Logits()), w.Relu)
		b.Output("y", y)
		return b.Reduce(graph.Sum, y, false, 0, 1), []*graph.Node{w.X}
	},
	"scaled channels": func(b *graph.Builder) (*graph.Node, []*graph.Node) {
		x, w := b.Input("x", f32(4, 5)), b.Param("w", f32(5, 3))
		y := b.MatMul(x, w, false, false)
		y = b.Unary(graph.Tanh, b.Binary(graph.Mul, y, b.Broadcast(b.Param("s", f32(3)), y.Type.Shape)))
		b.Output("y", y)
		return b.Reduce(graph.Sum, y, false, 0, 1), []*graph.Node{w}
	},
	"norm of a convolution": func(b *graph.Builder) (*graph.Node, []*graph.Node) {
		x, f := b.Input("x", f32(2, 3, 5, 5)), b.Param("f", f32(4, 3, 3, 3))
		gamma, beta := b.Param("gamma", f32(4)), b.Param("beta", f32(4))
		y := b.Add(graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(1, 1, 1, 1), Groups: 1}, x, f)
		y = b.Add(graph.BatchNorm{Eps: 1e-5}, y, gamma, beta, b.Input("mean", f32(4)), b.Const(graph.Filled(f32(4), 2)))
		y = b.Unary(graph.Relu, y)
		b.Output("y", y)
		return b.Reduce(graph.Sum, b.Unary(graph.Square, y), false, 0, 1, 2, 3), []*graph.Node{f, gamma, beta}
	},
	"products of one operand": func(b *graph.Builder) (*graph.Node, []*graph.Node) {
		x, u, v := b.Input("x", f32(4, 5)), b.Param("u", f32(5, 3)), b.Param("v", f32(5, 2))
		y := b.MatMul(b.MatMul(x, u, false, false), b.MatMul(x, v, false, false), true, false)
		b.Output("y", y)
		return b.Reduce(graph.Sum, b.Unary(graph.Square, y), false, 0, 1), []*graph.Node{x}
	},
	"values of 16 bits": func(b *graph.Builder) (*graph.Node, []*graph.Node) {
		x, w := b.Input("x", graph.TypeOf(graph.BF16, 4, 5)), b.Param("w", f32(5, 3))
		y := b.MatMul(x, b.CastTo(graph.BF16, w), false, false)
		b.Output("y", y)
		return b.Reduce(graph.Sum, b.Unary(graph.Square, y), false, 0, 1), []*graph.Node{w}
	},
	"weights of few bits": func(b *graph.Builder) (*graph.Node, []*graph.Node) {
		x, q := b.Input("x", f32(4, 64)), b.Param("q", graph.TypeOf(graph.I8, 64, 40))
		y := b.MatMul(x, b.Add(graph.Dequantize{Axis: 1}, q, b.Param("scale", f32(40))), false, false)
		b.Output("y", y)
		return b.Reduce(graph.Sum, b.Unary(graph.Square, y), false, 0, 1), []*graph.Node{x}
	},
	"convolution with turned filters": func(b *graph.Builder) (*graph.Node, []*graph.Node) {
		x, f := b.Input("x", f32(2, 3, 6, 6)), b.Param("f", f32(3, 3, 3, 4))
		y := b.Unary(graph.Relu,
			b.Add(graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(1, 1, 1, 1),
				Groups: 1}, x, b.Transpose(f, 3, 2, 0, 1)))
		b.Output("y", y)
		return b.Reduce(graph.Sum, b.Unary(graph.Square, y), false, 0, 1, 2, 3), []*graph.Node{f}
	},
	"convolution and pool": func(b *graph.Builder) (*graph.Node, []*graph.Node) {
		x, f := b.Input("x", f32(2, 3, 12, 11)), b.Param("f", f32(8, 3, 3, 3))
		y := b.Add(graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(1, 1, 1, 1), Groups: 1}, x, f)
		y = b.Add(graph.Pool{Fn: graph.MaxPool, Kernel: graph.IntsOf(2, 2), Stride: graph.IntsOf(2, 2), Pad: graph.IntsOf(0, 0, 0, 0)},
			b.Unary(graph.Relu, y))
		b.Output("y", y)
		return b.Reduce(graph.Sum, b.Unary(graph.Square, y), false, 0, 1, 2, 3), []*graph.Node{f}
	},
	"recurrence": func(b *graph.Builder) (*graph.Node, []*graph.Node) {
		w, v, h := b.Param("w", f32(6, 4)), b.Param("v", f32(4, 4)), b.Input("h", f32(3, 4))
		for i := range 4 {
			x := b.MatMul(b.Input(fmt.Sprint("x", i), f32(3, 6)), w, false, false)
			h = b.Unary(graph.Tanh, b.Binary(graph.Add, x, b.MatMul(h, v, false, false)))
		}
		b.Output("y", h)
		return b.Reduce(graph.Sum, b.Unary(graph.Square, h), false, 0, 1), []*graph.Node{w, v}
	},
	"steps": func(b *graph.Builder) (*graph.Node, []*graph.Node) {
		w, v, h := b.Param("w", f32(32, 40)), b.Param("v", f32(40, 40)), b.Input("h", f32(3, 40))
		for i := range 5 {
			x := b.MatMul(b.Input(fmt.Sprint("x", i), f32(3, 32)), w, false, false)
			h = b.Unary(graph.Sin, b.Binary(graph.Add, x, b.MatMul(h, v, false, false)))
		}
		b.Output("y", h)
		return b.Reduce(graph.Sum, b.Unary(graph.Square, h), false, 0, 1), []*graph.Node{w, v}
	},
}

// TestLeftOut leaves out each pass of the table: either the program computes the same values on the CPU, or the pass is
// refused by its name with the reason that the table gives.
func TestLeftOut(t *testing.T) {
	refused, changed := map[string]int{}, map[string]int{}
	for name, build := range leftOut {
		var cost *graph.Node
		var weights []*graph.Node
		g := graphtest.Built(t, func(b *graph.Builder) {
			cost, weights = build(b)
			b.Output("cost", cost)
		})
		plain, asked := passes.Config{Verify: true, Frozen: true},
			passes.Config{Verify: true, Budget: 1, Optimizer: &optim.Optimizer{Rule: &optim.Adam{}, Rate: optim.Constant(0.1)}}
		for i, w := range weights {
			asked.Gradients = append(asked.Gradients, passes.Gradient{Cost: cost, Of: w, Output: fmt.Sprint("d", i)})
			if _, ok := w.Op.(graph.Param); ok {
				asked.Steps = append(asked.Steps, passes.Step{Param: w, Cost: cost})
			}
		}
		if asked.Steps == nil {
			asked.Optimizer = nil
		}
		half := asked
		half.Precision = precision.BF16
		half = half.RoundingFrom(1)
		for kind, cfg := range map[string]passes.Config{"": plain, ", trained": asked, ", trained in bf16": half} {
			meaning := cfg
			meaning.Stop = "optimise-step"
			want, _, err := passes.Run(g, meaning)
			if err != nil {
				t.Fatal(err)
			}
			whole, _, err := passes.Run(g, cfg)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range passes.All() {
				t.Run(name+kind+"/"+p.Name, func(t *testing.T) {
					cfg := cfg
					cfg.Disable = map[string]bool{p.Name: true}
					if cfg.Precision != precision.BF16 {
						cfg.Target = cpu.New() // which runs the graph
					}
					why := ""
					if p.Needed != nil {
						why = p.Needed(cfg)
					}
					h, _, err := passes.Run(g, cfg)
					if why != "" {
						refused[p.Name]++
						if full := fmt.Sprintf("pass %q cannot be left out: %s", p.Name, why); err == nil || err.Error() != full {
							t.Errorf("%v, want %s", err, full)
						}
						return
					}
					if err != nil {
						t.Fatal(err)
					}
					in := valuesFor(want)
					if cfg.Precision == precision.BF16 {
						passtest.Near(t, want, h, in, 0.05)
					} else {
						if err := passtest.Same(want, h, in); err != nil {
							t.Error(err)
						}
						passtest.SameOnCPU(t, want, h, in)
					}
					if graph.Equal(whole, h) != nil {
						changed[p.Name]++
					}
				})
			}
		}
	}
	for _, p := range passes.All() {
		if refused[p.Name]+changed[p.Name] == 0 {
			t.Errorf("no program tells whether %s is left out", p.Name)
		}
	}
}

// valuesFor draws small values. What an optimiser keeps, and its rate, are not negative.
func valuesFor(g *graph.Graph) map[string]*graph.Tensor {
	in := graphtest.Values(rand.New(rand.NewPCG(1, 5)), g)
	for _, n := range g.Sources() {
		_, state := n.Op.(graph.State)
		for i, v := range in[n.Name].Floats() {
			if state || n.Type.Shape.Rank() == 0 {
				v = math.Abs(v)
			}
			if n.Type.DType.IsFloat() {
				in[n.Name].SetFloat(i, v/4)
			}
		}
	}
	return in
}

// TestLeftOutTogether leaves out several passes: a pass goes with the one that it prepares the graph for, and requests
// for gradients need no answer where none are made.
func TestLeftOutTogether(t *testing.T) {
	var x, y, d *graph.Node
	g := graphtest.Built(t, func(b *graph.Builder) {
		x = b.Input("x", passtest.F64(3))
		y = b.Reduce(graph.Sum, b.Unary(graph.Square, x), false, 0)
		d = passtest.Scale(b, x, 2)
		b.Output("y", y)
		b.Output("d", d)
	})
	computed := []passes.Gradient{{Cost: y, Of: x, Value: d}}
	for _, tt := range []struct {
		out, stop, want string
		gradients       []passes.Gradient
	}{
		{out: "fuse-regions"},
		{out: "fuse-regions copy-filters"},
		{out: "copy-filters", want: `pass "copy-filters" cannot be left out: `},
		{out: "copy-filters", stop: "precision"},
		{out: "place", want: `pass "place" cannot be left out: `},
		{out: "check-lowered", want: `pass "check-lowered" cannot be left out: `},
		{out: "strip-grad", gradients: computed},
		{out: "differentiate", gradients: computed,
			want: `pass "differentiate" cannot be left out: strip-grad makes a request of the gradient of `},
		{out: "strip-grad differentiate", gradients: computed},
	} {
		cfg := passes.Config{Stop: tt.stop, Verify: true, Gradients: tt.gradients, Disable: map[string]bool{}}
		for _, name := range strings.Fields(tt.out) {
			cfg.Disable[name] = true
		}
		_, tr, err := passes.Run(g, cfg)
		if tt.want == "" != (err == nil) || err != nil && !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("without %s: %v, want %q", tt.out, err, tt.want)
		}
		for _, s := range tr.Stages {
			for _, p := range passes.All() {
				if s.Name == p.Name && (cfg.Disable[p.Name] || cfg.Disable[p.For]) {
					t.Errorf("without %s: %s has run", tt.out, s.Name)
				}
			}
		}
	}
}
