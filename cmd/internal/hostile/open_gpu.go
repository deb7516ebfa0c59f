//go:build gpu

package main

import (
	"sync"

	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/driver/cache"
	"fusec/lowering/cuda/driver/gpu"
	"fusec/lowering/cuda/driver/nvrtc"
)

// lasting says that a GPU serves the process for as long as it lasts: after an access to memory that is not there the
// driver opens no other.
const lasting = true

// A shared GPU stays open when a case has done with it.
type shared struct{ driver.GPU }

func (shared) Close() error { return nil }

type opened struct {
	driver.GPU
	driver.Compiler
}

// once opens the GPU: that takes the driver longer than most cases run.
var once = sync.OnceValues(func() (opened, error) {
	c, err := nvrtc.Open()
	if err != nil {
		return opened{}, err
	}
	dir, err := cache.Folder()
	if err != nil {
		return opened{}, err
	}
	g, err := gpu.Open(0)
	return opened{shared{g}, cache.New(c, dir)}, err
})

func openGPU() (driver.GPU, driver.Compiler, error) {
	o, err := once()
	return o.GPU, o.Compiler, err
}
