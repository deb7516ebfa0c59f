package cpu

import (
	"fmt"

	"fusec/graph/precision"
	kernels "fusec/kernels/cpu"
	"fusec/kernels/cpu/gemm"
	"fusec/lowering"
	"fusec/lowering/local"
)

// Target is the processor.
var Target = lowering.Target{Name: "cpu", Synonyms: []string{"host"}, Groups: true, InPlace: true, Open: open,
	Untuned:        Tuned(&kernels.Tuning{}),
	AttentionBlock: func(n int) lowering.TargetOption { return AttentionBlock(n) }}

// Of implements [lowering.TargetOption].
func (Option) Of() string { return Target.Name }

func open(s lowering.Setup) (lowering.Device, error) {
	if s.Precision == precision.TF32 {
		return nil, s.Refuses("f32")
	}
	d := ForSetup(s, lowering.OptionsOf[Option](s)...)
	if n := d.attention.Queries; n < 0 {
		return nil, fmt.Errorf("AttentionBlock(%d): want at least 1, or 0 to choose by the shape", n)
	}
	if d.tuning == nil {
		var err error
		if d.tuning, err = local.ReadTuning(d.Name(), d.Chip(), kernels.ParseTuning); err != nil {
			return nil, fmt.Errorf("target %q: %w", s.Name, err)
		}
	}
	return d, nil
}

// Chip names what a tuning is for: the processor, its vector instructions, and the number of cores that are used.
func (d *Device) Chip() string {
	return fmt.Sprintf("%s, %s, %d workers", local.Processor(), gemm.Kernel[float32](), d.workers)
}

// ForSetup is the processor for a setup of this target, or of another target that runs some launches on the processor.
func ForSetup(s lowering.Setup, opts ...Option) *Device {
	var all []Option
	if s.Group != nil {
		all = append(all, func(d *Device) { d.group = s.Group })
	}
	if s.Workers > 0 {
		all = append(all, Workers(s.Workers))
	}
	return New(append(all, opts...)...)
}

// Shared implements [lowering.Device]: devices with the same number of cores and the same options share programs. One
// in a group has its own.
func (d *Device) Shared() any {
	if d.group != nil {
		return nil
	}
	return *d
}
