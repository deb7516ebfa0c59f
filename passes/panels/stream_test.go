package panels_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/precision"
	"fusec/lowering/cuda"
	"fusec/passes"
	"fusec/passes/passtest"
)

// TestStreamOneOrder: weights are packed for products of few rows unless something reads them as they lie: a product of many rows,
// and of weights that are stored in 16 bits anything else.
func TestStreamOneOrder(t *testing.T) {
	for _, f := range []struct {
		stored graph.DType
		other  string
		packed int
	}{
		{graph.F32, "", 2},
		{graph.BF16, "", 2},
		{graph.F32, "many", 0},
		{graph.BF16, "many", 0},
		{graph.F32, "rows", 2},
		{graph.BF16, "rows", 0},
		{graph.F32, "routes", 0},
	} {
		t.Run(fmt.Sprint(f), func(t *testing.T) {
			g := graphtest.Built(t, func(b *graph.Builder) {
				stored := b.Param("w", graph.TypeOf(f.stored, 512, 256))
				w := b.CastTo(graph.F32, stored)
				y := b.MatMul(b.Input("x", graph.TypeOf(graph.F32, 3, 512)), w, false, false)
				b.Output("y", y)
				b.Output("z", b.MatMul(b.Input("u", graph.TypeOf(graph.F32, 1, 256)), w, false, true))
				switch f.other {
				case "many":
					b.Output("many", b.MatMul(b.Input("v", graph.TypeOf(graph.F32, 32, 512)), w, false, false))
				case "routes":
					b.Output("chosen", b.Add(graph.TopK{K: 2}, y))
				case "rows":
					b.Output("rows", b.Add(graph.Gather{}, stored, b.Input("i", graph.TypeOf(graph.I64, 2))))
				}
			})
			d := cuda.New(cuda.Precision(precision.BF16))
			_, tr, err := passes.Run(g, passes.Config{Frozen: true, Target: d, Verify: true, Precision: precision.BF16})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := passtest.Contracts(tr, graphtest.Values(rand.New(rand.NewPCG(1, 2)), g)); err != nil {
				t.Error(err)
			}
			stage, n := passtest.Stage(t, tr, "precision"), 0
			for _, m := range stage.Matches {
				if m.Pattern == "panels" {
					n++
				}
			}
			if n != f.packed {
				t.Errorf("%d matches, notes %v", n, stage.Notes)
			}
		})
	}
}

// TestStream multiplies few rows by deep panels where the target rounds to 16 bits.
func TestStream(t *testing.T) {
	for _, f := range []struct {
		stored      graph.DType
		axis, block int
		scale       []int
		zero        bool
		rows        int
		precision   precision.Precision
		miss        string
	}{
		{stored: graph.I8, axis: 1, scale: []int{40}, precision: precision.BF16},
		{stored: graph.U8, axis: 1, scale: []int{40}, zero: true, precision: precision.F16},
		{stored: graph.I4, block: 64, scale: []int{2, 40}, precision: precision.BF16},
		{stored: graph.I4, block: 32, scale: []int{4, 40}, zero: true, precision: precision.F16},
		{stored: graph.F8E4M3, precision: precision.F16},
		{stored: graph.F8E5M2, axis: 1, scale: []int{40}, precision: precision.BF16},
		{stored: graph.I8, precision: precision.F32, miss: "precision f32"},
		{stored: graph.I8, rows: 17, precision: precision.BF16, miss: "such as its 17"},
		{stored: graph.I8, block: 16, scale: []int{8, 40}, precision: precision.BF16, miss: "no multiple of 32"},
		{stored: graph.I16, precision: precision.BF16, miss: "i16"},
	} {
		t.Run(fmt.Sprint(f), func(t *testing.T) {
			g := graphtest.Built(t, func(b *graph.Builder) {
				args := []*graph.Node{b.Param("w", graph.TypeOf(f.stored, 128, 40)), b.Param("scale", graph.TypeOf(graph.F32, f.scale...))}
				if f.zero {
					args = append(args, b.Param("zero", graph.TypeOf(f.stored, f.scale...)))
				}
				w := b.Add(graph.Dequantize{Axis: f.axis, Block: f.block}, args...)
				b.Output("y", b.MatMul(b.Input("x", graph.TypeOf(graph.F32, max(f.rows, 3), 128)), w, false, false))
			})
			d := cuda.New(cuda.Precision(f.precision))
			_, tr, err := passes.Run(g, passes.Config{Frozen: true, Target: d, Verify: true, Precision: f.precision})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := passtest.Contracts(tr, graphtest.Values(rand.New(rand.NewPCG(1, 2)), g)); err != nil {
				t.Error(err)
			}
			stage := passtest.Stage(t, tr, "pack-quantised")
			if got := len(stage.Matches); (got == 1) != (f.miss == "") {
				t.Errorf("%d matches, %v", got, stage.Misses)
			}
			if misses := fmt.Sprint(passtest.Misses(t, stage, "panels")); f.miss != "" && !strings.Contains(misses, f.miss) {
				t.Errorf("misses %s", misses)
			}
		})
	}
}
