package cuda

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"fusec/graph"
	"fusec/graph/body"
)

// A printer writes a lowered body as straight-line code over W elements that stand side by side along one axis of the
// iteration space. It writes a value when it is first asked for, and each value once.
//
// Values over the axis are Vec<T, W>; those that are the same for all W elements are plain T.
type printer struct {
	u      *unit
	p      *body.Program
	coords []string // of the first of the W elements: a C++ expression per axis of the space, of type int
	wide   int      // the axis along which the elements stand, or -1: there is none, W is 1
	// multiple is a number that the coordinate of axis wide is a multiple of, and W divides.
	multiple int

	// A thread that computes several units of W elements does so in loops, one for each stage. What is the same along
	// the axes that the units differ in stands before the loop.
	stage int
	loops graph.Ints

	values []value // by index of the program; those that are not written have no text
	reads  []int   // the loads that were written, in order
	stmts  []stmt
	next   int
	quiet  bool   // without the user's names
	guard  string // before a statement that stores
	// most, if set, is how many bytes a result has at most that is not streamed past the L2 cache.
	most int
	// draws, if not 0, says that the threads of a warp draw together, for units of so many elements, as the text of
	// [elementwise.function] has them.
	draws int
	// overtake lets reads of arguments move before stores: where a thread stores units before it reads others.
	overtake bool
	// again, if set, says of what is read through a layout that a thread reads it more than once: it may not overtake,
	// so that the compiler does not read it once and keep it in registers that it has not.
	again func(graph.Layout) bool
	// divisors, if set, has the names of Divisors of src/ops.cuh, by the numbers that divide.
	divisors map[string]string
	// instead, if set, may say how the load with the given index is read, or, if that is -1, a result is written, where
	// not straight from memory.
	instead func(load, result int) (place string, ok bool)
}

// A stmt is a statement that was written.
type stmt struct {
	text  string
	name  string   // of the value that it makes, or empty
	typ   string   // of the value
	uses  []string // names
	stage int
	fixed bool // the same for all units of a thread
	store bool
}

// A value is what a value of the program is to the text.
type value struct {
	kind  valueKind
	expr  string // what reads it
	lane  string // its type
	fixed bool   // of a vector or scalar: the same for all units of a thread
}

type valueKind uint8

const (
	constant valueKind = iota // one number for all elements
	vector                    // W elements
	scalar                    // one number for the W elements
)

func newPrinter(u *unit, p *body.Program, coords []string, wide, multiple int) *printer {
	return &printer{u: u, p: p, coords: coords, wide: wide, multiple: multiple, values: make([]value, len(p.Values))}
}

// define gives a value, of the anchor or a reduction, the text that reads what the template has made.
func (b *printer) define(i int, v value) {
	if i >= 0 {
		b.values[i] = v
	}
}

// text is what has been written so far, indented.
func (b *printer) text(indent string) string {
	var s strings.Builder
	for _, l := range b.stmts {
		s.WriteString(indent + l.text + "\n")
	}
	return s.String()
}

// line writes a statement that reads a value and makes none.
func (b *printer) line(reads value, format string, args ...any) {
	b.stmts = append(b.stmts, stmt{text: fmt.Sprintf(format, args...), uses: names([]value{reads}), stage: b.stage})
}

// names lists the variables among the values.
func names(values []value) []string {
	var l []string
	for _, v := range values {
		if v.kind == vector || v.kind == scalar {
			l = append(l, v.expr)
		}
	}
	return l
}

// bind writes the statement that makes a value of others, and returns the value.
func (b *printer) bind(kind valueKind, lane, expr string, n *graph.Node, of ...value) value {
	fixed := true
	for _, v := range of {
		fixed = fixed && (v.fixed || v.kind == constant)
	}
	return b.bindFixed(kind, lane, expr, n, fixed, of...)
}

func (b *printer) bindFixed(kind valueKind, lane, expr string, n *graph.Node, fixed bool, of ...value) value {
	name := fmt.Sprintf("v%d", b.next)
	b.next++
	comment := ""
	if n != nil && !b.quiet {
		comment = remark(n)
	}
	typ := lane
	if kind == vector {
		typ = "Vec<" + lane + ", W>"
	}
	b.stmts = append(b.stmts, stmt{text: fmt.Sprintf("const auto %s = %s;%s", name, expr, comment), name: name, typ: typ,
		uses: names(of), stage: b.stage, fixed: fixed})
	return value{kind: kind, expr: name, lane: lane, fixed: fixed}
}

