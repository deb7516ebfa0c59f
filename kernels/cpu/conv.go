package cpu

import (
	"fmt"

	"fusec/graph"
	"fusec/graph/body"
	"fusec/kernels/cpu/gemm"
)

// newConv compiles a Fusion anchored on a convolution.
func newConv[T float](b *body.Program, args, results []Operand, env *Env) (Kernel, error) {
	if err := Refuses(b.Anchor.Op); err != nil {
		return nil, err
	}
	if b.Stores[0].Pool != nil {
		return newConvPool[T](b, args, results, env)
	}
	switch op := b.Anchor.Op.(type) {
	case graph.Conv2DTranspose:
		return newConvTransposed[T](b, op, args, results, env)
	case graph.SeparableConv2D:
		return newSeparable[T](b, op, args, results, env)
	case graph.Conv2D:
		x, w := b.Operands[0].Layout, b.Operands[1].Layout
		switch {
		case b.Anchor.Args[0].Type.DType == graph.U8:
			return newConvIntegers(b, op, args, results, env)
		case op.Layout != graph.NHWC:
			if k, err := newConvPlanes[T](b, op, args, results, env); k != nil || err != nil {
				return k, err
			}
			return newConvNCHW[T](b, op, results, env)
		case isChannelwise(op.Groups, x.Shape.At(3), x, w):
			return newChannelwise[T](b, op, x.Shape, b.Space, false, results, env)
		case op.Winograd != 0:
			return newConvWinograd(b, op, w, false, args, results, env)
		}
		return newConvNHWC[T](b, op, args, results, env)
	}
	return nil, fmt.Errorf("the CPU has no kernel for %s", b.Anchor.Where())
}

// newConvNCHW compiles a Fusion anchored on a Conv2D of NCHW as one product per image and group: filters [O/G, C/G·KH·KW] times
// patches [C/G·KH·KW, OH·OW]. The patches are never stored: they are packed for the product straight from the image
// (K. Chellapilla et al., "High Performance Convolutional Neural Networks for Document Processing", 2006, made
// implicit as in cuDNN, arXiv 1410.0759). Those of one pixel, side by side, are the image itself.
func newConvNCHW[T float](b *body.Program, op graph.Conv2D, results []Operand, env *Env) (*product[T], error) {
	x, w := b.Operands[0], b.Operands[1]
	k := &product[T]{a: w.Arg, b: x.Arg, aOff: w.Layout.Offset, bOff: x.Layout.Offset}
	k.env = env
	in, filt, out := x.Layout.Shape, w.Layout.Shape, b.Space
	images, channels, groups := in.At(0), out.At(1), op.Groups
	per := channels / groups
	inner := filt.At(1) * filt.At(2) * filt.At(3)
	rows, ok := w.Layout.Reshape(graph.ShapeOf(channels, inner))
	if !ok {
		return nil, fmt.Errorf("%s: filters that are not side by side", b.Anchor.Where())
	}
	planes, side := planesOf(out)
	if err := k.compile(b, 2, results, side); err != nil {
		return nil, err
	}
	plane, _ := k.c.Reshape(planes)
	cfg := gemm.Config[T]{M: per, N: out.At(2) * out.At(3), K: inner, Batch: images * groups,
		A: gemm.Layout{RowStride: rows.Stride[0], ColStride: rows.Stride[1]},
		C: gemm.Layout{RowStride: plane.Stride[1], ColStride: 1}}
	k.m = per
	var err error
	if image, ok := pixelwise(op, x.Layout, filt); ok {
		cfg.B = gemm.Layout{RowStride: image.Stride[1], ColStride: 1}
		if cfg.B.Offsets, err = gemm.Offsets([]int{images, groups}, []int{image.Stride[0], inner * image.Stride[1]}); err != nil {
			return nil, err
		}
	} else {
		p := &patches[T]{k: k, op: op, x: x.Layout, filt: filt, out: out, rows: make([][]T, env.Pool.Workers())}
		for i := range p.rows {
			p.rows[i] = make([]T, cfg.N)
		}
		cfg.PackB = p
	}
	if cfg.A.Offsets, err = gemm.Offsets([]int{images, groups}, []int{0, per * rows.Stride[0]}); err != nil {
		return nil, err
	}
	if cfg.C.Offsets, err = gemm.Offsets([]int{images, groups}, []int{plane.Stride[0], per * plane.Stride[1]}); err != nil {
		return nil, err
	}
	return k, k.makePlan(cfg)
}

