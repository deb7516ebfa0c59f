package cpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/ref"
)

// TestAttentionGradFar has rows of scores that a finite mask, or their own size, moves far from 0, where a log-sum-exp
// has no room for its logarithm. Operands are whole multiples of a step, such that every score is exact in the element
// type: then the reference, in float64, sees the same scores, and the kernel has to agree with it closely.
func TestAttentionGradFar(t *testing.T) {
	r := rand.New(rand.NewPCG(29, 30))
	for _, c := range []struct {
		name                string
		op                  graph.Attention
		heads, group        int
		sq, sk, depth, wide int
		mask                float64 // added to the rows that are far
		step                float64 // of queries and keys
		far                 func(row int) bool
	}{
		{"all rows at -1e9", graph.Attention{}, 8, 1, 33, 61, 4, 5, -1e9, 8, func(int) bool { return true }},
		{"some rows at -1e9", graph.Attention{}, 8, 1, 130, 210, 4, 5, -1e9, 8, func(i int) bool { return i%7 == 3 }},
		{"one row at -8000", graph.Attention{}, 1, 1, 120, 300, 3, 4, -8000, 1. / 32, func(i int) bool { return i == 101 }},
		{"few heads", graph.Attention{}, 2, 3, 110, 301, 3, 4, -8000, 1. / 32, func(i int) bool { return i%2 == 0 }},
		{"causal", graph.Attention{Causal: true}, 1, 2, 130, 130, 3, 4, -8000, 1. / 32, func(i int) bool { return i%3 == 0 }},
		{"window", graph.Attention{Window: 20}, 8, 1, 110, 99, 3, 4, -1e9, 8, func(i int) bool { return i%3 == 0 }},
		{"dropout", graph.Attention{Dropout: 0.4}, 2, 1, 40, 70, 3, 4, -1e9, 8, func(i int) bool { return i%3 == 0 }},
		{"far above", graph.Attention{}, 1, 1, 60, 70, 3, 4, 8000, 1. / 32, func(i int) bool { return i%3 == 0 }},
		{"large scores", graph.Attention{}, 1, 1, 60, 70, 3, 4, 0, 16, func(int) bool { return true }},
		{"one key", graph.Attention{}, 1, 1, 3, 1, 3, 4, -1e9, 8, func(int) bool { return true }},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, d := range []graph.DType{graph.F32, graph.F64} {
				c.op.Scale, c.op.HasMask = 1, true
				whole := func(dims ...int) *graph.Tensor {
					x := drawTensor(r, d, -2, 3, dims...)
					for i := range x.Type.Shape.Elems() {
						x.SetFloat(i, c.step*math.Floor(x.Float(i)))
					}
					return x
				}
				mask := graph.NewTensor(graph.TypeOf(d, c.sq, c.sk))
				for i := range c.sq * c.sk {
					if c.far(i / c.sk) {
						mask.SetFloat(i, c.mask)
					}
				}
				args := []*graph.Tensor{whole(c.heads*c.group, c.sq, c.depth), whole(c.heads, c.sk, c.depth),
					drawTensor(r, d, -1, 1, c.heads, c.sk, c.wide), mask}
				if c.op.Dropout > 0 {
					args = append(args, graph.Scalar(graph.I64, 5))
				}
				op, args := gradientOf(t, r, c.op, args, true)
				checkClosely(t, op, args)
			}
		})
	}
}

// checkClosely compares the gradients with the reference, whatever the rounding of the scores might have cost, for
// several numbers of workers, which give the same bits.
func checkClosely(t *testing.T, op graph.AttentionGrad, args []*graph.Tensor) {
	t.Helper()
	in := make([]ref.Value, len(args))
	for i, a := range args {
		in[i] = ref.FromTensor(a)
	}
	want, err := ref.Op(op, in)
	if err != nil {
		t.Fatal(err)
	}
	tolerance := map[graph.DType]float64{graph.F32: 2e-5, graph.F64: 1e-12}[args[0].Type.DType]
	var first []*graph.Tensor
	for workers := 1; workers <= 3; workers++ {
		p := pool.New(workers)
		s, err := stand(op, args, p)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := s.run(); err != nil {
				t.Fatal(err)
			}
		}
		if n := testing.AllocsPerRun(10, func() { _ = s.run() }); n > 0 {
			t.Errorf("%v allocations per run", n)
		}
		p.Close()
		for i, w := range want {
			size := 0.0
			for _, x := range w.F {
				size = max(size, math.Abs(x))
			}
			for j, x := range w.F {
				if y := s.out[i].Float(j); !(math.Abs(y-x) <= tolerance*size) {
					t.Fatalf("%v, element %d of result %d is %v, want %v; the largest is %v", args[0].Type.DType, j, i, y, x, size)
				}
			}
		}
		for i := range first {
			if !s.out[i].Equal(first[i]) {
				t.Errorf("result %d differs with %d workers", i, workers)
			}
		}
		first = s.out
	}
}
