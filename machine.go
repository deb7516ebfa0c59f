package fusec

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec/graph"
	fgorgonia "fusec/graph/gorgonia"
	"fusec/graph/trace"
	"fusec/passes"
)

// Machine runs a Gorgonia graph as a compiled program. It implements gorgonia.VM. One goroutine uses it at a time.
//
// After a run these hold their values: the graph's roots, the targets of gorgonia.Read, the gradients that gorgonia.Grad
// was asked for, bound to their nodes or not, nodes on a watch list, and, if their gradients are bound, nodes inside the
// graph; with gorgonia.TraceExec or [WithValues], all nodes. The machine writes the next run's values into the same memory.
// Other inner nodes hold an [UnstoredTensor] or an [UnstoredScalar], which computes its value when it is read. Weights and
// inputs are read from their nodes before each run; only [WithOptimizer] writes weights.
type Machine struct {
	cfg     config
	kind    fgorgonia.VMKind // which of Gorgonia's machines it is in place of
	vm      fgorgonia.VMConfig
	g       *gorgonia.ExprGraph
	im      *fgorgonia.Imported
	program *Program
	err     error
	started bool // a run has been, and was not waited for
	ran     bool
	changed bool // a run has been, since it was compiled
	closed  bool

	inputs  []machineInput
	fills   []machineFill
	states  []machineState
	held    map[string]*graph.Tensor // state in whose memory of Gorgonia's operations runs change it
	synced  bool                     // held may have been changed since the last run
	results []machineResult
	logged  []*gorgonia.Node
	doubles []doubleStep
	batch   map[string]fgorgonia.Source // inputs by name, once LetBatch has been called
	last    *lastRun                    // from which values of inner nodes are computed

	replaced map[*gorgonia.Node]bool // slices that were replaced by gorgonia.UnsafeLet after they were compiled
	replaces int                     // how often the machine has compiled again for that
}

var _ gorgonia.VM = (*Machine)(nil)

// NewMachine compiles a graph, and replaces gorgonia.NewTapeMachine. Options are Gorgonia's and
// fusec's own. An error is kept: [Machine.Err] gives it, and [Machine.RunAll] returns it.
//
// All options that a TapeMachine of Gorgonia v0.9.18 takes work. With gorgonia.WithPrecompiled the machine is one of the
// subgraph that gorgonia.CompileFunction took: it reads that subgraph's inputs alone and hands out its outputs. Options
// that have nothing to do, such as WithPointerWatch, are named in a note of the trace. These are refused by name: those
// of a LispMachine alone, WithWatchlist with numbers of registers, and WithEngine with an engine that is not of
// Gorgonia's tensor package.
func NewMachine(g *gorgonia.ExprGraph, opts ...MachineOption) *Machine {
	return newMachine(g, fgorgonia.TapeMachine, opts)
}

func newMachine(g *gorgonia.ExprGraph, kind fgorgonia.VMKind, opts []MachineOption) *Machine {
	m := &Machine{g: g, kind: kind, cfg: config{target: Targets()[0]}}
	m.vm, m.err = fgorgonia.ReadOptions(kind, m, opts...)
	for _, name := range m.cfg.compile {
		m.err = errors.Join(m.err, fmt.Errorf("%s is for Compile", name))
	}
	for _, name := range m.cfg.special {
		m.err = errors.Join(m.err, fmt.Errorf("%s is for Specialise", name))
	}
	if m.err = errors.Join(m.err, m.cfg.err); m.err == nil {
		m.err = m.start()
	}
	return m
}

// start sets the graph's training mode, as Gorgonia's machines do, and compiles it.
func (m *Machine) start() error {
	if m.g == nil {
		return errors.New("the Gorgonia graph is nil")
	}
	if m.vm.Precompiled != nil {
		m.g = m.vm.Precompiled
	}
	if err := fgorgonia.SetTraining(m.g, !m.vm.Eval); err != nil {
		return err
	}
	return m.compile()
}

// recompile takes up what has changed in the graph since it was compiled. Slices that are replaced become dynamic with the
// second time, as with [WithDynamicSlices], so that a program which replaces them before each run is not compiled each time.
func (m *Machine) recompile() error {
	if list := m.im.Replaced(); len(list) > 0 {
		m.replaces++
		for _, n := range list {
			if m.replaced == nil {
				m.replaced = map[*gorgonia.Node]bool{}
			}
			m.replaced[n] = true
		}
	}
	err := m.program.Close()
	m.changed = false
	m.inputs, m.fills, m.states, m.held, m.results, m.logged, m.batch = nil, nil, nil, nil, nil, nil, nil
	return errors.Join(err, m.compile())
}

