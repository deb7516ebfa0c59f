//go:build gpu

package cuda_test

import (
	"testing"

	"fusec/graph"
	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/driver/cache"
	"fusec/lowering/cuda/driver/gpu"
	"fusec/lowering/cuda/driver/nvrtc"
)

// effort scales how much is tried.
const effort = 4

// stride is from one call that fails to the next where participants join each time: NCCL takes half a second for that.
const stride = 4

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

// openFor gives the device of a participant: each has a GPU, and all are of this process.
func openFor(t testing.TB, rank int) (driver.GPU, driver.Compiler) {
	t.Helper()
	c, err := nvrtc.Open()
	if err != nil {
		t.Fatal(err)
	}
	g, err := gpu.OpenMapped(rank)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := cache.Folder()
	if err != nil {
		t.Fatal(err)
	}
	return g, cache.New(c, dir)
}

// unread skips a test of files on a machine whose GPU reads none, for want of GPUDirect Storage. The same test runs whole on the
// emulator.
func unread(t testing.TB, err error) {
	t.Helper()
	t.Skip(err)
}

// sizes are how many participants groups have: up to the number of GPUs.
func sizes(t testing.TB) (list []int) {
	t.Helper()
	n, err := gpu.Count()
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		list = append(list, i+1)
	}
	return list
}

// meshes are the meshes of programs, of all GPUs.
func meshes(t testing.TB) []graph.Mesh {
	t.Helper()
	return []graph.Mesh{{{Name: "a", Size: len(sizes(t))}, {Name: "b", Size: 1}}}
}
