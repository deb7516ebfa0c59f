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
)

// A drawnConv is a random convolution of images in NHWC.
type drawnConv struct {
	op                graph.Conv2D
	x, w, y           []int
	height, width     int
	channels, columns int // of a group
}

// drawConv draws strides, dilations, uneven pads, groups and channels that make up whole words or not, at times sizes of one.
func drawConv(r *rand.Rand) drawnConv {
	pick := func(list ...int) int { return list[r.IntN(len(list))] }
	for {
		groups := pick(1, 1, 1, 2, 3)
		c := drawnConv{channels: pick(1, 3, 4, 8, 16, 20, 32), columns: pick(1, 5, 8, 16, 24, 64)}
		if r.IntN(5) == 0 {
			groups, c.channels, c.columns = pick(1, 5, 8, 16, 24), 1, pick(1, 1, 2)
		}
		kh, kw := pick(1, 1, 2, 3, 3, 5), pick(1, 1, 2, 3, 3, 4)
		pad := graph.IntsOf(r.IntN(3), r.IntN(3), r.IntN(3), r.IntN(3))
		if r.IntN(3) == 0 {
			kh, kw, pad = 1, 1, graph.IntsOf(0, 0, 0, 0)
		}
		n := pick(1, 1, 2, 3)
		c.height, c.width = pick(1, 4, 7, 9), pick(1, 5, 8, 11)
		c.op = graph.Conv2D{Stride: graph.IntsOf(pick(1, 1, 2, 3), pick(1, 1, 2, 3)),
			Dilation: graph.IntsOf(pick(1, 1, 2), pick(1, 1, 2, 3)), Pad: pad, Groups: groups, Layout: graph.NHWC}
		c.x, c.w = []int{n, c.height, c.width, groups * c.channels}, []int{kh, kw, c.channels, groups * c.columns}
		t, err := graph.InfoOf(c.op).Infer(c.op, []graph.Type{graph.TypeOf(graph.F32, c.x...), graph.TypeOf(graph.F32, c.w...)})
		if err == nil {
			c.y = t[0].Shape.Slice()
			return c
		}
	}
}

// epilogue writes elementwise work on the result of a convolution, and its outputs.
func epilogue(r *rand.Rand, b *graph.Builder, in inputs, y *graph.Node) {
	s, d := y.Type.Shape, y.Type.DType
	v := y
	for range r.IntN(3) {
		switch r.IntN(5) {
		case 0:
			v = b.Binary(graph.Add, v, b.Broadcast(in(d, s.At(3)), s))
		case 1:
			v = b.Unary(graph.Relu, v)
		case 2:
			v = b.Binary(graph.Add, v, in(d, s.Slice()...))
		case 3:
			v = b.Binary(graph.Mul, v, b.Broadcast(in(d, s.At(0), 1, 1, 1), s))
		case 4:
			v = b.Add(graph.Dropout{P: 0.25}, v, b.Scalar(graph.I64, 77))
		}
	}
	if d == graph.F32 && r.IntN(3) == 0 {
		v = b.Add(graph.Cast{To: graph.BF16}, v)
	}
	if r.IntN(4) == 0 {
		v = b.Transpose(v, 0, 3, 1, 2)
	}
	b.Output("", v)
	if r.IntN(4) == 0 {
		b.Output("", y)
	}
}

// convolutions draws checks of convolutions and their transposes, a share of them of each element type.
func convolutions(t *testing.T, r *rand.Rand, n int, transposed bool, precision cuda.Precision) []cudatest.Check {
	types := []graph.DType{graph.F32, graph.BF16, graph.F32, graph.F16, graph.BF16, graph.F64}
	var checks []cudatest.Check
	for i := range n {
		d, drawn := types[i%len(types)], drawConv(r)
		op, in := fused(t, graph.AnchorConv, func(b *graph.Builder, in inputs) {
			operand := func(s []int) *graph.Node {
				if r.IntN(5) == 0 {
					return b.Transpose(in(d, s[0], s[3], s[1], s[2]), 0, 2, 3, 1)
				}
				return in(d, s...)
			}
			filters := func() *graph.Node {
				if s := drawn.w; r.IntN(5) == 0 {
					return b.Transpose(in(d, s[3], s[2], s[0], s[1]), 2, 3, 1, 0)
				}
				return in(d, drawn.w...)
			}
			c := drawn.op
			if transposed {
				op := graph.Conv2DTranspose{Stride: c.Stride, Dilation: c.Dilation, Pad: c.Pad, Groups: c.Groups,
					H: drawn.height, W: drawn.width, Layout: graph.NHWC}
				epilogue(r, b, in, b.Add(op, operand(drawn.y), filters()))
			} else {
				epilogue(r, b, in, b.Add(c, operand(drawn.x), filters()))
			}
		})
		c := cudatest.Check{Name: fmt.Sprintf("%d %v %v x %v", i, d, drawn.x, drawn.w), Op: op}
		c.Config.Precision = precision
		c.Compare = within(precision)
		for j, u := range in {
			c.Args = append(c.Args, graphtest.Tensor(r, u))
			c.ArgLayouts = append(c.ArgLayouts, graph.Contiguous(u.Shape))
			if r.IntN(4) == 0 {
				c.ArgLayouts[j] = cudatest.Layout(r, u.Shape, false)
			}
		}
		for _, o := range op.Body.Outputs {
			l := graph.Contiguous(o.Node.Type.Shape)
			if r.IntN(5) == 0 {
				l = cudatest.Layout(r, l.Shape, false)
			}
			c.ResultLayouts = append(c.ResultLayouts, l)
		}
		checks = append(checks, c)
	}
	return checks
}

