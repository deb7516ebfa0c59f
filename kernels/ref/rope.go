package ref

import (
	"math"

	"fusec/graph"
)

var _ = formulas.Add(composite(func(op graph.RoPE, a []Value, _ []graph.Type) ([]Value, error) {
	var divisors []float64
	if len(a) > 2 {
		divisors = a[2].F
	}
	return []Value{rope(op, a[0], a[1].I[0], divisors)}, nil
}))

// rope turns each pair of elements by its angle. The divisors are nil for ones.
func rope(op graph.RoPE, x Value, start int64, divisors []float64) Value {
	v := zeros(x.Type)
	s := x.Type.Shape
	n, d := s.At(s.Rank()-2), s.At(s.Rank()-1)
	second, step := op.Pairs(d)
	for at := 0; at < v.Len(); at += d {
		position := start + int64(at/d%n)
		for j := range d / 2 {
			divisor := 1.0
			if divisors != nil {
				divisor = divisors[j]
			}
			sin, cos := math.Sincos(op.Angle(position, j, d, divisor))
			if op.Inverse {
				sin = -sin
			}
			a, b := at+j*step, at+second+j*step
			v.F[a] = x.F[a]*cos - x.F[b]*sin
			v.F[b] = x.F[b]*cos + x.F[a]*sin
		}
	}
	return v
}
