package cpu

import (
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/body"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/ref/cases"
)

// TestConvSums has sums of the channels of what a convolution, its transpose or a depthwise convolution and the work after it
// make.
func TestConvSums(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	one := graph.IntsOf(1, 1)
	pad := graph.IntsOf(1, 1, 1, 1)
	for _, c := range []struct {
		op   graph.Op
		x, w []int
	}{
		{graph.Conv2D{Stride: one, Dilation: one, Pad: pad, Groups: 1, Layout: graph.NHWC}, []int{2, 9, 7, 5}, []int{3, 3, 5, 40}},
		{graph.Conv2D{Stride: one, Dilation: one, Pad: pad, Groups: 2, Layout: graph.NHWC}, []int{3, 20, 17, 8}, []int{3, 3, 4, 6}},
		{graph.Conv2D{Stride: one, Dilation: one, Pad: pad, Groups: 3, Layout: graph.NHWC}, []int{1, 4, 5, 3}, []int{3, 3, 1, 6}},
		{graph.Conv2D{Stride: one, Dilation: one, Pad: graph.IntsOf(0, 0, 0, 0), Groups: 1, Layout: graph.NHWC}, []int{1, 1, 1, 3},
			[]int{1, 1, 3, 1}},
		{graph.Conv2DTranspose{Stride: one, Dilation: one, Pad: pad, Groups: 1, H: 6, W: 5, Layout: graph.NHWC}, []int{2, 6, 5, 33},
			[]int{3, 3, 7, 33}},
		{graph.Conv2DTranspose{Stride: graph.IntsOf(2, 2), Dilation: one, Pad: pad, Groups: 2, H: 8, W: 9, Layout: graph.NHWC},
			[]int{2, 4, 5, 6}, []int{3, 3, 4, 6}},
	} {
		for _, d := range []graph.DType{graph.F32, graph.F64} {
			f, types := bodied(t, graph.AnchorConv, func(b *graph.Builder, in cases.Inputs) {
				y := b.Add(c.op, in(d, c.x...), in(d, c.w...))
				s := y.Type.Shape
				y = b.Unary(graph.Relu, b.Binary(graph.Add, y, b.Broadcast(in(d, s.At(3)), s)))
				scaled := b.Binary(graph.Mul, y, in(d, s.Slice()...))
				b.Output("", y)
				b.Output("", b.Reduce(graph.Sum, y, false, 0, 1, 2))
				b.Output("", b.Reduce(graph.Sum, scaled, false, 0, 1, 2))
			})
			args := make([]*graph.Tensor, len(types))
			for i, u := range types {
				args[i] = drawTensor(r, d, -1, 1, u.Shape.Slice()...)
			}
			checkOp(t, f, args...)
		}
	}
}

// TestConvWinograd convolves, there and back, with filters that change, and sums the channels.
func TestConvWinograd(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 1))
	one := graph.IntsOf(1, 1)
	for _, tile := range []int{2, 4} {
		for _, c := range []struct {
			op   graph.Op
			x, w []int
		}{
			{graph.Conv2D{Stride: one, Dilation: one, Pad: graph.IntsOf(1, 0, 2, 1), Groups: 1, Layout: graph.NHWC, Winograd: tile},
				[]int{2, 9, 7, 5}, []int{3, 3, 5, 40}},
			{graph.Conv2DTranspose{Stride: one, Dilation: one, Pad: graph.IntsOf(1, 1, 1, 1), Groups: 1, H: 10, W: 11, Layout: graph.NHWC,
				Winograd: tile}, []int{2, 10, 11, 33}, []int{3, 3, 35, 33}},
			{graph.Conv2DTranspose{Stride: one, Dilation: one, Pad: graph.IntsOf(0, 2, 2, 1), Groups: 1, H: 5, W: 4, Layout: graph.NHWC,
				Winograd: tile}, []int{1, 5, 5, 3}, []int{3, 3, 2, 3}},
		} {
			f, types := bodied(t, graph.AnchorConv, func(b *graph.Builder, in cases.Inputs) {
				y := b.Unary(graph.Relu, b.Add(c.op, in(graph.F32, c.x...), in(graph.F32, c.w...)))
				b.Output("", y)
				b.Output("", b.Reduce(graph.Sum, y, false, 0, 1, 2))
			})
			args := make([]*graph.Tensor, len(types))
			for i, u := range types {
				args[i] = drawTensor(r, graph.F32, -1, 1, u.Shape.Slice()...)
			}
			checkOp(t, f, args...)
		}
	}
}

// A pooledConv is a convolution with a bias, bounds and a pool behind it.
type pooledConv struct {
	x, w     []int
	conv     graph.Conv2D
	pool     graph.Pool
	residual bool
	clip     bool
}

