//go:build gpu

package gpu

// Errors for the driver's results.

/*
#include "native.h"
*/
import "C"

import (
	"fmt"
	"reflect"

	"fusec/lowering/cuda/driver"
)

// lost are the results after which a context can only be closed.
var lost = map[C.CUresult]bool{
	C.CUDA_ERROR_ECC_UNCORRECTABLE:     true,
	C.CUDA_ERROR_NVLINK_UNCORRECTABLE:  true,
	C.CUDA_ERROR_ILLEGAL_ADDRESS:       true,
	C.CUDA_ERROR_LAUNCH_TIMEOUT:        true,
	C.CUDA_ERROR_CONTEXT_IS_DESTROYED:  true,
	C.CUDA_ERROR_ASSERT:                true,
	C.CUDA_ERROR_HARDWARE_STACK_ERROR:  true,
	C.CUDA_ERROR_ILLEGAL_INSTRUCTION:   true,
	C.CUDA_ERROR_MISALIGNED_ADDRESS:    true,
	C.CUDA_ERROR_INVALID_ADDRESS_SPACE: true,
	C.CUDA_ERROR_INVALID_PC:            true,
	C.CUDA_ERROR_LAUNCH_FAILED:         true,
	C.CUDA_ERROR_DEVICE_UNAVAILABLE:    true,
	C.CUDA_ERROR_UNKNOWN:               true,
}

// failure is the error of a call, or nil if it succeeded.
func failure(call string, result C.CUresult) error {
	if result == C.CUDA_SUCCESS {
		return nil
	}
	var name, text *C.char
	C.cuGetErrorName(result, &name)
	C.cuGetErrorString(result, &text)
	said := fmt.Sprintf("result %d", int(result))
	if name != nil && text != nil {
		said = fmt.Sprintf("%s (%s)", C.GoString(name), C.GoString(text))
	}
	switch {
	case result == C.CUDA_ERROR_OUT_OF_MEMORY:
		return fmt.Errorf("%s: %s: %w", call, said, driver.ErrOutOfMemory)
	case lost[result]:
		return fmt.Errorf("%s: %s: %w", call, said, driver.ErrLost)
	}
	return fmt.Errorf("%s: %s", call, said)
}

// failed is failure for the errors of gorgonia.org/cu: the driver's results, in an unexported type.
func failed(call string, err error) error {
	if v := reflect.ValueOf(err); v.IsValid() && v.Kind() == reflect.Int {
		return failure(call, C.CUresult(v.Int()))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", call, err)
	}
	return nil
}
