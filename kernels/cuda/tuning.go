package cuda

import (
	"fmt"
	"slices"
	"strings"

	"fusec/graph"
)

// A Product is what a tile is chosen for.
type Product struct {
	Math           string // bf16, f16, tf32, Tf32 or Split<>: see src/gemm_hopper.cuh and src/gemm_mma.cuh
	Batch, M, N, K int
}

// String is one word.
func (p Product) String() string {
	return fmt.Sprintf("%s:%dx%dx%dx%d", p.Math, p.Batch, p.M, p.N, p.K)
}

// Tuning holds for products the ways that were measured to be best on one chip; see [MatMulWays]. Products that it lacks
// go by rules. Ways may differ in the order of sums, and so in rounding.
type Tuning struct {
	Chip string
	Ways map[Product]string
}

// String is a readable text, a line for each product, that [ParseTuning] reads.
func (t *Tuning) String() string {
	var lines []string
	for p, way := range t.Ways {
		lines = append(lines, p.String()+" "+way+"\n")
	}
	slices.Sort(lines)
	return tuningHead + t.Chip + "\n" + strings.Join(lines, "")
}

// tuningHead begins a tuning's text; the chip's name follows.
const tuningHead = "fusec tuning 1 "

// ParseTuning is the inverse of [Tuning.String]. Ways that do not exist are ignored when kernels are made.
func ParseTuning(text string) (*Tuning, error) {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	chip, ok := strings.CutPrefix(lines[0], tuningHead)
	if !ok {
		return nil, fmt.Errorf("a tuning begins with %q, not %q", tuningHead, lines[0])
	}
	t := &Tuning{Chip: chip, Ways: map[Product]string{}}
	for i, l := range lines[1:] {
		word, way, _ := strings.Cut(l, " ")
		math, sizes, _ := strings.Cut(word, ":")
		p := Product{Math: math}
		_, err := fmt.Sscanf(sizes, "%dx%dx%dx%d", &p.Batch, &p.M, &p.N, &p.K)
		if err != nil || p.String() != word || way == "" {
			return nil, fmt.Errorf("line %d is no product and its way: %q", i+2, l)
		}
		t.Ways[p] = way
	}
	return t, nil
}

// way is the way that was measured to be best, or empty.
func (m *matmul) way(math string) string {
	if m.cfg.Tuning == nil || m.cfg.Tuning.Chip != m.cfg.Chip.Name || m.rows > 0 || m.whole {
		return ""
	}
	return m.cfg.Tuning.Ways[Product{math, m.batch, m.m, m.n, m.k}]
}

// measured is the way that was measured to be best, if it is still there: one of Hopper's plan, or, if there is none, of the
// portable tiles. Otherwise it is empty.
func (m *matmul) measured(h *hopperPlan) (way string) {
	there := false
	if h == nil {
		way = m.way(m.math())
		there = way != "" && slices.ContainsFunc(m.mmaCandidates(), func(t Tile) bool { return t.String() == way })
	} else {
		way = m.way(h.kind)
		is := func(c hopperCandidate) bool { return c.tile.String() == way }
		there = way != "" && slices.ContainsFunc(m.hopperCandidates(h), is)
	}
	if !there {
		return ""
	}
	return way
}

// MatMulWays lists the ways to compute a fusion around a matrix product, from which a [Tuning] chooses; none if there is
// nothing to choose, or the operation is another.
func MatMulWays(op graph.Op, args, results []Operand, cfg Config) (p Product, ways []string) {
	f, ok := op.(graph.Fusion)
	if !ok || f.Anchor != graph.AnchorMatMul {
		return p, nil
	}
	m, err := newMatMul(f, args, results, cfg)
	if err != nil {
		return p, nil
	}
	p = Product{m.math(), m.batch, m.m, m.n, m.k}
	if h, _ := m.hopperPlan(); h != nil {
		p.Math = h.kind
		for _, c := range m.hopperCandidates(h) {
			ways = append(ways, c.tile.String())
		}
		return p, ways
	}
	if p.Math == "" || min(m.batch, m.m, m.n, m.k) == 0 {
		return p, nil
	}
	for _, t := range m.mmaCandidates() {
		ways = append(ways, t.String())
	}
	return p, ways
}

// String names the tile.
func (t Tile) String() string {
	return fmt.Sprintf("mma tile %dx%dx%d warps %dx%dx%d stages %d blocks %d splits %d", t.M, t.N, t.K,
		t.WarpsM, t.WarpsN, t.WarpsK, t.Stages, t.Blocks, t.Splits)
}

// String names the tile.
func (t hopperTile) String() string {
	s := fmt.Sprintf("hopper tile %dx%d stages %d cluster %dx%d splits %d", t.bm, t.bn, t.stages, t.cm, t.cn, t.splits)
	if t.ck > 1 {
		s += fmt.Sprint(" shares ", t.ck)
	}
	if t.pingpong {
		s += " pingpong"
	}
	if t.turned {
		s += " turned"
	}
	if t.resident > 0 {
		s += " resident"
	}
	if t.more > 0 {
		s += fmt.Sprint(" more ", t.more)
	}
	return s
}

// mmaCandidates are the tiles that fit the chip, with as many parts of k as bring the blocks to twice the
// multiprocessors at most.
func (m *matmul) mmaCandidates() []Tile {
	var list []Tile
	for _, t := range mmaTiles[m.a.dtype.Size()] {
		if m.mmaShared(t) > m.cfg.Chip.Shared {
			continue
		}
		tiles := m.batch * ceilDiv(m.m, t.M) * ceilDiv(m.n, t.N)
		most := min(m.mostSplits(), m.k/minSplit, 2*m.cfg.Chip.SMs/max(tiles, 1))
		for t.Splits = 1; t.Splits <= max(most, 1); t.Splits *= 2 {
			list = append(list, t)
		}
	}
	return list
}
