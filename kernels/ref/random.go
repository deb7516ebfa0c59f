package ref

import (
	"math"

	"fusec/graph"
)

var _ = formulas.Add(moved(func(op graph.Dropout, a []Value, t graph.Type) (Value, error) {
	return dropout(op, a[0], a[1], t), nil
}))

func dropout(op graph.Dropout, x, seed Value, t graph.Type) Value {
	v := zeros(t)
	v.Mag = make([]float64, v.Len())
	rule := graph.DropoutRuleOf(op.P)
	for i := range v.F {
		if rule.Keeps(uint64(seed.I[0]), uint64(i)) {
			v.F[i] = x.F[i] / rule.Kept()
			v.Mag[i] = settle(v.F[i], size(v.F[i]), x.mag(i)/rule.Kept(), t.DType)
		}
	}
	return v.doubt(seed)
}

var _ = formulas.Add(moved(func(op graph.Random, a []Value, t graph.Type) (Value, error) { return random(op, a[0], t), nil }))

// random gives uniform numbers the magnitude |A|+|B| and normal ones |A|+6|B|: r of the Box–Muller transform is less
// than 6, and the angle is rounded.
func random(op graph.Random, seed Value, t graph.Type) Value {
	v := zeros(t)
	v.Mag = make([]float64, v.Len())
	for i := range v.F {
		v.F[i] = graph.RandomAt(op.Dist, op.A, op.B, uint64(seed.I[0]), uint64(i))
		switch op.Dist {
		case graph.Uniform:
			v.Mag[i] = math.Abs(op.A) + math.Abs(op.B)
		case graph.Normal:
			v.Mag[i] = math.Abs(op.A) + 6*math.Abs(op.B)
		}
	}
	return v.doubt(seed)
}
