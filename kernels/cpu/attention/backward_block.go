package attention

import (
	"math"
	"sort"

	"fusec/graph"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/tiling"
	"fusec/kernels/cpu/vec"
)

// A pair is a block of queries and a block of keys that a worker processes, in its scratch.
type pair[T Float] struct {
	*Backward[T]
	wantQ, wantK, wantV bool
	sums                bool // only the sums of far queries are computed

	group, key, keys int // keys of a head; those beyond the valid ones are left out
	head, row, rows  int // queries of a head
	valid            int // keys of the head
	hasFar           bool
	packed           struct{ keys, queries bool }

	// Scratch. With panels of A as wide as the matrix kernel's rows, and panels of B as wide as its columns:
	q, dout   []T // A, along depth and width, with the columns −lse and −Δ
	qT, doutT []T // A, along the queries
	k, v      []T // B, along depth and width, with columns of ones
	kT        []T // B, along the keys
	dk, dv    []T // [depth][NR] and [width][NR] for each panel of keys
	p, dp     []T // [queries][NR], for one panel of keys: probabilities; gradients of them, then of the scores
	ds        []T // A, along the keys: the gradients of all the pair's scores
	dq        []T // [queries][depth]
	line      []T // [NR]
	drawn     []T // [queries][NR]: the random words of the probabilities
}

func (k *Backward[T]) pair(worker int) pair[T] {
	m, r := k.scratch[worker], &k.room
	return pair[T]{
		Backward: k,
		q:        m[r.q:r.qT], qT: m[r.qT:r.dout], dout: m[r.dout:r.doutT], doutT: m[r.doutT:r.k],
		k: m[r.k:r.kT], kT: m[r.kT:r.v], v: m[r.v:r.dk], dk: m[r.dk:r.dv], dv: m[r.dv:r.p],
		p: m[r.p:r.dp], dp: m[r.dp:r.ds], ds: m[r.ds:r.dq], dq: m[r.dq:r.line], line: m[r.line:r.drawn], drawn: m[r.drawn:r.total],
	}
}

// keysAt selects a block of keys.
func (b *pair[T]) keysAt(group, chunk int) {
	b.group, b.key, b.valid = group, chunk*b.Backward.keys, b.Plan.valid(group*b.Dims.Group)
	b.keys = max(min(b.Backward.keys, b.valid-b.key), 0)
	b.packed.keys = false
}

// queriesAt selects a block of queries.
func (b *pair[T]) queriesAt(head, block int) {
	b.head, b.row = head, block*b.queries
	b.rows = min(b.queries, b.Dims.Queries-b.row)
	b.packed.queries = false
	b.hasFar = b.far.blocks[head*b.blocks+block]
}

// alongQueries computes dk and dv of a block of keys, and adds its part of dq to every query.
func (b *pair[T]) alongQueries(group, chunk int) {
	clear(b.dk)
	clear(b.dv)
	b.keysAt(group, chunk)
	for i := range b.Dims.Group {
		for block := range b.blocks {
			b.queriesAt(group*b.Dims.Group+i, block)
			b.meet()
		}
	}
	if b.wantK {
		b.finish(b.args.DK, &b.dK, b.dk, b.Dims.Depth, b.room.depth, b.scale)
	}
	if b.wantV {
		b.finish(b.args.DV, &b.dV, b.dv, b.Dims.Width, b.room.width, b.inverse)
	}
}

// finish writes the gradient of the block of keys from panels with the given number of rows, of which width are used.
func (b *pair[T]) finish(dst []T, to *gemm.Layout, panels []T, width, rows int, scale T) {
	if scale != 1 {
		multiply(panels, scale)
	}
	nr := b.micro.NR
	end := min(b.key+b.Backward.keys, b.Dims.Keys)
	for first := b.key; first < end; first += nr {
		panel := panels[(first-b.key)*rows:][:nr*width]
		if n := b.key + b.keys - first; n > 0 && n < nr { // the rest of the panel was padding
			for r := 0; r < len(panel); r += nr {
				clear(panel[r+n:][:nr-n])
			}
		}
		storePanel(dst, to.Offsets[b.group]+first*to.RowStride, to, panel, nr, width, min(nr, end-first))
	}
}

// meet adds the pair's contributions.
func (b *pair[T]) meet() {
	nr := b.micro.NR
	lo, hi, allLo, allHi := b.reach(b.row, b.row+b.rows, b.valid)
	lo, hi = max(lo, b.key), min(hi, b.key+b.keys)
	if lo >= hi {
		return
	}
	whole := allLo <= b.key && allHi >= b.key+b.keys
	found := false
	for first := b.key + (lo-b.key)/nr*nr; first < hi; first += nr {
		n := min(nr, b.key+b.keys-first)
		from, to := 0, b.rows
		if !whole {
			from, to = b.rowsOf(first, n)
		}
		if from >= to || b.Op.HasMask && !b.attends(b.head, b.row+from, to-from, first, first+n) {
			continue
		}
		if !found {
			found = true
			b.pack()
			if b.wantQ && (!whole || b.Op.HasMask) { // not all of it will be written
				clear(b.ds[:tiling.RoundUp(b.rows, b.micro.MR)*b.keys])
			}
		}
		if b.sums {
			b.sumPanel(first, n, from, to, whole)
		} else {
			b.panel(first, n, from, to, whole)
		}
	}
	if found && b.wantQ && b.Dims.Depth > 0 {
		b.addQueries(whole)
	}
}

