package winograd

import "golang.org/x/sys/cpu"

// native lists the assembly kernels that this processor supports.
func native() []kernel {
	if !cpu.ARM64.HasASIMD {
		return nil
	}
	return []kernel{{4, [2]inputs{input2F32, input4F32}, [2]outputs{output2F32, output4F32}, [2]inputs{filter2F32, filter4F32}}}
}
