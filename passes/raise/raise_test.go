package raise_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/passes"
	"fusec/passes/passtest"
	"fusec/passes/raise"
)

// spelling is one way to write an operation of x, and what the pass leaves of it.
type spelling struct {
	name  string
	build func(b *graph.Builder, x *graph.Node) *graph.Node
	want  string // operations left; empty: whatever, but not the pattern's
}

// perRow is a row statistic of x, along the last axis, in x's shape.
func perRow(b *graph.Builder, f graph.ReduceFn, x, like *graph.Node) *graph.Node {
	last := like.Type.Shape.Rank() - 1
	return b.Broadcast(b.Reduce(f, x, true, last), like.Type.Shape)
}

var spellings = map[string][]spelling{
	"relu": {
		{"ge", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Times(b, x, passtest.Test0(b, graph.Ge, x))
		}, "relu"},
		{"gt, mask first", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Times(b, passtest.Test0(b, graph.Gt, x), x)
		}, "relu"},
		{"0 ≤ x", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Times(b, x, b.Add(graph.Cast{To: graph.F64}, b.Binary(graph.Le, b.Scalar(graph.F64, 0), x)))
		}, "relu"},
		{"max", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Binary(graph.Max, b.Scalar(graph.F64, 0), x)
		}, "relu"},
		{"the mask tests another value", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Times(b, x, passtest.Test0(b, graph.Ge, b.Unary(graph.Exp, x)))
		}, "exp ge cast f64 mul"},
		{"the mask compares with 1", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Times(b, x, b.Add(graph.Cast{To: graph.F64}, b.BinaryScalar(graph.Ge, x, 1)))
		}, "ge cast f64 mul"},
		{"the mask keeps the negative part", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Times(b, x, passtest.Test0(b, graph.Lt, x))
		}, "lt cast f64 mul"},
	},
	"leaky-relu": {
		{"gorgonia", func(b *graph.Builder, x *graph.Node) *graph.Node { return passtest.Leaky(b, x, 0.1) }, "leaky_relu(0.1)"},
		{"other brackets", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Plus(b, passtest.Times(b, passtest.Scale(b, x, 0.2), passtest.Test0(b, graph.Le, x)),
				passtest.Times(b, passtest.Test0(b, graph.Gt, x), x))
		}, "leaky_relu(0.2)"},
		{"both masks leave 0 out", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Plus(b, passtest.Times(b, passtest.Scale(b, x, 0.2), passtest.Test0(b, graph.Lt, x)),
				passtest.Times(b, passtest.Test0(b, graph.Gt, x), x))
		}, "mul lt cast f64 mul relu add"},
		{"the masks are of different values", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := b.Unary(graph.Sin, x)
			return passtest.Plus(b, passtest.Relu(b, x), passtest.Scale(b, passtest.Times(b, y, passtest.Test0(b, graph.Lt, y)), 0.1))
		}, ""},
	},
	"leaky-relu-two": {
		{"two rectifiers", func(b *graph.Builder, x *graph.Node) *graph.Node {
			half := func(x *graph.Node) *graph.Node { return b.BinaryScalar(graph.Max, x, 0) }
			return b.Binary(graph.Sub, half(x), passtest.Scale(b, half(b.Unary(graph.Neg, x)), 0.3))
		}, "leaky_relu(0.3)"},
		{"both rectifiers pass no gradient at 0", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Binary(graph.Sub, b.Unary(graph.Relu, x), passtest.Scale(b, b.Unary(graph.Relu, b.Unary(graph.Neg, x)), 0.3))
		}, "relu neg relu mul sub"},
		{"the rectifiers are of different values", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Binary(graph.Sub, b.Unary(graph.Relu, x), passtest.Scale(b, b.Unary(graph.Relu, b.Unary(graph.Sin, x)), 0.3))
		}, "relu sin relu mul sub"},
	},
	"leaky-relu-max": {
		{"slope 0.1", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Binary(graph.Max, passtest.Scale(b, x, 0.1), x)
		}, "leaky_relu(0.1)"},
		{"the slope is 2, more than 1", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Binary(graph.Max, passtest.Scale(b, x, 2), x)
		}, "mul max"},
	},
	"sigmoid": {
		{"1/(1+exp(-x))", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Binary(graph.Div, b.Scalar(graph.F64, 1), passtest.Shift(b, b.Unary(graph.Exp, b.Unary(graph.Neg, x)), 1))
		}, "sigmoid"},
		{"exp(x·−1)", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Unary(graph.Recip, passtest.Shift(b, b.Unary(graph.Exp, passtest.Scale(b, x, -1)), 1))
		}, "sigmoid"},
		{"e/(1+e)", func(b *graph.Builder, x *graph.Node) *graph.Node {
			e := b.Unary(graph.Exp, x)
			return b.Binary(graph.Div, e, passtest.Shift(b, e, 1))
		}, "sigmoid"},
		{"tanh", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Scale(b, passtest.Shift(b, b.Unary(graph.Tanh, b.BinaryScalar(graph.Div, x, 2)), 1), 0.5)
		}, "sigmoid"},
		{"1/(2+exp(-x))", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Unary(graph.Recip, passtest.Shift(b, b.Unary(graph.Exp, b.Unary(graph.Neg, x)), 2))
		}, "neg exp add recip"},
	},
	"softplus": {
		{"log", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Unary(graph.Log, passtest.Shift(b, b.Unary(graph.Exp, x), 1))
		}, "softplus"},
		{"log1p", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Unary(graph.Log1p, b.Unary(graph.Exp, x))
		}, "softplus"},
		{"log(2+exp)", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Unary(graph.Log, passtest.Shift(b, b.Unary(graph.Exp, x), 2))
		}, "exp add log"},
	},
	"silu": {
		{"x·sigmoid", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Times(b, b.Unary(graph.Sigmoid, x), x)
		}, "silu"},
		{"x/(1+exp(-x))", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Binary(graph.Div, x, passtest.Shift(b, b.Unary(graph.Exp, b.Unary(graph.Neg, x)), 1))
		}, "silu"},
		{"x·sigmoid by hand", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Times(b, x, b.Unary(graph.Recip, passtest.Shift(b, b.Unary(graph.Exp, b.Unary(graph.Neg, x)), 1)))
		}, "silu"},
		{"the gate is of another value", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Times(b, x, b.Unary(graph.Sigmoid, b.Unary(graph.Sin, x)))
		}, "sin sigmoid mul"},
	},
	"rsqrt": {
		{"1/sqrt", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Binary(graph.Div, b.Scalar(graph.F64, 1), b.Unary(graph.Sqrt, x))
		}, "rsqrt"},
		{"there is only a root", func(b *graph.Builder, x *graph.Node) *graph.Node { return b.Unary(graph.Sqrt, b.Unary(graph.Abs, x)) },
			"abs sqrt"},
	},
	"gelu-tanh": append(geluSpellings(),
		spelling{"multiplied out", func(b *graph.Builder, x *graph.Node) *graph.Node {
			u := passtest.Plus(b, passtest.Scale(b, x, passtest.Sqrt2Pi),
				passtest.Scale(b, b.Unary(graph.Cube, x), passtest.Sqrt2Pi*passtest.CubicC))
			return passtest.Times(b, passtest.Scale(b, x, 0.5), passtest.Shift(b, b.Unary(graph.Tanh, u), 1))
		}, "gelu_tanh"},
		spelling{"factored", func(b *graph.Builder, x *graph.Node) *graph.Node {
			u := passtest.Times(b, passtest.Scale(b, x, passtest.Sqrt2Pi),
				passtest.Shift(b, passtest.Scale(b, passtest.Times(b, x, x), passtest.CubicC), 1))
			return passtest.Scale(b, passtest.Times(b, passtest.Shift(b, b.Unary(graph.Tanh, u), 1), x), 0.5)
		}, "gelu_tanh"},
		spelling{"another constant", func(b *graph.Builder, x *graph.Node) *graph.Node {
			u := passtest.Scale(b, passtest.Plus(b, x, passtest.Scale(b, b.Unary(graph.Cube, x), 0.05)), passtest.Sqrt2Pi)
			return passtest.Times(b, passtest.Scale(b, x, 0.5), passtest.Shift(b, b.Unary(graph.Tanh, u), 1))
		}, "cube mul add mul mul tanh add mul"},
		spelling{"another x", func(b *graph.Builder, x *graph.Node) *graph.Node {
			u := passtest.Scale(b, passtest.Plus(b, x, passtest.Scale(b, b.Unary(graph.Cube, x), passtest.CubicC)), passtest.Sqrt2Pi)
			return passtest.Times(b, passtest.Scale(b, b.Unary(graph.Sin, x), 0.5), passtest.Shift(b, b.Unary(graph.Tanh, u), 1))
		}, ""}),
	"gelu-erf": {
		{"x/√2", func(b *graph.Builder, x *graph.Node) *graph.Node {
			e := passtest.Shift(b, b.Unary(graph.Erf, b.BinaryScalar(graph.Div, x, math.Sqrt2)), 1)
			return passtest.Scale(b, passtest.Times(b, x, e), 0.5)
		}, "gelu_erf"},
		{"x·0.70711", func(b *graph.Builder, x *graph.Node) *graph.Node {
			e := passtest.Shift(b, b.Unary(graph.Erf, passtest.Scale(b, x, 0.7071068)), 1)
			return passtest.Times(b, passtest.Scale(b, x, 0.5), e)
		}, "gelu_erf"},
		{"erf(x)", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Times(b, passtest.Scale(b, x, 0.5), passtest.Shift(b, b.Unary(graph.Erf, x), 1))
		}, "mul erf add mul"},
	},
	"mean": {
		{"÷n", func(b *graph.Builder, x *graph.Node) *graph.Node { return passtest.Mean(b, x, 0, 1) }, "mean[0,1]"},
		{"·1/n", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Scale(b, b.Reduce(graph.Sum, x, true, 1), 1/float64(x.Type.Shape.At(1)))
		}, "mean[1]"},
		{"two sums", func(b *graph.Builder, x *graph.Node) *graph.Node {
			s := b.Reduce(graph.Sum, b.Reduce(graph.Sum, x, false, 1), false, 0)
			return b.BinaryScalar(graph.Div, s, float64(x.Type.Shape.Elems()))
		}, "mean[0,1]"},
		{"the divisor is another number", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.BinaryScalar(graph.Div, b.Reduce(graph.Sum, x, false, 1), 11)
		}, "sum[1] div"},
	},
	"softmax": {
		{"with maximum", func(b *graph.Builder, x *graph.Node) *graph.Node {
			e := b.Unary(graph.Exp, b.Binary(graph.Sub, x, perRow(b, graph.MaxOf, x, x)))
			return b.Binary(graph.Div, e, perRow(b, graph.Sum, e, x))
		}, "softmax[1]"},
		{"without", func(b *graph.Builder, x *graph.Node) *graph.Node {
			e := b.Unary(graph.Exp, x)
			return b.Binary(graph.Div, e, passtest.Spread(b, b.Reduce(graph.Sum, e, false, 1), x))
		}, "softmax[1]"},
		{"reciprocal", func(b *graph.Builder, x *graph.Node) *graph.Node {
			e := b.Unary(graph.Exp, x)
			return passtest.Times(b, b.Broadcast(b.Unary(graph.Recip, b.Reduce(graph.Sum, e, true, 1)), x.Type.Shape), e)
		}, "softmax[1]"},
		{"maximum and sum along the first axis", func(b *graph.Builder, x *graph.Node) *graph.Node {
			e := b.Unary(graph.Exp, x)
			return b.Binary(graph.Div, e, b.Broadcast(b.Reduce(graph.Sum, e, false, 0), x.Type.Shape))
		}, "softmax[0]"},
		{"global maximum", func(b *graph.Builder, x *graph.Node) *graph.Node {
			e := b.Unary(graph.Exp, b.Binary(graph.Sub, x, b.Reduce(graph.MaxOf, x, false, 0, 1)))
			return b.Binary(graph.Div, e, perRow(b, graph.Sum, e, x))
		}, "softmax[1]"},
		{"the maximum is that of the other axis", func(b *graph.Builder, x *graph.Node) *graph.Node {
			e := b.Unary(graph.Exp, b.Binary(graph.Sub, x, b.Broadcast(b.Reduce(graph.MaxOf, x, true, 0), x.Type.Shape)))
			return b.Binary(graph.Div, e, perRow(b, graph.Sum, e, x))
		}, ""},
		{"over everything", func(b *graph.Builder, x *graph.Node) *graph.Node {
			e := b.Unary(graph.Exp, x)
			return b.Binary(graph.Div, e, b.Reduce(graph.Sum, e, false, 0, 1))
		}, "exp sum[0,1] div"},
		{"the sum is of other values", func(b *graph.Builder, x *graph.Node) *graph.Node {
			e := b.Unary(graph.Exp, x)
			return b.Binary(graph.Div, e, perRow(b, graph.Sum, b.Unary(graph.Square, e), x))
		}, "exp square sum[1] broadcast[5,5] div"},
		{"sums of rows along columns", func(b *graph.Builder, x *graph.Node) *graph.Node {
			e := b.Unary(graph.Exp, x)
			return b.Binary(graph.Div, e, b.Broadcast(b.Reduce(graph.Sum, e, false, 1), x.Type.Shape))
		}, "exp sum[1] broadcast[5,5] div"},
	},
	"log-of-softmax": {
		{"log", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Unary(graph.Log, b.Add(graph.Softmax{Axis: 0}, x))
		}, "log_softmax[0]"},
		{"log(softmax + ε)", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Unary(graph.Log, passtest.Shift(b, b.Add(graph.Softmax{Axis: 0}, x), 1e-9))
		}, "softmax[0] add log"},
	},
	"log-softmax": {
		{"d − log Σ exp d", func(b *graph.Builder, x *graph.Node) *graph.Node {
			d := b.Binary(graph.Sub, x, perRow(b, graph.MaxOf, x, x))
			return b.Binary(graph.Sub, d, b.Broadcast(b.Unary(graph.Log, b.Reduce(graph.Sum, b.Unary(graph.Exp, d), true, 1)), x.Type.Shape))
		}, "log_softmax[1]"},
		{"x − (m + log Σ exp d)", func(b *graph.Builder, x *graph.Node) *graph.Node {
			m := b.Reduce(graph.MaxOf, x, true, 1)
			d := b.Binary(graph.Sub, x, b.Broadcast(m, x.Type.Shape))
			l := b.Unary(graph.Log, b.Reduce(graph.Sum, b.Unary(graph.Exp, d), true, 1))
			return b.Binary(graph.Sub, x, b.Broadcast(passtest.Plus(b, m, l), x.Type.Shape))
		}, "log_softmax[1]"},
		{"x − log Σ exp x", func(b *graph.Builder, x *graph.Node) *graph.Node {
			l := b.Unary(graph.Log, b.Reduce(graph.Sum, b.Unary(graph.Exp, x), false, 1))
			return b.Binary(graph.Sub, x, passtest.Spread(b, l, x))
		}, "log_softmax[1]"},
		{"x − log Σ x", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Binary(graph.Sub, x, passtest.Spread(b, b.Unary(graph.Log, b.Reduce(graph.Sum, b.Unary(graph.Square, x), false, 1)), x))
		}, "square sum[1] log reshape[5,1] broadcast[5,5] sub"},
	},
	"layer-norm": {
		{"gorgonia", func(b *graph.Builder, x *graph.Node) *graph.Node { return passtest.LayerNorm(b, x, nil, nil) }, "layer_norm"},
		{"rsqrt", func(b *graph.Builder, x *graph.Node) *graph.Node {
			d := b.Binary(graph.Sub, x, perRow(b, graph.Mean, x, x))
			v := b.Reduce(graph.Mean, b.Unary(graph.Square, d), true, 1)
			return passtest.Times(b, d, b.Broadcast(b.Unary(graph.Rsqrt, passtest.Shift(b, v, 1e-6)), x.Type.Shape))
		}, "layer_norm"},
		{"root after the broadcast, power, no eps", func(b *graph.Builder, x *graph.Node) *graph.Node {
			d := b.Binary(graph.Sub, x, perRow(b, graph.Mean, x, x))
			v := perRow(b, graph.Mean, passtest.Times(b, d, d), x)
			return b.Binary(graph.Div, d, b.BinaryScalar(graph.Pow, v, 0.5))
		}, "layer_norm"},
		{"power −½", func(b *graph.Builder, x *graph.Node) *graph.Node {
			d := b.Binary(graph.Sub, x, perRow(b, graph.Mean, x, x))
			v := perRow(b, graph.Mean, passtest.Times(b, d, d), x)
			return passtest.Times(b, d, b.BinaryScalar(graph.Pow, passtest.Shift(b, v, 1e-5), -0.5))
		}, "layer_norm"},
		{"mean of squares less square of mean", func(b *graph.Builder, x *graph.Node) *graph.Node {
			m := b.Reduce(graph.Mean, x, true, 1)
			v := b.Binary(graph.Sub, b.Reduce(graph.Mean, b.Unary(graph.Square, x), true, 1), b.Unary(graph.Square, m))
			d := b.Binary(graph.Sub, x, b.Broadcast(m, x.Type.Shape))
			return b.Binary(graph.Div, d, b.Broadcast(b.Unary(graph.Sqrt, passtest.Shift(b, v, 1e-2)), x.Type.Shape))
		}, "layer_norm"},
		{"it is taken along the first axis", func(b *graph.Builder, x *graph.Node) *graph.Node {
			d := b.Binary(graph.Sub, x, b.Broadcast(b.Reduce(graph.Mean, x, false, 0), x.Type.Shape))
			v := b.Reduce(graph.Mean, b.Unary(graph.Square, d), false, 0)
			return b.Binary(graph.Div, d, b.Broadcast(b.Unary(graph.Sqrt, passtest.Shift(b, v, 1e-5)), x.Type.Shape))
		}, "mean[0] broadcast[5,5] sub square mean[0] add sqrt broadcast[5,5] div"},
		{"eps outside the root", func(b *graph.Builder, x *graph.Node) *graph.Node {
			d := b.Binary(graph.Sub, x, perRow(b, graph.Mean, x, x))
			v := b.Reduce(graph.Mean, b.Unary(graph.Square, d), true, 1)
			return b.Binary(graph.Div, d, b.Broadcast(passtest.Shift(b, b.Unary(graph.Sqrt, v), 1e-5), x.Type.Shape))
		}, "mean[1] broadcast[5,5] sub square mean[1] sqrt add broadcast[5,5] div"},
	},
	"rms-norm": {
		{"÷ root", func(b *graph.Builder, x *graph.Node) *graph.Node {
			v := b.Reduce(graph.Mean, b.Unary(graph.Square, x), true, 1)
			return b.Binary(graph.Div, x, b.Broadcast(b.Unary(graph.Sqrt, passtest.Shift(b, v, 1e-6)), x.Type.Shape))
		}, "rms_norm"},
		{"· rsqrt", func(b *graph.Builder, x *graph.Node) *graph.Node {
			v := passtest.Mean(b, b.Unary(graph.Square, x), 1)
			return passtest.Times(b, passtest.Spread(b, b.Unary(graph.Rsqrt, passtest.Shift(b, v, 1e-6)), x), x)
		}, "rms_norm"},
		{"a sum of squares instead of a mean", func(b *graph.Builder, x *graph.Node) *graph.Node {
			v := b.Reduce(graph.Sum, b.Unary(graph.Square, x), true, 1)
			return b.Binary(graph.Div, x, b.Broadcast(b.Unary(graph.Sqrt, v), x.Type.Shape))
		}, "square sum[1] sqrt broadcast[5,5] div"},
	},
	"norm-gamma": {
		{"vector", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.LayerNorm(b, x, b.Param("gamma", passtest.F64(1, 5)), nil)
		}, "reshape[5] layer_norm"},
		{"rms", func(b *graph.Builder, x *graph.Node) *graph.Node {
			n := b.Add(graph.RMSNorm{Eps: 1e-5}, x, b.Const(graph.Filled(passtest.F64(5), 1)))
			return passtest.Times(b, b.Broadcast(b.Param("gamma", passtest.F64(5)), x.Type.Shape), n)
		}, "rms_norm"},
		{"the vector is a column", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Times(b, passtest.LayerNorm(b, x, nil, nil), b.Broadcast(b.Param("gamma", passtest.F64(5, 1)), x.Type.Shape))
		}, "layer_norm broadcast[5,5] mul"},
		{"others read the norm", func(b *graph.Builder, x *graph.Node) *graph.Node {
			n := passtest.LayerNorm(b, x, nil, nil)
			return passtest.Plus(b, n, passtest.Times(b, n, b.Broadcast(b.Param("gamma", passtest.F64(5)), x.Type.Shape)))
		}, "layer_norm broadcast[5,5] mul add"},
	},
	"norm-beta": {
		{"both", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.LayerNorm(b, x, b.Param("gamma", passtest.F64(5)), b.Param("beta", passtest.F64(5)))
		}, "layer_norm"},
		{"alone", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.LayerNorm(b, x, nil, b.Param("beta", passtest.F64(5)))
		}, "layer_norm"},
		{"what is added is no vector", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Plus(b, passtest.LayerNorm(b, x, nil, nil), x)
		}, "layer_norm add"},
	},
	"conv2d": {
		{"gorgonia", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Conv(b, b.Reshape(x, 1, 1, 5, 5), b.Param("f", passtest.F64(3, 1, 2, 2)), 2, 1, 1)
		}, "reshape[1,1,5,5] conv2d"},
		{"one filter", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Conv(b, b.Reshape(x, 1, 1, 5, 5), b.Param("f", passtest.F64(1, 1, 3, 3)), 1, 0, 2)
		}, "reshape[1,1,5,5] conv2d"},
		{"one position", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Conv(b, b.Reshape(x, 1, 1, 5, 5), b.Param("f", passtest.F64(3, 1, 5, 5)), 1, 0, 1)
		}, "reshape[1,1,5,5] conv2d"},
		{"filters in columns", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := b.MatMul(patches(b, x), b.Param("f", passtest.F64(4, 3)), false, false)
			return b.Transpose(b.Reshape(y, 1, 4, 4, 3), 0, 3, 1, 2)
		}, "reshape[1,1,5,5] transpose[1,0] reshape[3,1,2,2] conv2d"},
		{"the rows of patches stay rows, which conv2d-rows finds", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := passtest.Conv(b, b.Reshape(x, 1, 1, 5, 5), b.Param("f", passtest.F64(3, 1, 2, 2)), 1, 0, 1)
			return b.Transpose(y, 0, 2, 3, 1)
		}, ""},
		{"the axes are in another order, which conv2d-rows finds", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := passtest.Conv(b, b.Reshape(x, 1, 1, 5, 5), b.Param("f", passtest.F64(3, 1, 2, 2)), 1, 0, 1)
			return b.Transpose(y, 0, 1, 3, 2)
		}, ""},
	},
	"conv2d-rows": {
		{"rows", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.MatMul(patches(b, x), b.Param("f", passtest.F64(3, 4)), false, true)
		}, "reshape[1,1,5,5] reshape[3,1,2,2] conv2d transpose[0,2,3,1] reshape[16,3]"},
		{"a bias before the axes are moved", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := b.MatMul(patches(b, x), b.Param("f", passtest.F64(4, 3)), false, false)
			y = passtest.Plus(b, y, b.Broadcast(b.Param("b", passtest.F64(3)), y.Type.Shape))
			return b.Transpose(b.Reshape(y, 1, 4, 4, 3), 0, 3, 1, 2)
		}, "reshape[1,1,5,5] transpose[1,0] reshape[3,1,2,2] conv2d transpose[0,2,3,1] reshape[16,3] broadcast[16,3] add " +
			"reshape[1,4,4,3] transpose[0,3,1,2]"},
		{"columns", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.MatMul(b.Param("f", passtest.F64(3, 4)), patches(b, x), false, true)
		}, "reshape[1,1,5,5] reshape[3,1,2,2] conv2d transpose[1,0,2,3] reshape[3,16]"},
		{"an image at a time", func(b *graph.Builder, x *graph.Node) *graph.Node {
			p := b.Reshape(patches(b, x), 1, 16, 4)
			return b.Reshape(b.MatMul(b.Param("f", passtest.F64(3, 4)), p, false, true), 1, 3, 4, 4)
		}, "reshape[1,1,5,5] reshape[3,1,2,2] conv2d reshape[1,3,16] reshape[1,3,4,4]"},
		{"patches times patches", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.MatMul(patches(b, x), patches(b, x), true, false)
		}, "reshape[1,1,5,5] im2col reshape[16,4] matmulᵀA"},
		{"patches are cut apart", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.MatMul(b.Reshape(patches(b, x), 32, 2), b.Param("f", passtest.F64(3, 2)), false, true)
		}, "reshape[1,1,5,5] im2col reshape[32,2] matmulᵀB"},
	},
	"conv2d-pointwise": {
		{"one image", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := b.MatMul(b.Param("f", passtest.F64(3, 5)), pixels(b, x, 1), false, false)
			return b.Reshape(y, 1, 3, 2, 2)
		}, "tanh slice[1,5] reshape[5,1,1] broadcast[1,5,2,2] mul reshape[3,5,1,1] conv2d"},
		{"images", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := b.MatMul(b.Param("f", passtest.F64(3, 5)), pixels(b, x, 2), false, false)
			return b.Reshape(y, 2, 3, 2, 2)
		}, "tanh slice[1,5] reshape[5,1,1] broadcast[2,5,2,2] mul reshape[3,5,1,1] conv2d"},
		{"filters in columns", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := b.MatMul(b.Param("f", passtest.F64(5, 3)), pixels(b, x, 2), true, false)
			return b.Reshape(y, 2, 3, 2, 2)
		}, "tanh slice[1,5] reshape[5,1,1] broadcast[2,5,2,2] mul transpose[1,0] reshape[3,5,1,1] conv2d"},
		{"transposed pixels of one image", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := b.MatMul(pixels(b, x, 1), b.Param("f", passtest.F64(5, 3)), true, false)
			return b.Reshape(b.Transpose(y, 1, 0), 1, 3, 2, 2)
		}, "tanh slice[1,5] reshape[5,1,1] broadcast[1,5,2,2] mul transpose[1,0] reshape[3,5,1,1] conv2d"},
		{"transposed pixels and filters", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := b.MatMul(pixels(b, x, 1), b.Param("f", passtest.F64(3, 5)), true, true)
			return b.Reshape(b.Transpose(y, 1, 0), 1, 3, 2, 2)
		}, "tanh slice[1,5] reshape[5,1,1] broadcast[1,5,2,2] mul reshape[3,5,1,1] conv2d"},
		{"the result is no image of that size", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := b.MatMul(b.Param("f", passtest.F64(3, 5)), pixels(b, x, 2), false, false)
			return b.Reshape(y, 2, 3, 4, 1)
		}, ""},
		{"each image has filters of its own", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := b.MatMul(b.Param("f", passtest.F64(2, 3, 5)), pixels(b, x, 2), false, false)
			return b.Reshape(y, 2, 3, 2, 2)
		}, ""},
	},
	"conv2d-channels": {
		{"rows of patches", func(b *graph.Builder, x *graph.Node) *graph.Node {
			p := b.Reshape(b.Add(im2col, channels(b, x)), 32, 2, 4)
			return b.Reduce(graph.Sum, b.Binary(graph.Mul, p, b.Broadcast(b.Param("f", passtest.F64(2, 4)), p.Type.Shape)), false, 2)
		}, "broadcast[1,2,5,5] concat reshape[2,1,2,2] conv2d transpose[0,2,3,1] reshape[32,2]"},
		{"five axes, filters first", func(b *graph.Builder, x *graph.Node) *graph.Node {
			p := b.Reshape(b.Add(im2col, channels(b, x)), 2, 4, 4, 2, 4)
			y := b.Reduce(graph.Sum, b.Binary(graph.Mul, b.Broadcast(b.Param("f", passtest.F64(1, 2, 4)), p.Type.Shape), p), false, 4)
			return b.Transpose(y, 0, 3, 1, 2)
		}, "broadcast[1,2,5,5] concat reshape[2,1,2,2] conv2d transpose[0,2,3,1] transpose[0,3,1,2]"},
		{"the sum is over channels, too", func(b *graph.Builder, x *graph.Node) *graph.Node {
			p := b.Reshape(b.Add(im2col, channels(b, x)), 32, 2, 4)
			return b.Reduce(graph.Sum, b.Binary(graph.Mul, p, b.Broadcast(b.Param("f", passtest.F64(2, 4)), p.Type.Shape)), false, 1, 2)
		}, ""},
		{"the filters differ by place", func(b *graph.Builder, x *graph.Node) *graph.Node {
			p := b.Reshape(b.Add(im2col, channels(b, x)), 32, 2, 4)
			return b.Reduce(graph.Sum, b.Binary(graph.Mul, p, b.Param("f", passtest.F64(32, 2, 4))), false, 2)
		}, ""},
		{"one number for each channel", func(b *graph.Builder, x *graph.Node) *graph.Node {
			p := b.Reshape(b.Add(im2col, channels(b, x)), 32, 2, 4)
			return b.Reduce(graph.Sum, b.Binary(graph.Mul, p, b.Broadcast(b.Param("f", passtest.F64(2, 1)), p.Type.Shape)), false, 2)
		}, ""},
	},
	"conv2d-groups": {
		{"filters of their own", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return groups(b, channels(b, x), []int{0, 1}, func(i int) *graph.Node {
				return b.Param(fmt.Sprint("f", i), passtest.F64(3, 1, 2, 2))
			})
		}, "broadcast[1,2,5,5] concat concat conv2d"},
		{"filters of one tensor", func(b *graph.Builder, x *graph.Node) *graph.Node {
			f := b.Param("f", passtest.F64(6, 1, 2, 2))
			return groups(b, channels(b, x), []int{0, 1}, func(i int) *graph.Node { return b.Slice(f, 0, 3*i, 3, 1) })
		}, "broadcast[1,2,5,5] concat conv2d"},
		{"each with its activation", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := groups(b, channels(b, x), []int{0, 1}, func(i int) *graph.Node {
				return b.Param(fmt.Sprint("f", i), passtest.F64(3, 1, 2, 2))
			})
			for i, a := range y.Args {
				y.Args[i] = b.Unary(graph.Tanh, b.Unary(graph.Exp, a))
			}
			return b.Add(graph.Concat{Axis: 1}, y.Args...)
		}, "broadcast[1,2,5,5] concat concat conv2d exp tanh"},
		{"different activations", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := groups(b, channels(b, x), []int{0, 1}, func(i int) *graph.Node {
				return b.Param(fmt.Sprint("f", i), passtest.F64(3, 1, 2, 2))
			})
			return b.Add(graph.Concat{Axis: 1}, b.Unary(graph.Tanh, y.Args[0]), b.Unary(graph.Exp, y.Args[1]))
		}, ""},
		{"channels in another order", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return groups(b, channels(b, x), []int{1, 0}, func(i int) *graph.Node {
				return b.Param(fmt.Sprint("f", i), passtest.F64(3, 1, 2, 2))
			})
		}, ""},
		{"some filters are more", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return groups(b, channels(b, x), []int{0, 1}, func(i int) *graph.Node {
				return b.Param(fmt.Sprint("f", i), passtest.F64(3+i, 1, 2, 2))
			})
		}, ""},
		{"images of their own", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := groups(b, channels(b, x), []int{0}, func(i int) *graph.Node { return b.Param("f", passtest.F64(3, 1, 2, 2)) })
			return b.Add(graph.Concat{Axis: 1}, y, b.Unary(graph.Exp, y))
		}, ""},
	},
	"conv2d-pixels": {
		{"rows of pixels", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return imagesOf(b, b.MatMul(pixelRows(b, x), b.Param("f", passtest.F64(2, 3)), false, false))
		}, "broadcast[1,2,5,5] concat transpose[1,0] reshape[3,2,1,1] conv2d"},
		{"with a bias and an activation", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := b.MatMul(pixelRows(b, x), b.Param("f", passtest.F64(3, 2)), false, true)
			y = b.Binary(graph.Sub, b.Broadcast(b.Param("v", passtest.F64(3)), y.Type.Shape), y)
			return imagesOf(b, b.Unary(graph.Tanh, passtest.Scale(b, y, 0.5)))
		}, "broadcast[1,2,5,5] concat reshape[3,2,1,1] conv2d reshape[1,3,1,1] broadcast[2,3,5,5] sub mul tanh"},
		{"others read the rows", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := b.MatMul(pixelRows(b, x), b.Param("f", passtest.F64(2, 3)), false, false)
			b.Output("rows", b.Unary(graph.Exp, y))
			return imagesOf(b, y)
		}, ""},
		{"a number for each row", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := b.MatMul(pixelRows(b, x), b.Param("f", passtest.F64(2, 3)), false, false)
			return imagesOf(b, passtest.Plus(b, y, b.Broadcast(b.Param("v", passtest.F64(50, 1)), y.Type.Shape)))
		}, ""},
		{"rows of other pixels", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return imagesOf(b, b.MatMul(b.Reshape(channels(b, x), 50, 2), b.Param("f", passtest.F64(2, 3)), false, false))
		}, ""},
		{"rows of channels", func(b *graph.Builder, x *graph.Node) *graph.Node {
			r := b.Reshape(b.Transpose(channels(b, x), 0, 3, 2, 1), 50, 2)
			return imagesOf(b, b.MatMul(r, b.Param("f", passtest.F64(2, 3)), false, false))
		}, ""},
		{"no product", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return imagesOf(b, b.Param("p", passtest.F64(50, 3)))
		}, ""},
		{"columns", func(b *graph.Builder, x *graph.Node) *graph.Node {
			r := b.Reshape(b.Transpose(channels(b, x), 1, 0, 2, 3), 2, 50)
			return imagesOf(b, b.MatMul(r, b.Param("f", passtest.F64(2, 3)), true, false))
		}, ""},
	},
	"conv2d-shifts": {
		{"windows of 1×3", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return shifts(b, b.Slice(channels(b, x), 3, 0, 4, 1), 1, 3, 1, nil)
		}, "broadcast[1,2,5,5] concat slice[2,2,5,4] reshape[2,1] reshape[2,1] reshape[2,1] concat reshape[2,1,1,3] conv2d"},
		{"windows of 2×2", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return shifts(b, channels(b, x), 2, 2, 1, nil)
		}, "broadcast[1,2,5,5] concat slice[2,2,5,3] reshape[2,1] reshape[2,1] reshape[2,1] reshape[2,1] concat reshape[2,1,2,2] conv2d"},
		{"a bias, and every other pixel", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := shifts(b, channels(b, x), 1, 3, 2, nil)
			return passtest.Plus(b, b.Broadcast(b.Param("bias", passtest.F64(2, 1, 1)), y.Type.Shape), y)
		}, "broadcast[1,2,5,5] concat broadcast[2,2,3,2] reshape[2,1] reshape[2,1] reshape[2,1] concat reshape[2,1,1,3] conv2d add"},
		{"two shifts", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return shifts(b, channels(b, x), 2, 1, 1, nil)
		}, ""},
		{"one is missing", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return shifts(b, channels(b, x), 2, 2, 1, func(i, j int) (int, int) { return i, j * (1 - i) })
		}, ""},
		{"uneven shifts", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return shifts(b, channels(b, x), 1, 3, 1, func(i, j int) (int, int) { return i, j * (j + 1) / 2 })
		}, ""},
		{"others read a term", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := shifts(b, channels(b, x), 2, 2, 1, nil)
			b.Output("term", b.Unary(graph.Exp, y.Args[1]))
			return y
		}, ""},
		{"numbers for each place", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := channels(b, x)
			part := func(i int) *graph.Node {
				p := b.Slice(y, 3, i, 3, 1)
				return b.Binary(graph.Mul, p, b.Broadcast(b.Param(fmt.Sprint("f", i), passtest.F64(5, 3)), p.Type.Shape))
			}
			return passtest.Plus(b, passtest.Plus(b, part(0), part(1)), part(2))
		}, ""},
		{"many other terms", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := shifts(b, channels(b, x), 2, 2, 1, nil)
			for i := range 3 {
				y = passtest.Plus(b, y, b.Param(fmt.Sprint("r", i), y.Type))
			}
			return y
		}, ""},
	},
	"global-pool": {
		{"mean", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Reduce(graph.Mean, b.Reshape(channels(b, x), 2, 2, 25), false, 2)
		}, "broadcast[1,2,5,5] concat mean[2,3]"},
		{"maximum, axis kept", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Reduce(graph.MaxOf, b.Reshape(channels(b, x), 2, 2, 25), true, 2)
		}, "broadcast[1,2,5,5] concat max[2,3] reshape[2,2,1]"},
		{"other rows", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Reduce(graph.Mean, b.Reshape(channels(b, x), 2, 10, 5), false, 2)
		}, ""},
		{"others read the row", func(b *graph.Builder, x *graph.Node) *graph.Node {
			r := b.Reshape(channels(b, x), 2, 2, 25)
			return passtest.Plus(b, r, b.Broadcast(b.Reduce(graph.Mean, r, true, 2), r.Type.Shape))
		}, ""},
	},
}