// TestConvPlain computes random convolutions in NHWC as chips without tensor cores do.
func TestConvPlain(t *testing.T) {
	d := cudatest.OpenFor(t, cuda.ChipOf(70))
	r := rand.New(rand.NewPCG(2, 70))
	cudatest.Run(t, d, convolutions(t, r, 14, false, cuda.F32)...)
	cudatest.Run(t, d, convolutions(t, r, 10, true, cuda.F32)...)
}

// TestConvTensor computes random convolutions in NHWC on tensor cores.
func TestConvTensor(t *testing.T) {
	d := cudatest.OpenFor(t, cuda.ChipOf(80))
	r := rand.New(rand.NewPCG(2, 80))
	t.Run("f32", func(t *testing.T) { cudatest.Run(t, d, convolutions(t, r, 24, false, cuda.F32)...) })
	t.Run("tf32", func(t *testing.T) { cudatest.Run(t, d, convolutions(t, r, 6, false, cuda.TF32)...) })
	t.Run("transposed", func(t *testing.T) { cudatest.Run(t, d, convolutions(t, r, 18, true, cuda.F32)...) })
}

// filterGrads draws checks of gradients for filters.
func filterGrads(t *testing.T, l *list, n int, precision cuda.Precision) {
	types := []graph.DType{graph.F32, graph.BF16, graph.F16, graph.F64}
	for i := range n {
		d, c := types[i%len(types)], drawConv(l.r)
		op := graph.Conv2DFilterGrad{Stride: c.op.Stride, Dilation: c.op.Dilation, Pad: c.op.Pad, Groups: c.op.Groups,
			KH: c.w[0], KW: c.w[1], Layout: graph.NHWC}
		check := l.add(op, l.tensor(d, c.x...), l.tensor(d, c.y...))
		check.Name = fmt.Sprintf("%d %v %v x %v", i, d, c.x, c.y)
		check.Config.Precision = precision
		check.Compare = within(precision)
	}
}

// TestConvFilterGrad computes gradients for filters: of few positions, and of so many that they are divided.
func TestConvFilterGrad(t *testing.T) {
	for _, chip := range []int{70, 80} {
		l := newList(uint64(50 + chip))
		filterGrads(t, l, 20, cuda.F32)
		filterGrads(t, l, 4, cuda.TF32)
		for _, groups := range []int{1, 16} {
			op := graph.Conv2DFilterGrad{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(1, 1, 1, 1),
				Groups: groups, KH: 3, KW: 3, Layout: graph.NHWC}
			l.add(op, l.tensor(graph.F32, 2, 40, 41, 16), l.tensor(graph.F32, 2, 40, 41, 16))
		}
		for _, d := range []graph.DType{graph.F32, graph.BF16, graph.F64} { // of depthwise windows that are high, wide and far apart
			for _, k := range [][4]int{{9, 1, 1, 1}, {1, 9, 1, 1}, {3, 3, 2, 1}, {2, 2, 1, 3}} {
				op := graph.Conv2DFilterGrad{Stride: graph.IntsOf(1, k[2]), Dilation: graph.IntsOf(1, k[3]), Pad: graph.IntsOf(1, 1, 1, 1),
					Groups: 40, KH: k[0], KW: k[1], Layout: graph.NHWC}
				x, dy := l.tensor(d, 2, 17, 19, 40), graph.IntsOf(17+3-k[0], (18+2-k[3]*(k[1]-1))/k[2]+1)
				l.add(op, x, l.tensor(d, 2, dy.At(0), dy.At(1), 40))
			}
		}
		for _, d := range []graph.DType{graph.F32, graph.BF16} { // of images whose channels are filled up
			op := graph.Conv2DFilterGrad{Stride: graph.IntsOf(2, 2), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(3, 3, 3, 3),
				Groups: 1, KH: 7, KW: 7, Layout: graph.NHWC}
			for _, width := range []int{20, 21} {
				check := l.add(op, l.tensor(d, 2, 20, width, 3), l.tensor(d, 2, 10, (width+1)/2, 64))
				check.Config.Precision, check.Compare = cuda.BF16, within(cuda.BF16)
			}
		}
		for _, size := range [][2]int{{1, 1}, {1, 4}, {4, 1}} { // results of one pixel, one row and one column, dense and depthwise
			for _, columns := range []int{1, 3} {
				op := graph.Conv2DFilterGrad{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(0, 0, 0, 0),
					Groups: 1, KH: 1, KW: 2, Layout: graph.NHWC}
				check := l.add(op, l.tensor(graph.F64, 3, size[0], size[1]+1, 1), l.tensor(graph.F64, 3, size[0], size[1], columns))
				for _, a := range check.Args {
					layout := graph.Contiguous(a.Type.Shape)
					for axis := range layout.Shape.Rank() {
						if layout.Shape.At(axis) == 1 {
							layout.Stride[axis] = 0 // as views of it have it
						}
					}
					check.ArgLayouts = append(check.ArgLayouts, layout)
				}
			}
		}
		cudatest.Run(t, cudatest.OpenFor(t, cuda.ChipOf(chip)), l.checks...)
	}
}

