package cpu

import (
	"fusec/graph"
	"fusec/graph/body"
	"fusec/kernels/cpu/winograd"
)

// A winogradConv convolves images of NHWC, see package winograd, and runs a program over each band of the result while it is in
// the cache.
type winogradConv struct {
	epilogue[float32]
	plan    *winograd.Plan
	filters *winograd.Filters
	x, w    int  // arguments
	keeps   bool // frozen filters are transformed once
	warm    bool // they are
}

// newConvWinograd compiles a Fusion anchored on a Conv2D of NHWC that may be computed by Winograd's algorithm, or on a transpose
// that is the convolution op with filters of this layout, turned.
func newConvWinograd(b *body.Program, op graph.Conv2D, filters graph.Layout, turned bool, args, results []Operand,
	env *Env) (Kernel, error) {
	x, w, out := b.Operands[0], b.Operands[1], b.Space
	k := &winogradConv{epilogue: epilogue[float32]{env: env}, x: x.Arg, w: w.Arg, keeps: args[w.Arg].Frozen}
	pixels := func(l graph.Layout) bool { _, ok := pixelRows(l); return ok }
	if err := k.compile(b, 3, results, pixels); err != nil {
		return nil, err
	}
	c, _ := pixelRows(k.c)
	algorithm, err := graph.WinogradOf(op.Winograd)
	if err != nil {
		return nil, err
	}
	points := int64(len(algorithm.B))
	if !env.fits(points * points * int64(x.Layout.Shape.At(3)) * int64(out.At(3)) * 4) {
		return nil, env.refused
	}
	room := winograd.NewChanging
	if k.keeps {
		room = winograd.NewFilters
	}
	if k.filters, err = room(op.Winograd, filters, turned, env.Pool); err != nil {
		return nil, err
	}
	cfg := winograd.Config{X: x.Layout, Pad: op.Pad, Filters: k.filters, RowStride: c.Stride[0]}
	if k.keeps && !turned {
		cfg.Band = env.Tuning.bandOf(op, x, w)
	}
	if k.plan, err = winograd.New(cfg, env.Pool, env.gemm); err != nil {
		return nil, err
	}
	k.cut(k.plan.Bands())
	return k, nil
}

func (k *winogradConv) Run(args, results []Memory) error {
	w := elems[float32](args[k.w])
	if k.keeps && !k.warm {
		if err := k.filters.Update(w); err != nil {
			return err
		}
		k.warm = true
	}
	y := k.begin(args, results)
	defer k.done()
	if k.p == nil {
		return k.plan.Run(elems[float32](args[k.x]), w, y, nil)
	}
	if err := k.plan.Run(elems[float32](args[k.x]), w, y, k); err != nil {
		return err
	}
	return k.end()
}

func (k *winogradConv) thaw() { k.warm = false }

func (k *winogradConv) bytes() int64 {
	return k.epilogue.bytes() + k.plan.Bytes() + int64(k.filters.Bytes())
}

// Tile runs the epilogue over a finished block; see conv.Epilogue.
func (k *winogradConv) Tile(worker, band, row, col, rows, cols int) {
	k.tile(worker, band, row, col, rows, cols)
}