// im2col has patches of 2×2.
var im2col = graph.Im2Col{Kernel: graph.IntsOf(2, 2), Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1),
	Pad: graph.IntsOf(0, 0, 0, 0)}

// patches are the rows of patches of x [5,5] as one image.
func patches(b *graph.Builder, x *graph.Node) *graph.Node {
	return b.Reshape(b.Add(im2col, b.Reshape(x, 1, 1, 5, 5)), 16, 4)
}

// channels are two images of 2 channels made of x [5,5].
func channels(b *graph.Builder, x *graph.Node) *graph.Node {
	return b.Add(graph.Concat{Axis: 0}, b.Broadcast(b.Reshape(x, 1, 1, 5, 5), graph.ShapeOf(1, 2, 5, 5)),
		b.Param("more", passtest.F64(1, 2, 5, 5)))
}

// pixelRows are the pixels of images of 2 channels and 5×5 pixels as rows, imagesOf 3 channels of such rows as images.
func pixelRows(b *graph.Builder, x *graph.Node) *graph.Node {
	return b.Reshape(b.Transpose(channels(b, x), 0, 2, 3, 1), 50, 2)
}

func imagesOf(b *graph.Builder, rows *graph.Node) *graph.Node {
	return b.Transpose(b.Reshape(rows, 2, 5, 5, 3), 0, 3, 1, 2)
}

