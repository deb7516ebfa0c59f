package fpga

import (
	"errors"
	"fmt"
	"slices"

	"fusec/fpga/isa"
	"fusec/graph"
	"fusec/lowering"
)

// matcher turns the body of one fusion into tasks.
//
// A value of the body is open while its task may still take on more work: one that a single operation reads. Work
// that fits in the order scale and bias, residual, activation goes into the open task; any other work begins a task
// of its own, whose operands are then stored.
type matcher struct {
	m      *partition
	launch int
	l      *lowering.Launch
	body   *graph.Graph
	users  map[*graph.Node][]*graph.Node
	at     map[*graph.Node]source // what is not computed
	open   map[*graph.Node]*task
	stored map[*graph.Node]matrix
	out    map[*graph.Node]matrix // where a value goes that is handed out
	tasks  []*task
}

// matchFusion lists the tasks of a launch. The error says what the overlay lacks.
func (m *partition) matchFusion(i int, f graph.Fusion) ([]*task, error) {
	l := &m.p.Launches[i]
	t := &matcher{m: m, launch: i, l: l, body: f.Body, users: f.Body.Users(), at: map[*graph.Node]source{},
		open: map[*graph.Node]*task{}, stored: map[*graph.Node]matrix{}, out: map[*graph.Node]matrix{}}
	if err := t.outputs(); err != nil {
		return nil, err
	}
	input := 0
	for _, n := range f.Body.Nodes {
		switch op := n.Op.(type) {
		case graph.Input:
			v := l.Args[input]
			t.at[n] = source{v.Buffer, nil, v.Layout}
			input++
			continue
		case graph.Const:
			t.at[n] = source{-1, op.Value, graph.Contiguous(op.Value.Type.Shape)}
			continue
		}
		if s, ok := t.at[firstArg(n)]; ok && graph.IsView(n.Op) {
			if s.layout, ok = s.layout.View(n); !ok {
				return nil, fmt.Errorf("%s: no distance of rows can say it", n.Op.OpName())
			}
			t.at[n] = s
			continue
		}
		if graph.IsStoreView(n) {
			continue
		}
		if err := t.compute(n); err != nil {
			return nil, err
		}
	}
	for _, n := range f.Body.Nodes {
		if _, ok := t.out[n]; ok {
			if _, err := t.store(n); err != nil {
				return nil, err
			}
		}
	}
	return t.tasks, nil
}

func firstArg(n *graph.Node) *graph.Node {
	if len(n.Args) == 0 {
		return nil
	}
	return n.Args[0]
}

// outputs finds where each value goes that is handed out.
func (t *matcher) outputs() error {
	for i, o := range t.body.Outputs {
		if i >= len(t.l.Results) {
			break
		}
		n, layout := o.Node, t.l.Results[i].Layout
		for graph.IsStoreView(n) {
			var ok bool
			if layout, ok = layout.Invert(n); !ok {
				return fmt.Errorf("%s of the result: no distance of rows can say it", n.Op.OpName())
			}
			n = n.Args[0]
		}
		if !graph.IsComputed(n) {
			return errors.New("a result is an operand as it came")
		}
		if _, twice := t.out[n]; twice {
			return errors.New("a value is handed out twice")
		}
		m, err := t.matrix(t.l.Results[i].Buffer, layout, n.Type.Shape)
		if err != nil {
			return err
		}
		if m.cols%t.m.cfg.WordBytes != 0 && (m.start != 0 || m.cols != m.v.cols) {
			return fmt.Errorf("rows of %d elements are stored beside others: the overlay writes words of %d bytes",
				m.cols, t.m.cfg.WordBytes)
		}
		t.out[n] = m
	}
	return nil
}

// errNoElements is why the overlay does not take values in which there is nothing, results and operands.
var errNoElements = errors.New("a value without elements")

