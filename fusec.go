// Package fusec compiles a model's computation graph into a program of few fused launches and runs it.
//
// Training code that uses Gorgonia changes one line, and keeps its solvers, inputs and reads:
//
//	vm := gorgonia.NewTapeMachine(g, gorgonia.BindDualValues(w, b))
//	vm := fusec.NewMachine(g, gorgonia.BindDualValues(w, b))
//
// [Machine.Fusions] lists what was fused, and [Machine.Trace] holds every stage of the compilation. [Compile] does the
// same for a [graph.Graph] without Gorgonia, and [Save] writes a Gorgonia graph and its weights to a file that the
// fusec command draws, runs, explains and times.
package fusec

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/kernels/ref"
	"fusec/lowering"
	"fusec/passes"
)

// Fusion is one launch that stands for several of the user's nodes, or for one that is a kernel of its own.
type Fusion struct {
	Kind  string         // "linear", "softmax", "norm", "elementwise", …
	Name  string         // the user's name for the value it makes, or empty
	Nodes []graph.Origin // the user's nodes that it covers, with file and line where they are known
	FLOPs int64
	Bytes int64 // of memory traffic
}

// String is the fusion on one line: its kind, the name of the value it makes, the user's nodes that it covers, the first
// six of them by name, where they were built, if that is known, its arithmetic and its memory traffic.
func (f Fusion) String() string {
	const shown = 6
	var b strings.Builder
	b.WriteString(f.Kind)
	if f.Name != "" {
		fmt.Fprintf(&b, " %q", f.Name)
	}
	pos := ""
	for i, o := range f.Nodes {
		pos = cmp.Or(pos, o.Pos)
		switch {
		case i == 0:
			b.WriteString(": ")
		case i < shown:
			b.WriteString(", ")
		case i == shown:
			fmt.Fprintf(&b, " and %d more", len(f.Nodes)-shown)
		}
		if i < shown {
			b.WriteString(printable(o.Name))
		}
	}
	if pos != "" {
		fmt.Fprintf(&b, " (%s)", printable(pos))
	}
	fmt.Fprintf(&b, "; %.3g MFLOP, %.3g MB", float64(f.FLOPs)/1e6, float64(f.Bytes)/1e6)
	return b.String()
}

// printable replaces the characters of a name that do not print, so that it stays on its line.
func printable(name string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return utf8.RuneError
	}, name)
}

// Program is a compiled graph. One goroutine uses it at a time.
type Program struct {
	request
	trace   *trace.Trace      // nil until it is asked for, if the program was found
	notes   []trace.Note      // that the trace will have
	program *lowering.Program // with the labels of another request if it is strange
	strange bool
	cached  *cachedProgram // that it was found as, or is kept as; or nil
	exe     lowering.Executable
	took    time.Duration
	named   map[string]int        // Input, Param and State buffers by name
	outputs map[string]int        // buffers of outputs by name
	unread  map[string]graph.Type // sources of the graph that no output needs
	own     map[int]*graph.Tensor // what a run may change: state, and parameters that the graph updates; nil until set
	ahead   map[int]*graph.Tensor // what Prefetch copied, on devices that do not copy by themselves
	stepper *stepper              // of a program with an optimiser
	synced  [1]int                // the buffer that sync asks for
	departs []ref.Departure       // of each launch of the last run, if it was compared
}

