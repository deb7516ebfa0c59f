package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestGPU measures contestants that only say what they measured.
func TestGPU(t *testing.T) {
	dir := t.TempDir()
	raw := filepath.Join(dir, "raw")
	line := func(peer, rate string) string {
		return `{"workload":"w","peer":"` + peer + `","ms":2,"rate":` + rate + `,"unit":"TFLOP/s"}`
	}
	python := filepath.Join(dir, "python")
	script := "#!/bin/sh\n[ -s $1 ] && [ $2 = --only ] && [ -z \"$3\" ] && [ $4$5$6 = --rivalslowlinear ] || exit 1\n" +
		"echo '" + line("slow", "50") + "'\necho '" + line("fast", "100") + "'\n" +
		`echo '{"workload":"w","peer":"none","error":"not here"}'` + "\necho noise\n"
	if err := os.WriteFile(python, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	ours := "echo '" + line("fusec", "80") + "' #"
	code, out, errs := peers(t, "gpu", "--python", python, "--raw", raw, "--fusec", ours, "--rival", "slow", "linear")
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, errs)
	}
	for _, want := range []string{"w         80 TFLOP/s (2 ms)  0.80", "fast 100 TFLOP/s (2 ms); slow 50",
		"none failed: not here"} {
		if !strings.Contains(out, want) {
			t.Errorf("the table has no %q:\n%s", want, out)
		}
	}
	if !strings.Contains(errs, `linear: no figure: "noise"`) {
		t.Errorf("errors %q", errs)
	}
	if b, err := os.ReadFile(raw); err != nil || strings.Count(string(b), "\n") != 4 {
		t.Errorf("raw lines %q, %v", b, err)
	}
	for want, args := range map[string][]string{
		`there is no part "lineal"`:    {"gpu", "lineal"},
		"--only requires the one part": {"gpu", "--only", "x"},
		"flag provided but not define": {"gpu", "--pyton", "x"},
	} {
		if code, _, errs := peers(t, args...); code != exitUsage || !strings.Contains(errs, want) {
			t.Errorf("%v: exit %d: %s", args, code, errs)
		}
	}
	if code, _, _ := peers(t, "gpu", "--python", "false", "--fusec", "false", "moe"); code != exitNothing {
		t.Errorf("exit %d of nothing", code)
	}
}
