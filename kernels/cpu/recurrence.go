package cpu

import (
	"fusec/graph"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/vec"
)

// A recurrence computes the steps of a recurrent layer one after the other: the product of the state with its weights,
// which are packed once for all steps, and then the gates, sequence by sequence. Those of up to partSequences are computed in
// another way, see [recurrenceParts], and so are those of as many that each worker has some, see [recurrenceRows].
type recurrence[T float] struct {
	env     *Env
	op      graph.Recurrence
	args    []Operand
	results []Operand
	steps   int
	n, h    int // sequences, elements of a state
	columns int // of all gates
	per     int // sequences of an item
	gates   gates[T]

	// The products of the state with the weights of gates from column first on. Those of a GRU's candidate follow the others.
	products []*stateProduct[T]
	a        []T                // [N, columns], what the products give
	split    splitRecurrence[T] // in the place of products and a; nil if there is none
	reset    []T                // [N, H], the states that a GRU's candidate multiplies
	cold     bool

	x, y, c             []T // of all steps
	state, memory, bias []T // the first states and memories
	step                recurrenceStep[T]
	second              bool
}

// A splitRecurrence computes steps of which workers take parts.
type splitRecurrence[T float] interface {
	// Run computes all steps. The weights [H, G·H] are packed first; nil is those of the run before.
	Run(r []T) error
	bytes() int64
}

// A recurrenceStep is the operands and results of a step.
type recurrenceStep[T float] struct {
	x, y, c        []T
	before, memory []T // its states
}

// at is step i, counted from the first to be computed.
func (k *recurrence[T]) at(i int) recurrenceStep[T] {
	order := func(i int) int {
		if k.op.Reverse {
			return k.steps - 1 - i
		}
		return i
	}
	of := func(v []T, i, width int) []T {
		if v == nil {
			return nil
		}
		return v[order(i)*k.n*width:][:k.n*width]
	}
	s := recurrenceStep[T]{of(k.x, i, k.columns), of(k.y, i, k.h), of(k.c, i, k.h), k.state, k.memory}
	if i > 0 {
		s.before, s.memory = of(k.y, i-1, k.h), of(k.c, i-1, k.h)
	}
	return s
}

// A stateProduct is a product with columns of the weights.
type stateProduct[T float] struct {
	cfg    gemm.Config[T]
	plan   *gemm.Plan[T]
	packed *gemm.Prepacked[T]
	first  int
	env    *Env
}

// newStateProduct is the product of a configuration, whose second operand starts at column first of the weights.
func newStateProduct[T float](cfg gemm.Config[T], first int, env *Env) (*stateProduct[T], error) {
	cfg.Batch = 1
	p := &stateProduct[T]{first: first, cfg: cfg, env: env}
	var err error
	p.plan, err = gemm.New(cfg, env.Pool, env.gemm)
	return p, err
}

// pack packs the weights.
func (p *stateProduct[T]) pack(r []T) (err error) {
	if p.cfg.M < 2 {
		return nil // few rows are multiplied by the weights as they lie
	}
	if p.packed != nil {
		return p.packed.Update(r[p.first:])
	}
	if p.packed, err = gemm.Prepack(p.cfg.K, p.cfg.N, p.cfg.B, r[p.first:], p.env.Pool); err != nil {
		return err
	}
	p.cfg.Prepacked = p.packed
	p.plan, err = gemm.New(p.cfg, p.env.Pool, p.env.gemm)
	return err
}

func (p *stateProduct[T]) run(x, r, y []T) error { return p.plan.Run(x, r[p.first:], y, nil) }

func (p *stateProduct[T]) bytes() int64 {
	if p.packed == nil {
		return 0
	}
	return int64(p.packed.Bytes())
}

// recurrentSizes are the steps, sequences, columns and elements of a state.
func recurrentSizes(args []Operand) (steps, n, columns, h int) {
	x := args[0].Layout.Shape
	return x.At(0), x.At(1), x.At(2), args[1].Layout.Shape.At(0)
}

var _ = answers.Add(floats(newRecurrence[float32], newRecurrence[float64]))

func newRecurrence[T float](op graph.Recurrence, args, results []Operand, env *Env) (Kernel, error) {
	k := &recurrence[T]{env: env, op: op, args: args, results: results, cold: true, gates: gatesOf[T]()}
	k.steps, k.n, k.columns, k.h = recurrentSizes(args)
	k.per = max(grain/8/k.columns, 1)
	if op.Cell == graph.GRU {
		k.reset = gemm.Aligned[T](k.n * k.h)
	}
	if k.splitsRows() {
		k.split = newRecurrenceRows(k)
		return k, nil
	}
	if k.n <= partSequences && (args[1].Frozen || k.steps >= manySteps) {
		var err error
		k.split, err = newRecurrenceParts(k)
		return k, err
	}
	k.a = gemm.Aligned[T](k.n * k.columns)
	cuts := []int{0, k.columns}
	if op.Cell == graph.GRU {
		cuts = []int{0, 2 * k.h, k.columns}
	}
	for i := range cuts[1:] {
		p, err := newStateProduct(gemm.Config[T]{M: k.n, N: cuts[i+1] - cuts[i], K: k.h,
			A: gemm.RowMajor(k.h), B: gemm.RowMajor(k.columns), C: gemm.RowMajor(k.columns)}, cuts[i], env)
		if err != nil {
			return nil, err
		}
		k.products = append(k.products, p)
	}
	return k, nil
}

