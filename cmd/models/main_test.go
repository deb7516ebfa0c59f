package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/npy"
)

const data = "../../testdata/digits/digits.csv.gz"

func TestRun(t *testing.T) {
	out := filepath.Join(t.TempDir(), "new", "models")
	var log bytes.Buffer
	if err := run(out, data, 3, &log); err != nil {
		t.Fatal(err)
	}
	var share float64
	for line := range strings.Lines(log.String()) {
		fmt.Sscanf(line, "digits-mlp: %f %% of 360", &share)
	}
	if share < 80 {
		t.Errorf("after three epochs %.2f %% of the test images are classified right:\n%s", share, &log)
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
	if want := (graph.Type{DType: graph.F32, Shape: graph.ShapeOf(360, pixels)}); images.Type != want {
		t.Errorf("the images are %v, want %v", images.Type, want)
	}
}

func TestReadDigits(t *testing.T) {
	d, err := readDigits(data)
	if err != nil {
		t.Fatal(err)
	}
	if d.count() != 1797 || len(d.images) != 1797*pixels {
		t.Errorf("%d labels and %d pixels", d.count(), len(d.images))
	}
	for _, v := range d.images {
		if v < 0 || v > 1 {
			t.Fatalf("a pixel is %v", v)
		}
	}
	for _, v := range d.labels {
		if v < 0 || v >= classes {
			t.Fatalf("a label is %v", v)
		}
	}
}

func TestBadData(t *testing.T) {
	row := strings.Repeat("1,", pixels)
	for _, c := range []struct{ name, text, want string }{
		{"short row", "1,2,3\n", "wrong number of fields"},
		{"no number", row + "x\n", "image 1"},
		{"no such class", row + "10\n", "class"},
		{"half a class", row + "2.5\n", "class"},
		{"too dark", strings.Replace(row, "1", "17", 1) + "3\n", "pixel"},
		{"not a pixel", strings.Replace(row, "1", "NaN", 1) + "3\n", "pixel"},
		{"too few", row + "3\n", "1 images"},
		{"no gzip", "", "gzip"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "digits.csv.gz")
			content := []byte("plain text")
			if c.text != "" {
				var b bytes.Buffer
				z := gzip.NewWriter(&b)
				fmt.Fprint(z, c.text)
				z.Close()
				content = b.Bytes()
			}
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			err := run(dir, path, 1, &bytes.Buffer{})
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("the error is %v; want one about %q and %s", err, c.want, path)
			}
			if left, _ := filepath.Glob(filepath.Join(dir, "*.graph")); len(left) > 0 {
				t.Errorf("%v was written", left)
			}
		})
	}
	if err := run(t.TempDir(), "none.csv.gz", 1, &bytes.Buffer{}); err == nil {
		t.Error("a file that is not there is read")
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(file, data, 1, &bytes.Buffer{}); err == nil {
		t.Error("models are written into a file")
	}
}
