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
	"fusec/kernels/ref"
	"fusec/lowering/cuda/cudatest"
)

// inputs declares an input of a body.
type inputs = func(d graph.DType, dims ...int) *graph.Node

// fused is a fusion and the types of its operands.
func fused(t *testing.T, anchor graph.Anchor, build func(b *graph.Builder, in inputs)) (graph.Fusion, []graph.Type) {
	t.Helper()
	body := graph.New("")
	b := graph.Extend(body)
	var types []graph.Type
	build(b, func(d graph.DType, dims ...int) *graph.Node {
		types = append(types, graph.TypeOf(d, dims...))
		return b.Add(graph.Input{Type: types[len(types)-1]})
	})
	for i := range body.Outputs {
		body.Outputs[i].Name = fmt.Sprint(i)
	}
	if err := b.Err(); err != nil {
		t.Fatal(err)
	}
	if err := body.Tidy(); err != nil {
		t.Fatal(err)
	}
	return graph.Fusion{Anchor: anchor, Body: body}, types
}

// productDims are sizes of products to draw from: one, odd ones, whole tiles, and a little more.
var productDims = []int{1, 1, 2, 3, 7, 8, 16, 17, 32, 33, 64, 65, 100, 128, 130}

// drawProduct writes the body of a random product of elements of type d, of rank up to 4, with views of its operands,
// an epilogue, store views and column sums.
func drawProduct(r *rand.Rand, b *graph.Builder, in inputs, d graph.DType) {
	pick := func(list []int) int { return list[r.IntN(len(list))] }
	m, n, k := pick(productDims), pick(productDims), pick(productDims)
	switch r.IntN(16) {
	case 0:
		k = 0
	case 1:
		k = 600 + r.IntN(300)
	}
	batch := make([]int, r.IntN(3))
	for i := range batch {
		batch[i] = 1 + r.IntN(3)
	}
	operand := func(rows, cols int, trans bool) *graph.Node {
		if trans {
			rows, cols = cols, rows
		}
		var s []int
		for _, size := range batch[r.IntN(len(batch)+1):] {
			if r.IntN(4) == 0 {
				size = 1
			}
			s = append(s, size)
		}
		s = append(s, rows, cols)
		switch r.IntN(4) {
		case 0:
			axis, all := r.IntN(len(s)), append([]int(nil), s...)
			all[axis] += 5
			return b.Slice(in(d, all...), axis, r.IntN(6), s[axis], 1)
		case 1:
			perm, from := r.Perm(len(s)), make([]int, len(s))
			for i, p := range perm {
				from[p] = s[i]
			}
			return b.Transpose(in(d, from...), perm...)
		}
		return in(d, s...)
	}
	transA, transB := r.IntN(2) == 0, r.IntN(2) == 0
	y := b.MatMul(operand(m, k, transA), operand(k, n, transB), transA, transB)
	v, s, d := y, y.Type.Shape, y.Type.DType
	for range r.IntN(4) {
		switch r.IntN(7) {
		case 0:
			v = b.Binary(graph.Add, v, b.Broadcast(in(d, n), s))
		case 1:
			v = b.Unary(graph.GeluTanh, v)
		case 2:
			v = b.Binary(graph.Add, v, in(d, s.Slice()...))
		case 3:
			v = b.Binary(graph.Mul, v, b.Broadcast(in(d, m, 1), s))
		case 4:
			v = b.BinaryScalar(graph.Mul, v, 0.125)
		case 5:
			v = b.Add(graph.Select{}, in(graph.Bool, s.Slice()...), v, b.Scalar(d, 0))
		case 6:
			v = b.Add(graph.Dropout{P: 0.25}, v, b.Scalar(graph.I64, 77))
		}
	}
	out := v
	if d == graph.F32 && r.IntN(4) == 0 {
		out = b.Add(graph.Cast{To: graph.BF16}, v)
	}
	switch r.IntN(5) {
	case 0:
		b.Output("", b.Transpose(out, r.Perm(s.Rank())...))
	case 1:
		b.Output("", b.Reshape(out, s.Elems()))
	default:
		b.Output("", out)
	}
	if r.IntN(4) == 0 {
		b.Output("", y)
	}
	if r.IntN(3) == 0 {
		axes := make([]int, s.Rank()-1)
		for i := range axes {
			axes[i] = i
		}
		b.Output("", b.Reduce(graph.Sum, v, r.IntN(2) == 0, axes...))
		if r.IntN(2) == 0 {
			b.Output("", b.Reduce(graph.Sum, y, false, axes...))
		}
	}
}

