package ref

import (
	"math"
	"math/bits"

	"fusec/graph"
)

var _ = formulas.Add(moved(func(_ graph.Sample, a []Value, t graph.Type) (Value, error) { return sample(a, t), nil }))

// sample draws from each row by the definition: it sorts, and counts in integers. A draw is unsure if another one stands
// within the errors of the logits.
func sample(a []Value, t graph.Type) Value {
	v := zeros(t)
	v.Mag = make([]float64, v.Len())
	rows := v.Len()
	n := a[graph.SampleLogits].Len() / max(rows, 1)
	for row := range rows {
		of := func(i int) int { return a[i].at(row) }
		integer := func(i int) int64 { return a[i].I[of(i)] }
		number := func(i int) float32 { return float32(a[i].F[of(i)]) }
		s := sampling{temperature: number(graph.SampleTemperature), topK: integer(graph.SampleTopK), topP: number(graph.SampleTopP)}
		own := a[graph.SampleSeed].Type.Shape.Rank() > 0
		s.word = graph.SampleWord(integer(graph.SampleSeed), integer(graph.SampleStep), row, rows, own)
		x, off := a[graph.SampleLogits], 0.0
		s.row = make([]float64, n)
		for i := range n {
			s.row[i] = float64(float32(x.F[row*n+i]))
			off = max(off, x.off(row*n+i))
		}
		i, sure := s.draw(off)
		v.I[row] = int64(i)
		for k := range a[1:] {
			sure = sure && a[1+k].mag(of(1+k)) == 0
		}
		if !sure {
			v.Mag[row] = unsure
		}
	}
	return v
}

// A sampling is the draw from a row of numbers of f32.
type sampling struct {
	row         []float64
	temperature float32
	topK        int64
	topP        float32
	word        uint64
}

// draw is the element that is drawn. It is sure if no other one would be with logits that are each off by so much.
func (s *sampling) draw(off float64) (at int, sure bool) {
	order := falling(s.row)
	for len(order) > 0 && math.IsNaN(s.row[order[len(order)-1]]) {
		order = order[:len(order)-1]
	}
	if len(order) == 0 {
		return 0, off == 0
	}
	// cut keeps the first k, and reports whether an error can move the border.
	sure = true
	cut := func(k int) {
		sure = sure && (off == 0 || k == len(order) || s.row[order[k-1]]-s.row[order[k]] > 2*off)
		order = order[:k]
	}
	if !(s.temperature > 0) {
		cut(1)
		return order[0], sure
	}
	if 0 < s.topK && s.topK < int64(len(order)) {
		cut(int(s.topK))
	}
	scale, most := graph.SampleScale(s.temperature), float32(s.row[order[0]])
	weights, total := make([]uint64, len(s.row)), uint64(0)
	for _, i := range order {
		weights[i] = graph.SampleWeight(float32(s.row[i]), most, scale)
		total += weights[i]
	}
	// Sums of weights are off by up to this part of the whole.
	part := math.Expm1(4*off/float64(s.temperature)) * float64(total)
	near := func(x, y uint64) bool { return off > 0 && math.Abs(float64(x)-float64(y)) <= part }
	if s.topP > 0 && s.topP < 1 {
		share, sum := graph.SampleShare(s.topP, total), uint64(0)
		for k, i := range order {
			sure = sure && !near(sum, share)
			if sum += weights[i]; sum >= share {
				sure = sure && !near(sum, share)
				cut(k + 1)
				break
			}
		}
		total = sum
	}
	left := make([]bool, len(s.row))
	for _, i := range order {
		left[i] = true
	}
	mark, _ := bits.Mul64(s.word, total)
	sum := uint64(0)
	for i, w := range weights {
		if !left[i] {
			continue
		}
		sure = sure && !near(sum, mark)
		if sum += w; sum > mark {
			return i, sure && !near(sum, mark)
		}
	}
	return order[0], sure // of no sum: it has the first of the greatest
}
