package cuda

import (
	"fmt"
	"math"
	"strings"

	"fusec/graph"
)

// Attention by the copy engine and the warpgroups of Hopper: src/attention_hopper.cuh, src/attention_grad_hopper.cuh,
// src/attention_grad_joint.cuh. With tensor memory attention of 16 bits is planned here, too: src/attention_blackwell.cuh,
// src/attention_grad_blackwell.cuh.

// attentionTiling are the sizes that attention's kernels for Hopper work in.
type attentionTiling struct {
	groups       int  // warpgroups of 64 queries
	divided      bool // the warpgroups have the same queries, and divide their keys
	keys, stages int  // of a tile of keys and values, and how many are under way
	// Of the gradient's kernels: a tile of queries that passes by keys, and how many are under way; warpgroups of 64 queries,
	// and the same two of the keys that pass by these.
	gradQueries [2]int
	gradGroups  int
	gradKeys    [2]int
}

// hopperKeyRows is 64·KEY_GROUPS of src/attention_grad_hopper.cuh, and jointQueries the tile of src/attention_grad_joint.cuh.
const hopperKeyRows, jointQueries = 128, 64

// joint reports whether one kernel makes the whole gradient: on Hopper, rows of queries that fill 128 columns, and a use for dq and
// for what the keys get.
func (a *attentionProblem) joint() bool {
	return a.grad && a.cfg.hopper() && a.parts == 0 && roundUp(a.dims.Depth, 64) == 128 && a.dims.Width <= 128 &&
		a.dq.there() && (a.dk.there() || a.dv.there())
}

// attentionTiling chooses the sizes, which were measured.
func (a *attentionProblem) attentionTiling() attentionTiling {
	switch wide := max(a.dims.Depth, a.dims.Width) > 64; {
	case a.parts == 2:
		t := attentionTiling{
			groups: 2, keys: 128, stages: 2,
			gradQueries: [2]int{64, 4}, gradGroups: 2, gradKeys: [2]int{64, 4},
		}
		switch plain := a.plain() && a.dims.Group == 1; { // what takes the fewest registers
		case wide && plain && a.dims.Depth == a.dims.Width:
			t.gradQueries, t.gradKeys = [2]int{64, 2}, [2]int{64, 2}
		case wide:
			t.gradQueries, t.gradKeys = [2]int{32, 3}, [2]int{64, 2}
		case plain:
			t.gradKeys = [2]int{128, 3}
		}
		if wide {
			t.keys /= 2
		}
		if added := a.op.HasMask && a.operand(a.mask).DType != graph.Bool; added || a.op.HasMask && a.op.Dropout > 0 && !wide {
			t.keys /= 2 // what fits in registers
		}
		return t
	case a.cfg.tensorMemory():
		// Forward, two halves of 128 queries; for gradients tiles of 128 rows, whose scores, their gradients and two sums of up to 128
		// columns each have all 512 columns of tensor memory. Stages are those that fit in shared memory.
		if wide {
			return attentionTiling{
				groups: 4, keys: 128, stages: 2,
				gradQueries: [2]int{128, 3}, gradGroups: 2, gradKeys: [2]int{128, 3},
			}
		}
		return attentionTiling{
			groups: 4, keys: 128, stages: 4,
			gradQueries: [2]int{128, 5}, gradGroups: 2, gradKeys: [2]int{128, 5},
		}
	case a.divides():
		t := attentionTiling{groups: 2, divided: true, keys: 128, stages: 4}
		if wide {
			t.stages /= 2
		} else if a.dims.Keys > 1024 && !(a.op.HasMask && a.op.Dropout > 0) { // whose bits take more registers than three have
			t.groups, t.stages = 3, 3
		}
		return t
	case !wide:
		return attentionTiling{
			groups: a.narrowGroups(128), keys: 128, stages: 4,
			gradQueries: [2]int{64, 6}, gradGroups: a.narrowGroups(64), gradKeys: [2]int{64, 6},
		}
	}
	return attentionTiling{
		groups: 2, keys: 128, stages: 2,
		gradQueries: [2]int{64, 3}, gradGroups: 2, gradKeys: [2]int{96, 2},
	}
}

