package onnx

import (
	"math"
	"slices"

	"fusec/graph"
	"fusec/graph/onnx/internal/pb"
)

func init() {
	for name, f := range map[string]graph.UnaryFn{
		"Abs": graph.Abs, "Neg": graph.Neg, "Sign": graph.Sign, "Ceil": graph.Ceil, "Floor": graph.Floor, "Round": graph.Round,
		"Exp": graph.Exp, "Log": graph.Log, "Sqrt": graph.Sqrt, "Reciprocal": graph.Recip, "Erf": graph.Erf, "Relu": graph.Relu,
		"Sigmoid": graph.Sigmoid, "Tanh": graph.Tanh, "Softplus": graph.Softplus, "Not": graph.Not, "Sin": graph.Sin, "Cos": graph.Cos,
		"Tan":  graph.Tan,
		"Asin": graph.Asin, "Acos": graph.Acos, "Atan": graph.Atan, "Sinh": graph.Sinh, "Cosh": graph.Cosh, "Asinh": graph.Asinh,
		"Acosh": graph.Acosh, "Atanh": graph.Atanh,
	} {
		declare(operator{name: name, min: 1, max: 1, build: func(c *call) []*value { return one(c.unary(f, c.node(0))) }})
	}
	for name, f := range map[string]graph.BinaryFn{
		"Add": graph.Add, "Sub": graph.Sub, "Mul": graph.Mul, "Div": graph.Div, "And": graph.And, "Or": graph.Or, "Xor": graph.Ne,
		"Equal": graph.Eq, "Greater": graph.Gt, "Less": graph.Lt, "GreaterOrEqual": graph.Ge, "LessOrEqual": graph.Le,
	} {
		declare(operator{name: name, min: 2, max: 2, attrs: []attr{{name: "broadcast", def: int64(0), until: 6},
			{name: "axis", def: int64(-1), until: 6}}, build: func(c *call) []*value { return one(c.binary(f, c.node(0), c.aligned())) }})
	}
	for name, f := range map[string]graph.BinaryFn{"Max": graph.Max, "Min": graph.Min, "Sum": graph.Add} {
		declare(operator{name: name, min: 1, max: -1, build: func(c *call) []*value { return one(c.fold(f)) }})
	}
	alpha := func(v float64) attr { return floatAttr("alpha", v) }
	declare(
		operator{name: "Mean", min: 1, max: -1, build: func(c *call) []*value {
			return one(c.with(graph.Mul, c.fold(graph.Add), 1/float64(len(c.args))))
		}},
		operator{name: "Pow", min: 2, max: 2, build: buildPow},
		operator{name: "Mod", min: 2, max: 2, attrs: []attr{intAttr("fmod", 0)}, build: buildMod},
		operator{name: "LeakyRelu", min: 1, max: 1, attrs: []attr{alpha(0.01)}, build: func(c *call) []*value {
			return one(c.add(graph.Unary{Fn: graph.LeakyRelu, Alpha: c.float("alpha")}, c.node(0)))
		}},
		operator{name: "Elu", min: 1, max: 1, attrs: []attr{alpha(1)}, build: func(c *call) []*value {
			return one(c.add(graph.Unary{Fn: graph.Elu, Alpha: c.float("alpha")}, c.node(0)))
		}},
		operator{name: "Selu", min: 1, max: 1,
			attrs: []attr{alpha(1.67326319217681884765625), floatAttr("gamma", 1.05070102214813232421875)}, build: func(c *call) []*value {
				return one(c.with(graph.Mul, c.add(graph.Unary{Fn: graph.Elu, Alpha: c.float("alpha")}, c.node(0)), c.float("gamma")))
			}},
		operator{name: "Celu", min: 1, max: 1, attrs: []attr{alpha(1)}, build: func(c *call) []*value {
			a := c.float("alpha")
			y := c.add(graph.Unary{Fn: graph.Elu, Alpha: 1}, c.with(graph.Div, c.node(0), a))
			return one(c.with(graph.Mul, y, a))
		}},
		operator{name: "ThresholdedRelu", min: 1, max: 1, attrs: []attr{alpha(1)}, build: func(c *call) []*value {
			x := c.node(0)
			return one(c.choose(c.with(graph.Gt, x, c.float("alpha")), x, c.scalar(x.Type.DType, 0)))
		}},
		operator{name: "HardSigmoid", min: 1, max: 1, attrs: []attr{alpha(0.2), floatAttr("beta", 0.5)}, build: func(c *call) []*value {
			return one(c.hardSigmoid(c.node(0), c.float("alpha"), c.float("beta")))
		}},
		operator{name: "HardSwish", min: 1, max: 1, build: func(c *call) []*value {
			return one(c.mul(c.node(0), c.hardSigmoid(c.node(0), 1./6, 0.5)))
		}},
		operator{name: "Softsign", min: 1, max: 1, build: func(c *call) []*value {
			return one(c.over(c.node(0), c.with(graph.Add, c.unary(graph.Abs, c.node(0)), 1)))
		}},
		operator{name: "Gelu", min: 1, max: 1, attrs: []attr{{name: "approximate", def: "none"}}, build: buildGelu},
		operator{name: "Mish", min: 1, max: 1, build: func(c *call) []*value {
			return one(c.mul(c.node(0), c.unary(graph.Tanh, c.unary(graph.Softplus, c.node(0)))))
		}},
		operator{name: "Swish", min: 1, max: 1, attrs: []attr{alpha(1)}, build: func(c *call) []*value {
			x, a := c.node(0), c.float("alpha")
			if a == 1 {
				return one(c.unary(graph.Silu, x))
			}
			return one(c.mul(x, c.unary(graph.Sigmoid, c.with(graph.Mul, x, a))))
		}},
		operator{name: "Shrink", min: 1, max: 1, attrs: []attr{floatAttr("bias", 0), floatAttr("lambd", 0.5)}, build: buildShrink},
		operator{name: "PRelu", min: 2, max: 2, build: func(c *call) []*value {
			x, slope := c.node(0), c.node(1)
			if c.opset < 7 && slope.Type.Shape.Rank() == 1 && x.Type.Shape.Rank() > 1 {
				slope = c.perChannel(slope, x)
			}
			return one(c.choose(c.with(graph.Lt, x, 0), c.mul(x, slope), x))
		}},
		operator{name: "Clip", min: 1, max: 3, build: buildClip,
			attrs: []attr{{name: "min", def: math.Inf(-1), until: 10}, {name: "max", def: math.Inf(1), until: 10}}},
		operator{name: "IsNaN", min: 1, max: 1, build: func(c *call) []*value {
			return one(c.binary(graph.Ne, c.node(0), c.node(0)))
		}},
		operator{name: "IsInf", min: 1, max: 1, attrs: []attr{intAttr("detect_negative", 1), intAttr("detect_positive", 1)},
			build: buildIsInf},
		operator{name: "Where", min: 3, max: 3, build: buildWhere},
		operator{name: "Identity", min: 1, max: 1, exact: true, build: func(c *call) []*value { return c.args[:1] }},
		operator{name: "Cast", min: 1, max: 1, exact: true, build: buildCast,
			attrs: []attr{{name: "to", def: required{int64(0)}}, {name: "saturate", def: int64(1), from: 19},
				{name: "round_mode", def: "up", from: 24}}},
		operator{name: "CastLike", min: 2, max: 2, exact: true, attrs: []attr{{name: "saturate", def: int64(1), from: 19},
			{name: "round_mode", def: "up", from: 24}},
			build: func(c *call) []*value { return one(c.cast(c.node(0), c.node(1).Type.DType)) }},
		operator{name: "Dropout", min: 1, max: 3, attrs: []attr{{name: "ratio", def: 0.5, until: 11}, intAttr("seed", 0)},
			build: buildDropout},
	)
	declare(missing("tensors of random numbers are not supported",
		"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial")...)
}

