package cuda

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"fusec/graph"
)

// A body writes a Fusion's elementwise work as straight-line code over W elements that stand side by side along one axis
// of the iteration space. It makes each value when it is first asked for, and every value once.
//
// Values over the axis are Vec<T, W>; those that are the same for all W elements are plain T.
type body struct {
	u      *unit
	space  graph.Shape
	coords []string // of the first of the W elements: a C++ expression per axis, of type int
	wide   int      // the axis along which the elements stand, or -1: there is none, W is 1
	// multiple is a number that the coordinate of axis wide is a multiple of, and W divides.
	multiple int
	reduced  graph.Ints // axes that values of a reduced shape lack

	// A thread that computes several units of W elements does so in loops, one for each stage. What is the same along
	// the axes that the units differ in stands before the loop.
	stage int
	loops graph.Ints

	values map[*graph.Node]value
	loaded map[loadKey]value
	reads  []read // what loaded holds, in order
	stmts  []stmt
	next   int
	quiet  bool   // without the user's names
	guard  string // before a statement that stores
	// overtake lets reads of arguments move before stores: where a thread runs the body more than once.
	overtake bool
	// again, if set, says of what is read through a layout that a thread reads it more than once: it may not overtake,
	// lest the compiler read it once and keep it in registers that it has not.
	again func(graph.Layout) bool
	// instead, if set, may say how an argument is read or a result is written, where not straight from memory.
	instead func(arg, result int, l graph.Layout) (place string, ok bool)
}

// A stmt is a statement of a body.
type stmt struct {
	text  string
	name  string   // of the value that it makes, or empty
	typ   string   // of the value
	uses  []string // names
	stage int
	fixed bool // the same for all units of a thread
	store bool
}

// A read is a load of an argument, and the node that asked for it first.
type read struct {
	loadKey
	node *graph.Node
}

// A value is what a node is to the text.
type value struct {
	kind   valueKind
	expr   string       // of a vector, scalar or constant
	lane   string       // its type
	fixed  bool         // of a vector or scalar: the same for all units of a thread
	arg    int          // of a source
	layout graph.Layout // of a source
}

type valueKind uint8

const (
	source   valueKind = iota // an argument, perhaps seen through views; not loaded yet
	constant                  // one number for all elements
	vector                    // W elements
	scalar                    // one number for the W elements
)

type loadKey struct {
	arg    int
	layout graph.Layout
}

// newBody starts on a body whose inputs are the unit's arguments at the given indices.
func newBody(u *unit, g *graph.Graph, inputs []int, space graph.Shape, coords []string, wide, multiple int) *body {
	b := &body{u: u, space: space, coords: coords, wide: wide, multiple: multiple,
		values: map[*graph.Node]value{}, loaded: map[loadKey]value{}}
	next := 0
	for _, n := range g.Nodes {
		if _, ok := n.Op.(graph.Input); ok {
			b.values[n] = value{kind: source, arg: inputs[next], layout: u.args[inputs[next]].Layout}
			next++
		}
	}
	return b
}

// all lists the indices 0 to n.
func all(n int) []int {
	l := make([]int, n)
	for i := range l {
		l[i] = i
	}
	return l
}

// define gives a node, the anchor, a value that the template has made.
func (b *body) define(n *graph.Node, kind valueKind, expr string) {
	b.values[n] = value{kind: kind, expr: expr, lane: lane(n.Type.DType)}
}

// text is what has been written so far, indented.
func (b *body) text(indent string) string {
	var s strings.Builder
	for _, l := range b.stmts {
		s.WriteString(indent + l.text + "\n")
	}
	return s.String()
}

