package cuda

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"unsafe"

	"fusec/graph"
	kernels "fusec/kernels/cuda"
	"fusec/lowering"
	"fusec/lowering/cuda/driver"
)

// Queued makes programs whose runs are queued in a stream of the caller's, and take the caller's memory on the GPU for inputs,
// outputs and temporary values; see [lowering.Queuer]. They use the GPU's primary context, as programs of CUDA's runtime
// library do. Programs with states are refused.
func Queued() Option { return func(d *Device) { d.queued = true } }

const (
	// reportSlots is how many runs may be on their way before the host waits for the report of one.
	reportSlots = 32
	// pending is the code of a report that has not come yet.
	pending = kernels.StatusCode(-1)
	// maxPlaces is how many sets of addresses are remembered, and maxRecords how many graphs are recorded in all. A program whose
	// addresses come again is recorded as a CUDA graph; one whose addresses are always others is not.
	maxPlaces  = 8
	maxRecords = 256
)

// lent is what an executable has whose runs take the caller's memory.
type lent struct {
	bytes   int64        // of temporary values and scratch memory together
	scratch int64        // where in it the scratch memory begins
	buffers []int        // inputs and outputs
	placed  []driver.Ptr // for which the launches have their parameters: one for each of buffers, and the memory lent
	at      []driver.Ptr // the same of the run that is queued
	known   []*placed    // the last used first
	records int          // graphs that were recorded

	streams map[uintptr]driver.Stream
	last    driver.Stream                    // of the last run
	reports *[reportSlots + 1]kernels.Status // the first is for what is waited for at once
	next    int                              // the slot of the next run
	oldest  int                              // of the slots before it, the first that has not been read
}

// placed is a set of addresses, and the graph of a run on them once they have come again.
type placed struct {
	at    []driver.Ptr
	graph driver.Graph
}

// queued is an executable whose runs take the caller's memory.
type queued struct{ *executable }

var _ lowering.Queuer = queued{}

// newLent says which buffers are the caller's, and where in the memory lent the others are.
func (e *executable) newLent() error {
	if len(e.p.Updates) > 0 {
		return errors.New("a program with states, or that updates parameters, does not run in the caller's memory")
	}
	l := &lent{streams: map[uintptr]driver.Stream{}, scratch: roundUp(e.p.RunningBytes)}
	for i, b := range e.p.Buffers {
		switch b.Role {
		case lowering.Input, lowering.Output:
			l.buffers = append(l.buffers, i)
		}
	}
	l.bytes = l.scratch + e.scratchN
	e.lent = l
	return nil
}

// isLent reports whether a buffer is in the caller's memory.
func (e *executable) isLent(buffer int) bool {
	switch e.p.Buffers[buffer].Role {
	case lowering.Input, lowering.Output, lowering.Temp:
		return e.lent != nil
	}
	return false
}

// QueueBytes implements lowering.Queuer.
func (q queued) QueueBytes() int64 { return q.lent.bytes }

// Queue implements lowering.Queuer.
func (q queued) Queue(r *lowering.QueuedRun) error {
	e := q.executable
	switch {
	case e.closed:
		return errClosed
	case e.lost != nil:
		return e.lost
	}
	return e.broken(e.queueRun(r))
}

func (e *executable) queueRun(r *lowering.QueuedRun) (err error) {
	l := e.lent
	if err := e.readReports(); err != nil {
		return err
	}
	if err := e.takeAddresses(r); err != nil {
		return err
	}
	s := l.streams[r.Stream]
	if s == nil {
		if s, err = e.gpu.StreamAt(r.Stream); err != nil {
			return err
		}
		l.streams[r.Stream] = s
	}
	if b, ok := e.gpu.(driver.Borrower); ok {
		giveBack, err := b.Borrow(e.borrowed())
		if err != nil {
			return err
		}
		defer giveBack()
	}
	if err := e.prepareLent(s); err != nil {
		return err
	}
	recording, err := s.Recording()
	if err != nil {
		return err
	}
	g, err := e.graphFor(l.at, recording)
	if err != nil {
		return err
	}
	l.last = s
	if g != nil {
		err = g.Launch(s)
	} else if err = e.placeLent(l.at); err == nil {
		err = e.on(s, e.queueParts)
	}
	if err == nil && e.reports {
		err = e.queueReport(s)
	}
	return err
}

// on calls f with another stream in the place of the executable's.
func (e *executable) on(s driver.Stream, f func() error) error {
	own := e.stream
	e.stream = s
	defer func() { e.stream = own }()
	return f()
}

