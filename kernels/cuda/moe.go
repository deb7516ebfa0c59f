package cuda

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"fusec/graph"
	"fusec/graph/body"
)

// A mixture makes the kernel of a fusion anchored on a MoE. Tokens are grouped by expert (Shazeer et al., arXiv
// 1701.06538), and each product of all experts is one launch, whose blocks find their expert in a list of tiles (Gale et
// al., arXiv 2211.15841). Its steps are
//
//	count, list    which tokens each expert gets: see below
//	gather         rows of x, in the order of slots; only where the copy engine reads them
//	load           the counts, as a result
//	gate           u = x·w1 + b1, rows of x gathered while they are read; only if the mixture is gated
//	hidden         h = act(u) ⊙ (x·w3 + b3), or act(x·w1 + b1)
//	expert         a row h·w2 + b2 for each slot
//	sum            y, the rows of each token times their gates, in the order of experts. Rows are rounded to 16 bits if y is
//
// A slot is a pair of a token and an expert that it is sent to. Where the number of slots is not bounded well by the
// shapes, memory is kept for as many as TopK promises, and the steps from gather on run in waves, each over the next of the
// slots; waves that find none end at once. Exact says that there are no more, so that one wave is enough.
//
// The first two steps leave in the scratch memory, all of i32 but for the tiles:
//
//	counts [E], starts [E]     of each expert, the number of slots and the first
//	order [slots]              the token of each slot
//	place [T, E]               the slot of each token with each expert that it is sent to
//	tiles [waves, tiles+1] int4  expert, first slot and number of slots of each tile of rows; −1 behind the last, and
//	                           behind those how many there are
type mixture struct {
	*unit
	cfg    Config
	op     graph.MoE
	grad   bool
	dims   graph.MoEDims
	p      *body.Program
	anchor *graph.Node
	elem   graph.DType // of x and the matrices
	acc    graph.DType // of sums, gates and biases
	mid    graph.DType // of u and v, which the hidden values are made of, where they are stored

	rows            int // of a tile
	slots           int // that there may be in all
	capacity, waves int
	tiles           int // that a wave may have
	align           int // at a multiple of which the slots of an expert begin

	operands mixtureOperands
	async    bool // the products take the copy engine: see moe_hopper.go

	at     scratchPlaces
	k      *Kernel
	gates  string   // C++ of where they begin
	keeps  bool     // the gradient finds the hidden values of the mixture
	source []string // the templates of the products

	fast bool // activations may be as inaccurate as 16 bits
}

// scratchPlaces are where things lie in the scratch memory, in bytes. With Config.KeepHidden the lists of slots and x, u and v lie
// in the memory that is kept instead.
type scratchPlaces struct {
	counts, starts, order, place, tiles int64
	x, u, v                             int64 // a row for each slot of a wave
	partial                             int64
	weights                             int64 // the gate of each slot of a wave
	dy, h, du, dv, out, terms           int64 // a row for each slot of a wave
}

// mixtureOperands are where the operands are.
type mixtureOperands struct {
	x, gates, dy rowsView
	weights      map[graph.MoEWeight]weightView
}

// A rowsView is a value [..., n] whose rows stand at one distance.
type rowsView struct {
	arg      int
	row, col int
	offset   int
}

// routeTokens is ROUTE_TOKENS of src/moe.cuh.
const routeTokens = 256

// freeSlots bounds the memory, in bytes, that is kept for all pairs of tokens and experts before waves are made.
var freeSlots = 256 << 20

