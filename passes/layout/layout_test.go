package layout_test

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/lowering/cpu"
	"fusec/passes"
	"fusec/passes/passtest"
)

// eager is the CPU without times: it takes NHWC wherever it can.
type eager struct{ passes.Target }

// drawn is the CPU with times that are drawn for each operation.
type drawn struct {
	passes.Target
	seed uint64
}

func (d drawn) ImageTime(op graph.Op, args, _ []graph.Type) time.Duration {
	h := fnv.New64a()
	fmt.Fprint(h, d.seed, op, args)
	return time.Duration(h.Sum64() % 1000)
}

// A net makes a random network on images.
type net struct {
	b *graph.Builder
	r *rand.Rand
	n int
	d graph.DType
}

func (w *net) param(s ...int) *graph.Node {
	w.n++
	return w.b.Param(fmt.Sprint("w", w.n), graph.TypeOf(w.d, s...))
}

// seeds numbers what draws.
func (w *net) seeds() int { w.n++; return w.n }

// window draws a stride, a dilation and a pad with which a kernel fits.
func (w *net) window(height, width, kh, kw int) (stride, dilation, pad graph.Ints) {
	p := [4]int{w.r.IntN(2), w.r.IntN(2), w.r.IntN(2), w.r.IntN(2)}
	p[0] += max(kh-height-p[0]-p[2], 0)
	p[1] += max(kw-width-p[1]-p[3], 0)
	return graph.IntsOf(1+w.r.IntN(2), 1+w.r.IntN(2)), graph.IntsOf(1, 1), graph.IntsOf(p[:]...)
}

func (w *net) conv(x *graph.Node) *graph.Node {
	_, c, height, width := graph.NCHW.ImageDims(x.Type.Shape)
	groups := 1
	switch w.r.IntN(4) {
	case 0:
		groups = c
	case 1:
		if c%2 == 0 {
			groups = 2
		}
	}
	kh, kw := 1+w.r.IntN(3), 1+w.r.IntN(3)
	stride, dilation, pad := w.window(height, width, kh, kw)
	f := w.param(groups*(1+w.r.IntN(3)), c/groups, kh, kw)
	return w.b.Add(graph.Conv2D{Stride: stride, Dilation: dilation, Pad: pad, Groups: groups}, x, f)
}