// divides reports whether the warpgroups of a block divide the keys: each tile of 64 queries has a multiprocessor then.
func (a *attentionProblem) divides() bool {
	return !a.grad && a.parts == 0 && !a.op.HasLengths && a.heads()*ceilDiv(a.dims.Queries, 64) <= a.cfg.Chip.SMs
}

// rows is how many queries a block has.
func (t attentionTiling) rows() int {
	if t.divided {
		return 64
	}
	return 64 * t.groups
}

// narrowGroups is how many warpgroups of queries of up to 64 elements meet tiles of so many keys. Three take less time for a
// pair of a query and a key than two, but compute more pairs that count nothing.
func (a *attentionProblem) narrowGroups(keys int) int {
	if 5*a.pairs(2*64, keys) < 4*a.pairs(3*64, keys) {
		return 2
	}
	return 3
}

// pairs is how many pairs of queries and keys of a head are computed in tiles of so many rows and keys.
func (a *attentionProblem) pairs(rows, keys int) (n int) {
	for end := rows; end < a.dims.Queries+rows; end += rows {
		meets := a.dims.Keys
		if a.op.Causal {
			meets = min(meets, max(meets-a.dims.Queries+end, 0))
		}
		n += rows * roundUp(meets, keys)
	}
	return n
}

// gradPairs reports whether the problem is a gradient of f32, by src/attention_grad_pairs.cuh.
func (a *attentionProblem) gradPairs() bool { return a.grad && a.parts == 2 }

// hopperFits reports whether Hopper's kernels serve a problem as it is: 16-bit elements, in rows that the copy engine reads.
func (a *attentionProblem) hopperFits() bool {
	if a.dtype.Size() != 2 || !a.hopperShape() {
		return false
	}
	for _, v := range []attentionView{a.q, a.k, a.v} {
		if !a.copied(v) {
			return false
		}
	}
	return true
}

// asynchronous reports whether the chip has kernels of its own for the problem: in tensor memory, of 16 bits alone.
func (a *attentionProblem) asynchronous() bool {
	return a.cfg.hopper() || a.cfg.tensorMemory() && a.dtype.Size() == 2
}

// hopperShape reports whether Hopper's kernels serve all but the elements of queries, keys and values: no pages, rows that the copy
// engine writes, and enough queries to fill a warpgroup's tile. Gradients have no masks of numbers.
func (a *attentionProblem) hopperShape() bool {
	d, op := a.dims, a.op
	if !a.asynchronous() || op.Page > 0 || op.HasScales ||
		!(a.hopperScale() > 0) || d.Queries < 64 || d.Keys == 0 || a.heads() == 0 ||
		a.heads()*roundUp(d.Queries, 128) > math.MaxInt32 {
		return false
	}
	if min(d.Depth, d.Width) < 16 || max(d.Depth, d.Width) > 128 || d.Depth%8 != 0 || d.Width%8 != 0 {
		return false
	}
	for _, v := range []attentionView{a.out, a.dout, a.dq, a.dk, a.dv} {
		if l, ok := a.rows(v); v.there() && (!ok || l.Stride[3] != 1 || rowAlign(l, 3, a.operand(v).DType) < 16) {
			return false
		}
	}
	if op.HasMask {
		l, ok := a.rows(a.mask)
		if added := a.operand(a.mask).DType != graph.Bool; !ok || added && (a.grad || l.Stride[3] != 1) {
			return false
		}
		if a.grad && a.cfg.hopper() && op.Dropout > 0 && max(d.Depth, d.Width) > 64 && !a.joint() {
			return false // the bits of both take more registers than there are
		}
	}
	for _, v := range []attentionView{a.lse, a.dlse} {
		if _, ok := a.numbers(v); v.there() && !ok {
			return false
		}
	}
	return true
}

