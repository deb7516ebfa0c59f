package ref

import "fusec/graph"

// reduceIndex leads from the elements of a reduction's operand to those of its result.
func reduceIndex(axes graph.Ints, in graph.Shape) []int {
	kept := in
	for i := range axes.Len() {
		kept = kept.With(axes.At(i), 1)
	}
	src := make([]int, in.Rank())
	return indexOf(in, func(at []int) int {
		for k, i := range at {
			src[k] = i
			if axes.Has(k) {
				src[k] = 0
			}
		}
		return offset(kept, src)
	})
}

var _ = formulas.Add(one(func(op graph.Reduce, a []Value, t graph.Type, bound bool) (Value, error) {
	return reduce(op, a[0], t, bound), nil
}))

func reduce(op graph.Reduce, x Value, t graph.Type, bound bool) Value {
	v, row := zeros(t), op.Fn.Info()
	index := reduceIndex(op.Axes, x.Type.Shape)
	if v.F != nil {
		join := row.Join.Info().Eval
		for i := range v.F {
			v.F[i] = row.Identity
		}
		for i, j := range index {
			v.F[j] = join(v.F[j], x.F[i])
		}
	} else {
		join := row.Join.OfInts(t.DType)
		for i := range v.I {
			v.I[i] = row.IdentityInt(t.DType)
		}
		for i, j := range index {
			y, _ := join(v.I[j], x.I[i]) // no reduction joins by a function that may fail
			v.I[j] = t.DType.Wrap(y)
		}
	}
	if row.Averages {
		n := float64(x.Len()) / float64(v.Len())
		for i := range v.F {
			v.F[i] /= n
		}
	}
	if bound {
		v.Mag = reduceBound(row, x, v, index)
	}
	return v
}

var _ = formulas.Add(composite(func(_ graph.SquaredNorm, a []Value, _ []graph.Type) ([]Value, error) {
	return []Value{squaredNorm(a)}, nil
}))

func squaredNorm(args []Value) Value {
	v := zeros(graph.TypeOf(graph.F64))
	for _, x := range args {
		for _, f := range x.F {
			v.F[0] += f * f
		}
	}
	return v
}
