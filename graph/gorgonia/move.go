package gorgonia

import (
	"fmt"
	"reflect"

	"fusec/graph"

	"gorgonia.org/tensor"
)

func (c *call) transpose() (*graph.Node, error) {
	p := c.f.ints("pattern")
	if len(p) != c.args[0].Type.Shape.Rank() {
		return nil, fmt.Errorf("permutation %v of %v", p, c.args[0].Type.Shape)
	}
	return c.b.Transpose(c.args[0], p...), nil
}

// repeat repeats each element along an axis, as often as the inferred shape says.
func (c *call) repeat() (*graph.Node, error) {
	x, along := c.args[0], c.f.int("along")
	rank := c.want.Shape.Rank()
	if along >= rank {
		return nil, fmt.Errorf("repeat along axis %d of %v", along, c.want.Shape)
	}
	dims := x.Type.Shape.Slice()
	for len(dims) < rank {
		dims = append(dims, 1)
	}
	size := dims[along]
	if size == 1 {
		return c.b.Broadcast(c.b.Reshape(x, dims...), c.want.Shape), nil
	}
	if size == 0 || c.want.Shape.At(along)%size != 0 || rank == graph.MaxRank {
		return nil, fmt.Errorf("repeat of %v along axis %d to %v", x.Type.Shape, along, c.want.Shape)
	}
	return c.spread(c.b.Reshape(x, dims...), along, c.want.Shape.At(along)/size), nil
}

// spread repeats each element of x n times along an axis.
func (c *call) spread(x *graph.Node, axis, n int) *graph.Node {
	dims := x.Type.Shape.Slice()
	split := append(append(append([]int{}, dims[:axis+1]...), 1), dims[axis+1:]...)
	x = c.b.Reshape(x, split...)
	split[axis+1] = n
	x = c.b.Broadcast(x, graph.ShapeOf(split...))
	dims[axis] *= n
	return c.b.Reshape(x, dims...)
}

func (c *call) concat() (*graph.Node, error) {
	if len(c.args) == 1 {
		return c.args[0], nil
	}
	return c.b.Add(graph.Concat{Axis: c.f.int("axis")}, c.args...), nil
}

// span is what a slice takes: size elements, step apart.
type span struct {
	axis, start, size, step int
	whole                   bool // everything
}

// span reads the slice of a sliceOp, or of the one inside a sliceIncrOp. dim and rank are those of what is sliced, part
// is the shape of what comes out, which has lost the axis if one element is left of it.
func (c *call) span(whole, part graph.Shape) (span, tensor.Slice, error) {
	s := value[tensor.Slice](c.f, "Slice")
	if c.f.err != nil {
		return span{}, nil, c.f.err
	}
	r := span{axis: c.f.int("along"), step: 1}
	if s == nil || s.End() <= s.Start() {
		r.whole = true
		return r, s, nil
	}
	if r.axis >= whole.Rank() {
		return r, s, fmt.Errorf("slice along axis %d of %v", r.axis, whole)
	}
	r.start, r.step = s.Start(), max(s.Step(), 1)
	r.size = 1
	if part.Rank() == whole.Rank() {
		r.size = part.At(r.axis)
	}
	if r.start < 0 || r.start+(r.size-1)*r.step >= whole.At(r.axis) {
		return r, s, fmt.Errorf("slice %d:%d:%d does not fit into axis %d of %v", s.Start(), s.End(), s.Step(), r.axis, whole)
	}
	if n := (min(s.End(), whole.At(r.axis)) - r.start + r.step - 1) / r.step; n != r.size {
		c.differs(stepSlice)
	}
	return r, s, nil
}

// start is where a slice begins: a constant, or an input where the user may change it.
func (c *call) start(r span, s tensor.Slice) *graph.Node {
	length, step := s.End()-s.Start(), s.Step()
	at := fieldAt[tensor.Slice](c.f, "Slice")
	if at == nil {
		return c.b.Fail(c.f.err)
	}
	n := c.n
	now := func() (int, error) {
		s := *at
		if s == nil || s.End()-s.Start() != length || s.Step() != step {
			return 0, fmt.Errorf("%s: the slice has another length than when the graph was imported", Called(n))
		}
		return s.Start(), nil
	}
	dynamic := c.opts.DynamicSlices || c.opts.Replaced[n]
	if fixedSlice(s) {
		c.stale = append(c.stale, staleness{n, func() error {
			if start, err := now(); err != nil || dynamic || start == r.start {
				return err
			}
			return fmt.Errorf("%s: the slice was replaced", Called(n))
		}})
		if !dynamic {
			return c.b.Scalar(graph.I64, float64(r.start))
		}
	}
	name := nameOf(c.n)
	if name == "" {
		name = fmt.Sprintf("slice%d", c.n.ID())
	}
	in := c.b.Input(c.unique(name+".start"), graph.Type{DType: graph.I64})
	c.Fills = append(c.Fills, Fill{in, func(t *graph.Tensor) error {
		start, err := now()
		if err == nil {
			t.Data.([]int64)[0] = int64(start)
		}
		return err
	}})
	return in
}

