package cuda_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"fusec/graph"
	"fusec/kernels/ref/cases"
	"fusec/lowering/cuda/cudatest"
)

// draw makes a tensor of numbers of ordinary size.
func draw(r *rand.Rand, t graph.Type) *graph.Tensor {
	lo, hi := -1.5, 1.5
	if t.DType.IsInt() {
		lo, hi = -20, 20
	}
	return cases.Arg{Type: t, Lo: lo, Hi: hi}.Draw(r)
}

// TestFusions computes bodies of every form but products of matrices.
func TestFusions(t *testing.T) {
	checkFusions(t, slices.DeleteFunc(cases.Fusions(), func(f cases.Fusion) bool {
		switch f.Anchor {
		case graph.AnchorNone, graph.AnchorRow, graph.AnchorConv:
			return false
		}
		return true
	}))
}

// TestDropoutInBodies draws in bodies of every form, of odd sizes.
func TestDropoutInBodies(t *testing.T) {
	checkFusions(t, cases.Dropouts(rand.New(rand.NewPCG(24, 25)), 24))
}

func checkFusions(t *testing.T, fusions []cases.Fusion) {
	r := rand.New(rand.NewPCG(1, 2))
	var checks []cudatest.Check
	for _, f := range fusions {
		op, types, err := f.Op()
		if err != nil {
			t.Fatal(err)
		}
		c := cudatest.Check{Name: f.Name, Op: op}
		for _, u := range types {
			c.Args = append(c.Args, draw(r, u))
		}
		checks = append(checks, c)
	}
	cudatest.Run(t, cudatest.Open(t), checks...)
}
