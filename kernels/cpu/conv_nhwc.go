package cpu

import (
	"fusec/graph"
	"fusec/graph/body"
	"fusec/kernels/cpu/conv"
)

// A convolution kernel convolves images of NHWC, see package conv.
type convolution[T float] struct {
	matrixEpilogue[T]
	plan *conv.Plan[T]
	x, w int // arguments

	filters *conv.Filters[T] // of frozen filters
	warm    bool             // filters are packed
}

// newConvNHWC compiles a Fusion anchored on a Conv2D of NHWC.
func newConvNHWC[T float](b *body.Program, op graph.Conv2D, args, results []Operand, env *Env) (Kernel, error) {
	x, w, out := b.Operands[0], b.Operands[1], b.Space
	k := &convolution[T]{x: x.Arg, w: w.Arg}
	k.env = env
	c, err := k.compileFinish(b, true, results)
	if err != nil {
		return nil, err
	}
	cfg := conv.Config[T]{Op: op, X: x.Layout, W: w.Layout, RowStride: c.Stride[0], Band: env.Tuning.bandOf(op, x, w)}
	if args[k.w].Frozen && out.At(0)*out.At(1)*out.At(2) > 0 {
		if k.filters, err = conv.NewFilters[T](op.Groups, w.Layout, env.Pool); err != nil {
			return nil, err
		}
		cfg.Filters = k.filters
	}
	if k.plan, err = conv.New(cfg, env.Pool, env.gemm); err != nil {
		return nil, err
	}
	k.cut(k.plan.Bands())
	return k, nil
}

func (k *convolution[T]) Run(args, results []Memory) error {
	w := elems[T](args[k.w])
	if k.filters != nil && !k.warm {
		if err := k.filters.Update(w); err != nil {
			return err
		}
		k.warm = true
	}
	y, finish, then := k.start(args, results)
	defer k.release()
	if err := k.plan.Run(elems[T](args[k.x]), w, y, finish, then); err != nil {
		return err
	}
	return k.complete()
}

func (k *convolution[T]) thaw() { k.warm = false }

func (k *convolution[T]) bytes() int64 {
	n := k.epilogue.bytes() + k.plan.Bytes()
	if k.filters != nil {
		n += int64(k.filters.Bytes())
	}
	return n
}
