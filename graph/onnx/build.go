package onnx

import (
	"fusec/graph"
)

// These add nodes and give up on an error; see [call].

// sure passes on a node unless building it has failed.
func (c *call) sure(n *graph.Node) *graph.Node {
	c.check(c.b.Err())
	if len(c.m.g.Nodes) > maxGraph {
		c.refuse("the graph has more than %d nodes with it", maxGraph)
	}
	return n
}

// made counts elements of constants that operators make, before they are allocated.
func (c *call) made(elems int) {
	if elems > maxMade-c.m.made {
		c.refuse("operators make constants of more than %d elements", maxMade)
	}
	c.m.made += elems
}

func (c *call) add(op graph.Op, args ...*graph.Node) *graph.Node { return c.sure(c.b.Add(op, args...)) }

func (c *call) unary(f graph.UnaryFn, x *graph.Node) *graph.Node { return c.sure(c.b.Unary(f, x)) }

func (c *call) cast(x *graph.Node, d graph.DType) *graph.Node { return c.sure(c.b.CastTo(d, x)) }

// binary is f(x, y), with shapes broadcast as in NumPy.
func (c *call) binary(f graph.BinaryFn, x, y *graph.Node) *graph.Node {
	all := c.broadcast(x, y)
	return c.sure(c.b.Binary(f, all[0], all[1]))
}

// with is f(x, v).
func (c *call) with(f graph.BinaryFn, x *graph.Node, v float64) *graph.Node {
	return c.sure(c.b.BinaryScalar(f, x, v))
}

func (c *call) mul(x, y *graph.Node) *graph.Node { return c.binary(graph.Mul, x, y) }

func (c *call) plus(x, y *graph.Node) *graph.Node { return c.binary(graph.Add, x, y) }

func (c *call) minus(x, y *graph.Node) *graph.Node { return c.binary(graph.Sub, x, y) }

func (c *call) over(x, y *graph.Node) *graph.Node { return c.binary(graph.Div, x, y) }

// choose is cond ? x : y, with shapes broadcast as in NumPy.
func (c *call) choose(cond, x, y *graph.Node) *graph.Node {
	all := c.broadcast(cond, x, y)
	return c.add(graph.Select{}, all...)
}

// broadcast brings nodes to their common shape, except for scalars.
func (c *call) broadcast(nodes ...*graph.Node) []*graph.Node {
	s := c.commonShape(nodes...)
	r := make([]*graph.Node, len(nodes))
	for i, n := range nodes {
		if r[i] = n; n.Type.Shape.Rank() > 0 {
			r[i] = c.expand(n, s)
		}
	}
	return r
}

// commonShape is the shape that nodes broadcast to.
func (c *call) commonShape(nodes ...*graph.Node) graph.Shape {
	var s graph.Shape
	for _, n := range nodes {
		s = c.joinShapes(s, n.Type.Shape)
	}
	return s
}

// joinShapes broadcasts two shapes with each other.
func (c *call) joinShapes(a, b graph.Shape) graph.Shape {
	if a.Rank() < b.Rank() {
		a, b = b, a
	}
	lead := a.Rank() - b.Rank()
	s := a
	for i := range b.Rank() {
		switch x, y := a.At(lead+i), b.At(i); {
		case x == y || y == 1:
		case x == 1:
			s = s.With(lead+i, y)
		default:
			c.refuse("shapes %v and %v do not broadcast", a, b)
		}
	}
	return s
}

func (c *call) expand(x *graph.Node, s graph.Shape) *graph.Node {
	c.check(s.Check())
	return c.sure(c.b.Broadcast(x, s))
}

// filled is a constant of a type.
func (c *call) filled(t graph.Type, v float64) *graph.Node {
	return c.expand(c.scalar(t.DType, v), t.Shape)
}

func (c *call) scalar(d graph.DType, v float64) *graph.Node { return c.sure(c.b.Scalar(d, v)) }

func (c *call) constant(t *graph.Tensor) *graph.Node { return c.sure(c.b.Const(t)) }

