//go:build !gpu

package gpu

import (
	"errors"

	"fusec/lowering/cuda/driver"
)

var errAbsent = errors.New("this program was built without CUDA: build it with `make gpu` " +
	"(the tag gpu, where the headers of CUDA 12 or 13 are installed)")

// Open returns an error: the program was built without the tag gpu.
func Open(index int) (driver.GPU, error) { return nil, errAbsent }

// OpenPrimary returns an error, as Open does.
func OpenPrimary(index int) (driver.GPU, error) { return nil, errAbsent }

// OpenMapped returns an error, as Open does.
func OpenMapped(index int) (driver.GPU, error) { return nil, errAbsent }

// Count returns an error: the program was built without the tag gpu.
func Count() (int, error) { return 0, errAbsent }
