package fusec_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestExtending applies the changes of docs/extending.md to a copy of the repository, and runs what the page says of them.
func TestExtending(t *testing.T) {
	if testing.Short() {
		t.Skip("it compiles the packages again")
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
	if len(blocks) != 5 {
		t.Fatalf("%d changes, want one for a function, an operation, a pattern, a pass and a target", len(blocks))
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
			`EveryOpHasAGradient|EveryOpIsKnown|EveryOperation|Offsets|Answers|Associate|LeftOut|Order)$|^TestGradients$/^(flip|unary)$`,
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
