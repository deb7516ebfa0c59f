package cpu

import (
	"slices"

	"fusec/graph"
	"fusec/graph/body"
	"fusec/kernels/cpu/gemm"
)

// A product kernel multiplies matrices (or convolves images of NCHW, see conv.go) and runs a program over each tile of
// the result while it is in the cache.
type product[T float] struct {
	matrixEpilogue[T]
	plan *gemm.Plan[T]
	a, b int // arguments, b or -1
	aOff int // first element of each operand in its buffer
	bOff int
	m    int // rows per matrix of the plan
	// tileRows is the number of rows of a tile, those at the edge excepted.
	tileRows int

	cfg    gemm.Config[T]
	frozen bool // B is packed once
	packed *gemm.Prepacked[T]
	cold   bool // what is packed is out of date
}

// newMatMul compiles a Fusion anchored on a MatMul.
func newMatMul[T float](p *body.Program, args, results []Operand, env *Env) (*product[T], error) {
	a, b := p.Operands[0], p.Operands[1]
	k := &product[T]{a: a.Arg, b: b.Arg, aOff: a.Layout.Offset, bOff: b.Layout.Offset}
	for inPlace := true; ; inPlace = false {
		k.matrixEpilogue = matrixEpilogue[T]{epilogue: epilogue[T]{env: env}}
		var err error
		if inPlace {
			_, err = k.compileFinish(p, true, results)
		} else {
			err = k.compile(p, p.Space.Rank()-1, results, unitColumns)
		}
		if err != nil {
			return nil, err
		}
		cfg, err := k.config(p.Anchor.Op.(graph.MatMul), a.Layout, b.Layout, p.Space)
		if err != nil {
			return nil, err
		}
		k.frozen = args[k.b].Frozen && cfg.Batch > 0 && cfg.M > 1 && cfg.N > 0 && cfg.K > 0
		if !inPlace || cfg.ReadsInPlace(k.frozen) {
			return k, k.makePlan(cfg)
		}
	}
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

// makePlan makes the plan.
func (k *product[T]) makePlan(cfg gemm.Config[T]) (err error) {
	k.cfg = cfg
	if k.plan, err = gemm.New(cfg, k.env.Pool, k.env.gemm); err != nil {
		return err
	}
	k.cutColumns()
	return nil
}

// cutColumns makes room for the column sums of each block of rows that the plan hands to Tile.
func (k *product[T]) cutColumns() {
	k.tileRows = max(k.plan.TileRows(), 1)
	k.cut(k.cfg.Batch * chunksOf(k.cfg.M, k.tileRows))
}

// chunksOf is the number of pieces of a size that n elements make; of none, none.
func chunksOf(n, size int) int { return (n + size - 1) / size }

func (k *product[T]) Run(args, results []Memory) error {
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
	c, finish, then := k.start(args, results)
	defer k.release()
	if then != nil {
		then = k
	}
	if err := k.plan.RunFinished(a, b, c, finish, then); err != nil {
		return err
	}
	return k.complete()
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
	if k.plan, err = gemm.New(k.cfg, k.env.Pool, k.env.gemm); err == nil {
		k.cutColumns()
	}
	return err
}

func (k *product[T]) thaw() { k.cold = true }

func (k *product[T]) bytes() int64 {
	n := k.epilogue.bytes()
	if k.packed != nil {
		n += int64(k.packed.Bytes())
	}
	return n
}

// Tile runs the epilogue over a finished tile; see gemm.Epilogue.
func (k *product[T]) Tile(worker, batch, row, col, rows, cols int) {
	k.tile(worker, batch*chunksOf(k.cfg.M, k.tileRows)+row/k.tileRows, row+batch*k.m, col, rows, cols)
}
