//go:build !linux || !(amd64 || arm64)

package emulator

import (
	"fmt"
	"runtime"

	"fusec/lowering/cuda/driver"
)

// engine is never made here.
type engine struct{}

func loadRuntime(*Compiler) (*engine, error) {
	return nil, fmt.Errorf("it runs on Linux (amd64, arm64), not on %s (%s)", runtime.GOOS, runtime.GOARCH)
}

func newGPU(Options, *Compiler, *engine) driver.GPU { return nil }
