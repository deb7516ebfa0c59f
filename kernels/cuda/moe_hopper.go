package cuda

import (
	"fmt"
	"math"
	"strings"

	"fusec/graph"
)

const (
	// hopperRows is how many rows of slots a tile has that Hopper's own instructions take.
	hopperRows = 128
	// gatherTokens are the tokens whose rows a block gathers.
	gatherTokens = 8
)

// asynchronous reports whether the products are computed by the instructions of Hopper or Blackwell, whose operands the copy
// engine reads: for 16-bit rows and stacked weights that lie at whole multiples of 16 bytes.
func (x *mixture) asynchronous() bool {
	d, o := x.dims, x.operands
	const w = 8 // elements in 16 bytes
	if !x.cfg.asynchronous() || !x.elem.Is16() || x.rows != hopperRows || !x.op.Stacked ||
		(d.Width|d.Hidden|d.Result)%w != 0 || min(d.Width, d.Hidden, d.Result) < hopperLeast {
		return false
	}
	rows := []rowsView{o.x}
	if x.grad {
		rows = append(rows, o.dy)
	}
	for _, r := range rows {
		if r.col != 1 || (r.row|r.offset)%w != 0 {
			return false
		}
	}
	for _, m := range []graph.MoEWeight{graph.MoEW1, graph.MoEW3, graph.MoEW2} {
		if v, ok := o.weights[m]; ok {
			if f := x.hopperWeight(v, hopperLeast); !f.readable(hopperLeast) {
				return false
			}
		}
	}
	return true
}

// hopperWeight is a matrix of weights of n columns as the copy engine reads it.
func (x *mixture) hopperWeight(w weightView, n int) hopperFactor {
	return hopperFactor{factor: factor{arg: w.arg, dtype: x.elem, outer: w.col, k: w.row, offset: w.offset}, rows: n,
		stride: [2]int{w.expert, 0}, kInner: w.row == 1}
}

// gather writes the step that puts the rows of x, and those of dy with their gates, side by side in the order of slots. A warp
// reads the row of a token once, for all its slots. Other warps clear what products read of rows that belong to no token.
func (x *mixture) gather() {
	typ, d := ctype(x.elem), x.dims
	type rows struct {
		of    rowsView
		to    string
		width int
	}
	read := []rows{{x.operands.x, x.shared(typ, "x", x.at.x), d.Width}}
	if x.finds() {
		read = nil
	}
	made := []string{x.scratch(typ, "h", x.at.h)}
	if x.grad {
		read = append(read, rows{x.operands.dy, x.scratch(typ, "dys", x.at.dy), d.Result})
		made = append(made, x.scratch(typ, "du", x.at.du))
		if x.op.Gated {
			made = append(made, x.scratch(typ, "dv", x.at.dv))
		}
	}
	if x.grad && x.brings() {
		made = append(made, x.shared(ctype(x.mid), "u", x.at.u))
		if x.op.Gated {
			made = append(made, x.shared(ctype(x.mid), "v", x.at.v))
		}
	}
	blocks := ceilDiv(d.Tokens, gatherTokens)
	x.printf("KERNEL(gather, %d, 1) {\n  if (blockIdx.x < %d) {\n", 32*gatherTokens, blocks)
	x.printf("    SHARED;\n    i32 *const rows = reinterpret_cast<i32 *>(shared) + threadIdx.x / 32 * %d;\n", x.op.Experts)
	x.printf("    const int token = blockIdx.x * %d + threadIdx.x / 32;\n", gatherTokens)
	each := "(int, int) {}"
	if x.grad {
		each = fmt.Sprintf("(int i, int e) { %s[rows[i]] = (%s)[token * i64(%d) + e * i64(%d)]; }",
			x.scratch(ctype(x.acc), "weights", x.at.weights), x.gates, x.operands.gates.row, x.operands.gates.col)
	}
	x.printf("    const int n = rows_of<Mixture>(%s, p.place, p.wave, token, rows, [&]%s);\n", x.gates, each)
	for _, r := range read {
		x.printf("    spread_row<%d>(%s, %s + %d + token * i64(%d), rows, n);\n", r.width, r.to, x.arg(r.of.arg), r.of.offset, r.of.row)
	}
	x.printf("    return;\n  }\n")
	x.printf("  const int row = empty_row<Mixture>(p.counts, p.starts, p.wave, (blockIdx.x - %d) * %d + threadIdx.x / 32);\n", blocks,
		gatherTokens)
	x.printf("  if (row < 0) return;\n")
	for _, r := range read {
		x.printf("  clear_row<%d>(%s, row);\n", r.width, r.to)
	}
	for _, m := range made {
		x.printf("  clear_row<%d>(%s, row);\n", d.Hidden, m)
	}
	x.printf("}\n\n")
	empty := x.op.Experts*(x.align-1) + x.rows
	x.step(Step{Entry: "gather", Grid: [3]int{blocks + ceilDiv(empty, gatherTokens), 1, 1}, Block: 32 * gatherTokens,
		Shared: 4 * gatherTokens * x.op.Experts}, true)
}

