package cpu

import "fusec/graph"

// A strip is the Go body of a custom function: dst[i] from x[0][i], x[1][i] and so on; point has room for one number of each
// operand.
type strip[T float] = func(dst []T, x [][]T, point []float64)

// stripOf is the body for lanes of T: the one that the function has for them, or its value at each element.
func stripOf[T float](info *graph.CustomInfo) strip[T] {
	if own, ok := any(info.F32).(func([]T, [][]T)); ok && own != nil {
		return func(dst []T, x [][]T, _ []float64) { own(dst, x) }
	}
	eval := info.Eval
	return func(dst []T, x [][]T, point []float64) {
		for i := range dst {
			for k := range x {
				point[k] = float64(x[k][i])
			}
			dst[i] = T(eval(point))
		}
	}
}

// custom calls the Go body of a custom function on strips. Where an operand is a vector the others are made vectors, too.
func (c *compiler[T]) custom(info *graph.CustomInfo, in []value) value {
	wide := false
	for _, x := range in {
		wide = wide || x.kind == vector
	}
	at := make([]place, len(in))
	for k := range in {
		if wide {
			in[k] = c.asVector(in[k])
		}
		at[k] = c.place(in[k])
	}
	run := stripOf[T](info)
	c.p.operands = max(c.p.operands, len(in))
	return c.step(func(f *frame[T], dst []T) {
		x := f.operands[:len(at)]
		for k, p := range at {
			x[k] = f.at(p)[:len(dst)]
		}
		if len(dst) > 0 {
			run(dst, x, f.point[:len(at)])
		}
	}, in...)
}
