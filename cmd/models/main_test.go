package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fusec/examples"
	"fusec/graph"
	_ "fusec/graph/graphtest/untuned"
	"fusec/graph/npy"
)

func TestRun(t *testing.T) {
	out := filepath.Join(t.TempDir(), "new", "models")
	var log bytes.Buffer
	if err := run(out, 300, &log); err != nil {
		t.Fatal(err)
	}
	var share float64
	for line := range strings.Lines(log.String()) {
		fmt.Sscanf(line, "digits-mlp: %f %% of 360", &share)
	}
	if share < 80 {
		t.Errorf("after 300 steps %.2f %% of the test images are classified right:\n%s", share, &log)
	}
	for _, name := range []string{"digits-mlp", "transformer-block", "moe-block", "moe-top2", "lenet"} {
		g, weights, err := graph.Load(filepath.Join(out, name+".graph"))
		if err != nil {
			t.Error(err)
			continue
		}
		inputs := 0
		for _, n := range g.Nodes {
			if _, ok := n.Op.(graph.Input); ok {
				inputs++
			}
		}
		if inputs != 1 || len(weights.Tensors) == 0 || len(weights.Unused) > 0 {
			t.Errorf("%s has %d inputs, %d weights and %d it does not name", name, inputs, len(weights.Tensors), len(weights.Unused))
		}
	}
	images, err := npy.ReadFile(filepath.Join(out, "digits-mlp.pixels.npy"))
	if err != nil {
		t.Fatal(err)
	}
	if want := (graph.Type{DType: graph.F32, Shape: graph.ShapeOf(360, examples.DigitPixels)}); images.Type != want {
		t.Errorf("the images are %v, want %v", images.Type, want)
	}
}

func TestBadFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(file, 1, &bytes.Buffer{}); err == nil {
		t.Error("models are written into a file")
	}
}
