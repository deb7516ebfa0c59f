package ref

import (
	"math"

	"fusec/graph"
)

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

func reduce(op graph.Reduce, x Value, t graph.Type, bound bool) Value {
	v := zeros(t)
	index := reduceIndex(op.Axes, x.Type.Shape)
	for i := range v.F {
		switch op.Fn {
		case graph.Prod:
			v.F[i] = 1
		case graph.MaxOf:
			v.F[i] = math.Inf(-1)
		case graph.MinOf:
			v.F[i] = math.Inf(1)
		}
	}
	for i := range v.I {
		switch op.Fn {
		case graph.Prod:
			v.I[i] = 1
		case graph.MaxOf:
			v.I[i], _ = t.DType.Limits()
		case graph.MinOf:
			_, v.I[i] = t.DType.Limits()
		}
	}
	for i, j := range index {
		if v.F != nil {
			v.F[j] = combine(op.Fn, v.F[j], x.F[i])
		} else {
			v.I[j] = combineInts(op.Fn, t.DType, v.I[j], x.I[i])
		}
	}
	if op.Fn == graph.Mean {
		n := float64(x.Len()) / float64(v.Len())
		for i := range v.F {
			v.F[i] /= n
		}
	}
	if bound {
		v.Mag = reduceBound(op.Fn, x, v, index)
	}
	return v
}

func combine(f graph.ReduceFn, x, y float64) float64 {
	switch f {
	case graph.Prod:
		return x * y
	case graph.MaxOf:
		return max(x, y)
	case graph.MinOf:
		return min(x, y)
	}
	return x + y
}

// combineInts is combine for integers of type d.
func combineInts(f graph.ReduceFn, d graph.DType, x, y int64) int64 {
	switch {
	case f == graph.Prod:
		return d.Wrap(x * y)
	case f == graph.Sum:
		return d.Wrap(x + y)
	case d.Less(x, y) == (f == graph.MaxOf):
		return y
	}
	return x
}

func squaredNorm(args []Value) Value {
	v := zeros(graph.TypeOf(graph.F64))
	for _, x := range args {
		for _, f := range x.F {
			v.F[0] += f * f
		}
	}
	return v
}