func (m *Machine) compile() (err error) {
	if m.cfg.gorgonia && m.cfg.optimizer != nil {
		return errors.New(
			"WithGorgoniaSemantics keeps the gradients that gorgonia.Grad built, which WithOptimizer does not use: choose one")
	}
	m.cfg.unverified = true
	gradients, steps, err := m.ask(nil)
	if err != nil {
		return err
	}
	m.logNotes()
	if err := m.cfg.inferenceOnly(m.handsOutGradients()); err != nil {
		return err
	}
	kept := m.program
	if m.program, err = compile(m.im.Graph, m.cfg, gradients, steps); err != nil {
		return err
	}
	if err := m.program.inherit(kept); err != nil {
		return err
	}
	if n := len(m.replaced); n > 0 && m.replaces > 1 {
		m.program.note(trace.Note{Node: -1, Text: fmt.Sprintf("%d slices were replaced after the graph was compiled, and compiled again "+
			"twice: from now on it is read before each run where they start, as with WithDynamicSlices", n)})
	}
	for _, why := range m.vm.Ignored {
		m.program.note(trace.Note{Node: -1, Text: why})
	}
	for i := range m.results {
		r := &m.results[i]
		if r.tensor != nil {
			continue // it is always the same
		}
		if r.tensor, err = m.program.output(r.output); err != nil {
			return err
		}
	}
	if err := m.declareInputs(steps); err != nil {
		return err
	}
	m.last.ties(m)
	return nil
}

// ask imports the graph and declares what the machine asks of it.
func (m *Machine) ask(kind func(*gorgonia.Node) fgorgonia.Kind) (gradients []passes.Gradient, steps []passes.Step, err error) {
	o := fgorgonia.Options{Kind: kind, DynamicSlices: m.cfg.dynamicSlices, Gorgonia: m.cfg.gorgonia, Counter: &m.cfg.seed,
		Unverified: true}
	if m.replaces > 1 {
		o.Replaced = m.replaced
	}
	if m.im, err = fgorgonia.Import(m.g, o); err != nil {
		return nil, nil, err
	}
	if err := m.checkValues(); err != nil {
		return nil, nil, err
	}
	gradients = m.declareResults()
	if m.differentiates() {
		if gradients, err = m.differentiate(); err != nil {
			return nil, nil, err
		}
	}
	m.last = m.newLastRun(gradients)
	steps, err = m.steps()
	return gradients, steps, err
}

// declareResults makes outputs of everything that the machine hands out, and returns the gradients to derive.
func (m *Machine) declareResults() []passes.Gradient {
	g := m.im.Graph
	named, taken := map[*graph.Node]string{}, map[string]bool{} // by the import
	for _, o := range g.Outputs {
		named[o.Node], taken[o.Name] = o.Name, true
	}
	g.Outputs = nil
	outputs := map[*graph.Node]string{} // a value that is handed out in several places is one output
	called := map[string]bool{}
	costs := map[*graph.Node]string{}
	for _, k := range m.im.Grads {
		if k.Cost != nil {
			costs[k.Cost] = "cost"
		}
	}
	add := func(r machineResult, what string, v *graph.Node) {
		r.opaque = m.im.Opaques[v]
		r.output = outputs[v]
		if r.output == "" {
			for r.output = named[v]; r.output == "" || named[v] == "" && taken[r.output]; what += "'" {
				r.output = fmt.Sprintf("%s %d", what, len(m.results))
			}
			if v != nil {
				if name := cmp.Or(v.Name, costs[v]); name != "" && !called[name] && what != "gradient" {
					r.output = name
				}
				outputs[v], called[r.output] = r.output, true
				g.Outputs = append(g.Outputs, graph.Output{Name: r.output, Node: v})
			}
		}
		m.results = append(m.results, r)
	}
	for _, n := range m.g.AllNodes() {
		if m.inspects() {
			if v := m.im.Node(n); v != nil && computed(v) {
				add(machineResult{inspect: true, what: "value of", of: v}, "inspected", v)
			}
		}
		if m.watches(n) {
			m.logged = append(m.logged, n)
		}
	}
	for _, r := range m.im.Reads {
		add(machineResult{into: r.Into, node: r.Node, what: "value read of", of: r.Value}, "read", r.Value)
	}
	for _, n := range m.handedOut() {
		v := m.im.Node(n)
		if v == nil || n.Op() == nil {
			continue
		}
		if t, err := fgorgonia.TypeOf(n); m.im.Opaques[v] == nil && (err != nil || t.Shape.Elems() != v.Type.Shape.Elems()) {
			continue // a gradient that Gorgonia built wrongly has no place there; what it is of gets it
		}
		if _, constant := v.Op.(graph.Const); !constant || n.Value() == nil {
			add(machineResult{node: n, what: "value of", of: v}, "value", v)
		}
	}
	known := map[*gorgonia.Node]fgorgonia.Grad{}
	for _, k := range m.im.Grads {
		known[k.Node] = k
	}
	var gradients []passes.Gradient
	for _, n := range m.boundTo() {
		if k, ok := known[n]; ok {
			add(machineResult{node: n, grad: true, what: "gradient of", of: k.Of}, "gradient", k.Value)
		}
	}
	if m.cfg.gorgonia {
		return nil
	}
	for _, k := range m.im.Grads {
		gradients = append(gradients, passes.Gradient{Cost: k.Cost, Of: k.Of, Seed: k.Seed, Value: k.Value})
	}
	return gradients
}

