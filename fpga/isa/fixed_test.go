package isa

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestExp2 bounds the error of a probability over all arguments: 3.5 units of 2^-17 where no shift follows, beyond that
// half a unit, and 3.5 shifted. It never rises.
func TestExp2(t *testing.T) {
	last := uint32(1 << ProbFrac)
	worst := 0.0
	for x := int32(0); x < 1<<ScoreBits; x++ {
		got := Exp2(x)
		if got > last {
			t.Fatalf("Exp2(%d) = %d after %d", x, got, last)
		}
		last = got
		want := math.Ldexp(math.Exp2(-float64(x)/(1<<ScoreFrac)), ProbFrac)
		whole := x >> ScoreFrac
		bound := 3.5
		if whole > 0 {
			bound = 0.5 + math.Ldexp(3.5, -int(whole))
		}
		e := math.Abs(float64(got) - want)
		worst = max(worst, e)
		if e > bound {
			t.Fatalf("Exp2(%d) = %d, want %.3f within %.3f", x, got, want, bound)
		}
	}
	t.Logf("at most %.3f of 2^-%d", worst, ProbFrac)
	if Exp2(0) != 1<<ProbFrac-1 || Exp2(1<<ScoreFrac) != 1<<(ProbFrac-1) || Exp2(1<<20) != 0 ||
		Exp2(math.MaxInt32) != 0 {
		t.Error("the ends")
	}
}

// TestReciprocal bounds the reciprocal's relative error by 2^-15.
func TestReciprocal(t *testing.T) {
	check := func(sum uint32) {
		r, z := Reciprocal(sum)
		if sum<<z>>31 != 1 || r > 65535 || r < 1<<15 {
			t.Fatalf("Reciprocal(%d) = %d, %d", sum, r, z)
		}
		// r/2^47 is 1/(sum·2^z).
		if e := math.Abs(float64(r)*float64(sum)*math.Ldexp(1, int(z)-47) - 1); e > 1.0/(1<<15) {
			t.Fatalf("Reciprocal(%d) = %d, %d: off by %g", sum, r, z, e)
		}
	}
	for i := range 32 {
		for _, d := range []int{-2, -1, 0, 1, 2} {
			if s := 1<<i + d; s > 0 {
				check(uint32(s))
			}
		}
	}
	r := rand.New(rand.NewPCG(7, 8))
	for range 100000 {
		check(max(1, r.Uint32()>>r.IntN(32)))
	}
	check(math.MaxUint32)
	if r, z := Reciprocal(0); r != 0 || z != 0 {
		t.Errorf("Reciprocal(0) = %d, %d", r, z)
	}
}

// TestFinishAttention compares a weighted mean of V's with its real value: with mul = 65535 and shift = 19 in 1/256 of
// V's step, 8 fraction bits behind that, within 2^-14 of 128 steps and one unit.
func TestFinishAttention(t *testing.T) {
	rnd := rand.New(rand.NewPCG(9, 10))
	worst := 0.0
	for range 100000 {
		sum := max(1<<13, rnd.Uint32()>>rnd.IntN(16))
		mean := rnd.Float64()*256 - 128
		acc := int64(math.Round(mean * float64(sum)))
		acc = max(-128*int64(sum), min(127*int64(sum), acc))
		r, z := Reciprocal(sum)
		got := float64(FinishAttention(acc, r, z, 65535, 19))
		want := float64(acc) / float64(sum) * 256 * 256
		e := math.Abs(got - want)
		worst = max(worst, e)
		if bound := 128*256*256/float64(1<<14) + 1; e > bound {
			t.Fatalf("%d/%d: %v, want %.2f within %v", acc, sum, got, want, bound)
		}
	}
	t.Logf("at most %.1f of 1/65536 of V's step", worst)
	if FinishAttention(0, 0, 0, 65535, 19) != 0 {
		t.Error("a row without keys is not zero")
	}
}

// TestNorm bounds a normalised element: within one unit of 2^-12 and 2^-16 of its value of the real one.
func TestNorm(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	worst := 0.0
	for range 4000 {
		n := 1 + r.IntN(MaxNorm>>r.IntN(12))
		x := make([]int8, n)
		spread := 1 + r.IntN(255)
		offset := r.IntN(256-spread+1) - 128
		for i := range x {
			x[i] = int8(offset + r.IntN(spread))
		}
		eps := r.Uint32() >> r.IntN(32)
		for _, rms := range []bool{false, true} {
			var sum, squares int64
			for _, v := range x {
				if !rms {
					sum += int64(v)
				}
				squares += int64(v) * int64(v)
			}
			norm := NewNorm(n, sum, squares, eps)
			v := float64(int64(n)*squares-sum*sum) + float64(eps)
			for _, e := range []int8{x[0], x[n-1], x[r.IntN(n)]} {
				got := float64(norm.Element(e))
				if v == 0 {
					if got != 0 {
						t.Fatalf("a row without variance gives %v", got)
					}
					continue
				}
				want := (float64(n)*float64(e) - float64(sum)) / math.Sqrt(v) * (1 << NormShift)
				want = max(-1<<19, min(1<<19-1, want))
				d := math.Abs(got - want)
				worst = max(worst, d-math.Abs(want)/(1<<16))
				if d > 1+math.Abs(want)/(1<<16) {
					t.Fatalf("n %d, sum %d, squares %d, eps %d, x %d: %v, want %.2f", n, sum, squares, eps, e, got,
						want)
				}
			}
		}
	}
	t.Logf("at most %.2f of 2^-%d, and 2^-16 of the value", worst, NormShift)
}

