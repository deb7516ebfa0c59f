package nvrtc_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda/driver/nvrtc"
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

// TestUnset finds uniform registers that no instruction sets, and takes none for such that one sets in part.
func TestUnset(t *testing.T) {
	const code = `
        /*0010*/                   LDCU.128 UR12, c[0x0][0x380] ;
        /*0020*/                   IADD.64 R6, R2, UR14 ;
        /*0028*/                   IADD3.X R13, PT, PT, R2, UR15, RZ, P1, !PT ;
        /*0030*/                   ULDC.64 UR8, c[0x0][0x208] ;
        /*0040*/                   UMOV UR7, 0x12f00000 ;
        /*0048*/                   HGMMA.64x64x16.F32 R88, R152, gdesc[UR40].tnspB, R88 ;
        /*0050*/              @!P0 LDG.E.64 R2, desc[UR8][R2.64] ;
        /*0060*/                   LEA.HI.X R9, R11, UR9, R12, 0x2, P2 ;
        /*0070*/                   LEA R9, R11, UR7, 0x2 ;
        /*0080*/                   LDGSTS.E.BYPASS.LTC128B.128 [R125+UR0], desc[UR1][R92.64], !P4 ;`
	if got := strings.Join(nvrtc.Unset(code), " "); got != "UR0 UR1" {
		t.Errorf("%q", got)
	}
}
