package conv

import (
	"unsafe"

	"fusec/graph"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
)

// A convolution of integers reads images of bytes without a sign and filters of bytes with one. An element of its Config's X and W
// is four of them, of channels that follow one another, in the 32 bits of a float32, which stand for no number. All other things
// are as in a convolution of floating-point numbers: sums are rounded to float32, and finished in registers.

// NewQuads is [New] for a convolution of integers. The filters are packed by [NewQuadFilters]. The error may be that the processor
// has no routines; see [gemm.Quads].
func NewQuads(cfg Config[float32], p *pool.Pool, ws *gemm.Workspace) (*Plan[float32], error) {
	micro, err := gemm.Quads()
	if err != nil {
		return nil, err
	}
	return newPlan(cfg, p, ws, micro)
}

// NewQuadFilters is [NewFilters] for a convolution of integers. Update takes what [Quads] makes.
func NewQuadFilters(groups int, layout graph.Layout, p *pool.Pool) (*Filters[float32], error) {
	micro, err := gemm.Quads()
	if err != nil {
		return nil, err
	}
	return newFilters(groups, layout, p, micro)
}

// Quads gives the filters w [KH, KW, C, O], in the given layout, the form [KH, KW, C/4, O] of elements of four bytes. C is a
// multiple of 4.
func Quads(dst []float32, w []int8, l graph.Layout) {
	s := l.Shape
	for y := range s.At(0) {
		for x := range s.At(1) {
			for c := 0; c < s.At(2); c += 4 {
				at := l.Offset + y*l.Stride[0] + x*l.Stride[1] + c*l.Stride[2]
				for o := range s.At(3) {
					bits := uint32(0)
					for i := range 4 {
						bits |= uint32(uint8(w[at+o*l.Stride[3]+i*l.Stride[2]])) << (8 * i)
					}
					setBits(dst, o, bits)
				}
				dst = dst[s.At(3):]
			}
		}
	}
}

// setBits sets the bits of element i. They go by no register of floating-point numbers, which might change those of a NaN.
func setBits(v []float32, i int, bits uint32) { *(*uint32)(unsafe.Pointer(&v[i])) = bits }
