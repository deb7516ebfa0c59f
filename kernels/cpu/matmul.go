package cpu

import (
	"slices"

	"fusec/graph"
	"fusec/graph/body"
	"fusec/kernels/cpu/gemm"
)

// A product kernel multiplies matrices (or convolves, see conv.go) and runs a program over each tile of the result
// while it is in the cache.
type product[T float] struct {
	env    *Env
	plan   *gemm.Plan[T]
	a, b   int // arguments, b or -1
	aOff   int // first element of each operand in its buffer
	bOff   int
	p      *program[T] // the epilogue, or nil: the product itself is the result
	frames []*frame[T]
	acc    int // vector slot of the product
	home   int // result in whose memory the product lies, or -1: in own
	own    []T
	c      graph.Layout // of the product over [batch..., m, n]
	cRead  access       // the same as an access of the domain
	m      int          // rows per matrix of the plan
	beside bool         // matrices of the plan are columns of the result, one beside the other
	width  int
	// tileRows is the number of rows of a tile, those at the edge excepted.
	tileRows int
	regs     int // registers of width elements that a worker needs

	cfg    gemm.Config[T]
	frozen bool // B is packed once
	packed *gemm.Prepacked[T]
	cold   bool // what is packed is out of date

	args, results []Memory
}

// newMatMul compiles a Fusion anchored on a MatMul.
func newMatMul[T float](p *body.Program, args, results []Operand, env *Env) (*product[T], error) {
	a, b := p.Operands[0], p.Operands[1]
	k := &product[T]{env: env, a: a.Arg, b: b.Arg, aOff: a.Layout.Offset, bOff: b.Layout.Offset}
	if err := k.compileEpilogue(p, p.Space.Rank()-1, results, unitColumns); err != nil {
		return nil, err
	}
	cfg, err := k.config(p.Anchor.Op.(graph.MatMul), a.Layout, b.Layout, p.Space)
	if err != nil {
		return nil, err
	}
	k.frozen = args[k.b].Frozen && cfg.Batch > 0 && cfg.M > 1 && cfg.N > 0 && cfg.K > 0
	return k, k.finish(cfg)
}

