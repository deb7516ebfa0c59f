package cuda_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/kernels/cuda"
	"fusec/kernels/ref"
	"fusec/lowering/cuda/cudatest"
	"fusec/lowering/cuda/driver/nvrtc/nvrtctest"
)

// splitNow lets attentions of f32 be computed by products of f16, whatever their size.
func splitNow(t *testing.T) {
	was := cuda.SetSplitTime(math.MinInt / 2)
	t.Cleanup(func() { cuda.SetSplitTime(was) })
}

// bySplit reports whether a kernel multiplies parts of f32.
func bySplit(k *cuda.Kernel) bool {
	return strings.Contains(k.Source, "_split<portable::Problem")
}

// splitCases are some of the cases, of f32.
func splitCases(p cuda.Precision) (list []hopperCase) {
	names := []string{"joint", "groups", "causal window", "numbers added", "lengths, window and tail", "dropout, mask, lengths"}
	if p == cuda.TF32 {
		names = []string{"joint", "lengths, window and tail"}
	}
	for _, c := range hopperCases {
		if slices.Contains(names, c.name) {
			c.d, c.half = graph.F32, false
			list = append(list, c)
		}
	}
	return list
}

// TestAttentionSplit computes attentions of f32 by products of f16, on the emulator: of ordinary numbers, of small and large ones,
// and of those that f16 cannot hold in parts.
func TestAttentionSplit(t *testing.T) {
	splitNow(t)
	r := rand.New(rand.NewPCG(91, 1))
	d := cudatest.Open(t)
	var checks []cudatest.Check
	for _, precision := range []cuda.Precision{cuda.F32, cuda.TF32} {
		for _, c := range splitCases(precision) {
			forward, _ := c.fusions(t)
			cfg := cuda.Config{Chip: cuda.H200, Precision: precision}
			cfg.Chip.SMs = 2 // a block takes several tiles
			if !bySplit(forward.compile(t, cfg)) {
				t.Errorf("%s: not by products of f16", c.name)
			}
			for _, of := range splitNumbers {
				args := drawSplit(r, c, of, forward.types)
				checks = append(checks, splitCheck(t, c.name+of, forward.Fusion, args, cfg))
			}
		}
	}
	cudatest.Run(t, d, checks...)
}

// TestAttentionSplitGradient computes gradients by products of f16, on the emulator.
func TestAttentionSplitGradient(t *testing.T) {
	splitNow(t)
	r := rand.New(rand.NewPCG(92, 1))
	d := cudatest.Open(t)
	var checks []cudatest.Check
	gradients := []string{"causal", "joint", "groups", "causal window", "lengths, window and tail", "dropout, mask, lengths"}
	for _, precision := range []cuda.Precision{cuda.F32, cuda.TF32} {
		for _, c := range hopperCases {
			if !slices.Contains(gradients, c.name) {
				continue
			}
			c.d, c.half, c.alone = graph.F32, false, precision == cuda.TF32 || c.name == "groups"
			forward, backward := c.fusions(t)
			cfg := cuda.Config{Chip: cuda.H200, Precision: precision}
			if !bySplit(backward.compile(t, cfg)) {
				t.Errorf("%s: not by products of f16", c.name)
			}
			kinds := splitNumbers
			if precision == cuda.F32 {
				kinds = append(kinds, ", uneven rows", ", small rows")
			}
			for _, of := range kinds {
				args := drawSplit(r, c, of, forward.types)
				back := backwardArgs(t, r, forward, backward, args)
				dout := back[len(forward.types)+2]
				for i := range dout.Type.Shape.Elems() {
					switch row := i / c.width; of {
					case ", uneven":
						dout.SetFloat(i, dout.Float(i)*1e-20)
					case ", uneven rows":
						dout.SetFloat(i, math.Ldexp(dout.Float(i), -row*11%36))
					case ", small rows":
						dout.SetFloat(i, math.Ldexp(dout.Float(i), -row%2*60))
					}
				}
				checks = append(checks, splitCheck(t, c.name+of, backward.Fusion, back, cfg))
			}
		}
	}
	cudatest.Run(t, d, checks...)
}