func (c pooledConv) fusion(t *testing.T, d graph.DType) (graph.Fusion, []graph.Type) {
	return bodied(t, graph.AnchorConv, func(b *graph.Builder, in cases.Inputs) {
		y := b.Add(c.conv, in(d, c.x...), in(d, c.w...))
		s := y.Type.Shape
		y = b.Binary(graph.Add, y, b.Broadcast(in(d, s.At(3)), s))
		if c.residual {
			y = b.Binary(graph.Add, y, in(d, s.Slice()...))
		}
		if y = b.Unary(graph.Relu, y); c.clip {
			y = b.BinaryScalar(graph.Min, y, 0.5)
		}
		b.Output("", b.Add(c.pool, y))
	})
}

// TestConvPool has windows that overlap, that leave rows out, that lie in the padding, images of one pixel and of more rows than
// a strip has, and random shapes.
func TestConvPool(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	two, three, one := graph.IntsOf(2, 2), graph.IntsOf(3, 3), graph.IntsOf(1, 1)
	none := graph.IntsOf(0, 0, 0, 0)
	conv := graph.Conv2D{Stride: one, Dilation: one, Pad: graph.IntsOf(1, 1, 1, 1), Groups: 1, Layout: graph.NHWC}
	max := graph.Pool{Fn: graph.MaxPool, Kernel: two, Stride: two, Pad: none, Layout: graph.NHWC}
	mean := graph.Pool{Fn: graph.AvgPool, Kernel: three, Stride: two, Pad: graph.IntsOf(1, 1, 1, 1), Layout: graph.NHWC}
	list := []pooledConv{
		{x: []int{2, 28, 28, 1}, w: []int{5, 5, 1, 6}, conv: conv, pool: max},
		{x: []int{1, 56, 60, 3}, w: []int{3, 3, 3, 64}, conv: conv, pool: mean, residual: true},
		{x: []int{9, 7, 5, 4}, w: []int{3, 3, 2, 34}, conv: graph.Conv2D{Stride: one, Dilation: one, Pad: none, Groups: 2,
			Layout: graph.NHWC}, pool: max, clip: true},
		{x: []int{1, 1, 1, 2}, w: []int{1, 1, 2, 3}, conv: graph.Conv2D{Stride: one, Dilation: one, Pad: none, Groups: 1,
			Layout: graph.NHWC}, pool: graph.Pool{Fn: graph.MaxPool, Kernel: one, Stride: one, Pad: none, Layout: graph.NHWC}},
		{x: []int{1, 4, 600, 2}, w: []int{3, 3, 2, 70}, conv: conv, pool: graph.Pool{Fn: graph.AvgPool, Kernel: graph.IntsOf(2, 3),
			Stride: graph.IntsOf(1, 4), Pad: graph.IntsOf(0, 1, 3, 2), CountPad: true, Layout: graph.NHWC}},
		{x: []int{2, 6, 6, 2}, w: []int{3, 3, 2, 5}, conv: conv, pool: graph.Pool{Fn: graph.MaxPool, Kernel: two,
			Stride: graph.IntsOf(5, 5), Pad: graph.IntsOf(3, 3, 4, 4), Layout: graph.NHWC}},
		{x: []int{0, 6, 6, 2}, w: []int{3, 3, 2, 5}, conv: conv, pool: max},
		{x: []int{1, 6, 6, 0}, w: []int{3, 3, 0, 5}, conv: conv, pool: max},
	}
	for range 30 {
		groups := 1 + r.IntN(2)
		c := pooledConv{x: []int{1 + r.IntN(3), 3 + r.IntN(20), 3 + r.IntN(20), 2 * groups}, clip: r.IntN(2) == 0,
			residual: r.IntN(2) == 0}
		c.w = []int{1 + r.IntN(3), 1 + r.IntN(3), 2, groups * (1 + r.IntN(40))}
		c.conv = graph.Conv2D{Stride: graph.IntsOf(1+r.IntN(2), 1+r.IntN(2)), Dilation: one, Groups: groups, Layout: graph.NHWC,
			Pad: graph.IntsOf(r.IntN(2), r.IntN(2), r.IntN(2), r.IntN(2))}
		c.pool = graph.Pool{Fn: []graph.PoolFn{graph.MaxPool, graph.AvgPool}[r.IntN(2)], Layout: graph.NHWC,
			Kernel: graph.IntsOf(1+r.IntN(3), 1+r.IntN(3)), Stride: graph.IntsOf(1+r.IntN(4), 1+r.IntN(4)),
			Pad: graph.IntsOf(r.IntN(3), r.IntN(3), 2, 2), CountPad: r.IntN(2) == 0}
		list = append(list, c)
	}
	for _, c := range list {
		for _, d := range []graph.DType{graph.F32, graph.F64} {
			f, types := c.fusion(t, d)
			args := make([]*graph.Tensor, len(types))
			for i, u := range types {
				args[i] = drawTensor(r, d, -1, 1, u.Shape.Slice()...)
			}
			checkOp(t, f, args...)
		}
	}
}

