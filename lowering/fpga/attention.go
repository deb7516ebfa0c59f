package fpga

import (
	"fmt"

	"fusec/fpga/isa"
)

// attention emits one head after the other. A head's keys and values stay in W if they fit together with the next
// head's; otherwise they are loaded chunk by chunk for each block of queries.
func (a *assembler) attention(t *task) {
	c, h := a.cfg, t.heads
	d := h.dims
	dim := d.Depth / c.WordBytes // words of a row
	bytes := 1
	if h.out.v.wide {
		bytes = 2
	}
	// Words of W that n keys take, a multiple of the block unless they are the last.
	need := func(n int) int { return ceil(n, c.Cols)*dim + d.Depth/c.Cols*ceil(n, c.WordBytes) }
	chunk := d.Keys
	if need(chunk) > c.WWords/2 {
		chunk = c.KeyBlock
		for need(2*chunk) <= c.WWords/2 {
			chunk *= 2
		}
	}
	if need(chunk) > c.WWords { // a single block has to fit alone
		a.err = fmt.Errorf("attention over %d keys at a time takes %d words of W: the overlay has %d", chunk,
			need(chunk), c.WWords)
		return
	}
	block := c.QPanels
	for block > 1 && (2*block*dim > c.XWords || 2*block*dim*bytes > c.YWords) {
		block /= 2
	}
	type keys struct{ k, v, from, n, vPanel int }
	bring := func(batch, head, from int) keys {
		n := min(chunk, d.Keys-from)
		k := keys{from: from, n: n, vPanel: ceil(n, c.WordBytes)}
		k.k = a.take(isa.SpaceW, need(n))
		k.v = k.k + ceil(n, c.Cols)*dim
		a.load(isa.SpaceW, a.in(h.k.part(batch, head)), from, n, 0, dim, k.k, dim)
		a.load(isa.SpaceW, a.in(h.v.part(batch, head)), 0, d.Depth, from/c.WordBytes, k.vPanel, k.v, k.vPanel)
		return k
	}
	panels := ceil(d.Queries, c.Rows)
	for batch := range d.Batch.Elems() {
		for head := range d.Heads {
			var kept *keys
			q, to := a.in(h.q.part(batch, head)), a.in(h.out.part(batch, head))
			for from := 0; from < panels; from += block {
				n := min(block, panels-from)
				row := from * c.Rows
				rowsN := min(n*c.Rows, d.Queries-row)
				x := a.take(isa.SpaceX, n*dim)
				a.load(isa.SpaceX, q, row, rowsN, 0, dim, x, dim)
				y := a.take(isa.SpaceY, n*dim*bytes)
				diagonal := row + d.Keys - d.Queries // of the first query, among all keys
				seen := d.Keys
				if h.op.Causal {
					seen = max(1, min(seen, diagonal+n*c.Rows))
				}
				for at := 0; at < seen; at += chunk {
					var k keys
					if kept != nil {
						k = *kept
					} else {
						k = bring(batch, head/d.Group, at)
						if chunk >= d.Keys {
							kept = &k
						}
					}
					a.emit(&isa.Attention{First: at == 0, Last: at+chunk >= seen, Wide: h.out.v.wide, Causal: h.op.Causal,
						Space: isa.SpaceY, X: uint16(x), QPanel: uint16(dim), K: uint16(k.k), V: uint16(k.v),
						VPanel: uint16(k.vPanel), Dim: uint8(dim), QPanels: uint8(n), Keys: uint16(k.n), Base: uint16(y),
						Panel: uint16(dim * bytes), Diagonal: int32(diagonal - at), ScoreMul: t.codes.scoreMul, ScoreSh: t.codes.scoreSh,
						OutMul: t.codes.outMul, OutSh: t.codes.outSh})
				}
				a.store(to, row, rowsN, 0, dim*bytes, y, dim*bytes)
			}
		}
	}
}