// thaw is called when a frozen operand has changed.
func (k *recurrence[T]) thaw() { k.cold = true }

func (k *recurrence[T]) bytes() int64 {
	b := int64(len(k.a)+len(k.reset)) * int64(dtypeOf[T]().Size())
	for _, p := range k.products {
		b += p.bytes()
	}
	if k.split != nil {
		b += k.split.bytes()
	}
	return b
}

// Run implements [Kernel].
func (k *recurrence[T]) Run(args, results []Memory) error {
	if k.n == 0 {
		return nil
	}
	in := numbersOf[T](args, k.args)
	r := in[1]
	if k.cold || !k.args[1].Frozen {
		for _, p := range k.products {
			if err := p.pack(r); err != nil {
				return err
			}
		}
	} else if k.split != nil {
		r = nil
	}
	k.x, k.state, k.y = in[0], in[2], numbers[T](results[0], k.results[0])
	switch k.op.Cell {
	case graph.LSTM:
		k.memory, k.c = in[3], numbers[T](results[1], k.results[1])
	case graph.GRUAfter:
		k.bias = in[3]
	}
	err := k.compute(r)
	k.cold = err != nil
	k.x, k.y, k.c, k.state, k.memory, k.bias, k.step = nil, nil, nil, nil, nil, nil, recurrenceStep[T]{}
	return err
}

// compute computes all steps.
func (k *recurrence[T]) compute(r []T) error {
	if k.split != nil {
		return k.split.Run(r)
	}
	for i := range k.steps {
		k.step = k.at(i)
		operand := k.step.before
		for j, p := range k.products {
			if err := p.run(operand, r, k.a[p.first:]); err != nil {
				return err
			}
			k.second = j > 0
			k.env.Pool.Run(chunks(k.n, k.per), k)
			operand = k.reset
		}
	}
	return nil
}

// numbersOf is the numbers of up to four operands.
func numbersOf[T float](args []Memory, operands []Operand) (r [4][]T) {
	for i := range min(len(args), 4) {
		r[i] = numbers[T](args[i], operands[i])
	}
	return r
}

// Do computes the gates of one item's sequences; see pool.Task.
func (k *recurrence[T]) Do(_, item int) {
	for row := item * k.per; row < min((item+1)*k.per, k.n); row++ {
		k.finish(&k.step, row, 0, k.h, k.a[row*k.columns:][:k.columns], k.second, false)
	}
}

// finish computes h elements of a sequence's states after a step, from element first on, of the products for each of their gates,
// [G, h], which it overwrites. A GRU computes what its candidate multiplies, and then, with second, the states. With added, the
// products have x, but not that of the candidate of a [graph.GRUAfter].
func (k *recurrence[T]) finish(s *recurrenceStep[T], row, first, h int, a []T, second, added bool) {
	g := &k.gates
	of := func(v []T) []T { return v[row*k.h+first:][:h] }
	x := func(gate int) []T { return s.x[row*k.columns+gate*k.h+first:][:h] }
	plus := func(from, to int) { // x to the products of gates
		for i := from; i < to && !added; i++ {
			g.add(a[i*h:][:h], a[i*h:][:h], x(i))
		}
	}
	y, before := of(s.y), of(s.before)
	switch k.op.Cell {
	case graph.TanhCell:
		plus(0, 1)
		g.tanh(y, a)
	case graph.ReluCell:
		plus(0, 1)
		g.relu(y, a)
	case graph.LSTM:
		c := of(s.c)
		plus(0, 4)
		g.sigmoid(a[:3*h], a[:3*h])
		g.tanh(a[3*h:], a[3*h:])
		g.mul(c, a[2*h:3*h], of(s.memory))
		g.fma(c, a[:h], a[3*h:], c)
		g.tanh(y, c)
		g.mul(y, y, a[h:2*h])
	case graph.GRU:
		if !second {
			plus(0, 2)
			g.sigmoid(a[:2*h], a[:2*h])
			g.mul(of(k.reset), a[h:2*h], before)
			return
		}
		u := a[2*h:]
		plus(2, 3)
		g.mix(y, a[:h], u, before)
	case graph.GRUAfter:
		plus(0, 2)
		g.sigmoid(a[:2*h], a[:2*h])
		u := a[2*h:]
		g.add(u, u, k.bias[first:][:h])
		g.fma(u, u, a[h:2*h], x(2))
		g.mix(y, a[:h], u, before)
	}
}

// gates are the functions that cells are made of.
type gates[T float] struct {
	add, sub, mul       func(dst, a, b []T)
	fma                 func(dst, a, b, c []T) // a·b + c
	sigmoid, tanh, relu func(dst, x []T)
}

func gatesOf[T float]() gates[T] {
	code := vec.Of[T]()
	return gates[T]{add: code.BinaryVV(graph.Add), sub: code.BinaryVV(graph.Sub), mul: code.BinaryVV(graph.Mul), fma: code.FMAVVV(),
		sigmoid: code.Unary(graph.Sigmoid), tanh: code.Unary(graph.Tanh), relu: code.Unary(graph.Relu)}
}

// mix is tanh(u) + z⊙(h − tanh(u)), which is (1−z)⊙tanh(u) + z⊙h. It changes u.
func (g *gates[T]) mix(y, z, u, h []T) {
	g.tanh(u, u)
	g.sub(y, h, u)
	g.fma(y, y, z, u)
}
