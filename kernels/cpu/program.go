package cpu

import "fusec/graph"

// segment is the number of elements over which a program of elementwise work runs at once: a register of f32 takes
// 4 KB, so that a handful stays in a first-level cache of 32 KB.
const segment = 1024

// intsRoom is the bytes of the integers that a segment is cut to at once.
const intsRoom = 512

// A program is straight-line code over segments of an iteration space: elementwise work and reductions of a segment.
//
// A vector is a slot: a register in scratch memory, or the operand's or result's own memory where its elements stand
// side by side. A scalar is a slot of its own kind; it holds for one segment or row.
type program[T float] struct {
	dom     domain
	steps   []step[T]
	slots   []slot
	scalars []T      // initial values: constants, and 0 where a step or a row's load sets them
	args    []*read  // what is read
	outs    []*write // what is written
	seeds   []seedRead
	columns []columnSum[T]
	regs    int // registers in use at most
	// operands is the most that a custom function has.
	operands int
	cuts     bool // numbers become integers, and numbers again
	plain    bool // rows follow one another at fixed distances, and what is read stands in buffers, masks excepted
}

// A step is one instruction.
type step[T float] struct {
	run  func(f *frame[T])
	def  int // vector slot it sets, or -1
	uses []int
}

// A slot is a vector value.
type slot struct {
	reg    int // register, or -1 if it stands in a buffer
	pinned bool
}

type read struct {
	access
	vector int // slot, or -1
	scalar int // scalar slot, or -1
	direct bool
	kept   bool // it is the same in all lines of a segment, and stays in its register from one segment to the next
}

type write struct {
	access
	vector int  // slot, or -1
	scalar int  // scalar slot, written once per row, or -1
	direct bool // the step that makes the vector writes it where it belongs
	over   int  // argument in whose memory it is written, or -1
}

// A seedRead is a seed: an integer in an argument, or a constant.
type seedRead struct {
	buf   int // argument, or -1
	at    int
	value int64
}

// A frame is the state of one worker.
type frame[T float] struct {
	v     [][]T
	s     []T
	seeds []int64
	words []uint32 // room for random words, where there are seeds
	ints  Memory   // and for integers that numbers become
	// Room for the operands of a custom function, as strips and as the numbers of one element.
	operands [][]T
	point    []float64
	off      []int    // of reads, then of writes: the row's offset
	lines    []loaded // of reads: what stands in the register of one that is kept
	n        int      // length for which the registers in v are cut
	width    int      // and the most that they hold
	row      int
	base     int   // linear index of the segment's first element in the iteration space
	err      error // of a step that cannot go on
	block    int   // of rows, to whose column sums the frame adds
	fresh    bool  // there is nothing in them yet
	walks    []walk[T]
	// Further registers, one for each walk, line elements apart.
	blocks []T
	line   int
}

// A loaded is n elements of a line, and those of the lines behind it, from the line's element at on.
type loaded struct{ at, n int }

// A walk is a vector in a buffer as a tile's rows are run one after another, or some at a time.
type walk[T float] struct {
	slot  int
	mem   []T
	bytes Memory // in place of mem: the vector is converted from or to d
	d     graph.DType
	apart bool // the vector has a register, and is moved to or from the buffer
	at    int  // of the next row's segment
	step  int  // from row to row
	out   bool // it is written
	block []T  // where the rows of several stand side by side
}

// stands reports whether rows of n elements stand one behind the other in the buffer.
func (w *walk[T]) stands(n int) bool { return !w.apart && w.step == n }

// together is the number of elements that are moved at once: all of v, if its rows of n stand one behind the other.
func (w *walk[T]) together(v []T, n int) int {
	if w.step == n {
		return len(v)
	}
	return n
}

