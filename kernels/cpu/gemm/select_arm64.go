package gemm

import (
	"golang.org/x/sys/cpu"

	"fusec/graph"
)

// native32 lists the assembly kernels that this processor supports.
func native32() []*kernel[float32] {
	neon := kernel[float32]{
		name: "neon", mr: 8, nr: 12,
		tile: tileNEONF32, pack: packF32, dot: dotF32, axpy4: axpy4F32,
		tileAhead: tileAheadNEONF32, axpy4Ahead: axpy4AheadF32,
		narrowRows: 4, narrow: tile4NEONF32,
	}
	neon.gather = []gatherPanel[float32]{
		{12, 2, []gatherTile[float32]{gather2x12NEONF32, gather4x12NEONF32, gather6x12NEONF32}},
		{8, 2, []gatherTile[float32]{gather2x8NEONF32, gather4x8NEONF32, gather6x8NEONF32, gather8x8NEONF32}},
		{4, 2, []gatherTile[float32]{gather2x4NEONF32, gather4x4NEONF32, gather6x4NEONF32, gather8x4NEONF32, gather10x4NEONF32,
			gather12x4NEONF32}},
	}
	neon.fewVectors = []Few[float32, float32]{{4, 8, dots4NEONF32, sums4NEONF32}, {1, 8, dots1NEONF32, sums1NEONF32}}
	neon.fewHalves = map[graph.DType][]Few[float32, uint16]{
		graph.BF16: {{4, 8, dots4NEONBF16, sums4NEONBF16}, {1, 8, dots1NEONBF16, sums1NEONBF16}},
		graph.F16:  {{4, 8, dots4NEONF16, sums4NEONF16}, {1, 8, dots1NEONF16, sums1NEONF16}},
	}
	withFew(&neon, 4, tile4NEONF32, tile4AheadNEONF32)
	return supported(neon)
}

// native64 is native32 for double precision.
func native64() []*kernel[float64] {
	neon := kernel[float64]{
		name: "neon", mr: 8, nr: 6,
		tile: tileNEONF64, pack: packF64, dot: dotF64, axpy4: axpy4F64,
		tileAhead: tileAheadNEONF64, axpy4Ahead: axpy4AheadF64,
		narrowRows: 4, narrow: tile4NEONF64,
	}
	neon.gather = []gatherPanel[float64]{
		{6, 2, []gatherTile[float64]{gather2x6NEONF64, gather4x6NEONF64, gather6x6NEONF64}},
		{4, 2, []gatherTile[float64]{gather2x4NEONF64, gather4x4NEONF64, gather6x4NEONF64, gather8x4NEONF64}},
		{2, 2, []gatherTile[float64]{gather2x2NEONF64, gather4x2NEONF64, gather6x2NEONF64, gather8x2NEONF64, gather10x2NEONF64,
			gather12x2NEONF64}},
	}
	withFew(&neon, 4, tile4NEONF64, tile4AheadNEONF64)
	return supported(neon)
}

func supported[T Float](neon kernel[T]) []*kernel[T] {
	if !cpu.ARM64.HasASIMD {
		return nil
	}
	return []*kernel[T]{&neon}
}

// transposedBytes is how much of a row the transposing kernels take at a time.
const transposedBytes = 16

// rowCopier returns the assembly kernel for panels of so many bytes, nil if there is none.
func rowCopier(bytes int) func(rows, panels int, src *byte, srcStride int, dst *byte, panelStride int) {
	switch bytes {
	case 16:
		return copyRows16
	case 32:
		return copyRows32
	case 48:
		return copyRows48
	case 64:
		return copyRows64
	}
	return nil
}

// quads lists the kernels of [Quads], the fastest first: those by SUDOT and those by SDOT, if this processor has the instruction.
func quads() (list []quadKernel) {
	if cpu.ARM64.HasI8MM {
		list = append(list, quadKernel{dots: true, panels: []gatherPanel[float32]{
			{12, 2, []gatherTile[float32]{gather2x12SUDOTQuads, gather4x12SUDOTQuads, gather6x12SUDOTQuads}},
			{8, 2, []gatherTile[float32]{gather2x8SUDOTQuads, gather4x8SUDOTQuads, gather6x8SUDOTQuads, gather8x8SUDOTQuads}},
			{4, 2, []gatherTile[float32]{gather2x4SUDOTQuads, gather4x4SUDOTQuads, gather6x4SUDOTQuads, gather8x4SUDOTQuads,
				gather10x4SUDOTQuads, gather12x4SUDOTQuads}},
		}})
	}
	if cpu.ARM64.HasASIMDDP {
		list = append(list, quadKernel{dots: true, panels: []gatherPanel[float32]{
			{12, 2, []gatherTile[float32]{gather2x12SDOTQuads, gather4x12SDOTQuads, gather6x12SDOTQuads}},
			{8, 2, []gatherTile[float32]{gather2x8SDOTQuads, gather4x8SDOTQuads, gather6x8SDOTQuads, gather8x8SDOTQuads}},
			{4, 2, []gatherTile[float32]{gather2x4SDOTQuads, gather4x4SDOTQuads, gather6x4SDOTQuads, gather8x4SDOTQuads,
				gather10x4SDOTQuads, gather12x4SDOTQuads}},
		}})
	}
	return list
}