// TestDepthwiseFilterGradInfinite has infinities at the borders of images and gradients: taps that do not meet them are finite.
func TestDepthwiseFilterGradInfinite(t *testing.T) {
	l := newList(52)
	inf := math.Inf(1)
	for _, d := range []graph.DType{graph.F32, graph.BF16} {
		for _, width := range []int{8, 9, 11} {
			op := graph.Conv2DFilterGrad{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(1, 1, 1, 1),
				Groups: 8, KH: 3, KW: 3, Layout: graph.NHWC}
			at := func(x *graph.Tensor, row, column, channel int) { x.SetFloat((row*width+column)*8+channel, inf) }
			x, dy := l.tensor(d, 1, 13, width, 8), l.tensor(d, 1, 13, width, 8)
			for channel, place := range [][2]int{{0, 3}, {12, 3}, {5, 0}, {5, width - 1}} {
				at(x, place[0], place[1], channel)
				at(dy, place[0], place[1], 4+channel)
			}
			check := l.add(op, x, dy)
			check.Name = fmt.Sprintf("%v width %d", d, width)
			check.Config.Precision = cuda.BF16
			check.Compare = within(cuda.BF16)
		}
	}
	cudatest.Run(t, cudatest.OpenFor(t, cuda.ChipOf(80)), l.checks...)
}

// TestConvHopper computes convolutions and transposes with Hopper's own instructions: patches in pieces of 8 and of 16 bytes,
// images with channels to fill up, groups, tiles that are not full, and sums that are divided.
func TestConvHopper(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 90))
	var checks []cudatest.Check
	for i, c := range []struct {
		n, height, width, channels, columns, kernel, stride, dilation, groups int
		transposed                                                            bool
	}{
		{1, 9, 11, 16, 64, 3, 1, 1, 1, false}, {2, 14, 13, 3, 72, 7, 2, 1, 1, false}, {3, 9, 8, 12, 136, 3, 1, 2, 1, false},
		{1, 9, 10, 64, 128, 3, 1, 1, 2, false}, {1, 8, 8, 160, 64, 3, 1, 1, 1, false}, {1, 33, 17, 32, 64, 2, 2, 1, 1, false},
		{2, 15, 12, 3, 72, 7, 2, 1, 1, false}, {2, 20, 12, 3, 64, 5, 2, 1, 1, false},
		{1, 10, 9, 72, 32, 3, 1, 1, 1, true}, {1, 17, 18, 64, 24, 3, 2, 1, 1, true}, {2, 8, 9, 128, 64, 1, 1, 1, 1, false},
	} {
		d := []graph.DType{graph.BF16, graph.F16}[i%2]
		pad := c.kernel / 2
		op := graph.Conv2D{Stride: graph.IntsOf(c.stride, c.stride), Dilation: graph.IntsOf(c.dilation, c.dilation),
			Pad: graph.IntsOf(pad, pad, pad, pad), Groups: c.groups, Layout: graph.NHWC}
		x := graph.TypeOf(d, c.n, c.height, c.width, c.channels)
		w := graph.TypeOf(d, c.kernel, c.kernel, c.channels/c.groups, c.columns)
		f, types := fused(t, graph.AnchorConv, func(b *graph.Builder, in inputs) {
			var y *graph.Node
			if c.transposed {
				dy, err := graph.InfoOf(op).Infer(op, []graph.Type{x, w})
				if err != nil {
					t.Fatal(err)
				}
				y = b.Add(graph.Conv2DTranspose{Stride: op.Stride, Dilation: op.Dilation, Pad: op.Pad, Groups: op.Groups,
					H: c.height, W: c.width, Layout: graph.NHWC}, in(d, dy[0].Shape.Slice()...), in(d, w.Shape.Slice()...))
			} else {
				y = b.Add(op, in(d, x.Shape.Slice()...), in(d, w.Shape.Slice()...))
			}
			s := y.Type.Shape
			b.Output("", b.Add(graph.Cast{To: d}, b.Unary(graph.Relu, b.Binary(graph.Add, y, b.Broadcast(in(graph.F32, s.At(3)), s)))))
		})
		check := cudatest.Check{Name: fmt.Sprintf("%d %v %+v", i, d, c), Op: f, Compare: within(cuda.BF16)}
		check.Config.Precision = cuda.BF16
		for _, u := range types {
			check.Args = append(check.Args, graphtest.Tensor(r, u))
		}
		kernel, err := cuda.Compile(f, rowMajor(types), rowMajor([]graph.Type{f.Body.Outputs[0].Node.Type}),
			cuda.Config{Chip: cuda.H200, Precision: cuda.BF16})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(kernel.Source, "gemm_hopper<Problem") {
			t.Errorf("%s is not computed with Hopper's instructions", check.Name)
		}
		checks = append(checks, check)
	}
	// Not with patches of f32, of positions along k, or in small pieces.
	l := newList(90)
	for _, d := range []graph.DType{graph.F32, graph.BF16} {
		op := graph.Conv2DFilterGrad{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(1, 1, 1, 1), Groups: 1,
			KH: 3, KW: 3, Layout: graph.NHWC}
		l.add(op, l.tensor(d, 1, 9, 10, 24), l.tensor(d, 1, 9, 10, 64))
		conv := graph.Conv2D{Stride: op.Stride, Dilation: op.Dilation, Pad: op.Pad, Groups: 2, Layout: graph.NHWC}
		l.add(conv, l.tensor(d, 1, 9, 10, 18), l.tensor(d, 3, 3, 9, 128))
	}
	for i := range l.checks {
		l.checks[i].Config.Precision, l.checks[i].Compare = cuda.TF32, within(cuda.TF32)
	}
	cudatest.Run(t, cudatest.OpenFor(t, cuda.H200), append(checks, l.checks...)...)
}

