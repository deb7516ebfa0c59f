package cuda_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/cuda"
	"fusec/lowering/cuda/cudatest"
	"fusec/lowering/cuda/driver/nvrtc/nvrtctest"
)

// acrossCase is a product of f32 whose B stands along n, with bias, GELU and perhaps column sums.
type acrossCase struct {
	batch          []int
	m, k, n        int
	sms            int // a chip with few multiprocessors gets large tiles
	out            graph.DType
	transA, transB bool
	sums           bool
}

func (c acrossCase) config(p cuda.Precision) cuda.Config {
	chip := cuda.H200
	if c.sms > 0 {
		chip.SMs = c.sms
	}
	return cuda.Config{Chip: chip, Precision: p}
}

// fusion gives the case with its operands' types.
func (c acrossCase) fusion(t *testing.T) (graph.Fusion, []graph.Type) {
	return fused(t, graph.AnchorMatMul, func(b *graph.Builder, in inputs) {
		matrix := func(rows, cols int, trans bool) *graph.Node {
			if trans {
				rows, cols = cols, rows
			}
			return in(graph.F32, append(append([]int(nil), c.batch...), rows, cols)...)
		}
		y := b.MatMul(matrix(c.m, c.k, c.transA), matrix(c.k, c.n, c.transB), c.transA, c.transB)
		y = b.Unary(graph.GeluTanh, b.Binary(graph.Add, y, b.Broadcast(in(graph.F32, c.n), y.Type.Shape)))
		if c.out == graph.F32 {
			b.Output("y", y)
		} else {
			b.Output("y", b.CastTo(c.out, y))
		}
		if c.sums {
			var axes []int
			for i := range y.Type.Shape.Rank() - 1 {
				axes = append(axes, i)
			}
			b.Output("sums", b.Reduce(graph.Sum, y, false, axes...))
		}
	})
}

// writingTiles are the strict tiles of products across in which a warpgroup writes the small numbers of A.
var writingTiles = [][2]int{{128, 128}, {256, 64}, {64, 128}}

// TestMatMulAcross computes products of f32 with operands in registers: both ways in which warpgroups share the work, every strict
// tile, shares of k, edges of tiles, operands that are copied first, and infinities.
func TestMatMulAcross(t *testing.T) {
	was := cuda.SetPortableTime(math.MaxInt / 2) // small products, too
	defer cuda.SetPortableTime(was)
	t.Run("tf32", func(t *testing.T) { acrossProducts(t, cuda.TF32) })
	for _, bm := range []int{128, 256} {
		t.Run(fmt.Sprint("tf32, shares that meet, ", bm), func(t *testing.T) {
			defer cuda.OnlyMeeting(bm)()
			var checks []cudatest.Check
			for i, c := range []acrossCase{
				{m: bm, k: 70, n: 256, out: graph.F32, sums: true}, // shares of two steps and one
				{m: 2 * bm, k: 600, n: 128, sms: 4, out: graph.F32, sums: true},
				{batch: []int{2, 3}, m: bm, k: 64, n: 128, out: graph.F32, sums: true},
				{m: bm, k: 90, n: 256, sms: 4, transA: true, out: graph.BF16},
			} {
				checks = append(checks, c.check(t, cuda.TF32, i, "MEETS = true"))
			}
			cudatest.Run(t, cudatest.OpenFor(t, cuda.H200), checks...)
		})
	}
	t.Run("f32", func(t *testing.T) {
		defer cuda.OnlyAcross(128, 128, true, false)()
		acrossProducts(t, cuda.F32)
	})
	for _, tile := range writingTiles {
		t.Run(fmt.Sprint("f32, ", tile), func(t *testing.T) {
			defer cuda.OnlyAcross(tile[0], tile[1], true, true)()
			acrossProducts(t, cuda.F32)
		})
	}
}

// check is case number i, whose kernel has that text.
func (c acrossCase) check(t *testing.T, p cuda.Precision, i int, text string) cudatest.Check {
	t.Helper()
	r := rand.New(rand.NewPCG(4, uint64(i)))
	op, types := c.fusion(t)
	check := cudatest.Check{Name: fmt.Sprint(p, " ", i), Op: op, Config: c.config(p), Compare: within(p)}
	for _, u := range types {
		check.Args = append(check.Args, graphtest.Tensor(r, u))
	}
	if k := kernelOf(t, op, types, check.Config); !strings.Contains(k.Generated(), text) {
		t.Errorf("%v %d takes another path", p, i)
	}
	return check
}

