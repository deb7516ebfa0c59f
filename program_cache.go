package fusec

import (
	"container/list"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"

	"fusec/graph"
	"fusec/graph/optim"
	"fusec/graph/trace"
	"fusec/lowering"
	"fusec/lowering/cpu"
	"fusec/passes"
)

// Programs are found again by what they were made of, so that code which builds an equal graph for every batch compiles
// it once:
//
//	graph, options ─► request ─► hash ─► candidates ─► same structure, bit for bit? ─► program, kernels of a closed one
//	                                                   └─ none ─► passes, lowering ─► program, kept for the next
//
// What two programs of one request share is the lowered program, which nobody changes. Everything else each has for
// itself: kernels and what they pack, the memory of values, what is bound, state, goroutines. A program that is closed
// leaves its kernels and their memory to the next one.
//
// Names and origins are labels of a request and no part of what is compared. A program whose labels are not those of the
// one that was compiled gets copies of the names of its sources and outputs at once. The rest is needed by reports and
// errors only: the passes, which always do the same, then run once more on the program's own graph.

// The default size of the cache: see [WithoutProgramCache].
const (
	cachedPrograms     = 256
	cachedProgramBytes = 64 << 20
	cachedSpares       = 8 // kernels of closed programs, for each program that is kept
)

// reusedNote is what the trace of a program says that was not compiled.
const reusedNote = "program reused: an equal graph was compiled before"

// WithoutProgramCache compiles the graph even if an equal one was compiled before, and does not keep the program. Without it
// programs for the CPU are kept, after their machines are closed as well: the 256 that were used last, as long as they
// and the kernels of closed machines together take no more than about 64 MiB. Programs for other targets are never kept,
// nor those of graphs with opaque operations of the user's, of which nobody can tell whether they are equal.
func WithoutProgramCache() Option { return own(func(c *config) { c.withoutCache = true }) }

// ClearProgramCache lets go of all programs that are kept for graphs to come. Programs in use are not affected.
func ClearProgramCache() { programs.clear() }

// programs are those of this process.
var programs = newProgramCache(cachedPrograms, cachedProgramBytes)

// A request is all that a program follows from.
type request struct {
	graph     *graph.Graph
	cfg       config
	gradients []passes.Gradient
	steps     []passes.Step
}

// programKey is the configuration without what does not decide which program is made, so that two configurations give
// the same program if their keys are deeply equal. What is not named here counts; so does every field that is added. The
// optimiser is compared by [request.optimizerKey], gradients by their nodes' places, and values are outputs of the graph.
func (c config) programKey() config {
	c.optimizer, c.gradients, c.values, c.allValues = nil, nil, nil, false
	c.seed, c.err, c.withoutCache, c.unverified = 0, nil, false, false
	if c.workers == 0 {
		c.workers = runtime.GOMAXPROCS(0)
	}
	return c
}

// optimizerKey says what the optimiser makes of the steps; ok is false if its rule is not one that is known to be
// described by the values of its fields.
func (r *request) optimizerKey() (key string, ok bool) {
	if r.cfg.optimizer == nil {
		return "", true
	}
	o := *r.cfg.optimizer
	if t := reflect.TypeOf(o.Rule); t.Kind() != reflect.Struct || t.PkgPath() != reflect.TypeFor[optim.Optimizer]().PkgPath() {
		return "", false
	}
	var b strings.Builder
	for _, s := range r.steps {
		g, err := o.Of(s.Param.Name, s.Param.Type)
		if err != nil {
			return "", false
		}
		fmt.Fprintf(&b, "%#v", g)
	}
	o.Rate, o.Group = nil, nil // which the program does not know
	fmt.Fprintf(&b, "%#v", o)
	return b.String(), true
}

// cannotKeep says why the program of a request cannot be found again; empty if it can.
func (r *request) cannotKeep(device lowering.Device) string {
	if _, ok := device.(*cpu.Device); !ok || r.cfg.on != nil {
		return "programs are kept for the CPU alone"
	}
	if _, ok := r.optimizerKey(); !ok {
		return fmt.Sprintf("the optimiser's rule %T is the user's own", r.cfg.optimizer.Rule)
	}
	for _, n := range r.graph.Nodes {
		if _, ok := n.Op.(graph.Host); ok {
			return fmt.Sprintf("%s is opaque: nobody can tell whether another one is equal", n.Where())
		}
	}
	return ""
}

