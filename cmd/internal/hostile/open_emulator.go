//go:build !gpu

package main

import (
	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/emulator"
)

func openGPU() (driver.GPU, driver.Compiler, error) { return emulator.Open(emulator.Options{}) }