// Compile makes a program of a graph. Parameters are frozen: they are given with [Program.Set], stay as they are
// between runs and are packed once.
func Compile(g *graph.Graph, opts ...Option) (*Program, error) {
	cfg, _, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	if err := check(g, cfg.gradients); err != nil {
		return nil, err
	}
	if err := cfg.inferenceOnly(len(cfg.gradients) > 0); err != nil {
		return nil, err
	}
	cfg.frozen = true
	steps, err := cfg.stepsOf(g)
	if err != nil {
		return nil, err
	}
	p, err := compile(g, cfg, cfg.gradients, steps)
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// check refuses a graph that the passes could not work on.
func check(g *graph.Graph, gradients []passes.Gradient) error {
	if g == nil {
		return errors.New("the graph is nil")
	}
	named := map[string]bool{}
	for _, o := range g.Outputs {
		named[o.Name] = true
	}
	for _, d := range gradients {
		if named[d.Output] {
			return fmt.Errorf("WithGradient(%q): the graph has another output of that name", d.Output)
		}
		named[d.Output] = true
	}
	return graph.Verify(g)
}

// Plan compiles a graph for drawings and reports only. It takes no memory for values, so that a graph can be looked at
// that this machine could not run. It returns the record of the compilation, which after an error has the stages until
// then, and the lowered program.
func Plan(g *graph.Graph, opts ...Option) (*trace.Trace, *lowering.Program, error) {
	cfg, _, err := newConfig(opts)
	if err != nil {
		return nil, nil, err
	}
	if err := check(g, cfg.gradients); err != nil {
		return nil, nil, err
	}
	device, err := cfg.device(false)
	if err != nil {
		return nil, nil, err
	}
	steps, err := cfg.stepsOf(g)
	if err != nil {
		return nil, nil, err
	}
	return (&request{g, cfg, cfg.gradients, steps}).plan(device)
}

// plan runs the passes and lowers what they make.
func (r *request) plan(device lowering.Device) (*trace.Trace, *lowering.Program, error) {
	cfg := &r.cfg
	final, tr, err := passes.Run(r.graph, passes.Config{Target: device, Verify: cfg.verify, Gradients: r.gradients,
		Optimizer: cfg.optimizer, Steps: r.steps, Disable: cfg.disable, Budget: cfg.budget,
		Precision: cfg.precision})
	if err != nil {
		return tr, nil, err
	}
	opts := device.Lowering()
	if cfg.watched() {
		opts = append(opts, lowering.CopyUpdates())
	}
	program, err := lowering.Lower(final, device.Name(), opts...)
	if err != nil {
		return tr, nil, err
	}
	device.Place(program)
	device.Describe(tr, program)
	tr.Program = program.Trace()
	return tr, program, nil
}

func compile(g *graph.Graph, cfg config, gradients []passes.Gradient, steps []passes.Step) (_ *Program, err error) {
	start := time.Now()
	device, err := cfg.device(true)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, device.Close()) }()
	p := &Program{request: request{g, cfg, gradients, steps}, named: map[string]int{},
		unread: map[string]graph.Type{}, own: map[int]*graph.Tensor{}}
	if err = p.obtain(device); err != nil {
		return p, err
	}
	p.outputs = make(map[string]int, len(p.program.Outputs))
	for _, o := range p.program.Outputs {
		p.outputs[o.Name] = o.Buffer
	}
	read := make([]bool, len(p.program.Buffers))
	for _, l := range p.program.Launches {
		for _, v := range l.Args {
			read[v.Buffer] = true
		}
	}
	for _, u := range p.program.Updates {
		read[u.Target] = true
	}
	for i, b := range p.program.Buffers {
		switch b.Role {
		case lowering.Input, lowering.Param:
			if read[i] {
				p.named[b.Name] = i
			}
		case lowering.State:
			p.named[b.Name] = i
			p.own[i] = graph.NewTensor(b.Type)
			if err := p.exe.Bind(i, p.own[i]); err != nil {
				return p, err
			}
		}
	}
	for _, u := range p.program.Updates {
		if _, ok := p.own[u.Target]; !ok {
			p.own[u.Target] = nil
		}
	}
	for _, n := range g.Nodes {
		if _, ok := p.named[n.Name]; !ok && graph.IsSource(n.Op) {
			p.unread[n.Name] = n.Type
		}
	}
	if cfg.optimizer != nil {
		if err := p.startStepper(); err != nil {
			return p, err
		}
	}
	if cfg.watched() {
		p.exe.Watch(p.watch)
	}
	p.took = time.Since(start)
	return p, nil
}

// Set gives an input, parameter or state its value. Inputs and parameters are read in place, without a copy, until
// they are set again; a parameter that has changed in place has to be set again to be seen. State, which is zero until
// it is set, and parameters that the graph updates are copied, so that a run never writes to t.
func (p *Program) Set(name string, t *graph.Tensor) error {
	if t == nil {
		return fmt.Errorf("no value was given for %q", name)
	}
	if err := t.Check(); err != nil {
		return fmt.Errorf("value of %q: %w", name, err)
	}
	i, ok := p.named[name]
	if !ok {
		want, ok := p.unread[name]
		switch {
		case !ok:
			return fmt.Errorf("the program has no input, parameter or state %q", name)
		case t.Type != want:
			return fmt.Errorf("%q is %v; it was given a value of type %v", name, want, t.Type)
		}
		return nil
	}
	own, changes := p.own[i]
	switch {
	case !changes:
		return p.exe.Bind(i, t)
	case own == nil || own.Type != t.Type:
		own = t.Clone()
		if err := p.exe.Bind(i, own); err != nil {
			return err
		}
		p.own[i] = own
		return nil
	}
	own.CopyFrom(t)
	return p.exe.Bind(i, own)
}

