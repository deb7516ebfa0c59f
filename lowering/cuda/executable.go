package cuda

import (
	"errors"
	"fmt"
	"slices"
	"time"
	"unsafe"

	"fusec/graph"
	kernels "fusec/kernels/cuda"
	"fusec/kernels/group"
	"fusec/lowering"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/pool"
	"fusec/lowering/host"
)

// An executable is a program on a GPU. All its memory there is one block, except with [Apart]: the arena, the other
// buffers, the scratch memory that the launches share, and the reports of the launches. The originals, parameters that only
// the prepared part reads, and its temporary values have memory while it runs.
type executable struct {
	lowering.ExecutableDefaults
	p        *lowering.Program
	gpu      driver.GPU
	stream   driver.Stream
	each     bool // wait for each launch
	oneBlock bool // the buffers are parts of one block of the GPU's memory
	modules  []driver.Module
	launches []launch
	collect  launch
	restore  launch
	commit   launch
	parts    []part

	taken     []driver.Ptr // all memory on the GPU
	bytes     int64        // of it
	buffers   []driver.Ptr
	scratchN  int64
	scratchAt []int64 // by launch: where in the scratch memory it has its part
	status    driver.Ptr
	zeroed    int64           // bytes from status on that are 0 before each run
	filled    int64           // of these, those that are filled: launches leave the others 0
	reports   bool            // some launch may report, or reads reports
	report    *kernels.Status // pinned
	staged    []unsafe.Pointer
	pinned    int64

	tensors  []*graph.Tensor // bound, constant, or on pinned memory for outputs
	stale    []bool          // of each buffer: the bound tensor has not been copied to the GPU
	changed  map[int]bool    // sources that are updated
	ahead    map[int]bool    // those of them whose values on the GPU are newer than the bound tensors
	host     *host.Launches
	profile  bool
	events   []driver.Event
	marks    marks
	spans    []lowering.Span
	free     int64 // the driver's free bytes before the executable allocated any
	times    []time.Duration
	watch    func(*lowering.Launch, func(lowering.View) (*graph.Tensor, error)) error
	next     *prefetcher // nil if no input was ever prefetched
	given    map[int]given
	begun    bool // the run has passed its beginning
	had      []had
	started  bool   // a run has been started and not waited for
	timed    bool   // its launches are timed
	ran      bool   // has run at least once
	from     []bool // by buffer: the prepared part reads it
	prepared bool   // the prepared part has run with the present parameters
	skipped  int    // the launches that the last timed run left out
	// originals marks, by buffer, the parameters that only the prepared part reads.
	originals []bool
	preparing driver.Ptr // the temporary values of the prepared part while it runs
	closed    bool
	lost      error
	files     map[string]driver.File // that inputs are read from, by path
	exchanges *exchanges             // nil for a program that runs alone
	lent      *lent                  // nil unless runs take the caller's memory
	schedule  *schedule              // nil if no launches run beside others
	measured  []driver.Graph         // of the parts, while [executable.Measure] runs
	mixtures  []int                  // see mixturesOf
	update    int                    // the first launch that writes a State or Param in place, or −1
}

// A launch is a loaded kernel; without steps it runs on the processor.
type launch struct {
	kernel                *kernels.Kernel
	steps                 []step
	scratch, zeroed, kept driver.Ptr
	begun                 int  // steps that have been queued ahead
	marks                 int  // the first of the two events between which these are measured
	timed                 bool // they have been measured
}

type step struct {
	*kernels.Step
	function driver.Function
	params   []byte
	fill     driver.Ptr
	send     driver.Exchange
}

// A part is a sequence of launches that are replayed as one graph, or one launch on the processor.
type part struct {
	from, to int
	host     bool
	graph    driver.Graph
}

// Watch implements lowering.Executable.
func (e *executable) Watch(check func(*lowering.Launch, func(lowering.View) (*graph.Tensor, error)) error) {
	e.watch = check
}

// Output implements lowering.Executable.
func (e *executable) Output(buffer int) *graph.Tensor { return e.tensors[buffer] }

// Times implements lowering.Executable.
func (e *executable) Times() []time.Duration { return e.times }

