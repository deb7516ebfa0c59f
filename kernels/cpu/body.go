package cpu

import (
	"math"

	"fusec/graph"
	"fusec/graph/body"
	"fusec/kernels/cpu/vec"
)

// A value is what a value of a body is to the program being compiled.
type value struct {
	kind valueKind
	slot int     // of a vector or scalar
	c    float64 // of a constant
}

type valueKind uint8

const (
	unset    valueKind = iota
	constant           // one number for all elements
	vector
	scalar // one number per row
)

// A compiler makes a program of a lowered body. A load is compiled when it is first read.
type compiler[T float] struct {
	p      *program[T]
	body   *body.Program
	space  graph.Shape // the iteration space, or, of what follows a reduction, its kept axes
	inner  graph.Ints  // the axes that a segment runs over
	rows   bool        // a segment is a row, even of one element
	values []value     // by index of the body
	// rounds are instructions for several values, by the last, and skips the values before it. They are found when the first value
	// is compiled.
	rounds map[int]rounding
	skips  map[int]bool
	found  bool
}

// newCompiler starts on a body. Segments of the iteration space run over its last axis of more than one element, unless
// inner is set to others.
func newCompiler[T float](b *body.Program, space graph.Shape) *compiler[T] {
	c := &compiler[T]{p: &program[T]{}, body: b, space: space, values: make([]value, len(b.Values))}
	for i := space.Rank() - 1; i >= 0 && c.inner.Len() == 0; i-- {
		if space.At(i) != 1 {
			c.inner = graph.IntsOf(i)
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

// compile appends what value i of the body needs and is not compiled yet. Loads and constants are no instructions.
func (c *compiler[T]) compile(i int) error {
	if !c.found {
		c.rounds, c.skips = c.roundings()
		c.found = true
	}
	return c.body.Order(i, func(i int) bool {
		k := c.body.Values[i].Kind
		return c.values[i].kind != unset || k == body.Load || k == body.Constant || c.skips[i]
	}, func(i int) (err error) {
		if r, ok := c.rounds[i]; ok {
			for _, a := range []int{r.x, r.by, r.zero} {
				if a < 0 {
					continue
				}
				if err := c.compile(a); err != nil {
					return err
				}
			}
			c.values[i] = c.emitRounding(r)
			return nil
		}
		c.values[i], err = c.emit(&c.body.Values[i])
		return err
	})
}

// operand is value i of the body as a vector, scalar or constant. What computes it has been compiled.
func (c *compiler[T]) operand(i int) value {
	v := &c.body.Values[i]
	if c.values[i].kind == unset {
		switch v.Kind {
		case body.Constant:
			c.values[i] = c.constant(v.Number)
		case body.Load:
			l := v.Layout
			l.Shape = c.space
			c.values[i] = c.load(v.Arg, v.Node.Type.DType, l)
		}
	}
	return c.values[i]
}

func (c *compiler[T]) constant(t *graph.Tensor) value {
	x := t.Float(0)
	if t.Type.DType.IsInt() && wholeLanes[T]() {
		x = math.Float64frombits(uint64(t.Int(0)))
	}
	return value{kind: constant, c: x}
}

// load reads an argument, or what takes its place, through a layout over the iteration space.
func (c *compiler[T]) load(arg int, d graph.DType, l graph.Layout) value {
	r := &read{access: access{buf: arg, dtype: d, layout: l}, vector: -1, scalar: -1}
	c.p.args = append(c.p.args, r)
	if c.perRow(l) {
		r.scalar = c.newScalar(0)
		return value{kind: scalar, slot: r.scalar}
	}
	r.vector = c.newVector()
	return value{kind: vector, slot: r.vector}
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
	return long || c.rows
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
	fill, d := vec.Of[T]().Fill(), c.newVector()
	c.p.steps = append(c.p.steps, step[T]{run: func(f *frame[T]) { fill(f.v[d], f.s[s]) }, def: d})
	return value{kind: vector, slot: d}
}

// outputs compiles what the results need and declares them.
func (c *compiler[T]) outputs(results []Operand) error {
	for i := range results {
		if err := c.output(i, results[i]); err != nil {
			return err
		}
	}
	return nil
}

// output declares result number i.
func (c *compiler[T]) output(i int, o Operand) error {
	s := &c.body.Stores[i]
	if err := c.compile(s.Value); err != nil {
		return err
	}
	if s.Sums {
		return c.columnSum(i, s, o.DType)
	}
	l := s.Layout
	l.Shape = c.space
	v := c.operand(s.Value)
	w := &write{access: access{buf: i, dtype: o.DType, layout: l}, vector: -1, scalar: -1, over: o.Over - 1}
	if v.kind != vector && c.perRow(l) {
		w.scalar = c.scalarSlot(v)
	} else {
		w.vector = c.asVector(v).slot
	}
	c.p.outs = append(c.p.outs, w)
	return nil
}

// direct decides which vectors are read and written in place, and gives registers to the others. taken is a vector
// that lies in the memory of result number takenBy, or -1.
func (c *compiler[T]) direct(taken, takenBy int) {
	p := c.p
	for _, r := range p.args {
		r.direct = r.vector >= 0 && r.dtype == dtypeOf[T]() && r.access.direct(&p.dom)
		if r.kept = r.vector >= 0 && !r.direct && r.repeats(); r.kept {
			p.slots[r.vector].pinned = true
		}
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
		w.direct = w.vector >= 0 && made && !used[w.vector] && w.dtype == dtypeOf[T]() && w.access.direct(&p.dom)
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
