package cli

import (
	"bytes"
	"strings"
	"testing"
)

func TestPanicIsAnError(t *testing.T) {
	err := guarded(nil, []string{"help"}) // there is nothing to print to
	if err == nil || !strings.HasPrefix(err.Error(), "internal error: ") {
		t.Errorf("error %v", err)
	}
	var stderr bytes.Buffer
	if code := report(&stderr, err); code != ExitFailure {
		t.Errorf("exit code %d", code)
	}
}

func TestNearest(t *testing.T) {
	known := []string{"dump", "explain", "run", "bench"}
	for name, want := range map[string]string{
		"dump": "dump", "dmup": "dump", "dum": "dump", "rn": "run", "explian": "explain", "ex": "explain", "benchmark": "", "zzz": "",
		"": "", "x": "",
	} {
		if got := nearest(name, known); got != want {
			t.Errorf("nearest %q is %q, want %q", name, got, want)
		}
	}
	if d := distance("kitten", "sitting"); d != 3 {
		t.Errorf("distance %d", d)
	}
}
