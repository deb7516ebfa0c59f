package graph

import (
	"math"
	"math/big"
	"math/rand/v2"
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
		{Eq, big, big - 1, 0}, {Ne, big, big - 1, 1}, {Lt, big - 1, big, 1}, {Gt, big, big - 1, 1}, {Le, big, big - 1, 0},
		{Ge, big - 1, big, 0},
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

// TestIntegersWrap compares the functions of every type of integers with exact arithmetic, reduced to the type.
func TestIntegersWrap(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	exact := map[BinaryFn]func(z, x, y *big.Int) *big.Int{
		Add: (*big.Int).Add, Sub: (*big.Int).Sub, Mul: (*big.Int).Mul, Div: (*big.Int).Quo, Rem: (*big.Int).Rem,
		And: (*big.Int).And, Or: (*big.Int).Or, Xor: (*big.Int).Xor,
		Mod: func(z, x, y *big.Int) *big.Int {
			if z.Rem(x, y); z.Sign() != 0 && z.Sign() != y.Sign() {
				z.Add(z, y)
			}
			return z
		},
		Max: func(z, x, y *big.Int) *big.Int {
			if x.Cmp(y) > 0 {
				return x
			}
			return y
		},
		Min: func(z, x, y *big.Int) *big.Int {
			if x.Cmp(y) < 0 {
				return x
			}
			return y
		},
		Pow: func(z, x, y *big.Int) *big.Int { return z.Exp(x, y, nil) },
		Shl: func(z, x, y *big.Int) *big.Int { return z.Lsh(x, uint(y.Uint64())) },
		Shr: func(z, x, y *big.Int) *big.Int { return z.Rsh(x, uint(y.Uint64())) },
	}
	compare := map[BinaryFn]func(order int) bool{
		Lt: func(o int) bool { return o < 0 }, Gt: func(o int) bool { return o > 0 }, Le: func(o int) bool { return o <= 0 },
		Ge: func(o int) bool { return o >= 0 }, Eq: func(o int) bool { return o == 0 }, Ne: func(o int) bool { return o != 0 },
	}
	for f, test := range compare {
		exact[f] = func(_, x, y *big.Int) *big.Int { return big.NewInt(truth(test(x.Cmp(y)))) }
	}
	for _, d := range IntegerTypes() {
		number := func(v int64) *big.Int {
			if d.IsUnsigned() {
				return new(big.Int).SetUint64(uint64(v))
			}
			return big.NewInt(v)
		}
		lo, hi := d.Limits()
		for _, f := range BinaryFnsOf(d) {
			for range 200 {
				x, y := d.Wrap(int64(r.Uint64())), d.Wrap(int64(r.Uint64()))
				switch r.IntN(8) {
				case 0:
					x = lo
				case 1:
					x = hi
				case 2:
					y = d.Wrap(-1)
				}
				switch {
				case f == Pow || f == Shl || f == Shr:
					y = r.Int64N(8*int64(d.Size()) + 3)
				case y == 0 && f.Info().Fails:
					y = 1
				}
				whole := exact[f](new(big.Int), number(x), number(y))
				low := new(big.Int).And(whole, new(big.Int).SetUint64(math.MaxUint64)) // two's complement
				want := d.Wrap(int64(low.Uint64()))
				if got, err := f.EvalInt(d, x, y); err != nil || got != want {
					t.Fatalf("%v of %v: %v, %v give %v, %v, want %v", f, d, number(x), number(y), number(got), err, number(want))
				}
			}
		}
		for x, want := range map[float64]int64{math.Inf(1): hi, math.Inf(-1): lo, math.NaN(): 0, 1.9: 1, -0.9: 0, 1e30: hi, 100.5: 100} {
			if got := d.Truncate(x); got != want {
				t.Errorf("%v truncated to %v: %v, want %v", x, d, got, want)
			}
		}
		for _, e := range DTypes() {
			if e.IsReal() || !e.Holds(d) {
				continue
			}
			for _, v := range []int64{lo, hi} {
				if got := e.Wrap(v); e != Bool && got != v {
					t.Errorf("%v does not hold %v of %v", e, v, d)
				}
			}
		}
	}
	if F32.Holds(I32) || !F64.Holds(U32) || F64.Holds(U64) || !F32.Holds(I16) || U16.Holds(I8) || !I16.Holds(U8) || I64.Holds(U64) {
		t.Error("Holds is wrong")
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
