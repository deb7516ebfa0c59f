package attention

import (
	"math"

	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/tiling"
	"fusec/kernels/cpu/vec"
)

// A block is the state of a work item: some queries of one head with all their keys.
type block[T Float] struct {
	*Plan[T]
	worker          int
	head, row, rows int // the queries
	valid           int // keys of the head
	width           int // of a value, rounded up to whole panels

	// Scratch. The panels of q and o are contiguous; those of m and l have NR numbers each, and started says whether a
	// panel's o has been set.
	q, o, k, v, s, mask []T
	m, l, c, alpha, sum []T
	started             []T
	drawn, byKey        []T // random words

	// The current block of keys: packed, except for those that are read in place.
	key, keys int
	packed    bool
	inPlace   int // keys, whole panels
	keyRows   []T
	valueRows []T
	ldk, ldv  int // distances of the rows
}

// blockTask computes a block of queries of a head.
type blockTask[T Float] Plan[T]

// Do implements pool.Task. The last blocks of queries, which have the most keys if the attention is causal, come
// first.
func (t *blockTask[T]) Do(worker, item int) {
	k := (*Plan[T])(t)
	head, row := item/k.blocks, item%k.blocks*k.queries
	if k.Op.Causal {
		head, row = item%k.heads, (k.blocks-1-item/k.heads)*k.queries
	}
	mem, r := k.scratch[worker], &k.room
	b := block[T]{
		Plan: k, worker: worker, head: head, row: row, rows: min(k.queries, k.Dims.Queries-row), valid: k.valid(head),
		width: tiling.RoundUp(k.Dims.Width, k.wide.MR),
		q:     mem[r.q:r.o], o: mem[r.o:r.k], k: mem[r.k:r.v], v: mem[r.v:r.s], s: mem[r.s:r.mask], mask: mem[r.mask:r.m],
		m: mem[r.m:r.l], l: mem[r.l:r.c], c: mem[r.c:][:k.micro.NR], alpha: mem[r.alpha:][:k.micro.NR],
		sum: mem[r.sum:][:k.micro.NR], started: mem[r.started:r.total], drawn: mem[r.drawn:r.byKey], byKey: mem[r.byKey:r.m],
	}
	b.run()
}

// run iterates over the keys.
func (b *block[T]) run() {
	d, nr := b.Dims, b.micro.NR
	if d.Depth > 0 {
		gemm.Pack(b.q, nr, d.Depth, b.rows, b.args.Q[b.Q.Offsets[b.head]+b.row*b.Q.RowStride:], b.Q.ColStride, b.Q.RowStride)
		if b.Op.Scale != 1 {
			q := b.q[:gemm.PackedLen(nr, d.Depth, b.rows)]
			multiply(q, T(b.Op.Scale))
		}
	}
	panels := tiling.CeilDiv(b.rows, nr)
	for i := range b.m[:panels*nr] {
		b.m[i] = T(math.Inf(-1))
	}
	clear(b.l[:panels*nr])
	clear(b.started[:panels])

	lo, hi, _, _ := b.reach(b.row, b.row+b.rows, b.valid)
	for b.key = lo; b.key < hi; b.key += b.Plan.keys {
		b.keys, b.packed = min(b.Plan.keys, hi-b.key), false
		for p := range panels {
			b.step(p)
		}
	}
	for p := range panels {
		b.finish(p)
	}
}

