package cuda_test

import (
	"strings"
	"testing"

	"fusec/graph"
	"fusec/kernels/cuda"
	"fusec/lowering/cuda/driver/nvrtc/nvrtctest"
)

// projection is a product of matrices of bf16 of the given sizes, with a result of type d, and a sum of each column where that is
// asked for.
func projection(t *testing.T, m, k, n int, d graph.DType, sums bool) cuda.Launch {
	op, types := fused(t, graph.AnchorMatMul, func(b *graph.Builder, in inputs) {
		y := b.MatMul(in(graph.BF16, m, k), in(graph.BF16, k, n), false, false)
		b.Output("y", b.CastTo(d, y))
		if sums {
			b.Output("sums", b.Reduce(graph.Sum, y, false, 0))
		}
	})
	made, err := graph.InfoOf(op).Infer(op, types)
	if err != nil {
		t.Fatal(err)
	}
	return cuda.Launch{Op: op, Args: rowMajor(types), Results: rowMajor(made)}
}

// TestJoin tells which products may be one kernel, and how many blocks that has.
func TestJoin(t *testing.T) {
	one := projection(t, 256, 4096, 1024, graph.F32, false)
	hopper := cuda.Config{Chip: cuda.H200, Precision: cuda.BF16}
	many := make([]cuda.Launch, 16)
	for i := range many {
		many[i] = one
	}
	for _, c := range []struct {
		name     string
		launches []cuda.Launch
		cfg      cuda.Config
		blocks   int
	}{
		{"queries, keys and values", []cuda.Launch{one, one, projection(t, 256, 4096, 4096, graph.BF16, false)}, hopper, 120},
		{"several tiles for a block", []cuda.Launch{projection(t, 8192, 512, 4096, graph.BF16, false), one}, hopper, 131},
		{"before Hopper", []cuda.Launch{one, one}, cuda.Config{Chip: cuda.ChipOf(80), Precision: cuda.BF16}, 0},
		{"sums of columns", []cuda.Launch{one, projection(t, 256, 4096, 1024, graph.F32, true)}, hopper, 0},
		{"few rows", []cuda.Launch{one, projection(t, 4, 4096, 1024, graph.F32, false)}, hopper, 0},
		{"rows that are copied first", []cuda.Launch{one, projection(t, 2048, 1001, 1024, graph.F32, false)}, hopper, 0},
		{"too many operands", many, hopper, 0},
	} {
		k, err := cuda.Join(c.launches, c.cfg)
		if (err == nil) != (c.blocks > 0) {
			t.Errorf("%s: %v", c.name, err)
		}
		if err == nil && (len(k.Steps) != 1 || k.Steps[0].Grid[0] != c.blocks || k.Scratch > 0 || k.Time == 0) {
			t.Errorf("%s: %+v", c.name, k.Steps)
		}
	}
}

// TestJoinCompiled looks at what NVRTC makes of several products in one kernel: the producer of each gives registers to the
// warpgroups that multiply, and nothing is spilled.
func TestJoinCompiled(t *testing.T) {
	one := projection(t, 256, 4096, 1024, graph.F32, false)
	k, err := cuda.Join([]cuda.Launch{one, one, projection(t, 256, 4096, 4096, graph.BF16, false)},
		cuda.Config{Chip: cuda.H200, Precision: cuda.BF16})
	if err != nil {
		t.Fatal(err)
	}
	compiler := nvrtctest.Open(t)
	wellCompiled(t, compiler, "joined", cuda.H200, k, "wgmma")
	image, _, err := compiler.Compile(k.Source, cuda.H200)
	if err != nil {
		t.Fatal(err)
	}
	code, err := compiler.Disassemble(image)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(code["matmul"], "USETMAXREG"); n != 6 {
		t.Errorf("%d changes of the number of registers", n)
	}
}
