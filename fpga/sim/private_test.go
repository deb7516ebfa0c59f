package sim

import (
	"os"
	"path/filepath"
	"testing"
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
