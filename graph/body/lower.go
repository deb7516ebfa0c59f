package body

import (
	"fmt"
	"slices"

	"fusec/graph"
)

// Lower makes the program of a Fusion whose operands and results lie as given. The error names the node of the body that
// breaks the contract. A body of several segments, which have a space each, is for [LowerSegments].
func Lower(f graph.Fusion, args, results []graph.Operand) (*Program, error) {
	if f.Body == nil || f.Anchor > graph.AnchorMoE {
		return nil, fmt.Errorf("a fusion of anchor %d has no form", f.Anchor)
	}
	l := &lowerer{p: &Program{Kind: f.Anchor, Lane: graph.F32}, args: args, at: graph.NewPerNode[int32](f.Body),
		loads: map[loadKey]int{}}
	if err := l.findSpace(f); err != nil {
		return nil, err
	}
	for _, n := range f.Body.Nodes {
		if err := l.node(n); err != nil {
			return nil, err
		}
	}
	if l.inputs != len(args) || len(f.Body.Outputs) != len(results) {
		return nil, fmt.Errorf("a body of %d inputs and %d outputs with %d operands and %d results", l.inputs,
			len(f.Body.Outputs), len(args), len(results))
	}
	for i, o := range f.Body.Outputs {
		if err := l.store(o.Node, results[i].Layout); err != nil {
			return nil, err
		}
	}
	if l.p.Kind.Whole() {
		if err := l.checkResults(); err != nil {
			return nil, err
		}
	}
	for i := range l.p.Stores {
		if s := &l.p.Stores[i]; s.Pool != nil && len(l.p.Stores) > 1 {
			return nil, fmt.Errorf("%s is handed out beside other results", s.Node.Where())
		}
	}
	return l.p, l.order()
}

func init() { graph.VerifyBodies(Check) }

// Check reports, as an error that names the node, what in a body keeps it from being lowered: nothing, if it has the form
// that [graph.Fusion] describes. Operands and results are contiguous.
func Check(f graph.Fusion) error {
	if f.Anchor == graph.AnchorMoves {
		_, err := Moves(f)
		return err
	}
	operand := func(t graph.Type) graph.Operand {
		return graph.Operand{DType: t.DType, Layout: graph.Contiguous(t.Shape)}
	}
	var args, results []graph.Operand
	for _, n := range f.Body.Nodes {
		if _, ok := n.Op.(graph.Input); ok {
			args = append(args, operand(n.Type))
		}
	}
	for _, o := range f.Body.Outputs {
		results = append(results, operand(o.Node.Type))
	}
	_, err := LowerSegments(f, args, results)
	return err
}

// A Part is the program of a segment, with the segment's operands and results.
type Part struct {
	*Program
	Segment       graph.Segment
	Args, Results []graph.Operand
}

// LowerSegments makes the programs of the segments of a Fusion. They can run in any order and side by side: no result of
// one lies over an operand of another. A Fusion with an anchor is one segment.
func LowerSegments(f graph.Fusion, args, results []graph.Operand) ([]Part, error) {
	segments := f.Segments()
	if err := graph.CheckSegments(segments, results); err != nil {
		return nil, err
	}
	parts := make([]Part, len(segments))
	for i, s := range segments {
		in, out := s.Operands(args, results)
		p, err := Lower(graph.Fusion{Anchor: f.Anchor, Body: s.Body}, in, out)
		if err != nil {
			return nil, err
		}
		parts[i] = Part{p, s, in, out}
	}
	return parts, nil
}

// A lowerer makes a program in one pass over the nodes of a body.
type lowerer struct {
	p      *Program
	args   []graph.Operand
	inputs int // met so far
	at     graph.PerNode[int32]
	forms  []form // of the nodes met so far; at has the index, plus 1
	loads  map[loadKey]int
}

type loadKey struct {
	arg    int
	layout graph.Layout
}

