package emulator_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"fusec/lowering/cuda/emulator"
)

// BenchmarkThreads counts the threads that run in a second, where they add two numbers, and where they wait for each
// other 100 times.
func BenchmarkThreads(b *testing.B) {
	for name, body := range map[string]string{
		"add":     "const int i = blockIdx.x * 256 + threadIdx.x; p.y[i] = p.x[i] + 1;",
		"barrier": "for (int k = 0; k < 100; k++) __syncthreads();",
		"shuffle": "int x = threadIdx.x; for (int k = 0; k < 100; k++) x = __shfl_xor_sync(~0u, x, 1);",
	} {
		b.Run(name, func(b *testing.B) {
			r := newRig(b, emulator.Options{})
			const blocks = 400
			x, y := upload(r, make([]float32, blocks*256)), r.alloc(blocks*1024)
			f := r.function("const float *x; float *y;", body)
			params := binary.LittleEndian.AppendUint64(nil, uint64(x))
			params = binary.LittleEndian.AppendUint64(params, uint64(y))
			for b.Loop() {
				r.must(r.stream.Launch(f, [3]int{blocks, 1, 1}, 256, 0, params))
			}
			b.ReportMetric(float64(blocks*256*b.N)/b.Elapsed().Seconds(), "threads/s")
		})
	}
}

// BenchmarkCompile compiles kernels that were never seen, one at a time and many together.
func BenchmarkCompile(b *testing.B) {
	for _, n := range []int{1, 48} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := newRig(b, emulator.Options{})
			for b.Loop() {
				var sources []string
				for range n {
					body := fmt.Sprintf("p.y[threadIdx.x] = %v;", rand.Float32())
					sources = append(sources, source("float *y;", body))
				}
				r.compile(sources)
			}
			b.ReportMetric(b.Elapsed().Seconds()*1e3/float64(b.N*n), "ms/kernel")
		})
	}
}
