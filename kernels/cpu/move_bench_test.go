package cpu

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"fusec/graph"
	"fusec/kernels/cpu/pool"
)

// benchmarkOp times a kernel on operands of zeros and counts the bytes that it reads and writes.
func benchmarkOp(b *testing.B, op graph.Op, args []Operand, results []graph.Type, values ...*graph.Tensor) {
	p := pool.New(runtime.GOMAXPROCS(0))
	defer p.Close()
	var to []Operand
	var from, into []Memory
	bytes := int64(0)
	for i, a := range args {
		x := graph.NewTensor(a.Type())
		if i < len(values) && values[i] != nil {
			x = values[i]
		}
		from = append(from, MemoryOf(x))
		bytes += a.Type().Bytes()
	}
	for _, t := range results {
		to = append(to, Contiguous(t))
		into = append(into, MemoryOf(graph.NewTensor(t)))
		bytes += t.Bytes()
	}
	k, err := Compile(op, args, to, NewEnv(p))
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(bytes)
	b.ReportAllocs()
	for b.Loop() {
		if err := k.Run(from, into); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCopy(b *testing.B) {
	for _, c := range []struct {
		name       string
		d          graph.DType
		dims, perm []int
	}{
		{"plain", graph.F32, []int{2048, 2048}, []int{0, 1}},
		{"transpose", graph.F32, []int{2048, 2048}, []int{1, 0}},
		{"transpose_small", graph.F32, []int{256, 256}, []int{1, 0}},
		{"transpose", graph.F64, []int{1024, 2048}, []int{1, 0}},
		{"transpose", graph.I64, []int{1024, 2048}, []int{1, 0}},
		{"transpose", graph.Bool, []int{2048, 2048}, []int{1, 0}},
		{"heads", graph.F32, []int{4, 128, 8, 32}, []int{0, 2, 1, 3}},
		{"heads_transposed", graph.F32, []int{4, 128, 8, 32}, []int{0, 2, 3, 1}},
		{"nchw_to_nhwc", graph.F32, []int{8, 64, 56, 56}, []int{0, 2, 3, 1}},
		{"nhwc_to_nchw_3", graph.F32, []int{8, 224, 224, 3}, []int{0, 3, 1, 2}},
		{"reversed", graph.F32, []int{16, 16, 16, 16, 16}, []int{4, 3, 2, 1, 0}},
	} {
		b.Run(fmt.Sprintf("%s_%v", c.name, c.d), func(b *testing.B) {
			l := graph.Contiguous(graph.ShapeOf(c.dims...)).Transpose(graph.IntsOf(c.perm...))
			o := Operand{DType: c.d, Layout: l}
			benchmarkOp(b, graph.Copy{}, []Operand{o}, []graph.Type{o.Type()})
		})
	}
}

// benchmarkIndices draws n indices below dim.
func benchmarkIndices(n, dim int) *graph.Tensor {
	return drawTensor(rand.New(rand.NewPCG(1, 1)), graph.I64, 0, float64(dim), n)
}

func BenchmarkGather(b *testing.B) {
	for _, c := range []struct{ dim, inner, count int }{{50000, 256, 4096}, {1000, 4, 100000}, {1 << 20, 1, 1 << 20}} {
		b.Run(fmt.Sprintf("%dx%d_by_%d", c.dim, c.inner, c.count), func(b *testing.B) {
			x, ix := graph.TypeOf(graph.F32, c.dim, c.inner), benchmarkIndices(c.count, c.dim)
			y := graph.TypeOf(graph.F32, c.count, c.inner)
			benchmarkOp(b, graph.Gather{}, []Operand{Contiguous(x), Contiguous(ix.Type)}, []graph.Type{y}, nil, ix)
			b.SetBytes(2*y.Bytes() + ix.Type.Bytes()) // of the table only what is read
		})
	}
}

func BenchmarkScatterAdd(b *testing.B) {
	for _, c := range []struct{ dim, inner, count int }{{5000, 256, 4096}, {1000, 1, 1 << 20}} {
		b.Run(fmt.Sprintf("%dx%d_by_%d", c.dim, c.inner, c.count), func(b *testing.B) {
			ix, u := benchmarkIndices(c.count, c.dim), graph.TypeOf(graph.F32, c.count, c.inner)
			benchmarkOp(b, graph.ScatterAdd{Size: c.dim}, []Operand{Contiguous(ix.Type), Contiguous(u)},
				[]graph.Type{graph.TypeOf(graph.F32, c.dim, c.inner)}, ix)
		})
	}
}

func BenchmarkPool(b *testing.B) {
	for _, fn := range []graph.PoolFn{graph.MaxPool, graph.AvgPool} {
		for _, c := range []struct{ kernel, stride, pad int }{{2, 2, 0}, {3, 2, 1}, {3, 1, 1}} {
			b.Run(fmt.Sprintf("%v_%dx%d_stride_%d", fn, c.kernel, c.kernel, c.stride), func(b *testing.B) {
				op := graph.Pool{Fn: fn, Kernel: graph.IntsOf(c.kernel, c.kernel), Stride: graph.IntsOf(c.stride, c.stride),
					Pad: graph.IntsOf(c.pad, c.pad, c.pad, c.pad)}
				x := drawTensor(rand.New(rand.NewPCG(1, 1)), graph.F32, -1, 1, 8, 64, 56, 56)
				y, err := graph.InfoOf(op).Infer(op, []graph.Type{x.Type})
				if err != nil {
					b.Fatal(err)
				}
				b.Run("forward", func(b *testing.B) { benchmarkOp(b, op, []Operand{Contiguous(x.Type)}, y, x) })
				b.Run("gradient", func(b *testing.B) {
					benchmarkOp(b, graph.PoolGrad(op), []Operand{Contiguous(x.Type), Contiguous(y[0])}, []graph.Type{x.Type}, x)
				})
			})
		}
	}
}

func BenchmarkNorm(b *testing.B) {
	x, v := graph.TypeOf(graph.F32, 8, 64, 56, 56), graph.TypeOf(graph.F32, 64)
	for _, train := range []bool{false, true} {
		b.Run(fmt.Sprintf("batch_train_%v", train), func(b *testing.B) {
			args := []Operand{Contiguous(x), Contiguous(v), Contiguous(v), Contiguous(v), Contiguous(v)}
			benchmarkOp(b, graph.BatchNorm{Eps: 1e-5, Train: train}, args, []graph.Type{x, v, v})
		})
	}
	b.Run("group", func(b *testing.B) {
		benchmarkOp(b, graph.GroupNorm{Groups: 8, Eps: 1e-5}, []Operand{Contiguous(x), Contiguous(v), Contiguous(v)}, []graph.Type{x})
	})
}

func BenchmarkSoftmaxAxis(b *testing.B) {
	x := graph.TypeOf(graph.F32, 16, 64, 1024)
	for axis := range 3 {
		b.Run(fmt.Sprint(axis), func(b *testing.B) {
			benchmarkOp(b, graph.Softmax{Axis: axis}, []Operand{Contiguous(x)}, []graph.Type{x})
		})
	}
}

func BenchmarkPatches(b *testing.B) {
	two, one := graph.IntsOf(3, 3), graph.IntsOf(1, 1)
	pad := graph.IntsOf(1, 1, 1, 1)
	x, cols := graph.TypeOf(graph.F32, 4, 64, 56, 56), graph.TypeOf(graph.F32, 4, 56, 56, 64*9)
	b.Run("im2col", func(b *testing.B) {
		benchmarkOp(b, graph.Im2Col{Kernel: two, Stride: one, Dilation: one, Pad: pad}, []Operand{Contiguous(x)}, []graph.Type{cols})
	})
	b.Run("col2im", func(b *testing.B) {
		benchmarkOp(b, graph.Col2Im{Kernel: two, Stride: one, Dilation: one, Pad: pad, H: 56, W: 56}, []Operand{Contiguous(cols)},
			[]graph.Type{x})
	})
}

func BenchmarkDropout(b *testing.B) {
	x := graph.TypeOf(graph.F32, 1<<20)
	benchmarkOp(b, graph.Dropout{P: 0.5}, []Operand{Contiguous(x), Contiguous(graph.TypeOf(graph.I64))}, []graph.Type{x})
}