// read puts rows of n elements into v, which they fill.
func (w *walk[T]) read(v []T, n int) {
	n = w.together(v, n)
	for r := 0; r*n < len(v); r++ {
		if at := w.at + r*w.step; w.bytes != nil {
			get(v[r*n:][:n], w.d, w.bytes, at, 1)
		} else {
			copy(v[r*n:][:n], w.mem[at:])
		}
	}
}

// write puts v into rows of n elements.
func (w *walk[T]) write(v []T, n int) {
	n = w.together(v, n)
	for r := 0; r*n < len(v); r++ {
		if at := w.at + r*w.step; w.bytes != nil {
			put(v[r*n:][:n], w.d, w.bytes, at, 1)
		} else {
			copy(w.mem[at:][:n], v[r*n:])
		}
	}
}

func (p *program[T]) newFrame() *frame[T] {
	f := &frame[T]{v: make([][]T, len(p.slots)), s: append([]T(nil), p.scalars...), off: make([]int, len(p.args)+len(p.outs)),
		lines: make([]loaded, len(p.args))}
	for _, s := range p.seeds {
		f.seeds = append(f.seeds, s.value)
	}
	if len(p.seeds) > 0 {
		f.words = make([]uint32, drawWords)
	}
	if p.cuts {
		f.ints = make(Memory, intsRoom)
	}
	f.operands, f.point = make([][]T, p.operands), make([]float64, p.operands)
	f.walks = make([]walk[T], 0, len(p.args)+len(p.outs)+1)
	return f
}

// scratchBytes is what one worker needs for registers of n elements.
func (p *program[T]) scratchBytes(n int) int { return p.regs * roundLine[T](n) * dtypeOf[T]().Size() }

// roundLine rounds a number of elements up to whole cache lines.
func roundLine[T float](n int) int {
	per := 64 / dtypeOf[T]().Size()
	return (n + per - 1) / per * per
}

// begin cuts the registers from a worker's scratch; width is the greatest length of a segment. What is left of the scratch
// is for execTile.
func (p *program[T]) begin(f *frame[T], mem []T, width int) {
	w := roundLine[T](width)
	for i, s := range p.slots {
		if s.reg >= 0 {
			f.v[i] = mem[s.reg*w:][:width]
		}
	}
	f.n, f.width, f.row, f.err = width, width, -1, nil
	f.blocks, f.line = mem[p.regs*w:], w
	clear(f.lines)
}

// seek computes the offsets of a row and loads its scalars.
func (p *program[T]) seek(f *frame[T], row int, args []Memory) {
	if f.row == row {
		return
	}
	f.row = row
	for i, r := range p.args {
		f.off[i] = r.at(&p.dom, row)
		if r.scalar >= 0 {
			get(f.s[r.scalar:r.scalar+1], r.dtype, args[r.buf], f.off[i], 1)
		}
	}
	for i, s := range p.seeds {
		if s.buf >= 0 {
			f.seeds[i] = elems[int64](args[s.buf])[s.at]
		}
	}
	for i, w := range p.outs {
		f.off[len(p.args)+i] = w.at(&p.dom, row)
	}
}

// exec runs the program over elements start to start+n of a row.
func (p *program[T]) exec(f *frame[T], row, start, n int, args, results []Memory) {
	p.seek(f, row, args)
	p.resize(f, n)
	f.base = row*p.dom.n + start
	for i, r := range p.args {
		switch {
		case r.vector < 0:
		case r.direct:
			f.v[r.vector] = span(elems[T](args[r.buf]), f.off[i]+start, n)
		case r.kept:
			if at := start % max(p.dom.line(), 1); f.lines[i].at != at || f.lines[i].n < n {
				load(f.v[r.vector], &r.access, &p.dom, args[r.buf], f.off[i], start)
				f.lines[i] = loaded{at, n}
			}
		default:
			load(f.v[r.vector], &r.access, &p.dom, args[r.buf], f.off[i], start)
		}
	}
	for i, w := range p.outs {
		if w.direct {
			f.v[w.vector] = span(elems[T](results[w.buf]), f.off[len(p.args)+i]+start, n)
		}
	}
	for i := range p.steps {
		p.steps[i].run(f)
	}
	p.addColumns(f, start, 1, n) // before a result is stored where a vector stands
	for i, w := range p.outs {
		off := f.off[len(p.args)+i]
		switch {
		case w.direct:
		case w.scalar >= 0:
			if start == 0 {
				put(f.s[w.scalar:w.scalar+1], w.dtype, results[w.buf], off, 1)
			}
		default:
			store(f.v[w.vector], &w.access, &p.dom, results[w.buf], off, start)
		}
	}
}