// shifts sums parts of images x of kh·kw shifts, or other ones, each times a number for each channel, of every step-th pixel.
func shifts(b *graph.Builder, x *graph.Node, kh, kw, step int, other func(i, j int) (int, int)) (sum *graph.Node) {
	for i := range kh {
		for j := range kw {
			y, z := i, j
			if other != nil {
				y, z = other(i, j)
			}
			part := b.Slice(x, 2, y, (5-kh)/step+1, step)
			if part = b.Slice(part, 3, z, 2, step); (i+j)%2 == 0 { // the axes in either order
				part = b.Slice(b.Slice(x, 3, z, 2, step), 2, y, (5-kh)/step+1, step)
			}
			term := b.Binary(graph.Mul, part, b.Broadcast(b.Param(fmt.Sprint("f", i, j), passtest.F64(1, 2, 1, 1)), part.Type.Shape))
			if sum == nil {
				sum = term
			} else {
				sum = passtest.Plus(b, sum, term)
			}
		}
	}
	return sum
}

// pixels are those of n images of 5 channels and 2×2 pixels, an image a matrix.
func pixels(b *graph.Builder, x *graph.Node, n int) *graph.Node {
	y := b.Unary(graph.Tanh, b.Param("more", passtest.F64(n, 5, 2, 2)))
	y = b.Binary(graph.Mul, y, b.Broadcast(b.Reshape(b.Slice(x, 0, 0, 1, 1), 5, 1, 1), y.Type.Shape))
	if n == 1 {
		return b.Reshape(y, 5, 4)
	}
	return b.Reshape(y, n, 5, 4)
}

