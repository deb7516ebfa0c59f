//go:build gpu

package cudatest

import (
	"testing"

	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda/driver/cache"
	"fusec/lowering/cuda/driver/gpu"
	"fusec/lowering/cuda/driver/nvrtc"
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

// OpenFor is Open for kernels that are made for another chip than the device's. It skips the test on a GPU that is older
// than the chip: the emulator runs it.
func OpenFor(t testing.TB, chip kernels.Chip) Device {
	t.Helper()
	d := Open(t)
	if own := d.GPU.Chip(); own.Arch < chip.Arch {
		t.Skipf("%s cannot run instructions of %s", own.Name, chip.Target())
	}
	d.Chip = chip
	return d
}
