//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package atomicfile

import (
	"os"
	"syscall"
)

// lock takes the lock of a file that is open, and reports whether it was free. The lock ends with the descriptor: at
// the latest when the process ends. An error means that the file system has no locks.
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

// rename renames the file to its target while it is locked. It has been synced, so closing it writes nothing.
func (f *File) rename() error {
	defer f.tmp.Close()
	return os.Rename(f.tmp.Name(), f.path)
}
