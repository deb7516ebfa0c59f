package cuda

import (
	"fmt"
	"slices"
	"strings"

	"fusec/graph"
	"fusec/graph/body"
)

// A mover is a kernel that finds what belongs into each row of a result [outer, rows, inner]: a row of a source
// [outer, dim, inner], or a value. Rows are moved W elements at a time.
type mover struct {
	u     *unit
	entry string
	typ   string
	outer int
	rows  int
	inner int
	w     int
	head  []string // what the entry begins with
}

// newMover is of an operation whose sources and result have inner elements side by side.
func newMover(entry string, u *unit, d graph.DType, outer, rows, inner, elems int) *mover {
	m := &mover{u: u, entry: entry, typ: indexType(elems), outer: outer, rows: rows, inner: inner, w: 16 / d.Size()}
	for inner%m.w != 0 || inner == 0 && m.w > 1 {
		m.w /= 2
	}
	m.head = []string{fmt.Sprintf("constexpr int W = %d;", m.w)}
	return m
}

// load is the W elements of row row of an argument, whose axis has dim elements.
func (m *mover) load(arg, dim int, row string) string {
	o := m.u.args[arg]
	return fmt.Sprintf("load<%s, W, 1, %d>(%s + ((%s(o) * %d + %s) * %d + i))", lane(o.DType), m.align(o), m.u.at(arg),
		m.typ, dim, row, m.inner)
}

// store writes the W elements of row row of the result, whose axis has dim elements.
func (m *mover) store(dim int, row, value string) string {
	o := m.u.results[0]
	return fmt.Sprintf("store<1, %d>(%s + ((%s(o) * %d + %s) * %d + i), %s);", m.align(o), m.u.to(0), m.typ, dim, row, m.inner,
		value)
}

// keep copies W elements of row row of the result, whose axis has dim elements, to row j of size in other memory, bit by bit.
func (m *mover) keep(to string, size, dim int, row string) string {
	o := m.u.results[0]
	at := func(dim int, row string) string {
		return fmt.Sprintf("((%s(o) * %d + %s) * %d + i)", m.typ, dim, row, m.inner)
	}
	whole := min(16, m.w*o.DType.Size()) // kept memory is aligned
	return fmt.Sprintf("store<1, %d>(%s + %s, load<%s, W, 1, %d>(%s + %s));", whole&-whole, to, at(size, "j"), ctype(o.DType),
		m.align(o), m.u.to(0), at(dim, row))
}

// align is what divides the addresses of units in an operand, in bytes.
func (m *mover) align(o Operand) int {
	a := 16 | m.w*o.DType.Size() | o.Layout.Offset*o.DType.Size()
	return a & -a
}

// at is where an argument's first element stands; to is that of a result.
func (u *unit) at(arg int) string { return u.arg(arg) + behind(u.args[arg]) }

func (u *unit) to(result int) string { return u.result(result) + behind(u.results[result]) }

func behind(o Operand) string {
	if o.Layout.Offset == 0 {
		return ""
	}
	return fmt.Sprintf(" + %d", o.Layout.Offset)
}

// start reads where a slice begins from an argument and reports it if it is outside 0..last.
func (m *mover) start(arg, last int) {
	m.head = append(m.head, "i64 start;", fmt.Sprintf("if (!slice_start(%s, %d, %s, &start)) return;", m.u.at(arg), last,
		m.u.status()))
}

// step writes the entry, whose lines are executed for each unit: row j and element i of it, of outer o.
func (m *mover) step(lines ...string) Step {
	units := m.outer * m.rows * m.inner / m.w
	runs := []run{{m.outer, 0, "o"}, {m.rows, 1, "j"}, {m.inner, 2, "i"}}
	text := append(slices.Clone(m.head), indexed(m.typ, units, split("e", m.typ, runs, true, ""))...)
	m.u.entry(m.entry, blockThreads, append(text, lines...)...)
	return Step{Entry: m.entry, Grid: [3]int{max(ceilDiv(units, blockThreads), 1), 1, 1}, Block: blockThreads}
}

// kernel puts a unit and its steps together. All entries take the same parameter.
func (u *unit) kernel(scratch int64, steps []Step, templates ...string) *Kernel {
	for i := range steps {
		if steps[i].Entry != "" {
			steps[i].Params = u.fields
		}
	}
	return &Kernel{Source: u.source(templates...), Steps: steps, Scratch: scratch}
}

// lastStart is the greatest start of size elements, step apart, in an axis of dim.
func lastStart(dim, size, step int) int {
	if size == 0 {
		return dim
	}
	return dim - (size-1)*step - 1
}

