package graph

import (
	"fmt"
	"math"
)

// The arithmetic of integers and Bools, which is exact: int64 throughout, reduced to the element type by [DType.Wrap]. Folding
// and kernels/ref share it. The CPU's kernels have their own, so that tests compare two.

// EvalInt is f of an integer, or of a Bool as 0 or 1. It panics for a function that these do not have, which no graph that
// keeps the type rule holds.
func (f UnaryFn) EvalInt(x int64) int64 {
	switch f {
	case Neg:
		return -x
	case Abs:
		return max(x, -x)
	case Sign:
		return truth(x > 0) - truth(x < 0)
	case Square:
		return x * x
	case Cube:
		return x * x * x
	case Relu:
		return max(x, 0)
	case Not:
		return 1 - x
	}
	panic(fmt.Sprintf("graph: %v of an integer", f))
}

// EvalInt is f of two integers, or of Bools as 0 or 1; comparisons give 0 or 1. Quotients and powers are truncated. It
// reports a division by zero, and functions that integers do not have.
func (f BinaryFn) EvalInt(x, y int64) (int64, error) {
	switch f {
	case Add:
		return x + y, nil
	case Sub:
		return x - y, nil
	case Mul:
		return x * y, nil
	case Div:
		if y == 0 {
			return 0, fmt.Errorf("integer division of %d by zero", x)
		}
		return x / y, nil
	case Pow:
		return powInt(x, y)
	case Max:
		return max(x, y), nil
	case Min:
		return min(x, y), nil
	case And:
		return x & y, nil
	case Or:
		return x | y, nil
	case Lt:
		return truth(x < y), nil
	case Gt:
		return truth(x > y), nil
	case Le:
		return truth(x <= y), nil
	case Ge:
		return truth(x >= y), nil
	case Eq:
		return truth(x == y), nil
	case Ne:
		return truth(x != y), nil
	}
	return 0, fmt.Errorf("%v of integers is not known", f)
}

// powInt is x to the power y, truncated where y is negative.
func powInt(x, y int64) (int64, error) {
	if y < 0 {
		if x == 0 {
			return 0, fmt.Errorf("integer 0 to the power %d", y)
		}
		if x != 1 && x != -1 {
			return 0, nil
		}
		y = -(y % 2) // ±1 to any power depends on its parity alone
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

func truth(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// Wrap reduces an integer to the range of d, an integer type or Bool, as Go's conversions do.
func (d DType) Wrap(x int64) int64 {
	if d == I32 {
		return int64(int32(x))
	}
	return x
}

// Truncate converts a number towards 0 to the integer type d. NaN gives 0; a number out of range gives the nearest that is
// in range.
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

// Uniform is the one value of a constant all of whose elements are equal, of rank 0 and n's element type. It looks through
// Reshape, Broadcast, Transpose and Cast.
func (n *Node) Uniform() (*Tensor, bool) {
	switch op := n.Op.(type) {
	case Reshape, Broadcast, Transpose:
		return n.Args[0].Uniform()
	case Cast:
		if t, ok := n.Args[0].Uniform(); ok {
			return t.first(op.To), true
		}
	case Const:
		if op.Value.Uniform() {
			return op.Value.first(op.Value.Type.DType), true
		}
	}
	return nil, false
}

// first is element 0 converted to d.
func (t *Tensor) first(d DType) *Tensor {
	r := NewTensor(Type{DType: d})
	r.SetElem(0, t, 0)
	return r
}

// ConstScalar is [Node.Uniform] as a float64. It is false for an integer that float64 does not hold exactly.
func (n *Node) ConstScalar() (float64, bool) {
	switch op := n.Op.(type) {
	case Reshape, Broadcast, Transpose:
		return n.Args[0].ConstScalar()
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

// exact is element 0 if float64 holds it exactly.
func (t *Tensor) exact() (float64, bool) {
	v := t.Float(0)
	return v, t.Type.DType != I64 || v < 1<<63 && int64(v) == t.Int(0)
}
