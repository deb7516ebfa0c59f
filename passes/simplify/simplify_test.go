package simplify_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/trace"
	"fusec/passes"
	"fusec/passes/passtest"
	"fusec/passes/rewrite"
	"fusec/passes/simplify"
)

// spelling is one way to write an operation of x, and what the pass leaves of it.
type spelling struct {
	name  string
	build func(b *graph.Builder, x *graph.Node) *graph.Node
	want  string // operations left; empty: whatever, but not the pattern's
}

// limited is a value between two numbers.
func limited(b *graph.Builder, x *graph.Node) *graph.Node {
	return b.BinaryScalar(graph.Max, b.BinaryScalar(graph.Min, x, 9), 1)
}

// pooled builds the maxima of windows of two by two of what f makes of x as an image.
func pooled(pad int, f func(b *graph.Builder, x *graph.Node) *graph.Node) func(b *graph.Builder, x *graph.Node) *graph.Node {
	op := graph.Pool{Fn: graph.MaxPool, Kernel: graph.IntsOf(2, 2), Stride: graph.IntsOf(1, 1), Pad: graph.IntsOf(pad, 0, 0, pad)}
	return func(b *graph.Builder, x *graph.Node) *graph.Node { return b.Add(op, f(b, b.Reshape(x, 1, 1, 3, 5))) }
}

