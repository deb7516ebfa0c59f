package cpu

import (
	"fmt"
	"math"

	"fusec/graph"
)

// A value is what a node of a body is to the program being compiled.
type value struct {
	kind   valueKind
	slot   int          // of a vector or scalar
	c      float64      // of a constant
	arg    int          // of a source: which argument
	dtype  graph.DType  // of a source
	layout graph.Layout // of a source: where its elements stand in the argument
}

type valueKind uint8

const (
	source   valueKind = iota // an argument, perhaps seen through views; not loaded yet
	constant                  // one number for all elements
	vector
	scalar // one number per row
)

// A compiler makes a program of a body. What a value needs is compiled when it is first asked for.
type compiler[T float] struct {
	p       *program[T]
	space   graph.Shape // the iteration space
	inner   graph.Ints  // the axes that a segment runs over
	reduced graph.Ints  // the axes that values of a reduced shape lack
	fusion  graph.Fusion
	values  map[*graph.Node]value
	loaded  map[loadKey]value
}

type loadKey struct {
	arg    int
	layout graph.Layout
}

// laneType is the type that a body is computed in; see [graph.LaneOf].
func laneType(body *graph.Graph) graph.DType {
	for _, n := range body.Nodes {
		switch graph.ClassOf(n.Op) {
		case graph.ClassSource, graph.ClassView:
			continue
		}
		if graph.LaneOf(n) == graph.F64 {
			return graph.F64
		}
	}
	return graph.F32
}

// newCompiler starts on a body whose inputs are the given arguments. Segments of the iteration space run over its
// last axis of more than one element, unless inner is set to others.
func newCompiler[T float](body *graph.Graph, space graph.Shape, args []Operand) *compiler[T] {
	c := &compiler[T]{p: &program[T]{}, space: space, values: map[*graph.Node]value{}, loaded: map[loadKey]value{}}
	for i := space.Rank() - 1; i >= 0 && c.inner.Len() == 0; i-- {
		if space.At(i) != 1 {
			c.inner = graph.IntsOf(i)
		}
	}
	next := 0
	for _, n := range body.Nodes {
		if _, ok := n.Op.(graph.Input); ok {
			a := args[next]
			c.values[n] = value{kind: source, arg: next, layout: a.Layout, dtype: a.DType}
			next++
		}
	}
	return c
}

// axesFrom lists the axes lo to hi.
func axesFrom(lo, hi int) graph.Ints {
	var l []int
	for i := lo; i < hi; i++ {
		l = append(l, i)
	}
	return graph.IntsOf(l...)
}

// value returns what n is, compiling it and what it needs first.
func (c *compiler[T]) value(n *graph.Node) (v value, err error) {
	if v, ok := c.values[n]; ok {
		return v, nil
	}
	if op, ok := n.Op.(graph.Const); ok {
		v, err = c.constant(n, op.Value)
	} else if graph.IsView(n.Op) {
		v, err = c.view(n)
	} else {
		v, err = c.emit(n)
	}
	c.values[n] = v
	return v, err
}

func (c *compiler[T]) constant(n *graph.Node, t *graph.Tensor) (value, error) {
	if !t.Uniform() {
		return value{}, fmt.Errorf("%s is not one number", n.Where())
	}
	x := t.Float(0)
	if t.Type.DType.IsInt() && wholeLanes[T]() {
		x = math.Float64frombits(uint64(t.Int(0)))
	}
	return value{kind: constant, c: x}, nil
}

// view compiles a view: of an argument it changes the layout; of one number, or between the forms of a reduced value,
// nothing.
func (c *compiler[T]) view(n *graph.Node) (value, error) {
	v, err := c.value(n.Args[0])
	if err != nil {
		return v, err
	}
	switch v.kind {
	case source:
		l, ok := v.layout.View(n)
		if !ok {
			return v, fmt.Errorf("%s cannot be read through strides", n.Where())
		}
		v.layout = l
	case vector: // a Reshape between the two forms of reduced values, where each is an element
		if _, ok := n.Op.(graph.Reshape); !ok || c.reduced.Len() == 0 || n.Type.Shape.Elems() != c.space.Elems() {
			return v, fmt.Errorf("%s of a computed vector inside a body", n.Where())
		}
	}
	return v, nil
}

