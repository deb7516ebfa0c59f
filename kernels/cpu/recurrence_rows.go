package cpu

import (
	"errors"
	"math"

	"fusec/graph"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/cpu/tiling"
)

const (
	// rowSequences is the number of sequences that a worker should have at least to compute all steps of them by itself: as many
	// rows as a product holds in registers.
	rowSequences = 8
	// rowWeights bounds the bytes of weights that each worker reads in a step for less than manySequences sequences.
	rowWeights, manySequences = 2 << 20, 32
)

// recurrenceRows computes the steps of many sequences. An item is some sequences, which no other needs: it computes all steps of
// them, and the workers do not wait for each other. All of them read the weights, packed once. What the input brings is added to
// the sums of a product while they are in registers.
type recurrenceRows[T float] struct {
	k      *recurrence[T]
	per    int   // sequences of an item
	cuts   []int // the columns at which products begin, and how many there are in all
	packed []*gemm.Prepacked[T]
	a      []T // [N, columns], what the products give
	items  []rowItem[T]
	added  bool // x is added in registers
}

// A rowItem is the products of some sequences.
type rowItem[T float] struct {
	plans  []*gemm.Plan[T]
	finish gemm.MatrixFinish[T]
	failed error
	_      [64]byte
}

// splitsRows reports whether workers compute sequences by themselves.
func (k *recurrence[T]) splitsRows() bool {
	each := k.n / k.env.Pool.Workers()
	return each >= rowSequences && (each >= manySequences || k.h*k.columns*dtypeOf[T]().Size() <= rowWeights)
}

func newRecurrenceRows[T float](k *recurrence[T]) *recurrenceRows[T] {
	per := tiling.CeilDiv(k.n, k.env.Pool.Workers())
	p := &recurrenceRows[T]{k: k, per: per, cuts: []int{0, k.columns}, a: gemm.Aligned[T](k.n * k.columns), added: true}
	p.items = make([]rowItem[T], tiling.CeilDiv(k.n, per))
	if k.op.Cell == graph.GRU || k.op.Cell == graph.GRUAfter { // the candidate's product comes later, or x is not added to it
		p.cuts = []int{0, 2 * k.h, k.columns}
	}
	p.packed = make([]*gemm.Prepacked[T], len(p.cuts)-1)
	return p
}

// sequences are those of an item.
func (p *recurrenceRows[T]) sequences(item int) (from, to int) {
	return item * p.per, min((item+1)*p.per, p.k.n)
}

// pack packs the weights.
func (p *recurrenceRows[T]) pack(r []T) (err error) {
	k := p.k
	for i, first := range p.cuts[:len(p.packed)] {
		if p.packed[i] != nil {
			if err := p.packed[i].Update(r[first:]); err != nil {
				return err
			}
			continue
		}
		n := p.cuts[i+1] - first
		if p.packed[i], err = gemm.Prepack(k.h, n, gemm.RowMajor(k.columns), r[first:], k.env.Pool); err != nil {
			return err
		}
		for j := range p.items {
			item := &p.items[j]
			from, to := p.sequences(j)
			cfg := gemm.Config[T]{M: to - from, N: n, K: k.h, Batch: 1, A: gemm.RowMajor(k.h), B: gemm.RowMajor(k.columns),
				C: gemm.RowMajor(k.columns), Prepacked: p.packed[i]}
			plan, err := gemm.New(cfg, pool.New(1), nil)
			if err != nil {
				return err
			}
			item.plans = append(item.plans, plan)
			p.added = p.added && plan.InPlace()
			item.finish = gemm.MatrixFinish[T]{RowStride: k.columns, Low: T(math.Inf(-1)), High: T(math.Inf(1))}
		}
	}
	return nil
}

func (p *recurrenceRows[T]) bytes() int64 {
	b := int64(len(p.a)) * int64(dtypeOf[T]().Size())
	for _, w := range p.packed {
		if w != nil {
			b += int64(w.Bytes())
		}
	}
	return b
}

// Run implements splitRecurrence.
func (p *recurrenceRows[T]) Run(r []T) error {
	if r != nil {
		if err := p.pack(r); err != nil {
			return err
		}
	}
	p.k.env.Pool.Run(len(p.items), p)
	var list error
	for i := range p.items {
		list = errors.Join(list, p.items[i].failed)
		p.items[i].finish.Residual = nil
	}
	return list
}

// Do computes all steps of an item's sequences; see pool.Task.
func (p *recurrenceRows[T]) Do(_, number int) {
	k, item := p.k, &p.items[number]
	from, to := p.sequences(number)
	item.failed = nil
	for i := range k.steps {
		s := k.at(i)
		operand := s.before
		for j, plan := range item.plans {
			first := p.cuts[j]
			var finish *gemm.MatrixFinish[T]
			if p.added && (j == 0 || k.op.Cell == graph.GRU) {
				finish, item.finish.Residual = &item.finish, s.x[from*k.columns+first:]
			}
			if err := plan.RunFinished(operand[from*k.h:], nil, p.a[from*k.columns+first:], finish, nil); err != nil {
				item.failed = err
				return
			}
			if k.op.Cell == graph.GRUAfter && j == 0 {
				continue
			}
			for row := from; row < to; row++ {
				k.finish(&s, row, 0, k.h, p.a[row*k.columns:][:k.columns], j > 0 && k.op.Cell == graph.GRU, p.added)
			}
			operand = k.reset
		}
	}
}
