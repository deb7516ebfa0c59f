package attention

import (
	"math"
	"slices"

	"fusec/graph"
)

// keySpan is the keys [lo, hi) that a query keeps.
type keySpan struct{ lo, hi int }

// keySpans is what constant masks keep, query by query:
//
//	keys  0 1 2 3 4
//	q 0   x x . . .    [0,2)
//	q 1   x x x . .    [0,3)     fit: causal, with 2 more keys than queries
//	q 2   x x x x .    [0,4)          and 4 valid keys
//	q 3   x x x x .    [0,4)
type keySpans struct {
	spans   []keySpan // by batches and heads along which a mask differs, then by queries
	lead    []axis    // the pieces before the queries: all of them, with strides into the batches and heads of spans
	queries int
	sure    bool // what spans say of keeping no key is known
}

// scattered marks kept keys that are not contiguous.
var scattered = keySpan{math.MaxInt, 0}

// maxSpans bounds the rows that are looked at.
const maxSpans = 1 << 26

// spansOf finds the keys that all of the masks keep. It returns nil if there are too many rows.
func spansOf(s *rowShape, masks []scoreMask, keys int) *keySpans {
	first := s.queries[0].lo
	lead := make([]axis, first)
	for i := range lead {
		lead[i].size = s.pieces[i]
		for _, m := range masks {
			lead[i].stride = max(lead[i].stride, m.rows[i].stride)
		}
	}
	narrow, n := distinct(lead)
	r := &keySpans{lead: narrow, queries: s.size(s.queries[0]), sure: true}
	if n > maxSpans/r.queries {
		return nil
	}
	r.spans = make([]keySpan, n*r.queries)
	for i := range r.spans {
		r.spans[i] = keySpan{0, keys}
	}
	for i := range masks {
		spans, rows := masks[i].spans()
		own := slices.Clone(rows[:first])
		for j := range own {
			if narrow[j].stride == 0 {
				own[j].size = 1
			}
		}
		leads, queries := offsets(own), offsets(rows[first:])
		for j := range r.spans {
			p := spans[leads[j/r.queries]+queries[j%r.queries]]
			r.sure = r.sure && (p != scattered || len(masks) == 1)
			r.spans[j] = r.spans[j].and(p)
		}
	}
	return r
}

// and is what both spans hold.
func (k keySpan) and(p keySpan) keySpan {
	if k == scattered || p == scattered {
		return scattered
	}
	k = keySpan{max(k.lo, p.lo), min(k.hi, p.hi)}
	if k.lo >= k.hi {
		return keySpan{}
	}
	return k
}

// spans finds the keys that the mask keeps, for each of its rows that differ, and the strides of all rows in those.
func (m *scoreMask) spans() ([]keySpan, []axis) {
	rows, n := distinct(m.rows)
	own := slices.Clone(m.rows)
	for i := range own {
		if own[i].stride == 0 {
			own[i].size = 1
		}
	}
	spans := make([]keySpan, 0, n)
	keys := offsets(m.tail[0])
	for _, row := range offsets(own) {
		k, count := keySpan{}, 0
		for j, at := range keys {
			if !m.keeps(row + at) {
				continue
			}
			if count == 0 {
				k.lo = j
			}
			k.hi = j + 1
			count++
		}
		if count != k.hi-k.lo {
			k = scattered
		}
		spans = append(spans, k)
	}
	return spans, rows
}

// distinct gives axes the strides of a list of the indices that differ, and counts these.
func distinct(axes []axis) ([]axis, int) {
	r, n := slices.Clone(axes), 1
	for i := len(r) - 1; i >= 0; i-- {
		if r[i].stride != 0 {
			r[i].stride = n
			n *= r[i].size
		}
	}
	return r, n
}

// offsets lists the offsets of the indices of axes, in row-major order.
func offsets(axes []axis) []int {
	r := []int{0}
	for _, a := range axes {
		next := make([]int, 0, len(r)*a.size)
		for _, at := range r {
			for i := range a.size {
				next = append(next, at+i*a.stride)
			}
		}
		r = next
	}
	return r
}

// allKeep reports whether every query is known to keep a key.
func allKeep(k *keySpans) bool {
	if k == nil || !k.sure {
		return false
	}
	return !slices.ContainsFunc(k.spans, func(p keySpan) bool { return p.lo == p.hi })
}

// fit finds the attributes and lengths of an attention that keep the same keys as the masks: nothing, a window, causality
// or both. It prefers no lengths, and makes queries the last of the valid keys only if nothing else fits.
func fit(s *rowShape, k *keySpans, keys int) (masking, bool) {
	if k == nil {
		return masking{}, false
	}
	d := graph.AttentionDims{Queries: k.queries, Keys: keys}
	all := make([]int, len(k.spans)/k.queries)
	longest := make([]int, len(all))
	for i, p := range k.spans {
		if p == scattered {
			return masking{}, false
		}
		all[i/k.queries] = keys
		longest[i/k.queries] = max(longest[i/k.queries], p.hi)
	}
	ways := []graph.Attention{{}, {Causal: true}, {Window: k.window(d, false)}, {Causal: true, Window: k.window(d, true)}}
	for _, op := range ways {
		if k.explained(op, d, all) {
			return masking{causal: op.Causal, window: op.Window}, true
		}
	}
	lengths := k.lengths(s, longest)
	for _, op := range append(ways, graph.Attention{Causal: true, Tail: true}) {
		if lengths != nil && k.explained(op, d, longest) {
			return masking{causal: op.Causal, window: op.Window, tail: op.Tail, lengths: lengths}, true
		}
	}
	return masking{}, false
}

// explained reports whether op lets every query attend the keys that it keeps, for the numbers of valid keys given.
func (k *keySpans) explained(op graph.Attention, d graph.AttentionDims, valid []int) bool {
	for i, p := range k.spans {
		lo, hi := op.Range(&d, i%k.queries, valid[i/k.queries])
		if (lo != p.lo || hi != p.hi) && (lo < hi || p.lo < p.hi) {
			return false
		}
	}
	return true
}

// window is the largest distance of a query from a key that it keeps: to both sides or, if causal, backwards.
func (k *keySpans) window(d graph.AttentionDims, causal bool) int {
	w := 1
	for i, p := range k.spans {
		at := i%k.queries + d.Keys - d.Queries
		if p.lo < p.hi {
			w = max(w, at-p.lo+1)
			if !causal {
				w = max(w, p.hi-at)
			}
		}
	}
	return w
}

// lengths makes the numbers of valid keys a value of one element for each batch, or nil if they differ between heads.
func (k *keySpans) lengths(s *rowShape, valid []int) *graph.Tensor {
	batch := len(k.lead)
	if len(s.heads) > 0 {
		batch = s.heads[0].lo
	}
	if !repeats(k.lead[batch:]) {
		return nil
	}
	var dims []int
	for _, p := range s.batch {
		dims = append(dims, s.size(p))
	}
	t := graph.NewTensor(graph.TypeOf(graph.I64, dims...))
	for i, at := range offsets(k.lead[:batch]) {
		t.SetFloat(i, float64(valid[at]))
	}
	return t
}
