package cpu

import (
	"math"
	"unsafe"

	"fusec/graph"
	"fusec/kernels/cpu/vec"
)

// Integers are exact, and wrap as their type does. In lanes of float64 an integer stands as the 64 bits of an int64,
// which vector operations that only move elements (Select, filling) carry along. Lanes of float32 hold integers only
// on the way to and from a Cast, as numbers.

// wholeLanes reports whether lanes of type T hold integers as bits.
func wholeLanes[T float]() bool { return dtypeOf[T]() == graph.F64 }

func toInt[T float](x T) int64 { return int64(math.Float64bits(float64(x))) }

func ofInt[T float](x int64) T { return T(math.Float64frombits(uint64(x))) }

// wholes is the lanes as integers.
func wholes[T float](x []T) []int64 {
	return unsafe.Slice((*int64)(unsafe.Pointer(unsafe.SliceData(x))), len(x))
}

// integerMoves take elements of a type of integers into lanes, and put lanes that hold them.
type integerMoves[T float] struct {
	get func(dst []T, m Memory, at, stride int)
	put func(src []T, m Memory, at, stride int)
}

// integerTable has the moves of each type of integers, by the type.
type integerTable[T float] []integerMoves[T]

var integers32, integers64 = integerTableOf[float32](), integerTableOf[float64]()

func integerTableOf[T float]() integerTable[T] {
	t := make(integerTable[T], len(graph.DTypes())+1)
	for _, d := range graph.IntegerTypes() {
		t[d] = byInteger(d, movesOf[T, int8], movesOf[T, int16], movesOf[T, int32], movesOf[T, int64],
			movesOf[T, uint8], movesOf[T, uint16], movesOf[T, uint32], movesOf[T, uint64])()
	}
	return t
}

// integerLanes are the moves of the type d.
func integerLanes[T float](d graph.DType) integerMoves[T] {
	table, ok := any(&integers32).(*integerTable[T])
	if !ok {
		table = any(&integers64).(*integerTable[T])
	}
	return (*table)[d]
}

// byInteger picks what is made for the type d of integers.
func byInteger[K any](d graph.DType, i8, i16, i32, i64, u8, u16, u32, u64 K) K {
	if d.IsUnsigned() {
		return bySize(d, u8, u16, u32, u64)
	}
	return bySize(d, i8, i16, i32, i64)
}

func movesOf[T float, E graph.Integer]() integerMoves[T] {
	return integerMoves[T]{getInts[T, E], putInts[T, E]}
}

// cutters give the function that takes numbers in the range of the type d to integers and back, by way of room. NaN gives 0.
func cutters[T float](d graph.DType) func(v []T, room Memory) {
	return byInteger(d, cutInts[T, int8], cutInts[T, int16], cutInts[T, int32], cutInts[T, int64],
		cutInts[T, uint8], cutInts[T, uint16], cutInts[T, uint32], cutInts[T, uint64])
}

func cutInts[T float, E graph.Integer](v []T, room Memory) {
	for ints := elems[E](room); len(v) > 0; {
		n := min(len(v), len(ints))
		vec.ToInts(ints[:n], v)
		vec.FromInts(v[:n], ints)
		v = v[n:]
	}
}

func getInts[T float, E graph.Integer](dst []T, m Memory, at, stride int) {
	src := elems[E](m)[at:]
	if !wholeLanes[T]() {
		if stride == 1 {
			vec.FromInts(dst, src)
			return
		}
		for i := range dst {
			dst[i] = T(src[i*stride])
		}
		return
	}
	for i, to := 0, wholes(dst); i < len(to); i++ {
		to[i] = int64(src[i*stride])
	}
}

func putInts[T float, E graph.Integer](src []T, m Memory, at, stride int) {
	dst := elems[E](m)[at:]
	if !wholeLanes[T]() {
		if stride == 1 {
			vec.ToInts(dst[:len(src)], src)
			return
		}
		for i := range src {
			vec.ToInts(dst[i*stride:][:1], src[i:])
		}
		return
	}
	for i, v := range wholes(src) {
		dst[i*stride] = E(v)
	}
}

func (c *compiler[T]) unaryInt(fn graph.UnaryFn, d graph.DType, x value) value {
	a, eval := c.place(x), fn.OfInts(d)
	return c.step(func(f *frame[T], dst []T) {
		to := wholes(dst)
		for i, v := range wholes(f.at(a))[:len(to)] {
			to[i] = d.Wrap(eval(v))
		}
	}, x)
}

// binaryInt computes integers of type d, or compares them. Division by zero ends the run with an error.
func (c *compiler[T]) binaryInt(fn graph.BinaryFn, d graph.DType, x, y value) value {
	if x.kind != y.kind && (x.kind == vector || y.kind == vector) {
		x, y = c.asVector(x), c.asVector(y)
	}
	a, b, eval := c.place(x), c.place(y), fn.OfInts(d)
	if fn.Compares() {
		return c.step(func(f *frame[T], dst []T) {
			p, q := wholes(f.at(a)), wholes(f.at(b))
			for i := range dst {
				v, _ := eval(p[i], q[i])
				dst[i] = T(v)
			}
		}, x, y)
	}
	return c.step(func(f *frame[T], dst []T) {
		to, p, q := wholes(dst), wholes(f.at(a)), wholes(f.at(b))
		for i := range to {
			v, err := eval(p[i], q[i])
			if err != nil {
				f.err = err
				return
			}
			to[i] = d.Wrap(v)
		}
	}, x, y)
}
