package bench

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
	"fusec/lowering/cuda"
	"fusec/lowering/cuda/driver/cache"
)

// TestBenchGPU runs workloads of each part, small: each is checked against what it should compute.
func TestBenchGPU(t *testing.T) {
	clitest.Emulated(t)
	words := []string{"memory_bound", "linear bf16", "shapes", "attention bf16", "moe", "conv bf16", "decode",
		"model", "copy", "layer bf16", "layer i4", "layer f8", "training step bf16"}
	all, err := gpuWorks(words, true)
	if err != nil {
		t.Fatal(err)
	}
	out := clitest.Good(t, append([]string{"bench", "gpu", "--small", "--json"}, words...)...)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != len(all) {
		t.Fatalf("%d lines for %d workloads", len(lines), len(all))
	}
	for i, text := range lines {
		var l gpuLine
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		if l.Workload != all[i].name || l.Peer != "fusec" || l.MS <= 0 || l.BestMS > l.MS || l.Rate <= 0 ||
			l.Unit != all[i].unit ||
			l.HostMS <= 0 || (l.AheadMS > 0) != (all[i].optimizer != nil) || l.Launches < 1 || l.OnHost > 0 {
			t.Errorf("%+v", l)
		}
	}
}

func TestBenchGPUText(t *testing.T) {
	clitest.Emulated(t)
	out := clitest.Good(t, "bench", "gpu", "--small", "rmsnorm")
	for _, want := range []string{"with copies", "rmsnorm f32 5x48", "GB/s"} {
		if !strings.Contains(out, want) {
			t.Errorf("lacks %q:\n%s", want, out)
		}
	}
	if out := clitest.Good(t, "bench", "gpu", "--small", "--prepare", "rmsnorm", "causal bwd"); out != "" {
		t.Errorf("--prepare prints %s", out)
	}
	out = clitest.Good(t, "bench", "gpu", "--small", "--no-copies", "--json", "rmsnorm")
	if !strings.Contains(out, `"ms":`) || strings.Contains(out, "host_ms") {
		t.Errorf("--no-copies prints %s", out)
	}
	clitest.Bad(t, clitest.FusecRun(t, "bench", "gpu", "linaer"), cli.ExitUsage, `no workload is called "linaer"`)
	clitest.Bad(t, clitest.FusecRun(t, "bench", "gpu", "--ladder"), cli.ExitUsage,
		"--baseline, --ladder, --trace and --history are not for")
	clitest.Bad(t, clitest.FusecRun(t, "bench", "--small", clitest.Bare), cli.ExitUsage,
		"--small, --prepare and --no-copies are for fusec bench gpu")
}

// TestWithoutGPU: that there is no GPU is said before anything is prepared or measured.
func TestWithoutGPU(t *testing.T) {
	if n, err := cuda.Count(); err == nil && n > 0 {
		t.Skip("this machine has a GPU, and the test is about one without")
	}
	_, reason := cuda.Count()
	for _, args := range [][]string{{"gpu"}, {"matmul", "--ladder", "--target", "cuda"}} {
		r := clitest.FusecRun(t, append([]string{"bench"}, args...)...)
		clitest.Bad(t, r, cli.ExitFailure, reason.Error())
		if r.Out != "" {
			t.Errorf("%v prints %s", args, r.Out)
		}
	}
}

// TestGPUChecks finds each result wrong when an element of it is.
func TestGPUChecks(t *testing.T) {
	clitest.Emulated(t)
	list, err := gpuWorks([]string{"rmsnorm", "linear f32 9x16x24 +bias", "shapes", "causal bwd", "fwd", "conv f32 b2", "copy",
		"layer bf16 1", "model"}, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range list {
		check, want := w.check, "the result is wrong: element 0 of "
		if strings.HasPrefix(w.name, "model") {
			want = "the result is wrong: the first sequence's token is -1"
		}
		w.check = func(v *gpuValues) error {
			for _, t := range v.out {
				t.SetFloat(0, t.Float(0)+0.5*(1+math.Abs(t.Float(0))))
			}
			if picked := v.out["picked"]; picked != nil {
				picked.SetInt(0, -1)
			}
			return check(v)
		}
		_, err := w.measure("cuda", false)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v", w.name, err)
		}
	}
}