// operand returns n's value as a vector, scalar or constant, loading it if it is a source.
func (c *compiler[T]) operand(n *graph.Node) (value, error) {
	v, err := c.value(n)
	if err != nil || v.kind != source {
		return v, err
	}
	l, err := v.layout.Over(c.space, c.reduced)
	if err != nil {
		return v, fmt.Errorf("%s: %w", n.Where(), err)
	}
	return c.load(v, l), nil
}

// sourceOf returns an operand of a contraction: an argument, perhaps seen through views.
func (c *compiler[T]) sourceOf(n *graph.Node) (value, error) {
	base := n
	for graph.IsView(base.Op) {
		base = base.Args[0]
	}
	if _, ok := base.Op.(graph.Input); !ok {
		return value{}, fmt.Errorf("%s is made in the launch that multiplies it", base.Where())
	}
	return c.value(n)
}

// weights returns a norm's operand n as a vector along the last axis.
func (c *compiler[T]) weights(n *graph.Node) (value, error) {
	v, err := c.value(n)
	if err == nil && v.kind == source {
		v = c.load(v, v.layout.Broadcast(c.space))
	}
	return c.asVector(v), err
}

// load reads a source through a layout over the iteration space, once.
func (c *compiler[T]) load(v value, l graph.Layout) value {
	key := loadKey{v.arg, l}
	if u, ok := c.loaded[key]; ok {
		return u
	}
	r := &read{access: access{buf: v.arg, dtype: v.dtype, layout: l}, vector: -1, scalar: -1}
	u := value{kind: vector}
	if c.perRow(l) {
		r.scalar = c.newScalar(0)
		u = value{kind: scalar, slot: r.scalar}
	} else {
		r.vector = c.newVector()
		u.slot = r.vector
	}
	c.p.args = append(c.p.args, r)
	c.loaded[key] = u
	return u
}

// perRow reports whether a layout over the iteration space is the same for all elements of a segment. What holds for
// the axis that a segment runs over holds for those that are merged with it.
func (c *compiler[T]) perRow(l graph.Layout) bool {
	long := false
	for i := range c.inner.Len() {
		if axis := c.inner.At(i); c.space.At(axis) != 1 {
			long = true
			if l.Stride[axis] != 0 {
				return false
			}
		}
	}
	return long || c.reduced.Len() > 0
}

func (c *compiler[T]) newVector() int {
	c.p.slots = append(c.p.slots, slot{reg: -1})
	return len(c.p.slots) - 1
}

func (c *compiler[T]) newScalar(v T) int {
	c.p.scalars = append(c.p.scalars, v)
	return len(c.p.scalars) - 1
}

// scalarSlot is the slot of a scalar or constant value.
func (c *compiler[T]) scalarSlot(v value) int {
	if v.kind == constant {
		return c.newScalar(T(v.c))
	}
	return v.slot
}

// A place is where a step finds an operand: a vector, or a scalar as a vector of one element.
type place struct {
	scalar bool
	slot   int
}

func (c *compiler[T]) place(v value) place {
	if v.kind == vector {
		return place{slot: v.slot}
	}
	return place{scalar: true, slot: c.scalarSlot(v)}
}

func (f *frame[T]) at(p place) []T {
	if p.scalar {
		return f.s[p.slot : p.slot+1]
	}
	return f.v[p.slot]
}

// step appends an instruction that sets a new value: a vector if an operand is one, else a scalar.
func (c *compiler[T]) step(run func(f *frame[T], dst []T), operands ...value) value {
	var uses []int
	for _, v := range operands {
		if v.kind == vector {
			uses = append(uses, v.slot)
		}
	}
	if uses == nil {
		return c.scalarStep(run)
	}
	d := c.newVector()
	c.p.steps = append(c.p.steps, step[T]{run: func(f *frame[T]) { run(f, f.v[d]) }, def: d, uses: uses})
	return value{kind: vector, slot: d}
}

