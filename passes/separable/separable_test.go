package separable_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/lowering/cpu"
	"fusec/passes"
	"fusec/passes/passtest"
)

// A block is a block of a network for small devices, in NCHW, with what may be otherwise in it.
type block struct {
	d        graph.DType
	side     int
	channels int
	expand   int // channels, or 0 for none
	each     int // depthwise filters of each channel
	kernel   int // of the last convolution
	stride   int // of the last convolution
	bounds   [2]func(b *graph.Builder, y *graph.Node) *graph.Node
	noBias   bool
	read     bool // what the depthwise convolution makes is an output, too
}

func relu6(b *graph.Builder, y *graph.Node) *graph.Node {
	return b.BinaryScalar(graph.Min, b.Unary(graph.Relu, y), 6)
}

func relu(b *graph.Builder, y *graph.Node) *graph.Node { return b.Unary(graph.Relu, y) }

func (k block) build(b *graph.Builder) {
	conv := func(x *graph.Node, out, kernel, stride, groups int) *graph.Node {
		op := graph.Conv2D{Stride: graph.IntsOf(stride, stride), Dilation: graph.IntsOf(1, 1), Groups: groups,
			Pad: graph.IntsOf(kernel/2, kernel/2, kernel/2, kernel/2)}
		name := fmt.Sprint(len(x.Type.String()), kernel, out, x.ID)
		y := b.Add(op, x, b.Param("w"+name, graph.TypeOf(k.d, out, x.Type.Shape.At(1)/groups, kernel, kernel)))
		if k.noBias {
			return y
		}
		return b.Binary(graph.Add, y, b.Broadcast(b.Reshape(b.Param("b"+name, graph.TypeOf(k.d, out)), out, 1, 1), y.Type.Shape))
	}
	channels := k.channels
	x := b.Input("x", graph.TypeOf(k.d, 1, channels, k.side, k.side))
	// Images are in NHWC from here on.
	y := b.Unary(graph.Relu, conv(x, channels, 3, 1, 1))
	if k.expand > 0 {
		channels = k.expand
		y = k.bounds[0](b, conv(y, channels, 1, 1, 1))
	}
	y = k.bounds[1](b, conv(y, channels*max(k.each, 1), 3, 1, channels))
	if k.read {
		b.Output("z", y)
	}
	y = conv(y, 24, max(k.kernel, 1), max(k.stride, 1), 1)
	b.Output("y", b.Unary(graph.Relu, y))
}