// A form is what a node of the body is to those that read it.
type form struct {
	state  formState
	arg    int          // of a source
	layout graph.Layout // of a source, in its own shape
	value  int          // of what is computed, summed or viewed
	norm   *Norm        // of normed rows
}

type formState uint8

const (
	source   formState = iota // an argument, perhaps seen through views
	computed                  // a value
	summed                    // the column sums of a value: only stored
	pooled                    // the windows of a value: only stored
	viewed                    // a view of a value: only stored
	normed                    // rows of an argument that are normed: only an operand of a product
)

// findSpace decides the iteration space.
func (l *lowerer) findSpace(f graph.Fusion) error {
	p := l.p
	if f.Anchor == graph.AnchorNone {
		p.Space = spaceOf(f.Body)
		return nil
	}
	p.Anchor = f.Anchored()
	switch {
	case p.Anchor == nil:
		return fmt.Errorf("a fusion of anchor %v without one", f.Anchor)
	case f.Anchor == graph.AnchorRow:
		p.Space = p.Anchor.Args[0].Type.Shape
		p.Axes, _ = graph.RowAxes(p.Anchor)
		p.Kept = p.Space
		for i := range p.Axes.Len() {
			p.Kept = p.Kept.With(p.Axes.At(i), 1)
		}
	case !f.Anchor.Whole():
		p.Space = p.Anchor.Type.Shape
	}
	return nil
}

// spaceOf is the shape of the elementwise work of a body, or, where it only copies, of what it hands out.
func spaceOf(g *graph.Graph) (space graph.Shape) {
	for _, n := range g.Nodes {
		if graph.Joins(n.Op) && n.Type.Shape.Rank() > 0 {
			space = n.Type.Shape
		}
	}
	for _, o := range g.Outputs {
		if space.Rank() == 0 {
			space = o.Node.Type.Shape
		}
	}
	return space
}

// node takes in the next node of the body.
func (l *lowerer) node(n *graph.Node) error {
	for _, a := range n.Args {
		if l.at.Get(a) == 0 {
			return fmt.Errorf("%s reads %v, which is not a node before it", n.Where(), a)
		}
	}
	r, err := l.formOf(n)
	if err != nil {
		return err
	}
	l.forms = append(l.forms, r)
	l.at.Set(n, int32(len(l.forms)))
	return nil
}

func (l *lowerer) form(n *graph.Node) form { return l.forms[l.at.Get(n)-1] }

// kind is the kind of the value that a node is; of an argument seen through views it is Load.
func (l *lowerer) kind(r form) Kind {
	if r.state == computed {
		return l.p.Values[r.value].Kind
	}
	return Load
}

// formOf finds what a node is.
func (l *lowerer) formOf(n *graph.Node) (form, error) {
	switch op := n.Op.(type) {
	case graph.Pool:
		return l.pool(n, op)
	case graph.Input:
		i := l.inputs
		l.inputs++
		if i >= len(l.args) || l.args[i].Type() != n.Type {
			return form{}, fmt.Errorf("%s is not operand %d of the launch", n.Where(), i)
		}
		return form{arg: i, layout: l.args[i].Layout}, nil
	case graph.Const:
		if op.Value == nil || !op.Value.Uniform() {
			return form{}, fmt.Errorf("%s is not one number", n.Where())
		}
		return l.value(Value{Kind: Constant, Node: n, Number: op.Value, PerRow: true}), nil
	case graph.Result:
		if r := l.form(n.Args[0]); l.kind(r) == AnchorResult && n.Args[0] == l.p.Anchor {
			return l.value(Value{Kind: AnchorResult, Node: n, Result: op.Index}), nil
		}
		return form{}, fmt.Errorf("%s has no place in a body", n.Where())
	}
	if graph.IsView(n.Op) {
		return l.view(n)
	}
	anchor, ok := graph.AnchorOf(n.Op)
	if !ok {
		return form{}, fmt.Errorf("%s has no place in a body", n.Where())
	}
	if graph.LaneOf(n) == graph.F64 {
		l.p.Lane = graph.F64
	}
	switch {
	case l.norms(n):
		return l.normed(n)
	case anchor == graph.AnchorNone:
		return l.joins(n)
	case l.sums(n):
		return l.columnSum(n)
	case anchor != l.p.Kind:
		return form{}, fmt.Errorf("%s has no place in a fusion of anchor %v", n.Where(), l.p.Kind)
	case anchor == graph.AnchorRow:
		return l.row(n)
	case n != l.p.Anchor:
		return form{}, fmt.Errorf("%s has no place in a body beside %s", n.Where(), l.p.Anchor.Where())
	}
	return l.anchor(n)
}

