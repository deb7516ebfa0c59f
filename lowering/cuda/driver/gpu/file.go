//go:build gpu

package gpu

import (
	"errors"

	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/driver/cufile"
)

// file is a file that cuFile reads.
type file struct {
	g *device
	f *cufile.File
}

// tried is how many bytes of a file are read to find out whether the GPU reads it.
const tried = 1

// OpenFile implements [driver.GPU].
func (g *device) OpenFile(path string) (driver.File, error) {
	l, err := cufile.Open()
	if err != nil {
		return nil, err
	}
	r := &file{g: g}
	if err := g.do("cuFileHandleRegister", func() (err error) { r.f, err = l.OpenFile(path); return err }); err != nil {
		return nil, err
	}
	at, err := g.Alloc(tried)
	if err == nil {
		err = errors.Join(r.Read(at, 0, tried), g.Free(at))
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Read implements [driver.File].
func (f *file) Read(dst driver.Ptr, off, bytes int64) error {
	return f.g.do("cuFileRead", func() error { return f.f.Read(uintptr(dst), off, bytes) })
}

// Close implements [driver.File].
func (f *file) Close() error { return f.f.Close() }
