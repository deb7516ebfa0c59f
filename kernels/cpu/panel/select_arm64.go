package panel

import (
	"golang.org/x/sys/cpu"

	"fusec/graph"
)

// native lists the assembly kernels that this processor supports.
func native() []*kernel {
	if !cpu.ARM64.HasASIMD {
		return nil
	}
	return []*kernel{{name: "neon", piece: 32, tiles: map[graph.DType][]tile{
		graph.I4: {i4x1NEON, i4x2NEON, i4x4NEON, i4x8NEON}, graph.I8: {i8x1NEON, i8x2NEON, i8x4NEON, i8x8NEON},
		graph.BF16: {bf16x1NEON, bf16x2NEON, bf16x4NEON, bf16x8NEON}, graph.F16: {f16x1NEON, f16x2NEON, f16x4NEON, f16x8NEON},
	}}}
}
