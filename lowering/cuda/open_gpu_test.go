//go:build gpu

package cuda_test

import (
	"testing"

	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/driver/cache"
	"fusec/lowering/cuda/driver/gpu"
	"fusec/lowering/cuda/driver/nvrtc"
)

// effort scales how much is tried.
const effort = 4

// rounds is how often a program is made where what it leaves behind is counted.
const rounds = 1000

// open gives the device that the tests of this package run on: with the tag gpu the first GPU.
func open(t testing.TB) (driver.GPU, driver.Compiler) {
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
	return g, cache.New(c, dir)
}

// ready has nothing to do: NVRTC compiles several sources at once as it is.
func ready(testing.TB, driver.Compiler, []string, kernels.Chip) {}
