package group

import (
	"unsafe"

	"fusec/graph"
)

type number interface {
	~float32 | ~float64 | ~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

// elems are the elements in bytes that are aligned to them.
func elems[T number](b []byte) []T {
	var x T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(x)))
}

// combine adds all terms but the first to y, in order; or takes the larger or smaller. As in [graph.Reduce] NaN stays.
func combine[T number](f graph.ReduceFn, terms [][]byte, y []byte) {
	to := elems[T](y)
	for _, t := range terms[1:] {
		x := elems[T](t)[:len(to)]
		switch f {
		case graph.MaxOf:
			for i, v := range x {
				to[i] = max(to[i], v)
			}
		case graph.MinOf:
			for i, v := range x {
				to[i] = min(to[i], v)
			}
		default:
			for i, v := range x {
				to[i] += v
			}
		}
	}
	if f == graph.Mean {
		n := T(len(terms))
		for i := range to {
			to[i] /= n
		}
	}
}