func acrossProducts(t *testing.T, p cuda.Precision) {
	var checks []cudatest.Check
	for i, c := range []acrossCase{
		{m: 130, k: 70, n: 260, out: graph.F32, sums: true},
		{m: 70, k: 64, n: 264, sms: 1, out: graph.F32, sums: true},
		{m: 129, k: 100, n: 300, sms: 1, out: graph.BF16, sums: true},
		{m: 64, k: 600, n: 256, out: graph.F32, sums: true},
		{batch: []int{2, 3}, m: 64, k: 64, n: 256, sms: 2, out: graph.F32, sums: true},
		{m: 80, k: 90, n: 256, transA: true, out: graph.F32},
		{batch: []int{2}, m: 256, k: 66, n: 258, transB: true, sms: 2, out: graph.F32},
	} {
		if p == cuda.TF32 && c.transB {
			continue // this is what the other path is for
		}
		check := c.check(t, p, i, "gemm_across<")
		if i == 0 && p == cuda.F32 {
			check.Args[0].SetFloat(3, math.Inf(1))
			check.Args[0].SetFloat(2*c.k+12, math.Inf(-1))
			check.Args[0].SetFloat(5*c.k, math.NaN())
			check.Args[1].SetFloat(3*c.n+2, 0.5) // exact: nothing is left of it
			check.Args[1].SetFloat(9*c.n+7, math.Inf(1))
		}
		checks = append(checks, check)
	}
	cudatest.Run(t, cudatest.OpenFor(t, cuda.H200), checks...)
}

// TestMatMulAcrossCompiled looks at what NVRTC makes of every tile: products of warpgroups and nothing spilled, in products, and in
// f32 where patches are either operand, too.
func TestMatMulAcrossCompiled(t *testing.T) {
	compiler := nvrtctest.Open(t)
	was := cuda.SetPortableTime(math.MaxInt / 2)
	defer cuda.SetPortableTime(was)
	check := func(name string, k *cuda.Kernel) {
		t.Helper()
		wellCompiled(t, compiler, name, cuda.H200, k, "k8.f32.tf32.tf32")
	}
	for _, p := range []cuda.Precision{cuda.TF32, cuda.F32} {
		for _, sms := range []int{1, 132} {
			c := acrossCase{m: 200, k: 1024, n: 1024, sms: sms, out: graph.F32, sums: true}
			op, types := c.fusion(t)
			check(fmt.Sprintf("%v, %d multiprocessors", p, sms), kernelOf(t, op, types, c.config(p)))
		}
	}
	c := acrossCase{m: 512, k: 4096, n: 4096, out: graph.F32, sums: true}
	op, types := c.fusion(t)
	k := kernelOf(t, op, types, c.config(cuda.TF32))
	if !strings.Contains(k.Generated(), "MEETS = true") {
		t.Error("the shares of 512x4096x4096 do not meet")
	}
	check("shares that meet", k)
	ones := graph.IntsOf(1, 1)
	for _, tile := range writingTiles {
		restore := cuda.OnlyAcross(tile[0], tile[1], true, true)
		c := acrossCase{m: 2000, k: 1024, n: 1024, out: graph.F32, sums: true}
		op, types := c.fusion(t)
		check(fmt.Sprint(tile), kernelOf(t, op, types, c.config(cuda.F32)))
		images := []graph.Type{graph.TypeOf(graph.F32, 64, 28, 28, 128), graph.TypeOf(graph.F32, 64, 28, 28, 128)}
		grad := graph.Conv2DFilterGrad{Stride: ones, Dilation: ones, Pad: graph.IntsOf(1, 1, 1, 1), Groups: 1, KH: 3, KW: 3,
			Layout: graph.NHWC}
		filters := graph.TypeOf(graph.F32, 3, 3, 128, 128)
		for _, x := range []struct {
			op           graph.Op
			args, result []graph.Type
		}{
			{graph.Conv2D{Stride: ones, Dilation: ones, Pad: grad.Pad, Groups: 1, Layout: graph.NHWC},
				[]graph.Type{images[0], filters}, images[1:]},
			{grad, images, []graph.Type{filters}},
		} {
			k, err := cuda.Compile(x.op, rowMajor(x.args), rowMajor(x.result), cuda.Config{Chip: cuda.H200})
			if err != nil {
				t.Fatal(err)
			}
			check(fmt.Sprint(tile, x.op.OpName()), k)
		}
		restore()
	}
}
