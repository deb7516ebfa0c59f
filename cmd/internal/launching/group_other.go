//go:build !unix

package launching

import (
	"net"
	"os"
	"os/exec"
)

// forwarded are the signals that participants get, too.
var forwarded = []os.Signal{os.Interrupt}

// inGroup does nothing where there are no process groups.
func inGroup(*exec.Cmd) {}

// send ends a participant: other signals are not there.
func send(c *exec.Cmd, _ os.Signal) { _ = c.Process.Kill() }

// startListening starts participant 0, which listens itself: files cannot be handed on.
func startListening(c *exec.Cmd, l *net.TCPListener) error {
	if err := l.Close(); err != nil {
		return err
	}
	return c.Start()
}