// elemsOfAll is the largest number of elements of the operands.
func elemsOfAll(lists ...[]Operand) int {
	n := 0
	for _, l := range lists {
		for _, o := range l {
			n = max(n, o.Layout.Shape.Elems())
		}
	}
	return n
}

var _ = answers.Add(checkedOp(compileSlice)).Add(checkedOp(compileUnslice)).Add(checkedOp(compileUpdateSlice)).
	Add(checkedOp(compileGather)).Add(checkedOp(compilePad)).Add(own(compileConcat))

// compileSlice takes part of an axis from where an operand says.
func compileSlice(op graph.Slice, args, results []Operand) (*Kernel, error) {
	u := newUnit(args, results)
	outer, dim, inner := args[0].Layout.Shape.Around(op.Axis, 1)
	m := newMover("slice", u, args[0].DType, outer, op.Size, inner, elemsOfAll(args, results))
	m.start(1, lastStart(dim, op.Size, op.Step))
	step := m.step(m.store(op.Size, "j", m.load(0, dim, fmt.Sprintf("%s(start) + j * %d", m.typ, op.Step))))
	return u.kernel(0, []Step{step}, "moves"), nil
}

// compileUnslice puts the operand into zeros where another operand says.
func compileUnslice(op graph.Unslice, args, results []Operand) (*Kernel, error) {
	u := newUnit(args, results)
	outer, size, inner := args[0].Layout.Shape.Around(op.Axis, 1)
	m := newMover("unslice", u, args[0].DType, outer, op.Size, inner, elemsOfAll(args, results))
	m.start(1, lastStart(op.Size, size, op.Step))
	step := m.step(fmt.Sprintf("const %s k = j - %s(start);", m.typ, m.typ),
		fmt.Sprintf("const bool inside = k >= 0 && k %% %d == 0 && k / %d < %d;", op.Step, op.Step, size),
		m.store(op.Size, "j", "inside ? "+m.load(0, size, fmt.Sprintf("k / %d", op.Step))+" : "+m.value(args[0].DType, 0)))
	return u.kernel(0, []Step{step}, "moves"), nil
}

// value is W times a number.
func (m *mover) value(d graph.DType, x float64) string { return "splat<W>(" + literal(d, x, nil) + ")" }

// compileUpdateSlice writes an operand over part of an axis of another; in place, that part alone.
func compileUpdateSlice(op graph.UpdateSlice, args, results []Operand) (*Kernel, error) {
	u := newUnit(args, results)
	outer, dim, inner := args[0].Layout.Shape.Around(op.Axis, 1)
	size := args[1].Layout.Shape.At(op.Axis)
	rows := dim
	if results[0].Over == 1 {
		rows = size
	}
	m := newMover("update_slice", u, args[0].DType, outer, rows, inner, elemsOfAll(args, results))
	m.start(2, dim-size)
	var step Step
	var zeroed, kept int64
	if results[0].Over == 1 {
		row := fmt.Sprintf("(%s(start) + j)", m.typ)
		lines := []string{m.store(dim, row, m.load(1, size, "j"))}
		if results[0].Update { // Restore takes it back if the run fails
			zeroed, kept = 8, args[1].Type().Bytes()
			started := u.field(Param{Kind: ZeroedPtr}, "i64 *", "started")
			old := u.field(Param{Kind: KeptPtr}, ctype(args[0].DType)+" *", "old")
			m.head = append(m.head, fmt.Sprintf("if (blockIdx.x == 0 && threadIdx.x == 0) *%s = start + 1;", started))
			lines = append([]string{m.keep(old, size, dim, row)}, lines...)
		}
		step = m.step(lines...)
	} else {
		step = m.step(fmt.Sprintf("const %s k = j - %s(start);", m.typ, m.typ),
			fmt.Sprintf("const bool inside = k >= 0 && k < %d;", size),
			m.store(dim, "j", "inside ? "+m.load(1, size, "k")+" : "+m.load(0, dim, "j")))
	}
	kernel := u.kernel(0, []Step{step}, "moves")
	kernel.Zeroed, kernel.Kept = zeroed, kept
	return kernel, nil
}

// compileGather copies the rows that indices name.
func compileGather(op graph.Gather, args, results []Operand) (*Kernel, error) {
	u := newUnit(args, results)
	outer, dim, inner := args[0].Layout.Shape.Around(op.Axis, 1)
	count := args[1].Layout.Shape.Elems()
	m := newMover("gather", u, args[0].DType, outer, count, inner, elemsOfAll(args, results))
	at := fmt.Sprintf("const i64 k = checked_index(%s, j, %d, %s);", u.at(1), dim, u.status())
	step := m.step(at, m.store(count, "j", "k < 0 ? "+m.value(args[0].DType, 0)+" : "+m.load(0, dim, m.typ+"(k)")))
	if outer*inner == 0 && count > 0 { // indices are checked even where there is nothing to copy
		u.text.Reset()
		m = newMover("gather", u, args[0].DType, 1, count, 1, count)
		step = m.step(at, "(void)k;")
	}
	return u.kernel(0, []Step{step}, "moves"), nil
}

