package training

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
)

// said is what a command says while it runs.
type said struct {
	lock sync.Mutex
	text bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.text.Write(p)
}

func (s *said) String() string {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.text.String()
}

// A run that is served answers while it goes on.
func TestListen(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var stderr said
	ended := make(chan int, 1)
	go func() {
		ended <- cli.RunCommandLine(ctx, clitest.TestedCommands, []string{"train", "karate", "--steps", "1000000", "--workers", "1",
			"--listen", "localhost:0"}, strings.NewReader(""), io.Discard, &stderr)
	}()
	at := regexp.MustCompile(`http://\S+/debug/fusec`)
	deadline := time.Now().Add(30 * time.Second)
	for at.FindString(stderr.String()) == "" && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	url := at.FindString(stderr.String())
	get := func(path string) string {
		r, err := http.Get(url + path)
		if err != nil {
			t.Fatalf("%v; the command said %q", err, stderr.String())
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	for metrics := ""; !strings.Contains(metrics, "\nfusec_loss "); time.Sleep(10 * time.Millisecond) {
		if metrics = get("/metrics"); time.Now().After(deadline) {
			t.Fatalf("no loss in\n%s", metrics)
		}
	}
	if page := get(""); !strings.HasPrefix(page, "<!doctype html>") {
		t.Errorf("the page is %.100q", page)
	}
	stop()
	if code := <-ended; code != cli.ExitFailure {
		t.Errorf("exit code %d of a run that was stopped", code)
	}
}

func TestListenTaken(t *testing.T) {
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	clitest.Bad(t, clitest.FusecRun(t, "train", "karate", "--steps", "1", "--listen", l.Addr().String()), cli.ExitFailure,
		"--listen "+l.Addr().String())
}
