//go:build !gpu

package cuda_test

import (
	"testing"

	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/emulator"
)

// effort scales how much is tried: the emulator compiles slowly.
const effort = 1

// rounds is how often a program is made where what it leaves behind is counted.
const rounds = 20

// open gives the device that the tests of this package run on: here the emulator; with the tag gpu a GPU.
func open(t testing.TB) (driver.GPU, driver.Compiler) {
	t.Helper()
	g, c, err := emulator.Open(emulator.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return g, c
}

// ready compiles sources together, which costs the emulator less than one by one: it keeps what it has made.
func ready(t testing.TB, c driver.Compiler, sources []string, chip kernels.Chip) {
	t.Helper()
	if _, err := c.(*emulator.Compiler).CompileAll(sources, chip); err != nil {
		t.Fatal(err)
	}
}
