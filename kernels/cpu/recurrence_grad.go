package cpu

import (
	"fusec/graph"
	"fusec/kernels/cpu/gemm"
)

// A recurrenceGrad computes the gates of all steps again, by one product with the states that are given; then the steps from
// the last to the first; and at the end the gradient of the weights, again by one product for all steps.
//
// The gates of a step and then the gradient of its part of x are in the memory of the result dx.
type recurrenceGrad[T float] struct {
	env           *Env
	op            graph.RecurrenceGrad
	args, results []Operand
	steps, n, h   int
	columns       int
	per           int // sequences of an item
	gates         gates[T]
	again         []*stateProduct[T] // the gates of the first step, of the others, and a GRU's candidates
	back          []gradTerm[T]
	weights       []weightsGrad[T]
	apart         []T // [T, N, H]: of a GRU s⊙h; of a GRUAfter h·r_u + bias, and then its gradient
	tanh          []T // [N, H]: of an LSTM's memories
	dh, dc        []T // [N, H] from the step after
	rest          []T // [N, H] of a GRU's dh, besides its products

	phase phase
	t     int // step
	in    [8][]T
	x, a  []T // a: dx
	first []T // the states before the first step
	y, dy []T
	c, dm []T // memories, and their gradients
}

// A phase is what the items of a run of a recurrenceGrad do.
type phase int

const (
	activate  phase = iota // the gates of all steps
	candidate              // a GRU's candidates, of all steps
	derive                 // the gradients of a step's gates
	reset                  // the gradient of a step's reset gates of a GRU
	collect                // a step's dh
)

// A gradTerm is the product of the gradient of a step's gates with columns of the weights transposed.
type gradTerm[T float] struct {
	*stateProduct[T]
	to []T // [N, H]
}

// A weightsGrad is the gradient of columns of the weights, as a product over the first step and one over the others.
type weightsGrad[T float] struct {
	products    [2]*stateProduct[T]
	first, size int
	reset       bool // a GRU's states, reset, are multiplied, and not the states as they are
	apart       bool // the gradients of a GRUAfter's products are, and not those of its gates
	to          []T  // [H, columns]
}

var _ = answers.Add(floats(newRecurrenceGrad[float32], newRecurrenceGrad[float64]))

func newRecurrenceGrad[T float](op graph.RecurrenceGrad, args, results []Operand, env *Env) (_ Kernel, err error) {
	k := &recurrenceGrad[T]{env: env, op: op, args: args, results: results, gates: gatesOf[T]()}
	k.steps, k.n, k.columns, k.h = recurrentSizes(args)
	k.per = max(grain/8/k.columns, 1)
	own := func(rows int) []T { return gemm.Aligned[T](rows * k.h) }
	k.dh = own(k.n)
	last := k.columns // up to here all products are with the states
	switch op.Cell {
	case graph.LSTM:
		k.dc, k.tanh = own(k.n), own(k.n)
	case graph.GRU:
		k.apart, k.rest, last = own(k.steps*k.n), own(k.n), 2*k.h
	case graph.GRUAfter:
		k.apart, k.rest = own(k.steps*k.n), own(k.n)
	}
	product := func(cfg gemm.Config[T], first int) (p *stateProduct[T]) {
		if err == nil {
			p, err = newStateProduct(cfg, first, env)
		}
		return p
	}
	gates, state := gemm.RowMajor(k.columns), gemm.RowMajor(k.h)
	again := func(rows, first, end int) *stateProduct[T] {
		return product(gemm.Config[T]{M: rows, N: end - first, K: k.h, A: state, B: gates, C: gates}, first)
	}
	k.again = []*stateProduct[T]{again(k.n, 0, last), again((k.steps-1)*k.n, 0, last)}
	if last < k.columns {
		k.again = append(k.again, again(k.steps*k.n, last, k.columns))
	}
	term := func(first, size int, from gemm.Layout) {
		p := product(gemm.Config[T]{M: k.n, N: k.h, K: size, A: from, B: gates.Transposed(), C: state}, first)
		k.back = append(k.back, gradTerm[T]{p, k.dh})
	}
	of := func(first, size int, from gemm.Layout) {
		w := weightsGrad[T]{first: first, size: size, to: gemm.Aligned[T](k.h * k.columns)}
		cfg := gemm.Config[T]{M: k.h, N: size, A: state.Transposed(), B: from, C: gates}
		for i, rows := range []int{k.n, (k.steps - 1) * k.n} {
			cfg.K = rows
			w.products[i] = product(cfg, 0)
		}
		k.weights = append(k.weights, w)
	}
	switch op.Cell {
	case graph.GRU:
		term(2*k.h, k.h, gates)
		term(0, 2*k.h, gates)
		of(0, 2*k.h, gates)
		of(2*k.h, k.h, gates)
		k.weights[1].reset = true
	case graph.GRUAfter:
		term(0, 2*k.h, gates)
		term(2*k.h, k.h, state)
		of(0, 2*k.h, gates)
		of(2*k.h, k.h, state)
		k.weights[1].apart = true
	default:
		term(0, k.columns, gates)
		of(0, k.columns, gates)
	}
	if len(k.back) > 1 {
		k.back[0].to = own(k.n)
	}
	return k, err
}