// simplifications gives for each rule graphs of x [3,5] and s [] that it must and must not rewrite, and what is left.
var simplifications = map[string][]spelling{
	"fold": {
		{"scalars", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Times(b, x, b.Unary(graph.Exp, passtest.Plus(b, b.Scalar(graph.F64, 1), b.Scalar(graph.F64, 2))))
		}, "mul"},
		{"select and cast", func(b *graph.Builder, x *graph.Node) *graph.Node {
			c := b.Binary(graph.Lt, b.Scalar(graph.I32, 1), b.Scalar(graph.I32, 2))
			return passtest.Times(b, x,
				b.Add(graph.Cast{To: graph.F64}, b.Add(graph.Select{}, c, b.Scalar(graph.F32, 3.75), b.Scalar(graph.F32, 4))))
		}, "mul"},
		{"integers that overflow", func(b *graph.Builder, x *graph.Node) *graph.Node {
			i := b.Binary(graph.Mul, b.Scalar(graph.I32, 1<<20), b.Scalar(graph.I32, 1<<12+1))
			return passtest.Times(b, x, b.Add(graph.Cast{To: graph.F64}, i))
		}, "mul"},
		{"not of constants alone", func(b *graph.Builder, x *graph.Node) *graph.Node { return passtest.Scale(b, x, 3) }, "mul"},
		{"integer division", func(b *graph.Builder, x *graph.Node) *graph.Node {
			i := b.Binary(graph.Div, b.Scalar(graph.I32, -7), b.Scalar(graph.I32, 2))
			return passtest.Times(b, x, b.Add(graph.Cast{To: graph.F64}, i))
		}, "mul"},
	},
	"fold-reshape": {
		{"vector", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Plus(b, x, b.Add(graph.Reshape{Shape: graph.ShapeOf(3, 5)}, iota64(b, 15)))
		}, "add"},
		{"not of a constant", func(b *graph.Builder, x *graph.Node) *graph.Node { return b.Reshape(x, 15) }, "reshape[15]"},
	},
	"fold-move": {
		{"transpose", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Plus(b, x, b.Transpose(b.Add(graph.Reshape{Shape: graph.ShapeOf(5, 3)}, iota64(b, 15)), 1, 0))
		}, "add"},
		{"slice and concat", func(b *graph.Builder, x *graph.Node) *graph.Node {
			c := b.Reshape(iota64(b, 20), 4, 5)
			return passtest.Plus(b, x, b.Add(graph.Concat{Axis: 0}, b.Slice(c, 0, 2, 2, 1), b.Slice(c, 0, 1, 1, 2)))
		}, "add"},
		{"not of a constant", func(b *graph.Builder, x *graph.Node) *graph.Node { return b.Transpose(x, 1, 0) }, "transpose[1,0]"},
	},
	"fold-reduce": {
		{"all functions", func(b *graph.Builder, x *graph.Node) *graph.Node {
			c := b.Reshape(iota64(b, 10), 2, 5)
			for f := graph.Sum; f <= graph.MinOf; f++ {
				x = passtest.Plus(b, x, b.Broadcast(b.Reduce(f, c, f == graph.Mean, 0), x.Type.Shape))
			}
			return x
		}, "broadcast[3,5] add broadcast[3,5] add broadcast[3,5] add broadcast[3,5] add broadcast[3,5] add"},
		{"not of a constant", func(b *graph.Builder, x *graph.Node) *graph.Node { return b.Reduce(graph.Sum, x, false, 0) }, "sum[0]"},
	},
	"const-right": {
		{"2·x", func(b *graph.Builder, x *graph.Node) *graph.Node { return passtest.Times(b, b.Scalar(graph.F64, 2), x) }, "mul"},
		{"2 < x", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Binary(graph.Lt, b.Scalar(graph.F64, 2), x)
		}, "gt"},
		{"2 − x", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Binary(graph.Sub, b.Scalar(graph.F64, 2), x)
		}, "sub"},
	},
	"add-zero": {
		{"x+0", func(b *graph.Builder, x *graph.Node) *graph.Node { return passtest.Shift(b, x, 0) }, ""},
		{"x−0", func(b *graph.Builder, x *graph.Node) *graph.Node { return b.BinaryScalar(graph.Sub, x, 0) }, ""},
		{"scalar + zeros", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Plus(b, b.Reduce(graph.Sum, x, false, 0, 1), b.Const(graph.NewTensor(passtest.F64(2))))
		}, "sum[0,1] broadcast[2]"},
		{"x+1", func(b *graph.Builder, x *graph.Node) *graph.Node { return passtest.Shift(b, x, 1) }, "add"},
	},
	"mul-one": {
		{"x·1", func(b *graph.Builder, x *graph.Node) *graph.Node { return passtest.Scale(b, x, 1) }, ""},
		{"x÷1", func(b *graph.Builder, x *graph.Node) *graph.Node { return b.BinaryScalar(graph.Div, x, 1) }, ""},
		{"x^1", func(b *graph.Builder, x *graph.Node) *graph.Node { return b.BinaryScalar(graph.Pow, x, 1) }, ""},
		{"x·ones", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Times(b, b.Const(graph.Filled(passtest.F64(3, 5), 1)), x)
		}, ""},
		{"x·2", func(b *graph.Builder, x *graph.Node) *graph.Node { return passtest.Scale(b, x, 2) }, "mul"},
	},
	"negate": {
		{"x·−1", func(b *graph.Builder, x *graph.Node) *graph.Node { return passtest.Scale(b, x, -1) }, "neg"},
		{"0−x", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Binary(graph.Sub, b.Scalar(graph.F64, 0), x)
		}, "neg"},
		{"1−x", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Binary(graph.Sub, b.Scalar(graph.F64, 1), x)
		}, "sub"},
	},
	"div-power-of-two": {
		{"x÷8", func(b *graph.Builder, x *graph.Node) *graph.Node { return b.BinaryScalar(graph.Div, x, 8) }, "mul"},
		{"x÷3", func(b *graph.Builder, x *graph.Node) *graph.Node { return b.BinaryScalar(graph.Div, x, 3) }, "div"},
		{"x÷2^-130", func(b *graph.Builder, x *graph.Node) *graph.Node { return b.BinaryScalar(graph.Div, x, 0x1p-130) }, "div"},
	},
	"power": {
		{"x^2", func(b *graph.Builder, x *graph.Node) *graph.Node { return b.BinaryScalar(graph.Pow, x, 2) }, "square"},
		{"x^3", func(b *graph.Builder, x *graph.Node) *graph.Node { return b.BinaryScalar(graph.Pow, x, 3) }, "cube"},
		{"x^−1", func(b *graph.Builder, x *graph.Node) *graph.Node { return b.BinaryScalar(graph.Pow, x, -1) }, "recip"},
		{"x^4", func(b *graph.Builder, x *graph.Node) *graph.Node { return b.BinaryScalar(graph.Pow, x, 4) }, "pow"},
	},
	"square": {
		{"x·x", func(b *graph.Builder, x *graph.Node) *graph.Node { return passtest.Times(b, x, x) }, "square"},
		{"x·(x·x)", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Times(b, x, passtest.Times(b, x, x))
		}, "cube"},
		{"x+x", func(b *graph.Builder, x *graph.Node) *graph.Node { return passtest.Plus(b, x, x) }, "add"},
	},
	"recip": {
		{"1÷x", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Binary(graph.Div, b.Scalar(graph.F64, 1), x)
		}, "recip"},
		{"2÷x", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Binary(graph.Div, b.Scalar(graph.F64, 2), x)
		}, "div"},
	},
	"add-neg": {
		{"x+(−y)", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Plus(b, x, b.Unary(graph.Neg, b.Unary(graph.Exp, x)))
		}, "exp sub"},
		{"(−y)+x", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Plus(b, b.Unary(graph.Neg, b.Unary(graph.Exp, x)), x)
		}, "exp sub"},
		{"x−(−y)", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Binary(graph.Sub, x, b.Unary(graph.Neg, b.Unary(graph.Exp, x)))
		}, "exp add"},
		{"(−x)−y", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Binary(graph.Sub, b.Unary(graph.Neg, x), b.Unary(graph.Exp, x))
		}, "neg exp sub"},
	},
	"mul-neg": {
		{"(−x)·3", func(b *graph.Builder, x *graph.Node) *graph.Node { return passtest.Scale(b, b.Unary(graph.Neg, x), 3) }, "mul"},
		{"(−x)·y", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Times(b, b.Unary(graph.Neg, x), b.Unary(graph.Exp, x))
		}, "neg exp mul"},
	},
	"involution": {
		{"−−x", func(b *graph.Builder, x *graph.Node) *graph.Node { return b.Unary(graph.Neg, b.Unary(graph.Neg, x)) }, ""},
		{"¬¬x", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Unary(graph.Not, b.Unary(graph.Not, b.BinaryScalar(graph.Lt, x, 0)))
		}, "lt"},
		{"tanh tanh x", func(b *graph.Builder, x *graph.Node) *graph.Node { return b.Unary(graph.Tanh, b.Unary(graph.Tanh, x)) },
			"tanh tanh"},
	},
	"idempotent": {
		{"||x||", func(b *graph.Builder, x *graph.Node) *graph.Node { return b.Unary(graph.Abs, b.Unary(graph.Abs, x)) }, "abs"},
		{"relu relu x", func(b *graph.Builder, x *graph.Node) *graph.Node { return b.Unary(graph.Relu, b.Unary(graph.Relu, x)) }, "relu"},
		{"exp exp x", func(b *graph.Builder, x *graph.Node) *graph.Node { return b.Unary(graph.Exp, b.Unary(graph.Exp, x)) }, "exp exp"},
	},
	"not-equal": {
		{"¬(x=0)", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Unary(graph.Not, b.BinaryScalar(graph.Eq, x, 0))
		}, "ne"},
		{"¬(x≠0)", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Unary(graph.Not, b.BinaryScalar(graph.Ne, x, 0))
		}, "eq"},
		{"¬(x<0), which NaN satisfies", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Unary(graph.Not, b.BinaryScalar(graph.Lt, x, 0))
		}, "lt not"},
	},
	"logic": {
		{"∧ true", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Binary(graph.And, b.BinaryScalar(graph.Lt, x, 0), b.Scalar(graph.Bool, 1))
		}, "lt"},
		{"∨ itself", func(b *graph.Builder, x *graph.Node) *graph.Node {
			c := b.BinaryScalar(graph.Lt, x, 0)
			return b.Binary(graph.Or, c, c)
		}, "lt"},
		{"∧ false", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Binary(graph.And, b.BinaryScalar(graph.Lt, x, 0), b.Scalar(graph.Bool, 0))
		}, "lt and"},
	},
	"cast-same": {
		{"f64 to f64", func(b *graph.Builder, x *graph.Node) *graph.Node { return b.Add(graph.Cast{To: graph.F64}, x) }, ""},
		{"f64 to f32", func(b *graph.Builder, x *graph.Node) *graph.Node { return b.Add(graph.Cast{To: graph.F32}, x) }, "cast f32"},
	},
	"cast-cast": {
		{"bool to f32 to f64", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Add(graph.Cast{To: graph.F64}, b.Add(graph.Cast{To: graph.F32}, b.BinaryScalar(graph.Lt, x, 0)))
		}, "lt cast f64"},
		{"f32 to f64 to f32", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := b.Input("f", graph.TypeOf(graph.F32, 2))
			return b.Add(graph.Cast{To: graph.F32}, b.Add(graph.Cast{To: graph.F64}, y))
		}, ""},
		{"i32 to i64 to f64", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := b.Input("i", graph.TypeOf(graph.I32, 2))
			return b.Add(graph.Cast{To: graph.F64}, b.Add(graph.Cast{To: graph.I64}, y))
		}, "cast f64"},
		{"f64 to f32 to f64", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Add(graph.Cast{To: graph.F64}, b.Add(graph.Cast{To: graph.F32}, x))
		}, "cast f32 cast f64"},
	},
	"select-same": {
		{"c ? x : x", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Add(graph.Select{}, b.BinaryScalar(graph.Lt, x, 0), x, x)
		}, ""},
		{"c ? x : 0", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Add(graph.Select{}, b.BinaryScalar(graph.Lt, x, 0), x, b.Scalar(graph.F64, 0))
		}, "lt select"},
	},
	"select-const": {
		{"true", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Add(graph.Select{}, b.Scalar(graph.Bool, 1), x, b.Unary(graph.Exp, x))
		}, ""},
		{"false", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Add(graph.Select{}, b.Scalar(graph.Bool, 0), x, b.Unary(graph.Exp, x))
		}, "exp"},
		{"unknown", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Add(graph.Select{}, b.Input("c", graph.TypeOf(graph.Bool)), x, b.Unary(graph.Exp, x))
		}, "exp select"},
	},
	"select-not": {
		{"¬c", func(b *graph.Builder, x *graph.Node) *graph.Node {
			c := b.Unary(graph.Not, b.Input("c", graph.TypeOf(graph.Bool)))
			return b.Add(graph.Select{}, c, x, b.Unary(graph.Exp, x))
		}, "exp select"},
		{"c", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Add(graph.Select{}, b.Input("c", graph.TypeOf(graph.Bool)), x, b.Unary(graph.Exp, x))
		}, "exp select"},
	},
	"scalar-operand": {
		{"x + broadcast scalar", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Plus(b, x, b.Broadcast(b.Input("s", passtest.F64()), x.Type.Shape))
		}, "add"},
		{"x + broadcast [1,1]", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Plus(b, x, b.Broadcast(b.Input("s", passtest.F64(1, 1)), x.Type.Shape))
		}, "reshape[] add"},
		{"x + filled", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Plus(b, b.Const(graph.Filled(x.Type, 3)), x)
		}, "add"},
		{"x + row", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Plus(b, x, b.Broadcast(b.Input("s", passtest.F64(5)), x.Type.Shape))
		}, "broadcast[3,5] add"},
	},
	"broadcast-late": {
		{"unary", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Unary(graph.Exp, b.Broadcast(b.Input("s", passtest.F64(5)), x.Type.Shape))
		}, "exp broadcast[3,5]"},
		{"two of one shape", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Plus(b, b.Broadcast(b.Input("s", passtest.F64(5)), x.Type.Shape),
				b.Broadcast(b.Input("t", passtest.F64(5)), x.Type.Shape))
		}, "add broadcast[3,5]"},
		{"two scalars", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Plus(b, b.Broadcast(b.Input("s", passtest.F64()), x.Type.Shape),
				b.Broadcast(b.Input("t", passtest.F64()), x.Type.Shape))
		}, "add broadcast[3,5]"},
		{"row and column", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Plus(b, b.Broadcast(b.Input("s", passtest.F64(5)), x.Type.Shape),
				b.Broadcast(b.Input("t", passtest.F64(3, 1)), x.Type.Shape))
		}, "broadcast[3,5] broadcast[3,5] add"},
	},
	"reshape-late": {
		{"statistic", func(b *graph.Builder, x *graph.Node) *graph.Node {
			s := b.Reshape(b.Unary(graph.Abs, b.Reduce(graph.Sum, x, false, 1)), 3, 1)
			return b.Unary(graph.Sqrt, passtest.Shift(b, s, 1))
		}, "sum[1] abs add sqrt reshape[3,1]"},
		{"two statistics", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Plus(b, b.Reshape(b.Reduce(graph.Sum, x, false, 1), 3, 1), b.Reshape(b.Reduce(graph.MaxOf, x, false, 1), 3, 1))
		}, "sum[1] max[1] add reshape[3,1]"},
		{"of a statistic that something else reads in that shape", func(b *graph.Builder, x *graph.Node) *graph.Node {
			s := b.Reshape(b.Reduce(graph.Sum, x, false, 1), 3, 1)
			b.Output("norm", b.Add(graph.SquaredNorm{}, s))
			return b.Unary(graph.Sqrt, s)
		}, "sum[1] reshape[3,1] squared_norm sqrt"},
		{"no statistic", func(b *graph.Builder, x *graph.Node) *graph.Node { return b.Unary(graph.Exp, b.Reshape(x, 5, 3)) },
			"reshape[5,3] exp"},
	},
	"identity-view": {
		{"reshape", func(b *graph.Builder, x *graph.Node) *graph.Node { return b.Add(graph.Reshape{Shape: x.Type.Shape}, x) }, ""},
		{"transpose", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Add(graph.Transpose{Perm: graph.IntsOf(0, 1)}, x)
		}, ""},
		{"broadcast", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Add(graph.Broadcast{Shape: x.Type.Shape}, x)
		}, ""},
		{"slice", func(b *graph.Builder, x *graph.Node) *graph.Node { return b.Slice(x, 0, 0, 3, 1) }, ""},
		{"transpose of a square", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Transpose(b.Input("q", passtest.F64(3, 3)), 1, 0)
		}, "transpose[1,0]"},
	},
	"reshape-reshape": {
		{"two", func(b *graph.Builder, x *graph.Node) *graph.Node { return b.Reshape(b.Reshape(x, 15), 5, 3) }, "reshape[5,3]"},
		{"and back", func(b *graph.Builder, x *graph.Node) *graph.Node { return b.Reshape(b.Reshape(x, 15), 3, 5) }, ""},
		{"with something between", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Reshape(b.Unary(graph.Exp, b.Reshape(x, 15)), 3, 5)
		}, "reshape[15] exp reshape[3,5]"},
	},
	"transpose-transpose": {
		{"cycle", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := b.Input("y", passtest.F64(2, 3, 4))
			return b.Transpose(b.Transpose(y, 1, 2, 0), 1, 2, 0)
		}, "transpose[2,0,1]"},
		{"and back", func(b *graph.Builder, x *graph.Node) *graph.Node { return b.Transpose(b.Transpose(x, 1, 0), 1, 0) }, ""},
		{"one", func(b *graph.Builder, x *graph.Node) *graph.Node { return b.Transpose(x, 1, 0) }, "transpose[1,0]"},
	},
	"transpose-reshape": {
		{"axis of size 1", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Transpose(b.Input("y", passtest.F64(2, 1, 4)), 1, 0, 2)
		}, "reshape[1,2,4]"},
		{"others", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Transpose(b.Input("y", passtest.F64(2, 1, 4)), 2, 1, 0)
		}, "transpose[2,1,0]"},
	},
	"broadcast-broadcast": {
		{"repeat after repeat", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := b.Broadcast(b.Input("y", passtest.F64(1, 1, 4)), graph.ShapeOf(1, 3, 4))
			return b.Broadcast(y, graph.ShapeOf(2, 3, 4))
		}, "broadcast[2,3,4]"},
		{"with a reshape between", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := b.Broadcast(b.Input("y", passtest.F64(3, 1)), graph.ShapeOf(3, 4))
			return b.Broadcast(b.Reshape(y, 12, 1), graph.ShapeOf(12, 2))
		}, "broadcast[3,4] reshape[12,1] broadcast[12,2]"},
	},
	"broadcast-reshape": {
		{"leading one", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Broadcast(b.Reshape(b.Input("y", passtest.F64(5)), 1, 5), graph.ShapeOf(3, 5))
		}, "broadcast[3,5]"},
		{"trailing one", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Broadcast(b.Reshape(b.Input("y", passtest.F64(3)), 3, 1), graph.ShapeOf(3, 5))
		}, "reshape[3,1] broadcast[3,5]"},
	},
	"view-of-single": {
		{"reshape", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Reshape(b.Broadcast(b.Input("y", passtest.F64()), x.Type.Shape), 15)
		}, "broadcast[15]"},
		{"slice", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Slice(b.Broadcast(b.Input("y", passtest.F64()), x.Type.Shape), 0, 1, 2, 1)
		}, "broadcast[2,5]"},
		{"of a row", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Reshape(b.Broadcast(b.Input("y", passtest.F64(5)), x.Type.Shape), 15)
		}, "broadcast[3,5] reshape[15]"},
	},
	"slice-slice": {
		{"same axis", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Slice(b.Slice(x, 1, 0, 3, 2), 1, 1, 2, 1)
		}, "slice[3,2]"},
		{"other axis", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Slice(b.Slice(x, 1, 0, 3, 2), 0, 1, 2, 1)
		}, "slice[3,3] slice[2,3]"},
	},
	"slice-concat": {
		{"second operand", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Slice(b.Add(graph.Concat{Axis: 0}, b.Unary(graph.Exp, x), x), 0, 3, 3, 1)
		}, ""},
		{"part of the first", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Slice(b.Add(graph.Concat{Axis: 0}, x, b.Unary(graph.Exp, x)), 0, 0, 2, 2)
		}, "slice[2,5]"},
		{"across", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Slice(b.Add(graph.Concat{Axis: 0}, b.Unary(graph.Exp, x), x), 0, 2, 2, 1)
		}, "exp concat slice[2,5]"},
	},
	"concat-one": {
		{"one", func(b *graph.Builder, x *graph.Node) *graph.Node { return b.Add(graph.Concat{Axis: 0}, x) }, ""},
		{"two", func(b *graph.Builder, x *graph.Node) *graph.Node { return b.Add(graph.Concat{Axis: 0}, x, x) }, "concat"},
	},
	"concat-concat": {
		{"same axis", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Add(graph.Concat{Axis: 0}, b.Add(graph.Concat{Axis: 0}, x, x), x)
		}, "concat"},
		{"other axis", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Add(graph.Concat{Axis: 0}, b.Add(graph.Concat{Axis: 1}, x, x), b.Add(graph.Concat{Axis: 1}, x, b.Unary(graph.Exp, x)))
		}, "concat exp concat concat"},
	},
	"concat-slices": {
		{"all", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Add(graph.Concat{Axis: 1}, b.Slice(x, 1, 0, 1, 1), b.Slice(x, 1, 1, 3, 1), b.Slice(x, 1, 4, 1, 1))
		}, ""},
		{"some, and others", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Add(graph.Concat{Axis: 1}, b.Unary(graph.Exp, x), b.Slice(x, 1, 1, 2, 1), b.Slice(x, 1, 3, 2, 1), x)
		}, "exp slice[3,4] concat"},
		{"in another order", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Add(graph.Concat{Axis: 0}, b.Slice(x, 0, 2, 1, 1), b.Slice(x, 0, 0, 2, 1))
		}, "slice[1,5] slice[2,5] concat"},
		{"each twice", func(b *graph.Builder, x *graph.Node) *graph.Node {
			u, v := b.Slice(x, 0, 0, 1, 1), b.Slice(x, 0, 1, 1, 1)
			return b.Add(graph.Concat{Axis: 0}, u, u, v, v)
		}, "slice[1,5] slice[1,5] concat"},
		{"of two values", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Add(graph.Concat{Axis: 0}, b.Slice(x, 0, 0, 1, 1), b.Slice(b.Unary(graph.Exp, x), 0, 1, 2, 1))
		}, "slice[1,5] exp slice[2,5] concat"},
		{"with gaps, along another axis", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Add(graph.Concat{Axis: 0}, b.Slice(x, 0, 0, 2, 2), b.Slice(x, 1, 0, 5, 1))
		}, "slice[2,5] concat"},
	},
	"unslice-sum": {
		{"three in order", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Plus(b, passtest.Plus(b, unslice(b, x, 0, 9, 0), unslice(b, b.Unary(graph.Exp, x), 0, 9, 3)),
				unslice(b, x, 0, 9, 6))
		}, "exp concat"},
		{"out of order, of two sizes, with other terms", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := b.Broadcast(b.Reduce(graph.Sum, x, true, 1), graph.ShapeOf(3, 11))
			first := passtest.Plus(b, unslice(b, x, 1, 11, 6), unslice(b, b.Slice(x, 1, 0, 1, 1), 1, 11, 5))
			return passtest.Plus(b, first, passtest.Plus(b, y, unslice(b, b.Unary(graph.Exp, x), 1, 11, 0)))
		}, "sum[1] broadcast[3,11] slice[3,1] exp concat add"},
		{"overlapping", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Plus(b, unslice(b, x, 0, 4, 0), unslice(b, x, 0, 4, 1))
		}, "unslice unslice add"},
		{"with a gap", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return passtest.Plus(b, unslice(b, x, 0, 7, 0), unslice(b, x, 0, 7, 4))
		}, "unslice unslice add"},
		{"of two axes", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := b.Add(graph.Concat{Axis: 1}, x, x)
			return passtest.Plus(b, unslice(b, y, 0, 6, 0), unslice(b, b.Add(graph.Concat{Axis: 0}, x, x), 1, 10, 5))
		}, "concat unslice concat unslice add"},
		{"steps", func(b *graph.Builder, x *graph.Node) *graph.Node {
			odd := b.Add(graph.Unslice{Axis: 1, Size: 10, Step: 2}, x, b.Scalar(graph.I64, 1))
			return passtest.Plus(b, b.Add(graph.Unslice{Axis: 1, Size: 10, Step: 2}, x, b.Scalar(graph.I64, 0)), odd)
		}, "unslice unslice add"},
		{"where an input says", func(b *graph.Builder, x *graph.Node) *graph.Node {
			at := b.Add(graph.Cast{To: graph.I64}, b.Unary(graph.Tanh, b.Input("at", passtest.F64())))
			return passtest.Plus(b, unslice(b, x, 0, 6, 3), b.Add(graph.Unslice{Axis: 0, Size: 6, Step: 1}, x, at))
		}, "tanh cast i64 unslice unslice add"},
		{"a sum that is read elsewhere", func(b *graph.Builder, x *graph.Node) *graph.Node {
			two := passtest.Plus(b, unslice(b, x, 0, 9, 0), unslice(b, x, 0, 9, 3))
			return b.Add(graph.Concat{Axis: 0}, passtest.Plus(b, two, unslice(b, x, 0, 9, 6)), two)
		}, "unslice unslice add unslice add concat"},
	},
	"pad-nothing": {
		{"nothing", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Add(graph.Pad{Lo: graph.IntsOf(0, 0), Hi: graph.IntsOf(0, 0)}, x)
		}, ""},
		{"something", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Add(graph.Pad{Lo: graph.IntsOf(0, 1), Hi: graph.IntsOf(0, 0)}, x)
		}, "pad"},
	},
	"pool-rounded": {
		{"bytes", pooled(1, func(b *graph.Builder, x *graph.Node) *graph.Node {
			return limited(b, passtest.Shift(b, b.Unary(graph.Round, x), 3))
		}), "reshape[1,1,3,5] pool round add min max"},
		{"limits alone", pooled(1, limited), "reshape[1,1,3,5] min max pool"},
		{"what does not keep the order", pooled(1, func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Unary(graph.Abs, b.Unary(graph.Round, x))
		}), "reshape[1,1,3,5] round abs pool"},
		{"windows of padding", pooled(2, func(b *graph.Builder, x *graph.Node) *graph.Node {
			return limited(b, b.Unary(graph.Round, x))
		}), "reshape[1,1,3,5] round min max pool"},
		{"what is read elsewhere", pooled(1, func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := b.Unary(graph.Round, x)
			b.Output("rounded", y)
			return y
		}), "reshape[1,1,3,5] round pool"},
	},
	"dropout-nothing": {
		{"0", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Add(graph.Dropout{P: 0}, x, b.Scalar(graph.I64, 1))
		}, ""},
		{"½", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Add(graph.Dropout{P: 0.5}, x, b.Scalar(graph.I64, 1))
		}, "dropout"},
	},
	"reduce-nothing": {
		{"axis of size 1", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Reduce(graph.MaxOf, b.Input("y", passtest.F64(3, 1)), false, 1)
		}, "reshape[3]"},
		{"other axis", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Reduce(graph.MaxOf, b.Input("y", passtest.F64(3, 1)), false, 0)
		}, "max[0]"},
	},
	"reduce-reduce": {
		{"kept", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Reduce(graph.Sum, b.Reduce(graph.Sum, x, true, 1), false, 0)
		}, "sum[0,1] reshape[1]"},
		{"dropped", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := b.Input("y", passtest.F64(2, 3, 4))
			return b.Reduce(graph.Mean, b.Reduce(graph.Mean, y, false, 1), true, 1)
		}, "mean[1,2] reshape[2,1]"},
		{"others", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Reduce(graph.Sum, b.Reduce(graph.MaxOf, x, true, 1), false, 0)
		}, "max[1] sum[0]"},
	},
	"matmul-transpose": {
		{"both", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.MatMul(b.Transpose(x, 1, 0), b.Transpose(b.Input("y", passtest.F64(4, 3)), 1, 0), false, false)
		}, "matmulᵀAᵀB"},
		{"undone", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.MatMul(b.Transpose(x, 1, 0), b.Input("y", passtest.F64(5, 2)), true, false)
		}, "matmul"},
		{"other axes", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.MatMul(b.Transpose(b.Input("y", passtest.F64(2, 3, 4)), 1, 0, 2), b.Input("z", passtest.F64(4, 2)), false, false)
		}, "transpose[1,0,2] matmul"},
	},
	"matmul-broadcast": {
		{"batch", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := b.Broadcast(b.Input("y", passtest.F64(5, 2)), graph.ShapeOf(4, 5, 2))
			return b.MatMul(b.Input("z", passtest.F64(4, 3, 5)), y, false, false)
		}, "matmul"},
		{"batch of both", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := b.Broadcast(b.Input("y", passtest.F64(5, 2)), graph.ShapeOf(4, 5, 2))
			return b.MatMul(x, y, false, false)
		}, "broadcast[4,5,2] matmul"},
		{"rows", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.MatMul(x, b.Broadcast(b.Input("y", passtest.F64(1, 2)), graph.ShapeOf(5, 2)), false, false)
		}, "broadcast[5,2] matmul"},
	},
	"equal": {
		{"operations", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := b.Unary(graph.Exp, x)
			return b.Add(graph.Concat{Axis: 0}, passtest.Plus(b, b.Unary(graph.Exp, x), x), passtest.Plus(b, x, y))
		}, "exp add concat"},
		{"concats of many", func(b *graph.Builder, x *graph.Node) *graph.Node {
			c := func() *graph.Node { return b.Add(graph.Concat{Axis: 0}, x, x, x, x, x) }
			return passtest.Plus(b, c(), c())
		}, "concat add"},
		{"dropouts of one seed", func(b *graph.Builder, x *graph.Node) *graph.Node {
			seed := b.Scalar(graph.I64, 1)
			d := func() *graph.Node { return b.Add(graph.Dropout{P: 0.5}, x, seed) }
			return passtest.Plus(b, d(), d())
		}, "dropout dropout add"},
	},
}