// brings reports whether the copy engine brings what bodies read of 16 bits.
func (x *mixture) brings() bool { return x.async && x.cfg.hopper() }

// operandTile is a value of n elements for each slot, kept at a place, as the copy engine brings it for a body.
func (x *mixture) operandTile(at Param, n int) *TensorMap {
	f := hopperFactor{factor: factor{dtype: x.elem, outer: n, k: 1}, rows: x.capacity, pitch: n, kInner: true}
	m := f.tensorMap(n, hopperRows, batches{1, 1}, 0)
	m.Base = at
	return m
}

// operandTiles writes the functions of a body that reads ahead a number for each row and then operands that the copy engine brings:
// see Operands of src/gemm_hopper.cuh.
func (x *mixture) operandTiles(ahead []aheadField) {
	if !x.brings() {
		return
	}
	which, fields, typ := "", "row", ctype(x.elem)
	for i, f := range ahead[1:] {
		which += fmt.Sprintf("i == %d ? &%s : ", i, f.tensor)
		fields += fmt.Sprintf(", load<%s, W, 1, 2 * W>(reinterpret_cast<const %s *>(tiles[%d] + byte))", typ, typ, i)
	}
	x.printf("  DEVICE float row(int m) const { return %s; }\n", ahead[0].read)
	x.printf("  DEVICE const TensorMap *operand(int i) const { return %snullptr; }\n", which)
	x.printf("  template <int W> DEVICE Ahead<W> ahead(const u8 *const *tiles, int byte, float row) const {\n")
	x.printf("    return {%s};\n  }\n", fields)
}

// tileFor chooses the tile that should take the least time.
func (x *mixture) tileFor(q *asyncProduct) (best hopperTile) {
	least := math.MaxInt
	for _, c := range hopperTiles {
		t := c.hopperTile
		if t.bm != hopperRows || t.cluster() > 1 || t.pingpong && !q.pingpong || q.heavy && t.bn > 128 || c.plain.step == 0 {
			continue
		}
		time := ceilDiv(q.tiles*ceilDiv(q.n, t.bn), x.cfg.Chip.SMs)*(q.steps*c.plain.step+c.plain.fixed) + c.last
		if time < least {
			least, best = time, t
		}
	}
	best.splits = 1
	return best
}

// rowTiles is about how many tiles of rows there are in a wave.
func (x *mixture) rowTiles() int {
	slots := x.capacity
	if x.chosen() {
		slots = min(slots, x.dims.Tokens*x.op.TopK)
	}
	return slots/x.rows + x.op.Experts/2
}

// An asyncProduct is a product [m, k]·[k, n] for each expert that gemm_hopper or gemm_blackwell computes.
type asyncProduct struct {
	name         string
	m, n, k      int
	tiles, steps int // of rows in all, and of k in each of them, about
	cols         int // that the body takes at once
	a, b         hopperFactor
	atA, atB     Param // where the copy engine finds what is no operand
	pingpong     bool  // each warpgroup may have tiles of its own
	heavy        bool  // the body needs the registers of a thread with few sums
	operands     int   // that the copy engine brings for the body
	// work is C++ of the Work, of the names of the Problem and the Tile.
	work func(problem, tile string) string
	// body writes the body of a title, which takes w columns at once.
	body func(title string, w int) error
	// boxes, if set, writes a body for store_tile, of results that the copy engine can store.
	boxes func(title string)
}

// write writes the product.
func (q *asyncProduct) write(x *mixture) error {
	title := strings.ToUpper(q.name[:1]) + q.name[1:]
	t := x.tileFor(q)
	t.operands = q.operands
	stores := t.pingpong && q.boxes != nil
	if stores { // four boxes for a warp take the place of a stage
		t.stages, t.more = t.stages-1, leastTurn
	}
	template, templates, shared := x.cfg.hopperTemplate(t)
	each := batches{x.op.Experts, 1}
	maps := [2]string{}
	for i, f := range []*hopperFactor{&q.a, &q.b} {
		tm := f.tensorMap(q.k, []int{t.bm, t.bn}[i], each, 0)
		if f.pitch > 0 {
			tm.Base = []Param{q.atA, q.atB}[i]
		}
		maps[i] = "&" + x.field(Param{Kind: MapParam, Map: tm}, "TensorMap ", q.name+[]string{"_a", "_b"}[i])
	}
	p := &product{name: title + "Problem", batch: x.op.Experts, m: q.m, n: q.n, k: q.k, a: q.a.factor, b: q.b.factor, acc: x.acc,
		w: q.cols}
	p.write(x.unit)
	if stores {
		q.boxes(title)
	} else if err := q.body(title, p.w); err != nil {
		return err
	}
	t.write(x.unit, title+"Tile", ctype(x.elem), &q.a, &q.b, each, stores, joinedBlocks{})
	x.printf("KERNEL(%s, %d, 1) {\n  %s<%s, %sBody, %sTile>(%sBody{p}, %s, %s,\n    %s, (float *)nullptr);\n}\n\n", q.name,
		hopperThreads, template, p.name, title, title, title, maps[0], maps[1], q.work(p.name, title+"Tile"))
	grid := min(x.cfg.Chip.SMs, q.tiles*ceilDiv(q.n, t.bn))
	x.step(Step{Entry: q.name, Grid: [3]int{grid, 1, 1}, Block: hopperThreads, Shared: shared}, true)
	x.use(templates)
	x.fast = x.cfg.Precision != F32 || x.elem.Is16() // to which the hidden values are rounded
	return nil
}