// vector is a constant vector of integers.
func (c *call) vector(v ...int) *graph.Node {
	c.made(len(v))
	t := graph.NewTensor(graph.TypeOf(graph.I64, len(v)))
	for i, x := range v {
		t.SetInt(i, int64(x))
	}
	return c.constant(t)
}

// shape makes a shape, or gives up.
func (c *call) shape(dims ...int) graph.Shape {
	if len(dims) > graph.MaxRank {
		c.refuse("a tensor of %d axes is needed; there may be %d", len(dims), graph.MaxRank)
	}
	s := graph.ShapeOf(dims...)
	c.check(s.Check())
	return s
}

func (c *call) reshape(x *graph.Node, dims ...int) *graph.Node {
	return c.sure(c.b.Reshape(x, c.shape(dims...).Slice()...))
}

func (c *call) transpose(x *graph.Node, perm ...int) *graph.Node {
	if len(perm) != x.Type.Shape.Rank() {
		c.refuse("the permutation %v of a tensor of rank %d", perm, x.Type.Shape.Rank())
	}
	return c.sure(c.b.Transpose(x, perm...))
}

func (c *call) reduce(f graph.ReduceFn, x *graph.Node, keep bool, axes ...int) *graph.Node {
	if len(axes) == 0 {
		return x
	}
	return c.sure(c.b.Reduce(f, x, keep, axes...))
}

// slice takes size elements, step ≥ 1 apart, of an axis from start on.
func (c *call) slice(x *graph.Node, axis, start, size, step int) *graph.Node {
	if start == 0 && size == x.Type.Shape.At(axis) && step == 1 {
		return x
	}
	if size == 0 {
		start, step = 0, 1
	}
	return c.sure(c.b.Slice(x, axis, start, size, step))
}

func (c *call) concat(axis int, nodes ...*graph.Node) *graph.Node {
	if len(nodes) == 1 {
		return nodes[0]
	}
	return c.add(graph.Concat{Axis: axis}, nodes...)
}

// pad surrounds x by a value.
func (c *call) pad(x *graph.Node, lo, hi []int, v float64) *graph.Node {
	for i := range lo {
		if lo[i] != 0 || hi[i] != 0 {
			return c.add(graph.Pad{Lo: graph.IntsOf(lo...), Hi: graph.IntsOf(hi...), Value: v}, x)
		}
	}
	return x
}

// matmul multiplies the last two axes. Operands of 16 bits are multiplied in f32, which is exact and which all targets have.
func (c *call) matmul(x, y *graph.Node, transX, transY bool) *graph.Node {
	x, y = c.wide(x), c.wide(y)
	return c.sure(c.b.MatMul(x, y, transX, transY))
}

// wide is x, in f32 if its elements have 16 bits.
func (c *call) wide(x *graph.Node) *graph.Node {
	if x.Type.DType.Is16() {
		return c.cast(x, graph.F32)
	}
	return x
}

// gather picks elements of an axis. Of numbers that are stored in few bits with one scale, it picks those that are stored.
func (c *call) gather(x, indices *graph.Node, axis int) *graph.Node {
	if op, ok := x.Op.(graph.Dequantize); ok && x.Args[1].Type.Shape.Rank() == 0 && !x.Args[0].Type.DType.IsStored() {
		return c.add(op, append([]*graph.Node{c.gather(x.Args[0], indices, axis)}, x.Args[1:]...)...)
	}
	return c.add(graph.Gather{Axis: axis}, x, indices)
}

// flip reverses an axis.
func (c *call) flip(x *graph.Node, axis int) *graph.Node {
	n := x.Type.Shape.At(axis)
	c.made(n)
	order := make([]int, n)
	for i := range order {
		order[i] = n - 1 - i
	}
	return c.gather(x, c.vector(order...), axis)
}

// dims are the sizes of a node's axes.
func dims(x *graph.Node) []int { return x.Type.Shape.Slice() }
