package graph_test

import (
	"bytes"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"fusec/graph"
)

// TestFullDisk saves in a process that may write only the beginning of a file.
func TestFullDisk(t *testing.T) {
	const env = "GRAPH_TEST_FULL_DISK"
	if path := os.Getenv(env); path != "" {
		signal.Ignore(syscall.SIGXFSZ)
		var old syscall.Rlimit
		if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
			t.Fatal(err)
		}
		g, weights := model(t)
		weights["w"].SetFloat(0, 99)
		for _, room := range []uint64{0, 100, 2000} { // at last for the text, but not for the weights
			if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: room, Max: old.Max}); err != nil {
				t.Fatal(err)
			}
			err := graph.Save(path, g, weights)
			if e := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &old); e != nil {
				t.Fatal(e)
			}
			if err == nil || !strings.Contains(err.Error(), "too large") {
				t.Errorf("room for %d bytes: error %v", room, err)
			}
		}
		return
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "m.graph")
	g, weights := model(t)
	if err := graph.Save(path, g, weights); err != nil {
		t.Fatal(err)
	}
	oldText, _ := os.ReadFile(path)
	oldWeights, _ := os.ReadFile(graph.WeightsPath(path))
	cmd := exec.Command(os.Args[0], "-test.run=^TestFullDisk$", "-test.v")
	cmd.Env = append(os.Environ(), env+"="+path)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	newText, _ := os.ReadFile(path)
	newWeights, _ := os.ReadFile(graph.WeightsPath(path))
	if !bytes.Equal(oldText, newText) || !bytes.Equal(oldWeights, newWeights) {
		t.Error("a full disk changed a file")
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 2 {
		t.Errorf("left behind: %v", entries)
	}
}
