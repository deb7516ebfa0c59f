package rendezvous_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"fusec/graph"
	"fusec/kernels/group"
	"fusec/kernels/group/grouptest"
	"fusec/kernels/group/rendezvous"
)

// free is an address of this host that nothing listens at.
func free(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// together opens a transport for each of n participants, and calls f for each.
func together(t testing.TB, n int, patience time.Duration, f func(g *group.Group) error) (errs []error) {
	t.Helper()
	at := free(t)
	var all sync.WaitGroup
	errs = make([]error, n)
	for r := range n {
		all.Go(func() {
			tr, err := rendezvous.Open(at, "secret", r, n, patience)
			if err != nil {
				errs[r] = err
				return
			}
			g := group.New(tr)
			errs[r] = f(g)
			if err := g.Close(); errs[r] == nil {
				errs[r] = err
			}
		})
	}
	all.Wait()
	return errs
}

// TestConforms is the conformance suite over TCP.
func TestConforms(t *testing.T) {
	for _, n := range []int{1, 2, 4, 8} {
		if err := errors.Join(together(t, n, 5*time.Minute, grouptest.Conforms)...); err != nil {
			t.Errorf("%d participants: %v", n, err)
		}
	}
}

// TestAbort ends the others with the error of one, and those that wait for one that has left or does not come.
func TestAbort(t *testing.T) {
	gather := func(g *group.Group) error { return g.All().Gather([]byte{1}, make([]byte, g.Size())) }
	for who := range 3 {
		errs := together(t, 3, 10*time.Second, func(g *group.Group) error {
			if err := gather(g); err != nil {
				return err
			}
			if g.Rank() == who {
				g.Abort(errors.New("out of cheese"))
				return nil
			}
			err := gather(g)
			if again := g.Failed(); again == nil {
				return errors.New("the group does not know that it has failed")
			}
			return err
		})
		for r, err := range errs {
			if r != who && (err == nil || !strings.Contains(err.Error(), fmt.Sprintf("participant %d is lost: out of cheese", who))) {
				t.Errorf("participant %d after %d has failed: %v", r, who, err)
			}
		}
	}
	errs := together(t, 3, 10*time.Second, func(g *group.Group) error {
		switch g.Rank() {
		case 2:
			return nil // it leaves
		case 1:
			return g.All().Gather([]byte{1}, make([]byte, 3))
		}
		time.Sleep(100 * time.Millisecond)
		return nil
	})
	if err := errs[1]; err == nil || !strings.Contains(err.Error(), "is lost: it has") {
		t.Errorf("after participants have left: %v", err)
	}
	gone := make(chan struct{})
	errs = together(t, 2, time.Second, func(g *group.Group) error {
		if g.Rank() == 0 {
			defer close(gone)
			return gather(g)
		}
		<-gone
		return nil
	})
	if err := errs[0]; err == nil ||
		!strings.Contains(err.Error(), "participant 1 is lost: it has not come to a collective operation within 1s") {
		t.Errorf("of one that does not come: %v", err)
	}
	errs = together(t, 2, 10*time.Second, func(g *group.Group) error {
		return g.All().Gather(make([]byte, 1+g.Rank()), make([]byte, 2+2*g.Rank()))
	})
	if err := errors.Join(errs...); err == nil || !strings.Contains(err.Error(), "it runs another program") {
		t.Errorf("of other lengths: %v", err)
	}
}

// TestLate names a participant that has not begun a run for which the others wait.
func TestLate(t *testing.T) {
	var begun sync.WaitGroup
	begun.Add(3)
	var asked sync.WaitGroup
	asked.Add(3)
	var others sync.WaitGroup
	others.Add(2)
	errs := together(t, 3, 10*time.Second, func(g *group.Group) error {
		defer func() {
			asked.Done()
			asked.Wait()
		}()
		again := sync.OnceFunc(others.Done)
		if g.Rank() != 1 {
			defer again()
		}
		run := g.Begin()
		begun.Done()
		begun.Wait()
		if err := g.Late(run, time.Hour); err != nil {
			return fmt.Errorf("all have begun: %w", err)
		}
		if g.Rank() == 1 {
			return nil
		}
		run = g.Begin()
		again()
		others.Wait()
		if err := g.Late(run, time.Millisecond); err != nil {
			return fmt.Errorf("after a short time: %w", err)
		}
		if err := g.Late(run, time.Hour); err == nil ||
			!strings.Contains(err.Error(), "participant 1 is lost: it has not come to a run") {
			return fmt.Errorf("participant 1 is late: error %v", err)
		}
		return nil
	})
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// TestStrangers takes neither callers without the token nor such as say something else for participants, and no participant takes
// a stranger for participant 0.
func TestStrangers(t *testing.T) {
	at := free(t)
	done := make(chan error, 2)
	go func() {
		tr, err := rendezvous.Open(at, "secret", 0, 2, 10*time.Second)
		if err == nil {
			err = group.New(tr).All().Gather([]byte{1}, make([]byte, 2))
		}
		done <- err
	}()
	for _, said := range []string{"", "GET / HTTP/1.0\r\n\r\n", strings.Repeat("x", 200)} {
		var c net.Conn
		var err error
		for range 100 {
			if c, err = net.Dial("tcp", at); err == nil {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, said)
		c.Close()
	}
	if _, err := rendezvous.Open(at, "guess", 1, 2, time.Second); err == nil || !strings.Contains(err.Error(), rendezvous.Token) {
		t.Errorf("with another token: %v", err)
	}
	tr, err := rendezvous.Open(at, "secret", 1, 2, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if err := group.New(tr).All().Gather([]byte{2}, make([]byte, 2)); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "fusec group 1\n"+strings.Repeat("n", 16)+strings.Repeat("p", 32))
		}
	}()
	if _, err := rendezvous.Open(l.Addr().String(), "secret", 1, 2, time.Second); err == nil ||
		!strings.Contains(err.Error(), "token") {
		t.Errorf("of a stranger: %v", err)
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{nil, "no launcher has started this process"},
		{map[string]string{"RANK": "1", "WORLD_SIZE": "2"}, "set MASTER_ADDR and MASTER_PORT"},
		{map[string]string{"RANK": "5", "WORLD_SIZE": "2"}, "rank \"5\" of \"2\""},
		{map[string]string{"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "1"},
			"set FUSEC_TOKEN to the same secret"},
	} {
		for _, name := range []string{"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "FUSEC_TOKEN",
			"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"} {
			t.Setenv(name, c.env[name])
		}
		if _, _, err := rendezvous.Join(time.Second); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: error %v, want one about %q", c.env, err, c.want)
		}
	}
	at := free(t)
	if _, err := rendezvous.Open(at, "", 0, 2, 100*time.Millisecond); err == nil ||
		!strings.Contains(err.Error(), "participant 1 is lost: it has not come") {
		t.Errorf("of one that does not come: %v", err)
	}
	if _, err := rendezvous.Open(at, "", 1, 2, 100*time.Millisecond); err == nil ||
		!strings.Contains(err.Error(), "participant 0 is lost: it has not answered") {
		t.Errorf("of a first that does not listen: %v", err)
	}
	if _, err := rendezvous.Open(at, "", 2, 2, 0); err == nil {
		t.Error("participant 2 of 2 is taken")
	}
}

// TestJoin joins by the variables of torchrun.
func TestJoin(t *testing.T) {
	host, port, err := net.SplitHostPort(free(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]string{"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": host, "MASTER_PORT": port,
		"FUSEC_TOKEN": "s", "OMPI_COMM_WORLD_RANK": "", "PMI_RANK": "", "SLURM_PROCID": ""} {
		t.Setenv(name, v)
	}
	done := make(chan error, 1)
	go func() {
		tr, err := rendezvous.Open(net.JoinHostPort(host, port), "s", 1, 2, 5*time.Second)
		if err == nil {
			g := group.New(tr)
			x := []byte{0, 0, 0, 0}
			err = errors.Join(g.All().Reduce(graph.Sum, graph.I32, []byte{2, 0, 0, 0}, x), g.Close())
			if x[0] != 3 {
				err = fmt.Errorf("the sum is %d", x[0])
			}
		}
		done <- err
	}()
	g, place, err := rendezvous.Join(5 * time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if place.Local != 0 || place.Launcher != "torchrun" || strconv.Itoa(place.Size) != "2" {
		t.Errorf("the place is %+v", place)
	}
	if err := errors.Join(g.All().Reduce(graph.Sum, graph.I32, []byte{1, 0, 0, 0}, make([]byte, 4)), g.Close(), <-done); err != nil {
		t.Error(err)
	}
}
