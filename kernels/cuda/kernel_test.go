package cuda_test

import (
	"strings"
	"testing"

	"fusec/graph"
	"fusec/kernels/cuda"
	"fusec/lowering/cuda/driver/nvrtc"
)

// kernelOf makes the kernel of a fusion whose operands and results are row-major.
func kernelOf(t *testing.T, op graph.Op, types []graph.Type, cfg cuda.Config) *cuda.Kernel {
	t.Helper()
	results, err := graph.InfoOf(op).Infer(op, types)
	if err != nil {
		t.Fatal(err)
	}
	k, err := cuda.Compile(op, rowMajor(types), rowMajor(results), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func rowMajor(types []graph.Type) (list []cuda.Operand) {
	for _, u := range types {
		list = append(list, cuda.Operand{DType: u.DType, Layout: graph.Contiguous(u.Shape)})
	}
	return list
}

// wellCompiled looks at what NVRTC makes of a kernel for a chip: instructions that it was written for, products none of
// which waits for another without need, and nothing spilled.
func wellCompiled(t *testing.T, compiler *nvrtc.Compiler, name string, chip cuda.Chip, k *cuda.Kernel,
	instructions ...string) {
	t.Helper()
	_, ptx, log, err := compiler.CompileBoth(k.Source, chip)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	for _, want := range instructions {
		if !strings.Contains(ptx, want) {
			t.Errorf("%s: no %s", name, want)
		}
	}
	for _, loss := range nvrtc.Losses(log) {
		t.Errorf("%s: %s", name, loss)
	}
	for entry, u := range nvrtc.Usages(log) {
		if u.Spills > 0 || u.Stack > 0 {
			t.Errorf("%s: %s spills %d bytes, stack %d", name, entry, u.Spills, u.Stack)
		}
	}
}
