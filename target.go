package fusec

import (
	"fmt"
	"strconv"
	"strings"

	"fusec/lowering"
	"fusec/lowering/cpu"
	"fusec/lowering/cuda"
	"fusec/lowering/fpga"
	"fusec/lowering/ref"
)

// targets are those that programs can be compiled for, the default first.
var targets = []lowering.Target{cpu.Target, cuda.Target, fpga.Target, ref.Target}

// Targets lists the names of the targets that programs can be compiled for, the default first. A target of which there
// may be several takes a number: "cuda:1" is the second GPU. "ref" is the reference that all others are checked by: it
// computes in float64, and is slow.
func Targets() []string {
	names := make([]string, len(targets))
	for i, t := range targets {
		names[i] = t.Name
	}
	return names
}

// TargetNamed is the target of a name, which may have the number of a device. It reports false if there is none.
func TargetNamed(name string) (t lowering.Target, ok bool) {
	name, _, numbered := strings.Cut(name, ":")
	for _, t := range targets {
		if t.Name == name && !(numbered && t.Device == "") {
			return t, true
		}
	}
	return t, false
}

// reference reports whether a device is that of the reference.
func reference(d lowering.Device) bool {
	t, _ := TargetNamed(d.Name())
	return t.Reference
}

// find is the target that the configuration names, and the number of its device.
func (c *config) find() (lowering.Target, int, error) { return c.named(c.target) }

// named is the target of a name, and the number of its device.
func (c *config) named(target string) (t lowering.Target, index int, err error) {
	t, ok := TargetNamed(target)
	if !ok {
		return t, 0, fmt.Errorf("target %q is not known; this version compiles for %s", target, strings.Join(Targets(), ", "))
	}
	if _, number, numbered := strings.Cut(target, ":"); numbered {
		if index, err = strconv.Atoi(number); err != nil || index < 0 {
			return t, 0, fmt.Errorf("target %q: want %s, or %s:N for device number N, from 0 on", target, t.Name, t.Name)
		}
	}
	for _, o := range c.options {
		if o.Of() != t.Name {
			return t, 0, fmt.Errorf("target %q: a %T was given, which is an option of target %q", target, o, o.Of())
		}
	}
	return t, index, nil
}

// device makes the target that the configuration names: to run programs, or only to plan them.
func (c *config) device(run bool) (lowering.Device, error) {
	if c.on != nil {
		return c.on, nil
	}
	t, index, err := c.find()
	if err != nil {
		return nil, err
	}
	if err := c.groupTarget(t, run); err != nil {
		return nil, err
	}
	s := lowering.Setup{Group: c.group, Name: c.target, Number: index, Run: run, Workers: c.workers, Verify: c.verify,
		Precision: c.precision, Options: c.options}
	switch {
	case c.microbatches > 0:
		return c.staged(t, s)
	case len(c.devices) > 0:
		return c.several(t, s)
	}
	return t.Open(s)
}

// rounding is by how much the target rounds the f32 operands of contractions by itself, relative to them: operands of 16 bits
// are of their type in the graph. A value inside of a launch, such as the probabilities of an attention, may be rounded,
// too, so it is twice what tf32 rounds.
func (c *config) rounding() float64 {
	if c.precision == TF32 {
		return 2 * 0x1p-11
	}
	return 0
}

// inferenceOnly refuses gradients on a target that cannot train.
func (c *config) inferenceOnly(gradients bool) error {
	if t, _, err := c.find(); err == nil && t.NoGradients != "" && (gradients || c.optimizer != nil) {
		return fmt.Errorf("target %q %s: train on another target, or leave them out with WithoutGradients", c.target, t.NoGradients)
	}
	return nil
}

// PlanDevice is the device that the options name, to plan on: it need not be there, and nothing runs on it. Packages of
// targets tell more of a program with it than [Plan] does, such as cuda.Device.Sources and fpga.Device.Plan.
func PlanDevice(opts ...CompileOption) (lowering.Device, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	return cfg.device(false)
}
