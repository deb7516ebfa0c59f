package cuda_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/kernels/cuda"
	"fusec/lowering/cuda/cudatest"
	"fusec/lowering/cuda/driver/nvrtc/nvrtctest"
)

// normedCase is a product whose rows are normed in its launch, with weights in panels.
type normedCase struct {
	packedCase
	sms int // multiprocessors
}

var normedCases = []normedCase{
	{packedCase{m: 1, n: 128, k: 1024, w: graph.BF16, block: -1}, 132},
	{packedCase{m: 1, n: 4096, k: 2056, w: graph.BF16, block: -1}, 132},
	{packedCase{m: 3, n: 92, k: 4672, w: graph.BF16, block: -1}, 132},
	{packedCase{m: 4, n: 4320, k: 192, w: graph.BF16, block: -1}, 5},
	{packedCase{m: 1, n: 4320, k: 192, w: graph.I8}, 132},
	{packedCase{m: 1, n: 192, k: 2080, w: graph.F8E4M3}, 132},
	{packedCase{m: 8, n: 160, k: 1056, w: graph.I8}, 132},
	{packedCase{m: 5, n: 8561, k: 1000, w: graph.F8E5M2}, 132},
	{packedCase{m: 1, n: 1032, k: 3000, w: graph.I4, block: 128}, 132},
	{packedCase{m: 1, n: 4096, k: 4096, w: graph.I4, block: 128}, 3},
	{packedCase{m: 4, n: 132, k: 1096, w: graph.I4, block: 64}, 132},
	{packedCase{m: 6, n: 200, k: 1096, w: graph.I4, block: 128}, 132},
	{packedCase{m: 1, n: 1, k: 8, w: graph.I8}, 132},
	{packedCase{m: 2, n: 33, k: 264, w: graph.I4}, 132},
	{packedCase{m: 1, n: 130, k: 16384, w: graph.I4, block: 128}, 2}, // gains that registers do not hold
}

// check is the product, of even cases with a residual and SiLU.
func (c normedCase) check(t *testing.T, r *rand.Rand, i int) cudatest.Check {
	t.Helper()
	return c.checkOf(t, r, i, func(b *graph.Builder, in inputs) *graph.Node {
		return b.CastTo(graph.BF16, b.Add(graph.RMSNorm{Eps: 1e-6}, in(graph.F32, c.m, c.k), in(graph.F32, c.k)))
	})
}

// kernel is the kernel, whose weights, scales and gains are frozen.
func (c normedCase) kernel(t *testing.T, check cudatest.Check) *cuda.Kernel {
	t.Helper()
	chip := cuda.H200
	chip.SMs = c.sms
	args := operandsOf(check.Args)
	for i := range args {
		args[i].Frozen = i > 0
	}
	k, err := cuda.Compile(check.Op, args, rowMajor(resultsOf(t, check)), cuda.Config{Chip: chip})
	if err != nil {
		t.Fatalf("%s: %v", check.Name, err)
	}
	return k
}

// TestNormedProducts compares products that norm their rows.
func TestNormedProducts(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 6))
	for i, c := range normedCases {
		check := c.check(t, r, i)
		k := c.kernel(t, check)
		if !strings.Contains(k.Generated(), "NormedRows<") || len(k.Steps) != 1 || !k.Steps[0].Early {
			t.Errorf("%s: %d steps:\n%s", check.Name, len(k.Steps), k.Generated())
		}
		chip := cuda.H200
		chip.SMs = c.sms
		cudatest.Run(t, cudatest.OpenFor(t, chip), check)
	}
}

// TestNormedExtremes: rows of zeros, large and small ones, infinities and NaN.
func TestNormedExtremes(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	for _, c := range []normedCase{
		{packedCase{m: 4, n: 160, k: 1056, w: graph.I8}, 132},
		{packedCase{m: 4, n: 132, k: 1096, w: graph.I4, block: 64}, 132},
	} {
		for name, x := range map[string]float64{"zero": 0, "infinite": math.Inf(1), "NaN": math.NaN(), "large": 1e16, "small": 1e-30} {
			check := c.check(t, r, 1)
			check.Name = name
			for i := range c.k {
				if i == 5 || name == "zero" || x != 0 && !math.IsNaN(x) && !math.IsInf(x, 0) {
					check.Args[0].SetFloat(c.k+i, x*(1+float64(i%7)))
				}
			}
			cudatest.Run(t, cudatest.OpenFor(t, cuda.H200), check)
		}
	}
}

// TestNormedCode: kernels of a decoder layer compile without spills.
func TestNormedCode(t *testing.T) {
	for i, c := range []packedCase{
		{m: 1, n: 14336, k: 4096, w: graph.BF16, block: -1},
		{m: 4, n: 14336, k: 4096, w: graph.BF16, block: -1},
		{m: 1, n: 4096, k: 4096, w: graph.I8},
		{m: 8, n: 4096, k: 4096, w: graph.I8},
		{m: 1, n: 14336, k: 4096, w: graph.I4, block: 128},
		{m: 4, n: 4096, k: 4096, w: graph.I4, block: 128},
		{m: 8, n: 4096, k: 4096, w: graph.I4, block: 128},
		{m: 1, n: 14336, k: 8192, w: graph.I4, block: 128},
	} {
		n := normedCase{c, cuda.H200.SMs}
		check := n.check(t, rand.New(rand.NewPCG(6, 6)), i)
		wellCompiled(t, nvrtctest.Open(t), check.Name, cuda.H200, n.kernel(t, check))
	}
}
