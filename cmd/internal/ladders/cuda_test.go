package ladders

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/cuda"
	"fusec/kernels/ref/cases"
	"fusec/lowering/cuda/cudatest"
	"fusec/lowering/cuda/driver/nvrtc/nvrtctest"
)

// rowMajor are operands of these types.
func rowMajor(types []graph.Type) (list []cuda.Operand) {
	for _, u := range types {
		list = append(list, cuda.Operand{DType: u.DType, Layout: graph.Contiguous(u.Shape)})
	}
	return list
}

// uniform draws elements from -1 to 1.
func uniform(r *rand.Rand, dims ...int) *graph.Tensor {
	return cases.Arg{Type: graph.TypeOf(graph.F32, dims...), Lo: -1, Hi: 1}.Draw(r)
}

// fused is a fusion.
func fused(t *testing.T, anchor graph.Anchor, write func(b *graph.Builder)) graph.Fusion {
	t.Helper()
	b := graph.NewBuilder("fused")
	write(b)
	body := graphtest.Graph(t, b)
	return graph.Fusion{Anchor: anchor, Body: body}
}

// TestCUDAMatMul multiplies odd sizes, transposed and not, by every variant.
func TestCUDAMatMul(t *testing.T) {
	d := cudatest.Open(t)
	r := rand.New(rand.NewPCG(3, 4))
	var checks []cudatest.Check
	for _, s := range [][3]int{{1, 1, 1}, {33, 70, 17}, {20, 16, 48}} {
		for i, v := range CUDAMatMul {
			for _, op := range []graph.MatMul{{}, {TransA: i == 0, TransB: true}} {
				x, y := graph.TypeOf(graph.F32, s[0], s[1]), graph.TypeOf(graph.F32, s[1], s[2])
				if op.TransA {
					x = graph.TypeOf(graph.F32, s[1], s[0])
				}
				if op.TransB {
					y = graph.TypeOf(graph.F32, s[2], s[1])
				}
				product := fused(t, graph.AnchorMatMul, func(b *graph.Builder) {
					b.Output("y", b.MatMul(b.Input("a", x), b.Input("b", y), op.TransA, op.TransB))
				})
				checks = append(checks, cudatest.Check{Name: fmt.Sprint(v.Name, s, op), Compile: v.Compile, Op: product,
					Args: []*graph.Tensor{uniform(r, x.Shape.Slice()...), uniform(r, y.Shape.Slice()...)}})
			}
		}
	}
	cudatest.Run(t, d, checks...)
}

// TestCUDAMatMulRefuses what a variant is not for.
func TestCUDAMatMulRefuses(t *testing.T) {
	half, square := graph.TypeOf(graph.BF16, 4, 4), graph.TypeOf(graph.F32, 4, 4)
	product := func(of graph.Type, and ...graph.UnaryFn) graph.Fusion {
		return fused(t, graph.AnchorMatMul, func(b *graph.Builder) {
			y := b.MatMul(b.Input("a", of), b.Input("b", of), false, false)
			for _, f := range and {
				y = b.Unary(f, y)
			}
			b.Output("y", y)
		})
	}
	for _, c := range []struct {
		op      graph.Op
		operand graph.Type
		want    string
	}{
		{graph.Copy{}, square, "not for copy"},
		{product(half), half, "it takes f32, not bf16"},
		{product(square, graph.Relu), square, "with more in its launch"},
	} {
		_, err := CUDAMatMul[0].Compile(c.op, rowMajor([]graph.Type{c.operand, c.operand}), rowMajor([]graph.Type{square}),
			cuda.Config{Chip: cuda.H200})
		if err == nil || !strings.Contains(err.Error(), "the variant naive is for a matrix product alone: ") ||
			!strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("error %v, want %q", err, c.want)
		}
	}
}

