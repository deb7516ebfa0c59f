package ref

import "fusec/graph"

var _ = formulas.Add(one(func(op graph.MatMul, a []Value, t graph.Type, bound bool) (Value, error) {
	return bilinear(a[0], a[1], bound, func(x, y Value) Value { return matMul(op, x, y, t) }), nil
}))

// matMul adds the products in the order of the contracted axis.
func matMul(op graph.MatMul, a, b Value, t graph.Type) Value {
	v := zeros(t)
	as, bs := a.Type.Shape, b.Type.Shape
	batch, rows, inner, cols := op.Dims(as, bs)
	each(graph.ShapeOf(batch...), func(i int, at []int) {
		oa, ob := matrix(as, at), matrix(bs, at)
		ra, ka := steps(as, op.TransA)
		kb, cb := steps(bs, op.TransB)
		x := make([]float64, inner) // a row
		for r := range rows {
			for k := range x {
				x[k] = a.F[oa+r*ra+k*ka]
			}
			y := v.F[(i*rows+r)*cols:][:cols]
			if cb == 1 {
				addRows(y, x, b.F[ob:], kb)
			} else {
				dotRows(y, x, b.F[ob:], cb)
			}
		}
	})
	return v
}

// addRows adds to y the sum of the rows of b, which are so many elements apart, times the elements of x, in their order.
func addRows(y, x, b []float64, apart int) {
	for ; len(x) >= 4; x, b = x[4:], b[min(4*apart, len(b)):] { // four rows for each time that y is read
		b0, b1, b2, b3 := b[:len(y)], b[apart:][:len(y)], b[2*apart:][:len(y)], b[3*apart:][:len(y)]
		for c, s := range y {
			s += x[0] * b0[c]
			s += x[1] * b1[c]
			s += x[2] * b2[c]
			y[c] = s + x[3]*b3[c]
		}
	}
	for k, f := range x {
		row := b[k*apart:][:len(y)]
		for c := range y {
			y[c] += f * row[c]
		}
	}
}

// dotRows makes y the products of x and the rows of b, which are so many elements apart, each summed in the order of x.
func dotRows(y, x, b []float64, apart int) {
	c := 0
	for ; c+4 <= len(y); c += 4 { // four sums that do not wait for each other
		b0, b1, b2, b3 := b[c*apart:][:len(x)], b[(c+1)*apart:][:len(x)], b[(c+2)*apart:][:len(x)], b[(c+3)*apart:][:len(x)]
		var s0, s1, s2, s3 float64
		for k, f := range x {
			s0 += f * b0[k]
			s1 += f * b1[k]
			s2 += f * b2[k]
			s3 += f * b3[k]
		}
		y[c], y[c+1], y[c+2], y[c+3] = s0, s1, s2, s3
	}
	for ; c < len(y); c++ {
		s, row := 0.0, b[c*apart:][:len(x)]
		for k, f := range x {
			s += f * row[k]
		}
		y[c] = s
	}
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

var _ = formulas.Add(one(func(op graph.Conv2D, a []Value, t graph.Type, bound bool) (Value, error) {
	if op.Winograd != 0 && bound {
		return winograd(op, a[0], a[1], t)
	}
	x, w := a[0], a[1]
	if x.F == nil { // integers
		x, w = cast(x, x.Type.With(graph.F32), bound), cast(w, w.Type.With(graph.F32), bound)
	}
	return bilinear(x, w, bound, func(x, w Value) Value { return conv2D(op, x, w, t) }), nil
}))

func conv2D(op graph.Conv2D, x, w Value, t graph.Type) Value {
	v := zeros(t)
	products(op, x.Type.Shape, w.Type.Shape, t.Shape, func(i, j, k int) { v.F[k] += x.F[i] * w.F[j] })
	return v
}

var _ = formulas.Add(one(func(op graph.Conv2DTranspose, a []Value, t graph.Type, bound bool) (Value, error) {
	if op.Winograd != 0 && bound {
		return winogradTransposed(op, a[0], a[1], t)
	}
	return bilinear(a[0], a[1], bound, func(dy, w Value) Value { return conv2DTranspose(op, dy, w, t) }), nil
}))

func conv2DTranspose(op graph.Conv2DTranspose, dy, w Value, t graph.Type) Value {
	v := zeros(t)
	products(op.Conv(), t.Shape, w.Type.Shape, dy.Type.Shape, func(i, j, k int) { v.F[i] += dy.F[k] * w.F[j] })
	return v
}

var _ = formulas.Add(one(func(op graph.Conv2DFilterGrad, a []Value, t graph.Type, bound bool) (Value, error) {
	return bilinear(a[0], a[1], bound, func(x, dy Value) Value { return conv2DFilterGrad(op, x, dy, t) }), nil
}))

func conv2DFilterGrad(op graph.Conv2DFilterGrad, x, dy Value, t graph.Type) Value {
	v := zeros(t)
	products(op.Conv(), x.Type.Shape, t.Shape, dy.Type.Shape, func(i, j, k int) { v.F[j] += x.F[i] * dy.F[k] })
	return v
}