// step adds the block of keys to panel p of the queries.
func (b *block[T]) step(p int) {
	d, mr, nr := b.Dims, b.micro.MR, b.micro.NR
	row, rows := b.row+p*nr, min(nr, b.rows-p*nr)
	lo, hi, allLo, allHi := b.reach(row, row+rows, b.valid)
	lo, hi = max(lo, b.key), min(hi, b.key+b.keys)
	if lo >= hi {
		return
	}
	if b.Op.HasMask && !b.attends(b.head, row, rows, lo, hi) {
		return
	}
	if !b.packed {
		b.pack()
	}
	// Scores from the panel of keys on that lo is in.
	from := (lo - b.key) / mr * mr
	first, n := b.key+from, hi-b.key-from
	s := b.s[:n*nr]
	b.score(s, p, from, n)
	if b.Op.HasMask {
		b.applyMask(s, row, rows, first, n)
	}
	if allLo > first || allHi < first+n {
		b.cutOff(s, row, rows, first, n, allLo, allHi)
	}
	b.softmax(p, s)
	if b.Op.Dropout > 0 {
		b.drop(s, row, rows, first, n)
	}
	if d.Width == 0 {
		return
	}
	again := b.started[p] != 0
	b.started[p] = 1
	o := b.o[p*nr*b.width:][:nr*b.width]
	mr = b.wide.MR
	switch {
	case b.valuesInPlace:
		b.wide.TileColumns(b.width/mr, n, b.ldv, &b.valueRows[from*b.ldv], &s[0], &o[0], nr, again)
	case n == b.keys:
		b.wide.Tile(b.width/mr, n, &b.v[0], &s[0], &o[0], nr, again)
	default:
		for c := 0; c < b.width; c += mr {
			b.wide.Tile(1, n, &b.v[c*b.keys+from*mr], &s[0], &o[c*nr], nr, again)
		}
	}
}

// score multiplies the n keys of the block from number from on, where a panel starts, by panel p of the queries.
func (b *block[T]) score(s []T, p, from, n int) {
	d, mr, nr := b.Dims.Depth, b.micro.MR, b.micro.NR
	if d == 0 {
		clear(s)
		return
	}
	q, tiles := &b.q[p*nr*d], tiling.CeilDiv(n, mr)
	whole := min(max(b.inPlace-from, 0)/mr, tiles)
	if whole > 0 {
		b.micro.TileRows(whole, d, b.ldk, &b.keyRows[from*b.ldk], q, &b.s[0], nr, false)
	}
	if whole < tiles {
		at := whole * mr
		b.micro.Tile(tiles-whole, d, &b.k[(from+at)*d], q, &b.s[at*nr], nr, false)
	}
}

// pack brings the block's keys, and its values transposed, into panels of A, except for those that are read in place.
func (b *block[T]) pack() {
	d, mr := b.Dims, b.micro.MR
	b.packed = true
	if d.Depth > 0 {
		keys := b.Plan.keyRows()
		src, there, row, col := b.source(&keys, b.keysInPlace, b.room.keyRows)
		b.inPlace, b.keyRows, b.ldk = 0, src, row
		if b.keysInPlace {
			b.inPlace = there / mr * mr // which may be more than the block's
		}
		if from := b.inPlace; from < b.keys {
			gemm.Pack(b.k[from*d.Depth:], mr, d.Depth, b.keys-from, src[from*row:], col, row)
		}
	}
	if d.Width > 0 {
		values := b.Plan.valueRows()
		src, _, row, col := b.source(&values, b.valuesInPlace, b.room.valueRows)
		b.valueRows, b.ldv = src, row
		if !b.valuesInPlace {
			gemm.Pack(b.v, b.wide.MR, b.keys, d.Width, src, row, col)
		}
	}
}

// source returns the rows of the block's keys or values, their strides, and their number, which is at least the
// block's. The rows are in place, or copied to contiguous scratch if they have 16 or 8 bits, are in several pages, or are far apart
// and read without packing.
func (b *block[T]) source(o *operand[T], inPlace bool, room int) (src []T, there, row, col int) {
	if !o.converted() {
		src, there = b.rowsAt(o, b.head, b.key, b.Dims.Keys-b.key)
		if there >= b.keys && (!inPlace || dense(o.l, o.width)) {
			return src, there, o.l.RowStride, o.l.ColStride
		}
	}
	src = b.scratch[b.worker][room:]
	b.copyRows(src, o, b.head, b.key, b.keys)
	return src, b.keys, o.width, 1
}

