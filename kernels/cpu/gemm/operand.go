package gemm

import "fusec/kernels/cpu/tiling"

// packA packs rows row to row+rows, reduction steps k0 to k0+kc, of A.
func (p *Plan[T]) packA(worker int, dst []T, batch, row, rows, k0, kc int) {
	mr := p.kern.mr
	dst = dst[:PackedLen(mr, kc, rows)]
	if p.cfg.PackA != nil {
		p.cfg.PackA.Pack(worker, dst, Block{Batch: batch, K0: k0, K: kc, N0: row, N: rows, Width: mr})
		return
	}
	l := &p.cfg.A
	src := p.run.a[l.at(batch)+row*l.RowStride+k0*l.ColStride:]
	p.kern.pack(dst, mr, kc, rows, src, l.ColStride, l.RowStride)
}

// packB packs columns col to col+cols, reduction steps k0 to k0+kc, of B.
func (p *Plan[T]) packB(worker int, dst []T, batch, col, cols, k0, kc int) {
	nr := p.kern.nr
	dst = dst[:PackedLen(nr, kc, cols)]
	if p.cfg.PackB != nil {
		p.cfg.PackB.Pack(worker, dst, Block{Batch: batch, K0: k0, K: kc, N0: col, N: cols, Width: nr})
		return
	}
	l := &p.cfg.B
	src := p.run.b[l.at(batch)+k0*l.RowStride+col*l.ColStride:]
	p.kern.pack(dst, nr, kc, cols, src, l.RowStride, l.ColStride)
}

// multiply computes a tile of C, whose first element is c[0], from a packed
// block of A and the packed panels of B, which are kc steps long, or the whole reduction if they are prepacked. It adds to C if
// accumulate.
func (p *Plan[T]) multiply(a, b, c, edge []T, rows, cols, kc int, accumulate bool) {
	mr, nr, ldc := p.kern.mr, p.kern.nr, p.cfg.C.RowStride
	full, steps := rows/mr, kc
	if p.cfg.Prepacked != nil {
		steps = p.cfg.K
	}
	for col := 0; col < cols; col += nr {
		panel := &b[col*steps]
		if cols-col < nr { // too narrow for the kernel to store
			p.tile(tiling.CeilDiv(rows, mr), kc, &a[0], panel, &edge[0], nr, false)
			merge(c[col:], ldc, edge, nr, rows, cols-col, accumulate)
			continue
		}
		if full > 0 {
			p.tile(full, kc, &a[0], panel, &c[col], ldc, accumulate)
		}
		if done := full * mr; done < rows { // too low
			p.tile(1, kc, &a[done*kc], panel, &edge[0], nr, false)
			merge(c[done*ldc+col:], ldc, edge, nr, rows-done, nr, accumulate)
		}
	}
}

// merge copies or adds rows×cols elements of a tile to C. The sum is rounded
// as the kernel does it, so an element has the same bits at any position.
func merge[T Float](c []T, ldc int, tile []T, ld, rows, cols int, accumulate bool) {
	for i := range rows {
		to, from := c[i*ldc:][:cols], tile[i*ld:][:cols]
		if !accumulate {
			copy(to, from)
			continue
		}
		for j, v := range from {
			to[j] += v
		}
	}
}
