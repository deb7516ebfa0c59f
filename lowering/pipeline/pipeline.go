package pipeline

import (
	"errors"
	"fmt"

	"fusec/graph"
	"fusec/kernels/group"
	"fusec/lowering"
)

// Device is the devices of the participants, those of a stage one after another. What it says of itself is what the first one says.
type Device struct {
	lowering.Device
	all   []lowering.Device // by participant; that of this one alone, of a group
	open  func(i int, of *group.Group) (lowering.Device, error)
	local []group.Transport // of participants in this process
	group *group.Group      // of participants of which this process is one, or nil
	each  int               // participants of a stage
	// By participant those of its stage, or nil if it is alone; and those at its place in all stages, which hand values over.
	rows, columns []*group.Group
	inPlace       bool
	parts         *Parts
}

// Open makes a device of n, each participants of them for each stage, which open makes. Participants of a stage are a group; of one
// participant it is nil. InPlace says that devices read and write bound tensors themselves, and have no memory of their own.
func Open(n, each int, inPlace bool, open func(i int, of *group.Group) (lowering.Device, error)) (*Device, error) {
	d := &Device{local: group.Local(n, group.Forever), open: open, each: each, inPlace: inPlace}
	for i := range n {
		if err := d.place(group.New(d.local[i])); err != nil {
			return nil, err
		}
		one, err := open(i, d.rows[i])
		if err != nil {
			return nil, errors.Join(err, d.Close())
		}
		d.all = append(d.all, one)
	}
	d.Device = d.all[0]
	return d, nil
}

// place finds the groups of a participant.
func (d *Device) place(g *group.Group) error {
	var row, column []int
	stage, place := g.Rank()/d.each, g.Rank()%d.each
	for i := range d.each {
		row = append(row, stage*d.each+i)
	}
	for s := range g.Size() / d.each {
		column = append(column, s*d.each+place)
	}
	var of *group.Group
	if d.each > 1 {
		var err error
		if of, err = g.Sub(row); err != nil {
			return err
		}
	}
	across, err := g.Sub(column)
	d.rows, d.columns = append(d.rows, of), append(d.columns, across)
	return err
}

// Join makes a device of that of a participant of a group, each of whose stages has some of them. A nil group is for plans.
func Join(g *group.Group, each int, inPlace bool, open func(of *group.Group) (lowering.Device, error)) (*Device, error) {
	d := &Device{group: g, each: each, inPlace: inPlace,
		open: func(_ int, of *group.Group) (lowering.Device, error) { return open(of) }}
	var of *group.Group
	if g != nil {
		if err := d.place(g); err != nil {
			return nil, err
		}
		of = d.rows[0]
	}
	one, err := open(of)
	if err != nil {
		return nil, err
	}
	d.Device, d.all = one, []lowering.Device{one}
	return d, nil
}

// Shared implements [lowering.Device]: a program serves one executable.
func (d *Device) Shared() any { return nil }

// Close implements [lowering.Device].
func (d *Device) Close() error {
	return lowering.CloseAll(d.all)
}

// Whole makes one program of parts, which Compile takes. In a group it is of the participant's own stage.
func (d *Device) Whole(parts *Parts) (*lowering.Program, error) {
	d.parts, parts.inPlace = parts, d.inPlace
	if d.group != nil {
		return parts.program(d.group.Rank() / d.each)
	}
	return parts.program(-1)
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
	e := &Executable{p: p, parts: d.parts, local: d.local, group: d.group, inPlace: d.inPlace,
		bound: map[string]*graph.Tensor{}, stale: map[string]bool{}}
	for i, one := range d.all {
		rank := i
		if d.group != nil {
			rank = d.group.Rank()
		}
		used := false
		r, err := newRunner(d.parts, rank, d.columns[i], d.rows[i], func(q *lowering.Program) (exe lowering.Executable, err error) {
			of := one
			if used && one.Shared() == nil { // it compiles one program only
				if of, err = d.open(i, d.rows[i]); err != nil {
					return nil, err
				}
				defer func() { err = errors.Join(err, of.Close()) }()
			}
			used = true
			return of.Compile(q)
		})
		if err != nil {
			return nil, errors.Join(group.Of(rank, err), e.Close())
		}
		e.all = append(e.all, r)
	}
	e.errs = make([]error, len(e.all))
	e.outline()
	return e, nil
}
