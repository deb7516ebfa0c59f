package cases

import (
	"fmt"

	"fusec/graph"
	"fusec/graph/graphtest"
)

// A Fusion is a body of one of the forms that a target must launch; see [graph.Fusion].
type Fusion struct {
	Name   string
	Anchor graph.Anchor
	build  func(b *graph.Builder, in Inputs)
}

// Inputs declares the next operand of a body.
type Inputs = func(d graph.DType, dims ...int) *graph.Node

// Op is the fusion, with the types of its operands.
func (f Fusion) Op() (graph.Fusion, []graph.Type, error) { return Bodied(f.Anchor, f.build) }

// Bodied is the fusion of a body that build makes, with the types of its operands.
func Bodied(anchor graph.Anchor, build func(b *graph.Builder, in Inputs)) (graph.Fusion, []graph.Type, error) {
	body := graph.New("")
	b := graph.Extend(body)
	var types []graph.Type
	build(b, func(d graph.DType, dims ...int) *graph.Node {
		types = append(types, graph.TypeOf(d, dims...))
		return b.Add(graph.Input{Type: types[len(types)-1]})
	})
	for i := range body.Outputs {
		body.Outputs[i].Name = fmt.Sprint(i)
	}
	err := b.Err()
	if err == nil {
		err = body.Tidy()
	}
	return graph.Fusion{Anchor: anchor, Body: body}, types, err
}

