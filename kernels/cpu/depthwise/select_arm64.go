package depthwise

import "golang.org/x/sys/cpu"

// native32 lists the assembly kernels that this processor supports.
func native32() []*kernel[float32] {
	return supported(kernel[float32]{"neon", correlateF32, nil, greatestF32, awardF32, filtersF32, nil, nil})
}

// native64 is native32 for double precision.
func native64() []*kernel[float64] {
	return supported(kernel[float64]{"neon", correlateF64, nil, greatestF64, awardF64, filtersF64, nil, nil})
}

func supported[T Float](neon kernel[T]) []*kernel[T] {
	if !cpu.ARM64.HasASIMD {
		return nil
	}
	return []*kernel[T]{&neon}
}
