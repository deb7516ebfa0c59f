package winograd_test

import (
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/trace"
	"fusec/lowering/cpu"
	"fusec/passes"
	"fusec/passes/passtest"
)

// allowed is the tiles of the convolutions of a graph that is compiled for the CPU, 0 for those by other algorithms.
func allowed(t *testing.T, cfg passes.Config, build func(b *graph.Builder)) (tiles []int) {
	t.Helper()
	cfg.Target, cfg.Stop = cpu.New(), "winograd"
	cfg.Verify = true
	g, tr, err := passes.Run(graphtest.Built(t, build), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range g.Nodes {
		if op, ok := n.Op.(graph.Conv2D); ok {
			tiles = append(tiles, op.Winograd)
		}
	}
	for _, m := range passtest.Stage(t, tr, "winograd").Matches {
		if m.Numeric != trace.Transformed.In(graph.F32) || m.Numeric.Bound != graph.F32.Tolerance() || m.Pattern != "winograd" {
			t.Errorf("the match is %+v", m)
		}
	}
	return tiles
}

// conv is a convolution of an image of d with filters named w.
func conv(b *graph.Builder, d graph.DType, channels, side, out, kernel, stride int) {
	pad := kernel / 2
	op := graph.Conv2D{Stride: graph.IntsOf(stride, stride), Dilation: graph.IntsOf(1, 1), Groups: 1,
		Pad: graph.IntsOf(pad, pad, pad, pad)}
	x := b.Input("x", graph.TypeOf(d, 1, channels, side, side))
	b.Output("y", b.Unary(graph.Relu, b.Add(op, x, b.Param("w", graph.TypeOf(d, out, channels, kernel, kernel)))))
}

func TestChoice(t *testing.T) {
	frozen := passes.Config{Frozen: true}
	for _, c := range []struct {
		name                               string
		cfg                                passes.Config
		d                                  graph.DType
		channels, side, out, kernel, strid int
		want                               int
	}{
		{"many channels", frozen, graph.F32, 64, 24, 64, 3, 1, 4},
		{"an image that tiles of 4×4 do not cover well", frozen, graph.F32, 256, 6, 256, 3, 1, 2},
		{"filters that would take much memory", frozen, graph.F32, 512, 28, 512, 3, 1, 2},
		{"few channels", frozen, graph.F32, 2, 24, 3, 3, 1, 0},
		{"filters that are read once", frozen, graph.F32, 640, 2, 640, 3, 1, 0},
		{"filters that change", passes.Config{}, graph.F32, 64, 24, 64, 3, 1, 4},
		{"filters that change and are read a few times", passes.Config{}, graph.F32, 256, 4, 256, 3, 1, 0},
		{"f64", frozen, graph.F64, 64, 24, 64, 3, 1, 0},
		{"a filter of 1×1", frozen, graph.F32, 64, 24, 64, 1, 1, 0},
		{"a stride of 2", frozen, graph.F32, 64, 24, 64, 3, 2, 0},
	} {
		got := allowed(t, c.cfg, func(b *graph.Builder) { conv(b, c.d, c.channels, c.side, c.out, c.kernel, c.strid) })
		if len(got) != 1 || got[0] != c.want {
			t.Errorf("%s: tiles %v, want %d", c.name, got, c.want)
		}
	}
}

// TestTransposed allows the algorithm for the transpose of a convolution of stride 1, such as the gradient for an image.
func TestTransposed(t *testing.T) {
	for stride, want := range map[int]int{1: 4, 2: 0} {
		g, tr, err := passes.Run(graphtest.Built(t, func(b *graph.Builder) {
			op := graph.Conv2DTranspose{Stride: graph.IntsOf(stride, stride), Dilation: graph.IntsOf(1, 1), Groups: 1,
				Pad: graph.IntsOf(1, 1, 1, 1), H: 24*stride - stride + 1, W: 24*stride - stride + 1}
			x := b.Input("x", graph.TypeOf(graph.F32, 2, 64, 24, 24))
			b.Output("y", b.Unary(graph.Relu, b.Add(op, x, b.Param("w", graph.TypeOf(graph.F32, 64, 64, 3, 3)))))
		}), passes.Config{Target: cpu.New(), Stop: "winograd", Verify: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range g.Nodes {
			if op, ok := n.Op.(graph.Conv2DTranspose); ok && op.Winograd != want {
				t.Errorf("stride %d: tile %d, want %d", stride, op.Winograd, want)
			}
		}
		if n := len(passtest.Stage(t, tr, "winograd").Matches); n != min(want, 1) {
			t.Errorf("stride %d: %d matches", stride, n)
		}
	}
}

// TestPrepared leaves a convolution alone that is computed once.
func TestPrepared(t *testing.T) {
	got := allowed(t, passes.Config{Frozen: true}, func(b *graph.Builder) {
		op := graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(1, 1, 1, 1), Groups: 1}
		image := b.Param("image", graph.TypeOf(graph.F32, 1, 64, 24, 24))
		b.Output("y", b.Add(op, image, b.Param("w", graph.TypeOf(graph.F32, 64, 64, 3, 3))))
	})
	if len(got) != 1 || got[0] != 0 {
		t.Errorf("tiles %v", got)
	}
}

// TestOtherTarget changes nothing for a target that has no kernels for it.
func TestOtherTarget(t *testing.T) {
	given := graphtest.Built(t, func(b *graph.Builder) { conv(b, graph.F32, 64, 24, 64, 3, 1) })
	g, _, err := passes.Run(given, passes.Config{Frozen: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range g.Nodes {
		if op, ok := n.Op.(graph.Conv2D); ok && op.Winograd != 0 {
			t.Errorf("%v", op)
		}
	}
}
