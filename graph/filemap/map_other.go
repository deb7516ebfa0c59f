//go:build !unix

package filemap

import (
	"io"
	"os"
)

func contents(f *os.File, size int) (data []byte, mapped bool, err error) {
	data = make([]byte, size)
	_, err = io.ReadFull(f, data)
	return data, false, err
}

func unmap([]byte) error { return nil }
