package ref

import (
	"math"

	"fusec/graph"
)

var _ = formulas.Add(composite(attentionGrad))

// attentionGrad goes through the pairs of a query and a key that may attend it, and adds what each gives to the
// gradients by the formulas at [graph.AttentionGrad].
func attentionGrad(op graph.AttentionGrad, args []Value, types []graph.Type) ([]Value, error) {
	q, k, v := args[0], args[1], args[2]
	out, dout := args[op.OutArg()], args[op.DOutArg()]
	d := op.Dims(q.Type.Shape, k.Type.Shape, v.Type.Shape)
	dq, dk, dv := zeros(types[0]), zeros(types[1]), zeros(types[2])
	scores := newScorer(op.Attention, args)
	for row := range args[op.LSEArg()].F {
		lo, s := scores.of(row)
		delta := 0.0
		for c := range d.Width {
			delta += dout.F[row*d.Width+c] * out.F[row*d.Width+c]
		}
		if op.HasDlse {
			delta -= args[op.DLSEArg()].F[row]
		}
		if math.IsInf(normaliseScores(s), -1) {
			delta = 0 // nothing is attended
		}
		for n, p := range s {
			key := row/d.Queries/d.Group*d.Keys + lo + n
			keep := scores.kept(row, lo+n)
			dp := 0.0
			if keep > 0 {
				value, to := v.F[key*d.Width:][:d.Width], dv.F[key*d.Width:][:d.Width]
				for c, x := range dout.F[row*d.Width:][:d.Width] {
					dp += keep * x * value[c]
					to[c] += p * keep * x
				}
			}
			ds := op.Scale * p * (dp - delta)
			query, toQuery := q.F[row*d.Depth:][:d.Depth], dq.F[row*d.Depth:][:d.Depth]
			toKey := dk.F[key*d.Depth:][:d.Depth]
			for c, x := range k.F[key*d.Depth:][:d.Depth] {
				toQuery[c] += ds * x
				toKey[c] += ds * query[c]
			}
		}
	}
	return []Value{dq, dk, dv}, nil
}