// matrix is the matrix that a layout of a buffer shows, its shape being that of a value of the body.
func (t *matcher) matrix(buffer int, l graph.Layout, s graph.Shape) (matrix, error) {
	if s.Elems() == 0 {
		return matrix{}, errNoElements
	}
	rows, cols := rowsOf(s)
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

// compute gives a node's work to a task.
func (t *matcher) compute(n *graph.Node) error {
	if n.Type.Shape.Elems() == 0 {
		return errNoElements
	}
	if d := n.Type.DType; d != graph.F32 && d != graph.F64 {
		return fmt.Errorf("%s of type %v: the overlay's numbers stand for f32 and f64", n.Op.OpName(), d)
	}
	switch op := n.Op.(type) {
	case graph.MatMul:
		return t.matmul(n, op)
	case graph.LayerNorm, graph.RMSNorm:
		return t.norm(n)
	case graph.Unary:
		name, relu, f := unary(op)
		return t.activate(n, n.Args[0], name, relu, f)
	case graph.Binary:
		return t.binary(n, op)
	case graph.Softmax, graph.LogSoftmax:
		return fmt.Errorf("%s: the overlay has no softmax but that of attention and of the router", n.Op.OpName())
	case graph.Reduce:
		return fmt.Errorf("%s: the overlay reduces no axis but in norms", n.Op.OpName())
	}
	return fmt.Errorf("%s: the overlay has no such operation", n.Op.OpName())
}

// begin starts a task for a node.
func (t *matcher) begin(n *graph.Node, k taskKind, x matrix) *task {
	w := &task{launch: t.launch, kind: k, node: n, x: x, op: n.Op, share: 1}
	t.open[n] = w
	return w
}

// store ends the task of a node, if it has not been, and says where the value stands.
func (t *matcher) store(n *graph.Node) (matrix, error) {
	if m, ok := t.stored[n]; ok {
		return m, nil
	}
	if s, ok := t.at[n]; ok {
		if s.buffer < 0 {
			return matrix{}, errors.New("a constant matrix is computed with")
		}
		m, err := t.matrix(s.buffer, s.layout, s.layout.Shape)
		if err == nil {
			t.stored[n] = m
		}
		return m, err
	}
	w := t.open[n]
	if w == nil {
		return matrix{}, fmt.Errorf("%s is read as another shape", n.Op.OpName())
	}
	m, ok := t.out[n]
	if !ok {
		rows, cols := rowsOf(n.Type.Shape)
		m = whole(t.m.inner(t.l, n, rows, cols))
	}
	w.out = m
	delete(t.open, n)
	t.stored[n] = m
	t.tasks = append(t.tasks, w)
	return m, nil
}

// extends returns the open task of a value that n alone reads, and moves it on to n.
func (t *matcher) extends(a, n *graph.Node, fits func(*task) bool) *task {
	w := t.open[a]
	if w == nil || t.out[a] != (matrix{}) || len(t.users[a]) != 1 || a.Type.Shape != n.Type.Shape || !fits(w) {
		return nil
	}
	delete(t.open, a)
	w.node = n
	t.open[n] = w
	return w
}

// activate puts a function of one number behind a.
func (t *matcher) activate(n, a *graph.Node, name string, relu bool, f func(float64) float64) error {
	w := t.extends(a, n, func(w *task) bool { return w.kind != taskAttention })
	if w == nil {
		x, err := t.store(a)
		if err != nil {
			return err
		}
		w = t.begin(n, taskAffine, x)
	}
	if w.act.f == nil {
		w.pre = a
	}
	w.act = w.act.then(name, relu, f)
	if w.act.table() && t.m.cfg.Tables == 0 {
		return fmt.Errorf("%s: the overlay has no tables for activations", name)
	}
	return nil
}

// operand says what an operand of an elementwise node is.
func (t *matcher) operand(n, a *graph.Node) (s source, perColumn, constant bool, err error) {
	s, ok := t.at[a]
	if !ok {
		return s, false, false, nil
	}
	if s.layout, err = s.layout.Over(n.Type.Shape, graph.Ints{}); err != nil {
		return s, false, false, err
	}
	rank := n.Type.Shape.Rank()
	columns, one := true, true
	for i := range rank {
		if s.layout.Stride[i] == 0 || s.layout.Shape.At(i) == 1 {
			continue
		}
		one = false
		columns = columns && i == rank-1
	}
	rows, _ := rowsOf(n.Type.Shape)
	if columns && !one && rows == 1 && s.buffer >= 0 { // a row is a vector, too: it counts as one if it does not change
		r := t.m.p.Buffers[s.buffer].Role
		columns = r == lowering.Param || r == lowering.Const
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
		s.layout = graph.Layout{Shape: graph.ShapeOf(n.Type.Shape.At(rank - 1)), Offset: s.layout.Offset}
		s.layout.Stride[0] = last
	}
	return s, columns, one && s.buffer < 0, nil
}

// binary gives an operation of two values to a task.
func (t *matcher) binary(n *graph.Node, op graph.Binary) error {
	a, b := n.Args[0], n.Args[1]
	if a == b && graph.IsComputed(a) {
		fn := op.Fn
		return t.activate(n, a, fn.String()+" of itself", false, func(x float64) float64 { return fn.Eval(x, x) })
	}
	sa, va, ca, err := t.operand(n, a)
	if err != nil {
		return err
	}
	sb, vb, cb, err := t.operand(n, b)
	if err != nil {
		return err
	}
	switch {
	case va && vb:
		return errors.New("an operation on vectors alone")
	case vb:
		return t.term(n, a, term{op.Fn, false, sb}, cb)
	case va:
		return t.term(n, b, term{op.Fn, true, sa}, ca)
	}
	if _, ok := t.at[a]; ok && op.Fn == graph.Add { // what was computed goes first
		a, b = b, a
	}
	switch op.Fn {
	case graph.Add, graph.Sub:
		return t.sum(n, a, b, op.Fn == graph.Sub)
	case graph.Mul:
		x, err := t.store(a)
		if err != nil {
			return err
		}
		y, err := t.store(b)
		if err != nil {
			return err
		}
		t.begin(n, taskMul, x).y = y
		return nil
	}
	return fmt.Errorf("%s of two values: the overlay adds and multiplies", op.Fn)
}

// term puts an operation with one number for each column behind a.
func (t *matcher) term(n, a *graph.Node, m term, constant bool) error {
	linear := m.fn == graph.Add || m.fn == graph.Sub || m.fn == graph.Mul || m.fn == graph.Div && !m.left
	scales := m.fn == graph.Mul || m.fn == graph.Div || m.left && m.fn == graph.Sub
	if linear {
		w := t.extends(a, n, func(w *task) bool {
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
			return t.activate(n, a, fmt.Sprintf("%v %.4g", fn, c), false, f)
		}
	}
	if !linear {
		return fmt.Errorf("%v with a number for each column: the overlay adds and multiplies", m.fn)
	}
	x, err := t.store(a)
	if err != nil {
		return err
	}
	w := t.begin(n, taskAffine, x)
	w.terms = append(w.terms, m)
	return nil
}

// sum adds b to a, or takes it away.
func (t *matcher) sum(n, a, b *graph.Node, minus bool) error {
	free := func(w *task) bool {
		return w.act.f == nil && w.res == nil && w.kind != taskAttention && w.kind != taskMul
	}
	join := func(a, b *graph.Node) (bool, error) {
		if w := t.open[a]; w == nil || t.out[a] != (matrix{}) || len(t.users[a]) != 1 || !free(w) {
			return false, nil
		}
		r, err := t.store(b)
		if err != nil {
			return false, err
		}
		w := t.extends(a, n, free)
		w.res = &r
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
			w := t.open[n]
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
	w := t.begin(n, taskAffine, x)
	w.res = &r
	if minus {
		w.terms = append(w.terms, term{graph.Mul, false, number(-1)})
	}
	return nil
}

// number is a source that is one number.
func number(x float64) source { return source{-1, graph.Scalar(graph.F64, x), graph.Layout{}} }

// matmul begins a product: of rows with constant weights, or with the rows of another value.
func (t *matcher) matmul(n *graph.Node, op graph.MatMul) error {
	s := n.Type.Shape
	rows, _ := rowsOf(s)
	x, err := t.rowsFor(n.Args[0], op.TransA, rows)
	if err != nil {
		return err
	}
	b, ok := t.at[n.Args[1]]
	if !ok {
		return errors.New("matmul with a value that the same launch computes")
	}
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
		// Its rows are those of the contraction: n by n where it is read as it stands, else from its transpose.
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
	t.open[n] = w
	return nil
}

// rowsFor is the first operand of a product as rows of the contraction.
func (t *matcher) rowsFor(a *graph.Node, transposed bool, rows int) (matrix, error) {
	s, ok := t.at[a]
	if !ok {
		if transposed {
			return matrix{}, errors.New("matmul with the transpose of a value that the same launch computes")
		}
		return t.store(a)
	}
	if s.buffer < 0 {
		return matrix{}, errors.New("matmul of a constant")
	}
	l := s.layout
	r := l.Shape.Rank()
	if transposed {
		perm := make([]int, r)
		for i := range perm {
			perm[i] = i
		}
		slices.Reverse(perm[r-2:])
		l = l.Transpose(graph.IntsOf(perm...))
	}
	m, err := t.matrix(s.buffer, l, l.Shape)
	if err == nil && m.rows != rows {
		err = errors.New("matmul with a batch that is repeated")
	}
	return m, err
}

// norm begins a norm over rows.
func (t *matcher) norm(n *graph.Node) error {
	_, cols := rowsOf(n.Type.Shape)
	if !t.m.cfg.Norms {
		return fmt.Errorf("%s: the overlay %s has no norms", n.Op.OpName(), t.m.cfg.Name)
	}
	if cols > isa.MaxNorm {
		return fmt.Errorf("%s of rows of %d elements: the overlay takes %d", n.Op.OpName(), cols, isa.MaxNorm)
	}
	x, err := t.store(n.Args[0])
	if err != nil {
		return err
	}
	w := t.begin(n, taskNorm, x)
	for i, fn := range []graph.BinaryFn{graph.Mul, graph.Add} {
		if 1+i < len(n.Args) {
			s, columns, _, err := t.operand(n, n.Args[1+i])
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
