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

func conv2D(op graph.Conv2D, x, w Value, t graph.Type) Value {
	v := zeros(t)
	xs, ws := x.Type.Shape, w.Type.Shape
	perGroup := ws.At(0) / op.Groups
	each(t.Shape, func(i int, at []int) {
		n, o, oy, ox := at[0], at[1], at[2], at[3]
		for c := range ws.At(1) {
			for ky := range ws.At(2) {
				for kx := range ws.At(3) {
					y := oy*op.Stride.At(0) + ky*op.Dilation.At(0) - op.Pad.At(0)
					z := ox*op.Stride.At(1) + kx*op.Dilation.At(1) - op.Pad.At(1)
					if y < 0 || y >= xs.At(2) || z < 0 || z >= xs.At(3) {
						continue
					}
					channel := o/perGroup*ws.At(1) + c
					v.F[i] += x.F[offset(xs, []int{n, channel, y, z})] * w.F[offset(ws, []int{o, c, ky, kx})]
				}
			}
		}
	})
	return v
}
