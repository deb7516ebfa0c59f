package vec

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// tile is the number of elements that the benchmarks work on: 4 KiB of float32.
const tile = 1024

// clockGHz turns nanoseconds into cycles in the benchmarks' reports.
var clockGHz = flag.Float64("clock", 3.2, "the processor's clock in GHz, for cycles/8 in benchmarks")

// benchmarkTile times f over one tile. Besides the mean it reports the best of
// some short batches, per element and in cycles per eight elements: that is what
// the loop costs on a machine that others use too.
func benchmarkTile(b *testing.B, f func(dst, x []float32)) {
	rng := rand.New(rand.NewPCG(3, 4))
	dst, x := make([]float32, tile), make([]float32, tile)
	for i := range x {
		x[i] = float32(rng.NormFloat64() * 2)
	}
	for b.Loop() {
		f(dst, x)
	}
	const batches, calls = 400, 16
	best := time.Duration(math.MaxInt64)
	for range batches {
		start := time.Now()
		for range calls {
			f(dst, x)
		}
		best = min(best, time.Since(start))
	}
	ns := float64(best.Nanoseconds()) / (calls * tile)
	b.ReportMetric(ns, "ns/element")
	b.ReportMetric(ns*8**clockGHz, "cycles/8")
}

func BenchmarkUnary(b *testing.B) {
	for _, op := range plain() {
		b.Run(op.String(), func(b *testing.B) { benchmarkTile(b, F32().Unary(op)) })
	}
}

func BenchmarkUnaryScalar(b *testing.B) {
	for _, op := range parametrised() {
		f := F32().UnaryScalar(op)
		b.Run(op.String(), func(b *testing.B) { benchmarkTile(b, func(dst, x []float32) { f(dst, x, 0.1) }) })
	}
}

func BenchmarkBinary(b *testing.B) {
	for _, op := range binary() {
		vv, vs := F32().BinaryVV(op), F32().BinaryVS(op)
		b.Run(fmt.Sprint(op, "/vv"), func(b *testing.B) { benchmarkTile(b, func(dst, x []float32) { vv(dst, x, x) }) })
		b.Run(fmt.Sprint(op, "/vs"), func(b *testing.B) { benchmarkTile(b, func(dst, x []float32) { vs(dst, x, 1.5) }) })
	}
}

func BenchmarkTernary(b *testing.B) {
	k := F32()
	b.Run("fma/vvv", func(b *testing.B) { benchmarkTile(b, func(dst, x []float32) { k.fmaVVV(dst, x, x, x) }) })
	b.Run("fma/vsv", func(b *testing.B) { benchmarkTile(b, func(dst, x []float32) { k.fmaVSV(dst, x, x, 2) }) })
	b.Run("fma/vss", func(b *testing.B) { benchmarkTile(b, func(dst, x []float32) { k.fmaVSS(dst, x, 2, 3) }) })
	b.Run("select/vvv", func(b *testing.B) { benchmarkTile(b, func(dst, x []float32) { k.selectVVV(dst, x, x, x) }) })
}

func BenchmarkReduce(b *testing.B) {
	k := F32()
	for op := range numReduction {
		f := k.Reduce(op)
		b.Run(op.String(), func(b *testing.B) { benchmarkTile(b, func(_, x []float32) { f(x) }) })
	}
	b.Run("dot", func(b *testing.B) { benchmarkTile(b, func(_, x []float32) { k.dot(x, x) }) })
	b.Run("deviations", func(b *testing.B) { benchmarkTile(b, func(_, x []float32) { k.sumSquareDeviations(x, 1) }) })
	b.Run("argmax", func(b *testing.B) { benchmarkTile(b, func(_, x []float32) { k.ArgMax(x) }) })
	b.Run("expsubsum", func(b *testing.B) { benchmarkTile(b, func(dst, x []float32) { k.expSubSum(dst, x, 5) }) })
}

func BenchmarkMemory(b *testing.B) {
	k := F32()
	wide := make([]float64, tile)
	ints := make([]int32, tile)
	mask := make([]bool, tile)
	for _, c := range []struct {
		name string
		f    func(dst, x []float32)
	}{
		{"fill", func(dst, _ []float32) { k.fill(dst, 1) }},
		{"gather", func(dst, x []float32) { Gather(dst[:tile/4], x, 4) }},
		{"scatter", func(dst, x []float32) { Scatter(dst, 4, x[:tile/4]) }},
		{"transpose", func(dst, x []float32) { k.Transpose(dst, 32, x, 32, 32, 32) }},
		{"widen", func(_, x []float32) { Convert(wide, x) }},
		{"narrow", func(dst, _ []float32) { Convert(dst, wide) }},
		{"tomask", func(_, x []float32) { ToMask(mask, x) }},
		{"frommask", func(dst, _ []float32) { FromMask(dst, mask) }},
		{"toint", func(_, x []float32) { Convert(ints, x) }},
	} {
		b.Run(c.name, func(b *testing.B) { benchmarkTile(b, c.f) })
	}
}
