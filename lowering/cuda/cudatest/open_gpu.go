//go:build gpu

package cudatest

import (
	"testing"

	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda/driver/cache"
	"fusec/lowering/cuda/driver/gpu"
	"fusec/lowering/cuda/driver/nvrtc"
	"fusec/lowering/cuda/emulator"
)

// Open returns the device for tests: the first GPU, or without the tag gpu the emulator.
func Open(t testing.TB) Device {
	t.Helper()
	c, err := nvrtc.Open()
	if err != nil {
		t.Fatal(err)
	}
	g, err := gpu.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := cache.Folder()
	if err != nil {
		t.Fatal(err)
	}
	return closed(t, Device{GPU: g, Compiler: cache.New(c, dir)})
}

// OpenFor is Open for kernels that are made for another chip than the device's. A GPU cannot run the instructions of a newer chip:
// their device is the emulator.
func OpenFor(t testing.TB, chip kernels.Chip) Device {
	t.Helper()
	d := Open(t)
	if d.GPU.Chip().Arch < chip.Arch {
		return EmulatorOf(t, emulator.Options{Chip: chip})
	}
	d.Chip = chip
	return d
}