// fixedSlice reports whether s is of one of the types of Gorgonia's, which do not change.
func fixedSlice(s tensor.Slice) bool {
	t := reflect.TypeOf(s)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.PkgPath() == upstream || t.PkgPath() == "gorgonia.org/tensor"
}

func (c *call) slice() (*graph.Node, error) {
	x := c.args[0]
	r, s, err := c.span(x.Type.Shape, c.want.Shape)
	if err != nil {
		return nil, err
	}
	if r.whole {
		return x, nil
	}
	return c.b.Add(graph.Slice{Axis: r.axis, Size: r.size, Step: r.step}, x, c.start(r, s)), nil
}

// sliceIncr is the derivative of slice: zeros of the first operand's shape with the second in the slice's place.
func (c *call) sliceIncr() (*graph.Node, error) {
	whole, x := c.args[0].Type.Shape, c.args[1]
	r, s, err := c.span(whole, x.Type.Shape)
	if err != nil {
		return nil, err
	}
	if r.whole {
		if x.Type.Shape.Rank() == 0 {
			x = c.b.Broadcast(x, whole)
		}
		return x, nil
	}
	x = c.b.Reshape(x, whole.With(r.axis, r.size).Slice()...)
	return c.b.Add(graph.Unslice{Axis: r.axis, Size: whole.At(r.axis), Step: r.step}, x, c.start(r, s)), nil
}

// at takes one element.
func (c *call) at() (*graph.Node, error) {
	x := c.args[0]
	for axis, i := range c.f.ints("coordinates") {
		x = c.b.Slice(x, axis, i, 1, 1)
	}
	return x, nil
}

// diagFlat puts a vector of n elements on the diagonal of a square: seen as n rows of n+1 elements, a square has its
// diagonal in the first column.
func (c *call) diagFlat() (*graph.Node, error) {
	n := c.args[0].Type.Shape.Elems()
	x := c.b.Reshape(c.args[0], n, 1)
	x = c.b.Add(graph.Pad{Lo: graph.IntsOf(0, 0), Hi: graph.IntsOf(0, n)}, x)
	return c.b.Slice(c.b.Reshape(x, n*(n+1)), 0, 0, n*n, 1), nil
}

func (c *call) byIndices() (*graph.Node, error) {
	if c.f.int("axis") > 0 && c.differs(byIndices) {
		return c.host()
	}
	ix := c.b.Reshape(c.args[1], c.args[1].Type.Shape.Elems())
	return c.b.Add(graph.Gather{Axis: c.f.int("axis")}, c.args[0], ix), nil
}

// byIndicesDiff has the operands x, dy and indices.
func (c *call) byIndicesDiff() (*graph.Node, error) {
	axis, x := c.f.int("axis"), c.args[0].Type.Shape
	if axis >= x.Rank() {
		return nil, fmt.Errorf("indices along axis %d of %v", axis, x)
	}
	if (axis > 0 || x.Rank() == 1) && c.differs(byIndicesGradient) {
		return c.host()
	}
	ix := c.b.Reshape(c.args[2], c.args[2].Type.Shape.Elems())
	return c.b.Add(graph.ScatterAdd{Axis: axis, Size: x.At(axis)}, ix, c.args[1]), nil
}

func (c *call) upsample() (*graph.Node, error) {
	n, s := c.f.int("stride")+1, c.args[0].Type.Shape // what Gorgonia keeps is how many elements are added
	if s.Rank() != 4 {
		return nil, fmt.Errorf("upsampling of %v", s)
	}
	x := c.b.Reshape(c.args[0], s.At(0), s.At(1), s.At(2), 1, s.At(3), 1)
	x = c.b.Broadcast(x, graph.ShapeOf(s.At(0), s.At(1), s.At(2), n, s.At(3), n))
	return c.b.Reshape(x, s.At(0), s.At(1), n*s.At(2), n*s.At(3)), nil
}

// upsampleDiff has the operands x, y and dy: the sum over each square that came from one element.
func (c *call) upsampleDiff() (*graph.Node, error) {
	n, s := c.f.int("stride")+1, c.args[0].Type.Shape
	if s.Rank() != 4 {
		return nil, fmt.Errorf("upsampling of %v", s)
	}
	dy := c.b.Reshape(c.args[2], s.At(0), s.At(1), s.At(2), n, s.At(3), n)
	return c.b.Reduce(graph.Sum, dy, false, 3, 5), nil
}
