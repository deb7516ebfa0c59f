package fpga

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	overlays "fusec/fpga"
	"fusec/fpga/isa"
	"fusec/fpga/link"
	"fusec/graph"
	"fusec/graph/precision"
	"fusec/lowering"
	"fusec/lowering/cpu"
)

// Target is the overlay of package fusec/fpga.
var Target = lowering.Target{Name: "fpga", Open: open, Load: load, Integers: true, Untimed: true, Cycles: Cycles,
	NoGradients: "computes in integers of 8 bits, which is too coarse for gradients", Needs: needs, Flags: flags,
	Code:      "the overlay's descriptors",
	Calibrate: func(samples ...map[string]*graph.Tensor) lowering.TargetOption { return Samples(samples...) },
	Opening:   func(ctx context.Context, show func(line string)) lowering.TargetOption { return LinkLog(ctx, show) }}

var flags = []lowering.Flag{
	{Name: "overlay", Chip: true, Default: isa.Overlays()[0], Noun: overlayNoun, Values: isa.Overlays(),
		Help: fmt.Sprintf("target fpga: the overlay `NAME`, one of %s (default %s)", strings.Join(isa.Overlays(), ", "),
			isa.Overlays()[0]),
		Option: func(name string) lowering.TargetOption { return Overlay(name) }},
	{Name: "link", Help: "target fpga: reach it by `LINK`: " + link.Specs + " (default sim)",
		Option: func(spec string) lowering.TargetOption { return Link(spec) }},
}

// overlayNoun is what texts put before the name of an overlay.
const overlayNoun = "the overlay "

func needs() []lowering.Need {
	version := []string{"--version"}
	return []lowering.Need{{Name: "verilator", For: ", simulated", Version: version},
		{Name: "g++", For: ", simulated; clang++ does too", Version: version}}
}

// Of implements [lowering.TargetOption].
func (Option) Of() string { return Target.Name }

// Overlay is [For] for the overlay of that name; isa.Overlays lists the names.
func Overlay(name string) Option {
	o, err := isa.Overlay(name)
	return func(d *Device) {
		if err != nil {
			d.err = errors.Join(d.err, fmt.Errorf("fpga.Overlay: %w", err))
			return
		}
		For(o)(d)
	}
}

// Link is the connection to the overlay, in the forms of [link.Open]. The default is "sim", a simulator of the hardware
// in a separate process, which is built the first time; that takes some time.
func Link(spec string) Option { return func(d *Device) { d.link = spec } }

// LinkLog sets a function that gets messages, line by line, about slow steps of opening a link, such as building a
// simulator. Opening is cancelled when ctx ends.
func LinkLog(ctx context.Context, log func(line string)) Option {
	return func(d *Device) { d.linkContext, d.linkLog = ctx, log }
}

func open(s lowering.Setup) (lowering.Device, error) {
	if s.Precision != precision.F32 {
		return nil, s.Refuses("integers of 8 bits")
	}
	opts := []Option{Processor(cpu.ForSetup(s))}
	d := New(append(opts, lowering.OptionsOf[Option](s)...)...)
	if d.err != nil {
		return nil, d.err
	}
	if !d.chosen {
		overlay, err := d.overlayBehindLink(s.Run)
		if err != nil {
			return nil, fmt.Errorf("target %q: %w", s.Name, err)
		}
		d.cfg = overlay
	}
	if s.Run {
		d.open = d.openLink
	}
	return d, nil
}

// openLink opens the link to an overlay; without a name the overlay is whatever the link leads to.
func (d *Device) openLink(ctx context.Context, overlay isa.Config, memory int64) (link.Link, error) {
	if d.linkContext != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(d.linkContext, cancel)()
	}
	return link.Open(ctx, d.linkSpec(), link.Options{Config: overlay, Memory: memory, Log: d.linkLog})
}

// linkSpec is the link's description.
func (d *Device) linkSpec() string { return cmp.Or(d.link, "sim") }

// overlayBehindLink is the overlay to compile for where none was chosen: the one that the link's description names, or the
// one that a board has, which is asked if the program is to run there.
func (d *Device) overlayBehindLink(run bool) (isa.Config, error) {
	kind, _, _ := strings.Cut(d.linkSpec(), ":")
	switch board := kind == "serial" || kind == "xdma"; {
	case !board:
		if _, name, ok := strings.Cut(d.linkSpec(), "@"); ok {
			return isa.Overlay(name)
		}
	case run:
		l, err := d.openLink(context.Background(), isa.Config{}, 0)
		if err != nil {
			return isa.Config{}, err
		}
		defer l.Close()
		m, err := overlays.Open(l)
		if err != nil {
			return isa.Config{}, err
		}
		return m.Config(), nil
	}
	return isa.Overlay(isa.Overlays()[0])
}

// aheadProgram is the part of a model compiled ahead of time that lists the overlay's descriptors, for people.
const aheadProgram = "program.txt"

// aheadHeader is the header of a model that was compiled ahead of time.
type aheadHeader struct {
	Overlay *isa.Config `json:"overlay"`
	Ranges  []Range     `json:"ranges,omitempty"`
}

// CompileAhead implements [lowering.Ahead]: it finds the ranges of the program's values on the device's samples.
func (d *Device) CompileAhead(p *lowering.Program, weights map[string]*graph.Tensor, _ func(done, all int)) (
	header any, parts map[string][]byte, err error) {
	if len(d.samples) == 0 {
		return nil, nil, errors.New("a program for an overlay is compiled with samples of its inputs, on which it is calibrated")
	}
	ranges, err := d.Calibrate(p, weights)
	if err != nil {
		return nil, nil, err
	}
	list, err := d.Plan(p)
	if err != nil {
		return nil, nil, err
	}
	return aheadHeader{&list.Overlay, ranges}, map[string][]byte{aheadProgram: []byte(list.String())}, nil
}

func load(header json.RawMessage, parts map[string][]byte) (opts []lowering.TargetOption, what string, ok bool, err error) {
	var info aheadHeader
	if err := json.Unmarshal(header, &info); err != nil {
		return nil, "", false, err
	}
	if info.Overlay == nil {
		return nil, "", false, nil
	}
	for name := range parts {
		if name != aheadProgram {
			return nil, "", true, fmt.Errorf("%s: an unknown part", name)
		}
	}
	opts = []lowering.TargetOption{For(*info.Overlay), Calibrated(info.Ranges)}
	return opts, overlayNoun + info.Overlay.Name, true, check(*info.Overlay)
}
