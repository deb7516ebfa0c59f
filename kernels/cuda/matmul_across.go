package cuda

import (
	"fmt"
	"math"

	"fusec/graph"
)

// An acrossTile is how gemm_across cuts a product; see src/gemm_across.cuh.
type acrossTile struct {
	bm, bn, stages, splits int
	meets                  bool // the two blocks of a cluster have a share of k each, and one tile
	strict                 bool
	writes                 bool // of a strict one: the small parts of A, to shared memory; else they are copied from memory
}

// acrossColumns are the columns that a thread has side by side.
const acrossColumns = 4

// shared is the shared memory of a block in bytes: the stages, two barriers a stage, and in strict ones the small parts of A, which
// have a barrier if they are written there.
func (t acrossTile) shared() int {
	stage := (t.bm+t.bn)*sliceBytes + 2*8
	if t.strict {
		stage += t.bm * sliceBytes
	}
	if t.writes {
		stage += 8
	}
	return stage * t.stages
}

// threads are those of a block: a warpgroup that loads, perhaps one that writes, and two that multiply.
func (t acrossTile) threads() int {
	if t.writes {
		return hopperThreads + 128
	}
	return hopperThreads
}

// down is how many warpgroups, of 64 columns each, have rows of their own.
func (t acrossTile) down() int { return 128 / t.bn }

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
	case m.a.patches != nil && !(m.cfg.strict() && m.a.patches.kInner):
		return nil, "A is patches in TF32, or not along k"
	case m.a.gathered() || m.b.gathered():
		return nil, "patches are such as only threads can copy"
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
	if m.a.patches == nil && !p.a.readable(m.k) {
		p.a.pitch, p.a.kInner = roundUp(m.k, word), true
	}
	if m.b.patches == nil && (p.b.kInner || !p.b.aligned(m.k)) {
		if !strict {
			return nil, "the copy engine cannot read B along n"
		}
		p.b.pitch, p.b.kInner = roundUp(m.n, word), false
	}
	few := m.n < relayoutReuse/4 && (m.b.patches == nil || m.b.patches.filled == 0) // joined taps take longer otherwise
	if !strict && (p.a.pitch > 0 && few || p.b.pitch > 0 && m.m < relayoutReuse/4) {
		return nil, "copies of the operands would take too long"
	}
	if p.tile, p.time, ok = m.acrossTile(p); !ok {
		return nil, "it is too small"
	}
	for _, f := range []*hopperFactor{&p.a, &p.b} {
		if f.pitch > 0 {
			p.time += f.relayoutTime(m.k, p.batches)
		}
	}
	rate := portableFlops
	if m.convolves {
		rate = patchFlops
	}
	if flops := 2 * m.batch * m.m * m.n * m.k; strict && p.time > flops/rate+portableTime {
		return nil, "the portable path should take less time"
	}
	return p, ""
}

