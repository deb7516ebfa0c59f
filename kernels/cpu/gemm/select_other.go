//go:build !amd64 && !arm64

package gemm

func native32() []*kernel[float32] { return nil }
func native64() []*kernel[float64] { return nil }

// quads lists the kernels of [Quads], of which there are none.
func quads() []quadKernel { return nil }
