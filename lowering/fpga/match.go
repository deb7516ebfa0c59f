package fpga

import (
	"errors"
	"fmt"
	"slices"

	"fusec/fpga/isa"
	"fusec/graph"
	"fusec/graph/body"
	"fusec/lowering"
)

// matcher turns the program of a body into tasks.
//
// A value of the body is open while its task may still take on more work: one that a single operation reads. Work in
// the order scale and bias, residual, activation is added to the open task. Any other work starts a new task, whose
// operands are then stored.
type matcher struct {
	m      *partition
	launch int
	l      *lowering.Launch
	p      body.Part
	uses   []int          // by value: how many operations read it
	open   []*task        // by value
	stored map[int]matrix // by value
	out    map[int]matrix // the destination of an output
	tasks  []*task
	images bool // the space is that of images, pixel by pixel
}

// lowered is a launch of one segment, and its body.
func (m *partition) lowered(i int, f graph.Fusion) (*lowering.Launch, *body.Program, error) {
	l := &m.p.Launches[i]
	args, results := l.Operands()
	p, err := body.Lower(f, args, results)
	return l, p, err
}

// matchFusion lists the tasks of a launch. The error says which feature the overlay lacks.
func (m *partition) matchFusion(i int, f graph.Fusion) (tasks []*task, err error) {
	l := &m.p.Launches[i]
	args, results := l.Operands()
	parts, err := body.LowerSegments(f, args, results)
	if err != nil {
		return nil, err
	}
	if p := parts[0]; p.Norms() {
		return nil, fmt.Errorf("%s of an operand that is normed in the same launch", p.Anchor.Where())
	}
	of, images := m.layoutOf(l, f)
	if tasks, err = m.matchParts(i, parts, of, images); err != nil && images && f.Anchor == graph.AnchorNone {
		// Work that takes images to another layout may see them in either.
		if parts, again := body.LowerSegments(f, args, results); again == nil {
			if tasks, again := m.matchParts(i, parts, graph.NCHW+graph.NHWC-of, true); again == nil {
				return tasks, nil
			}
		}
	}
	return tasks, err
}

// matchParts lists the tasks of a launch's parts, which see images in a layout.
func (m *partition) matchParts(i int, parts []body.Part, of graph.ImageLayout, images bool) (tasks []*task, err error) {
	l := &m.p.Launches[i]
	for _, p := range parts {
		if images {
			if p.Space.Rank() != 4 {
				return nil, fmt.Errorf("work on values of shape %v beside images", p.Space)
			}
			turnToChannelsLast(&p, of)
		}
		t := &matcher{images: images, m: m, launch: i, l: l, p: p, uses: make([]int, len(p.Values)), open: make([]*task, len(p.Values)),
			stored: map[int]matrix{}, out: map[int]matrix{}}
		if err := t.match(); err != nil {
			return nil, err
		}
		tasks = append(tasks, t.tasks...)
	}
	return tasks, nil
}

// match gives all values to tasks.
func (t *matcher) match() error {
	if err := t.outputs(); err != nil {
		return err
	}
	for i := range t.p.Values {
		for _, a := range t.p.Values[i].Args {
			t.uses[a]++
		}
	}
	for i := range t.p.Values {
		if err := t.compute(i); err != nil {
			return err
		}
	}
	for i := range t.p.Values {
		if _, ok := t.out[i]; ok {
			if _, err := t.store(i); err != nil {
				return err
			}
		}
	}
	return nil
}

