package emulator

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestFindCompiler takes what $CXX names, and says what is missing.
func TestFindCompiler(t *testing.T) {
	t.Setenv("CXX", "")
	t.Setenv("PATH", t.TempDir())
	_, err := findCompiler()
	if err == nil || !strings.Contains(err.Error(), "(g++, clang++): install g++, or set CXX") {
		t.Errorf("error %v", err)
	}
	own := filepath.Join(t.TempDir(), "own-c++")
	if err := os.WriteFile(own, nil, 0o777); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CXX", own)
	if p, err := findCompiler(); p != own || err != nil {
		t.Errorf("%s, %v", p, err)
	}
}

// TestFlags: an option of GCC is for the versions that know it.
func TestFlags(t *testing.T) {
	for said, want := range map[string]bool{
		"g++ (Debian 12.2.0-14+deb12u1) 12.2.0\nCopyright": true, "g++ (GCC) 10.5.0": false, "Debian clang version 14.0.6": false,
	} {
		if got := slices.Contains(flagsOf(said), quiet); got != want {
			t.Errorf("%q: %t", said, got)
		}
	}
}

// TestTidy removes what was not used for long, and keeps the rest.
func TestTidy(t *testing.T) {
	root := t.TempDir()
	long := time.Now().Add(-2 * idle)
	file := func(name string, old bool) string {
		t.Helper()
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, nil, 0o666); err != nil {
			t.Fatal(err)
		}
		if old {
			for _, p := range []string{p, filepath.Dir(p)} {
				if err := os.Chtimes(p, long, long); err != nil {
					t.Fatal(err)
				}
			}
		}
		return p
	}
	used, unused := file("now/used.so", false), file("now/unused.so", true)
	gone := file("before/gone.so", true)
	tidy(root)
	for p, want := range map[string]bool{used: true, unused: false, gone: false, filepath.Dir(used): true} {
		if _, err := os.Stat(p); (err == nil) != want {
			t.Errorf("%s: %v", p, err)
		}
	}
}
