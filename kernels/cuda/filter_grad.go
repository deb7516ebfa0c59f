package cuda

import (
	"fmt"

	"fusec/graph"
	"fusec/graph/body"
)

var _ = answers.Add(own(compileFilterGrad))

// compileFilterGrad makes the gradient of a convolution in NHWC for its filters: the product of the transposed patches of
// the images and the gradient of the result. The positions are divided among blocks, whose sums are added in order.
func compileFilterGrad(op graph.Conv2DFilterGrad, args, results []Operand, cfg Config) (*Kernel, error) {
	if op.Layout != graph.NHWC {
		return nil, noLayout(op)
	}
	x, y := args[0].Layout, args[1].Layout
	slides := forwardSlides(x.Shape, y.Shape, op.KH, op.KW, op.Stride, op.Dilation, op.Pad)
	channels, columns := x.Shape.At(3)/op.Groups, y.Shape.At(3)/op.Groups
	p, err := alone(op, args, results)
	if err != nil {
		return nil, err
	}
	m := &matmul{unit: newUnit(args, results), body: p, cfg: cfg}
	if channels == 1 && columns == 1 {
		return depthwiseFilterGrad(m.unit, slides, cfg), nil
	}
	q := newPatches(args[0], slides, channels)
	q.kInner = false
	m.product = &product{name: "Problem", convolves: true, acc: results[0].DType, m: q.cols(), n: columns, k: q.rows(),
		space: graph.ShapeOf(op.KH, op.KW, channels, op.Groups, columns), rows: []int{0, 1, 2}, column: 4, batch: op.Groups,
		inBody: func(coords []string) []string { return joined(coords, op.Groups, columns) }}
	if op.Groups > 1 {
		m.batchAxes = []int{3}
	}
	m.a = q.factor(0)
	m.a.flatten()
	m.b = factor{arg: 1, dtype: args[1].DType, outer: y.Stride[3], k: pixelStride(y), offset: y.Offset,
		batch: []int{0, 0, 0, columns * y.Stride[3]}}
	if m.a.patches != nil && m.math() != "" {
		if m.widen(true) {
			m.m, m.filled, m.filledTaps, m.shift = q.cols(), channels, op.KW, q.shift
			m.space = graph.ShapeOf(op.KH, q.pixels()*q.slides[1].taps, q.channels/q.pixels(), op.Groups, columns)
		}
	}
	m.flatFilterGrad(op, channels, columns)
	if err := m.write(); err != nil {
		return nil, err
	}
	return m.kernel(), nil
}

// pixelStride is how far the pixels of images in NHWC, counted through all images, are apart in memory. Axes of one element have
// no stride.
func pixelStride(l graph.Layout) int {
	for axis := 2; axis >= 0; axis-- {
		if l.Shape.At(axis) > 1 {
			return l.Stride[axis]
		}
	}
	return 0
}

// flatFilterGrad makes the product the transposed one, of the gradient of the result and the patches, where that takes less time:
// of few columns, and in TF32, which reads only one operand along other than k.
//
//	C[tap and channel, column] = Σ patches[position, tap and channel]·dy[position, column]
func (m *matmul) flatFilterGrad(op graph.Conv2DFilterGrad, channels, columns int) {
	q := m.a.patches
	if q == nil || !q.boxed() {
		return
	}
	y := m.b
	y.batch = []int{0, y.batch[3], 0}
	x := m.a
	x.batch = []int{0, x.batch[3], 0}
	p := &product{name: "Problem", convolves: true, acc: m.acc, m: columns, n: q.cols(), k: q.rows(), batch: op.Groups, a: y, b: x,
		space: graph.ShapeOf(q.cols(), op.Groups, columns), rows: []int{2}, column: 0, wide: 2,
		filled: m.filled, filledTaps: m.filledTaps}
	each, row := q.channels/q.pixels(), q.pixels()*q.slides[1].taps
	p.inBody = func(coords []string) []string {
		n := coords[0]
		at := joined([]string{coords[1], coords[2]}, op.Groups, columns)
		return []string{fmt.Sprintf("%s / %d", n, row*each), fmt.Sprintf("%s / %d %% %d", n, each, row),
			fmt.Sprintf("%s %% %d", n, each), at[0]}
	}
	if op.Groups > 1 {
		p.batchAxes = []int{1}
	}
	flat := &matmul{unit: m.unit, product: p, body: m.body, cfg: m.cfg}
	h, a := flat.hopperPlans()
	was, _ := m.hopperPlan()
	faster := h != nil && (was == nil || h.time < was.time) || h == nil && a != nil && was == nil
	if faster && m.measured(was) == "" || flat.measured(h) != "" {
		m.product = p
	}
}

// alone is the program of an operation with one result that no fusion has as its anchor.
func alone(op graph.Op, args, results []Operand) (*body.Program, error) {
	b := graph.NewBuilder(op.OpName())
	p := &body.Program{Kind: graph.AnchorConv, Space: results[0].Layout.Shape, Lane: results[0].DType}
	in := make([]*graph.Node, len(args))
	for i, a := range args {
		in[i] = b.Input(fmt.Sprint("x", i), a.Type())
		p.Operands = append(p.Operands, body.Operand{Node: in[i], Arg: i, Layout: a.Layout})
	}
	p.Anchor = b.Add(op, in...)
	p.Values = []body.Value{{Kind: body.AnchorResult, Node: p.Anchor}}
	p.Stores = []body.Store{{Node: p.Anchor, Layout: results[0].Layout}}
	return p, b.Err()
}
