package vec

// The cheap functions as separate loops: a call for each element would cost more than the function.

// unlessNegative is 0 for negative x, else x: −0 and NaN stay.
func unlessNegative[T Float](x T) T {
	if x < 0 {
		return 0
	}
	return x
}

func neg[T Float](dst, x []T) {
	dst, x = cut1(dst, x)
	for i, v := range x {
		dst[i] = -v
	}
}

func square[T Float](dst, x []T) {
	dst, x = cut1(dst, x)
	for i, v := range x {
		dst[i] = v * v
	}
}

func cube[T Float](dst, x []T) {
	dst, x = cut1(dst, x)
	for i, v := range x {
		dst[i] = T(v*v) * v
	}
}

func recip[T Float](dst, x []T) {
	dst, x = cut1(dst, x)
	for i, v := range x {
		dst[i] = 1 / v
	}
}

func relu[T Float](dst, x []T) {
	dst, x = cut1(dst, x)
	for i, v := range x {
		dst[i] = unlessNegative(v)
	}
}
