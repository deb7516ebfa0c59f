package cuda

import (
	"slices"

	"fusec/graph"
)

// An attentionTile is a MmaTile of src/attention_mma.cuh: what a block of threads works on.
type attentionTile struct {
	warps, height int // queries are 16·height·warps
	keys          int
}

func (t attentionTile) rows() int { return 16 * t.height * t.warps }

// mmaTile chooses the tile of an attention on tensor cores; ok is false if they do not serve it.
func (a *attentionProblem) mmaTile() (t attentionTile, ok bool) {
	d := a.dims
	if a.cfg.Chip.Arch < 80 || a.dtype == graph.F64 || min(d.Depth, d.Width) < 1 || max(d.Depth, d.Width) > 256 ||
		d.Queries == 0 || d.Keys == 0 || a.heads() == 0 || a.spills() {
		return t, false
	}
	tiles := []attentionTile{{8, 1, 64}, {8, 1, 32}, {4, 1, 32}, {2, 1, 16}}
	// What fits in registers. With a height of 2, a key that is read serves two products in a warp: the ports of
	// shared memory are else too slow for them.
	switch half, most := a.dtype.Size() == 2, max(d.Depth, d.Width); {
	case half && most <= 64 && a.plain():
		tiles[0] = attentionTile{4, 2, 64}
	case half && most <= 128 && a.plain():
		tiles[0] = attentionTile{4, 2, 48}
		if a.cfg.Chip.Arch >= 120 { // for which ptxas keeps more in registers
			tiles[0].keys = 32
		}
	case most <= 64 && a.plain():
		tiles[0] = attentionTile{4, 2, 32}
	case half && most <= 128:
		tiles[0] = attentionTile{4, 1, 64}
	case !half && most > 128:
		tiles[0].keys = 16
	case most > 64 && !a.plain():
		tiles[0].keys = 32
	}
	for _, t = range tiles {
		if a.mmaShared(t) > a.cfg.Chip.Shared {
			continue
		}
		// Smaller blocks where the chip has more multiprocessors than there would be blocks.
		for t.height*t.warps > 1 && a.heads()*ceilDiv(d.Queries, t.rows()) < a.cfg.Chip.SMs && d.Queries > 16 {
			if t.height > 1 {
				t.height /= 2
			} else {
				t.warps /= 2
			}
		}
		return t, true
	}
	return t, false
}

// plain reports whether scores are masked by causality at most, keys stand in order and have no scales, and nothing is dropped:
// what takes the fewest registers.
func (a *attentionProblem) plain() bool {
	o := a.op
	return !o.HasScales && !o.HasMask && !o.HasLengths && o.Window == 0 && o.Page == 0 && o.Dropout == 0
}

// mmaShared is the size of the tile's part of shared memory.
func (a *attentionProblem) mmaShared(t attentionTile) int {
	query, pair := a.mmaRows()
	return t.rows()*query + t.keys*pair
}

// mmaRows are the bytes that a query, and a key with its value, take in shared memory. Those of 8 bits stay what they are, with
// their scales.
func (a *attentionProblem) mmaRows() (query, pair int) {
	size := a.dtype.Size()
	if !a.op.HasScales {
		depth, width := roundUp(a.dims.Depth, 32/size)*size+16, roundUp(a.dims.Width, 16)*size+16
		return depth, depth + width
	}
	const scales = 2 * 4
	depth, width := roundUp(a.dims.Depth, 32), roundUp(a.dims.Width, 32)
	return a.byteParts() * (2*depth + 16), depth + 16 + width + 16 + scales
}

// byteParts is of how many numbers of bf16 a query, or a weight, that meets keys or values of 8 bits consists. One of f16 consists
// of two: weights that are multiplied by scales are too small for it.
func (a *attentionProblem) byteParts() int {
	switch {
	case a.dtype == graph.BF16:
		return 1
	case a.dtype == graph.F32 && a.cfg.strict():
		return 3
	}
	return 2
}

// spills reports whether three parts of long rows beside keys of 8 bits, and their sums, do not fit into registers.
func (a *attentionProblem) spills() bool {
	return a.op.HasScales && a.byteParts() == 3 && max(a.dims.Depth, a.dims.Width) > 128
}

// mmaSource are the files of attention on tensor cores, and more.
func (a *attentionProblem) mmaSource(more ...string) []string {
	return append([]string{"mma", "bits", "attention", "attention_mma"}, more...)
}

// forwardMMA is attention on tensor cores.
func (a *attentionProblem) forwardMMA() (*Kernel, bool) {
	t, ok := a.mmaTile()
	if a.grad || !ok {
		return nil, false
	}
	u := newUnit(a.args, a.results)
	a.problem(u)
	step := a.mmaStep(u, t, "attention", "Problem", "")
	return u.kernel(0, []Step{step}, a.mmaSource()...), true
}

// mmaStep writes the entry of attention_mma for a Problem, which begins with first.
func (a *attentionProblem) mmaStep(u *unit, t attentionTile, entry, problem, first string) Step {
	resident := 1
	if a.dtype.Size() == 2 && t.warps == 4 {
		resident = 2
	}
	u.printf("typedef MmaTile<%s, %d, %d, %d, %t> Tile;\n", problem, t.warps, t.height, t.keys, a.cfg.strict())
	u.printf("KERNEL(%s, %d, %d) { %sattention_mma<%s, Tile>(p); }\n", entry, 32*t.warps, resident, first, problem)
	return Step{Entry: entry, Block: 32 * t.warps, Shared: a.mmaShared(t),
		Grid: [3]int{a.heads() * ceilDiv(a.dims.Queries, t.rows()), 1, 1}}
}