// copied reports whether the copy engine can read the rows of a view: side by side, each at a multiple of 16 bytes.
func (a *attentionProblem) copied(v attentionView) bool {
	l, ok := a.rows(v)
	return ok && a.copiedAs(v, l)
}

// copiedAs is copied for a layout of the view whose last axis is a row, or a part of one.
func (a *attentionProblem) copiedAs(v attentionView, l graph.Layout) bool {
	last := l.Shape.Rank() - 1
	if v.kind != viewArg || l.Stride[last] != 1 || rowAlign(l, last, a.operand(v).DType) < 16 {
		return false
	}
	for i := range last {
		if l.Shape.At(i) > 1 && l.Stride[i] <= 0 {
			return false
		}
	}
	return true
}

// rows is a view's layout as [batch, heads, rows, columns].
func (a *attentionProblem) rows(v attentionView) (graph.Layout, bool) {
	r := v.layout.Shape.Rank()
	if r < 2 {
		return graph.Layout{}, false
	}
	heads := 1
	if r > 2 {
		heads = v.layout.Shape.At(r - 3)
	}
	return v.layout.Reshape(graph.ShapeOf(a.dims.Batch.Elems(), heads, v.layout.Shape.At(r-2), v.layout.Shape.At(r-1)))
}

// numbers is the layout of a view that has one number for each query, as [batch, heads, queries].
func (a *attentionProblem) numbers(v attentionView) (graph.Layout, bool) {
	if !v.there() {
		return graph.Layout{}, false
	}
	return v.layout.Reshape(graph.ShapeOf(a.dims.Batch.Elems(), a.dims.Heads, a.dims.Queries))
}

// tensorMap is the field that describes to the copy engine a tensor [batch, heads, rows, columns], of which it copies
// boxes of so many rows and 64 columns.
func (u *unit) tensorMap(name string, base Param, d graph.DType, l graph.Layout, rows int) string {
	return u.boxMap(name, base, l, TensorMap{DType: d, Box: []uint32{64, uint32(rows), 1, 1}})
}

// boxMap is the same of a tensor of any axes in any boxes.
func (u *unit) boxMap(name string, base Param, l graph.Layout, m TensorMap) string {
	size := m.DType.Size()
	base.Byte += int64(l.Offset * size)
	m.Base, m.Swizzle = base, 128
	last := l.Shape.Rank() - 1
	for i := last; i >= 0; i-- {
		m.Dims = append(m.Dims, uint64(l.Shape.At(i)))
		if i == last {
			continue
		}
		stride := l.Stride[i]
		if l.Shape.At(i) == 1 {
			stride = roundUp(l.Shape.At(last), 16) // never walked
		}
		m.Strides = append(m.Strides, uint64(stride*size))
	}
	return "&" + u.field(Param{Kind: MapParam, Map: &m}, "TensorMap ", name)
}

// mapOf is the tensor map of an operand.
func (a *attentionProblem) mapOf(u *unit, name string, v attentionView, rows int) string {
	l, _ := a.rows(v) // as hopperFits has seen
	return u.tensorMap(name, Arg(v.index, 0), a.operand(v).DType, l, rows)
}

// place writes the strides of a view, and returns the address of its first element.
func (a *attentionProblem) place(u *unit, name string, v attentionView, l graph.Layout) string {
	u.printf("  static constexpr i64 %s_BATCH = %d, %s_HEAD = %d, %s_ROW = %d;\n",
		name, l.Stride[0], name, l.Stride[1], name, l.Stride[2])
	p := a.pointer(u, v)
	if l.Offset != 0 {
		p += fmt.Sprintf(" + %d", l.Offset)
	}
	return p
}

// placeRows and placeNumbers do so for rows and for numbers; a view that is not there is a null pointer of the type.
func (a *attentionProblem) placeRows(u *unit, name string, v attentionView) string {
	l, ok := a.rows(v)
	if !v.there() || !ok {
		u.noStrides(name)
		return "(" + ctype(a.dtype) + " *)nullptr"
	}
	return a.place(u, name, v, l)
}