// rowsOf returns the queries of the block, from its first one on, that may attend any of n keys.
func (b *pair[T]) rowsOf(first, n int) (from, to int) {
	from = sort.Search(b.rows, func(i int) bool {
		_, hi := b.Op.Range(&b.Dims, b.row+i, b.valid)
		return hi > first
	})
	to = from + sort.Search(b.rows-from, func(i int) bool {
		lo, _ := b.Op.Range(&b.Dims, b.row+from+i, b.valid)
		return lo >= first+n
	})
	return from, to
}

// pack packs the parts of the blocks that are not packed yet.
func (b *pair[T]) pack() {
	d, mr, nr := b.Dims, b.micro.MR, b.micro.NR
	if !b.packed.keys {
		b.packed.keys = true
		head := b.group * d.Group
		at := b.K.Offsets[head] + b.key*b.K.RowStride
		withColumn(b.k, nr, d.Depth, b.keys, b.args.K, at, &b.K)
		withColumn(b.v, nr, d.Width, b.keys, b.args.V, b.V.Offsets[head]+b.key*b.V.RowStride, &b.V)
		for j := range b.keys {
			b.k[columnAt(nr, d.Depth, j)], b.v[columnAt(nr, d.Width, j)] = 1, 1
		}
		if b.wantQ && d.Depth > 0 {
			gemm.Pack(b.kT, nr, b.keys, d.Depth, b.args.K[at:], b.K.RowStride, b.K.ColStride)
		}
	}
	if b.packed.queries {
		return
	}
	b.packed.queries = true
	atQ, atD := b.Q.Offsets[b.head]+b.row*b.Q.RowStride, b.dOut.Offsets[b.head]+b.row*b.dOut.RowStride
	withColumn(b.q, mr, d.Depth, b.rows, b.args.Q, atQ, &b.Q)
	if b.Op.Scale != 1 {
		multiply(b.q[:gemm.PackedLen(mr, d.Depth+1, b.rows)], T(b.Op.Scale))
	}
	withColumn(b.dout, mr, d.Width, b.rows, b.args.DOut, atD, &b.dOut)
	delta := b.delta[b.head*d.Queries+b.row:][:b.rows]
	for i, v := range delta {
		if b.Op.Dropout > 0 {
			v = 0 // subtracted after the dropout
		}
		b.q[columnAt(mr, d.Depth, i)], b.dout[columnAt(mr, d.Width, i)] = b.negativeLSE(b.head, b.row+i), -v
	}
	if b.wantK && d.Depth > 0 {
		gemm.Pack(b.qT, mr, b.rows, d.Depth, b.args.Q[atQ:], b.Q.RowStride, b.Q.ColStride)
	}
	if b.wantV && d.Width > 0 {
		gemm.Pack(b.doutT, mr, b.rows, d.Width, b.args.DOut[atD:], b.dOut.RowStride, b.dOut.ColStride)
	}
}

// withColumn packs n rows of depth elements into panels along the rows, each with space for one more column.
func withColumn[T Float](dst []T, width, depth, n int, src []T, at int, l *gemm.Layout) {
	for i := 0; i < n && depth > 0; i += width {
		gemm.Pack(dst[i*(depth+1):], width, depth, min(width, n-i), src[at+i*l.RowStride:], l.ColStride, l.RowStride)
	}
}

// columnAt is the position of the additional column of row i.
func columnAt(width, depth, i int) int { return (i/width*(depth+1)+depth)*width + i%width }

// scores are the masked scores of the n keys from first on and the queries from to to−1 of the block, less what the
// queries' columns hold. They start with the first query of a tile, at or before from, which is returned too.
func (b *pair[T]) scores(first, n, from, to int, whole bool) (s []T, start, tiles int) {
	depth, mr, nr := b.Dims.Depth, b.micro.MR, b.micro.NR
	start = from / mr * mr
	tiles = tiling.CeilDiv(to-start, mr)
	s = b.p[:tiles*mr*nr]
	b.micro.Tile(tiles, depth+1, &b.q[start*(depth+1)], &b.k[(first-b.key)*(depth+1)], &s[0], nr, false)
	for i := start; i < to && b.Op.HasMask; i++ {
		b.maskRow(s[(i-start)*nr:][:n], b.line, b.head, b.row+i, first)
	}
	if !whole {
		b.cutOff(s, start, min(start+tiles*mr, b.rows), first, n)
	}
	return s, start, tiles
}

