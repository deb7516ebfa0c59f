package cuda

import (
	"fmt"
	"math"
	"strings"

	"fusec/graph"
	"fusec/graph/body"
)

// An attentionProblem describes an Attention or AttentionGrad to the templates that compute it: its sizes, and where
// its operands and results stand.
type attentionProblem struct {
	op    graph.Attention
	grad  bool
	dims  graph.AttentionDims
	dtype graph.DType // of queries, and of keys and values unless they are of 8 bits with scales
	cfg   Config
	name  string // of the operation's node, for errors

	q, k, v, mask, lengths, table, seed attentionView
	keyScale, valueScale                attentionView
	out, lse                            attentionView // results of an Attention, operands of its gradient
	dout, dlse                          attentionView // operands of the gradient
	dq, dk, dv                          attentionView // its results

	// parts is of how many numbers of f16 the elements of f32 that are multiplied consist, where they do; see attention_split.go.
	parts int
	// rowsAt is where in the scratch memory a portable gradient has its rows' numbers.
	rowsAt int64

	args, results []Operand
}

// An attentionView is where an operand or result of the anchor stands: in a buffer, through a layout; or it is a
// constant number. The zero view is one that is not there.
type attentionView struct {
	kind   viewKind
	index  int // of the argument or result
	layout graph.Layout
	number int64
}

type viewKind uint8

const (
	viewNone viewKind = iota
	viewArg
	viewResult
	viewNumber
)

func (v attentionView) there() bool { return v.kind != viewNone }

// compileAttention makes the kernel of a fusion anchored on an Attention or AttentionGrad.
func compileAttention(f graph.Fusion, args, results []Operand, cfg Config) (*Kernel, error) {
	a, err := newAttentionProblem(f, args, results, cfg)
	if err != nil {
		return nil, err
	}
	return a.compile()
}

// compile makes the fastest kernel that serves the problem.
func (a *attentionProblem) compile() (*Kernel, error) {
	for _, compile := range attentionKernels {
		if k, ok := compile(a); ok {
			return k, nil
		}
	}
	return nil, fmt.Errorf("%s: CUDA has no kernel for it", a.name)
}

// attentionKernels are the ways to compute an attention or its gradient, the fastest first. Each says whether it serves
// a problem; the last serves all.
var attentionKernels = []func(*attentionProblem) (*Kernel, bool){
	(*attentionProblem).forwardHopper,
	(*attentionProblem).gradHopper,
	(*attentionProblem).forwardSplit,
	(*attentionProblem).gradSplit,
	(*attentionProblem).forwardDecode,
	(*attentionProblem).forwardMMA,
	(*attentionProblem).gradMMA,
	(*attentionProblem).forwardSIMT,
	(*attentionProblem).gradSIMT,
}

func newAttentionProblem(f graph.Fusion, args, results []Operand, cfg Config) (*attentionProblem, error) {
	p, err := body.Lower(f, args, results)
	if err != nil {
		return nil, err
	}
	n := p.Anchor
	a := &attentionProblem{cfg: cfg, args: args, results: results, name: n.Where(), dtype: n.Args[0].Type.DType}
	want := map[*attentionView]int{}
	switch op := n.Op.(type) {
	case graph.Attention:
		a.op = op
	case graph.AttentionGrad:
		a.op, a.grad = op.Attention, true
		want[&a.out], want[&a.lse] = op.OutArg(), op.LSEArg()
		want[&a.dout], want[&a.dlse] = op.DOutArg(), op.DLSEArg()
	}
	want[&a.q], want[&a.k], want[&a.v] = 0, 1, 2
	want[&a.mask], want[&a.lengths] = a.op.MaskArg(), a.op.LengthsArg()
	want[&a.table], want[&a.seed] = a.op.TableArg(), a.op.SeedArg()
	want[&a.keyScale], want[&a.valueScale] = a.op.KeyScaleArg(), a.op.ValueScaleArg()

	types := p.OperandTypes()
	a.dims = a.op.DimsOf(types)
	if a.dims.Keys > math.MaxInt32/4 || a.dims.Queries > math.MaxInt32/4 {
		return nil, fmt.Errorf("%s: %d queries and %d keys are too many for CUDA", a.name, a.dims.Queries, a.dims.Keys)
	}
	for to, i := range want {
		if i < 0 {
			continue
		}
		o := p.Operands[i]
		*to = attentionView{kind: viewArg, index: o.Arg, layout: o.Layout}
		if o.Number != nil {
			*to = attentionView{kind: viewNumber, number: o.Number.Int(0)}
		}
	}
	if a.mask.there() {
		a.mask.layout = a.mask.layout.Broadcast(a.dims.Scores(types[0].Shape))
	}
	to := []*attentionView{&a.out, &a.lse}
	if a.grad {
		to = []*attentionView{&a.dq, &a.dk, &a.dv}
	}
	for i := range p.Stores {
		which, _ := p.ResultOf(&p.Stores[i]) // perhaps converted as it is stored
		*to[which] = attentionView{kind: viewResult, index: i, layout: p.Stores[i].Layout}
	}
	return a, nil
}

