package ref_test

import (
	"math"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/ref"
)

// TestCheckCustom accepts functions whose parts agree, and names the part of one that does not.
func TestCheckCustom(t *testing.T) {
	for _, f := range []graph.CustomFn{graphtest.Softsign, graphtest.Blend} {
		if err := ref.CheckCustom(f, -3, 3); err != nil {
			t.Error(err)
		}
	}
	times := func(by float64) func(*graph.Builder, []*graph.Node, *graph.Node, *graph.Node) []*graph.Node {
		return func(b *graph.Builder, x []*graph.Node, y, dy *graph.Node) []*graph.Node {
			return []*graph.Node{b.BinaryScalar(graph.Mul, b.Binary(graph.Mul, dy, y), by)}
		}
	}
	exp := func(factor float64) func([]float32, [][]float32) {
		return func(dst []float32, x [][]float32) {
			for i, v := range x[0] {
				dst[i] = float32(factor * math.Exp(float64(v)))
			}
		}
	}
	for _, c := range []struct {
		info graph.CustomInfo
		want string
	}{
		{graph.CustomInfo{Name: "test_exp", F32: exp(1), Grad: times(1)}, ""},
		{graph.CustomInfo{Name: "test_exp_only"}, ""},
		{graph.CustomInfo{Name: "test_exp_strip", F32: exp(1.001), Grad: times(1)}, "test_exp_strip: F32 gives "},
		{graph.CustomInfo{Name: "test_exp_gradient", Grad: times(1.001)}, "test_exp_gradient: Grad gives "},
	} {
		c.info.Operands, c.info.Eval = 1, func(x []float64) float64 { return math.Exp(x[0]) }
		if c.info.Name.Info() == nil {
			if err := graph.RegisterCustom(c.info); err != nil {
				t.Fatal(err)
			}
		}
		err := ref.CheckCustom(c.info.Name, -2, 2)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.info.Name, err, c.want)
		}
	}
	if err := ref.CheckCustom("absent", 0, 1); err == nil {
		t.Error("a function that is not registered is accepted")
	}
}
