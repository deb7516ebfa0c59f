package cpu

import (
	"errors"
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

// wrap gives x the range of type d, as Go does.
func wrap(d graph.DType, x int64) int64 {
	if d == graph.I32 {
		return int64(int32(x))
	}
	return x
}

var intUnary = map[graph.UnaryFn]func(int64) int64{
	graph.Neg: func(x int64) int64 { return -x },
	graph.Abs: func(x int64) int64 { return max(x, -x) },
	graph.Sign: func(x int64) int64 {
		return max(min(x, 1), -1)
	},
	graph.Square: func(x int64) int64 { return x * x },
	graph.Cube:   func(x int64) int64 { return x * x * x },
	graph.Relu:   func(x int64) int64 { return max(x, 0) },
}

func (c *compiler[T]) unaryInt(fn graph.UnaryFn, d graph.DType, x value) value {
	a, eval := c.place(x), intUnary[fn]
	return c.step(func(f *frame[T], dst []T) {
		to := wholes(dst)
		for i, v := range wholes(f.at(a))[:len(to)] {
			to[i] = wrap(d, eval(v))
		}
	}, x)
}

var (
	errIntDiv = errors.New("division of an integer by zero")
	errIntPow = errors.New("integer zero to a negative power")
)

var intBinary = map[graph.BinaryFn]func(x, y int64) (int64, error){
	graph.Add: func(x, y int64) (int64, error) { return x + y, nil },
	graph.Sub: func(x, y int64) (int64, error) { return x - y, nil },
	graph.Mul: func(x, y int64) (int64, error) { return x * y, nil },
	graph.Div: func(x, y int64) (int64, error) {
		if y == 0 {
			return 0, errIntDiv
		}
		return x / y, nil
	},
	graph.Pow: powInt,
	graph.Max: func(x, y int64) (int64, error) { return max(x, y), nil },
	graph.Min: func(x, y int64) (int64, error) { return min(x, y), nil },
}

var intCompare = map[graph.BinaryFn]func(x, y int64) bool{
	graph.Lt: func(x, y int64) bool { return x < y },
	graph.Gt: func(x, y int64) bool { return x > y },
	graph.Le: func(x, y int64) bool { return x <= y },
	graph.Ge: func(x, y int64) bool { return x >= y },
	graph.Eq: func(x, y int64) bool { return x == y },
	graph.Ne: func(x, y int64) bool { return x != y },
}

// powInt is x to the power y, truncated where y is negative.
func powInt(x, y int64) (int64, error) {
	if y < 0 {
		switch x {
		case 0:
			return 0, errIntPow
		case 1, -1: // to any power depends on its parity alone
			y = -(y % 2)
		default:
			return 0, nil
		}
	}
	r := int64(1)
	for ; y > 0; y >>= 1 {
		if y&1 == 1 {
			r *= x
		}
		x *= x
	}
	return r, nil
}

// binaryInt computes integers, or compares them, with the result in type d. Division by zero ends the run with an
// error.
func (c *compiler[T]) binaryInt(fn graph.BinaryFn, d graph.DType, x, y value) value {
	if x.kind != y.kind && (x.kind == vector || y.kind == vector) {
		x, y = c.asVector(x), c.asVector(y)
	}
	a, b, eval := c.place(x), c.place(y), intBinary[fn]
	if compare := intCompare[fn]; compare != nil {
		return c.step(func(f *frame[T], dst []T) {
			p, q := wholes(f.at(a)), wholes(f.at(b))
			for i := range dst {
				holds := compare(p[i], q[i])
				dst[i] = 0
				if holds {
					dst[i] = 1
				}
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
			to[i] = wrap(d, v)
		}
	}, x, y)
}
