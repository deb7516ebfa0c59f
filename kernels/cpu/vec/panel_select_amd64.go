package vec

import "golang.org/x/sys/cpu"

func init() {
	if !cpu.X86.HasAVX2 || !cpu.X86.HasFMA {
		return
	}
	if cpu.X86.HasAVX512F {
		strips = append(strips, stripKernels{"avx512", 32, maxColumnsAVX512F32, expColumnsAVX512F32, scaleColumnsAVX512F32})
	}
	strips = append(strips, stripKernels{"avx2", 16, maxColumnsF32, expColumnsF32, scaleColumnsF32})
}