// norms reports whether n makes an operand of a product: an RMSNorm, or a cast of one.
func (l *lowerer) norms(n *graph.Node) bool {
	switch n.Op.(type) {
	case graph.RMSNorm:
		return l.p.Kind == graph.AnchorMatMul
	case graph.Cast:
		return l.form(n.Args[0]).state == normed
	}
	return false
}

// normed takes in a norm, whose operands are load views, or its cast.
func (l *lowerer) normed(n *graph.Node) (form, error) {
	r := l.form(n.Args[0])
	if r.state == normed {
		return r, nil
	}
	for _, a := range n.Args {
		if l.form(a).state != source {
			return form{}, fmt.Errorf("%s, an operand of %s, is computed in the same launch", a.Where(), n.Where())
		}
	}
	gamma := l.form(n.Args[1])
	r.state, r.norm = normed, &Norm{Node: n, Arg: gamma.arg, Layout: gamma.layout}
	return r, nil
}

// value appends a value.
func (l *lowerer) value(v Value) form {
	l.p.Values = append(l.p.Values, v)
	return form{state: computed, value: len(l.p.Values) - 1}
}

// compute appends a value that is computed from others.
func (l *lowerer) compute(kind Kind, n *graph.Node, args []int) form {
	v := Value{Kind: kind, Node: n, Args: args}
	for _, a := range args {
		v.Level = max(v.Level, l.p.Values[a].Level)
	}
	if kind == Row {
		v.Level++
	}
	v.PerRow = l.perRow(n.Type.Shape)
	return l.value(v)
}

// perRow reports whether a computed value of a shape is one number for each row.
func (l *lowerer) perRow(s graph.Shape) bool {
	return l.p.Kind == graph.AnchorRow && (s != l.p.Space || s == l.p.Kept)
}

// fits reports whether values of a shape have a place in the iteration space: they fill it, are one number, or, in rows,
// one for each row.
func (l *lowerer) fits(s graph.Shape) bool {
	return s == l.p.Space || s.Rank() == 0 || l.p.Kind == graph.AnchorRow && s.Elems() == l.p.Kept.Elems()
}

func (l *lowerer) misfit(n *graph.Node, s graph.Shape) error {
	return fmt.Errorf("%s: a value of shape %v has no place in an iteration space of %v", n.Where(), s, l.p.Space)
}

// over extends the layout of a value, which node n has, to the iteration space.
func (l *lowerer) over(n *graph.Node, at graph.Layout) (graph.Layout, error) {
	p := l.p
	switch {
	case at.Shape == p.Space:
		return at, nil
	case at.Shape.Elems() == 1:
		return graph.Layout{Shape: p.Space, Offset: at.Offset}, nil
	case !l.fits(at.Shape):
		return at, l.misfit(n, at.Shape)
	}
	kept, ok := at.Reshape(p.Kept)
	if !ok {
		return at, fmt.Errorf("%s: no strides say which of its elements belong to which row", n.Where())
	}
	return kept.Broadcast(p.Space), nil
}

