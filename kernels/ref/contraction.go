package ref

import "fusec/graph"

// matMul adds the products in the order of the contracted axis.
func matMul(op graph.MatMul, a, b Value, t graph.Type) Value {
	v := zeros(t)
	as, bs := a.Type.Shape, b.Type.Shape
	batch, rows, inner, cols := op.Dims(as, bs)
	each(graph.ShapeOf(batch...), func(i int, at []int) {
		oa, ob := matrix(as, at), matrix(bs, at)
		ra, ka := steps(as, op.TransA)
		kb, cb := steps(bs, op.TransB)
		for r := range rows {
			y := v.F[(i*rows+r)*cols:][:cols]
			for k := range inner {
				x := a.F[oa+r*ra+k*ka]
				for c := range y {
					y[c] += x * b.F[ob+k*kb+c*cb]
				}
			}
		}
	})
	return v
}

// matrix is the offset of an operand's matrix for a batch of the result; axes of size 1 stand for all.
func matrix(s graph.Shape, batch []int) int {
	at := make([]int, s.Rank())
	for k := range len(at) - 2 {
		if s.At(k) != 1 {
			at[k] = batch[len(batch)-(len(at)-2)+k]
		}
	}
	return offset(s, at)
}

// steps are the distances between a matrix's rows and between its columns, exchanged if it is transposed.
func steps(s graph.Shape, trans bool) (row, col int) {
	row, col = s.At(s.Rank()-1), 1
	if trans {
		row, col = col, row
	}
	return row, col
}

// products calls f for each product of a convolution of images of shape x with filters of shape w to results of shape y, all of
// layout l, with the offsets of the three elements.
func products(op graph.Conv2D, x, w, y graph.Shape, f func(x, w, y int)) {
	l := op.Layout
	_, _, height, width := l.ImageDims(x)
	o, channels, kh, kw := l.FilterDims(w)
	perGroup := o / op.Groups
	images, _, oh, ow := l.ImageDims(y)
	xn, xc, xh, xw := l.ImageDims(strides(x)) // steps in memory, not sizes
	wo, wc, wh, ww := l.FilterDims(strides(w))
	yn, yc, yh, yw := l.ImageDims(strides(y))
	each(graph.ShapeOf(images, o, oh, ow), func(_ int, at []int) {
		top, left := at[2]*op.Stride.At(0)-op.Pad.At(0), at[3]*op.Stride.At(1)-op.Pad.At(1)
		to := at[0]*yn + at[1]*yc + at[2]*yh + at[3]*yw
		first := at[1] / perGroup * channels
		for c := range channels {
			for i := range kh {
				row := top + i*op.Dilation.At(0)
				if row < 0 || row >= height {
					continue
				}
				for j := range kw {
					if col := left + j*op.Dilation.At(1); col >= 0 && col < width {
						f(at[0]*xn+(first+c)*xc+row*xh+col*xw, at[1]*wo+c*wc+i*wh+j*ww, to)
					}
				}
			}
		}
	})
}

// strides are the steps in memory along the axes of a row-major tensor.
func strides(s graph.Shape) graph.Shape {
	list, step := make([]int, s.Rank()), 1
	for k := len(list) - 1; k >= 0; k-- {
		list[k] = step
		step *= s.At(k)
	}
	return graph.ShapeOf(list...)
}

func conv2D(op graph.Conv2D, x, w Value, t graph.Type) Value {
	v := zeros(t)
	products(op, x.Type.Shape, w.Type.Shape, t.Shape, func(i, j, k int) { v.F[k] += x.F[i] * w.F[j] })
	return v
}

func conv2DTranspose(op graph.Conv2DTranspose, dy, w Value, t graph.Type) Value {
	v := zeros(t)
	products(op.Conv(), t.Shape, w.Type.Shape, dy.Type.Shape, func(i, j, k int) { v.F[i] += dy.F[k] * w.F[j] })
	return v
}

func conv2DFilterGrad(op graph.Conv2DFilterGrad, x, dy Value, t graph.Type) Value {
	v := zeros(t)
	products(op.Conv(), x.Type.Shape, t.Shape, dy.Type.Shape, func(i, j, k int) { v.F[j] += x.F[i] * dy.F[k] })
	return v
}