// splitCheck compares results within the bound of their precision, and logs how near they are to f32's.
func splitCheck(t *testing.T, name string, op graph.Op, args []*graph.Tensor, cfg cuda.Config) cudatest.Check {
	name, near := fmt.Sprint(cfg.Precision, " ", name), attentionNear(graph.F32, cfg.Precision)
	return cudatest.Check{Name: name, Op: op, Args: args, Config: cfg, Compare: func(got *graph.Tensor, want ref.Value) error {
		if d, err := ref.Compare(got, want); err == nil {
			t.Logf("%s: off by %.2g of the bound of f32", name, d.Worst)
		}
		return near(got, want)
	}}
}

// splitNumbers are the kinds of numbers that the tests have.
var splitNumbers = []string{"", ", uneven", ", special"}

// drawSplit draws the operands of a case, numbers of some kind.
func drawSplit(r *rand.Rand, c hopperCase, of string, types []graph.Type) []*graph.Tensor {
	args := drawAll(r, types)
	setNumbers(c, args)
	switch of {
	case ", uneven":
		uneven(args, c)
	case ", uneven rows":
		unevenRows(args, c)
	case ", special":
		hostile(r, args)
	}
	return args
}

// uneven makes queries large and keys small, and the columns of values differ in size.
func uneven(args []*graph.Tensor, c hopperCase) {
	if c.joint {
		return
	}
	scale := func(x *graph.Tensor, by func(i int) float64) {
		for i := range x.Type.Shape.Elems() {
			x.SetFloat(i, x.Float(i)*by(i))
		}
	}
	scale(args[0], func(int) float64 { return 300 })
	scale(args[1], func(int) float64 { return 1.0 / 300 })
	scale(args[2], func(i int) float64 { return math.Ldexp(1, i%c.width*3%80-40) })
}

// unevenRows makes rows of queries, keys and values differ in size, and some of the weights small.
func unevenRows(args []*graph.Tensor, c hopperCase) {
	if c.joint {
		return
	}
	for n, columns := range []int{c.depth, c.depth, c.width} {
		for i := range args[n].Type.Shape.Elems() {
			args[n].SetFloat(i, math.Ldexp(args[n].Float(i), 4-i/columns*7%16))
		}
	}
}

