package cpu

import (
	"fmt"
	"slices"
	"time"

	"fusec/graph"
	"fusec/graph/body"
	kernels "fusec/kernels/cpu"
)

// ImageTime implements layout.Coster. The numbers were measured on 2 cores with AVX-512, with
//
//	fusec bench --random-weights FILE
//
// on graphs of one operation in each layout: convolutions of ResNet, LeNet and MobileNet, pools, norms and transposes.
func (d *Device) ImageTime(op graph.Op, args, results []graph.Type) time.Duration {
	elems := func(t graph.Type) float64 { return float64(t.Shape.Elems()) }
	var ns float64
	switch op := op.(type) {
	case graph.Transpose:
		ns = 0.1 * elems(args[0])
		if op.Perm == graph.FilterPerm(graph.NCHW, graph.NHWC) || op.Perm == graph.FilterPerm(graph.NHWC, graph.NCHW) {
			ns = 0.3 * elems(args[0])
		}
		ns += 3000 // of a launch
	case graph.Conv2D:
		if _, time := d.tuning.Fastest(kernels.ConvolutionOf(op, args[0], args[1]), op.Layout); time > 0 {
			return time
		}
		ns = convTime(op.Layout, op.Groups, args[1].Shape, results[0])
		if pixelwise(op, args[1].Shape) || kernels.TakesPlanes(op, args[1].Shape) {
			ns = planesTime(op, args[1].Shape, results[0])
		}
	case graph.Conv2DTranspose:
		ns = convTime(op.Layout, op.Groups, args[1].Shape, args[0])
	case graph.Conv2DFilterGrad:
		ns = convTime(op.Layout, op.Groups, results[0].Shape, args[1])
	case graph.Pool:
		ns = poolTime(op.Layout, op.Kernel, elems(results[0]), 0.13, 0.03)
	case graph.PoolGrad:
		ns = poolTime(op.Layout, op.Kernel, elems(args[1]), 1.4, 0.1)
	case graph.BatchNorm:
		ns = 0.5 * elems(args[0])
	case graph.GroupNorm:
		ns = 0.4 * elems(args[0])
	case graph.Reduce:
		ns = 0.05 * elems(args[0])
		if a, last := op.Axes.Slice(), args[0].Shape.Rank()-1; slices.Contains(a, 0) && slices.Contains(a, last) {
			ns = 0.3 * elems(args[0]) // of all but the axes between
		}
	}
	return time.Duration(ns)
}

// pooledBytes is the size of the images between a convolution and its pool from which on one launch is faster than two: smaller
// ones stay in the cache. It was measured on 2 cores with AVX-512, with
//
//	fusec bench FILE --no-gorgonia --disable fuse-pools
//
// and without the last option, on the stem of ResNet for one image, of 3 MiB, and for eight, and on LeNet.
const pooledBytes = 8 << 20

// PoolsConvolution implements pools.Pooler.
func (d *Device) PoolsConvolution(f graph.Fusion, args []graph.Type, result graph.Type) error {
	if n := f.Anchored().Type.Bytes(); n < pooledBytes {
		return fmt.Errorf("the images between them have %d KiB, and stay in the cache", n>>10)
	}
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

// TakesMoments implements fuse.MomentsTaker.
func (d *Device) TakesMoments() bool { return true }

// SumsConvolutions implements fuse.ConvSummer.
func (d *Device) SumsConvolutions() bool { return true }

// PacksFilters implements layout.Packer. Depthwise filters, and those of transposed convolutions, are read as they lie.
func (d *Device) PacksFilters(op graph.ImageOp, t graph.Type) bool {
	_, channels, _, _ := graph.NHWC.FilterDims(t.Shape)
	_, conv := op.(graph.Conv2D)
	return conv && channels > 1
}

// ReadsPlanes implements layout.PlanesReader. Copies of lines with their border interleave the channels of pictures on the way.
func (d *Device) ReadsPlanes(op graph.ImageOp, args []graph.Type) bool {
	c, ok := op.(graph.Conv2D)
	if !ok || c.Groups != 1 || args[0].Shape.At(3) > fewChannels || !args[0].DType.IsFloat() {
		return false
	}
	results, err := graph.InfoOf(op).Infer(op, args)
	return err == nil && d.WinogradTile(c, args, results[0], true, false) == 0
}

// convTime is the nanoseconds of a convolution to y. An NCHW kernel multiplies blocks of filters, an NHWC kernel blocks of
// 16 filters, if these have more than one channel.
func convTime(l graph.ImageLayout, groups int, filters graph.Shape, y graph.Type) float64 {
	o, channels, kh, kw := l.FilterDims(filters)
	flops := 2 * float64(y.Shape.Elems()) * float64(channels*kh*kw)
	perGroup := float64(o / max(groups, 1))
	switch {
	case l == graph.NCHW:
		return flops * 0.009 * (1 + 20/max(perGroup, 1))
	case groups > 1 && channels == 1:
		return flops * 0.009
	}
	if groups == 1 && o >= manyFilters {
		channels *= kw // side by side
	}
	return flops * 0.0023 * (1 + 2.5/float64(max(channels, 1))) * max(1, 16/max(perGroup, 1))
}

// planesTime is the nanoseconds of a convolution to y of NCHW whose images are read as they lie: blocks of 8 filters are
// multiplied by vectors of 16 pixels, which are of one line where a window has several. Where a window has several and an image
// many channels, it is that of other kernels: such convolutions stay in NHWC, where Winograd's algorithm may be faster.
func planesTime(op graph.Conv2D, filters graph.Shape, y graph.Type) float64 {
	o, channels, kh, kw := graph.NCHW.FilterDims(filters)
	flops := 2 * float64(y.Shape.Elems()) * float64(channels*kh*kw)
	waste := func(n, block int) float64 { return float64((n+block-1)/block*block) / float64(max(n, 1)) }
	switch {
	case op.Groups > 1 && channels == 1:
		return flops * 0.01
	case pixelwise(op, filters):
		return flops * 0.0026
	case o >= manyFilters && channels <= fewChannels:
		return flops * 0.0029 * waste(o, 8) * waste(y.Shape.At(3), 16)
	}
	return convTime(op.Layout, op.Groups, filters, y)
}

// pixelwise reports whether a convolution of NCHW is a product of many filters with images as they lie.
func pixelwise(op graph.Conv2D, filters graph.Shape) bool {
	o, _, kh, kw := op.Layout.FilterDims(filters)
	return op.Layout == graph.NCHW && kh*kw == 1 && op.Stride == graph.IntsOf(1, 1) && op.Pad == graph.IntsOf(0, 0, 0, 0) &&
		o/max(op.Groups, 1) >= manyFilters
}

// manyFilters is how many filters a convolution has at least that is close to a product of matrices.
const manyFilters = 16

// fewChannels is how many channels pictures have at most.
const fewChannels = 4

// poolTime is the nanoseconds of a pool with so many windows, given those for an element of a window in each layout.
func poolTime(l graph.ImageLayout, kernel graph.Ints, windows, nchw, nhwc float64) float64 {
	taps := windows * float64(kernel.At(0)*kernel.At(1))
	if l == graph.NHWC {
		return taps * nhwc
	}
	return taps * nchw
}

// fewFilters is how many times as many elements an image has as the filters that are scaled in its place: scaling them takes a
// launch as well, and they are packed in each run.
const fewFilters = 4

// ScalesFilters implements weights.Scaler.
func (d *Device) ScalesFilters(_ graph.Conv2D, x, w graph.Type) bool {
	return x.DType.IsFloat() && w.Shape.Elems()*fewFilters <= x.Shape.Elems()
}