// groups joins convolutions of single channels of x.
func groups(b *graph.Builder, x *graph.Node, channels []int, filters func(i int) *graph.Node) *graph.Node {
	var ys []*graph.Node
	op := graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(1, 0, 0, 1), Groups: 1}
	for i, c := range channels {
		ys = append(ys, b.Add(op, b.Slice(x, 1, c, 1, 1), filters(i)))
	}
	return b.Add(graph.Concat{Axis: 1}, ys...)
}

// geluSpellings writes the cubic form with every bracketing and order of the outer product, and the cube in every way.
func geluSpellings() []spelling {
	cubes := map[string]func(b *graph.Builder, x *graph.Node) *graph.Node{
		"cube": func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Scale(b, b.Unary(graph.Cube, x), passtest.CubicC)
		},
		"x·x·x": func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Scale(b, passtest.Times(b, passtest.Times(b, x, x), x), passtest.CubicC)
		},
		"pow": func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Scale(b, b.BinaryScalar(graph.Pow, x, 3), 0.0447150)
		},
		"c·x·x·x": func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Times(b, passtest.Times(b, passtest.Scale(b, x, passtest.CubicC), x), x)
		},
		"x²·cx": func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Times(b, b.Unary(graph.Square, x), passtest.Scale(b, x, passtest.CubicC))
		},
	}
	outers := map[string]func(b *graph.Builder, x, u *graph.Node) *graph.Node{
		"(½x)u": func(b *graph.Builder, x, u *graph.Node) *graph.Node {
			return passtest.Times(b, passtest.Scale(b, x, 0.5), u)
		},
		"½(xu)": func(b *graph.Builder, x, u *graph.Node) *graph.Node {
			return passtest.Scale(b, passtest.Times(b, u, x), 0.5)
		},
		"x(½u)": func(b *graph.Builder, x, u *graph.Node) *graph.Node {
			return passtest.Times(b, x, passtest.Scale(b, u, 0.5))
		},
		"xu÷2": func(b *graph.Builder, x, u *graph.Node) *graph.Node {
			return b.BinaryScalar(graph.Div, passtest.Times(b, x, u), 2)
		},
	}
	var out []spelling
	for _, cn := range slices.Sorted(maps.Keys(cubes)) {
		for _, on := range slices.Sorted(maps.Keys(outers)) {
			cube, outer := cubes[cn], outers[on]
			for _, swap := range []bool{false, true} {
				out = append(out, spelling{fmt.Sprintf("%s, %s, %v", cn, on, swap), func(b *graph.Builder, x *graph.Node) *graph.Node {
					l, r := x, cube(b, x)
					if swap {
						l, r = r, l
					}
					u := passtest.Shift(b, b.Unary(graph.Tanh, passtest.Scale(b, passtest.Plus(b, l, r), 0.7978846)), 1)
					return outer(b, x, u)
				}, "gelu_tanh"})
			}
		}
	}
	return out
}

