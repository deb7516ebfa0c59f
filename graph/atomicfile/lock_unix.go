//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package atomicfile

import (
	"os"
	"syscall"
)

// lock takes the lock of a file that is open, and reports whether it was free. The lock ends with the descriptor: at
// the latest when the process ends. An error says that the file system has no locks.
func lock(f *os.File) (free bool, err error) {
	for {
		switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err {
		case nil:
			return true, nil
		case syscall.EWOULDBLOCK:
			return false, nil
		case syscall.EINTR:
		default:
			return false, err
		}
	}
}

// rename puts the file in its place while it is locked. It has been brought to the disk: closing it adds nothing.
func (f *File) rename() error {
	defer f.tmp.Close()
	return os.Rename(f.tmp.Name(), f.path)
}
