// Package fpga makes programs executable on the overlay of package fusec/fpga, whose multipliers take 8 bits.
//
//	lowering.Program ─► partition ─► tasks ─► layout ─► ranges ─► codes ─► descriptors ─► link
//
// A launch that the overlay supports becomes tasks, each one of EXEC's operations: products, rows of elements and
// norms, attention, mixtures of experts. All others run on the processor in between, with the reason. Each value
// between two tasks has one step for all its numbers, which is found by running the program in floating point on
// samples. Each channel of weights has its own step. The scratchpads are ring buffers of blocks. The accesses of
// descriptors determine which waits for which, so that loads, products and stores overlap, also across launches.
package fpga

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"fusec/fpga/isa"
	"fusec/fpga/link"
	"fusec/fpga/plan"
	"fusec/graph"
	"fusec/graph/trace"
	"fusec/lowering"
	"fusec/lowering/cpu"
)

// Device is an overlay, or the plan of one.
type Device struct {
	lowering.Defaults
	cfg     isa.Config
	open    func(ctx context.Context, cfg isa.Config, memory int64) (link.Link, error)
	samples []map[string]*graph.Tensor
	ranges  []Range                  // or nil: they are to be found
	routed  map[string]*graph.Tensor // values that plans route, or nil
	host    *cpu.Device
	memory  plan.Memory // the external memory that estimates count with
	clock   float64

	chosen      bool              // an option has named the overlay
	link        string            // the way to it
	linkLog     func(line string) // told what opening it does
	linkContext context.Context   // that opening it ends with, or nil
	err         error             // of an option
}

// Option configures a Device.
type Option func(*Device)

// leastWords is how many words the memories of an overlay have at least for tiles to fit.
const leastWords = 32

// check refuses what is no overlay, sizes of units that it lacks, and memories that are too small for tiles.
func check(c isa.Config) error {
	if err := c.Check(); err != nil {
		return err
	}
	if !c.Attention() && (c.HeadDim != 0 || c.QPanels != 0) {
		return fmt.Errorf("overlay %q has HeadDim %d and QPanels %d without attention: KeyBlock is 0", c.Name, c.HeadDim, c.QPanels)
	}
	if !c.Router() && (c.ListLen != 0 || c.Tokens != 0 || c.TopK != 0) {
		return fmt.Errorf("overlay %q has ListLen %d, Tokens %d and TopK %d without a router: Experts is 0", c.Name, c.ListLen,
			c.Tokens, c.TopK)
	}
	if n := min(c.XWords, c.WWords, c.YWords); n < leastWords {
		return fmt.Errorf("overlay %q has a memory of %d words; programs need %d", c.Name, n, leastWords)
	}
	return nil
}

// For compiles for an overlay of that configuration. The default is the one that the link leads to.
func For(c isa.Config) Option {
	err := check(c)
	return func(d *Device) {
		if err != nil {
			d.err = errors.Join(d.err, fmt.Errorf("fpga.For: %w", err))
		}
		d.cfg, d.chosen = c, true
	}
}

// Over runs programs on the overlay behind a link, which is opened with at least so many bytes of memory, and again
// after it has failed.
func Over(open func(ctx context.Context, cfg isa.Config, memory int64) (link.Link, error)) Option {
	return func(d *Device) { d.open = open }
}

// Samples gives values of the inputs, by name, an input that a sample lacks being that of the first run. The program is
// run on them in floating point, and the numbers of each value between two launches are then given 8 bits between the
// least and the greatest that it had. Without any, the inputs of the first run are the sample.
func Samples(samples ...map[string]*graph.Tensor) Option {
	return func(d *Device) {
		for i, s := range samples {
			for _, name := range slices.Sorted(maps.Keys(s)) {
				if t := s[name]; t == nil {
					d.err = errors.Join(d.err, fmt.Errorf("fpga.Samples: sample %d has no value for %q", i, name))
				} else if err := t.Check(); err != nil {
					d.err = errors.Join(d.err, fmt.Errorf("fpga.Samples: sample %d: %q: %w", i, name, err))
				}
			}
		}
		d.samples = append(d.samples, samples...)
	}
}

// Routed gives values of all sources, by name, on which plans find out how many tokens go to each expert. Without them
// all experts are taken to get equally many.
func Routed(values map[string]*graph.Tensor) Option { return func(d *Device) { d.routed = values } }

