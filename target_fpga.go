package fusec

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	overlays "fusec/fpga"
	"fusec/fpga/isa"
	"fusec/fpga/link"
	"fusec/graph"
	"fusec/lowering/fpga"
)

// Overlays lists the names of the overlays that [WithOverlay] knows, the default first.
func Overlays() []string { return isa.Overlays() }

// WithOverlay compiles for the overlay of that name. It matters to target "fpga" alone.
func WithOverlay(name string) Option {
	return own(func(c *config) {
		o, err := isa.Overlay(name)
		if err != nil && c.err == nil {
			c.err = fmt.Errorf("WithOverlay: %w", err)
		}
		c.overlay = o
	})
}

// WithOverlayConfig is [WithOverlay] for a configuration without a name.
func WithOverlayConfig(o isa.Config) Option {
	return own(func(c *config) {
		if err := o.Check(); err != nil && c.err == nil {
			c.err = fmt.Errorf("WithOverlayConfig: %w", err)
		}
		c.overlay = o
	})
}

// WithLink says how the overlay is reached; the forms are those of [link.Open]. The default is "sim", a simulator of
// the hardware in a process of its own, which is built the first time and takes some time to build.
func WithLink(spec string) Option { return own(func(c *config) { c.link = spec }) }

// WithLinkLog has log told, line by line, what opening a link does that takes long, such as building a simulator. It
// is given up when ctx ends.
func WithLinkLog(ctx context.Context, log func(line string)) Option {
	return own(func(c *config) { c.linkContext, c.linkLog = ctx, log })
}

// WithCalibration gives target "fpga" samples of the inputs, by name, an input that a sample lacks being that of the
// first run. The program is run on them in floating point, and the numbers of each value between two launches are
// then given 8 bits between the least and the greatest that it had. Without samples the inputs of the first run are
// the sample.
func WithCalibration(samples ...map[string]*graph.Tensor) Option {
	return own(func(c *config) {
		for i, s := range samples {
			for name, t := range s {
				if t == nil && c.err == nil {
					c.err = fmt.Errorf("WithCalibration: sample %d has no value for %q", i, name)
				} else if t != nil && c.err == nil {
					if err := t.Check(); err != nil {
						c.err = fmt.Errorf("WithCalibration: sample %d: %q: %w", i, name, err)
					}
				}
			}
		}
		c.samples = append(c.samples, samples...)
	})
}

// WithRouted gives values of all sources, by name, to [PlanFPGA] and [ListFPGA]: their estimates are for the tokens that a
// mixture's router sends to each expert on these. Without them all experts are taken to get equally many.
func WithRouted(values map[string]*graph.Tensor) Option {
	return own(func(c *config) { c.routed = values })
}

func (c *config) fpgaDevice(run bool) (*fpga.Device, error) {
	if c.precision != F32 {
		return nil, fmt.Errorf("target %q computes in integers of 8 bits; precision %v wants target cuda", c.target,
			c.precision)
	}
	overlay, err := c.overlayBehind(run)
	if err != nil {
		return nil, fmt.Errorf("target %q: %w", c.target, err)
	}
	host := *c
	host.target = "cpu"
	opts := []fpga.Option{fpga.Processor(host.cpuDevice()), fpga.Samples(c.samples), fpga.For(overlay)}
	if c.routed != nil {
		opts = append(opts, fpga.Routed(c.routed))
	}
	if c.frozen {
		opts = append(opts, fpga.Frozen())
	}
	if c.ranges != nil {
		opts = append(opts, fpga.Calibrated(c.ranges))
	}
	if run {
		opts = append(opts, fpga.Over(c.openLink))
	}
	return fpga.New(opts...), nil
}

// inferenceOnly refuses gradients on a target that computes in integers.
func (c *config) inferenceOnly(gradients bool) error {
	if c.target == "fpga" && (gradients || c.optimizer != nil) {
		return fmt.Errorf("target %q computes in integers of 8 bits, which gradients do not bear: train on another target, "+
			"or leave them out with WithoutGradients", c.target)
	}
	return nil
}

// openLink opens the link to an overlay; without a name the overlay is whatever the link leads to.
func (c *config) openLink(ctx context.Context, overlay isa.Config, memory int64) (link.Link, error) {
	if c.linkContext != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(c.linkContext, cancel)()
	}
	return link.Open(ctx, c.linkSpec(), link.Options{Config: overlay, Memory: memory, Log: c.linkLog})
}

// linkSpec is the link's description.
func (c *config) linkSpec() string { return cmp.Or(c.link, "sim") }

// overlayBehind is the overlay to compile for: the one that was named, by itself or in the link's description, or the
// one that a board has, which is asked if the program is to run there.
func (c *config) overlayBehind(run bool) (isa.Config, error) {
	if c.overlay.Rows > 0 {
		return c.overlay, nil
	}
	kind, _, _ := strings.Cut(c.linkSpec(), ":")
	switch board := kind == "serial" || kind == "xdma"; {
	case !board:
		if _, name, ok := strings.Cut(c.linkSpec(), "@"); ok {
			return isa.Overlay(name)
		}
	case run:
		l, err := c.openLink(context.Background(), isa.Config{}, 0)
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

// PlanFPGA lowers a graph for an overlay of any configuration, which need not be there, and lists its descriptors
// launch by launch.
func PlanFPGA(g *graph.Graph, cfg isa.Config, opts ...Option) (*fpga.Listing, error) {
	return ListFPGA(g, append(slices.Clip(opts), WithOverlayConfig(cfg))...)
}

// ListFPGA is PlanFPGA for the overlay that the options name.
func ListFPGA(g *graph.Graph, opts ...Option) (*fpga.Listing, error) {
	opts = append(slices.Clip(opts), WithTarget("fpga"))
	_, program, err := Plan(g, opts...)
	if err != nil {
		return nil, err
	}
	cfg, _, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	d, err := cfg.fpgaDevice(false)
	if err != nil {
		return nil, err
	}
	return d.Plan(program)
}
