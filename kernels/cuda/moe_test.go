package cuda_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/cuda"
	"fusec/kernels/ref"
	"fusec/lowering/cuda/cudatest"
)

// mixtures draws checks of mixtures of experts, or of their gradients, whose gates send a token to some of the experts,
// to all or to none.
func mixtures(t *testing.T, r *rand.Rand, n int, grad bool, elems ...graph.DType) []cudatest.Check {
	pick := func(list ...int) int { return list[r.IntN(len(list))] }
	var checks []cudatest.Check
	for i := range n {
		op := graph.MoE{Experts: pick(1, 2, 3, 8, 33), Activation: []graph.UnaryFn{graph.GeluTanh, graph.Relu, graph.Floor}[i/2%3],
			Gated: r.IntN(2) == 0, Bias: r.IntN(2) == 0,
			Stacked: r.IntN(2) == 0, Dense: r.IntN(6) == 0, TopK: r.IntN(3)}
		d := graph.MoEDims{Width: pick(1, 3, 16, 40), Hidden: pick(1, 5, 24, 64), Result: pick(1, 7, 32)}
		lead := []int{pick(0, 1, 5, 70, 300), pick(1, 2)}
		if op.Experts*lead[0] > 3000 {
			lead[0] = 40 // the emulator is slow
		}
		elem := elems[i%len(elems)]
		acc := elem.Accumulator()
		f, types := fused(t, graph.AnchorMoE, func(b *graph.Builder, in inputs) {
			args := []*graph.Node{in(elem, append(lead, d.Width)...), in(acc, append(lead, op.Experts)...)}
			for _, w := range op.Weights() {
				copies := op.Experts
				if op.Stacked {
					copies = 1
				}
				of := elem
				if w.Bias() {
					of = acc
				}
				for range copies {
					args = append(args, in(of, op.WeightShape(d, w).Slice()...))
				}
			}
			if grad {
				dx := b.Add(graph.MoEGrad(op), append(args, in(elem, append(lead, d.Result)...))...)
				b.Output("", dx)
				for j := 1; j < len(args); j++ {
					if i%2 == 1 && j%3 == 2 {
						continue // some gradients are not asked for
					}
					b.Output("", b.Add(graph.Result{Index: j}, dx))
				}
				return
			}
			y := b.Add(op, args...)
			b.Output("", y)
			if r.IntN(2) == 0 {
				b.Output("", b.Add(graph.Result{Index: 1}, y))
			}
		})
		c := cudatest.Check{Name: fmt.Sprintf("%d %v %+v %v", i, elem, op, lead), Op: f}
		if elem.Is16() {
			c.Compare = roughly
		}
		for j, u := range types {
			x := graphtest.Tensor(r, u)
			if j == 1 {
				for e := range u.Shape.Elems() {
					if r.IntN(3) > 0 {
						x.SetFloat(e, 0)
					}
				}
			}
			c.Args = append(c.Args, x)
			c.ArgLayouts = append(c.ArgLayouts, graph.Contiguous(u.Shape))
		}
		if i%3 == 1 { // the rows of x, or of the gates and dy, stand side by side
			c.ArgLayouts[0] = turned(types[0].Shape)
		} else if i%3 == 2 {
			last := len(types) - 1
			c.ArgLayouts[1], c.ArgLayouts[last] = turned(types[1].Shape), turned(types[last].Shape)
		}
		checks = append(checks, c)
	}
	return checks
}

// turned is a layout whose last axis is the outermost in memory.
func turned(s graph.Shape) graph.Layout {
	l := graph.Contiguous(s)
	last := s.Rank() - 1
	for i := range last {
		l.Stride[i] /= max(s.At(last), 1)
	}
	l.Stride[last] = s.Drop(graph.IntsOf(last)).Elems()
	return l
}

// roughly compares with the reference where hidden values are rounded to 16 bits: within 2e-2 of the terms.
func roughly(got *graph.Tensor, want ref.Value) error {
	for i := range want.Mag {
		want.Mag[i] *= 2000
	}
	return ref.Check(got, want)
}

