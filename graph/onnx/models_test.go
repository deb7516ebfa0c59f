package onnx

import (
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fusec"
	"fusec/graph"
	"fusec/graph/graphtest"
)

var update = flag.Bool("update", false, "rewrite the files in testdata and docs that tests compare with")

// openSizes binds the sizes that the models in testdata leave open.
var openSizes = map[string]int{"batch": 2, "steps": 3}

// TestModels reads each model in testdata and compares its graph with the text beside it, and what the CPU computes with
// the reference.
func TestModels(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.onnx")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no models: %v", err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			m, err := Load(path, Options{Dims: openSizes})
			if err != nil {
				t.Fatal(err)
			}
			golden(t, strings.TrimSuffix(path, ".onnx")+".txt", graph.Print(m.Graph))
			in := graphtest.Values(rand.New(rand.NewPCG(1, 2)), m.Graph)
			for name, v := range m.Weights {
				in[name] = v
			}
			p, err := fusec.Compile(m.Graph, fusec.WithReference())
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			if _, err := p.Run(in); err != nil {
				t.Fatal(err)
			}
			for _, d := range p.Departures() {
				if d.Off > 0 {
					t.Error(d)
				}
			}
		})
	}
}

// golden compares text with a file.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; go test -update makes it", err)
	}
	if got != string(want) {
		t.Errorf("differs from %s (go test -update rewrites it):\n%s", path, got)
	}
}
