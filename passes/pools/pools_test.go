package pools_test

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/body"
	"fusec/graph/graphtest"
	"fusec/graph/trace"
	kernels "fusec/kernels/cpu"
	"fusec/lowering/cpu"
	"fusec/passes"
	"fusec/passes/passtest"
)

var (
	none = graph.IntsOf(0, 0, 0, 0)
	two  = graph.IntsOf(2, 2)
)

// A net is what a test compiles: a convolution of images of 24×24 in NHWC, what follows it, and a pool.
type net struct {
	between  func(b *graph.Builder, y *graph.Node) *graph.Node
	after    func(b *graph.Builder, conv, pooled *graph.Node)
	fn       graph.PoolFn
	winograd bool
}

func (c net) build(b *graph.Builder) {
	channels, side, filters := 3, 24, 18
	if c.winograd {
		channels, side, filters = 64, 24, 64
	}
	op := graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Groups: 1, Pad: graph.IntsOf(1, 1, 1, 1),
		Layout: graph.NHWC}
	x := b.Input("x", graph.TypeOf(graph.F32, 2, side, side, channels))
	y := b.Add(op, x, b.Param("w", graph.TypeOf(graph.F32, 3, 3, channels, filters)))
	y = b.Binary(graph.Add, y, b.Broadcast(b.Param("bias", graph.TypeOf(graph.F32, filters)), y.Type.Shape))
	if c.between != nil {
		y = c.between(b, y)
	}
	p := b.Add(graph.Pool{Fn: c.fn, Kernel: two, Stride: two, Pad: none, Layout: graph.NHWC}, y)
	b.Output("y", p)
	if c.after != nil {
		c.after(b, y, p)
	}
}

// stage compiles a net and returns the stage of the pass, and how many pools are launches of their own in the end.
func (c net) stage(t *testing.T, cfg passes.Config) (s trace.Stage, alone int) {
	t.Helper()
	g := graphtest.Built(t, c.build)
	cfg.Verify, cfg.Frozen = true, true
	h, tr, err := passes.Run(g, cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range h.Nodes {
		if _, ok := n.Op.(graph.Pool); ok {
			alone++
		}
	}
	if c.winograd {
		return *passtest.Stage(t, tr, "fuse-pools"), alone
	}
	in := graphtest.Values(rand.New(rand.NewPCG(1, 2)), g)
	if err := passtest.Same(g, h, in); err != nil {
		t.Error(err)
	}
	passtest.SameOnCPU(t, g, h, in)
	return *passtest.Stage(t, tr, "fuse-pools"), alone
}

// eager is the CPU, whatever the size of the images.
type eager struct{ *cpu.Device }

func (eager) PoolsConvolution(f graph.Fusion, args []graph.Type, result graph.Type) error {
	in := make([]graph.Operand, len(args))
	for i, t := range args {
		in[i] = kernels.Contiguous(t)
	}
	p, err := body.Lower(f, in, []graph.Operand{kernels.Contiguous(result)})
	if err != nil {
		return err
	}
	return kernels.TakesPool(p)
}

func relu(b *graph.Builder, y *graph.Node) *graph.Node { return b.Unary(graph.Relu, y) }

// TestFused fuses maxima and means with what is before them, and says so.
func TestFused(t *testing.T) {
	for _, c := range []net{{fn: graph.MaxPool}, {fn: graph.MaxPool, between: relu}, {fn: graph.AvgPool, between: relu}} {
		s, alone := c.stage(t, passes.Config{Target: eager{cpu.New()}})
		if alone != 0 || len(s.Matches) != 1 || s.Matches[0].Kind != "conv" || s.Numeric.Class != trace.ClassExact {
			t.Errorf("%v: %d pools are left, matches %+v", c.fn, alone, s.Matches)
		}
	}
}

// TestApart leaves a pool alone where something else reads the images, or the target has no kernel, and tells the reason.
func TestApart(t *testing.T) {
	tanh := func(b *graph.Builder, y *graph.Node) *graph.Node { return b.Unary(graph.Tanh, y) }
	for name, c := range map[string]struct {
		net
		why string
	}{
		"handed out": {net{after: func(b *graph.Builder, y, _ *graph.Node) { b.Output("conv", y) }}, ""},
		"read twice": {net{after: func(b *graph.Builder, y, _ *graph.Node) {
			b.Output("mean", b.Reduce(graph.Mean, y, false, 1, 2))
		}}, ""},
		"tanh":     {net{between: tanh}, "what is between"},
		"winograd": {net{winograd: true, between: relu}, "and a pool in one"},
	} {
		s, alone := c.stage(t, passes.Config{Target: eager{cpu.New()}})
		if alone != 1 || len(s.Matches) != 0 {
			t.Errorf("%s: %d pools are left, matches %+v", name, alone, s.Matches)
		}
		if told := len(s.Misses) == 1 && strings.Contains(s.Misses[0].Reason, c.why); told != (c.why != "") {
			t.Errorf("%s: missed %+v", name, s.Misses)
		}
	}
	if _, alone := (net{}).stage(t, passes.Config{}); alone != 1 {
		t.Errorf("without a target %d pools are left", alone)
	}
}

// slow is the CPU where a pool in a convolution's launch takes longer.
type slow struct{ *cpu.Device }

func (slow) PoolsConvolution(graph.Fusion, []graph.Type, graph.Type) error {
	return errors.New("it is slower")
}

func TestSlower(t *testing.T) {
	s, alone := net{between: relu}.stage(t, passes.Config{Target: slow{cpu.New()}})
	if alone != 1 || len(s.Misses) != 1 || s.Misses[0].Reason != "it is slower" {
		t.Errorf("%d pools are left, missed %+v", alone, s.Misses)
	}
}
