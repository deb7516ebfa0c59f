package panels_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/precision"
	"fusec/kernels/cpu/panel"
	"fusec/lowering/cpu"
	"fusec/passes"
	"fusec/passes/passtest"
)

// plain is a processor without instructions for products of 16 bits.
type plain struct{ *cpu.Device }

func (plain) MultipliesPairs(int, graph.DType) error    { return errors.New("there is no instruction") }
func (plain) MultipliesChanging(int, graph.DType) error { return errors.New("there is no instruction") }

// TestTraining trains layers whose weights lie either way round, in 16 bits: products of both passes read panels where the
// processor multiplies such numbers, and are as the program says. Elsewhere they stay in f32.
func TestTraining(t *testing.T) {
	const rows, inner, cols = 66, 72, 70
	typed := func(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }
	for name, c := range map[string]struct {
		build    func(b *graph.Builder) *graph.Node
		products int
		note     string
	}{
		"layer": {func(b *graph.Builder) *graph.Node {
			return b.Unary(graph.Tanh, b.MatMul(b.Input("x", typed(2, rows/2, inner)), b.Param("w", typed(inner, cols)), false, false))
		}, 3, ""},
		"transposed weights": {func(b *graph.Builder) *graph.Node {
			return b.Unary(graph.Tanh, b.MatMul(b.Input("x", typed(rows, inner)), b.Param("w", typed(cols, inner)), false, true))
		}, 3, ""},
		"transposed rows": {func(b *graph.Builder) *graph.Node {
			x := b.Unary(graph.Tanh, b.Input("x", typed(inner, rows)))
			return b.MatMul(x, b.Param("w", typed(inner, cols)), true, false)
		}, 3, ""},
		"two layers": {func(b *graph.Builder) *graph.Node {
			h := b.Unary(graph.GeluTanh, b.MatMul(b.Input("x", typed(rows, inner)), b.Param("w", typed(inner, cols)), false, false))
			return b.MatMul(h, b.Transpose(b.Param("v", typed(inner, cols)), 1, 0), false, false)
		}, 6, ""},
		"batch of matrices": {func(b *graph.Builder) *graph.Node {
			return b.MatMul(b.Input("x", typed(2, rows, inner)), b.Input("w", typed(2, inner, cols)), false, false)
		}, 0, "it has no matrix of weights"},
		"small": {func(b *graph.Builder) *graph.Node {
			return b.MatMul(b.Input("x", typed(40, 8)), b.Param("w", typed(8, 40)), false, false)
		}, 0, "an operand has less than 4096 elements"},
	} {
		for _, to := range []precision.Precision{precision.BF16, precision.F16} {
			for _, has := range []bool{true, false} {
				t.Run(fmt.Sprint(name, to, has), func(t *testing.T) {
					d := cpu.New(cpu.Workers(2))
					g, cfg := passtest.Trained(t, c.build)
					cfg.Target, cfg.Precision = d, to
					if !has {
						cfg.Target = plain{d}
					}
					cfg.Verify = true
					out, tr, err := passes.Run(g, cfg)
					if err != nil {
						t.Fatal(err)
					}
					in := graphtest.Values(rand.New(rand.NewPCG(1, 2)), g)
					if _, err := passtest.Contracts(tr, in); err != nil {
						t.Error(err)
					}
					want, note := c.products, c.note
					if to != precision.BF16 || !has || panel.Pairs() != nil {
						want, note = 0, "stays in f32"
					}
					stage := passtest.Stage(t, tr, "precision")
					if n := len(stage.Matches); n != want || !strings.Contains(fmt.Sprint(stage.Notes), note) {
						t.Errorf("%d products in 16 bits, want %d; %v\n%v", n, want, stage.Notes, passtest.Ops(stage.Graph))
					}
					passtest.SameOnCPU(t, out, out, in)
				})
			}
		}
	}
}

// TestFewChanging leaves products of few rows with weights that change in f32.
func TestFewChanging(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		x := b.Input("x", graph.TypeOf(graph.F32, 20, 300))
		b.Output("y", b.MatMul(x, b.Param("w", graph.TypeOf(graph.F32, 300, 70)), false, false))
		v, u := b.Param("v", graph.TypeOf(graph.F32, 80, 300)), b.Param("u", graph.TypeOf(graph.F32, 300, 90))
		b.Output("z", b.MatMul(v, u, false, false))
	})
	for frozen, want := range map[bool]string{false: "products of less than", true: "both operands are frozen"} {
		_, tr, err := passes.Run(g, passes.Config{Frozen: frozen, Target: cpu.New(), Precision: precision.BF16, Verify: true})
		if err != nil {
			t.Fatal(err)
		}
		if panel.Pairs() != nil && !frozen {
			want = "no instructions"
		}
		if notes := fmt.Sprint(passtest.Stage(t, tr, "precision").Notes); !strings.Contains(notes, want) {
			t.Errorf("frozen %v: %s", frozen, notes)
		}
	}
}

// TestStoredPairs multiplies two values of bf16 that change as they are where the processor does, whichever way they lie.
func TestStoredPairs(t *testing.T) {
	for _, of := range []graph.DType{graph.BF16, graph.F16} {
		for _, frozen := range []bool{false, true} {
			for form := range 4 {
				transA, transB := form&1 == 1, form&2 == 2
				shape := func(m, n int, trans bool) graph.Type {
					if trans {
						m, n = n, m
					}
					return graph.TypeOf(of, m, n)
				}
				g := graphtest.Built(t, func(b *graph.Builder) {
					x, w := b.Input("x", shape(40, 80, transA)), b.Input("w", shape(80, 70, transB))
					b.Output("y", b.Unary(graph.Relu, b.MatMul(x, w, transA, transB)))
					b.Output("few", b.MatMul(b.Input("z", graph.TypeOf(of, 3, 80)), w, false, transB))
					b.Output("mixed", b.MatMul(b.Param("u", graph.TypeOf(graph.F32, 40, 80)), b.CastTo(graph.F32, w), false, transB))
				})
				out, tr := passtest.Run(t, g, passes.Config{Frozen: frozen, Target: cpu.New(cpu.Workers(2))})
				passtest.SameOnCPU(t, g, out, graphtest.Values(rand.New(rand.NewPCG(1, 2)), g))
				want := 0
				if of == graph.BF16 && panel.Pairs() == nil {
					want = 1
				}
				if n := len(passtest.Stage(t, tr, "pack-quantised").Matches); n != want {
					t.Errorf("%v, frozen %v, %v, %v: %d products in pairs", of, frozen, transA, transB, n)
				}
			}
		}
	}
}
