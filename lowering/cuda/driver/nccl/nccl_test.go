//go:build linux && (amd64 || arm64)

package nccl

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// library compiles a library that has some C code.
func library(t *testing.T, code string) string {
	t.Helper()
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	dir := t.TempDir()
	source, to := filepath.Join(dir, "nccl.c"), filepath.Join(dir, "libnccl.so.2")
	if err := os.WriteFile(source, []byte(code), 0o666); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-o", to, source).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}

// TestOpen finds a library by its folder, tells its version and its functions, and says what is wrong with others.
func TestOpen(t *testing.T) {
	version := func(v int) string { return fmt.Sprintf("int ncclGetVersion(int *v) { *v = %d; return 0; }", v) }
	folder := library(t, version(22809))
	t.Setenv(Variable, folder)
	l, err := open()
	if err != nil {
		t.Fatal(err)
	}
	if l.Version() != "2.28.9" || l.Path != filepath.Join(folder, "libnccl.so.2") {
		t.Errorf("%s is version %s", l.Path, l.Version())
	}
	if at, err := l.Symbol("ncclGetVersion"); err != nil || at == 0 {
		t.Errorf("ncclGetVersion is at %#x: %v", at, err)
	}
	if _, err := l.Symbol("ncclNothing"); err == nil || !strings.Contains(err.Error(), "is no NCCL 2.17 or later") {
		t.Errorf("of a function that is not there: %v", err)
	}
	for code, want := range map[string]string{
		version(21602): "is NCCL 2.16.2: want 2.17 or later",
		"int ncclGetVersion(int *v) { return 3; }": "ncclGetVersion: result 3",
		"int nothing;": "is no NCCL 2.17 or later",
	} {
		t.Setenv(Variable, library(t, code))
		if _, err := open(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one about %q", err, want)
		}
	}
	t.Setenv(Variable, "/nowhere")
	if _, err := open(); err == nil || !strings.Contains(err.Error(), "set FUSEC_NCCL to the library's path") {
		t.Errorf("without a library: %v", err)
	}
}

// TestLimit refuses a limit only where the environment raises it.
func TestLimit(t *testing.T) {
	for _, c := range []struct {
		blocks      int
		name, value string
		want        string
	}{
		{2, "NCCL_MIN_CTAS", "", ""},
		{0, "NCCL_MIN_CTAS", "8", ""},
		{8, "NCCL_MAX_CTAS", "8", ""},
		{2, "NCCL_MAX_CTAS", "8", "at most 2 blocks of threads: NCCL_MAX_CTAS=8"},
		{2, "NCCL_MIN_NCHANNELS", "4", "NCCL_MIN_NCHANNELS=4"},
	} {
		t.Run(fmt.Sprint(c.blocks, c.name, c.value), func(t *testing.T) {
			t.Setenv(c.name, c.value)
			err := Limit(c.blocks)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one about %q", err, c.want)
			}
		})
	}
}