// resize cuts the registers to n elements, of which there are at most as many as [program.begin] was told.
func (p *program[T]) resize(f *frame[T], n int) {
	if f.n == n {
		return
	}
	for i, s := range p.slots {
		if s.reg >= 0 {
			f.v[i] = f.v[i][:n]
		}
	}
	f.n = n
}

// isPlain decides whether [program.execTile] may step from row to row.
func (p *program[T]) isPlain() bool {
	if len(p.dom.outer) > 1 {
		return false
	}
	for _, r := range p.args {
		if r.vector >= 0 && !r.direct && !isBytes[T](&r.access, &p.dom) || r.vector < 0 && len(r.outer) > 0 && r.outer[0] != 0 {
			return false
		}
	}
	for _, w := range p.outs {
		if !w.direct && (w.vector < 0 || !isBytes[T](&w.access, &p.dom) && (w.dtype != dtypeOf[T]() || !w.access.direct(&p.dom))) {
			return false
		}
	}
	return true
}

// isBytes reports whether a segment's elements are bools or integers of 8 bits that stand side by side, and numbers in lanes.
func isBytes[T float](a *access, d *domain) bool {
	return (a.dtype == graph.Bool || a.dtype.IsInt() && a.dtype.Size() == 1 && !wholeLanes[T]()) && a.direct(d)
}

// walk adds a vector in a buffer to those that execTile steps along.
func (f *frame[T]) walk(slot int, mem Memory, at int, a *access, apart, out bool) {
	w := walk[T]{slot: slot, at: at, apart: apart, out: out}
	if a.dtype != dtypeOf[T]() {
		w.bytes, w.d = mem, a.dtype
	} else {
		w.mem = elems[T](mem)
	}
	w.step = a.step()
	f.walks = append(f.walks, w)
}

// step is the distance between rows of a plain program.
func (a *access) step() int {
	if len(a.outer) == 0 {
		return 0
	}
	return a.outer[0]
}

// maxBlockRow is the longest segment of which execTile gathers several rows: calling each step once for all of them
// then saves more than the gathering costs.
const maxBlockRow = 256

// tileRegs is the number of registers that execTile needs: those of the program, and one for each walk.
func (p *program[T]) tileRegs() int { return p.regs + cap(p.newFrame().walks) }

// execTile runs a plain program over elements start to start+n of several rows. The vector acc is read through the
// access at, in mem. Where rows are short, several are gathered in registers, so that a step runs over all of them.
func (p *program[T]) execTile(f *frame[T], row, rows, start, n, acc int, at *access, mem []T, args, results []Memory) {
	p.seek(f, row, args)
	f.walks = f.walks[:0]
	f.walks = append(f.walks, walk[T]{slot: acc, mem: mem, at: at.at(&p.dom, row) + start, step: at.step()})
	for i, r := range p.args {
		if r.vector >= 0 {
			f.walk(r.vector, args[r.buf], f.off[i]+start, &r.access, !r.direct, false)
		}
	}
	for i, w := range p.outs {
		if w.vector != acc || !w.direct { // else it stands where it belongs
			f.walk(w.vector, results[w.buf], f.off[len(p.args)+i]+start, &w.access, !w.direct, true)
		}
	}
	if n <= maxBlockRow && rows > 1 && len(p.seeds) == 0 { // a draw goes by the place in the row
		p.execBlocks(f, rows, start, n)
		return
	}
	p.resize(f, n)
	for r := range rows {
		f.base = (row+r)*p.dom.n + start
		for i := range f.walks {
			switch w := &f.walks[i]; {
			case !w.apart:
				f.v[w.slot] = w.mem[w.at:][:n]
			case !w.out:
				w.read(f.v[w.slot], n)
			}
		}
		for i := range p.steps {
			p.steps[i].run(f)
		}
		p.addColumns(f, start, 1, n)
		for i := range f.walks {
			w := &f.walks[i]
			if w.apart && w.out {
				w.write(f.v[w.slot], n)
			}
			w.at += w.step
		}
	}
}