// missing are rows of operators that are not supported.
func missing(reason string, names ...string) []operator {
	var r []operator
	for _, name := range names {
		r = append(r, operator{name: name, max: -1, refused: reason})
	}
	return r
}

// aligned is the second operand of a binary function. Up to opset 6 its axes could be aligned at one that is given.
func (c *call) aligned() *graph.Node {
	y := c.node(1)
	if !c.has("axis") {
		return y
	}
	after := c.node(0).Type.Shape.Rank() - c.int("axis") - y.Type.Shape.Rank()
	if after < 0 || after > graph.MaxRank {
		c.refuse("axis %d for %v and %v", c.int("axis"), c.node(0).Type, y.Type)
	}
	return c.reshape(y, append(dims(y), slices.Repeat([]int{1}, after)...)...)
}

// fold joins all operands by f.
func (c *call) fold(f graph.BinaryFn) *graph.Node {
	y := c.node(0)
	for i := range c.args[1:] {
		y = c.binary(f, y, c.node(i+1))
	}
	return y
}

// buildPow raises numbers of any type to powers of any other; the result is of the first one's type.
func buildPow(c *call) []*value {
	x, y := c.node(0), c.node(1)
	d := x.Type.DType
	switch v, ok := y.ConstScalar(); {
	case ok && v == 2:
		return one(c.expandTo(c.unary(graph.Square, x), y))
	case ok && v == 0.5 && d.IsFloat():
		return one(c.expandTo(c.unary(graph.Sqrt, x), y))
	case y.Type.DType == d:
		return one(c.binary(graph.Pow, x, y))
	case d.IsFloat():
		return one(c.binary(graph.Pow, x, c.cast(y, d)))
	}
	return one(c.cast(c.binary(graph.Pow, c.cast(x, graph.F64), c.cast(y, graph.F64)), d))
}

