package fusec

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"gorgonia.org/gorgonia"

	"fusec/graph"
	fgorgonia "fusec/graph/gorgonia"
	"fusec/lowering"
	"fusec/passes"
)

// Values of inner nodes. A TapeMachine leaves a value at every node, and programs read them: gorgonia.Node.Value is a
// getter, so that no machine sees the read. A fused program never stores most of these values. After a run an inner node
// therefore holds one of three things:
//
//   - A plain value, where the program hands it out anyway: roots, costs, targets of gorgonia.Read, watched nodes,
//     outputs of gorgonia.CompileFunction, gradients, and all that [WithValues] and gorgonia.TraceExec name.
//   - An [UnstoredTensor] or [UnstoredScalar]. It is a gorgonia.Value, and a tensor.Tensor or a gorgonia.Scalar, which
//     computes when the first of its methods is called, whichever that is, and then holds that value for good: Shape
//     too, for gorgonia.Let calls no other before it keeps the value. Until then it costs a word at the node and nothing
//     in a run. What it computes is the unfused graph before the node, on the CPU, from the inputs, weights and state of
//     the last run. The user's own operations are not run again. Other results that the program hands out are computed
//     again: fused, they are rounded otherwise, and a comparison of both would not be that of equal values.
//   - Nothing, if it is part of Gorgonia's own backward pass and not the derivative of a node, which is what
//     gorgonia.Grad returns; or if its value needs a gradient of an operation of the user's own, for running that again
//     might have effects.
//
// Which weights are those of the last run? Solvers change them in place and tell nobody. To copy all weights in every run
// would cost each program for the sake of few. So copies are made before the first run of a machine that hands out
// gradients, and before every run after one whose inner values were read. The first copies are dropped when the second
// run begins, unless something was read. A program that reads in its first round, or in most rounds, has the values of
// the last run, before the solver's step or after it. One that reads for the first time later, and after the solver's
// step, has in that first read what the weights give as they are then; from the next run on it has the run's values.
// [WithValues] has no such exception.
//
// A program that reads the same inner values in every round should name them with WithValues: then they are computed
// once, with the rest.

// checkValues refuses nodes that are not in the machine's graph.
func (m *Machine) checkValues() error {
	for _, n := range m.cfg.values {
		if err := m.has(n); err != nil {
			return fmt.Errorf("WithValues: %w", err)
		}
	}
	return nil
}

// UnstoredTensor is the value of an inner node that no launch stores. It is a tensor.Tensor that computes itself when the
// first of its methods is called.
type UnstoredTensor = fgorgonia.UnstoredTensor

// UnstoredScalar is [UnstoredTensor] for a node whose value is a single number: a gorgonia.Scalar.
type UnstoredScalar = fgorgonia.UnstoredScalar

// inner is what a node holds that the program does not store.
type inner struct {
	fgorgonia.Unstored
	node  *gorgonia.Node
	from  *graph.Node
	run   *lastRun
	value gorgonia.Value // once it has been computed; guarded by run.mu
}

func newInner(n *gorgonia.Node, from *graph.Node, run *lastRun) *inner {
	u := &inner{node: n, from: from, run: run}
	u.Unstored = fgorgonia.NewUnstored(n, u.get)
	return u
}

// get computes the value, or gives what was computed before; found is told of a new one.
func (u *inner) get(found func(gorgonia.Value)) (gorgonia.Value, error) {
	u.run.mu.Lock()
	defer u.run.mu.Unlock()
	if u.value != nil {
		return u.value, nil
	}
	t, err := u.run.compute(u.from)
	if err == nil {
		u.value, err = fgorgonia.NewValue(u.node, t)
	}
	if err != nil {
		return nil, fmt.Errorf("the value of %s, which the run has not stored: %w", fgorgonia.Called(u.node), err)
	}
	found(u.value)
	return u.value, nil
}