// unslice puts x into zeros of size elements along an axis.
func unslice(b *graph.Builder, x *graph.Node, axis, size, start int) *graph.Node {
	return b.Add(graph.Unslice{Axis: axis, Size: size, Step: 1}, x, b.Scalar(graph.I64, float64(start)))
}

// iota64 is the constant 0.1, 0.2, …
func iota64(b *graph.Builder, n int) *graph.Node {
	t := graph.NewTensor(passtest.F64(n))
	for i := range n {
		t.SetFloat(i, 0.1*float64(i+1))
	}
	return b.Const(t)
}

func TestSimplify(t *testing.T) {
	names := []string{"equal"}
	for _, r := range simplify.Rules() {
		names = append(names, r.Name)
	}
	for _, name := range names {
		does, doesNot := 0, 0
		for _, s := range simplifications[name] {
			t.Run(name+"/"+s.name, func(t *testing.T) {
				g := graphtest.Built(t, func(b *graph.Builder) { b.Output("y", s.build(b, b.Input("x", passtest.F64(3, 5)))) })
				h, _ := g.Clone()
				c := &rewrite.Context{Graph: h, Stage: &trace.Stage{}}
				if err := simplify.Run(c); err != nil {
					t.Fatal(err)
				}
				if got := passtest.Ops(h); got != s.want {
					t.Errorf("left: %s\nwant: %s", got, s.want)
				}
				passtest.Run(t, g, passes.Config{Stop: "simplify"})
				if slices.ContainsFunc(c.Stage.Matches, func(m trace.Match) bool { return m.Pattern == name }) {
					does++
				} else {
					doesNot++
				}
			})
		}
		if does == 0 || doesNot == 0 {
			t.Errorf("rule %s: %d graphs that it rewrites and %d that it leaves; want some of both", name, does, doesNot)
		}
	}
}