// outputs finds the destination of each output.
func (t *matcher) outputs() error {
	for i := range t.p.Stores {
		s := &t.p.Stores[i]
		_, average := averages(t.p.Values[s.Value].Node)
		average = average && t.images && s.PerRow
		switch _, twice := t.out[s.Value]; {
		case average && !twice:
		case s.Sums || s.PerRow && t.p.Space != t.p.Kept:
			return errReduce
		case s.Pool != nil:
			return errors.New("a pool is a launch of its own")
		case t.p.Values[s.Value].Kind == body.Load || t.p.Values[s.Value].Kind == body.Constant:
			return errors.New("a result is an operand as it came")
		case twice:
			return errors.New("a value is handed out twice")
		}
		to := t.l.Results[t.p.Segment.Results[i]].Buffer
		m, err := t.matrix(to, s.Layout)
		if average {
			m, err = t.averaged(to, s.Layout)
		}
		if err != nil {
			return err
		}
		if m.cols%t.m.cfg.WordBytes != 0 && (m.start != 0 || m.cols != m.v.cols) {
			return fmt.Errorf("rows of %d elements are stored beside others: the overlay writes words of %d bytes",
				m.cols, t.m.cfg.WordBytes)
		}
		t.out[s.Value] = m
	}
	return nil
}

// source is operand i of the part's launch with a layout.
func (t *matcher) source(arg int, l graph.Layout) source {
	return source{buffer: t.l.Args[t.p.Segment.Args[arg]].Buffer, layout: l}
}

// errNoElements is why the overlay does not take values in which there is nothing, results and operands.
var errNoElements = errors.New("a value without elements")

// matrix is the matrix that a layout of a buffer shows.
func (t *matcher) matrix(buffer int, l graph.Layout) (matrix, error) {
	if l.Shape.Elems() == 0 {
		return matrix{}, errNoElements
	}
	if t.images && l.Shape.Rank() == 4 {
		return t.m.value(buffer).imageOf(l)
	}
	rows, cols := rowsOf(l.Shape)
	m, err := matrixOf(t.m.value(buffer), l, rows, cols)
	if err != nil {
		return m, err
	}
	_, _, err = m.place(t.m.cfg.WordBytes)
	return m, err
}

// rowsOf is a shape as a matrix.
func rowsOf(s graph.Shape) (rows, cols int) {
	if s.Rank() == 0 {
		return 1, 1
	}
	cols = s.At(s.Rank() - 1)
	return s.Elems() / max(cols, 1), cols
}

// compute gives the work of value i to a task.
func (t *matcher) compute(i int) error {
	v := &t.p.Values[i]
	n := v.Node
	switch d := n.Type.DType; {
	case v.Kind == body.Load || v.Kind == body.Constant:
		return nil
	case t.p.Space.Elems() == 0:
		return errNoElements
	case d != graph.F32 && d != graph.F64:
		return fmt.Errorf("%s of type %v: the overlay's numbers stand for f32 and f64", n.Op.OpName(), d)
	}
	how, err := answers.Of(n.Op)
	if err != nil {
		return err
	}
	return how.value(t, i)
}

// begin starts a task for value i.
func (t *matcher) begin(i int, k taskKind, x matrix) *task {
	n := t.p.Values[i].Node
	w := &task{launch: t.launch, part: &t.p.Segment, kind: k, node: n, x: x, op: n.Op, share: 1}
	t.open[i] = w
	return w
}

// store ends the task of value i, unless it has ended, and returns the value's location.
func (t *matcher) store(i int) (matrix, error) {
	if m, ok := t.stored[i]; ok {
		return m, nil
	}
	m, ok := t.out[i]
	switch v := &t.p.Values[i]; {
	case v.Kind == body.Constant:
		return m, errors.New("a constant matrix is computed with")
	case v.Kind == body.Load:
		var err error
		if m, err = t.matrix(t.source(v.Arg, v.Layout).buffer, v.Layout); err != nil {
			return m, err
		}
	default:
		if !ok {
			rows, cols := rowsOf(t.p.Space)
			m = whole(t.m.inner(t.l, v.Node, rows, cols))
		}
		w := t.open[i]
		if w == nil {
			return m, fmt.Errorf("%s is not computed by itself", v.Node.Where())
		}
		w.out = m
		t.open[i] = nil
		t.tasks = append(t.tasks, w)
	}
	t.stored[i] = m
	return m, nil
}

