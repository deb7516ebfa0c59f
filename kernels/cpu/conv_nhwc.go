package cpu

import (
	"fmt"

	"fusec/graph"
	"fusec/graph/body"
	"fusec/kernels/cpu/gemm"
)

// newConvNHWC compiles a Fusion anchored on a Conv2D of NHWC as one product per group, of patches
// [N·OH·OW, KH·KW·C/G] and filters [KH·KW·C/G, O/G]. The patches are packed for the product straight from the image.
func newConvNHWC[T float](b *body.Program, op graph.Conv2D, args, results []Operand, env *Env) (*product[T], error) {
	x, w := b.Operands[0], b.Operands[1]
	k := &product[T]{env: env, a: x.Arg, b: w.Arg, aOff: x.Layout.Offset, bOff: w.Layout.Offset, beside: true}
	out := b.Space
	o, perGroup, kh, kw := op.Layout.FilterDims(w.Layout.Shape)
	inner, positions := kh*kw*perGroup, out.At(0)*out.At(1)*out.At(2)
	filters, ok := w.Layout.Reshape(graph.ShapeOf(inner, o))
	if !ok {
		return nil, fmt.Errorf("%s: filters that are not rows of a matrix", b.Anchor.Where())
	}
	matrix := graph.ShapeOf(positions, o)
	if err := k.compileEpilogue(b, 3, results, func(l graph.Layout) bool {
		l, ok := l.Reshape(matrix)
		return ok && unitColumns(l)
	}); err != nil {
		return nil, err
	}
	c, _ := k.c.Reshape(matrix)
	cfg := gemm.Config[T]{M: positions, N: o / op.Groups, K: inner, Batch: op.Groups,
		B: gemm.Layout{RowStride: filters.Stride[0], ColStride: filters.Stride[1]},
		C: gemm.Layout{RowStride: max(c.Stride[0], o), ColStride: 1}}
	if op.Groups > 1 {
		for g := range op.Groups {
			cfg.B.Offsets = append(cfg.B.Offsets, g*cfg.N*filters.Stride[1])
			cfg.C.Offsets = append(cfg.C.Offsets, g*cfg.N)
		}
	}
	p := &patchRows[T]{k: k, op: op, x: x.Layout, channels: perGroup, kw: kw, oh: out.At(1), ow: out.At(2)}
	cfg.PackA = p
	p.scratch = make([][]T, env.Pool.Workers())
	for i := range p.scratch {
		p.scratch[i] = make([]T, gemm.MicroOf[T]().MR*patchSteps)
	}
	k.frozen = args[k.b].Frozen && positions > 1 && inner > 0 && o > 0
	return k, k.finish(cfg)
}

// patchSteps is the number of elements of patches that are gathered at once.
const patchSteps = 256

// A patchRows packer provides the patches of an image in NHWC as the first operand of a product.
type patchRows[T float] struct {
	k        *product[T]
	op       graph.Conv2D
	x        graph.Layout
	channels int // per group
	kw       int
	oh, ow   int
	scratch  [][]T // one per worker
}

// Pack fills panels with elements K0 to K0+K of the patches at positions N0 to N0+N; see gemm.Packer.
func (p *patchRows[T]) Pack(worker int, dst []T, at gemm.Block) {
	rows := p.scratch[worker]
	src := elems[T](p.k.args[p.k.a])
	for n := 0; n < at.N; n += at.Width {
		panel, count := dst[n*at.K:], min(at.Width, at.N-n)
		for k := 0; k < at.K; k += patchSteps {
			steps := min(patchSteps, at.K-k)
			for i := range count {
				p.row(rows[i*steps:][:steps], src, at.N0+n+i, at.Batch*p.channels, at.K0+k)
			}
			gemm.Pack(panel[k*at.Width:], at.Width, steps, count, rows, 1, steps)
		}
	}
}

// row gathers the elements of a patch from element k on, of the channels of a group from first on.
func (p *patchRows[T]) row(dst, src []T, position, first, k int) {
	l, op := &p.x, &p.op
	height, width := l.Shape.At(1), l.Shape.At(2)
	top := position/p.ow%p.oh*op.Stride.At(0) - op.Pad.At(0)
	left := position%p.ow*op.Stride.At(1) - op.Pad.At(1)
	image := l.Offset + position/(p.ow*p.oh)*l.Stride[0] + first*l.Stride[3]
	for len(dst) > 0 {
		tap, c := k/p.channels, k%p.channels
		n := min(p.channels-c, len(dst))
		part := dst[:n]
		dst, k = dst[n:], k+n
		y, x := top+tap/p.kw*op.Dilation.At(0), left+tap%p.kw*op.Dilation.At(1)
		if y < 0 || y >= height || x < 0 || x >= width {
			clear(part)
			continue
		}
		from := image + y*l.Stride[1] + x*l.Stride[2] + c*l.Stride[3]
		if l.Stride[3] == 1 {
			copy(part, src[from:])
			continue
		}
		for i := range part {
			part[i] = src[from+i*l.Stride[3]]
		}
	}
}
