package gemm

import "fusec/kernels/cpu/tiling"

// Products with few rows or few columns do one or a few multiplications for each element of the large matrix, so their
// cost is that of reading it: it is streamed once, without packing. Written for a large matrix X of outputs×K and a few
// vectors v of K elements:
//
//	M small:  X = Bᵀ, v = rows of A,     C[i, j] = X[j]·vᵢ
//	N small:  X = A,  v = columns of B,  C[i, j] = X[i]·vⱼ
//
// If X is contiguous along K, each output is a dot product; if it is contiguous
// along the outputs, the output vector is a sum of scaled rows of Xᵀ.

const (
	// thinMax is the number of vectors up to which streaming wins.
	thinMax = 4
	// thinOutputs is how many outputs a work item computes at most: their
	// partial sums stay in the first-level cache.
	thinOutputs = 1024
	// thinElements is how many elements of the large matrix a work item
	// should read, in at least thinRows dot products, or in rows of at least
	// thinRun contiguous elements, longer ones if thinItems are left.
	thinElements = 1 << 16
	thinRows     = 16
	thinRun      = 192
	thinItems    = 8
)

// A thin describes a thin product.
type thin struct {
	vectors   int  // how many
	outputs   int  // rows of X
	block     int  // outputs per work item
	blocks    int  // work items per matrix
	alongRows bool // M is small: outputs follow one another in a row of C
	// large is the layout of X, small that of the vectors: its rows.
	large, small Layout
}

// thin returns the description if the product is thin and X has a stride of 1.
func (cfg *Config[T]) thin() (t thin, ok bool) {
	if cfg.PackA != nil || cfg.PackB != nil || cfg.Prepacked != nil {
		return thin{}, false
	}
	switch {
	case cfg.M <= thinMax && cfg.M <= cfg.N:
		t = thin{vectors: cfg.M, outputs: cfg.N, alongRows: true, large: cfg.B.Transposed(), small: cfg.A}
	case cfg.N <= thinMax:
		t = thin{vectors: cfg.N, outputs: cfg.M, large: cfg.A, small: cfg.B.Transposed()}
	default:
		return thin{}, false
	}
	least := thinRows
	if t.large.ColStride != 1 {
		least = max(thinRun, t.outputs/thinItems)
	}
	t.block = evenly(t.outputs, min(max(thinElements/cfg.K, least), thinOutputs), 16)
	t.blocks = tiling.CeilDiv(t.outputs, t.block)
	return t, t.large.ColStride == 1 || t.large.RowStride == 1
}

// thinTask computes a block of outputs.
type thinTask[T Float] Plan[T]

func (t *thinTask[T]) Do(worker, item int) {
	p := (*Plan[T])(t)
	batch, from := item/p.thin.blocks, item%p.thin.blocks*p.thin.block
	n := min(p.thin.block, p.thin.outputs-from)
	x, v := p.run.a, p.run.b
	if p.thin.alongRows {
		x, v = v, x
	}
	x = x[p.thin.large.at(batch)+from*p.thin.large.RowStride:]
	v = v[p.thin.small.at(batch):]

	room, _, y := p.private(worker)
	v, ldv := p.vectors(v, room)
	c := p.run.c[p.cfg.C.at(batch):]
	if p.thin.large.ColStride == 1 {
		p.dots(x, v, ldv, y, n)
	} else {
		p.axpys(x, v, ldv, y, n)
	}
	if p.thin.alongRows {
		for i := range p.thin.vectors {
			copy(c[i*p.cfg.C.RowStride+from:], y[i*p.thin.block:][:n])
		}
		p.finish(worker, batch, 0, from, p.thin.vectors, n)
		return
	}
	for i := range p.thin.vectors {
		for j, s := range y[i*p.thin.block:][:n] {
			c[(from+j)*p.cfg.C.RowStride+i] = s
		}
	}
	p.finish(worker, batch, from, 0, n, p.thin.vectors)
}

// vectors returns the vectors of a matrix as contiguous rows and their distance: in place in src, or copied to room.
func (p *Plan[T]) vectors(src, room []T) (v []T, ldv int) {
	l, k := &p.thin.small, p.cfg.K
	if l.ColStride == 1 {
		return src, l.RowStride
	}
	for i := range p.thin.vectors {
		for j := range k {
			room[i*k+j] = src[i*l.RowStride+j*l.ColStride]
		}
	}
	return room, k
}

// dots computes n outputs for each vector from rows of X. A row is in the cache
// when the second vector needs it.
func (p *Plan[T]) dots(x, v []T, ldv int, y []T, n int) {
	for j := range n {
		row := &x[j*p.thin.large.RowStride]
		for i := range p.thin.vectors {
			y[i*p.thin.block+j] = p.kern.dot(p.cfg.K, row, &v[i*ldv])
		}
	}
}

// axpys computes n outputs for each vector from columns of X.
func (p *Plan[T]) axpys(x, v []T, ldv int, y []T, n int) {
	axpy4 := p.kern.axpy4
	if ahead := p.kern.axpy4Ahead; ahead != nil {
		axpy4 = ahead
	}
	clear(y)
	axpys(axpy4, p.thin.vectors, p.cfg.K, n, v, ldv, x, p.thin.large.ColStride, y, p.thin.block)
}

// axpys adds to each row of y, which are ldy elements apart, the sum of the k rows of x, n elements each and ldx apart, times the
// elements of a row of v.
func axpys[T Float](axpy4 func(n int, alpha, x *T, stride int, y *T), rows, k, n int, v []T, ldv int, x []T, ldx int,
	y []T, ldy int) {
	j := 0
	for ; j+4 <= k; j += 4 {
		for i := range rows {
			axpy4(n, &v[i*ldv+j], &x[j*ldx], ldx, &y[i*ldy])
		}
	}
	for ; j < k; j++ {
		for i := range rows {
			alpha, sums := v[i*ldv+j], y[i*ldy:][:n]
			for o, e := range x[j*ldx:][:n] {
				sums[o] += alpha * e
			}
		}
	}
}

// Stream computes y = v·w on the goroutine that calls it, for few rows, which v [rows, k] has side by side. w [k, n] is contiguous,
// and rows of y are ldy elements apart. It takes about the time of reading w from the second-level cache. n must not be 0.
func Stream[T Float](k int, v []T, rows int, w []T, n int, y []T, ldy int) {
	for i := range rows {
		clear(y[i*ldy:][:n])
	}
	axpys(kernels[T]()[0].axpy4, rows, k, n, v, k, w, n, y, ldy)
}
