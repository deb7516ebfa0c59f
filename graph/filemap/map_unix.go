//go:build unix

package filemap

import (
	"os"

	"golang.org/x/sys/unix"
)

func contents(f *os.File, size int) (data []byte, mapped bool, err error) {
	data, err = unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	return data, err == nil, err
}

func unmap(data []byte) error { return unix.Munmap(data) }