// Memory implements lowering.Executable.
func (e *executable) Memory() lowering.Memory {
	m := lowering.Memory{Arena: e.p.RunningBytes, Scratch: e.scratchN, Prepared: e.p.PreparedBytes}
	for _, b := range e.p.Buffers {
		if b.Role == lowering.Output {
			m.Outputs += b.Type.Bytes()
		}
	}
	m.Kernels = e.bytes - m.Arena - m.Outputs - m.Scratch - m.Prepared
	return m
}

// Bind implements lowering.Executable.
func (e *executable) Bind(buffer int, t *graph.Tensor) error {
	if err := e.p.MayBind(buffer, t); err != nil {
		return err
	}
	e.tensors[buffer] = t
	e.stale[buffer] = true
	if e.from[buffer] {
		e.prepared = false
	}
	delete(e.ahead, buffer)
	delete(e.given, buffer)
	if p := e.next.find(buffer); p != nil {
		p.next = inTensor
	}
	return nil
}

// eachRun reports whether a buffer is copied to the GPU before each run.
func (e *executable) eachRun(buffer int) bool {
	switch e.p.Buffers[buffer].Role {
	case lowering.Input:
		return true
	case lowering.Param:
		return !e.p.Frozen && !e.changed[buffer]
	}
	return false
}

// errClosed is the error of an executable that has been closed.
var errClosed = errors.New("the program is closed")

// Run implements lowering.Executable.
func (e *executable) Run() error {
	if err := e.Start(); err != nil {
		return err
	}
	return e.Wait()
}

// Start implements lowering.Executable.
func (e *executable) Start() error {
	switch {
	case e.closed:
		return errClosed
	case e.lost != nil:
		return e.lost
	case e.started:
		return errors.New("a run has been started already: it has to be waited for first")
	}
	if err := e.upload(); err != nil {
		return e.broken(err)
	}
	if err := e.takePrefetched(); err != nil {
		return e.broken(err)
	}
	if err := e.startExchanging(); err != nil {
		return e.broken(err)
	}
	if e.exchanges != nil {
		e.exchanges.run = e.exchanges.group.Begin()
	}
	var err error
	e.begun, e.had = false, nil
	if e.profile || e.watch != nil || e.each {
		err = e.runEach()
	} else if err = e.prepare(); err == nil {
		err = e.replay()
	}
	if err != nil {
		return e.broken(e.takeBack(err))
	}
	e.started, e.timed = true, e.profile
	return nil
}

// Wait implements lowering.Executable.
func (e *executable) Wait() error {
	if !e.started {
		return nil
	}
	e.started = false
	if err := e.finish(); err != nil {
		return e.broken(err)
	}
	e.ran = true
	for i := range e.changed {
		if !e.stale[i] { // it may have been bound again since the start
			e.ahead[i] = true
		}
	}
	if e.timed {
		return e.broken(e.readTimes())
	}
	return nil
}

// takeBack takes back what the launches of a run that ends early have written in place.
func (e *executable) takeBack(failed error) error {
	if errors.Is(failed, driver.ErrLost) || group.IsLost(failed) {
		return failed
	}
	if e.begun && len(e.restore.steps) > 0 {
		if err := e.stream.Fill(e.status, 1, statusBytes); err != nil { // the run has failed
			return errors.Join(failed, err)
		}
		if err := e.queue(&e.restore); err != nil {
			return errors.Join(failed, err)
		}
	}
	for _, h := range slices.Backward(e.had) {
		if err := e.copyIn(h.buffer, h.value); err != nil {
			return errors.Join(failed, err)
		}
	}
	return errors.Join(failed, e.sync())
}

// A had is the value of a State before a launch on the processor has overwritten a part of it.
type had struct {
	buffer int
	value  *graph.Tensor
}

// copyIn queues a copy of a tensor to the GPU.
func (e *executable) copyIn(buffer int, t *graph.Tensor) error {
	if t.Type.Shape.Elems() == 0 {
		return nil
	}
	from, n, err := bytesOf(t)
	if err != nil {
		return err
	}
	return e.stream.CopyIn(e.buffers[buffer], from, n)
}

