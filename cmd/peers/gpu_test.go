package main

import (
	"os"
	"path/filepath"
	"slices"
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
	calls := filepath.Join(dir, "calls")
	script := `#!/bin/sh
[ "$2" = --about ] && echo '{"device":"a chip","versions":"1.0"}' && exit
echo "$2 [$3] $4 $5 $6 $7" >>` + calls + `
[ -s "$1" ] && [ "$7" = --wait ] && [ -z "$(cat)" ] || exit 1
echo '` + line("slow", "50") + `'
echo '` + line("fast", "100") + `'
echo '{"workload":"w","peer":"none","error":"not here"}'
echo noise
`
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
	if b, err := os.ReadFile(calls); err != nil ||
		string(b) != "--only [] --rival slow linear --prepare\n--only [] --rival slow linear --wait\n" {
		t.Errorf("the rivals are called by %q, %v", b, err)
	}
	if b, err := os.ReadFile(raw); err != nil || strings.Count(string(b), "\n") != 5 {
		t.Errorf("raw lines %q, %v", b, err)
	}
	page := filepath.Join(dir, "page.md")
	if code, again, errs := peers(t, "gpu", "--from", raw, "--page", page, "--beside", raw); code != exitOK || again != out {
		t.Errorf("exit %d: %s%s", code, errs, again)
	}
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"# fusec and its rivals on a chip (1.0), 2", "## linear\n", "![linear](page/linear.svg)",
		"| w | 80 TFLOP/s (2 ms) | fast 100 TFLOP/s (2 ms) | 0.80 | 0.80 |\n"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("the page has no %q:\n%s", want, b)
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, "page", "linear.svg")); err != nil || !strings.Contains(string(b), "fast 100") {
		t.Errorf("the picture: %v\n%s", err, b)
	}
	for want, args := range map[string][]string{
		`there is no part "lineal"`:    {"gpu", "lineal"},
		"--only requires the one part": {"gpu", "--only", "x"},
		"flag provided but not define": {"gpu", "--pyton", "x"},
		"want a name that ends in .md": {"gpu", "--page", "x.svg"},
		"--beside is for the tables":   {"gpu", "--beside", "x"},
		"--from shows what was":        {"gpu", "--from", "x", "moe"},
	} {
		if code, _, errs := peers(t, args...); code != exitUsage || !strings.Contains(errs, want) {
			t.Errorf("%v: exit %d: %s", args, code, errs)
		}
	}
	if code, _, _ := peers(t, "gpu", "--python", "false", "--fusec", "false", "moe"); code != exitNothing {
		t.Errorf("exit %d of nothing", code)
	}
	gone := filepath.Join(dir, "gone", "raw")
	if code, _, errs := peers(t, "gpu", "--python", python, "--fusec", ours, "--raw", gone, "moe"); code != exitFailed ||
		!strings.Contains(errs, gone) {
		t.Errorf("exit %d of a file in no folder: %s", code, errs)
	}
}

// TestGPUs: on two GPUs, of those that are visible, each of three parts has one, and the parts stand in their order.
func TestGPUs(t *testing.T) {
	dir := t.TempDir()
	raw, python, calls := filepath.Join(dir, "raw"), filepath.Join(dir, "python"), filepath.Join(dir, "calls")
	// fusec ends when the processes of two parts have begun.
	script := `#!/bin/sh
[ "$2" = --about ] && echo '{"gpus":2}' && exit
[ "$7" = --wait ] || exit 0
echo "$6 $CUDA_VISIBLE_DEVICES" >>` + calls + `
cat >/dev/null
echo '{"workload":"'$6'","peer":"other","ms":2,"rate":50,"unit":"TFLOP/s"}'
`
	if err := os.WriteFile(python, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CUDA_VISIBLE_DEVICES", "3,5")
	ours := `f() { [ "$1" = --prepare ] || until [ $(wc -l <` + calls + `) -ge 2 ]; do sleep 0.01; done
echo '{"workload":"'$2'","peer":"fusec","ms":2,"rate":80}'; }; f`
	code, out, errs := peers(t, "gpu", "--python", python, "--raw", raw, "--fusec", ours, "--timeout", "1m", "linear", "moe",
		"training")
	if code != exitOK || errs != "" && !(strings.Contains(errs, "linear: fusec took") && strings.Contains(errs, "3 of 3, ")) {
		t.Fatalf("exit %d: %s", code, errs)
	}
	linear, moe, training := strings.Index(out, "\nlinear"), strings.Index(out, "\nmoe"), strings.Index(out, "\ntraining")
	if linear < 0 || moe < linear || training < moe {
		t.Errorf("the table:\n%s", out)
	}
	if _, again, _ := peers(t, "gpu", "--from", raw); again != out {
		t.Errorf("from the raw lines:\n%s", again)
	}
	b, err := os.ReadFile(calls)
	var on []string
	for line := range strings.Lines(string(b)) {
		part, gpu, _ := strings.Cut(strings.TrimSpace(line), " ")
		if on = append(on, gpu); !strings.Contains("linear moe training", part) {
			t.Errorf("a part %q", part)
		}
	}
	if slices.Sort(on[:2]); err != nil || len(on) != 3 || on[0] != "3" || on[1] != "5" || !slices.Contains(on[:2], on[2]) {
		t.Errorf("the rivals run as %q, %v", b, err)
	}
	run := gpuRun{}
	if err := run.read(raw); err != nil || run.about.GPUs != 2 {
		t.Fatal(run.about, err)
	}
	for _, p := range gpuParts {
		if want := 2 * strings.Count("linear moe training", p.name); len(run.of(p)) != want {
			t.Errorf("%s has %d raw lines, want %d", p.name, len(run.of(p)), want)
		}
	}
}

// TestGPUParts: the rivals' program has the same parts.
func TestGPUParts(t *testing.T) {
	script, err := files.ReadFile("rivals/gpu_bench.py")
	if err != nil {
		t.Fatal(err)
	}
	if want := "PARTS = [" + strings.Join(partNames(), ", ") + "]"; !strings.Contains(string(script), want) {
		t.Errorf("rivals/gpu_bench.py has no %s", want)
	}
}