// TestConvBoxes computes convolutions, transposes and gradients for filters whose patches the copy engine takes from the images:
// windows of unequal sides, steps and pads, taps far apart, groups, positions past the last image, and sums that are divided.
func TestConvBoxes(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 90))
	l := newList(91)
	var forward []cudatest.Check
	for i, c := range []struct {
		n, height, width, channels, columns, groups int
		kernel, stride, dilation                    [2]int
		pad                                         [4]int
	}{
		{1, 8, 9, 64, 64, 1, [2]int{3, 3}, [2]int{1, 1}, [2]int{1, 1}, [4]int{1, 1, 1, 1}},
		{1, 8, 16, 128, 72, 1, [2]int{3, 2}, [2]int{2, 1}, [2]int{1, 2}, [4]int{0, 2, 1, 0}},
		{2, 7, 9, 128, 128, 2, [2]int{1, 3}, [2]int{1, 2}, [2]int{1, 1}, [4]int{0, 0, 2, 1}},
		{1, 16, 17, 64, 64, 1, [2]int{1, 1}, [2]int{2, 2}, [2]int{1, 1}, [4]int{}},
	} {
		pair := func(p [2]int) graph.Ints { return graph.IntsOf(p[0], p[1]) }
		op := graph.Conv2D{Stride: pair(c.stride), Dilation: pair(c.dilation), Pad: graph.IntsOf(c.pad[:]...), Groups: c.groups,
			Layout: graph.NHWC}
		for j, d := range []graph.DType{[]graph.DType{graph.BF16, graph.F16}[i%2], graph.F32} {
			x := graph.TypeOf(d, c.n, c.height, c.width, c.channels)
			w := graph.TypeOf(d, c.kernel[0], c.kernel[1], c.channels/c.groups, c.columns)
			y, err := graph.InfoOf(op).Infer(op, []graph.Type{x, w})
			if err != nil {
				t.Fatal(err)
			}
			dy := graph.Type{DType: d, Shape: y[0].Shape}
			f, types := fused(t, graph.AnchorConv, func(b *graph.Builder, in inputs) {
				images := in(d, x.Shape.Slice()...)
				filters := func() *graph.Node {
					if d == graph.F32 { // tf32 has to have k as the inner axis
						return b.Transpose(in(d, c.columns, c.kernel[0], c.kernel[1], c.channels/c.groups), 1, 2, 3, 0)
					}
					return in(d, w.Shape.Slice()...)
				}
				v := b.Add(op, images, filters())
				b.Output("", b.CastTo(d, b.Binary(graph.Add, v, b.Broadcast(in(graph.F32, c.columns), v.Type.Shape))))
			})
			check := cudatest.Check{Op: f}
			for _, u := range types {
				check.Args = append(check.Args, graphtest.Tensor(r, u))
			}
			forward = append(forward, check)
			if i == 1 { // with filters as they lie, and packed
				w.Shape = graph.ShapeOf(c.kernel[0], c.kernel[1], c.channels, 128)
				dy.Shape = graph.ShapeOf(dy.Shape.At(0), dy.Shape.At(1), dy.Shape.At(2), 128)
			}
			l.add(graph.Conv2DTranspose{Stride: op.Stride, Dilation: op.Dilation, Pad: op.Pad, Groups: op.Groups, H: c.height,
				W: c.width, Layout: graph.NHWC}, l.tensor(d, dy.Shape.Slice()...), l.tensor(d, w.Shape.Slice()...))
			if j == 0 {
				l.add(graph.Conv2DFilterGrad{Stride: op.Stride, Dilation: op.Dilation, Pad: op.Pad, Groups: op.Groups, KH: c.kernel[0],
					KW: c.kernel[1], Layout: graph.NHWC}, l.tensor(d, x.Shape.Slice()...), l.tensor(d, dy.Shape.Slice()...))
			}
		}
	}
	checks := append(forward, l.checks...)
	boxed := 0
	for i := range checks {
		c := &checks[i]
		c.Name = fmt.Sprint(i, " ", c.Op.OpName(), " ", c.Args[0].Type, " ", c.Args[1].Type)
		c.Config.Precision = cuda.BF16
		if c.Args[0].Type.DType == graph.F32 {
			c.Config.Precision = cuda.TF32
		}
		c.Compare = within(c.Config.Precision)
		config := c.Config
		config.Chip = cuda.H200
		kernel := kernelOf(t, c.Op, typesOf(c.Args), config)
		if strings.Contains(kernel.Source, "PATCHES = true") && strings.Contains(kernel.Source, "GATHERS = false") {
			boxed++
		}
	}
	if boxed < 16 {
		t.Errorf("only %d of %d", boxed, len(checks))
	}
	cudatest.Run(t, cudatest.OpenFor(t, cuda.H200), checks...)
	// The same forward in tensor memory.
	forward = checks[:4]
	blackwell := 0
	for i := range forward {
		c := &forward[i]
		c.Config.Chip, c.Config.TensorMemory = cuda.ChipOf(100), true
		var types []graph.Type
		for _, a := range c.Args {
			types = append(types, a.Type)
		}
		if strings.Contains(kernelOf(t, c.Op.(graph.Fusion), types, c.Config).Generated(), "gemm_blackwell<") {
			blackwell++
		}
	}
	if blackwell < 3 {
		t.Errorf("only %d of %d in tensor memory", blackwell, len(forward))
	}
	cudatest.Run(t, cudatest.OpenFor(t, cuda.ChipOf(100)), forward...)
}