// noStrides writes those of a view that is not there.
func (u *unit) noStrides(name string) {
	u.printf("  static constexpr i64 %s_BATCH = 0, %s_HEAD = 0, %s_ROW = 0;\n", name, name, name)
}

func (a *attentionProblem) placeNumbers(u *unit, name string, v attentionView) string {
	l, ok := a.numbers(v)
	if !ok {
		u.noStrides(name)
		return "nullptr"
	}
	return a.place(u, name, v, l)
}

// hopperProblem begins the struct Problem of src/attention_hopper.cuh.
func (a *attentionProblem) hopperProblem(u *unit, t attentionTiling) {
	d, op := a.dims, a.op
	// Even rounds of as many heads as have their keys and values in the cache, with room beside them.
	head := 2 * max(a.parts, 1) * d.Keys * (roundUp(d.Depth, 64) + roundUp(d.Width, 64))
	most := a.cfg.Chip.L2 * 5 / 8 / head
	if a.joint() {
		// Its blocks follow each other from tile to tile of queries, so that a few of each head are enough for the cache; more
		// would wait longer for the first.
		most = a.cfg.Chip.SMs / 11
	}
	rounds := ceilDiv(a.groups(), max(most, 1))
	together := ceilDiv(a.groups(), rounds) * d.Group
	u.printf("struct Problem {\n  typedef %s T;\n  typedef %s Out;\n", ctype(a.hopperElement()), ctype(a.operand(a.out).DType))
	u.printf("  static constexpr int BATCH = %d, HEADS = %d, GROUP = %d;\n", d.Batch.Elems(), d.Heads, d.Group)
	u.printf("  static constexpr int QUERIES = %d, KEYS = %d, DEPTH = %d, WIDTH = %d;\n", d.Queries, d.Keys, d.Depth, d.Width)
	u.printf("  static constexpr bool CAUSAL = %t, TAIL = %t;\n", op.Causal, op.Tail)
	u.printf("  static constexpr float SCALE = %s;\n", literal(graph.F32, float64(a.hopperScale()), nil))
	// A window larger than all there is restricts nothing; the bound keeps sums from overflowing.
	u.printf("  static constexpr int WINDOW = %d, WARPGROUPS = %d, KEY_TILE = %d, STAGES = %d, TOGETHER = %d, PARTS = %d;\n",
		min(op.Window, d.Keys+d.Queries), t.groups, t.keys, t.stages, together, a.parts)
	u.printf("  static constexpr bool DIVIDED = %t;\n", t.divided)
}

// hopperElement is the type of the elements that are multiplied.
func (a *attentionProblem) hopperElement() graph.DType {
	if a.parts > 0 {
		return graph.F16
	}
	return a.dtype
}

// hopperScale is what scores are multiplied by as they are computed.
func (a *attentionProblem) hopperScale() float32 {
	if a.parts > 0 && !a.gradPairs() {
		return float32(a.op.Scale / (splitScale * splitScale))
	}
	return float32(a.op.Scale)
}

// bitWords are the words of a query's bits and of a key's: whole tiles and blocks of either.
func (a *attentionProblem) bitWords() (ofKeys, ofQueries int) {
	return roundUp(a.dims.Keys, 384) / 32, roundUp(a.dims.Queries, 128) / 32
}

