package cuda_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/cuda"
	"fusec/lowering/cuda/cudatest"
	"fusec/lowering/cuda/driver/nvrtc/nvrtctest"
)

// fewCase is a product of few rows: m, n, k, and whether the operands are transposed.
type fewCase struct {
	m, n, k        int
	d              graph.DType
	transA, transB bool
	batch          int
}

// check is the product with a residual, a bias and SiLU, or bare with a transposed result.
func (c fewCase) check(t *testing.T, r *rand.Rand, i int) cudatest.Check {
	t.Helper()
	dims := func(x, y int, swap bool) []int {
		if swap {
			x, y = y, x
		}
		if c.batch > 0 {
			return []int{c.batch, x, y}
		}
		return []int{x, y}
	}
	op, types := fused(t, graph.AnchorMatMul, func(b *graph.Builder, in inputs) {
		y := b.MatMul(in(c.d, dims(c.m, c.k, c.transA)...), in(c.d, dims(c.k, c.n, c.transB)...), c.transA, c.transB)
		s, d := y.Type.Shape, y.Type.DType
		if i%3 == 0 {
			b.Output("", y)
			return
		}
		v := b.Unary(graph.Silu, b.Binary(graph.Add, y, b.Broadcast(in(d, c.n), s)))
		v = b.Binary(graph.Add, v, in(d, s.Slice()...))
		if i%3 == 1 {
			v = b.CastTo(graph.BF16, v)
		}
		b.Output("", v)
	})
	check := cudatest.Check{Name: fmt.Sprintf("%d %+v", i, c), Op: op}
	for _, u := range types {
		check.Args = append(check.Args, graphtest.Tensor(r, u))
	}
	return check
}

// fewCases have every number of rows, sizes that are no multiples of a tile, and both orders of the weights.
var fewCases = []fewCase{
	{m: 1, n: 136, k: 1003, d: graph.BF16},
	{m: 1, n: 131, k: 1016, d: graph.BF16, transB: true},
	{m: 1, n: 1024, k: 256, d: graph.F16, transB: true},
	{m: 3, n: 1000, k: 135, d: graph.F16, transA: true},
	{m: 8, n: 129, k: 1032, d: graph.F16, transB: true},
	{m: 9, n: 256, k: 517, d: graph.BF16},
	{m: 16, n: 321, k: 456, d: graph.BF16, transA: true, transB: true},
	{m: 12, n: 120, k: 1100, d: graph.F16},
	{m: 15, n: 203, k: 648, d: graph.BF16, transB: true},
	{m: 16, n: 200, k: 657, d: graph.BF16},
	{m: 2, n: 264, k: 498, d: graph.BF16, batch: 2},
	{m: 152, n: 1, k: 900, d: graph.BF16, transA: true}, // computed as one row
}

// TestMatMulFew compares products of few rows.
func TestMatMulFew(t *testing.T) {
	for _, chip := range machineChips {
		r := rand.New(rand.NewPCG(3, uint64(chip.Arch)))
		var checks []cudatest.Check
		for i, c := range fewCases {
			check := c.check(t, r, i)
			k, err := cuda.Compile(check.Op, operandsOf(check.Args), rowMajor(resultsOf(t, check)), cuda.Config{Chip: chip})
			if err != nil {
				t.Fatal(err)
			}
			few := strings.Contains(k.Generated(), "gemm_few<") ||
				chip == cuda.H200 && strings.Contains(k.Generated(), "gemm_stream<")
			if !few || len(k.Steps) != 1 {
				t.Errorf("%s: %d steps:\n%s", check.Name, len(k.Steps), k.Generated())
			}
			checks = append(checks, check)
		}
		cudatest.Run(t, cudatest.OpenFor(t, chip), checks...)
	}
}

func typesOf(list []*graph.Tensor) (types []graph.Type) {
	for _, a := range list {
		types = append(types, a.Type)
	}
	return types
}

func operandsOf(list []*graph.Tensor) []cuda.Operand { return rowMajor(typesOf(list)) }

