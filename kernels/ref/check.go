package ref

import (
	"errors"
	"fmt"
	"math"

	"fusec/graph"
)

// Check compares what an implementation computed with the reference: |got − want| ≤ ε·magnitude, with ε = 1e-5 for f32
// and 1e-12 for f64; the magnitude is |want| where want has none. NaN and infinities must match; integers and Bools
// must be equal. A value whose magnitude is +Inf is not checked. The error names the element that is furthest off.
func Check(got *graph.Tensor, want Value) error {
	d, err := Compare(got, want)
	switch {
	case err != nil:
		return err
	case d.Off == 0:
		return nil
	case want.F == nil:
		return fmt.Errorf("element %v is %d, want %d", d.Index, got.Int(d.at), want.I[d.at])
	}
	return errors.New(d.String())
}

// Departure is by how much a value departs from the reference.
type Departure struct {
	Elements, Off int     // of the value, and those of them that are out of bounds
	Worst         float64 // the largest difference, as a multiple of the element's bound; +Inf where that is 0
	// Index is the element of which Worst is true, the first of them; Bound is by how much Got may differ from Want.
	Index            []int
	Got, Want, Bound float64

	at int
}

// String tells how many elements are off, and of the worst what it is.
func (d Departure) String() string {
	return fmt.Sprintf("%d of %d elements are off; the worst, %v, is %v, want %v ± %.3g (%.3g times the bound)",
		d.Off, d.Elements, d.Index, d.Got, d.Want, d.Bound, d.Worst)
}

// Compare measures what [Check] refuses.
func Compare(got *graph.Tensor, want Value) (Departure, error) {
	d := Departure{Elements: want.Len()}
	if got.Type != want.Type {
		return d, fmt.Errorf("the value has type %v, the reference %v", got.Type, want.Type)
	}
	if want.F == nil {
		for i, g := range FromTensor(got).I {
			if g != want.I[i] && want.mag(i) == 0 {
				d.Off++
				d.add(i, float64(g), float64(want.I[i]), 0, math.Inf(1))
			}
		}
	}
	for i, w := range want.F {
		m := size(w)
		if want.Mag != nil {
			m = want.Mag[i]
		}
		if math.IsInf(m, 1) {
			continue
		}
		by, bound := deviation(w, got.Float(i)), want.Type.DType.Tolerance()*m
		switch {
		case by == 0:
		case by <= bound*(1+1e-12): // m may have been divided by ε, and rounded
			d.add(i, got.Float(i), w, bound, by/bound)
		default:
			d.Off++
			d.add(i, got.Float(i), w, bound, by/bound)
		}
	}
	if d.Elements > 0 {
		d.Index = indices(want.Type.Shape, d.at)
	}
	return d, nil
}

// add takes one element into account that differs.
func (d *Departure) add(i int, got, want, bound, worst float64) {
	if math.IsNaN(worst) {
		worst = math.Inf(1)
	}
	if worst > d.Worst {
		d.Worst, d.at, d.Got, d.Want, d.Bound = worst, i, got, want, bound
	}
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
