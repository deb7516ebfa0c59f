package panel

import (
	"golang.org/x/sys/cpu"

	"fusec/graph"
)

// native lists the assembly kernels that this processor and operating system support, the fastest first.
func native() (list []*kernel) {
	narrow := &integerKernel{tiles: map[graph.DType][]integerTile{graph.I4: {i4Integersx1AVX2, i4Integersx2AVX2},
		graph.I8: {i8Integersx1AVX2, i8Integersx2AVX2}}, offset: map[graph.DType]int{graph.I4: 8}, round: roundRowAVX2,
		bytes:  []byteTile{i8Bytesx1AVX2, i8Bytesx2AVX2, i8Bytesx4AVX2},
		halves: map[graph.DType]integerHalfTile{graph.I4: i4IntegersHalvesx1AVX2, graph.I8: i8IntegersHalvesx1AVX2}}
	if cpu.X86.HasAVX512F {
		plain := *narrow
		plain.bytes = nil // float32 is as fast
		integers := &plain
		if cpu.X86.HasAVX512VNNI {
			integers = &integerKernel{tiles: map[graph.DType][]integerTile{
				graph.I4: {i4Integersx1AVX512, i4Integersx2AVX512, i4Integersx4AVX512, i4Integersx8AVX512},
				graph.I8: {i8Integersx1AVX512, i8Integersx2AVX512, i8Integersx4AVX512, i8Integersx8AVX512},
			}, offset: map[graph.DType]int{graph.I4: 8, graph.I8: 128}, round: roundRowAVX2,
				bytes:  []byteTile{i8Bytesx1AVX512, i8Bytesx2AVX512, i8Bytesx4AVX512, i8Bytesx8AVX512},
				halves: map[graph.DType]integerHalfTile{graph.I4: i4IntegersHalvesx1AVX512, graph.I8: i8IntegersHalvesx1AVX512}}
		}
		var pairs []pairTile
		if cpu.X86.HasAVX512BF16 && cpu.X86.HasAVX512BW {
			pairs = []pairTile{pairsx1AVX512, pairsx2AVX512, pairsx4AVX512, pairsx8AVX512}
		}
		list = append(list, &kernel{name: "avx512", integers: integers, pairs: pairs, transpose: transposeOctetsAVX2,
			tiles: map[graph.DType][]tile{
				graph.I4: {i4x1AVX512, i4x2AVX512, i4x4AVX512, i4x8AVX512}, graph.I8: {i8x1AVX512, i8x2AVX512, i8x4AVX512, i8x8AVX512},
				graph.BF16: {bf16x1AVX512, bf16x2AVX512, bf16x4AVX512, bf16x8AVX512},
				graph.F16:  {f16x1AVX512, f16x2AVX512, f16x4AVX512, f16x8AVX512},
			}, halves: map[graph.DType]halfTile{graph.I4: i4Halvesx1AVX512, graph.I8: i8Halvesx1AVX512},
			unpack: map[graph.DType]unpacker{graph.I4: i4UnpackAVX512, graph.I8: i8UnpackAVX512}, offsetsOnly: true})
	}
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA { // all of which have conversions of binary16
		list = append(list, &kernel{name: "avx2", integers: narrow, transpose: transposeOctetsAVX2, tiles: map[graph.DType][]tile{
			graph.I4: {i4x1AVX2, i4x2AVX2}, graph.I8: {i8x1AVX2, i8x2AVX2},
			graph.BF16: {bf16x1AVX2, bf16x2AVX2}, graph.F16: {f16x1AVX2, f16x2AVX2},
		}, halves: map[graph.DType]halfTile{graph.I4: i4Halvesx1AVX2, graph.I8: i8Halvesx1AVX2},
			unpack: map[graph.DType]unpacker{graph.I4: i4UnpackAVX2, graph.I8: i8UnpackAVX2, graph.BF16: bf16UnpackAVX2}})
	}
	return list
}
