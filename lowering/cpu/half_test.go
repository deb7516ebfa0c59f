package cpu_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/ref/cases"
	"fusec/lowering/cpu"
	"fusec/passes"
	"fusec/passes/passtest"
)

// TestHalf runs what the CPU takes of 16 bits: moves, and work in f32 between conversions.
func TestHalf(t *testing.T) {
	for _, d := range []graph.DType{graph.BF16, graph.F16} {
		half := func(dims ...int) graph.Type { return graph.TypeOf(d, dims...) }
		for name, build := range map[string]func(b *graph.Builder){
			"elementwise": func(b *graph.Builder) {
				x := b.CastTo(graph.F32, b.Input("x", half(7, 33)))
				y := b.Unary(graph.Tanh, b.CastTo(graph.F32, b.CastTo(d, b.BinaryScalar(graph.Mul, x, 1.1))))
				b.Output("wide", y)
				b.Output("half", b.CastTo(d, y))
			},
			"rows": func(b *graph.Builder) {
				x := b.CastTo(graph.F32, b.Param("x", half(5, 19)))
				b.Output("y", b.CastTo(d, b.Add(graph.Softmax{Axis: 1}, x)))
				b.Output("z", b.Reduce(graph.Sum, b.CastTo(graph.F32, b.CastTo(d, b.Unary(graph.Exp, x))), false, 1))
			},
			"state": func(b *graph.Builder) {
				s := b.State("s", half(4, 6))
				b.Update(s, b.Add(graph.UpdateSlice{Axis: 0}, s, b.CastTo(d, b.Input("x", graph.TypeOf(graph.F32, 1, 6))),
					b.Scalar(graph.I64, 2)))
				b.Output("y", b.Transpose(s, 1, 0))
			},
			"attention": func(b *graph.Builder) {
				turned := func(name string, rows, width int) *graph.Node {
					return b.Transpose(b.Input(name, half(width, rows)), 1, 0)
				}
				y := b.Add(graph.Attention{Scale: 0.5}, turned("q", 6, 4), turned("k", 9, 4), turned("v", 9, 3))
				b.Output("y", b.CastTo(d, b.Unary(graph.Tanh, y)))
			},
			"moves": func(b *graph.Builder) {
				x, y := b.Input("x", half(3, 5)), b.Input("y", half(5, 3))
				b.Output("z", b.Add(graph.Concat{Axis: 1}, b.Transpose(y, 1, 0), x))
				b.Output("g", b.Add(graph.Gather{Axis: 0}, x, b.Input("i", graph.TypeOf(graph.I64, 4))))
			},
		} {
			t.Run(d.String()+"/"+name, func(t *testing.T) {
				b := graph.NewBuilder(name)
				build(b)
				g := graphtest.Graph(t, b)
				check(t, g, graphtest.Values(rand.New(rand.NewPCG(1, 2)), g), 2)
			})
		}
	}
}

// halved is a case with operands of type d in place of f32: as many as its type rule takes. It reports whether there are any.
func halved(c cases.Case, d graph.DType) (cases.Case, bool) {
	for mask := 1<<min(len(c.Args), 10) - 1; mask > 0; mask-- {
		k, types, found := c, []graph.Type(nil), false
		k.Args = slices.Clone(c.Args)
		for i := range k.Args {
			if a := &k.Args[i]; mask>>i&1 == 1 && a.Type.DType == graph.F32 {
				a.Type.DType, found = d, true
			}
			types = append(types, k.Args[i].Type)
		}
		if _, err := graph.InfoOf(k.Op).Infer(k.Op, types); found && err == nil {
			return k, true
		}
	}
	return c, false
}

// TestHalfOperations runs every operation of the table that has operands of 16 bits.
func TestHalfOperations(t *testing.T) {
	ran := map[string]bool{}
	for _, d := range []graph.DType{graph.BF16, graph.F16} {
		for _, c := range cases.All(graph.F32) {
			c, ok := halved(c, d)
			if _, host := c.Op.(graph.Host); !ok || host { // whose function is for f32
				continue
			}
			ran[c.Op.OpName()] = true
			t.Run(d.String()+"/"+c.Name, func(t *testing.T) {
				g := graphtest.Graph(t, c)
				h, _, err := passes.Run(g, passes.Config{Target: cpu.New(cpu.Workers(2)), Verify: true})
				if err != nil {
					t.Fatal(err)
				}
				if _, ok := c.Op.(graph.AttentionGrad); !ok { // whose log-sum-exp is not the attention's
					passtest.SameOnCPU(t, g, h, c.Inputs(rand.New(rand.NewPCG(1, 2))))
				}
			})
		}
	}
	for _, name := range []string{"matmul", "conv2d", "attention", "attention_grad", "moe", "moe_grad", "pool", "pool_grad"} {
		if !ran[name] {
			t.Errorf("%s has no case of 16 bits", name)
		}
	}
}

// TestHalfTraining has gradients of contractions of 16 bits.
func TestHalfTraining(t *testing.T) {
	for name, build := range map[string]func(b *graph.Builder) *graph.Node{
		"product": func(b *graph.Builder) *graph.Node {
			x, w := b.Input("x", graph.TypeOf(graph.BF16, 40, 48)), b.Param("w", graph.TypeOf(graph.BF16, 48, 33))
			return b.Unary(graph.Tanh, b.MatMul(x, w, false, false))
		},
		"attention": func(b *graph.Builder) *graph.Node {
			q, k := b.Input("q", graph.TypeOf(graph.F16, 2, 5, 4)), b.Input("k", graph.TypeOf(graph.F16, 2, 7, 4))
			return b.Add(graph.Attention{Scale: 0.5, Causal: true}, q, k, b.Input("v", graph.TypeOf(graph.F16, 2, 7, 3)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := graphtest.Built(t, func(b *graph.Builder) {
				y := build(b)
				axes := make([]int, y.Type.Shape.Rank())
				for i := range axes {
					axes[i] = i
				}
				b.Output("cost", b.Reduce(graph.Sum, b.Unary(graph.Square, y), false, axes...))
			})
			cfg := passes.Config{Target: cpu.New(cpu.Workers(2)), Verify: true}
			for _, n := range passtest.Sources(g.Outputs[0].Node) {
				cfg.Gradients = append(cfg.Gradients, passes.Gradient{Cost: g.Outputs[0].Node, Of: n, Output: "d " + n.Name})
			}
			h, _, err := passes.Run(g, cfg)
			if err != nil {
				t.Fatal(err)
			}
			passtest.SameOnCPU(t, h, h, graphtest.Values(rand.New(rand.NewPCG(1, 2)), g))
		})
	}
}
