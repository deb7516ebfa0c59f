package ref

import (
	"math"

	"fusec/graph"
)

// quantisedAt finds the scale and the zero point of each element of a value of shape s.
func quantisedAt(axis, block int, s graph.Shape, args []Value) func(i int) (scale, zero float64, at int) {
	index := graph.ScaleIndex(axis, block, s, args[0].Type.Shape)
	return func(i int) (scale, zero float64, at int) {
		at = index(i)
		if len(args) > 1 {
			zero = args[1].float(at)
		}
		return args[0].F[at], zero, at
	}
}

// quotientError bounds the relative error of a quotient in f32.
const quotientError = 0x1p-22

var _ = formulas.Add(one(quantize))

func quantize(op graph.Quantize, args []Value, t graph.Type, bound bool) (Value, error) {
	v := zeros(t)
	if bound {
		v.Mag = make([]float64, v.Len())
	}
	of := quantisedAt(op.Axis, op.Block, t.Shape, args[1:])
	for i := range v.Len() {
		scale, zero, at := of(i)
		q := args[0].F[i] / scale
		y := op.To.Quantised(q, zero)
		if v.F != nil {
			v.F[i] = y
		} else {
			v.I[i] = int64(y)
		}
		if !bound {
			continue
		}
		off := math.Abs(q)*quotientError + args[0].off(i)/math.Abs(scale) + math.Abs(q)*args[1].off(at)/math.Abs(scale)
		unsureZero := len(args) > 2 && args[2].mag(at) != 0
		if unsureZero || off != off || deviation(op.To.Quantised(q-off, zero), op.To.Quantised(q+off, zero)) != 0 {
			v.Mag[i] = unsure
		}
	}
	return v, nil
}

var _ = formulas.Add(one(dequantize))

func dequantize(op graph.Dequantize, args []Value, t graph.Type, bound bool) (Value, error) {
	v := zeros(t)
	if bound {
		v.Mag = make([]float64, v.Len())
	}
	of := quantisedAt(op.Axis, op.Block, t.Shape, args[1:])
	for i := range v.F {
		scale, zero, at := of(i)
		q := args[0].float(i) - zero
		v.F[i] = q * scale
		if !bound {
			continue
		}
		v.Mag[i] = settle(v.F[i], 2*size(v.F[i]), size(q)*args[1].mag(at), t.DType)
		if args[0].mag(i) != 0 || len(args) > 2 && args[2].mag(at) != 0 {
			v.Mag[i] = unsure
		}
	}
	return v, nil
}

var _ = formulas.Add(one(packWeights))

// packWeights puts weights into panels.
func packWeights(op graph.PackWeights, args []Value, t graph.Type, bound bool) (Value, error) {
	v := zeros(t)
	if bound {
		v.Mag = make([]float64, v.Len())
	}
	first := 0 // column
	for _, w := range args {
		k, columns := op.Matrix(w.Type.Shape)
		across := w.Type.Shape.At(1)
		for i := range k * columns {
			row, col := i/across, i%across
			if op.Trans {
				row, col = col, row
			}
			to := panelIndex(t.DType, op.Deep, op.Quads, k, row, first+col)
			if v.F == nil {
				v.I[to] = w.I[i]
			} else {
				v.F[to] = t.DType.Round(w.F[i])
			}
			if bound {
				v.Mag[to] = w.mag(i)
				if op.To != graph.Invalid {
					v.Mag[to] = roundingBound(w.F[i], w.off(i), v.F[to], t.DType)
				}
			}
		}
		first += columns
	}
	return v, nil
}

// panelIndex is where the element of a row and a column of weights with k rows stands in panels of a type.
func panelIndex(d graph.DType, deep, quads bool, k, row, col int) int {
	panel, lane, beside := col/graph.PanelColumns, col%graph.PanelColumns, 1 // rows of a column that stand side by side
	switch {
	case deep:
		return panel*graph.DeepShape(d, k, 1).Elems() + graph.DeepIndex(d, row, lane)
	case d == graph.I4:
		beside = 8
	case quads:
		beside = 4
	}
	steps := (k + 7) / 8 * 8 / beside
	return ((panel*steps+row/beside)*graph.PanelColumns+lane)*beside + row%beside
}

// roundRows is x rounded to 8 bits with a scale for each block of a row; see [graph.Builder.RoundRows]. What may be rounded up or
// down may be off by a scale.
func roundRows(x Value, block int, bound bool) Value {
	v := zeros(x.Type)
	if bound {
		v.Mag = make([]float64, v.Len())
	}
	k := x.Type.Shape.At(x.Type.Shape.Rank() - 1)
	for row := 0; row < v.Len(); row += max(k, 1) {
		for from := row; from < row+k; from += block {
			most, off := 0.0, 0.0
			end := min(from+block, row+k)
			for i := from; i < end; i++ {
				most, off = max(most, math.Abs(x.F[i])), max(off, x.off(i))
			}
			scale := most / 127
			for i := from; i < end; i++ {
				q := x.F[i] / scale
				v.F[i] = graph.I8.Quantised(q, 0) * scale
				if !bound {
					continue
				}
				d := (x.off(i)+math.Abs(q)*off/127)/scale + math.Abs(q)*quotientError
				step := deviation(graph.I8.Quantised(q-d, 0), graph.I8.Quantised(q+d, 0)) * scale
				v.Mag[i] = settle(v.F[i], 2*size(v.F[i]), (step+math.Abs(q)*off/127)/x.Type.DType.Tolerance(), x.Type.DType)
				if most == 0 {
					v.Mag[i] = off / x.Type.DType.Tolerance()
				}
			}
		}
	}
	return v
}

var _ = formulas.Add(one(panelMatMul))

// panelMatMul takes the weights out of their panels, and multiplies.
func panelMatMul(op graph.PanelMatMul, args []Value, t graph.Type, bound bool) (Value, error) {
	x := args[0]
	k := x.Type.Shape.At(x.Type.Shape.Rank() - 1)
	w := zeros(graph.TypeOf(graph.F32, k, op.Columns))
	w.Mag = make([]float64, w.Len())
	panels := args[1]
	block := op.Block
	if block == 0 {
		block = max(k, 1)
	}
	switch {
	case x.F == nil: // of U8
		x = cast(x, x.Type.With(graph.F32), bound)
	case op.Integers:
		x = roundRows(x, block, bound)
	}
	for i := range w.F {
		row, col := i/op.Columns, i%op.Columns
		from := panelIndex(panels.Type.DType, op.Deep, op.Integers, k, row, col)
		w.F[i], w.Mag[i] = panels.float(from), panels.off(from)/w.Type.DType.Tolerance()
		if panels.F == nil && panels.mag(from) != 0 {
			w.Mag[i] = unsure
		}
		if len(args) > 2 {
			at := row/block*op.Columns + col
			if args[2].Type.DType == graph.F16 {
				at = panelIndex(graph.F16, false, false, op.Blocks(k), row/block, col)
			}
			scale := args[2].F[at]
			w.Mag[i] = w.Mag[i]*size(scale) + size(w.F[i])*args[2].off(at)/w.Type.DType.Tolerance()
			w.F[i] *= scale
		}
		if len(args) > 3 {
			at := row/block*op.Columns + col
			w.Mag[i] += size(w.F[i]) + size(args[3].F[at]) + args[3].off(at)/w.Type.DType.Tolerance()
			w.F[i] += args[3].F[at]
		}
	}
	return bilinear(x, w, bound, func(x, w Value) Value { return matMul(graph.MatMul{}, x, w, t) }), nil
}
