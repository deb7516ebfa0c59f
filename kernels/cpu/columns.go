package cpu

import (
	"fmt"

	"fusec/graph"
	"fusec/graph/body"
	"fusec/kernels/cpu/vec"
)

// A columnSum is a result that sums a vector over all rows; see [body.Store]. Rows are cut into blocks by
// shape alone. A block's rows are summed one after another by the worker that computes them, and the blocks, in the
// end, two by two: the sums do not depend on which worker did what.
type columnSum[T float] struct {
	slot    int // the vector
	buf     int // result
	offset  int // in it
	n       int // columns
	partial []T // [blocks][n]
}

// columnSum declares that result number i takes column sums.
func (c *compiler[T]) columnSum(i int, to *body.Store, d graph.DType) error {
	l := to.Layout
	if !l.IsContiguous() || d != dtypeOf[T]() {
		return fmt.Errorf("%s cannot be summed into memory of type %v with gaps", to.Node.Where(), d)
	}
	s := columnSum[T]{slot: c.asVector(c.operand(to.Value)).slot, buf: i, offset: l.Offset, n: l.Shape.Elems()}
	c.p.slots[s.slot].pinned = true
	c.p.columns = append(c.p.columns, s)
	return nil
}

// cutColumns makes room for the sums of a number of blocks of rows.
func (p *program[T]) cutColumns(blocks int) {
	for i := range p.columns {
		s := &p.columns[i]
		s.partial = make([]T, blocks*s.n)
	}
}

// addColumns adds to the frame's block the rows that the program has just computed, side by side: n elements of each,
// from column start on.
func (p *program[T]) addColumns(f *frame[T], start, rows, n int) {
	if len(p.columns) == 0 {
		return
	}
	add := vec.Of[T]().AddTo
	for i := range p.columns {
		s := &p.columns[i]
		sum, v := s.partial[f.block*s.n+start:][:n], f.v[s.slot]
		for r := range rows {
			if r == 0 && f.fresh {
				copy(sum, v)
			} else {
				add(sum, v[r*n:][:n])
			}
		}
	}
	f.fresh = false
}

// finishColumns adds the blocks up.
func (p *program[T]) finishColumns(results []Memory) {
	add := vec.Of[T]().AddTo
	for i := range p.columns {
		s := &p.columns[i]
		if s.n == 0 {
			continue
		}
		total := elems[T](results[s.buf])[s.offset:][:s.n]
		blocks := len(s.partial) / s.n
		block := func(b int) []T { return s.partial[b*s.n:][:s.n] }
		if blocks == 0 {
			clear(total)
			continue
		}
		for to, from := range pairs(blocks) {
			add(block(to), block(from))
		}
		copy(total, block(0))
	}
}

func (p *program[T]) columnBytes() int64 {
	n := 0
	for _, s := range p.columns {
		n += len(s.partial)
	}
	return int64(n) * int64(dtypeOf[T]().Size())
}
