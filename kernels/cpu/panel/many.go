package panel

import (
	"unsafe"

	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/tiling"
)

// A product of many rows unpacks a piece of a panel once for all rows of an item, times its scales, and multiplies by the routines
// of products of float32. The rows are packed as these read them: pieces of the reduction, each [tiles][rows of the piece][MR].

// packedItem is the number of elements of the packed rows of an item.
func (p *Plan) packedItem() int {
	return p.octets * steps * tiling.RoundUp(min(p.cfg.M, most), p.micro.MR)
}

// unpacked is the number of elements of a piece of a panel, and of the sums of the rows of an item.
func (p *Plan) unpacked() int {
	return columns * (min(pieceRows, p.octets*steps) + tiling.RoundUp(min(p.cfg.M, most), p.micro.MR))
}

// packMany packs the rows of an item, from row to end.
func (p *Plan) packMany(row, end int) {
	to, n := p.run0(row), end-row
	for from := 0; from < p.octets*steps; from += pieceRows {
		depth := min(pieceRows, p.octets*steps-from)
		size := gemm.PackedLen(p.micro.MR, depth, n)
		piece := to[:size]
		to = to[size:]
		if have := min(depth, p.cfg.K-from); have == depth {
			gemm.Pack(piece, p.micro.MR, depth, n, p.run.x[row*p.cfg.LDX+from:], 1, p.cfg.LDX)
		} else { // the last octet is filled up
			clear(piece)
			for r := range n {
				for i, v := range p.run.x[(row+r)*p.cfg.LDX+from:][:have] {
					piece[(r/p.micro.MR*depth+i)*p.micro.MR+r%p.micro.MR] = v
				}
			}
		}
	}
}

// run0 is the memory of the packed rows of the item that begins with a row.
func (p *Plan) run0(row int) []float32 { return p.x[row/most*p.packedItem():][:p.packedItem()] }

// many computes rows row to end of the columns of a panel, whose blocks have scales lds elements apart, and offsets ldo elements
// apart. mem is room of the worker.
func (p *Plan) many(mem []float32, panel, row, end int, scale *float32, lds int, offset *float32, ldo int) {
	col, n := panel*columns, end-row
	cols, tiles := min(columns, p.cfg.N-col), tiling.CeilDiv(n, p.micro.MR)
	weights, y := mem[:columns*min(pieceRows, p.octets*steps)], mem[columns*min(pieceRows, p.octets*steps):]
	x, each, block := p.run0(row), p.bytes/max(p.octets, 1), p.cfg.Block/steps
	clear(y[:n*columns])
	for from := 0; from < p.octets; from += pieceRows / steps {
		octets := min(pieceRows/steps, p.octets-from)
		half := 4 * 16 // bytes from a row's first columns to the second, which are in a panel of their own if panels have 16
		if p.micro.NR < columns {
			half *= octets * steps
		}
		for o := from; o < from+octets; {
			b := o / block
			same := min((b+1)*block, from+octets) - o // octets with these scales
			p.unpack(same, &p.run.q[panel*p.bytes+o*each], (*float32)(unsafe.Add(unsafe.Pointer(scale), 4*b*lds)),
				(*float32)(unsafe.Add(unsafe.Pointer(offset), 4*b*ldo)), &weights[(o-from)*steps*p.micro.NR], 4*p.micro.NR, half)
			o += same
		}
		for j := 0; j < columns; j += p.micro.NR {
			p.micro.Tile(tiles, octets*steps, &x[0], &weights[j*octets*steps], &y[j], columns, true)
		}
		x = x[gemm.PackedLen(p.micro.MR, octets*steps, n):]
	}
	for r := range n {
		copy(p.run.c[(row+r)*p.cfg.LDC+col:][:cols], y[r*columns:])
	}
}