// TestConvFlatFilterGrad computes gradients for filters as products whose operand B is patches: in 16 bits of few columns, and in
// TF32; windows of unequal sides and steps, groups, and sums that are divided.
func TestConvFlatFilterGrad(t *testing.T) {
	l := newList(92)
	pair := func(p [2]int) graph.Ints { return graph.IntsOf(p[0], p[1]) }
	for _, c := range []struct {
		d                                   graph.DType
		n, height, width, channels, columns int
		groups                              int
		kernel, stride, dilation            [2]int
		pad                                 [4]int
	}{
		{graph.BF16, 2, 15, 16, 64, 64, 1, [2]int{3, 3}, [2]int{1, 1}, [2]int{1, 1}, [4]int{1, 1, 1, 1}},
		{graph.F16, 2, 15, 10, 128, 128, 2, [2]int{1, 3}, [2]int{2, 1}, [2]int{1, 1}, [4]int{0, 1, 2, 1}},
		{graph.F32, 1, 13, 14, 64, 72, 1, [2]int{3, 3}, [2]int{1, 1}, [2]int{1, 1}, [4]int{1, 1, 1, 1}},
		{graph.F32, 2, 17, 7, 96, 64, 1, [2]int{3, 2}, [2]int{2, 1}, [2]int{1, 2}, [4]int{0, 1, 1, 0}},
	} {
		op := graph.Conv2DFilterGrad{Stride: pair(c.stride), Dilation: pair(c.dilation), Pad: graph.IntsOf(c.pad[:]...),
			Groups: c.groups, KH: c.kernel[0], KW: c.kernel[1], Layout: graph.NHWC}
		conv := graph.Conv2D{Stride: op.Stride, Dilation: op.Dilation, Pad: op.Pad, Groups: c.groups, Layout: graph.NHWC}
		x := graph.TypeOf(c.d, c.n, c.height, c.width, c.channels)
		y, err := graph.InfoOf(conv).Infer(conv,
			[]graph.Type{x, graph.TypeOf(c.d, c.kernel[0], c.kernel[1], c.channels/c.groups, c.columns)})
		if err != nil {
			t.Fatal(err)
		}
		dy := graph.Type{DType: c.d, Shape: y[0].Shape}
		check := l.add(op, l.tensor(c.d, x.Shape.Slice()...), l.tensor(c.d, dy.Shape.Slice()...))
		check.Name = fmt.Sprint(x, dy)
		check.Config.Precision = cuda.BF16
		if c.d == graph.F32 {
			check.Config.Precision = cuda.TF32
		}
		check.Compare = within(check.Config.Precision)
		if c.d.Is16() {
			p := cuda.Product{Math: map[graph.DType]string{graph.BF16: "bf16", graph.F16: "f16"}[c.d], Batch: c.groups,
				M: c.columns / c.groups, N: c.kernel[0] * c.kernel[1] * c.channels / c.groups, K: dy.Shape.Elems() / c.columns}
			check.Config.Tuning = &cuda.Tuning{Chip: cuda.H200.Name, Ways: map[cuda.Product]string{
				p: fmt.Sprintf("hopper tile 64x192 stages 5 cluster 1x1 splits %d pingpong", 3-c.groups)}}
		}
		config := check.Config
		config.Chip = cuda.H200
		results, err := graph.InfoOf(op).Infer(op, []graph.Type{x, dy})
		if err != nil {
			t.Fatal(err)
		}
		kernel, err := cuda.Compile(op, rowMajor([]graph.Type{x, dy}), rowMajor(results), config)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(kernel.Source, "B_PATCHES = true") {
			t.Errorf("%s is not computed from patches as operand B", check.Name)
		}
	}
	cudatest.Run(t, cudatest.OpenFor(t, cuda.H200), l.checks...)
}