// A gradTile is a MmaGradTile of src/attention_grad_mma.cuh.
type gradTile struct {
	warps, height int // rows are 16·height·warps
	stream        int // rows of the other side at a time
}

func (t gradTile) rows() int { return 16 * t.height * t.warps }

// gradShared is the size of the tile's MmaGradShared.
func (a *attentionProblem) gradShared(t gradTile) int {
	d, size, parts := a.dims, a.dtype.Size(), a.gradParts()
	line := (roundUp(d.Depth, 16*parts)+roundUp(d.Width, 16*parts))*size + 32
	return (t.rows()+2*t.stream)*line + 2*t.stream*3*4
}

// gradParts is CHUNKS of MmaGradTile.
func (a *attentionProblem) gradParts() int { return ceilDiv(max(a.dims.Depth, a.dims.Width), 128) }

// gradTile chooses the largest tile of some that fits in shared memory; smaller where the chip has more multiprocessors
// than there would be blocks, for heads of so many rows.
func (a *attentionProblem) gradTile(heads, rows int, tiles []gradTile) (t gradTile, ok bool) {
	for _, t = range tiles {
		if a.gradShared(t) > a.cfg.Chip.Shared {
			continue
		}
		for t.warps > 1 && heads*ceilDiv(rows, t.rows()) < a.cfg.Chip.SMs && rows > 16 {
			t.warps /= 2
		}
		return t, true
	}
	return t, false
}

// gradMMA is the gradient of attention on tensor cores.
func (a *attentionProblem) gradMMA() (*Kernel, bool) {
	keys, queries, ok := a.gradTiles()
	if !ok {
		return nil, false
	}
	u := newUnit(a.args, a.results)
	a.problem(u)
	k := &Kernel{Scratch: a.gradRows(), Steps: a.gradSteps(u, keys, queries, "", "Problem", "")}
	for i := range k.Steps {
		k.Steps[i].Params = u.fields
	}
	k.Source = u.source(a.mmaSource("attention_grad", "attention_grad_mma")...)
	return k, true
}

// gradRows are the bytes of the rows' numbers.
func (a *attentionProblem) gradRows() int64 { return int64(3 * 4 * a.heads() * a.dims.Queries) }

// gradTiles chooses the tiles of a gradient on tensor cores, of keys and of queries; ok is false if they do not serve it.
func (a *attentionProblem) gradTiles() (keys, queries gradTile, ok bool) {
	d := a.dims
	if !a.grad || a.cfg.Chip.Arch < 80 || a.dtype == graph.F64 || min(d.Depth, d.Width) < 1 ||
		max(d.Depth, d.Width) > 256 || d.Queries == 0 || d.Keys == 0 || a.heads() == 0 {
		return keys, queries, false
	}
	tiles := []gradTile{{8, 1, 32}, {4, 1, 32}, {4, 1, 16}, {2, 1, 16}}
	switch half, most := a.dtype.Size() == 2, max(d.Depth, d.Width); {
	case half && most <= 128 && a.plain():
		tiles = slices.Insert(tiles, 0, gradTile{4, 1, 64})
	case half || most <= 64:
		tiles = tiles[1:]
	case !a.plain():
		tiles[0].stream = 16
	}
	keys, fit := a.gradTile(a.groups(), d.Keys, tiles)
	queries, ok = a.gradTile(a.heads(), d.Queries, tiles)
	return keys, queries, fit && ok
}

// gradSteps writes the entries of a gradient on tensor cores for a Problem, whose names begin with prefix, and which begin with
// first.
func (a *attentionProblem) gradSteps(u *unit, keys, queries gradTile, prefix, problem, first string) []Step {
	d := a.dims
	const warps = 8
	u.printf("KERNEL(%srows, %d, 1) { %sattention_rows<%s>(p); }\n", prefix, 32*warps, first, problem)
	steps := []Step{{Entry: prefix + "rows", Block: 32 * warps, Grid: [3]int{ceilDiv(a.heads()*d.Queries, warps), 1, 1}}}
	add := func(entry string, t gradTile, blocks, parts int) {
		u.printf("KERNEL(%s%s, %d, 1) { %sattention_%s_mma<%s, MmaGradTile<%s, %d, %d, %d, %t>>(p); }\n", prefix, entry,
			32*t.warps, first, entry, problem, problem, t.warps, t.height, t.stream, a.cfg.strict())
		steps = append(steps, Step{Entry: prefix + entry, Block: 32 * t.warps, Grid: [3]int{blocks, parts, 1},
			Shared: a.gradShared(t), Beside: entry == "dq" && steps[len(steps)-1].Entry == prefix+"dkdv"})
	}
	if a.dk.there() || a.dv.there() {
		add("dkdv", keys, a.groups()*ceilDiv(d.Keys, keys.rows()), a.gradParts())
	}
	if a.dq.there() {
		add("dq", queries, a.heads()*ceilDiv(d.Queries, queries.rows()), 1)
	}
	return steps
}