// width is how many elements stand side by side, as the text has it: where there is no axis that they stand along, one.
func (b *printer) width() string {
	if b.wide < 0 {
		return "1"
	}
	return "W"
}

// bindByElement is bind for an expression that makes a Vec of width elements of the iteration space by their index.
func (b *printer) bindByElement(lane, expr string, n *graph.Node, of ...value) value {
	kind := vector
	if b.wide < 0 {
		kind, expr = scalar, expr+"[0]"
	}
	return b.bindFixed(kind, lane, expr, n, b.fixed(graph.Contiguous(b.p.Space)), of...)
}

// operand returns value i, writing it and what it needs first.
func (b *printer) operand(i int) (value, error) {
	err := b.p.Order(i, func(i int) bool { return b.values[i].expr != "" }, func(i int) (err error) {
		b.values[i], err = b.write(i)
		return err
	})
	return b.values[i], err
}

// write writes value i, whose operands have been written.
func (b *printer) write(i int) (value, error) {
	switch v := &b.p.Values[i]; v.Kind {
	case body.Constant:
		d := v.Number.Type.DType
		return value{kind: constant, expr: literal(d, v.Number.Float(0), v.Number), lane: lane(d)}, nil
	case body.Load:
		return b.load(i), nil
	case body.Draw:
		return b.dropout(v), nil
	case body.Elementwise:
		return b.compute(v)
	default:
		return value{}, fmt.Errorf("%s is read before it is computed", v.Node.Where())
	}
}

// literal writes a number so that the compiler reads the same bits.
func literal(d graph.DType, x float64, t *graph.Tensor) string {
	switch {
	case d == graph.Bool:
		return fmt.Sprint(x != 0)
	case d == graph.F64:
		return floatLiteral(x, "double", "%.17g", "")
	case !d.IsInt():
		return floatLiteral(float64(float32(x)), "float", "%.9g", "f")
	}
	v := d.Truncate(x)
	if t != nil {
		v = t.Int(0)
	}
	switch {
	case v == math.MinInt64 && d == graph.I64:
		return "i64(1ull << 63)"
	case d == graph.I64:
		return fmt.Sprintf("i64(%dll)", v)
	case d.IsUnsigned():
		return fmt.Sprintf("%v(%dull)", d, uint64(v))
	}
	return fmt.Sprintf("%v(%d)", d, v)
}

func floatLiteral(x float64, typ, format, suffix string) string {
	switch {
	case math.IsNaN(x):
		return typ + "(bits_to_float(0x7fc00000u))"
	case math.IsInf(x, 1):
		return typ + "(bits_to_float(0x7f800000u))"
	case math.IsInf(x, -1):
		return typ + "(bits_to_float(0xff800000u))"
	}
	s := fmt.Sprintf(format, x)
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s + suffix
}

// load reads an argument.
func (b *printer) load(i int) value {
	r := &b.p.Values[i]
	l, d := r.Layout, b.u.args[r.Arg].DType
	kind, stride := scalar, 0
	if b.wide >= 0 && l.Stride[b.wide] != 0 && l.Shape.At(b.wide) != 1 {
		kind, stride = vector, l.Stride[b.wide]
	}
	expr := ""
	if place, ok := b.elsewhere(i, -1); ok {
		expr = fmt.Sprintf("convert<%s>(%s)", lane(d), place)
	} else if at := b.u.arg(r.Arg) + " + " + b.offset(l); kind == vector {
		expr = fmt.Sprintf("load<%s, W, %d, %d>(%s)", lane(d), stride, b.align(l, d), b.still(r.Arg, l, at))
	} else {
		expr = fmt.Sprintf("convert<%s>(*(%s))", lane(d), at)
	}
	b.reads = append(b.reads, i)
	return b.bindFixed(kind, lane(d), expr, r.Node, b.fixed(l))
}

// still marks a place in an argument that no result lies over, if reads are to overtake stores.
func (b *printer) still(arg int, l graph.Layout, at string) string {
	if !b.overtake || b.again != nil && b.again(l) ||
		slices.ContainsFunc(b.u.results, func(r Operand) bool { return r.Over == 1+arg || r.Update }) {
		return at
	}
	return "fixed(" + at + ")"
}

// elsewhere is where a load is read from, or a result written to, if not straight from memory.
func (b *printer) elsewhere(load, result int) (string, bool) {
	if b.instead == nil {
		return "", false
	}
	return b.instead(load, result)
}