// hopperMasks ends the struct Problem with what masks scores beside position, and returns the AttentionMasks and the steps
// that make its bits, in scratch memory from byte scratch on. It returns how far they reach, too.
func (a *attentionProblem) hopperMasks(u *unit, scratch int64) (masks string, steps []Step, end int64) {
	d, op := a.dims, a.op
	ofKeys, ofQueries := a.bitWords()
	bits := op.HasMask && a.operand(a.mask).DType == graph.Bool
	u.printf("  static constexpr bool MASKED = %t, ADDED = %t, DROPPED = %t, LENGTHS = %t;\n",
		bits, op.HasMask && !bits, op.Dropout > 0, op.HasLengths)
	u.printf("  static constexpr float KEEP = %s;\n", literal(graph.F32, 1/a.rule().Kept(), nil))
	end = scratch
	// array has the bits of so many heads in rows, and for a gradient in columns.
	array := func(name string, sets int) (rows, columns string) {
		end = int64(roundUp(int(end), 16))
		rows, columns = u.scratch("u32", name, end), "nullptr"
		end += int64(4 * sets * d.Queries * ofKeys)
		if a.grad && !a.joint() {
			columns = u.scratch("u32", name+"_columns", end)
			end += int64(4 * sets * d.Keys * ofQueries)
		}
		return rows, columns
	}
	var entries strings.Builder
	step := func(entry string, threads int, call string) {
		fmt.Fprintf(&entries, "KERNEL(%s, %d, 1) {\n  %s;\n}\n", entry, blockThreads, call)
		steps = append(steps, Step{Entry: entry, Grid: [3]int{ceilDiv(threads, blockThreads), 1, 1}, Block: blockThreads})
	}
	const warp = 32 // the threads that make the bits of 32 queries and 128 keys
	mask, kept, maskColumns, keptColumns, added, lengths := "nullptr", "nullptr", "nullptr", "nullptr", "nullptr", "nullptr"
	u.printf("  static constexpr int KEY_WORDS = %d, QUERY_WORDS = %d;\n", ofKeys, ofQueries)
	typ := "float"
	if op.HasMask {
		l, _ := a.rows(a.mask) // as hopperFits has seen
		typ = ctype(a.operand(a.mask).DType)
		at := fmt.Sprintf("%s + %d", a.pointer(u, a.mask), l.Offset)
		if bits {
			batches, heads := l.Shape.At(0), l.Shape.At(1)
			if l.Stride[0] == 0 {
				batches = 1
			}
			if l.Stride[1] == 0 {
				heads = 1
			}
			sets := batches * heads
			mask, maskColumns = array("mask", sets)
			u.printf("  static constexpr int MASK_BATCH = %d, MASK_HEAD = %d;\n", heads*min(batches-1, 1), min(heads-1, 1))
			u.printf("  static constexpr i64 MASK_ROW = %d, MASK_COL = %d;\n", l.Stride[2], l.Stride[3])
			step("mask_bits", warp*sets*ofKeys/4*ofQueries, fmt.Sprintf("const auto *mask = %s;\n  "+
				"attention_mask_bits<Problem>(%d, %s, %s, "+
				"[&](int set) { return mask + i64(set / %d) * %d + i64(set %% %d) * %d; })",
				at, sets, mask, maskColumns, heads, l.Stride[0], heads, l.Stride[1]))
		} else {
			added = at
			u.printf("  static constexpr i64 ADD_BATCH = %d, ADD_HEAD = %d, ADD_ROW = %d;\n", l.Stride[0], l.Stride[1], l.Stride[2])
			u.printf("  static constexpr int ADD_ALIGN = %d;\n", rowAlign(l, 3, a.operand(a.mask).DType))
		}
	}
	u.printf("  typedef %s Mask;\n", typ)
	if op.Dropout > 0 {
		u.printf("  static constexpr u32 DROP = %du;\n  static constexpr int DROP_BITS = %d;\n", a.rule().Threshold, a.rule().Bits)
		kept, keptColumns = array("kept", a.heads())
		if keptColumns != "nullptr" {
			step("drop_bits", warp*a.heads()*ofKeys/4*ofQueries,
				fmt.Sprintf("attention_drop_bits<Problem>(%s, %s, %s)", a.seedText(u), kept, keptColumns))
		} else {
			threads := min(a.heads()*d.Queries*ofKeys/4, 16*blockThreads*a.cfg.Chip.SMs)
			step("drop_bits", threads, fmt.Sprintf("attention_drop_rows<Problem>(%s, %s)", a.seedText(u), kept))
		}
	}
	if op.HasLengths {
		l := a.lengths.layout
		lengths = a.pointer(u, a.lengths)
		u.printf("  static DEVICE i64 length(const i64 *lengths, int h) { return lengths[%s]; }\n",
			flatOffset(l, l.Shape.Rank(), "h"))
	}
	u.printf("};\n\n%s", entries.String())
	list := []string{mask, kept, maskColumns, keptColumns, added, lengths}
	for len(list) > 0 && list[len(list)-1] == "nullptr" {
		list = list[:len(list)-1]
	}
	return "AttentionMasks<Problem::Mask>{" + strings.Join(list, ", ") + "}", steps, end
}

