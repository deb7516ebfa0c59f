package cpu

import (
	"fusec/graph"
	"fusec/kernels/cpu/depthwise"
)

// A poolNHWC takes the maximum or mean of windows of images in NHWC, see package depthwise.
type poolNHWC[T float] struct {
	env     *Env
	x, y    Operand
	maximum *depthwise.Maximum[T]     // or nil
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
	k := &poolNHWC[T]{env: env, x: args[0], y: results[0], sums: depthwise.Unfinished[T]()}
	g := windowsOf(op, k.x.Layout.Shape, k.y.Layout.Shape)
	x, y, workers := imageOf(k.x.Layout), imageOf(k.y.Layout), env.Pool.Workers()
	if pools[op.Fn] == oneElement {
		k.maximum = depthwise.NewMaximum[T](g, x, y, workers)
		return k, nil
	}
	k.mean = depthwise.NewMean[T](g, op.CountPad, x, y, workers)
	env.reserve(k.mean.Scratch() * dtypeOf[T]().Size())
	return k, nil
}

// Run implements [Kernel].
func (k *poolNHWC[T]) Run(args, results []Memory) error {
	x, y := numbers[T](args[0], k.x), numbers[T](results[0], k.y)
	if k.maximum != nil {
		k.maximum.Bind(x, y)
		k.env.Pool.Run(k.maximum.Items(), k.maximum)
		k.maximum.Bind(nil, nil)
		return nil
	}
	k.mean.Bind(x, nil, y, k.sums)
	k.env.Pool.Run(k.mean.Items(), k)
	k.mean.Bind(nil, nil, nil, k.sums)
	return nil
}

// Do runs one item of a mean; see pool.Task.
func (k *poolNHWC[T]) Do(worker, item int) {
	k.mean.Do(worker, item, scratchOf[T](k.env, worker, 0, k.mean.Scratch()), &k.sums)
}

func (k *poolNHWC[T]) bytes() int64 {
	if k.maximum != nil {
		return k.maximum.Bytes()
	}
	return k.mean.Bytes()
}

// A poolGradNHWC passes the gradient of each window of images in NHWC to the elements that made it: all, or the first
// that is largest.
type poolGradNHWC[T float] struct {
	env       *Env
	x, dy, dx Operand
	maximum   *depthwise.MaximumGrad[T] // or nil
	mean      *depthwise.Correlation[T] // or nil
	sums      depthwise.Finish[T]       // of mean
}

func newPoolGradNHWC[T float](op graph.PoolGrad, args, results []Operand, env *Env) (Kernel, error) {
	k := &poolGradNHWC[T]{env: env, x: args[0], dy: args[1], dx: results[0], sums: depthwise.Unfinished[T]()}
	g := windowsOf(graph.Pool(op), k.x.Layout.Shape, k.dy.Layout.Shape)
	x, dy, workers := imageOf(k.x.Layout), imageOf(k.dy.Layout), env.Pool.Workers()
	if pools[op.Fn] == oneElement {
		k.maximum = depthwise.NewMaximumGrad[T](g, x, dy, workers)
		return k, nil
	}
	k.mean = depthwise.NewMeanGrad[T](g, op.CountPad, dy, imageOf(k.dx.Layout), workers)
	env.reserve(k.mean.Scratch() * dtypeOf[T]().Size())
	return k, nil
}

// Run implements [Kernel].
func (k *poolGradNHWC[T]) Run(args, results []Memory) error {
	dy, dx := numbers[T](args[1], k.dy), numbers[T](results[0], k.dx)
	if k.maximum != nil {
		k.maximum.Bind(numbers[T](args[0], k.x), dy, dx)
		k.env.Pool.Run(k.maximum.Items(), k.maximum)
		k.maximum.Bind(nil, nil, nil)
		return nil
	}
	k.mean.Bind(dy, nil, dx, k.sums)
	k.env.Pool.Run(k.mean.Items(), k)
	k.mean.Bind(nil, nil, nil, k.sums)
	return nil
}

// Do runs one item of the gradient of a mean; see pool.Task.
func (k *poolGradNHWC[T]) Do(worker, item int) {
	k.mean.Do(worker, item, scratchOf[T](k.env, worker, 0, k.mean.Scratch()), &k.sums)
}

func (k *poolGradNHWC[T]) bytes() int64 {
	if k.maximum != nil {
		return k.maximum.Bytes()
	}
	return k.mean.Bytes()
}
