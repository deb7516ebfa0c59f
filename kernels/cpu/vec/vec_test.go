package vec

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// implementations are those that every test of an opcode runs on.
func implementations[T Float](active *Kernels[T]) map[string]*Kernels[T] {
	return map[string]*Kernels[T]{"active": active, "portable": Portable[T]()}
}

// eachImplementation runs a test for both element types and all implementations.
func eachImplementation(t *testing.T, test32 func(*testing.T, *Kernels[float32]), test64 func(*testing.T, *Kernels[float64])) {
	for name, k := range implementations(F32()) {
		t.Run("float32/"+name, func(t *testing.T) { test32(t, k) })
	}
	for name, k := range implementations(F64()) {
		t.Run("float64/"+name, func(t *testing.T) { test64(t, k) })
	}
}

// lengths are all short ones, for every shape of tail, and some long ones.
func lengths() []int {
	var n []int
	for i := range 71 {
		n = append(n, i)
	}
	return append(n, 255, 256, 257, 511, 1000, 1024, 4099)
}

// guard is written around the destination; no opcode may change it.
const guard = -12345

// specials are the values at which elementary functions are special.
var specials = []float64{
	0, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), math.NaN(),
	1, -1, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 1e-45, -1e-45, 1e-40, -1e-40, 1.1754944e-38, -1.1754944e-38,
	1e-20, -1e-20, 1e-8, -1e-8, 1e8, -1e8, 8388609, -8388609, 1e20, -1e20, math.MaxFloat32, -math.MaxFloat32,
	88.3, 88.7, 88.8, -87.3, -87.4, -88.3, -88.7, -103, -104, -200, 127.9, 128, -126, -149, -150, -151,
	5, -5, 9, -9, 10.1, -10.1, 13, -13, 16, -16, 100, -100, 1e4, -1e4, 10001, -10001, 1e6, -1e6,
}

// randoms returns n numbers of moderate size, with a special one here and there
// if mixed is set.
func randoms[T Float](n int, seed uint64, mixed bool) []T {
	rng := rand.New(rand.NewPCG(seed, uint64(n)))
	x := make([]T, n)
	for i := range x {
		x[i] = T(rng.NormFloat64() * 3)
		if mixed && rng.IntN(8) == 0 {
			x[i] = T(specials[rng.IntN(len(specials))])
		}
		if rng.IntN(16) == 0 {
			x[i] = T(rng.IntN(3) - 1)
		}
	}
	return x
}

// near says whether got is want up to the given relative and absolute error. NaN
// and infinities must agree, but the greatest finite number may be infinite.
func near[T Float](got T, want, rel, abs float64) bool {
	w, g := float64(T(want)), float64(got)
	switch {
	case w != w || g != g:
		return w != w && g != g
	case math.IsInf(w, 0) || math.IsInf(g, 0):
		return w == g || math.Abs(want) > 0.9999999*math.MaxFloat32 && math.Abs(g) > 0.9999999*math.MaxFloat32
	case w == 0 && g == 0:
		return true
	}
	return math.Abs(g-want) <= rel*math.Abs(want)+abs
}

// run calls f with a destination of n elements inside guarded memory and
// returns it; f's destination is a copy of init if that is given, for aliasing.
func run[T Float](t *testing.T, n int, init []T, f func(dst []T)) []T {
	t.Helper()
	buffer := make([]T, n+32)
	for i := range buffer {
		buffer[i] = guard
	}
	dst := buffer[16 : 16+n : 16+n]
	copy(dst, init)
	f(dst)
	for i, v := range buffer {
		if (i < 16 || i >= 16+n) && v != guard {
			t.Fatalf("length %d: wrote outside the destination, at %d", n, i-16)
		}
	}
	return dst
}

// same reports the first difference between two results, bit for bit but for
// the payload of NaN.
func same[T Float](t *testing.T, what string, got, want []T) {
	t.Helper()
	for i := range want {
		if got[i] != want[i] && (got[i] == got[i] || want[i] == want[i]) ||
			math.Signbit(float64(got[i])) != math.Signbit(float64(want[i])) && want[i] == want[i] {
			t.Fatalf("%s, length %d: [%d] is %v, want %v", what, len(want), i, got[i], want[i])
		}
	}
}

// tolerance is the relative error allowed of op in the tests that are not about
// accuracy, and the absolute error, for results that are nearly zero.
func tolerance[T Float](op Unary, x float64) (rel, abs float64) {
	rel, abs = 3e-7, 1.5e-45
	switch op {
	case GELUTanh, GELUErf:
		abs = 1e-36
		if x < 0 {
			rel += 1.2e-7 * x * x
		}
		if x < -6 {
			abs = 1e-12
		}
	case Sigmoid, SiLU, Softplus:
		abs = 1e-36
	}
	if isFloat64[T]() {
		return 1e-8 * rel, 0
	}
	return rel, abs
}