// execBlocks runs the program along the walks, as many rows of n elements at a time as a register holds. Rows that stand
// one behind the other are not gathered.
func (p *program[T]) execBlocks(f *frame[T], rows, start, n int) {
	per := min(f.width/n, rows)
	for i := range f.walks {
		f.walks[i].block = f.blocks[i*f.line:][:per*n]
	}
	for done := 0; done < rows; done += per {
		count := min(per, rows-done)
		p.resize(f, count*n)
		for i := range f.walks {
			w := &f.walks[i]
			switch {
			case w.stands(n):
				f.v[w.slot] = w.mem[w.at:][:count*n]
				w.at += count * n
				continue
			case !w.apart:
				f.v[w.slot] = w.block[:count*n]
			}
			if w.out || !w.apart && w.step == 0 && done > 0 {
				continue
			}
			w.read(f.v[w.slot], n)
			w.at += count * w.step
		}
		for i := range p.steps {
			p.steps[i].run(f)
		}
		p.addColumns(f, start, count, n)
		for i := range f.walks {
			if w := &f.walks[i]; w.out && !w.stands(n) {
				w.write(f.v[w.slot], n)
				w.at += count * w.step
			}
		}
	}
}

// allocate gives registers to the vectors that do not stand in a buffer. A register is free again after the last step
// that uses it. Vectors that are stored at the end live until then.
func (p *program[T]) allocate() {
	last := make([]int, len(p.slots))
	for i, s := range p.steps {
		for _, u := range s.uses {
			last[u] = i
		}
		if s.def >= 0 {
			last[s.def] = max(last[s.def], i)
		}
	}
	for _, w := range p.outs {
		if w.vector >= 0 {
			last[w.vector] = len(p.steps)
		}
	}
	for i, s := range p.slots {
		if s.pinned {
			last[i] = len(p.steps)
		}
	}
	dying := make([][]int, len(p.steps)) // the slots that a step is the last to use
	for i := range p.slots {
		if last[i] < len(p.steps) {
			dying[last[i]] = append(dying[last[i]], i)
		}
	}
	inBuffer := make([]bool, len(p.slots))
	var free []int
	take := func() int {
		if n := len(free); n > 0 {
			r := free[n-1]
			free = free[:n-1]
			return r
		}
		p.regs++
		return p.regs - 1
	}
	for _, r := range p.args {
		if r.vector >= 0 {
			if r.direct {
				inBuffer[r.vector] = true
			} else {
				p.slots[r.vector].reg = take()
			}
		}
	}
	for _, w := range p.outs {
		if w.direct {
			inBuffer[w.vector] = true
		}
	}
	for i, s := range p.steps {
		if s.def >= 0 && !inBuffer[s.def] && p.slots[s.def].reg < 0 {
			p.slots[s.def].reg = take()
		}
		for _, v := range dying[i] {
			if p.slots[v].reg >= 0 {
				free = append(free, p.slots[v].reg)
			}
		}
	}
}

// span is n elements from at on, nothing of an empty buffer included.
func span[T float](x []T, at, n int) []T {
	if n == 0 {
		return nil
	}
	return x[at:][:n]
}