// compileMoE makes the kernel of a MoE.
func compileMoE(f graph.Fusion, args, results []Operand, cfg Config) (*Kernel, error) {
	p, err := body.Lower(f, args, results)
	if err != nil {
		return nil, err
	}
	anchor := p.Anchor
	op, ok := anchor.Op.(graph.MoE)
	if !ok {
		op = anchor.Op.(graph.MoEGrad).MoE()
	}
	types := p.OperandTypes()
	u := newUnit(args, results)
	x := &mixture{unit: u, cfg: cfg, op: op, grad: !ok, dims: op.Dims(types), anchor: anchor, k: &Kernel{},
		elem: types[0].DType, acc: types[1].DType, p: p}
	if err := x.find(); err != nil {
		return nil, err
	}
	x.plan()
	x.route()
	steps, templates := x.forward, []string{"moe"}
	if x.grad {
		steps, templates = x.backward, []string{"moe", "moe_grad"}
	}
	if err := steps(); err != nil {
		return nil, err
	}
	if len(x.k.Steps) == 0 {
		return &Kernel{}, nil
	}
	for _, s := range x.k.Steps {
		if _, size := s.Offsets(); size > MaxParams {
			return nil, fmt.Errorf("%s: the weights of %d experts are more than a kernel has parameters for", anchor.Where(),
				op.Experts)
		}
	}
	x.k.Source = u.source(slices.Concat([]string{"gemm", "patches"}, x.source, templates)...)
	if x.fast {
		x.k.Source = fastText + x.k.Source
	}
	return x.k, nil
}

// find finds the operands.
func (x *mixture) find() (err error) {
	x.field(Param{Kind: Int32}, "i32 ", "wave") // first: finish sets it
	o := &x.operands
	if o.x, err = x.view(0); err != nil {
		return err
	}
	if o.gates, err = x.view(1); err != nil {
		return err
	}
	if x.grad {
		if o.dy, err = x.view(len(x.anchor.Args) - 1); err != nil {
			return err
		}
	}
	o.weights, err = x.weights()
	return err
}

// plan sizes tiles, waves and memory. What one wave has is all that can be kept.
func (x *mixture) plan() {
	x.keeps = x.cfg.KeepHidden
	x.size()
	if x.keeps && x.waves > 1 {
		x.keeps = false
		x.size()
	}
}

func (x *mixture) size() {
	t, e := x.dims.Tokens, x.op.Experts
	size, acc := x.elem.Size(), x.acc.Size()
	f, out := x.dims.Hidden, x.dims.Result
	us, vs, ds := 0, 0, 0 // how many rows of u, v and dv
	if x.op.Gated {
		us = 1
	}
	both := x.grad || x.keeps // all that follows is the same for a mixture and its gradient where the hidden values are kept
	if both {
		us, vs, ds = 1, us, us
	}
	switch {
	case x.keeps:
		out = max(out, x.dims.Width)
	case x.grad:
		out = x.dims.Width
	}
	promised := t * e
	if x.chosen() {
		promised = t * x.op.TopK
	}
	x.rows, x.align = 32, 1
	for _, rows := range []int{64, 128} {
		if promised >= e*rows*3/4 && (rows < 128 || x.acc != graph.F64) {
			x.rows = rows
		}
	}
	if x.async = x.asynchronous(); x.async && both {
		x.align = sliceBytes / size // of k, in products over the slots of an expert
	}
	if x.mid = x.acc; x.async { // whose products wait for memory, if theirs are of 32 bits
		x.mid = x.elem
	}
	slot := f*size*(1+ds) + f*x.mid.Size()*(us+vs) + out*acc
	if both {
		slot += f*size + f*acc
	}
	between := e * (x.align - 1)
	x.slots = t*e + between
	if x.most() > 0 {
		x.slots = promised + between
	}
	x.capacity = x.slots
	if x.capacity*slot > freeSlots {
		x.capacity = promised + between
	}
	x.capacity = roundUp(x.capacity, x.align)
	x.waves = max(ceilDiv(x.slots, max(x.capacity, 1)), 1)
	x.tiles = x.capacity/x.rows + e
	at := int64(0)
	take := func(bytes int) int64 {
		had := at
		at += roundUp(max(int64(bytes), 1), 256) // no two at one place
		return had
	}
	rows := func(width, bytes int) int64 { return take(x.capacity * width * bytes) }
	x.at.counts, x.at.starts = take(4*e), take(4*e)
	x.at.order, x.at.place = take(4*x.slots), take(4*t*e)
	x.at.tiles = take(16 * x.waves * (x.tiles + 1))
	if x.async {
		x.at.x = rows(x.dims.Width, size)
	}
	x.at.u, x.at.v = rows(us*f, x.mid.Size()), rows(vs*f, x.mid.Size())
	x.k.Kept = 0
	if x.keeps {
		x.k.Kept, at = at, 0
	}
	x.at.partial = take(4 * e * ceilDiv(t, routeTokens))
	x.at.h = rows(f, size)
	if x.grad {
		if x.async {
			x.at.weights, x.at.dy = rows(1, acc), rows(x.dims.Result, size)
		}
		x.at.du, x.at.dv = rows(f, size), rows(ds*f, size)
		x.at.terms = rows(f, acc)
	}
	x.at.out = rows(out, acc)
	x.k.Scratch = at
}

