package fusec

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/kernels/ref"
	"fusec/lowering"
	"fusec/lowering/reuse"
	"fusec/lowering/watch"
)

// Program is a compiled graph. One goroutine uses it at a time.
type Program struct {
	request
	trace   *trace.Trace      // nil until it is asked for, if the program was found
	notes   []trace.Note      // that the trace will have
	program *lowering.Program // with the labels of another request if it is strange
	strange bool
	cached  *reuse.Entry // that it was found as, or is kept as; or nil
	exe     lowering.Executable
	took    time.Duration
	named   map[string]int        // Input, Param and State buffers by name
	outputs map[string]int        // buffers of outputs by name
	unread  map[string]graph.Type // sources of the graph that no output needs
	// what a run may change: state, and parameters that the graph updates; nil until set
	own map[int]*graph.Tensor
	// what Prefetch copied, on devices that do not copy by themselves
	ahead   map[int]*graph.Tensor
	parts   map[int]*graph.Tensor                                                    // of inputs that a group has split
	stepper *stepper                                                                 // of a program with an optimiser
	closed  bool                                                                     // Close was called
	synced  [1]int                                                                   // the buffer that sync asks for
	queued  lowering.QueuedRun                                                       // what Queue asks for
	watcher *watch.Watcher                                                           // or nil
	watch   func(*lowering.Launch, func(lowering.View) (*graph.Tensor, error)) error // its Check
}

