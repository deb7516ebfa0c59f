package fusec_test

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"fusec"
	"fusec/cmd/models/zoo"
	"fusec/graph"
)

// TestLinks looks for every file that the documentation links to.
func TestLinks(t *testing.T) {
	pages, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	found := 0
	for _, page := range append(pages, "README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			to, _, _ := strings.Cut(m[1], "#")
			if to == "" || strings.Contains(to, "://") {
				continue
			}
			found++
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), to)); err != nil {
				t.Errorf("%s links to %s: %v", page, m[1], err)
			}
		}
	}
	if found < 20 {
		t.Errorf("%d links in %d pages: the test does not find them", found, len(pages)+1)
	}
}

// TestReadmeCounts counts what the README says of the block in its picture, from the Gorgonia graph to the launches.
func TestReadmeCounts(t *testing.T) {
	path := "testdata/models/transformer-block.graph"
	model := zoo.TransformerBlock(4, 128, 256, 8, 1024)
	again := filepath.Join(t.TempDir(), "block.graph")
	if err := fusec.Save(again, model.Graph, model.Input); err != nil {
		t.Fatal(err)
	}
	g, err := graph.LoadGraph(path)
	if err != nil {
		t.Fatal(err)
	}
	if same, err := graph.LoadGraph(again); err != nil || !graph.SameStructure(g, same) {
		t.Fatalf("%s is not what is saved of the Gorgonia graph (%v)", path, err)
	}
	sources, views := 0, 0
	for _, n := range g.Nodes {
		switch graph.ClassOf(n.Op) {
		case graph.ClassSource:
			sources++
		case graph.ClassView:
			views++
		}
	}
	_, program, err := fusec.Plan(g)
	if err != nil {
		t.Fatal(err)
	}
	nodes, launches := len(model.Graph.AllNodes()), len(program.Launches)
	operations := len(g.Nodes) - sources
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	readme := strings.Join(strings.Fields(string(text)), " ")
	for _, want := range []string{
		fmt.Sprintf("A transformer block of %d Gorgonia nodes as %d launches](docs/transformer-block.svg)", nodes, launches),
		fmt.Sprintf("fusec dump %s ", path),
		fmt.Sprintf("The block in the picture is %d nodes in Gorgonia. fusec's graph has %d,", nodes, len(g.Nodes)),
		fmt.Sprintf("%d of them are inputs, weights and constants. Of the %d operations %d are views,", sources, operations, views),
		fmt.Sprintf("The other %d would be one launch each. Fused, they are %d launches.", operations-views, launches),
	} {
		if !strings.Contains(readme, want) {
			t.Errorf("README.md does not say %q", want)
		}
	}
}

// TestFuzzers looks for every fuzzer in the list of those that make fuzz-long runs, and for those of the list in the tree.
func TestFuzzers(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile(`(\S+):(Fuzz\w+):\d+`).FindAllStringSubmatch(string(makefile), -1) {
		listed[m[1]+" "+m[2]] = true
	}
	fuzzer := regexp.MustCompile(`(?m)^func (Fuzz\w+)\(f \*testing\.F\)`)
	err = filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() == "out" {
			return cmp.Or(err, fs.SkipDir)
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range fuzzer.FindAllSubmatch(text, -1) {
			name := filepath.ToSlash(filepath.Dir(path)) + " " + string(m[1])
			if !listed[name] {
				t.Errorf("%s: FUZZERS of the Makefile does not have it", name)
			}
			delete(listed, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range listed {
		t.Errorf("%s: the Makefile runs it, and no test file has it", name)
	}
}

// TestExtending applies the changes of docs/extending.md to a copy of the repository, and runs what the page says of them.
func TestExtending(t *testing.T) {
	if testing.Short() {
		t.Skip("under -short, which is for the race detector: this test starts other programs only")
	}
	page, err := os.ReadFile("docs/extending.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	copyTree(t, dir)
	do := func(input, name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir, cmd.Stdin = dir, strings.NewReader(input)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	blocks := strings.Split(string(page), "```diff\n")[1:]
	if len(blocks) != 6 {
		t.Fatalf("%d changes, want one for a function, two operations, a pattern, a pass and a target", len(blocks))
	}
	for _, b := range blocks {
		change, _, _ := strings.Cut(b, "```")
		do(change, "git", "apply", "-")
	}
	do("", "go", "generate", "./kernels/cpu/vec")
	do("", "go", "test", "-vet=off", "./passes/raise", "-run", "TestFusionsPage", "-update")
	if files := do("", "gofmt", "-l", "."); files != "" {
		t.Errorf("gofmt changes %s", files)
	}
	// Whole packages, and of others the tests that take their cases from the tables.
	do("", "go", "test", "-short", "-vet=off", "./kernels/cpu/vec", "./kernels/ref/...", "./graph/graphtest", "./passes/raise",
		"./lowering/traced")
	do("", "go", "test", "-short", "-vet=off", "-run",
		`^Test(Functions|FunctionsAreWhole|RowsAreWhole|RowsAreListed|TypeRules|Decompositions|`+
			`EveryOpHasAGradient|EveryOpIsKnown|EveryOperation|Offsets|Answers|Associate|LeftOut|Order)$|`+
			`^TestGradients$/^(flip|l2_norm|unary)$`,
		"./graph", "./graph/gorgonia", "./kernels/cpu", "./kernels/cuda", "./lowering/fpga", "./passes")
}

// copyTree copies the repository, without what is built or hidden.
func copyTree(t *testing.T, to string) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch hidden := strings.HasPrefix(d.Name(), ".") && path != "."; {
		case hidden && d.IsDir(), path == "bin", path == "out":
			return filepath.SkipDir
		case hidden || !d.Type().IsRegular() && !d.IsDir():
			return nil
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, path), 0o755)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, path), b, 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
}