// TestBenchDevice tells of a model what its launches take of the device, and draws a run.
func TestBenchDevice(t *testing.T) {
	clitest.Emulated(t)
	t.Setenv(cache.Variable, t.TempDir())
	sizes := ceilingSizes
	ceilingSizes.copy, ceilingSizes.side = 100, 16
	t.Cleanup(func() { ceilingSizes = sizes })
	path, file := clitest.Model(t, nil), filepath.Join(t.TempDir(), "trace.json")
	var rep benchReport
	text := bench(t, path, "--target", "cuda", "--no-gorgonia", "--json", "--trace", file)
	if err := json.Unmarshal([]byte(text), &rep); err != nil {
		t.Fatal(err)
	}
	d := rep.Device
	if d == nil || d.Device == "" || d.Precision != "f32" || d.Ceilings.Copy <= 0 || len(d.Ceilings.GEMM) != 3 {
		t.Fatalf("%+v", d)
	}
	if d.RunNS <= 0 || d.DeviceNS <= 0 || d.LaunchesNS <= 0 || d.CopyIn.Bytes <= 0 || d.CopyOut.Bytes <= 0 ||
		d.CopyIn.MedianNS <= 0 {
		t.Errorf("%+v", d)
	}
	if d.UsedBytes <= 0 || d.TakenBytes < d.UsedBytes || d.Pinned < d.CopyIn.Bytes+d.CopyOut.Bytes {
		t.Errorf("memory %d by the program, %d by the driver, %d pinned", d.UsedBytes, d.TakenBytes, d.Pinned)
	}
	for _, l := range rep.Launches {
		if l.OfGEMM <= 0 || l.OfCopy <= 0 {
			t.Errorf("%+v", l)
		}
		if !slices.ContainsFunc(d.Kernels, func(k useLine) bool {
			return k.Launch == l.Index && k.Blocks > 0 && k.Threads > 0 && k.Resident > 0 &&
				k.Occupancy > 0 && k.Occupancy <= 1
		}) {
			t.Errorf("launch %d has no kernel in %+v", l.Index, d.Kernels)
		}
	}
	src, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var drawn chromeTrace
	if err := json.Unmarshal(src, &drawn); err != nil {
		t.Fatal(err)
	}
	at, launches := -1.0, 0
	for _, e := range drawn.Events {
		if e.Phase != "X" {
			continue
		}
		if e.Start < at || e.Length < 0 || e.Process != 1 {
			t.Errorf("%+v begins before the one before it ends, at %v", e, at)
		}
		at = e.Start + e.Length
		if e.Thread == 0 {
			launches++
			if e.Args["launch"] != float64(launches) || e.Name == "" {
				t.Errorf("%+v", e)
			}
		}
	}
	if launches != len(rep.Launches) {
		t.Errorf("%d of %d launches are drawn", launches, len(rep.Launches))
	}
	out := bench(t, path, "--target", "cuda", "--no-gorgonia")
	for _, want := range []string{"of GEMM", "by the driver's account", "registers", "by the host's clock",
		"TFLOP/s in tf32"} {
		if !strings.Contains(out, want) {
			t.Errorf("lacks %q:\n%s", want, out)
		}
	}
	clitest.Bad(t, clitest.FusecRun(t, "bench", "matmul", "--trace", file), cli.ExitUsage, "--trace is for models")
}

// TestTraceOnCPU lays launches end to end.
func TestTraceOnCPU(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace.json")
	bench(t, clitest.Model(t, nil), "--no-gorgonia", "--trace", file)
	src, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(src), `"cat": "processor"`) {
		t.Errorf("%v: %s", err, src)
	}
}

// TestLaddersOnGPU computes by every variant; each result is compared with what it should be.
func TestLaddersOnGPU(t *testing.T) {
	clitest.Emulated(t)
	for _, args := range [][]string{{"matmul", "--sizes", "40x36x44"},
		{"attention", "--seq", "40", "--heads", "2", "--dim", "16", "--causal"}} {
		args = append(append([]string{"bench"}, args...), "--ladder", "--target", "cuda")
		var rep gpuLadderReport
		if err := json.Unmarshal([]byte(clitest.Good(t, append(args, "--json")...)), &rep); err != nil {
			t.Fatal(err)
		}
		for _, r := range rep.Variants {
			if r.Error != "" || r.MedianNS <= 0 || r.TFLOPs <= 0 || r.Bytes <= 0 || r.GBs <= 0 || len(r.Kernels) == 0 {
				t.Errorf("%+v", r)
			}
		}
		if want := map[string]int{"matmul": 5 + 2 + 2 + 3 + 2, "attention": 4}[args[1]]; len(rep.Variants) != want {
			t.Errorf("%s has %d variants, want %d", args[1], len(rep.Variants), want)
		}
		out := clitest.Good(t, args...)
		for _, r := range rep.Variants {
			if !strings.Contains(out, r.Variant) || !strings.Contains(out, "occupancy") {
				t.Errorf("lacks %q:\n%s", r.Variant, out)
			}
		}
	}
	clitest.Bad(t, clitest.FusecRun(t, "bench", "matmul", "--target", "cuda"), cli.ExitUsage, "has a --ladder")
	clitest.Bad(t, clitest.FusecRun(t, "bench", "moe", "--target", "cuda"), cli.ExitUsage, "is for the CPU")
}

// TestGPUWorks: a group's name asks for that group alone, other words for all works that have them in their names.
func TestGPUWorks(t *testing.T) {
	for _, g := range gpuGroups {
		want := g.list(true)
		got, err := gpuWorks([]string{g.name}, true)
		if err != nil || !slices.EqualFunc(got, want, func(a, b *gpuWork) bool { return a.name == b.name }) {
			t.Errorf("%s: %d works of %d: %v", g.name, len(got), len(want), err)
		}
	}
	got, err := gpuWorks([]string{"layernorm"}, true)
	if err != nil || len(got) == 0 || !strings.Contains(got[0].name, "layernorm") {
		t.Errorf("%d works: %v", len(got), err)
	}
}