// groupedAsync writes the product of all experts, whose body reads the given fields ahead.
func (x *mixture) groupedAsync(g groupedProduct, ahead []aheadField) error {
	q := asyncProduct{name: g.name, m: x.capacity, n: g.n, k: g.k, tiles: x.rowTiles(), steps: ceilDiv(g.k*x.elem.Size(), sliceBytes),
		cols: 8, atA: g.at, b: x.hopperWeight(g.b, g.n), heavy: x.grad && g.name == "hidden"}
	if q.heavy && x.brings() {
		q.operands = len(ahead) - 1 // all but the gate
	}
	if g.sums {
		q.cols = 16 / x.acc.Size()
	}
	q.a = hopperFactor{factor: factor{dtype: x.elem, outer: g.k, k: 1}, rows: x.capacity, pitch: g.k, kInner: true}
	q.work = func(problem, tile string) string {
		return fmt.Sprintf("Listed<%s, %s, %d>(p.tiles + p.wave * %d, p.wave * %d)", problem, tile, x.tiles, x.tiles+1, x.capacity)
	}
	q.body = func(title string, w int) error {
		text, err := g.body(w)
		if err == nil {
			x.writeBody(title, g.n, text, ahead...)
		}
		return err
	}
	return q.write(x)
}

// weightGradientAsync writes the product over the slots of each expert, Σ a[slot, m]·b[slot, n], as the gradient of w; a and b
// are rows of the scratch memory, and to is where elements [m, n] go.
func (x *mixture) weightGradientAsync(w graph.MoEWeight, m, n int, atA, atB Param, to weightView) error {
	side := func(rows int) hopperFactor {
		return hopperFactor{factor: factor{dtype: x.elem, outer: 1, k: rows}, rows: rows, pitch: rows}
	}
	q := asyncProduct{name: "d" + w.String(), m: m, n: n, k: x.capacity, tiles: x.op.Experts * ceilDiv(m, hopperRows),
		steps: ceilDiv(x.rowTiles()*x.rows, x.op.Experts*x.align), cols: 16 / x.acc.Size(), a: side(m), b: side(n), atA: atA, atB: atB,
		pingpong: x.cfg.hopper()}
	q.work = func(problem, tile string) string {
		return fmt.Sprintf("Ragged<%s, %s, %d>{p.counts, p.starts, p.wave * %d}", problem, tile, x.capacity, x.capacity)
	}
	q.body = func(title string, _ int) error {
		x.weightGradientBody(title, to)
		return nil
	}
	if x.cfg.hopper() && x.waves == 1 && to.col == 1 && to.row >= n && to.expert >= m*to.row && to.bytes == 16 {
		q.boxes = func(title string) { x.weightGradientBoxes(title, m, n, to) }
	}
	return q.write(x)
}

// weightGradientBoxes is weightGradientBody for store_tile: of one wave, rows of sums at multiples of 16 bytes.
func (x *mixture) weightGradientBoxes(title string, m, n int, to weightView) {
	d := x.results[to.arg].DType
	t := &TensorMap{Base: Result(to.arg, int64(to.offset*d.Size())), DType: d, Swizzle: sliceBytes,
		Dims: []uint64{uint64(n), uint64(m), uint64(x.op.Experts), 1}, Box: []uint32{uint32(sliceBytes / d.Size()), 16, 1, 1}}
	for _, stride := range []int{to.row, to.expert, to.expert * x.op.Experts} {
		t.Strides = append(t.Strides, uint64(stride*d.Size()))
	}
	x.printf("struct %sBody {\n  static constexpr int SUMS = 0;\n  typedef float Sum;\n  const Params &p;\n", title)
	x.printf("  typedef %s Result;\n  DEVICE void store_box(const void *box, int e, int m, int n) const {\n", ctype(d))
	x.printf("    tma_store(&%s, box, n, m, e, 0);\n  }\n", x.field(Param{Kind: MapParam, Map: t}, "TensorMap ", title+"_map"))
	x.printf("  template <int W> DEVICE auto value(int, int, int, const Vec<%s, W> &acc) const { return acc; }\n};\n\n", lane(x.acc))
}
