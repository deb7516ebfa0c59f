package cpu

import (
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/ref"
)

// TestRoPE takes shapes of many items and of none.
func TestRoPE(t *testing.T) {
	r := rand.New(rand.NewPCG(41, 42))
	for _, d := range []graph.DType{graph.F32, graph.F64} {
		for _, dims := range [][]int{{1, 2}, {7, 64}, {2, 3, 129, 34}, {3, 1, 2048}, {0, 4, 6}} {
			for _, op := range []graph.RoPE{{Base: 10000}, {Base: 500, Interleaved: true}, {Base: 2, Inverse: true}} {
				checkOp(t, op, drawTensor(r, d, -2, 2, dims...), graph.Scalar(graph.I64, 1e6))
			}
		}
	}
}

// TestRoPEMoves requires tables for the very start of each run.
func TestRoPEMoves(t *testing.T) {
	r := rand.New(rand.NewPCG(43, 44))
	op, x, start := graph.RoPE{Base: 10000}, drawTensor(r, graph.F32, -2, 2, 2, 5, 6), graph.Scalar(graph.I64, 0)
	p := pool.New(2)
	defer p.Close()
	k, err := stand(op, []*graph.Tensor{x, start}, p)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int64{0, 3, 3, -4, 0, 1 << 30} {
		start.Data.([]int64)[0] = at
		if err := k.run(); err != nil {
			t.Fatal(err)
		}
		want, err := ref.OpBound(op, []ref.Value{ref.FromTensor(x), ref.FromTensor(start)})
		if err != nil {
			t.Fatal(err)
		}
		if err := ref.Check(k.out[0], want[0]); err != nil {
			t.Errorf("start %d: %v", at, err)
		}
	}
}

// TestRoPEStrides reads heads out of a projection [s, h, d], and elements in every other place.
func TestRoPEStrides(t *testing.T) {
	r := rand.New(rand.NewPCG(45, 46))
	start := graph.Scalar(graph.I64, 5)
	p := pool.New(2)
	defer p.Close()
	for _, d := range []graph.DType{graph.F32, graph.F64} {
		for _, interleaved := range []bool{false, true} {
			x := drawTensor(r, d, -2, 2, 7, 3, 16)
			heads := graph.Contiguous(x.Type.Shape).Transpose(graph.IntsOf(1, 0, 2)).Slice(2, 1, 4, 3)
			view := graph.NewTensor(graph.Type{DType: d, Shape: heads.Shape})
			for i := range view.Type.Shape.Elems() {
				h, s, e := i/4/7, i/4%7, i%4
				view.SetFloat(i, x.Float((s*3+h)*16+1+3*e))
			}
			op := graph.RoPE{Base: 100, Interleaved: interleaved}
			out := graph.NewTensor(view.Type)
			args := []Operand{{DType: d, Layout: heads}, Contiguous(start.Type)}
			k, err := Compile(op, args, []Operand{Contiguous(view.Type)}, NewEnv(p))
			if err == nil {
				err = k.Run([]Memory{MemoryOf(x), MemoryOf(start)}, []Memory{MemoryOf(out)})
			}
			if err != nil {
				t.Fatal(err)
			}
			want, err := ref.OpBound(op, []ref.Value{ref.FromTensor(view), ref.FromTensor(start)})
			if err != nil {
				t.Fatal(err)
			}
			if err := ref.Check(out, want[0]); err != nil {
				t.Errorf("%v, interleaved %v: %v", d, interleaved, err)
			}
		}
	}
}

// TestRoPEDivisors changes divisors between runs that start at the same position.
func TestRoPEDivisors(t *testing.T) {
	r := rand.New(rand.NewPCG(47, 48))
	op, x, start := graph.RoPE{Base: 10000}, drawTensor(r, graph.F32, -2, 2, 2, 5, 6), graph.Scalar(graph.I64, 7)
	divisors := drawTensor(r, graph.F64, 1, 8, 3)
	p := pool.New(2)
	defer p.Close()
	k, err := stand(op, []*graph.Tensor{x, start, divisors}, p)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []float64{1, 3, 3} {
		divisors.SetFloat(1, v)
		if err := k.run(); err != nil {
			t.Fatal(err)
		}
		want, err := ref.OpBound(op, []ref.Value{ref.FromTensor(x), ref.FromTensor(start), ref.FromTensor(divisors)})
		if err != nil {
			t.Fatal(err)
		}
		if err := ref.Check(k.out[0], want[0]); err != nil {
			t.Errorf("divisor %v: %v", v, err)
		}
	}
}
