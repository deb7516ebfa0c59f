package cuda

import (
	"fmt"
	"slices"

	"fusec/graph"
)

// A simtTile is how gemm_simt cuts a product: a block computes bm×bn, a thread tm×tn, bk steps along k at a time.
type simtTile struct{ bm, bn, bk, tm, tn int }

// simtTiles are the tiles to choose from, from the largest.
var simtTiles = []simtTile{
	{128, 128, 8, 8, 8},
	{64, 64, 16, 4, 4},
	{32, 32, 16, 4, 4},
}

// simtColumns bounds the columns that go to the body at once: those that a thread has side by side.
const simtColumns = 4

// simtCut takes the largest tile of which there are enough for all multiprocessors, or else the smallest, split along k.
func (m *matmul) simtCut() cut {
	tiles := simtTiles
	if m.acc == graph.F64 {
		tiles = tiles[1:] // the largest would need too many registers
	}
	if m.rows > 0 {
		tiles = slices.DeleteFunc(slices.Clone(tiles), func(t simtTile) bool { return t.bm != m.rows })
	}
	count := func(t simtTile) int { return m.batch * ceilDiv(m.m, t.bm) * ceilDiv(m.n, t.bn) }
	for len(tiles) > 1 && count(tiles[0]) < m.cfg.Chip.SMs {
		tiles = tiles[1:]
	}
	t := tiles[0]
	c := cut{bm: t.bm, bn: t.bn, bk: t.bk, splits: 1,
		threads: t.bm / t.tm * (t.bn / t.tn), blocks: 1, source: []string{"gemm_simt"}}
	if n := count(t); n > 0 && n < m.cfg.Chip.SMs && m.rows == 0 && !m.whole {
		c.splits = max(1, min(m.cfg.Chip.SMs/n, m.k/minSplit, m.mostSplits()))
	}
	c.shared = 2 * t.bk * (t.bm + 4 + t.bn + 4) * m.acc.Size()
	if len(m.sums) > 0 {
		c.shared = max(c.shared, t.bm/t.tm*t.bn*8)
	}
	c.call = fmt.Sprintf("gemm_simt<%s, %%s, %d, %d, %d, %d, %d>(%%s, %%s, spot, %%s)",
		m.name, t.bm, t.bn, t.bk, t.tm, t.tn)
	return c
}

// A product is split along k into at most maxSplits parts of at least minSplit steps, a long one into more.
const (
	minSplit   = 256
	maxSplits  = 16
	longSplits = 128
)

// long reports whether the product has so many steps along k that parts of it keep all multiprocessors busy.
func (m *matmul) long() bool { return m.convolves && m.k >= 16*max(m.m, m.n) }

// mostSplits bounds the parts.
func (m *matmul) mostSplits() int {
	if m.long() {
		return longSplits
	}
	return maxSplits
}