// TestConvAcross computes convolutions, transposes and gradients for filters of f32 with Hopper's own instructions: every tile,
// windows of unequal sides, steps and pads, groups, rows and columns that are no whole tiles, divided sums, and infinities.
func TestConvAcross(t *testing.T) {
	was := cuda.SetPortableTime(math.MaxInt / 2) // small ones, too
	defer cuda.SetPortableTime(was)
	l := newList(93)
	pair := func(p [2]int) graph.Ints { return graph.IntsOf(p[0], p[1]) }
	others := map[int]bool{}
	for i, c := range []struct {
		n, height, width, channels, columns, groups int
		kernel, stride, dilation                    [2]int
		pad                                         [4]int
		sms                                         int
		transposes                                  bool // with enough columns for it, and whole slices of channels
	}{
		{1, 9, 10, 64, 64, 1, [2]int{3, 3}, [2]int{1, 1}, [2]int{1, 1}, [4]int{1, 1, 1, 1}, 132, true},
		{2, 13, 11, 64, 72, 1, [2]int{3, 2}, [2]int{2, 1}, [2]int{1, 2}, [4]int{0, 2, 1, 0}, 1, false},
		{2, 9, 18, 64, 128, 2, [2]int{1, 3}, [2]int{1, 2}, [2]int{1, 1}, [4]int{0, 0, 2, 1}, 2, false},
		{1, 15, 9, 96, 64, 1, [2]int{1, 1}, [2]int{2, 1}, [2]int{1, 1}, [4]int{}, 4, true},
		{1, 16, 17, 128, 128, 1, [2]int{1, 1}, [2]int{1, 1}, [2]int{1, 1}, [4]int{}, 4, true},
	} {
		op := graph.Conv2D{Stride: pair(c.stride), Dilation: pair(c.dilation), Pad: graph.IntsOf(c.pad[:]...), Groups: c.groups,
			Layout: graph.NHWC}
		x := []int{c.n, c.height, c.width, c.channels}
		w := []int{c.kernel[0], c.kernel[1], c.channels / c.groups, c.columns}
		y, err := graph.InfoOf(op).Infer(op, []graph.Type{graph.TypeOf(graph.F32, x...), graph.TypeOf(graph.F32, w...)})
		if err != nil {
			t.Fatal(err)
		}
		dy := y[0].Shape.Slice()
		f, types := fused(t, graph.AnchorConv, func(b *graph.Builder, in inputs) {
			v := b.Add(op, in(graph.F32, x...), in(graph.F32, w...))
			b.Output("", b.Unary(graph.Relu, b.Binary(graph.Add, v, b.Broadcast(in(graph.F32, c.columns), v.Type.Shape))))
		})
		var args []*graph.Tensor
		for _, u := range types {
			args = append(args, l.tensor(graph.F32, u.Shape.Slice()...))
		}
		l.add(f, args...)
		l.add(graph.Conv2DTranspose{Stride: op.Stride, Dilation: op.Dilation, Pad: op.Pad, Groups: op.Groups, H: c.height,
			W: c.width, Layout: graph.NHWC}, l.tensor(graph.F32, dy...), l.tensor(graph.F32, w...))
		l.add(graph.Conv2DFilterGrad{Stride: op.Stride, Dilation: op.Dilation, Pad: op.Pad, Groups: op.Groups, KH: c.kernel[0],
			KW: c.kernel[1], Layout: graph.NHWC}, l.tensor(graph.F32, x...), l.tensor(graph.F32, dy...))
		others[3*i+1] = !c.transposes
		for j := range l.checks[3*i:] {
			check := &l.checks[3*i+j]
			check.Name = fmt.Sprint(i, " ", check.Op.OpName())
			check.Config.Chip = cuda.H200
			check.Config.Chip.SMs = c.sms // few make sums that are not divided
			if i == 0 {
				check.Args[0].SetFloat(200, math.Inf(1))
				check.Args[0].SetFloat(2000, math.Inf(-1))
				check.Args[1].SetFloat(4000, math.NaN())
				check.Args[1].SetFloat(70, 0.5) // exact: nothing is left of it
			}
		}
	}
	for _, tile := range writingTiles {
		t.Run(fmt.Sprint(tile), func(t *testing.T) {
			defer cuda.OnlyAcross(tile[0], tile[1], true, true)()
			for i, c := range l.checks {
				var types []graph.Type
				for _, a := range c.Args {
					types = append(types, a.Type)
				}
				results, err := graph.InfoOf(c.Op).Infer(c.Op, types)
				if err != nil {
					t.Fatal(err)
				}
				kernel, err := cuda.Compile(c.Op, rowMajor(types), rowMajor(results), c.Config)
				if err != nil {
					t.Fatal(err)
				}
				if across := strings.Contains(kernel.Generated(), "gemm_across<"); across == others[i] {
					t.Errorf("%s: by gemm_across: %v", c.Name, across)
				}
			}
			cudatest.Run(t, cudatest.OpenFor(t, cuda.H200), l.checks...)
		})
	}
}

