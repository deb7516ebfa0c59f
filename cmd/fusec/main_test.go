package main

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/npy"
)

var update = flag.Bool("update", false, "write the golden files in testdata anew")

// result is what a command line did.
type result struct {
	code        int
	out, stderr string
}

// fusecIn runs a command line on a standard input.
func fusecIn(t testing.TB, stdin string, args ...string) result {
	t.Helper()
	var out, stderr bytes.Buffer
	code := run(context.Background(), args, strings.NewReader(stdin), &out, &stderr)
	return result{code, out.String(), stderr.String()}
}

// fusecRun runs a command line.
func fusecRun(t testing.TB, args ...string) result {
	t.Helper()
	return fusecIn(t, "", args...)
}

// good runs a command line that must work and say nothing on standard error, and returns its output.
func good(t testing.TB, args ...string) string {
	t.Helper()
	r := fusecRun(t, args...)
	if r.code != exitOK || r.stderr != "" {
		t.Fatalf("fusec %s: exit code %d, standard error:\n%s", strings.Join(args, " "), r.code, r.stderr)
	}
	return r.out
}

// bad runs a command line that must fail with the code and say all of the words, in lines that begin as errors do.
func bad(t testing.TB, r result, code int, words ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code %d, want %d", r.code, code)
	}
	for line := range strings.Lines(r.stderr) {
		if !strings.HasPrefix(line, "fusec: ") {
			t.Errorf("error line %q does not begin with the program's name", line)
		}
	}
	for _, w := range words {
		if !strings.Contains(r.stderr, w) {
			t.Errorf("standard error lacks %q:\n%s", w, r.stderr)
		}
	}
	if strings.Contains(r.stderr, "internal error") {
		t.Errorf("a panic:\n%s", r.stderr)
	}
}

// golden compares text with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o666); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; go test -update makes it", err)
	}
	if got != string(want) {
		t.Errorf("differs from %s (go test -update rewrites it):\n%s", path, got)
	}
}

// bare is the test model, which has no weights beside it.
const bare = "testdata/mlp.graph"

// model copies the test model to a folder of its own and gives it weights, which change may change.
func model(t testing.TB, change func(map[string]*graph.Tensor)) string {
	t.Helper()
	g, err := graph.LoadGraph(bare)
	if err != nil {
		t.Fatal(err)
	}
	weights := map[string]*graph.Tensor{}
	for _, n := range g.Sources() {
		if _, input := n.Op.(graph.Input); !input {
			weights[n.Name] = randomTensor(n, 7, defaultLimit)
		}
	}
	if change != nil {
		change(weights)
	}
	path := filepath.Join(t.TempDir(), "mlp.graph")
	if err := graph.Save(path, g, weights); err != nil {
		t.Fatal(err)
	}
	return path
}

// write writes a file into a folder of its own.
func write(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

// array writes a tensor into a .npy file.
func array[T graph.Elem](t testing.TB, data []T, dims ...int) string {
	t.Helper()
	x, err := graph.TensorOf(data, dims...)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "x.npy")
	if err := npy.WriteFile(path, x); err != nil {
		t.Fatal(err)
	}
	return path
}

// fileNames lists a folder.
func fileNames(t testing.TB, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range list {
		names = append(names, f.Name())
	}
	return names
}