// TestOrigins checks that what is merged and moved still stands for the user's nodes, and keeps their names.
func TestOrigins(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		x := b.Input("x", passtest.F64(3, 5))
		y := b.Named(b.Unary(graph.Exp, x), "first")
		z := b.Named(b.Unary(graph.Exp, x), "second")
		b.Output("y", b.Named(passtest.Shift(b, passtest.Plus(b, y, z), 0), "sum"))
	})
	h, _ := passtest.Run(t, g, passes.Config{Stop: "simplify"})
	e, s := h.Nodes[1], h.Outputs[0].Node
	if e.Name != "first" || len(e.Origin) != 2 || e.Origin[1].Name != "second" {
		t.Errorf("exp is %q, from %v", e.Name, e.Origin)
	}
	if s.Name != "sum" || len(s.Origin) != 2 {
		t.Errorf("sum is %q, from %v", s.Name, s.Origin)
	}
}

// TestUniformCast checks that a constant seen through a cast has the value that the cast gives it.
func TestUniformCast(t *testing.T) {
	passtest.Run(t, graphtest.Built(t, func(b *graph.Builder) {
		x := b.Input("x", graph.TypeOf(graph.I32, 2))
		c := b.Add(graph.Cast{To: graph.I32}, b.Broadcast(b.Scalar(graph.F64, 1.5), graph.ShapeOf(2)))
		b.Output("y", b.Binary(graph.Mul, x, c))
		b.Output("nan", b.BinaryScalar(graph.Add, b.Scalar(graph.F64, math.NaN()), 1))
	}), passes.Config{})
}

