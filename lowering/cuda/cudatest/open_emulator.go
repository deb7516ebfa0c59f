//go:build !gpu

package cudatest

import (
	"testing"

	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda/emulator"
)

// Open returns the device for tests: the emulator, or with the tag gpu the first GPU.
func Open(t testing.TB) Device {
	t.Helper()
	return Emulator(t)
}

// OpenFor is Open for kernels that are made for another chip than the device's.
func OpenFor(t testing.TB, chip kernels.Chip) Device {
	t.Helper()
	return EmulatorOf(t, emulator.Options{Chip: chip})
}