// compileEpilogue compiles what follows the anchor and decides where the product lies: in a result's memory if it can
// be written there. The axes of the result from split on are the columns of the product.
func (k *product[T]) compileEpilogue(b *body.Program, split int, results []Operand, writable func(graph.Layout) bool) error {
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

// config describes the product of layouts a and b. Batch axes that only A has, and that follow its rows in memory, are
// taken as further rows: a batch of sequences times one matrix of weights is one product.
func (k *product[T]) config(op graph.MatMul, a, b graph.Layout, out graph.Shape) (gemm.Config[T], error) {
	batch, m, inner, n := op.Dims(a.Shape, b.Shape)
	rank := len(batch)
	mat := func(l graph.Layout, trans bool, rows, cols int) (graph.Layout, int, int) {
		s := graph.ShapeOf(append(append([]int(nil), batch...), rows, cols)...)
		r := l.Shape.Rank()
		if trans {
			perm := make([]int, r)
			for i := range perm {
				perm[i] = i
			}
			perm[r-1], perm[r-2] = r-2, r-1
			l = l.Transpose(graph.IntsOf(perm...))
		}
		l = l.Broadcast(s)
		return l, l.Stride[rank], l.Stride[rank+1]
	}
	al, aRow, aCol := mat(a, op.TransA, m, inner)
	bl, bRow, bCol := mat(b, op.TransB, inner, n)
	c, cRow, cCol := k.c, k.c.Stride[rank], k.c.Stride[rank+1]
	if n == 1 {
		cCol = 1
	}
	if m == 1 {
		cRow = max(n, 1)
	}
	merged := 0 // batch axes, from the last, taken as rows
	for i := rank - 1; i >= 0; i-- {
		if batch[i] != 1 {
			if m == 1 && aRow != al.Stride[i] { // rows of one matrix: any stride will do
				aRow, cRow = al.Stride[i], c.Stride[i]
			}
			if bl.Stride[i] != 0 || al.Stride[i] != aRow*m || c.Stride[i] != cRow*m || cRow < n {
				break
			}
			m *= batch[i]
		}
		merged++
	}
	batch = batch[:rank-merged]
	cfg := gemm.Config[T]{M: m, N: n, K: inner, Batch: 1,
		A: gemm.Layout{RowStride: aRow, ColStride: aCol}, B: gemm.Layout{RowStride: bRow, ColStride: bCol},
		C: gemm.Layout{RowStride: cRow, ColStride: cCol}}
	k.m = m
	for _, d := range batch {
		cfg.Batch *= d
	}
	if len(batch) == 0 {
		return cfg, nil
	}
	var err error
	offsets := func(l graph.Layout) []int {
		o, e := gemm.Offsets(batch, l.Stride[:len(batch)])
		if e != nil {
			err = e
		}
		return o
	}
	cfg.A.Offsets, cfg.B.Offsets, cfg.C.Offsets = offsets(al), offsets(bl), offsets(c)
	if !slices.ContainsFunc(cfg.B.Offsets, func(o int) bool { return o != 0 }) {
		cfg.B.Offsets = nil // one matrix for all, which is packed once
	}
	return cfg, err
}

// finish makes the plan.
func (k *product[T]) finish(cfg gemm.Config[T]) (err error) {
	k.cfg = cfg
	if k.plan, err = gemm.New(cfg, k.env.Pool, k.env.gemm); err != nil {
		return err
	}
	if k.p != nil {
		k.width = segment
		k.regs = k.p.regs
		if k.p.plain {
			k.regs = k.p.tileRegs()
		}
		k.env.reserve(k.regs * roundLine[T](k.width) * dtypeOf[T]().Size())
		k.frames = k.p.newFrames(k.env)
		k.cutColumns()
	}
	return nil
}

// cutColumns makes room for the column sums of each block of rows that the plan hands to Tile.
func (k *product[T]) cutColumns() {
	k.tileRows = max(k.plan.TileRows(), 1)
	k.p.cutColumns(k.cfg.Batch * chunksOf(k.cfg.M, k.tileRows))
}

// chunksOf is the number of pieces of a size that n elements make; of none, none.
func chunksOf(n, size int) int { return (n + size - 1) / size }

func (k *product[T]) Run(args, results []Memory) error {
	c := k.own
	if k.home >= 0 {
		c = elems[T](results[k.home])
	}
	var b []T
	if k.b >= 0 {
		b = elems[T](args[k.b])[k.bOff:]
	}
	a := elems[T](args[k.a])[k.aOff:]
	if k.frozen && (k.packed == nil || k.cold) {
		if err := k.pack(b); err != nil {
			return err
		}
	}
	k.args, k.results = args, results
	defer k.done()
	if k.p == nil {
		return k.plan.Run(a, b, c[k.c.Offset:], nil)
	}
	k.p.beginRegs(k.env, k.frames, k.width, k.regs)
	if err := k.plan.Run(a, b, c[k.c.Offset:], k); err != nil {
		return err
	}
	k.p.finishColumns(results)
	return failed(k.frames)
}

// pack packs the frozen operand, and makes the plan that uses it.
func (k *product[T]) pack(b []T) (err error) {
	k.cold = false
	if k.packed != nil {
		return k.packed.Update(b)
	}
	if k.packed, err = gemm.Prepack(k.cfg.K, k.cfg.N, k.cfg.B, b, k.env.Pool); err != nil {
		return err
	}
	k.cfg.Prepacked = k.packed
	if k.plan, err = gemm.New(k.cfg, k.env.Pool, k.env.gemm); err == nil && k.p != nil {
		k.cutColumns()
	}
	return err
}

func (k *product[T]) thaw() { k.cold = true }

func (k *product[T]) bytes() int64 {
	n := int64(len(k.own)) * int64(dtypeOf[T]().Size())
	if k.packed != nil {
		n += int64(k.packed.Bytes())
	}
	if k.p != nil {
		n += k.p.columnBytes()
	}
	return n
}

func (k *product[T]) done() { k.args, k.results = nil, nil }

// Tile runs the epilogue over a finished tile; see gemm.Epilogue.
func (k *product[T]) Tile(worker, batch, row, col, rows, cols int) {
	f := k.frames[worker]
	c := k.own
	if k.home >= 0 {
		c = elems[T](k.results[k.home])
	}
	f.block = batch*chunksOf(k.cfg.M, k.tileRows) + row/k.tileRows
	if k.beside {
		col += batch * k.cfg.N
	} else {
		row += batch * k.m
	}
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
