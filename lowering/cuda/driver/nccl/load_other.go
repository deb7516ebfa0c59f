//go:build !linux || !(amd64 || arm64)

package nccl

import "errors"

// Open returns an error: NCCL is for Linux.
func Open() (*Library, error) { return nil, errors.New("NCCL is for Linux on amd64 and arm64") }