// TestRaise runs every spelling on square values, and checks the others' values on odd shapes.
func TestRaise(t *testing.T) {
	for _, p := range raise.Patterns() {
		if len(spellings[p.Name]) == 0 {
			t.Errorf("pattern %s has no test", p.Name)
		}
		matches := 0
		for _, s := range spellings[p.Name] {
			t.Run(p.Name+"/"+s.name, func(t *testing.T) {
				g := graphtest.Built(t, func(b *graph.Builder) { b.Output("y", s.build(b, b.Input("x", passtest.F64(5, 5)))) })
				h, tr := passtest.Run(t, g, passes.Config{Stop: "raise"})
				if got := passtest.Ops(h); s.want != "" && got != s.want {
					t.Errorf("left: %s\nwant: %s", got, s.want)
				}
				did := strings.Contains(" "+passtest.Matched(passtest.Stage(t, tr, "raise"))+" ", " "+p.Name+" ")
				if did {
					matches++
				}
				if did && s.want == "" {
					t.Errorf("matched, and must not")
				}
			})
		}
		if matches == 0 || matches == len(spellings[p.Name]) {
			t.Errorf("pattern %s: %d of %d spellings match; want some that do and some that do not", p.Name, matches, len(spellings[p.Name]))
		}
	}
}

// TestRaiseOddShapes checks values where axes have size 1 and others.
func TestRaiseOddShapes(t *testing.T) {
	for name, list := range spellings {
		if strings.HasPrefix(name, "norm-") || strings.HasPrefix(name, "conv2d") || name == "global-pool" {
			continue // their parameters have the size of the square
		}
		for _, s := range list {
			for _, d := range [][2]int{{1, 1}, {1, 7}, {7, 1}, {3, 5}, {2, 2}} {
				b := graph.NewBuilder("test")
				b.Output("y", s.build(b, b.Input("x", passtest.F64(d[0], d[1]))))
				g, err := b.Graph()
				if err != nil {
					continue // a spelling of square values
				}
				t.Run(fmt.Sprint(name, "/", s.name, d), func(t *testing.T) { passtest.Run(t, g, passes.Config{}) })
			}
		}
	}
}