func isFloat64[T Float]() bool { return T(1)+T(1e-12) != 1 }

func testUnary[T Float](t *testing.T, k *Kernels[T]) {
	for op := range numUnary {
		f, ref := k.Unary(op), reference[op]
		for _, n := range append(lengths(), len(specials)) {
			x := randoms[T](n, uint64(op), true)
			if n == len(specials) {
				for i, v := range specials {
					x[i] = T(v)
				}
			}
			got := run(t, n, nil, func(dst []T) { f(dst, x) })
			for i, v := range x {
				want := ref(float64(v))
				rel, abs := tolerance[T](op, float64(v))
				if !near(got[i], want, rel, abs) {
					t.Fatalf("%v(%v), element %d of %d: %v, want %v", op, v, i, n, got[i], want)
				}
			}
			same(t, op.String()+" in place", run(t, n, x, func(dst []T) { f(dst, dst) }), got)
		}
	}
}

func TestUnary(t *testing.T) { eachImplementation(t, testUnary[float32], testUnary[float64]) }

// TestPlace checks that the result for an element depends on nothing but it.
func TestPlace(t *testing.T) { eachImplementation(t, testPlace[float32], testPlace[float64]) }

func testPlace[T Float](t *testing.T, k *Kernels[T]) {
	x := randoms[T](257, 11, true)
	all, alone := make([]T, len(x)), make([]T, len(x))
	for op := range numUnary {
		k.Unary(op)(all, x)
		for i := range x {
			k.Unary(op)(alone[i:i+1], x[i:i+1])
		}
		same(t, op.String()+" alone", alone, all)
	}
}

// TestUnarySpecial has the values whose sign of zero matters or that the tests by
// tolerance do not see.
func TestUnarySpecial(t *testing.T) {
	eachImplementation(t, testUnarySpecial[float32], testUnarySpecial[float64])
}

func testUnarySpecial[T Float](t *testing.T, k *Kernels[T]) {
	inf, zero, negZero, nan := math.Inf(1), 0.0, math.Copysign(0, -1), math.NaN()
	for _, c := range []struct {
		op      Unary
		x, want float64
	}{
		{Neg, 0, negZero}, {Neg, negZero, 0}, {Abs, negZero, 0}, {Sign, negZero, negZero}, {Sign, -inf, -1},
		{Round, -0.5, negZero}, {Round, 2.5, 2}, {Round, 3.5, 4}, {Trunc, -0.7, negZero}, {Ceil, -0.7, negZero},
		{Sin, negZero, negZero}, {Sin, 0, 0}, {Sin, inf, nan}, {Sin, -inf, nan}, {Cos, 0, 1}, {Cos, inf, nan},
		{Exp, -inf, 0}, {Exp, inf, inf}, {Exp, 0, 1}, {Exp, negZero, 1}, {Exp2, 10, 1024}, {Exp2, -inf, 0},
		{Expm1, negZero, negZero}, {Expm1, -inf, -1}, {Expm1, inf, inf},
		{Log, 0, -inf}, {Log, negZero, -inf}, {Log, -1, nan}, {Log, -inf, nan}, {Log, inf, inf}, {Log, 1, 0},
		{Log2, 0, -inf}, {Log2, 8, 3}, {Log2, 0.125, -3}, {Log2, -1e-40, nan},
		{Log1p, -1, -inf}, {Log1p, -1.5, nan}, {Log1p, negZero, negZero}, {Log1p, inf, inf},
		{Sqrt, negZero, negZero}, {Sqrt, -1, nan}, {Rsqrt, 0, inf}, {Rsqrt, inf, 0}, {Recip, negZero, -inf},
		{Tanh, inf, 1}, {Tanh, -inf, -1}, {Tanh, 20, 1}, {Tanh, negZero, negZero},
		{Sigmoid, inf, 1}, {Sigmoid, -inf, 0}, {Sigmoid, 0, 0.5}, {Softplus, inf, inf}, {Softplus, -inf, 0},
		{Erf, inf, 1}, {Erf, -inf, -1}, {Erf, negZero, negZero}, {Erf, 6, 1},
		{ReLU, -inf, 0}, {ReLU, inf, inf}, {ReLU, nan, nan}, {Not, 0, 1}, {Not, negZero, 1}, {Not, nan, 0},
		{GELUTanh, inf, inf}, {GELUErf, inf, inf}, {SiLU, inf, inf}, {GELUTanh, 0, 0}, {GELUErf, 0, 0}, {SiLU, 0, 0},
		{GELUTanh, 100, 100}, {GELUErf, 100, 100}, {SiLU, 200, 200},
	} {
		x, y := []T{T(c.x)}, []T{0}
		k.Unary(c.op)(y, x)
		same(t, fmt.Sprintf("%v(%v)", c.op, c.x), y, []T{T(c.want)})
	}
	for _, op := range []Unary{GELUTanh, GELUErf, SiLU} {
		for _, v := range []float64{-inf, -1e30, -1000} {
			y := []T{0}
			k.Unary(op)(y, []T{T(v)})
			if y[0] != T(zero) {
				t.Errorf("%v(%v) = %v, want 0", op, v, y[0])
			}
		}
	}
	for op := range numUnary {
		y := []T{0}
		k.Unary(op)(y, []T{T(nan)})
		if op != Not && y[0] == y[0] {
			t.Errorf("%v(NaN) = %v", op, y[0])
		}
	}
}

