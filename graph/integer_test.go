package graph

import (
	"math"
	"testing"
)

func TestEvalInt(t *testing.T) {
	const big = 1<<53 + 1 // which float64 does not hold
	for _, c := range []struct {
		f       UnaryFn
		x, want int64
	}{
		{Neg, big, -big}, {Abs, -big, big}, {Abs, math.MinInt64, math.MinInt64}, {Sign, -big, -1}, {Sign, 0, 0},
		{Square, 1<<31 + 1, 1<<62 + 1<<32 + 1}, {Cube, -2097151, -9223358842721533951}, {Relu, -big, 0}, {Relu, big, big}, {Not, 0, 1},
	} {
		if got := c.f.EvalInt(I64, c.x); got != c.want {
			t.Errorf("%v(%d) = %d, want %d", c.f, c.x, got, c.want)
		}
	}
	for _, c := range []struct {
		f          BinaryFn
		x, y, want int64
	}{
		{Add, big, 1, big + 1}, {Sub, big, big - 1, 1}, {Mul, big, 3, 3 * big}, {Div, -7, 2, -3}, {Div, big, 1, big},
		{Pow, 3, 39, 4052555153018976267}, {Pow, -1, -3, -1}, {Pow, 7, -1, 0}, {Max, big, big - 1, big}, {Min, big, big - 1, big - 1},
		{Eq, big, big - 1, 0}, {Ne, big, big - 1, 1}, {Lt, big - 1, big, 1}, {Gt, big, big - 1, 1}, {Le, big, big - 1, 0}, {Ge, big - 1, big, 0},
		{And, 1, 0, 0}, {Or, 1, 0, 1},
	} {
		if got, err := c.f.EvalInt(I64, c.x, c.y); err != nil || got != c.want {
			t.Errorf("%v(%d, %d) = %d, %v, want %d", c.f, c.x, c.y, got, err, c.want)
		}
	}
	for _, f := range []BinaryFn{Div, Pow} {
		y := map[BinaryFn]int64{Div: 0, Pow: -1}[f]
		if _, err := f.EvalInt(I64, 0, y); err == nil {
			t.Errorf("%v(0, %d) is no error", f, y)
		}
	}
	if got := I32.Wrap(1<<32 + 5); got != 5 {
		t.Errorf("wrapped: %d", got)
	}
	for x, want := range map[float64]int64{math.Inf(1): math.MaxInt32, math.Inf(-1): math.MinInt32, -1.9: -1, 3e9: math.MaxInt32} {
		if got := I32.Truncate(x); got != want {
			t.Errorf("%v truncated: %d, want %d", x, got, want)
		}
	}
	if got := I64.Truncate(math.NaN()); got != 0 {
		t.Errorf("NaN truncated: %d", got)
	}
}

func TestUniform(t *testing.T) {
	const big = 1<<53 + 1
	b := NewBuilder("t")
	consts := func(v ...int64) *Node {
		x, err := TensorOf(v, len(v))
		if err != nil {
			t.Fatal(err)
		}
		return b.Const(x)
	}
	for _, c := range []struct {
		name   string
		n      *Node
		want   int64
		ok     bool
		scalar bool // float64 holds it
	}{
		{"equal", consts(big, big), big, true, false},
		{"equal as float64 only", consts(big, big-1), 0, false, false},
		{"even", consts(big-1, big-1), big - 1, true, true},
		{"the largest", consts(math.MaxInt64), math.MaxInt64, true, false},
		{"the smallest", consts(math.MinInt64), math.MinInt64, true, true},
		{"none", consts(), 0, false, false},
		{"behind views", b.Broadcast(b.Reshape(consts(big), 1, 1), ShapeOf(2, 3)), big, true, false},
		{"cast", b.CastTo(I64, b.BinaryScalar(Add, b.Scalar(F64, 0), 0)), 0, false, false},
		{"cast of a constant", b.CastTo(I64, b.Scalar(F64, -2.5)), -2, true, true},
		{"cast to 32 bits", b.CastTo(I32, consts(1<<32+7)), 7, true, true},
	} {
		v, ok := c.n.Uniform()
		if ok != c.ok || ok && (v.Int(0) != c.want || v.Type != Type{DType: c.n.Type.DType}) {
			t.Errorf("%s: %v, %v", c.name, v, ok)
		}
		if x, ok := c.n.ConstScalar(); ok != c.scalar || ok && int64(x) != c.want {
			t.Errorf("%s as a float64: %v, %v", c.name, x, ok)
		}
	}
	if x, ok := b.CastTo(F32, b.Scalar(F64, 0.1)).ConstScalar(); !ok || x != float64(float32(0.1)) {
		t.Errorf("a cast of 0.1 to f32 is %v, %v", x, ok)
	}
	if err := b.Err(); err != nil {
		t.Fatal(err)
	}
}

// TestEvalIntKnowsAll checks that every function that the type rules allow for integers and Bools has an integer
// implementation.
func TestEvalIntKnowsAll(t *testing.T) {
	for _, d := range append(IntegerTypes(), Bool) {
		x := TypeOf(d)
		for i := range numUnary {
			f := UnaryFn(i)
			if _, err := inferUnary(Unary{Fn: f}, []Type{x}); err == nil {
				f.EvalInt(d, 1) // which panics otherwise
			}
		}
		for i := range numBinary {
			f := BinaryFn(i)
			if _, err := inferBinary(Binary{Fn: f}, []Type{x, x}); err == nil {
				if _, err := f.EvalInt(d, 1, 1); err != nil {
					t.Error(err)
				}
			}
		}
	}
}