// TestCompileTime holds the time that the passes take for a graph of about 3000 nodes.
func TestCompileTime(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		x := b.Input("x", passtest.F64(4, 8))
		for range 50 {
			y := passtest.LayerNorm(b, x, b.Broadcast(iota64(b, 8), graph.ShapeOf(1, 8)), nil)
			u := b.Unary(graph.Tanh, passtest.Scale(b, passtest.Plus(b, y, passtest.Scale(b, b.Unary(graph.Cube, y), passtest.CubicC)),
				passtest.Sqrt2Pi))
			y = passtest.Times(b, passtest.Scale(b, y, 0.5), passtest.Shift(b, u, 1))
			e := b.Unary(graph.Exp, b.Binary(graph.Sub, y, passtest.Spread(b, b.Reduce(graph.MaxOf, y, false, 1), y)))
			x = passtest.Plus(b, x, b.Binary(graph.Div, e, passtest.Spread(b, b.Reduce(graph.Sum, e, false, 1), y)))
		}
		b.Output("y", x)
	})
	best := time.Hour
	var last *trace.Trace
	for range 5 {
		start := time.Now()
		_, tr, err := passes.Run(g, passes.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < best {
			best, last = took, tr
		}
	}
	t.Logf("%d nodes in %v", len(g.Nodes), best)
	for _, s := range last.Stages {
		t.Logf("%s: %v", s.Name, s.Took)
	}
	if best > time.Second {
		t.Errorf("%d nodes take %v", len(g.Nodes), best)
	}
}