func (k *recurrenceGrad[T]) bytes() int64 {
	n, packed := len(k.apart)+len(k.tanh)+len(k.dh)+len(k.dc)+len(k.rest), int64(0)
	for i, b := range k.back {
		if packed += b.bytes(); i < len(k.back)-1 {
			n += len(b.to)
		}
	}
	for _, w := range k.weights {
		n += len(w.to)
	}
	return int64(n)*int64(dtypeOf[T]().Size()) + packed
}

// at is step t of [T, N, width].
func (k *recurrenceGrad[T]) at(v []T, t, width int) []T { return v[t*k.n*width:][:k.n*width] }

// order is step i, counted from the first to be computed.
func (k *recurrenceGrad[T]) order(i int) int {
	if k.op.Reverse {
		return k.steps - 1 - i
	}
	return i
}

// others are the steps but the first, of [T, N, width], and earlier those but the last.
func (k *recurrenceGrad[T]) others(v []T, width int) []T {
	if k.op.Reverse {
		return v[:(k.steps-1)*k.n*width]
	}
	return v[k.n*width:]
}

func (k *recurrenceGrad[T]) earlier(v []T, width int) []T {
	if k.op.Reverse {
		return v[k.n*width:]
	}
	return v[:(k.steps-1)*k.n*width]
}

// Run implements [Kernel].
func (k *recurrenceGrad[T]) Run(args, results []Memory) error {
	operands := k.op.Cell.Operands()
	for i := range args {
		k.in[i] = numbers[T](args[i], k.args[i])
	}
	k.x, k.first, k.y = k.in[0], k.in[2], k.in[operands]
	r, dr, dh := k.in[1], numbers[T](results[1], k.results[1]), numbers[T](results[2], k.results[2])
	k.a = numbers[T](results[0], k.results[0])
	k.dy = k.in[operands+k.op.Cell.Results()]
	if k.op.Cell == graph.LSTM {
		k.c, k.dm = k.in[operands+1], k.in[operands+3]
	}
	clear(dr)
	clear(k.dh)
	clear(k.dc)
	if k.n > 0 {
		if err := k.activations(r); err != nil {
			return err
		}
		for _, b := range k.back {
			if err := b.pack(r); err != nil {
				return err
			}
		}
		for i := k.steps - 1; i >= 0; i-- {
			k.t = k.order(i)
			if err := k.step(r); err != nil {
				return err
			}
		}
		if err := k.ofWeights(dr); err != nil {
			return err
		}
	}
	copy(dh, k.dh)
	switch k.op.Cell {
	case graph.LSTM:
		copy(numbers[T](results[3], k.results[3]), k.dc)
	case graph.GRUAfter:
		bias := numbers[T](results[3], k.results[3])
		clear(bias)
		for row := range k.steps * k.n {
			k.gates.add(bias, bias, k.apart[row*k.h:][:k.h])
		}
	}
	k.in = [8][]T{}
	k.x, k.a, k.first, k.y, k.dy, k.c, k.dm = nil, nil, nil, nil, nil, nil, nil
	return nil
}