// view takes in a view: of an argument it changes the layout; of one number, or between the forms of what there is once
// for each row, nothing. Any other view of a value can only be stored through.
func (l *lowerer) view(n *graph.Node) (form, error) {
	r := l.form(n.Args[0])
	from, to := n.Args[0].Type.Shape, n.Type.Shape
	switch r.state {
	case source:
		var ok bool
		if r.layout, ok = r.layout.View(n); !ok {
			return r, fmt.Errorf("%s cannot be read through strides", n.Where())
		}
		return r, nil
	case computed:
		if l.p.Kind.Whole() {
			break
		}
		if l.kind(r) == Constant || from.Elems() == 1 {
			return r, nil
		}
		if l.perRow(from) {
			switch n.Op.(type) {
			case graph.Reshape:
				return r, nil
			case graph.Broadcast:
				if to == l.p.Space && aligned(from, l.p.Kept) {
					return r, nil
				}
			}
		}
	}
	return form{state: viewed, value: r.value}, nil
}

// aligned reports whether s is t without leading axes of one element.
func aligned(s, t graph.Shape) bool {
	lead := t.Rank() - s.Rank()
	for i := range t.Rank() {
		if i < lead && t.At(i) != 1 || i >= lead && s.At(i-lead) != t.At(i) {
			return false
		}
	}
	return lead >= 0
}

// read is the value that a node of the body is to one that computes with it element by element.
func (l *lowerer) read(n *graph.Node) (int, error) {
	switch r := l.form(n); r.state {
	case source:
		at, err := l.over(n, r.layout)
		if err != nil {
			return 0, err
		}
		return l.load(n, r.arg, at), nil
	case computed:
		return r.value, nil
	case summed:
		return 0, fmt.Errorf("%s is read in the launch that sums it", n.Where())
	case normed:
		return 0, fmt.Errorf("%s is read beside the product whose operand it is", n.Where())
	}
	return 0, fmt.Errorf("%s of a computed value inside a body", n.Where())
}

// load is the value of an argument through a layout over the iteration space.
func (l *lowerer) load(n *graph.Node, arg int, at graph.Layout) int {
	key := loadKey{arg, at}
	if i, ok := l.loads[key]; ok {
		return i
	}
	v := Value{Kind: Load, Node: n, Arg: arg, Layout: at, PerRow: true}
	for i := range l.p.Axes.Len() {
		axis := l.p.Axes.At(i)
		v.PerRow = v.PerRow && (at.Stride[axis] == 0 || at.Shape.At(axis) == 1)
	}
	i := l.value(v).value
	l.loads[key] = i
	return i
}

// joins takes in elementwise work or a draw.
func (l *lowerer) joins(n *graph.Node) (form, error) {
	if l.p.Kind.Whole() {
		r := l.form(n.Args[0])
		if _, ok := n.Op.(graph.Cast); ok && r.state != source && l.p.Values[r.value].Kind == AnchorResult {
			return l.compute(Elementwise, n, []int{r.value}), nil
		}
		return form{}, fmt.Errorf("%s has no place in a body beside %s", n.Where(), l.p.Anchor.Where())
	}
	if !l.fits(n.Type.Shape) {
		return form{}, l.misfit(n, n.Type.Shape)
	}
	args := make([]int, len(n.Args))
	for i, a := range n.Args {
		var err error
		if args[i], err = l.read(a); err != nil {
			return form{}, err
		}
	}
	if _, ok := n.Op.(graph.Dropout); !ok {
		return l.compute(Elementwise, n, args), nil
	}
	if k := l.p.Values[args[1]].Kind; k != Load && k != Constant {
		return form{}, fmt.Errorf("%s: a seed that is computed in the same launch", n.Where())
	}
	if n.Type.Shape != l.p.Space {
		return form{}, fmt.Errorf("%s draws for %v elements in an iteration space of %v", n.Where(), n.Type.Shape, l.p.Space)
	}
	return l.compute(Draw, n, args), nil
}