// TestRaiseSlopes compares the derivative of each spelling of a rectifier at 0 and beside it with that of the graph as
// written.
func TestRaiseSlopes(t *testing.T) {
	for name, list := range spellings {
		if !strings.HasSuffix(name, "relu") && !strings.HasPrefix(name, "leaky-relu") {
			continue
		}
		for _, s := range list {
			b := graph.NewBuilder("slopes")
			x := b.Input("x", passtest.F64(5))
			y := s.build(b, x)
			cost := b.Reduce(graph.Sum, b.Binary(graph.Mul, y, b.Input("dy", passtest.F64(5))), false, 0)
			b.Output("cost", cost)
			g, err := b.Graph()
			if err != nil {
				t.Fatal(err)
			}
			h, _, err := passes.Run(g, passes.Config{Verify: true, Gradients: []passes.Gradient{{Cost: cost, Of: x, Output: "dx"}}})
			if err != nil {
				t.Fatal(err)
			}
			plain, to := g.Clone()
			ds, err := graph.Gradients(plain, to[cost], []*graph.Node{to[x]})
			if err != nil {
				t.Fatal(err)
			}
			graph.Extend(plain).Output("dx", ds[0])
			in := map[string]*graph.Tensor{
				"x":  {Type: x.Type, Data: []float64{-2, math.Copysign(0, -1), 0, 3, 0}},
				"dy": {Type: x.Type, Data: []float64{1, 2, 3, 4, -5}},
			}
			want, _ := passtest.Eval(t, plain, in)
			got, _ := passtest.Eval(t, h, in)
			for i, w := range want["dx"].Floats() {
				if d := got["dx"].Float(i); math.Abs(d-w) > 1e-12 {
					t.Errorf("%s, %s: dx[%d] is %v, as written %v", name, s.name, i, d, w)
				}
			}
		}
	}
}