// activations computes the gates of all steps.
func (k *recurrenceGrad[T]) activations(r []T) error {
	if err := k.again[0].run(k.first, r, k.at(k.a, k.order(0), k.columns)); err != nil {
		return err
	}
	if k.steps > 1 {
		if err := k.again[1].run(k.earlier(k.y, k.h), r, k.others(k.a, k.columns)); err != nil {
			return err
		}
	}
	k.rows(activate, k.steps*k.n)
	if len(k.again) == 2 {
		return nil
	}
	if err := k.again[2].run(k.apart, r, k.a[k.again[2].first:]); err != nil {
		return err
	}
	k.rows(candidate, k.steps*k.n)
	return nil
}

// step computes the gradient of the gates of step t, and with it that of the states before it.
func (k *recurrenceGrad[T]) step(r []T) error {
	k.rows(derive, k.n)
	for i, b := range k.back {
		from := k.at(k.a, k.t, k.columns)[b.first:]
		if k.op.Cell == graph.GRUAfter && b.first > 0 {
			from = k.at(k.apart, k.t, k.h)
		}
		if err := b.run(from, r, b.to); err != nil {
			return err
		}
		if i == 0 && k.op.Cell == graph.GRU {
			k.rows(reset, k.n)
		}
	}
	if len(k.back) > 1 {
		k.rows(collect, k.n)
	}
	return nil
}

// ofWeights computes the gradient of the weights.
func (k *recurrenceGrad[T]) ofWeights(dr []T) error {
	for _, w := range k.weights {
		da, width := k.a[w.first:], k.columns
		if w.apart {
			da, width = k.apart, k.h
		}
		states := k.first
		if w.reset {
			states = k.at(k.apart, k.order(0), k.h)
		}
		d := da[k.order(0)*k.n*width:]
		for i, p := range w.products[:min(k.steps, 2)] {
			if i == 1 {
				if states = k.earlier(k.y, k.h); w.reset {
					states = k.others(k.apart, k.h)
				}
				if d = da; !k.op.Reverse {
					d = da[k.n*width:]
				}
			}
			if err := p.run(states, d, w.to); err != nil {
				return err
			}
			for row := range k.h {
				to := dr[row*k.columns+w.first:][:w.size]
				k.gates.add(to, to, w.to[row*k.columns:][:w.size])
			}
		}
	}
	return nil
}

// rows does a phase for a number of rows.
func (k *recurrenceGrad[T]) rows(p phase, n int) {
	k.phase = p
	k.env.Pool.Run(chunks(n, k.per), k)
}

// before is the states, or memories, before the step of a row of all steps.
func (k *recurrenceGrad[T]) before(row int, first, v []T) []T {
	t, n := row/k.n, row%k.n
	if t == k.order(0) {
		return first[n*k.h:][:k.h]
	}
	if k.op.Reverse {
		t++
	} else {
		t--
	}
	return v[(t*k.n+n)*k.h:][:k.h]
}

// Do runs one item; see pool.Task.
func (k *recurrenceGrad[T]) Do(_, item int) {
	n := k.n
	if k.phase == activate || k.phase == candidate {
		n *= k.steps
	}
	for row := item * k.per; row < min((item+1)*k.per, n); row++ {
		switch k.phase {
		case activate:
			k.activate(row)
		case candidate:
			u := k.a[row*k.columns:][2*k.h : 3*k.h]
			k.gates.add(u, u, k.x[row*k.columns:][2*k.h:3*k.h])
			k.gates.tanh(u, u)
		case derive:
			k.derive(row)
		case reset:
			k.reset(row)
		case collect:
			for _, b := range k.back {
				if to := b.to[row*k.h:][:k.h]; k.op.Cell == graph.GRUAfter || b.first == 0 {
					rest := k.rest[row*k.h:][:k.h]
					k.gates.add(rest, rest, to)
				}
			}
			copy(k.dh[row*k.h:][:k.h], k.rest[row*k.h:][:k.h])
		}
	}
}

