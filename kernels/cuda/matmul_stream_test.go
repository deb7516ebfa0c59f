package cuda_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/kernels/cuda"
	"fusec/lowering/cuda/cudatest"
	"fusec/lowering/cuda/driver/nvrtc/nvrtctest"
)

// streamCases have tiles that one block computes, and tiles that several do, with the slices of a few multiprocessors.
var streamCases = []struct {
	fewCase
	chips int // multiprocessors
}{
	{fewCase{m: 1, n: 256, k: 520, d: graph.BF16}, 132},
	{fewCase{m: 8, n: 203, k: 648, d: graph.F16, transB: true}, 8},
	{fewCase{m: 9, n: 256, k: 520, d: graph.BF16}, 132},
	{fewCase{m: 64, n: 136, k: 1000, d: graph.BF16, transB: true}, 132},
	{fewCase{m: 33, n: 520, k: 264, d: graph.F16}, 3},
	{fewCase{m: 16, n: 1029, k: 128, d: graph.F16, transB: true}, 4},
	{fewCase{m: 20, n: 264, k: 504, d: graph.BF16, batch: 2}, 7},
	{fewCase{m: 64, n: 2048, k: 64, d: graph.BF16}, 5}, // whole tiles
	{fewCase{m: 17, n: 904, k: 200, d: graph.BF16}, 2},
	{fewCase{m: 32, n: 264, k: 520, d: graph.BF16, transB: true}, 12},            // clusters of two, apart
	{fewCase{m: 50, n: 264, k: 520, d: graph.BF16}, 12},                          // with the sums over the stages
	{fewCase{m: 33, n: 1032, k: 136, d: graph.F16, transB: true, batch: 2}, 132}, // clusters of two, a tile in parts
}

// TestMatMulStream compares products of some rows on Hopper, in one launch.
func TestMatMulStream(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	for i, c := range streamCases {
		chip := cuda.H200
		chip.SMs = c.chips
		check := c.check(t, r, i)
		k, err := cuda.Compile(check.Op, operandsOf(check.Args), rowMajor(resultsOf(t, check)), cuda.Config{Chip: chip})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(k.Generated(), "gemm_stream<") || len(k.Steps) != 1 {
			t.Errorf("%s: %d steps:\n%s", check.Name, len(k.Steps), k.Generated())
		}
		cudatest.Run(t, cudatest.OpenFor(t, chip), check)
	}
}

// TestStreamFits: the blocks of a launch that are to be apart have more than half of the shared memory of a multiprocessor, and
// one of any other launch fits beside one of them.
func TestStreamFits(t *testing.T) {
	const reserved = 1024 // that the driver takes for a block
	chip := cuda.H200
	chip.SMs = 8
	for _, rows := range []int{1, 8, 16, 17, 32, 33, 64} {
		var apart, most int
		for _, c := range []struct {
			n, k   int
			beside bool
			apart  bool
		}{{256, 512, false, true}, {512, 512, false, true}, {256, 1000, false, true}, {448, 320, false, false}, {1024, 136, false, false},
			{64, 2048, false, false}, {256, 512, true, false}} {
			check := fewCase{m: rows, n: c.n, k: c.k, d: graph.BF16}.check(t, rand.New(rand.NewPCG(5, 5)), 1)
			cfg := cuda.Config{Chip: chip, Leads: c.beside}
			k, err := cuda.Compile(check.Op, operandsOf(check.Args), rowMajor(resultsOf(t, check)), cfg)
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range k.Steps[0].Params {
				if x.Map != nil && !x.Map.Lines {
					t.Errorf("%d rows, %d columns, %d steps: the L2 cache fetches pairs of lines", rows, c.n, c.k)
				}
			}
			bytes := k.Steps[0].Shared + reserved
			if 2*bytes > chip.Shared != c.apart {
				t.Errorf("%d rows, %d columns, %d steps, beside others: %v: a block has %d bytes", rows, c.n, c.k, c.beside, bytes)
			}
			if c.apart {
				apart = max(apart, bytes)
			} else {
				most = max(most, bytes)
			}
		}
		if apart+most > chip.Shared {
			t.Errorf("%d rows: blocks have %d and %d bytes", rows, apart, most)
		}
	}
}

// TestStreamReleases: where k is the inner axis of the weights, a stage is filled again before the next slice has come.
func TestStreamReleases(t *testing.T) {
	compiler := nvrtctest.Open(t)
	for _, inner := range []bool{false, true} {
		check := fewCase{m: 32, n: 4096, k: 4096, d: graph.BF16, transB: inner}.check(t, rand.New(rand.NewPCG(5, 5)), 1)
		k, err := cuda.Compile(check.Op, operandsOf(check.Args), rowMajor(resultsOf(t, check)), cuda.Config{Chip: cuda.H200})
		if err != nil {
			t.Fatal(err)
		}
		_, ptx, _, err := compiler.CompileBoth(k.Source, cuda.H200)
		if err != nil {
			t.Fatal(err)
		}
		if late := strings.Contains(string(ptx), "wgmma.wait_group.sync.aligned 1;"); late == inner {
			t.Errorf("k is the inner axis: %v, a product is waited for after the next has begun: %v", inner, late)
		}
	}
}

// TestStreamSends: the blocks of a cluster send their sums, and none waits until all of its writes are visible, which takes
// microseconds beside copies from memory.
func TestStreamSends(t *testing.T) {
	check := fewCase{m: 16, n: 4096, k: 4096, d: graph.BF16}.check(t, rand.New(rand.NewPCG(5, 5)), 1)
	k, err := cuda.Compile(check.Op, operandsOf(check.Args), rowMajor(resultsOf(t, check)), cuda.Config{Chip: cuda.H200})
	if err != nil {
		t.Fatal(err)
	}
	compiler := nvrtctest.Open(t)
	image, _, err := compiler.Compile(k.Source, cuda.H200)
	if err != nil {
		t.Fatal(err)
	}
	code, err := compiler.Disassemble(image)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range code {
		if !strings.Contains(text, "STAS") || strings.Contains(text, "MEMBAR") {
			t.Errorf("%s:\n%s", name, text)
		}
	}
}