// inspects reports whether every value is looked at for NaN or Inf.
func (m *Machine) inspects() bool { return m.vm.WatchNaN || m.vm.WatchInf }

// watches reports whether n is on the watch list.
func (m *Machine) watches(n *gorgonia.Node) bool {
	return m.vm.WatchAll || slices.Contains(m.vm.Watch, n) || slices.Contains(m.vm.WatchIDs, n.ID())
}

// computed reports whether the program computes v.
func computed(v *graph.Node) bool {
	_, constant := v.Op.(graph.Const)
	return !constant && !graph.IsSource(v.Op)
}

// handedOut lists the nodes whose values are to be right after a run, without those that are read.
func (m *Machine) handedOut() []*gorgonia.Node {
	var nodes []*gorgonia.Node
	seen := map[*gorgonia.Node]bool{}
	add := func(n *gorgonia.Node) {
		if n != nil && !seen[n] {
			seen[n] = true
			nodes = append(nodes, n)
		}
	}
	for _, r := range m.im.Roots {
		add(r.Node)
	}
	for _, n := range m.vm.Outputs {
		add(n)
	}
	for _, n := range m.g.AllNodes() {
		if m.vm.Trace || m.watches(n) || m.cfg.givesValue(n) {
			add(n)
		}
	}
	for _, n := range m.boundTo() {
		add(n)
	}
	for _, k := range m.im.Grads {
		if k.Wanted && !m.cfg.noGradients && m.cfg.optimizer == nil {
			add(k.Node.Deriv())
		}
	}
	return nodes
}

// handsOutGradients reports whether a result is a gradient.
func (m *Machine) handsOutGradients() bool {
	return slices.ContainsFunc(m.results, func(r machineResult) bool { return r.grad }) ||
		slices.ContainsFunc(m.im.Grads, func(k fgorgonia.Grad) bool {
			return k.Wanted && !m.cfg.noGradients && m.cfg.optimizer == nil
		})
}

// boundTo lists the nodes whose gradients are to be bound to them.
func (m *Machine) boundTo() []*gorgonia.Node {
	if !m.vm.BindDual {
		return nil
	}
	nodes := m.vm.BindNodes
	if len(nodes) == 0 {
		nodes = m.g.AllNodes()
	}
	var with []*gorgonia.Node
	seen := make(map[*gorgonia.Node]bool, len(nodes))
	for _, n := range nodes {
		if n != nil && n.Deriv() != nil && !seen[n] {
			seen[n] = true
			with = append(with, n)
		}
	}
	return with
}

// Err is the error of compiling, or nil.
func (m *Machine) Err() error { return m.err }

// RunAll runs the program. As on Gorgonia's machines, a second call without Reset in between does nothing.
func (m *Machine) RunAll() error {
	if err := m.Start(); err != nil {
		return err
	}
	return m.Wait()
}