// TestRaiseComposed stacks spellings at random and checks values, and gradients against those of the graph as written.
func TestRaiseComposed(t *testing.T) {
	var all []spelling
	for _, p := range raise.Patterns() {
		if !strings.HasPrefix(p.Name, "conv2d") && p.Name != "global-pool" {
			all = append(all, spellings[p.Name]...)
		}
	}
	n := uint64(200)
	if testing.Short() {
		n = 30
	}
	for seed := range n {
		r := rand.New(rand.NewPCG(seed, 3))
		var names []string
		var cost, x *graph.Node
		b := graph.NewBuilder("composed")
		x = b.Input("x", passtest.F64(5, 5))
		y := x
		for range 1 + r.IntN(5) {
			s := all[r.IntN(len(all))]
			z := s.build(b, y)
			if b.Err() != nil || z.Type.Shape.Rank() > 0 && z.Type != y.Type {
				continue
			}
			if r.IntN(3) == 0 {
				z = passtest.Plus(b, y, z)
			}
			if z.Type == y.Type {
				y = z
				names = append(names, s.name)
			}
		}
		cost = b.Reduce(graph.Sum, b.Unary(graph.Sin, y), false, 0, 1)
		b.Output("y", y)
		b.Output("cost", cost)
		g, err := b.Graph()
		if err != nil {
			continue // two parameters of one name
		}
		h, _, err := passes.Run(g, passes.Config{Verify: true, Gradients: []passes.Gradient{{Cost: cost, Of: x, Output: "dx"}}})
		if err != nil {
			t.Fatalf("%q: %v", names, err)
		}
		plain, to := g.Clone()
		ds, err := graph.Gradients(plain, to[cost], []*graph.Node{to[x]})
		if err != nil {
			t.Fatalf("%q: %v", names, err)
		}
		plain.Outputs = append(plain.Outputs, graph.Output{Name: "dx", Node: ds[0]})
		if err := passtest.Same(plain, h, graphtest.Values(r, g)); err != nil {
			t.Errorf("seed %d, %q: %v", seed, names, err)
		}
	}
}