// forwardHopper is attention on Hopper, or in tensor memory.
func (a *attentionProblem) forwardHopper() (*Kernel, bool) {
	if a.grad || !a.out.there() || !a.hopperFits() {
		return nil, false
	}
	t := a.attentionTiling()
	u := newUnit(a.args, a.results)
	q := a.mapOf(u, "q", a.q, t.rows())
	k, v := a.mapOf(u, "k", a.k, t.keys), a.mapOf(u, "v", a.v, t.keys)
	counter := u.field(Param{Kind: ZeroedPtr}, "int *", "counter")
	steps, scratch := a.hopperForward(u, 0, counter, [3]string{q, k, v}, "", "")
	kernel := a.hopperKernel(u, scratch, steps)
	kernel.Zeroed, kernel.Resets = 4, true
	return kernel, true
}

// hopperForward writes the entry of attention_hopper or attention_blackwell, which begins with first, and returns its step, after
// those that make the bits of its masks. counter is 0 before and after it, maps are the tensor maps of queries, keys and values,
// last are arguments at the end. The bits come from byte scratch on, and it returns how far they reach.
func (a *attentionProblem) hopperForward(u *unit, scratch int64, counter string, maps [3]string, first, last string) (
	[]Step, int64) {
	d, t := a.dims, a.attentionTiling()
	a.hopperProblem(u, t)
	out, lse := a.placeRows(u, "OUT", a.out), a.placeNumbers(u, "LSE", a.lse)
	masks, steps, scratch := a.hopperMasks(u, scratch)
	template, threads := "attention_hopper", 128*(t.groups+1)
	if a.cfg.tensorMemory() {
		template, threads = "attention_blackwell", 3*128
	}
	u.printf("KERNEL(attention, %d, 1) {\n%s  %s<Problem>(%s, %s, %s, %s, %s, %s,\n    %s%s);\n}\n", threads,
		first, template, maps[0], maps[1], maps[2], counter, out, lse, masks, last)
	depth, width := roundUp(d.Depth, 64), roundUp(d.Width, 64)
	step := Step{
		Entry: "attention",
		Grid:  [3]int{min(a.cfg.Chip.SMs, a.heads()*ceilDiv(d.Queries, t.rows())), 1, 1},
		Block: threads,
		// AttentionShared: tiles, results on their way out, what warpgroups give others, barriers, and two numbers of tiles.
		Shared: 2*max(a.parts, 1)*(t.rows()*depth+t.stages*t.keys*(depth+width)) + 8*(6+4*t.stages) + 8,
	}
	switch {
	case a.cfg.tensorMemory():
		step.Shared += 4*8 + 8 // TensorAttention: more barriers, an address
	case a.parts < 2:
		step.Shared += t.rows() * (d.Width*a.operand(a.out).DType.Size() + 16)
	}
	if t.divided {
		step.Shared += (t.groups - 1) * (width/2 + 4) * 128 * 4
	}
	return append(steps, step), scratch
}

