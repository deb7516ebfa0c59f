package graph

import (
	"math"
	"slices"
)

// Integers and Bools are computed exactly, in int64, and reduced to the element type by [DType.Wrap].

// Wrap reduces an integer to the range of d, an integer type or Bool, as Go's conversions do.
func (d DType) Wrap(x int64) int64 {
	if d == I32 {
		return int64(int32(x))
	}
	return x
}

// Truncate converts a number towards 0 to the integer type d. NaN gives 0; a number out of range gives the nearest
// number in range.
func (d DType) Truncate(x float64) int64 {
	lo, hi := int64(math.MinInt64), int64(math.MaxInt64)
	if d == I32 {
		lo, hi = math.MinInt32, math.MaxInt32
	}
	switch {
	case math.IsNaN(x):
		return 0
	case x <= float64(lo):
		return lo
	case x >= float64(hi):
		return hi
	}
	return int64(x)
}

// Int is element i of a tensor of integers or Bools; true is 1.
func (t *Tensor) Int(i int) int64 {
	switch d := t.Data.(type) {
	case []int32:
		return int64(d[i])
	case []int64:
		return d[i]
	case []bool:
		return truth(d[i])
	}
	panic("graph: Int of " + t.Type.String())
}

// SetInt sets element i of a tensor of integers or Bools to v, reduced to the element type; a Bool becomes v != 0.
func (t *Tensor) SetInt(i int, v int64) {
	switch d := t.Data.(type) {
	case []int32:
		d[i] = int32(v)
	case []int64:
		d[i] = v
	case []bool:
		d[i] = v != 0
	default:
		panic("graph: SetInt of " + t.Type.String())
	}
}

// SetElem sets element i to element j of u, converted as [Cast] does.
func (t *Tensor) SetElem(i int, u *Tensor, j int) {
	switch from, to := u.Type.DType, t.Type.DType; {
	case to.IsReal() || to == Bool:
		t.SetFloat(i, u.Float(j))
	case from.IsReal():
		t.SetInt(i, to.Truncate(u.Float(j)))
	default:
		t.SetInt(i, u.Int(j))
	}
}

// Uniform reports whether t has elements and all of them are equal.
func (t *Tensor) Uniform() bool {
	e := t.Type.Shape.Elems()
	if t.Type.DType == I64 {
		d := t.Data.([]int64)
		for i := 1; i < e; i++ {
			if d[i] != d[0] {
				return false
			}
		}
		return e > 0
	}
	for i := 1; i < e; i++ {
		if t.Float(i) != t.Float(0) {
			return false
		}
	}
	return e > 0
}

// Uniform is the value of a constant whose elements are all equal, as a tensor of rank 0 and n's element type. It looks
// through Reshape, Broadcast, Transpose and Cast.
func (n *Node) Uniform() (*Tensor, bool) {
	var casts []DType
	for {
		switch op := n.Op.(type) {
		case Reshape, Broadcast, Transpose:
		case Cast:
			casts = append(casts, op.To)
		case Const:
			if !op.Value.Uniform() {
				return nil, false
			}
			t := op.Value.first(op.Value.Type.DType)
			for _, d := range slices.Backward(casts) {
				t = t.first(d)
			}
			return t, true
		default:
			return nil, false
		}
		n = n.Args[0]
	}
}

// first is element 0 converted to d.
func (t *Tensor) first(d DType) *Tensor {
	r := NewTensor(Type{DType: d})
	r.SetElem(0, t, 0)
	return r
}

// ConstScalar is [Node.Uniform] as a float64. It is false for an integer that float64 does not hold exactly.
func (n *Node) ConstScalar() (float64, bool) {
	for {
		switch op := n.Op.(type) {
		case Reshape, Broadcast, Transpose:
			n = n.Args[0]
			continue
		case Cast:
			if t, ok := n.Uniform(); ok {
				return t.exact()
			}
		case Const:
			if op.Value.Uniform() {
				return op.Value.exact()
			}
		}
		return 0, false
	}
}

// exact is element 0 if float64 holds it exactly.
func (t *Tensor) exact() (float64, bool) {
	v := t.Float(0)
	return v, t.Type.DType != I64 || v < 1<<63 && int64(v) == t.Int(0)
}
