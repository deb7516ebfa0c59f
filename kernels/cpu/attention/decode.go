package attention

import (
	"math"

	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/vec"
)

// A partial result of one query over a chunk of keys is a maximum, a sum and the values summed so far.
const (
	partialMax, partialSum = 0, 1
	partialHead            = 2
)

// partial is the partial result of a row of a group over a chunk. A group are the heads that share keys and values; its
// rows are the queries of the first, then those of the second, and so on.
func (k *Plan[T]) partial(group, chunk, row int) []T {
	n := k.Dims.Width + partialHead
	return k.partials[((group*k.chunks+chunk)*k.Dims.Group*k.Dims.Queries+row)*n:][:n]
}

// place is the head and the query of a row of a group.
func (k *Plan[T]) place(group, row int) (head, query int) {
	return group*k.Dims.Group + row/k.Dims.Queries, row % k.Dims.Queries
}

// chunkTask computes the partial results of a group over a chunk of keys.
type chunkTask[T Float] Plan[T]

// Do implements pool.Task.
func (t *chunkTask[T]) Do(worker, item int) {
	k := (*Plan[T])(t)
	d, mem := k.Dims, k.scratch[worker]
	group, chunk := item/k.chunks, item%k.chunks
	rows := d.Group * d.Queries
	q := mem[k.room.q:][:rows*d.Depth]
	for r := range rows {
		head, query := k.place(group, r)
		vec.Gather(q[r*d.Depth:][:d.Depth], k.args.Q[min(k.Q.Offsets[head]+query*k.Q.RowStride, len(k.args.Q)):], k.Q.ColStride)
		p := k.partial(group, chunk, r)
		clear(p)
		p[partialMax] = T(math.Inf(-1))
	}
	multiply(q, T(k.Op.Scale))
	end := min((chunk+1)*k.chunk, k.valid(group*d.Group))
	for key := chunk * k.chunk; key < end; key += k.keys {
		k.stream(mem, group, chunk, key, min(k.keys, end-key))
	}
}

// stream adds n keys to the partial results of all rows of a group.
func (k *Plan[T]) stream(mem []T, group, chunk, key, n int) {
	d, first := k.Dims, group*k.Dims.Group
	keys := stretch[T]{operand: k.keyRows(), head: first, key: key}
	values := stretch[T]{operand: k.valueRows(), head: first, key: key}
	if len(k.halves) > 0 {
		streamTogether(k, k.halves, keys.half, values.half, mem, group, chunk, &keys, &values, n)
		return
	}
	if len(k.bytes) > 0 {
		keys.scaled, values.scaled = mem[k.room.keyScales:][:n], mem[k.room.valueScales:][:n]
		k.copyScales(keys.scaled, &keys.operand, first, key)
		k.copyScales(values.scaled, &values.operand, first, key)
		streamTogether(k, k.bytes, keys.bytes, values.bytes, mem, group, chunk, &keys, &values, n)
		return
	}
	k.open(&keys, n, mem[k.room.k:])
	k.open(&values, n, mem[k.room.v:])
	if len(k.together) > 0 {
		streamTogether(k, k.together, keys.elems(), values.elems(), mem, group, chunk, &keys, &values, n)
		return
	}
	for r := range d.Group * d.Queries {
		head, query := k.place(group, r)
		lo, hi := k.Op.Range(&d, query, k.valid(head))
		lo, hi = max(lo-key, 0), min(hi-key, n)
		if lo >= hi || k.Op.HasMask && !k.rowAttends(head, query, key+lo, key+hi) {
			continue
		}
		s := mem[k.room.s:][lo:hi]
		if d.Depth > 0 {
			k.score(s, &mem[k.room.q+r*d.Depth], &keys, lo)
		} else {
			clear(s)
		}
		k.maskRow(s, mem[k.room.mask:], head, query, key+lo)
		p := k.partial(group, chunk, r)
		k.weigh(p, s)
		if k.Op.Dropout > 0 {
			k.dropRow(s, mem[k.room.drawn:][:k.dropRoom(1)], head, query, key+lo)
		}
		if d.Width > 0 {
			k.gather(p[partialHead:], s, &values, lo)
		}
	}
}

// alike returns those of the routines for several rows of a group at once that fit, where all rows attend to the same keys, with
// the same weights but for their scores.
func alike[T Float, E any](k *Plan[T], routines []gemm.Few[T, E]) (list []gemm.Few[T, E]) {
	d := k.Dims
	if d.Queries != 1 || k.Op.HasMask || k.Op.Dropout > 0 {
		return nil
	}
	for _, f := range routines {
		if min(d.Depth, d.Width) > 0 && d.Depth%f.Lanes == 0 && d.Width%f.Lanes == 0 {
			list = append(list, f)
		}
	}
	return list
}

// streamTogether is stream for rows that are alike: each key and value is read once for several, by routines for their elements.
// Where these are integers of 8 bits, scales multiply the scores and the weights.
func streamTogether[T Float, E any](k *Plan[T], routines []gemm.Few[T, E], keyElems, valueElems []E, mem []T, group, chunk int,
	keys, values *stretch[T], n int) {
	d, key := k.Dims, keys.key
	head, _ := k.place(group, 0)
	lo, hi := k.Op.Range(&d, 0, k.valid(head))
	lo, hi = max(lo-key, 0), min(hi-key, n)
	if lo >= hi {
		return
	}
	s := mem[k.room.s:]
	for r, left := 0, routines; r < d.Group; {
		f := left[0]
		if d.Group-r < f.Vectors {
			left = left[1:]
			continue
		}
		for i := lo; i < hi; {
			at, ld, run := k.locate(keys, i, hi-i)
			f.Dots(run, d.Depth, &mem[k.room.q+r*d.Depth], d.Depth, &keyElems[at], ld, &s[i-lo], k.keys)
			i += run
		}
		for v := range f.Vectors {
			row := s[v*k.keys:][:hi-lo]
			if keys.scaled != nil {
				vec.Of[T]().MulTo(row, keys.scaled[lo:hi])
			}
			k.weigh(k.partial(group, chunk, r+v), row)
			if values.scaled != nil {
				vec.Of[T]().MulTo(row, values.scaled[lo:hi])
			}
		}
		p := k.partial(group, chunk, r) // and those of the rows after it behind it
		for i := lo; i < hi; {
			at, ld, run := k.locate(values, i, hi-i)
			f.Sums(run, d.Width, &s[i-lo], k.keys, &valueElems[at], ld, &p[partialHead], len(p))
			i += run
		}
		r += f.Vectors
	}
}