// lastRun is what values of inner nodes are computed from. It does not refer to the machine, so that nodes do not keep
// that alive.
type lastRun struct {
	mu        sync.Mutex
	cfg       config
	graph     *graph.Graph
	gradients []passes.Gradient
	late      map[*graph.Node]bool // what depends on a gradient
	nodes     []*inner
	sources   []lastSource
	stored    map[*graph.Node]*graph.Tensor // what the program hands out
	sync      func(...int) error            // brings back what a device has changed; nil where that is always current
	trains    bool

	running bool // a run is on its way
	runs    int  // that have begun
	read    bool // a value has been computed
	wanted  []*graph.Node
	program *Program // computes wanted
	fed     map[string]*graph.Tensor
	fresh   bool // it has computed what the last run gives
}

// lastSource is an input, parameter or state as the last run has read it.
type lastSource struct {
	name   string
	buffer int           // of the machine's program, or -1
	in     *machineInput // whose tensor it is
	state  bool
	tensor *graph.Tensor // else
	node   *gorgonia.Node
	copy   *graph.Tensor
	copied bool // copy is of the last run
}

// A nodeSet is a set of nodes of one graph, in which others are never.
type nodeSet struct {
	at graph.NodePositions
	in []bool
}

func (s nodeSet) has(n *graph.Node) bool {
	i := s.at.Of(n)
	return i >= 0 && s.in[i]
}

func (s nodeSet) add(n *graph.Node) {
	if i := s.at.Of(n); i >= 0 {
		s.in[i] = true
	}
}

// newLastRun finds the inner nodes that are to hold values, and adds the outputs to the graph that these start from. It
// is called when all other outputs have been declared.
func (m *Machine) newLastRun(asked []passes.Gradient) *lastRun {
	g := m.im.Graph
	l := &lastRun{cfg: m.cfg, graph: g, gradients: asked, late: map[*graph.Node]bool{},
		trains: m.handsOutGradients() || m.cfg.optimizer != nil}
	at := graph.Positions(g)
	derivative := nodeSet{at, make([]bool, len(g.Nodes))}
	for _, k := range asked {
		if k.Value == nil { // it has an output of its own
			continue
		}
		if _, constant := k.Value.Op.(graph.Const); !constant {
			derivative.add(k.Value)
		}
	}
	live := nodeSet{at, make([]bool, len(g.Nodes))}
	output := nodeSet{at, make([]bool, len(g.Nodes))}
	for _, o := range g.Outputs {
		live.add(o.Node)
		output.add(o.Node)
	}
	for _, n := range slices.Backward(g.Nodes) {
		if live.has(n) && !derivative.has(n) { // behind that is Gorgonia's backward pass, which is not computed
			for _, a := range n.Args {
				live.add(a)
			}
		}
	}
	host, late := false, nodeSet{at, make([]bool, len(g.Nodes))}
	for _, n := range g.Nodes {
		if fgorgonia.IsEffect(n) && live.has(n.Args[0]) {
			live.add(n)
		}
		_, its := n.Op.(graph.Host)
		host = host || its
		if derivative.has(n) || slices.ContainsFunc(n.Args, late.has) {
			late.add(n)
			l.late[n] = true
		}
		if its && live.has(n) && !late.has(n) && !output.has(n) {
			g.Outputs = append(g.Outputs, graph.Output{Name: fmt.Sprintf("kept %d", n.ID), Node: n})
		}
	}
	gradients := !m.cfg.noGradients && m.cfg.optimizer == nil
	plainly := map[*gorgonia.Node]bool{}
	for i := range m.results {
		if r := &m.results[i]; r.node != nil && r.into == nil && !r.grad {
			plainly[r.node] = true
		}
	}
	for _, n := range m.g.AllNodes() {
		v := m.im.Node(n)
		if _, constant := n.Op().(gorgonia.Valuer); v == nil || n.Op() == nil || constant || plainly[n] {
			continue
		}
		if o := m.im.Opaques[v]; o != nil { // it is there without being computed
			if live.has(v) {
				m.results = append(m.results, machineResult{node: n, opaque: o, tensor: graph.NewTensor(v.Type)})
			}
			continue
		}
		computes := live.has(v) // also what the backward pass shares with the forward one, as the square of a tanh
		if m.im.Backward(n) && derivative.has(v) {
			computes = gradients
		}
		if !computes || host && late.has(v) {
			continue
		}
		l.nodes = append(l.nodes, newInner(n, v, l))
	}
	return l
}

