package cuda

import (
	"fmt"

	"fusec/graph"
)

// compileConv makes the kernel of a fusion anchored on a convolution: elementwise work in which each thread sums the
// products of its elements.
func compileConv(f graph.Fusion, args, results []Operand, cfg Config) (*Kernel, error) {
	n := f.Anchored()
	if n == nil {
		return nil, fmt.Errorf("a conv fusion without a convolution")
	}
	op := n.Op.(graph.Conv2D)
	u := newUnit(args, results)
	places := make([]value, 2)
	b := newBody(u, f.Body, all(len(args)), n.Type.Shape, coordinates(n.Type.Shape.Rank()), -1, 1)
	for i, a := range n.Args {
		if graph.IsComputed(a) {
			return nil, fmt.Errorf("%s is made in the launch that multiplies it", a.Where())
		}
		v, err := b.value(a)
		if err != nil {
			return nil, err
		}
		if v.kind != source {
			return nil, fmt.Errorf("%s is no operand of the launch that multiplies it", a.Where())
		}
		places[i] = v
	}
	x, w, y := places[0].layout, places[1].layout, n.Type.Shape
	u.window(graph.IntsOf(w.Shape.At(2), w.Shape.At(3)), op.Stride, op.Dilation, op.Pad, x.Shape, y.At(2), y.At(3))
	strides := func(l graph.Layout) string {
		return fmt.Sprintf("Strides<%d, %d, %d, %d>", l.Stride[0], l.Stride[1], l.Stride[2], l.Stride[3])
	}
	e, err := newElementwise(u, f.Body, cfg, false, func(b *body) {
		expr := fmt.Sprintf("conv<Problem, %s, %s, %d, %d, %s, %s>", b.width(), lane(n.Type.DType), y.At(1), op.Groups,
			strides(x), strides(w))
		expr += fmt.Sprintf("(%s + %d, %s + %d, %s)", u.arg(places[0].arg), x.Offset, u.arg(places[1].arg), w.Offset,
			b.offset(graph.Contiguous(y)))
		b.values[n] = b.bindByElement(lane(n.Type.DType), expr, n)
	})
	if err != nil {
		return nil, err
	}
	return e.kernel("windows")
}