// TestMoETensor computes mixtures of experts and their gradients on tensor cores.
func TestMoETensor(t *testing.T) {
	d := cudatest.OpenFor(t, cuda.ChipOf(80))
	r := rand.New(rand.NewPCG(3, 80))
	cudatest.Run(t, d, mixtures(t, r, 2, false, graph.F32, graph.BF16)...)
	cudatest.Run(t, d, mixtures(t, r, 2, true, graph.F32, graph.F16)...)
}

// TestMoE computes mixtures of experts as chips without tensor cores do.
func TestMoE(t *testing.T) {
	d := cudatest.OpenFor(t, cuda.ChipOf(70))
	cudatest.Run(t, d, mixtures(t, rand.New(rand.NewPCG(3, 70)), 8, false, graph.F32, graph.F64)...)
}

// TestMoEGrad computes gradients of mixtures of experts.
func TestMoEGrad(t *testing.T) {
	d := cudatest.OpenFor(t, cuda.ChipOf(70))
	cudatest.Run(t, d, mixtures(t, rand.New(rand.NewPCG(5, 70)), 6, true, graph.F32, graph.F64)...)
}

// TestMoEExact has tokens whose gates a routing chose, of which some are NaN for all experts, in sixteen bits and in f32: there is
// memory for no more than TopK of them.
func TestMoEExact(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 80))
	var checks []cudatest.Check
	for i, elem := range []graph.DType{graph.F32, graph.BF16} {
		op := graph.MoE{Experts: 5, Activation: graph.Silu, Stacked: true, TopK: 2, Exact: true}
		d := graph.MoEDims{Width: 24, Hidden: 16, Result: 8}
		f, types := fused(t, graph.AnchorMoE, func(b *graph.Builder, in inputs) {
			args := []*graph.Node{in(elem, 40, d.Width), in(graph.F32, 40, op.Experts)}
			for _, w := range op.Weights() {
				args = append(args, in(elem, op.WeightShape(d, w).Slice()...))
			}
			b.Output("", b.Add(op, args...))
		})
		c := cudatest.Check{Name: elem.String(), Op: f}
		if i == 1 {
			c.Compare = roughly
		}
		for j, u := range types {
			c.Args = append(c.Args, graphtest.Tensor(r, u))
			if j != 1 {
				continue
			}
			for token := range 40 {
				chosen := r.Perm(op.Experts)[:r.IntN(op.TopK+1)]
				for e := range op.Experts {
					switch {
					case token%7 == 3:
						c.Args[1].SetFloat(token*op.Experts+e, math.NaN())
					case !slices.Contains(chosen, e):
						c.Args[1].SetFloat(token*op.Experts+e, 0)
					}
				}
			}
		}
		checks = append(checks, c)
	}
	defer cuda.SetFreeSlots(cuda.SetFreeSlots(0))
	cudatest.Run(t, cudatest.OpenFor(t, cuda.ChipOf(80)), checks...)
}

// TestMoESpecial has infinities, NaN and numbers that overflow among the operands.
func TestMoESpecial(t *testing.T) {
	d := cudatest.OpenFor(t, cuda.ChipOf(80))
	r := rand.New(rand.NewPCG(6, 80))
	checks := append(mixtures(t, r, 6, true, graph.F32, graph.BF16), mixtures(t, r, 2, false, graph.F64, graph.F16)...)
	for _, c := range checks {
		for _, x := range c.Args {
			for i := range x.Type.Shape.Elems() {
				if r.IntN(8) == 0 {
					x.SetFloat(i, []float64{math.NaN(), math.Inf(1), math.Inf(-1), 1e15, 0}[r.IntN(5)])
				}
			}
		}
	}
	cudatest.Run(t, d, checks...)
}

// TestMoEWaves sends tokens to more experts than TopK promises.
func TestMoEWaves(t *testing.T) {
	defer cuda.SetFreeSlots(cuda.SetFreeSlots(0))
	d := cudatest.OpenFor(t, cuda.ChipOf(70))
	cudatest.Run(t, d, mixtures(t, rand.New(rand.NewPCG(4, 70)), 3, false, graph.F32)...)
	cudatest.Run(t, d, mixtures(t, rand.New(rand.NewPCG(4, 71)), 2, true, graph.F32)...)
}