// TestCUDAAttention checks that all variants compute the same.
func TestCUDAAttention(t *testing.T) {
	const heads = 2
	d := cudatest.OpenFor(t, cuda.ChipOf(70))
	r := rand.New(rand.NewPCG(9, 1))
	var checks []cudatest.Check
	for _, s := range []struct {
		queries, keys, depth int
		causal               bool
	}{{70, 96, 40, true}, {5, 7, 3, false}, {9, 4, 1, true}} {
		q, k, v := uniform(r, heads, s.queries, s.depth), uniform(r, heads, s.keys, s.depth), uniform(r, heads, s.keys, s.depth)
		for i, variant := range CUDAAttention {
			op, types := AttentionTypes(heads, s.queries, s.keys, s.depth, s.causal)
			if i == len(CUDAAttention)-1 {
				op, types = PagedTypes(heads, s.queries, s.keys, s.depth, s.causal)
			}
			c := cudatest.Check{Name: fmt.Sprint(variant.Name, s), Compile: variant.Compile,
				Op: fused(t, graph.AnchorAttention, func(b *graph.Builder) {
					var in []*graph.Node
					for i, u := range types {
						in = append(in, b.Input(fmt.Sprint("operand ", i), u))
					}
					b.Output("out", b.Add(op, in...))
				})}
			for i, x := range []*graph.Tensor{q, k, v} {
				c.Args = append(c.Args, &graph.Tensor{Type: types[i], Data: x.Data})
			}
			if op.HasLengths {
				table := graph.NewTensor(types[4])
				for e := range types[4].Shape.Elems() {
					table.SetFloat(e, float64(e))
				}
				c.Args = append(c.Args, graph.Filled(types[3], float64(s.keys)), table)
			}
			checks = append(checks, c)
		}
	}
	cudatest.Run(t, d, checks...)
}

// TestCUDAAttentionRefuses what the definition is not for.
func TestCUDAAttentionRefuses(t *testing.T) {
	op, types := AttentionTypes(4, 5, 6, 7, true)
	masked := op
	masked.HasMask = true
	few := graph.TypeOf(graph.F32, 2, 6, 7)
	for _, c := range []struct {
		op   graph.Op
		args []graph.Type
		want string
	}{
		{graph.Copy{}, types, "not for copy with other operands or results"},
		{masked, types, "not for attention with other operands or results"},
		{op, []graph.Type{types[0], few, few}, "several heads of queries have the same keys"},
		{op, []graph.Type{graph.TypeOf(graph.F16, 4, 5, 7), types[1], types[2]}, "it takes f32, not f16"},
	} {
		_, err := CUDAAttention[0].Compile(c.op, rowMajor(c.args), rowMajor(types[:1]), cuda.Config{Chip: cuda.H200})
		if err == nil || err.Error() != "the variant naive is for an attention alone: "+c.want {
			t.Errorf("error %v, want %q", err, c.want)
		}
	}
	turned := rowMajor(types)
	turned[0].Layout.Stride[1], turned[0].Layout.Stride[2] = 1, 5
	_, err := CUDAAttention[0].Compile(op, turned, rowMajor(types[:1]), cuda.Config{Chip: cuda.H200})
	if err == nil || !strings.HasSuffix(err.Error(), "its operands are not row-major") {
		t.Errorf("error %v", err)
	}
}

// backwardChecks are a linear layer's gradient by every variant; operands are drawn from r, or have no elements without it.
func backwardChecks(t *testing.T, r *rand.Rand, m, k, n int) (checks []cudatest.Check) {
	t.Helper()
	op, err := LinearBackward(m, k, n)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range CUDABackward {
		c := cudatest.Check{Name: fmt.Sprint(v.Name, " ", []int{m, k, n}), Op: op, Compile: v.Compile}
		for _, dims := range [][]int{{m, k}, {k, n}, {m, n}} {
			a := &graph.Tensor{Type: graph.TypeOf(graph.F32, dims...)}
			if r != nil {
				a = uniform(r, dims...)
			}
			c.Args = append(c.Args, a)
		}
		checks = append(checks, c)
	}
	return checks
}