// line writes a statement that reads a value and makes none.
func (b *body) line(reads value, format string, args ...any) {
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
func (b *body) bind(kind valueKind, lane, expr string, n *graph.Node, of ...value) value {
	fixed := true
	for _, v := range of {
		fixed = fixed && (v.fixed || v.kind == constant)
	}
	return b.bindFixed(kind, lane, expr, n, fixed, of...)
}

func (b *body) bindFixed(kind valueKind, lane, expr string, n *graph.Node, fixed bool, of ...value) value {
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
func (b *body) width() string {
	if b.wide < 0 {
		return "1"
	}
	return "W"
}

// bindByElement is bind for an expression that makes a Vec of width elements of the iteration space by their index.
func (b *body) bindByElement(lane, expr string, n *graph.Node, of ...value) value {
	kind := vector
	if b.wide < 0 {
		kind, expr = scalar, expr+"[0]"
	}
	return b.bindFixed(kind, lane, expr, n, b.fixed(graph.Contiguous(b.space)), of...)
}

// value returns what n is, writing it and what it needs first.
func (b *body) value(n *graph.Node) (v value, err error) {
	if v, ok := b.values[n]; ok {
		return v, nil
	}
	switch {
	case isConst(n):
		v, err = b.constant(n)
	case graph.IsView(n.Op):
		v, err = b.view(n)
	default:
		v, err = b.compute(n)
	}
	if err != nil {
		return v, err
	}
	b.values[n] = v
	return v, nil
}

func isConst(n *graph.Node) bool { _, ok := n.Op.(graph.Const); return ok }

func (b *body) constant(n *graph.Node) (value, error) {
	x, ok := n.Uniform()
	if !ok {
		return value{}, fmt.Errorf("%s is not one number", n.Where())
	}
	return value{kind: constant, expr: literal(n.Type.DType, x.Float(0), x), lane: lane(n.Type.DType)}, nil
}

// literal writes a number so that the compiler reads the same bits.
func literal(d graph.DType, x float64, t *graph.Tensor) string {
	switch d {
	case graph.Bool:
		return fmt.Sprint(x != 0)
	case graph.I32:
		return fmt.Sprintf("i32(%d)", int64(x))
	case graph.I64:
		v := int64(x)
		if t != nil {
			v = t.Data.([]int64)[0]
		}
		if v == math.MinInt64 {
			return "i64(1ull << 63)"
		}
		return fmt.Sprintf("i64(%dll)", v)
	case graph.F64:
		return floatLiteral(x, "double", "%.17g", "")
	}
	return floatLiteral(float64(float32(x)), "float", "%.9g", "f")
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

// view changes the layout of an argument; of one number, or between the forms of a reduced value, it changes nothing.
func (b *body) view(n *graph.Node) (value, error) {
	v, err := b.value(n.Args[0])
	if err != nil || v.kind == constant || v.kind == scalar {
		return v, err
	}
	if v.kind == source {
		l, ok := v.layout.View(n)
		if !ok {
			return v, fmt.Errorf("%s cannot be read through strides", n.Where())
		}
		v.layout = l
		return v, nil
	}
	if b.reduced.Len() > 0 && n.Args[0].Type.Shape != b.space {
		return v, nil // of one number for each row
	}
	if _, ok := n.Op.(graph.Reshape); !ok || b.reduced.Len() == 0 || n.Type.Shape.Elems() != b.space.Elems() {
		return v, fmt.Errorf("%s of a computed vector inside a body", n.Where())
	}
	return v, nil
}

// operand returns n's value as a vector, scalar or constant, loading it if it is a source.
func (b *body) operand(n *graph.Node) (value, error) {
	v, err := b.value(n)
	if err != nil || v.kind != source {
		return v, err
	}
	l, err := v.layout.Over(b.space, b.reduced)
	if err != nil {
		return v, fmt.Errorf("%s: %w", n.Where(), err)
	}
	return b.load(v.arg, l, n), nil
}

// load reads an argument through a layout over the iteration space, once.
func (b *body) load(arg int, l graph.Layout, n *graph.Node) value {
	key := loadKey{arg, l}
	if v, ok := b.loaded[key]; ok {
		return v
	}
	kind, stride := scalar, 0
	if b.wide >= 0 && l.Stride[b.wide] != 0 && l.Shape.At(b.wide) != 1 {
		kind, stride = vector, l.Stride[b.wide]
	}
	d := b.u.args[arg].DType
	expr := ""
	if place, ok := b.elsewhere(arg, -1, l); ok {
		expr = fmt.Sprintf("convert<%s>(%s)", lane(d), place)
	} else if at := b.u.arg(arg) + " + " + b.offset(l); kind == vector {
		expr = fmt.Sprintf("load<%s, W, %d, %d>(%s)", lane(d), stride, b.align(l, d), b.still(arg, l, at))
	} else {
		expr = fmt.Sprintf("convert<%s>(*(%s))", lane(d), at)
	}
	v := b.bindFixed(kind, lane(d), expr, n, b.fixed(l))
	b.loaded[key] = v
	b.reads = append(b.reads, read{key, n})
	return v
}

// still marks a place in an argument that no result lies over, if reads shall overtake stores.
func (b *body) still(arg int, l graph.Layout, at string) string {
	if !b.overtake || b.again != nil && b.again(l) || slices.ContainsFunc(b.u.results, func(r Operand) bool { return r.Over == 1+arg || r.Update }) {
		return at
	}
	return "fixed(" + at + ")"
}

// elsewhere is where an argument is read from, or a result written to, if not straight from memory.
func (b *body) elsewhere(arg, result int, l graph.Layout) (string, bool) {
	if b.instead == nil {
		return "", false
	}
	return b.instead(arg, result, l)
}

// fixed reports whether what is read through a layout is the same for all units of a thread.
func (b *body) fixed(l graph.Layout) bool {
	for i := range b.loops.Len() {
		if axis := b.loops.At(i); l.Stride[axis] != 0 && l.Shape.At(axis) != 1 {
			return false
		}
	}
	return true
}

// offset is the place of the first of the W elements, in elements.
func (b *body) offset(l graph.Layout) string {
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
func (b *body) align(l graph.Layout, d graph.DType) int {
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

// compute writes a node that computes.
func (b *body) compute(n *graph.Node) (value, error) {
	if op, ok := n.Op.(graph.Dropout); ok {
		return b.dropout(n, op)
	}
	if !graph.Elementwise(n.Op) {
		return value{}, fmt.Errorf("%s has no place in a body", n.Where())
	}
	in := make([]value, len(n.Args))
	kind := scalar
	for i, a := range n.Args {
		v, err := b.operand(a)
		if err != nil {
			return v, err
		}
		if v.kind == vector {
			kind = vector
		}
		in[i] = v
	}
	if c, ok := n.Op.(graph.Cast); ok && c.To.Size() != 2 && in[0].lane == lane(c.To) {
		return in[0], nil // of 16 bits: as it was loaded
	}
	expr, err := b.expression(n, in)
	if err != nil {
		return value{}, err
	}
	return b.bind(kind, lane(n.Type.DType), expr, n, in...), nil
}

// expression is the C++ of an elementwise operation.
func (b *body) expression(n *graph.Node, in []value) (string, error) {
	switch op := n.Op.(type) {
	case graph.Unary:
		name := functionName(op.Fn.String())
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
	case graph.Cast:
		if op.To.Size() == 2 {
			return fmt.Sprintf("op::rounded<%s>(%s)", ctype(op.To), in[0].expr), nil
		}
		return fmt.Sprintf("op::cast<%s>(%s)", lane(op.To), in[0].expr), nil
	}
	return "", fmt.Errorf("%s has no place in a body", n.Where())
}

// alike widens a value if one of the operands is a vector.
func (b *body) alike(v value, in []value) string {
	for _, o := range in {
		if o.kind == vector && v.kind != vector {
			return "splat<W>(" + v.expr + ")"
		}
	}
	return v.expr
}

// dropout draws by the element's index in the value.
func (b *body) dropout(n *graph.Node, op graph.Dropout) (value, error) {
	x, err := b.operand(n.Args[0])
	if err != nil {
		return x, err
	}
	seed, err := b.operand(n.Args[1])
	if err != nil {
		return x, err
	}
	expr := fmt.Sprintf("dropout(widen<%s>(%s), i64(%s), u64(%s), %du, %s)", b.width(), x.expr, seed.expr,
		b.offset(graph.Contiguous(b.space)), graph.RandomThreshold(op.P), literal(n.Type.DType, 1/(1-op.P), nil))
	return b.bindByElement(x.lane, expr, n, x, seed), nil
}

// stored finds the node of the body that an output's store views lead from, and the layout of its elements in the
// result's buffer.
func stored(n *graph.Node, l graph.Layout) (*graph.Node, graph.Layout, error) {
	for graph.IsStoreView(n) {
		var ok bool
		if l, ok = l.Invert(n); !ok {
			return n, l, fmt.Errorf("%s cannot be stored through strides", n.Where())
		}
		n = n.Args[0]
	}
	return n, l, nil
}

// store writes the statement that stores node n, an output of the body, as result i.
func (b *body) store(i int, n *graph.Node) error {
	n, l, err := stored(n, b.u.results[i].Layout)
	if err != nil {
		return err
	}
	v, err := b.operand(n)
	if err != nil {
		return err
	}
	if l, err = l.Over(b.space, b.reduced); err != nil {
		return fmt.Errorf("%s: %w", n.Where(), err)
	}
	d := b.u.results[i].DType
	at := b.u.result(i) + " + " + b.offset(l)
	if place, ok := b.elsewhere(-1, i, l); ok {
		b.line(v, b.guard+"%s = convert<%s>(%s);", place, ctype(d), v.expr)
	} else if b.wide >= 0 && (v.kind == vector || l.Shape.At(b.wide) != 1 && l.Stride[b.wide] != 0) {
		b.line(v, b.guard+"store<%d, %d>(%s, widen<W>(%s));", l.Stride[b.wide], b.align(l, d), at, v.expr)
	} else {
		b.line(v, b.guard+"*(%s) = convert<%s>(%s);", at, ctype(d), v.expr)
	}
	last := &b.stmts[len(b.stmts)-1]
	last.store, last.fixed = true, b.fixed(l)
	return nil
}
