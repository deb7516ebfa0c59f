package panels

import (
	"errors"
	"fmt"

	"fusec/graph"
	"fusec/graph/trace"
)

// A Convolver is a target that convolves images of U8 with filters of I8.
type Convolver interface {
	// ConvolvesIntegers reports, as an error that carries the reason, that it does not.
	ConvolvesIntegers(op graph.Conv2D, filters graph.Type) error
}

// quad is what the number of channels of such a convolution is filled up to a multiple of.
const quad = 4

// convolutions rewrites convolutions of numbers that are integers of 8 bits, less a zero point, with frozen filters that are stored
// in 8 bits, as convolutions of the integers:
//
//	q ─► dequantize ─► conv2d ─►            q ─► pad ─► conv2d ─► − ─► × ─►
//	w ─► dequantize ─────┘         to       w ────────────┘       │    │
//	                                        zero·Σw ──────────────┘    │
//	                                        scale·scale ───────────────┘
//
// The border of the images is the zero point. The sum over the filters and the product of the scales are made once.
func (p *packer) convolutions(with map[*graph.Node]*graph.Node) {
	target, ok := p.c.Target.(Convolver)
	if !ok && p.c.Target != nil {
		return
	}
	for _, n := range append([]*graph.Node(nil), p.c.Graph.Nodes...) {
		op, ok := n.Op.(graph.Conv2D)
		if !ok || op.Layout != graph.NCHW || n.Type.DType != graph.F32 || n.Type.Shape.Elems() == 0 {
			continue
		}
		w, ok := n.Args[1].Op.(graph.Dequantize)
		if !ok || !p.frozen.Get(n.Args[1]) || n.Args[1].Args[0].Type.DType != graph.I8 {
			continue
		}
		p.b.From(n, n.Args[1])
		k := convolution{packer: p, n: n, op: op, filters: n.Args[1], by: w}
		y, err := k.integers(target)
		if err != nil {
			p.c.Miss(pattern, n, "its filters are dequantized to f32 once: "+err.Error(), []*graph.Node{k.filters, n})
			continue
		}
		y.Name = n.Name
		with[n] = y
		p.c.Match(pattern, trace.Reassociated, "conv", y, n, k.filters)
	}
}

// A convolution is one that may be one of integers.
type convolution struct {
	*packer
	n       *graph.Node
	op      graph.Conv2D
	filters *graph.Node // dequantized
	by      graph.Dequantize
}

// integers is the convolution of integers that takes its place.
func (k *convolution) integers(target Convolver) (*graph.Node, error) {
	b, w, scale := k.b, k.filters.Args[0], k.filters.Args[1]
	s := w.Type.Shape
	switch {
	case len(k.filters.Args) > 2:
		return nil, errors.New("they have a zero point")
	case scale.Type.Shape.Rank() > 0 && (k.by.Axis != 0 || k.by.Block != 0):
		return nil, errors.New("their scales are not one for each filter")
	case k.op.Groups > 1 && s.At(1)%quad != 0:
		return nil, fmt.Errorf("there are groups of %d channels", s.At(1))
	}
	more := (quad - s.At(1)%quad) % quad // channels
	if target != nil {
		op := k.op.InLayout(graph.NHWC).(graph.Conv2D)
		t := w.Type.Reshaped(graph.ShapeOf(s.At(2), s.At(3), s.At(1)+more, s.At(0)))
		if err := target.ConvolvesIntegers(op, t); err != nil {
			return nil, err
		}
	}
	images, err := k.bytes(k.n.Args[0])
	if err != nil {
		return nil, fmt.Errorf("of its images: %w", err)
	}
	x, zero := images.q, 0.0
	if images.zero != nil {
		v, ok := images.zero.ConstScalar()
		if zero = v; !ok || zero < 0 || zero > 255 || zero != float64(int(zero)) {
			return nil, errors.New("of its images: the zero point is not known")
		}
	}
	op, pad := k.op, k.op.Pad
	if zero == 0 {
		pad = graph.IntsOf(0, 0, 0, 0)
	} else {
		op.Pad = graph.IntsOf(0, 0, 0, 0)
	}
	if more > 0 || pad != graph.IntsOf(0, 0, 0, 0) {
		lo, hi := graph.IntsOf(0, 0, pad.At(0), pad.At(1)), graph.IntsOf(0, more, pad.At(2), pad.At(3))
		x = b.Add(graph.Pad{Lo: lo, Hi: hi, Value: zero}, x)
	}
	wide := w
	if more > 0 {
		wide = b.Add(graph.Pad{Lo: graph.IntsOf(0, 0, 0, 0), Hi: graph.IntsOf(0, more, 0, 0)}, w)
	}
	y := b.Add(op, x, wide)
	each := func(v *graph.Node) *graph.Node { // of a number for each filter
		if v.Type.Shape.Rank() > 0 {
			v = b.Reshape(v, s.At(0), 1, 1)
		}
		return b.Broadcast(v, y.Type.Shape)
	}
	if zero != 0 {
		sums := b.Reduce(graph.Sum, b.CastTo(graph.F32, w), false, 1, 2, 3)
		y = b.Binary(graph.Sub, y, each(b.BinaryScalar(graph.Mul, sums, zero)))
	}
	if factor := scaled(b, scale, images.scale); factor != nil {
		y = b.Binary(graph.Mul, y, each(factor))
	}
	return y, b.Err()
}
