package cpu

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"fusec/graph"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
)

// The size of the mixtures that are measured.
const benchTokens, benchWidth, benchHidden = 4096, 256, 1024

// topGates opens k gates of each token.
func topGates(experts, k int) func(r *rand.Rand, token, e int) bool {
	chosen := map[int]bool{}
	return func(r *rand.Rand, _, e int) bool {
		if e == 0 {
			clear(chosen)
			for len(chosen) < k {
				chosen[r.IntN(experts)] = true
			}
		}
		return chosen[e]
	}
}

// benchMixture measures an operation of a mixture, and next to it, in turn, plain products of the same size: flops is
// that of the mixture's products. It reports the best rate of each, which other load on the machine disturbs least.
func benchMixture(b *testing.B, op graph.Op, args []*graph.Tensor, flops float64) {
	p := pool.New(2)
	defer p.Close()
	s, err := stand(op, args, p)
	if err != nil {
		b.Fatal(err)
	}
	rows := int(flops / (4 * benchWidth * benchHidden))
	plain := func(n, k int) func() {
		cfg := gemm.Config[float32]{M: rows, N: n, K: k, Batch: 1,
			A: gemm.RowMajor(k), B: gemm.RowMajor(n), C: gemm.RowMajor(n)}
		plan, err := gemm.New(cfg, p, nil)
		if err != nil {
			b.Fatal(err)
		}
		x, y, z := make([]float32, rows*k), make([]float32, k*n), make([]float32, rows*n)
		return func() {
			if err := plan.Run(x, y, z, nil); err != nil {
				b.Fatal(err)
			}
		}
	}
	up, down := plain(benchHidden, benchWidth), plain(benchWidth, benchHidden)
	var best, bestPlain time.Duration
	measure := func(best *time.Duration, f func()) {
		start := time.Now()
		f()
		if d := time.Since(start); *best == 0 || d < *best {
			*best = d
		}
	}
	run := func() {
		if err := s.run(); err != nil {
			b.Fatal(err)
		}
	}
	run()
	for b.Loop() {
		measure(&best, run)
		measure(&bestPlain, func() { up(); down() })
	}
	b.ReportMetric(float64(best.Microseconds())/1e3, "best-ms")
	b.ReportMetric(flops/best.Seconds()/1e9, "best-GFLOP/s")
	b.ReportMetric(100*bestPlain.Seconds()/best.Seconds(), "%-of-gemm")
}

// benchExperts measures a mixture of top-2 gates, or a dense one, and its gradient.
func benchExperts(b *testing.B, experts int, dense, backward bool) {
	r := rand.New(rand.NewPCG(1, 2))
	op := graph.MoE{Experts: experts, Activation: graph.Relu, Stacked: true, Dense: dense}
	c := mixtureCase{op: op, lead: []int{benchTokens}, d: benchWidth, f: benchHidden, o: benchWidth,
		open: topGates(experts, 2)}
	args, dy := c.draw(r, graph.F32)
	pairs := 2.0
	if dense {
		pairs = float64(experts)
	}
	flops := 4 * benchTokens * pairs * benchWidth * benchHidden
	if !backward {
		benchMixture(b, op, args, flops)
		return
	}
	benchMixture(b, graph.MoEGrad(op), append(args, dy), flops*5/2) // u and da, dx, dw1, dw2
}

// BenchmarkMoE is the time by the number of experts, and that of 8 experts who see all tokens.
func BenchmarkMoE(b *testing.B) {
	for _, e := range []int{4, 8, 16, 32, 64} {
		b.Run(fmt.Sprintf("experts=%d/top=2", e), func(b *testing.B) { benchExperts(b, e, false, false) })
	}
	b.Run("experts=8/dense", func(b *testing.B) { benchExperts(b, 8, true, false) })
}

func BenchmarkMoEGrad(b *testing.B) {
	for _, e := range []int{4, 8, 64} {
		b.Run(fmt.Sprintf("experts=%d/top=2", e), func(b *testing.B) { benchExperts(b, e, false, true) })
	}
	b.Run("experts=8/dense", func(b *testing.B) { benchExperts(b, 8, true, true) })
}

// BenchmarkMoEFew is one token's way through 2 of 64 experts: the rate at which their weights are read.
func BenchmarkMoEFew(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	op := graph.MoE{Experts: 64, Activation: graph.Relu, Stacked: true}
	c := mixtureCase{op: op, lead: []int{1}, d: benchWidth, f: benchHidden, o: benchWidth, open: topGates(64, 2)}
	args, _ := c.draw(r, graph.F32)
	p := pool.New(2)
	defer p.Close()
	s, err := stand(op, args, p)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := s.run(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(2*2*4*benchWidth*benchHidden*float64(b.N)/b.Elapsed().Seconds()/1e9, "GB/s")
}
