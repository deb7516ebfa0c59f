package ref

import (
	"fmt"

	"fusec/graph"
)

var _ = formulas.Add(one(func(op graph.Unary, a []Value, t graph.Type, bound bool) (Value, error) {
	return unary(op, a[0], t, bound), nil
}))

func unary(op graph.Unary, x Value, t graph.Type, bound bool) Value {
	v := zeros(t)
	for i := range v.I {
		v.I[i] = op.Fn.EvalInt(t.DType, x.I[i])
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

var _ = formulas.Add(one(func(op graph.Binary, a []Value, t graph.Type, bound bool) (Value, error) {
	return binary(op, a[0], a[1], t, bound)
}))

func binary(op graph.Binary, x, y Value, t graph.Type, bound bool) (Value, error) {
	v, eval := zeros(t), op.Fn.Info().Eval
	xs, ys := x.step(), y.step()
	for i := range t.Shape.Elems() {
		j, k := i*xs, i*ys
		switch {
		case v.F != nil:
			v.F[i] = eval(x.F[j], y.F[k])
		case x.F != nil: // a comparison
			v.I[i] = int64(eval(x.F[j], y.F[k]))
		default:
			r, err := op.Fn.EvalInt(x.Type.DType, x.I[j], y.I[k])
			if err != nil {
				return v, fmt.Errorf("element %d: %w", i, err)
			}
			v.I[i] = r
		}
	}
	if bound {
		v.Mag = binaryBound(op.Fn, x, y, v)
	}
	return v, nil
}

var _ = formulas.Add(one(func(_ graph.Select, a []Value, t graph.Type, bound bool) (Value, error) {
	return choose(a[0], a[1], a[2], t, bound), nil
}))

func choose(cond, a, b Value, t graph.Type, bound bool) Value {
	v := zeros(t)
	for i := range t.Shape.Elems() {
		from := &b
		if cond.I[cond.at(i)] != 0 {
			from = &a
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

var _ = formulas.Add(one(custom))

// custom computes a function of the program's own by its Go body.
func custom(op graph.Custom, args []Value, t graph.Type, bound bool) (Value, error) {
	v, eval, x := zeros(t), op.Fn.Info().Eval, make([]float64, len(args))
	if bound {
		v.Mag = make([]float64, v.Len())
	}
	for i := range v.F {
		for k := range args {
			x[k] = args[k].F[args[k].at(i)]
		}
		v.F[i] = eval(x)
		if bound {
			v.Mag[i] = customBound(eval, x, v.F[i], args, i)
		}
	}
	return v, nil
}

var _ = formulas.Add(one(func(_ graph.Cast, a []Value, t graph.Type, bound bool) (Value, error) {
	return cast(a[0], t, bound), nil
}))

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
			v.I[i] = t.DType.Truncate(x.F[i])
		default:
			v.I[i] = t.DType.Wrap(x.I[i])
		}
	}
	if bound {
		v.Mag = castBound(x, v)
	}
	return v
}