// hopperKernel puts a kernel together; all steps that have an entry have the unit's parameters.
func (a *attentionProblem) hopperKernel(u *unit, scratch int64, steps []Step) *Kernel {
	for i := range steps {
		if steps[i].Entry != "" {
			steps[i].Params = u.fields
		}
	}
	templates := []string{"cluster", "hopper", "attention_hopper"}
	if a.grad {
		templates = append(templates, "attention_grad_hopper")
	}
	switch {
	case a.cfg.tensorMemory() && a.grad:
		templates = append(templates, "blackwell", "attention_grad_blackwell")
	case a.cfg.tensorMemory():
		templates = append(templates, "blackwell", "attention_blackwell")
	}
	if a.joint() {
		templates = append(templates, "attention_grad_joint")
	}
	if a.op.HasMask || a.op.Dropout > 0 || a.parts > 0 {
		templates = append(templates, "attention", "attention_bits")
	}
	if a.parts > 0 {
		templates = append(templates, "mma", "bits", "attention_mma", "attention_split")
	}
	if a.parts > 0 && a.grad {
		templates = append(templates, "attention_grad", "attention_grad_mma", "attention_grad_split")
	}
	if a.gradPairs() {
		templates = append(templates, "attention_grad_pairs")
	}
	return &Kernel{Source: u.source(templates...), Steps: steps, Scratch: scratch}
}

// gradHopper is the gradient of attention on Hopper, or in tensor memory.
func (a *attentionProblem) gradHopper() (*Kernel, bool) {
	if !a.grad || !a.hopperFits() {
		return nil, false
	}
	d := a.dims
	u := newUnit(a.args, a.results)
	// What the products read of dout: itself, or a copy.
	twin, scratch := "("+ctype(a.dtype)+" *)nullptr", a.gradNumbers()
	views := [4]attentionView{a.q, a.k, a.v, a.dout}
	maps := func(name string, i, rows int) string { return a.mapOf(u, name, views[i], rows) }
	if !a.copied(a.dout) {
		at := scratch
		l := graph.Contiguous(graph.ShapeOf(d.Batch.Elems(), d.Heads, d.Queries, d.Width))
		scratch += int64(2 * l.Shape.Elems())
		twin = u.scratch(ctype(a.dtype), "twin", at)
		maps = func(name string, i, rows int) string {
			if i == 3 {
				return u.tensorMap(name, Scratch(at), a.dtype, l, rows)
			}
			return a.mapOf(u, name, views[i], rows)
		}
	}
	steps, scratch := a.hopperBackward(u, 0, scratch, maps, twin, "", "", "")
	return a.hopperKernel(u, scratch, steps), true
}

// gradNumbers are the bytes of the numbers that attention_grad_rows makes.
func (a *attentionProblem) gradNumbers() int64 {
	return int64(8 * a.heads() * roundUp(a.dims.Queries, 128))
}