// fused is the operations that the pass makes.
func fused(t *testing.T, k block, cfg passes.Config) (ops []graph.SeparableConv2D, operands []int) {
	t.Helper()
	cfg.Stop, cfg.Verify = "separable", true
	if cfg.Target == nil {
		cfg.Target = cpu.New()
	}
	g, tr, err := passes.Run(graphtest.Built(t, k.build), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range g.Nodes {
		if op, ok := n.Op.(graph.SeparableConv2D); ok {
			ops, operands = append(ops, op), append(operands, len(n.Args))
		}
	}
	if m := passtest.Stage(t, tr, "separable").Matches; len(m) != len(ops) {
		t.Errorf("%d matches for %d operations", len(m), len(ops))
	}
	return ops, operands
}

func TestFound(t *testing.T) {
	type bounds = [2]func(b *graph.Builder, y *graph.Node) *graph.Node
	same, frozen := bounds{relu6, relu6}, passes.Config{Frozen: true}
	like := func(change func(k *block)) block {
		k := block{d: graph.F32, side: 56, channels: 24, expand: 96, bounds: same}
		change(&k)
		return k
	}
	scaled := func(b *graph.Builder, y *graph.Node) *graph.Node { return b.Unary(graph.Tanh, y) }
	empty := func(b *graph.Builder, y *graph.Node) *graph.Node {
		return b.BinaryScalar(graph.Max, b.BinaryScalar(graph.Min, y, 1), 2)
	}
	multiplied := func(b *graph.Builder, y *graph.Node) *graph.Node { return b.Binary(graph.Mul, y, y) }
	for _, c := range []struct {
		name string
		k    block
		cfg  passes.Config
		want int // operands, 0 for no operation
	}{
		{"inverted residual", like(func(*block) {}), frozen, 6},
		{"f64", like(func(k *block) { k.d = graph.F64 }), frozen, 6},
		{"other bounds", like(func(k *block) { k.bounds = bounds{relu6, relu} }), frozen, 4},
		{"no expansion", like(func(k *block) { k.channels, k.expand = 96, 0 }), frozen, 4},
		{"a function between", like(func(k *block) { k.bounds = bounds{relu6, scaled} }), frozen, 0},
		{"a square between", like(func(k *block) { k.bounds = bounds{relu6, multiplied} }), frozen, 0},
		{"a function before", like(func(k *block) { k.bounds = bounds{scaled, relu6} }), frozen, 4},
		{"empty bounds", like(func(k *block) { k.bounds = bounds{empty, empty} }), frozen, 0},
		{"small images", like(func(k *block) { k.side = 7 }), frozen, 0},
		{"filters that change", like(func(*block) {}), passes.Config{}, 0},
		{"no bias", like(func(k *block) { k.noBias = true }), frozen, 0},
		{"two filters for each channel", like(func(k *block) { k.each = 2 }), frozen, 0},
		{"a last convolution of 3×3", like(func(k *block) { k.kernel = 3 }), frozen, 0},
		{"a last convolution that strides", like(func(k *block) { k.stride = 2 }), frozen, 0},
		{"a value that is read", like(func(k *block) { k.read = true }), frozen, 0},
	} {
		ops, operands := fused(t, c.k, c.cfg)
		switch {
		case c.want == 0 && len(ops) > 0, c.want > 0 && (len(ops) != 1 || operands[0] != c.want):
			t.Errorf("%s: %+v of %v operands", c.name, ops, operands)
		case c.want == 0:
		case ops[0].Low != 0 || ops[0].High != 6 && !math.IsInf(ops[0].High, 1):
			t.Errorf("%s: bounds %v and %v", c.name, ops[0].Low, ops[0].High)
		}
	}
}

// eager is the CPU, which computes all blocks by strips, and images of any size in NHWC.
type eager struct{ *cpu.Device }

func (eager) ImageTime(op graph.Op, _, _ []graph.Type) time.Duration {
	if image, ok := op.(graph.ImageOp); ok && image.ImageLayout() == graph.NCHW {
		return time.Second
	}
	return time.Microsecond
}

func (eager) FusesSeparable(graph.SeparableConv2D, []graph.Type, graph.Type) bool { return true }

// TestValues compares what a network computes with the pass and without.
func TestValues(t *testing.T) {
	for i, k := range []block{
		{d: graph.F32, side: 7, channels: 5, expand: 9, bounds: [2]func(*graph.Builder, *graph.Node) *graph.Node{relu6, relu6}},
		{d: graph.F32, side: 6, channels: 6, bounds: [2]func(*graph.Builder, *graph.Node) *graph.Node{nil, relu}},
		{d: graph.F64, side: 2, channels: 4, expand: 3, bounds: [2]func(*graph.Builder, *graph.Node) *graph.Node{relu, relu}},
	} {
		g := graphtest.Built(t, k.build)
		cfg := passes.Config{Frozen: true, Verify: true, Target: eager{cpu.New()}}
		with, tr, err := passes.Run(g, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if len(passtest.Stage(t, tr, "separable").Matches) != 1 {
			t.Errorf("%d: the pass found nothing", i)
		}
		in := graphtest.Values(rand.New(rand.NewPCG(1, 2)), g)
		if err := passtest.Same(g, with, in); err != nil {
			t.Errorf("%d: %v", i, err)
		}
		passtest.SameOnCPU(t, g, with, in)
	}
}
