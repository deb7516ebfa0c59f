package cpu

import (
	"errors"

	"fusec/graph"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/cpu/tiling"
)

const (
	// fewSequences is the number of sequences up to which a step takes the time of reading its weights.
	fewSequences = 4
	// partSequences is the number of sequences up to which a worker's part, with its products and the packed states, fits into its
	// second-level cache beside the weights of usual layers. BenchmarkRecurrence has layers of 16 and of 64 sequences.
	partSequences = 16
	// manySteps is the number of steps for which it is worth to pack weights that change from run to run.
	manySteps = 4
	// partWeights is how many weights a part should have at least.
	partWeights = 1 << 13
	// partElements is what the number of elements of a part is a multiple of.
	partElements = 16
)

// recurrenceParts computes the steps of up to partSequences sequences. Each worker has a part of the state's elements and the
// weights of all gates of these, which stay in its second-level cache from step to step. The workers wait for each other between
// two steps only, and in the middle of a GRU's. Up to fewSequences, a step takes the time of reading its weights, which
// [gemm.Stream] does; the products of more sequences are those of a plan for each part.
type recurrenceParts[T float] struct {
	k        *recurrence[T]
	steps    *pool.Steps
	each     int                // elements of a part
	products []partGates        // of a step, one after the other
	r        []T                // the weights, during a run that packs them
	packed   []T                // [parts][products][H, gates·elements]; nil if the weights are frozen and plans have them
	plans    []*stateProduct[T] // [parts][products], of more than fewSequences
	failed   []error            // of a part
	a        []T                // [parts][N, G·each]: what the products give
}

// partGates are the gates of a product of a part.
type partGates struct{ first, gates int }

func newRecurrenceParts[T float](k *recurrence[T]) (*recurrenceParts[T], error) {
	p := &recurrenceParts[T]{k: k, products: []partGates{{0, k.op.Cell.Gates()}}}
	if k.op.Cell == graph.GRU {
		p.products = []partGates{{0, 2}, {2, 1}}
	}
	n := min(max(k.h*k.columns/partWeights, 1), k.env.Pool.Workers())
	p.each = tiling.RoundUp(tiling.CeilDiv(k.h, n), partElements)
	n = tiling.CeilDiv(k.h, p.each)
	p.a = gemm.Aligned[T](n * k.n * k.op.Cell.Gates() * p.each)
	p.steps = pool.NewSteps(k.env.Pool, n, p)
	p.failed = make([]error, n)
	if k.n <= fewSequences {
		p.packed = gemm.Aligned[T](k.h * k.columns)
		return p, nil
	}
	for item := range n {
		env := NewEnv(pool.New(1)) // a part is computed by the worker that takes it
		_, size := p.part(item)
		for _, g := range p.products {
			plan, err := newStateProduct(gemm.Config[T]{M: k.n, N: g.gates * size, K: k.h, A: gemm.RowMajor(k.h),
				B: gemm.RowMajor(g.gates * size), C: gemm.RowMajor(k.op.Cell.Gates() * size)}, 0, env)
			if err != nil {
				return nil, err
			}
			p.plans = append(p.plans, plan)
		}
	}
	return p, nil
}

func (p *recurrenceParts[T]) bytes() int64 {
	b := int64(len(p.packed)+len(p.a)) * int64(dtypeOf[T]().Size())
	for _, plan := range p.plans {
		b += plan.bytes()
	}
	return b
}

// part is the first element of a part, and how many it has.
func (p *recurrenceParts[T]) part(item int) (first, size int) {
	first = item * p.each
	return first, min(p.each, p.k.h-first)
}

// weights are those of a product of a part.
func (p *recurrenceParts[T]) weights(item, product int) []T {
	first, size := p.part(item)
	g := p.products[product]
	return p.packed[first*p.k.columns+p.k.h*g.first*size:][:p.k.h*g.gates*size]
}

// pack packs the weights of a part.
func (p *recurrenceParts[T]) pack(item int) error {
	first, size := p.part(item)
	for i, g := range p.products {
		w := p.weights(item, i)
		to := w
		for row := range p.k.h {
			for gate := g.first; gate < g.first+g.gates; gate++ {
				to = to[copy(to, p.r[row*p.k.columns+gate*p.k.h+first:][:size]):]
			}
		}
		if p.plans != nil {
			plan := p.plans[item*len(p.products)+i]
			if err := plan.pack(w); err != nil {
				return err
			}
		}
	}
	return nil
}

// Run implements splitRecurrence.
func (p *recurrenceParts[T]) Run(r []T) error {
	steps := p.k.steps * len(p.products)
	if p.r = r; r != nil {
		steps++
		if p.packed == nil {
			p.packed = gemm.Aligned[T](p.k.h * p.k.columns)
		}
	}
	clear(p.failed)
	p.steps.Run(steps)
	if p.r = nil; p.plans != nil && p.k.args[1].Frozen {
		p.packed = nil
	}
	return errors.Join(p.failed...)
}

// Step packs the weights of a part, or computes one product of a step for it; see [pool.StepTask].
func (p *recurrenceParts[T]) Step(_, step, item int) {
	if p.r != nil {
		if step == 0 {
			p.failed[item] = p.pack(item)
			return
		}
		step--
	}
	k := p.k
	s, product := k.at(step/len(p.products)), step%len(p.products)
	first, size := p.part(item)
	g, gates := p.products[product], k.op.Cell.Gates()
	operand := s.before
	if product > 0 {
		operand = k.reset
	}
	a := p.a[item*k.n*gates*p.each:][:k.n*gates*size]
	if p.plans == nil {
		gemm.Stream(k.h, operand, k.n, p.weights(item, product), g.gates*size, a[g.first*size:], gates*size)
	} else if err := p.plans[item*len(p.products)+product].plan.Run(operand, nil, a[g.first*size:], nil); err != nil {
		p.failed[item] = err
		return
	}
	for row := range k.n {
		k.finish(&s, row, first, size, a[row*gates*size:][:gates*size], product > 0, false)
	}
}