// TestConvPoolFrozen packs filters once, and again after a thaw.
func TestConvPoolFrozen(t *testing.T) {
	c := pooledConv{x: []int{1, 8, 8, 3}, w: []int{3, 3, 3, 4}, conv: graph.Conv2D{Stride: graph.IntsOf(1, 1),
		Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(1, 1, 1, 1), Groups: 1, Layout: graph.NHWC},
		pool: graph.Pool{Fn: graph.MaxPool, Kernel: graph.IntsOf(2, 2), Stride: graph.IntsOf(2, 2), Pad: graph.IntsOf(0, 0, 0, 0),
			Layout: graph.NHWC}}
	f, types := c.fusion(t, graph.F32)
	p := pool.New(2)
	defer p.Close()
	args, mem := make([]Operand, len(types)), make([]Memory, len(types))
	tensors := make([]*graph.Tensor, len(types))
	for i, u := range types {
		tensors[i] = graph.Filled(u, 1)
		args[i], mem[i] = Contiguous(u), MemoryOf(tensors[i])
	}
	args[1].Frozen = true
	y := graph.NewTensor(graph.TypeOf(graph.F32, 1, 4, 4, 4))
	k, err := Compile(f, args, []Operand{Contiguous(y.Type)}, NewEnv(p))
	if err != nil {
		t.Fatal(err)
	}
	if Bytes(k) == 0 {
		t.Error("packed filters are counted as no memory")
	}
	for _, want := range []float64{28, 28, 55} {
		if want == 55 {
			Thaw(k)
		}
		if err := k.Run(mem, []Memory{MemoryOf(y)}); err != nil {
			t.Fatal(err)
		}
		if got := y.Float(0); got != want {
			t.Errorf("%v, want %v", got, want)
		}
		tensors[1].CopyFrom(graph.Filled(types[1], 2))
	}
}

