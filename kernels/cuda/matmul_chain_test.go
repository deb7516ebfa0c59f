package cuda_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/kernels/cuda"
	"fusec/lowering/cuda/driver/nvrtc/nvrtctest"
)

// link is a link of products in panels whose arguments are values of their own, but for the row. Those of even numbers add an
// argument to the sums.
func (c packedCase) link(t *testing.T, number, row int) cuda.Link {
	t.Helper()
	check := c.check(t, rand.New(rand.NewPCG(5, 5)), number)
	l := cuda.Link{Launch: cuda.Launch{Op: check.Op, Args: operandsOf(check.Args), Results: rowMajor(resultsOf(t, check))}}
	for i := range l.Args {
		l.Args[i].Frozen = i == 1 || i == 2
		l.Values = append(l.Values, 1000*number+i)
	}
	l.Values[0], l.Makes = row, []int{1000*number + 999}
	return l
}

// TestChainPlans tells what is a chain, what its products wait for, and which stage their rows again.
func TestChainPlans(t *testing.T) {
	hopper := cuda.Config{Chip: cuda.H200}
	wide := packedCase{m: 1, n: 8448, k: 512, x: graph.BF16, w: graph.I4, block: 128}
	square := packedCase{m: 1, n: 512, k: 512, x: graph.BF16, w: graph.I4, block: 128}
	down := packedCase{m: 1, n: 512, k: 8448, x: graph.BF16, w: graph.I4}
	waits := func(l cuda.Link) cuda.Link { l.Waits = true; return l }
	free := func(l cuda.Link) cuda.Link { l.Free = true; return l }
	of := func(c packedCase, change func(*packedCase)) packedCase { change(&c); return c }
	long := of(down, func(c *packedCase) { c.k = 1 << 16 })
	many := slices.Repeat([]cuda.Link{waits(square.link(t, 1, 999))}, 140)
	thawed := square.link(t, 1, 7)
	thawed.Args[1].Frozen = false
	for _, c := range []struct {
		name  string
		links []cuda.Link
		cfg   cuda.Config
		want  []string // nil: no chain
	}{
		{"two", []cuda.Link{square.link(t, 0, 7), waits(square.link(t, 1, 999))}, hopper,
			[]string{"Ring, 0, 128, true, 0, 0, false, 0>", "Ring, 0, 128, true, 1, 0, false, 0>", "panels[] = {16}",
				"op::cast<float>(read."}},
		{"the same row, and one that nobody waits for", []cuda.Link{square.link(t, 0, 7), waits(square.link(t, 1, 999)),
			free(wide.link(t, 2, 7))}, hopper, []string{"product0::finish(at, p.product0, p.counts + 0);\n    product2::finish(at, " +
			"p.product2, nullptr);\n    product1::", "Ring, 16, 128, true, 0, 0, true, 0>"}},
		{"a row of several turns", []cuda.Link{wide.link(t, 0, 7), waits(down.link(t, 1, 999))}, hopper,
			[]string{"true, 0, 0, false, 128>", "Ring, 0, 0, true, 2, 2, false, 0>", "panels[] = {128, 136}"}},
		{"none waits", []cuda.Link{square.link(t, 0, 7), square.link(t, 1, 7)}, hopper, nil},
		{"two rows", []cuda.Link{square.link(t, 0, 7), waits(of(square, func(c *packedCase) { c.m = 2 }).link(t, 1, 999))}, hopper, nil},
		{"weights of i8", []cuda.Link{square.link(t, 0, 7), waits(of(square, func(c *packedCase) { c.w = graph.I8 }).link(t, 1, 999))},
			hopper, nil},
		{"groups of 64", []cuda.Link{square.link(t, 0, 7), waits(of(square, func(c *packedCase) { c.block = 64 }).link(t, 1, 999))},
			hopper, nil},
		{"weights that change", []cuda.Link{thawed, waits(square.link(t, 1, 999))}, hopper, nil},
		{"too long a row", []cuda.Link{square.link(t, 0, 7), waits(long.link(t, 1, 999))}, hopper, nil},
		{"too many operands", many, hopper, nil},
		{"before Hopper", []cuda.Link{square.link(t, 0, 7), waits(square.link(t, 1, 999))}, cuda.Config{Chip: cuda.ChipOf(80)}, nil},
	} {
		k, err := cuda.Chain(c.links, c.cfg)
		if (err == nil) != (c.want != nil) {
			t.Errorf("%s: %v", c.name, err)
		}
		if err != nil {
			continue
		}
		if s := k.Steps[0]; len(k.Steps) != 1 || !s.Together || s.Shared > cuda.H200.Shared || s.Grid[0] > cuda.H200.SMs || !k.Resets {
			t.Errorf("%s: %+v", c.name, k.Steps)
		}
		for _, want := range c.want {
			if !strings.Contains(k.Generated(), want) {
				t.Errorf("%s: no %q in\n%s", c.name, want, k.Generated())
			}
		}
	}
}

// TestChainCompiled looks at what NVRTC makes of a chain.
func TestChainCompiled(t *testing.T) {
	wide := packedCase{m: 1, n: 14336, k: 4096, x: graph.BF16, w: graph.I4, block: 128}
	down := packedCase{m: 1, n: 4096, k: 14336, x: graph.F16, w: graph.I4, block: 128}
	after := down.link(t, 1, 999)
	after.Waits = true
	k, err := cuda.Chain([]cuda.Link{wide.link(t, 0, 7), after}, cuda.Config{Chip: cuda.H200})
	if err != nil {
		t.Fatal(err)
	}
	wellCompiled(t, nvrtctest.Open(t), "chain", cuda.H200, k, "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32")
}
