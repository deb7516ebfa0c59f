package fusec_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fusec"
)

// TestArrows holds the direction in which packages may import each other: graph knows nobody, passes and kernels know graph,
// lowering knows graph and kernels, the root package ties them, and nothing but drawings knows Graphviz. Of the packages below
// graph, nn and onnx alone know the reference: operations of nn run it on Gorgonia's machines, and onnx computes what is known
// while it reads a model. Only commands know onnx. Passes do not know each other, and targets only the processor's.
func TestArrows(t *testing.T) {
	const (
		gorgonia = "gorgonia.org/gorgonia"
		graphviz = "github.com/goccy/go-graphviz"
		dotted   = "github.com/emicklei/dot"
	)
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Deps " "}}`, "./...").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	deps := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		deps[words[0]] = words[1:]
	}
	within := func(p, folder string) bool { return p == folder || strings.HasPrefix(p, folder+"/") }
	// forbid refuses that packages in a folder, but for those in other folders, depend on packages in the given ones.
	forbid := func(folder string, except, not []string) {
		t.Helper()
		found := false
		for p := range deps {
			if !within(p, folder) || slices.ContainsFunc(except, func(e string) bool { return within(p, e) }) {
				continue
			}
			found = true
			for _, n := range not {
				if i := slices.IndexFunc(deps[p], func(d string) bool { return within(d, n) && !within(p, n) }); i >= 0 {
					t.Errorf("%s depends on %s", p, deps[p][i])
				}
			}
		}
		if !found {
			t.Errorf("there is no package in %s", folder)
		}
	}
	const passes, kernels, lowering, fpga = "fusec/passes", "fusec/kernels", "fusec/lowering", "fusec/fpga"
	outer := []string{"fusec/cmd", "fusec/examples"}
	computes := []string{"fusec/graph/nn", "fusec/graph/onnx"}
	draws := []string{"fusec/graph/dot", "fusec/graph/report"}
	forbid("fusec/graph", computes, append(outer, passes, kernels, lowering, fpga))
	forbid("fusec/graph", []string{"fusec/graph/nn", "fusec/graph/gorgonia"}, []string{gorgonia})
	forbid("fusec/graph", draws, []string{graphviz, dotted})
	forbid("fusec/graph/report", []string{"fusec/graph/report/live"}, []string{"net/http"})
	for _, p := range computes {
		forbid(p, nil, append(outer, passes, lowering, fpga, "fusec/kernels/cpu", "fusec/kernels/cuda"))
	}
	forbid(passes, []string{"fusec/passes/passtest"}, append(outer, kernels, lowering, fpga, gorgonia, graphviz, dotted))
	forbid(kernels, nil, append(outer, passes, lowering, fpga, gorgonia, graphviz, dotted))
	forbid(lowering, nil, append(outer, passes, gorgonia, graphviz, dotted))
	forbid(fpga, nil, append(outer, passes, kernels, lowering, gorgonia, graphviz, dotted))
	forbid("fusec", append(outer, draws...), []string{graphviz, dotted})
	forbid("fusec", outer, []string{"gonum.org/v1/plot", "fusec/graph/onnx"})
	helpers := []string{"fusec/passes/constant", "fusec/passes/pattern", "fusec/passes/rewrite"}
	for p := range deps {
		if strings.HasPrefix(p, passes+"/") && !slices.Contains(helpers, p) {
			for q := range deps {
				if strings.HasPrefix(q, passes+"/") && q != "fusec/passes/passtest" && slices.Contains(deps[q], p) {
					t.Errorf("%s depends on the pass %s", q, p)
				}
			}
		}
	}
	for _, target := range []string{"cuda", "fpga", "ref"} { // what they refuse runs on the processor, which all may know
		forbid(lowering, []string{lowering + "/" + target}, []string{lowering + "/" + target})
	}
}

// TestTargetsUnnamed: nothing but the list of targets, and what is about one of them, imports the package of a target. What others
// have to know of it stands in its [lowering.Target].
func TestTargetsUnnamed(t *testing.T) {
	about := map[string]string{ // files and folders
		"target.go":                        "the list of targets",
		"examples/custom":                  "a program that chooses a target",
		"passes/passtest":                  "tests of passes run programs",
		"cmd/libfusec/emulator.go":         "a library for tests, with a tag",
		"cmd/internal/clitest":             "tests of commands run programs",
		"cmd/internal/hostile":             "a test",
		"cmd/internal/hardware":            "fusec fpga",
		"cmd/internal/bench/overlay.go":    "fusec bench --target fpga",
		"cmd/internal/bench/gpu_group.go":  "fusec bench group, which varies how GPUs exchange values",
		"cmd/internal/bench/ladder_gpu.go": "variants of GPU kernels",
		"cmd/internal/bench/tune.go":       "fusec tune, which varies kernels",
		"cmd/internal/bench/tune_cpu.go":   "fusec tune, which varies kernels",
	}
	var all []string
	for _, target := range fusec.Targets() {
		all = append(all, "fusec/lowering/"+target)
	}
	used := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, f fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		if path = filepath.ToSlash(path); strings.HasPrefix(path, "lowering/") {
			return nil // see TestArrows
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, i := range parsed.Imports {
			name := strings.Trim(i.Path.Value, `"`)
			if !slices.ContainsFunc(all, func(target string) bool { return name == target || strings.HasPrefix(name, target+"/") }) {
				continue
			}
			if about[path] != "" {
				used[path] = true
			} else if folder := filepath.ToSlash(filepath.Dir(path)); about[folder] != "" {
				used[folder] = true
			} else {
				t.Errorf("%s imports %s", path, name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for path := range about {
		if !used[path] {
			t.Errorf("%s imports no target", path)
		}
	}
}

// TestUntuned: tests that can compile programs ignore the user's tunings.
func TestUntuned(t *testing.T) {
	out, err := exec.Command("go", "list", "-test", "-f", `{{.ImportPath}} {{join .Deps " "}}`, "./...").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	const untuned = "fusec/graph/graphtest/untuned"
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		if strings.HasSuffix(words[0], ".test") && slices.Contains(words, "fusec/lowering/cpu") && !slices.Contains(words, untuned) {
			t.Errorf("no test of %s imports %s", strings.TrimSuffix(words[0], ".test"), untuned)
		}
	}
}

// TestFiles keeps package fusec small enough to be read: a dozen files beside tests.
func TestFiles(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	files = slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, "_test.go") })
	if len(files) > 12 {
		t.Errorf("%d files: %s", len(files), files)
	}
}
