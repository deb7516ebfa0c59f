package nvrtc_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda/driver/nvrtc/nvrtctest"
)

// TestDisassemble finds the instructions of each entry.
func TestDisassemble(t *testing.T) {
	c := nvrtctest.Open(t)
	image, _, err := c.Compile(axpy+strings.ReplaceAll(axpy[strings.Index(axpy, "extern"):], "axpy", "other"), kernels.H200)
	if err != nil {
		t.Fatal(err)
	}
	code, err := c.Disassemble(image)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"axpy", "other"} {
		if !strings.Contains(code[name], "FMUL") || !strings.Contains(code[name], "EXIT") {
			t.Errorf("%s: %q", name, code[name])
		}
	}
	if _, err := c.Disassemble([]byte("no image")); err == nil || !strings.Contains(err.Error(), "nvdisasm") {
		t.Errorf("no image: %v", err)
	}
}

// TestDisassembler looks in CUDA's folders, and then in the path.
func TestDisassembler(t *testing.T) {
	c := nvrtctest.Open(t)
	image, _, err := c.Compile(axpy, kernels.H200)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "bin"), 0o777); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(root, "bin", "nvdisasm")
	if err := os.WriteFile(own, []byte("#!/bin/sh\necho //--- .text.mine ---\necho EXIT\n"), 0o777); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CUDA_PATH", root)
	code, err := c.Disassemble(image)
	if err != nil || code["mine"] == "" && code["axpy"] == "" {
		t.Errorf("%v, %v", code, err)
	}
}