// broken records that the GPU or another participant is lost. Exchanges that this one does not come to any more are ended.
func (e *executable) broken(err error) error {
	if err != nil && e.exchanges != nil {
		e.forgetExchanges()
		if group.IsLost(err) {
			if len(e.exchanges.comms) > 0 {
				err = errors.Join(err, e.abortExchanges())
			}
			e.lost = err
			return err
		}
	}
	if errors.Is(err, driver.ErrLost) {
		hint := "compile the program again to go on"
		if !e.each {
			hint += ", with WithVerify if the error is to name the launch"
		}
		e.lost = fmt.Errorf("%w; %s", err, hint)
		return e.lost
	}
	return err
}

// upload copies tensors that were bound since the last run, and writes the values that change between runs to the
// pinned memory from which the graph copies.
func (e *executable) upload() error {
	waits := false
	for i, b := range e.p.Buffers {
		switch b.Role {
		case lowering.Input, lowering.Param, lowering.State:
		default:
			continue
		}
		if e.isLent(i) {
			continue
		}
		t := e.tensors[i]
		if p := e.next.find(i); p != nil && p.next == nowhere {
			return fmt.Errorf("%s %q has no value: reading it has failed", b.Role, b.Name)
		} else if p != nil && p.next != inTensor {
			continue
		}
		if t == nil {
			if e.needs(i) {
				return fmt.Errorf("%s %q has no value", b.Role, b.Name)
			}
			continue
		}
		if t.Type.Shape.Elems() == 0 {
			continue
		}
		from, n, err := bytesOf(t)
		if err != nil {
			return fmt.Errorf("%s %q: %w", b.Role, b.Name, err)
		}
		if e.staged[i] != nil {
			copy(unsafe.Slice((*byte)(e.staged[i]), n), unsafe.Slice((*byte)(from), n))
			continue
		}
		if e.stale[i] && !e.originals[i] {
			if err := e.stream.CopyIn(e.buffers[i], from, n); err != nil {
				return fmt.Errorf("copying %s %q to the GPU: %w", b.Role, b.Name, err)
			}
			waits = true
			e.stale[i] = false
		}
	}
	if waits {
		return e.stream.Sync()
	}
	return nil
}

// needs reports whether a launch or an update reads or writes a buffer.
func (e *executable) needs(buffer int) bool {
	return e.p.Buffers[buffer].Last >= 0 || e.changed[buffer]
}

// begin queues the work before the first launch; without the copies the values on the GPU stay.
func (e *executable) begin(copies bool) error {
	if e.reports || e.filled > e.statusesBytes() {
		if err := e.stream.Fill(e.status, 0, e.filled); err != nil {
			return err
		}
	}
	if !copies {
		return nil
	}
	var from unsafe.Pointer // of what is copied at once
	var to driver.Ptr
	var bytes int64
	copyIn := func() error {
		if bytes == 0 {
			return nil
		}
		return e.stream.CopyIn(to, from, bytes)
	}
	for i, b := range e.p.Buffers {
		if e.staged[i] == nil || b.Role == lowering.Output || e.next.find(i) != nil {
			continue
		}
		staged, on := e.staged[i], e.buffers[i]
		if end := roundUp(bytes); e.oneBlock && end > 0 && unsafe.Add(from, end) == staged && to+driver.Ptr(end) == on {
			bytes = end + b.Type.Bytes()
			continue
		}
		if err := copyIn(); err != nil {
			return err
		}
		from, to, bytes = staged, on, b.Type.Bytes()
	}
	return copyIn()
}

// end queues the work after the last launch: the updates that are copied, and with the copies the outputs and the
// report.
func (e *executable) end(copies bool) error {
	if e.reports {
		if err := e.queue(&e.collect); err != nil {
			return err
		}
	}
	if err := e.queue(&e.restore); err != nil {
		return err
	}
	if err := e.queue(&e.commit); err != nil {
		return err
	}
	if !copies {
		return nil
	}
	for i, b := range e.p.Buffers {
		if e.staged[i] != nil && b.Role == lowering.Output {
			if err := e.stream.CopyOut(e.staged[i], e.buffers[i], b.Type.Bytes()); err != nil {
				return err
			}
		}
	}
	return e.stream.CopyOut(unsafe.Pointer(e.report), e.status, statusBytes)
}

