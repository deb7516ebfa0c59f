package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fusec"
)

func TestDumpGoldens(t *testing.T) {
	golden(t, "mlp.dot", good(t, "dump", bare))
	golden(t, "mlp-import.dot", good(t, "dump", bare, "--stage", "import"))
	golden(t, "mlp.txt", good(t, "dump", bare, "--all", "--format", "text"))
}

func TestDumpIsDeterministic(t *testing.T) {
	for _, args := range [][]string{{}, {"--format", "json", "--all"}, {"--format", "svg"}, {"--stage", "raise", "--format", "text"}} {
		args = append([]string{"dump", bare}, args...)
		first := good(t, args...)
		if good(t, args...) != first {
			t.Errorf("fusec %s prints something else the second time", strings.Join(args, " "))
		}
	}
}

func TestDumpFormats(t *testing.T) {
	for format, begin := range map[string]string{"dot": "digraph", "svg": "<?xml", "png": "\x89PNG", "text": "stage 2 of ", "json": "{"} {
		if got := good(t, "dump", bare, "--stage", "2", "--format", format); !strings.HasPrefix(got, begin) {
			t.Errorf("%s begins with %.20q", format, got)
		}
	}
	// The extension of the file decides where --format does not.
	dir := t.TempDir()
	for name, begin := range map[string]string{"x.svg": "<?xml", "x.txt": "stage", "x.json": "{", "x.dot": "digraph", "x": "digraph"} {
		path := filepath.Join(dir, name)
		if got := good(t, "dump", bare, "-o", path); got != "" {
			t.Errorf("it printed %.20q", got)
		}
		if text, err := os.ReadFile(path); err != nil || !bytes.HasPrefix(text, []byte(begin)) {
			t.Errorf("%s begins with %.20q, %v", name, text, err)
		}
	}
	if good(t, "dump", bare, "-o", "-") != good(t, "dump", bare) {
		t.Error("-o - is not standard output")
	}
}

func TestDumpAll(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "stages")
	good(t, "dump", bare, "--all", "-o", dir)
	var want []string
	for i, name := range append([]string{"import"}, fusec.Passes()...) {
		want = append(want, fmt.Sprintf("%02d-%s.svg", i+1, name))
	}
	if got := fileNames(t, dir); strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("files %v, want %v", got, want)
	}
	var trace struct {
		Schema string
		Stages []struct{ Name string }
	}
	if err := json.Unmarshal([]byte(good(t, "dump", bare, "--all", "--format", "json")), &trace); err != nil {
		t.Fatal(err)
	}
	if len(trace.Stages) != len(want) || trace.Schema == "" {
		t.Errorf("%d stages, schema %q", len(trace.Stages), trace.Schema)
	}
}

func TestDumpDisable(t *testing.T) {
	with, without := good(t, "dump", bare, "--format", "text"), good(t, "dump", bare, "--format", "text", "--disable", "fuse-regions,raise", "--verify")
	if !strings.Contains(with, "fusion") || strings.Contains(without, "fusion") {
		t.Error("--disable fuse-regions changed nothing")
	}
	bad(t, fusecRun(t, "dump", bare, "--disable", "raise", "--stage", "raise"), exitUsage, `there is no stage "raise"`)
}

func TestDumpMeasured(t *testing.T) {
	for _, path := range []string{bare, model(t, nil)} { // on random weights, and on its own
		var trace struct {
			Program struct {
				Launches []struct {
					Measured int64 `json:"measured_ns"`
				}
			}
		}
		if err := json.Unmarshal([]byte(good(t, "dump", path, "--measured", "--format", "json")), &trace); err != nil {
			t.Fatal(err)
		}
		if len(trace.Program.Launches) == 0 {
			t.Fatal("no launches")
		}
		for i, l := range trace.Program.Launches {
			if l.Measured <= 0 {
				t.Errorf("launch %d took %d ns", i+1, l.Measured)
			}
		}
	}
	// Weights that are wrong are not replaced by random ones.
	path := model(t, nil)
	if err := os.WriteFile(strings.TrimSuffix(path, ".graph")+".safetensors", []byte("junk"), 0o666); err != nil {
		t.Fatal(err)
	}
	bad(t, fusecRun(t, "dump", path, "--measured"), exitFailure, "mlp.safetensors")
}

func TestDumpStandardInput(t *testing.T) {
	text, err := os.ReadFile(bare)
	if err != nil {
		t.Fatal(err)
	}
	if r := fusecIn(t, string(text), "dump", "-"); r.code != exitOK || r.out != good(t, "dump", bare) {
		t.Errorf("exit code %d, %s", r.code, r.stderr)
	}
}
