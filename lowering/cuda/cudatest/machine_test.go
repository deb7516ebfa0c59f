package cudatest

import (
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda/driver/nvrtc/nvrtctest"
)

// negation is a check of an elementwise fusion of n elements.
func negation(t *testing.T, n int) Check {
	b := graph.NewBuilder("")
	x := b.Input("x", graph.TypeOf(graph.F32, n))
	b.Output("y", b.Unary(graph.Neg, x))
	body, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	return Check{Name: "negation", Op: graph.Fusion{Body: body},
		Args: []*graph.Tensor{graphtest.Tensor(rand.New(rand.NewPCG(1, 1)), x.Type)}}
}

// TestMachineCode looks at machine code where $FUSEC_MACHINE_CODE asks for it, and compiles each text once.
func TestMachineCode(t *testing.T) {
	nvrtctest.Open(t)
	chips := []kernels.Chip{kernels.ChipOf(80), kernels.H200}
	c := negation(t, 12345)
	list, err := c.tasks(chips, chips)
	if err != nil || len(list) != 1 {
		t.Errorf("%d tasks (%v), want one: the text is the same for both chips", len(list), err)
	}
	if list, err = c.tasks(chips, chips); err != nil || len(list) != 0 {
		t.Errorf("%d tasks (%v) of what was done before", len(list), err)
	}
	t.Setenv(Variable, "sm_80 sm_90a")
	Run(t, Device{Chip: kernels.H200}, negation(t, 54321))
	c.Op = graph.Fusion{Anchor: graph.AnchorRow, Body: c.Op.(graph.Fusion).Body}
	c.Args = nil
	if _, err := c.tasks(chips, chips); err == nil {
		t.Error("a check without operands has tasks")
	}
}

// TestMachineCodeOfOlderChips: what is made for Hopper is compiled for an older chip only if programs on that have it, too.
func TestMachineCodeOfOlderChips(t *testing.T) {
	b := graph.NewBuilder("")
	x := b.Input("x", graph.TypeOf(graph.F32, 500, 9000))
	y := b.Add(graph.Softmax{Axis: 1}, x)
	b.Output("y", y)
	b.Output("sum", b.Reduce(graph.Sum, y, false, 0))
	body, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	sums := Check{Name: "sums", Op: graph.Fusion{Anchor: graph.AnchorRow, Body: body}, Args: []*graph.Tensor{graph.NewTensor(x.Type)}}
	sm80 := kernels.ChipOf(80)
	for _, c := range []Check{sums, negation(t, 23456)} {
		list, err := c.tasks([]kernels.Chip{kernels.H200}, []kernels.Chip{sm80})
		if err != nil || len(list) != 1 {
			t.Fatalf("%s: %d tasks (%v), want one", c.Name, len(list), err)
		}
		want, err := c.generate(sm80)
		if err != nil || list[0].chip != sm80 || list[0].source != plain(want.kernel) {
			t.Errorf("%s: compiled for %v, which has another kernel (%v)", c.Name, list[0].chip, err)
		}
	}
	made, err := sums.generate(kernels.H200)
	if err != nil {
		t.Fatal(err)
	}
	list, err := sums.tasks([]kernels.Chip{kernels.H200}, []kernels.Chip{sm80, kernels.H200})
	if err != nil || len(list) != 1 || list[0].chip != kernels.H200 || list[0].source != made.kernel.Source {
		t.Errorf("%d further tasks (%v), want what Hopper has", len(list), err)
	}
}

// TestInspect finds what should not be in machine code.
func TestInspect(t *testing.T) {
	compiler := nvrtctest.Open(t)
	const spilling = `extern "C" __global__ void __launch_bounds__(1024, 2) k(float *x) {
  float a[64];
#pragma unroll
  for (int i = 0; i < 64; i++) a[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; i++) x[i * 1024 + threadIdx.x] = a[63 - i] * a[i];
}`
	const plain = `extern "C" __global__ void linear(float *x) { x[threadIdx.x] *= 2; }`
	for _, c := range []struct{ name, source, generated, want string }{
		{"plain", plain, "", ""},
		{"spills", spilling, "", "entry k spills"},
		{"no wgmma", plain, "KERNEL(linear, 384, 1) {\n  gemm_hopper<P, B>(p);\n}\n", "entry linear has no HGMMA"},
		{"refused", "wrong", "", "refused"},
	} {
		err := task{c.name, c.source, c.generated, kernels.H200}.inspect(compiler)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: error %v, want one about %q", c.name, err, c.want)
		}
	}
	if allowed("gemm_mma<P, B, Split<>, T>") == 0 || allowed("gemm_mma<P, B, bf16, T>") != 0 {
		t.Error("spills are allowed where they should not be, or the other way round")
	}
}