// free reports whether more work may go into the open task of value a: one operation reads the value and nothing else.
func (t *matcher) free(a int, fits func(*task) bool) bool {
	w := t.open[a]
	return w != nil && t.out[a] == (matrix{}) && t.uses[a] == 1 && fits(w)
}

// extends returns the open task of a value that value i alone reads, and moves it on to i.
func (t *matcher) extends(a, i int, fits func(*task) bool) *task {
	if !t.free(a, fits) {
		return nil
	}
	w := t.open[a]
	t.open[a] = nil
	w.node = t.p.Values[i].Node
	t.open[i] = w
	return w
}

// activate puts a function of one number behind a.
func (t *matcher) activate(i, a int, name string, relu bool, f func(float64) float64) error {
	w := t.extends(a, i, func(w *task) bool { return w.kind != taskAttention })
	if w == nil {
		x, err := t.store(a)
		if err != nil {
			return err
		}
		w = t.begin(i, taskAffine, x)
	}
	if v := &t.p.Values[a]; w.act.f == nil && v.Kind != body.Load {
		w.pre = v.Node
	}
	w.act = w.act.then(name, relu, f)
	if w.act.table() && t.m.cfg.Tables == 0 {
		return fmt.Errorf("%s: the overlay has no tables for activations", name)
	}
	return nil
}

// operand describes operand a of value i: whether it is computed, and if not, its source, and whether it has one number
// for each column or is a constant.
func (t *matcher) operand(i, a int) (s source, perColumn, constant bool, err error) {
	v, n, space := &t.p.Values[a], t.p.Values[i].Node, t.p.Space
	switch v.Kind {
	case body.Load:
		s = t.source(v.Arg, v.Layout)
	case body.Constant:
		s = source{buffer: -1, tensor: v.Number, layout: graph.Layout{Shape: space}}
	default:
		return s, false, false, nil
	}
	rank := space.Rank()
	columns, one := true, true
	for i := range rank {
		if s.layout.Stride[i] == 0 || space.At(i) == 1 {
			continue
		}
		one = false
		columns = columns && i == rank-1
	}
	rows, _ := rowsOf(space)
	if columns && !one && rows == 1 && s.buffer >= 0 { // a row is a vector, too: it counts as one if it does not change
		columns = t.m.constant(s.buffer)
	}
	if columns && s.buffer >= 0 {
		switch t.m.p.Buffers[s.buffer].Role {
		case lowering.Temp, lowering.Output:
			return s, false, false, fmt.Errorf("%s by a row that is computed: the overlay takes scales and biases "+
				"that the host knows", n.Op.OpName())
		}
	}
	if columns && rank > 0 {
		last := s.layout.Stride[rank-1]
		s.layout = graph.Layout{Shape: graph.ShapeOf(space.At(rank - 1)), Offset: s.layout.Offset}
		s.layout.Stride[0] = last
	}
	return s, columns, one && s.buffer < 0, nil
}

// unary gives a function of one value to a task.
func (t *matcher) unary(i int) error {
	name, relu, f := unary(t.p.Values[i].Node.Op.(graph.Unary))
	return t.activate(i, t.p.Values[i].Args[0], name, relu, f)
}

