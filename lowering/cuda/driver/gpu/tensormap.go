//go:build gpu

package gpu

// Tensor maps, with which the copy engine finds a tile of a tensor.

/*
#include "native.h"
*/
import "C"

import (
	"fmt"
	"unsafe"

	"fusec/graph"
	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda/driver"
)

// mapTypes are the element types that the copy engine supports, by the names of [graph.DType].
var mapTypes = map[string]C.int{
	"f32":  C.CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
	"f64":  C.CU_TENSOR_MAP_DATA_TYPE_FLOAT64,
	"f16":  C.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
	"bf16": C.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
	"i32":  C.CU_TENSOR_MAP_DATA_TYPE_INT32,
	"i64":  C.CU_TENSOR_MAP_DATA_TYPE_INT64,
	"bool": C.CU_TENSOR_MAP_DATA_TYPE_UINT8,
	"i8":   C.CU_TENSOR_MAP_DATA_TYPE_UINT8, // there is no other of a byte
}

var swizzles = map[int]C.int{
	0:   C.CU_TENSOR_MAP_SWIZZLE_NONE,
	32:  C.CU_TENSOR_MAP_SWIZZLE_32B,
	64:  C.CU_TENSOR_MAP_SWIZZLE_64B,
	128: C.CU_TENSOR_MAP_SWIZZLE_128B,
}

func (g *device) EncodeMap(m *kernels.TensorMap, base driver.Ptr, to *[128]byte) error {
	call, rank := "cuTensorMapEncodeTiled", len(m.Dims)
	if w := m.Windows; w != nil {
		call = "cuTensorMapEncodeIm2col"
		if rank != 4 || len(m.Strides) != 3 || len(m.Box) != 2 || !w.Valid(m.Dims) {
			return fmt.Errorf("%s: windows %+v on images of dims %d, strides %d, box %d", call, *w, m.Dims, m.Strides, m.Box)
		}
		if m.Lines {
			return fmt.Errorf("%s: images with windows are fetched by pairs of lines alone", call)
		}
	} else if rank < 1 || rank > 5 || len(m.Strides) != rank-1 || len(m.Box) != rank {
		return fmt.Errorf("%s: %d dims (want 1 to 5), %d strides (want one less), %d sides of the box (want as many)",
			call, rank, len(m.Strides), len(m.Box))
	}
	kind, ok := mapTypes[m.DType.String()]
	if !ok {
		return fmt.Errorf("%s: no tensor maps of %s", call, m.DType)
	}
	if m.Round {
		if m.DType != graph.F32 {
			return fmt.Errorf("%s: only f32 is rounded to tf32, not %s", call, m.DType)
		}
		kind = C.CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
	}
	swizzle, ok := swizzles[m.Swizzle]
	if !ok {
		return fmt.Errorf("%s: a swizzle of %d bytes (want 0, 32, 64 or 128)", call, m.Swizzle)
	}
	strides := append([]uint64{}, m.Strides...)
	strides = append(strides, 0) // so that there is a first stride
	lines := C.int(0)
	if m.Lines {
		lines = 1
	}
	err := g.native(call, func(c C.CUcontext) C.CUresult {
		if w := m.Windows; w != nil {
			upper := w.Upper(m.Dims)
			lower := [2]C.int{C.int(w.First[0]), C.int(w.First[1])}
			last := [2]C.int{C.int(upper[0]), C.int(upper[1])}
			steps := [4]C.cuuint32_t{1, C.cuuint32_t(w.Step[0]), C.cuuint32_t(w.Step[1]), 1}
			return C.fusec_encode_windows(c, kind, C.CUdeviceptr(base), (*C.cuuint64_t)(unsafe.Pointer(&m.Dims[0])),
				(*C.cuuint64_t)(unsafe.Pointer(&strides[0])), &lower[0], &last[0], C.int(m.Box[0]), C.int(m.Box[1]), &steps[0],
				swizzle, unsafe.Pointer(to))
		}
		return C.fusec_encode(c, kind, C.int(rank), C.CUdeviceptr(base), (*C.cuuint64_t)(unsafe.Pointer(&m.Dims[0])),
			(*C.cuuint64_t)(unsafe.Pointer(&strides[0])), (*C.cuuint32_t)(unsafe.Pointer(&m.Box[0])), swizzle, lines,
			unsafe.Pointer(to))
	})
	if err != nil {
		return fmt.Errorf("%s, dims %d, strides %d bytes, box %d, swizzle %d, at %#x: %w", m.DType, m.Dims, m.Strides,
			m.Box, m.Swizzle, base, err)
	}
	return nil
}