// needsLabels reports whether the program, or what is said while it runs, depends on names.
func (r *request) needsLabels() bool { return r.cfg.optimizer != nil || r.cfg.watched() }

// roles lists the nodes that gradients and steps are about.
func (r *request) roles() []*graph.Node {
	nodes := make([]*graph.Node, 0, 4*(len(r.gradients)+len(r.steps)))
	for _, d := range r.gradients {
		nodes = append(nodes, d.Cost, d.Of, d.Seed, d.Value)
	}
	for _, s := range r.steps {
		nodes = append(nodes, s.Param, s.Cost, s.Seed, s.Value)
	}
	return nodes
}

// clone is the request in terms of a graph that nobody else knows, with constants of its own.
func (r *request) clone() request {
	g, to := r.graph.Clone()
	for _, n := range g.Nodes {
		if k, ok := n.Op.(graph.Const); ok {
			n.Op = graph.Const{Value: k.Value.Clone()}
		}
	}
	own := func(n *graph.Node) *graph.Node {
		if m, ok := to[n]; ok {
			return m
		}
		return n // of another graph, which the passes refuse
	}
	c := request{graph: g, cfg: r.cfg, gradients: slices.Clone(r.gradients), steps: slices.Clone(r.steps)}
	for i, d := range c.gradients {
		c.gradients[i] = passes.Gradient{Cost: own(d.Cost), Of: own(d.Of), Seed: own(d.Seed), Value: own(d.Value), Output: d.Output}
	}
	for i, s := range c.steps {
		c.steps[i] = passes.Step{Param: own(s.Param), Cost: own(s.Cost), Seed: own(s.Seed), Value: own(s.Value)}
	}
	return c
}

// A cachedProgram is a program that was compiled.
type cachedProgram struct {
	request   request // a clone; its configuration is a [config.programKey]
	optimizer string  // its [request.optimizerKey]
	program   *lowering.Program
	hash      uint64
	bytes     int64 // of all of it
	spares    []lowering.Spare
	at        *list.Element // nil when it was dropped
}

// same reports whether a request would make this program, and whether all labels are equal, too.
func (e *cachedProgram) same(r *request, optimizer string, key *config) (same, labels bool) {
	if len(r.gradients) != len(e.request.gradients) || len(r.steps) != len(e.request.steps) || optimizer != e.optimizer {
		return false, false
	}
	for i, d := range r.gradients {
		if (d.Output == "") != (e.request.gradients[i].Output == "") {
			return false, false
		}
	}
	if !reflect.DeepEqual(key, &e.request.cfg) || !graph.SameStructure(r.graph, e.request.graph) {
		return false, false
	}
	p, q := graph.Positions(r.graph), graph.Positions(e.request.graph)
	theirs := e.request.roles()
	for i, n := range r.roles() {
		if at := p.Of(n); at != q.Of(theirs[i]) || at < 0 && n != nil {
			return false, false
		}
	}
	labels = graph.SameLabels(r.graph, e.request.graph) &&
		slices.EqualFunc(r.gradients, e.request.gradients, func(a, b passes.Gradient) bool { return a.Output == b.Output })
	return true, labels
}

// labelled is the program with the names that a request gives to its sources and outputs.
func (e *cachedProgram) labelled(r *request) *lowering.Program {
	sources, outputs := map[string]string{}, map[string]string{}
	for i, n := range e.request.graph.Nodes {
		if graph.IsSource(n.Op) {
			sources[n.Name] = r.graph.Nodes[i].Name
		}
	}
	for i, o := range e.request.graph.Outputs {
		outputs[o.Name] = r.graph.Outputs[i].Name
	}
	for i, d := range e.request.gradients {
		outputs[d.Output] = r.gradients[i].Output
	}
	p := *e.program
	p.Name = r.graph.Name
	p.Buffers, p.Outputs = slices.Clone(p.Buffers), slices.Clone(p.Outputs)
	rename := func(at *string, names map[string]string) {
		if name, ok := names[*at]; ok {
			*at = name
		}
	}
	for i := range p.Buffers {
		switch b := &p.Buffers[i]; b.Role {
		case lowering.Input, lowering.Param, lowering.State:
			rename(&b.Name, sources)
		case lowering.Output:
			rename(&b.Name, outputs)
		}
	}
	for i := range p.Outputs {
		rename(&p.Outputs[i].Name, outputs)
	}
	return &p
}