// State is the present value of a state, or of a parameter that the graph updates, brought back from the device if it
// stands there. The tensor is the program's and holds until the next run.
func (p *Program) State(name string) (*graph.Tensor, error) {
	if i, ok := p.named[name]; ok {
		if t := p.own[i]; t != nil {
			if err := p.exe.Sync(i); err != nil {
				return nil, err
			}
			return t, nil
		}
	}
	return nil, fmt.Errorf("the program keeps no state %q", name)
}

// Exec runs the program on what has been set. It allocates nothing after the first time.
func (p *Program) Exec() error {
	if err := p.Start(); err != nil {
		return err
	}
	return p.Wait()
}

// Sync brings what runs have changed, state and parameters that the graph updates, back from the device: on the CPU it
// is always there. [Program.State] does so for one value, and [Program.Close] for all.
func (p *Program) Sync() error {
	if p == nil || p.exe == nil {
		return nil
	}
	return p.exe.Sync()
}

// sync is Sync for the source of a name. It allocates nothing.
func (p *Program) sync(name string) error {
	p.synced[0] = p.named[name]
	return p.exe.Sync(p.synced[:]...)
}

// Output is the value of a named output after a run. The tensor is the program's and holds until the next run; Clone
// it to keep it. On a device, a program that has handed one out has to be closed: it is not when it is dropped.
func (p *Program) Output(name string) (*graph.Tensor, error) {
	if o, ok := p.exe.(*owned); ok {
		o.dropped.Stop()
	}
	return p.output(name)
}

// output is Output for a tensor that nobody has after the program.
func (p *Program) output(name string) (*graph.Tensor, error) {
	if buffer, ok := p.outputs[name]; ok {
		return p.exe.Output(buffer), nil
	}
	return nil, fmt.Errorf("the program has no output %q", name)
}

// Run sets the given values, runs the program and returns all outputs in memory of their own.
func (p *Program) Run(in map[string]*graph.Tensor) (map[string]*graph.Tensor, error) {
	for name, t := range in {
		if err := p.Set(name, t); err != nil {
			return nil, err
		}
	}
	if err := p.Exec(); err != nil {
		return nil, err
	}
	out := make(map[string]*graph.Tensor, len(p.program.Outputs))
	for _, o := range p.program.Outputs {
		out[o.Name] = p.exe.Output(o.Buffer).Clone()
	}
	runtime.KeepAlive(p)
	return out, nil
}

// Fusions lists the launches, in order.
func (p *Program) Fusions() []Fusion { return fusions(p.Lowered()) }

func fusions(p *lowering.Program) []Fusion {
	if p == nil {
		return nil
	}
	list := make([]Fusion, len(p.Launches))
	for i := range p.Launches {
		l := &p.Launches[i]
		list[i] = Fusion{Kind: l.Kind(), Name: l.Node.Name, Nodes: l.Node.Origin, FLOPs: l.FLOPs, Bytes: l.Bytes}
	}
	return list
}

// Trace is the record of the compilation. A note of its first stage tells if there was none, since an equal graph had been
// compiled before; the record is then made when it is first asked for, which takes as long as compiling.
func (p *Program) Trace() *trace.Trace {
	p.describe()
	return p.trace
}

// CompileTime is how long compiling took.
func (p *Program) CompileTime() time.Duration { return p.took }

// Bytes is the memory that the program holds besides inputs and parameters.
func (p *Program) Bytes() int64 { return p.exe.Memory().Bytes() }

// Memory tells the parts of [Program.Bytes].
func (p *Program) Memory() lowering.Memory { return p.exe.Memory() }

// Lowered is the program as plain data, which nobody may change: buffers and launches.
func (p *Program) Lowered() *lowering.Program {
	if p.strange {
		p.describe()
	}
	return p.program
}

// Profile makes runs measure each launch, or stop doing so; [Program.Times] are those of the last run, in launch order.
func (p *Program) Profile(on bool) { p.exe.Profile(on) }

// Times are the launches' times of the last run; see [Program.Profile].
func (p *Program) Times() []time.Duration { return p.exe.Times() }

// Close brings state back, as [Program.Sync] does, and lets go of the program's goroutines and memory.
func (p *Program) Close() error {
	if p == nil || p.exe == nil {
		return nil
	}
	return errors.Join(p.exe.Sync(), p.release())
}

// Passes lists the names of the passes in order, as [WithoutPass] takes them and [Program.Trace] has them.
func Passes() []string {
	var names []string
	for _, p := range passes.All() {
		names = append(names, p.Name)
	}
	return names
}

// errClosed is returned by a machine that has been closed.
var errClosed = errors.New("the machine is closed")