// panel adds the contributions of the n keys from first on, for the queries from to to−1 of the block.
func (b *pair[T]) panel(first, n, from, to int, whole bool) {
	d, mr, nr := b.Dims, b.micro.MR, b.micro.NR
	p, from, tiles := b.scores(first, n, from, to, whole)
	end, dp := min(from+tiles*mr, b.rows), b.dp[:len(p)]
	at := first - b.key
	if b.hasFar {
		b.lowerFar(p, from, to, n)
	}
	exponentials(p)
	if b.hasFar {
		b.shareFar(p, from, to, n)
	}
	b.micro.Tile(tiles, d.Width+1, &b.dout[from*(d.Width+1)], &b.v[at*(d.Width+1)], &dp[0], nr, false)
	if b.Op.Dropout > 0 {
		b.dropPanel(p, dp, from, end, first, n)
	} else {
		vec.Of[T]().MulTo(dp, p)
	}
	if b.wantV && d.Width > 0 {
		b.accumulate(b.dv[at*b.room.width:], b.doutT, p, from, to, b.room.width)
	}
	if b.wantK && d.Depth > 0 {
		b.accumulate(b.dk[at*b.room.depth:], b.qT, dp, from, to, b.room.depth)
	}
	for t := 0; b.wantQ && t < tiles; t++ {
		gemm.Pack(b.ds[(from+t*mr)*b.keys+at*mr:], mr, n, mr, dp[t*mr*nr:], 1, nr)
	}
}

// cutOff sets the scores of keys outside of the queries' reach to −Inf; s has n keys from first on. The reach of the first queries
// may end before the last of these keys, and that of the last queries begin after the first.
func (b *pair[T]) cutOff(s []T, from, to, first, n int) {
	nr, low, fill := b.micro.NR, T(math.Inf(-1)), vec.Of[T]().Fill()
	for i := from; i < to; i++ {
		_, hi := b.Op.Range(&b.Dims, b.row+i, b.valid)
		if hi >= first+n {
			break
		}
		fill(s[(i-from)*nr:][max(hi-first, 0):n], low)
	}
	for i := to - 1; i >= from; i-- {
		lo, _ := b.Op.Range(&b.Dims, b.row+i, b.valid)
		if lo <= first {
			break
		}
		fill(s[(i-from)*nr:][:min(lo-first, n)], low)
	}
}

// dropPanel makes the gradients dp of the dropped probabilities those of the scores, and drops the probabilities. Both
// are to be divided by the share of those kept.
func (b *pair[T]) dropPanel(p, dp []T, from, to, first, n int) {
	nr, sub := b.micro.NR, vec.Of[T]().BinaryVS(graph.Sub)
	p, dp = p[:(to-from)*nr], dp[:(to-from)*nr]
	bits, keep, kept := words(b.drawn), vec.Of[T]().Keep(), T(b.rule().Kept())
	// The last panel may have fewer keys than columns. The rest is padding, for which any bit is right.
	b.Plan.kept(bits, b.head, b.row+from, to-from, first, nr)
	keep(dp, dp, bits, 1)
	for i := from; i < to; i++ {
		dp := dp[(i-from)*nr:][:n]
		sub(dp, dp, kept*b.delta[b.head*b.Dims.Queries+b.row+i])
	}
	vec.Of[T]().MulTo(dp, p)
	keep(p, p, bits, 1)
}

// accumulate adds the product of x, panels of so many rows in all along the queries, and a panel of the queries from to
// to−1.
func (b *pair[T]) accumulate(sum, x, panel []T, from, to, rows int) {
	mr, nr := b.micro.MR, b.micro.NR
	if from == 0 && to == b.rows {
		b.micro.Tile(rows/mr, to, &x[0], &panel[0], &sum[0], nr, true)
		return
	}
	for c := 0; c < rows; c += mr {
		b.micro.Tile(1, to-from, &x[c*b.rows+from*mr], &panel[0], &sum[c*nr], nr, true)
	}
}

// addQueries adds ds·k to dq. Of a block that is not whole, it multiplies what each tile of queries may attend.
func (b *pair[T]) addQueries(whole bool) {
	d, mr, nr, ld := b.Dims, b.micro.MR, b.micro.NR, b.room.depthRow
	step := b.rows
	if !whole {
		step = mr
	}
	for i := 0; i < b.rows; i += step {
		lo, hi := b.key, b.key+b.keys
		if !whole {
			lo, hi, _, _ = b.reach(b.row+i, b.row+min(i+step, b.rows), b.valid)
			lo, hi = max(lo, b.key), min(hi, b.key+b.keys)
		}
		if lo >= hi {
			continue
		}
		at := lo - b.key
		for c := 0; c < d.Depth; c += nr {
			ds, k := &b.ds[i*b.keys+at*mr], &b.kT[c*b.keys+at*nr]
			b.micro.Tile(tiling.CeilDiv(step, mr), hi-lo, ds, k, &b.dq[i*ld+c], ld, false)
		}
		for r := i; r < min(i+step, b.rows); r++ {
			b.addQuery(b.head, b.row+r, b.dq[r*ld:][:d.Depth])
		}
	}
}
