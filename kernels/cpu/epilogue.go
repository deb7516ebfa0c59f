package cpu

import (
	"fusec/graph"
	"fusec/graph/body"
)

// An epilogue is what a kernel runs over each tile of a matrix, its anchor's result, while it is in the cache.
type epilogue[T float] struct {
	env    *Env
	p      *program[T] // or nil: the matrix itself is the result
	frames []*frame[T]
	acc    int // vector slot of the matrix
	home   int // result in whose memory the matrix lies, or -1: in own
	own    []T
	c      graph.Layout // of the matrix over the iteration space
	cRead  access       // the same as an access of the domain
	width  int
	regs   int // registers of width elements that a worker needs

	args, results []Memory
}

// compile compiles what follows the anchor and decides where the product lies: in a result's memory if it can
// be written there. The axes of the result from split on are the columns of the product.
func (k *epilogue[T]) compile(b *body.Program, split int, results []Operand, writable func(graph.Layout) bool) error {
	c := newCompiler[T](b, b.Space)
	c.inner = axesFrom(split, c.space.Rank())
	k.acc = c.newVector()
	if i := b.IndexOf(0); i >= 0 {
		c.values[i] = value{kind: vector, slot: k.acc}
	}
	if err := c.outputs(results); err != nil {
		return err
	}
	p := c.p
	k.home = -1
	var home *write
	for _, w := range p.outs {
		if w.dtype == dtypeOf[T]() && w.vector >= 0 && writable(w.layout) && !overlaps(w.layout) {
			k.home, home = w.buf, w
			k.c = w.layout
			break
		}
	}
	if home == nil {
		if !k.env.fits(int64(c.space.Elems()) * int64(dtypeOf[T]().Size())) {
			return k.env.refused
		}
		k.own = make([]T, c.space.Elems())
		k.c = graph.Contiguous(c.space)
	}
	k.cRead = access{layout: k.c}
	p.dom = newDomain(c.space, split, append(p.accesses(), &k.cRead))
	c.direct(k.acc, k.home)
	p.plain = p.isPlain()
	if len(p.steps) == 0 && len(p.outs) == 1 && home != nil && len(p.columns) == 0 {
		return nil // the product itself
	}
	k.p = p
	k.width = segment
	k.regs = p.regs
	if p.plain {
		k.regs = p.tileRegs()
	}
	k.env.reserve(k.regs * roundLine[T](k.width) * dtypeOf[T]().Size())
	k.frames = p.newFrames(k.env)
	return nil
}

// unitColumns reports whether the elements of a row stand side by side.
func unitColumns(l graph.Layout) bool {
	last := l.Shape.Rank() - 1
	return l.Shape.At(last) == 1 || l.Stride[last] == 1
}

// overlaps reports whether a layout repeats elements: it cannot be written to by a product.
func overlaps(l graph.Layout) bool {
	for i := range l.Shape.Rank() {
		if l.Shape.At(i) != 1 && l.Stride[i] == 0 {
			return true
		}
	}
	return false
}

// cut makes room for the column sums of so many blocks of rows.
func (k *epilogue[T]) cut(blocks int) {
	if k.p != nil {
		k.p.cutColumns(blocks)
	}
}

// begin starts a run, and returns the memory of the matrix from its first element on.
func (k *epilogue[T]) begin(args, results []Memory) []T {
	k.args, k.results = args, results
	if k.p != nil {
		k.p.beginRegs(k.env, k.frames, k.width, k.regs)
	}
	return k.matrix()[k.c.Offset:]
}

// matrix is the memory in which the matrix lies.
func (k *epilogue[T]) matrix() []T {
	if k.home >= 0 {
		return elems[T](k.results[k.home])
	}
	return k.own
}

// end finishes a run after the last tile.
func (k *epilogue[T]) end() error {
	k.p.finishColumns(k.results)
	return failed(k.frames)
}

// done drops what a run referred to.
func (k *epilogue[T]) done() { k.args, k.results = nil, nil }

func (k *epilogue[T]) bytes() int64 {
	n := int64(len(k.own)) * int64(dtypeOf[T]().Size())
	if k.p != nil {
		n += k.p.columnBytes()
	}
	return n
}

// tile runs the program over a tile whose rows are those of a block of rows.
func (k *epilogue[T]) tile(worker, block, row, col, rows, cols int) {
	f, c := k.frames[worker], k.matrix()
	f.block = block
	for from := col; from < col+cols; from += k.width {
		f.fresh = true
		n := min(k.width, col+cols-from)
		if k.p.plain {
			k.p.execTile(f, row, rows, from, n, k.acc, &k.cRead, c, k.args, k.results)
			continue
		}
		for r := row; r < row+rows; r++ {
			f.v[k.acc] = c[k.cRead.at(&k.p.dom, r)+from:][:n]
			k.p.exec(f, r, from, n, k.args, k.results)
		}
	}
}
