package moe

import (
	"fusec/graph"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/tiling"
)

// strides are those of an operand's reduction and columns, for one expert.
func (k *Plan[T]) strides(o *operand, expert int) (kStride, nStride int) {
	l := &k.Weights[o.weight][expert]
	if o.trans {
		return l.ColStride, l.RowStride
	}
	return l.RowStride, l.ColStride
}

// packInto packs kc steps of the reduction from k0, and n columns from col, of an expert's operand.
func (k *Plan[T]) packInto(dst []T, o *operand, expert, k0, kc, col, n int) {
	nr := k.micro.NR
	ks, ns := k.strides(o, expert)
	gemm.Pack(dst[:gemm.PackedLen(nr, kc, n)], nr, kc, n, k.args.Weights[o.weight][expert][k0*ks+col*ns:], ks, ns)
}

// panels is the packed panels of an operand in a home, from column col on.
func (k *Plan[T]) panels(o *operand, home, k0, kc, col int) []T {
	return k.pack[home*k.packed+o.at+k0*tiling.RoundUp(o.n, k.micro.NR)+col*kc:]
}

// addPacking adds the packing of a segment's weights. A piece is a block of the reduction times some columns.
func (k *Plan[T]) addPacking(s *segment) {
	for i := range k.operands {
		o := &k.operands[i]
		if o.weight == graph.MoEW3 && !k.Op.Gated {
			continue
		}
		n := tiling.CeilDiv(o.k, o.kc) * tiling.CeilDiv(o.n, k.piece)
		for piece := range n {
			k.jobs = append(k.jobs, job{kind: jobPack, expert: s.expert, i: i, j: s.home, n: piece})
		}
	}
}

// packPiece does a job of addPacking.
func (k *Plan[T]) packPiece(j *job) {
	o := &k.operands[j.i]
	across := tiling.CeilDiv(o.n, k.piece)
	k0, col := j.n/across*o.kc, j.n%across*k.piece
	kc, n := min(o.kc, o.k-k0), min(k.piece, o.n-col)
	k.packInto(k.panels(o, j.j, k0, kc, col), o, j.expert, k0, kc, col, n)
}
