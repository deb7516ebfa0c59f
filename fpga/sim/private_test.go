package sim

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"fusec/fpga/testtools"
)

// TestPrivate makes the folder of cached simulators, which are run, one that nobody else writes to.
func TestPrivate(t *testing.T) {
	fresh, old := filepath.Join(t.TempDir(), "a", "b"), t.TempDir()
	if err := os.Chmod(old, 0o777); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]os.FileMode{fresh: 0o700, old: 0o755} {
		if err := private(dir); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has the permissions %o, want %o", dir, got, want)
		}
	}
	file := filepath.Join(old, "file")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if private(file) == nil || private(filepath.Join(file, "below")) == nil {
		t.Error("a file was taken for a folder")
	}
}

// TestCached makes a folder of the cache once, and again when anything in it has changed.
func TestCached(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "simulator-1")
	program := filepath.Join(dir, "simulator")
	made := 0
	b := builder{log: func(string) {}}
	cached := func() {
		t.Helper()
		if err := b.cached(context.Background(), dir, func() error {
			made++
			if err := os.Mkdir(dir, 0o777); err != nil {
				return err
			}
			if err := os.WriteFile(program, []byte("program"), 0o777); err != nil {
				return err
			}
			return seal(dir)
		}); err != nil {
			t.Fatal(err)
		}
	}
	cached()
	cached()
	if made != 1 {
		t.Fatalf("it was made %d times", made)
	}
	for name, damage := range map[string]func() error{
		"a changed byte":   func() error { return os.WriteFile(program, []byte("progrAm"), 0o777) },
		"a shorter file":   func() error { return os.Truncate(program, 3) },
		"a permission":     func() error { return os.Chmod(program, 0o600) },
		"a missing file":   func() error { return os.Remove(program) },
		"a further file":   func() error { return os.WriteFile(filepath.Join(dir, "more"), nil, 0o666) },
		"no checksum":      func() error { return os.Remove(filepath.Join(dir, sealName)) },
		"a wrong checksum": func() error { return os.WriteFile(filepath.Join(dir, sealName), []byte("0"), 0o666) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		before := made
		cached()
		cached()
		if made != before+1 || !intact(dir) {
			t.Errorf("%s: it was made %d times, want once", name, made-before)
		}
	}
}

// TestReplaced puts another program in the place of a cached one: the next build does not give it to be run.
func TestReplaced(t *testing.T) {
	testtools.Need(t, "verilator", "g++")
	var log strings.Builder
	o := Options{Sources: fstest.MapFS{"tiny.sv": {Data: []byte("module tiny(input a, output b); assign b = ~a; endmodule\n")}},
		Log: func(line string) { log.WriteString(line + "\n") }}
	b := Bench{Top: "tiny", Main: []byte(`#include "Vtiny.h"
#include <cstdio>
int main() { Vtiny m; m.a = 0; m.eval(); std::printf("%d\n", m.b); }
`)}
	said := func() (program, out string) {
		t.Helper()
		program, err := BuildBench(context.Background(), configs[0], o, b)
		if err != nil {
			t.Fatal(err)
		}
		text, err := exec.Command(program).Output()
		if err != nil {
			t.Fatal(err)
		}
		return program, string(text)
	}
	program, want := said()
	if err := os.Remove(program); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho replaced\n"), 0o777); err != nil {
		t.Fatal(err)
	}
	if _, got := said(); got != want || want != "1\n" {
		t.Errorf("the program prints %q, and %q once it was replaced", want, got)
	}
	if !strings.Contains(log.String(), "is not as it was built") {
		t.Errorf("the log does not tell why it was built again:\n%s", &log)
	}
}
