//go:build !gpu

package cuda_test

import (
	"testing"

	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/emulator"
)

// effort scales how much is tried: the emulator compiles slowly.
const effort = 1

// open gives the device that the tests of this package run on: here the emulator; with the tag gpu a GPU.
func open(t testing.TB) (driver.GPU, driver.Compiler) {
	t.Helper()
	g, c, err := emulator.Open(emulator.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return g, c
}
