package nvrtc_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda/driver/nvrtc"
	"fusec/lowering/cuda/driver/nvrtc/nvrtctest"
)

const axpy = `struct Params { float *x; float a; unsigned n; };
extern "C" __global__ void axpy(const __grid_constant__ Params p) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < p.n) p.x[i] *= p.a;
}
`

func TestCompile(t *testing.T) {
	c := nvrtctest.Open(t)
	for _, arch := range []int{80, 90} {
		chip := kernels.ChipOf(arch)
		image, log, err := c.Compile(axpy, chip)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(string(image), "\x7fELF") {
			t.Errorf("%s: the image begins with %q, want an ELF file", chip.Target(), image[:min(8, len(image))])
		}
		u, ok := nvrtc.Usages(log)["axpy"]
		if !ok || u.Registers == 0 || u.Spills != 0 || u.Stack != 0 {
			t.Errorf("%s: %+v, %v from the log:\n%s", chip.Target(), u, ok, log)
		}
		ptx, _, err := c.PTX(axpy, chip)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(ptx, ".target "+chip.Target()) || !strings.Contains(ptx, ".entry axpy") ||
			strings.Contains(ptx, "\x00") {
			t.Errorf("%s: PTX without the target or the entry:\n%s", chip.Target(), ptx)
		}
		both, same, _, err := c.CompileBoth(axpy, chip)
		if err != nil || !bytes.Equal(both, image) || same != ptx {
			t.Errorf("%s: in one translation: %v, an image of %d bytes, of %d, and PTX:\n%s", chip.Target(), err, len(both),
				len(image), same)
		}
	}
}

func TestUsagesOfTheCompiler(t *testing.T) {
	// 64 values that live at once do not fit into 32 registers.
	const spills = `extern "C" __global__ void __launch_bounds__(1024, 2) spills(float *x) {
  float a[64];
#pragma unroll
  for (int i = 0; i < 64; i++) a[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; i++) x[i * 1024 + threadIdx.x] = a[63 - i] * a[i];
  __shared__ float s[32];
  s[threadIdx.x % 32] = a[3];
  __syncthreads();
  x[threadIdx.x] = s[(threadIdx.x + 1) % 32];
}`
	_, log, err := nvrtctest.Open(t).Compile(spills, kernels.H200)
	if err != nil {
		t.Fatal(err)
	}
	if u := nvrtc.Usages(log)["spills"]; u.Spills == 0 || u.Stack == 0 || u.Registers != 32 || u.Shared != 128 {
		t.Errorf("%+v from the log:\n%s", u, log)
	}
}

func TestErrors(t *testing.T) {
	c := nvrtctest.Open(t)
	for _, e := range []struct {
		name, source string
		chip         kernels.Chip
		want         []string
	}{
		{"a name", "int a;\nextern \"C\" __global__ void k(float *x) { x[0] = y; }", kernels.H200,
			[]string{"sm_90a", "kernel.cu(2): error", `"y" is undefined`, "x[0] = y;"}},
		{"an instruction", "extern \"C\" __global__ void k(float *x) { asm volatile(\"foo.bar %0;\" ::\"f\"(x[0])); }",
			kernels.H200, []string{"Unknown modifier '.bar'", "foo.bar %"}},
		{"a zero byte", "int a;\x00", kernels.H200, []string{"zero byte at 6"}},
		{"a chip of the future", axpy, kernels.ChipOf(990), []string{"not for sm_990", "newer"}},
		{"a chip of the past", axpy, kernels.ChipOf(20), []string{"not for sm_20", "older"}},
	} {
		_, _, err := c.Compile(e.source, e.chip)
		if err == nil {
			t.Errorf("%s was accepted", e.name)
			continue
		}
		for _, want := range e.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q is not in: %v", e.name, want, err)
			}
		}
	}
	if _, _, err := c.PTX(axpy, kernels.ChipOf(20)); err == nil {
		t.Error("PTX for a chip of the past was made")
	}
	if _, _, _, err := c.CompileBoth(axpy, kernels.ChipOf(20)); err == nil {
		t.Error("machine code and PTX for a chip of the past were made")
	}
	if strings.HasPrefix(c.Version(), "NVRTC 13") {
		_, _, err := c.Compile(axpy, kernels.ChipOf(70))
		if err == nil || !strings.Contains(err.Error(), "CUDA 12's does") {
			t.Errorf("sm_70 on CUDA 13: %v", err)
		}
	}
}

func TestOptionsAndVersion(t *testing.T) {
	c := nvrtctest.Open(t, "--maxrregcount=16", "-DN=7")
	if v := c.Version(); !strings.HasPrefix(v, "NVRTC 1") || !strings.Contains(v, "-DN=7") {
		t.Errorf("the version is %q", v)
	}
	ptx, _, err := c.PTX(`extern "C" __global__ void k(int *x) { *x = N * 1000; }`, kernels.H200)
	if err != nil || !strings.Contains(ptx, "7000") {
		t.Errorf("%v in\n%s", err, ptx)
	}
	bad := nvrtctest.Open(t, "--no-such-option")
	if _, _, err := bad.Compile(axpy, kernels.H200); err == nil || !strings.Contains(err.Error(), "no-such-option") {
		t.Errorf("an unknown option: %v", err)
	}
}

func TestGoroutines(t *testing.T) {
	c := nvrtctest.Open(t)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			source := strings.ReplaceAll(axpy, "axpy", fmt.Sprintf("axpy%d", i))
			_, log, err := c.Compile(source, kernels.H200)
			if err != nil {
				t.Error(err)
			}
			if _, ok := nvrtc.Usages(log)[fmt.Sprintf("axpy%d", i)]; !ok {
				t.Errorf("%d: the log is another's: %s", i, log)
			}
		})
	}
	all.Wait()
}

func TestFolderByVariable(t *testing.T) {
	c := nvrtctest.Open(t)
	if filepath.Base(c.Path()) == c.Path() {
		t.Skip("the loader found NVRTC and does not say where")
	}
	for _, set := range []string{c.Path(), filepath.Dir(c.Path())} {
		t.Setenv(nvrtc.Variable, set)
		if again, err := nvrtc.Open(); err != nil || again.Path() != c.Path() {
			t.Errorf("%s=%s: %v", nvrtc.Variable, set, err)
		}
	}
}

func TestMissing(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("NVRTC is not loaded on this system")
	}
	dir := t.TempDir()
	broken := filepath.Join(dir, "libnvrtc.so.13")
	if err := os.WriteFile(broken, []byte("not a library"), 0o666); err != nil {
		t.Fatal(err)
	}
	for set, want := range map[string]string{
		filepath.Join(dir, "none"): filepath.Join(dir, "none"),
		t.TempDir():                "make cuda-tools",
		dir:                        "file too short",
		broken:                     nvrtc.Variable,
	} {
		t.Setenv(nvrtc.Variable, set)
		c, err := nvrtc.Open()
		if err == nil {
			t.Errorf("%s=%s loaded %s", nvrtc.Variable, set, c.Path())
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%s=%s: %q is not in: %v", nvrtc.Variable, set, want, err)
		}
	}
}

// TestSum compiles the kernel of small sums for each chip that may have peers.
func TestSum(t *testing.T) {
	c := nvrtctest.Open(t)
	source, err := os.ReadFile("../gpu/sum.cu")
	if err != nil {
		t.Fatal(err)
	}
	for _, arch := range []int{80, 90, 100} {
		if _, _, err := c.Compile(string(source), kernels.ChipOf(arch)); err != nil {
			t.Errorf("sm_%d: %v", arch, err)
		}
	}
}
