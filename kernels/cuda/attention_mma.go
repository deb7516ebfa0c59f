package cuda

import (
	"fusec/graph"
)

// An attentionTile is a MmaTile of src/attention_mma.cuh: what a block of threads works on.
type attentionTile struct {
	warps, height int // queries are 16·height·warps
	keys          int
	chunk         int // of keys, in decoding; else 0
}

func (t attentionTile) rows() int { return 16 * t.height * t.warps }

// mmaTile chooses the tile of an attention on tensor cores; ok is false if they do not serve it.
func (a *attentionProblem) mmaTile() (t attentionTile, ok bool) {
	d := a.dims
	if a.cfg.Chip.Arch < 80 || a.dtype == graph.F64 || min(d.Depth, d.Width) < 1 || max(d.Depth, d.Width) > 256 ||
		d.Queries == 0 || d.Keys == 0 || a.heads() == 0 {
		return t, false
	}
	if rows := d.Group * d.Queries; a.decodes(rows) {
		t = attentionTile{warps: ceilDiv(rows, 16), height: 1, keys: 32}
		// Enough chunks to fill the chip four times over, of whole tiles.
		chunks := max(4*a.cfg.Chip.SMs/a.groups(), 1)
		t.chunk = roundUp(max(ceilDiv(d.Keys, chunks), 128), t.keys)
		return t, a.mmaShared(t) <= a.cfg.Chip.Shared
	}
	tiles := []attentionTile{{warps: 8, height: 1, keys: 64}, {warps: 8, height: 1, keys: 32}, {warps: 4, height: 1, keys: 32},
		{warps: 2, height: 1, keys: 16}}
	if a.dtype.Size() == 2 && max(d.Depth, d.Width) <= 128 {
		// A key that is read serves two products in a warp, which the ports of shared memory are else too slow for.
		tiles[0] = attentionTile{warps: 4, height: 2, keys: 64}
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

// decodes reports whether the keys are to be cut into chunks, for rows queries that share them.
func (a *attentionProblem) decodes(rows int) bool {
	d := a.dims
	return rows <= 64 && d.Keys >= 256 && (d.Group > 1 || a.heads() < 4*a.cfg.Chip.SMs)
}

// mmaShared is the size of the tile's part of shared memory.
func (a *attentionProblem) mmaShared(t attentionTile) int {
	size := a.dtype.Size()
	depth, width := roundUp(a.dims.Depth, 32/size), roundUp(a.dims.Width, 16)
	return (t.rows()+t.keys)*(depth*size+16) + t.keys*(width*size+16)
}

// forwardMMA is attention on tensor cores.
func (a *attentionProblem) forwardMMA() (*Kernel, bool) {
	t, ok := a.mmaTile()
	if a.grad || !ok {
		return nil, false
	}
	d := a.dims
	u := newUnit(a.args, a.results)
	a.problem(u)
	shared := a.mmaShared(t)
	resident := 1
	if t.height == 2 {
		resident = 2
	}
	u.printf("typedef MmaTile<Problem, %d, %d, %d, %t, %d> Tile;\n", t.warps, t.height, t.keys, a.cfg.Precision == F32, t.chunk)
	u.printf("KERNEL(attention, %d, %d) { attention_mma<Problem, Tile>(p); }\n", 32*t.warps, resident)
	step := Step{Entry: "attention", Block: 32 * t.warps, Shared: shared,
		Grid: [3]int{a.heads() * ceilDiv(d.Queries, t.rows()), 1, 1}}
	k := &Kernel{Steps: []Step{step}}
	if t.chunk > 0 {
		const warps = 4
		rows, chunks := d.Group*d.Queries, ceilDiv(d.Keys, t.chunk)
		k.Steps[0].Grid = [3]int{a.groups() * ceilDiv(rows, t.rows()), chunks, 1}
		k.Scratch = 4 * int64(a.groups()*chunks*rows*(d.Width+2))
		u.printf("KERNEL(combine, %d, 1) { combine_chunks<Problem, Tile>(p); }\n", 32*warps)
		k.Steps = append(k.Steps, Step{Entry: "combine", Block: 32 * warps,
			Grid: [3]int{ceilDiv(a.groups()*rows, warps), 1, 1}})
	}
	for i := range k.Steps {
		k.Steps[i].Params = u.fields
	}
	k.Source = u.source("mma", "attention", "attention_mma")
	return k, true
}
