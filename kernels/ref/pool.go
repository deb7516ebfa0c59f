package ref

import (
	"math"

	"fusec/graph"
)

// poolWindow lists the elements of x in the window of element at of the result, in row-major order, and the
// divisor of its mean.
func poolWindow(op graph.Pool, x graph.Shape, at []int) (elems []int, divisor float64) {
	_, _, height, width := op.Layout.ImageDims(x)
	n, c, oy, ox := op.Layout.ImageDims(graph.ShapeOf(at...))
	for ky := range op.Kernel.At(0) {
		for kx := range op.Kernel.At(1) {
			i := oy*op.Stride.At(0) + ky - op.Pad.At(0)
			j := ox*op.Stride.At(1) + kx - op.Pad.At(1)
			if i >= 0 && i < height && j >= 0 && j < width {
				elems = append(elems, offset(x, op.Layout.Image(n, c, i, j).Slice()))
			}
		}
	}
	if op.CountPad {
		return elems, float64(op.Kernel.At(0) * op.Kernel.At(1))
	}
	return elems, float64(len(elems))
}

// first is the first of the elements with the largest value, or the first NaN; −1 of no elements.
func first(x []float64, elems []int) int {
	best := -1
	for _, e := range elems {
		if best < 0 || x[e] > x[best] || math.IsNaN(x[e]) && !math.IsNaN(x[best]) {
			best = e
		}
	}
	return best
}

// chooses says which pools take an element of a window, to which the gradient goes, and not all of them.
var chooses = map[graph.PoolFn]bool{graph.MaxPool: true, graph.AvgPool: false}

func init() {
	if err := graph.CheckPools("ref", chooses); err != nil {
		panic(err)
	}
}

var _ = formulas.Add(moved(func(op graph.Pool, a []Value, t graph.Type) (Value, error) { return pool(op, a[0], t), nil }))

// pool gives −Inf or NaN for a window that lies in the padding alone, unless the padding counts in the mean.
func pool(op graph.Pool, x Value, t graph.Type) Value {
	v := zeros(t)
	v.Mag = make([]float64, v.Len())
	each(t.Shape, func(i int, at []int) {
		elems, divisor := poolWindow(op, x.Type.Shape, at)
		terms, carried := 0.0, 0.0
		if chooses[op.Fn] {
			v.F[i] = math.Inf(-1)
			if k := first(x.F, elems); k >= 0 {
				v.F[i] = x.F[k]
			}
			for _, e := range elems {
				carried = max(carried, x.mag(e))
			}
		} else {
			for _, e := range elems {
				v.F[i] += x.F[e]
				terms += (size(x.F[e]) + x.mag(e)) / divisor
			}
			v.F[i] /= divisor
		}
		v.Mag[i] = settle(v.F[i], terms, carried, t.DType)
	})
	return v
}

var _ = formulas.Add(moved(func(op graph.PoolGrad, a []Value, t graph.Type) (Value, error) {
	return poolGrad(op, a[0], a[1], t), nil
}))

func poolGrad(op graph.PoolGrad, x, dy Value, t graph.Type) Value {
	v := zeros(t)
	v.Mag = make([]float64, v.Len())
	each(dy.Type.Shape, func(i int, at []int) {
		elems, divisor := poolWindow(graph.Pool(op), x.Type.Shape, at)
		if !chooses[op.Fn] {
			for _, e := range elems {
				v.F[e] += dy.F[i] / divisor
				v.Mag[e] += (size(dy.F[i]) + dy.mag(i)) / divisor
			}
			return
		}
		k := first(x.F, elems)
		for _, e := range elems {
			switch d := t.DType.Tolerance() * (x.mag(k) + x.mag(e)); {
			case e == k:
				v.F[e] += dy.F[i]
				v.Mag[e] += size(dy.F[i]) + dy.mag(i)
			case d > 0 && !(math.Abs(x.F[k]-x.F[e]) > d): // a knife edge, or one is unsure: either may win
				either := size(dy.F[i])*(1+1/t.DType.Tolerance()) + dy.mag(i)
				if math.IsNaN(dy.F[i]) || math.IsInf(dy.F[i], 0) {
					either = unsure
				}
				v.Mag[e] += either
				v.Mag[k] += either
			}
		}
	})
	for i := range v.F {
		v.Mag[i] = settle(v.F[i], v.Mag[i], 0, t.DType)
	}
	return v
}