// Processor runs the launches that the overlay does not support.
func Processor(c *cpu.Device) Option { return func(d *Device) { d.host = c } }

// New makes a device. Without [Over] it only plans. Options that are nil are ignored.
func New(opts ...Option) *Device {
	d := &Device{host: cpu.New(), memory: plan.Memory{Bytes: 8, Latency: 40}, clock: 100e6}
	d.cfg, _ = isa.Overlay(isa.Overlays()[0])
	for _, o := range opts {
		if o != nil {
			o(d)
		}
	}
	return d
}

// Name implements lowering.Device.
func (d *Device) Name() string { return "fpga" }

// Overlay is the configuration that programs are made for.
func (d *Device) Overlay() isa.Config { return d.cfg }

// Accepts implements lowering.Device: operations that the overlay lacks run on the processor. [Device.Place] decides
// for each launch. Images stay in NCHW: another layout would put conversions between the processor's launches and the
// overlay's.
func (d *Device) Accepts(op graph.Op, args, results []graph.Type) error {
	if image, ok := op.(graph.ImageOp); ok && image.ImageLayout() != graph.NCHW {
		return fmt.Errorf("the overlay's programs have images of NCHW, not of %v", image.ImageLayout())
	}
	return d.host.Accepts(op, args, results)
}

// Lowering implements lowering.Device.
func (d *Device) Lowering() []lowering.Option { return []lowering.Option{lowering.CannotUndo()} }

// Place implements lowering.Device.
func (d *Device) Place(p *lowering.Program) {
	l := layOut(d.cfg, p)
	for i := range p.Launches {
		if err := l.launches[i].refusal; err != nil {
			p.Launches[i].Device, p.Launches[i].Reason = d.host.Name(), err.Error()
		}
	}
	listing, err := d.program(l)
	if err != nil {
		p.Refusal = err.Error() // Compile says it, too
		return
	}
	for i := range p.Launches {
		p.Launches[i].Source = listing.Launches[i].Text
		if n := listing.Launches[i].Estimate; n > 0 {
			p.Launches[i].Estimates = trace.Measures{{Name: Cycles, Unit: Cycles, Value: float64(n)}}
		}
	}
}

// Describe implements lowering.Device.
func (d *Device) Describe(t *trace.Trace, p *lowering.Program) {
	t.Chip, t.Precision = d.cfg.Name, "int8"
	last := &t.Stages[len(t.Stages)-1]
	note := func(format string, args ...any) {
		last.Notes = append(last.Notes, trace.Note{Node: -1, Text: fmt.Sprintf(format, args...)})
	}
	sample := "the inputs of the first run"
	switch n := len(d.samples); {
	case d.ranges != nil:
		sample = "the samples that the program was compiled with"
	case n > 0:
		sample = fmt.Sprintf("%d samples of the inputs", n)
	}
	note("values between launches have 8 bits from the least to the greatest number that they have on %s, weights 8 bits "+
		"for each channel", sample)
	r, err := d.Plan(p)
	if err != nil {
		note("it cannot run on the overlay %s: %v", d.cfg.Name, err)
		return
	}
	var cycles, ideal int64
	for _, l := range r.Launches {
		if l.Refusal == "" {
			cycles, ideal = cycles+l.Estimate, ideal+l.Ideal
		}
	}
	if cycles > 0 {
		note("on the overlay %s the launches take about %d cycles, the multipliers working in %.3g %% of them, and %d bytes "+
			"of memory", d.cfg.Name, cycles, 100*float64(ideal)/float64(cycles), r.Bytes)
	}
}

// Listing is the program of an overlay, for people and for estimates.
type Listing struct {
	Overlay  isa.Config
	Launches []LaunchListing
	Parts    [][]Step // the descriptors of each stretch of launches
	Bytes    int64    // of external memory
}

// LaunchListing lists the tasks and descriptors of a launch.
type LaunchListing struct {
	Name     string // as errors name it
	Tasks    []string
	Refusal  string // why it runs on the processor
	Text     string // its tasks and descriptors
	Estimate int64  // cycles
	Ideal    int64  // cycles in which its products would be done if every multiplier worked
	Moved    int64  // bytes that it reads and writes of external memory, at most
}