// activate computes the gates of a row of all steps, but for a GRU's candidates.
func (k *recurrenceGrad[T]) activate(row int) {
	h, g := k.h, &k.gates
	a, x := k.a[row*k.columns:][:k.columns], k.x[row*k.columns:][:k.columns]
	switch k.op.Cell {
	case graph.TanhCell:
		g.add(a, a, x)
		g.tanh(a, a)
	case graph.ReluCell:
		g.add(a, a, x)
	case graph.LSTM:
		g.add(a, a, x)
		g.sigmoid(a[:3*h], a[:3*h])
		g.tanh(a[3*h:], a[3*h:])
	case graph.GRU:
		g.add(a[:2*h], a[:2*h], x[:2*h])
		g.sigmoid(a[:2*h], a[:2*h])
		g.mul(k.apart[row*h:][:h], a[h:2*h], k.before(row, k.first, k.y))
	case graph.GRUAfter:
		g.add(a[:2*h], a[:2*h], x[:2*h])
		g.sigmoid(a[:2*h], a[:2*h])
		m := k.apart[row*h:][:h]
		g.add(m, a[2*h:], k.in[3])
		g.fma(a[2*h:], m, a[h:2*h], x[2*h:])
		g.tanh(a[2*h:], a[2*h:])
	}
}

// derive puts the gradients of a sequence's gates of step t in their places.
func (k *recurrenceGrad[T]) derive(n int) {
	h, row := k.h, k.t*k.n+n
	a, dy, dh := k.a[row*k.columns:][:k.columns], k.dy[row*h:][:h], k.dh[n*h:][:h]
	switch k.op.Cell {
	case graph.TanhCell:
		for j, y := range a {
			a[j] = (dh[j] + dy[j]) * (1 - y*y)
		}
	case graph.ReluCell:
		for j, y := range a {
			if a[j] = 0; y > 0 {
				a[j] = dh[j] + dy[j]
			}
		}
	case graph.LSTM:
		memory, dm := k.before(row, k.in[3], k.c), k.dm[row*h:][:h]
		dc, tanh := k.dc[n*h:][:h], k.tanh[n*h:][:h]
		in, out, forget, u := a[:h], a[h:2*h], a[2*h:3*h], a[3*h:]
		k.gates.mul(tanh, forget, memory)
		k.gates.fma(tanh, in, u, tanh)
		k.gates.tanh(tanh, tanh)
		for j, y := range tanh {
			g, i, o, f, v := dh[j]+dy[j], in[j], out[j], forget[j], u[j]
			d := dc[j] + dm[j] + g*o*(1-y*y)
			in[j], out[j], forget[j], u[j] = d*v*i*(1-i), g*y*o*(1-o), d*memory[j]*f*(1-f), d*i*(1-v*v)
			dc[j] = d * f
		}
	case graph.GRU, graph.GRUAfter:
		before, rest := k.before(row, k.first, k.y), k.rest[n*h:][:h]
		zs, ss, us := a[:h], a[h:2*h], a[2*h:]
		for j, z := range zs {
			g, u := dh[j]+dy[j], us[j]
			rest[j] = g * z
			zs[j], us[j] = g*(before[j]-u)*z*(1-z), g*(1-z)*(1-u*u)
		}
		if k.op.Cell == graph.GRUAfter {
			m := k.apart[row*h:][:h]
			for j, s := range ss {
				ss[j], m[j] = us[j]*m[j]*s*(1-s), us[j]*s
			}
		}
	}
}

// reset puts the gradients of a sequence's reset gates of a GRU in their places.
func (k *recurrenceGrad[T]) reset(n int) {
	h, row := k.h, k.t*k.n+n
	s, d, rest := k.a[row*k.columns:][h:2*h], k.back[0].to[n*h:][:h], k.rest[n*h:][:h]
	for j, before := range k.before(row, k.first, k.y) {
		rest[j] += d[j] * s[j]
		s[j] = d[j] * before * s[j] * (1 - s[j])
	}
}