func resultsOf(t *testing.T, c cudatest.Check) []graph.Type {
	t.Helper()
	list, err := graph.InfoOf(c.Op).Infer(c.Op, typesOf(c.Args))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// packedCase is a product of few rows with weights of few bits: rows that share a scale, −1 without scales.
type packedCase struct {
	m, n, k int
	x, w    graph.DType
	block   int
	trans   bool
}

var packedCases = []packedCase{
	{m: 1, n: 40, k: 700, x: graph.BF16, w: graph.I8},
	{m: 3, n: 65, k: 333, x: graph.F16, w: graph.I8, trans: true},
	{m: 1, n: 72, k: 1030, x: graph.BF16, w: graph.I4, block: 64},
	{m: 9, n: 129, k: 512, x: graph.F16, w: graph.I4, block: 32},
	{m: 2, n: 33, k: 260, x: graph.BF16, w: graph.I4, trans: true},
	{m: 17, n: 100, k: 640, x: graph.BF16, w: graph.I8, block: 96},
	{m: 1, n: 64, k: 512, x: graph.BF16, w: graph.F8E4M3},
	{m: 5, n: 31, k: 257, x: graph.F16, w: graph.F8E4M3, block: 128},
	{m: 4, n: 96, k: 300, x: graph.BF16, w: graph.F8E5M2, block: -1},
	{m: 64, n: 32, k: 128, x: graph.F16, w: graph.F8E5M2, block: 64},
	{m: 130, n: 50, k: 70, x: graph.BF16, w: graph.I4, block: 64}, // three blocks of rows
	{m: 1, n: 1, k: 1, x: graph.BF16, w: graph.I8},
	{m: 1, n: 70, k: 1100, x: graph.BF16, w: graph.BF16, block: -1},
	{m: 13, n: 33, k: 341, x: graph.F16, w: graph.F16, block: -1, trans: true},
	{m: 40, n: 160, k: 96, x: graph.BF16, w: graph.BF16, block: -1},
}

// TestPackWeights compares panels, and products with them.
func TestPackWeights(t *testing.T) {
	for _, chip := range machineChips {
		r := rand.New(rand.NewPCG(4, uint64(chip.Arch)))
		var checks []cudatest.Check
		for i, c := range packedCases {
			pack := graph.PackWeights{Trans: c.trans, Deep: true}
			stored := graph.TypeOf(c.w, c.k, c.n)
			if c.trans {
				stored = graph.TypeOf(c.w, c.n, c.k)
			}
			if c.w.Is16() && !c.trans {
				pack.To, stored.DType = c.w, graph.F32
			}
			w := graphtest.Tensor(r, stored)
			checks = append(checks, cudatest.Check{Name: fmt.Sprintf("pack %d %+v", i, c), Op: pack, Args: []*graph.Tensor{w}})
			if c.n%graph.PanelColumns == 0 {
				checks = append(checks, cudatest.Check{Name: fmt.Sprintf("pack twice %d %+v", i, c), Op: pack,
					Args: []*graph.Tensor{w, w}})
			}
			checks = append(checks, c.check(t, r, i))
		}
		cudatest.Run(t, cudatest.OpenFor(t, chip), checks...)
	}
}

// streamedCases have panels that bulk copies bring: parts of slices and of panels, several panels of a block, clusters, and more
// slices than slots.
var streamedCases = []packedCase{
	{m: 1, n: 128, k: 1024, x: graph.BF16, w: graph.BF16, block: -1},
	{m: 3, n: 92, k: 4672, x: graph.F16, w: graph.F16, block: -1},
	{m: 1, n: 4320, k: 192, x: graph.BF16, w: graph.I8},
	{m: 2, n: 8561, k: 1000, x: graph.F16, w: graph.I8},
	{m: 8, n: 160, k: 1056, x: graph.BF16, w: graph.I8},
	{m: 1, n: 192, k: 2081, x: graph.F16, w: graph.I8, block: -1},
	{m: 7, n: 161, k: 991, x: graph.BF16, w: graph.BF16, block: -1},
	{m: 4, n: 131, k: 4603, x: graph.BF16, w: graph.BF16, block: -1},
	{m: 2, n: 136, k: 3000, x: graph.BF16, w: graph.F8E4M3},
	{m: 4, n: 300, k: 9001, x: graph.F16, w: graph.F8E5M2},
	{m: 1, n: 4320, k: 192, x: graph.BF16, w: graph.I4},
	{m: 7, n: 1032, k: 3000, x: graph.BF16, w: graph.I4, block: 128},
	{m: 8, n: 160, k: 1056, x: graph.BF16, w: graph.I4, block: 256},
	{m: 5, n: 8564, k: 1000, x: graph.F16, w: graph.I4, block: 128},
	{m: 1, n: 4356, k: 2081, x: graph.F16, w: graph.F8E5M2, block: 2048},
	{m: 8, n: 132, k: 3000, x: graph.F16, w: graph.I4, block: 1024},
	{m: 1, n: 196, k: 4603, x: graph.F16, w: graph.I8, block: 64},
	{m: 1, n: 1000, k: 1056, x: graph.BF16, w: graph.F8E4M3, block: 128},
	{m: 1, n: 132, k: 5000, x: graph.BF16, w: graph.I4, block: -1},
}

// TestPanelsStream compares products with panels that bulk copies bring.
func TestPanelsStream(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	var checks []cudatest.Check
	for i, c := range streamedCases {
		check := c.check(t, r, i)
		args := operandsOf(check.Args)
		for j := range args {
			args[j].Frozen = true
		}
		k, err := cuda.Compile(check.Op, args, rowMajor(resultsOf(t, check)), cuda.Config{Chip: cuda.H200})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(k.Generated(), "gemm_panels<") || len(k.Steps) != 1 || !k.Steps[0].Early {
			t.Errorf("%s: %d steps:\n%s", check.Name, len(k.Steps), k.Generated())
		}
		checks = append(checks, check)
	}
	cudatest.Run(t, cudatest.OpenFor(t, cuda.H200), checks...)
}

// panelsKernel makes the kernel of a product of one row by weights of a type in panels.
func panelsKernel(t *testing.T, w graph.DType, cfg cuda.Config) *cuda.Kernel {
	t.Helper()
	c := packedCase{m: 1, n: 4096, k: 14336, x: graph.BF16, w: w}
	if w == graph.BF16 {
		c.block = -1
	}
	check := c.check(t, rand.New(rand.NewPCG(5, 5)), 1)
	cfg.Chip = cuda.H200
	k, err := cuda.Compile(check.Op, operandsOf(check.Args), rowMajor(resultsOf(t, check)), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestPanelsAhead: slices come to the L2 cache, but not those of a launch beside another.
func TestPanelsAhead(t *testing.T) {
	for w, ahead := range map[graph.DType]string{graph.BF16: "2", graph.I8: "8", graph.F8E4M3: "8"} {
		for _, beside := range []bool{false, true} {
			want := ahead
			if beside {
				want = "0"
			}
			k := panelsKernel(t, w, cuda.Config{Beside: beside})
			tile := regexp.MustCompile(`PanelTile<(?:\d+, ){5}(\d+),`).FindStringSubmatch(k.Source)
			if tile == nil || tile[1] != want {
				t.Errorf("%v, beside another launch: %v: %q, and not %s slices", w, beside, tile, want)
			}
		}
	}
}

// TestPanelsRoom: a launch with weights of 16 bits has a multiprocessor for each block, unless it runs beside another.
func TestPanelsRoom(t *testing.T) {
	for _, w := range []graph.DType{graph.BF16, graph.I8} {
		for _, beside := range []bool{false, true} {
			k := panelsKernel(t, w, cuda.Config{Leads: beside})
			if alone := k.Steps[0].Shared > cuda.H200.Shared/2; alone != (w == graph.BF16 && !beside) {
				t.Errorf("%v, beside another launch: %v: a block has %d bytes", w, beside, k.Steps[0].Shared)
			}
			wellCompiled(t, nvrtctest.Open(t), fmt.Sprint("panels of ", w), cuda.H200, k)
		}
	}
}

// check is the product, of even cases with a residual and SiLU.
func (c packedCase) check(t *testing.T, r *rand.Rand, i int) cudatest.Check {
	t.Helper()
	return c.checkOf(t, r, i, func(_ *graph.Builder, in inputs) *graph.Node { return in(c.x, c.m, c.k) })
}

// checkOf is the same of rows that a function makes.
func (c packedCase) checkOf(t *testing.T, r *rand.Rand, i int, rows func(b *graph.Builder, in inputs) *graph.Node) cudatest.Check {
	t.Helper()
	op := graph.PanelMatMul{Columns: c.n, Block: max(c.block, 0), Deep: true}
	fusion, _ := fused(t, graph.AnchorMatMul, func(b *graph.Builder, in inputs) {
		packed := graph.Type{DType: c.w, Shape: graph.DeepShape(c.w, c.k, c.n)}
		args := []*graph.Node{rows(b, in), b.Add(graph.Input{Type: packed})}
		if c.block >= 0 {
			args = append(args, b.Add(graph.Input{Type: graph.TypeOf(graph.F32, op.Blocks(c.k), c.n)}))
		}
		y := b.Add(op, args...)
		if i%2 == 0 {
			y = b.Unary(graph.Silu, b.Binary(graph.Add, y, in(graph.F32, c.m, c.n)))
		}
		b.Output("", y)
	})
	check := cudatest.Check{Name: fmt.Sprintf("%d %+v", i, c), Op: fusion}
	for _, n := range fusion.Body.Nodes {
		if in, ok := n.Op.(graph.Input); ok {
			check.Args = append(check.Args, graphtest.Tensor(r, in.Type))
		}
	}
	return check
}

// TestPackedNotFinite: weights of 8 bits that are infinite or no numbers stay so.
func TestPackedNotFinite(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	for i, c := range []packedCase{
		{m: 2, n: 40, k: 70, x: graph.BF16, w: graph.F8E4M3},
		{m: 1, n: 33, k: 64, x: graph.F16, w: graph.F8E4M3, block: -1},
		{m: 3, n: 40, k: 96, x: graph.BF16, w: graph.F8E5M2},
		{m: 1, n: 64, k: 32, x: graph.F16, w: graph.F8E5M2},
	} {
		check := c.check(t, r, 2*i+1) // without SiLU
		w := check.Args[1].Bytes()
		for _, at := range []int{8*5 + 3, 8 * 17, 8*30 + 6} { // of other columns
			w[at] = 0x7f
		}
		if c.w == graph.F8E5M2 {
			w[8*9+1] = 0xfc
		}
		cudatest.Run(t, cudatest.OpenFor(t, cuda.H200), check)
	}
}