// row takes in an operation along rows.
func (l *lowerer) row(n *graph.Node) (form, error) {
	if axes, _ := graph.RowAxes(n); axes != l.p.Axes || n.Args[0].Type.Shape != l.p.Space {
		return form{}, fmt.Errorf("%s goes along other rows than %s", n.Where(), l.p.Anchor.Where())
	}
	args := make([]int, len(n.Args))
	for i, a := range n.Args {
		var err error
		r := l.form(a)
		switch {
		case !graph.RowWeights(n.Op, i):
			args[i], err = l.read(a)
		case r.state == source: // aligned at the last axis
			args[i] = l.load(a, r.arg, r.layout.Broadcast(l.p.Space))
		case l.kind(r) == Constant || r.state == computed && a.Type.Shape == l.p.Space: // there is one row
			args[i] = r.value
		default:
			err = fmt.Errorf("%s, a weight of %s, is computed in the same launch", a.Where(), n.Where())
		}
		if err != nil {
			return form{}, err
		}
	}
	return l.compute(Row, n, args), nil
}

// sums reports whether n is a sum over leading axes that is not the anchor's.
func (l *lowerer) sums(n *graph.Node) bool {
	switch l.p.Kind {
	case graph.AnchorMatMul:
		return graph.SumsColumns(n)
	case graph.AnchorConv:
		op, ok := l.p.Anchor.Op.(graph.ImageOp)
		return ok && op.ImageLayout() == graph.NHWC && graph.SumsColumns(n)
	case graph.AnchorRow:
		axes, _ := graph.RowAxes(n)
		return graph.SumsColumns(n) && axes != l.p.Axes
	}
	return false
}

// columnSum takes in a column sum: over all axes but the last one of a product or of images, or but those of rows.
func (l *lowerer) columnSum(n *graph.Node) (form, error) {
	axes, _ := graph.RowAxes(n)
	left := 1
	if l.p.Kind == graph.AnchorRow {
		left = l.p.Axes.Len()
		for i := range left {
			if axes.Has(l.p.Axes.At(i)) {
				left = -1
				break
			}
		}
	}
	if n.Args[0].Type.Shape != l.p.Space || axes.Len()+left != l.p.Space.Rank() {
		return form{}, fmt.Errorf("%s sums neither the rows nor the columns of %s", n.Where(), l.p.Anchor.Where())
	}
	i, err := l.read(n.Args[0])
	return form{state: summed, value: i}, err
}

// pool takes in a pool over the images that a convolution and what follows it make.
func (l *lowerer) pool(n *graph.Node, op graph.Pool) (form, error) {
	x := n.Args[0]
	var conv graph.ImageOp
	if l.p.Kind == graph.AnchorConv {
		conv, _ = l.p.Anchor.Op.(graph.ImageOp)
	}
	if conv == nil || conv.ImageLayout() != op.Layout || x.Type.Shape != l.p.Space {
		return form{}, fmt.Errorf("%s has no place in a fusion of anchor %v", n.Where(), l.p.Kind)
	}
	i, err := l.read(x)
	return form{state: pooled, value: i}, err
}

// anchor takes in the operation of the anchor, whose operands are load views.
func (l *lowerer) anchor(n *graph.Node) (form, error) {
	seed := -1
	if op, ok := n.Op.(interface{ SeedArg() int }); ok {
		seed = op.SeedArg()
	}
	for i, a := range n.Args {
		o := Operand{Node: a, Arg: -1}
		switch r := l.form(a); {
		case r.state == source, r.state == normed && i == 0:
			o.Arg, o.Layout, o.Norm = r.arg, r.layout, r.norm
		case i == seed && l.kind(r) == Constant:
			o.Number = l.p.Values[r.value].Number
		default:
			return form{}, fmt.Errorf("%s, an operand of %s, is computed in the same launch", a.Where(), n.Where())
		}
		l.p.Operands = append(l.p.Operands, o)
	}
	return l.value(Value{Kind: AnchorResult, Node: n}), nil
}

