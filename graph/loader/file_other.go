//go:build !linux

package loader

import (
	"errors"
	"math"
	"runtime"
)

// On other systems than Linux, files are read with ordinary system calls.

var errSystem = errors.New("not on " + runtime.GOOS)

// physicalMemory is not known: no file counts as large.
func physicalMemory() int64 { return math.MaxInt64 }

func (f *file) mapped() error                           { return errSystem }
func (f *file) unmap() error                            { return nil }
func (f *file) announce(*column, []int64, *scratch)     {}
func (f *file) release(off, n int64)                    {}
func (f *file) direct() error                           { return errSystem }
func (f *file) readDirect([]byte, int64) (int64, error) { return 0, errSystem }

func (f *file) together(*scratch, int64) int          { return 1 }
func (f *file) readRing(*ring, []extent) (int, error) { return 0, errSystem }

// ring is not on these systems.
type ring struct{}

func (*ring) close() error { return nil }