// TestAttentionSplitCompiled looks at what NVRTC makes of the kernels. A gradient is compiled for one of both precisions, with
// $FUSEC_LONG for each.
func TestAttentionSplitCompiled(t *testing.T) {
	compiler := nvrtctest.Open(t)
	for n, c := range []hopperCase{
		{name: "causal d128 in both", b: 4, h: 16, group: 1, queries: 4096, keys: 4096, depth: 128, width: 128,
			op: graph.Attention{Scale: 0.088, Causal: true}},
		{name: "rest d128", b: 4, h: 16, group: 1, queries: 4001, keys: 4001, depth: 128, width: 128,
			op: graph.Attention{Scale: 0.088}},
		{name: "causal d64", b: 2, h: 16, group: 1, queries: 8192, keys: 8192, depth: 64, width: 64,
			op: graph.Attention{Scale: 0.125, Causal: true}},
		{name: "mask d128", b: 4, h: 16, group: 1, queries: 4096, keys: 4096, depth: 128, width: 128,
			op: graph.Attention{Scale: 0.088, HasMask: true, HasLengths: true, Dropout: 0.1}, mask: []int{4096, 4096}},
		{name: "numbers added d128", b: 4, h: 16, group: 1, queries: 4096, keys: 4096, depth: 128, width: 128,
			op: graph.Attention{Scale: 0.088, HasMask: true, Causal: true, Window: 100}, mask: []int{4096, 4096}, added: true},
		{name: "mask and dropout d64", b: 4, h: 16, group: 1, queries: 4096, keys: 4096, depth: 64, width: 64,
			op: graph.Attention{Scale: 0.125, HasMask: true, Dropout: 0.1}, mask: []int{4, 1, 4096, 4096}},
		{name: "groups d128", b: 4, h: 16, group: 4, queries: 4096, keys: 4096, depth: 128, width: 128,
			op: graph.Attention{Scale: 0.088, Causal: true, HasLengths: true, Window: 100, Tail: true}},
		{name: "dropout d128", b: 4, h: 16, group: 1, queries: 4096, keys: 4096, depth: 128, width: 96,
			op: graph.Attention{Scale: 0.088, HasLengths: true, Dropout: 0.1}},
	} {
		c.d = graph.F32
		forward, _ := c.fusions(t)
		for _, p := range []cuda.Precision{cuda.F32, cuda.TF32}[:1+len(c.name)/len("causal d128 in both")] {
			k := forward.compile(t, cuda.Config{Chip: cuda.H200, Precision: p})
			if !bySplit(k) {
				t.Errorf("%s: not by products of f16", c.name)
			}
			wellCompiled(t, compiler, fmt.Sprint(c.name, " ", p), cuda.H200, k,
				"wgmma.mma_async", "cp.async.bulk.tensor.4d", "setmaxnreg.inc")
		}
		if c.alone = true; !c.added && (c.depth == 64 || !c.op.HasMask) {
			_, backward := c.fusions(t)
			for i, p := range []cuda.Precision{cuda.F32, cuda.TF32} {
				if !long && n%2 != i {
					continue
				}
				k := backward.compile(t, cuda.Config{Chip: cuda.H200, Precision: p})
				if !bySplit(k) {
					t.Errorf("%s, gradient: not by products of f16", c.name)
				}
				wellCompiled(t, compiler, fmt.Sprint(c.name, " ", p, ", gradient"), cuda.H200, k, "wgmma.mma_async")
			}
		}
	}
}

// TestAttentionSplitRefuses checks that other kernels take what this one does not serve.
func TestAttentionSplitRefuses(t *testing.T) {
	large := hopperCase{d: graph.F32, b: 4, h: 16, group: 1, queries: 1024, keys: 1024, depth: 128, width: 128,
		op: graph.Attention{Scale: 0.1}}
	h200 := cuda.Config{Chip: cuda.H200}
	for _, c := range []struct {
		name   string
		cfg    cuda.Config
		change func(*hopperCase)
		want   bool
	}{
		{"large", h200, func(*hopperCase) {}, true},
		{"another chip", cuda.Config{Chip: cuda.ChipOf(80)}, func(*hopperCase) {}, false},
		{"portable", cuda.Config{Chip: cuda.H200, Portable: true}, func(*hopperCase) {}, false},
		{"few heads", h200, func(c *hopperCase) { c.b, c.h, c.queries, c.keys = 1, 2, 256, 256 }, true},
		{"few heads with lengths", h200, func(c *hopperCase) {
			c.b, c.h, c.queries, c.keys, c.op.HasLengths = 1, 2, 256, 256, true
		}, false},
		{"few queries for many keys", h200, func(c *hopperCase) { c.queries, c.keys = 64, 65536 }, true},
		{"few keys", h200, func(c *hopperCase) { c.b, c.h, c.queries, c.keys = 1, 2, 64, 16 }, false},
		{"wide heads", h200, func(c *hopperCase) { c.depth = 256 }, false},
		{"columns not in eights", h200, func(c *hopperCase) { c.width = 60 }, false},
		{"a scale below 0", h200, func(c *hopperCase) { c.op.Scale = -1 }, false},
	} {
		changed := large
		c.change(&changed)
		forward, backward := changed.fusions(t)
		for i, f := range []hopperFusion{forward, backward} {
			if by := bySplit(f.compile(t, c.cfg)); by != c.want {
				t.Errorf("%s: by products of f16: %t, gradient: %t", c.name, by, i > 0)
			}
		}
	}
}
