package ref

import (
	"math"

	"fusec/graph"
)

// Value is a value of the reference. Floats are float64, whatever Type says; integers are int64; a Bool is the integer
// 0 or 1.
type Value struct {
	Type graph.Type
	F    []float64 // the elements of a float type, or of a type that is only stored, row-major
	I    []int64   // the elements of any other type
	// Mag holds each element's magnitude, as the package comment defines it; nil if none was asked for. Those of
	// integers and Bools are 0, or +Inf where the element is unsure.
	Mag []float64
}

// FromTensor converts a tensor. Its magnitudes are 0: the elements are exact.
func FromTensor(t *graph.Tensor) Value {
	v := zeros(t.Type)
	for i := range v.F {
		v.F[i] = t.Float(i)
	}
	for i := range v.I {
		v.I[i] = t.Int(i)
	}
	v.Mag = make([]float64, v.Len())
	return v
}

// Tensor converts to a tensor of F64 for floats, and else of the value's own type.
func (v Value) Tensor() *graph.Tensor {
	if v.Type.DType.IsReal() {
		v.Type.DType = graph.F64
	}
	return v.Rounded()
}

// Rounded converts to a tensor of the value's own type.
func (v Value) Rounded() *graph.Tensor {
	t := graph.NewTensor(v.Type)
	for i, x := range v.F {
		t.SetFloat(i, x)
	}
	for i, x := range v.I {
		t.SetInt(i, x)
	}
	return t
}

// Len is the number of elements.
func (v Value) Len() int { return v.Type.Shape.Elems() }

// zeros makes a value of zeros without magnitudes.
func zeros(t graph.Type) Value {
	v := Value{Type: t}
	if t.DType.IsReal() || t.DType.IsStored() {
		v.F = make([]float64, t.Shape.Elems())
	} else {
		v.I = make([]int64, t.Shape.Elems())
	}
	return v
}

// float is element i as a float64.
func (v Value) float(i int) float64 {
	if v.F != nil {
		return v.F[i]
	}
	return v.Type.DType.Real(v.I[i])
}

// step times i is the place in v of element i of an elementwise result: a scalar stands for all elements.
func (v *Value) step() int { return min(v.Type.Shape.Rank(), 1) }

// at is that place.
func (v *Value) at(i int) int { return i * v.step() }

func truth(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// each calls f for the row-major indices of a shape, with the element's number.
func each(s graph.Shape, f func(i int, at []int)) {
	at := make([]int, s.Rank())
	for i := range s.Elems() {
		f(i, at)
		for k := len(at) - 1; k >= 0; k-- {
			if at[k]++; at[k] < s.At(k) {
				break
			}
			at[k] = 0
		}
	}
}

// offset is the number of the element at the given indices of a shape.
func offset(s graph.Shape, at []int) int {
	o := 0
	for k, i := range at {
		o = o*s.At(k) + i
	}
	return o
}

// unsure is the magnitude of what is not checked.
var unsure = math.Inf(1)
