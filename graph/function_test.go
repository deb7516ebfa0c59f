package graph

import (
	"math"
	"slices"
	"strings"
	"testing"
)

// TestFunctionsAreWhole takes each fact out of a row: the check names the function.
func TestFunctionsAreWhole(t *testing.T) {
	if err := checkFunctions(unaryRows[:], binaryRows[:]); err != nil {
		t.Fatal(err)
	}
	unary := func(f UnaryFn, change func(*UnaryInfo)) error {
		rows := slices.Clone(unaryRows[:])
		change(&rows[f])
		return checkFunctions(rows, binaryRows[:])
	}
	binary := func(f BinaryFn, change func(*BinaryInfo)) error {
		rows := slices.Clone(binaryRows[:])
		change(&rows[f])
		return checkFunctions(unaryRows[:], rows)
	}
	for _, c := range []struct {
		err  error
		want string
	}{
		{unary(Silu, func(r *UnaryInfo) { *r = UnaryInfo{} }), "the one after gelu_erf_slope) has no row"},
		{unary(Silu, func(r *UnaryInfo) { r.Fn = Elu }), "row of silu"},
		{unary(Silu, func(r *UnaryInfo) { r.Eval = nil }), "silu needs either Eval or EvalAlpha"},
		{unary(Silu, func(r *UnaryInfo) { r.Grad = nil }), "silu needs a gradient"},
		{unary(Silu, func(r *UnaryInfo) { r.Of |= Integers }), "silu needs EvalInt"},
		{unary(Silu, func(r *UnaryInfo) { r.Doc = "" }), "row of silu lacks"},
		{unary(Silu, func(r *UnaryInfo) { r.FLOPs = 0 }), "row of silu lacks"},
		{binary(Eq, func(r *BinaryInfo) { *r = BinaryInfo{} }), "the one after ge) has no row"},
		{binary(Eq, func(r *BinaryInfo) { r.Fn = Ne }), "row of eq"},
		{binary(Pow, func(r *BinaryInfo) { r.EvalInt = nil }), "pow has no value"},
		{binary(Pow, func(r *BinaryInfo) { r.Grad = nil }), "pow needs a gradient"},
		{binary(Pow, func(r *BinaryInfo) { r.Form.Sign = "" }), "row of pow lacks"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%v, want %q", c.err, c.want)
		}
	}
}

// TestFunctionsCommute checks what rows say of the order of operands, by the values.
func TestFunctionsCommute(t *testing.T) {
	for _, r := range binaryRows {
		commutes := true
		for _, x := range []float64{0, 1, 2.5} {
			for _, y := range []float64{0, 1, 2.5} {
				commutes = commutes && r.Eval(x, y) == r.Eval(y, x)
			}
		}
		if commutes != r.Commutes {
			t.Errorf("%s commutes: %v, by its row %v", r.Name, commutes, r.Commutes)
		}
	}
}

// TestSubnormal compares functions of subnormal numbers with what is known of powers of two.
func TestSubnormal(t *testing.T) {
	for e := -1074; e <= -1020; e++ {
		x := math.Ldexp(1, e)
		near := func(what string, got, want float64) {
			if !(math.Abs(got-want) <= 1e-13*math.Abs(want)) {
				t.Errorf("%s of 2^%d: %v, want %v", what, e, got, want)
			}
		}
		near("log", Log.Eval(x, 0), float64(e)*math.Ln2)
		for _, y := range []float64{-0.9, -0.25, 0, 0.3, 0.5, 1} {
			near("pow", Pow.Eval(x, y), math.Exp2(float64(e)*y))
		}
		if got := Pow.Eval(-x, 1); got != -x {
			t.Errorf("pow of −2^%d: %v to the power 1", e, got)
		}
		if got := Pow.Eval(-x, 0.5); !math.IsNaN(got) {
			t.Errorf("pow of −2^%d: %v to the power 0.5", e, got)
		}
		if lo, hi := Pow.Eval(x, math.Inf(1)), Pow.Eval(x, math.Inf(-1)); lo != 0 || !math.IsInf(hi, 1) {
			t.Errorf("pow of 2^%d: %v, %v to infinite powers", e, lo, hi)
		}
	}
}

// TestFunctionsTwice checks by values which functions are idempotent, involutions or flat.
func TestFunctionsTwice(t *testing.T) {
	for _, r := range unaryRows {
		if r.Eval == nil {
			continue
		}
		idempotent, involution, flat, domain := true, true, true, []float64{-2.25, -1, -0.25, 0, 0.25, 1, 2.25}
		if r.Of == Bools {
			domain = []float64{0, 1}
		}
		for _, x := range domain {
			y := r.Eval(x)
			idempotent = idempotent && r.Eval(y) == y
			involution = involution && r.Eval(y) == x
			flat = flat && (x == math.Trunc(x) || r.Eval(x+0.125) == y)
		}
		if idempotent != r.Idempotent || r.Involution && !involution || r.Flat && !flat {
			t.Errorf("%s: idempotent %v, involution %v, flat %v; by its row %v, %v, %v", r.Name, idempotent, involution, flat,
				r.Idempotent, r.Involution, r.Flat)
		}
	}
}
