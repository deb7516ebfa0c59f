package moe

import (
	"fusec/graph"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/tiling"
	"fusec/kernels/cpu/vec"
)

// addOuter adds the weights' gradients of a segment. Blocks of w1 and w3 are some rows by a chunk of columns, those of
// w2 a chunk of rows by some columns.
func (k *Plan[T]) addOuter(s *segment) {
	for _, w := range []graph.MoEWeight{graph.MoEW1, graph.MoEW3, graph.MoEW2} {
		wide := k.Dims.Width
		if w == graph.MoEW2 {
			wide = k.Dims.Result
		}
		if !k.wanted(w, s.expert) && !k.wanted(w+1, s.expert) {
			continue
		}
		for c := range max(k.chunks, 1) {
			for at := 0; at == 0 || at < wide; at += outerMax {
				k.jobs = append(k.jobs, job{kind: jobOuter, cost: s.n, segment: s, weight: w, i: c, j: at})
			}
		}
	}
}

// An outer is the state of a work item for a block of a weight's gradient: the product, over the tokens of a segment,
// of rows of x with the gradients of hidden values, or of hidden values with rows of gate·dy. A bias's gradient is the
// sum of the latter.
type outer[T Float] struct {
	*Plan[T]
	mem    []T
	s      *segment
	tokens []int32
	second bool // it is w2's
	weight graph.MoEWeight
	left   []T // operands of the current tokens, from the first one's row on, and the distances of rows
	right  []T
	ldl    int
	ldr    int
	m, n   int // their columns
}

func (k *Plan[T]) outer(worker int, j *job) {
	s := j.segment
	o := outer[T]{Plan: k, mem: k.scratch[worker], s: s, tokens: k.routes.tokens(s), weight: j.weight,
		second: j.weight == graph.MoEW2}
	first, at := j.i*k.chunk, j.j
	hidden := min(k.chunk, k.Dims.Hidden-first)
	width := tiling.RoundUp(hidden, k.micro.NR)
	wide := min(outerMax, k.Dims.Width-at)
	which := keptDU
	switch {
	case o.second:
		wide, which = min(outerMax, k.Dims.Result-at), keptH
	case j.weight == graph.MoEW3:
		which = keptDV
	}
	kept := k.keep(which, s, j.i, width)
	row, col, biased := at, first, at == 0
	o.m, o.n = wide, hidden
	if o.second {
		row, col, biased = first, at, j.i == 0
		o.m, o.n = hidden, wide
	}
	biased = biased && k.wanted(j.weight+1, s.expert)
	product := o.m > 0 && o.n > 0 && k.wanted(j.weight, s.expert)
	sums := o.mem[k.room.sums:][:o.n]
	clear(sums)
	c, ldc := o.mem[k.room.c:], tiling.RoundUp(o.n, k.micro.NR)
	step := evenly(s.n, reductionMax, 1)
	for k0 := 0; k0 < s.n; k0 += step {
		kc := min(step, s.n-k0)
		rows := o.gather(k0, kc, at, wide)
		if o.second {
			o.left, o.ldl, o.right, o.ldr = kept[k0*width:], width, rows, wide
		} else {
			o.left, o.ldl, o.right, o.ldr = rows, wide, kept[k0*width:], width
		}
		if product {
			o.multiply(c, ldc, kc, k0 > 0)
		}
		if biased {
			o.sum(sums, kc)
		}
	}
	if product {
		o.store(c, ldc, row, col)
	}
	if biased {
		l := k.DWeights[j.weight+1][s.expert]
		o.put(k.args.DWeights[j.weight+1][s.expert][col*l.ColStride:], l.ColStride, sums)
	}
}

// gather lists columns at to at+wide of the rows of kc tokens from k0 on: of x, or of dy times the gates.
func (o *outer[T]) gather(k0, kc, at, wide int) []T {
	rows := o.mem[o.room.rows:][:kc*wide]
	if wide == 0 {
		return rows
	}
	src, l := o.args.X, &o.X
	if o.second {
		src, l = o.args.Y, &o.Y
	}
	mul := o.code.BinaryVS(graph.Mul)
	for i, t := range o.tokens[k0:][:kc] {
		row := rows[i*wide:][:wide]
		vec.Gather(row, src[l.Offsets[t]+at*l.ColStride:], l.ColStride)
		if o.second {
			mul(row, row, o.gate(t, o.s.expert))
		}
	}
	return rows
}

// multiply sets c to the product of kc tokens, or adds it.
func (o *outer[T]) multiply(c []T, ldc, kc int, add bool) {
	mr, nr := o.micro.MR, o.micro.NR
	a, b := o.mem[o.room.a:], o.mem[o.room.b:]
	gemm.Pack(a, mr, kc, o.m, o.left, o.ldl, 1)
	gemm.Pack(b, nr, kc, o.n, o.right, o.ldr, 1)
	for col := 0; col < o.n; col += nr {
		o.micro.Tile(tiling.CeilDiv(o.m, mr), kc, &a[0], &b[col*kc], &c[col], ldc, add)
	}
}

// sum adds up kc rows of the right operand.
func (o *outer[T]) sum(sums []T, kc int) {
	part := o.mem[o.room.sums+outerMax:][:o.n]
	clear(part)
	for i := range kc {
		o.code.AddTo(part, o.right[i*o.ldr:][:o.n])
	}
	o.code.AddTo(sums, part)
}

// store writes the block to the gradient, or adds it if the expert had another segment before.
func (o *outer[T]) store(c []T, ldc, row, col int) {
	l := o.DWeights[o.weight][o.s.expert]
	dst := o.args.DWeights[o.weight][o.s.expert]
	for i := range o.m {
		o.put(dst[(row+i)*l.RowStride+col*l.ColStride:], l.ColStride, c[i*ldc:][:o.n])
	}
}

// put writes or adds elements, stride apart.
func (o *outer[T]) put(dst []T, stride int, x []T) {
	if o.s.from > 0 {
		o.addRow(dst, stride, x, 1)
		return
	}
	vec.Scatter(dst, stride, x)
}
