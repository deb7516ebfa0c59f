package cpu

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/kernels/cpu/pool"
)

// TestOver writes results over the arguments that they are made of, in bodies whose instructions could read an argument
// after it has been overwritten, and requires the bits of a run into memory of its own.
func TestOver(t *testing.T) {
	type inputs = func(d graph.DType, dims ...int) *graph.Node
	for _, tt := range []struct {
		name  string
		build func(b *graph.Builder, in inputs)
		over  []int // by result: argument
	}{
		{"swapped", func(b *graph.Builder, in inputs) {
			x, y := in(graph.F32, 5000), in(graph.F32, 5000)
			sum := b.Binary(graph.Add, y, x)
			b.Output("", b.Binary(graph.Add, sum, b.Unary(graph.Exp, x)))
			b.Output("", b.Binary(graph.Sub, x, b.Binary(graph.Mul, y, sum)))
		}, []int{0, 1}},
		{"moment and weight", func(b *graph.Builder, in inputs) {
			ok, rate := in(graph.Bool), in(graph.F32)
			for _, n := range []int{3000, 1, 40000} {
				w, g, m := in(graph.F32, n), in(graph.F32, n), in(graph.F32, n)
				m1 := b.Binary(graph.Add, b.BinaryScalar(graph.Mul, m, 0.9), g)
				b.Output("", b.Add(graph.Select{}, ok, m1, m))
				b.Output("", b.Add(graph.Select{}, ok, b.Binary(graph.Sub, w, b.Binary(graph.Mul, m1, rate)), w))
			}
		}, []int{4, 2, 7, 5, 10, 8}},
		{"integers and doubles", func(b *graph.Builder, in inputs) {
			n, x := in(graph.I64, 700), in(graph.F64, 700)
			more := b.BinaryScalar(graph.Add, n, 1)
			b.Output("", more)
			y := b.Binary(graph.Mul, x, b.Add(graph.Cast{To: graph.F64}, more))
			b.Output("", b.Binary(graph.Add, y, b.Add(graph.Cast{To: graph.F64}, n)))
		}, []int{0, 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			op, types := bodied(t, graph.AnchorNone, func(b *graph.Builder, in inputs) { tt.build(b, in) })
			for _, workers := range []int{1, 3} {
				p := pool.New(workers)
				defer p.Close()
				r := rand.New(rand.NewPCG(3, 4))
				var args, results []Operand
				var own, shared, into []Memory
				for _, u := range types {
					x := drawTensor(r, u.DType, -2, 2, u.Shape.Slice()...)
					args = append(args, Contiguous(u))
					own, shared = append(own, MemoryOf(x)), append(shared, MemoryOf(x.Clone()))
				}
				for _, o := range op.Body.Outputs {
					results = append(results, Contiguous(o.Node.Type))
					into = append(into, MemoryOf(graph.NewTensor(o.Node.Type)))
				}
				runOnce := func(args, results []Operand, x, y []Memory) {
					k, err := Compile(op, args, results, NewEnv(p))
					if err == nil {
						err = k.Run(x, y)
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				runOnce(args, results, own, into)
				over := slices.Clone(results)
				var written []Memory
				for i, a := range tt.over {
					over[i].Over = a + 1
					written = append(written, shared[a])
				}
				runOnce(args, over, shared, written)
				for i := range into {
					if !bytes.Equal(into[i], written[i]) {
						t.Errorf("%d workers: result %d written over argument %d differs", workers, i, tt.over[i])
					}
				}
			}
		})
	}
}

// TestOverRefuses requires an argument that another segment reads left alone.
func TestOverRefuses(t *testing.T) {
	op, types := bodied(t, graph.AnchorNone, func(b *graph.Builder, in func(d graph.DType, dims ...int) *graph.Node) {
		x := in(graph.F32, 50)
		b.Output("", b.Unary(graph.Exp, x))
		b.Output("", b.Unary(graph.Tanh, x))
	})
	p := pool.New(1)
	defer p.Close()
	over := Contiguous(types[0])
	over.Over = 1
	_, err := Compile(op, []Operand{Contiguous(types[0])}, []Operand{over, Contiguous(types[0])}, NewEnv(p))
	if err == nil || !strings.Contains(err.Error(), "result 0 is written over operand 0, which another segment reads") {
		t.Errorf("error %v", err)
	}
}
