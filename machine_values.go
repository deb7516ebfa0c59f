package fusec

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec/graph"
	fgorgonia "fusec/graph/gorgonia"
	"fusec/kernels/cpu/vec"
	"fusec/passes"
)

// A machineInput is a source of the program that is read from a node before each run.
type machineInput struct {
	node   *gorgonia.Node
	name   string // of the source
	buffer int    // of the program
	tensor *graph.Tensor
	shared *tensor.Dense // whose memory tensor is, or nil: then it is a copy
	at     uintptr       // where that memory starts
	shape  tensor.Shape  // and how it was laid out
	stride []int
	copied *tensor.Dense // whose elements tensor has, or nil
	frozen bool          // a weight that is declared not to change
	steps  bool          // a weight that the optimiser changes
	synced bool          // and that has been brought back since the last run, so that it may have changed since
	ahead  *tensor.Dense // the value that was copied ahead for the next run, or nil
}

// A machineFill is an input that is computed before each run.
type machineFill struct {
	name   string
	tensor *graph.Tensor
	fill   func(*graph.Tensor) error
}

// A machineState is state whose owner is Gorgonia's operation and that is copied from and to it.
type machineState struct {
	name        string
	tensor      *graph.Tensor
	load, store func(*graph.Tensor) error
}

// declareInputs lists the program's sources with the nodes that they are read from. Sources that no result needs are
// left out.
func (m *Machine) declareInputs(steps []passes.Step) error {
	changes := map[*graph.Node]bool{}
	for _, s := range steps {
		changes[s.Param] = true
	}
	for _, s := range m.im.Sources {
		if i, ok := m.program.named[s.Value.Name]; ok {
			_, param := s.Value.Op.(graph.Param)
			in := machineInput{node: s.Node, name: s.Value.Name, buffer: i, steps: changes[s.Value]}
			in.frozen = param && m.cfg.frozen && !in.steps
			m.inputs = append(m.inputs, in)
		}
	}
	for _, f := range m.im.Fills {
		if _, ok := m.program.named[f.Value.Name]; ok {
			m.fills = append(m.fills, machineFill{f.Value.Name, graph.NewTensor(f.Value.Type), f.Fill})
		}
	}
	for _, s := range m.im.States {
		i, ok := m.program.named[s.Value.Name]
		switch {
		case !ok:
		case s.Held != nil && !m.inspects(): // what is inspected may yet be refused after the run
			if err := m.program.lend(s.Value.Name, s.Held); err != nil {
				return err
			}
			if m.held == nil {
				m.held = map[string]*graph.Tensor{}
			}
			m.held[s.Value.Name] = s.Held
		default:
			m.states = append(m.states, machineState{s.Value.Name, m.program.own[i], s.Load, s.Store})
		}
	}
	return nil
}

// bind gives the program all that it reads.
func (m *Machine) bind() error {
	if err := m.checkSolver(); err != nil {
		return err
	}
	if m.im.Stale() != nil {
		if m.err = m.recompile(); m.err != nil {
			return m.err
		}
	}
	moved := false
	for i := range m.inputs {
		in := &m.inputs[i]
		before := in.at
		if in.node.Value() == nil {
			return m.noValue(in)
		}
		if err := in.bind(m.program); err != nil {
			return err
		}
		moved = moved || in.steps && in.at != before
	}
	if moved {
		if err := m.checkApart(); err != nil {
			return err
		}
	}
	for _, f := range m.fills {
		if err := f.fill(f.tensor); err != nil {
			return err
		}
		if err := m.program.Set(f.name, f.tensor); err != nil {
			return err
		}
	}
	for _, s := range m.states {
		if err := s.load(s.tensor); err != nil {
			return err
		}
		if err := m.program.lend(s.name, s.tensor); err != nil {
			return err
		}
	}
	return m.bindHeld()
}

