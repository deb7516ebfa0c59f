package vec

import "math"

// sumTerms adds term(x[i]) in float64 with four accumulators, taken in turn.
func sumTerms[T Float](x []T, term func(float64) float64) T {
	var s [4]float64
	for len(x) >= 4 {
		s[0] += term(float64(x[0]))
		s[1] += term(float64(x[1]))
		s[2] += term(float64(x[2]))
		s[3] += term(float64(x[3]))
		x = x[4:]
	}
	for i, v := range x {
		s[i] += term(float64(v))
	}
	return T((s[0] + s[1]) + (s[2] + s[3]))
}

func sum[T Float](x []T) T {
	return sumTerms(x, func(v float64) float64 { return v })
}

func sumSquares[T Float](x []T) T {
	return sumTerms(x, func(v float64) float64 { return v * v })
}

func sumSquaredDeviations[T Float](x []T, c T) T {
	return sumTerms(x, func(v float64) float64 { d := v - float64(c); return d * d })
}

func dot[T Float](a, b []T) T {
	a, b = cut1(a, b)
	var s [4]float64
	for i, v := range a {
		s[i%4] += float64(v) * float64(b[i])
	}
	return T((s[0] + s[1]) + (s[2] + s[3]))
}

func prod[T Float](x []T) T {
	p := T(1)
	for _, v := range x {
		p *= v
	}
	return p
}

func maxOf[T Float](x []T) T {
	m := T(math.Inf(-1))
	for _, v := range x {
		m = max(m, v)
	}
	return m
}

func minOf[T Float](x []T) T {
	m := T(math.Inf(1))
	for _, v := range x {
		m = min(m, v)
	}
	return m
}

func expSubSum[T Float](dst, x []T, c T) T {
	dst, x = cut1(dst, x)
	var s float64
	for i, v := range x {
		e := math.Exp(float64(v - c))
		dst[i] = T(e)
		s += e
	}
	return T(s)
}

func fill[T Float](dst []T, s T) {
	for i := range dst {
		dst[i] = s
	}
}
