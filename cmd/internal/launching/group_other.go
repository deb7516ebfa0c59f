//go:build !unix

package launching

import (
	"errors"
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

// A port is a free port of this host.
type port struct{ l net.Listener }

func newPort() (p port, number int, err error) {
	if p.l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return p, 0, err
	}
	return p, p.l.Addr().(*net.TCPAddr).Port, nil
}

// start starts participant 0, which takes the port itself: files cannot be handed on.
func (p port) start(c *exec.Cmd) error { return errors.Join(p.close(), c.Start()) }

func (p port) close() error { return p.l.Close() }
