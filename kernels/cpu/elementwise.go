package cpu

import (
	"slices"

	"fusec/graph/body"
)

// grain is the number of elements of elementwise work that is worth a work item.
const grain = 1 << 14

// An elementwise kernel runs a program over an iteration space, a segment at a time.
type elementwise[T float] struct {
	p      *program[T]
	env    *Env
	frames []*frame[T]
	width  int // longest segment
	// The space is cut into items of rowsPer rows, or, where rows are long, into parts of part elements of each row.
	rowsPer, parts, part int

	args, results []Memory
}

// newElementwises compiles a fusion without an anchor: a kernel, or one that joins those of its segments.
func newElementwises[T float](parts []body.Part, env *Env) (Kernel, error) {
	j := &joined{env: env, last: make([]int, env.Pool.Workers())}
	for _, s := range parts {
		c := newCompiler[T](s.Program, s.Space)
		if err := c.outputs(s.Results); err != nil {
			return nil, err
		}
		k := c.elementwise(env)
		if len(parts) == 1 {
			return k, nil
		}
		j.add(k, s.Segment)
	}
	return j, nil
}

// elementwise finishes a program without reductions.
func (c *compiler[T]) elementwise(env *Env) *elementwise[T] {
	p := c.p
	all := p.accesses()
	p.dom = newDomain(c.space, 0, all)
	e := &elementwise[T]{p: p, env: env, width: segment, rowsPer: 1, parts: 1, part: grain}
	axes := 1
	if p.joinsLines() {
		axes = 2
		whole := func(n int) int { return n / max(p.dom.line(), 1) * p.dom.line() }
		e.width, e.part = whole(segment), whole(grain)
	}
	p.dom.outermost(axes, all)
	c.direct(-1, -1)
	e.width = min(e.width, p.dom.n)
	if p.dom.n < e.part {
		e.rowsPer = max(grain/max(p.dom.n, 1), 1)
	} else {
		e.parts = chunks(p.dom.n, e.part)
	}
	env.reserve(p.scratchBytes(e.width))
	e.frames = p.newFrames(env)
	return e
}

// maxLine is the longest line of which a segment covers several.
const maxLine = segment / 4

// joinsLines reports whether segments run over the last two inner axes: calling each step once for several short lines saves
// more than what repeats along them costs, which is loaded once.
func (p *program[T]) joinsLines() bool {
	last := len(p.dom.inner) - 1
	if last < 1 || p.dom.line() == 0 || p.dom.line() > maxLine {
		return false
	}
	return !slices.ContainsFunc(p.args, func(r *read) bool { return r.vector < 0 && r.inner[last-1] != 0 }) &&
		!slices.ContainsFunc(p.outs, func(w *write) bool { return w.scalar >= 0 })
}

func (p *program[T]) newFrames(env *Env) []*frame[T] {
	frames := make([]*frame[T], env.Pool.Workers())
	for i := range frames {
		frames[i] = p.newFrame()
	}
	return frames
}

// beginAll prepares the frames of all workers for a run.
func (p *program[T]) beginAll(env *Env, frames []*frame[T], width int) {
	p.beginRegs(env, frames, width, p.regs)
}

// beginRegs is beginAll with more registers than the program itself needs.
func (p *program[T]) beginRegs(env *Env, frames []*frame[T], width, regs int) {
	for w, f := range frames {
		p.begin(f, scratchOf[T](env, w, 0, regs*roundLine[T](width)), width)
	}
}

// failed is the first error of the frames.
func failed[T float](frames []*frame[T]) error {
	for _, f := range frames {
		if f.err != nil {
			return f.err
		}
	}
	return nil
}

func (e *elementwise[T]) Run(args, results []Memory) error {
	e.env.Pool.Run(e.begin(args, results), e)
	return e.end()
}

// begin prepares a run and returns the number of its items.
func (e *elementwise[T]) begin(args, results []Memory) (items int) {
	d := &e.p.dom
	if d.rows == 0 || d.n == 0 {
		return 0
	}
	e.args, e.results = args, results
	e.p.beginAll(e.env, e.frames, e.width)
	return chunks(d.rows, e.rowsPer) * e.parts
}

// end closes a run and returns its error.
func (e *elementwise[T]) end() error {
	e.args, e.results = nil, nil
	return failed(e.frames)
}

func (e *elementwise[T]) forget(worker int) { clear(e.frames[worker].lines) }

// Do runs one item; see pool.Task.
func (e *elementwise[T]) Do(worker, item int) {
	d, f := &e.p.dom, e.frames[worker]
	row, part := item/e.parts*e.rowsPer, item%e.parts
	lo, hi := 0, d.n
	if e.parts > 1 {
		lo, hi = part*e.part, min((part+1)*e.part, d.n)
	}
	for r := row; r < min(row+e.rowsPer, d.rows); r++ {
		for at := lo; at < hi; at += e.width {
			e.p.exec(f, r, at, min(e.width, hi-at), e.args, e.results)
		}
	}
}
