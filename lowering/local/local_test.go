package local

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	_ "fusec/graph/graphtest/untuned"
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
	got, err := ReadTuning("cpu", chip, parse)
	if err != nil || *got != "text" {
		t.Errorf("%v: %v", got, err)
	}
	if again, err := ReadTuning("cpu", chip, parse); err != nil || again != got {
		t.Errorf("the same file gave %p and %p: %v", got, again, err)
	}
	if n, err := ReadTuning("cpu", chip, func(string) (*int, error) { return new(3), nil }); err != nil || *n != 3 {
		t.Errorf("by another parser %v: %v", n, err)
	}
	if _, err := WriteTuning("cpu", chip, "other"); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadTuning("cpu", chip, parse); err != nil || *got != "other" {
		t.Errorf("%v: %v", got, err)
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadTuning("cpu", chip, parse); err == nil || !strings.Contains(err.Error(), path+": it is empty") {
		t.Error(err)
	}
}

// Tests ignore the user's tunings.
func TestUntuned(t *testing.T) {
	home := t.TempDir()
	t.Setenv(Variable, "")
	t.Setenv("XDG_CACHE_HOME", home)
	t.Setenv("HOME", home)
	if _, err := WriteTuning("cpu", "chip", "text"); err != nil {
		t.Fatal(err)
	}
	parse := func(text string) (*string, error) { return &text, nil }
	if got, err := ReadTuning("cpu", "chip", parse); got != nil || err != nil {
		t.Errorf("a test reads %v, %v", got, err)
	}
	t.Setenv(Untuned, "")
	if got, err := ReadTuning("cpu", "chip", parse); got == nil || err != nil {
		t.Errorf("without %s: %v, %v", Untuned, got, err)
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

// TestProcessorOf has what Linux tells of processors of several makers.
func TestProcessorOf(t *testing.T) {
	for want, info := range map[string]map[string]string{
		"Intel Xeon family 6 model 143":                 {"model name": "Intel  Xeon", "cpu family": "6", "model": "143"},
		"AMD EPYC 9654":                                 {"model name": "AMD EPYC 9654", "cpu family": "25", "model": "17"},
		"Raspberry Pi 5":                                {"Model": "Raspberry Pi 5", "CPU implementer": "0x41", "CPU part": "0xd0b"},
		runtime.GOARCH + " implementer 0x41 part 0xd40": {"CPU implementer": "0x41", "CPU part": "0xd40"},
		runtime.GOARCH:                                  {},
	} {
		if got := processorOf(info); got != want {
			t.Errorf("%v is %q, want %q", info, got, want)
		}
	}
}