// Set gives an input, parameter or state its value. Inputs and parameters are read in place, without a copy, until
// they are set again; a parameter that has changed in place has to be set again to be seen. State, which is zero until
// it is set, and parameters that the graph updates are copied, so that a run never writes to t.
func (p *Program) Set(name string, t *graph.Tensor) error {
	switch {
	case p.closed:
		return errors.New("the program is closed")
	case t == nil:
		return fmt.Errorf("no value was given for %q", name)
	}
	if err := t.Check(); err != nil {
		return fmt.Errorf("value of %q: %w", name, err)
	}
	i, ok := p.named[name]
	if !ok {
		want, ok := p.unread[name]
		e := p.pipeline()
		switch {
		case !ok && e != nil && e.Home(name) >= 0: // another stage keeps it
			return nil
		case !ok:
			return fmt.Errorf("the program has no input, parameter or state %q", name)
		case t.Type != want:
			return fmt.Errorf("%q is %v; it was given a value of type %v", name, want, t.Type)
		}
		return nil
	}
	t, err := p.part(i, t)
	if err != nil {
		return err
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
// is there. The tensor is the program's and holds until the next run.
func (p *Program) State(name string) (*graph.Tensor, error) {
	if i, ok := p.named[name]; ok {
		if t := p.own[i]; t != nil {
			if err := p.exe.Sync(i); err != nil {
				return nil, err
			}
			return t, nil
		}
	}
	if e := p.pipeline(); e != nil && e.Home(name) >= 0 {
		return nil, fmt.Errorf("participant %d keeps %q, which belongs to its stage: Program.Whole brings it", e.Home(name), name)
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
// it to keep it. On a device, a program that has handed one out has to be closed. When it is dropped it stays open, as the
// tensor's elements may lie in memory that closing frees. [Program.Run], which copies, and machines do not hand one out.
func (p *Program) Output(name string) (*graph.Tensor, error) {
	if o, ok := p.exe.(*lowering.Owned); ok {
		o.Keep()
	}
	return p.output(name)
}

// SetOutput gives a named output its memory: from the next run on, runs write into t, as they do with inputs without a copy.
// It reports false if the device has memory of its own: [Program.Output] has the value then.
func (p *Program) SetOutput(name string, t *graph.Tensor) (bool, error) {
	buffer, ok := p.outputs[name]
	if !ok {
		return false, fmt.Errorf("the program has no output %q", name)
	}
	if t != nil {
		if err := t.Check(); err != nil {
			return false, fmt.Errorf("memory of output %q: %w", name, err)
		}
	}
	return p.exe.BindOutput(buffer, t)
}

// output is Output for a tensor that nobody has after the program.
func (p *Program) output(name string) (*graph.Tensor, error) {
	if buffer, ok := p.outputs[name]; ok {
		if t := p.exe.Output(buffer); t != nil {
			return t, nil
		}
		return nil, fmt.Errorf("output %q: %w", name, lowering.ErrQueued)
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
		list[i] = Fusion{Kind: l.Kind(), Name: l.Node.Name, Nodes: l.Node.Origin, FLOPs: l.FLOPs, Bytes: l.Bytes,
			Prepared: i < p.Prepared}
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

// Times are the launches' times of the last run; see [Program.Profile]. Launches that were prepared before it have 0.
func (p *Program) Times() []time.Duration { return p.exe.Times() }

// Close brings state back, as [Program.Sync] does, and lets go of the program's goroutines and memory.
func (p *Program) Close() error {
	if p == nil || p.exe == nil {
		return nil
	}
	p.closed = true
	return errors.Join(p.exe.Sync(), p.release())
}

// A run in two halves. A GPU computes by itself once it has been started, and meanwhile the next mini-batch can be read
// and copied to it. On the CPU, where there is nothing to gain, the first half does all the work.

// Start is the first half of [Program.Exec]: it returns when all that was set has been read, so that it may be changed,
// and the run is on its way. [Program.Wait] is the second half; until then outputs hold nothing, and what else asks for
// values waits.
func (p *Program) Start() error {
	if p.stepper != nil {
		if err := p.stepper.setRate(); err != nil {
			return err
		}
	}
	if w := p.watcher; w != nil && w.Shadow != nil {
		if w.Shadow.Begin(len(p.program.Launches)) || w.NonFinite || w.Compare {
			p.exe.Watch(p.watch)
		} else {
			p.exe.Watch(nil)
		}
	}
	err := p.explain(p.exe.Start())
	p.abort(err)
	return err
}

// Wait waits for the run that was started, and gives its error. Without one it does nothing.
func (p *Program) Wait() error {
	if err := p.exe.Wait(); err != nil {
		return err
	}
	if p.stepper != nil {
		return p.exe.Sync(p.stepper.counters...)
	}
	return nil
}

// OpenFile opens a file for [Program.PrefetchFile]. On target cuda that is by cuFile of NVIDIA's GPUDirect Storage, and the error
// says why it does not read the file: read it on the host then, such as by graph/loader, and use [Program.Prefetch].
func (p *Program) OpenFile(path string) error { return p.exe.OpenFile(path) }

// PrefetchFile is [Program.Prefetch] of the value whose bytes are parts of files that were opened by [Program.OpenFile], one after
// another, such as the Located of a batch of graph/loader. They go from the disk to the GPU's memory without a copy on the host. It
// returns when they are there; if it fails, the input has no value until it is given another. In a group a participant gives its
// part of the value.
func (p *Program) PrefetchFile(name string, parts []graph.FilePart) error {
	if i, ok := p.named[name]; ok {
		return p.exe.PrefetchFile(i, parts)
	}
	if _, ok := p.unread[name]; !ok {
		return fmt.Errorf("the program has no input, parameter or state %q", name)
	}
	return nil
}

// Prefetch is [Program.Set] for an input of the next run that copies: t may be changed as soon as it returns. Between
// [Program.Start] and [Program.Wait] a GPU computes while the copy is on its way. It takes as much memory again as the
// input, here and on the GPU.
func (p *Program) Prefetch(name string, t *graph.Tensor) error {
	i, ok := p.named[name]
	if !ok {
		return p.Set(name, t) // which says what is wrong, if anything is
	}
	if t != nil {
		var err error
		if t, err = p.part(i, t); err != nil {
			return err
		}
	}
	if copied, err := p.exe.Prefetch(i, t); copied || err != nil {
		return err
	}
	b := p.program.Buffers[i]
	_, changes := p.own[i]
	switch {
	case changes || b.Role == lowering.Param && p.cfg.frozen:
		return fmt.Errorf("%s %q is not copied ahead: that is for what each run reads again", b.Role, name)
	case t == nil:
		return fmt.Errorf("no value was given for %q", name)
	}
	if err := t.Check(); err != nil {
		return fmt.Errorf("value of %q: %w", name, err)
	}
	own := p.ahead[i]
	if own == nil || own.Type != t.Type {
		own = graph.NewTensor(t.Type)
	}
	own.CopyFrom(t)
	if err := p.exe.Bind(i, own); err != nil {
		return err
	}
	if p.ahead == nil {
		p.ahead = map[int]*graph.Tensor{}
	}
	p.ahead[i] = own
	return nil
}

// Measure runs the program n times on the values that its device holds since the last [Program.Exec], without copies
// from and to the host, and returns the time of each run by the device's own clock. Parameters and state change as in
// other runs; the learning rate stays that of the last Exec. Devices without memory of their own, such as the CPU, are
// timed by Exec.
func (p *Program) Measure(n int) ([]time.Duration, error) {
	times, err := p.exe.Measure(n)
	if err == lowering.ErrNoClock {
		err = fmt.Errorf("target %q has no clock of its own; time Exec", p.cfg.target)
	}
	return times, err
}

// Inspect describes the device that the program is on, and what the program and each of its launches take of it; nil for
// devices without memory of their own.
func (p *Program) Inspect() (*lowering.Inspection, error) { return p.exe.Inspect() }

// Timeline is what the last profiled run did and when, by the device's clock; see [Program.Profile]. Where the device
// tells no more, the launches follow one another without a gap.
func (p *Program) Timeline() []lowering.Span {
	list := p.exe.Timeline()
	if list != nil {
		return list
	}
	at := time.Duration(0)
	for i, t := range p.Times() {
		list = append(list, lowering.Span{What: lowering.SpanHost, Launch: i, Start: at, Length: t})
		at += t
	}
	return list
}

// Counts are what the program's device has counted in the last run; none for devices that count nothing. The target's
// package says which measures there are, such as lowering/fpga.
func (p *Program) Counts() lowering.Counts { return p.exe.Counts() }

// NonFiniteError tells where a value that is not finite came from.
type NonFiniteError = watch.NonFiniteError

// DepartureError tells of a launch that departs from the reference by more than its bound; see [WithShadow].
type DepartureError = watch.DepartureError

// ShadowReport tells how near launches came to their bounds; see [WithShadow].
type ShadowReport = watch.Seen

// Shadow tells what has been compared until now, and which launch came nearest to its bound. It is zero without
// [WithShadow].
func (p *Program) Shadow() ShadowReport {
	if p.watcher == nil || p.watcher.Shadow == nil {
		return ShadowReport{}
	}
	return p.watcher.Shadow.Seen
}

// Departures tells for each launch of the last run, in launch order, by how much its results depart from the reference;
// of several results the one that departs most. It is nil without [WithReference].
func (p *Program) Departures() []ref.Departure {
	if p.watcher == nil {
		return nil
	}
	return p.watcher.Departures
}

// StepStats are those of a program with an optimiser; else they are zero.
func (p *Program) StepStats() StepStats {
	s := p.stepper
	if s == nil {
		return StepStats{}
	}
	st := StepStats{Steps: s.steps.Data.([]int64)[0], Skipped: s.skipped.Data.([]int64)[0],
		Rate: s.rate.Float(0), LossScale: 1, Norm: s.norm.Float(0)}
	runtime.KeepAlive(p) // which has the norm
	if s.scale != nil {
		st.LossScale = s.scale.Float(0)
	}
	return st
}

// States lists the names of the program's states in order, those of an optimiser included, and in a pipeline those of all stages.
// [Program.State] gives their values, [Program.Whole] those that other participants have, and [Program.Set] changes them.
func (p *Program) States() []string {
	var names []string
	if e := p.pipeline(); e != nil {
		kept, state := e.Kept()
		for i, name := range kept {
			if state[i] {
				names = append(names, name)
			}
		}
		return names
	}
	for name, i := range p.named {
		if p.program.Buffers[i].Role == lowering.State {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// lend is [Program.Set] for a parameter or state that the program may change in place.
func (p *Program) lend(name string, t *graph.Tensor) error {
	i := p.named[name]
	if err := p.exe.Bind(i, t); err != nil {
		return err
	}
	p.own[i] = t
	return nil
}

// ShareState gives p the present state of another program of the same target: of each state that both have, by name, with
// the same type. Afterwards both have one memory for it, and the two are run in turn: a program calls ShareState, with the one
// that ran last, whenever it takes its turn, so that two programs, say one for a prompt and one for the tokens after it, work
// on one cache of keys and values. On the CPU this copies nothing; a GPU copies the states in its memory. A state of p that the
// other does not have, or has with another type, is an error.
func (p *Program) ShareState(from *Program) error {
	for name, i := range p.named {
		if p.program.Buffers[i].Role != lowering.State {
			continue
		}
		j, ok := from.named[name]
		if !ok || from.own[j] == nil || from.own[j].Type != p.bound(i) {
			return fmt.Errorf("the other program has no state %q of type %v", name, p.bound(i))
		}
		if err := p.lend(name, from.own[j]); err != nil {
			return err
		}
		if taken, err := p.exe.TakeState(i, from.exe, j); taken || err != nil {
			if err != nil {
				return err
			}
			continue
		}
		if err := from.sync(name); err != nil {
			return err
		}
	}
	return nil
}

// Prepare does what depends on frozen parameters alone, see [WithFrozenParams], before the first run, and lets go of the values
// of those that runs do not read in their own form, such as weights that are packed: on the CPU p no longer refers to them. To
// set one of them again, set all of them.
func (p *Program) Prepare() error { return p.explain(p.exe.Prepare()) }

// SharePrepared makes p read what another program of the same target has prepared, in the same memory. It is for programs of one
// model, which are given the same values of frozen parameters: one for a prompt, say, and one for the tokens after it. It lists
// the parameters of p that still have to be set, in order: where nothing can be shared, such as on a GPU, all of them.
func (p *Program) SharePrepared(from *Program) []string {
	taken := p.exe.TakePrepared(from.exe)
	only := p.program.Originals()
	var names []string
	for name, i := range p.named {
		if p.program.Buffers[i].Role == lowering.Param && !(taken && only[i]) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// inherit takes over the state of the program that p replaces; nil for none.
func (p *Program) inherit(old *Program) error {
	if old == nil {
		return nil
	}
	for _, name := range p.States() {
		if t, err := old.State(name); err == nil && t.Type == p.own[p.named[name]].Type {
			if err := p.Set(name, t); err != nil {
				return err
			}
		}
	}
	return nil
}

// A QueuedRun is a run in the caller's memory on the program's device; see [Program.Queue]. Addresses are the device's, and
// multiples of [lowering.QueueAlign].
type QueuedRun struct {
	Stream  uintptr // the device's handle of a stream, such as a CUstream; 0 is the default stream
	Scratch uintptr // where [Program.QueueBytes] bytes begin, which are the run's until it has ended
	// Where the elements of the inputs and outputs are, by name: contiguous, in row-major order. Outputs do not overlap with
	// anything.
	Inputs, Outputs map[string]uintptr
}

// QueueBytes is the size of the memory that a run of [Program.Queue] needs for temporary values, in bytes.
func (p *Program) QueueBytes() (int64, error) {
	q, ok := lowering.QueuerOf(p.exe)
	if !ok {
		return 0, p.notQueued()
	}
	return q.QueueBytes(), nil
}

func (p *Program) notQueued() error {
	return fmt.Errorf("target %q was not compiled for runs in the caller's memory: see Program.Queue", p.cfg.target)
}

// Queue queues a run in a stream of the caller's, on memory of the caller's, and returns before the run has ended. It is for
// programs of target cuda with the option cuda.Queued: they share a GPU with another library without copies. Parameters are
// given by [Program.Set] as usual. Runs must not overlap: who queues them in several streams has one wait for another. What
// goes wrong in a run, such as an index that is out of range, is the error of a later Queue, or of [Program.Wait], which
// waits for all runs. Streams must live until the program is closed.
func (p *Program) Queue(r *QueuedRun) error {
	q, ok := lowering.QueuerOf(p.exe)
	if !ok {
		return p.notQueued()
	}
	if p.queued.At == nil {
		p.queued.At = make([]uintptr, len(p.program.Buffers))
	}
	run := &p.queued
	run.Stream, run.Scratch = r.Stream, r.Scratch
	clear(run.At)
	for name, at := range r.Inputs {
		i, ok := p.named[name]
		switch _, unread := p.unread[name]; {
		case ok && p.program.Buffers[i].Role == lowering.Input:
			run.At[i] = at
		case !unread:
			return fmt.Errorf("the program has no input %q", name)
		}
	}
	for name, at := range r.Outputs {
		i, ok := p.outputs[name]
		if !ok {
			return fmt.Errorf("the program has no output %q", name)
		}
		run.At[i] = at
	}
	return p.explain(q.Queue(run))
}
