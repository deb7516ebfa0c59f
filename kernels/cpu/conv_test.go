package cpu

import (
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/ref"
	"fusec/kernels/ref/cases"
)

// TestConvPixelwise convolves parts of images of NCHW with filters of one pixel: some of the channels, whose pixels are
// side by side, and some of the columns, whose pixels are not.
func TestConvPixelwise(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	p := pool.New(2)
	defer p.Close()
	for _, c := range []struct{ axis, images, channels, filters, groups int }{
		{1, 1, 4, 3, 1}, {1, 3, 40, 33, 1}, {1, 2, 12, 20, 2}, {3, 2, 5, 17, 1}, {1, 1, 1, 1, 1}, {1, 0, 3, 2, 1},
	} {
		shape := graph.ShapeOf(c.images, c.channels, 5, 9)
		wide := shape.With(c.axis, shape.At(c.axis)+3)
		filters := graph.ShapeOf(c.filters, c.channels/c.groups, 1, 1)
		op := graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(0, 0, 0, 0), Groups: c.groups}
		body, _ := bodied(t, graph.AnchorConv, func(b *graph.Builder, in cases.Inputs) {
			b.Output("", b.Unary(graph.Relu, b.Add(op, in(graph.F32, shape.Slice()...), in(graph.F32, filters.Slice()...))))
		})
		x, w := drawTensor(r, graph.F32, -1, 1, wide.Slice()...), drawTensor(r, graph.F32, -1, 1, filters.Slice()...)
		from := []Operand{Contiguous(x.Type), Contiguous(w.Type)}
		from[0].Layout = from[0].Layout.Slice(c.axis, 2, shape.At(c.axis), 1)
		y := graph.NewTensor(graph.TypeOf(graph.F32, c.images, c.filters, 5, 9))
		k, err := Compile(body, from, []Operand{Contiguous(y.Type)}, NewEnv(p))
		if err != nil {
			t.Fatal(err)
		}
		if err := k.Run([]Memory{MemoryOf(x), MemoryOf(w)}, []Memory{MemoryOf(y)}); err != nil {
			t.Fatal(err)
		}
		part := graph.NewTensor(graph.Type{DType: graph.F32, Shape: shape})
		cut := from[0].Layout
		for i := range shape.Elems() {
			at, rest := cut.Offset, i
			for axis := 3; axis >= 0; axis-- {
				at += rest % shape.At(axis) * cut.Stride[axis]
				rest /= shape.At(axis)
			}
			part.SetFloat(i, x.Float(at))
		}
		want, err := ref.OpBound(body, []ref.Value{ref.FromTensor(part), ref.FromTensor(w)})
		if err != nil {
			t.Fatal(err)
		}
		if err := ref.Check(y, want[0]); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestConvInPlace convolves a slice of an image's channels into a part of another's, with filters that are packed once
// and again after a thaw.
func TestConvInPlace(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	p := pool.New(2)
	defer p.Close()
	for _, c := range []struct{ groups, winograd int }{{1, 0}, {2, 0}, {1, 2}, {1, 4}} {
		groups, width := c.groups, 6
		op := graph.Conv2D{Stride: graph.IntsOf(1, 2), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(1, 0, 1, 2), Groups: groups,
			Layout: graph.NHWC}
		if c.winograd > 0 {
			op.Winograd, op.Stride, op.Pad, width = c.winograd, graph.IntsOf(1, 1), graph.IntsOf(1, 1, 1, 1), 3
		}
		wide := drawTensor(r, graph.F32, -1, 1, 2, 5, width, 11)
		w := drawTensor(r, graph.F32, -1, 1, 3, 3, 8/groups, 40)
		y := graph.Filled(graph.TypeOf(graph.F32, 2, 5, 3, 50), 77)
		from := []Operand{Contiguous(wide.Type), Contiguous(w.Type)}
		from[0].Layout = from[0].Layout.Slice(3, 2, 8, 1)
		from[1].Frozen = true
		to := Contiguous(y.Type)
		to.Layout = to.Layout.Slice(3, 9, 40, 1)
		body, _ := bodied(t, graph.AnchorConv, func(b *graph.Builder, in cases.Inputs) {
			b.Output("", b.Unary(graph.Relu, b.Add(op, in(graph.F32, 2, 5, width, 8), in(graph.F32, 3, 3, 8/groups, 40))))
		})
		k, err := Compile(body, from, []Operand{to}, NewEnv(p))
		if err != nil {
			t.Fatal(err)
		}
		if n := Bytes(k); n < w.Type.Bytes() || n > 8*w.Type.Bytes() {
			t.Errorf("%d bytes are packed of %d", n, w.Type.Bytes())
		}
		x := graph.NewTensor(graph.TypeOf(graph.F32, 2, 5, width, 8))
		for i := range x.Type.Shape.Elems() {
			x.SetFloat(i, wide.Float(i/8*11+2+i%8))
		}
		check := func() error {
			t.Helper()
			if err := k.Run([]Memory{MemoryOf(wide), MemoryOf(w)}, []Memory{MemoryOf(y)}); err != nil {
				t.Fatal(err)
			}
			part := graph.NewTensor(graph.TypeOf(graph.F32, 2, 5, 3, 40))
			for i := range y.Type.Shape.Elems() {
				if col := i%50 - 9; col >= 0 && col < 40 {
					part.SetFloat(i/50*40+col, y.Float(i))
				} else if y.Float(i) != 77 {
					t.Fatalf("element %d, outside of the result, has been written", i)
				}
			}
			want, err := ref.OpBound(body, []ref.Value{ref.FromTensor(x), ref.FromTensor(w)})
			if err != nil {
				t.Fatal(err)
			}
			return ref.Check(part, want[0])
		}
		if err := check(); err != nil {
			t.Error(err)
		}
		w.CopyFrom(drawTensor(r, graph.F32, -1, 1, 3, 3, 8/groups, 40))
		if check() == nil {
			t.Error("frozen filters were read again without a thaw")
		}
		Thaw(k)
		if err := check(); err != nil {
			t.Error(err)
		}
	}
}

// TestConvLongSums holds the error of sums of many f32 numbers of one sign.
func TestConvLongSums(t *testing.T) {
	op := graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(1, 1, 1, 1), Groups: 1,
		Layout: graph.NHWC}
	checkOp(t, op, graph.Filled(graph.TypeOf(graph.F32, 1, 3, 3, 3000), 0.1), graph.Filled(graph.TypeOf(graph.F32, 3, 3, 3000, 2),
		0.7))
}
