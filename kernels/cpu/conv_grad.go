package cpu

import (
	"fmt"

	"fusec/graph"
	"fusec/graph/body"
	"fusec/kernels/cpu/conv"
	"fusec/kernels/cpu/depthwise"
)

// newConvTransposed compiles a Fusion anchored on a Conv2DTranspose of NHWC.
func newConvTransposed[T float](b *body.Program, op graph.Conv2DTranspose, args, results []Operand, env *Env) (Kernel, error) {
	x, w, out := b.Operands[0], b.Operands[1], b.Space
	if op.Winograd != 0 {
		forward, ok := op.Forward(w.Layout.Shape.At(0), w.Layout.Shape.At(1))
		if !ok {
			return nil, fmt.Errorf("%s by Winograd's algorithm is no convolution", b.Anchor.Where())
		}
		return newConvWinograd(b, forward, w.Layout.Transpose(graph.IntsOf(0, 1, 3, 2)), true, args, results, env)
	}
	if isChannelwise(op.Groups, out.At(3), x.Layout, w.Layout) {
		return newChannelwise[T](b, op.Conv(), out, x.Layout.Shape, true, results, env)
	}
	k := &convolution[T]{x: x.Arg, w: w.Arg, frozen: args[w.Arg].Frozen}
	k.env = env
	c, err := k.compileFinish(b, false, results)
	if err != nil {
		return nil, err
	}
	plan, err := conv.NewTransposed[T](op.Conv(), x.Layout, w.Layout, op.H, op.W, max(c.Stride[0], out.At(3)), k.frozen, env.Pool,
		env.gemm)
	if err != nil {
		return nil, err
	}
	if k.plan = plan; k.frozen {
		k.pack = func(w Memory) error { return plan.Update(elems[T](w)) }
	}
	k.cut(plan.Bands())
	return k, nil
}

// A filterGrad kernel computes gradients for filters of convolutions of NHWC, see [conv.FilterGrad].
type filterGrad[T float] struct {
	plan      *conv.FilterGrad[T]
	x, dy, dw Operand
}

var _ = answers.Add(floats(newFilterGrad[float32], newFilterGrad[float64]))

func newFilterGrad[T float](op graph.Conv2DFilterGrad, args, results []Operand, env *Env) (Kernel, error) {
	if err := Refuses(op); err != nil {
		return nil, err
	}
	x, dy, dw := args[0], args[1], results[0]
	if op.Groups > 1 && op.Groups == x.Layout.Shape.At(3) {
		return newChannelFilterGrad[T](op, x, dy, dw, env), nil
	}
	plan, err := conv.NewFilterGrad[T](op.Conv(), x.Layout, dy.Layout, op.KH, op.KW, env.Pool, env.gemm)
	if err != nil {
		return nil, err
	}
	return &filterGrad[T]{plan, x, dy, dw}, nil
}

func (k *filterGrad[T]) Run(args, results []Memory) error {
	return k.plan.Run(elems[T](args[0]), elems[T](args[1]), numbers[T](results[0], k.dw))
}

func (k *filterGrad[T]) bytes() int64 { return k.plan.Bytes() }

// A channelFilterGrad kernel computes gradients for filters of one channel, see [depthwise.FilterGrad].
type channelFilterGrad[T float] struct {
	env       *Env
	plan      *depthwise.FilterGrad[T]
	x, dy, dw Operand
	summing   bool
}

func newChannelFilterGrad[T float](op graph.Conv2DFilterGrad, x, dy, dw Operand, env *Env) Kernel {
	g := depthwise.NewGeometry(x.Layout.Shape, dy.Layout.Shape, graph.IntsOf(op.KH, op.KW), op.Stride, op.Dilation, op.Pad)
	each := dy.Layout.Shape.At(3) / op.Groups
	k := &channelFilterGrad[T]{env: env, x: x, dy: dy, dw: dw,
		plan: depthwise.NewFilterGrad[T](g, each, imageOf(x.Layout), imageOf(dy.Layout), env.Pool.Workers())}
	env.reserve(k.plan.Scratch() * x.DType.Size())
	env.reserveShared(k.plan.Shared() * x.DType.Size())
	return k
}

func (k *channelFilterGrad[T]) Run(args, results []Memory) error {
	k.plan.Bind(numbers[T](args[0], k.x), numbers[T](args[1], k.dy), numbers[T](results[0], k.dw), sharedOf[T](k.env, k.plan.Shared()))
	for _, k.summing = range []bool{false, true} {
		items := k.plan.Items()
		if k.summing {
			items = k.plan.Sums()
		}
		k.env.Pool.Run(items, k)
	}
	k.plan.Bind(nil, nil, nil, nil)
	return nil
}

// Do runs one item; see pool.Task.
func (k *channelFilterGrad[T]) Do(worker, item int) {
	if k.summing {
		k.plan.Sum(item)
		return
	}
	k.plan.Do(worker, item, scratchOf[T](k.env, worker, 0, k.plan.Scratch()))
}

func (k *channelFilterGrad[T]) bytes() int64 { return k.plan.Bytes() }
