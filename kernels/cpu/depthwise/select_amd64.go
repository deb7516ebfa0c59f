package depthwise

import "golang.org/x/sys/cpu"

// native32 lists the assembly kernels that this processor and operating system support, the fastest first.
func native32() []*kernel[float32] {
	return supported(kernel[float32]{"avx512", correlateAVX512F32, slideAVX512F32, greatestAVX512F32, awardAVX512F32, filtersAVX512F32,
		plane4AVX512F32, plane1AVX512F32},
		kernel[float32]{"avx2", correlateF32, nil, greatestF32, awardF32, filtersF32, nil, nil})
}

// native64 is native32 for double precision.
func native64() []*kernel[float64] {
	return supported(kernel[float64]{"avx512", correlateAVX512F64, slideAVX512F64, greatestAVX512F64, awardAVX512F64, filtersAVX512F64,
		plane4AVX512F64, plane1AVX512F64},
		kernel[float64]{"avx2", correlateF64, nil, greatestF64, awardF64, filtersF64, nil, nil})
}

func supported[T Float](avx512, avx2 kernel[T]) []*kernel[T] {
	switch {
	case !cpu.X86.HasAVX2 || !cpu.X86.HasFMA || !cpu.X86.HasBMI2:
		return nil
	case !cpu.X86.HasAVX512F:
		return []*kernel[T]{&avx2}
	}
	return []*kernel[T]{&avx512, &avx2}
}