// ties finds where the values of sources lie, once the program has been compiled.
func (l *lastRun) ties(m *Machine) {
	l.stored = map[*graph.Node]*graph.Tensor{}
	for _, o := range l.graph.Outputs {
		if t, err := m.program.output(o.Name); err == nil {
			l.stored[o.Node] = t
		}
	}
	if o, ok := m.program.exe.(*lowering.Owned); ok { // to which nothing may refer that outlives the machine
		l.sync = o.Executable.Sync
		o.BeforeDrop(l.drop)
	}
	inputs := map[string]*machineInput{}
	for i := range m.inputs {
		inputs[m.inputs[i].name] = &m.inputs[i]
	}
	add := func(s lastSource) {
		var ok bool
		if s.buffer, ok = m.program.named[s.name]; !ok {
			s.buffer = -1
		}
		l.sources = append(l.sources, s)
	}
	for _, s := range m.im.Sources {
		add(lastSource{name: s.Value.Name, in: inputs[s.Value.Name], node: s.Node})
	}
	for _, f := range m.fills {
		add(lastSource{name: f.name, tensor: f.tensor})
	}
	for _, s := range m.states {
		add(lastSource{name: s.name, state: true, tensor: s.tensor})
	}
	for name, t := range m.held {
		add(lastSource{name: name, state: true, tensor: t})
	}
}

// begin is called when a run has been given all that it reads.
func (l *lastRun) begin(p *Program) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := l.runs == 0
	l.runs++
	l.running, l.fresh = true, false
	for i := range l.sources {
		s := &l.sources[i]
		if s.in != nil {
			s.tensor = s.in.given(p)
		}
		s.copied = false
		if s.tensor == nil || s.in != nil && s.in.frozen {
			continue
		}
		// Counters of random draws take no time, and a fill's next value is of the next run.
		if small := s.in == nil && s.tensor.Type.Shape.Elems() <= 64; !small && !l.read && !(first && l.trains) {
			s.copy = nil
			continue
		}
		if err := l.current(s); err != nil {
			return err
		}
		if s.copy == nil || s.copy.Type != s.tensor.Type {
			s.copy = graph.NewTensor(s.tensor.Type)
		}
		s.copy.CopyFrom(s.tensor)
		s.copied = true
	}
	return nil
}

// current brings the value of a source back if a device has changed it.
func (l *lastRun) current(s *lastSource) error {
	if l.sync == nil || s.buffer < 0 || l.runs == 1 || !s.state && (s.in == nil || !s.in.steps) {
		return nil
	}
	return l.sync(s.buffer)
}

// end is called when a run is over. If it has succeeded, all inner nodes get a value of this run.
func (l *lastRun) end(succeeded bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running = false
	if !succeeded {
		return nil
	}
	for i, u := range l.nodes {
		if u.value != nil { // it stays what it is
			u = newInner(u.node, u.from, l)
			l.nodes[i] = u
		}
		if u.node.Value() == gorgonia.Value(u.Unstored) {
			continue
		}
		if err := fgorgonia.SetValue(u.node, u.Unstored); err != nil {
			return err
		}
	}
	return nil
}

// close lets go of what values are computed with. They can still be read.
func (l *lastRun) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for v, t := range l.stored {
		l.stored[v] = t.Clone()
	}
	for i := range l.sources {
		if s := &l.sources[i]; !s.copied && s.tensor != nil {
			if err := l.current(s); err != nil {
				return err
			}
		}
	}
	l.sync = nil
	err := l.program.Close()
	l.program, l.fresh = nil, false
	return err
}

var errDropped = errors.New("the machine was dropped without Close, and what its last run has changed went with it")

// drop lets go of the device. What it has changed is not brought back, and values that need it cannot be computed.
func (l *lastRun) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for v, t := range l.stored {
		l.stored[v] = t.Clone()
	}
	l.sync = func(...int) error { return errDropped }
	_ = l.program.Close() // which reads what was stored
	l.program, l.fresh = nil, false
}