// TestCUDABackward computes gradients of odd sizes, empty ones among them, of values that stand side by side and then
// in other ways.
func TestCUDABackward(t *testing.T) {
	d := cudatest.Open(t)
	r := rand.New(rand.NewPCG(5, 6))
	var checks []cudatest.Check
	for _, s := range [][3]int{{1, 1, 1}, {70, 33, 130}, {129, 64, 17}, {20, 65, 3}, {300, 16, 64}, {40, 0, 5},
		{0, 6, 7}, {4, 5, 0}, {0, 0, 3}} {
		checks = append(checks, backwardChecks(t, r, s[0], s[1], s[2])...)
	}
	for _, s := range [][3]int{{31, 90, 66}, {65, 17, 80}, {7, 1, 9}} {
		for _, c := range backwardChecks(t, r, s[0], s[1], s[2]) {
			for _, a := range c.Args {
				c.ArgLayouts = append(c.ArgLayouts, cudatest.Layout(r, a.Type.Shape, true))
			}
			for _, dims := range [][]int{{s[0], s[1]}, {s[1], s[2]}, {s[2]}} {
				c.ResultLayouts = append(c.ResultLayouts, cudatest.Layout(r, graph.ShapeOf(dims...), false))
			}
			c.Name += " strided"
			checks = append(checks, c)
		}
	}
	cudatest.Run(t, d, checks...)
}

// atomics are instructions of PTX that add to memory.
var atomics = regexp.MustCompile(`\b(atom|red)\.`)

// TestCUDABackwardMachineCode compiles the variants for the size that the bench takes: nothing is spilled, and nothing is
// added atomically.
func TestCUDABackwardMachineCode(t *testing.T) {
	checks := backwardChecks(t, nil, 4096, 4096, 4096)
	chips := []cuda.Chip{cuda.ChipOf(80), cuda.H200}
	cudatest.MachineCode(t, chips, chips, checks...)
	compiler := nvrtctest.Open(t)
	for i, v := range CUDABackward {
		var types []graph.Type
		for _, a := range checks[i].Args {
			types = append(types, a.Type)
		}
		results, err := graph.InfoOf(checks[i].Op).Infer(checks[i].Op, types)
		if err != nil {
			t.Fatal(err)
		}
		k, err := v.Compile(checks[i].Op, rowMajor(types), rowMajor(results), cuda.Config{Chip: cuda.H200})
		if err != nil {
			t.Fatal(err)
		}
		ptx, _, err := compiler.PTX(k.Source, cuda.H200)
		if err != nil {
			t.Fatal(err)
		}
		if found := atomics.FindString(ptx); found != "" || !strings.Contains(ptx, "fma.rn.f32") {
			t.Errorf("%s: its PTX has no products, or %q", v.Name, found)
		}
	}
}

// TestCUDABackwardRefuses what no variant is for.
func TestCUDABackwardRefuses(t *testing.T) {
	op, err := LinearBackward(4, 5, 6)
	if err != nil {
		t.Fatal(err)
	}
	args := []graph.Type{graph.TypeOf(graph.F32, 4, 5), graph.TypeOf(graph.F32, 5, 6), graph.TypeOf(graph.F32, 4, 6)}
	results := []graph.Type{args[0], args[1], graph.TypeOf(graph.F32, 6)}
	product := fused(t, graph.AnchorMatMul, func(b *graph.Builder) {
		x, w, dy := b.Input("x", args[0]), b.Input("w", args[1]), b.Input("dy", args[2])
		b.Output("dx", b.Binary(graph.Add, x, b.MatMul(dy, w, false, true)))
		b.Output("dw", w)
		b.Output("db", dy)
	})
	for _, v := range CUDABackward {
		for _, c := range []struct {
			op            graph.Op
			args, results []graph.Type
			want          string
		}{
			{graph.Copy{}, args[:1], args[:1], "not for copy of 1 operands"},
			{op, args[:2], results, "not for fusion of 2 operands"},
			{product, args, results, "the graphs"},
		} {
			_, err := v.Compile(c.op, rowMajor(c.args), rowMajor(c.results), cuda.Config{Chip: cuda.H200})
			if err == nil || !strings.Contains(err.Error(), c.want) ||
				!strings.HasPrefix(err.Error(), "the variant "+v.Name+" is for the gradient of a linear layer: ") {
				t.Errorf("error %v, want %q", err, c.want)
			}
		}
	}
}