// operand is the description of the buffer that a view is of.
func (a *attentionProblem) operand(v attentionView) Operand {
	if v.kind == viewResult {
		return a.results[v.index]
	}
	return a.args[v.index]
}

// lane is the type that the attention is computed in.
func (a *attentionProblem) lane() graph.DType {
	if a.dtype == graph.F64 {
		return graph.F64
	}
	return graph.F32
}

// heads are those of queries in all batches; groups those of keys and values.
func (a *attentionProblem) heads() int  { return a.dims.Batch.Elems() * a.dims.Heads }
func (a *attentionProblem) groups() int { return a.heads() / a.dims.Group }

// problem writes the struct Problem of src/attention.cuh.
func (a *attentionProblem) problem(u *unit) {
	d, op := a.dims, a.op
	u.printf("struct Problem {\n")
	u.printf("  typedef %s T;\n  typedef %s L;\n", ctype(a.dtype), ctype(a.lane()))
	u.printf("  static constexpr int BATCH = %d, HEADS = %d, GROUP = %d;\n", d.Batch.Elems(), d.Heads, d.Group)
	u.printf("  static constexpr int QUERIES = %d, KEYS = %d, DEPTH = %d, WIDTH = %d;\n", d.Queries, d.Keys, d.Depth, d.Width)
	// A window larger than all there is restricts nothing; the bound keeps sums from overflowing.
	u.printf("  static constexpr int WINDOW = %d, PAGE = %d;\n", min(op.Window, d.Keys+d.Queries), op.Page)
	u.printf("  static constexpr bool CAUSAL = %t, TAIL = %t, HAS_MASK = %t, HAS_LENGTHS = %t;\n",
		op.Causal, op.Tail, op.HasMask, op.HasLengths)
	u.printf("  static constexpr double SCALE = %s, KEEP = %s;\n", literal(graph.F64, op.Scale, nil),
		literal(graph.F64, 1/a.rule().Kept(), nil))
	u.printf("  static constexpr u32 DROP = %du;\n  static constexpr int DROP_BITS = %d;\n", a.rule().Threshold, a.rule().Bits)
	u.printf("  static constexpr bool HAS_LSE = %t, HAS_DLSE = %t, HAS_DK = %t, HAS_DV = %t;\n",
		a.lse.there(), a.dlse.there(), a.dk.there(), a.dv.there())

	u.printf("  static constexpr bool HAS_SCALES = %t;\n  static constexpr int PARTS = %d;\n", op.HasScales, a.byteParts())
	for _, x := range []struct {
		name string
		view attentionView
	}{{"k", a.k}, {"v", a.v}, {"k_scale", a.keyScale}, {"v_scale", a.valueScale}} {
		if op.Page > 0 && x.view.there() {
			a.paged(u, x.name, x.view)
		} else {
			a.matrix(u, x.name, x.view, 2)
		}
	}
	a.matrix(u, "q", a.q, 2)
	if op.HasMask {
		u.printf("  static constexpr bool BOOL = %t;\n", a.operand(a.mask).DType == graph.Bool)
		a.matrix(u, "mask", a.mask, 2)
	}
	a.matrix(u, "out", a.out, 2)
	a.matrix(u, "lse", a.lse, 1)
	a.matrix(u, "dout", a.dout, 2)
	a.matrix(u, "dlse", a.dlse, 1)
	a.matrix(u, "dq", a.dq, 2)
	a.matrix(u, "dk", a.dk, 2)
	a.matrix(u, "dv", a.dv, 2)
	if op.HasLengths {
		l := a.lengths.layout
		u.printf("  static DEVICE i64 length(const Params &p, int h) { return %s[%s]; }\n", a.pointer(u, a.lengths),
			flatOffset(l, l.Shape.Rank(), "h"))
	}
	if a.seed.there() {
		u.printf("  static DEVICE i64 seed(const Params &p) { return %s; }\n", a.seedText(u))
	}
	if a.grad {
		typ := fmt.Sprintf("AttentionRow<%s>", ctype(a.lane()))
		u.printf("  static DEVICE %s *rows(const Params &p) { return %s; }\n", typ, u.scratch(typ, "rows", a.rowsAt))
	}
	u.printf("};\n\n")
}

