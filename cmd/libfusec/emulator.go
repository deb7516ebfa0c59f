//go:build emulator

package main

import (
	"fusec/cmd/internal/capi"
	"fusec/lowering"
	"fusec/lowering/cuda"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/emulator"
)

// With the tag emulator, target cuda is the emulator, in which addresses are those of the process: for tests without a GPU.
func init() {
	capi.ExtraOptions = []lowering.TargetOption{cuda.Driver(func(int) (driver.GPU, driver.Compiler, error) {
		return emulator.Open(emulator.Options{})
	})}
}