// TestConvPairs computes convolutions of few channels of 16 bits whose windows move by two, and gradients for their filters, with
// infinities beside windows: pairs of pixels are one where a window has both, and of gradients everywhere.
func TestConvPairs(t *testing.T) {
	was := cuda.SetPortableTime(math.MaxInt / 2) // small ones, too
	defer cuda.SetPortableTime(was)
	for _, chip := range []cuda.Chip{cuda.H200, cuda.ChipOf(80)} {
		l := newList(98)
		for i, c := range []struct {
			height, width, channels int
			kernel                  [2]int
			pad                     int // before columns
		}{{20, 22, 3, [2]int{7, 7}, 3}, {11, 24, 3, [2]int{3, 7}, 2}, {9, 26, 1, [2]int{4, 6}, 2}, {12, 20, 2, [2]int{2, 4}, 1}} {
			d := []graph.DType{graph.BF16, graph.F16}[i%2]
			op := graph.Conv2D{Stride: graph.IntsOf(2, 2), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(1, c.pad, 1, 1), Groups: 1,
				Layout: graph.NHWC}
			x := l.tensor(d, 2, c.height, c.width, c.channels)
			w := l.tensor(d, c.kernel[0], c.kernel[1], c.channels, 64)
			y, err := graph.InfoOf(op).Infer(op, []graph.Type{x.Type, w.Type})
			if err != nil {
				t.Fatal(err)
			}
			for j := range 4 { // at even and odd columns
				x.SetFloat(x.Type.Shape.Elems()/8*(2*j+1)+j%2*c.channels, math.Inf(1-j%2*2))
			}
			f, _ := fused(t, graph.AnchorConv, func(b *graph.Builder, in inputs) {
				b.Output("", b.Add(op, in(d, x.Type.Shape.Slice()...), in(d, w.Type.Shape.Slice()...)))
			})
			l.add(f, x, w).Name = fmt.Sprintf("%v %d forward", chip.Target(), i)
			grad := l.add(graph.Conv2DFilterGrad{Stride: op.Stride, Dilation: op.Dilation, Pad: op.Pad, Groups: 1, KH: c.kernel[0],
				KW: c.kernel[1], Layout: graph.NHWC}, x, l.tensor(d, y[0].Shape.Slice()...))
			grad.Name = fmt.Sprintf("%v %d gradient", chip.Target(), i)
		}
		cudatest.Run(t, cudatest.OpenFor(t, chip), l.checks...)
	}
}

// TestConvRows computes convolutions of few channels in f32, and gradients for their filters, whose patches are rows of taps:
// pixels that have further channels or not, unequal sides and steps, windows past the images, divided sums, and infinities beside
// windows.
func TestConvRows(t *testing.T) {
	was := cuda.SetPortableTime(math.MaxInt / 2) // small ones, too
	defer cuda.SetPortableTime(was)
	pair := func(p [2]int) graph.Ints { return graph.IntsOf(p[0], p[1]) }
	for _, precision := range []cuda.Precision{cuda.TF32, cuda.F32} {
		l := newList(96)
		for i, c := range []struct {
			n, height, width, channels, columns int
			kernel, stride                      [2]int
			pad                                 [4]int
		}{
			{2, 20, 22, 3, 64, [2]int{7, 7}, [2]int{2, 2}, [4]int{3, 3, 3, 3}},
			{1, 19, 21, 3, 72, [2]int{5, 6}, [2]int{1, 2}, [4]int{2, 0, 1, 4}},
			{3, 13, 14, 1, 64, [2]int{2, 7}, [2]int{2, 1}, [4]int{0, 0, 8, 0}},
			{2, 24, 33, 1, 65, [2]int{7, 9}, [2]int{3, 3}, [4]int{}},
			{1, 15, 16, 7, 64, [2]int{3, 3}, [2]int{1, 1}, [4]int{1, 1, 1, 1}},
		} {
			op := graph.Conv2D{Stride: pair(c.stride), Dilation: graph.IntsOf(2, 1), Pad: graph.IntsOf(c.pad[:]...), Groups: 1,
				Layout: graph.NHWC}
			x := graph.TypeOf(graph.F32, c.n, c.height, c.width, c.channels)
			w := graph.TypeOf(graph.F32, c.kernel[0], c.kernel[1], c.channels, c.columns)
			y, err := graph.InfoOf(op).Infer(op, []graph.Type{x, w})
			if err != nil {
				t.Fatal(err)
			}
			f, types := fused(t, graph.AnchorConv, func(b *graph.Builder, in inputs) {
				v := b.Add(op, in(graph.F32, x.Shape.Slice()...), in(graph.F32, w.Shape.Slice()...))
				b.Output("", b.Binary(graph.Add, v, b.Broadcast(in(graph.F32, c.columns), v.Type.Shape)))
			})
			var args []*graph.Tensor
			for _, u := range types {
				args = append(args, l.tensor(graph.F32, u.Shape.Slice()...))
			}
			forward := l.add(f, args...)
			forward.Name = fmt.Sprintf("%v %d forward", precision, i)
			grad := l.add(graph.Conv2DFilterGrad{Stride: op.Stride, Dilation: op.Dilation, Pad: op.Pad, Groups: 1, KH: c.kernel[0],
				KW: c.kernel[1], Layout: graph.NHWC}, l.tensor(graph.F32, x.Shape.Slice()...), l.tensor(graph.F32, y[0].Shape.Slice()...))
			grad.Name = fmt.Sprintf("%v %d gradient", precision, i)
			for j := range 2 {
				check := &l.checks[2*i+j]
				check.Args[0].SetFloat(x.Shape.Elems()-1, math.Inf(1))
				check.Args[0].SetFloat(x.Shape.Elems()/2, math.Inf(-1))
				check.Config.Precision, check.Compare = precision, within(precision)
				config := check.Config
				config.Chip = cuda.H200
				kernel := kernelOf(t, check.Op, typesOf(check.Args), config)
				if !strings.Contains(kernel.Generated(), "gemm_hopper<") && !strings.Contains(kernel.Generated(), "gemm_across<") {
					t.Errorf("%s is not computed with Hopper's instructions", check.Name)
				}
			}
		}
		cudatest.Run(t, cudatest.OpenFor(t, cuda.H200), l.checks...)
	}
}

