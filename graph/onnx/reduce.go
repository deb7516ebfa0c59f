package onnx

import "fusec/graph"

func init() {
	for name, build := range map[string]func(*call, *graph.Node, []int) *graph.Node{
		"ReduceSum": func(c *call, x *graph.Node, axes []int) *graph.Node { return c.reduce(graph.Sum, x, true, axes...) },
		"ReduceMean": func(c *call, x *graph.Node, axes []int) *graph.Node {
			if x.Type.DType.IsFloat() {
				return c.reduce(graph.Mean, x, true, axes...)
			}
			sum := c.reduce(graph.Sum, x, true, axes...)
			return c.with(graph.Div, sum, float64(max(x.Type.Shape.Elems(), 1)/max(sum.Type.Shape.Elems(), 1)))
		},
		"ReduceProd": func(c *call, x *graph.Node, axes []int) *graph.Node { return c.reduce(graph.Prod, x, true, axes...) },
		"ReduceMax":  func(c *call, x *graph.Node, axes []int) *graph.Node { return c.extreme(graph.MaxOf, x, axes) },
		"ReduceMin":  func(c *call, x *graph.Node, axes []int) *graph.Node { return c.extreme(graph.MinOf, x, axes) },
		"ReduceL1": func(c *call, x *graph.Node, axes []int) *graph.Node {
			return c.reduce(graph.Sum, c.unary(graph.Abs, x), true, axes...)
		},
		"ReduceL2": func(c *call, x *graph.Node, axes []int) *graph.Node {
			return c.real(c.reduce(graph.Sum, c.unary(graph.Square, x), true, axes...), graph.Sqrt)
		},
		"ReduceLogSum": func(c *call, x *graph.Node, axes []int) *graph.Node {
			return c.real(c.reduce(graph.Sum, x, true, axes...), graph.Log)
		},
		"ReduceSumSquare": func(c *call, x *graph.Node, axes []int) *graph.Node {
			return c.reduce(graph.Sum, c.unary(graph.Square, x), true, axes...)
		},
		"ReduceLogSumExp": buildLogSumExp,
	} {
		operand := 18 // the first opset in which axes are an operand
		if name == "ReduceSum" {
			operand = 13
		}
		declare(operator{name: name, min: 1, max: 2,
			attrs: []attr{intAttr("keepdims", 1), {name: "axes", def: []int64(nil), until: operand - 1},
				{name: "noop_with_empty_axes", def: int64(0), from: operand}}, build: func(c *call) []*value {
				x := c.node(0)
				rank := x.Type.Shape.Rank()
				list, _ := c.operandOrInts(1, "axes")
				axes := c.axes(list, rank)
				if len(axes) == 0 && !c.flag("noop_with_empty_axes") {
					for i := range rank {
						axes = append(axes, i)
					}
				}
				y := build(c, x, axes)
				if !c.flag("keepdims") {
					y = c.reshape(y, y.Type.Shape.Drop(graph.IntsOf(axes...)).Slice()...)
				}
				return one(y)
			}})
	}
	axis := []attr{{name: "axis", def: int64(1), until: 12}, {name: "axis", def: int64(-1), from: 13}}
	declare(
		operator{name: "Softmax", min: 1, max: 1, attrs: axis, build: func(c *call) []*value {
			return one(c.alongRow(func(x *graph.Node, axis int) *graph.Node { return c.add(graph.Softmax{Axis: axis}, x) }))
		}},
		operator{name: "LogSoftmax", min: 1, max: 1, attrs: axis, build: func(c *call) []*value {
			return one(c.alongRow(func(x *graph.Node, axis int) *graph.Node { return c.add(graph.LogSoftmax{Axis: axis}, x) }))
		}},
		operator{name: "Hardmax", min: 1, max: 1, attrs: axis, build: func(c *call) []*value {
			return one(c.alongRow(func(x *graph.Node, axis int) *graph.Node {
				first := c.firstExtreme(graph.MaxOf, x, axis, false)
				return c.cast(c.binary(graph.Eq, c.counting(x.Type.Shape, axis), first), x.Type.DType)
			}))
		}},
		operator{name: "ArgMax", min: 1, max: 1, attrs: []attr{intAttr("axis", 0), intAttr("keepdims", 1),
			{name: "select_last_index", def: int64(0), from: 12}}, build: func(c *call) []*value { return one(c.argExtreme(graph.MaxOf)) }},
		operator{name: "ArgMin", min: 1, max: 1, attrs: []attr{intAttr("axis", 0), intAttr("keepdims", 1),
			{name: "select_last_index", def: int64(0), from: 12}}, build: func(c *call) []*value { return one(c.argExtreme(graph.MinOf)) }},
		operator{name: "CumSum", min: 2, max: 2, attrs: []attr{intAttr("exclusive", 0), intAttr("reverse", 0)},
			build: func(c *call) []*value { return one(c.cumulated(graph.Add, 0)) }},
		operator{name: "CumProd", min: 2, max: 2, attrs: []attr{intAttr("exclusive", 0), intAttr("reverse", 0)},
			build: func(c *call) []*value { return one(c.cumulated(graph.Mul, 1)) }},
	)
}

