//go:build gpu

package main

import (
	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/driver/cache"
	"fusec/lowering/cuda/driver/gpu"
	"fusec/lowering/cuda/driver/nvrtc"
)

func openGPU() (driver.GPU, driver.Compiler, error) {
	c, err := nvrtc.Open()
	if err != nil {
		return nil, nil, err
	}
	dir, err := cache.Folder()
	if err != nil {
		return nil, nil, err
	}
	g, err := gpu.Open(0)
	return g, cache.New(c, dir), err
}
