package cuda

import (
	"fmt"
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
	// longBytes is the same for tiles of 8 bits. On an H200 8 are read faster by one block, and 16 by two.
	longBytes = 12
	// clusterTiles is up to how many tiles a block of a cluster has. On an H200, with 8 tiles for each of 64 blocks, clusters take as
	// long as equal shares for all multiprocessors, and with 4 less.
	clusterTiles = 4
)

// decodeShared is the size of a tile's shared memory: queries, and then the ring of keys and values, or the warps' results, and
// barriers.
func (a *attentionProblem) decodeShared(t decodeTile) int {
	query, pair := a.mmaRows()
	queries, barriers := t.rows()*query, 0
	if a.boxed(t) {
		queries, barriers = roundUp(queries, 1024), 16*ceilDiv(t.stages, 2)
		pair = (a.dims.Depth + a.dims.Width) * a.operand(a.k).DType.Size()
		if a.op.HasScales {
			barriers += t.stages * 2 * 16 * t.keyWarps * 4
		}
	}
	ring := t.stages * 16 * t.keyWarps * pair
	return queries + max(ring, t.rowWarps*t.keyWarps*16*4*(roundUp(a.dims.Width, 4)+4)) + barriers
}

// boxed reports whether Hopper's copy engine copies keys and values: rows of 16 or 8 bits that consist of whole lines of 128 bytes.
// Where they are in pages, a tile is whole pages, or a page whole tiles.
func (a *attentionProblem) boxed(t decodeTile) bool {
	if !a.cfg.hopper() {
		return false
	}
	keys := 16 * t.keyWarps
	box := keys
	if page := a.op.Page; page > 0 {
		if page%keys != 0 && keys%page != 0 {
			return false
		}
		box = min(page, keys)
	}
	return a.boxedRows(a.k, box) && a.boxedRows(a.v, box)
}

// boxedRows reports whether the copy engine can read the rows of a view in boxes of so many.
func (a *attentionProblem) boxedRows(v attentionView, box int) bool {
	l, ok := a.lines(v)
	return ok && a.operand(v).DType.Size() <= 2 && a.copiedAs(v, l) &&
		box*l.Shape.At(l.Shape.Rank()-2)%8 == 0 // whole turns of the swizzle
}

// lines is a view's layout as [heads of all batches, rows, lines, elements], or as [pages, heads, rows, lines, elements]. A
// line has 128 bytes.
func (a *attentionProblem) lines(v attentionView) (graph.Layout, bool) {
	n := 128 / a.operand(v).DType.Size()
	if a.op.Page > 0 {
		s := v.layout.Shape
		if s.At(0) == 0 || s.At(3)%n != 0 {
			return graph.Layout{}, false
		}
		return v.layout.Reshape(graph.ShapeOf(s.At(0), s.At(1), s.At(2), s.At(3)/n, n))
	}
	l, ok := a.rows(v)
	if !ok || l.Shape.At(3)%n != 0 {
		return graph.Layout{}, false
	}
	return l.Reshape(graph.ShapeOf(l.Shape.At(0)*l.Shape.At(1), l.Shape.At(2), l.Shape.At(3)/n, n))
}

