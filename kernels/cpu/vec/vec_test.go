package vec

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"fusec/graph"
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

// plain are the functions of one variable without a parameter.
func plain() []graph.UnaryFn {
	return slices.DeleteFunc(append(graph.UnaryFnsOf(graph.F32), graph.Not), graph.UnaryFn.HasAlpha)
}

// parametrised are the functions of one variable with a parameter.
func parametrised() []graph.UnaryFn {
	return slices.DeleteFunc(graph.UnaryFnsOf(graph.F32), func(f graph.UnaryFn) bool { return !f.HasAlpha() })
}

// binary are the functions of two variables, of truth values too.
func binary() []graph.BinaryFn {
	return append(graph.BinaryFnsOf(graph.F32), graph.And, graph.Or, graph.Xor)
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
func tolerance[T Float](op graph.UnaryFn, x float64) (rel, abs float64) {
	rel, abs = 3e-7, 1.5e-45
	switch op {
	case graph.GeluTanh, graph.GeluErf:
		abs = 1e-36
		if x < 0 {
			rel += 1.2e-7 * x * x
		}
		if x < -6 {
			abs = 1e-12
		}
	case graph.GeluTanhSlope, graph.GeluErfSlope: // it is 0 at −0.75
		rel, abs = 3e-6+1.2e-7*x*x, 1e-6
		if x < -1 {
			abs = 1e-36
		}
	case graph.Sigmoid, graph.Silu, graph.Softplus:
		abs = 1e-36
	}
	if isFloat64[T]() {
		if op == graph.GeluTanhSlope || op == graph.GeluErfSlope {
			return 1e-8 * rel, 1e-8 * abs
		}
		return 1e-8 * rel, 0
	}
	return rel, abs
}

func isFloat64[T Float]() bool { return T(1)+T(1e-12) != 1 }

func testUnary[T Float](t *testing.T, k *Kernels[T]) {
	for _, op := range plain() {
		f, ref := k.Unary(op), reference[op]
		if ref == nil {
			ref = op.Info().Eval
		}
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
	for _, op := range plain() {
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
		op      graph.UnaryFn
		x, want float64
	}{
		{graph.Neg, 0, negZero}, {graph.Neg, negZero, 0}, {graph.Abs, negZero, 0}, {graph.Sign, negZero, negZero}, {graph.Sign, -inf, -1},
		{graph.Round, -0.5, negZero}, {graph.Round, 2.5, 2}, {graph.Round, 3.5, 4}, {graph.Ceil, -0.7, negZero},
		{graph.Sin, negZero, negZero}, {graph.Sin, 0, 0}, {graph.Sin, inf, nan}, {graph.Sin, -inf, nan}, {graph.Cos, 0, 1},
		{graph.Cos, inf, nan},
		{graph.Exp, -inf, 0}, {graph.Exp, inf, inf}, {graph.Exp, 0, 1}, {graph.Exp, negZero, 1},
		{graph.Expm1, negZero, negZero}, {graph.Expm1, -inf, -1}, {graph.Expm1, inf, inf},
		{graph.Log, 0, -inf}, {graph.Log, negZero, -inf}, {graph.Log, -1, nan}, {graph.Log, -inf, nan}, {graph.Log, inf, inf},
		{graph.Log, 1, 0},
		{graph.Log2, 0, -inf}, {graph.Log2, 8, 3}, {graph.Log2, 0.125, -3}, {graph.Log2, -1e-40, nan},
		{graph.Log1p, -1, -inf}, {graph.Log1p, -1.5, nan}, {graph.Log1p, negZero, negZero}, {graph.Log1p, inf, inf},
		{graph.Sqrt, negZero, negZero}, {graph.Sqrt, -1, nan}, {graph.Rsqrt, 0, inf}, {graph.Rsqrt, inf, 0}, {graph.Recip, negZero, -inf},
		{graph.Tanh, inf, 1}, {graph.Tanh, -inf, -1}, {graph.Tanh, 20, 1}, {graph.Tanh, negZero, negZero},
		{graph.Sigmoid, inf, 1}, {graph.Sigmoid, -inf, 0}, {graph.Sigmoid, 0, 0.5}, {graph.Softplus, inf, inf}, {graph.Softplus, -inf, 0},
		{graph.Erf, inf, 1}, {graph.Erf, -inf, -1}, {graph.Erf, negZero, negZero}, {graph.Erf, 6, 1},
		{graph.Relu, -inf, 0}, {graph.Relu, inf, inf}, {graph.Relu, nan, nan}, {graph.Not, 0, 1}, {graph.Not, negZero, 1},
		{graph.Not, nan, 0},
		{graph.GeluTanh, inf, inf}, {graph.GeluErf, inf, inf}, {graph.Silu, inf, inf}, {graph.GeluTanh, 0, 0}, {graph.GeluErf, 0, 0},
		{graph.Silu, 0, 0},
		{graph.GeluTanhSlope, 100, 1}, {graph.GeluTanhSlope, inf, 1}, {graph.GeluErfSlope, 100, 1}, {graph.GeluErfSlope, inf, 1},
		{graph.GeluTanh, 100, 100}, {graph.GeluErf, 100, 100}, {graph.Silu, 200, 200},
	} {
		x, y := []T{T(c.x)}, []T{0}
		k.Unary(c.op)(y, x)
		same(t, fmt.Sprintf("%v(%v)", c.op, c.x), y, []T{T(c.want)})
	}
	for _, op := range []graph.UnaryFn{graph.GeluTanh, graph.GeluErf, graph.GeluTanhSlope, graph.GeluErfSlope, graph.Silu} {
		for _, v := range []float64{-inf, -1e30, -1000} {
			y := []T{0}
			k.Unary(op)(y, []T{T(v)})
			if y[0] != T(zero) {
				t.Errorf("%v(%v) = %v, want 0", op, v, y[0])
			}
		}
	}
	for _, op := range plain() {
		y := []T{0}
		k.Unary(op)(y, []T{T(nan)})
		if op != graph.Not && y[0] == y[0] {
			t.Errorf("%v(NaN) = %v", op, y[0])
		}
	}
}

func testUnaryScalar[T Float](t *testing.T, k *Kernels[T]) {
	for _, op := range parametrised() {
		f := k.UnaryScalar(op)
		for _, n := range lengths() {
			x := randoms[T](n, uint64(op), true)
			s := T(0.25)
			got := run(t, n, nil, func(dst []T) { f(dst, x, s) })
			for i, v := range x {
				if want := op.Eval(float64(v), float64(s)); !near(got[i], want, 3e-7, 1.5e-45) {
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
func refBinary[T Float](op graph.BinaryFn, a, b T) T {
	truth := func(c bool) T {
		if c {
			return 1
		}
		return 0
	}
	switch op {
	case graph.Lt:
		return truth(a < b)
	case graph.Le:
		return truth(a <= b)
	case graph.Gt:
		return truth(a > b)
	case graph.Ge:
		return truth(a >= b)
	case graph.Add:
		return a + b
	case graph.Sub:
		return a - b
	case graph.Mul:
		return a * b
	case graph.Div:
		return a / b
	}
	return T(op.Eval(float64(a), float64(b)))
}

func testBinary[T Float](t *testing.T, k *Kernels[T]) {
	for _, op := range binary() {
		vv, vs, sv := k.BinaryVV(op), k.BinaryVS(op), k.BinarySV(op)
		check := func(form string, got []T, a, b func(i int) T) {
			t.Helper()
			want := make([]T, len(got))
			for i := range want {
				want[i] = refBinary(op, a(i), b(i))
				if op == graph.Pow && near(got[i], math.Pow(float64(a(i)), float64(b(i))), 3e-7, 1.5e-45) {
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
			{"round mul", func(dst, a, _, _ []T) { k.RoundMul()(dst, a, s, 3, -2, 5) }, func(i int) T { return limited(a[i]*s, 3, -2, 5) }},
			{"round div", func(dst, a, _, _ []T) { k.RoundDiv()(dst, a, s, u, -9, 5) }, func(i int) T { return limited(a[i]/s, u, -9, 5) }},
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
			op graph.BinaryFn
			to func(acc, x []T)
		}{{graph.Add, k.AddTo}, {graph.Mul, k.MulTo}, {graph.Max, k.MaxTo}} {
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
		func(dst []T) { k.Unary(graph.Exp)(dst, short) },
		func(dst []T) { k.Unary(graph.Sin)(dst, short) },
		func(dst []T) { k.BinaryVV(graph.Add)(dst, long, short) },
		func(dst []T) { k.BinaryVV(graph.Pow)(dst, short, long) },
		func(dst []T) { k.BinaryVS(graph.Lt)(dst, short, 1) },
		func(dst []T) { k.BinarySV(graph.Pow)(dst, short, 1) },
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

// TestTables checks that every opcode has a unique name and every form.
func TestTables(t *testing.T) {
	names := map[string]bool{}
	name := func(s fmt.Stringer) {
		key := fmt.Sprintf("%T %s", s, s)
		if s.String() == "" || names[key] {
			t.Errorf("%T has no name of its own: %q", s, s)
		}
		names[key] = true
	}
	for op := range numReduction {
		name(op)
	}
	eachImplementation(t, testTables[float32], testTables[float64])
}

func testTables[T Float](t *testing.T, k *Kernels[T]) {
	for _, op := range plain() {
		if k.Unary(op) == nil {
			t.Errorf("no %v", op)
		}
	}
	for _, op := range parametrised() {
		if k.UnaryScalar(op) == nil {
			t.Errorf("no %v", op)
		}
	}
	for _, op := range binary() {
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
	ints, wide := make([]int32, 300), make([]float64, 300)
	ones, scalars, twos := plain(), parametrised(), binary()
	n := testing.AllocsPerRun(10, func() {
		for _, op := range ones {
			k.Unary(op)(y, x)
		}
		for _, op := range scalars {
			k.UnaryScalar(op)(y, x, 2)
		}
		for _, op := range twos {
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
		k.RoundMul()(y, x, 1, 2, 3, 4)
		k.RoundDiv()(y, x, 1, 2, 3, 4)
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
