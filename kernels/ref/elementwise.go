package ref

import (
	"fmt"
	"math"

	"fusec/graph"
)

func unary(op graph.Unary, x Value, t graph.Type, bound bool) Value {
	v := zeros(t)
	for i := range v.I {
		v.I[i] = wrap(t.DType, unaryInt(op.Fn, x.I[i]))
	}
	f := func(x float64) float64 { return op.Fn.Eval(x, op.Alpha) }
	for i := range v.F {
		v.F[i] = f(x.F[i])
	}
	if bound {
		v.Mag = unaryBound(op.Fn, f, x, v)
	}
	return v
}

// unaryInt is the value of the functions that integers and Bools have.
func unaryInt(f graph.UnaryFn, x int64) int64 {
	switch f {
	case graph.Neg:
		return -x
	case graph.Abs:
		return max(x, -x)
	case graph.Sign:
		return truth(x > 0) - truth(x < 0)
	case graph.Square:
		return x * x
	case graph.Cube:
		return x * x * x
	case graph.Relu:
		return max(x, 0)
	}
	return 1 - x // Not
}

func binary(op graph.Binary, x, y Value, t graph.Type, bound bool) (Value, error) {
	v := zeros(t)
	for i := range t.Shape.Elems() {
		j, k := x.at(i), y.at(i)
		switch {
		case v.F != nil:
			v.F[i] = op.Fn.Eval(x.F[j], y.F[k])
		case x.F != nil: // a comparison
			v.I[i] = int64(op.Fn.Eval(x.F[j], y.F[k]))
		default:
			r, err := binaryInt(op.Fn, x.I[j], y.I[k])
			if err != nil {
				return v, fmt.Errorf("element %d: %w", i, err)
			}
			v.I[i] = wrap(t.DType, r)
		}
	}
	if bound {
		v.Mag = binaryBound(op.Fn, x, y, v)
	}
	return v, nil
}

func binaryInt(f graph.BinaryFn, x, y int64) (int64, error) {
	switch f {
	case graph.Add:
		return x + y, nil
	case graph.Sub:
		return x - y, nil
	case graph.Mul:
		return x * y, nil
	case graph.Div:
		if y == 0 {
			return 0, fmt.Errorf("integer division of %d by zero", x)
		}
		return x / y, nil
	case graph.Pow:
		return powInt(x, y)
	case graph.Max:
		return max(x, y), nil
	case graph.Min:
		return min(x, y), nil
	case graph.And:
		return x & y, nil
	case graph.Or:
		return x | y, nil
	case graph.Lt:
		return truth(x < y), nil
	case graph.Gt:
		return truth(x > y), nil
	case graph.Le:
		return truth(x <= y), nil
	case graph.Ge:
		return truth(x >= y), nil
	case graph.Eq:
		return truth(x == y), nil
	}
	return truth(x != y), nil
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

func choose(cond, a, b Value, t graph.Type, bound bool) Value {
	v := zeros(t)
	for i := range t.Shape.Elems() {
		from := b
		if cond.I[cond.at(i)] != 0 {
			from = a
		}
		if v.F != nil {
			v.F[i] = from.F[from.at(i)]
		} else {
			v.I[i] = from.I[from.at(i)]
		}
	}
	if bound {
		v.Mag = chooseBound(cond, a, b, v)
	}
	return v
}

func cast(x Value, t graph.Type, bound bool) Value {
	v := zeros(t)
	for i := range v.F {
		v.F[i] = t.DType.Round(x.float(i))
	}
	for i := range v.I {
		switch {
		case t.DType == graph.Bool:
			v.I[i] = truth(x.float(i) != 0)
		case x.F != nil:
			v.I[i] = truncate(t.DType, x.F[i])
		default:
			v.I[i] = wrap(t.DType, x.I[i])
		}
	}
	if bound {
		v.Mag = castBound(x, v)
	}
	return v
}

// truncate converts towards 0. NaN gives 0; a number out of range gives the nearest that is in range.
func truncate(d graph.DType, x float64) int64 {
	lo, hi := int64(math.MinInt64), int64(math.MaxInt64)
	if d == graph.I32 {
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
