package cuda

import (
	"fmt"

	"fusec/graph"
	"fusec/graph/body"
)

// compileConv makes the kernel of a fusion anchored on a convolution: elementwise work in which each thread sums the
// products of its elements.
func compileConv(f graph.Fusion, args, results []Operand, cfg Config) (*Kernel, error) {
	p, err := body.Lower(f, args, results)
	if err != nil {
		return nil, err
	}
	n, u := p.Anchor, newUnit(args, results)
	op, ok := n.Op.(graph.Conv2D)
	switch {
	case !ok:
		_, err := answers.Of(n.Op)
		return nil, err
	case op.Layout != graph.NCHW:
		return nil, noLayout(op)
	}
	from, filters := p.Operands[0], p.Operands[1]
	x, w, y := from.Layout, filters.Layout, p.Space
	u.window(graph.IntsOf(w.Shape.At(2), w.Shape.At(3)), op.Stride, op.Dilation, op.Pad, x.Shape, y.At(2), y.At(3))
	strides := func(l graph.Layout) string {
		return fmt.Sprintf("Strides<%d, %d, %d, %d>", l.Stride[0], l.Stride[1], l.Stride[2], l.Stride[3])
	}
	e, err := newElementwise(u, p, cfg, false, func(b *printer) {
		expr := fmt.Sprintf("conv<Problem, %s, %s, %d, %d, %s, %s>", b.width(), lane(n.Type.DType), y.At(1), op.Groups,
			strides(x), strides(w))
		expr += fmt.Sprintf("(%s + %d, %s + %d, %s)", u.arg(from.Arg), x.Offset, u.arg(filters.Arg), w.Offset,
			b.offset(graph.Contiguous(y)))
		b.define(p.IndexOf(0), b.bindByElement(lane(n.Type.DType), expr, n))
	})
	if err != nil {
		return nil, err
	}
	return e.kernel("windows")
}
