package moe

import (
	"fusec/graph"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/tiling"
	"fusec/kernels/cpu/vec"
)

// A block is the state of a work item: some tokens of one expert, and a part of its hidden columns.
type block[T Float] struct {
	*Plan[T]
	worker     int
	mem        []T
	s          *segment
	tokens     []int32
	at, part   int // first row in the segment, part of the hidden columns
	rows       int // in whole panels, or the tokens if few
	few        bool
	slot       int // first row of slots
	y          []T // slots
	c0, c1     int // chunks
	first, end int // of the current hidden columns
}

func (k *Plan[T]) block(worker int, j *job) block[T] {
	s := j.segment
	b := block[T]{Plan: k, worker: worker, mem: k.scratch[worker], s: s, at: j.i, part: j.j}
	b.tokens = k.routes.tokens(s)[j.i:min(j.i+s.block, s.n)]
	b.rows, b.few = tiling.RoundUp(len(b.tokens), k.micro.MR), s.home == streamed
	if b.few {
		b.rows = len(b.tokens)
	}
	b.slot = s.slot + b.part*s.rows + b.at
	b.y = k.slots[b.slot*k.ld:][:b.rows*k.ld]
	b.c0, b.c1 = b.part*k.chunks/k.parts, (b.part+1)*k.chunks/k.parts
	return b
}

// forward computes a part of the network's result for each token.
func (b *block[T]) forward() {
	d := b.Dims
	x := b.mem[b.room.x:][:b.rows*d.Width]
	b.gather(x, b.args.X, b.X.Offsets, b.X.ColStride, d.Width, b.operands[inU].kc)
	started := b.start(b.y, b.ld, graph.MoEB2, 0, d.Result, b.part == 0)
	for c := b.c0; c < b.c1; c++ {
		b.turnTo(c)
		u := b.linear(b.room.u, x, inU, graph.MoEB1)
		var v []T
		if b.Op.Gated {
			v = b.linear(b.room.v, x, inV, graph.MoEB3)
		}
		b.hidden.Forward(b.worker, u, v)
		b.project(outY, u, started || c > b.c0)
	}
	if b.c0 == b.c1 && !started {
		clear(b.y)
	}
}

// turnTo selects a chunk of the hidden columns.
func (b *block[T]) turnTo(c int) {
	b.first = c * b.chunk
	b.end = min(b.first+b.chunk, b.Dims.Hidden)
}

// width is that of the current chunk, in whole panels.
func (b *block[T]) width() int { return tiling.RoundUp(b.end-b.first, b.micro.NR) }

// gather packs the block's rows of width elements into panels of MR, in blocks of kc steps. Few rows stay rows.
func (b *block[T]) gather(dst, src []T, offsets []int, stride, width, kc int) {
	if width == 0 {
		return
	}
	if b.few {
		for i, t := range b.tokens {
			vec.Gather(dst[i*width:][:width], src[offsets[t]:], stride)
		}
		return
	}
	mr := b.micro.MR
	stage := b.mem[b.room.stage:][:mr*width]
	for r := 0; r < len(b.tokens); r += mr {
		tokens := b.tokens[r:min(r+mr, len(b.tokens))]
		for i, t := range tokens {
			vec.Gather(stage[i*width:][:width], src[offsets[t]:], stride)
		}
		for k0 := 0; k0 < width; k0 += kc {
			n := min(kc, width-k0)
			gemm.Pack(dst[k0*b.rows+r*n:], mr, n, len(tokens), stage[k0:], 1, width)
		}
	}
}

// start fills the rows of c with a bias, columns from on, and reports whether it did.
func (b *block[T]) start(c []T, ld int, bias graph.MoEWeight, from, n int, wanted bool) bool {
	if !b.Op.Bias || !wanted {
		return false
	}
	if n == 0 {
		return true
	}
	stride := b.Weights[bias][b.s.expert].ColStride
	row := c[:n]
	vec.Gather(row, b.args.Weights[bias][b.s.expert][from*stride:], stride)
	for i := ld; i < len(c); i += ld {
		copy(c[i:][:n], row)
	}
	return true
}

// linear is the chunk's hidden values x·w + bias, in scratch from element at on.
func (b *block[T]) linear(at int, x []T, operand int, bias graph.MoEWeight) []T {
	w := b.width()
	c := b.mem[at:][:b.rows*w]
	started := b.start(c, w, bias, b.first, b.end-b.first, true)
	b.into(c, x, operand, started)
	return c
}

// into sets c to the product of x, packed as gather does, with the chunk's columns of an operand, or adds it.
func (b *block[T]) into(c, x []T, operand int, add bool) {
	o := &b.operands[operand]
	if o.k == 0 && !add {
		clear(c)
	}
	if b.few {
		b.stream(c, b.width(), x, o.k, o, 0, o.k, b.first, b.end, add)
		return
	}
	for k0 := 0; k0 < o.k; k0 += o.kc {
		kc := min(o.kc, o.k-k0)
		b.multiply(c, b.width(), x[k0*b.rows:], o, k0, kc, b.first, b.end, add || k0 > 0)
	}
}

// project sets the slots to the product of h with the chunk's rows of an operand, or adds it.
func (b *block[T]) project(operand int, h []T, add bool) {
	o, n := &b.operands[operand], b.end-b.first
	if b.few {
		b.stream(b.y, b.ld, h, b.width(), o, b.first, n, 0, o.n, add)
		return
	}
	a := b.mem[b.room.h:][:b.rows*n]
	gemm.Pack(a, b.micro.MR, n, b.rows, h, 1, b.width())
	b.multiply(b.y, b.ld, a, o, b.first, n, 0, o.n, add)
}

// multiply sets c to the product of packed rows with kc steps from k0, columns from to end, of an operand, or adds it.
func (b *block[T]) multiply(c []T, ldc int, a []T, o *operand, k0, kc, from, end int, add bool) {
	nr := b.micro.NR
	step := end - from
	if b.s.home == private {
		step = b.piece
	}
	for col := from; col < end; col += step {
		n := min(step, end-col)
		var w []T
		if b.s.home == private {
			w = b.mem[b.room.piece:]
			b.packInto(w, o, b.s.expert, k0, kc, col, n)
		} else {
			w = b.panels(o, b.s.home, k0, kc, col)
		}
		for j := 0; j < n; j += nr {
			b.micro.Tile(b.rows/b.micro.MR, kc, &a[0], &w[j*kc], &c[col-from+j], ldc, add)
		}
	}
}
