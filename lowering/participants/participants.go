// Package participants runs a program on several devices of one process: each is a participant of a group, with its own part
// of the values. To its caller the executable is that of one device, which is given whole values and gives whole values.
package participants

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"fusec/graph"
	"fusec/kernels/group"
	"fusec/lowering"
)

// Device is several devices of one target. What it says of itself is what the first one says.
type Device struct {
	lowering.Device
	all     []lowering.Device
	members []group.Transport
	inPlace bool
}

// Open makes a device of n, each of which open makes for its place in the group. InPlace says that they read and write bound
// tensors themselves, and have no memory of their own.
func Open(n int, inPlace bool, open func(i int, g *group.Group) (lowering.Device, error)) (*Device, error) {
	d := &Device{members: group.Local(n, group.Forever), inPlace: inPlace}
	for i, m := range d.members {
		one, err := open(i, group.New(m))
		if err != nil {
			return nil, errors.Join(err, d.Close())
		}
		d.all = append(d.all, one)
	}
	d.Device = d.all[0]
	return d, nil
}

// Shared implements [lowering.Device]: a program serves one executable.
func (d *Device) Shared() any { return nil }

// Close implements [lowering.Device].
func (d *Device) Close() error {
	return lowering.CloseAll(d.all)
}

// Compile implements [lowering.Device]. Code of the user's own is refused: each participant would run it, and at the same time.
func (d *Device) Compile(p *lowering.Program) (lowering.Executable, error) {
	for i := range p.Launches {
		l := &p.Launches[i]
		if _, own := l.Op.(graph.Host); own {
			return nil, fmt.Errorf("launch %d, %s: code of the user's own runs on one participant only: leave out the other devices, or "+
				"give each a process", i+1, l.Node.Where())
		}
	}
	e := &Executable{p: p, members: d.members, inPlace: d.inPlace, bound: make([]*source, len(p.Buffers)),
		errs: make([]error, len(d.all))}
	for i, one := range d.all {
		exe, err := one.Compile(p)
		if err != nil {
			return nil, errors.Join(group.Of(i, err), e.Close())
		}
		e.all = append(e.all, exe)
	}
	updated := make([]bool, len(p.Buffers))
	for _, u := range p.Updates {
		updated[u.Target] = true
	}
	for i := range p.Buffers {
		b := &p.Buffers[i]
		switch b.Role {
		case lowering.Input, lowering.Param, lowering.State:
			s := &source{buffer: i, sharding: b.Sharding, updated: updated[i], split: p.Mesh.Parts(b.Sharding.Over()) > 1}
			s.whole = b.Type
			if s.split {
				s.whole = b.Type.Reshaped(b.Sharding.Whole(p.Mesh, b.Type.Shape))
			}
			s.each = !s.updated && (b.Role == lowering.Input || !p.Frozen)
			e.bound[i] = s
			e.sources = append(e.sources, s)
		}
	}
	return e, nil
}

// A source is an input, parameter or state, and what the participants have of it.
type source struct {
	buffer   int
	whole    graph.Type // that the caller binds
	sharding graph.Sharding
	split    bool // each participant has a part
	updated  bool // the program writes it
	each     bool // it is read again by each run
	stale    bool // another value was bound

	value *graph.Tensor   // the caller's
	parts []*graph.Tensor // by participant: what is bound there
	ahead []*graph.Tensor // by participant: what Prefetch copies
}

// Executable is a program on all devices. Values go from one to another over the caller's tensors.
type Executable struct {
	lowering.ExecutableDefaults
	p       *lowering.Program
	all     []lowering.Executable
	members []group.Transport
	inPlace bool
	bound   []*source // by buffer; nil for those that are not bound
	sources []*source
	errs    []error // of the participants, in the last run
	broken  error   // the program cannot run any more
	started bool
	one     [1]int
}

// Whole is the type of the value that is bound to a buffer.
func (e *Executable) Whole(buffer int) graph.Type {
	if s := e.bound[buffer]; s != nil {
		return s.whole
	}
	return e.p.Buffers[buffer].Type
}

