package inspect

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
	"fusec/graph/graphtest"
)

func TestDumpGoldens(t *testing.T) {
	clitest.Golden(t, "mlp.dot", clitest.Good(t, "dump", clitest.Bare))
	clitest.Golden(t, "mlp-import.dot", clitest.Good(t, "dump", clitest.Bare, "--stage", "import"))
	clitest.Golden(t, "mlp.txt", clitest.Good(t, "dump", clitest.Bare, "--all", "--format", "text"))
}

func TestDumpIsDeterministic(t *testing.T) {
	for _, args := range [][]string{{}, {"--format", "json", "--all"}, {"--format", "svg"}, {"--stage", "raise", "--format", "text"}} {
		args = append([]string{"dump", clitest.Bare}, args...)
		first := clitest.Good(t, args...)
		if clitest.Good(t, args...) != first {
			t.Errorf("fusec %s prints something else the second time", strings.Join(args, " "))
		}
	}
}

func TestDumpFormats(t *testing.T) {
	for format, begin := range map[string]string{"dot": "digraph", "svg": "<?xml", "png": "\x89PNG", "text": "stage 2 of ",
		"json": "{"} {
		if got := clitest.Good(t, "dump", clitest.Bare, "--stage", "2", "--format", format); !strings.HasPrefix(got, begin) {
			t.Errorf("%s begins with %.20q", format, got)
		}
	}
	// The extension of the file decides where --format does not.
	dir := t.TempDir()
	for name, begin := range map[string]string{"x.svg": "<?xml", "x.txt": "stage", "x.json": "{", "x.dot": "digraph", "x": "digraph"} {
		path := filepath.Join(dir, name)
		if got := clitest.Good(t, "dump", clitest.Bare, "-o", path); got != "" {
			t.Errorf("it printed %.20q", got)
		}
		if text, err := os.ReadFile(path); err != nil || !bytes.HasPrefix(text, []byte(begin)) {
			t.Errorf("%s begins with %.20q, %v", name, text, err)
		}
	}
	if clitest.Good(t, "dump", clitest.Bare, "-o", "-") != clitest.Good(t, "dump", clitest.Bare) {
		t.Error("-o - is not standard output")
	}
}

func TestDumpAll(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "stages")
	clitest.Good(t, "dump", clitest.Bare, "--all", "-o", dir)
	var want []string
	names := append([]string{"import"}, fusec.Passes()...)
	names[len(names)-1] = "final"
	for i, name := range names {
		want = append(want, fmt.Sprintf("%02d-%s.svg", i+1, name))
	}
	if got := clitest.FileNames(t, dir); strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("files %v, want %v", got, want)
	}
	var trace struct {
		Schema string
		Stages []struct{ Name string }
	}
	if err := json.Unmarshal([]byte(clitest.Good(t, "dump", clitest.Bare, "--all", "--format", "json")), &trace); err != nil {
		t.Fatal(err)
	}
	if len(trace.Stages) != len(want) || trace.Schema == "" {
		t.Errorf("%d stages, schema %q", len(trace.Stages), trace.Schema)
	}
}

func TestDumpDisable(t *testing.T) {
	with, without := clitest.Good(t, "dump", clitest.Bare, "--format", "text"),
		clitest.Good(t, "dump", clitest.Bare, "--format", "text", "--disable", "fuse-regions,raise", "--verify")
	if !strings.Contains(with, "fusion") || strings.Contains(without, "fusion") {
		t.Error("--disable fuse-regions changed nothing")
	}
	clitest.Bad(t, clitest.FusecRun(t, "dump", clitest.Bare, "--disable", "raise", "--stage", "raise"), cli.ExitUsage,
		`unknown stage "raise"`)
}

func TestDumpMeasured(t *testing.T) {
	for _, path := range []string{clitest.Bare, clitest.Model(t, nil)} { // on random weights, and on its own
		var trace struct {
			Program struct {
				Launches []struct {
					Measured int64 `json:"measured_ns"`
				}
			}
		}
		if err := json.Unmarshal([]byte(clitest.Good(t, "dump", path, "--measured", "--format", "json")), &trace); err != nil {
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
	path := clitest.Model(t, nil)
	graphtest.WriteFile(t, strings.TrimSuffix(path, ".graph")+".safetensors", []byte("junk"))
	clitest.Bad(t, clitest.FusecRun(t, "dump", path, "--measured"), cli.ExitFailure, "mlp.safetensors")
}

func TestDumpStandardInput(t *testing.T) {
	text := graphtest.ReadFile(t, clitest.Bare)
	if r := clitest.FusecIn(t, string(text), "dump", "-"); r.Code != cli.ExitOK || r.Out != clitest.Good(t, "dump", clitest.Bare) {
		t.Errorf("exit code %d, %s", r.Code, r.Stderr)
	}
}

// The last stage is called final. The name of its pass names it too.
func TestFinalStage(t *testing.T) {
	want := clitest.Good(t, "dump", clitest.Bare)
	if !strings.Contains(want, "compiled for cpu") {
		t.Errorf("the title does not say for what the graph was compiled:\n%.600s", want)
	}
	for _, name := range []string{"final", "check-lowered"} {
		if clitest.Good(t, "dump", clitest.Bare, "--stage", name) != want {
			t.Errorf("--stage %s is not the last stage", name)
		}
	}
	text := clitest.Good(t, "dump", clitest.Bare, "--target", "ref", "--format", "text")
	if !strings.Contains(text, ": final, compiled for ref (") {
		t.Errorf("the list is\n%.300s", text)
	}
}

// Text and JSON hold all stages in one file, which a name with their extension asks for.
func TestDumpOneFile(t *testing.T) {
	for _, flags := range [][]string{{"--format", "json", "-o"}, {"--output"}} {
		path := filepath.Join(t.TempDir(), "one.json")
		clitest.Good(t, append(append([]string{"dump", clitest.Bare, "--all"}, flags...), path)...)
		text, err := os.ReadFile(path)
		if err != nil || string(text) != clitest.Good(t, "dump", clitest.Bare, "--all", "--format", "json") {
			t.Errorf("%v: the file is %.80q, %v", flags, text, err)
		}
	}
}
