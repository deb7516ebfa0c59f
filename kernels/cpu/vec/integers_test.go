package vec

import (
	"math"
	"testing"
)

// sameInts takes all integers from lo to hi through numbers and back, with lengths that are no whole groups.
func sameInts[T float32 | float64, E Integer](t *testing.T, lo, hi int) {
	t.Helper()
	var all []E
	for v := lo; v <= hi; v += max((hi-lo)/300, 1) {
		all = append(all, E(v))
	}
	for _, n := range []int{0, 1, 7, 8, 9, len(all)} {
		numbers, back := make([]T, n), make([]E, n+1)
		back[n] = 77
		FromInts(numbers, all)
		for i := range n { // a fraction is dropped
			part := T(0.75)
			if all[i] < 0 {
				part = -part
			}
			numbers[i] += part
		}
		ToInts(back[:n], numbers)
		for i := range n {
			numbers[i] = T(math.Trunc(float64(numbers[i])))
			if numbers[i] != T(all[i]) || back[i] != all[i] {
				t.Errorf("%T %v became %v and %v", all[i], all[i], numbers[i], back[i])
			}
		}
		if back[n] != 77 {
			t.Errorf("%T: %d elements: one more is written", back[n], n)
		}
	}
	nan := make([]T, 19)
	for i := range nan {
		nan[i] = T(math.NaN())
	}
	back := make([]E, len(nan))
	back[18] = 1
	ToInts(back, nan)
	for i, v := range back {
		if v != 0 {
			t.Errorf("%T: NaN became %v at %d", v, v, i)
		}
	}
}

func TestIntegers(t *testing.T) {
	sameInts[float32, uint8](t, 0, 255)
	sameInts[float32, int8](t, -128, 127)
	sameInts[float32, uint16](t, 0, math.MaxUint16)
	sameInts[float32, int16](t, math.MinInt16, math.MaxInt16)
	sameInts[float64, uint8](t, 0, 255)
	sameInts[float64, int32](t, -1<<30, 1<<30)
	defer func(a func([]float32, []uint8) int, b func([]float32, []int8) int, c func([]uint8, []float32) int,
		d func([]int8, []float32) int) {
		u8ToF32, i8ToF32, f32ToU8, f32ToI8 = a, b, c, d
	}(u8ToF32, i8ToF32, f32ToU8, f32ToI8)
	u8ToF32, i8ToF32, f32ToU8, f32ToI8 = nil, nil, nil, nil
	sameInts[float32, uint8](t, 0, 255)
	sameInts[float32, int8](t, -128, 127)
}
