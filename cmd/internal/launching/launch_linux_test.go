package launching

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"fusec/cmd/internal/clitest"
	"fusec/kernels/group/rendezvous"
)

func init() { without["bind"] = bind }

// bind has participant 0 listen at the port by itself, and the other one call there.
func bind() error {
	at := net.JoinHostPort(os.Getenv(rendezvous.Address), os.Getenv(rendezvous.Port))
	if os.Getenv("RANK") == "0" {
		l, err := net.Listen("tcp", at)
		if err != nil {
			return err
		}
		defer l.Close()
		c, err := l.Accept()
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("heard"))
		return err
	}
	for {
		c, err := net.Dial("tcp", at)
		if err != nil { // it does not listen yet
			time.Sleep(time.Millisecond)
			continue
		}
		defer c.Close()
		said, err := io.ReadAll(c)
		fmt.Printf("%s at %s\n", said, at)
		return err
	}
}

// TestLaunchBinds: a program may open the port itself, in place of rendezvous.Join. Linux lets it share the port with the
// launcher's socket, which does not listen.
func TestLaunchBinds(t *testing.T) {
	t.Setenv("FUSEC_TEST_PARTICIPANT", "1")
	if out := clitest.Good(t, "launch", "--devices", "2", "--", os.Args[0], "bind"); !strings.HasPrefix(out, "heard at 127.0.0.1:") {
		t.Error(out)
	}
}
