package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

var update = flag.Bool("update", false, "write the pages of docs/cuda again, from the raw lines beside them")

// TestPages: the pages about GPUs are what peers makes of the raw lines beside them.
func TestPages(t *testing.T) {
	docs := filepath.Join("..", "..", "docs", "cuda")
	for name, beside := range map[string]string{"h200": "h100.jsonl", "h100": ""} {
		to := t.TempDir()
		if *update {
			to = docs
		}
		page := filepath.Join(to, name+".md")
		args := []string{"gpu", "--from", filepath.Join(docs, name+".jsonl"), "--page", page}
		if beside != "" {
			args = append(args, "--beside", filepath.Join(docs, beside))
		}
		if code, _, errs := peers(t, args...); code != exitOK {
			t.Fatalf("exit %d: %s", code, errs)
		}
		run := gpuRun{}
		if err := run.read(filepath.Join(docs, name+".jsonl")); err != nil {
			t.Fatal(err)
		}
		measured := slices.DeleteFunc(slices.Clone(gpuParts), func(p gpuPart) bool { return len(run.of(p)) == 0 })
		pictures, err := filepath.Glob(filepath.Join(to, name, "*.svg"))
		if err != nil || len(pictures) != len(measured) || len(measured) < 9 {
			t.Errorf("%s has pictures %v, %v; want one for each of %d parts", name, pictures, err, len(measured))
		}
		for _, made := range append(pictures, page) {
			rel, err := filepath.Rel(to, made)
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(made)
			if err != nil {
				t.Fatal(err)
			}
			if want, err := os.ReadFile(filepath.Join(docs, rel)); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s is not what its raw lines give (go test ./cmd/peers -run TestPages -update): %v", rel, err)
			}
		}
	}
}
