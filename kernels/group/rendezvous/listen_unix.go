//go:build unix

package rendezvous

import (
	"os"
	"syscall"
)

// listenAt has a socket listen, if it does not yet.
func listenAt(f *os.File) error {
	return os.NewSyscallError("listen", syscall.Listen(int(f.Fd()), syscall.SOMAXCONN))
}