// A stretch is the keys, or the values, that a step reads: in place, page by page, or copied if their elements are not
// contiguous or have 16 or 8 bits.
type stretch[T Float] struct {
	operand[T]
	head, key  int
	sideBySide []T // the copy
	scaled     []T // the scales of rows of 8 bits that are read in place
}

// open copies the n rows of a stretch to room if necessary.
func (k *Plan[T]) open(x *stretch[T], n int, room []T) {
	if x.converted() || x.l.ColStride != 1 && x.width > 1 {
		x.sideBySide = room
		k.copyRows(room, &x.operand, x.head, x.key, n)
	}
}

// elems are the elements that a stretch reads, or none in place of those that have 16 or 8 bits.
func (x *stretch[T]) elems() []T {
	if x.sideBySide != nil {
		return x.sideBySide
	}
	return x.x
}

// locate is where the rows of a stretch are from row i on, their distance, and how many of n are contiguous.
func (k *Plan[T]) locate(x *stretch[T], i, n int) (at, ld, run int) {
	if x.sideBySide != nil {
		return i * x.width, x.width, n
	}
	at, run = k.at(&x.operand, x.head, x.key+i, n)
	return at, x.l.RowStride, run
}

// read returns the rows of a stretch of elements of type T from row i on; see locate.
func (k *Plan[T]) read(x *stretch[T], i, n int) (rows []T, ld, run int) {
	at, ld, run := k.locate(x, i, n)
	elems := x.elems()
	return elems[min(at, len(elems)):], ld, run
}

// score sets s to the products of a query with the keys from row i on.
func (k *Plan[T]) score(s []T, q *T, keys *stretch[T], i int) {
	for len(s) > 0 {
		rows, ld, run := k.read(keys, i, len(s))
		for j := range run {
			s[j] = k.micro.Dot(keys.width, q, &rows[j*ld])
		}
		s, i = s[run:], i+run
	}
}

// maskRow applies the mask to the scores of one query for the keys from first on.
func (k *Plan[T]) maskRow(s, room []T, head, query, first int) {
	if !k.Op.HasMask {
		return
	}
	at, step := k.maskAt(head, query, first), k.Mask.ColStride
	if k.Bool {
		for j := range s {
			if !k.args.Keep[at+j*step] {
				s[j] = T(math.Inf(-1))
			}
		}
		return
	}
	mask := room[:len(s)]
	vec.Gather(mask, k.args.Mask[at:], step)
	vec.Of[T]().AddTo(s, mask)
}

// weigh turns scores into exponentials and scales the partial result to the new maximum.
func (k *Plan[T]) weigh(p, s []T) {
	old := p[partialMax]
	top := max(old, vec.Of[T]().Reduce(vec.MaxOf)(s))
	c := top
	if math.IsInf(float64(top), -1) {
		c = 0
	}
	if top != old {
		scale := T(math.Exp(float64(old - c)))
		multiply(p[partialSum:], scale)
		p[partialMax] = top
	}
	p[partialSum] += vec.Of[T]().ExpSubSum()(s, s, c)
}

// gather adds the values from row i on, weighted by p, to o.
func (k *Plan[T]) gather(o, p []T, values *stretch[T], i int) {
	for len(p) > 0 {
		rows, ld, run := k.read(values, i, len(p))
		j := 0
		for ; j+4 <= run; j += 4 {
			k.micro.Axpy4(len(o), &p[j], &rows[j*ld], ld, &o[0])
		}
		for ; j < run; j++ {
			vec.Of[T]().Axpy(o, rows[j*ld:][:len(o)], p[j])
		}
		p, i = p[run:], i+run
	}
}

// combineTask combines the partial results of a group, in the order of the keys.
type combineTask[T Float] Plan[T]

// Do implements pool.Task.
func (t *combineTask[T]) Do(_, group int) {
	k := (*Plan[T])(t)
	for r := range k.Dims.Group * k.Dims.Queries {
		sum := k.partial(group, 0, r)
		for chunk := 1; chunk < k.chunks; chunk++ {
			merge(sum, k.partial(group, chunk, r))
		}
		head, query := k.place(group, r)
		k.setLSE(head, query, sum[partialMax], sum[partialSum])
		o := sum[partialHead:]
		multiply(o, k.inverse(sum[partialSum]))
		if len(o) > 0 {
			vec.Scatter(k.args.Out[k.Out.Offsets[head]+query*k.Out.RowStride:], k.Out.ColStride, o)
		}
	}
}

// merge adds a partial result to another.
func merge[T Float](to, from []T) {
	low := T(math.Inf(-1))
	a, b := to[partialMax], from[partialMax]
	if b == low {
		return
	}
	top := max(a, b)
	if a != top {
		multiply(to[partialSum:], T(math.Exp(float64(a-top))))
	}
	to[partialMax] = top
	vec.Of[T]().Axpy(to[partialSum:], from[partialSum:], T(math.Exp(float64(b-top))))
}
