package moe

import (
	"fusec/graph"
	"fusec/kernels/cpu/vec"
)

// The hidden values that are kept for the weights' gradients.
const (
	keptH = iota
	keptDU
	keptDV
)

// keep is the memory for a segment's hidden values of a chunk, a matrix of rows×width.
func (k *Plan[T]) keep(which int, s *segment, chunk, width int) []T {
	return k.h[which][s.row*k.padded+s.rows*chunk*k.chunk:][:s.rows*width]
}

// backward computes a part of dx and of the gate's gradient for each token, and the hidden values' gradients.
func (b *block[T]) backward() {
	d := b.Dims
	x, dy := b.mem[b.room.x:][:b.rows*d.Width], b.mem[b.room.dy:][:b.rows*d.Result]
	b.gather(x, b.args.X, b.X.Offsets, b.X.ColStride, d.Width, b.operands[inU].kc)
	b.gather(dy, b.args.Y, b.Y.Offsets, b.Y.ColStride, d.Result, b.operands[inDA].kc)
	dgate := b.dgate[b.slot:][:len(b.tokens)]
	b.biasGate(dgate)
	for c := b.c0; c < b.c1; c++ {
		b.turnTo(c)
		w := b.width()
		kept := func(which int) []T { return b.keep(which, b.s, c, w)[b.at*w:][:b.rows*w] }
		u := b.linear(b.room.u, x, inU, graph.MoEB1)
		h, du := kept(keptH), kept(keptDU)
		var v, dv []T
		if b.Op.Gated {
			v, dv = b.linear(b.room.v, x, inV, graph.MoEB3), kept(keptDV)
		}
		da := b.mem[b.room.da:][:b.rows*w]
		b.into(da, dy, inDA, false)
		b.hidden.Backward(b.worker, u, v, da, h, du, dv)
		b.weigh(dgate, w, u, v, da, h, du, dv)
		b.project(outDU, du, c > b.c0)
		if b.Op.Gated {
			b.project(outDV, dv, true)
		}
	}
	if b.c0 == b.c1 {
		clear(b.y)
	}
}

// biasGate initialises the gates' gradients with dy·b2.
func (b *block[T]) biasGate(dgate []T) {
	clear(dgate)
	n := b.Dims.Result
	if !b.Op.Bias || b.part > 0 || n == 0 {
		return
	}
	bias, row := b.mem[b.room.stage:][:n], b.mem[b.room.stage+n:][:n]
	vec.Gather(bias, b.args.Weights[graph.MoEB2][b.s.expert], b.Weights[graph.MoEB2][b.s.expert].ColStride)
	for i, t := range b.tokens {
		vec.Gather(row, b.args.Y[b.Y.Offsets[t]:], b.Y.ColStride)
		dgate[i] = b.code.Dot()(row, bias)
	}
}

// weigh adds h·da to the gates' gradients, and multiplies du and dv by the gates.
func (b *block[T]) weigh(dgate []T, w int, u, v, da, h, du, dv []T) {
	dot, mul, n := b.code.Dot(), b.code.BinaryVS(graph.Mul), b.end-b.first
	for i, t := range b.tokens {
		row := func(of []T) []T {
			if of == nil {
				return nil
			}
			return of[i*w:][:n]
		}
		g, product := b.gate(t, b.s.expert), dot(row(h), row(da))
		if g-g != 0 || product-product != 0 {
			dgate[i] += b.gateFirst(t, g, row(h), row(da))
			b.hidden.Backward(b.worker, row(u), row(v), row(da), row(h), row(du), row(dv))
			continue
		}
		dgate[i] += product
		mul(row(du), row(du), g)
		if dv != nil {
			mul(row(dv), row(dv), g)
		}
	}
}

// gateFirst sets da to (g·dy)·w2ᵀ and returns dy·(h·w2), for a token whose h·(dy·w2ᵀ) or gate is not finite. In this
// order a small gate or h keeps the terms in range, a derivative of 0 gives a gradient of 0, and there are no terms if
// results have no elements.
func (b *block[T]) gateFirst(token int32, g T, h, da []T) (dgate T) {
	clear(da)
	w2 := &b.Weights[graph.MoEW2][b.s.expert]
	weights := b.args.Weights[graph.MoEW2][b.s.expert]
	for c := range b.Dims.Result {
		dy, y := b.args.Y[b.Y.Offsets[token]+c*b.Y.ColStride], T(0)
		for j := range da {
			m := weights[(b.first+j)*w2.RowStride+c*w2.ColStride]
			da[j] += g * dy * m
			y += h[j] * m
		}
		dgate += dy * y
	}
	return dgate
}

// wanted reports whether a weight's gradient has to be written.
func (k *Plan[T]) wanted(w graph.MoEWeight, expert int) bool {
	return len(k.DWeights[w]) > 0 && len(k.args.DWeights[w][expert]) > 0
}

// clearUnused adds the clearing of the gradients of experts without tokens.
func (k *Plan[T]) clearUnused() {
	for e, n := range k.routes.counts {
		for w := graph.MoEW1; w <= graph.MoEB2; w++ {
			if n == 0 && k.wanted(w, e) {
				k.jobs = append(k.jobs, job{kind: jobClear, weight: w, expert: e})
			}
		}
	}
}

func (k *Plan[T]) clear(j *job) {
	l, dst := k.DWeights[j.weight][j.expert], k.args.DWeights[j.weight][j.expert]
	rows, cols := k.sizeOf(j.weight)
	for i := range rows {
		clearRow(dst[i*l.RowStride:], l.ColStride, cols)
	}
}

// sizeOf is the rows and columns of a weight, or one row of a bias.
func (k *Plan[T]) sizeOf(w graph.MoEWeight) (rows, cols int) {
	switch d := k.Dims; w {
	case graph.MoEW1, graph.MoEW3:
		return d.Width, d.Hidden
	case graph.MoEB1, graph.MoEB3:
		return 1, d.Hidden
	case graph.MoEW2:
		return d.Hidden, d.Result
	default:
		return 1, d.Result
	}
}
