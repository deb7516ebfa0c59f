package cuda_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/kernels/cuda"
	"fusec/lowering/cuda/cudatest"
)

// TestTuningText reads what it writes, and refuses what it cannot read.
func TestTuningText(t *testing.T) {
	tuning := &cuda.Tuning{Chip: "NVIDIA H200", Ways: map[cuda.Product]string{
		{Math: "bf16", Batch: 1, M: 512, N: 4096, K: 64}: "hopper tile 128x64 stages 8 cluster 1x1 splits 2",
		{Math: "Split<>", Batch: 3, M: 5, N: 6, K: 7}:    "mma tile 32x32x32",
	}}
	back, err := cuda.ParseTuning(tuning.String())
	if err != nil || fmt.Sprint(back) != fmt.Sprint(tuning) {
		t.Errorf("%v, %v", back, err)
	}
	for text, want := range map[string]string{
		"":                                     "a tuning begins with",
		"fusec tuning 1 chip\nbf16:1x2x3 way":  "line 2 is no product",
		"fusec tuning 1 chip\nbf16:1x2x3x4":    "line 2 is no product",
		"fusec tuning 1 chip\nbf16:1x2x3x4y w": "line 2 is no product",
	} {
		if _, err := cuda.ParseTuning(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v", text, err)
		}
	}
}

// TestWays multiplies in every way that does without Hopper's own instructions; each makes another kernel.
func TestWays(t *testing.T) {
	d := cudatest.OpenFor(t, cuda.H200)
	r := rand.New(rand.NewPCG(5, 6))
	x, y := graph.TypeOf(graph.F32, 70, 520), graph.TypeOf(graph.F32, 520, 72)
	b := graph.NewBuilder("product")
	b.Output("y", b.Unary(graph.Relu, b.MatMul(b.Input("a", x), b.Input("b", y), false, false)))
	body, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	op := graph.Fusion{Anchor: graph.AnchorMatMul, Body: body}
	args := []*graph.Tensor{drawReals(r, graph.F32, -1, 1, x.Shape.Slice()...),
		drawReals(r, graph.F32, -1, 1, y.Shape.Slice()...)}
	var operands []cuda.Operand
	for _, a := range args {
		operands = append(operands, cuda.Operand{DType: a.Type.DType, Layout: graph.Contiguous(a.Type.Shape)})
	}
	results := []cuda.Operand{{DType: graph.F32, Layout: graph.Contiguous(graph.ShapeOf(70, 72))}}
	for _, precision := range []cuda.Precision{cuda.F32, cuda.TF32} {
		cfg := cuda.Config{Chip: cuda.H200, Precision: precision, Portable: true}
		product, ways := cuda.MatMulWays(op, operands, results, cfg)
		if len(ways) < 5 || product.M != 70 || product.N != 72 || product.K != 520 {
			t.Fatalf("ways %v of %v", ways, product)
		}
		seen := map[string]string{}
		for _, way := range append(ways, "a way that is gone") {
			cfg.Tuning = &cuda.Tuning{Chip: cfg.Chip.Name, Ways: map[cuda.Product]string{product: way}}
			k, err := cuda.Compile(op, operands, results, cfg)
			if err != nil {
				t.Fatal(err)
			}
			if other, ok := seen[k.Source]; ok && way != "a way that is gone" {
				t.Errorf("%s and %s are one kernel", way, other)
			}
			seen[k.Source] = way
			if gone := way == "a way that is gone"; gone != (k.Way == "") || !gone && k.Way != way {
				t.Errorf("a kernel by %q says %q", way, k.Way)
			}
		}
		if len(seen) != len(ways) {
			t.Errorf("%d kernels of %d ways: one that is gone should go by the rules", len(seen), len(ways))
		}
		if precision != cuda.F32 {
			continue // Hopper's tiles have tests of their own
		}
		var checks []cudatest.Check
		for _, way := range ways {
			cfg.Tuning = &cuda.Tuning{Chip: cfg.Chip.Name, Ways: map[cuda.Product]string{product: way}}
			checks = append(checks, cudatest.Check{Name: way, Op: op, Args: args, Config: cfg})
		}
		cudatest.Run(t, d, checks...)
	}
	if _, ways := cuda.MatMulWays(graph.Copy{}, operands[:1], operands[:1], cuda.Config{Chip: cuda.H200}); ways != nil {
		t.Errorf("ways %v of a copy", ways)
	}
}
