package gemm

import (
	"golang.org/x/sys/cpu"

	"fusec/graph"
)

// native32 lists the assembly kernels that this processor and operating
// system support, the fastest first.
func native32() []*kernel[float32] {
	avx2 := kernel[float32]{
		name: "avx2", mr: 6, nr: 16,
		tile: tileAVX2F32, pack: packF32, dot: dotF32, axpy4: axpy4F32,
		tileAhead: tileAheadAVX2F32, axpy4Ahead: axpy4AheadF32,
	}
	avx2.gather = []gatherPanel[float32]{
		{16, 2, []gatherTile[float32]{gather2x16AVX2F32, gather4x16AVX2F32, gather6x16AVX2F32}},
		{8, 2, []gatherTile[float32]{gather2x8AVX2F32, gather4x8AVX2F32, gather6x8AVX2F32}},
	}
	avx2.spread = []spreadTile[float32]{{4, 16, spread4x16AVX2F32}, {4, 8, spread4x8AVX2F32}}
	avx2.fewVectors = []Few[float32, float32]{{4, 8, dots4AVX2F32, sums4AVX2F32}, {1, 8, dots1AVX2F32, sums1AVX2F32}}
	avx2.fewHalves = map[graph.DType][]Few[float32, uint16]{
		graph.BF16: {{4, 8, dots4AVX2BF16, sums4AVX2BF16}, {1, 8, dots1AVX2BF16, sums1AVX2BF16}},
		graph.F16:  {{4, 8, dots4AVX2F16, sums4AVX2F16}, {1, 8, dots1AVX2F16, sums1AVX2F16}},
	}
	avx2.fewBytes = []Few[float32, int8]{{4, 8, dots4AVX2I8, sums4AVX2I8}, {1, 8, dots1AVX2I8, sums1AVX2I8}}
	avx512 := avx2
	avx512.fewBytes = []Few[float32, int8]{{4, 16, dots4AVX512I8, sums4AVX512I8}, {1, 16, dots1AVX512I8, sums1AVX512I8}}
	avx512.fewVectors = []Few[float32, float32]{{4, 16, dots4AVX512F32, sums4AVX512F32}, {1, 16, dots1AVX512F32, sums1AVX512F32}}
	avx512.fewHalves = map[graph.DType][]Few[float32, uint16]{
		graph.BF16: {{4, 16, dots4AVX512BF16, sums4AVX512BF16}, {1, 16, dots1AVX512BF16, sums1AVX512BF16}},
		graph.F16:  {{4, 16, dots4AVX512F16, sums4AVX512F16}, {1, 16, dots1AVX512F16, sums1AVX512F16}},
	}
	avx512.name, avx512.mr, avx512.nr, avx512.tile = "avx512", 12, 32, tileAVX512F32
	avx512.spread = []spreadTile[float32]{{8, 32, spread8x32AVX512F32}, {8, 16, spread8x16AVX512F32}}
	avx512.tileAhead = tileAheadAVX512F32
	avx512.narrowRows, avx512.narrow = 8, tile8AVX512F32
	avx512.tileRows, avx512.tileColumns = tileRowsAVX512F32, tileColumnsAVX512F32
	avx512.gather = []gatherPanel[float32]{
		{32, 2, []gatherTile[float32]{gather2x32AVX512F32, gather4x32AVX512F32, gather6x32AVX512F32, gather8x32AVX512F32,
			gather10x32AVX512F32, gather12x32AVX512F32}},
		{16, 2, []gatherTile[float32]{gather2x16AVX512F32, gather4x16AVX512F32, gather6x16AVX512F32, gather8x16AVX512F32,
			gather10x16AVX512F32, gather12x16AVX512F32}},
	}
	withFew(&avx2, 4, tile4AVX2F32, tile4AheadAVX2F32)
	withFew(&avx512, 8, tile8AVX512F32, tile8AheadAVX512F32)
	return supported(avx512, avx2)
}