// noValue is the error of an input that was given no value. Of one that the user did not name it says what reads it.
func (m *Machine) noValue(in *machineInput) error {
	what := strconv.Quote(in.name)
	if !fgorgonia.Named(in.node) {
		for _, n := range m.im.Graph.Nodes {
			if slices.ContainsFunc(n.Args, func(a *graph.Node) bool { return a.Name == in.name }) {
				what = fmt.Sprintf("%s, an input of shape %v without a name that %s reads,", what, in.node.Shape(), n.Where())
				break
			}
		}
	}
	return fmt.Errorf("node %s has no value: give it one with gorgonia.Let before RunAll", what)
}

// checkApart refuses two weights in one memory: the optimiser would change it twice at once.
func (m *Machine) checkApart() error {
	for i := range m.inputs {
		for j := range m.inputs[:i] {
			a, b := &m.inputs[i], &m.inputs[j]
			if a.steps && b.steps && a.shared != nil && b.shared != nil &&
				a.at < b.at+uintptr(b.tensor.Type.Bytes()) && b.at < a.at+uintptr(a.tensor.Type.Bytes()) {
				b.at = 0 // so that the next run looks again
				return fmt.Errorf("%q and %q share the memory of their values, and the optimiser is to change both: "+
					"use one node", b.name, a.name)
			}
		}
	}
	return nil
}

// set hands the program the value: one that the optimiser changes is changed in place.
func (in *machineInput) set(p *Program) error {
	in.synced = false
	if in.steps {
		return p.lend(in.name, in.tensor)
	}
	return p.Set(in.name, in.tensor)
}

// giveBack stores a weight that the optimiser has changed in a copy.
func (in *machineInput) giveBack(p *Program) error {
	if !in.steps || in.shared != nil {
		return nil
	}
	if err := p.sync(in.name); err != nil {
		return err
	}
	return fgorgonia.Store(in.node.Value(), in.tensor)
}

// bind gives the program the node's present value: its memory if its elements are in row-major order, else a
// copy. It allocates nothing if the value is where it was in the run before.
func (in *machineInput) bind(p *Program) error {
	v, err := fgorgonia.Plain(in.node.Value()) // it may be that of an inner node
	if err != nil {
		return fmt.Errorf("node %q: %w", in.name, err)
	}
	if d, ok := v.(*tensor.Dense); ok {
		if in.ahead == d {
			return nil
		}
		in.ahead = nil
		if in.shares(d) {
			switch {
			case in.frozen || in.steps && !in.synced:
				return nil // the program has what counts
			case in.steps || p.cfg.group != nil: // of which each participant may have a part
				return in.set(p)
			}
			return p.exe.Bind(in.buffer, in.tensor) // which has been looked at before
		}
		if t, ok := fgorgonia.Alias(v); ok {
			in.tensor, in.shared, in.at, in.copied = t, d, address(d), nil
			in.shape, in.stride = d.Shape().Clone(), slices.Clone(d.Strides())
			return in.set(p)
		}
		if in.frozen && in.copied == d {
			return nil
		}
		in.copied = d
	}
	if in.tensor == nil || in.shared != nil || !sameShape(in.tensor, v) {
		t, err := fgorgonia.ToTensor(v)
		if err != nil {
			return fmt.Errorf("node %q: %w", in.name, err)
		}
		in.tensor, in.shared, in.at = t, nil, 0
	} else if err := fgorgonia.Load(in.tensor, v); err != nil {
		return fmt.Errorf("node %q: %w", in.name, err)
	}
	return in.set(p)
}

// address is where d's elements lie; 0 if it has none.
func address(d *tensor.Dense) uintptr {
	if d.MemSize() == 0 {
		return 0 // for which Uintptr panics
	}
	return d.Uintptr()
}

// shares reports whether d is the value that the input shares its memory with, laid out as it was then.
func (in *machineInput) shares(d *tensor.Dense) bool {
	return in.shared == d && in.at == address(d) && slices.Equal(in.shape, d.Shape()) && slices.Equal(in.stride, d.Strides())
}

// sameShape reports whether v has t's element type and shape.
func sameShape(t *graph.Tensor, v gorgonia.Value) bool {
	d, err := fgorgonia.DTypeOf(v.Dtype())
	s := v.Shape()
	if err != nil || d != t.Type.DType || len(s) != t.Type.Shape.Rank() {
		return false
	}
	for i, n := range s {
		if n != t.Type.Shape.At(i) {
			return false
		}
	}
	return true
}