// Bind implements [lowering.Executable].
func (e *Executable) Bind(buffer int, t *graph.Tensor) error {
	s := e.bound[buffer]
	if s == nil || !s.split {
		if err := e.p.MayBind(buffer, t); err != nil {
			return err
		}
	} else if b := &e.p.Buffers[buffer]; t == nil || t.Type != s.whole {
		if t == nil {
			return e.p.MayBind(buffer, t)
		}
		return fmt.Errorf("%s %q is %v, of which each participant has %v; it was given a value of type %v", b.Role, b.Name, s.whole,
			b.Type, t.Type)
	}
	s.value, s.stale = t, true
	return nil
}

// hand gives the participants what they read of a source.
func (e *Executable) hand(s *source) error {
	if s.value == nil {
		return nil // a participant says so
	}
	if s.parts == nil {
		s.parts = make([]*graph.Tensor, len(e.all))
	}
	for i, exe := range e.all {
		bind := s.stale
		switch {
		case s.split && (s.stale || s.each):
			if s.parts[i] == nil {
				s.parts[i] = graph.NewTensor(e.p.Buffers[s.buffer].Type)
			}
			if err := s.sharding.Take(e.p.Mesh, s.value, s.parts[i], i); err != nil {
				return err
			}
		case s.split:
		case i > 0 && s.updated && e.inPlace:
			// The first participant writes the caller's tensor, which the caller may have changed since the last run.
			if s.parts[i] == nil {
				s.parts[i] = graph.NewTensor(s.whole)
			}
			s.parts[i].CopyFrom(s.value)
		default:
			s.parts[i] = s.value
		}
		if bind {
			if err := exe.Bind(s.buffer, s.parts[i]); err != nil {
				return group.Of(i, err)
			}
		}
	}
	s.stale = false
	return nil
}

// ready gives the participants the values of all sources.
func (e *Executable) ready() error {
	if e.broken != nil {
		return e.broken
	}
	for _, s := range e.sources {
		if err := e.hand(s); err != nil {
			return err
		}
	}
	return nil
}

// ended looks at the errors of a run. That of the participant that has failed by itself is the run's. No participant has changed
// state then, so that processors can go on.
func (e *Executable) ended() error {
	at := group.Origin(e.errs)
	if at < 0 {
		return nil
	}
	err := group.Of(at, e.errs[at])
	if e.inPlace {
		group.Renew(e.members)
	} else {
		e.broken = fmt.Errorf("the program cannot run again, since its GPUs have left their group: %w", err)
	}
	return err
}

// tell ends the others' waiting for a participant that has failed.
func (e *Executable) tell(i int, err error) error {
	if err != nil && !group.IsLost(err) {
		e.members[i].Abort(err)
	}
	return err
}

// Run implements [lowering.Executable].
func (e *Executable) Run() error {
	if err := e.Start(); err != nil {
		return err
	}
	return e.Wait()
}

// Start implements [lowering.Executable].
func (e *Executable) Start() error {
	if err := e.Wait(); err != nil {
		return err
	}
	if err := e.ready(); err != nil {
		return err
	}
	group.Together(e.all, e.errs, func(i int, exe lowering.Executable) error { return e.tell(i, exe.Start()) })
	e.started = true
	if slices.ContainsFunc(e.errs, func(err error) bool { return err != nil }) {
		return e.Wait()
	}
	return nil
}

// Wait implements [lowering.Executable].
func (e *Executable) Wait() error {
	if !e.started {
		return nil
	}
	e.started = false
	group.Together(e.all, e.errs, func(i int, exe lowering.Executable) error {
		if e.errs[i] != nil {
			return e.errs[i]
		}
		return e.tell(i, exe.Wait())
	})
	return e.ended()
}

// Prefetch implements [lowering.Executable].
func (e *Executable) Prefetch(buffer int, t *graph.Tensor) (bool, error) {
	if e.inPlace {
		return e.all[0].Prefetch(buffer, t)
	}
	s := e.bound[buffer]
	if s != nil && s.stale { // what was bound is not for the next run, but has to be there
		if err := e.hand(s); err != nil {
			return false, err
		}
	}
	for i, exe := range e.all {
		part := t
		if s != nil && s.split && t != nil && t.Type == s.whole {
			if s.ahead == nil {
				s.ahead = make([]*graph.Tensor, len(e.all))
			}
			if s.ahead[i] == nil {
				s.ahead[i] = graph.NewTensor(e.p.Buffers[buffer].Type)
			}
			part = s.ahead[i]
			if err := s.sharding.Take(e.p.Mesh, t, part, i); err != nil {
				return false, err
			}
		}
		if copied, err := exe.Prefetch(buffer, part); !copied || err != nil {
			return copied, err
		}
	}
	return true, nil
}