// acrossCut is the cut by gemm_across.
func (m *matmul) acrossCut(p *acrossPlan) cut {
	t := p.tile
	tilesM, tilesN := ceilDiv(m.m, t.bm), ceilDiv(m.n, t.bn)
	c := cut{bm: t.bm, bn: t.bn, splits: t.splits, threads: t.threads(), shared: t.shared(), blocks: 1,
		grid: min(m.cfg.Chip.SMs, m.batch*tilesM*tilesN*t.splits), sumBlocks: m.batch * tilesM * t.down(),
		scratch: m.used, fast: !t.strict, work: "Whole<Problem, Tile>{}",
		source: []string{"cluster", "hopper", "gemm_hopper", "gemm_across"}}
	if t.meets {
		c.splits, c.cluster, c.sumBlocks = 1, t.splits, t.splits*c.sumBlocks
	}
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
	if t.strict && !t.writes {
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
	m.relayouts(&c)
	mapB := field(&p.b, "map_b", at)
	m.printf("struct Tile {\n  typedef tf32 T;\n")
	m.printf("  static constexpr int BM = %d, BN = %d, STAGES = %d, CM = 1, CN = 1, SPLITS = %d;\n", t.bm,
		t.bn, t.stages, t.splits)
	m.printf("  static constexpr int INNER = %d, A_AXES = %d, B_AXES = %d;\n", p.batches[0], p.a.axes(), p.b.axes())
	m.printf("  static constexpr int RESIDENT = 0, CK = 1;\n  static constexpr bool TURNED = false;\n")
	m.printf("  static constexpr bool STRICT = %v, WRITES = %v, MEETS = %v, B_PATCHES = %v;\n};\n\n", t.strict, t.writes, t.meets,
		p.b.patches != nil)
	c.call = fmt.Sprintf("gemm_across<Problem, %%s, Tile>(%%s, %s, %s, %s, %s, %s, %%s, %%s)", mapA, small, mapB,
		m.pointer(m.a), m.pointer(m.b))
	return c
}

// acrossTiles are the tiles to choose from, with what they take in ns; see hopperTiles. In TF32 that of 64 rows is for patches.
var acrossTiles = []struct {
	acrossTile
	step, fixed int
}{
	{acrossTile{bm: 256, bn: 128, stages: 4}, 690, 5000},
	{acrossTile{bm: 128, bn: 128, stages: 6}, 365, 2500},
	{acrossTile{bm: 64, bn: 128, stages: 8}, 250, 1500},
	{acrossTile{bm: 256, bn: 128, stages: 4, meets: true}, 650, 5500},
	{acrossTile{bm: 128, bn: 128, stages: 6, meets: true}, 365, 3500},
	{acrossTile{bm: 128, bn: 128, stages: 4, strict: true}, 1050, 1300},
	{acrossTile{bm: 128, bn: 128, stages: 4, strict: true, writes: true}, 1110, 4200},
	{acrossTile{bm: 256, bn: 64, stages: 3, strict: true, writes: true}, 1300, 5000},
	{acrossTile{bm: 64, bn: 128, stages: 6, strict: true, writes: true}, 655, 2300},
}

// portableFlops is what gemm_mma does in a ns in products of f32, patchFlops in convolutions.
const portableFlops, patchFlops = 62000, 42000

// meetingSteps is how many steps of k a product has at least whose shares meet. Shorter ones have not been timed, nor convolutions,
// and those of 257 rows take longer so.
var meetingSteps = 128

// portableTime is what such a product takes beside that, in ns.
var portableTime = 5000

// acrossTile chooses the tile that should take the least time, in ns, and the shares of k that go with it.
func (m *matmul) acrossTile(p *acrossPlan) (best acrossTile, least int, ok bool) {
	if min(m.m, m.n, m.k) < hopperLeast {
		return best, 0, false
	}
	least = math.MaxInt
	steps := ceilDiv(m.k*m.a.dtype.Size(), sliceBytes)
	for _, c := range acrossTiles {
		t := c.acrossTile
		if t.strict != m.cfg.strict() || !t.strict && t.bm < 128 && m.b.patches == nil {
			continue
		}
		before := 0
		if t.strict && !t.writes {
			if m.a.patches != nil {
				continue // small parts of patches are not in memory
			}
			before = p.a.relayoutTime(m.k, p.batches)
		}
		tiles := m.batch * ceilDiv(m.m, t.bm) * ceilDiv(m.n, t.bn)
		if t.meets {
			const shares = 2
			time := ceilDiv(steps, shares)*c.step + c.fixed
			fits := m.m%t.bm == 0 && m.n%t.bn == 0 && tiles*shares <= m.cfg.Chip.SMs
			if fits && steps >= meetingSteps && !m.convolves && time < least {
				least, best = time, t
				best.splits = shares
			}
			continue
		}
		for t.splits = 1; ; t.splits++ {
			each := ceilDiv(steps, t.splits)
			time := before + ceilDiv(tiles*t.splits, m.cfg.Chip.SMs)*(each*c.step+c.fixed)
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