// products draws checks of products, a share of them of each element type.
func products(t *testing.T, r *rand.Rand, n int, precision cuda.Precision) []cudatest.Check {
	types := []graph.DType{graph.F32, graph.F32, graph.BF16, graph.F16, graph.F64}
	var checks []cudatest.Check
	for i := range n {
		d := types[i%len(types)]
		op, in := fused(t, graph.AnchorMatMul, func(b *graph.Builder, in inputs) { drawProduct(r, b, in, d) })
		c := cudatest.Check{Name: fmt.Sprintf("%d %v", i, d), Op: op}
		c.Config.Precision = precision
		c.Compare = within(precision)
		for j, u := range in {
			c.Args = append(c.Args, graphtest.Tensor(r, u))
			c.ArgLayouts = append(c.ArgLayouts, cudatest.Layout(r, u.Shape, false))
			if r.IntN(2) == 0 {
				c.ArgLayouts[j] = graph.Contiguous(u.Shape)
			}
		}
		for _, o := range op.Body.Outputs {
			l := graph.Contiguous(o.Node.Type.Shape)
			if l.Shape.Rank() > 1 && r.IntN(4) == 0 && !isReshaped(o.Node) {
				l = cudatest.Layout(r, l.Shape, false)
			}
			c.ResultLayouts = append(c.ResultLayouts, l)
		}
		checks = append(checks, c)
	}
	return checks
}

func isReshaped(n *graph.Node) bool { _, ok := n.Op.(graph.Reshape); return ok }

// within compares with the reference as the precision allows.
func within(p cuda.Precision) func(got *graph.Tensor, want ref.Value) error {
	return func(got *graph.Tensor, want ref.Value) error {
		if p != cuda.F32 && got.Type.DType != graph.F64 {
			scale := 200.0 // 2e-3 of the terms
			if got.Type.DType.Is16() {
				scale = 2
			}
			for i := range want.Mag {
				want.Mag[i] *= scale
			}
		}
		return ref.Check(got, want)
	}
}

// TestMatMulPlain computes random products as chips without tensor cores do.
func TestMatMulPlain(t *testing.T) {
	d := cudatest.OpenFor(t, cuda.ChipOf(70))
	cudatest.Run(t, d, products(t, rand.New(rand.NewPCG(1, 70)), 25, cuda.F32)...)
}

// TestMatMulTensor computes random products on tensor cores.
func TestMatMulTensor(t *testing.T) {
	d := cudatest.OpenFor(t, cuda.ChipOf(80))
	r := rand.New(rand.NewPCG(1, 80))
	t.Run("f32", func(t *testing.T) { cudatest.Run(t, d, products(t, r, 12, cuda.F32)...) })
	t.Run("tf32", func(t *testing.T) { cudatest.Run(t, d, products(t, r, 5, cuda.TF32)...) })
}

// TestMatMulInfinite keeps infinities and NaNs where they belong, although split products see them in parts.
func TestMatMulInfinite(t *testing.T) {
	op, types := fused(t, graph.AnchorMatMul, func(b *graph.Builder, in inputs) {
		b.Output("", b.MatMul(in(graph.F32, 5, 9), in(graph.F32, 9, 6), false, false))
	})
	r := rand.New(rand.NewPCG(5, 5))
	c := cudatest.Check{Name: "infinite", Op: op}
	for _, u := range types {
		c.Args = append(c.Args, graphtest.Tensor(r, u))
	}
	c.Args[0].SetFloat(3, math.Inf(1))
	c.Args[0].SetFloat(12, math.Inf(-1))
	c.Args[0].SetFloat(20, math.NaN())
	c.Args[1].SetFloat(2, math.Inf(1))
	c.Args[1].SetFloat(8, 0.5) // exact: nothing is left of it
	cudatest.Run(t, cudatest.OpenFor(t, cuda.ChipOf(80)), c)
}

// TestMatMulRefused names what a product cannot be made of.
func TestMatMulRefused(t *testing.T) {
	op, types := fused(t, graph.AnchorMatMul, func(b *graph.Builder, in inputs) {
		b.Output("", b.MatMul(b.Unary(graph.Relu, in(graph.F32, 4, 4)), in(graph.F32, 4, 4), false, false))
	})
	results := rowMajor([]graph.Type{graph.TypeOf(graph.F32, 4, 4)})
	_, err := cuda.Compile(op, rowMajor(types), results, cuda.Config{Chip: cuda.H200})
	if err == nil || !strings.Contains(err.Error(), "relu %1, an operand of matmul %3, is computed in the same launch") {
		t.Error(err)
	}
}