// Start is the first half of [Machine.RunAll]: it returns when the values of all nodes have been read, so that those of
// inputs may be changed for the next run, and the run is on its way. [Machine.Wait] is the second half.
//
//	for range steps {
//		vm.Start()
//		next(x.Value()) // reads the next batch while the GPU computes
//		vm.Prefetch(x)  // and copies it there
//		vm.Wait()
//		vm.Reset()
//	}
func (m *Machine) Start() error {
	switch {
	case m.err != nil:
		return m.err
	case m.closed:
		return errClosed
	case m.started:
		return errors.New("a run has been started already: Wait for it first")
	case m.ran:
		return nil
	}
	if err := m.bind(); err != nil {
		return err
	}
	if err := m.last.begin(m.program); err != nil {
		return err
	}
	if err := m.program.Start(); err != nil {
		return errors.Join(err, m.last.end(false))
	}
	for i := range m.inputs {
		m.inputs[i].ahead = nil // this run has taken it
	}
	m.started = true
	return nil
}

// Wait waits for the run that was started, gives its error, and hands out its values as RunAll does. Without one it does
// nothing.
func (m *Machine) Wait() error {
	if !m.started {
		return nil
	}
	m.started = false
	if err := m.program.Wait(); err != nil {
		return errors.Join(err, m.last.end(false))
	}
	return m.finish()
}

// Prefetch copies the value that an input's node has now for the next run, on a GPU while the run that was started still
// computes. The value may then be changed for the run after; giving the node another value takes the copy back.
func (m *Machine) Prefetch(n *gorgonia.Node) error {
	switch {
	case m.err != nil:
		return m.err
	case m.closed:
		return errClosed
	}
	if err := m.has(n); err != nil {
		return err
	}
	if n.Op() != nil {
		return fmt.Errorf("node %v is computed: only inputs are copied ahead", n)
	}
	v, ok := n.Value().(*tensor.Dense)
	if !ok {
		return fmt.Errorf("node %v has a value of Go type %T: want a tensor to copy ahead", n, n.Value())
	}
	for i := range m.inputs {
		in := &m.inputs[i]
		if in.node != n {
			continue
		}
		t, ok := fgorgonia.Alias(v)
		if !ok {
			var err error
			if t, err = fgorgonia.ToTensor(v); err != nil {
				return fmt.Errorf("node %v: %w", n, err)
			}
		}
		if err := m.program.Prefetch(in.name, t); err != nil {
			return err
		}
		in.ahead = v
	}
	return nil
}

// finish looks at what a run has made, and hands it out.
func (m *Machine) finish() (err error) {
	defer func() { err = errors.Join(err, m.last.end(err == nil)) }()
	if err := m.inspect(); err != nil {
		return err
	}
	m.ran, m.changed = true, true
	for i := range m.inputs {
		if err := m.inputs[i].giveBack(m.program); err != nil {
			return err
		}
	}
	for _, s := range m.states {
		if err := m.program.sync(s.name); err != nil {
			return err
		}
		if err := s.store(s.tensor); err != nil {
			return err
		}
	}
	for i := range m.results {
		if err := m.results[i].handOut(); err != nil {
			return err
		}
	}
	m.log()
	m.watchSolver()
	return nil
}

// Reset makes the machine ready for another run.
func (m *Machine) Reset() { m.ran = false }

// Close lets go of the machine's goroutines and memory. The values of the graph's nodes stay; those of weights that a
// device has changed are brought back first. A machine that is dropped without Close is closed some time after, but
// nothing is brought back.
func (m *Machine) Close() error {
	m.closed = true
	var err error
	if m.last != nil && m.err == nil {
		err = m.last.close()
	}
	return errors.Join(err, m.program.Close())
}

// Let gives node n a value, as gorgonia.Let does.
func (m *Machine) Let(n *gorgonia.Node, be any) error {
	if err := m.has(n); err != nil {
		return err
	}
	if be == nil {
		return fmt.Errorf("no value was given for %v", n)
	}
	return gorgonia.Let(n, be)
}

// Set gives node a the value of node b.
func (m *Machine) Set(a, b *gorgonia.Node) error {
	if err := errors.Join(m.has(a), m.has(b)); err != nil {
		return err
	}
	if b.Value() == nil {
		return fmt.Errorf("%v has no value to give to %v", b, a)
	}
	return gorgonia.Let(a, b.Value())
}

