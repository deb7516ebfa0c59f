package cuda

import (
	"fmt"
	"math"

	"fusec/graph"
)

// An acrossTile is how gemm_across cuts a product; see src/gemm_across.cuh.
type acrossTile struct {
	bm, stages, splits int
	strict             bool
}

const (
	// acrossWidth are the columns of a tile, acrossColumns those that a thread has side by side.
	acrossWidth, acrossColumns = 128, 4
)

// shared is the shared memory of a block in bytes: the stages, two barriers a stage.
func (t acrossTile) shared() int {
	rows := t.bm + acrossWidth
	if t.strict {
		rows += t.bm
	}
	return rows*sliceBytes*t.stages + 2*8*t.stages
}

// An acrossPlan is a product of f32 on Hopper's own instructions whose B has n as its inner axis.
type acrossPlan struct {
	tile    acrossTile
	batches batches
	a, b    hopperFactor
	time    int // that it should take, in ns
}

// acrossPlan plans such a product; reason says why it cannot.
func (m *matmul) acrossPlan() (p *acrossPlan, reason string) {
	p = &acrossPlan{}
	switch {
	case !m.cfg.hopper():
		return nil, "the chip has no wgmma"
	case m.a.dtype != graph.F32 || m.b.dtype != graph.F32:
		return nil, "the operands are not of f32"
	case min(m.batch, m.m, m.n, m.k) == 0:
		return nil, "it is empty"
	case m.a.patches != nil:
		return nil, "the copy engine does not read patches"
	case m.b.patches != nil && (m.cfg.strict() || m.b.gathered()):
		return nil, "B is patches that only threads can copy"
	}
	var ok bool
	if p.batches, p.a.stride, p.b.stride, ok = m.mergeBatches(); !ok {
		return nil, "more than two axes of batches"
	}
	p.a.factor, p.a.rows = m.a, m.m
	p.b.factor, p.b.rows = m.b, m.n
	p.a.kInner, _ = m.pieces(p.a.factor, m.m)
	p.b.kInner, _ = m.pieces(p.b.factor, m.n)
	strict := m.cfg.strict()
	const word = 16 / 4 // elements in what the copy engine reads at least
	if !p.a.readable(m.k) {
		p.a.pitch, p.a.kInner = roundUp(m.k, word), true
	}
	if m.b.patches == nil && (p.b.kInner || !p.b.aligned(m.k)) {
		if !strict {
			return nil, "the copy engine cannot read B along n"
		}
		p.b.pitch, p.b.kInner = roundUp(m.n, word), false
	}
	if (strict || p.a.pitch > 0) && m.n < relayoutReuse/4 || p.b.pitch > 0 && m.m < relayoutReuse/4 {
		return nil, "copies of the operands would take too long"
	}
	if p.tile, p.time, ok = m.acrossTile(); !ok {
		return nil, "it is too small"
	}
	for _, f := range []*hopperFactor{&p.a, &p.b} {
		if f.pitch > 0 {
			p.time += f.relayoutTime(m.k, p.batches)
		}
	}
	if strict {
		p.time += p.a.relayoutTime(m.k, p.batches)
		if flops := 2 * m.batch * m.m * m.n * m.k; p.time > flops/portableFlops+portableTime {
			return nil, "the portable path should take less time"
		}
	}
	return p, ""
}

