package graph

import (
	"slices"
	"strconv"
)

// Integers and Bools are computed exactly, in int64, and reduced to the element type by [DType.Wrap].

// Int is element i of a tensor of integers or Bools; true is 1. Of U64 it is the int64 with the same bits.
func (t *Tensor) Int(i int) int64 { return dtypes[t.Type.DType].integer(t.Data, i) }

// SetInt sets element i of a tensor of integers or Bools to v, reduced to the element type; a Bool becomes v != 0.
func (t *Tensor) SetInt(i int, v int64) { dtypes[t.Type.DType].setInt(t.Data, i, v) }

// Whole is element i of a tensor of integers in decimal.
func (t *Tensor) Whole(i int) string {
	if t.Type.DType.IsUnsigned() {
		return strconv.FormatUint(uint64(t.Int(i)), 10)
	}
	return strconv.FormatInt(t.Int(i), 10)
}

// SetElem sets element i to element j of u, converted as [Cast] does.
func (t *Tensor) SetElem(i int, u *Tensor, j int) {
	switch from, to := u.Type.DType, t.Type.DType; {
	case to.IsReal() || to.IsStored() || to == Bool:
		t.SetFloat(i, u.Float(j))
	case from.IsReal() || from.IsStored():
		t.SetInt(i, to.Truncate(u.Float(j)))
	default:
		t.SetInt(i, u.Int(j))
	}
}

// Uniform reports whether t has elements and all of them are equal.
func (t *Tensor) Uniform() bool { return dtypes[t.Type.DType].constant(t.Data) }

// Uniform is the value of a constant whose elements are all equal, as a tensor of rank 0 and n's element type. It looks
// through Reshape, Broadcast, Transpose and Cast.
func (n *Node) Uniform() (*Tensor, bool) {
	t, casts, ok := n.uniform()
	if !ok {
		return nil, false
	}
	t = t.first(t.Type.DType)
	for _, d := range slices.Backward(casts) {
		t = t.first(d)
	}
	return t, true
}

// uniform is the constant whose elements n has, all of which are equal, and the casts that they pass through, the last
// one first.
func (n *Node) uniform() (t *Tensor, casts []DType, ok bool) {
	for {
		switch op := n.Op.(type) {
		case Reshape, Broadcast, Transpose:
		case Cast:
			casts = append(casts, op.To)
		case Const:
			return op.Value, casts, op.Value.Uniform()
		default:
			return nil, nil, false
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
	t, casts, ok := n.uniform()
	if ok && len(casts) > 0 {
		t, ok = n.Uniform()
	}
	if !ok {
		return 0, false
	}
	return t.exact()
}

// exact is element 0 if float64 holds it exactly.
func (t *Tensor) exact() (float64, bool) {
	v, d := t.Float(0), t.Type.DType
	if !d.IsInt() || F64.Holds(d) {
		return v, true
	}
	_, most := d.Limits() // which float64 rounds up to a number that is out of range
	return v, v < d.Real(most) && d.Truncate(v) == t.Int(0)
}
