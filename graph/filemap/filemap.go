// Package filemap gives the bytes of a file: mapped into memory where the system can do so, else read.
package filemap

import (
	"errors"
	"fmt"
	"math"
	"os"
)

// File is the bytes of a file. They are only read: where the file is mapped, writing to them ends the process. A file must
// not be shortened while it is open.
type File struct {
	Data   []byte
	mapped bool
}

// Open maps the regular file at path. Errors name it.
func Open(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m, err := open(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

func open(f *os.File) (*File, error) {
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("is not a regular file")
	case info.Size() > math.MaxInt:
		return nil, errors.New("is larger than the address space")
	case info.Size() == 0:
		return &File{}, nil
	}
	data, mapped, err := contents(f, int(info.Size()))
	return &File{data, mapped}, err
}

// Close gives the memory back. Data must not be used any more.
func (f *File) Close() error {
	data, mapped := f.Data, f.mapped
	f.Data, f.mapped = nil, false
	if !mapped {
		return nil
	}
	return unmap(data)
}
