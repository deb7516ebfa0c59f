package cpu

import (
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/ref"
	"fusec/kernels/ref/cases"
)

func integerConv(pad int, groups int) graph.Conv2D {
	one := graph.IntsOf(1, 1)
	return graph.Conv2D{Stride: one, Dilation: one, Pad: graph.IntsOf(pad, pad, pad, pad), Groups: groups, Layout: graph.NHWC}
}

// integersHere is a convolution of integers; processors without a kernel for it skip the test.
func integersHere(t *testing.T) graph.Conv2D {
	op := integerConv(1, 1)
	if err := ConvolvesIntegers(op, graph.TypeOf(graph.I8, 3, 3, 4, 1)); err != nil {
		t.Skip("this processor has no kernel for convolutions of integers: ", err)
	}
	return op
}

// TestConvIntegers has sums of more products than are added in registers, several bands, and the largest numbers.
func TestConvIntegers(t *testing.T) {
	integersHere(t)
	r := rand.New(rand.NewPCG(61, 62))
	for _, s := range []struct{ n, h, w, c, o, k, groups int }{
		{1, 5, 4, 256, 37, 3, 1}, {2, 23, 19, 8, 70, 3, 1}, {1, 40, 33, 12, 16, 1, 1}, {1, 9, 9, 64, 66, 3, 2}, {1, 1, 1, 4, 1, 1, 1},
	} {
		op := integerConv(s.k/2, s.groups)
		x, w := drawTensor(r, graph.U8, 0, 256, s.n, s.h, s.w, s.c), drawTensor(r, graph.I8, -128, 128, s.k, s.k, s.c/s.groups, s.o)
		checkOp(t, op, x, w)
		for i := range x.Data.([]uint8) {
			x.Data.([]uint8)[i] = 255
		}
		for i := range w.Data.([]int8) {
			w.Data.([]int8)[i] = -128
		}
		checkOp(t, op, x, w)
	}
}

// TestConvIntegersFused rounds the sums to u8 in the same launch, and reads filters in another order; they are packed again after a
// thaw.
func TestConvIntegersFused(t *testing.T) {
	op := integersHere(t)
	r := rand.New(rand.NewPCG(63, 64))
	p := pool.New(2)
	defer p.Close()
	f, _ := bodied(t, graph.AnchorConv, func(b *graph.Builder, in cases.Inputs) {
		y := b.Add(op, in(graph.U8, 2, 7, 6, 8), in(graph.I8, 3, 3, 8, 20))
		y = b.Unary(graph.Round, b.BinaryScalar(graph.Mul, y, 1./1024))
		b.Output("", b.CastTo(graph.U8, b.BinaryScalar(graph.Max, b.BinaryScalar(graph.Min, y, 255), 0)))
	})
	x, w := drawTensor(r, graph.U8, 0, 256, 2, 7, 6, 8), drawTensor(r, graph.I8, -128, 128, 20, 8, 3, 3)
	turned := Contiguous(w.Type)
	turned.Layout, turned.Frozen = turned.Layout.Transpose(graph.FilterPerm(graph.NCHW, graph.NHWC)), true
	y := graph.NewTensor(graph.TypeOf(graph.U8, 2, 7, 6, 20))
	k, err := Compile(f, []Operand{Contiguous(x.Type), turned}, []Operand{Contiguous(y.Type)}, NewEnv(p))
	if err != nil {
		t.Fatal(err)
	}
	check := func() error {
		t.Helper()
		if err := k.Run([]Memory{MemoryOf(x), MemoryOf(w)}, []Memory{MemoryOf(y)}); err != nil {
			t.Fatal(err)
		}
		filters := graph.NewTensor(graph.TypeOf(graph.I8, 3, 3, 8, 20))
		for i := range w.Type.Shape.Elems() {
			o, c, tap := i/72, i/9%8, i%9
			filters.Data.([]int8)[(tap*8+c)*20+o] = w.Data.([]int8)[i]
		}
		want, err := ref.OpBound(f, []ref.Value{ref.FromTensor(x), ref.FromTensor(filters)})
		if err != nil {
			t.Fatal(err)
		}
		return ref.Check(y, want[0])
	}
	if err := check(); err != nil {
		t.Error(err)
	}
	w.CopyFrom(drawTensor(r, graph.I8, -128, 128, 20, 8, 3, 3))
	if check() == nil {
		t.Error("frozen filters were read again without a thaw")
	}
	Thaw(k)
	if err := check(); err != nil {
		t.Error(err)
	}
	if n := Bytes(k); n < 2*w.Type.Bytes() {
		t.Errorf("%d bytes are kept", n)
	}
}

