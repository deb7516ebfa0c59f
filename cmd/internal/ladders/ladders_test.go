package ladders

import (
	"math"
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/kernels/ref"
)

// normal draws n numbers.
func normal(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// check compares a variant's result with the reference.
func check(t *testing.T, name, doc string, op graph.Op, got []float32, args ...*graph.Tensor) {
	t.Helper()
	var values []ref.Value
	for _, a := range args {
		values = append(values, ref.FromTensor(a))
	}
	want, err := ref.OpBound(op, values)
	if err != nil {
		t.Fatal(err)
	}
	if err := ref.Check(&graph.Tensor{Type: want[0].Type, Data: got}, want[0]); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	if doc == "" {
		t.Errorf("%s has no description", name)
	}
}

func tensor(x []float32, dims ...int) *graph.Tensor {
	return &graph.Tensor{Type: graph.TypeOf(graph.F32, dims...), Data: x}
}

func TestMatMul(t *testing.T) {
	r := rand.New(rand.NewPCG(21, 22))
	for _, s := range [][3]int{{1, 1, 1}, {4, 4, 4}, {13, 21, 10}, {37, 600, 19}} {
		m, n, k := s[0], s[1], s[2]
		a, b := normal(r, m*k), normal(r, k*n)
		for _, v := range MatMul {
			c := normal(r, m*n)
			v.Func(m, n, k, a, b, c)
			check(t, v.Name, v.Doc, graph.MatMul{}, c, tensor(a, m, k), tensor(b, k, n))
		}
	}
}

func TestAttention(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, s := range [][4]int{{1, 1, 1, 1}, {2, 7, 7, 5}, {2, 9, 300, 8}, {1, 300, 17, 3}, {3, 100, 201, 64}} {
		heads, queries, keys, depth := s[0], s[1], s[2], s[3]
		q, k, v := normal(r, heads*queries*depth), normal(r, heads*keys*depth), normal(r, heads*keys*depth)
		for _, causal := range []bool{false, true} {
			for _, a := range Attention {
				out := normal(r, heads*queries*depth)
				a.Func(heads, queries, keys, depth, causal, q, k, v, out)
				check(t, a.Name, a.Doc, graph.Attention{Scale: 1 / math.Sqrt(float64(depth)), Causal: causal}, out,
					tensor(q, heads, queries, depth), tensor(k, heads, keys, depth), tensor(v, heads, keys, depth))
			}
		}
	}
}

func BenchmarkMatMul(b *testing.B) {
	const size = 512
	r := rand.New(rand.NewPCG(1, 2))
	x, y, z := normal(r, size*size), normal(r, size*size), make([]float32, size*size)
	for _, v := range MatMul {
		b.Run(v.Name, func(b *testing.B) {
			for b.Loop() {
				v.Func(size, size, size, x, y, z)
			}
			b.ReportMetric(2*size*size*size*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
	}
}

func BenchmarkAttention(b *testing.B) {
	const heads, s, depth = 8, 512, 64
	r := rand.New(rand.NewPCG(1, 2))
	q, k, v, out := normal(r, heads*s*depth), normal(r, heads*s*depth), normal(r, heads*s*depth), make([]float32, heads*s*depth)
	for _, a := range Attention {
		b.Run(a.Name, func(b *testing.B) {
			for b.Loop() {
				a.Func(heads, s, s, depth, false, q, k, v, out)
			}
		})
	}
}