// compilePad puts the operand into the middle of a value.
func compilePad(op graph.Pad, args, results []Operand) (*Kernel, error) {
	u := newUnit(args, results)
	x, s, t := args[0].Layout, args[0].Layout.Shape, results[0].Layout.Shape
	if t.Elems() == 0 {
		return &Kernel{}, nil
	}
	typ := indexType(max(t.Elems(), span(x)))
	var runs []run
	at, inside := []string{}, []string{"true"}
	for i, stride := range x.Stride[:s.Rank()] {
		runs = append(runs, run{t.At(i), i, fmt.Sprint("c", i)})
		k := fmt.Sprintf("(c%d - %d)", i, op.Lo.At(i))
		if s.At(i) != t.At(i) {
			inside = append(inside, fmt.Sprintf("%s >= 0 && %s < %d", k, k, s.At(i)))
		}
		at = append(at, fmt.Sprintf("%s * %s(%d)", k, typ, stride))
	}
	at = append(at, fmt.Sprint(x.Offset))
	d := args[0].DType
	u.elements("pad", typ, t.Elems(), split("e", typ, runs, false, ""),
		fmt.Sprintf("const bool inside = %s;", strings.Join(inside, " && ")),
		fmt.Sprintf("%s[%d + e] = inside ? %s[%s] : convert<%s>(%s);", u.result(0), results[0].Layout.Offset, u.arg(0),
			strings.Join(at, " + "), ctype(d), literal(d, op.Value, nil)))
	return u.kernel(0, []Step{u.elementStep("pad", t.Elems())}), nil
}

// entry writes an entry of some lines.
func (u *unit) entry(name string, threads int, lines ...string) {
	u.printf("KERNEL(%s, %d, 1) {\n%s", name, threads, u.guard())
	for _, l := range lines {
		u.printf("  %s\n", l)
	}
	u.printf("}\n\n")
}

// sharing writes an entry that calls a function with the block's shared memory, as elements of a type, behind the arguments.
func (u *unit) sharing(name, typ, function string, args ...any) {
	list := make([]string, len(args))
	for i, a := range args {
		list[i] = fmt.Sprint(a)
	}
	u.entry(name, blockThreads, "SHARED;",
		fmt.Sprintf("%s(%s, reinterpret_cast<%s *>(shared));", function, strings.Join(list, ", "), typ))
}

// elements writes an entry that does something for each of n elements e.
func (u *unit) elements(entry, typ string, n int, coordinates string, lines ...string) {
	u.entry(entry, blockThreads, append(indexed(typ, n, coordinates), lines...)...)
}

// indexed is how the entry of elements finds its element and coordinates.
func indexed(typ string, n int, coordinates string) []string {
	lines := []string{fmt.Sprintf("const %s e = %s(blockIdx.x) * %d + int(threadIdx.x);", typ, typ, blockThreads),
		fmt.Sprintf("if (e >= %d) return;", n)}
	for l := range strings.Lines(coordinates) {
		lines = append(lines, strings.TrimSpace(l))
	}
	return lines
}

// elementStep is the start of such an entry.
func (u *unit) elementStep(entry string, n int) Step {
	return Step{Entry: entry, Grid: [3]int{ceilDiv(n, blockThreads), 1, 1}, Block: blockThreads}
}

// compileConcat copies each operand to its place.
func compileConcat(op graph.Concat, args, results []Operand, cfg Config) (*Kernel, error) {
	var parts []body.Part
	start := 0
	for i, a := range args {
		to, size := results[0], a.Layout.Shape.At(op.Axis)
		to.Layout = to.Layout.Slice(op.Axis, start, size, 1)
		start += size
		b := graph.NewBuilder("copy")
		b.Output("y", b.Input("x", a.Type()))
		g, err := b.Graph()
		if err != nil {
			return nil, err
		}
		in, out := []Operand{a}, []Operand{to}
		p, err := body.Lower(graph.Fusion{Body: g}, in, out)
		if err != nil {
			return nil, err
		}
		parts = append(parts, body.Part{Program: p, Segment: graph.Segment{Body: g, Args: []int{i}, Results: []int{0}}, Args: in,
			Results: out})
	}
	return compileParts(parts, cfg)
}
