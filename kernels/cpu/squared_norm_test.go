package cpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/kernels/cpu/pool"
)

// TestSquaredNorm sums many blocks of several operands to the same bits on any number of workers, in float64.
func TestSquaredNorm(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	var args []*graph.Tensor
	for _, n := range []int{1, 70001, 0, grain, 3*grain + 5, 17} {
		for _, d := range []graph.DType{graph.F32, graph.F64, graph.BF16, graph.F16} {
			args = append(args, drawTensor(r, d, -1, 1, n))
		}
	}
	var want float64
	norm := func(workers int) float64 {
		p := pool.New(workers)
		defer p.Close()
		var operands []Operand
		var mem []Memory
		for _, a := range args {
			operands, mem = append(operands, Contiguous(a.Type)), append(mem, MemoryOf(a))
		}
		out := graph.NewTensor(graph.TypeOf(graph.F64))
		k, err := Compile(graph.SquaredNorm{}, operands, []Operand{Contiguous(out.Type)}, NewEnv(p))
		if err == nil {
			err = k.Run(mem, []Memory{MemoryOf(out)})
		}
		if err != nil {
			t.Fatal(err)
		}
		return out.Float(0)
	}
	for _, a := range args {
		for i := range a.Type.Shape.Elems() {
			want += a.Float(i) * a.Float(i)
		}
	}
	one := norm(1)
	if math.Abs(one-want) > 1e-12*want {
		t.Errorf("the norm is %v, want %v", one, want)
	}
	for _, workers := range []int{2, 3, 5} {
		if got := norm(workers); got != one {
			t.Errorf("%d workers give %v, one gives %v", workers, got, one)
		}
	}
	args[4].SetFloat(60000, 3e38) // whose square no float32 holds
	if got := norm(2); math.Abs(got-9e76) > 1e70 {
		t.Errorf("the norm of a large number is %v", got)
	}
	args[4].SetFloat(60000, math.Inf(-1))
	if got := norm(2); !math.IsInf(got, 1) {
		t.Errorf("the norm of an infinity is %v", got)
	}
	args[4].SetFloat(60000, math.NaN())
	if got := norm(2); !math.IsNaN(got) {
		t.Errorf("the norm of NaN is %v", got)
	}
}