// TestConvIntegersBytes has sums that are scaled, shifted and rounded in registers to bytes, and bodies that are something else.
// Sums of many channels are added in several parts.
func TestConvIntegersBytes(t *testing.T) {
	integersHere(t)
	micro, err := gemm.Quads()
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(65, 66))
	p := pool.New(2)
	defer p.Close()
	type image struct{ h, w, c, o, k int }
	limited := func(b *graph.Builder, y *graph.Node, zero float64) *graph.Node {
		y = b.Unary(graph.Round, y)
		if zero != 0 {
			y = b.BinaryScalar(graph.Add, y, zero)
		}
		return b.CastTo(graph.U8, b.BinaryScalar(graph.Max, b.BinaryScalar(graph.Min, y, 255), 0))
	}
	for name, c := range map[string]struct {
		of   image
		body func(b *graph.Builder, y *graph.Node, each func() *graph.Node) *graph.Node
		not  bool
	}{
		"scale and shift": {image{7, 6, 8, 20, 3}, func(b *graph.Builder, y *graph.Node, each func() *graph.Node) *graph.Node {
			return limited(b, b.Binary(graph.Add, b.Binary(graph.Mul, y, each()), each()), 0)
		}, false},
		"the other way round, and a zero point": {image{5, 9, 12, 33, 3},
			func(b *graph.Builder, y *graph.Node, each func() *graph.Node) *graph.Node {
				return limited(b, b.Binary(graph.Add, each(), b.Binary(graph.Mul, each(), y)), 117)
			}, false},
		"a bias and a limit by a relu of any gradient": {image{6, 7, 8, 37, 3},
			func(b *graph.Builder, y *graph.Node, each func() *graph.Node) *graph.Node {
				y = b.BinaryScalar(graph.Mul, b.Binary(graph.Add, y, each()), 0.01)
				y = b.BinaryScalar(graph.Min, b.Unary(graph.Round, y), 255)
				return b.CastTo(graph.U8, b.Add(graph.Unary{Fn: graph.Relu, AtZero: graph.MeanSlope}, y))
			}, false},
		"a bias, a scale for each channel and a shift": {image{3, 4, 12, 70, 1},
			func(b *graph.Builder, y *graph.Node, each func() *graph.Node) *graph.Node {
				y = b.Binary(graph.Mul, b.Binary(graph.Add, each(), y), each())
				return limited(b, b.Binary(graph.Add, y, each()), 9)
			}, false},
		"one scale": {image{13, 3, 4, 65, 1}, func(b *graph.Builder, y *graph.Node, _ func() *graph.Node) *graph.Node {
			return limited(b, b.BinaryScalar(graph.Mul, y, 0.01), 128)
		}, false},
		"many channels": {image{5, 4, 516, 37, 3}, func(b *graph.Builder, y *graph.Node, each func() *graph.Node) *graph.Node {
			y = b.Binary(graph.Add, b.BinaryScalar(graph.Mul, y, 1e-4), each())
			return b.CastTo(graph.U8, b.Unary(graph.Relu, b.BinaryScalar(graph.Min, b.Unary(graph.Round, y), 200)))
		}, false},
		"a zero point alone": {image{5, 4, 8, 5, 1}, func(b *graph.Builder, y *graph.Node, each func() *graph.Node) *graph.Node {
			return limited(b, y, 3)
		}, false},
		"a function": {image{5, 4, 8, 5, 1}, func(b *graph.Builder, y *graph.Node, each func() *graph.Node) *graph.Node {
			return limited(b, b.Unary(graph.Tanh, b.BinaryScalar(graph.Mul, y, 1e-3)), 3)
		}, true},
		"no limit": {image{5, 4, 8, 5, 1}, func(b *graph.Builder, y *graph.Node, each func() *graph.Node) *graph.Node {
			y = b.Unary(graph.Round, b.BinaryScalar(graph.Mul, y, 1e-5))
			return b.CastTo(graph.U8, b.BinaryScalar(graph.Max, b.BinaryScalar(graph.Min, y, 100.5), 0))
		}, true},
		"read twice": {image{5, 4, 8, 5, 1}, func(b *graph.Builder, y *graph.Node, each func() *graph.Node) *graph.Node {
			return limited(b, b.Binary(graph.Mul, y, y), 3)
		}, true},
		"a zero point between": {image{5, 4, 8, 5, 1}, func(b *graph.Builder, y *graph.Node, each func() *graph.Node) *graph.Node {
			return limited(b, b.BinaryScalar(graph.Mul, y, 1e-3), 2.5)
		}, true},
		"not rounded": {image{5, 4, 8, 5, 1}, func(b *graph.Builder, y *graph.Node, each func() *graph.Node) *graph.Node {
			return b.CastTo(graph.U8, b.BinaryScalar(graph.Max, b.BinaryScalar(graph.Min, y, 255), 0))
		}, true},
		"a residual": {image{5, 4, 8, 5, 1}, func(b *graph.Builder, y *graph.Node, each func() *graph.Node) *graph.Node {
			return limited(b, b.Binary(graph.Add, b.Binary(graph.Add, y, each()), each()), 0)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := c.of
			f, in := bodied(t, graph.AnchorConv, func(b *graph.Builder, in cases.Inputs) {
				y := b.Add(integerConv(s.k/2, 1), in(graph.U8, 2, s.h, s.w, s.c), in(graph.I8, s.k, s.k, s.c, s.o))
				b.Output("", c.body(b, y, func() *graph.Node { return b.Broadcast(in(graph.F32, s.o), y.Type.Shape) }))
			})
			var args []Operand
			var memory []Memory
			var values []ref.Value
			for i, typ := range in {
				v := drawTensor(r, typ.DType, -1, 1, typ.Shape.Slice()...)
				switch i {
				case 0:
					v = drawTensor(r, graph.U8, 0, 256, typ.Shape.Slice()...)
				case 1:
					v = drawTensor(r, graph.I8, -128, 128, typ.Shape.Slice()...)
				}
				args, memory, values = append(args, Contiguous(typ)), append(memory, MemoryOf(v)), append(values, ref.FromTensor(v))
			}
			y := graph.NewTensor(graph.TypeOf(graph.U8, 2, s.h, s.w, s.o))
			k, err := Compile(f, args, []Operand{Contiguous(y.Type)}, NewEnv(p))
			if err != nil {
				t.Fatal(err)
			}
			if fused := k.(*checked).Kernel.(*integerConvolution).stored != nil; fused != (!c.not && micro.StoresBytes) {
				t.Errorf("bytes are stored from registers: %v", fused)
			}
			if err := k.Run(memory, []Memory{MemoryOf(y)}); err != nil {
				t.Fatal(err)
			}
			want, err := ref.OpBound(f, values)
			if err != nil {
				t.Fatal(err)
			}
			if err := ref.Check(y, want[0]); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestConvIntegersRefused has what there is no kernel for.
func TestConvIntegersRefused(t *testing.T) {
	op := integersHere(t)
	six := graph.TypeOf(graph.I8, 3, 3, 6, 1)
	if err := ConvolvesIntegers(op, six); err == nil || !strings.Contains(err.Error(), "four channels") {
		t.Errorf("six channels: %v", err)
	}
	op.Layout = graph.NCHW
	if err := ConvolvesIntegers(op, graph.TypeOf(graph.I8, 1, 4, 3, 3)); err == nil || !strings.Contains(err.Error(), "nhwc") {
		t.Errorf("NCHW: %v", err)
	}
	x, w := Contiguous(graph.TypeOf(graph.U8, 1, 5, 5, 8)), Contiguous(graph.TypeOf(graph.I8, 3, 3, 4, 2))
	op.Layout = graph.NHWC
	for _, c := range []struct {
		first, step int
		reads       bool
	}{{0, 1, true}, {4, 1, true}, {2, 1, false}, {0, 2, false}} {
		part := x
		part.Layout = x.Layout.Slice(3, c.first, 4, c.step)
		if c.first+(4-1)*c.step >= 8 {
			part.Layout = x.Layout.Slice(3, c.first, (8-c.first)/c.step, c.step)
		}
		y := Contiguous(graph.TypeOf(graph.F32, 1, 5, 5, 2))
		if got := Strided(op, []Operand{part, w}, []Operand{y}); got != c.reads {
			t.Errorf("channels from %d in steps of %d: %v", c.first, c.step, got)
		}
	}
	narrow := Contiguous(graph.TypeOf(graph.U8, 1, 5, 5, 6))
	narrow.Layout = narrow.Layout.Slice(3, 0, 4, 1)
	if Strided(op, []Operand{narrow, w}, []Operand{Contiguous(graph.TypeOf(graph.F32, 1, 5, 5, 2))}) {
		t.Error("pixels of six bytes are read")
	}
}