// fixed reports whether what is read through a layout is the same for all units of a thread.
func (b *printer) fixed(l graph.Layout) bool {
	for i := range b.loops.Len() {
		if axis := b.loops.At(i); l.Stride[axis] != 0 && l.Shape.At(axis) != 1 {
			return false
		}
	}
	return true
}

// offset is the place of the first of the W elements, in elements.
func (b *printer) offset(l graph.Layout) string {
	var terms []string
	wide := l.Shape.Elems() > math.MaxInt32 || span(l) > math.MaxInt32
	for i := range l.Shape.Rank() {
		if l.Stride[i] == 0 || l.Shape.At(i) == 1 || b.coords[i] == "0" {
			continue
		}
		t := b.coords[i]
		if wide {
			t = "i64(" + t + ")"
		}
		if l.Stride[i] != 1 {
			t += fmt.Sprintf(" * %d", l.Stride[i])
		}
		terms = append(terms, t)
	}
	if l.Offset != 0 || len(terms) == 0 {
		s := fmt.Sprint(l.Offset)
		if l.Offset > math.MaxInt32 {
			s += "ll"
		}
		terms = append(terms, s)
	}
	return "(" + strings.Join(terms, " + ") + ")"
}

// span is the distance from a layout's first element to its last.
func span(l graph.Layout) int {
	n := l.Offset
	for i := range l.Shape.Rank() {
		n += max(l.Shape.At(i)-1, 0) * max(l.Stride[i], -l.Stride[i])
	}
	return n
}

// align is the greatest power of two, up to 16, that divides the address of the first of the W elements, in bytes.
func (b *printer) align(l graph.Layout, d graph.DType) int {
	size := d.Size()
	a := 16 | l.Offset*size
	for i := range l.Shape.Rank() {
		if l.Shape.At(i) == 1 || b.coords[i] == "0" {
			continue
		}
		step := l.Stride[i] * size
		if i == b.wide {
			step *= b.multiple
		}
		a |= step
	}
	return a & -a
}

// in are the operands of a value.
func (b *printer) in(v *body.Value) []value {
	in := make([]value, len(v.Args))
	for k, a := range v.Args {
		in[k] = b.values[a]
	}
	return in
}

// compute writes elementwise work.
func (b *printer) compute(v *body.Value) (value, error) {
	n, in, kind := v.Node, b.in(v), scalar
	for _, x := range in {
		if x.kind == vector {
			kind = vector
		}
	}
	if c, ok := n.Op.(graph.Cast); ok && !c.To.Is16() && in[0].lane == lane(c.To) {
		return in[0], nil // of 16 bits: as it was loaded
	}
	if op, ok := n.Op.(graph.Binary); ok && op.Fn == graph.Div && b.divisors != nil && n.Type.DType == graph.F32 &&
		in[0].kind == vector && in[1].kind == scalar && in[1].fixed {
		in[1].expr = b.divisor(in[1])
	}
	expr, err := b.expression(n, in)
	if err != nil {
		return value{}, err
	}
	return b.bind(kind, lane(n.Type.DType), expr, n, in...), nil
}

// divisor is the name of what divides all units of a thread by a number.
func (b *printer) divisor(by value) string {
	if b.divisors[by.expr] == "" {
		b.divisors[by.expr] = b.bind(scalar, "", fmt.Sprintf("op::Divisor(%s)", by.expr), nil, by).expr
	}
	return b.divisors[by.expr]
}

// expression is the C++ of an elementwise operation.
func (b *printer) expression(n *graph.Node, in []value) (string, error) {
	switch op := n.Op.(type) {
	case graph.Unary:
		name := functionName(op.Fn.String())
		if b.withSlope(op.Fn, n.Args[0]) {
			name += "_with_slope"
		}
		if op.Fn.HasAlpha() {
			return fmt.Sprintf("op::%s(%s, %s)", name, in[0].expr, literal(n.Type.DType, op.Alpha, nil)), nil
		}
		return fmt.Sprintf("op::%s(%s)", name, in[0].expr), nil
	case graph.Binary:
		if name := checked[op.Fn]; name != "" && n.Type.DType.IsInt() {
			return fmt.Sprintf("op::%s(%s, %s, %s)", name, in[0].expr, in[1].expr, b.u.status()), nil
		}
		return fmt.Sprintf("op::%s(%s, %s)", functionName(op.Fn.String()), in[0].expr, in[1].expr), nil
	case graph.Select:
		return fmt.Sprintf("op::select(%s, %s, %s)", b.alike(in[0], in), b.alike(in[1], in), b.alike(in[2], in)), nil
	case graph.Custom:
		call, err := b.u.custom(op.Fn)
		args := make([]string, len(in))
		for k, x := range in {
			args[k] = b.alike(x, in)
		}
		return fmt.Sprintf("%s(%s)", call, strings.Join(args, ", ")), err
	case graph.Cast:
		if op.To.Is16() {
			return fmt.Sprintf("op::rounded<%s>(%s)", ctype(op.To), in[0].expr), nil
		}
		return fmt.Sprintf("op::cast<%s>(%s)", lane(op.To), in[0].expr), nil
	}
	return "", fmt.Errorf("CUDA has no expression for %s", n.Where())
}

