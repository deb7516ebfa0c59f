package vec

import "math"

// Number is an element type that Convert knows.
type Number interface {
	float32 | float64 | int32 | int64
}

// The kernels that convert whole groups of elements and return how many they
// were; nil where there are none.
var (
	widenGroups  func(dst []float64, src []float32) (done int)
	narrowGroups func(dst []float32, src []float64) (done int)

	u8ToF32 func(dst []float32, src []uint8) (done int)
	i8ToF32 func(dst []float32, src []int8) (done int)
	f32ToU8 func(dst []uint8, src []float32) (done int)
	f32ToI8 func(dst []int8, src []float32) (done int)

	maskToF32 func(dst []float32, src []bool) (done int)
	maskToF64 func(dst []float64, src []bool) (done int)
	maskOfF32 func(dst []bool, src []float32) (done int)
	maskOfF64 func(dst []bool, src []float64) (done int)
)

// Convert sets dst[i] to src[i] in dst's type, for as many elements as the
// shorter slice has. Floating-point numbers become integers by truncation, NaN
// becomes 0, and a number out of range becomes the nearest integer of the type. Integers become the nearest
// floating-point number. An int64 becomes an int32 by dropping its upper half, as in Go.
func Convert[D, S Number](dst []D, src []S) {
	dst, src = cut1(dst, src)
	done := convertGroups(dst, src)
	dst, src = dst[done:], src[done:]
	if isFloat[S]() && !isFloat[D]() {
		least, greatest := bounds[D]()
		for i, v := range src {
			dst[i] = saturate(float64(v), least, greatest)
		}
		return
	}
	for i, v := range src {
		dst[i] = D(v)
	}
}

// convertGroups converts what a kernel can and returns how much that was.
func convertGroups[D, S Number](dst []D, src []S) int {
	switch d := any(dst).(type) {
	case []float64:
		if s, ok := any(src).([]float32); ok && widenGroups != nil {
			return widenGroups(d, s)
		}
	case []float32:
		if s, ok := any(src).([]float64); ok && narrowGroups != nil {
			return narrowGroups(d, s)
		}
	}
	return 0
}

// An Integer is a type of integers.
type Integer interface {
	int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64
}

// FromInts sets dst[i] to src[i], for as many elements as the shorter slice has.
func FromInts[T float32 | float64, E Integer](dst []T, src []E) {
	n, done := min(len(dst), len(src)), 0
	dst, src = dst[:n], src[:n]
	if d, ok := any(dst).([]float32); ok {
		switch s := any(src).(type) {
		case []uint8:
			if u8ToF32 != nil {
				done = u8ToF32(d, s)
			}
		case []int8:
			if i8ToF32 != nil {
				done = i8ToF32(d, s)
			}
		}
	}
	for i := done; i < n; i++ {
		dst[i] = T(src[i])
	}
}

// ToInts sets dst[i] to src[i], whole numbers in the range of the type, for as many elements as the shorter slice has. NaN gives 0.
func ToInts[T float32 | float64, E Integer](dst []E, src []T) {
	n, done := min(len(dst), len(src)), 0
	dst, src = dst[:n], src[:n]
	if s, ok := any(src).([]float32); ok {
		switch d := any(dst).(type) {
		case []uint8:
			if f32ToU8 != nil {
				done = f32ToU8(d, s)
			}
		case []int8:
			if f32ToI8 != nil {
				done = f32ToI8(d, s)
			}
		}
	}
	for i, v := range src[done:] {
		if v == v {
			dst[done+i] = E(v)
		} else {
			dst[done+i] = 0
		}
	}
}

// FromMask sets dst[i] to 1 where src[i] is true, else to 0, for as many elements as the shorter slice has.
func FromMask[T float32 | float64](dst []T, src []bool) {
	n, done := min(len(dst), len(src)), 0
	dst, src = dst[:n], src[:n]
	switch d := any(dst).(type) {
	case []float32:
		if maskToF32 != nil {
			done = maskToF32(d, src)
		}
	case []float64:
		if maskToF64 != nil {
			done = maskToF64(d, src)
		}
	}
	for i := done; i < n; i++ {
		dst[i] = 0
		if src[i] {
			dst[i] = 1
		}
	}
}

// ToMask sets dst[i] to whether src[i] is not 0, for as many elements as the shorter slice has. NaN gives true.
func ToMask[T float32 | float64](dst []bool, src []T) {
	n, done := min(len(dst), len(src)), 0
	dst, src = dst[:n], src[:n]
	switch s := any(src).(type) {
	case []float32:
		if maskOfF32 != nil {
			done = maskOfF32(dst, s)
		}
	case []float64:
		if maskOfF64 != nil {
			done = maskOfF64(dst, s)
		}
	}
	for i := done; i < n; i++ {
		dst[i] = src[i] != 0
	}
}

// isFloat says whether N keeps fractions.
func isFloat[N Number]() bool {
	half := 0.5
	return N(half) != 0
}

// bounds returns the least and the greatest integer of type D.
func bounds[D Number]() (least, greatest D) {
	if low := int64(math.MinInt32); int64(D(low-1)) != low-1 {
		high := int64(math.MaxInt32)
		return D(low), D(high)
	}
	low, high := int64(math.MinInt64), int64(math.MaxInt64)
	return D(low), D(high)
}

// saturate truncates v to an integer between least and greatest.
func saturate[D Number](v float64, least, greatest D) D {
	switch {
	case v != v:
		return 0
	case v <= float64(least):
		return least
	case v >= float64(greatest):
		return greatest
	}
	return D(v)
}