// pixelwise returns the layout of images x [N,C,H,W] as [N,C,H·W] if each pixel of a convolution reads one pixel of the
// image, at its own place, and those of a channel are side by side.
func pixelwise(op graph.Conv2D, x graph.Layout, filters graph.Shape) (graph.Layout, bool) {
	if filters.At(2)*filters.At(3) != 1 || op.Stride.At(0)*op.Stride.At(1) != 1 || op.Pad != graph.IntsOf(0, 0, 0, 0) {
		return graph.Layout{}, false
	}
	s := x.Shape
	l, ok := x.Reshape(graph.ShapeOf(s.At(0), s.At(1), s.At(2)*s.At(3)))
	return l, ok && unitColumns(l)
}

// A patches packer provides the patches of an image as the second operand of a product.
type patches[T float] struct {
	k         *product[T]
	op        graph.Conv2D
	x         graph.Layout
	filt, out graph.Shape
	rows      [][]T // one per worker
}

// Pack fills panels with patch elements K0 to K0+K at output positions N0 to N0+N; see gemm.Packer.
func (p *patches[T]) Pack(worker int, dst []T, at gemm.Block) {
	groups, perGroup := p.op.Groups, p.filt.At(1)
	image, group := at.Batch/groups, at.Batch%groups
	src := elems[T](p.k.args[p.k.b])
	kh, kw := p.filt.At(2), p.filt.At(3)
	row := p.rows[worker][:at.N]
	for k := range at.K {
		i := at.K0 + k
		channel := group*perGroup + i/(kh*kw)
		off := p.x.Offset + image*p.x.Stride[0] + channel*p.x.Stride[1]
		p.row(row, src, off, i/kw%kh, i%kw, at.N0)
		gemm.PutRow(dst, at.Width, at.K, k, row)
	}
}

// row reads one element of the patches, filter position (y, x) of the channel at off, for the output positions from n0 on.
func (p *patches[T]) row(row, src []T, off, y, x, n0 int) {
	h, w, ow := p.x.Shape.At(2), p.x.Shape.At(3), p.out.At(3)
	sh, sw := p.op.Stride.At(0), p.op.Stride.At(1)
	top := y*p.op.Dilation.At(0) - p.op.Pad.At(0)
	left := x*p.op.Dilation.At(1) - p.op.Pad.At(1)
	rowStride, colStride := p.x.Stride[2], p.x.Stride[3]
	if ow == 1 { // one line of the image for each position
		lo, hi := overlap(n0*sh+top, len(row), sh, h)
		if left < 0 || left >= w {
			hi = lo
		}
		clear(row[:lo])
		at := off + (n0*sh+top)*rowStride + left*colStride
		for j := lo; j < hi; j++ {
			row[j] = src[at+j*sh*rowStride]
		}
		clear(row[hi:])
		return
	}
	for len(row) > 0 {
		oy, ox := n0/ow, n0%ow
		n := min(ow-ox, len(row))
		part := row[:n]
		row, n0 = row[n:], n0+n
		iy := oy*sh + top
		if iy < 0 || iy >= h {
			clear(part)
			continue
		}
		line := off + iy*rowStride
		ix := ox*sw + left
		if sw == 1 && colStride == 1 {
			before := min(max(-ix, 0), n)
			after := min(max(w-ix, before), n)
			clear(part[:before])
			if before < after {
				copy(part[before:after], src[line+ix+before:])
			}
			clear(part[after:])
			continue
		}
		for j := range part {
			part[j] = 0
			if ix >= 0 && ix < w {
				part[j] = src[line+ix*colStride]
			}
			ix += sw
		}
	}
}