// queue starts the steps of a launch that exchanges nothing.
func (e *executable) queue(l *launch) error { return queue(e.stream, l.steps, nil) }

// queueOn starts the steps of launch i on a stream.
func (e *executable) queueOn(s driver.Stream, i int) error {
	var c driver.Comm
	if e.exchanges != nil {
		c = e.exchanges.of[i]
	}
	l := &e.launches[i]
	steps := l.steps[l.begun:]
	l.begun = 0
	return queue(s, steps, c)
}

func queue(on driver.Stream, steps []step, c driver.Comm) error {
	for i := range steps {
		s := &steps[i]
		var err error
		switch {
		case s.Exchange != nil:
			err = c.Queue(on, []driver.Exchange{s.send})
		case s.Entry == "":
			err = on.Fill(s.fill, s.Value, s.Bytes)
		default:
			err = on.Launch(s.function, s.Grid, s.Block, s.Shared, s.params)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// prepare runs the prepared part, launch by launch, and waits for it, if a parameter that it reads has been bound since the
// last time, or a function watches.
func (e *executable) prepare() error {
	if e.skipped = e.p.Prepared; e.skipped == 0 || e.prepared && e.watch == nil {
		return nil
	}
	e.skipped, e.prepared = 0, false
	err := e.takePassing()
	if err == nil {
		err = e.runPrepared()
	}
	if given := e.givePassing(); err == nil {
		err = given
	}
	e.prepared = err == nil
	return err
}

// passing reports whether a buffer has memory only while the prepared part runs: an original, or a temporary value of it.
func (e *executable) passing(buffer int) bool {
	b := &e.p.Buffers[buffer]
	return e.originals[buffer] || b.Role == lowering.Temp && b.Last < e.p.Prepared
}

// takePassing allocates what passes, copies the originals to the GPU, and tells the launches of the prepared part where they
// are.
func (e *executable) takePassing() (err error) {
	if e.preparing, err = e.take(e.p.PreparingBytes); err != nil {
		return err
	}
	for i, b := range e.p.Buffers {
		switch {
		case !e.passing(i) || b.Type.Bytes() == 0:
		case b.Role == lowering.Temp:
			e.buffers[i] = e.preparing + driver.Ptr(b.Offset)
		default:
			from, n, err := bytesOf(e.tensors[i])
			if err != nil {
				return err
			}
			if e.buffers[i], err = e.take(n); err != nil {
				return err
			}
			if err := e.stream.CopyIn(e.buffers[i], from, n); err != nil {
				return fmt.Errorf("copying param %q to the GPU: %w", b.Name, err)
			}
		}
	}
	for i := range e.p.Prepared {
		if err := e.place(i); err != nil {
			return err
		}
	}
	return nil
}

// givePassing waits for the work on what passes, and frees it.
func (e *executable) givePassing() error {
	err := e.stream.Sync()
	give := func(at driver.Ptr, bytes int64) {
		if at != 0 {
			err = errors.Join(err, e.gpu.Free(at))
			e.taken = slices.DeleteFunc(e.taken, func(p driver.Ptr) bool { return p == at })
			e.bytes -= bytes
		}
	}
	for i, b := range e.p.Buffers {
		if e.originals[i] {
			give(e.buffers[i], b.Type.Bytes())
		}
		if e.passing(i) {
			e.buffers[i] = 0
		}
	}
	give(e.preparing, e.p.PreparingBytes)
	e.preparing = 0
	return err
}

// runPrepared runs the prepared part, and waits for it.
func (e *executable) runPrepared() error {
	if err := e.begin(false); err != nil {
		return err
	}
	for i := range e.p.Prepared {
		if err := e.runOne(i); err != nil {
			return err
		}
	}
	return e.collectNow()
}

// collectNow waits for the launches that were started, and converts what they report to an error.
func (e *executable) collectNow() error {
	if err := e.queue(&e.collect); err != nil {
		return err
	}
	if err := e.stream.CopyOut(unsafe.Pointer(e.report), e.status, statusBytes); err != nil {
		return err
	}
	return e.finish()
}

// replay queues the parts, and records each sequence on the GPU the first time. It waits only for values that the
// processor reads.
func (e *executable) replay() error {
	for i := range e.parts {
		t := &e.parts[i]
		if t.host {
			if err := e.runHost(t.from); err != nil {
				return e.inLaunch(t.from, err)
			}
			continue
		}
		if !e.ran && e.exchanges != nil {
			// Participants connect to one another when they first exchange something, which cannot be recorded.
			err := e.queuePart(i, true, e.queueLaunches)
			if e.begun = true; err != nil {
				return err
			}
			continue
		}
		if t.graph == nil {
			g, err := e.record(i, true)
			if err != nil {
				return err
			}
			t.graph = g
		}
		if err := t.graph.Launch(e.stream); err != nil {
			return err
		}
		e.begun = true
	}
	return nil
}

// record makes the graph of part i, a sequence of launches, with or without the copies from and to the host.
func (e *executable) record(i int, copies bool) (g driver.Graph, err error) {
	if err := e.stream.BeginCapture(); err != nil {
		return nil, err
	}
	defer func() {
		var end error
		g, end = e.stream.EndCapture()
		if err = errors.Join(err, end); err != nil && g != nil {
			err = errors.Join(err, g.Close())
			g = nil
		}
	}()
	launches := e.queueLaunches
	if e.schedule != nil {
		launches = e.queueBranches
	}
	return nil, e.queuePart(i, copies, launches)
}

// queueLaunches queues the launches of part i, one after another.
func (e *executable) queueLaunches(i int) error {
	for j := e.parts[i].from; j < e.parts[i].to; j++ {
		if err := e.beside(j); err != nil {
			return e.inLaunch(j, err)
		}
	}
	return nil
}

// queuePart queues part i, a sequence of launches, which `launches` queues.
func (e *executable) queuePart(i int, copies bool, launches func(i int) error) error {
	if i == 0 {
		if err := e.begin(copies); err != nil {
			return err
		}
	}
	if err := launches(i); err != nil {
		return err
	}
	if err := e.endExchanges(); err != nil {
		return err
	}
	if i == len(e.parts)-1 {
		return e.end(copies)
	}
	return nil
}

// launch queues launch i; before the first one that writes an update, the reports of earlier launches are collected.
func (e *executable) launch(i int) error {
	if i == e.update {
		if err := e.queue(&e.collect); err != nil {
			return err
		}
	}
	return e.queueOn(e.stream, i)
}

// firstUpdate is the first launch that writes a State or Param in place, or −1.
func firstUpdate(p *lowering.Program) int {
	if p.Updates == nil {
		return -1
	}
	for i := range p.Launches {
		if updates(p, &p.Launches[i]) {
			return i
		}
	}
	return -1
}

// updates reports whether a launch writes a State or Param in place, and cannot be taken back.
func updates(p *lowering.Program, l *lowering.Launch) bool {
	for i, v := range l.Results {
		if r := p.Buffers[v.Buffer].Role; (r == lowering.State || r == lowering.Param) && overwrites(p, l, i) == nil {
			return true
		}
	}
	return false
}

// runEach runs launch by launch, to measure or to read values.
func (e *executable) runEach() error {
	if err := e.marked(e.marks.begin, e.marks.begun, func() error { return e.begin(true) }); err != nil {
		return err
	}
	e.begun = true
	if err := e.prepare(); err != nil {
		return err
	}
	run := e.runOne
	if e.exchanges != nil && e.watch == nil && !e.each {
		run = e.measureBeside
		e.exchanges.timing = true
		defer func() { e.exchanges.timing = false }()
	}
	for i := e.p.Prepared; i < len(e.p.Launches); i++ {
		if err := run(i); err != nil {
			return err
		}
	}
	if err := e.endExchanges(); err != nil {
		return err
	}
	return e.marked(e.marks.end, e.marks.ended, func() error { return e.end(true) })
}

// runOne runs a launch, measures it, and calls the function that watches.
func (e *executable) runOne(i int) error {
	err := e.marked(e.events[2*i], e.events[2*i+1], func() error {
		if e.p.Launches[i].Device == "" {
			return e.launch(i)
		}
		start := time.Now()
		err := e.runHost(i)
		e.times[i] = time.Since(start)
		return err
	})
	if err != nil {
		return e.inLaunch(i, err)
	}
	if e.watch != nil || e.each {
		if err := e.sync(); err != nil {
			return e.inLaunch(i, err)
		}
	}
	if e.watch != nil {
		return e.watch(&e.p.Launches[i], e.value)
	}
	return nil
}

// A given State has its value in a buffer of another executable.
type given struct {
	to     *executable
	buffer int
}

// TakeState implements lowering.Executable.
func (e *executable) TakeState(buffer int, from lowering.Executable, of int) (bool, error) {
	f, ok := lowering.Unowned(from).(*executable)
	if !ok || f == e || f.closed || e.closed || !f.ahead[of] || e.tensors[buffer] != f.tensors[of] || !pool.Same(e.gpu, f.gpu) {
		return false, nil
	}
	for _, x := range []*executable{f, e} {
		if x.lost != nil {
			return false, x.lost
		}
		if err := x.Wait(); err != nil {
			return false, err
		}
	}
	if err := e.stream.Copy(e.buffers[buffer], f.buffers[of], e.p.Buffers[buffer].Type.Bytes()); err != nil {
		return false, e.broken(err)
	}
	if err := e.stream.Sync(); err != nil {
		return false, e.broken(err)
	}
	e.stale[buffer], e.ahead[buffer] = false, true
	f.ahead[of], f.given[of] = false, given{e, buffer}
	return true, nil
}

// finish waits for the run and converts its report to an error.
func (e *executable) finish() error {
	if err := e.sync(); err != nil {
		return err
	}
	return e.reported()
}

func (e *executable) reported() error {
	r := e.report
	if r.Code == kernels.StatusOK {
		return nil
	}
	return e.inLaunch(int(r.Launch), r.Err(e.p.Launches[r.Launch].Op.OpName()))
}

// inLaunch adds the name of the launch to its error.
func (e *executable) inLaunch(i int, err error) error {
	return fmt.Errorf("launch %d, %s: %w", i+1, e.p.Launches[i].Node.Where(), err)
}

// Profile implements lowering.Executable.
func (e *executable) Profile(on bool) { e.profile = on }

// value copies the value of a view from the GPU.
func (e *executable) value(v lowering.View) (*graph.Tensor, error) {
	whole := graph.NewTensor(graph.Type{DType: v.DType, Shape: graph.ShapeOf(e.p.Buffers[v.Buffer].Type.Shape.Elems())})
	if err := e.download(v.Buffer, whole); err != nil {
		return nil, err
	}
	return e.host.Value(whole, v)
}

// download copies a buffer into a tensor and waits for it.
func (e *executable) download(buffer int, t *graph.Tensor) error {
	if t.Type.Shape.Elems() == 0 {
		return nil
	}
	to, n, err := bytesOf(t)
	if err != nil {
		return err
	}
	if err := e.stream.CopyOut(to, e.buffers[buffer], n); err != nil {
		return err
	}
	return e.stream.Sync()
}

// Sync implements lowering.Executable.
func (e *executable) Sync(buffers ...int) error {
	if e.closed {
		return nil
	}
	if e.lost != nil {
		return e.lost
	}
	if err := e.Wait(); err != nil {
		return err
	}
	if len(buffers) == 0 {
		for i := range e.p.Buffers {
			buffers = append(buffers, i)
		}
	}
	for _, i := range buffers {
		if g, ok := e.given[i]; ok {
			if err := g.to.Sync(g.buffer); err != nil {
				return err
			}
		}
		if !e.ahead[i] {
			continue
		}
		if err := e.download(i, e.tensors[i]); err != nil {
			return fmt.Errorf("copying %q from the GPU: %w", e.p.Buffers[i].Name, err)
		}
		e.ahead[i] = false
	}
	return nil
}