// binary gives an operation of two values to a task.
func (t *matcher) binary(i int) error {
	op := t.p.Values[i].Node.Op.(graph.Binary)
	a, b := t.p.Values[i].Args[0], t.p.Values[i].Args[1]
	loaded := func(a int) bool { k := t.p.Values[a].Kind; return k == body.Load || k == body.Constant }
	if a == b && !loaded(a) {
		fn := op.Fn
		return t.activate(i, a, fn.String()+" of itself", false, func(x float64) float64 { return fn.Eval(x, x) })
	}
	sa, va, ca, err := t.operand(i, a)
	if err != nil {
		return err
	}
	sb, vb, cb, err := t.operand(i, b)
	if err != nil {
		return err
	}
	switch {
	case va && vb:
		return errors.New("an operation on vectors alone")
	case vb:
		return t.term(i, a, term{op.Fn, false, sb}, cb)
	case va:
		return t.term(i, b, term{op.Fn, true, sa}, ca)
	}
	if loaded(a) && op.Fn == graph.Add { // the computed operand comes first
		a, b = b, a
	}
	switch op.Fn {
	case graph.Add, graph.Sub:
		return t.sum(i, a, b, op.Fn == graph.Sub)
	case graph.Mul:
		x, err := t.store(a)
		if err != nil {
			return err
		}
		y, err := t.store(b)
		if err != nil {
			return err
		}
		t.begin(i, taskMul, x).y = y
		return nil
	}
	return fmt.Errorf("%s of two values: the overlay adds and multiplies", op.Fn)
}

// term puts an operation with one number for each column behind a.
func (t *matcher) term(i, a int, m term, constant bool) error {
	linear := m.fn == graph.Add || m.fn == graph.Sub || m.fn == graph.Mul || m.fn == graph.Div && !m.left
	scales := m.fn == graph.Mul || m.fn == graph.Div || m.left && m.fn == graph.Sub
	if linear {
		w := t.extends(a, i, func(w *task) bool {
			return w.act.f == nil && w.kind != taskAttention &&
				!(scales && w.res != nil)
		})
		if w != nil {
			w.terms = append(w.terms, m)
			return nil
		}
	}
	if constant {
		v, err := m.v.values(nil)
		if err != nil {
			return err
		}
		c, fn := v(0, 0), m.fn
		f := func(x float64) float64 { return fn.Eval(x, c) }
		if m.left {
			f = func(x float64) float64 { return fn.Eval(c, x) }
		}
		if !linear || t.open[a] != nil && t.open[a].act.f != nil {
			return t.activate(i, a, fmt.Sprintf("%v %.4g", fn, c), false, f)
		}
	}
	if !linear {
		return fmt.Errorf("%v with a number for each column: the overlay adds and multiplies", m.fn)
	}
	x, err := t.store(a)
	if err != nil {
		return err
	}
	w := t.begin(i, taskAffine, x)
	w.terms = append(w.terms, m)
	return nil
}

// sum adds b to a, or takes it away.
func (t *matcher) sum(i, a, b int, minus bool) error {
	free := func(w *task) bool {
		return w.act.f == nil && w.res == nil && w.kind != taskAttention && w.kind != taskMul
	}
	join := func(a, b int) (bool, error) {
		if !t.free(a, free) {
			return false, nil
		}
		r, err := t.store(b)
		if err != nil {
			return false, err
		}
		t.extends(a, i, free).res = &r
		return true, nil
	}
	if !minus {
		if ok, err := join(a, b); ok || err != nil {
			return err
		}
	}
	if ok, err := join(b, a); err != nil {
		return err
	} else if ok { // a − b is −b with a for a residual, whose factor is never negative
		if minus {
			w := t.open[i]
			w.terms = append(w.terms, term{graph.Mul, false, number(-1)})
		}
		return nil
	}
	x, err := t.store(b)
	if err != nil {
		return err
	}
	r, err := t.store(a)
	if err != nil {
		return err
	}
	w := t.begin(i, taskAffine, x)
	w.res = &r
	if minus {
		w.terms = append(w.terms, term{graph.Mul, false, number(-1)})
	}
	return nil
}

// number is a source that is one number.
func number(x float64) source { return source{buffer: -1, tensor: graph.Scalar(graph.F64, x)} }