func testUnaryScalar[T Float](t *testing.T, k *Kernels[T]) {
	refs := [numUnaryScalar]func(x, s float64) float64{
		LeakyReLU: func(x, s float64) float64 {
			if x < 0 {
				return s * x
			}
			return x
		},
		ELU: func(x, s float64) float64 {
			if x < 0 {
				return s * math.Expm1(x)
			}
			return x
		},
	}
	for op := range numUnaryScalar {
		f := k.UnaryScalar(op)
		for _, n := range lengths() {
			x := randoms[T](n, uint64(op), true)
			s := T(0.25)
			got := run(t, n, nil, func(dst []T) { f(dst, x, s) })
			for i, v := range x {
				if want := refs[op](float64(v), float64(s)); !near(got[i], want, 3e-7, 1.5e-45) {
					t.Fatalf("%v(%v): %v, want %v", op, v, got[i], want)
				}
			}
			same(t, op.String()+" in place", run(t, n, x, func(dst []T) { f(dst, dst, s) }), got)
		}
	}
}

func TestUnaryScalar(t *testing.T) {
	eachImplementation(t, testUnaryScalar[float32], testUnaryScalar[float64])
}

// refBinary is op in T's own arithmetic, which is correctly rounded but for Pow.
func refBinary[T Float](op Binary, a, b T) T {
	truth := func(c bool) T {
		if c {
			return 1
		}
		return 0
	}
	switch op {
	case Add:
		return a + b
	case Sub:
		return a - b
	case Mul:
		return a * b
	case Div:
		return a / b
	case Pow:
		return T(math.Pow(float64(a), float64(b)))
	case Min:
		return min(a, b)
	case Max:
		return max(a, b)
	case Lt:
		return truth(a < b)
	case Le:
		return truth(a <= b)
	case Gt:
		return truth(a > b)
	case Ge:
		return truth(a >= b)
	case Eq:
		return truth(a == b)
	case Ne:
		return truth(a != b)
	case And:
		return truth(a != 0 && b != 0)
	case Or:
		return truth(a != 0 || b != 0)
	}
	panic("unknown opcode")
}

func testBinary[T Float](t *testing.T, k *Kernels[T]) {
	for op := range numBinary {
		vv, vs, sv := k.BinaryVV(op), k.BinaryVS(op), k.BinarySV(op)
		check := func(form string, got []T, a, b func(i int) T) {
			t.Helper()
			want := make([]T, len(got))
			for i := range want {
				want[i] = refBinary(op, a(i), b(i))
				if op == Pow && near(got[i], math.Pow(float64(a(i)), float64(b(i))), 3e-7, 1.5e-45) {
					want[i] = got[i]
				}
			}
			same(t, op.String()+form, got, want)
		}
		for _, n := range lengths() {
			a, b := randoms[T](n, 1, true), randoms[T](n, 2, true)
			at := func(x []T) func(int) T { return func(i int) T { return x[i] } }
			check(" vv", run(t, n, nil, func(dst []T) { vv(dst, a, b) }), at(a), at(b))
			check(" vv, dst = a", run(t, n, a, func(dst []T) { vv(dst, dst, b) }), at(a), at(b))
			check(" vv, dst = b", run(t, n, b, func(dst []T) { vv(dst, a, dst) }), at(a), at(b))
			check(" vv, all one", run(t, n, a, func(dst []T) { vv(dst, dst, dst) }), at(a), at(a))
			for _, v := range []float64{1.5, 2, 3, -1, -2, 0, math.Copysign(0, -1), math.NaN(), math.Inf(1)} {
				s := T(v)
				scalar := func(int) T { return s }
				check(" vs", run(t, n, nil, func(dst []T) { vs(dst, a, s) }), at(a), scalar)
				check(" sv", run(t, n, nil, func(dst []T) { sv(dst, a, s) }), scalar, at(a))
				check(" vs in place", run(t, n, a, func(dst []T) { vs(dst, dst, s) }), at(a), scalar)
				check(" sv in place", run(t, n, a, func(dst []T) { sv(dst, dst, s) }), scalar, at(a))
			}
		}
	}
}