// extreme is a maximum or minimum; of Bools, true is greater than false.
func (c *call) extreme(f graph.ReduceFn, x *graph.Node, axes []int) *graph.Node {
	if x.Type.DType == graph.Bool {
		return c.with(graph.Gt, c.reduce(f, c.cast(x, graph.I32), true, axes...), 0)
	}
	return c.reduce(f, x, true, axes...)
}

// real is f(x), which of integers is computed in f64 and truncated.
func (c *call) real(x *graph.Node, f graph.UnaryFn) *graph.Node {
	if x.Type.DType.IsInt() {
		return c.cast(c.unary(f, c.cast(x, graph.F64)), x.Type.DType)
	}
	return c.unary(f, x)
}

// buildLogSumExp is m + log Σ exp(x − m), m being the maximum where that is finite and else 0.
func buildLogSumExp(c *call, x *graph.Node, axes []int) *graph.Node {
	if d := x.Type.DType; d.IsInt() {
		return c.cast(buildLogSumExp(c, c.cast(x, graph.F64), axes), d)
	}
	m := c.reduce(graph.MaxOf, x, true, axes...)
	finite := c.binary(graph.Eq, c.minus(m, m), c.scalar(x.Type.DType, 0))
	m = c.choose(finite, m, c.scalar(x.Type.DType, 0))
	return c.plus(m, c.unary(graph.Log, c.reduce(graph.Sum, c.unary(graph.Exp, c.minus(x, m)), true, axes...)))
}

// alongRow applies f along an axis; up to opset 12 along all axes from the given one on together.
func (c *call) alongRow(f func(x *graph.Node, axis int) *graph.Node) *graph.Node {
	x := c.node(0)
	s := x.Type.Shape
	if c.opset >= 13 {
		return f(x, c.axis(c.int("axis"), s.Rank()))
	}
	axis := c.int("axis")
	if axis < 0 {
		axis += s.Rank()
	}
	if axis < 0 || axis > s.Rank() {
		c.refuse("axis %d of a tensor of rank %d", c.int("axis"), s.Rank())
	}
	outer, inner, _ := s.Around(axis, s.Rank()-axis)
	if axis == s.Rank()-1 {
		return f(x, axis)
	}
	return c.reshape(f(c.reshape(x, outer, inner), 1), s.Slice()...)
}

// counting is 0, 1, 2, … along an axis of the shape s, as I64 that broadcasts to s.
func (c *call) counting(s graph.Shape, axis int) *graph.Node {
	n := s.At(axis)
	c.made(n)
	t := graph.NewTensor(graph.TypeOf(graph.I64, n))
	for i := range n {
		t.SetInt(i, int64(i))
	}
	shape := make([]int, s.Rank()-axis)
	for i := range shape {
		shape[i] = 1
	}
	shape[0] = n
	return c.reshape(c.constant(t), shape...)
}

// firstExtreme is the index, I64, of the first or the last maximum or minimum along an axis, which stays with size 1.
// NaN counts as both.
func (c *call) firstExtreme(f graph.ReduceFn, x *graph.Node, axis int, last bool) *graph.Node {
	s := x.Type.Shape
	if s.At(axis) == 0 {
		c.refuse("axis %d of %v is empty", axis, s)
	}
	m := c.reduce(f, x, true, axis)
	hit := c.binary(graph.Eq, x, m)
	if x.Type.DType.IsFloat() {
		hit = c.binary(graph.Or, hit, c.binary(graph.Ne, x, x))
	}
	at := c.expand(c.counting(s, axis), s)
	if last {
		return c.reduce(graph.MaxOf, c.choose(hit, at, c.scalar(graph.I64, -1)), true, axis)
	}
	return c.reduce(graph.MinOf, c.choose(hit, at, c.scalar(graph.I64, float64(s.At(axis)))), true, axis)
}

func (c *call) argExtreme(f graph.ReduceFn) *graph.Node {
	x := c.node(0)
	axis := c.axis(c.int("axis"), x.Type.Shape.Rank())
	y := c.firstExtreme(f, x, axis, c.flag("select_last_index"))
	if !c.flag("keepdims") {
		y = c.reshape(y, y.Type.Shape.Drop(graph.IntsOf(axis)).Slice()...)
	}
	return y
}

// cumulated joins each element with all before it, in steps that double (Hillis and Steele, CACM 29(12), 1986).
func (c *call) cumulated(f graph.BinaryFn, neutral float64) *graph.Node {
	x := c.node(0)
	s := x.Type.Shape
	axis := c.axis(c.knownInt(1), s.Rank())
	n := s.At(axis)
	if n == 0 {
		return x
	}
	reverse := c.flag("reverse")
	// shifted is y moved by k along the axis, filled up with the neutral element.
	shifted := func(y *graph.Node, k int) *graph.Node {
		lo, hi := make([]int, s.Rank()), make([]int, s.Rank())
		start := 0
		if lo[axis] = k; reverse {
			lo, hi, start = hi, lo, k
		}
		return c.pad(c.slice(y, axis, start, n-k, 1), lo, hi, neutral)
	}
	if c.flag("exclusive") {
		x = shifted(x, 1)
	}
	for k := 1; k < n; k *= 2 {
		x = c.binary(f, x, shifted(x, k))
	}
	return x
}
