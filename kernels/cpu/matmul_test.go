package cpu

import (
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/ref"
	"fusec/kernels/ref/cases"
)

// TestFrozenProducts multiplies rows where they lie by frozen matrices, with work behind that is done in registers or tile by tile,
// and rows that are no rows in memory.
func TestFrozenProducts(t *testing.T) {
	r := rand.New(rand.NewPCG(17, 18))
	p := pool.New(2)
	defer p.Close()
	type of = func(b *graph.Builder, in cases.Inputs, y *graph.Node) *graph.Node
	shift := func(b *graph.Builder, in cases.Inputs, y *graph.Node) *graph.Node {
		s := y.Type.Shape
		return b.Binary(graph.Add, b.Broadcast(in(y.Type.DType, s.At(s.Rank()-1)), s), y)
	}
	like := func(in cases.Inputs, y *graph.Node) *graph.Node { return in(y.Type.DType, y.Type.Shape.Slice()...) }
	tails := map[string]of{
		"nothing": func(_ *graph.Builder, _ cases.Inputs, y *graph.Node) *graph.Node { return y },
		"a bias":  shift,
		"a residual and bounds": func(b *graph.Builder, in cases.Inputs, y *graph.Node) *graph.Node {
			return b.Unary(graph.Relu, b.Binary(graph.Add, shift(b, in, y), like(in, y)))
		},
		"hard-swish": func(b *graph.Builder, in cases.Inputs, y *graph.Node) *graph.Node {
			y = shift(b, in, y)
			h := b.BinaryScalar(graph.Min, b.BinaryScalar(graph.Add, y, 0.5), 1)
			return b.Binary(graph.Mul, y, b.Unary(graph.Relu, h))
		},
		"a bias and tanh": func(b *graph.Builder, in cases.Inputs, y *graph.Node) *graph.Node {
			return b.Unary(graph.Tanh, shift(b, in, y))
		},
		"scales and a residual": func(b *graph.Builder, in cases.Inputs, y *graph.Node) *graph.Node {
			s := y.Type.Shape
			scale := b.Broadcast(in(y.Type.DType, s.At(s.Rank()-1)), s)
			return b.Binary(graph.Add, b.Binary(graph.Mul, shift(b, in, y), scale), like(in, y))
		},
		"sums of columns": func(b *graph.Builder, in cases.Inputs, y *graph.Node) *graph.Node {
			y = shift(b, in, y)
			axes := []int{0, 1, 2}[:y.Type.Shape.Rank()-1]
			b.Output("", b.Reduce(graph.Sum, y, false, axes...))
			return y
		},
	}
	for name, tail := range tails {
		for _, c := range []struct {
			op   graph.MatMul
			x, w []int
		}{
			{graph.MatMul{}, []int{37, 70}, []int{70, 45}},
			{graph.MatMul{TransB: true}, []int{2, 19, 40}, []int{33, 40}},
			{graph.MatMul{}, []int{2, 3, 20, 300}, []int{300, 64}},
			{graph.MatMul{}, []int{3, 7, 9}, []int{3, 9, 5}},
			{graph.MatMul{}, []int{2, 9, 9}, []int{9, 5}},
			{graph.MatMul{TransA: true}, []int{30, 21}, []int{30, 40}},
		} {
			d := []graph.DType{graph.F32, graph.F64}[r.IntN(2)]
			f, types := bodied(t, graph.AnchorMatMul, func(b *graph.Builder, in cases.Inputs) {
				x, w := in(d, c.x...), in(d, c.w...)
				b.Output("", tail(b, in, b.Add(c.op, x, w)))
			})
			args, memory, from := make([]*graph.Tensor, len(types)), make([]Memory, len(types)), make([]Operand, len(types))
			values := make([]ref.Value, len(types))
			for i, u := range types {
				args[i] = drawTensor(r, d, -1, 1, u.Shape.Slice()...)
				memory[i], from[i], values[i] = MemoryOf(args[i]), Contiguous(u), ref.FromTensor(args[i])
			}
			from[1].Frozen = true
			want, err := ref.OpBound(f, values)
			if err != nil {
				t.Fatal(err)
			}
			var to []Operand
			var out []*graph.Tensor
			var results []Memory
			for _, o := range f.Body.Outputs {
				y := graph.NewTensor(o.Node.Type)
				out, to, results = append(out, y), append(to, Contiguous(y.Type)), append(results, MemoryOf(y))
			}
			k, err := Compile(f, from, to, NewEnv(p))
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := k.Run(memory, results); err != nil {
					t.Fatal(err)
				}
			}
			for i, y := range out {
				if err := ref.Check(y, want[i]); err != nil {
					t.Errorf("%s behind %v of %v: result %d: %v", name, c.op, types, i, err)
				}
			}
			if n := allocations(func() { _ = k.Run(memory, results) }); n > 0 {
				t.Errorf("%s behind %v: %v allocations per run", name, c.op, n)
			}
		}
	}
}
