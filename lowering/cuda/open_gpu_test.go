//go:build gpu

package cuda_test

import (
	"testing"

	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/driver/gpu"
	"fusec/lowering/cuda/driver/nvrtc"
)

// effort scales how much is tried.
const effort = 10

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
	return g, c
}
