package vec

// The arithmetic opcodes as separate loops: a call for each element would cost more than the operation.

func addVV[T Float](dst, a, b []T) {
	dst, a, b = cut2(dst, a, b)
	for i, v := range a {
		dst[i] = v + b[i]
	}
}

func addVS[T Float](dst, x []T, s T) {
	dst, x = cut1(dst, x)
	for i, v := range x {
		dst[i] = v + s
	}
}

func subVV[T Float](dst, a, b []T) {
	dst, a, b = cut2(dst, a, b)
	for i, v := range a {
		dst[i] = v - b[i]
	}
}

func subVS[T Float](dst, x []T, s T) {
	dst, x = cut1(dst, x)
	for i, v := range x {
		dst[i] = v - s
	}
}

func subSV[T Float](dst, x []T, s T) {
	dst, x = cut1(dst, x)
	for i, v := range x {
		dst[i] = s - v
	}
}

func mulVV[T Float](dst, a, b []T) {
	dst, a, b = cut2(dst, a, b)
	for i, v := range a {
		dst[i] = v * b[i]
	}
}

func mulVS[T Float](dst, x []T, s T) {
	dst, x = cut1(dst, x)
	for i, v := range x {
		dst[i] = v * s
	}
}

func divVV[T Float](dst, a, b []T) {
	dst, a, b = cut2(dst, a, b)
	for i, v := range a {
		dst[i] = v / b[i]
	}
}

func divVS[T Float](dst, x []T, s T) {
	dst, x = cut1(dst, x)
	for i, v := range x {
		dst[i] = v / s
	}
}

func divSV[T Float](dst, x []T, s T) {
	dst, x = cut1(dst, x)
	for i, v := range x {
		dst[i] = s / v
	}
}