// has refuses nodes that are not in the machine's graph.
func (m *Machine) has(n *gorgonia.Node) error {
	switch {
	case n == nil:
		return errors.New("the node is nil")
	case m.g == nil || !slices.Contains(m.g.AllNodes(), n):
		return fmt.Errorf("node %v is not in this graph", n)
	}
	return nil
}

// Fusions lists the launches, in order; nil if the graph did not compile.
func (m *Machine) Fusions() []Fusion {
	if m.program == nil {
		return nil
	}
	return m.program.Fusions()
}

// Trace is the record of the compilation, as far as it went; nil if the graph could not be imported.
func (m *Machine) Trace() *trace.Trace {
	if m.program == nil {
		return nil
	}
	return m.program.Trace()
}

// Program is the compiled program; nil if the graph did not compile.
func (m *Machine) Program() *Program {
	if m.err != nil {
		return nil
	}
	return m.program
}

// Save writes the machine's program: as [Save], with the weights as they are after the last run, on a device as well, and
// with what the machine hands out, the gradients that it makes and its optimiser, so that the file compiles to the same
// launches. In place of a learning rate's schedule, which is code, the file has the rate of the coming step. What the
// optimiser keeps is not written; see [Machine.State].
func (m *Machine) Save(path string, inputs ...*gorgonia.Node) error {
	im, err := m.imported(inputs)
	if err != nil {
		return err
	}
	return save(path, im)
}

// Model is the machine's program as [Machine.Save] writes it: the graph and the values of its weights, which are copies.
func (m *Machine) Model(inputs ...*gorgonia.Node) (*graph.Graph, map[string]*graph.Tensor, error) {
	im, err := m.imported(inputs)
	if err != nil {
		return nil, nil, err
	}
	weights, err := im.Weights()
	return im.Graph, weights, err
}

// imported is the program with what the machine hands out, and the optimiser.
func (m *Machine) imported(inputs []*gorgonia.Node) (*fgorgonia.Imported, error) {
	if err := m.Sync(); err != nil {
		return nil, err
	}
	s := &Machine{g: m.g, kind: m.kind, vm: m.vm, cfg: m.cfg, replaced: m.replaced, replaces: m.replaces}
	gradients, steps, err := s.ask(exceptInputs(inputs))
	if err != nil {
		return nil, err
	}
	wanted := map[*graph.Node]bool{}
	for _, k := range s.im.Grads {
		wanted[k.Of] = k.Wanted && !m.cfg.noGradients
	}
	g := s.im.Graph
	for _, d := range gradients {
		g.Gradients = append(g.Gradients, graph.GradMark{Of: d.Of, Value: d.Value, Cost: d.Cost, Seed: d.Seed,
			Wanted: wanted[d.Of], Output: d.Output})
	}
	if err := s.cfg.writeSteps(g, steps, m.StepStats().Steps); err != nil {
		return nil, err
	}
	return s.im, nil
}

// Save writes a Gorgonia graph at path, which also names it, and the values of its weights beside it; see [graph.Save].
// Gorgonia does not tell weights from data: nodes that hold floating-point numbers are saved as weights, except the given
// inputs. The file says which nodes gorgonia.Grad added, so that gradients are made again from what was fused. For weights
// that a machine trains on a device, and for a machine's optimiser, use its [Machine.Save].
func Save(path string, g *gorgonia.ExprGraph, inputs ...*gorgonia.Node) error {
	im, err := fgorgonia.Import(g, fgorgonia.Options{Kind: exceptInputs(inputs)})
	if err != nil {
		return err
	}
	im.Graph.Gradients = im.Marks()
	return save(path, im)
}

// exceptInputs makes inputs of the given nodes.
func exceptInputs(inputs []*gorgonia.Node) func(*gorgonia.Node) fgorgonia.Kind {
	return func(n *gorgonia.Node) fgorgonia.Kind {
		if slices.Contains(inputs, n) {
			return fgorgonia.AsInput
		}
		return fgorgonia.Auto
	}
}

func save(path string, im *fgorgonia.Imported) error {
	weights, err := im.Weights()
	if err != nil {
		return err
	}
	im.Graph.Name = strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	return graph.Save(path, im.Graph, weights)
}