// boxes is the tensor map of keys or values, of which the copy engine copies boxes of so many whole rows at most.
func (a *attentionProblem) boxes(u *unit, name string, v attentionView, rows int) string {
	l, _ := a.lines(v)
	last := l.Shape.Rank() - 1
	box := []uint32{uint32(l.Shape.At(last)), uint32(l.Shape.At(last - 1)), uint32(min(rows, l.Shape.At(last-2)))}
	for len(box) <= last {
		box = append(box, 1)
	}
	return u.boxMap(name, Arg(v.index, 0), l, TensorMap{DType: a.operand(v).DType, Box: box, Lines: true})
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
	if a.op.HasScales && a.byteParts() > 1 {
		wide = min(wide, 64) // beside the parts of queries and weights
	}
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
	// To make numbers of bytes takes more instructions than few warps have time for.
	many := a.op.HasScales && a.byteParts() == 1 && rows <= 16 && d.Width <= wide && a.boxed(decodeTile{keyWarps: 8})
	if many {
		t.keyWarps = 8
	}
	// Three stages leave room for another block on a multiprocessor: one of this launch where it takes long to find where keys are, to
	// make numbers of bytes or to read a share, and otherwise, on Hopper, one of the next launch, which loads weights meanwhile.
	t.stages = 3
	if (many || t.rowWarps*t.keyWarps <= 4) && a.decodeShared(t) <= a.cfg.Chip.Shared/2-reservedShared {
		slow, hopper := a.op.Page > 0 && !a.boxed(t) || a.op.HasScales && !many, a.cfg.hopper()
		tiles, long := a.groups()*ceilDiv(rows, t.rows())*ceilDiv(d.Keys, 16*t.keyWarps), longShare
		if a.op.HasScales {
			long = longBytes
		}
		if t.blocks = 1; slow || hopper && tiles > long*a.cfg.Chip.SMs {
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

// decodeCluster is how many blocks of a cluster share the keys of each of some units; 1 if there are no clusters. Those fit at
// once, and all units have as many keys.
func (a *attentionProblem) decodeCluster(t decodeTile, units int) int {
	d := a.dims
	if !a.cfg.hopper() || a.op.HasLengths && d.Batch.Elems() > 1 {
		return 1
	}
	tiles, blocks := ceilDiv(d.Keys, 16*t.keyWarps), 8
	for blocks > 1 && (units*blocks > a.cfg.Chip.SMs || blocks > tiles) {
		blocks /= 2
	}
	if tiles > clusterTiles*blocks || a.decodeShared(t)+a.inbox(t, blocks) > a.cfg.Chip.Shared {
		return 1
	}
	return blocks
}

// inbox is the size of a DecodeInbox of src/attention_decode_cluster.cuh.
func (a *attentionProblem) inbox(t decodeTile, blocks int) int {
	rows := min(a.dims.Group*a.dims.Queries, t.rows())
	return blocks*rows*(ceilDiv(ceilDiv(a.dims.Width, 4), blocks)+1)*16 + 16
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
	u.printf("typedef DecodeTile<Problem, %d, %d, %d, %d, %t, %t, %t> Tile;\n", t.rowWarps, t.keyWarps, t.height, t.stages,
		a.cfg.strict(), a.ahead(), a.boxed(t))
	ring, templates := "CopiedTiles<Problem, Tile, Params>{p}", []string{"attention_decode"}
	if a.cfg.hopper() {
		templates = []string{"cluster", "hopper", "attention_decode", "attention_decode_boxes", "attention_decode_cluster"}
	}
	if a.boxed(t) {
		ring = fmt.Sprintf("BoxTiles<Problem, Tile, Params>{p, %s, %s}", a.boxes(u, "map_k", a.k, 16*t.keyWarps),
			a.boxes(u, "map_v", a.v, 16*t.keyWarps))
	}
	units := a.groups() * ceilDiv(rows, t.rows())
	threads := 32 * t.rowWarps * t.keyWarps
	if blocks := a.decodeCluster(t, units); blocks > 1 {
		u.printf("LATE_CLUSTER_KERNEL(attention, %d, 1, %d) { attention_decode_cluster<Problem, Tile, %[2]d>(p, %s); }\n", threads,
			blocks, ring)
		step := Step{Entry: "attention", Block: threads, Shared: a.decodeShared(t) + a.inbox(t, blocks),
			Grid: [3]int{units * blocks, 1, 1}}
		return u.kernel(0, []Step{step}, a.mmaSource(templates...)...), true
	}
	partials := u.scratch("float", "partials", 0)
	arrived := u.field(Param{Kind: ZeroedPtr}, "int *", "arrived")
	u.printf("LATE_KERNEL(attention, %d, %d) { attention_decode<Problem, Tile>(p, %s, %s, %s); }\n", threads, t.blocks, ring,
		partials, arrived)
	grid := min(a.cfg.Chip.SMs*t.blocks, units*ceilDiv(d.Keys, 16*t.keyWarps))
	step := Step{Entry: "attention", Block: threads, Shared: a.decodeShared(t), Grid: [3]int{grid, 1, 1}}
	partial := 4 * min(rows, t.rows()) * (roundUp(d.Width, 4) + 4)
	k := u.kernel(int64(2*grid*partial), []Step{step}, a.mmaSource(templates...)...)
	k.Zeroed, k.Resets = int64(4*units), true
	return k, true
}
