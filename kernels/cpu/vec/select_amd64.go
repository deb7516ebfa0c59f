package vec

import "golang.org/x/sys/cpu"

const instructions = "AVX2"

// hasAssembly reports whether this processor runs the assembly.
func hasAssembly() bool { return cpu.X86.HasAVX2 && cpu.X86.HasFMA }

// useWiderF32 replaces what AVX-512 has kernels for.
func useWiderF32(k *Kernels[float32]) {
	if cpu.X86.HasAVX512F {
		put(k.unary, unaryAVX512F32)
		k.transposeLines, k.interleave = transposeLinesAVX512F32, interleaveAVX512F32
	}
}