// transposed is a convolution's transpose that leads back to images of x's shape, or a larger one.
func (w *net) transposed(x *graph.Node) *graph.Node {
	_, c, height, width := graph.NCHW.ImageDims(x.Type.Shape)
	op := graph.Conv2DTranspose{Stride: graph.IntsOf(2, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(0, 0, 0, 0), Groups: 1,
		H: 2*(height-1) + 2, W: width + 2}
	return w.b.Add(op, x, w.param(c, 1+w.r.IntN(4), 2, 3))
}

func (w *net) pool(x *graph.Node) *graph.Node {
	_, _, height, width := graph.NCHW.ImageDims(x.Type.Shape)
	kh, kw := 2+w.r.IntN(2), 2+w.r.IntN(2) // no window has padding alone
	stride, _, pad := w.window(height, width, kh, kw)
	return w.b.Add(graph.Pool{Fn: graph.PoolFn(w.r.IntN(2)), Kernel: graph.IntsOf(kh, kw), Stride: stride, Pad: pad, CountPad: true},
		x)
}

// spread is a parameter of a part of x's axes over x.
func (w *net) spread(x *graph.Node) *graph.Node {
	dims := x.Type.Shape.Slice()
	for i := range dims {
		if w.r.IntN(2) == 0 {
			dims[i] = 1
		}
	}
	return w.b.Broadcast(w.param(dims[w.r.IntN(4):]...), x.Type.Shape)
}

// step appends an operation on images.
func (w *net) step(images []*graph.Node) *graph.Node {
	b, x := w.b, images[w.r.IntN(len(images))]
	s := x.Type.Shape
	axis := w.r.IntN(4)
	switch w.r.IntN(33) {
	case 0, 1, 2, 3:
		return w.conv(x)
	case 4:
		return w.transposed(x)
	case 5:
		return w.pool(x)
	case 6, 7:
		return b.Unary([]graph.UnaryFn{graph.Relu, graph.Tanh, graph.Sigmoid}[w.r.IntN(3)], x)
	case 8, 9:
		return b.Binary(graph.Add, x, w.spread(x))
	case 10:
		return b.BinaryScalar(graph.Mul, x, 0.5)
	case 11, 12:
		for _, y := range images {
			if y.Type == x.Type && y != x {
				return b.Binary([]graph.BinaryFn{graph.Add, graph.Mul}[w.r.IntN(2)], x, y)
			}
		}
		return b.Add(graph.Select{}, b.Binary(graph.Gt, x, w.spread(x)), x, b.Unary(graph.Neg, x))
	case 13:
		c := s.At(1)
		return b.Add(graph.BatchNorm{Eps: 1e-2, Momentum: 0.9, Train: w.r.IntN(2) == 0}, x, w.param(c), w.param(c), w.param(c),
			b.Unary(graph.Square, w.param(c)))
	case 14: // squeeze and excitation
		y := b.Reshape(b.Unary(graph.Sigmoid, b.Reduce(graph.Mean, x, false, 2, 3)), s.At(0), s.At(1), 1, 1)
		return b.Binary(graph.Mul, x, b.Broadcast(y, s))
	case 15:
		var axes []int
		for i := range 4 {
			if w.r.IntN(2) == 0 {
				axes = append(axes, i)
			}
		}
		keep := b.Reduce(graph.ReduceFn(w.r.IntN(2)), x, true, axes...)
		return b.Binary(graph.Sub, x, b.Broadcast(keep, s))
	case 16:
		return b.Add(graph.Concat{Axis: axis}, x, b.Unary(graph.Sin, x), b.Slice(x, axis, 0, 1, 1))
	case 17:
		lo, hi := []int{0, 0, w.r.IntN(2), w.r.IntN(2)}, []int{0, w.r.IntN(2), 1, 0}
		return b.Add(graph.Pad{Lo: graph.IntsOf(lo...), Hi: graph.IntsOf(hi...), Value: 0.25}, x)
	case 18:
		return b.Slice(x, axis, 0, (s.At(axis)+1)/2, 1)
	case 19:
		perm := w.r.Perm(4)
		return b.Unary(graph.Cos, b.Transpose(x, perm...))
	case 20:
		return b.Add(graph.Softmax{Axis: axis}, x)
	case 21, 22: // upsampling as Gorgonia has it, and back
		n, c, height, width := graph.NCHW.ImageDims(s)
		y := b.Broadcast(b.Reshape(x, n, c, height, 1, width, 1), graph.ShapeOf(n, c, height, 2, width, 3))
		y = b.Reshape(y, n, c, 2*height, 3*width)
		if w.r.IntN(2) == 0 {
			keep := w.r.IntN(2) == 0
			y = b.Reduce(graph.Sum, b.Reshape(b.Unary(graph.Tanh, y), n, c, height, 2, width, 3), keep, 3, 5)
			y = b.Reshape(y, n, c, height, width)
		}
		return y
	case 23: // nearest to what indices say
		axis, size := 1+w.r.IntN(3), 1+w.r.IntN(4)
		at := graph.NewTensor(graph.TypeOf(graph.I64, size))
		for i := range size {
			at.SetInt(i, int64(w.r.IntN(s.At(axis))))
		}
		return b.Add(graph.Gather{Axis: axis}, x, b.Const(at))
	case 24:
		return b.Add(graph.Dropout{P: 0.25}, x, b.Input(fmt.Sprint("seed", w.seeds()), graph.TypeOf(graph.I64)))
	case 25, 26:
		c := s.At(1)
		groups := []int{1, c}[w.r.IntN(2)]
		if c%2 == 0 && w.r.IntN(2) == 0 {
			groups = 2
		}
		return b.Add(graph.GroupNorm{Groups: groups, Eps: 1e-2}, x, w.param(c), w.param(c))
	case 27: // over the depth that rows are, and along all pixels
		n, c, height, width := graph.NCHW.ImageDims(s)
		y := b.Convolve(b.Reshape(x, n, c, height, 1, width), w.param(2, c, 2, 1, 2), graph.Window{Lo: []int{1, 0, 1}}, 1)
		line := b.Unary(graph.Tanh, b.Reshape(x, n, c, height*width))
		line = b.Convolve(line, w.param(2, c, 2), graph.Window{Lo: []int{1}}, 1)
		if w.r.IntN(2) == 0 {
			return b.Reshape(line, n, 2, height, width)
		}
		return b.Reshape(b.Unary(graph.Sin, y), n, 2, height, width)
	case 28: // a linear layer of all
		n, c, height, width := graph.NCHW.ImageDims(s)
		matrix, trans := w.param(c*height*width, 3), w.r.IntN(2) == 0
		if trans {
			matrix = w.param(3, c*height*width)
		}
		y := b.MatMul(b.Reshape(x, n, c*height*width), matrix, false, trans)
		return b.Binary(graph.Mul, x, b.Broadcast(b.Reshape(b.Reduce(graph.Mean, y, false, 1), n, 1, 1, 1), s))
	case 29, 30, 31: // a dense block: each layer joins what it makes to what it reads
		for range 1 + w.r.IntN(3) {
			f := w.param(1+w.r.IntN(3), x.Type.Shape.At(1), 3, 1)
			y := b.Add(graph.Conv2D{Stride: pair(1), Dilation: pair(1), Pad: graph.IntsOf(1, 0, 1, 0), Groups: 1}, x, f)
			x = b.Add(graph.Concat{Axis: 1}, x, b.Unary(graph.Relu, y), b.Unary(graph.Sin, b.Slice(y, 1, 0, 1, 1)))
		}
		return x
	default: // upsampling
		n, c, height, width := graph.NCHW.ImageDims(s)
		y := b.Broadcast(b.Reshape(x, n, c, height, width, 1), graph.ShapeOf(n, c, height, width, 2))
		y = b.Reshape(y, n, c, height, 2*width)
		y = b.Broadcast(b.Reshape(y, n, c, height, 1, 2*width), graph.ShapeOf(n, c, height, 2, 2*width))
		return b.Reshape(y, n, c, 2*height, 2*width)
	}
}

// random is a network with a few outputs, one of them a number.
func random(seed uint64, most int) (g *graph.Graph, cost *graph.Node, weights []*graph.Node, err error) {
	r := rand.New(rand.NewPCG(seed, 8))
	w := &net{b: graph.NewBuilder("net"), r: r, d: []graph.DType{graph.F32, graph.F64}[r.IntN(2)]}
	x := w.b.Input("x", graph.TypeOf(w.d, 1+r.IntN(2), 1+r.IntN(5), 1+r.IntN(6), 1+r.IntN(6)))
	images := []*graph.Node{x, w.conv(x)}
	for range 3 + r.IntN(8) {
		if y := w.step(images); w.b.Err() == nil && y.Type.Shape.Elems() <= most {
			images = append(images, y)
		}
	}
	y := images[len(images)-1]
	for i, k := range images[1:] {
		if r.IntN(4) == 0 {
			w.b.Output(fmt.Sprint("y", i), k)
		}
	}
	w.b.Output("flat", w.b.Reshape(y, y.Type.Shape.Elems()))
	cost = w.b.Reduce(graph.Mean, w.b.Unary(graph.Tanh, y), false, 0, 1, 2, 3)
	w.b.Output("cost", cost)
	g, err = w.b.Graph()
	if err != nil {
		return nil, nil, nil, err
	}
	for _, n := range g.Nodes {
		if _, ok := n.Op.(graph.Param); ok {
			weights = append(weights, n)
		}
	}
	return g, cost, weights, nil
}

// TestValuesStay computes random networks, and their gradients, in layouts that are chosen in many ways.
func TestValuesStay(t *testing.T) {
	seeds := uint64(400)
	if testing.Short() {
		seeds = 40
	}
	device := cpu.New()
	defer device.Close()
	changed := 0
	for seed := range seeds {
		g, cost, weights, err := random(seed, 1500)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		cfg := passes.Config{Verify: true, Target: []passes.Target{device, eager{device}, drawn{device, seed}}[seed%3],
			Frozen: seed%2 == 0}
		if seed%4 < 2 {
			for i, p := range weights {
				cfg.Gradients = append(cfg.Gradients, passes.Gradient{Cost: cost, Of: p, Output: fmt.Sprint("d", i)})
			}
		}
		written := cfg
		written.Stop = "differentiate"
		want, _, err := passes.Run(g, written)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		h, tr, err := passes.Run(g, cfg)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if len(passtest.Stage(t, tr, "layout").Matches) > 0 {
			changed++
		}
		in := graphtest.Values(rand.New(rand.NewPCG(seed, 9)), want)
		if err := passtest.Same(want, h, in); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) { passtest.SameOnCPU(t, want, h, in) })
	}
	if changed < int(seeds)/4 {
		t.Errorf("%d of %d networks have changed", changed, seeds)
	}
}

