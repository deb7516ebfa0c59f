package vec

import "math"

// fma is a·b + c. For float32 it is exact up to the rounding of a float64 sum.
func fma[T Float](a, b, c T) T {
	return T(math.FMA(float64(a), float64(b), float64(c)))
}

func fmaVVV[T Float](dst, a, b, c []T) {
	dst, a, b = cut2(dst, a, b)
	n := min(len(dst), len(c))
	for i := range n {
		dst[i] = fma(a[i], b[i], c[i])
	}
}

func fmaVSV[T Float](dst, a, c []T, s T) {
	dst, a, c = cut2(dst, a, c)
	for i, v := range a {
		dst[i] = fma(v, s, c[i])
	}
}

func fmaVSS[T Float](dst, a []T, s, t T) {
	dst, a = cut1(dst, a)
	for i, v := range a {
		dst[i] = fma(v, s, t)
	}
}

func selectVVV[T Float](dst, m, a, b []T) {
	dst, m, a = cut2(dst, m, a)
	n := min(len(dst), len(b))
	for i := range n {
		v := b[i]
		if m[i] != 0 {
			v = a[i]
		}
		dst[i] = v
	}
}

func selectVVS[T Float](dst, m, a []T, s T) {
	dst, m, a = cut2(dst, m, a)
	for i, v := range a {
		if m[i] == 0 {
			v = s
		}
		dst[i] = v
	}
}

func selectVSV[T Float](dst, m, b []T, s T) {
	dst, m, b = cut2(dst, m, b)
	for i, v := range b {
		if m[i] != 0 {
			v = s
		}
		dst[i] = v
	}
}

func roundMul[T Float](dst, x []T, s, zero, lo, hi T) {
	dst, x = cut1(dst, x)
	for i, v := range x {
		dst[i] = limited(v*s, zero, lo, hi)
	}
}

func roundDiv[T Float](dst, x []T, s, zero, lo, hi T) {
	dst, x = cut1(dst, x)
	for i, v := range x {
		dst[i] = limited(v/s, zero, lo, hi)
	}
}

// limited is the nearest whole number, moved, and between two.
func limited[T Float](x, zero, lo, hi T) T {
	return min(max(T(math.RoundToEven(float64(x)))+zero, lo), hi)
}
