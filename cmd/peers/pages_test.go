package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
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
		made := []string{page}
		for _, p := range gpuParts {
			if len(run.of(p)) > 0 {
				made = append(made, filepath.Join(to, name, p.name+".svg"))
			}
		}
		for _, made := range made {
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