// matmul begins a product: of rows with constant weights, or with the rows of another value.
func (t *matcher) matmul(i int) error {
	n := t.p.Anchor
	op := n.Op.(graph.MatMul)
	if v := t.m.value(t.source(t.p.Operands[0].Arg, graph.Layout{}).buffer); v.pixels > 0 {
		return t.flattened(i, v)
	}
	rows, _ := rowsOf(t.p.Space)
	x, err := t.rowsFor(t.p.Operands[0], op.TransA, rows)
	if err != nil {
		return err
	}
	b := t.source(t.p.Operands[1].Arg, t.p.Operands[1].Layout)
	r := b.layout.Shape.Rank()
	batch := 1
	for i := range r - 2 {
		if b.layout.Stride[i] != 0 {
			batch *= b.layout.Shape.At(i)
		}
	}
	if batch != 1 {
		return fmt.Errorf("matmul of %d pairs of matrices: the overlay takes them one by one", batch)
	}
	kAxis, nAxis := r-2, r-1
	if op.TransB {
		kAxis, nAxis = nAxis, kAxis
	}
	l := graph.Layout{Shape: graph.ShapeOf(b.layout.Shape.At(kAxis), b.layout.Shape.At(nAxis)), Offset: b.layout.Offset}
	l.Stride[0], l.Stride[1] = b.layout.Stride[kAxis], b.layout.Stride[nAxis]
	b.layout = l
	w := &task{launch: t.launch, kind: taskGemm, node: n, x: x, op: op, share: 1}
	if t.m.constant(b.buffer) {
		w.weight = &weight{b, l.Shape.At(0), l.Shape.At(1)}
	} else {
		// Its rows are those of the contraction: n by n if it is read directly, else from its transpose.
		v := t.m.value(b.buffer)
		w.w, err = matrixOf(v, l.Transpose(graph.IntsOf(1, 0)), l.Shape.At(1), l.Shape.At(0))
		if err != nil {
			if w.w, err = matrixOf(v, l, l.Shape.At(0), l.Shape.At(1)); err != nil {
				return err
			}
			w.w = w.w.turn()
		}
		if _, _, err := w.w.place(t.m.cfg.WordBytes); err != nil {
			return err
		}
	}
	if err := t.m.fitsContraction(x.cols); err != nil {
		return err
	}
	t.open[i] = w
	return nil
}

// rowsFor is the first operand of a product as rows of the contraction.
func (t *matcher) rowsFor(o body.Operand, transposed bool, rows int) (matrix, error) {
	l := o.Layout
	r := l.Shape.Rank()
	if transposed {
		perm := make([]int, r)
		for i := range perm {
			perm[i] = i
		}
		slices.Reverse(perm[r-2:])
		l = l.Transpose(graph.IntsOf(perm...))
	}
	m, err := t.matrix(t.source(o.Arg, l).buffer, l)
	if err == nil && m.rows != rows {
		err = errors.New("matmul with a batch that is repeated")
	}
	return m, err
}

// norm begins a norm over rows.
func (t *matcher) norm(i int) error {
	n, args := t.p.Values[i].Node, t.p.Values[i].Args
	_, cols := rowsOf(t.p.Space)
	if !t.m.cfg.Norms {
		return fmt.Errorf("%s: the overlay %s has no norms", n.Op.OpName(), t.m.cfg.Name)
	}
	if cols > isa.MaxNorm {
		return fmt.Errorf("%s of rows of %d elements: the overlay takes %d", n.Op.OpName(), cols, isa.MaxNorm)
	}
	x, err := t.store(args[0])
	if err != nil {
		return err
	}
	w := t.begin(i, taskNorm, x)
	for k, fn := range []graph.BinaryFn{graph.Mul, graph.Add} {
		if 1+k < len(args) {
			s, columns, _, err := t.operand(i, args[1+k])
			if err != nil {
				return err
			}
			if !columns {
				return fmt.Errorf("%s with a scale that is no row", n.Op.OpName())
			}
			w.terms = append(w.terms, term{fn, false, s})
		}
	}
	return nil
}
