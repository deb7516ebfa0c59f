//go:build unix

package launching

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"syscall"

	"fusec/kernels/group/rendezvous"
)

// forwarded are the signals that participants get, too.
var forwarded = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}

// inGroup gives a participant a process group of its own, so that a signal of the terminal comes to it once.
func inGroup(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// send sends a signal to a participant and what it has started.
func send(c *exec.Cmd, s os.Signal) { _ = syscall.Kill(-c.Process.Pid, s.(syscall.Signal)) }

// A port is a free port of this host, at which nothing listens. The system gives it to no other program. On Linux a program that
// asks for it and sets SO_REUSEADDR, as most do, gets it nonetheless, until somebody listens there.
type port struct{ f *os.File }

func newPort() (p port, number int, err error) {
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return p, 0, os.NewSyscallError("socket", err)
	}
	p.f = os.NewFile(uintptr(fd), "port")
	if err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err == nil {
		err = syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte(net.IPv4(127, 0, 0, 1).To4())})
	}
	var at syscall.Sockaddr
	if err == nil {
		at, err = syscall.Getsockname(fd)
	}
	if err != nil {
		return p, 0, errors.Join(os.NewSyscallError("bind", err), p.close())
	}
	return p, at.(*syscall.SockaddrInet4).Port, nil
}

// start starts participant 0, and hands the port on.
func (p port) start(c *exec.Cmd) error {
	c.ExtraFiles = []*os.File{p.f} // number 3
	c.Env = append(c.Env, rendezvous.Listener+"=3")
	return errors.Join(c.Start(), p.close())
}

func (p port) close() error { return p.f.Close() }
