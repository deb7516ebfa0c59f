package cuda_test

import (
	"fmt"
	"testing"

	"fusec/graph"
	"fusec/lowering/cuda/cudatest"
)

// TestHalfPools takes maxima of values of 16 bits, and their gradients, in both layouts: windows that overlap and not, channels
// that make up whole words and not.
func TestHalfPools(t *testing.T) {
	l := newList(93)
	for i, c := range []struct {
		layout         graph.ImageLayout
		shape, y       []int
		kernel, stride [2]int
		pad            int
	}{
		{graph.NHWC, []int{2, 9, 7, 16}, []int{2, 5, 4, 16}, [2]int{3, 3}, [2]int{2, 2}, 1},
		{graph.NHWC, []int{1, 8, 9, 3}, []int{1, 4, 8, 3}, [2]int{2, 2}, [2]int{2, 1}, 0},
		{graph.NCHW, []int{2, 3, 7, 8}, []int{2, 3, 2, 2}, [2]int{3, 2}, [2]int{3, 5}, 0},
	} {
		d := []graph.DType{graph.BF16, graph.F16}[i%2]
		p := graph.Pool{Fn: graph.MaxPool, Kernel: graph.IntsOf(c.kernel[0], c.kernel[1]),
			Stride: graph.IntsOf(c.stride[0], c.stride[1]), Pad: graph.IntsOf(c.pad, c.pad, c.pad, c.pad), Layout: c.layout}
		l.add(p, l.tensor(d, c.shape...)).Name = fmt.Sprint("pool ", d, c.shape)
		l.add(graph.PoolGrad(p), l.tensor(d, c.shape...), l.tensor(graph.F32, c.y...)).Name = fmt.Sprint("gradient ", d, c.shape)
	}
	cudatest.Run(t, cudatest.Emulator(t), l.checks...)
}
