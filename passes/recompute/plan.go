package recompute

import (
	"cmp"
	"slices"

	"fusec/graph/arena"
)

// A replay is a plan of what runs again, with what it costs.
type replay struct {
	again        []bool // by launch
	flops, bytes int64  // of all launches
	peak         int64  // bytes in use at once
}

// How many plans are looked at.
const (
	maxSegmentations = 24 // sizes of segments, each 5/7 of the one before
	maxShares        = 32 // how much of a segmentation is kept after all
)

// replays lists plans to choose from. They do not depend on the budget, so that a smaller one is never met with less
// work.
//
// The launches up to the peak are cut into segments; what crosses a cut is kept, and what lies between is made again,
// segment by segment, when something after the peak needs it (T. Chen, B. Xu, C. Zhang and C. Guestrin, "Training Deep
// Nets with Sublinear Memory Cost", arXiv 1604.06174, algorithm 3, whose search over the size of segments this is; that
// everything which crosses a cut has to be kept is after M. Kusumoto et al., "A Graph Theoretic Framework of
// Recomputation Algorithms for Memory-Efficient Backpropagation", arXiv 1905.11722). Of every segmentation more and
// more is then kept after all: the latest launches first, and those that cost most for a byte.
func (t *timeline) replays() []replay {
	far, cut := t.spans()
	var total, largest int64
	for i := range far {
		if t.launches[i].refusal == "" {
			total += far[i]
			largest = max(largest, far[i])
		}
	}
	var plans []replay
	var last []bool
	for limit, n := total, 0; limit >= max(largest, 1) && n < maxSegmentations; limit, n = limit*5/7, n+1 {
		again := t.segment(far, cut, limit)
		if slices.Equal(again, last) {
			continue
		}
		last = again
		var costly []int
		for _, step := range t.order(again) {
			if step >= len(t.launches) {
				costly = append(costly, step-len(t.launches))
			}
		}
		slices.SortFunc(costly, func(a, b int) int { return b - a })
		free := t.giveBack(&plans, again, costly)
		again = slices.Clone(again)
		for _, i := range costly[:free] {
			again[i] = false
		}
		costly = costly[free:]
		slices.SortStableFunc(costly, func(a, b int) int { return cmp.Compare(t.price(b), t.price(a)) })
		t.giveBack(&plans, again, costly)
	}
	return plans
}

// spans returns, for every launch up to the peak, how many bytes of its values are read after the peak, and how many
// bytes are in use between it and the next one for launches up to the peak.
func (t *timeline) spans() (far, cut []int64) {
	far, cut = make([]int64, t.peak+1), make([]int64, t.peak+1)
	for i, until := range t.readers() {
		for _, v := range t.launches[i].makes {
			for j := i; j < until; j++ {
				cut[j] += t.inArena(v)
			}
		}
	}
	counted := make([]bool, len(t.values))
	for _, l := range t.launches[t.peak+1:] {
		for _, v := range l.reads {
			if by := t.values[v].by; by <= t.peak && !counted[v] {
				counted[v] = true
				far[by] += t.inArena(v)
			}
		}
	}
	return far, cut
}

// readers gives, for every launch up to the peak, the last launch up to the peak that reads what it makes, or itself.
func (t *timeline) readers() []int {
	last := make([]int, t.peak+1)
	for i := range last {
		last[i] = i
		for _, v := range t.launches[i].reads {
			last[t.values[v].by] = i
		}
	}
	return last
}

// segment cuts the launches up to the peak where a segment has about limit bytes that are read after the peak, at the
// place in its second half that fewest bytes cross. All but those that make what crosses a cut, and those that cannot,
// run again.
func (t *timeline) segment(far, cut []int64, limit int64) (again []bool) {
	again = t.nothing()
	for i := range far {
		again[i] = t.launches[i].refusal == ""
	}
	last := t.readers()
	var size int64
	best := -1
	for i := 0; i < t.peak; i++ {
		if again[i] {
			size += far[i]
		}
		if 2*size >= limit && (best < 0 || cut[i] <= cut[best]) {
			best = i
		}
		if size < limit {
			continue
		}
		for k := range best + 1 {
			if last[k] > best {
				again[k] = false
			}
		}
		i, size, best = best, 0, -1
	}
	return again
}

// price is the arithmetic that running launch i again takes for each byte it makes.
func (t *timeline) price(i int) float64 {
	bytes := int64(1)
	for _, v := range t.launches[i].makes {
		bytes += t.values[v].bytes
	}
	return float64(t.launches[i].flops) / float64(bytes)
}

// giveBack appends the plan and those in which more and more of the given launches, in this order, do not run again.
// It returns how many of them that can be without a higher peak than the plan's own.
func (t *timeline) giveBack(plans *[]replay, again []bool, launches []int) (free int) {
	shares := min(len(launches), maxShares)
	var first int64
	done := 0
	for s := range shares {
		again = slices.Clone(again)
		for ; done < len(launches)*s/shares; done++ {
			again[launches[done]] = false
		}
		p := t.weigh(again)
		if s == 0 {
			first = p.peak
		}
		if p.peak <= first {
			free = done
		}
		*plans = append(*plans, p)
	}
	return free
}

// weigh is the plan with what it costs.
func (t *timeline) weigh(again []bool) replay {
	order := t.order(again)
	p := replay{again: again}
	for _, step := range order {
		l := &t.launches[step%len(t.launches)]
		p.flops += l.flops
		p.bytes += l.bytes
	}
	p.peak, _ = arena.Peak(t.lifetimes(order, again), len(order))
	return p
}

// choose picks the plan with the least work whose arena is within the budget, or if there is none the one with the
// smallest arena. It returns nil if no plan needs less than the bytes that are needed now.
func (t *timeline) choose(plans []replay, budget, now int64) (again []bool, bytes int64) {
	work := func(a, b replay) int { return cmp.Or(cmp.Compare(a.flops, b.flops), cmp.Compare(a.bytes, b.bytes)) }
	slices.SortStableFunc(plans, work)
	for _, p := range plans {
		if p.peak > budget {
			continue
		}
		if bytes := t.arena(p.again); bytes <= budget {
			return p.again, bytes
		}
	}
	slices.SortStableFunc(plans, func(a, b replay) int { return cmp.Compare(a.peak, b.peak) })
	for _, p := range plans {
		if p.peak >= now {
			break // an arena has at least what is in use at once
		}
		if bytes := t.arena(p.again); bytes < now {
			again, now = p.again, bytes
		}
	}
	return again, now
}
