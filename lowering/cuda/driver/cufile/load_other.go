//go:build !linux || !(amd64 || arm64)

package cufile

import "errors"

const direct = 0

// Open returns an error: cuFile is for Linux.
func Open() (*Library, error) { return nil, errors.New("cuFile is for Linux on amd64 and arm64") }
