// Package cufile finds and loads cuFile, the library of NVIDIA's GPUDirect Storage, when a program opens a file for reads into a
// GPU's memory. Package gpu calls it.
package cufile

import (
	"fmt"
	"os"
	"syscall"

	"fusec/lowering/cuda/driver/find"
)

// Variable is the environment variable that names cuFile's file or its folder.
const Variable = "FUSEC_CUFILE"

// Variables by which cuFile itself is told whether it may read into the host's memory first, and where it writes its log, which is
// the present folder otherwise.
const (
	compatible = "CUFILE_ALLOW_COMPAT_MODE"
	logs       = "CUFILE_LOGFILE_PATH"
)

var search = find.Search{
	What: "cuFile, the library of NVIDIA's GPUDirect Storage", Names: []string{"libcufile.so.0"}, Variable: Variable,
	Python: []string{"cufile"}, Advice: "install it (it comes with CUDA)",
}

// Library is a loaded cuFile, whose driver is open. It is never unloaded.
type Library struct {
	Path       string
	register   func(handle *uintptr, of *descriptor) status
	deregister func(handle uintptr)
	read       func(handle, base, bytes uintptr, offset, at int64) int
}

// descriptor is cuFile's CUfileDescr_t, of a file by its number.
type descriptor struct {
	kind int32
	_    int32
	file uintptr
	_    uintptr // functions of a file system in the program
}

const byNumber = 1 // CU_FILE_HANDLE_TYPE_OPAQUE_FD

// status is cuFile's CUfileError_t: a result of its own in the lower half, and one of CUDA's driver in the upper.
type status uint64

// reasons are what results say, as far as they are about machine and file.
var reasons = map[int]string{
	5001: "the kernel has no driver nvidia-fs",
	5007: "this machine has no GPUDirect Storage",
	5008: "GPUDirect Storage does not support this file",
	5009: "the GPU has no GPUDirect Storage",
	5018: "GPUDirect Storage does not support files of this type",
	5033: "the driver nvidia-fs does not start",
	5034: "GPUDirect Storage is disabled for this file",
}

func (s status) err(call string) error {
	code, driver := int(int32(s)), int(int32(s>>32))
	switch {
	case code == 0:
		return nil
	case reasons[code] != "":
		return fmt.Errorf("%s: %s (result %d)", call, reasons[code], code)
	}
	return fmt.Errorf("%s: results %d and %d", call, code, driver)
}

// OpenFile opens a file. The calling thread has the context of the GPU that will read it.
func (l *Library) OpenFile(path string) (*File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|direct, 0)
	if err != nil {
		return nil, err
	}
	r := &File{l: l, f: f}
	if err := l.register(&r.handle, &descriptor{kind: byNumber, file: f.Fd()}).err("cuFileHandleRegister"); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// File is an open file. Several goroutines may read it.
type File struct {
	l      *Library
	f      *os.File
	handle uintptr
}

// Read reads bytes from off on into the GPU's memory at base. A file that ends before is an error.
func (f *File) Read(base uintptr, off, bytes int64) error {
	for done := int64(0); done < bytes; {
		n := f.l.read(f.handle, base, uintptr(bytes-done), off+done, done)
		switch {
		case n > 0:
			done += int64(n)
		case n == 0:
			return fmt.Errorf("%s: it ends at byte %d, and %d more were to be read", f.f.Name(), off+done, bytes-done)
		case -n >= 5000:
			return fmt.Errorf("%s: %w", f.f.Name(), status(-n).err("cuFileRead"))
		default:
			return fmt.Errorf("%s: cuFileRead: %w", f.f.Name(), syscall.Errno(-n))
		}
	}
	return nil
}

// Close closes the file, which nobody reads.
func (f *File) Close() error {
	f.l.deregister(f.handle)
	return f.f.Close()
}
