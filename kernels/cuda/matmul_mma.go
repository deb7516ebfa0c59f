package cuda

import (
	"fmt"

	"fusec/graph"
)

// A Tile is how gemm_mma cuts a product: a block of WarpsM·WarpsN·WarpsK warps computes M×N, K steps at a time, of which
// Stages are held in shared memory. K is cut into Splits parts, whose sums a second step adds.
type Tile struct {
	M, N, K                int
	WarpsM, WarpsN, WarpsK int
	Stages, Splits         int
	Blocks                 int // on a multiprocessor at once, at least
}

func (t Tile) threads() int { return 32 * t.WarpsM * t.WarpsN * t.WarpsK }

// math names how tensor cores multiply the operands; it is empty if they do not.
func (m *matmul) math() string {
	switch {
	case m.cfg.Chip.Arch < 80 || m.a.dtype != m.b.dtype:
		return ""
	case m.a.dtype.Size() == 2:
		return ctype(m.a.dtype)
	case m.a.dtype != graph.F32:
		return ""
	case m.cfg.strict():
		return "Split<>"
	}
	return "Tf32"
}

// mmaTiles are the tiles to choose from, for elements of 2 and of 4 bytes: the fastest that need no more registers than
// there are.
var mmaTiles = map[int][]Tile{
	2: {
		{M: 128, N: 128, K: 32, WarpsM: 2, WarpsN: 2, WarpsK: 1, Stages: 4, Blocks: 2},
		{M: 128, N: 64, K: 64, WarpsM: 2, WarpsN: 2, WarpsK: 1, Stages: 3, Blocks: 2},
		{M: 64, N: 64, K: 64, WarpsM: 2, WarpsN: 2, WarpsK: 1, Stages: 4, Blocks: 2},
		{M: 64, N: 32, K: 64, WarpsM: 2, WarpsN: 1, WarpsK: 2, Stages: 4, Blocks: 2},
		{M: 32, N: 32, K: 64, WarpsM: 1, WarpsN: 1, WarpsK: 4, Stages: 4, Blocks: 2},
	},
	4: {
		{M: 128, N: 128, K: 32, WarpsM: 4, WarpsN: 2, WarpsK: 1, Stages: 3, Blocks: 1},
		{M: 128, N: 64, K: 32, WarpsM: 4, WarpsN: 2, WarpsK: 1, Stages: 3, Blocks: 1},
		{M: 64, N: 64, K: 32, WarpsM: 2, WarpsN: 2, WarpsK: 1, Stages: 4, Blocks: 2},
		{M: 64, N: 32, K: 32, WarpsM: 2, WarpsN: 1, WarpsK: 2, Stages: 4, Blocks: 2},
		{M: 32, N: 32, K: 32, WarpsM: 1, WarpsN: 2, WarpsK: 4, Stages: 4, Blocks: 1},
	},
}

// tile chooses a tile: one that was measured, or the largest of which there are enough for
// seven in ten multiprocessors.
func (m *matmul) tile(math string) Tile {
	if way := m.way(math); way != "" {
		for _, t := range m.mmaCandidates() {
			if t.String() == way {
				return t
			}
		}
	}
	count := func(t Tile) int { return m.batch * ceilDiv(m.m, t.M) * ceilDiv(m.n, t.N) }
	aInner, aVec := m.pieces(m.a, m.m)
	_, bVec := m.pieces(m.b, m.n)
	full := min(aVec, bVec)*m.a.dtype.Size() < 4 || // such elements are copied through registers
		m.convolves && !aInner && m.cfg.strict() // so are the addresses of patches, beside numbers in two parts
	var fit []Tile
	for _, t := range mmaTiles[m.a.dtype.Size()] {
		if m.mmaShared(t) > m.cfg.Chip.Shared || m.rows > 0 && t.M != m.rows {
			continue
		}
		if m.rows == 0 && full && t.M*t.N > 32*t.threads() {
			continue // more accumulators would need too many registers
		}
		fit = append(fit, t)
	}
	splits := func(t Tile) int {
		if n := count(t); n > 0 && n < m.cfg.Chip.SMs && m.rows == 0 && !m.whole {
			return max(1, min(m.cfg.Chip.SMs/n, m.k/minSplit, m.mostSplits()))
		}
		return 1
	}
	blocks := func(t Tile) int {
		if m.long() {
			return count(t) * splits(t)
		}
		return count(t)
	}
	for len(fit) > 1 && (blocks(fit[0])*10 < m.cfg.Chip.SMs*7 || m.convolves && (fit[0].N >= 2*m.n || fit[0].M >= 2*m.m)) {
		fit = fit[1:]
	}
	t := fit[0]
	t.Splits = splits(t)
	return t
}

// mmaShared is the shared memory that a tile needs, in bytes: for the stages, then for the accumulators, then for the
// column sums.
func (m *matmul) mmaShared(t Tile) int {
	size := m.a.dtype.Size()
	stage := func(kInner bool, outer int) int {
		if kInner {
			return outer * (t.K + 16/size)
		}
		return t.K * (outer + 8)
	}
	aInner, _ := m.pieces(m.a, m.m)
	bInner, _ := m.pieces(m.b, m.n)
	stages := t.Stages * (stage(aInner, t.M) + stage(bInner, t.N)) * size
	sums := 0
	if len(m.sums) > 0 {
		sums = t.threads() * m.w * 8
	}
	return max(stages, t.WarpsK*t.M*(t.N+8)*4, sums)
}

// mmaCut is the cut by gemm_mma.
func (m *matmul) mmaCut(math string) cut {
	t := m.tile(math)
	c := cut{bm: t.M, bn: t.N, bk: t.K, splits: max(t.Splits, 1),
		threads: t.threads(), blocks: max(t.Blocks, 1), shared: m.mmaShared(t), source: []string{"mma", "gemm_mma"}}
	c.call = fmt.Sprintf("gemm_mma<%s, %%s, %s, MmaTile<%d, %d, %d, %d, %d, %d, %d>>(%%s, %%s, spot, %%s)",
		m.name, math, t.M, t.N, t.K, t.WarpsM, t.WarpsN, t.WarpsK, t.Stages)
	return c
}