// scalarStep appends an instruction that sets a new scalar, given as a vector of one element.
func (c *compiler[T]) scalarStep(run func(f *frame[T], dst []T), uses ...int) value {
	d := c.newScalar(0)
	c.p.steps = append(c.p.steps, step[T]{run: func(f *frame[T]) { run(f, f.s[d:d+1]) }, def: -1, uses: uses})
	return value{kind: scalar, slot: d}
}

// asVector makes a vector of a value.
func (c *compiler[T]) asVector(v value) value {
	if v.kind == vector {
		return v
	}
	s := c.scalarSlot(v)
	fill, d := opcodes[T]().Fill(), c.newVector()
	c.p.steps = append(c.p.steps, step[T]{run: func(f *frame[T]) { fill(f.v[d], f.s[s]) }, def: d})
	return value{kind: vector, slot: d}
}

// outputs declares that the outputs of the body are the results of the given operands.
func (c *compiler[T]) outputs(body *graph.Graph, results []Operand) error {
	for i, o := range body.Outputs {
		if err := c.output(i, o.Node, results[i]); err != nil {
			return err
		}
	}
	return nil
}

// output declares that node n of the body is result number i, with the given operand.
func (c *compiler[T]) output(i int, n *graph.Node, o Operand) error {
	l := o.Layout
	for graph.IsStoreView(n) {
		var ok bool
		if l, ok = l.Invert(n); !ok {
			return fmt.Errorf("%s cannot be stored through strides", n.Where())
		}
		n = n.Args[0]
	}
	if c.sums(n) {
		return c.columnSum(i, n, o.DType, l)
	}
	v, err := c.operand(n)
	if err != nil {
		return err
	}
	full, err := l.Over(c.space, c.reduced)
	if err != nil {
		return fmt.Errorf("%s: %w", n.Where(), err)
	}
	w := &write{access: access{buf: i, dtype: o.DType, layout: full}, vector: -1, scalar: -1, over: o.Over - 1}
	if v.kind != vector && c.perRow(full) {
		w.scalar = c.scalarSlot(v)
	} else {
		w.vector = c.asVector(v).slot
	}
	c.p.outs = append(c.p.outs, w)
	return nil
}

// sums reports whether n is a column sum.
func (c *compiler[T]) sums(n *graph.Node) bool { return c.fusion.Body != nil && c.fusion.ColumnSum(n) }

// direct decides which vectors are read and written in place, and gives registers to the others. taken is a vector
// that lies in the memory of result number takenBy, or -1.
func (c *compiler[T]) direct(taken, takenBy int) {
	p := c.p
	for _, r := range p.args {
		r.direct = r.vector >= 0 && r.dtype == dtypeOf[T]() && r.access.direct()
	}
	defined := map[int]int{}
	lastRead := map[int]int{}
	for i, s := range p.steps {
		if s.def >= 0 {
			defined[s.def] = i
		}
		for _, u := range s.uses {
			lastRead[u] = i
		}
	}
	for _, w := range p.outs {
		if w.buf != takenBy && w.vector >= 0 {
			lastRead[w.vector] = len(p.steps)
		}
	}
	for _, s := range p.columns {
		lastRead[s.slot] = len(p.steps)
	}
	used := map[int]bool{}
	for _, w := range p.outs {
		at, made := defined[w.vector]
		w.direct = w.vector >= 0 && made && !used[w.vector] && w.dtype == dtypeOf[T]() && w.access.direct()
		if w.buf == takenBy {
			if w.vector == taken {
				w.direct = true // it lies where it belongs
			} else if lastRead[taken] > at {
				w.direct = false // the vector that lies there is still read
			}
		}
		for _, r := range p.args { // what is overwritten must not be read any more
			if w.direct && r.buf == w.over && r.vector >= 0 && lastRead[r.vector] > at {
				w.direct = false
			}
		}
		if w.direct {
			used[w.vector] = true
		}
	}
	p.allocate()
}

// accesses lists all reads and writes, for cutting the domain.
func (p *program[T]) accesses() []*access {
	var all []*access
	for _, r := range p.args {
		all = append(all, &r.access)
	}
	for _, w := range p.outs {
		all = append(all, &w.access)
	}
	return all
}
