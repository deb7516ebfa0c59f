package pipeline

import (
	"errors"
	"fmt"
	"math"

	"fusec/graph"
	"fusec/kernels/group"
	"fusec/lowering"
)

// patience is how long a participant of this process waits for another: none is lost without an error.
const patience = math.MaxInt64

// Device is the devices of the stages. What it says of itself is what the first one says.
type Device struct {
	lowering.Device
	all   []lowering.Device // by stage; that of this participant alone, of a group
	open  func(i int) (lowering.Device, error)
	local []group.Transport // of participants in this process
	group *group.Group      // of participants of which this process is one, or nil
	parts *Parts
}

// Open makes a device of n, one for each stage, each of which open makes.
func Open(n int, open func(i int) (lowering.Device, error)) (*Device, error) {
	d := &Device{local: group.Local(n, patience), open: open}
	for i := range n {
		one, err := open(i)
		if err != nil {
			return nil, errors.Join(err, d.Close())
		}
		d.all = append(d.all, one)
	}
	d.Device = d.all[0]
	return d, nil
}

// Join makes a device of that of a participant of a group, which computes the stage of its rank. A nil group is for plans.
func Join(g *group.Group, open func() (lowering.Device, error)) (*Device, error) {
	one, err := open()
	if err != nil {
		return nil, err
	}
	return &Device{Device: one, all: []lowering.Device{one}, group: g, open: func(int) (lowering.Device, error) { return open() }}, nil
}

// Shared implements [lowering.Device]: a program serves one executable.
func (d *Device) Shared() any { return nil }

// Close implements [lowering.Device].
func (d *Device) Close() error {
	var errs []error
	for _, one := range d.all {
		errs = append(errs, one.Close())
	}
	return errors.Join(errs...)
}

// Whole makes one program of parts, which Compile takes. In a group it is of the participant's own stage.
func (d *Device) Whole(parts *Parts) (*lowering.Program, error) {
	d.parts = parts
	if d.group != nil {
		return parts.whole(d.group.Rank())
	}
	return parts.whole(-1)
}

// Parts is what Whole was called with.
func (d *Device) Parts() *Parts { return d.parts }

// Compile implements [lowering.Device]. Code of the user's own is refused, as it is where participants share values.
func (d *Device) Compile(p *lowering.Program) (lowering.Executable, error) {
	for i := range p.Launches {
		l := &p.Launches[i]
		if _, own := l.Op.(graph.Host); own {
			return nil, fmt.Errorf("launch %d, %s: code of the user's own is not part of a pipeline: leave out the other devices", i+1,
				l.Node.Where())
		}
	}
	e := &Executable{p: p, parts: d.parts, local: d.local, group: d.group, bound: map[string]*graph.Tensor{}, stale: map[string]bool{}}
	for i, one := range d.all {
		g, stage := d.group, i
		if g != nil {
			stage = g.Rank()
		} else {
			g = group.New(d.local[i])
		}
		used := false
		r, err := newRunner(d.parts, stage, g, func(q *lowering.Program) (exe lowering.Executable, err error) {
			of := one
			if used && one.Shared() == nil { // it compiles one program only
				if of, err = d.open(i); err != nil {
					return nil, err
				}
				defer func() { err = errors.Join(err, of.Close()) }()
			}
			used = true
			return of.Compile(q)
		})
		if err != nil {
			return nil, errors.Join(participant(stage, err), e.Close())
		}
		e.all = append(e.all, r)
	}
	e.errs = make([]error, len(e.all))
	e.outline()
	return e, nil
}

// participant names the participant in an error.
func participant(i int, err error) error { return fmt.Errorf("participant %d: %w", i, err) }