// expandTo broadcasts x to the shape that it has together with y.
func (c *call) expandTo(x, y *graph.Node) *graph.Node { return c.expand(x, c.commonShape(x, y)) }

// truncated rounds towards zero.
func (c *call) truncated(x *graph.Node) *graph.Node {
	return c.choose(c.with(graph.Lt, x, 0), c.unary(graph.Ceil, x), c.unary(graph.Floor, x))
}

// buildMod is the remainder with the sign of the dividend, as C's fmod, or with that of the divisor.
func buildMod(c *call) []*value {
	x, y := c.node(0), c.node(1)
	q := c.over(x, y)
	if x.Type.DType.IsFloat() {
		q = c.truncated(q)
	}
	r := c.minus(x, c.mul(q, y))
	if x.Type.DType.IsFloat() {
		infinite := c.with(graph.Eq, c.unary(graph.Abs, y), math.Inf(1))
		r = c.choose(c.binary(graph.And, infinite, c.binary(graph.Eq, c.minus(x, x), c.scalar(x.Type.DType, 0))), x, r)
	}
	if c.flag("fmod") {
		return one(r)
	}
	differ := c.binary(graph.Ne, c.with(graph.Lt, r, 0), c.with(graph.Lt, y, 0))
	wrong := c.binary(graph.And, differ, c.with(graph.Ne, r, 0))
	return one(c.choose(wrong, c.plus(r, y), r))
}

// hardSigmoid is max(0, min(1, αx + β)).
func (c *call) hardSigmoid(x *graph.Node, alpha, beta float64) *graph.Node {
	y := c.with(graph.Add, c.with(graph.Mul, x, alpha), beta)
	return c.with(graph.Max, c.with(graph.Min, y, 1), 0)
}

func buildGelu(c *call) []*value {
	switch how := c.string("approximate"); how {
	case "none":
		return one(c.unary(graph.GeluErf, c.node(0)))
	case "tanh":
		return one(c.unary(graph.GeluTanh, c.node(0)))
	default:
		c.refuse("attribute \"approximate\" is %q", how)
	}
	return nil
}

func buildShrink(c *call) []*value {
	x, bias, l := c.node(0), c.float("bias"), c.float("lambd")
	if x.Type.DType.IsInt() {
		y := c.shrunk(c.cast(x, graph.F64), bias, l)
		return one(c.cast(y, x.Type.DType))
	}
	return one(c.shrunk(x, bias, l))
}

// shrunk is x + bias below −l, x − bias above l, and else 0.
func (c *call) shrunk(x *graph.Node, bias, l float64) *graph.Node {
	above := c.choose(c.with(graph.Gt, x, l), c.with(graph.Sub, x, bias), c.scalar(x.Type.DType, 0))
	return c.choose(c.with(graph.Lt, x, -l), c.with(graph.Add, x, bias), above)
}

func buildClip(c *call) []*value {
	x := c.node(0)
	if c.entry("min") != nil {
		if lo := c.float("min"); !math.IsInf(lo, -1) {
			x = c.with(graph.Max, x, lo)
		}
		if hi := c.float("max"); !math.IsInf(hi, 1) {
			x = c.with(graph.Min, x, hi)
		}
		return one(x)
	}
	if c.there(1) {
		x = c.binary(graph.Max, x, c.node(1))
	}
	if c.there(2) {
		x = c.binary(graph.Min, x, c.node(2))
	}
	return one(x)
}

func buildIsInf(c *call) []*value {
	x := c.node(0)
	neg, pos := c.flag("detect_negative"), c.flag("detect_positive")
	switch {
	case neg && pos:
		return one(c.with(graph.Eq, c.unary(graph.Abs, x), math.Inf(1)))
	case neg:
		return one(c.with(graph.Eq, x, math.Inf(-1)))
	case pos:
		return one(c.with(graph.Eq, x, math.Inf(1)))
	}
	return one(c.filled(graph.Type{DType: graph.Bool, Shape: x.Type.Shape}, 0))
}

func buildWhere(c *call) []*value {
	cond, x, y := c.node(0), c.node(1), c.node(2)
	s := c.commonShape(cond, x, y)
	return one(c.expand(c.choose(cond, x, y), s))
}

func buildCast(c *call) []*value {
	d, err := elemType(int32(c.int("to")))
	if err != nil {
		k := pb.TensorProto_DataType(c.int("to"))
		c.refuse("a cast to %s is not supported", typeName(k))
	}
	return one(c.number(c.node(0), d))
}

// buildDropout is the identity, as outside of training, and a mask that is true.
func buildDropout(c *call) []*value {
	if c.there(2) {
		training := c.known(2)
		if training.Type.Shape.Elems() == 1 && training.Float(0) != 0 && (!c.there(1) || c.knownFloat(1) != 0) {
			c.refuse("dropout in training draws random numbers, which is not supported")
		}
	}
	x := c.node(0)
	return several(x, c.filled(graph.Type{DType: graph.Bool, Shape: x.Type.Shape}, 1))
}
