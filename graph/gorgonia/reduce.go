package gorgonia

import (
	"fmt"
	"slices"

	"fusec/graph"
)

func (c *call) sum() (*graph.Node, error) {
	if err := c.fits(); err != nil {
		return nil, err
	}
	return c.reduce(graph.Sum)
}

func (c *call) max() (*graph.Node, error) {
	if c.n.Deriv() != nil {
		c.differs(tiedMaximum)
	}
	return c.reduce(graph.MaxOf)
}

// combinesWrong reports whether Gorgonia, which reduces one axis after the other, comes to one between others of four and
// more that is not among the first two.
func combinesWrong(rank int, axes []int) bool {
	for i, a := range axes {
		if rank-i >= 4 && a-i >= 2 && a-i < rank-i-1 {
			return true
		}
	}
	return false
}

// reduce combines along the axes named, or all if none is.
func (c *call) reduce(fn graph.ReduceFn) (*graph.Node, error) {
	axes := slices.Clone(c.f.ints("along"))
	slices.Sort(axes)
	axes = slices.Compact(axes)
	if len(axes) == 0 {
		for i := range c.args[0].Type.Shape.Rank() {
			axes = append(axes, i)
		}
	}
	if len(axes) > graph.MaxRank {
		return nil, fmt.Errorf("reduction along %d axes", len(axes))
	}
	if combinesWrong(c.args[0].Type.Shape.Rank(), axes) && c.differs(middleAxis) {
		return c.host()
	}
	return c.b.Reduce(fn, c.args[0], false, axes...), nil
}

// softmaxAxis is the axis of a softmax: the last if the operation names none, except that a column is one vector.
func (c *call) softmaxAxis(s graph.Shape) (int, error) {
	axis := c.f.int("axis")
	if axis == -1 {
		axis = s.Rank() - 1
		if s.Rank() == 2 && s.At(1) == 1 && s.At(0) > 1 {
			axis = 0
		}
	}
	if axis < 0 || axis >= s.Rank() {
		return 0, fmt.Errorf("softmax along axis %d of %v", axis, s)
	}
	return axis, nil
}

func (c *call) softmax() (*graph.Node, error) {
	axis, err := c.softmaxAxis(c.args[0].Type.Shape)
	if err != nil {
		return nil, err
	}
	if axis == c.args[0].Type.Shape.Rank()-1 && c.args[0].Type.Shape.Elems() > 1 {
		c.differs(softmaxMaximum)
	}
	if c.f.bool("isLog") {
		return c.b.Add(graph.LogSoftmax{Axis: axis}, c.args[0]), nil
	}
	return c.b.Add(graph.Softmax{Axis: axis}, c.args[0]), nil
}

// softmaxDiff has the operands x, y and dy: (dy − Σ dy⊙y)⊙y, and for the logarithm dy − eʸ⊙Σ dy.
func (c *call) softmaxDiff() (*graph.Node, error) {
	y, dy := c.args[1], c.args[2]
	s := y.Type.Shape
	axis, err := c.softmaxAxis(s)
	if err != nil {
		return nil, err
	}
	dy = c.b.Reshape(dy, s.Slice()...)
	if c.f.bool("isLog") {
		sum := c.b.Broadcast(c.b.Reduce(graph.Sum, dy, true, axis), s)
		return c.b.Binary(graph.Sub, dy, c.b.Binary(graph.Mul, c.b.Unary(graph.Exp, y), sum)), nil
	}
	sum := c.b.Broadcast(c.b.Reduce(graph.Sum, c.b.Binary(graph.Mul, dy, y), true, axis), s)
	return c.b.Binary(graph.Mul, c.b.Binary(graph.Sub, dy, sum), y), nil
}