// rule is how dropout decides.
func (a *attentionProblem) rule() graph.DropoutRule { return graph.DropoutRuleOf(a.op.Dropout) }

// seedText is the seed of dropout.
func (a *attentionProblem) seedText(u *unit) string {
	if a.seed.kind == viewNumber {
		return int64Literal(a.seed.number)
	}
	return fmt.Sprintf("%s[%d]", a.pointer(u, a.seed), a.seed.layout.Offset)
}

// int64Literal writes a number of 64 bits.
func int64Literal(x int64) string { return fmt.Sprintf("i64(%dull)", uint64(x)) }

// pointer is what reads the address of a view's buffer.
func (a *attentionProblem) pointer(u *unit, v attentionView) string {
	if v.kind == viewResult {
		return u.result(v.index)
	}
	return u.arg(v.index)
}

// matrix writes the accessor of the matrices in the last axes of a view, one for each head h that the axes before them
// count. With one axis, the matrix has one column.
func (a *attentionProblem) matrix(u *unit, name string, v attentionView, axes int) {
	if !v.there() {
		return
	}
	l := v.layout
	lead := l.Shape.Rank() - axes
	col := 1
	if axes == 2 && l.Shape.At(lead+1) != 1 {
		col = l.Stride[lead+1]
	}
	o := a.operand(v)
	u.printf("  static DEVICE auto %s(const Params &p, int h) {\n", name)
	u.printf("    return Strided<%s, %d, %d, %d>{%s + %s};\n  }\n", elementType(v, o.DType), l.Stride[lead], col,
		rowAlign(l, lead+1, o.DType), a.pointer(u, v), flatOffset(l, lead, "h"))
}

// elementType is the C++ type of an element in a view's buffer.
func elementType(v attentionView, d graph.DType) string {
	if v.kind == viewResult {
		return ctype(d)
	}
	return "const " + ctype(d)
}

// paged writes the accessor of keys or values in pages of a pool [pages, heads, page, depth], and with the keys the
// table's.
func (a *attentionProblem) paged(u *unit, name string, v attentionView) {
	l, t := v.layout, a.table.layout
	col := 1
	if l.Shape.At(3) != 1 {
		col = l.Stride[3]
	}
	heads := l.Shape.At(1)
	batches := t.Shape.Rank() - 1
	table := fmt.Sprintf("%s + %s", a.pointer(u, a.table),
		flatOffset(t, batches, fmt.Sprintf("h / %d", max(heads, 1))))
	u.printf("  static DEVICE auto %s(const Params &p, int h) {\n", name)
	u.printf("    return Paged<%s, %d, %d, %d, %d, %d, %d, %d>{%s + %d + i64(h %% %d) * %d, %s};\n  }\n",
		elementType(v, a.operand(v).DType), l.Stride[2], col, rowAlign(l, 3, a.operand(v).DType), a.op.Page, l.Stride[0],
		l.Shape.At(0), t.Stride[batches], a.pointer(u, v), l.Offset, max(heads, 1), l.Stride[1], table)
	if name == "k" {
		u.status()
		u.printf("  static constexpr int PAGES = %d;\n", l.Shape.At(0))
		u.printf("  static DEVICE i64 entry(const Params &p, int h, int e) { return %s[%s + i64(e) * %d]; }\n",
			a.pointer(u, a.table), flatOffset(t, batches, "h"), t.Stride[batches])
	}
}

// flatOffset is where the matrix that the first axes of a layout count begins: a C++ expression of h, their index in
// row-major order.
func flatOffset(l graph.Layout, axes int, h string) string {
	terms := []string{}
	if l.Offset != 0 {
		terms = append(terms, fmt.Sprintf("i64(%d)", l.Offset))
	}
	// Axes that follow one another in memory are one.
	inner := 1 // elements of the axes behind
	for i := axes - 1; i >= 0; i-- {
		n, stride, below := l.Shape.At(i), l.Stride[i], inner
		for i > 0 && (l.Stride[i-1] == stride*n || l.Shape.At(i-1) == 1) {
			i--
			n *= l.Shape.At(i)
		}
		inner *= n
		if n <= 1 || stride == 0 {
			continue
		}
		index := h
		if below > 1 {
			index = fmt.Sprintf("%s / %d", h, below)
		}
		if i > 0 {
			index = fmt.Sprintf("%s %% %d", index, n)
		}
		terms = append(terms, fmt.Sprintf("i64(%s) * %d", index, stride))
	}
	if len(terms) == 0 {
		return "0"
	}
	return "(" + strings.Join(terms, " + ") + ")"
}