// A programCache keeps the programs that were used last, up to a number and a size. Several goroutines may use it.
type programCache struct {
	mu                    sync.Mutex
	programs              map[uint64][]*cachedProgram
	used                  *list.List // of *cachedProgram, the last used first
	bytes                 int64
	maxPrograms, maxBytes int64
	hash                  func(*graph.Graph) uint64 // tests put one of their own here
}

func newProgramCache(programs, bytes int64) *programCache {
	c := &programCache{maxPrograms: programs, maxBytes: bytes, hash: graph.StructureHash}
	c.clear()
	return c
}

func (c *programCache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.used != nil {
		for at := c.used.Front(); at != nil; at = at.Next() {
			e := at.Value.(*cachedProgram)
			e.at, e.spares = nil, nil
		}
	}
	c.programs, c.used, c.bytes = map[uint64][]*cachedProgram{}, list.New(), 0
}

// find gives the program of a request, nil if it is not kept, and whether its labels are those of the request.
func (c *programCache) find(r *request) (_ *cachedProgram, labels bool) {
	optimizer, _ := r.optimizerKey()
	key := r.cfg.programKey()
	hash := c.hash(r.graph)
	c.mu.Lock()
	candidates := slices.Clone(c.programs[hash])
	c.mu.Unlock()
	var found *cachedProgram
	for _, e := range candidates { // what is compared never changes
		same, same2 := e.same(r, optimizer, &key)
		if same && (found == nil || same2) && (same2 || !r.needsLabels()) {
			found, labels = e, same2
		}
		if labels {
			break
		}
	}
	if found != nil {
		c.mu.Lock()
		if found.at != nil {
			c.used.MoveToFront(found.at)
		}
		c.mu.Unlock()
	}
	return found, labels
}

// add keeps the program of a request that is a clone.
func (c *programCache) add(r *request, p *lowering.Program) *cachedProgram {
	e := &cachedProgram{request: *r, program: p, hash: c.hash(r.graph), bytes: graphBytes(r.graph) + programBytes(p)}
	e.request.cfg = r.cfg.programKey()
	e.optimizer, _ = r.optimizerKey()
	if e.bytes > c.maxBytes/4 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e.at = c.used.PushFront(e)
	c.programs[e.hash] = append(c.programs[e.hash], e)
	c.bytes += e.bytes
	c.limit()
	return e
}

// limit drops what was used longest ago until the rest is small enough.
func (c *programCache) limit() {
	for c.bytes > c.maxBytes || int64(c.used.Len()) > c.maxPrograms {
		e := c.used.Remove(c.used.Back()).(*cachedProgram)
		c.bytes -= e.bytes
		rest := slices.DeleteFunc(c.programs[e.hash], func(o *cachedProgram) bool { return o == e })
		if c.programs[e.hash] = rest; len(rest) == 0 {
			delete(c.programs, e.hash)
		}
		e.at, e.spares = nil, nil
	}
}

// leave keeps what a closed executable of the program has left.
func (c *programCache) leave(e *cachedProgram, s lowering.Spare) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.at == nil || len(e.spares) == cachedSpares || s.Bytes() > c.maxBytes/16 {
		return
	}
	e.spares = append(e.spares, s)
	e.bytes += s.Bytes()
	c.bytes += s.Bytes()
	c.limit()
}

// spare takes what a closed executable of the program has left, or nil.
func (c *programCache) spare(e *cachedProgram) lowering.Spare {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(e.spares)
	if n == 0 {
		return nil
	}
	s := e.spares[n-1]
	e.spares[n-1] = nil
	e.spares = e.spares[:n-1]
	e.bytes -= s.Bytes()
	c.bytes -= s.Bytes()
	return s
}

// graphBytes is about the memory that a graph takes.
func graphBytes(g *graph.Graph) int64 {
	total := int64(0)
	for _, n := range g.Nodes {
		total += nodeBytes(n)
	}
	return total
}

