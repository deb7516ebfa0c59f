package ref

import (
	"fmt"
	"math"

	"fusec/graph"
)

// Check compares what an implementation computed with the reference: |got − want| ≤ ε·magnitude, with ε = 1e-5 for f32
// and 1e-12 for f64; the magnitude is |want| where want has none. NaN and infinities must match; integers and Bools
// must be equal. A value whose magnitude is +Inf is not checked. The error names the element that is furthest off.
func Check(got *graph.Tensor, want Value) error {
	if got.Type != want.Type {
		return fmt.Errorf("the value has type %v, the reference %v", got.Type, want.Type)
	}
	if want.F == nil {
		return checkExact(got, want)
	}
	worst, at, bad := 0.0, 0, 0
	for i, w := range want.F {
		m := size(w)
		if want.Mag != nil {
			m = want.Mag[i]
		}
		if math.IsInf(m, 1) {
			continue
		}
		d := deviation(w, got.Float(i))
		if d <= epsilon(want.Type.DType)*m*(1+1e-12) { // m may have been divided by ε, and rounded
			continue
		}
		bad++
		if r := d / (epsilon(want.Type.DType) * m); r > worst || math.IsInf(r, 1) && !math.IsInf(worst, 1) {
			worst, at = r, i
		}
	}
	if bad == 0 {
		return nil
	}
	m := size(want.F[at])
	if want.Mag != nil {
		m = want.Mag[at]
	}
	return fmt.Errorf("%d of %d elements are off; the worst, %v, is %v, want %v ± %.3g (%.3g times the bound)",
		bad, want.Len(), indices(want.Type.Shape, at), got.Float(at), want.F[at], epsilon(want.Type.DType)*m, worst)
}

func checkExact(got *graph.Tensor, want Value) error {
	for i, g := range FromTensor(got).I {
		if g != want.I[i] && want.mag(i) == 0 {
			return fmt.Errorf("element %v is %d, want %d", indices(want.Type.Shape, i), g, want.I[i])
		}
	}
	return nil
}

// indices are those of element number i of a shape.
func indices(s graph.Shape, i int) []int {
	at := make([]int, s.Rank())
	for k := len(at) - 1; k >= 0; k-- {
		at[k] = i % s.At(k)
		i /= s.At(k)
	}
	return at
}
