package fpga

import (
	"fmt"
	"math"
	"slices"

	"fusec/graph"
	"fusec/lowering"
)

// A Range is the range of a value, found by calibration, for programs that are saved with it.
type Range struct {
	Value string  `json:"value"` // for people
	Lo    float64 `json:"lo"`
	Hi    float64 `json:"hi"`
	Seen  bool    `json:"seen"` // the value had numbers at all
}

// Calibrated gives the ranges that [Device.Calibrate] found, for the same graph and overlay: nothing is run to find
// them.
func Calibrated(r []Range) Option { return func(d *Device) { d.ranges = r } }

// named is a range of a laid out program with the name of its value.
type named struct {
	name string
	*calibre
}

// ranges lists all that calibration finds out, in an order that the program decides.
func (l *laid) ranges() (list []named) {
	for _, v := range l.values {
		list = append(list, named{v.name, &v.calibre})
	}
	for i := range l.launches {
		for _, t := range l.launches[i].tasks {
			if t.act.table() {
				list = append(list, named{"before " + t.act.name + " of " + t.out.v.name, &t.preCalibre})
			}
			if e := t.experts; e != nil {
				of := " of the experts of " + t.out.v.name
				list = append(list, named{"first product" + of, &e.pre}, named{"activation" + of, &e.acted},
					named{"second product" + of, &e.up},
					named{"hidden values" + of, &e.hidden})
			}
		}
	}
	return list
}

// otherProgram is why ranges do not fit.
const otherProgram = "they were found for another program or by another version of fusec"

// recall sets the ranges to those that were found before.
func (l *laid) recall(r []Range) error {
	list := l.ranges()
	if len(list) != len(r) {
		return fmt.Errorf("%d ranges for a program with %d: %s", len(r), len(list), otherProgram)
	}
	for i, x := range r {
		if list[i].name != x.Value {
			return fmt.Errorf("range %d is of %q, the program requires that of %q: %s", i, x.Value, list[i].name, otherProgram)
		}
		*list[i].calibre = calibre{x.Lo, x.Hi, x.Seen}
	}
	return nil
}

// calibrate finds the ranges on samples. Bound are the values of the program's sources, by buffer; a sample replaces
// inputs.
func (l *laid) calibrate(workers int, bound []*graph.Tensor, samples []map[string]*graph.Tensor) error {
	c, err := newCalibrator(l, workers)
	if err != nil {
		return err
	}
	defer c.close()
	if len(samples) == 0 {
		samples = []map[string]*graph.Tensor{nil}
	}
	for _, r := range l.ranges() {
		*r.calibre = calibre{}
	}
	for k, s := range samples {
		these := slices.Clone(bound)
		for i, b := range l.p.Buffers {
			t := s[b.Name]
			if b.Role != lowering.Input || t == nil {
				continue
			}
			if t.Type != b.Type {
				return fmt.Errorf("calibration sample %d: input %q is %v; the sample has type %v", k, b.Name, b.Type,
					t.Type)
			}
			for j := range t.Type.Shape.Elems() {
				if x := t.Float(j); math.IsNaN(x) || math.IsInf(x, 0) {
					return fmt.Errorf("calibration sample %d: input %q holds %v: ranges are found on finite numbers", k, b.Name, x)
				}
			}
			these[i] = t
		}
		if err := c.bind(these); err != nil {
			return err
		}
		if err := c.observe(); err != nil {
			return fmt.Errorf("calibration sample %d: %w", k, err)
		}
	}
	return nil
}

// Calibrate finds the ranges of a lowered program's values on the device's samples, without an overlay. Values are the
// sources, by name; a sample may lack inputs that are among them.
func (d *Device) Calibrate(p *lowering.Program, values map[string]*graph.Tensor) ([]Range, error) {
	l := layOut(d.cfg, p)
	if err := l.calibrate(d.host.Workers(), l.sources(values), d.samples); err != nil {
		return nil, err
	}
	var list []Range
	for _, r := range l.ranges() {
		list = append(list, Range{r.name, r.lo, r.hi, r.known})
	}
	return list, nil
}
