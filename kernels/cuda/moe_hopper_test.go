package cuda_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/cuda"
	"fusec/kernels/ref"
	"fusec/lowering/cuda/cudatest"
)

// TestMoEHopper computes mixtures of experts and their gradients with wgmma and with tcgen05, in the emulator: full tiles and
// short ones, experts that get nothing, several waves.
func TestMoEHopper(t *testing.T) {
	for i, path := range asyncPaths {
		slots := []int{256 << 20, 0} // one wave, several
		t.Run(path.template, func(t *testing.T) { asyncMixtures(t, path.template, path.config, slots[i:], false) })
		t.Run(path.template+"/gradients", func(t *testing.T) { asyncMixtures(t, path.template, path.config, slots[i:], true) })
	}
}

func asyncMixtures(t *testing.T, template string, config cuda.Config, slots []int, grad bool) {
	config.Precision = cuda.BF16
	r := rand.New(rand.NewPCG(9, 90))
	for _, slots := range slots {
		func() {
			defer cuda.SetFreeSlots(cuda.SetFreeSlots(slots))
			var checks []cudatest.Check
			for i := range 4 {
				if grad && i%3 != 0 { // one of each kind: gradients take long on the emulator
					continue
				}
				op := graph.MoE{Experts: 2 + r.IntN(3), Activation: []graph.UnaryFn{graph.GeluErf, graph.Silu}[i%2], Gated: i >= 2,
					Bias: r.IntN(2) == 0, Stacked: true, TopK: 1}
				d := graph.MoEDims{Width: 64 + 8*r.IntN(5), Hidden: 64 + 8*r.IntN(30), Result: 64 + 8*r.IntN(9)}
				// In gradients of weights with many tiles for a multiprocessor, each warpgroup has tiles of its own.
				own := grad && i == 0 && template == "gemm_hopper<"
				if own {
					d.Hidden += 256
				}
				elem := []graph.DType{graph.BF16, graph.F16}[r.IntN(2)]
				tokens := 96*op.Experts + r.IntN(100)
				f, types := fused(t, graph.AnchorMoE, func(b *graph.Builder, in inputs) {
					args := []*graph.Node{in(elem, tokens, d.Width), in(graph.F32, tokens, op.Experts)}
					for _, w := range op.Weights() {
						e := elem
						if w.Bias() {
							e = graph.F32
						}
						args = append(args, in(e, op.WeightShape(d, w).Slice()...))
					}
					if !grad {
						b.Output("", b.Add(op, args...))
						return
					}
					dx := b.Add(graph.MoEGrad(op), append(args, in(elem, tokens, d.Result))...)
					b.Output("", dx)
					for j := 1; j < len(args); j++ {
						b.Output("", b.Add(graph.Result{Index: j}, dx))
					}
				})
				c := cudatest.Check{Name: fmt.Sprintf("%d %v %+v %+v", i, elem, op, d), Op: f, Config: config}
				if own {
					c.Config.Chip.SMs = 1
				}
				for j, u := range types {
					x := graphtest.Tensor(r, u)
					if j == 1 { // the last expert gets nothing in every other mixture
						for e := range u.Shape.Elems() {
							if r.IntN(3) == 0 || i%2 == 0 && e%op.Experts == op.Experts-1 {
								x.SetFloat(e, 0)
							}
						}
					}
					c.Args = append(c.Args, x)
				}
				c.Compare = func(got *graph.Tensor, want ref.Value) error {
					for i := range want.Mag {
						want.Mag[i] *= 2000 // 2e-2 of the terms
					}
					return ref.Check(got, want)
				}
				least := 2
				if grad {
					least = 5 // h, dh, dx and the gradients of two matrices
				}
				text := kernelOf(t, f, types, c.Config).Generated()
				if n := strings.Count(text, "  "+template); n < least {
					t.Errorf("%s: %d products take the path", c.Name, n)
				}
				if strings.Contains(text, "PINGPONG = true") != own {
					t.Errorf("%s: warpgroups with tiles of their own: %v", c.Name, !own)
				}
				if strings.Contains(text, "STORES = true") != (own && slots > 0) {
					t.Errorf("%s: the copy engine stores gradients of weights: %v", c.Name, !(own && slots > 0))
				}
				checks = append(checks, c)
			}
			cudatest.Run(t, cudatest.OpenFor(t, config.Chip), checks...)
		}()
	}
}
