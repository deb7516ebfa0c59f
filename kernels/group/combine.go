package group

import (
	"fmt"
	"unsafe"

	"fusec/graph"
)

type number interface {
	~float32 | ~float64 | ~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

func init() {
	for _, r := range graph.Reductions() {
		if known := r.Join == graph.Add || r.Join == graph.Max || r.Join == graph.Min; r.OfGroup && !known {
			panic(fmt.Sprintf("kernels/group: %s is a reduction of a group, which joins by %v", r.Name, r.Join))
		}
	}
}

// elems are the elements in bytes that are aligned to them.
func elems[T number](b []byte) []T {
	var x T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(x)))
}

// half combines elements of 16 bits in f32, and rounds once.
func half(f graph.ReduceFn, terms [][]byte, y []byte, wide func(uint16) float32, narrow func(float32) uint16) {
	to := elems[uint16](y)
	in, of := make([][]byte, len(terms)), make([]float32, len(terms)+1)
	for k := range in {
		in[k] = unsafe.Slice((*byte)(unsafe.Pointer(&of[k])), 4)
	}
	sum := unsafe.Slice((*byte)(unsafe.Pointer(&of[len(terms)])), 4)
	for i := range to {
		for k, t := range terms {
			of[k] = wide(elems[uint16](t)[i])
		}
		copy(sum, in[0])
		combine[float32](f, in, sum)
		to[i] = narrow(of[len(terms)])
	}
}

// combine joins y with all terms but the first, in order. As in [graph.Reduce] NaN stays.
func combine[T number](f graph.ReduceFn, terms [][]byte, y []byte) {
	to := elems[T](y)
	for _, t := range terms[1:] {
		x := elems[T](t)[:len(to)]
		switch f.Info().Join {
		case graph.Max:
			for i, v := range x {
				to[i] = max(to[i], v)
			}
		case graph.Min:
			for i, v := range x {
				to[i] = min(to[i], v)
			}
		case graph.Add:
			for i, v := range x {
				to[i] += v
			}
		}
	}
	if f.Info().Averages {
		n := T(len(terms))
		for i := range to {
			to[i] /= n
		}
	}
}
