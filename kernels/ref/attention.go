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
	scores := newScorer(op, args)
	for row := range lse.F {
		lo, s := scores.of(row)
		lse.F[row] = normaliseScores(s)
		key := row/d.Queries/d.Group*d.Keys + lo
		for n, p := range s {
			kept := scores.kept(row, lo+n)
			if kept == 0 {
				continue
			}
			p *= kept
			for c := range d.Width {
				y.F[row*d.Width+c] += p * v.F[(key+n)*d.Width+c]
			}
		}
	}
	return []Value{y, lse}
}

// A scorer computes the masked scores of an attention, a query at a time.
type scorer struct {
	op   graph.Attention
	args []Value
	d    graph.AttentionDims
	mask []int // of each score
}

func newScorer(op graph.Attention, args []Value) scorer {
	q := args[0].Type.Shape
	s := scorer{op: op, args: args, d: op.Dims(q, args[1].Type.Shape, args[2].Type.Shape)}
	if op.HasMask {
		s.mask = broadcastIndex(args[op.MaskArg()].Type.Shape, s.d.Scores(q))
	}
	return s
}

// of returns the scores of a row of all heads' queries for the keys that it may attend, from key lo on.
func (s scorer) of(row int) (lo int, scores []float64) {
	d, q, k := s.d, s.args[0], s.args[1]
	i, head := row%d.Queries, row/d.Queries
	valid := d.Keys
	if s.op.HasLengths {
		valid = int(min(max(s.args[s.op.LengthsArg()].I[head/d.Heads], 0), int64(d.Keys)))
	}
	lo, hi := s.op.Range(d, i, valid)
	key := head/d.Group*d.Keys + lo
	scores = make([]float64, hi-lo)
	for n := range scores {
		for c := range d.Depth {
			scores[n] += q.F[row*d.Depth+c] * k.F[(key+n)*d.Depth+c]
		}
		scores[n] *= s.op.Scale
		if s.op.HasMask {
			scores[n] = masked(scores[n], s.args[s.op.MaskArg()], s.mask[row*d.Keys+lo+n])
		}
	}
	return lo, scores
}

// kept is what dropout multiplies the probability of a row and a key by.
func (s scorer) kept(row, key int) float64 {
	switch {
	case s.op.Dropout == 0:
		return 1
	case !graph.DropoutKeep(uint64(s.args[s.op.SeedArg()].I[0]), uint64(row*s.d.Keys+key), s.op.Dropout):
		return 0
	}
	return 1 / (1 - s.op.Dropout)
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
