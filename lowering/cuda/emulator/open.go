package emulator

import (
	"fmt"

	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda/driver"
)

// Options say how kernels are run. The zero value is what tests want.
type Options struct {
	// Chip is what the device says that it is; an H200 if it is left out.
	Chip kernels.Chip
	// Memory is how many bytes the device has: 4 GiB if it is 0.
	Memory int64
	// Seed chooses the order of blocks and threads.
	Seed uint64
}

// Poison is what fresh memory is filled with: NaNs of every width, −1 as an integer.
const Poison = 0xff

// Open gives a device that is the processor, and the compiler for it. The error says what is missing: a C++ compiler,
// or a system that the emulator knows (Linux on amd64 or arm64).
func Open(o Options) (driver.GPU, driver.Compiler, error) {
	if o.Chip == (kernels.Chip{}) {
		o.Chip = kernels.H200
	}
	if o.Memory == 0 {
		o.Memory = 4 << 30
	}
	c, err := newCompiler()
	if err != nil {
		return nil, nil, fmt.Errorf("the CUDA emulator: %w", err)
	}
	run, err := loadRuntime(c)
	if err != nil {
		return nil, nil, fmt.Errorf("the CUDA emulator: %w", err)
	}
	return newGPU(o, c, run), c, nil
}