// Fusions lists bodies of every form.
func Fusions() []Fusion {
	const f32, f64, i32, i64, boolean = graph.F32, graph.F64, graph.I32, graph.I64, graph.Bool
	conv := graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(1, 1, 1, 1), Groups: 1}
	return []Fusion{
		{"matmul: column sums of the product, of what follows and of an operand", graph.AnchorMatMul, func(b *graph.Builder, in Inputs) {
			y := b.MatMul(in(f32, 301, 70), in(f32, 70, 130), false, false)
			z := b.Binary(graph.Mul, y, in(f32, 301, 130))
			b.Output("", z)
			b.Output("", b.Reduce(graph.Sum, y, false, 0))
			b.Output("", b.Reshape(b.Reduce(graph.Sum, z, true, 0), 130))
		}},
		{"matmul: column sums alone, wide rows", graph.AnchorMatMul, func(b *graph.Builder, in Inputs) {
			b.Output("", b.Reduce(graph.Sum, b.MatMul(in(f32, 40, 20), in(f32, 20, 2100), false, false), false, 0))
		}},
		{"matmul: column sums over batches, with a mask", graph.AnchorMatMul, func(b *graph.Builder, in Inputs) {
			y := b.MatMul(in(f64, 3, 2, 33, 9), in(f64, 3, 2, 9, 17), false, false)
			y = b.Add(graph.Select{}, in(boolean, 3, 2, 33, 17), y, b.Scalar(f64, 0))
			b.Output("", y)
			b.Output("", b.Reduce(graph.Sum, y, false, 2, 0, 1))
		}},
		{"matmul: a rectifier and its mask", graph.AnchorMatMul, func(b *graph.Builder, in Inputs) {
			y := b.MatMul(in(f32, 97, 33), in(f32, 33, 45), false, false)
			b.Output("", b.Unary(graph.Relu, y))
			b.Output("", b.Binary(graph.Ge, y, b.Scalar(f32, 0)))
		}},
		{"matmul: a mask of the product alone, wide rows", graph.AnchorMatMul, func(b *graph.Builder, in Inputs) {
			y := b.MatMul(in(f64, 2, 17, 8), in(f64, 2, 8, 1301), false, false)
			b.Output("", b.Binary(graph.Lt, y, in(f64, 2, 17, 1301)))
		}},
		{"matmul: masks read and written, in blocks of rows and by rows", graph.AnchorMatMul, func(b *graph.Builder, in Inputs) {
			y := b.MatMul(in(f32, 29, 7), in(f32, 7, 300), false, false)
			z := b.Add(graph.Select{}, in(boolean, 29, 300), y, in(f32, 29, 300))
			b.Output("", z)
			b.Output("", b.Binary(graph.Gt, z, b.Scalar(f32, 0.25)))
			b.Output("", b.Reduce(graph.Sum, z, false, 0))
		}},
		{"matmul: column sums of few rows", graph.AnchorMatMul, func(b *graph.Builder, in Inputs) {
			y := b.Unary(graph.Tanh, b.MatMul(in(f32, 3, 90), in(f32, 90, 500), false, false))
			b.Output("", b.Reduce(graph.Sum, y, false, 0))
		}},
		{"matmul: column sums of few columns", graph.AnchorMatMul, func(b *graph.Builder, in Inputs) {
			y := b.Unary(graph.Tanh, b.MatMul(in(f32, 5000, 30), in(f32, 30, 2), false, false))
			b.Output("", y)
			b.Output("", b.Reduce(graph.Sum, y, false, 0))
		}},
		{"matmul: column sums of nothing", graph.AnchorMatMul, func(b *graph.Builder, in Inputs) {
			b.Output("", b.Reduce(graph.Sum, b.MatMul(in(f32, 0, 3), in(f32, 3, 4), false, false), false, 0))
		}},
		{"matmul: column sums where nothing is multiplied", graph.AnchorMatMul, func(b *graph.Builder, in Inputs) {
			y := b.BinaryScalar(graph.Add, b.MatMul(in(f32, 5, 0), in(f32, 0, 4), false, false), 1)
			b.Output("", b.Reduce(graph.Sum, y, false, 0))
		}},
		{"matmul: custom functions of the product, a row, a column and a number", graph.AnchorMatMul, func(b *graph.Builder, in Inputs) {
			y := b.MatMul(in(f32, 37, 20), in(f32, 20, 300), false, false)
			y = b.Custom(graphtest.Blend, y, b.Broadcast(in(f32, 300), y.Type.Shape), b.Broadcast(in(f32, 37, 1), y.Type.Shape))
			b.Output("", b.Custom(graphtest.Softsign, y))
			b.Output("", b.Custom(graphtest.Blend, y, b.Scalar(f32, 0.5), in(f32)))
			b.Output("", b.Reduce(graph.Sum, y, false, 0))
		}},
		{"row: custom functions before, between and after", graph.AnchorRow, func(b *graph.Builder, in Inputs) {
			x := b.Custom(graphtest.Softsign, in(f32, 9, 70))
			mean := b.Custom(graphtest.Softsign, b.Reduce(graph.Mean, x, true, 1))
			b.Output("", b.Custom(graphtest.Blend, x, b.Broadcast(mean, x.Type.Shape), b.Add(graph.Softmax{Axis: 1}, x)))
		}},
		{"elementwise: custom functions of f64, of views, and of what is stored over an operand", graph.AnchorNone,
			func(b *graph.Builder, in Inputs) {
				x := b.Custom(graphtest.Blend, in(f64, 5, 7, 300), b.Transpose(in(f64, 300, 5, 7), 1, 2, 0), in(f64))
				b.Output("", b.Custom(graphtest.Softsign, x))
				b.Output("", b.Reshape(b.Binary(graph.Mul, x, x), 35, 300))
			}},
		{"elementwise: custom functions of segments", graph.AnchorNone, func(b *graph.Builder, in Inputs) {
			for i := range 5 {
				b.Output("", b.Custom(graphtest.Softsign, in(f32, 100+i)))
			}
			b.Output("", b.Custom(graphtest.Blend, in(f32, 3, 5), in(f32, 3, 5), in(f32, 3, 5)))
		}},
		{"row: a norm's backward with its column sums", graph.AnchorRow, func(b *graph.Builder, in Inputs) {
			x, dy, gamma := in(f32, 7, 50, 65), in(f32, 7, 50, 65), in(f32, 65)
			s := x.Type.Shape
			b.Output("", b.Reduce(graph.Sum, dy, false, 0, 1))
			g := b.Binary(graph.Mul, dy, b.Broadcast(gamma, s))
			mean := b.Reduce(graph.Mean, b.Binary(graph.Mul, g, x), true, 2)
			dx := b.Binary(graph.Sub, g, b.Binary(graph.Mul, x, b.Broadcast(mean, s)))
			b.Output("", dx)
			b.Output("", b.Reshape(b.Reduce(graph.Sum, b.Binary(graph.Mul, dy, x), false, 0, 1), 1, 65))
			b.Output("", b.Reduce(graph.Sum, dx, false, 0, 1))
		}},
		{"elementwise: a row, a column, a number and what is seen through views", graph.AnchorNone, func(b *graph.Builder, in Inputs) {
			s := graph.ShapeOf(5, 7, 300)
			x := b.Binary(graph.Mul, in(f32, 5, 7, 300), b.Broadcast(in(f32, 300), s))
			x = b.Binary(graph.Add, b.Broadcast(in(f32, 7, 1), s), x)
			x = b.Binary(graph.Sub, x, b.Transpose(in(f32, 300, 5, 7), 1, 2, 0))
			x = b.Binary(graph.Max, x, b.Slice(in(f32, 5, 10, 300), 1, 2, 7, 1))
			x = b.Binary(graph.Min, in(f32), x)
			b.Output("", x)
			b.Output("", b.Transpose(b.Reshape(b.Unary(graph.Tanh, x), 35, 300), 1, 0))
		}},
		{"elementwise: copies", graph.AnchorNone, func(b *graph.Builder, in Inputs) {
			b.Output("", b.Transpose(in(f32, 5, 70), 1, 0))
			x := in(f32, 30)
			b.Output("", b.Slice(x, 0, 3, 9, 2))
			b.Output("", b.Unary(graph.Exp, x))
		}},
		{"elementwise: one value under several views", graph.AnchorNone, func(b *graph.Builder, in Inputs) {
			x := in(f64, 9, 9)
			b.Output("", b.Binary(graph.Add, b.Binary(graph.Mul, x, b.Transpose(x, 1, 0)), b.Reshape(b.Reshape(x, 81), 9, 9)))
		}},
		{"elementwise: segments of several shapes", graph.AnchorNone, func(b *graph.Builder, in Inputs) {
			rate := in(f32)
			for _, dims := range [][]int{{7, 300}, {300}, {}, {1, 1}, {0, 4}, {40000}} {
				w, g := in(f32, dims...), in(f32, dims...)
				m := b.Binary(graph.Add, b.BinaryScalar(graph.Mul, w, 0.9), g)
				b.Output("", m)
				b.Output("", b.Binary(graph.Sub, w, b.Binary(graph.Mul, m, rate)))
			}
		}},
		{"elementwise: segments that read one value", graph.AnchorNone, func(b *graph.Builder, in Inputs) {
			x := in(f32, 5, 70)
			b.Output("", b.Unary(graph.Tanh, b.Transpose(x, 1, 0)))
			b.Output("", b.Unary(graph.Exp, x))
			b.Output("", b.Unary(graph.Exp, b.Slice(x, 1, 3, 9, 2)))
		}},
		{"elementwise: long rows", graph.AnchorNone, func(b *graph.Builder, in Inputs) {
			x := in(f32, 3, 40000)
			b.Output("", b.Binary(graph.Add, b.Unary(graph.Square, x), b.Broadcast(in(f32, 3, 1), x.Type.Shape)))
		}},
		{"elementwise: what is the same along a row", graph.AnchorNone, func(b *graph.Builder, in Inputs) {
			c := b.Broadcast(in(f32, 6, 1), graph.ShapeOf(6, 50))
			d := b.Unary(graph.Exp, b.Binary(graph.Sub, c, b.Scalar(f32, 0.5)))
			b.Output("", d)
			m := b.Binary(graph.Lt, c, d)
			b.Output("", b.Add(graph.Select{}, m, c, d))
			b.Output("", b.Add(graph.Select{}, m, in(f32, 6, 50), c))
			b.Output("", b.Add(graph.Select{}, m, c, in(f32, 6, 50)))
			b.Output("", b.Add(graph.Cast{To: i32}, c))
		}},
		{"elementwise: numbers", graph.AnchorNone, func(b *graph.Builder, in Inputs) {
			x, y := in(f64), in(f64)
			b.Output("", b.Add(graph.Select{}, b.Binary(graph.Gt, x, y), b.Unary(graph.Silu, x), b.Binary(graph.Mul, x, y)))
			b.Output("", b.Unary(graph.Not, b.Binary(graph.Le, x, y)))
		}},
		{"elementwise: parametrised", graph.AnchorNone, func(b *graph.Builder, in Inputs) {
			x := in(f32, 100)
			b.Output("", b.Add(graph.Unary{Fn: graph.Elu, Alpha: 0.3}, b.Add(graph.Unary{Fn: graph.LeakyRelu, Alpha: 0.1}, x)))
		}},
		{"elementwise: selections", graph.AnchorNone, func(b *graph.Builder, in Inputs) {
			m, x, y := in(boolean, 40), in(f32, 40), in(f32, 40)
			b.Output("", b.Add(graph.Select{}, m, x, y))
			b.Output("", b.Add(graph.Select{}, m, x, b.Scalar(f32, 3)))
			b.Output("", b.Add(graph.Select{}, m, b.Scalar(f32, 3), y))
			b.Output("", b.Add(graph.Select{}, m, b.Scalar(f32, 3), b.Scalar(f32, 4)))
			b.Output("", b.Add(graph.Select{}, in(boolean), x, y))
		}},
		{"elementwise: integers", graph.AnchorNone, func(b *graph.Builder, in Inputs) {
			x, y := in(i32, 40), in(i64, 40)
			for _, fn := range graph.UnaryFnsOf(i32) {
				b.Output("", b.Unary(fn, x))
			}
			big := b.BinaryScalar(graph.Mul, y, 1<<40+1)
			wide := b.BinaryScalar(graph.Mul, x, 1<<30)
			for _, fn := range graph.BinaryFnsOf(i64) {
				if !fn.Info().Fails {
					b.Output("", b.Binary(fn, big, b.BinaryScalar(graph.Add, big, 1)))
					b.Output("", b.Binary(fn, b.Scalar(i32, 1<<30), wide))
				}
			}
			b.Output("", b.Binary(graph.Div, big, b.BinaryScalar(graph.Add, b.Unary(graph.Square, y), 3)))
			b.Output("", b.BinaryScalar(graph.Pow, y, 3))
			b.Output("", b.BinaryScalar(graph.Pow, b.BinaryScalar(graph.Add, b.BinaryScalar(graph.Mul, y, 2), 1), -3))
			b.Output("", b.Add(graph.Cast{To: i32}, big))
			b.Output("", b.Add(graph.Cast{To: i64}, wide))
			b.Output("", b.Add(graph.Cast{To: boolean}, y))
			b.Output("", b.Add(graph.Cast{To: f64}, big))
			b.Output("", b.Add(graph.Cast{To: f32}, big))
			b.Output("", b.Add(graph.Cast{To: i32}, in(boolean, 40)))
			b.Output("", b.Add(graph.Select{}, b.Binary(graph.Lt, y, b.Scalar(i64, 0)), big, b.Scalar(i64, -1<<40)))
		}},
		{"elementwise: casts of floats", graph.AnchorNone, func(b *graph.Builder, in Inputs) {
			x := in(f64, 60)
			for _, d := range []graph.DType{f32, i32, i64, boolean} {
				y := b.Add(graph.Cast{To: d}, b.Binary(graph.Mul, b.Unary(graph.Cube, b.BinaryScalar(graph.Mul, x, 1e5)), b.Scalar(f64, 1e5)))
				b.Output("", b.Add(graph.Cast{To: f64}, y))
			}
			b.Output("", b.Add(graph.Cast{To: f64}, x))
			b.Output("", b.Add(graph.Cast{To: i32}, b.Unary(graph.Log, x)))
		}},
		{"elementwise: integers to f32", graph.AnchorNone, func(b *graph.Builder, in Inputs) {
			b.Output("", b.Unary(graph.Exp, b.Add(graph.Cast{To: f32}, in(i32, 40))))
			b.Output("", b.Unary(graph.Not, b.Add(graph.Cast{To: boolean}, in(i64, 40))))
		}},
		{"elementwise: nothing", graph.AnchorNone, func(b *graph.Builder, in Inputs) {
			b.Output("", b.Unary(graph.Exp, in(f32, 3, 0, 4)))
		}},
		{"dropout", graph.AnchorNone, func(b *graph.Builder, in Inputs) {
			x := in(f32, 3, 500)
			seed := graph.NewTensor(graph.TypeOf(i64))
			seed.Data.([]int64)[0] = 1<<62 + 12345
			b.Output("", b.Add(graph.Dropout{P: 0.3}, b.Unary(graph.Tanh, x), b.Const(seed)))
			b.Output("", b.Add(graph.Dropout{P: 0.5}, b.Transpose(in(f32, 500, 3), 1, 0), in(i64)))
			b.Output("", b.Add(graph.Dropout{P: 0.5}, b.Broadcast(in(f32, 3, 1), x.Type.Shape), in(i64)))
		}},
		{"rows: statistics that lead back", graph.AnchorRow, func(b *graph.Builder, in Inputs) {
			x := in(f32, 4, 5, 70)
			y := b.Unary(graph.Square, b.Binary(graph.Sub, x, b.Expand(b.Reduce(graph.Mean, x, false, 2), graph.IntsOf(2), x.Type.Shape)))
			v := b.Reduce(graph.Sum, y, true, 2)
			b.Output("", b.Binary(graph.Div, y, b.Broadcast(b.BinaryScalar(graph.Add, v, 1), x.Type.Shape)))
			b.Output("", b.Reshape(v, 20))
			b.Output("", b.Binary(graph.Mul, v, in(f32, 4, 5, 1)))
			b.Output("", b.Binary(graph.Max, b.Reshape(v, 4, 5), in(f32, 4, 5)))
		}},
		{"rows: composites", graph.AnchorRow, func(b *graph.Builder, in Inputs) {
			x := in(f32, 6, 6)
			y := x
			for _, row := range graph.Ops() {
				if row.Anchor != graph.AnchorRow || row.Class != graph.ClassComposite {
					continue
				}
				args := []*graph.Node{b.Binary(graph.Add, x, y)}
				for range row.MinArgs - 1 {
					args = append(args, in(f32, 6))
				}
				y = b.Add(row.Usual(x), args...)
				b.Output("", y)
			}
		}},
		{"rows: composites of a number per row", graph.AnchorRow, func(b *graph.Builder, in Inputs) {
			x := b.Broadcast(in(f32, 6, 1), graph.ShapeOf(6, 6))
			b.Output("", b.Add(graph.Softmax{Axis: 1}, x))
			b.Output("", b.Add(graph.LayerNorm{Eps: 0.1}, x, b.Broadcast(in(f32), graph.ShapeOf(6)), in(f32, 6)))
			b.Output("", b.Reduce(graph.Prod, b.BinaryScalar(graph.Mul, x, 0.5), false, 1))
		}},
		{"rows: all of a vector, and a draw", graph.AnchorRow, func(b *graph.Builder, in Inputs) {
			x := in(f64, 50)
			y := b.Binary(graph.Div, b.Unary(graph.Exp, x), b.Reduce(graph.Sum, b.Unary(graph.Exp, x), false, 0))
			b.Output("", b.Add(graph.Dropout{P: 0.5}, y, in(i64)))
			b.Output("", b.Add(graph.Cast{To: f32}, b.Reduce(graph.MaxOf, x, false, 0)))
		}},
		{"rows: along middle axes, leading back", graph.AnchorRow, func(b *graph.Builder, in Inputs) {
			x := in(f32, 3, 20, 5)
			b.Output("", b.Binary(graph.Sub, x, b.Broadcast(b.Reduce(graph.MaxOf, x, true, 1), x.Type.Shape)))
			b.Output("", b.Add(graph.Softmax{Axis: 1}, x))
		}},
		{"rows: of nothing", graph.AnchorRow, func(b *graph.Builder, in Inputs) {
			x := in(f32, 3, 0)
			for _, fn := range []graph.ReduceFn{graph.Sum, graph.Prod, graph.MaxOf, graph.MinOf, graph.Mean} {
				b.Output("", b.Reduce(fn, x, false, 1))
			}
		}},
		{"rows: of nothing, leading back", graph.AnchorRow, func(b *graph.Builder, in Inputs) {
			x := in(f32, 3, 0)
			b.Output("", b.Binary(graph.Add, x, b.Broadcast(b.Reduce(graph.Sum, x, true, 1), x.Type.Shape)))
			b.Output("", b.Add(graph.Softmax{Axis: 1}, x))
		}},
		{"rows: none", graph.AnchorRow, func(b *graph.Builder, in Inputs) {
			b.Output("", b.Reduce(graph.Sum, in(f32, 0, 4), false, 1))
		}},
		{"rows: of one element", graph.AnchorRow, func(b *graph.Builder, in Inputs) {
			x := in(f32, 7, 1)
			s := b.Reduce(graph.Sum, x, false, 1)
			b.Output("", b.Unary(graph.Tanh, b.Reshape(s, 7, 1)))
			b.Output("", b.Add(graph.Softmax{Axis: 1}, x))
		}},
		{"columns", graph.AnchorRow, func(b *graph.Builder, in Inputs) {
			s := graph.ShapeOf(90, 6, 30)
			x := b.Binary(graph.Mul, in(f32, 90, 6, 30), b.Broadcast(in(f32, 6, 1), s))
			x = b.Binary(graph.Add, x, b.Broadcast(in(f32, 90, 1, 1), s))
			sum := b.Reduce(graph.Sum, x, false, 0)
			b.Output("", sum)
			b.Output("", b.Unary(graph.Tanh, b.Reshape(b.Binary(graph.Mul, b.BinaryScalar(graph.Mul, sum, 0.01), in(f32, 6, 30)), 1, 6, 30)))
			b.Output("", b.Reduce(graph.MaxOf, x, true, 0))
			b.Output("", b.Unary(graph.Neg, x))
		}},
		{"columns: many", graph.AnchorRow, func(b *graph.Builder, in Inputs) {
			x := in(f64, 3, 2500, 1100)
			b.Output("", b.Reduce(graph.Mean, x, false, 1))
		}},
		{"columns: few", graph.AnchorRow, func(b *graph.Builder, in Inputs) {
			x := in(f32, 20000, 3)
			for _, fn := range []graph.ReduceFn{graph.Mean, graph.MaxOf, graph.MinOf} {
				b.Output("", b.Reduce(fn, x, false, 0))
			}
		}},
		{"columns of axes that are apart", graph.AnchorRow, func(b *graph.Builder, in Inputs) {
			s := graph.ShapeOf(8, 5, 7, 3)
			x := b.Binary(graph.Mul, in(f32, 8, 5, 7, 3), b.Broadcast(in(f32, 8, 1, 1, 1), s))
			sum := b.Reduce(graph.Prod, b.Unary(graph.Sigmoid, x), false, 0, 2)
			b.Output("", b.Binary(graph.Add, sum, in(f32, 5, 3)))
			b.Output("", b.Transpose(b.Unary(graph.Exp, x), 0, 2, 1, 3))
		}},
		{"blocks of long rows", graph.AnchorRow, func(b *graph.Builder, in Inputs) {
			s := graph.ShapeOf(2, 9, 5000)
			x := b.Binary(graph.Mul, in(f32, 2, 9, 5000), b.Broadcast(in(f32, 9, 1), s))
			x = b.Add(graph.Dropout{P: 0.5}, x, in(i64))
			for _, fn := range []graph.ReduceFn{graph.Sum, graph.MaxOf, graph.MinOf} {
				b.Output("", b.Reduce(fn, x, false, 1, 2))
			}
			b.Output("", b.Unary(graph.Tanh, b.Reduce(graph.Prod, b.Unary(graph.Sign, x), true, 1, 2)))
		}},
		{"blocks of a kept axis between", graph.AnchorRow, func(b *graph.Builder, in Inputs) {
			s := graph.ShapeOf(40, 3, 200)
			x := b.Binary(graph.Mul, in(f32, 40, 3, 200), b.Broadcast(in(f32, 40, 1, 1), s))
			b.Output("", b.Reduce(graph.Sum, x, false, 0, 2))
		}},
		{"blocks of everything", graph.AnchorRow, func(b *graph.Builder, in Inputs) {
			x := in(f32, 70, 900)
			b.Output("", b.Unary(graph.Sqrt, b.Reduce(graph.Mean, b.Unary(graph.Square, x), false, 0, 1)))
		}},
		{"columns of nothing", graph.AnchorRow, func(b *graph.Builder, in Inputs) {
			b.Output("", b.Unary(graph.Cos, b.Reduce(graph.Sum, in(f32, 0, 7), false, 0)))
		}},
		{"no columns", graph.AnchorRow, func(b *graph.Builder, in Inputs) {
			b.Output("", b.Unary(graph.Cos, b.Reduce(graph.Sum, in(f32, 7, 0), false, 0)))
		}},
		{"linear: the product and what follows are both read", graph.AnchorMatMul, func(b *graph.Builder, in Inputs) {
			y := b.MatMul(in(f32, 37, 50), in(f32, 50, 1300), false, false)
			b.Output("", y)
			z := b.Unary(graph.Silu, b.Binary(graph.Add, y, b.Broadcast(in(f32, 1300), y.Type.Shape)))
			b.Output("", z)
			b.Output("", b.Binary(graph.Mul, b.Binary(graph.Add, z, y), b.Broadcast(in(f32, 37, 1), y.Type.Shape)))
		}},
		{"linear: only a mask is read", graph.AnchorMatMul, func(b *graph.Builder, in Inputs) {
			y := b.MatMul(in(f32, 2, 9, 20), in(f32, 20, 11), false, false)
			b.Output("", b.BinaryScalar(graph.Gt, y, 0.5))
		}},
		{"linear: a mask and what it selects", graph.AnchorMatMul, func(b *graph.Builder, in Inputs) {
			y := b.MatMul(in(f32, 9, 20), in(f32, 20, 11), false, false)
			m := b.BinaryScalar(graph.Gt, y, 0)
			b.Output("", m)
			b.Output("", b.Unary(graph.Tanh, y))
			b.Output("", b.Add(graph.Select{}, m, y, b.Scalar(f32, 0)))
		}},
		{"linear: dropout where the product lies", graph.AnchorMatMul, func(b *graph.Builder, in Inputs) {
			y := b.MatMul(in(f32, 2, 3, 9, 20), in(f32, 3, 20, 11), false, false)
			b.Output("", b.Add(graph.Dropout{P: 0.5}, y, in(i64)))
		}},
		{"linear: one column, one row", graph.AnchorMatMul, func(b *graph.Builder, in Inputs) {
			y := b.MatMul(in(f32, 30, 20), in(f32, 20, 1), false, false)
			b.Output("", b.Binary(graph.Add, y, b.Broadcast(in(f32, 1), y.Type.Shape)))
		}},
		{"linear: one row of many matrices", graph.AnchorMatMul, func(b *graph.Builder, in Inputs) {
			y := b.MatMul(b.Transpose(in(f32, 4, 1, 6, 20), 1, 2, 0, 3), in(f32, 20, 12), false, false)
			y = b.Binary(graph.Add, y, b.Broadcast(in(f32, 12), y.Type.Shape))
			b.Output("", b.Reshape(b.Transpose(y, 0, 2, 1, 3), 24, 12))
		}},
		{"linear: nothing to add", graph.AnchorMatMul, func(b *graph.Builder, in Inputs) {
			b.Output("", b.Unary(graph.Cos, b.MatMul(in(f32, 5, 0), in(f32, 0, 6), false, false)))
		}},
		{"linear: no rows", graph.AnchorMatMul, func(b *graph.Builder, in Inputs) {
			b.Output("", b.Unary(graph.Cos, b.MatMul(in(f32, 0, 5), in(f32, 5, 6), false, false)))
		}},
		{"convolution with a number per line, per column and per channel", graph.AnchorConv, func(b *graph.Builder, in Inputs) {
			y := b.Add(conv, in(f32, 2, 3, 9, 11), in(f32, 4, 3, 3, 3))
			s := y.Type.Shape
			y = b.Binary(graph.Add, y, b.Broadcast(in(f32, 9, 1), s))
			y = b.Binary(graph.Mul, y, b.Broadcast(in(f32, 11), s))
			b.Output("", y)
			b.Output("", b.Binary(graph.Sub, y, b.Broadcast(in(f32, 4, 1, 1), s)))
		}},
		{"convolution stored in another order", graph.AnchorConv, func(b *graph.Builder, in Inputs) {
			y := b.Add(conv, in(f32, 2, 3, 9, 11), in(f32, 4, 3, 3, 3))
			b.Output("", b.Transpose(y, 0, 2, 1, 3))
			b.Output("", b.Unary(graph.Relu, y))
		}},
		{"convolution of a view", graph.AnchorConv, func(b *graph.Builder, in Inputs) {
			b.Output("", b.Add(conv, b.Transpose(in(f32, 2, 9, 11, 3), 0, 3, 1, 2), b.Slice(in(f32, 8, 3, 3, 3), 0, 2, 4, 1)))
		}},
	}
}