// store takes in the next output, n, whose buffer has layout at: it turns the store views around.
func (l *lowerer) store(n *graph.Node, at graph.Layout) error {
	if at.Shape != n.Type.Shape {
		return fmt.Errorf("%s has shape %v, not %v as result %d of the launch", n.Where(), n.Type.Shape, at.Shape, len(l.p.Stores))
	}
	cast := -1 // the value of a cast between the views of a result of an anchor that is whole
	for {
		if _, ok := n.Op.(graph.Cast); ok && l.p.Kind.Whole() {
			cast = l.form(n).value
		} else if !l.isStoreView(n) {
			break
		} else if at, ok = at.Invert(n); !ok {
			return fmt.Errorf("%s cannot be stored through strides", n.Where())
		}
		n = n.Args[0]
	}
	r := l.form(n)
	s := Store{Node: n, Value: r.value, Layout: at, Sums: r.state == summed}
	if r.state == pooled {
		s.Pool = n
	}
	switch {
	case s.Sums, s.Pool != nil:
	case l.p.Kind.Whole():
		if l.kind(r) != AnchorResult {
			return fmt.Errorf("%s is handed out and not a result of %s", n.Where(), l.p.Anchor.Where())
		}
		if cast >= 0 {
			s.Value = cast
		}
	default:
		var err error
		if s.Value, err = l.read(n); err != nil {
			return err
		}
		if s.Layout, err = l.over(n, at); err != nil {
			return err
		}
		s.PerRow = l.perRow(n.Type.Shape)
	}
	l.p.Stores = append(l.p.Stores, s)
	return nil
}

// isStoreView reports whether n is a view on the way from a value to an output.
func (l *lowerer) isStoreView(n *graph.Node) bool {
	switch n.Op.(type) {
	case graph.Reshape, graph.Transpose:
		r := l.form(n.Args[0])
		return r.state != source && l.kind(r) != Constant
	}
	return false
}

// checkResults checks that an anchor that is whole hands out each of its results once at most, and always the first.
func (l *lowerer) checkResults() error {
	handed := map[int]bool{}
	for i := range l.p.Stores {
		r, _ := l.p.ResultOf(&l.p.Stores[i])
		if handed[r] {
			return fmt.Errorf("result %d of %s is handed out twice", r, l.p.Anchor.Where())
		}
		handed[r] = true
	}
	if !handed[0] {
		return fmt.Errorf("%s: its first result is not handed out", l.p.Anchor.Where())
	}
	return nil
}

// order leaves the values that stores need, in the order that [Program.Values] tells.
func (l *lowerer) order() error {
	p := l.p
	live := make([]bool, len(p.Values))
	for i := range p.Stores {
		live[p.Stores[i].Value] = true
	}
	var reductions [][]int // by level
	for i := len(p.Values) - 1; i >= 0; i-- {
		if !live[i] {
			continue
		}
		v := &p.Values[i]
		for _, a := range v.Args {
			live[a] = true
		}
		p.Levels = max(p.Levels, v.Level)
		if v.Kind == Row {
			for len(reductions) < v.Level {
				reductions = append(reductions, nil)
			}
			reductions[v.Level-1] = append(reductions[v.Level-1], i)
		}
	}
	to := make([]int, len(p.Values)) // the new index, plus 1
	values := make([]Value, 0, len(p.Values))
	made := func(i int) bool { return to[i] > 0 }
	visit := func(i int) error {
		v := p.Values[i]
		args := make([]int, len(v.Args))
		for k, a := range v.Args {
			args[k] = to[a] - 1
		}
		v.Args = args
		values = append(values, v)
		to[i] = len(values)
		return nil
	}
	for level := range p.Levels + 1 {
		for i := range p.Stores {
			if s := &p.Stores[i]; p.StoreLevel(s) == level {
				if err := p.Order(s.Value, made, visit); err != nil {
					return err
				}
			}
		}
		if level < len(reductions) {
			for _, i := range slices.Backward(reductions[level]) {
				if err := p.Order(i, made, visit); err != nil {
					return err
				}
			}
		}
	}
	for i := range p.Stores {
		p.Stores[i].Value = to[p.Stores[i].Value] - 1
	}
	p.Values = values
	return nil
}