// cutOff sets the scores of keys out of each query's reach to −Inf; s has n keys from first on, and all queries may attend those
// from allLo to allHi−1. Neither end of the reach decreases from one query to the next. So a key before allLo is out of reach of
// the last queries, and one from allHi on of the first.
func (b *block[T]) cutOff(s []T, row, rows, first, n, allLo, allHi int) {
	nr, low, fill := b.micro.NR, T(math.Inf(-1)), vec.Of[T]().Fill()
	lo, _ := b.Op.Range(&b.Dims, row, b.valid)
	begun := 0 // queries whose keys begin at or before the current key
	for j := range min(allLo-first, n) {
		for begun < rows && lo <= first+j {
			if begun++; begun < rows {
				lo, _ = b.Op.Range(&b.Dims, row+begun, b.valid)
			}
		}
		fill(s[j*nr:][begun:rows], low)
	}
	end := allHi
	ended := 0 // queries whose keys end before the current key
	for j := max(allHi-first, 0); j < n; j++ {
		for ended < rows && end <= first+j {
			if ended++; ended < rows {
				_, end = b.Op.Range(&b.Dims, row+ended, b.valid)
			}
		}
		fill(s[j*nr:][:ended], low)
	}
}

// softmax raises the maxima of panel p by the scores, makes them exponentials, and scales sums and results to the new
// maxima.
func (b *block[T]) softmax(p int, s []T) {
	nr := b.micro.NR
	m, l := b.m[p*nr:][:nr], b.l[p*nr:][:nr]
	low := T(math.Inf(-1))
	copy(b.alpha, m)
	vec.PanelMax(s, m)
	raised := false
	for j, top := range m {
		b.c[j] = top
		if top == low {
			b.c[j] = 0 // nothing to subtract if all scores are −Inf
		}
		raised = raised || b.alpha[j] != top
		b.alpha[j] -= b.c[j]
	}
	clear(b.sum)
	vec.PanelExp(s, b.c, b.sum)
	if !raised {
		for j := range l {
			l[j] += b.sum[j]
		}
		return
	}
	exponentials(b.alpha)
	for j := range l {
		l[j] = l[j]*b.alpha[j] + b.sum[j]
	}
	if b.started[p] != 0 {
		vec.PanelScale(b.o[p*nr*b.width:][:nr*b.width], b.alpha)
	}
}

// finish writes the results of panel p.
func (b *block[T]) finish(p int) {
	d, nr := b.Dims, b.micro.NR
	m, l := b.m[p*nr:][:nr], b.l[p*nr:][:nr]
	row, rows := b.row+p*nr, min(nr, b.rows-p*nr)
	for i := range rows {
		b.setLSE(b.head, row+i, m[i], l[i])
		b.c[i] = b.inverse(l[i])
	}
	clear(b.c[rows:])
	o := b.o[p*nr*b.width:][:nr*d.Width]
	if b.started[p] == 0 {
		clear(o)
	} else {
		vec.PanelScale(o, b.c)
	}
	storePanel(b.args.Out, b.Out.Offsets[b.head]+row*b.Out.RowStride, &b.Out, o, nr, d.Width, rows)
}

// storePanel writes a panel [width][nr] as rows of width elements, the first of which starts at dst[at].
func storePanel[T Float](dst []T, at int, to *gemm.Layout, panel []T, nr, width, rows int) {
	switch {
	case width == 0:
	case to.ColStride == 1:
		vec.Of[T]().Transpose(dst[at:], to.RowStride, panel, nr, width, rows)
	default:
		for i := range rows {
			for c := range width {
				dst[at+i*to.RowStride+c*to.ColStride] = panel[c*nr+i]
			}
		}
	}
}

// inverse is the factor from the sum of weighted values to the result, for exponentials with the sum l.
func (k *Plan[T]) inverse(l T) T {
	if l == 0 {
		return 0
	}
	if k.Op.Dropout > 0 {
		l *= T(k.rule().Kept())
	}
	return 1 / l
}

// setLSE writes the log-sum-exp of a query: m + log l.
func (k *Plan[T]) setLSE(head, row int, m, l T) {
	if k.args.LSE == nil {
		return
	}
	lse := m
	if l != 0 {
		lse += T(math.Log(float64(l)))
	}
	k.args.LSE[k.LSE.Offsets[head]+row*k.LSE.RowStride] = lse
}