// acrossCut is the cut by gemm_across.
func (m *matmul) acrossCut(p *acrossPlan) cut {
	t := p.tile
	tilesM, tilesN := ceilDiv(m.m, t.bm), ceilDiv(m.n, acrossWidth)
	c := cut{bm: t.bm, bn: acrossWidth, splits: t.splits, threads: hopperThreads, shared: t.shared(), blocks: 1,
		grid: min(m.cfg.Chip.SMs, m.batch*tilesM*tilesN*t.splits), sumBlocks: m.batch * tilesM,
		scratch: m.used, fast: !t.strict, work: "Whole<Problem, Tile>{}",
		source: []string{"cluster", "hopper", "gemm_hopper", "gemm_across"}}
	field := func(f *hopperFactor, name string, at int64) string {
		tm := f.tensorMap(m.k, t.bm, p.batches, at)
		tm.Round = !t.strict && f == &p.a && f.pitch == 0
		return "&" + m.field(Param{Kind: MapParam, Map: tm}, "TensorMap ", name+m.tag)
	}
	at := roundUp(c.scratch, 256)
	if p.a.pitch > 0 {
		what := "ALL"
		if !t.strict {
			what = p.a.nearest()
		}
		m.relayout(&c, &p.a, p.batches, "a", at, what)
	}
	mapA, small := field(&p.a, "map_a", at), "nullptr"
	if t.strict {
		f := p.a
		at = roundUp(c.scratch, 256)
		f.pitch = roundUp(m.k, 16/f.dtype.Size())
		m.relayout(&c, &f, p.batches, "small", at, "REST")
		small = field(&f, "map_small", at)
	}
	at = roundUp(c.scratch, 256)
	if p.b.pitch > 0 {
		m.relayout(&c, &p.b, p.batches, "b", at, "ALL")
	}
	mapB := field(&p.b, "map_b", at)
	m.printf("struct Tile {\n  typedef tf32 T;\n")
	m.printf("  static constexpr int BM = %d, BN = %d, STAGES = %d, CM = 1, CN = 1, SPLITS = %d;\n", t.bm,
		acrossWidth, t.stages, t.splits)
	m.printf("  static constexpr int INNER = %d, A_AXES = %d, B_AXES = %d;\n", p.batches[0], p.a.axes(), p.b.axes())
	m.printf("  static constexpr bool STRICT = %v, B_PATCHES = %v;\n};\n\n", t.strict, p.b.patches != nil)
	c.call = fmt.Sprintf("gemm_across<Problem, %%s, Tile>(%%s, %s, %s, %s, %s, %s, %%s, %%s)", mapA, small, mapB,
		m.pointer(m.a), m.pointer(m.b))
	return c
}

// acrossTiles are the tiles to choose from, with what they take in ns; see hopperTiles. That of 64 rows is for patches.
var acrossTiles = []struct {
	acrossTile
	step, fixed int
}{
	{acrossTile{bm: 256, stages: 4}, 690, 5000},
	{acrossTile{bm: 128, stages: 6}, 365, 2500},
	{acrossTile{bm: 64, stages: 8}, 250, 1500},
	{acrossTile{bm: 128, stages: 4, strict: true}, 1030, 5000},
}

// portableFlops is what gemm_mma does in a ns in products of f32.
const portableFlops = 62000

// portableTime is what such a product takes beside that, in ns.
var portableTime = 5000

// acrossTile chooses the tile that should take the least time, in ns, and the shares of k that go with it.
func (m *matmul) acrossTile() (best acrossTile, least int, ok bool) {
	if min(m.m, m.n, m.k) < hopperLeast {
		return best, 0, false
	}
	least = math.MaxInt
	steps := ceilDiv(m.k*m.a.dtype.Size(), sliceBytes)
	for _, c := range acrossTiles {
		t := c.acrossTile
		if t.strict != m.cfg.strict() || t.bm < acrossWidth && m.b.patches == nil {
			continue
		}
		tiles := m.batch * ceilDiv(m.m, t.bm) * ceilDiv(m.n, acrossWidth)
		for t.splits = 1; ; t.splits++ {
			each := ceilDiv(steps, t.splits)
			time := ceilDiv(tiles*t.splits, m.cfg.Chip.SMs) * (each*c.step + c.fixed)
			if t.splits > 1 {
				time += finishTime + (t.splits+1)*m.batch*m.m*m.n*m.acc.Size()/finishBytes
			}
			if (t.splits-1)*each < steps && time < least {
				least, best = time, t
			}
			if tiles*t.splits >= 2*m.cfg.Chip.SMs || each <= leastSteps {
				break
			}
		}
	}
	return best, least, true
}
