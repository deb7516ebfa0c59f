package emulator

import (
	"fmt"

	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda/driver"
)

// Options say how kernels are run. The zero value is suitable for tests.
type Options struct {
	// Chip is the chip that the device reports; an H200 if it is absent.
	Chip kernels.Chip
	// Memory is the size of the device's memory in bytes: 4 GiB if it is 0.
	Memory int64
	// Seed chooses the order of blocks and threads.
	Seed uint64
}

// Poison is the fill byte of fresh memory: NaNs of every width, −1 as an integer.
const Poison = 0xff

// Open returns an emulated device and its compiler. The error says what is missing: a C++ compiler, or a system that
// the emulator supports (Linux on amd64 or arm64).
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
