//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package atomicfile

import (
	"errors"
	"os"
)

// lock reports that files cannot be locked.
func lock(*os.File) (free bool, err error) { return false, errors.ErrUnsupported }

// rename renames the file to its target. Windows cannot rename an open file.
func (f *File) rename() error {
	if err := f.tmp.Close(); err != nil {
		return err
	}
	return os.Rename(f.tmp.Name(), f.path)
}
