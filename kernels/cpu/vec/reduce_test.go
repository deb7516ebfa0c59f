package vec

import (
	"math"
	"testing"
)

func TestReduce(t *testing.T) { eachImplementation(t, testReduce[float32], testReduce[float64]) }

func testReduce[T Float](t *testing.T, k *Kernels[T]) {
	eps := 1e-6
	if isFloat64[T]() {
		eps = 1e-12
	}
	c := T(0.3)
	for _, n := range append(lengths(), 100_003) {
		x, y := randoms[T](n, 5, false), randoms[T](n, 6, false)
		sums := []struct {
			name string
			got  T
			term func(i int) float64
		}{
			{"sum", k.Reduce(SumOf)(x), func(i int) float64 { return float64(x[i]) }},
			{"sum of squares", k.Reduce(SumSquaresOf)(x), func(i int) float64 { return float64(x[i]) * float64(x[i]) }},
			{"dot", k.Dot()(x, y), func(i int) float64 { return float64(x[i]) * float64(y[i]) }},
			{"deviations", k.SumSquaredDeviations()(x, c), func(i int) float64 { return math.Pow(float64(x[i])-float64(c), 2) }},
		}
		for _, s := range sums {
			want, magnitude := 0.0, 0.0
			for i := range x {
				want += s.term(i)
				magnitude += math.Abs(s.term(i))
			}
			if math.Abs(float64(s.got)-want) > eps*magnitude {
				t.Errorf("%s of %d: %v, want %v", s.name, n, s.got, want)
			}
		}
		greatest, least := T(math.Inf(-1)), T(math.Inf(1))
		first := -1
		for i, v := range x {
			if v > greatest {
				first = i
			}
			greatest, least = max(greatest, v), min(least, v)
		}
		if got := k.Reduce(MaxOf)(x); got != greatest {
			t.Errorf("max of %d: %v, want %v", n, got, greatest)
		}
		if got := k.Reduce(MinOf)(x); got != least {
			t.Errorf("min of %d: %v, want %v", n, got, least)
		}
		if got := k.ArgMax(x); got != first {
			t.Errorf("argmax of %d: %v, want %v", n, got, first)
		}
		product := 1.0
		for i := range y {
			y[i] = 1 + y[i]/T(50*math.Sqrt(float64(n+1)))
			product *= float64(y[i])
		}
		if got := k.Reduce(ProdOf)(y); !near(got, product, float64(n+1)*eps, 0) {
			t.Errorf("product of %d: %v, want %v", n, got, product)
		}
	}
}

// TestReduceSpecial puts NaN and infinities at every place of a slice.
func TestReduceSpecial(t *testing.T) {
	eachImplementation(t, testReduceSpecial[float32], testReduceSpecial[float64])
}

func testReduceSpecial[T Float](t *testing.T, k *Kernels[T]) {
	inf, nan := T(math.Inf(1)), T(math.NaN())
	const n = 77
	for i := range n {
		x := randoms[T](n, 7, false)
		x[i] = nan
		for op := range numReduction {
			if got := k.Reduce(op)(x); got == got {
				t.Fatalf("%v with NaN at %d is %v", op, i, got)
			}
		}
		if got := k.ArgMax(x); got != i {
			t.Fatalf("argmax with NaN at %d is %d", i, got)
		}
		x[i] = inf
		if got := k.Reduce(MaxOf)(x); got != inf {
			t.Fatalf("max with +Inf at %d is %v", i, got)
		}
		if got := k.Reduce(SumOf)(x); got != inf {
			t.Fatalf("sum with +Inf at %d is %v", i, got)
		}
		if got := k.ArgMax(x); got != i {
			t.Fatalf("argmax with +Inf at %d is %d", i, got)
		}
		x[i] = -inf
		if got := k.Reduce(MinOf)(x); got != -inf {
			t.Fatalf("min with −Inf at %d is %v", i, got)
		}
	}
	low := []T{-inf, -inf, -inf}
	if got := k.ArgMax(low); got != 0 {
		t.Errorf("argmax of nothing but −Inf is %d", got)
	}
	all := make([]T, 3*argBlock)
	all[argBlock+3], all[2*argBlock+1] = nan, nan
	if got := k.ArgMax(all); got != argBlock+3 {
		t.Errorf("argmax is %d, want the first NaN, %d", got, argBlock+3)
	}
}

func TestExpSubSum(t *testing.T) {
	eachImplementation(t, testExpSubSum[float32], testExpSubSum[float64])
}

func testExpSubSum[T Float](t *testing.T, k *Kernels[T]) {
	for _, n := range append(lengths(), 50_001) {
		x := randoms[T](n, 8, false)
		if n > 4 {
			x[n-1], x[2] = T(math.Inf(-1)), -90
		}
		c := k.Reduce(MaxOf)(x)
		var total T
		got := run(t, n, nil, func(dst []T) { total = k.ExpSubSum()(dst, x, c) })
		want := 0.0
		for i, v := range x {
			e := math.Exp(float64(v - c))
			want += e
			if !near(got[i], e, 3e-7, 1.5e-45) {
				t.Fatalf("e^(%v − %v) is %v, want %v", v, c, got[i], e)
			}
		}
		if !near(total, want, 1e-6, 0) {
			t.Errorf("sum of %d: %v, want %v", n, total, want)
		}
		var again T
		same(t, "in place", run(t, n, x, func(dst []T) { again = k.ExpSubSum()(dst, dst, c) }), got)
		if again != total {
			t.Errorf("sum in place is %v, not %v", again, total)
		}
	}
}
