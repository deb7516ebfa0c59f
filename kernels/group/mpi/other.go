//go:build !linux && !darwin

package mpi

import (
	"errors"
	"runtime"
	"time"

	"fusec/kernels/group"
)

type transport struct {
	group.Transport
	size int
}

func open(time.Duration) (*transport, error) {
	return nil, errors.New("groups of processes need MPI, which is not loaded on " + runtime.GOOS)
}