// hopperBackward writes the entries of attention_grad_hopper, of attention_grad_joint, or of attention_grad_blackwell, and returns
// their steps, after those that make the bits of their masks. The rows' numbers begin at byte `at` of the scratch memory. The bits
// come from byte scratch on, and it returns how far they reach. maps(name, i, rows) is the tensor map of that name of queries,
// keys, values or dout, of boxes of so many rows; twin is where dout is copied. The products' entries begin with first, and last
// are arguments at the end; neither is of attention_grad_joint, which has no parts. The entry for rows has last and more.
func (a *attentionProblem) hopperBackward(u *unit, at, scratch int64, maps func(name string, i, rows int) string, twin, first,
	last, more string) ([]Step, int64) {
	d, t := a.dims, a.attentionTiling()
	padded := roundUp(d.Queries, 128)
	base, delta := u.scratch("float", "base", at), u.scratch("float", "delta", at+a.gradNumbers()/2)
	a.hopperProblem(u, attentionTiling{groups: t.gradGroups, keys: t.gradKeys[0], stages: t.gradKeys[1]})
	u.printf("  static constexpr int QUERY_TILE = %d, QUERY_STAGES = %d, PADDED = %d;\n",
		t.gradQueries[0], t.gradQueries[1], padded)
	rows := fmt.Sprintf("%s, %s, %s, %s, %s, %s, %s%s%s", a.placeRows(u, "OUT", a.out), a.placeNumbers(u, "LSE", a.lse),
		a.placeRows(u, "DOUT", a.dout), a.placeNumbers(u, "DLSE", a.dlse), twin, base, delta, last, more)
	dq, dk, dv := a.placeRows(u, "DQ", a.dq), a.placeRows(u, "DK", a.dk), a.placeRows(u, "DV", a.dv)
	masks, steps, scratch := a.hopperMasks(u, scratch)

	add := func(entry, template string, threads, blocks, shared int, first, args string) {
		u.printf("KERNEL(%s, %d, 1) {\n%s  %s<Problem>(%s);\n}\n", entry, threads, first, template, args)
		steps = append(steps, Step{Entry: entry, Grid: [3]int{blocks, 1, 1}, Block: threads, Shared: shared,
			Beside: entry == "queries" && steps[len(steps)-1].Entry == "keys"})
	}
	lanes := 16 // ROW_LANES
	if d.Width <= 64 {
		lanes = 8
	}
	template := "attention_grad_"
	deep, wide := 2*roundUp(d.Depth, 64), 2*roundUp(d.Width, 64)
	row := deep + wide
	shared := func(stay int, pass [2]int) int { // GradShared
		return stay*row + pass[1]*pass[0]*(row+8) + 8*(1+2*pass[1])
	}
	rings := func(parts, stay int, pass [2]int) int { // GradRings
		more := pass[1] - 1
		return parts*stay*row + pass[0]*(pass[1]*(parts*deep+4)+more*(parts*wide+4)) + 8*(1+2*(pass[1]+more))
	}
	if a.gradPairs() {
		template += "pair_"
		shared = func(stay int, pass [2]int) int { return rings(2, stay, pass) }
	}
	add("rows", template+"rows", 256, ceilDiv(a.heads()*padded, 256/lanes), 0, "", rows)
	if a.cfg.tensorMemory() {
		template += "tensor_"
		shared = func(stay int, pass [2]int) int { return rings(1, stay, pass) + 4*8 + 8 } // TensorGrad
	}
	operands := func(suffix string, queries, keys int) string {
		return fmt.Sprintf("%s, %s, %s, %s, %s, %s", maps("q"+suffix, 0, queries), maps("k"+suffix, 1, keys),
			maps("v"+suffix, 2, keys), maps("dout"+suffix, 3, queries), base, delta)
	}
	if a.joint() {
		tiles := a.heads() * padded / jointQueries
		flags := int64(roundUp(int(scratch), 16))
		zeros := int64(4 * roundUp(tiles+4, 4))
		sums := fmt.Sprintf("JointSums{%s, %s}", u.scratch("float4", "sums", flags+zeros), u.scratch("int", "flags", flags+16))
		steps = append(steps, Step{Params: []Param{Scratch(flags)}, Bytes: zeros})
		stages := t.gradQueries[1]
		add("joint", "attention_grad_joint", 512, min(a.cfg.Chip.SMs, a.groups()*ceilDiv(d.Keys, hopperKeyRows)),
			// JointShared
			row*(hopperKeyRows+stages*jointQueries)+8*jointQueries*hopperKeyRows+8*(20+2*stages)+8*jointQueries*stages+8,
			"", operands("", jointQueries, hopperKeyRows)+fmt.Sprintf(", %s,\n    %s, %s, %s, %s",
				u.scratch("int", "counter", flags), sums, dk, dv, masks))
		add("rounded", "attention_grad_round", 128, tiles, 0, "", sums+", "+dq)
		return steps, flags + zeros + int64(4*jointQueries*128*tiles)
	}
	if a.dk.there() || a.dv.there() {
		blocks := a.groups() * ceilDiv(d.Keys, hopperKeyRows)
		add("keys", template+"keys", 128+2*hopperKeyRows, blocks, shared(hopperKeyRows, t.gradQueries), first,
			operands("_keys", t.gradQueries[0], hopperKeyRows)+fmt.Sprintf(", %s, %s,\n    %s%s", dk, dv, masks, last))
	}
	if a.dq.there() {
		rows := 64 * t.gradGroups
		add("queries", template+"queries", 128+2*rows, a.heads()*ceilDiv(d.Queries, rows), shared(rows, t.gradKeys), first,
			operands("_queries", rows, t.gradKeys[0])+fmt.Sprintf(", %s,\n    %s%s", dq, masks, last))
	}
	return steps, scratch
}