// A machineResult is what is done with an output of the program after a run.
type machineResult struct {
	output  string
	tensor  *graph.Tensor
	what    string            // for messages: "value of", followed by
	of      *graph.Node       // the node's name
	inspect bool              // it is looked at for NaN and Inf, and nothing else
	node    *gorgonia.Node    // whose value or gradient it is
	grad    bool              // it is the gradient
	into    *gorgonia.Value   // the target of a Read, which gets it; otherwise the node does
	value   gorgonia.Value    // that the machine made for the node
	opaque  *fgorgonia.Opaque // it is of an element type that fusec lacks, and no tensor
}

// handOut writes the value where the user looks for it, in memory that is the user's, never the program's.
func (r *machineResult) handOut() (err error) {
	switch {
	case r.inspect:
		return nil
	case r.opaque != nil && r.into != nil:
		*r.into = r.opaque.Value()
		return nil
	case r.opaque != nil:
		return fgorgonia.SetValue(r.node, r.opaque.Value())
	case r.grad:
		if accumulate(r.node, r.tensor) {
			return nil
		}
		return fgorgonia.BindGrad(r.node, r.tensor, true)
	case r.into != nil:
		if *r.into != nil && sameShape(r.tensor, *r.into) {
			return fgorgonia.Store(*r.into, r.tensor)
		}
		*r.into, err = fgorgonia.FromTensorLike(r.node, r.tensor)
		return err
	}
	// A value that is not bound any more may be another's by now: Gorgonia's UnbindAll gives tensors back to a pool.
	if r.value != nil && r.node.Value() == r.value {
		return fgorgonia.Store(r.value, r.tensor)
	}
	if r.value, err = fgorgonia.NewValue(r.node, r.tensor); err != nil {
		return err
	}
	return fgorgonia.Bind(r.node, r.value)
}

// accumulate adds t to the gradient that n holds, with vector instructions; it reports whether n holds one that allows
// it.
func accumulate(n *gorgonia.Node, t *graph.Tensor) bool {
	switch src := t.Data.(type) {
	case []float32:
		if dst := fgorgonia.GradMemory[float32](n); len(dst) == len(src) {
			vec.F32().AddTo(dst, src)
			return true
		}
	case []float64:
		if dst := fgorgonia.GradMemory[float64](n); len(dst) == len(src) {
			vec.F64().AddTo(dst, src)
			return true
		}
	}
	return false
}

// inspect reports NaN and Inf, where that was asked for, before anything of the run is committed or handed out.
func (m *Machine) inspect() error {
	if !m.inspects() {
		return nil
	}
	for i := range m.results {
		r := &m.results[i]
		for j := range r.tensor.Type.Shape.Elems() {
			switch v := r.tensor.Float(j); {
			case m.vm.WatchNaN && math.IsNaN(v):
				return fmt.Errorf("the %s %s holds NaN", r.what, r.of.Where())
			case m.vm.WatchInf && math.IsInf(v, 0):
				return fmt.Errorf("the %s %s holds Inf", r.what, r.of.Where())
			}
		}
	}
	return nil
}

// logNotes prints where the graph means something else than Gorgonia computes, or means it only for Gorgonia's sake.
func (m *Machine) logNotes() {
	if m.vm.Logger == nil {
		return
	}
	for _, n := range m.im.Graph.Notes {
		if n.Kind != graph.Remark {
			m.vm.Logger.Printf("%v: %s: %s", n.Kind, n.Topic, n.Text)
		}
	}
}

// log prints the values of watched nodes.
func (m *Machine) log() {
	if m.vm.Logger == nil {
		return
	}
	lisp := m.kind == fgorgonia.LispMachine
	format := m.vm.ValueFmt
	if format == "" {
		format = "%v"
	}
	for _, n := range m.logged {
		if v := n.Value(); v != nil && (!lisp || m.vm.LogForward) {
			m.vm.Logger.Printf("%v: "+format, n, v)
		}
		if d := fgorgonia.BoundGrad(n); d != nil && lisp && m.vm.LogBackward {
			m.vm.Logger.Printf("gradient of %v: "+format, n, d)
		}
	}
}
