package cpu

import "fusec/graph"

// largest puts the indices of the largest of n elements of x, step apart, into order, from the largest on: of equal
// ones the first comes first, and NaN comes last. There are at least as many elements as order has room for.
func largest[T float](order []int64, x []T, n, step int) {
	above := func(x, y T) bool { return x > y || y != y && x == x }
	at := func(i int) T { return x[int(order[i])*step] }
	kept := 0
	for i := range n {
		v := x[i*step]
		if kept == len(order) && (kept == 0 || !above(v, at(kept-1))) {
			continue
		}
		lo, hi := 0, kept // v comes before element hi, and after those before lo
		for lo < hi {
			if mid := (lo + hi) / 2; above(v, at(mid)) {
				hi = mid
			} else {
				lo = mid + 1
			}
		}
		kept = min(kept+1, len(order))
		copy(order[lo+1:kept], order[lo:])
		order[lo] = int64(i)
	}
}

// A topK kernel takes the largest elements of each row; one item is some rows.
type topK[T float] struct {
	env      *Env
	x, y, at Operand
	rows     int
	n, k     int // elements of a row, and how many are taken
	group    int // rows per item

	src, values []T
	indices     []int64
}

var _ = answers.Add(floats(newTopK[float32], newTopK[float64])).Add(floats(newRoute[float32], newRoute[float64]))

func newTopK[T float](op graph.TopK, args, results []Operand, env *Env) (Kernel, error) {
	s := args[0].Layout.Shape
	rows, n, _ := s.Around(s.Rank()-1, 1)
	return &topK[T]{env: env, x: args[0], y: results[0], at: results[1], rows: rows, n: n, k: op.K,
		group: max(grain/4/max(n, 1), 1)}, nil
}

// Run implements [Kernel].
func (k *topK[T]) Run(args, results []Memory) error {
	if k.rows*k.k == 0 {
		return nil
	}
	k.src, k.values = numbers[T](args[0], k.x), numbers[T](results[0], k.y)
	k.indices = elems[int64](results[1])[k.at.Layout.Offset:]
	k.env.Pool.Run(chunks(k.rows, k.group), k)
	k.src, k.values, k.indices = nil, nil, nil
	return nil
}

// Do runs one item; see pool.Task.
func (k *topK[T]) Do(_, item int) {
	for row := item * k.group; row < min((item+1)*k.group, k.rows); row++ {
		x, order := k.src[row*k.n:][:k.n], k.indices[row*k.k:][:k.k]
		largest(order, x, k.n, 1)
		for i, at := range order {
			k.values[row*k.k+i] = x[at]
		}
	}
}

// A router lists what each chooser, a token or an expert, scores highest, and then makes the choices in their order. An
// item is some choosers.
type router[T float] struct {
	env             *Env
	op              graph.Route
	x, sent, lost   Operand
	tokens, experts int
	choosers, of    int // what chooses, and among how many
	each            int // choices
	group           int // choosers per item
	order           []int64
	load            []int64

	scores []T
}

func newRoute[T float](op graph.Route, args, results []Operand, env *Env) (Kernel, error) {
	s := args[0].Layout.Shape
	tokens, experts, _ := s.Around(s.Rank()-1, 1)
	k := &router[T]{env: env, op: op, x: args[0], sent: results[0], lost: results[1], tokens: tokens, experts: experts,
		choosers: tokens, of: experts, each: op.K, load: make([]int64, experts)}
	if op.ExpertChoice {
		k.choosers, k.of, k.each = experts, tokens, min(op.Capacity, tokens)
	}
	k.group = max(grain/4/max(k.of, 1), 1)
	k.order = make([]int64, k.choosers*k.each)
	return k, nil
}

// Run implements [Kernel].
func (k *router[T]) Run(args, results []Memory) error {
	sent := elems[bool](results[0])[k.sent.Layout.Offset:][:k.tokens*k.experts]
	lost := elems[int64](results[1])[k.lost.Layout.Offset:][:k.experts]
	clear(sent)
	clear(lost)
	if len(sent) == 0 {
		return nil
	}
	k.scores = numbers[T](args[0], k.x)
	k.env.Pool.Run(chunks(k.choosers, k.group), k)
	if k.op.ExpertChoice {
		k.byExperts(sent, lost)
	} else {
		k.byTokens(sent, lost)
	}
	k.scores = nil
	return nil
}

// Do runs one item; see pool.Task.
func (k *router[T]) Do(_, item int) {
	for c := item * k.group; c < min((item+1)*k.group, k.choosers); c++ {
		order := k.order[c*k.each:][:k.each]
		if k.op.ExpertChoice {
			largest(order, k.scores[c:], k.of, k.experts)
		} else {
			largest(order, k.scores[c*k.experts:], k.of, 1)
		}
	}
}

// wanted reports whether a score may be chosen: neither −Inf nor NaN may.
func wanted[T float](score T) bool { return score-score == 0 || score > 0 }

// byTokens goes through the first choices of all tokens, then their second choices, and so on.
func (k *router[T]) byTokens(sent []bool, lost []int64) {
	clear(k.load)
	for rank := range k.each {
		for t := range k.tokens {
			e := k.order[t*k.each+rank]
			i := t*k.experts + int(e)
			switch {
			case !wanted(k.scores[i]):
			case k.op.Capacity > 0 && k.load[e] == int64(k.op.Capacity):
				lost[e]++
			default:
				k.load[e]++
				sent[i] = true
			}
		}
	}
}

// byExperts sends each expert the tokens it chose, and counts the tokens that none did at the first.
func (k *router[T]) byExperts(sent []bool, lost []int64) {
	for e := range k.experts {
		for _, t := range k.order[e*k.each:][:k.each] {
			if i := int(t)*k.experts + e; wanted(k.scores[i]) {
				sent[i] = true
			}
		}
	}
	for t := range k.tokens {
		some := false
		for _, s := range sent[t*k.experts:][:k.experts] {
			some = some || s
		}
		if !some {
			lost[0]++
		}
	}
}

// bytes is the memory of the choices and loads.
func (k *router[T]) bytes() int64 { return int64(8 * (len(k.order) + len(k.load))) }
