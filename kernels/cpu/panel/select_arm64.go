package panel

import (
	"golang.org/x/sys/cpu"

	"fusec/graph"
)

// native lists the assembly kernels that this processor supports, the fastest first.
func native() (list []*kernel) {
	if !cpu.ARM64.HasASIMD {
		return nil
	}
	neon := kernel{name: "neon", piece: 32, transpose: transposeOctets, tiles: map[graph.DType][]tile{
		graph.I4: {i4x1NEON, i4x2NEON, i4x4NEON, i4x8NEON}, graph.I8: {i8x1NEON, i8x2NEON, i8x4NEON, i8x8NEON},
		graph.BF16: {bf16x1NEON, bf16x2NEON, bf16x4NEON, bf16x8NEON}, graph.F16: {f16x1NEON, f16x2NEON, f16x4NEON, f16x8NEON},
	}}
	pairs := neon.withIntegers("", nil, map[graph.DType][]integerTile{
		graph.I4: {i4Integersx1NEON, i4Integersx2NEON, i4Integersx4NEON, i4Integersx8NEON},
		graph.I8: {i8Integersx1NEON, i8Integersx2NEON, i8Integersx4NEON, i8Integersx8NEON},
	})
	dot := neon.withIntegers(" with sdot", []byteTile{i8Bytesx1SDOT, i8Bytesx2SDOT, i8Bytesx4SDOT}, map[graph.DType][]integerTile{
		graph.I4: {i4Integersx1SDOT, i4Integersx2SDOT, i4Integersx4SDOT, i4Integersx8SDOT},
		graph.I8: {i8Integersx1SDOT, i8Integersx2SDOT, i8Integersx4SDOT, i8Integersx8SDOT},
	})
	unsigned := []byteTile{i8Bytesx1SUDOT, i8Bytesx2SUDOT, i8Bytesx4SUDOT}
	tiles := neon.withIntegers(" with smmla", unsigned, map[graph.DType][]integerTile{
		graph.I4: {i4Integersx1SDOT, i4Integersx2SDOT, i4Integersx4SMMLA, i4Integersx8SMMLA},
		graph.I8: {i8Integersx1SDOT, i8Integersx2SDOT, i8Integersx4SMMLA, i8Integersx8SMMLA},
	})
	if cpu.ARM64.HasASIMDDP {
		if cpu.ARM64.HasI8MM {
			list = append(list, tiles)
		}
		list = append(list, dot)
	}
	return append(list, pairs)
}

// withIntegers is a kernel with tiles for products of integers, and of unsigned bytes if there are some.
func (k kernel) withIntegers(name string, bytes []byteTile, tiles map[graph.DType][]integerTile) *kernel {
	k.name += name
	k.integers = &integerKernel{tiles: tiles, round: roundRowNEON, bytes: bytes}
	return &k
}
