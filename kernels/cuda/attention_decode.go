package cuda

import (
	"math"

	"fusec/graph"
)

// Attention of few queries to many keys, as in decoding, divides the keys of all sequences among blocks.

// A decodeTile is a DecodeTile of src/attention_decode.cuh.
type decodeTile struct {
	rowWarps, keyWarps int
	height             int // a warp has 16·height rows
	stages             int
	blocks             int // on a multiprocessor
}

func (t decodeTile) rows() int { return 16 * t.height * t.rowWarps }

const (
	// decodeRows is how many queries may share keys in decoding, and decodeKeys from how many keys on these are divided.
	decodeRows, decodeKeys = 64, 128
	// longShare is how many tiles of a multiprocessor take so long to read that two blocks do so. On an H200 16 are read faster by one
	// block, beside one of the next launch, and 31 by two.
	longShare = 24
)

// decodeShared is the size of a tile's shared memory: queries, and then the ring of keys and values, or the warps' results.
func (a *attentionProblem) decodeShared(t decodeTile) int {
	query, pair := a.mmaRows()
	ring := t.stages * 16 * t.keyWarps * pair
	return t.rows()*query + max(ring, t.rowWarps*t.keyWarps*16*4*(roundUp(a.dims.Width, 4)+4))
}

// decodeTile chooses the tile for an attention of few queries; ok is false if there is none.
func (a *attentionProblem) decodeTile() (t decodeTile, ok bool) {
	d := a.dims
	rows := d.Group * d.Queries
	if a.cfg.Chip.Arch < 80 || a.dtype == graph.F64 || min(d.Depth, d.Width) < 1 || max(d.Depth, d.Width) > 256 ||
		rows == 0 || rows > decodeRows || d.Keys < decodeKeys || a.groups() == 0 || a.spills() ||
		a.groups() > math.MaxInt32/4/ceilDiv(d.Keys, 16) {
		return t, false
	}
	if d.Group == 1 && d.Queries > 16 && a.heads() >= 4*a.cfg.Chip.SMs {
		return t, false // whole heads fill the chip
	}
	wide := 16 / a.dtype.Size() * 16 // columns for which two rows of products fit in registers
	if d.Width > 2*wide && rows > 16 {
		return t, false
	}
	t = decodeTile{rowWarps: 1, keyWarps: 4, height: 1}
	if rows > 16 && d.Width <= wide {
		t.height = 2
	}
	for t.rows() < rows {
		t.rowWarps *= 2
	}
	if t.rowWarps > 2 {
		t.keyWarps = 2
	}
	// Three stages leave room for another block on a multiprocessor: one of this launch where it takes long to find where keys are, to
	// make numbers of bytes or to read a share, and otherwise, on Hopper, one of the next launch, which loads weights meanwhile.
	t.stages = 3
	if t.rowWarps*t.keyWarps <= 4 && a.decodeShared(t) <= a.cfg.Chip.Shared/2-reservedShared {
		slow, hopper := a.op.Page > 0 || a.op.HasScales, a.cfg.hopper()
		tiles := a.groups() * ceilDiv(rows, t.rows()) * ceilDiv(d.Keys, 16*t.keyWarps)
		if t.blocks = 1; slow || hopper && tiles > longShare*a.cfg.Chip.SMs {
			t.blocks = 2
		}
		if slow || hopper {
			return t, true
		}
	}
	// One block with as many stages as have room.
	t.blocks = 1
	for t.stages = 4; t.stages > 1; t.stages-- {
		if a.decodeShared(t) <= a.cfg.Chip.Shared {
			return t, true
		}
	}
	return t, false
}

// ahead reports whether a launch that begins early knows which keys there are before it waits.
func (a *attentionProblem) ahead() bool {
	given := func(v attentionView) bool { return !v.there() || v.kind == viewArg && a.args[v.index].Given }
	return a.cfg.hopper() && given(a.lengths) && given(a.table)
}

// forwardDecode is attention of few queries on tensor cores.
func (a *attentionProblem) forwardDecode() (*Kernel, bool) {
	t, ok := a.decodeTile()
	if a.grad || !ok {
		return nil, false
	}
	d := a.dims
	rows := d.Group * d.Queries
	u := newUnit(a.args, a.results)
	a.problem(u)
	u.printf("typedef DecodeTile<Problem, %d, %d, %d, %d, %t, %t> Tile;\n", t.rowWarps, t.keyWarps, t.height, t.stages,
		a.cfg.strict(), a.ahead())
	units := a.groups() * ceilDiv(rows, t.rows())
	partials := u.scratch("float", "partials", 0)
	arrived := u.field(Param{Kind: ZeroedPtr}, "int *", "arrived")
	threads := 32 * t.rowWarps * t.keyWarps
	u.printf("LATE_KERNEL(attention, %d, %d) { attention_decode<Problem, Tile>(p, %s, %s); }\n", threads, t.blocks, partials, arrived)
	grid := min(a.cfg.Chip.SMs*t.blocks, units*ceilDiv(d.Keys, 16*t.keyWarps))
	step := Step{Entry: "attention", Block: threads, Shared: a.decodeShared(t), Grid: [3]int{grid, 1, 1}}
	partial := 4 * min(rows, t.rows()) * (roundUp(d.Width, 4) + 4)
	k := u.kernel(int64(2*grid*partial), []Step{step}, a.mmaSource("attention_decode")...)
	k.Zeroed = int64(4 * units)
	return k, true
}
