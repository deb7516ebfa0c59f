package gemm

import "unsafe"

// The portable kernel keeps a block of 4×4 in scalar variables, which the
// compiler puts into registers where the processor has enough of them.
const (
	portableMR = 4
	portableNR = 4
)

func portable[T Float]() *kernel[T] {
	return &kernel[T]{
		name: "portable", mr: portableMR, nr: portableNR,
		tile: tilePortable[T], pack: packPortable[T], dot: dotPortable[T], axpy4: axpy4Portable[T],
		gather: []gatherPanel[T]{{portableNR, portableMR, []gatherTile[T]{gatherPortable[T]}}},
	}
}

// gatherPortable has the block of tilePortable.
func gatherPortable[T Float](pieces *int, n int, rows *int, a, b *T, _ int, c *T, ldc, height, cols int, accumulate bool,
	finish *int) {
	at := unsafe.Slice(rows, portableMR)
	list, steps := unsafe.Slice((*Piece)(unsafe.Pointer(pieces)), n), 0
	for _, piece := range list {
		steps += piece.Len
	}
	bs := unsafe.Slice(b, steps*portableNR)
	var sums [portableMR * portableNR]T
	for _, piece := range list {
		row := func(i int) []T {
			return unsafe.Slice((*T)(unsafe.Add(unsafe.Pointer(a), (at[i]+piece.At)*int(unsafe.Sizeof(*a)))), piece.Len)
		}
		gatherPiece(&sums, row(0), row(1), row(2), row(3), bs)
		bs = bs[piece.Len*portableNR:]
	}
	cs := unsafe.Slice(c, (height-1)*ldc+cols)
	for i := range height {
		for j := range cols {
			s := sums[i*portableNR+j]
			if accumulate {
				s += cs[i*ldc+j]
			}
			cs[i*ldc+j] = s
		}
	}
	if finish != nil {
		(*Finish[T])(unsafe.Pointer(finish)).Apply(c, ldc, height, cols)
	}
}

// gatherPiece adds the product of a piece of four rows and a panel of B.
func gatherPiece[T Float](sums *[portableMR * portableNR]T, r0, r1, r2, r3, b []T) {
	s00, s01, s02, s03 := sums[0], sums[1], sums[2], sums[3]
	s10, s11, s12, s13 := sums[4], sums[5], sums[6], sums[7]
	s20, s21, s22, s23 := sums[8], sums[9], sums[10], sums[11]
	s30, s31, s32, s33 := sums[12], sums[13], sums[14], sums[15]
	for k, a0 := range r0 {
		a1, a2, a3 := r1[k], r2[k], r3[k]
		b0, b1, b2, b3 := b[0], b[1], b[2], b[3]
		s00, s01, s02, s03 = s00+a0*b0, s01+a0*b1, s02+a0*b2, s03+a0*b3
		s10, s11, s12, s13 = s10+a1*b0, s11+a1*b1, s12+a1*b2, s13+a1*b3
		s20, s21, s22, s23 = s20+a2*b0, s21+a2*b1, s22+a2*b2, s23+a2*b3
		s30, s31, s32, s33 = s30+a3*b0, s31+a3*b1, s32+a3*b2, s33+a3*b3
		b = b[portableNR:]
	}
	*sums = [portableMR * portableNR]T{s00, s01, s02, s03, s10, s11, s12, s13, s20, s21, s22, s23, s30, s31, s32, s33}
}

func tilePortable[T Float](tiles, kc int, a, b, c *T, ldc int, accumulate bool) {
	as := unsafe.Slice(a, tiles*kc*portableMR)
	bs := unsafe.Slice(b, kc*portableNR)
	cs := unsafe.Slice(c, (tiles*portableMR-1)*ldc+portableNR)
	for t := range tiles {
		blockPortable(as[t*kc*portableMR:][:kc*portableMR], bs, cs[t*portableMR*ldc:], ldc, accumulate)
	}
}

// blockPortable computes one block from a panel of A and a panel of B.
func blockPortable[T Float](a, b, c []T, ldc int, accumulate bool) {
	var s00, s01, s02, s03, s10, s11, s12, s13, s20, s21, s22, s23, s30, s31, s32, s33 T
	for len(a) >= portableMR && len(b) >= portableNR {
		a0, a1, a2, a3 := a[0], a[1], a[2], a[3]
		b0, b1, b2, b3 := b[0], b[1], b[2], b[3]
		s00, s01, s02, s03 = s00+a0*b0, s01+a0*b1, s02+a0*b2, s03+a0*b3
		s10, s11, s12, s13 = s10+a1*b0, s11+a1*b1, s12+a1*b2, s13+a1*b3
		s20, s21, s22, s23 = s20+a2*b0, s21+a2*b1, s22+a2*b2, s23+a2*b3
		s30, s31, s32, s33 = s30+a3*b0, s31+a3*b1, s32+a3*b2, s33+a3*b3
		a, b = a[portableMR:], b[portableNR:]
	}
	rows := [portableMR][portableNR]T{
		{s00, s01, s02, s03}, {s10, s11, s12, s13}, {s20, s21, s22, s23}, {s30, s31, s32, s33},
	}
	for i := range rows {
		row := c[i*ldc:][:portableNR]
		for j, s := range rows[i] {
			if accumulate {
				s += row[j]
			}
			row[j] = s
		}
	}
}

// dotPortable keeps four sums, to shorten the chain of additions.
func dotPortable[T Float](n int, x, y *T) T {
	xs, ys := unsafe.Slice(x, n), unsafe.Slice(y, n)
	var s0, s1, s2, s3 T
	for len(xs) >= 4 && len(ys) >= 4 {
		s0, s1, s2, s3 = s0+xs[0]*ys[0], s1+xs[1]*ys[1], s2+xs[2]*ys[2], s3+xs[3]*ys[3]
		xs, ys = xs[4:], ys[4:]
	}
	s := (s0 + s1) + (s2 + s3)
	for i := range xs {
		s += xs[i] * ys[i]
	}
	return s
}

func axpy4Portable[T Float](n int, alpha, x *T, stride int, y *T) {
	as := unsafe.Slice(alpha, 4)
	xs := unsafe.Slice(x, 3*stride+n)
	x0, x1, x2, x3 := xs[:n], xs[stride:][:n], xs[2*stride:][:n], xs[3*stride:][:n]
	ys := unsafe.Slice(y, n)
	for i, s := range ys {
		s += as[0] * x0[i]
		s += as[1] * x1[i]
		s += as[2] * x2[i]
		s += as[3] * x3[i]
		ys[i] = s
	}
}