func nodeBytes(n *graph.Node) int64 {
	total := 400 + 8*int64(len(n.Args)) + 32*int64(len(n.Origin))
	switch op := n.Op.(type) {
	case graph.Const:
		total += op.Value.Type.Bytes()
	case graph.Fusion:
		total += graphBytes(op.Body)
	}
	return total
}

// programBytes is about the memory that a program takes.
func programBytes(p *lowering.Program) int64 {
	total := int64(0)
	for i := range p.Launches {
		l := &p.Launches[i]
		total += 200*int64(1+len(l.Args)+len(l.Results)) + nodeBytes(l.Node)
	}
	for _, b := range p.Buffers {
		total += 200
		if b.Role == lowering.Const {
			total += b.Type.Bytes()
		}
	}
	return total
}

// obtain finds the request's program and an executable for it, or makes them.
func (p *Program) obtain(device lowering.Device) (err error) {
	r := &p.request
	reason := ""
	if !r.cfg.withoutCache {
		reason = r.cannotKeep(device)
	}
	keep := !r.cfg.withoutCache && reason == ""
	var found *cachedProgram
	labels := false
	if keep {
		found, labels = programs.find(r)
	}
	if r.cfg.unverified && !labels { // one that is equal in all has been verified
		if err := graph.Verify(r.graph); err != nil {
			return fmt.Errorf("importing a Gorgonia graph: %w", err)
		}
	}
	if found != nil {
		return p.adopt(found, labels, device)
	}
	if keep {
		*r = r.clone()
	}
	if p.trace, p.program, err = r.plan(device); err != nil {
		return err
	}
	if reason != "" && r.cfg.on == nil && r.cfg.target == "cpu" {
		p.note(trace.Note{Node: -1, Text: "the program is not kept for equal graphs: " + reason})
	}
	if p.exe, err = device.Compile(p.program); err != nil {
		return err
	}
	if _, cpus := device.(*cpu.Device); !cpus {
		p.exe = newOwned(p.exe, p.program)
	}
	if keep {
		p.cached = programs.add(r, p.program)
	}
	return nil
}

// adopt makes p a program that is kept.
func (p *Program) adopt(e *cachedProgram, labels bool, device lowering.Device) (err error) {
	p.cached = e
	if labels {
		p.program = e.program
		p.graph, p.gradients, p.steps = e.request.graph, e.request.gradients, e.request.steps
	} else {
		p.program, p.strange = e.labelled(&p.request), true
		p.request = p.request.clone() // the caller may change the graph
	}
	p.note(trace.Note{Node: -1, Text: reusedNote})
	if s := programs.spare(e); s != nil {
		p.exe = s.Executable(p.program)
		return nil
	}
	p.exe, err = device.Compile(p.program)
	return err
}

// describe makes the trace, and the labels of launches, of a program that was found and not compiled.
func (p *Program) describe() {
	if p.trace != nil || p.cached == nil {
		return
	}
	tr, program, err := p.plan(p.cfg.cpuDevice())
	if err != nil { // it has been planned before
		tr.Stages = append(tr.Stages, trace.Stage{Notes: []trace.Note{{Node: -1, Text: err.Error()}}})
	} else {
		p.program, p.strange = program, false
	}
	p.trace = tr
	notes := p.notes
	p.notes = nil
	p.note(notes...)
}

// note adds to the trace, which may be yet to come.
func (p *Program) note(notes ...trace.Note) {
	if p.trace == nil {
		p.notes = append(p.notes, notes...)
		return
	}
	first := &p.trace.Stages[0].Notes
	*first = append(*first, notes...)
}

// explain gives the error of a run in terms of the program's own nodes.
func (p *Program) explain(err error) error {
	if e, ok := err.(*lowering.LaunchError); ok && p.strange {
		p.describe()
		return &lowering.LaunchError{Launch: e.Launch, Node: p.program.Launches[e.Launch].Node, Err: e.Err}
	}
	return err
}

// release closes the executable. What it leaves serves the next program of an equal request.
func (p *Program) release() error {
	err := p.exe.Close()
	if p.cached != nil && err == nil {
		if s := p.exe.Spare(); s != nil {
			programs.leave(p.cached, s)
		}
	}
	return err
}
