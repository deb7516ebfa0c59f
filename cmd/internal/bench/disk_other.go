//go:build !linux

package bench

import (
	"context"
	"errors"
)

// openDisk is only for Linux.
func openDisk(context.Context, string) (func() (int64, error), func() error, error) {
	return nil, nil, &cannot{errors.New("reads past the page cache are measured on Linux only")}
}

// freeSpace is only for Linux; elsewhere a full disk shows when it is full.
func freeSpace(string) (int64, error) { return 0, errors.ErrUnsupported }