// shared is scratch for what the gradient may find.
func (x *mixture) shared(typ, name string, byte int64) string {
	return x.field(x.sharedAt(byte), typ+" *", name)
}

// sharedAt is where that is: in the memory that is kept, if there is such.
func (x *mixture) sharedAt(byte int64) Param {
	if x.keeps {
		return Param{Kind: KeptPtr, Byte: byte}
	}
	return Scratch(byte)
}

// finds reports whether this is a gradient that finds the lists of slots and hidden values.
func (x *mixture) finds() bool { return x.grad && x.keeps }

// chosen reports whether TopK says to how many experts tokens are sent, and these are not all.
func (x *mixture) chosen() bool { return x.op.TopK > 0 && x.op.TopK < x.op.Experts && !x.op.Dense }

// most is how many experts a token is sent to at most, or 0 if all are possible.
func (x *mixture) most() int {
	if x.op.Exact && x.chosen() {
		return x.op.TopK
	}
	return 0
}

// view finds the rows of operand i of the anchor.
func (x *mixture) view(i int) (r rowsView, err error) {
	o := x.p.Operands[i]
	if r, err = rowsOf(o.Layout); err != nil {
		err = fmt.Errorf("%s: %w", o.Node.Where(), err)
	}
	r.arg = o.Arg
	return r, err
}

// rowsOf are the rows of a layout.
func rowsOf(l graph.Layout) (r rowsView, err error) {
	last := l.Shape.Rank() - 1
	n := l.Shape.At(last)
	rows := l.Shape.Drop(graph.IntsOf(last)).Elems()
	flat, ok := l.Reshape(graph.ShapeOf(rows, n))
	if !ok {
		return r, fmt.Errorf("the rows of layout %v do not stand at one distance", l)
	}
	r = rowsView{row: flat.Stride[0], col: flat.Stride[1], offset: flat.Offset}
	if rows == 1 {
		r.row = 0
	}
	if n == 1 {
		r.col = 1
	}
	return r, nil
}

// A weightView is how the weights of one kind lie, those of all experts alike.
type weightView struct {
	name     string // the field, which gives the place of the first element of an expert
	row, col int
	align    int // what divides all first elements

	arg, offset, expert int // where the first lies, and the distance of experts in one operand or result, or 0

	bytes int  // of a gradient: all rows of four elements are at multiples of this, in bytes
	some  bool // of a gradient: it is asked for of some experts only, and the pointers to the others are nil
}