// withSlope reports whether a function of x has most of its work in common with its slope, which the program computes, too.
func (b *printer) withSlope(fn graph.UnaryFn, x *graph.Node) bool {
	slope, ok := map[graph.UnaryFn]graph.UnaryFn{graph.GeluTanh: graph.GeluTanhSlope, graph.GeluErf: graph.GeluErfSlope}[fn]
	return ok && slices.ContainsFunc(b.p.Values, func(v body.Value) bool {
		return v.Kind == body.Elementwise && v.Node.Op == graph.Op(graph.Unary{Fn: slope}) && v.Node.Args[0] == x
	})
}

// alike widens a value if one of the operands is a vector.
func (b *printer) alike(v value, in []value) string {
	for _, o := range in {
		if o.kind == vector && v.kind != vector {
			return "splat<W>(" + v.expr + ")"
		}
	}
	return v.expr
}

// dropout draws by the element's index in the value.
func (b *printer) dropout(v *body.Value) value {
	rule, in := graph.DropoutRuleOf(v.Node.Op.(graph.Dropout).P), b.in(v)
	x, space := fmt.Sprintf("widen<%s>(%s)", b.width(), in[0].expr), graph.Contiguous(b.p.Space)
	at, scale := b.offset(space), literal(v.Node.Type.DType, 1/rule.Kept(), nil)
	expr := fmt.Sprintf("dropout<%d, %du>(%s, i64(%s), u64(%s), %s)", rule.Bits, rule.Threshold, x, in[1].expr, at, scale)
	if b.draws > 0 && !b.fixed(space) {
		draws := fmt.Sprintf("Draws<%d, %du, W, U, %d, W == %d>(u64(%s), u64(first))", rule.Bits, rule.Threshold, blockThreads, b.draws,
			in[1].expr)
		expr = fmt.Sprintf("%s.drop(%s, u, u64(%s), %s)", b.bindFixed(scalar, "", draws, nil, true, in[1]).expr, x, at, scale)
	}
	return b.bindByElement(in[0].lane, expr, v.Node, in...)
}

// stored returns the value that result i is stored from, writing it and what it needs first: a store rounds to 16 bits by itself.
func (b *printer) stored(i int) (value, error) {
	at := b.p.Stores[i].Value
	v := &b.p.Values[at]
	if d := b.u.results[i].DType; v.Kind == body.Elementwise && v.Node.Op == (graph.Cast{To: d}) && d.Is16() &&
		lane(v.Node.Args[0].Type.DType) == lane(graph.F32) {
		at = v.Args[0]
	}
	return b.operand(at)
}

// store writes the statement that stores result i.
func (b *printer) store(i int) error {
	l, d := b.p.Stores[i].Layout, b.u.results[i].DType
	v, err := b.stored(i)
	if err != nil {
		return err
	}
	at := b.u.result(i) + " + " + b.offset(l)
	if place, ok := b.elsewhere(-1, i); ok {
		b.line(v, b.guard+"%s = convert<%s>(%s);", place, ctype(d), v.expr)
	} else if b.wide >= 0 && (v.kind == vector || l.Shape.At(b.wide) != 1 && l.Stride[b.wide] != 0) {
		align, streamed := b.align(l, d), ""
		if b.most > 0 && l.Shape.Elems()*d.Size() > b.most && align > d.Size() {
			streamed = ", true"
		}
		b.line(v, b.guard+"store<%d, %d%s>(%s, widen<W>(%s));", l.Stride[b.wide], align, streamed, at, v.expr)
	} else {
		b.line(v, b.guard+"*(%s) = convert<%s>(%s);", at, ctype(d), v.expr)
	}
	last := &b.stmts[len(b.stmts)-1]
	last.store, last.fixed = true, b.fixed(l)
	return nil
}