// TestRaiseF32 checks that attributes are what the user wrote, not what f32 made of it.
func TestRaiseF32(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		x := b.Input("x", graph.TypeOf(graph.F32, 3, 5))
		b.Output("y", passtest.LayerNorm(b, passtest.Leaky(b, x, 0.1), nil, nil))
		b.Output("z", passtest.Leaky(b, b.Unary(graph.Neg, x), 0.1)) // whose contract allows what 0.1 in f32 is off
	})
	h, _ := passtest.Run(t, g, passes.Config{Stop: "raise"})
	norm := h.Outputs[0].Node
	if norm.Op != (graph.LayerNorm{Eps: 1e-5}) ||
		norm.Args[0].Op != (graph.Unary{Fn: graph.LeakyRelu, Alpha: 0.1, AtZero: graph.RightSlope}) {
		t.Errorf("%+v of %+v", norm.Op, norm.Args[0].Op)
	}
}

// TestRaiseKeepsReaders checks that values inside a match stay for those that read them.
func TestRaiseKeepsReaders(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		x := b.Input("x", passtest.F64(3, 5))
		e := b.Unary(graph.Exp, x)
		b.Output("y", b.Binary(graph.Div, e, perRow(b, graph.Sum, e, x)))
		b.Output("e", e)
		d := b.Binary(graph.Sub, x, perRow(b, graph.Mean, x, x))
		b.Output("d", d)
		v := perRow(b, graph.Mean, b.Unary(graph.Square, d), x)
		b.Output("n", b.Binary(graph.Div, d, b.Unary(graph.Sqrt, passtest.Shift(b, v, 1e-3))))
	})
	h, _ := passtest.Run(t, g, passes.Config{Stop: "raise"})
	if got, want := passtest.Ops(h), "exp softmax[1] mean[1] broadcast[3,5] sub layer_norm"; got != want {
		t.Errorf("left: %s\nwant: %s", got, want)
	}
}

// TestRaiseLeavesRoot has norms whose root something else reads: raised, it would be computed twice.
func TestRaiseLeavesRoot(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		x := b.Input("x", passtest.F64(3, 5))
		root := func(n *graph.Node) *graph.Node {
			r := b.Unary(graph.Rsqrt, passtest.Shift(b, b.Reduce(graph.Mean, b.Unary(graph.Square, n), true, 1), 1e-3))
			b.Output("root of "+n.Op.OpName(), r)
			return b.Broadcast(r, x.Type.Shape)
		}
		d := b.Binary(graph.Sub, x, perRow(b, graph.Mean, x, x))
		b.Output("layer norm", b.Binary(graph.Mul, d, root(d)))
		b.Output("RMS norm", b.Binary(graph.Mul, x, root(x)))
	})
	h, _ := passtest.Run(t, g, passes.Config{Stop: "raise"})
	if graph.Has[graph.LayerNorm](h) || graph.Has[graph.RMSNorm](h) {
		t.Errorf("raised:\n%s", graph.Print(h))
	}
}

type refusing string

func (refusing) Name() string { return "picky" }

func (r refusing) Accepts(op graph.Op, _, _ []graph.Type) error {
	if op.OpName() == string(r) {
		return errors.New("picky has no kernel for " + string(r))
	}
	return nil
}

func TestRaiseRefused(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		e := b.Unary(graph.Exp, b.Input("x", passtest.F64(3, 5)))
		b.Output("y", b.Binary(graph.Div, e, perRow(b, graph.Sum, e, e)))
	})
	h, tr := passtest.Run(t, g, passes.Config{Stop: "raise", Target: refusing("softmax")})
	if got, want := passtest.Ops(h), "exp sum[1] broadcast[3,5] div"; got != want {
		t.Errorf("left: %s\nwant: %s", got, want)
	}
	misses := passtest.Stage(t, tr, "raise").Misses
	if len(misses) != 1 || misses[0].Reason != "picky has no kernel for softmax" || misses[0].Pattern != "softmax" {
		t.Errorf("misses: %+v", misses)
	}
	if tr.Target != "picky" {
		t.Errorf("target %q", tr.Target)
	}
}

// TestMisses holds the words of missed fusions.
func TestMisses(t *testing.T) {
	pick := func(name, spelling string) func(b *graph.Builder, x *graph.Node) *graph.Node {
		for _, s := range spellings[name] {
			if s.name == spelling {
				return s.build
			}
		}
		t.Fatalf("no spelling %s/%s", name, spelling)
		return nil
	}
	tests := []struct {
		pattern, spelling string
		want              []string
	}{
		{"gelu-tanh", "another constant", []string{
			"gelu-tanh: wanted the constant 0.044715, found 0.05"}},
		{"gelu-tanh", "another x", []string{
			`gelu-tanh: wanted input "x" again, found sin %7 of "x"`}},
		{"gelu-erf", "erf(x)", nil},
		{"softmax", "over everything", []string{
			`softmax: wanted a sum along one axis, found sum over axes [0,1] %2 of "x", f64[]`}},
		{"softmax", "sums of rows along columns", []string{
			`softmax: wanted a statistic repeated along the axes that it was taken over, found broadcast %3 of "x", f64[5,5]`}},
		{"layer-norm", "it is taken along the first axis", []string{
			`layer-norm: wanted a mean over the last axis, found mean over axes [0] %5 of "x", f64[5]`}},
		{"norm-gamma", "others read the norm", []string{
			`norm-gamma: layer_norm %25 of "x" is also read by add %20 of "x" and "gamma"`}},
		{"relu", "the mask compares with 1", nil},
		{"mean", "the divisor is another number", nil},
	}
	for _, tt := range tests {
		build := pick(tt.pattern, tt.spelling)
		g := graphtest.Built(t, func(b *graph.Builder) { b.Output("y", build(b, b.Input("x", passtest.F64(5, 5)))) })
		_, tr := passtest.Run(t, g, passes.Config{Stop: "raise"})
		var got []string
		for _, m := range passtest.Stage(t, tr, "raise").Misses {
			got = append(got, m.Pattern+": "+passtest.WithoutLines(m.Reason))
			if len(m.Origin) == 0 {
				t.Errorf("%s/%s: the miss has no origin", tt.pattern, tt.spelling)
			}
			if !slices.ContainsFunc([]string{"(raise_test.go:", "(helpers.go:", "(spelling.go:"},
				func(f string) bool { return strings.Contains(m.At, f) }) {
				t.Errorf("%s/%s: the miss is at %q, without a line", tt.pattern, tt.spelling, m.At)
			}
		}
		if strings.Join(got, "\n") != strings.Join(tt.want, "\n") {
			t.Errorf("%s/%s:\n\t%s\nwant:\n\t%s", tt.pattern, tt.spelling, strings.Join(got, "\n\t"), strings.Join(tt.want, "\n\t"))
		}
	}
}
