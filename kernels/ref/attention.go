package ref

import (
	"fmt"
	"math"
	"slices"

	"fusec/graph"
)

var _ = formulas.Add(composite(attention))

// attention computes each query's row by the definition: the scores of the keys that it may attend, their softmax,
// and the sum of the values weighted by it.
func attention(op graph.Attention, args []Value, types []graph.Type) ([]Value, error) {
	if op.HasScales {
		args = slices.Clone(args)
		args[1], args[2] = scaledRows(args[1], args[op.KeyScaleArg()]), scaledRows(args[2], args[op.ValueScaleArg()])
	}
	scores := newScorer(op, args)
	if err := scores.checkPages(); err != nil {
		return nil, err
	}
	d, v := scores.d, args[2]
	y, lse := zeros(types[0]), zeros(types[1])
	for row := range lse.F {
		lo, s := scores.of(row)
		lse.F[row] = normaliseScores(s)
		to := y.F[row*d.Width:][:d.Width]
		for n, p := range s {
			kept := scores.kept(row, lo+n)
			if kept == 0 {
				continue
			}
			p *= kept
			values := v.F[scores.keyRow(row/d.Queries, lo+n)*d.Width:][:d.Width]
			for c := range to {
				to[c] += p * values[c]
			}
		}
	}
	return []Value{y, lse}, nil
}

// scaledRows is the numbers that integers stand for, of which each row has a scale.
func scaledRows(x, scale Value) Value {
	y := Value{Type: x.Type.With(scale.Type.DType), F: make([]float64, x.Len())}
	for i, q := range x.I {
		y.F[i] = float64(q) * scale.F[i/(x.Len()/scale.Len())]
	}
	return y
}

// keyRow is the row of k and v, whatever their leading axes, in which a head of queries finds its key j.
func (s *scorer) keyRow(head, j int) int {
	op, d := s.op, s.d
	if op.Page == 0 {
		return head/d.Group*d.Keys + j
	}
	table := s.args[op.TableArg()].I
	page := int(table[head/d.Heads*(d.Keys/op.Page)+j/op.Page])
	return (page*(d.Heads/d.Group)+head%d.Heads/d.Group)*op.Page + j%op.Page
}

// checkPages reports an entry of a batch's table that counts and is no page of the pool.
func (s *scorer) checkPages() error {
	op := s.op
	if op.Page == 0 {
		return nil
	}
	table, pages := s.args[op.TableArg()], s.args[1].Type.Shape.At(0)
	n := table.Type.Shape.At(table.Type.Shape.Rank() - 1)
	for batch := range s.d.Batch.Elems() {
		for i := range op.Entries(n, s.valid(batch)) {
			if page := table.I[batch*n+i]; page < 0 || page >= int64(pages) {
				return fmt.Errorf("page %d, entry %d of the table of batch %d, is outside 0..%d", page, i, batch, pages-1)
			}
		}
	}
	return nil
}

// A scorer computes the masked scores of an attention, a query at a time.
type scorer struct {
	op   graph.Attention
	args []Value
	d    graph.AttentionDims
	mask []int // of each score
}

func newScorer(op graph.Attention, args []Value) scorer {
	types := typesOf(args)
	q := types[0].Shape
	s := scorer{op: op, args: args, d: op.DimsOf(types)}
	if op.HasMask {
		s.mask = broadcastIndex(args[op.MaskArg()].Type.Shape, s.d.Scores(q))
	}
	return s
}

// of returns the scores of a row of all heads' queries for the keys that it may attend, from key lo on.
func (s *scorer) of(row int) (lo int, scores []float64) {
	d, q, k := s.d, s.args[0], s.args[1]
	i, head := row%d.Queries, row/d.Queries
	lo, hi := s.op.Range(&d, i, s.valid(head/d.Heads))
	scores = make([]float64, hi-lo)
	query := q.F[row*d.Depth:][:d.Depth]
	for n := range scores {
		sum, key := 0.0, k.F[s.keyRow(head, lo+n)*d.Depth:][:d.Depth]
		for c, x := range query {
			sum += x * key[c]
		}
		scores[n] = sum * s.op.Scale
		if s.op.HasMask {
			scores[n] = masked(scores[n], s.args[s.op.MaskArg()], s.mask[row*d.Keys+lo+n])
		}
	}
	return lo, scores
}

// valid is how many keys of a batch count.
func (s *scorer) valid(batch int) int {
	if !s.op.HasLengths {
		return s.d.Keys
	}
	return int(min(max(s.args[s.op.LengthsArg()].I[batch], 0), int64(s.d.Keys)))
}

// kept is what dropout multiplies the probability of a row and a key by.
func (s *scorer) kept(row, key int) float64 {
	switch {
	case s.op.Dropout == 0:
		return 1
	case !graph.DropoutKeep(uint64(s.args[s.op.SeedArg()].I[0]), uint64(row*s.d.Keys+key), s.op.Dropout):
		return 0
	}
	return 1 / graph.DropoutRuleOf(s.op.Dropout).Kept()
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
