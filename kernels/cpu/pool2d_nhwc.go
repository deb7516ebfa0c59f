package cpu

import (
	"fusec/graph"
	"fusec/kernels/cpu/depthwise"
)

// A poolNHWC takes the maximum or mean of windows of images in NHWC, or passes the gradient of each window to the elements that
// made it: all, or the first that is largest. See package depthwise.
type poolNHWC[T float] struct {
	env     *Env
	x, y    Operand                   // of a gradient x is that of the windows
	images  Operand                   // of the gradient of a maximum
	maximum *depthwise.Maximum[T]     // or nil
	grad    *depthwise.MaximumGrad[T] // or nil
	mean    *depthwise.Correlation[T] // or nil
	sums    depthwise.Finish[T]       // of mean
}

// windowsOf is how the windows of a pool slide over images in NHWC.
func windowsOf(op graph.Pool, x, windows graph.Shape) depthwise.Geometry {
	return depthwise.NewGeometry(x, windows, op.Kernel, op.Stride, graph.IntsOf(1, 1), op.Pad)
}

// imageOf is where the images of a layout in NHWC lie.
func imageOf(l graph.Layout) depthwise.Image {
	return depthwise.Image{Image: l.Stride[0], Row: l.Stride[1], Pixel: l.Stride[2]}
}

func newPoolNHWC[T float](op graph.Pool, args, results []Operand, env *Env) (Kernel, error) {
	k := &poolNHWC[T]{env: env, x: args[0], y: results[0]}
	g := windowsOf(op, k.x.Layout.Shape, k.y.Layout.Shape)
	x, y, workers := imageOf(k.x.Layout), imageOf(k.y.Layout), env.Pool.Workers()
	if pools[op.Fn] == oneElement {
		k.maximum = depthwise.NewMaximum[T](g, x, y, workers)
		return k, nil
	}
	return k.averages(depthwise.NewMean[T](g, op.CountPad, x, y, workers)), nil
}

func newPoolGradNHWC[T float](op graph.PoolGrad, args, results []Operand, env *Env) (Kernel, error) {
	k := &poolNHWC[T]{env: env, images: args[0], x: args[1], y: results[0]}
	g := windowsOf(graph.Pool(op), k.images.Layout.Shape, k.x.Layout.Shape)
	dy, workers := imageOf(k.x.Layout), env.Pool.Workers()
	if pools[op.Fn] == oneElement {
		k.grad = depthwise.NewMaximumGrad[T](g, imageOf(k.images.Layout), dy, workers)
		return k, nil
	}
	return k.averages(depthwise.NewMeanGrad[T](g, op.CountPad, dy, imageOf(k.y.Layout), workers)), nil
}

// averages makes the kernel that of a mean, or of its gradient.
func (k *poolNHWC[T]) averages(mean *depthwise.Correlation[T]) Kernel {
	k.mean, k.sums = mean, depthwise.Unfinished[T]()
	k.env.reserve(mean.Scratch() * dtypeOf[T]().Size())
	return k
}

// Run implements [Kernel].
func (k *poolNHWC[T]) Run(args, results []Memory) error {
	x, y := numbers[T](args[len(args)-1], k.x), numbers[T](results[0], k.y)
	switch {
	case k.maximum != nil:
		k.maximum.Bind(x, y)
		k.env.Pool.Run(k.maximum.Items(), k.maximum)
		k.maximum.Bind(nil, nil)
	case k.grad != nil:
		k.grad.Bind(numbers[T](args[0], k.images), x, y)
		k.env.Pool.Run(k.grad.Items(), k.grad)
		k.grad.Bind(nil, nil, nil)
	default:
		k.mean.Bind(x, nil, y, k.sums)
		k.env.Pool.Run(k.mean.Items(), k)
		k.mean.Bind(nil, nil, nil, k.sums)
	}
	return nil
}

// Do runs one item of a mean; see pool.Task.
func (k *poolNHWC[T]) Do(worker, item int) {
	k.mean.Do(worker, item, scratchOf[T](k.env, worker, 0, k.mean.Scratch()), &k.sums)
}

func (k *poolNHWC[T]) bytes() int64 {
	switch {
	case k.maximum != nil:
		return k.maximum.Bytes()
	case k.grad != nil:
		return k.grad.Bytes()
	}
	return k.mean.Bytes()
}