// queueParts queues the launches of a run, one by one.
func (e *executable) queueParts() error {
	e.had = nil
	for i := range e.parts {
		var err error
		if p := &e.parts[i]; p.host {
			if err = e.runHost(p.from); err != nil {
				err = e.inLaunch(p.from, err)
			}
		} else {
			err = e.queuePart(i, false, e.queueLaunches)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// takeAddresses reads where a run's values are.
func (e *executable) takeAddresses(r *lowering.QueuedRun) error {
	l := e.lent
	if len(r.At) != len(e.p.Buffers) {
		return fmt.Errorf("%d addresses for %d buffers", len(r.At), len(e.p.Buffers))
	}
	l.at = l.at[:0]
	for _, i := range l.buffers {
		b, at := &e.p.Buffers[i], r.At[i]
		switch {
		case b.Type.Bytes() == 0 || b.Role == lowering.Input && !e.needs(i):
			at = 0
		case at == 0:
			return fmt.Errorf("%s %q has no memory", b.Role, b.Name)
		case at%lowering.QueueAlign != 0:
			return fmt.Errorf("%s %q is at %#x; addresses must be multiples of %d", b.Role, b.Name, at, lowering.QueueAlign)
		}
		l.at = append(l.at, driver.Ptr(at))
	}
	scratch := r.Scratch
	switch {
	case l.bytes == 0:
		scratch = 0
	case scratch == 0:
		return fmt.Errorf("the run has no memory for its %d bytes of temporary values", l.bytes)
	case scratch%lowering.QueueAlign != 0:
		return fmt.Errorf("temporary values are at %#x; addresses must be multiples of %d", scratch, lowering.QueueAlign)
	}
	l.at = append(l.at, driver.Ptr(scratch))
	return nil
}

// borrowed is the memory of the run that is queued.
func (e *executable) borrowed() []driver.Borrowed {
	l := e.lent
	list := []driver.Borrowed{{At: l.at[len(l.buffers)], Bytes: l.bytes}}
	for j, i := range l.buffers {
		if l.at[j] != 0 {
			b := &e.p.Buffers[i]
			list = append(list, driver.Borrowed{At: l.at[j], Bytes: b.Type.Bytes(), Written: b.Role == lowering.Input})
		}
	}
	return list
}

// prepareLent copies parameters that were bound to the GPU, and runs the prepared part, where that has not been done. Runs that
// read the values of before are waited for.
func (e *executable) prepareLent(s driver.Stream) error {
	stale := e.p.Prepared > 0 && !e.prepared
	for i, b := range e.p.Buffers {
		stale = stale || b.Role == lowering.Param && (e.stale[i] && !e.originals[i] || e.tensors[i] == nil && e.needs(i))
	}
	if !stale {
		return nil
	}
	if e.lent.last != nil {
		if err := e.lent.last.Sync(); err != nil {
			return err
		}
	}
	if err := s.Sync(); err != nil { // the memory lent may be in use until then
		return err
	}
	if err := e.upload(); err != nil {
		return err
	}
	e.lent.placed = nil
	e.useScratch(e.lent.at[len(e.lent.buffers)])
	return e.prepare()
}

// useScratch gives temporary values and the launches' scratch memory their places in the memory lent.
func (e *executable) useScratch(at driver.Ptr) {
	for i, b := range e.p.Buffers {
		if b.Role == lowering.Temp && !e.passing(i) {
			e.buffers[i] = at + driver.Ptr(b.Offset)
		}
	}
	for i := range e.launches {
		e.launches[i].scratch = at + driver.Ptr(e.lent.scratch+e.scratchAt[i])
	}
}

// placeLent gives the launches their parameters for the addresses of a run.
func (e *executable) placeLent(at []driver.Ptr) error {
	l := e.lent
	if slices.Equal(l.placed, at) {
		return nil
	}
	l.placed = l.placed[:0]
	for j, i := range l.buffers {
		e.buffers[i] = at[j]
	}
	e.useScratch(at[len(l.buffers)])
	for i := e.p.Prepared; i < len(e.p.Launches); i++ {
		if e.launches[i].kernel == nil {
			continue
		}
		if err := e.place(i); err != nil {
			return err
		}
	}
	l.placed = append(l.placed, at...)
	return nil
}

// graphFor is the graph of a run on some addresses: nil the first time that these come, and where the stream is recorded or the
// processor takes part.
func (e *executable) graphFor(at []driver.Ptr, recording bool) (driver.Graph, error) {
	l := e.lent
	if recording || len(e.parts) > 1 {
		return nil, nil
	}
	i := slices.IndexFunc(l.known, func(p *placed) bool { return slices.Equal(p.at, at) })
	if i < 0 {
		p := &placed{at: slices.Clone(at)}
		if len(l.known) == maxPlaces {
			if err := e.forget(l.known[maxPlaces-1]); err != nil {
				return nil, err
			}
			l.known = l.known[:maxPlaces-1]
		}
		l.known = slices.Insert(l.known, 0, p)
		return nil, nil
	}
	p := l.known[i]
	copy(l.known[1:], l.known[:i])
	l.known[0] = p
	if p.graph != nil || l.records == maxRecords {
		return p.graph, nil
	}
	if err := e.placeLent(at); err != nil {
		return nil, err
	}
	l.records++
	var err error
	p.graph, err = e.record(0, false)
	return p.graph, err
}

// forget closes a graph, once no run uses it.
func (e *executable) forget(p *placed) error {
	if p.graph == nil {
		return nil
	}
	if err := e.lent.last.Sync(); err != nil {
		return err
	}
	g := p.graph
	p.graph = nil
	return g.Close()
}

// takeReportMemory allocates the pinned memory for the reports of runs.
func (e *executable) takeReportMemory() error {
	bytes := (reportSlots + 1) * statusBytes
	p, err := e.gpu.AllocHost(bytes)
	if err != nil {
		return err
	}
	e.pinned = bytes
	e.report = (*kernels.Status)(p)
	e.lent.reports = (*[reportSlots + 1]kernels.Status)(p)
	*e.lent.reports = [reportSlots + 1]kernels.Status{}
	return nil
}

// queueReport has the report of the run that has been queued come to the next place.
func (e *executable) queueReport(s driver.Stream) error {
	l := e.lent
	if l.next-l.oldest == reportSlots {
		if err := l.last.Sync(); err != nil {
			return err
		}
		err := e.readReports()
		l.oldest = l.next
		if err != nil {
			return err
		}
	}
	r := &l.reports[1+l.next%reportSlots]
	atomic.StoreInt32(&r.Code, pending)
	l.next++
	return s.CopyOut(unsafe.Pointer(r), e.status, statusBytes)
}

// readReports reads the reports that have come, and gives the first error.
func (e *executable) readReports() error {
	l := e.lent
	for ; l.oldest < l.next; l.oldest++ {
		r := &l.reports[1+l.oldest%reportSlots]
		switch atomic.LoadInt32(&r.Code) {
		case pending:
			return nil
		case kernels.StatusOK:
			continue
		}
		if err := l.last.Sync(); err != nil { // so that all of the report is there
			return err
		}
		l.oldest++
		return e.inLaunch(int(r.Launch), r.Err(e.p.Launches[r.Launch].Op.OpName()))
	}
	return nil
}

// Wait implements lowering.Executable.
func (q queued) Wait() error {
	e := q.executable
	if e.closed {
		return nil
	}
	if e.lost != nil {
		return e.lost
	}
	for _, s := range e.lent.streams {
		if err := s.Sync(); err != nil {
			return e.broken(err)
		}
	}
	err := e.readReports()
	if err != nil {
		e.lent.oldest = e.lent.next
	}
	return err
}

// Bind implements lowering.Executable.
func (q queued) Bind(buffer int, t *graph.Tensor) error {
	if b := &q.p.Buffers[buffer]; b.Role == lowering.Input {
		return fmt.Errorf("input %q: %w", b.Name, lowering.ErrQueued)
	}
	return q.executable.Bind(buffer, t)
}

// Run implements lowering.Executable.
func (queued) Run() error { return lowering.ErrQueued }

// Start implements lowering.Executable.
func (queued) Start() error { return lowering.ErrQueued }

// Output implements lowering.Executable: the caller has the outputs.
func (queued) Output(int) *graph.Tensor { return nil }

// Sync implements lowering.Executable.
func (q queued) Sync(...int) error { return q.Wait() }

// Memory implements lowering.Executable.
func (q queued) Memory() lowering.Memory {
	m := lowering.Memory{Prepared: q.p.PreparedBytes}
	m.Kernels = q.bytes - m.Prepared
	return m
}

// Close implements lowering.Executable.
func (q queued) Close() error {
	e := q.executable
	if e.closed {
		return nil
	}
	var errs []error
	if e.lost == nil {
		errs = append(errs, q.Wait())
	}
	for _, p := range e.lent.known {
		errs = append(errs, e.forget(p))
	}
	for _, s := range e.lent.streams {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, e.Close())...)
}

func roundUp(n int64) int64 { return (n + align - 1) / align * align }