// TestGates compares gates with the softmax in base 2: within 2^-14.
func TestGates(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	for range 2000 {
		n := 1 + r.IntN(64)
		logits := make([]int16, n)
		for i := range logits {
			logits[i] = int16(r.IntN(16<<ScoreFrac) - 8<<ScoreFrac)
		}
		top := 0
		for i, x := range logits {
			if x > logits[top] {
				top = i
			}
		}
		chosen := []int{top}
		if other := r.IntN(n); other != top {
			chosen = append(chosen, other)
		}
		for _, renormalise := range []bool{false, true} {
			exp := func(e int) float64 { return math.Exp2(float64(logits[e]) / (1 << ScoreFrac)) }
			sum := 0.0
			if renormalise {
				for _, e := range chosen {
					sum += exp(e)
				}
			} else {
				for e := range logits {
					sum += exp(e)
				}
			}
			for i, g := range Gates(logits, chosen, renormalise) {
				if d := math.Abs(float64(g)/65536 - exp(chosen[i])/sum); d > 1.0/(1<<14) {
					t.Fatalf("%v, chosen %v, renormalise %v: gate %d is %d: off by %g", logits, chosen, renormalise, i,
						g, d)
				}
			}
		}
	}
}

// TestFinish goes through rounding, saturation, zero points and tables.
func TestFinish(t *testing.T) {
	var table [256]int8
	for i := range table {
		table[i] = int8(255 - i)
	}
	for _, c := range []struct {
		t     int32
		relu  bool
		zero  int8
		table *[256]int8
		want  int8
		wide  int16
	}{
		{0, false, 0, nil, 0, 0}, {127, false, 0, nil, 0, 0}, {128, false, 0, nil, 1, 1}, {-128, false, 0, nil, 0, 0},
		{-129, false, 0, nil, -1, -1},
		{300 << 8, false, 0, nil, 127, 300}, {-300 << 8, false, 0, nil, -128, -300}, {-300 << 8, true, -5, nil, -5, -5},
		{1 << 24, false, 127, nil, 127, 32767}, {-1 << 24, false, -128, nil, -128, -32768}, {100 << 8, false, 100, nil,
			127, 200},
		{5 << 8, false, 0, &table, -6, 5}, {-1 << 8, false, 0, &table, 0, -1}, {-1 << 8, true, -1, &table, 0, -1},
	} {
		if got := Finish(c.t, c.relu, c.zero, c.table); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
		if got := FinishWide(c.t, c.relu, c.zero); got != c.wide {
			t.Errorf("%+v: wide %d", c, got)
		}
	}
	for _, c := range []struct {
		acc  int32
		r    Record
		want int32
	}{
		{1000, Record{0, 256, 0}, 256000}, {1000, Record{7, 256, 8}, 1007}, {-1, Record{0, 1, 4}, -1}, {math.MaxInt32,
			Record{0, math.MaxInt16, 0}, 1<<23 - 1},
		{math.MinInt32, Record{-1 << 23, math.MaxInt16, 0}, -1 << 24}, {math.MinInt32, Record{5, math.MinInt16, 47},
			5}, {math.MaxInt32, Record{0, -1, 31}, -1},
	} {
		if got := c.r.Scale(c.acc); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
		if got := RecordFrom(c.r.Append(nil)); got != c.r {
			t.Errorf("%+v comes back as %+v", c.r, got)
		}
	}
	if Residual(-128, 65535) != -524280 || Residual(127, 4096) != 127*256 || Residual(-1, 1) != -1 {
		t.Error("residuals")
	}
	if Score(-1<<31, 32767, 0) != -1<<19 || Score(1<<31-1, 1, 0) != 1<<19-1 || Score(-3, 1, 1) != -2 ||
		RowMax(-1<<19) != -255 || RowMax(2047) != 1 {
		t.Error("scores")
	}
	if Combine([]uint16{65535, 1}, []int8{-128, 5}) != -128*65535+5 {
		t.Error("sums of experts")
	}
}
