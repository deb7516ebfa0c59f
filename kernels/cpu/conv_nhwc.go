package cpu

import (
	"fusec/graph"
	"fusec/graph/body"
	"fusec/kernels/cpu/conv"
)

// A convolution kernel convolves images of NHWC, or is the transpose of that: see package conv.
type convolution[T float] struct {
	matrixEpilogue[T]
	plan interface {
		Run(x, w, y []T, finish *conv.Finish[T], epilogue conv.Epilogue) error
		Bytes() int64
	}
	x, w int // arguments

	pack         func(filters Memory) error // before a run, or nil: the plan reads them as they are
	packed       int64                      // bytes that it fills
	frozen, warm bool                       // filters stay the same, and are packed
}

// newConvNHWC compiles a Fusion anchored on a Conv2D of NHWC.
func newConvNHWC[T float](b *body.Program, op graph.Conv2D, args, results []Operand, env *Env) (Kernel, error) {
	x, w, out := b.Operands[0], b.Operands[1], b.Space
	k := &convolution[T]{x: x.Arg, w: w.Arg, frozen: args[w.Arg].Frozen}
	k.env = env
	c, err := k.compileFinish(b, true, results)
	if err != nil {
		return nil, err
	}
	cfg := conv.Config[T]{Op: op, X: x.Layout, W: w.Layout, RowStride: c.Stride[0], Band: env.Tuning.bandOf(op, x, w)}
	if k.frozen && out.At(0)*out.At(1)*out.At(2) > 0 {
		filters, err := conv.NewFilters[T](op.Groups, w.Layout, env.Pool)
		if err != nil {
			return nil, err
		}
		cfg.Filters, k.packed = filters, int64(filters.Bytes())
		k.pack = func(w Memory) error { return filters.Update(elems[T](w)) }
	}
	plan, err := conv.New(cfg, env.Pool, env.gemm)
	if err != nil {
		return nil, err
	}
	k.plan = plan
	k.cut(plan.Bands())
	return k, nil
}

// packFilters packs the filters, unless the plan reads them as they are, or they are packed and stay the same.
func (k *convolution[T]) packFilters(args []Memory) error {
	if k.pack != nil && !k.warm {
		if err := k.pack(args[k.w]); err != nil {
			return err
		}
		k.warm = k.frozen
	}
	return nil
}

// Run implements [Kernel].
func (k *convolution[T]) Run(args, results []Memory) error {
	if err := k.packFilters(args); err != nil {
		return err
	}
	y, finish, then := k.start(args, results)
	defer k.release()
	if err := k.plan.Run(elems[T](args[k.x]), elems[T](args[k.w]), y, finish, then); err != nil {
		return err
	}
	return k.complete()
}

func (k *convolution[T]) thaw() { k.warm = false }

func (k *convolution[T]) bytes() int64 { return k.epilogue.bytes() + k.plan.Bytes() + k.packed }