func TestBinary(t *testing.T) { eachImplementation(t, testBinary[float32], testBinary[float64]) }

func testTernary[T Float](t *testing.T, k *Kernels[T]) {
	ref := func(a, b, c T) T { return T(math.FMA(float64(a), float64(b), float64(c))) }
	choose := func(m, a, b T) T {
		if m != 0 {
			return a
		}
		return b
	}
	s, u := T(0.375), T(-7)
	for _, n := range lengths() {
		a, b, c := randoms[T](n, 1, false), randoms[T](n, 2, false), randoms[T](n, 3, false)
		m := randoms[T](n, 4, true)
		for i := range m {
			if i%3 == 0 {
				m[i] = 0
			}
		}
		forms := []struct {
			name string
			exec func(dst, a, b, c []T)
			want func(i int) T
		}{
			{"fma vvv", func(dst, a, b, c []T) { k.FMAVVV()(dst, a, b, c) }, func(i int) T { return ref(a[i], b[i], c[i]) }},
			{"fma vsv", func(dst, a, _, c []T) { k.FMAVSV()(dst, a, c, s) }, func(i int) T { return ref(a[i], s, c[i]) }},
			{"fma vss", func(dst, a, _, _ []T) { k.FMAVSS()(dst, a, s, u) }, func(i int) T { return ref(a[i], s, u) }},
			{"select vvv", func(dst, a, b, _ []T) { k.SelectVVV()(dst, m, a, b) }, func(i int) T { return choose(m[i], a[i], b[i]) }},
			{"select vvs", func(dst, a, _, _ []T) { k.SelectVVS()(dst, m, a, s) }, func(i int) T { return choose(m[i], a[i], s) }},
			{"select vsv", func(dst, _, b, _ []T) { k.SelectVSV()(dst, m, b, s) }, func(i int) T { return choose(m[i], s, b[i]) }},
		}
		for _, f := range forms {
			want := make([]T, n)
			for i := range want {
				want[i] = f.want(i)
			}
			same(t, f.name, run(t, n, nil, func(dst []T) { f.exec(dst, a, b, c) }), want)
			same(t, f.name+", dst = a", run(t, n, a, func(dst []T) { f.exec(dst, dst, b, c) }), want)
			same(t, f.name+", dst = b", run(t, n, b, func(dst []T) { f.exec(dst, a, dst, c) }), want)
			same(t, f.name+", dst = c", run(t, n, c, func(dst []T) { f.exec(dst, a, b, dst) }), want)
		}
		want := make([]T, n)
		for i := range want {
			want[i] = ref(a[i], s, b[i])
		}
		same(t, "axpy", run(t, n, b, func(dst []T) { k.Axpy(dst, a, s) }), want)
		for _, h := range []struct {
			op Binary
			to func(acc, x []T)
		}{{Add, k.AddTo}, {Mul, k.MulTo}, {Max, k.MaxTo}, {Min, k.MinTo}} {
			for i := range want {
				want[i] = refBinary(h.op, a[i], b[i])
			}
			same(t, h.op.String()+"To", run(t, n, a, func(dst []T) { h.to(dst, b) }), want)
		}
		for i := range want {
			want[i] = s
		}
		same(t, "fill", run(t, n, nil, func(dst []T) { k.Fill()(dst, s) }), want)
	}
}

func TestTernary(t *testing.T) { eachImplementation(t, testTernary[float32], testTernary[float64]) }

// TestShortest checks that opcodes stop at the end of the shortest slice.
func TestShortest(t *testing.T) { eachImplementation(t, testShortest[float32], testShortest[float64]) }

