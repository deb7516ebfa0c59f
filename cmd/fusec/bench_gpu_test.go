package main

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"fusec"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/emulator"
)

// emulated has all programs of the test that ask for CUDA run on the emulator.
func emulated(t *testing.T) {
	t.Helper()
	extraOptions = []fusec.Option{fusec.WithDriver(func(int) (driver.GPU, driver.Compiler, error) {
		return emulator.Open(emulator.Options{})
	})}
	t.Cleanup(func() { extraOptions = nil })
}

// TestBenchGPU runs workloads of each part, small: each is checked against what it should compute.
func TestBenchGPU(t *testing.T) {
	emulated(t)
	words := []string{"memory_bound", "linear bf16", "attention bf16", "moe", "training step bf16"}
	all, err := gpuWorks(words, true)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(good(t, append([]string{"bench", "gpu", "--small", "--json"}, words...)...)), "\n")
	if len(lines) != len(all) {
		t.Fatalf("%d lines for %d workloads", len(lines), len(all))
	}
	for i, text := range lines {
		var l gpuLine
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		if l.Workload != all[i].name || l.Peer != "fusec" || l.MS <= 0 || l.BestMS > l.MS || l.Rate <= 0 || l.Unit != all[i].unit ||
			l.Runs < gpuRuns || l.HostMS <= 0 || l.Launches < 1 || l.OnHost > 0 {
			t.Errorf("%+v", l)
		}
	}
}

func TestBenchGPUText(t *testing.T) {
	emulated(t)
	out := good(t, "bench", "gpu", "--small", "rmsnorm")
	for _, want := range []string{"with copies", "rmsnorm f32 5x48", "GB/s"} {
		if !strings.Contains(out, want) {
			t.Errorf("lacks %q:\n%s", want, out)
		}
	}
	bad(t, fusecRun(t, "bench", "gpu", "linaer"), exitUsage, `no workload is called "linaer"`)
	bad(t, fusecRun(t, "bench", "gpu", "--ladder"), exitUsage, "--baseline and --ladder are not for")
	bad(t, fusecRun(t, "bench", "--small", bare), exitUsage, "--small is for fusec bench gpu")
}

// TestGPUChecks finds each result wrong when an element of it is.
func TestGPUChecks(t *testing.T) {
	emulated(t)
	list, err := gpuWorks([]string{"rmsnorm", "linear f32 9x16x24 +bias", "causal bwd", "fwd"}, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range list {
		check := w.check
		w.check = func(v *gpuValues) error {
			for _, t := range v.out {
				t.SetFloat(0, t.Float(0)+0.5*(1+math.Abs(t.Float(0))))
			}
			return check(v)
		}
		if _, err := w.measure("cuda"); err == nil || !strings.Contains(err.Error(), "the result is wrong: element 0 of ") {
			t.Errorf("%s: error %v", w.name, err)
		}
	}
}
