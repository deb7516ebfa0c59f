package cuda_test

import (
	"fmt"
	"testing"

	"fusec/graph"
	"fusec/kernels/cuda"
	"fusec/lowering/cuda/cudatest"
)

// TestStaysF32 has products and attentions of f32 in programs of 16 bits: what pass precision left in f32 is as accurate
// as f32.
func TestStaysF32(t *testing.T) {
	l := newList(41)
	for _, p := range []cuda.Precision{cuda.BF16, cuda.F16} {
		for _, portable := range []bool{false, true} {
			check := func(op graph.Op, args ...*graph.Tensor) {
				c := l.add(op, args...)
				c.Name = fmt.Sprint(op.OpName(), p, portable)
				c.Config = cuda.Config{Chip: cuda.H200, Precision: p, Portable: portable}
			}
			check(graph.MatMul{}, l.tensor(graph.F32, 130, 256), l.tensor(graph.F32, 256, 8)) // a router
			check(graph.MatMul{}, l.tensor(graph.F32, 130, 264), l.tensor(graph.F32, 264, 136))
			q, k, v := l.tensor(graph.F32, 2, 40, 32), l.tensor(graph.F32, 2, 70, 32), l.tensor(graph.F32, 2, 70, 16)
			check(graph.Attention{Scale: 0.2}, q, k, v)
		}
	}
	l.run(t)
}

// TestPairsOnOldChips compiles what rounds two numbers at once where there is an instruction for it for a chip that has
// none.
func TestPairsOnOldChips(t *testing.T) {
	old := []cuda.Chip{cuda.ChipOf(75)}
	var checks []cudatest.Check
	for _, d := range []graph.DType{graph.BF16, graph.F16} {
		f, types := fused(t, graph.AnchorNone, func(b *graph.Builder, in inputs) {
			b.Output("y", b.CastTo(d, b.Unary(graph.Tanh, in(graph.F32, 64, 64))))
		})
		c := cudatest.Check{Name: d.String(), Op: f, Config: cuda.Config{Precision: cuda.F16}}
		for _, u := range types {
			c.Args = append(c.Args, &graph.Tensor{Type: u})
		}
		checks = append(checks, c)
	}
	cudatest.MachineCode(t, old, old, checks...)
}