// TestConvPoolRefused has what there is no kernel for.
func TestConvPoolRefused(t *testing.T) {
	one := graph.IntsOf(1, 1)
	p := pool.New(1)
	defer p.Close()
	none := graph.IntsOf(0, 0, 0, 0)
	conv := graph.Conv2D{Stride: one, Dilation: one, Pad: none, Groups: 1, Layout: graph.NHWC}
	for name, c := range map[string]struct {
		op    graph.Conv2D
		x, w  []int
		after func(b *graph.Builder, y *graph.Node) *graph.Node
		want  string
	}{
		"NCHW": {graph.Conv2D{Stride: one, Dilation: one, Pad: none, Groups: 1}, []int{1, 2, 4, 4}, []int{2, 2, 1, 1}, nil, "and a pool"},
		"depthwise": {graph.Conv2D{Stride: one, Dilation: one, Pad: none, Groups: 2, Layout: graph.NHWC}, []int{1, 4, 4, 2},
			[]int{1, 1, 1, 2}, nil, "and a pool"},
		"tanh": {conv, []int{1, 4, 4, 2}, []int{1, 1, 2, 2},
			func(b *graph.Builder, y *graph.Node) *graph.Node { return b.Unary(graph.Tanh, y) }, "what is between"},
	} {
		f, types := bodied(t, graph.AnchorConv, func(b *graph.Builder, in cases.Inputs) {
			y := b.Add(c.op, in(graph.F32, c.x...), in(graph.F32, c.w...))
			if c.after != nil {
				y = c.after(b, y)
			}
			b.Output("", b.Add(graph.Pool{Fn: graph.MaxPool, Kernel: one, Stride: one, Pad: none, Layout: c.op.Layout}, y))
		})
		var args []*graph.Tensor
		for _, u := range types {
			args = append(args, graph.NewTensor(u))
		}
		if _, err := stand(f, args, p); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestConvGate has hard-swish and its kin behind a bias, of which those with a positive slope are applied to sums in registers.
func TestConvGate(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	one, pad := graph.IntsOf(1, 1), graph.IntsOf(1, 1, 1, 1)
	conv := graph.Conv2D{Stride: one, Dilation: one, Pad: pad, Groups: 1, Layout: graph.NHWC}
	planes, each, apart := conv, conv, conv
	planes.Layout, each.Groups, apart.Stride = graph.NCHW, 5, graph.IntsOf(2, 2)
	apart.Groups = 5
	planewise := planes
	planewise.Groups = 5
	with := func(b *graph.Builder, fn graph.BinaryFn, x *graph.Node, c float64) *graph.Node {
		return b.BinaryScalar(fn, x, c)
	}
	for name, gate := range map[string]struct {
		of    func(b *graph.Builder, x *graph.Node) *graph.Node
		fused bool
	}{
		"hard-swish": {func(b *graph.Builder, x *graph.Node) *graph.Node {
			h := with(b, graph.Add, with(b, graph.Mul, x, 1./6), 0.5)
			return b.Binary(graph.Mul, x, b.Unary(graph.Relu, with(b, graph.Min, h, 1)))
		}, true},
		"over six": {func(b *graph.Builder, x *graph.Node) *graph.Node {
			h := with(b, graph.Min, with(b, graph.Max, with(b, graph.Add, x, 3), 0), 6)
			return b.Binary(graph.Mul, with(b, graph.Div, h, 6), x)
		}, true},
		"bounded": {func(b *graph.Builder, x *graph.Node) *graph.Node {
			return with(b, graph.Min, b.Binary(graph.Mul, x, with(b, graph.Max, with(b, graph.Sub, x, 0.25), -0.5)), 0.75)
		}, true},
		"falling": {func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Binary(graph.Mul, x, b.Unary(graph.Relu, with(b, graph.Mul, x, -1)))
		}, false},
		"no bounds in order": {func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Binary(graph.Mul, x, with(b, graph.Min, with(b, graph.Max, x, 1), 0))
		}, false},
		"sigmoid": {func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Binary(graph.Mul, x, b.Unary(graph.Sigmoid, x))
		}, false},
		"beside itself": {func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Binary(graph.Mul, b.Unary(graph.Tanh, x.Args[0]), x) // the sum is read with and without its bias
		}, false},
		"after a product": {func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Unary(graph.Tanh, b.Binary(graph.Mul, x.Args[0], x.Args[1]))
		}, false},
		"to a power": {func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Binary(graph.Mul, x, with(b, graph.Pow, x, 2))
		}, false},
	} {
		for _, c := range []struct {
			op   graph.Op
			x, w []int
		}{
			{conv, []int{2, 9, 7, 5}, []int{3, 3, 5, 37}},
			{each, []int{1, 6, 9, 5}, []int{3, 3, 1, 5}},
			{apart, []int{1, 6, 9, 5}, []int{3, 3, 1, 5}},
			{planes, []int{1, 5, 6, 9}, []int{7, 5, 3, 3}},
			{planewise, []int{2, 5, 6, 9}, []int{5, 1, 3, 3}},
			{graph.Conv2DTranspose{Stride: graph.IntsOf(2, 2), Dilation: one, Pad: graph.IntsOf(0, 0, 0, 0), Groups: 1, H: 8, W: 6,
				Layout: graph.NHWC}, []int{2, 4, 3, 5}, []int{2, 2, 7, 5}},
		} {
			for _, d := range []graph.DType{graph.F32, graph.F64} {
				f, types := bodied(t, graph.AnchorConv, func(b *graph.Builder, in cases.Inputs) {
					y := b.Add(c.op, in(d, c.x...), in(d, c.w...))
					s := y.Type.Shape
					shift := in(d, s.At(3))
					if c.op.(graph.ImageOp).ImageLayout() == graph.NCHW {
						shift = in(d, s.At(1), 1, 1)
					}
					b.Output("", gate.of(b, b.Binary(graph.Add, y, b.Broadcast(shift, s))))
				})
				args := make([]*graph.Tensor, len(types))
				for i, u := range types {
					args[i] = drawTensor(r, d, -1, 1, u.Shape.Slice()...)
				}
				t.Run(name, func(t *testing.T) { checkOp(t, f, args...) })
				operands := make([]graph.Operand, len(types))
				for i, u := range types {
					operands[i] = graph.Operand{DType: u.DType, Layout: graph.Contiguous(u.Shape)}
				}
				p, err := body.Lower(f, operands, []graph.Operand{{DType: d, Layout: graph.Contiguous(f.Body.Outputs[0].Node.Type.Shape)}})
				if err != nil {
					t.Fatal(err)
				}
				if got := byFloat(d, isFused[float32], isFused[float64])(p); got != gate.fused {
					t.Errorf("%s of %s after %v: in registers is %v", name, d, c.op, got)
				}
			}
		}
	}
}

func isFused[T float](b *body.Program) bool {
	return fusedFinishOf[T](b, 3) != nil || fusedFinishOf[T](b, 1) != nil
}
