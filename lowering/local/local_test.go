package local

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What is written is read back, under a name without spaces and slashes, and a parser's error names the file.
func TestTuning(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	t.Setenv(Variable, dir)
	parse := func(text string) (*string, error) {
		if text == "" {
			return nil, errors.New("it is empty")
		}
		return &text, nil
	}
	const chip = "a/b c"
	if got, err := ReadTuning("cpu", chip, parse); got != nil || err != nil {
		t.Errorf("nothing was kept: %v, %v", got, err)
	}
	path, err := WriteTuning("cpu", chip, "text")
	if err != nil || path != filepath.Join(dir, "tuning-a-b-c.txt") {
		t.Fatalf("%s: %v", path, err)
	}
	if got, err := ReadTuning("cpu", chip, parse); err != nil || *got != "text" {
		t.Errorf("%v: %v", got, err)
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadTuning("cpu", chip, parse); err == nil || !strings.Contains(err.Error(), path+": it is empty") {
		t.Error(err)
	}
}

// Each target has a folder in the user's folder for caches.
func TestFolder(t *testing.T) {
	home := t.TempDir()
	t.Setenv(Variable, "")
	t.Setenv("XDG_CACHE_HOME", home)
	t.Setenv("HOME", home)
	dir, err := Folder("cpu")
	if err != nil || !strings.HasPrefix(dir, home) || !strings.HasSuffix(dir, filepath.Join("fusec", "cpu")) {
		t.Errorf("%s: %v", dir, err)
	}
	if Processor() == "" {
		t.Error("the processor has no name")
	}
}
