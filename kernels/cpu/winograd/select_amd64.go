package winograd

import "golang.org/x/sys/cpu"

// native lists the assembly kernels that this processor and operating system support, the fastest first.
func native() []kernel {
	avx512 := kernel{16, [2]inputs{input2AVX512F32, input4AVX512F32}, [2]outputs{output2AVX512F32, output4AVX512F32},
		[2]inputs{filter2AVX512F32, filter4AVX512F32}}
	avx2 := kernel{8, [2]inputs{input2F32, input4F32}, [2]outputs{output2F32, output4F32},
		[2]inputs{filter2F32, filter4F32}}
	switch {
	case !cpu.X86.HasAVX2 || !cpu.X86.HasFMA || !cpu.X86.HasBMI2:
		return nil
	case !cpu.X86.HasAVX512F:
		return []kernel{avx2}
	}
	return []kernel{avx512, avx2}
}