func pair(n int) graph.Ints { return graph.IntsOf(n, n) }

// TestForms are networks that are all in NHWC, with the operations before the last launch is formed.
func TestForms(t *testing.T) {
	conv := graph.Conv2D{Stride: pair(1), Dilation: pair(1), Pad: graph.IntsOf(1, 1, 1, 1), Groups: 1}
	for name, c := range map[string]struct {
		build func(b *graph.Builder, x *graph.Node) *graph.Node
		want  string
	}{
		"activation, bias and pool": {func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := b.Add(conv, x, b.Param("w", graph.TypeOf(graph.F32, 8, 4, 3, 3)))
			y = b.Unary(graph.Relu, b.Binary(graph.Add, y, b.Broadcast(b.Param("bias", graph.TypeOf(graph.F32, 8, 1, 1)), y.Type.Shape)))
			return b.Add(graph.Pool{Fn: graph.MaxPool, Kernel: pair(2), Stride: pair(2), Pad: graph.IntsOf(0, 0, 0, 0)}, y)
		}, "transpose[0,2,3,1] copy transpose[2,3,1,0] copy conv2d reshape[1,1,1,8] broadcast[2,6,6,8] add relu pool transpose[0,3,1,2]"},
		"global pooling needs no conversion": {func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Reduce(graph.Mean, b.Add(conv, x, b.Param("w", graph.TypeOf(graph.F32, 8, 4, 3, 3))), false, 2, 3)
		}, "transpose[0,2,3,1] copy transpose[2,3,1,0] copy conv2d mean[1,2]"},
		"upsampling and a linear layer": {func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := b.Add(conv, x, b.Param("w", graph.TypeOf(graph.F32, 8, 4, 3, 3)))
			y = b.Reshape(b.Broadcast(b.Reshape(y, 2, 8, 6, 1, 6, 1), graph.ShapeOf(2, 8, 6, 2, 6, 2)), 2, 8, 12, 12)
			return b.MatMul(b.Reshape(y, 2, 8*144), b.Param("m", graph.TypeOf(graph.F32, 8*144, 5)), false, false)
		}, "transpose[0,2,3,1] copy transpose[2,3,1,0] copy conv2d reshape[2,6,1,6,1,8] broadcast[2,6,2,6,2,8] " +
			"reshape[8,6,2,6,2,5] transpose[1,2,3,4,0,5] copy reshape[1152,5] reshape[2,1152] matmul"},
		"group norm, dropout and a line": {func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := b.Add(conv, x, b.Param("w", graph.TypeOf(graph.F32, 8, 4, 3, 3)))
			y = b.Add(graph.GroupNorm{Groups: 8}, y, b.Param("g", graph.TypeOf(graph.F32, 8)), b.Param("h", graph.TypeOf(graph.F32, 8)))
			y = b.Unary(graph.Relu, b.Reshape(b.Add(graph.Dropout{P: 0.5}, y, b.Input("seed", graph.TypeOf(graph.I64))), 2, 8, 36))
			return b.Transpose(y, 0, 2, 1)
		}, "transpose[0,2,3,1] copy transpose[2,3,1,0] copy conv2d mean[1,2] reshape[2,1,1,8] broadcast[2,6,6,8] sub square " +
			"mean[1,2] add rsqrt broadcast[2,8] mul reshape[2,1,1,8] broadcast[2,6,6,8] mul broadcast[2,6,6,8] add broadcast[2,8,6,6] " +
			"dropout " +
			"transpose[0,2,3,1] copy gt mul select reshape[2,36,8] relu"},
		"a transpose from NHWC goes": {func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := b.Transpose(b.Unary(graph.Exp, b.Reshape(x, 2, 6, 6, 4)), 0, 3, 1, 2)
			return b.Transpose(b.Add(conv, y, b.Param("w", graph.TypeOf(graph.F32, 8, 4, 3, 3))), 0, 2, 3, 1)
		}, "reshape[2,6,6,4] exp transpose[2,3,1,0] copy conv2d"},
	} {
		t.Run(name, func(t *testing.T) {
			g := graphtest.Built(t, func(b *graph.Builder) {
				b.Output("y", c.build(b, b.Input("x", graph.TypeOf(graph.F32, 2, 4, 6, 6))))
			})
			h, _, err := passes.Run(g, passes.Config{Verify: true, Target: eager{cpu.New()}, Stop: "layout", Frozen: true})
			if err != nil {
				t.Fatal(err)
			}
			if got := passtest.Ops(h); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// TestKept are convolutions that stay in NCHW, with the reason in the trace.
func TestKept(t *testing.T) {
	conv := graph.Conv2D{Stride: pair(1), Dilation: pair(1), Pad: graph.IntsOf(0, 0, 0, 0), Groups: 1}
	g := graphtest.Built(t, func(b *graph.Builder) {
		x := b.Input("x", graph.TypeOf(graph.F32, 1, 1, 3, 300))
		b.Output("y", b.Add(conv, x, b.Param("w", graph.TypeOf(graph.F32, 64, 1, 1, 1))))
	})
	for target, want := range map[passes.Target]string{
		slow{cpu.New()}:     "kept NCHW: it takes about 1ms, in NHWC 2ms and conversions",
		refusing{cpu.New()}: "kept NCHW: no images of nhwc",
	} {
		h, tr, err := passes.Run(g, passes.Config{Target: target, Stop: "layout"})
		if err != nil {
			t.Fatal(err)
		}
		notes := passtest.Stage(t, tr, "layout").Notes
		if err := graph.Equal(g, h); err != nil || len(notes) != 1 || !strings.Contains(notes[0].Text, want) {
			t.Errorf("%v, notes %v, want one with %q", err, notes, want)
		}
	}
}

// TestConversions: notes say which images are converted and what that costs; a picture is read as it lies.
func TestConversions(t *testing.T) {
	conv := graph.Conv2D{Stride: pair(1), Dilation: pair(1), Pad: graph.IntsOf(1, 1, 1, 1), Groups: 1}
	for _, c := range []struct {
		channels    int
		want, notes string
	}{
		{3, "transpose[0,2,3,1] transpose[2,3,1,0] conv2d transpose[0,3,1,2]", "converted to NCHW: 64.0 KiB, about"},
		{64, "transpose[0,2,3,1] copy transpose[2,3,1,0] conv2d transpose[0,3,1,2]",
			"converted to NHWC: 256.0 KiB, about, converted to NCHW: 64.0 KiB, about"},
	} {
		g := graphtest.Built(t, func(b *graph.Builder) {
			x := b.Input("x", graph.TypeOf(graph.F32, 1, c.channels, 32, 32))
			b.Output("y", b.Add(conv, x, b.Param("w", graph.TypeOf(graph.F32, 16, c.channels, 3, 3))))
		})
		h, tr, err := passes.Run(g, passes.Config{Target: nhwc{cpu.New()}, Stop: "layout", Frozen: true})
		if err != nil {
			t.Fatal(err)
		}
		if got := passtest.Ops(h); got != c.want {
			t.Errorf("%d channels: got  %s\nwant %s", c.channels, got, c.want)
		}
		var notes []string
		for _, n := range passtest.Stage(t, tr, "layout").Notes {
			text, _, _ := strings.Cut(n.Text, " 1") // the time
			notes = append(notes, text)
		}
		if got := strings.Join(notes, ", "); got != c.notes {
			t.Errorf("%d channels: notes %q, want %q", c.channels, got, c.notes)
		}
	}
}

// TestLater: what follows a conversion comes before it, if the result takes less time to convert, or none, as a pad reads either
// layout.
func TestLater(t *testing.T) {
	conv := graph.Conv2D{Stride: pair(1), Dilation: pair(1), Pad: graph.IntsOf(0, 0, 0, 0), Groups: 1}
	g := graphtest.Built(t, func(b *graph.Builder) {
		x := b.Input("x", graph.TypeOf(graph.F32, 1, 8, 32, 32))
		y := b.CastTo(graph.U8, b.Unary(graph.Round, b.Unary(graph.Sigmoid, x)))
		y = b.Add(graph.Pad{Lo: graph.IntsOf(0, 0, 1, 1), Hi: graph.IntsOf(0, 0, 1, 1), Value: 7}, y)
		b.Output("y", b.Add(conv, b.CastTo(graph.F32, y), b.Param("w", graph.TypeOf(graph.F32, 16, 8, 3, 3))))
	})
	h, _, err := passes.Run(g, passes.Config{Target: nhwc{cpu.New()}, Stop: "layout", Frozen: true})
	if err != nil {
		t.Fatal(err)
	}
	want := "sigmoid round cast u8 transpose[0,2,3,1] pad cast f32 transpose[2,3,1,0] conv2d transpose[0,3,1,2]"
	if got := passtest.Ops(h); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// nhwc takes a second for convolutions in NCHW, and ten microseconds or some more for anything else.
type nhwc struct{ *cpu.Device }

func (nhwc) ImageTime(op graph.Op, _, _ []graph.Type) time.Duration {
	if op, ok := op.(graph.ImageOp); ok && op.ImageLayout() == graph.NCHW {
		return time.Second
	}
	return 10 * time.Microsecond
}

// slow needs longer in NHWC.
type slow struct{ passes.Target }

func (slow) ImageTime(op graph.Op, _, _ []graph.Type) time.Duration {
	if op, ok := op.(graph.ImageOp); ok && op.ImageLayout() == graph.NHWC {
		return 2 * time.Millisecond
	}
	return time.Millisecond
}

// refusing has no kernel of NHWC.
type refusing struct{ passes.Target }

func (r refusing) Accepts(op graph.Op, args, results []graph.Type) error {
	if op, ok := op.(graph.ImageOp); ok && op.ImageLayout() == graph.NHWC {
		return fmt.Errorf("no images of %v", op.ImageLayout())
	}
	return r.Target.Accepts(op, args, results)
}
