//go:build !gpu

package main

import (
	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/emulator"
)

// lasting says that a GPU serves the process for as long as it lasts: an emulator that is lost gives way to another.
const lasting = false

func openGPU() (driver.GPU, driver.Compiler, error) { return emulator.Open(emulator.Options{}) }