func testShortest[T Float](t *testing.T, k *Kernels[T]) {
	long, short := make([]T, 40), make([]T, 21)
	for i := range long {
		long[i] = 1
	}
	for _, f := range []func(dst []T){
		func(dst []T) { k.Unary(Exp)(dst, short) },
		func(dst []T) { k.Unary(Sin)(dst, short) },
		func(dst []T) { k.BinaryVV(Add)(dst, long, short) },
		func(dst []T) { k.BinaryVV(Pow)(dst, short, long) },
		func(dst []T) { k.BinaryVS(Lt)(dst, short, 1) },
		func(dst []T) { k.BinarySV(Pow)(dst, short, 1) },
		func(dst []T) { k.FMAVVV()(dst, long, long, short) },
		func(dst []T) { k.SelectVVV()(dst, long, long, short) },
		func(dst []T) { k.ExpSubSum()(dst, short, 0) },
	} {
		dst := make([]T, 40)
		for i := range dst {
			dst[i] = guard
		}
		f(dst)
		for i, v := range dst {
			if (v == guard) != (i >= len(short)) {
				t.Errorf("element %d is %v", i, v)
			}
		}
	}
	if got := k.Dot()(long, long[:21]); got != 21 {
		t.Errorf("dot of 40 and 21 ones is %v", got)
	}
}

// TestTables checks that every opcode has a name of its own and every form, and
// that what is no opcode has a name too.
func TestTables(t *testing.T) {
	names := map[string]bool{}
	name := func(s fmt.Stringer) {
		key := fmt.Sprintf("%T %s", s, s)
		if s.String() == "" || names[key] {
			t.Errorf("%T has no name of its own: %q", s, s)
		}
		names[key] = true
	}
	for op := range numUnary + 1 {
		name(op)
	}
	for op := range numUnaryScalar + 1 {
		name(op)
	}
	for op := range numBinary + 1 {
		name(op)
	}
	for op := range numReduction + 1 {
		name(op)
	}
	eachImplementation(t, testTables[float32], testTables[float64])
}

func testTables[T Float](t *testing.T, k *Kernels[T]) {
	for op := range numUnary {
		if k.Unary(op) == nil {
			t.Errorf("no %v", op)
		}
	}
	for op := range numUnaryScalar {
		if k.UnaryScalar(op) == nil {
			t.Errorf("no %v", op)
		}
	}
	for op := range numBinary {
		if k.BinaryVV(op) == nil || k.BinaryVS(op) == nil || k.BinarySV(op) == nil {
			t.Errorf("%v lacks a form", op)
		}
	}
	for op := range numReduction {
		if k.Reduce(op) == nil {
			t.Errorf("no %v", op)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	eachImplementation(t, testNoAllocation[float32], testNoAllocation[float64])
}

func testNoAllocation[T Float](t *testing.T, k *Kernels[T]) {
	x, y, z := randoms[T](300, 1, true), make([]T, 300), make([]T, 300)
	ints, bools := make([]int32, 300), make([]byte, 300)
	wide := make([]float64, 300)
	n := testing.AllocsPerRun(5, func() {
		for op := range numUnary {
			k.Unary(op)(y, x)
		}
		for op := range numUnaryScalar {
			k.UnaryScalar(op)(y, x, 2)
		}
		for op := range numBinary {
			k.BinaryVV(op)(y, x, x)
			k.BinaryVS(op)(y, x, 2)
			k.BinarySV(op)(y, x, 2)
		}
		for op := range numReduction {
			k.Reduce(op)(x)
		}
		k.FMAVVV()(y, x, x, x)
		k.FMAVSV()(y, x, x, 1)
		k.FMAVSS()(y, x, 1, 2)
		k.SelectVVV()(y, x, x, x)
		k.SelectVVS()(y, x, x, 1)
		k.SelectVSV()(y, x, x, 1)
		k.Dot()(x, x)
		k.SumSquaredDeviations()(x, 1)
		k.ExpSubSum()(y, x, 1)
		k.Fill()(y, 1)
		k.Axpy(y, x, 2)
		k.AddTo(y, x)
		k.ArgMax(x)
		k.Transpose(z, 10, x, 30, 10, 30)
		Gather(y[:100], x, 3)
		Scatter(y, 3, x[:100])
		Convert(ints, x)
		Convert(wide, x)
		Convert(x, wide)
		ToBool(bools, x)
		FromBool(y, bools)
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestRegisters checks that the assembly keeps to the sixteen registers of AVX2,
// but for functions named after AVX-512: the generator's register allocator
// knows the others, too.
func TestRegisters(t *testing.T) {
	files, err := filepath.Glob("*_amd64.s")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text = regexp.MustCompile(`(?ms)^TEXT ·\w*AVX512.*?(^// func|^DATA|\z)`).ReplaceAll(text, nil)
		if at := regexp.MustCompile(`\b([XYZ](1[6-9]|2[0-9]|3[01])|Z[0-9]+|K[0-7])\b`).Find(text); at != nil {
			t.Errorf("%s uses %s", file, at)
		}
	}
}
