package cuda_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/kernels/cuda"
	"fusec/lowering/cuda/cudatest"
	"fusec/lowering/cuda/driver/nvrtc/nvrtctest"
)

// backwardChecks are a linear layer's gradient by every rung; operands are drawn from r, or have no elements without it.
func backwardChecks(t *testing.T, r *rand.Rand, m, k, n int) (checks []cudatest.Check) {
	t.Helper()
	op, err := cuda.LinearBackward(m, k, n)
	if err != nil {
		t.Fatal(err)
	}
	for _, rung := range cuda.BackwardLadder() {
		c := cudatest.Check{Name: fmt.Sprint(rung.Name, " ", []int{m, k, n}), Op: op, Compile: rung.Compile}
		for _, dims := range [][]int{{m, k}, {k, n}, {m, n}} {
			a := &graph.Tensor{Type: graph.TypeOf(graph.F32, dims...)}
			if r != nil {
				a = drawReals(r, graph.F32, -1, 1, dims...)
			}
			c.Args = append(c.Args, a)
		}
		checks = append(checks, c)
	}
	return checks
}

// TestBackwardLadder computes gradients of odd sizes, empty ones among them, of values that stand side by side and then
// in other ways.
func TestBackwardLadder(t *testing.T) {
	d := cudatest.Open(t)
	r := rand.New(rand.NewPCG(5, 6))
	var checks []cudatest.Check
	for _, s := range [][3]int{{1, 1, 1}, {70, 33, 130}, {129, 64, 17}, {20, 65, 3}, {300, 16, 64}, {40, 0, 5},
		{0, 6, 7}, {4, 5, 0}, {0, 0, 3}} {
		checks = append(checks, backwardChecks(t, r, s[0], s[1], s[2])...)
	}
	for _, s := range [][3]int{{31, 90, 66}, {65, 17, 80}, {7, 1, 9}} {
		for _, c := range backwardChecks(t, r, s[0], s[1], s[2]) {
			for _, a := range c.Args {
				c.ArgLayouts = append(c.ArgLayouts, cudatest.Layout(r, a.Type.Shape, true))
			}
			for _, dims := range [][]int{{s[0], s[1]}, {s[1], s[2]}, {s[2]}} {
				c.ResultLayouts = append(c.ResultLayouts, cudatest.Layout(r, graph.ShapeOf(dims...), false))
			}
			c.Name += " strided"
			checks = append(checks, c)
		}
	}
	cudatest.Run(t, d, checks...)
}

// atomics are instructions of PTX that add to memory.
var atomics = regexp.MustCompile(`\b(atom|red)\.`)

// TestBackwardLadderMachineCode compiles the rungs for the size that the bench takes: nothing is spilled, and nothing is
// added atomically.
func TestBackwardLadderMachineCode(t *testing.T) {
	checks := backwardChecks(t, nil, 4096, 4096, 4096)
	chips := []cuda.Chip{cuda.ChipOf(80), cuda.H200}
	cudatest.MachineCode(t, chips, chips, checks...)
	compiler := nvrtctest.Open(t)
	for i, rung := range cuda.BackwardLadder() {
		var types []graph.Type
		for _, a := range checks[i].Args {
			types = append(types, a.Type)
		}
		results, err := graph.InfoOf(checks[i].Op).Infer(checks[i].Op, types)
		if err != nil {
			t.Fatal(err)
		}
		k, err := rung.Compile(checks[i].Op, rowMajor(types), rowMajor(results), cuda.Config{Chip: cuda.H200})
		if err != nil {
			t.Fatal(err)
		}
		ptx, _, err := compiler.PTX(k.Source, cuda.H200)
		if err != nil {
			t.Fatal(err)
		}
		if found := atomics.FindString(ptx); found != "" || !strings.Contains(ptx, "fma.rn.f32") {
			t.Errorf("%s: its PTX has no products, or %q", rung.Name, found)
		}
	}
}

// TestBackwardLadderRefuses what no rung is for.
func TestBackwardLadderRefuses(t *testing.T) {
	op, err := cuda.LinearBackward(4, 5, 6)
	if err != nil {
		t.Fatal(err)
	}
	args := []graph.Type{graph.TypeOf(graph.F32, 4, 5), graph.TypeOf(graph.F32, 5, 6), graph.TypeOf(graph.F32, 4, 6)}
	results := []graph.Type{args[0], args[1], graph.TypeOf(graph.F32, 6)}
	product, types := fused(t, graph.AnchorMatMul, func(b *graph.Builder, in inputs) {
		x, w, dy := in(graph.F32, 4, 5), in(graph.F32, 5, 6), in(graph.F32, 4, 6)
		b.Output("dx", b.Binary(graph.Add, x, b.MatMul(dy, w, false, true)))
		b.Output("dw", w)
		b.Output("db", dy)
	})
	for _, rung := range cuda.BackwardLadder() {
		for _, c := range []struct {
			op            graph.Op
			args, results []graph.Type
			want          string
		}{
			{graph.Copy{}, args[:1], args[:1], "not for copy of 1 operands"},
			{op, args[:2], results, "not for fusion of 2 operands"},
			{product, types, results, "the graphs"},
		} {
			_, err := rung.Compile(c.op, rowMajor(c.args), rowMajor(c.results), cuda.Config{Chip: cuda.H200})
			if err == nil || !strings.Contains(err.Error(), c.want) ||
				!strings.HasPrefix(err.Error(), "the rung "+rung.Name+" is for the gradient of a linear layer: ") {
				t.Errorf("error %v, want %q", err, c.want)
			}
		}
	}
}