// Sync implements [lowering.Executable]: parts that runs have changed are joined.
func (e *Executable) Sync(buffers ...int) error {
	for _, s := range e.sources {
		if !s.updated || s.stale || s.value == nil || len(buffers) > 0 && !slices.Contains(buffers, s.buffer) {
			continue
		}
		e.one[0] = s.buffer
		for i, exe := range e.all {
			if err := exe.Sync(e.one[:]...); err != nil {
				return group.Of(i, err)
			}
			if !s.split {
				break // all have the same
			}
			if err := s.sharding.Join(e.p.Mesh, s.value, s.parts[i], i); err != nil {
				return err
			}
		}
	}
	return nil
}

// Watch implements [lowering.Executable]: it sees what the first participant makes. See [Executable.WatchEach].
func (e *Executable) Watch(check func(*lowering.Launch, func(lowering.View) (*graph.Tensor, error)) error) {
	e.all[0].Watch(check)
}

// WatchEach is Watch with a function for each participant, which make gives. They are called at the same time.
func (e *Executable) WatchEach(make func() func(*lowering.Launch, func(lowering.View) (*graph.Tensor, error)) error) {
	for _, exe := range e.all {
		exe.Watch(make())
	}
}

// Output implements [lowering.Executable]: outputs are whole on each participant.
func (e *Executable) Output(buffer int) *graph.Tensor { return e.all[0].Output(buffer) }

// BindOutput implements [lowering.Executable].
func (e *Executable) BindOutput(buffer int, t *graph.Tensor) (bool, error) {
	return e.all[0].BindOutput(buffer, t)
}

// Profile implements [lowering.Executable].
func (e *Executable) Profile(on bool) {
	for _, exe := range e.all {
		exe.Profile(on)
	}
}

// Times implements [lowering.Executable]: they are those of the first participant, as all that is measured is.
func (e *Executable) Times() []time.Duration { return e.all[0].Times() }

// Memory implements [lowering.Executable]: it is that of all participants.
func (e *Executable) Memory() (m lowering.Memory) {
	for _, exe := range e.all {
		m.Add(exe.Memory())
	}
	return m
}

// Measure implements [lowering.Executable].
func (e *Executable) Measure(n int) ([]time.Duration, error) {
	if err := errors.Join(e.Wait(), e.broken); err != nil {
		return nil, err
	}
	times := make([][]time.Duration, len(e.all))
	group.Together(e.all, e.errs, func(i int, exe lowering.Executable) (err error) {
		times[i], err = exe.Measure(n)
		if err == lowering.ErrNoClock {
			return err
		}
		return e.tell(i, err)
	})
	if e.errs[0] == lowering.ErrNoClock {
		return nil, e.errs[0]
	}
	return times[0], e.ended()
}

// Inspect implements [lowering.Executable].
func (e *Executable) Inspect() (*lowering.Inspection, error) { return e.all[0].Inspect() }

// Timeline implements [lowering.Executable].
func (e *Executable) Timeline() []lowering.Span { return e.all[0].Timeline() }

// Counts implements [lowering.Executable].
func (e *Executable) Counts() lowering.Counts { return e.all[0].Counts() }

// Rounded implements [lowering.Executable].
func (e *Executable) Rounded(buffer int) (step, lo, hi float64) { return e.all[0].Rounded(buffer) }

// Close implements [lowering.Executable]. It brings nothing back: [Executable.Sync] does.
func (e *Executable) Close() error {
	errs := []error{e.Wait()}
	for i, exe := range e.all {
		for _, s := range e.sources {
			if s.updated && !e.inPlace && s.value != nil {
				errs = append(errs, exe.Bind(s.buffer, graph.NewTensor(e.p.Buffers[s.buffer].Type)))
			}
		}
		if err := exe.Close(); err != nil {
			errs = append(errs, group.Of(i, err))
		}
	}
	return errors.Join(errs...)
}