// compute is the value of a node of the graph as of the last run. The tensor holds until the next one.
func (l *lastRun) compute(v *graph.Node) (*graph.Tensor, error) {
	if c, ok := v.Op.(graph.Const); ok {
		return c.Value, nil
	}
	if l.running {
		return nil, fmt.Errorf("a run has been started: Wait for it first")
	}
	if t := l.stored[v]; t != nil {
		return t, nil
	}
	l.read = true
	if !slices.Contains(l.wanted, v) {
		l.wanted = append(l.wanted, v)
		if err := l.program.Close(); err != nil {
			return nil, err
		}
		l.program = nil
	}
	if l.program == nil {
		if err := l.build(); err != nil {
			return nil, err
		}
	}
	if !l.fresh {
		if err := l.feed(); err != nil {
			return nil, err
		}
		if err := l.program.Exec(); err != nil {
			return nil, err
		}
		l.fresh = true
	}
	return l.program.Output(outputOf(v))
}

func outputOf(v *graph.Node) string { return fmt.Sprintf("inner %d", v.ID) }

// build compiles the graph before the wanted nodes without fusing it. What the user's own operations gave is an input of
// it, unless a gradient is wanted, which would not pass through that.
func (l *lastRun) build() error {
	g, to := l.graph.Clone()
	g.Outputs, g.Updates = nil, nil
	late := slices.ContainsFunc(l.wanted, func(v *graph.Node) bool { return l.late[v] })
	var gradients []passes.Gradient
	l.fed = map[string]*graph.Tensor{}
	if late {
		for _, d := range l.gradients {
			d.Cost, d.Of, d.Seed, d.Value = to[d.Cost], to[d.Of], to[d.Seed], to[d.Value]
			gradients = append(gradients, d)
		}
	} else {
		b, with, before := graph.Extend(g), map[*graph.Node]*graph.Node{}, len(g.Nodes)
		for _, v := range l.graph.Nodes {
			if _, host := v.Op.(graph.Host); host && l.stored[v] != nil && !l.late[v] {
				t := l.stored[v]
				name := fmt.Sprintf("stored %d", v.ID)
				with[to[v]], l.fed[name] = b.Input(name, v.Type), t
			}
		}
		if err := b.Err(); err != nil {
			return err
		}
		g.Nodes = slices.Concat(g.Nodes[before:], g.Nodes[:before])
		g.Replace(with)
	}
	for _, v := range l.wanted {
		g.Outputs = append(g.Outputs, graph.Output{Name: outputOf(v), Node: to[v]})
	}
	if !late {
		if err := g.Tidy(); err != nil {
			return err
		}
	}
	cfg := config{target: Targets()[0], workers: l.cfg.workers, disable: map[string]bool{}}
	for _, name := range []string{"fuse-attention", "fuse-moe", "fuse-recurrence", "join-rows", "fuse-regions", "merge-launches"} {
		cfg.disable[name] = true
	}
	p, err := compile(g, cfg, gradients, nil)
	if err != nil {
		_ = p.Close() // the first error tells
		return err
	}
	l.program, l.fresh = p, false
	return nil
}

// feed gives the program what the last run has read.
func (l *lastRun) feed() error {
	for i := range l.sources {
		s := &l.sources[i]
		if _, ok := l.program.named[s.name]; !ok {
			continue
		}
		t := s.tensor
		switch {
		case s.copied:
			t = s.copy
		case t != nil:
			if err := l.current(s); err != nil {
				return err
			}
		default: // no result of the run needs it
			v, err := fgorgonia.Plain(s.node.Value())
			if err == nil {
				t, err = fgorgonia.ToTensor(v)
			}
			if err != nil {
				return fmt.Errorf("node %q: %w", s.name, err)
			}
		}
		if err := l.program.Set(s.name, t); err != nil {
			return err
		}
	}
	for name, t := range l.fed {
		if err := l.program.Set(name, t); err != nil {
			return err
		}
	}
	return nil
}

// given is the tensor that the run that begins reads.
func (in *machineInput) given(p *Program) *graph.Tensor {
	if in.ahead == nil {
		return in.tensor
	}
	if t := p.ahead[p.named[in.name]]; t != nil {
		return t
	}
	t, _ := fgorgonia.Alias(in.ahead)
	return t
}