// TestConvClasses computes transposes with strides, all classes in one launch: unequal sides and steps, groups, tiles that are not
// full, classes with one tile and with several for each block, and fewer multiprocessors than classes.
func TestConvClasses(t *testing.T) {
	pair := func(p [2]int) graph.Ints { return graph.IntsOf(p[0], p[1]) }
	l := newList(97)
	for _, c := range []struct {
		n, height, width, channels, columns, groups int
		kernel, stride, dilation                    [2]int
		pad                                         [4]int
		sms, launches                               int // 0: it depends on the type
	}{
		{2, 33, 31, 64, 64, 1, [2]int{3, 3}, [2]int{2, 2}, [2]int{1, 1}, [4]int{1, 1, 1, 1}, 132, 1},
		{2, 33, 31, 64, 64, 1, [2]int{3, 3}, [2]int{2, 2}, [2]int{1, 1}, [4]int{1, 1, 1, 1}, 5, 1},
		{2, 33, 31, 64, 64, 1, [2]int{3, 3}, [2]int{2, 2}, [2]int{1, 1}, [4]int{1, 1, 1, 1}, 3, 4},
		{1, 34, 33, 128, 128, 2, [2]int{4, 3}, [2]int{3, 1}, [2]int{1, 2}, [4]int{0, 1, 2, 0}, 132, 0},
		{2, 25, 39, 64, 96, 1, [2]int{2, 2}, [2]int{2, 2}, [2]int{1, 1}, [4]int{}, 5, 0}, // in 16 bits threads copy patches
		{1, 41, 29, 72, 64, 1, [2]int{5, 3}, [2]int{2, 3}, [2]int{1, 1}, [4]int{2, 2, 0, 1}, 8, 1},
	} {
		op := graph.Conv2D{Stride: pair(c.stride), Dilation: pair(c.dilation), Pad: graph.IntsOf(c.pad[:]...), Groups: c.groups,
			Layout: graph.NHWC}
		for _, d := range []graph.DType{graph.BF16, graph.F32} {
			x := graph.TypeOf(d, c.n, c.height, c.width, c.channels)
			w := graph.TypeOf(d, c.kernel[0], c.kernel[1], c.channels/c.groups, c.columns)
			y, err := graph.InfoOf(op).Infer(op, []graph.Type{x, w})
			if err != nil {
				t.Fatal(err)
			}
			dy := graph.Type{DType: d, Shape: y[0].Shape}
			check := l.add(graph.Conv2DTranspose{Stride: op.Stride, Dilation: op.Dilation, Pad: op.Pad, Groups: op.Groups, H: c.height,
				W: c.width, Layout: graph.NHWC}, l.tensor(d, dy.Shape.Slice()...), l.tensor(d, w.Shape.Slice()...))
			check.Config.Precision = cuda.BF16
			if d == graph.F32 {
				check.Config.Precision = cuda.TF32
			}
			check.Compare = within(check.Config.Precision)
			check.Config.Chip = cuda.H200
			check.Config.Chip.SMs = c.sms
			check.Name = fmt.Sprintf("%v %+v", d, c)
			kernel := kernelOf(t, check.Op, []graph.Type{dy, w}, check.Config)
			if c.launches > 0 && len(kernel.Steps) != c.launches {
				t.Errorf("%s takes %d launches", check.Name, len(kernel.Steps))
			}
		}
	}
	cudatest.Run(t, cudatest.OpenFor(t, cuda.H200), l.checks...)
}
