package cpu

import (
	"math"
	"unsafe"

	"fusec/graph"
)

// Integers are exact, and wrap as their type does. In lanes of float64 an integer stands as the 64 bits of an int64,
// which vector operations that only move elements (Select, filling) carry along. Lanes of float32 hold integers only
// on the way to a Cast, as numbers.

// wholeLanes reports whether lanes of type T hold integers as bits.
func wholeLanes[T float]() bool { return dtypeOf[T]() == graph.F64 }

func toInt[T float](x T) int64 { return int64(math.Float64bits(float64(x))) }

func ofInt[T float](x int64) T { return T(math.Float64frombits(uint64(x))) }

// wholes is the lanes as integers.
func wholes[T float](x []T) []int64 {
	return unsafe.Slice((*int64)(unsafe.Pointer(unsafe.SliceData(x))), len(x))
}

func (c *compiler[T]) unaryInt(fn graph.UnaryFn, d graph.DType, x value) value {
	a, eval := c.place(x), fn.Info().EvalInt
	return c.step(func(f *frame[T], dst []T) {
		to := wholes(dst)
		for i, v := range wholes(f.at(a))[:len(to)] {
			to[i] = d.Wrap(eval(v))
		}
	}, x)
}

// binaryInt computes integers, or compares them, with the result in type d. Division by zero ends the run with an
// error.
func (c *compiler[T]) binaryInt(fn graph.BinaryFn, d graph.DType, x, y value) value {
	if x.kind != y.kind && (x.kind == vector || y.kind == vector) {
		x, y = c.asVector(x), c.asVector(y)
	}
	a, b, eval := c.place(x), c.place(y), fn.Info().EvalInt
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