// Plan lays out a lowered program for an overlay, which need not be there, and lists its descriptors. What follows from
// calibration, factors and zeros, is 0 in it.
func (d *Device) Plan(p *lowering.Program) (*Listing, error) { return d.program(layOut(d.cfg, p)) }

// Code implements [lowering.Coder]: it is the descriptors.
func (d *Device) Code(p *lowering.Program, _ string) (string, error) {
	list, err := d.Plan(p)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("# %s: factors, shifts and zeros come by calibration and are 0 here\n%s", p.Name, list), nil
}

func (d *Device) program(l *laid) (*Listing, error) {
	if d.routed != nil {
		if err := l.choose(d.host.Workers(), d.routed); err != nil {
			return nil, err
		}
	}
	r := &Listing{Overlay: d.cfg, Launches: make([]LaunchListing, len(l.p.Launches))}
	for i := range l.p.Launches {
		x := &r.Launches[i]
		x.Name = l.p.Launches[i].Node.Where()
		x.Ideal = l.ideal(i)
		if err := l.launches[i].refusal; err != nil {
			x.Refusal = err.Error()
		}
		for _, t := range l.launches[i].tasks {
			x.Tasks = append(x.Tasks, t.text())
		}
		if m := l.launches[i].routes; m > 0 {
			x.Tasks = append(x.Tasks, fmt.Sprintf("the router of launch %d makes it", m))
		}
	}
	bytes := l.code
	for _, p := range l.parts {
		if p.host {
			continue
		}
		steps, err := l.assemble(p.from, p.to)
		if err != nil {
			return nil, err
		}
		cycles, err := l.estimate(p, steps, d.memory)
		if err != nil {
			return nil, err
		}
		for i, c := range cycles {
			r.Launches[p.from+i].Estimate = c
		}
		for _, s := range steps {
			switch c := s.Cmd.(type) {
			case *isa.Load:
				r.Launches[s.Launch].Moved += int64(c.Rows) * int64(c.Segments()) * int64(c.Words) * int64(d.cfg.WordBytes)
			case *isa.Store:
				r.Launches[s.Launch].Moved += int64(c.Rows) * int64(c.Words) * int64(d.cfg.WordBytes)
			}
		}
		r.Parts = append(r.Parts, steps)
		bytes += int64(len(steps) * isa.DescBytes)
	}
	r.Bytes = bytes
	for i := range r.Launches {
		r.Launches[i].Text = r.text(i)
	}
	return r, nil
}

// text lists a launch's tasks as comments, and its descriptors.
func (r *Listing) text(launch int) string {
	var b strings.Builder
	for _, t := range r.Launches[launch].Tasks {
		fmt.Fprintf(&b, "# %s\n", t)
	}
	for _, steps := range r.Parts {
		for i, s := range steps {
			if s.Launch == launch {
				fmt.Fprintf(&b, "%5d  %s\n", i, isa.Text(s.Cmd))
			}
		}
	}
	return b.String()
}

// String lists the whole program, launch by launch.
func (r *Listing) String() string {
	var b strings.Builder
	n := 0
	for _, p := range r.Parts {
		n += len(p)
	}
	fmt.Fprintf(&b, "# program for the overlay %s: %d descriptors, %d bytes of memory\n", r.Overlay.Name, n, r.Bytes)
	for i, l := range r.Launches {
		fmt.Fprintf(&b, "\n# launch %d, %s\n", i+1, l.Name)
		if l.Refusal != "" {
			fmt.Fprintf(&b, "# on the processor: %s\n", l.Refusal)
			continue
		}
		fmt.Fprintf(&b, "# estimated %d cycles, %d if every multiplier worked\n%s", l.Estimate, l.Ideal, l.Text)
	}
	return b.String()
}

// Compile implements lowering.Device.
func (d *Device) Compile(p *lowering.Program) (lowering.Executable, error) {
	if d.open == nil {
		return nil, fmt.Errorf("the device has no link to an overlay: it plans programs")
	}
	if len(p.Updates) > 0 {
		return nil, fmt.Errorf("the graph updates %q: the overlay's numbers of 8 bits are for inference; "+
			"train it on another target",
			p.Buffers[p.Updates[0].Target].Name)
	}
	d.Place(p)
	return d.newExecutable(p)
}
