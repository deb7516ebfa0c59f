package cpu

import (
	"fmt"

	"fusec/graph"
	"fusec/graph/body"
)

// newRow compiles a Fusion anchored on reductions. Where reduced values lead back into the row, or the rows are many
// and short, the program runs over whole rows; other reductions, and variances, are cut into blocks.
func newRow[T float](b *body.Program, args, results []Operand, env *Env) (Kernel, error) {
	n, inner := rowLength(b.Space, b.Axes), innermost(b.Space, b.Axes)
	if b.Draws() && !inner {
		return nil, fmt.Errorf("%s: the CPU draws along the innermost axes of a row alone", b.Anchor.Where())
	}
	inParts := !b.LeadsBack() || n > 0 && b.Moments() != nil
	if n != 1 && !b.SumsColumns() && (n > longRow || !inner) && inParts {
		return newReduction[T](b, args, results, env)
	}
	return newRows[T](b, results, env)
}

// longRow is the length from which a row that is only reduced is cut into blocks.
const longRow = 1 << 12

// innermost reports whether the reduced axes are the last ones, those of one element aside.
func innermost(s graph.Shape, axes graph.Ints) bool {
	reduced := false
	for i := range s.Rank() {
		switch {
		case axes.Has(i):
			reduced = true
		case reduced && s.At(i) != 1:
			return false
		}
	}
	return true
}

func rowLength(s graph.Shape, axes graph.Ints) int {
	n := 1
	for i := range axes.Len() {
		n *= s.At(axes.At(i))
	}
	return n
}

// A rows kernel runs a program, reductions included, over one row at a time.
type rows[T float] struct {
	p       *program[T]
	env     *Env
	frames  []*frame[T]
	rowsPer int

	args, results []Memory
}

func newRows[T float](b *body.Program, results []Operand, env *Env) (*rows[T], error) {
	space, axes := b.Space, b.Axes
	c := newCompiler[T](b, space)
	c.inner, c.rows = axes, true
	if err := c.outputs(results); err != nil {
		return nil, err
	}
	p := c.p
	perm, kept := keptFirst(space, axes)
	all := p.accesses()
	for _, a := range all {
		a.layout = a.layout.Transpose(perm)
	}
	p.dom = newDomain(permuted(space, perm), kept, all)
	c.direct(-1, -1)
	r := &rows[T]{p: p, env: env, rowsPer: max(grain/4/max(p.dom.n, 1), 1)}
	env.reserve(p.scratchBytes(p.dom.n))
	r.frames = p.newFrames(env)
	p.cutColumns(chunksOf(p.dom.rows, r.rowsPer))
	return r, nil
}

func (r *rows[T]) bytes() int64 { return r.p.columnBytes() }

// keptFirst is the permutation that puts the axes that are not reduced first, and their number.
func keptFirst(s graph.Shape, axes graph.Ints) (perm graph.Ints, kept int) {
	return reducedBefore(s, axes, 0)
}

func permuted(s graph.Shape, perm graph.Ints) graph.Shape {
	r := s
	for i := range perm.Len() {
		r = r.With(i, s.At(perm.At(i)))
	}
	return r
}

func (r *rows[T]) Run(args, results []Memory) error {
	d := &r.p.dom
	if d.rows == 0 {
		r.p.finishColumns(results)
		return nil
	}
	r.args, r.results = args, results
	r.p.beginAll(r.env, r.frames, d.n)
	r.env.Pool.Run(chunks(d.rows, r.rowsPer), r)
	r.args, r.results = nil, nil
	r.p.finishColumns(results)
	return failed(r.frames)
}

// Do runs one item; see pool.Task.
func (r *rows[T]) Do(worker, item int) {
	d, f := &r.p.dom, r.frames[worker]
	f.block, f.fresh = item, true
	for row := item * r.rowsPer; row < min((item+1)*r.rowsPer, d.rows); row++ {
		r.p.exec(f, row, 0, d.n, r.args, r.results)
	}
}
