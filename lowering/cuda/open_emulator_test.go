//go:build !gpu

package cuda_test

import (
	"testing"

	"fusec/graph"
	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/emulator"
)

// effort scales how much is tried: the emulator compiles slowly.
const effort = 1

// stride is from one call that fails to the next where participants join each time.
const stride = 1

// rounds is how often a program is made where what it leaves behind is counted.
const rounds = 20

// open gives the device that the tests of this package run on: here the emulator; with the tag gpu a GPU.
func open(t testing.TB) (driver.GPU, driver.Compiler) {
	t.Helper()
	return emulatedGPU(t)
}

// ready compiles sources together, which costs the emulator less than one by one: it keeps what it has made.
func ready(t testing.TB, c driver.Compiler, sources []string, chip kernels.Chip) {
	t.Helper()
	if _, err := c.(*emulator.Compiler).CompileAll(sources, chip); err != nil {
		t.Fatal(err)
	}
}

// openFor gives the device of a participant.
func openFor(t testing.TB, _ int) (driver.GPU, driver.Compiler) { return open(t) }

// unread ends a test of files that the device does not read: the emulator reads all.
func unread(t testing.TB, err error) {
	t.Helper()
	t.Fatal(err)
}

// sizes are how many participants groups have.
func sizes(testing.TB) []int { return []int{1, 2, 3} }

// meshes are the meshes of programs.
func meshes(testing.TB) []graph.Mesh {
	return []graph.Mesh{{{Name: "a", Size: 3}, {Name: "b", Size: 2}}}
}