// native64 is native32 for double precision.
func native64() []*kernel[float64] {
	avx2 := kernel[float64]{
		name: "avx2", mr: 6, nr: 8,
		tile: tileAVX2F64, pack: packF64, dot: dotF64, axpy4: axpy4F64,
		tileAhead: tileAheadAVX2F64, axpy4Ahead: axpy4AheadF64,
	}
	avx2.gather = []gatherPanel[float64]{
		{8, 2, []gatherTile[float64]{gather2x8AVX2F64, gather4x8AVX2F64, gather6x8AVX2F64}},
		{4, 2, []gatherTile[float64]{gather2x4AVX2F64, gather4x4AVX2F64, gather6x4AVX2F64}},
	}
	avx2.spread = []spreadTile[float64]{{4, 8, spread4x8AVX2F64}, {4, 4, spread4x4AVX2F64}}
	avx512 := avx2
	avx512.name, avx512.mr, avx512.nr, avx512.tile = "avx512", 12, 16, tileAVX512F64
	avx512.spread = []spreadTile[float64]{{8, 16, spread8x16AVX512F64}, {8, 8, spread8x8AVX512F64}}
	avx512.tileAhead = tileAheadAVX512F64
	avx512.narrowRows, avx512.narrow = 8, tile8AVX512F64
	avx512.tileRows, avx512.tileColumns = tileRowsAVX512F64, tileColumnsAVX512F64
	avx512.gather = []gatherPanel[float64]{
		{16, 2, []gatherTile[float64]{gather2x16AVX512F64, gather4x16AVX512F64, gather6x16AVX512F64, gather8x16AVX512F64,
			gather10x16AVX512F64, gather12x16AVX512F64}},
		{8, 2, []gatherTile[float64]{gather2x8AVX512F64, gather4x8AVX512F64, gather6x8AVX512F64, gather8x8AVX512F64, gather10x8AVX512F64,
			gather12x8AVX512F64}},
	}
	withFew(&avx2, 4, tile4AVX2F64, tile4AheadAVX2F64)
	withFew(&avx512, 8, tile8AVX512F64, tile8AheadAVX512F64)
	return supported(avx512, avx2)
}

// quads lists the kernels of [Quads], those of each instruction set that this processor has, the fastest first. Those of AVX2 are
// none for a processor with AVX-512 but without VNNI, whose products of f32 are as fast.
func quads() (list []quadKernel) {
	if cpu.X86.HasAVX512F && cpu.X86.HasAVX512VNNI {
		list = append(list, quadKernel{dots: true, storesBytes: true, panels: []gatherPanel[float32]{
			{32, 2, []gatherTile[float32]{gather2x32AVX512Quads, gather4x32AVX512Quads, gather6x32AVX512Quads, gather8x32AVX512Quads,
				gather10x32AVX512Quads, gather12x32AVX512Quads}},
			{16, 2, []gatherTile[float32]{gather2x16AVX512Quads, gather4x16AVX512Quads, gather6x16AVX512Quads, gather8x16AVX512Quads,
				gather10x16AVX512Quads, gather12x16AVX512Quads}},
		}})
	}
	if cpu.X86.HasAVX2 && (!cpu.X86.HasAVX512F || cpu.X86.HasAVX512VNNI) {
		list = append(list, quadKernel{panels: []gatherPanel[float32]{
			{16, 2, []gatherTile[float32]{gather2x16AVX2Quads, gather4x16AVX2Quads}},
			{8, 2, []gatherTile[float32]{gather2x8AVX2Quads, gather4x8AVX2Quads, gather6x8AVX2Quads}},
		}})
	}
	return list
}

// supported keeps the kernels that can run. The AVX-512 one shares the packing
// and streaming routines of the AVX2 one.
func supported[T Float](avx512, avx2 kernel[T]) []*kernel[T] {
	switch {
	case !cpu.X86.HasAVX2 || !cpu.X86.HasFMA:
		return nil
	case !cpu.X86.HasAVX512F:
		return []*kernel[T]{&avx2}
	}
	return []*kernel[T]{&avx512, &avx2}
}

// transposedBytes is how much of a row the transposing kernels take at a time.
const transposedBytes = 32

// rowCopier returns the assembly kernel for panels of so many bytes, nil if
// there is none.
func rowCopier(bytes int) func(rows, panels int, src *byte, srcStride int, dst *byte, panelStride int) {
	switch bytes {
	case 24:
		return copyRows24
	case 32:
		return copyRows32
	case 48:
		return copyRows48
	case 64:
		return copyRows64
	case 96:
		return copyRows96
	case 128:
		return copyRows128
	}
	return nil
}