// rowAlign is the greatest power of two, up to 16, that divides the address of every row, in bytes; axes up to rows
// count them.
func rowAlign(l graph.Layout, rows int, d graph.DType) int {
	a := 16 | l.Offset*d.Size()
	for i := range rows {
		if l.Shape.At(i) > 1 {
			a |= l.Stride[i] * d.Size()
		}
	}
	return a & -a
}

// simtEdge and simtThreads are SIMT_TILE and SIMT_THREADS of src/attention_simt.cuh.
const simtEdge, simtThreads = 64, 256

// simtShared is the size of its SimtShared.
func simtShared(d graph.DType, chunk int) int {
	step := 16
	if d == graph.F64 {
		step = 8
	}
	return d.Size() * (2*step*(simtEdge+4) + simtEdge*(simtEdge+1) + step*chunk)
}

// simtChunk is how many columns of a result with so many a block computes, most at most.
func simtChunk(columns, most int) int { return min(roundUp(max(columns, 1), 16), most) }

// forwardSIMT is attention for all chips and types.
func (a *attentionProblem) forwardSIMT() (*Kernel, bool) {
	if a.grad {
		return nil, false
	}
	if a.dims.Queries == 0 || a.heads() == 0 {
		return &Kernel{}, true
	}
	u := newUnit(a.args, a.results)
	a.problem(u)
	chunk := simtChunk(a.dims.Width, 256*4/a.lane().Size())
	u.printf("KERNEL(attention, %d, 1) { attention_simt<Problem, %d>(p); }\n", simtThreads, chunk)
	step := Step{
		Entry:  "attention",
		Grid:   [3]int{a.heads() * ceilDiv(a.dims.Queries, simtEdge), ceilDiv(max(a.dims.Width, 1), chunk), 1},
		Block:  simtThreads,
		Shared: simtShared(a.lane(), chunk),
		Params: u.fields,
	}
	return &Kernel{Source: u.source("attention", "attention_simt"), Steps: []Step{step}}, true
}

// gradSIMT is the gradient of attention for all chips and types.
func (a *attentionProblem) gradSIMT() (*Kernel, bool) {
	u := newUnit(a.args, a.results)
	d, lane := a.dims, a.lane()
	a.problem(u)
	chunk := simtChunk(max(d.Depth, d.Width), 128*4/lane.Size())
	shared := simtShared(lane, chunk)
	rows := a.heads() * d.Queries
	kernel := &Kernel{Scratch: int64(3 * lane.Size() * rows)}
	add := func(entry, template string, grid [3]int, shared int) {
		u.printf("KERNEL(%s, %d, 1) { %s(p); }\n", entry, simtThreads, template)
		kernel.Steps = append(kernel.Steps, Step{Entry: entry, Grid: grid, Block: simtThreads, Shared: shared})
	}
	if rows > 0 {
		add("rows", "attention_rows<Problem>", [3]int{ceilDiv(rows, simtThreads/32), 1, 1}, 0)
	}
	if blocks := a.groups() * ceilDiv(d.Keys, simtEdge); blocks > 0 && (a.dk.there() || a.dv.there()) {
		add("dkdv", fmt.Sprintf("attention_dkdv_simt<Problem, %d>", chunk),
			[3]int{blocks, ceilDiv(max(d.Depth, d.Width, 1), chunk), 1}, shared)
	}
	if rows > 0 && d.Depth > 0 && a.dq.there() {
		add("dq", fmt.Sprintf("attention_dq_simt<Problem, %d>", chunk),
			[3]int{a.heads() * ceilDiv(d.Queries, simtEdge), ceilDiv(d.Depth, chunk), 1}, shared)
	}
	for i := range kernel.Steps {
		kernel.Steps[i].Params = u.fields
	}
	if len(kernel.Steps) == 0 {
		return kernel, true
	}
	kernel.Source = u.source("attention", "attention_simt", "attention_grad", "attention_grad_simt")
	return kernel, true
}
