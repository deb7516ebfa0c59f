package vec

import "fusec/graph"

// halfGroups are the kernels of a 16-bit type for whole groups of elements, which return how many they were; nil where there
// are none.
type halfGroups struct {
	widen  func(dst []float32, src []uint16) (done int)
	narrow func(dst []uint16, src []float32) (done int)
	round  func(dst, src []float32) (done int)
}

var groupsF16, groupsBF16 halfGroups

// groupsOf are the kernels of d.
func groupsOf(d graph.DType) *halfGroups {
	if d == graph.F16 {
		return &groupsF16
	}
	return &groupsBF16
}

// FromHalf sets dst[i] to the number of d, F16 or BF16, whose bits src[i] has, for as many elements as the shorter slice has.
func FromHalf[T Float](dst []T, src []uint16, d graph.DType) {
	dst, src = cut1(dst, src)
	done := 0
	if to, ok := any(dst).([]float32); ok && groupsOf(d).widen != nil {
		done = groupsOf(d).widen(to, src)
	}
	for i := done; i < len(dst); i++ {
		dst[i] = T(d.From16(src[i]))
	}
}

// ToHalf sets dst[i] to the bits of the number of d nearest to src[i], ties to even, for as many elements as the shorter slice
// has.
func ToHalf[T Float](dst []uint16, src []T, d graph.DType) {
	dst, src = cut1(dst, src)
	done := 0
	if from, ok := any(src).([]float32); ok && groupsOf(d).narrow != nil {
		done = groupsOf(d).narrow(dst, from)
	}
	for i := done; i < len(dst); i++ {
		dst[i] = d.Bits16(float64(src[i]))
	}
}

// RoundHalf sets dst[i] to the number of d nearest to src[i], ties to even, for as many elements as the shorter slice has.
func RoundHalf[T Float](dst, src []T, d graph.DType) {
	dst, src = cut1(dst, src)
	done := 0
	if to, ok := any(dst).([]float32); ok && groupsOf(d).round != nil {
		done = groupsOf(d).round(to, any(src).([]float32))
	}
	for i := done; i < len(dst); i++ {
		dst[i] = T(d.Round(float64(src[i])))
	}
}
