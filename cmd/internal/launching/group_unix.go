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

// startListening starts participant 0 with what listens for it.
func startListening(c *exec.Cmd, l *net.TCPListener) error {
	f, err := l.File()
	if err != nil {
		return err
	}
	c.ExtraFiles = []*os.File{f} // number 3
	c.Env = append(c.Env, rendezvous.Listener+"=3")
	err = c.Start()
	return errors.Join(err, f.Close(), l.Close())
}
