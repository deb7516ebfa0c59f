package ref

import (
	"math"

	"fusec/graph"
)

// attention computes each query's row by the definition: the scores of the keys that it may attend, their softmax,
// and the sum of the values weighted by it.
func attention(op graph.Attention, args []Value, types []graph.Type) []Value {
	q, k, v := args[0], args[1], args[2]
	d := op.Dims(q.Type.Shape, k.Type.Shape, v.Type.Shape)
	y, lse := zeros(types[0]), zeros(types[1])
	scores := d.Scores(q.Type.Shape)
	var mask []int
	if op.HasMask {
		mask = broadcastIndex(args[op.MaskArg()].Type.Shape, scores)
	}
	for row := range lse.F {
		i, head := row%d.Queries, row/d.Queries
		valid := d.Keys
		if op.HasLengths {
			valid = int(min(max(args[op.LengthsArg()].I[head/d.Heads], 0), int64(d.Keys)))
		}
		lo, hi := op.Range(d, i, valid)
		kv := head / d.Group * d.Keys // the first key of the query's head of keys
		s := make([]float64, hi-lo)
		for n := range s {
			j := lo + n
			for c := range d.Depth {
				s[n] += q.F[row*d.Depth+c] * k.F[(kv+j)*d.Depth+c]
			}
			s[n] *= op.Scale
			if op.HasMask {
				s[n] = masked(s[n], args[op.MaskArg()], mask[row*d.Keys+j])
			}
		}
		lse.F[row] = normaliseScores(s)
		for n, p := range s {
			j := lo + n
			if op.Dropout > 0 {
				if !graph.DropoutKeep(uint64(args[op.SeedArg()].I[0]), uint64(row*d.Keys+j), op.Dropout) {
					continue
				}
				p /= 1 - op.Dropout
			}
			for c := range d.Width {
				y.F[row*d.Width+c] += p * v.F[(kv+j)*d.Width+c]
			}
		}
	}
	return []Value{y, lse}
}

// masked is a score under element i of a mask.
func masked(s float64, mask Value, i int) float64 {
	switch {
	case mask.F != nil:
		return s + mask.F[i]
	case mask.I[i] == 0:
		return math.Inf(-1)
	}
	return s
}

// normaliseScores turns scores into probabilities, zeros if all are −Inf, and returns their log-sum-exp.
func normaliseScores(s []float64) float64 {
	top := math.Inf(-1)
	for _, x := range s {
		top = max(top, x)
	}
	if math.IsInf(top, -1) {
		clear(s)
		return top
	}
	sum := 0.0
	for i, x := range s {
		s[i] = math.Exp(x - top)
		sum += s[i]
	}
	for i := range s {
		s[i] /= sum
	}
	return top + math.Log(sum)
}