// weights declares where all weights begin.
func (x *mixture) weights() (all map[graph.MoEWeight]weightView, err error) {
	all = map[graph.MoEWeight]weightView{}
	for _, w := range x.op.Weights() {
		if all[w], err = x.weight(w); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// weight declares where the weights of one kind begin.
func (x *mixture) weight(w graph.MoEWeight) (v weightView, err error) {
	v.name = "p." + w.String()
	for e := range x.op.Experts {
		s := x.p.Operands[x.op.Weight(w, e)]
		of, row, col := body.Expert(x.op, s.Layout, e)
		typ := "const " + ctype(x.args[s.Arg].DType)
		first := Arg(s.Arg, int64(of.Offset)*int64(x.args[s.Arg].DType.Size()))
		if e == 0 {
			v.row, v.col, v.arg, v.offset = row, col, s.Arg, of.Offset
			if x.op.Stacked {
				v.expert = s.Layout.Stride[0]
				v.align = of.Offset | v.expert
				x.stacked(w.String(), typ, v.expert, first)
				return v, nil
			}
			x.decls = append(x.decls, fmt.Sprintf("%s *%v[%d];", typ, w, x.op.Experts))
		} else if row != v.row || col != v.col {
			return v, fmt.Errorf("%s: %v of expert %d lies in another order than that of expert 0", s.Node.Where(), w, e)
		}
		v.align |= of.Offset
		x.fields = append(x.fields, first)
	}
	return v, nil
}

// stacked declares where the weights of experts begin that are one behind the other.
func (x *mixture) stacked(name, typ string, stride int, first Param) {
	x.fields = append(x.fields, first)
	x.decls = append(x.decls, fmt.Sprintf("Stacked<%s, %d> %s;", typ, stride, name))
}

// step appends a step that runs once, or in each wave.
func (x *mixture) step(s Step, inWaves bool) {
	if s.Grid[0] == 0 {
		return
	}
	n := 1
	if inWaves {
		n = x.waves
	}
	for w := range n {
		s := s
		s.Bytes = int64(w) // until the parameters are known
		x.k.Steps = append(x.k.Steps, s)
	}
}

// finish puts the steps in order, wave after wave, and gives them their parameters.
func (x *mixture) finish() {
	slices.SortStableFunc(x.k.Steps, func(a, b Step) int { return int(a.Bytes - b.Bytes) })
	for i := range x.k.Steps {
		s := &x.k.Steps[i]
		s.Params = slices.Clone(x.fields)
		s.Params[0].Bits = uint64(s.Bytes)
		s.Bytes = 0
	}
}

// route writes the steps count and list.
func (x *mixture) route() {
	gates := x.operands.gates
	t, e := x.dims.Tokens, x.op.Experts
	vec := 1
	for gates.col == 1 && 2*vec*x.acc.Size() <= 16 && (e|gates.row|gates.offset)%(2*vec) == 0 {
		vec *= 2
	}
	x.printf("struct Mixture {\n  typedef %s Gate;\n", ctype(x.acc))
	x.printf("  static constexpr int TOKENS = %d, EXPERTS = %d, CAPACITY = %d, WAVES = %d, ROWS = %d, TILES = %d;\n",
		t, e, x.capacity, x.waves, x.rows, x.tiles)
	x.printf("  static constexpr int MOST = %d, ALIGN = %d, VEC = %d;\n", x.most(), x.align, vec)
	x.printf("  static constexpr i64 GATE_T = %d, GATE_E = %d;\n", gates.row, gates.col)
	x.printf("  static constexpr bool DENSE = %v;\n};\n\n", x.op.Dense)
	g := fmt.Sprintf("%s + %d", x.arg(gates.arg), gates.offset)
	x.gates = g
	lists := []string{x.shared("i32", "counts", x.at.counts), x.shared("i32", "starts", x.at.starts),
		x.shared("i32", "order", x.at.order), x.shared("i32", "place", x.at.place), x.shared("int4", "tiles", x.at.tiles)}
	if !x.finds() {
		x.list(lists)
	}
	if x.async {
		x.gather()
	}
}

// list writes the steps count and list.
func (x *mixture) list(lists []string) {
	t, e := x.dims.Tokens, x.op.Experts
	partial := x.scratch("i32", "partial", x.at.partial)
	x.printf("KERNEL(count, %d, 1) { count_tokens<Mixture>(%s, %s); }\n", routeTokens, x.gates, partial)
	x.printf("KERNEL(list, %d, 1) {\n  list_tokens<Mixture>(%s, %s, %s);\n}\n\n", routeTokens, x.gates, partial,
		strings.Join(lists, ", "))
	// With no tokens there still is one block, which writes that all experts have none.
	grid := [3]int{max(ceilDiv(t, routeTokens), 1), 1, 1}
	x.step(Step{Entry: "count", Grid: grid, Block: routeTokens, Shared: 8 * 4 * e}, false)
	x.step(Step{Entry: "list", Grid: grid, Block: routeTokens, Shared: 11 * 4 * e}, false)
}

// forward writes the steps that follow.
func (x *mixture) forward() error {
	y := -1
	var out rowsView
	var load []Step
	for i := range x.p.Stores {
		l := x.p.Stores[i].Layout
		if which, _ := x.p.ResultOf(&x.p.Stores[i]); which == 0 { // perhaps converted as it is stored
			y = i
			var err error
			if out, err = rowsOf(l); err != nil {
				return fmt.Errorf("%s: %w", x.anchor.Where(), err)
			}
			continue
		}
		x.printf("KERNEL(load, 256, 1) { load_counts<%d, %d>(%s + %d, %s); }\n\n", x.op.Experts, l.Stride[0],
			x.result(i), l.Offset, x.shared("i32", "counts", x.at.counts))
		load = append(load, Step{Entry: "load", Grid: [3]int{ceilDiv(x.op.Experts, 256), 1, 1}, Block: 256})
	}
	in, weights := x.operands.x, x.operands.weights
	d := x.dims
	hidden := x.scratch(ctype(x.elem), "h", x.at.h)
	rowType := x.acc // of the rows that are summed: rounded if the result is
	if y >= 0 && x.results[y].DType.Is16() && x.elem.Is16() {
		rowType = x.elem
	}
	rows := x.scratch(ctype(rowType), "rows", x.at.out)
	gathered := factor{arg: in.arg, dtype: x.elem, outer: in.row, k: in.col, offset: in.offset}
	source := fmt.Sprintf("%s + %d", x.arg(in.arg), in.offset)
	var products []groupedProduct
	first := Param{} // where the copied rows of x begin
	if x.async {
		first = x.sharedAt(x.at.x)
	}
	u := ""
	if x.op.Gated || x.keeps {
		u = x.shared(ctype(x.mid), "u", x.at.u)
	}
	matrix, bias, sums := graph.MoEW1, graph.MoEB1, !x.mid.Is16()
	if x.op.Gated {
		products = append(products,
			groupedProduct{"gate", gathered, source, first, weights[matrix], d.Hidden, d.Width, sums, func(w int) (string, error) {
				return x.biased(weights[graph.MoEB1]) + x.keep(x.mid, w, u, "value"), nil
			}})
		matrix, bias = graph.MoEW3, graph.MoEB3
	}
	own, w2 := factor{arg: -1, dtype: x.elem, outer: d.Hidden, k: 1}, weights[graph.MoEW2]
	products = append(products,
		groupedProduct{"hidden", gathered, source, first, weights[matrix], d.Hidden, d.Width, x.op.Gated && sums, func(w int) (
			string, error) {
			text, in, last := x.biased(weights[bias]), []string{"value"}, u
			if x.op.Gated {
				text += x.kept("u", x.mid, w, "fixed("+u+" + at)")
				in = []string{"u", "value"}
				if x.keeps {
					last = x.shared(ctype(x.mid), "v", x.at.v)
				}
			}
			if x.keeps {
				text += x.keep(x.mid, w, last, "value")
			}
			lines, h, err := x.elementwise(in, false)
			if err != nil {
				return "", err
			}
			return text + lines + x.keep(x.elem, w, hidden, h[0]), nil
		}},
		groupedProduct{"expert", own, hidden, Scratch(x.at.h), w2, d.Result, d.Hidden, !rowType.Is16(), func(w int) (string, error) {
			return x.biased(weights[graph.MoEB2]) + x.keep(rowType, w, rows, "value"), nil
		}})
	for _, p := range products {
		if err := x.grouped(p); err != nil {
			return err
		}
	}
	if x.waves == 1 {
		x.k.Ahead = max(slices.IndexFunc(x.k.Steps, func(s Step) bool { return s.Entry == "expert" }), 0)
	}
	for _, s := range load {
		x.step(s, false)
	}
	x.sum(y, out, rows, rowType.Size(), d.Result, true)
	x.finish()
	return nil
}

// sum writes the step that adds up, for each token, the rows of n elements of a size of its slots, as a result.
func (x *mixture) sum(result int, to rowsView, rows string, size, n int, weighted bool) {
	if x.dims.Tokens == 0 || n == 0 {
		return
	}
	w := 1
	for w < 16/size && n%(2*w) == 0 {
		w *= 2
	}
	x.printf("KERNEL(sum, 128, 1) {\n  sum_experts<Mixture, %d, %d, %d, %v>(", n, w, to.col, weighted)
	x.printf("%s + %d + i64(blockIdx.x) * %d, %s, %s, %s, p.wave);\n}\n\n", x.result(result), to.offset, to.row, rows,
		x.gates, x.shared("i32", "place", x.at.place))
	shared := x.op.Experts*(x.acc.Size()+4) + 16
	x.step(Step{Entry: "sum", Grid: [3]int{x.dims.Tokens, 1, 1}, Block: 128, Shared: shared}, true)
}

// A groupedProduct is the product of all experts: rows of a, at source, times each expert's matrix. A is gathered if it is an
// operand, else its rows are those of the slots of the wave, which begin at `at`; where the rows that are gathered
// are copied first, that is where they are copied to.
type groupedProduct struct {
	name   string
	a      factor
	source string
	at     Param
	b      weightView
	n, k   int
	sums   bool // the body stores values of the accumulators' type
	// body is the text that the body is made of. It knows the expert e, the first column n, acc, and the place at of the element in a
	// row for each slot.
	body func(w int) (string, error)
}

// grouped writes a product of all experts, whose body reads the given fields ahead.
func (x *mixture) grouped(g groupedProduct, ahead ...aheadField) error {
	if x.async {
		return x.groupedAsync(g, ahead)
	}
	name, a, source, b, n, k, body := g.name, g.a, g.source, g.b, g.n, g.k, g.body
	if a.arg >= 0 {
		a.listed = outerAxis
	}
	title := strings.ToUpper(name[:1]) + name[1:]
	p := &product{name: title + "Problem", batch: x.op.Experts, m: max(x.capacity/x.op.Experts, 1), n: n, k: k, a: a,
		b: factor{dtype: x.elem, outer: b.col, k: b.row, offset: b.align}, acc: x.acc}
	p.columns(min(16/x.acc.Size(), simtColumns))
	m := &matmul{unit: x.unit, product: p, cfg: x.cfg, rows: x.rows}
	c := m.cut()
	x.use(c.source)
	text, err := body(p.w)
	if err != nil {
		return err
	}
	p.write(x.unit)
	x.writeBody(title, n, text, ahead...)
	x.printf("KERNEL(%s, %d, %d) {\n  Spot spot;\n  int rows;\n", name, c.threads, c.blocks)
	x.printf("  if (!tile_of<Mixture, %s, %d>(p.tiles, p.wave, spot, rows)) return;\n", p.name, c.bn)
	list := "nullptr"
	if a.listed != noAxis {
		list = "p.order + spot.m"
	} else {
		source += fmt.Sprintf(" + i64(spot.m - p.wave * %d) * %d", x.capacity, a.outer)
	}
	x.printf("  const Piece<%s> piece = {%s, %s[spot.batch] + i64(spot.n) * %d, rows, %d - spot.n, %d, %s};\n  ", p.name,
		source, b.name, b.col, n, k, list)
	x.printf(c.call+";\n}\n\n", title+"Body", title+"Body{p}", "piece", "(float *)nullptr")
	x.step(Step{Entry: name, Grid: [3]int{x.tiles * ceilDiv(n, c.bn), 1, 1}, Block: c.threads, Shared: c.shared}, true)
	return nil
}

// writeBody prints the body of a product of n columns. What it reads ahead, if anything, is the fields of a struct, each with the
// text that reads it.
func (x *mixture) writeBody(title string, n int, text string, ahead ...aheadField) {
	index := "u32"
	if x.capacity*n > math.MaxInt32 {
		index = "i64"
	}
	at := fmt.Sprintf("    const %s at = %s(m - p.wave * %d) * %d + n;\n", index, index, x.capacity, n)
	if len(ahead) == 0 {
		x.openBody(title)
		x.printf("%s%s  }\n};\n\n", at, text)
		return
	}
	x.printf("struct %sBody {\n  static constexpr int SUMS = 0;\n  static constexpr bool AHEAD = true, LONG = true;\n", title)
	x.printf("  typedef float Sum;\n  const Params &p;\n")
	x.openAhead("e", lane(x.acc), at, ahead)
	x.printf("%s  }\n", text)
	x.operandTiles(ahead)
	x.printf("};\n\n")
}

// use adds templates to the translation unit.
func (x *mixture) use(source []string) {
	for _, s := range source {
		if !slices.Contains(x.source, s) {
			x.source = append(x.source, s)
		}
	}
}

// openBody begins the body of the product of a title.
func (x *mixture) openBody(title string) {
	x.printf("struct %sBody {\n  static constexpr int SUMS = 0;\n  static constexpr bool AHEAD = false, LONG = false;\n", title)
	x.printf("  typedef float Sum;\n  const Params &p;\n  template <int W>\n")
	x.printf("  DEVICE void operator()(int e, int m, int n, const Vec<%s, W> &acc, Vec<Sum, W> *) const {\n",
		lane(x.acc))
}

// kept is the text that reads a value of each slot, of the accumulators' type, that keep stored.
func (x *mixture) kept(name string, d graph.DType, w int, from string) string {
	return fmt.Sprintf("    const auto %s = %s;\n", name, x.reads(d, w, from))
}

// reads is the expression of kept.
func (x *mixture) reads(d graph.DType, w int, from string) string {
	return fmt.Sprintf("load<%s, W, 1, %d>(%s)", lane(x.acc), min(w*d.Size(), 16), from)
}

// biased is the text that makes value of acc and the expert's bias, if there are biases.
func (x *mixture) biased(b weightView) string {
	if !x.op.Bias {
		return "    const auto value = acc;\n"
	}
	return fmt.Sprintf("    const auto value = op::add(acc, load<%s, W, %d, %d>(%s[e] + i64(n) * %d));\n", lane(x.acc),
		b.col, x.acc.Size(), b.name, b.col)
}

// keep is the text that stores a value of each slot.
func (x *mixture) keep(d graph.DType, w int, to, value string) string {
	return fmt.Sprintf("    store<1, %d>(%s + at, widen<W>(%s));\n", min(w*d.Size(), 16), to, value)
}

// elementwise is the text that makes h and, backward, du and dv, of values of the given names: u, v if the mixture is
// gated, and backward da. It returns the results' names.
func (x *mixture) elementwise(in []string, backward bool) (text string, out []string, err error) {
	f, err := body.Hidden(x.op, x.acc, 8, backward)
	if err != nil {
		return "", nil, err
	}
	o := Operand{DType: x.acc, Layout: graph.Contiguous(graph.ShapeOf(8))}
	p, err := body.Lower(f, slices.Repeat([]Operand{o}, len(in)), slices.Repeat([]Operand{o}, len(f.Body.Outputs)))
	if err != nil {
		return "", nil, err
	}
	b := newPrinter(x.unit, p, []string{"n"}, 0, 1)
	for i := range p.Values {
		if v := &p.Values[i]; v.Kind == body.Load {
			b.define(i, value{kind: vector, expr: in[v.Arg], lane: lane(x.acc)})
		}
	}
	for i := range p.Stores {
		v, err := b.operand(p.Stores[i].Value)
		if err != nil {
			return "", nil, err
		}
		out = append(out, "widen<W>("+v.expr+")")
	}
	return b.text("    "), out, nil
}
