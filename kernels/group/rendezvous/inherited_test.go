//go:build unix

package rendezvous_test

import (
	"errors"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"fusec/kernels/group"
	"fusec/kernels/group/grouptest"
	"fusec/kernels/group/rendezvous"
)

// listening is an address at which this process listens already, and the number of a file of that.
func listening(t *testing.T) (address string, file int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if file, err = syscall.Dup(int(f.Fd())); err != nil {
		t.Fatal(err)
	}
	return l.Addr().String(), file
}

// TestInherited: participant 0 takes what its launcher listens at, once.
func TestInherited(t *testing.T) {
	at, file := listening(t)
	t.Setenv(rendezvous.Listener, strconv.Itoa(file))
	var all sync.WaitGroup
	errs := make([]error, 2)
	for r := range errs {
		all.Go(func() {
			tr, err := rendezvous.Open(at, "secret", r, len(errs), time.Minute)
			if err == nil {
				g := group.New(tr)
				err = errors.Join(grouptest.Conforms(g), g.Close())
			}
			errs[r] = err
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	if os.Getenv(rendezvous.Listener) != "" {
		t.Error("it would be taken again")
	}
}

// TestInheritedRefused: what does not listen at the address is an error.
func TestInheritedRefused(t *testing.T) {
	_, file := listening(t)
	for value, want := range map[string]string{"three": `is "three": want the number of a file`,
		strconv.Itoa(file): "and not at 127.0.0.1:9",
		"65000":            "with which nothing can listen"} {
		t.Setenv(rendezvous.Listener, value)
		if _, err := rendezvous.Open("127.0.0.1:9", "secret", 0, 2, time.Second); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", value, err, want)
		}
	}
}
