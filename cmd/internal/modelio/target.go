package modelio

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/graph"
	"fusec/lowering"
)

// TargetFlags are the values of the flags that targets bring, by name.
type TargetFlags map[string]string

// Declare declares the flags of all targets, or those that name chips.
func (t *TargetFlags) Declare(f *cli.FlagSet, chips bool) {
	*t = TargetFlags{}
	for _, target := range Targets() {
		for _, flag := range target.Flags {
			if chips && !flag.Chip {
				continue
			}
			f.Values(flag.Name, func() []string { return flag.Values })
			f.Func(flag.Name, flag.Help, func(s string) error {
				switch {
				case flag.Values != nil && !slices.Contains(flag.Values, s):
					return errors.New(cli.Unknown(flag.Name, s, flag.Values))
				case flag.Check != nil:
					if err := flag.Check(s); err != nil {
						return err
					}
				}
				(*t)[flag.Name] = s
				return nil
			})
		}
	}
}

// Check refuses flags of other targets than the given ones.
func (t TargetFlags) Check(among ...string) error {
	for _, target := range Targets() {
		if slices.ContainsFunc(among, func(name string) bool { return kind(name).Name == target.Name }) {
			continue
		}
		for _, flag := range target.Flags {
			if err := isFor(flag.Name, t[flag.Name], target.Name, among); err != nil {
				return err
			}
		}
	}
	return nil
}

// isFor refuses a flag of a target that is not among those that are compiled for.
func isFor(flag, value, target string, among []string) error {
	if value == "" {
		return nil
	}
	is := ""
	if len(among) > 0 {
		is = "; the target is " + strings.Join(among, ", ")
	}
	return cli.Usage("--%s %s is for --target %s%s", flag, value, target, is)
}

// Chip is the chip of a target that the flags name, or else its default; empty if no flag names it.
func (t TargetFlags) Chip(target string) string {
	flag := kind(target).ChipFlag()
	return cmp.Or(t[flag.Name], flag.Default)
}

// options are those of a target.
func (t TargetFlags) options(target lowering.Target) (opts []lowering.TargetOption) {
	for _, flag := range target.Flags {
		if v := t[flag.Name]; v != "" {
			opts = append(opts, flag.Option(v))
		}
	}
	return opts
}

// kind is the target of a name, without the number of a device.
func kind(name string) lowering.Target {
	t, _ := fusec.TargetNamed(name)
	return t
}

// Targets are all targets, the default first.
func Targets() (list []lowering.Target) {
	for _, name := range fusec.Targets() {
		list = append(list, kind(name))
	}
	return list
}

// calibrated lists the targets whose programs are calibrated.
func calibrated() string {
	var names []string
	for _, t := range Targets() {
		if t.Calibrate != nil {
			names = append(names, t.Name)
		}
	}
	return strings.Join(names, ", ")
}

// Opening shows what opening a device takes its time for, and ends it when the command is interrupted.
func Opening(e *cli.Env, show *cli.Progress) (opts []lowering.TargetOption) {
	for _, t := range Targets() {
		if t.Opening != nil {
			opts = append(opts, t.Opening(e.Ctx, func(line string) { show.Show("%s", line) }))
		}
	}
	return opts
}

// With are the flags for another target, without those that are for this one.
func (c CompileFlags) With(target string) *CompileFlags {
	c.Target, c.Flags, c.calibrate = target, nil, ""
	return &c
}

// Kind is the target.
func (c *CompileFlags) Kind() lowering.Target { return kind(c.Target) }

// OnGPU reports whether the target is a GPU.
func (c *CompileFlags) OnGPU() bool { return isGPU(c.Kind()) }

func isGPU(t lowering.Target) bool { return t.Device == "GPU" }

// GPU is the first target that is a GPU.
func GPU() lowering.Target { return first(isGPU) }

// Reference is the target that others are compared with.
func Reference() lowering.Target { return first(func(t lowering.Target) bool { return t.Reference }) }

// first is the first target of which is is true.
func first(is func(lowering.Target) bool) lowering.Target { return kind(cli.Targets(is)[0]) }

// Chip is the chip that is planned for, as texts name it.
func (c *CompileFlags) Chip() string { return kind(c.Target).ChipFlag().Noun + c.Flags.Chip(c.Target) }

// Check refuses flags that are not for the target.
func (c *CompileFlags) Check() error {
	if kind(c.Target).Calibrate == nil {
		if err := isFor("calibrate", c.calibrate, calibrated(), []string{c.Target}); err != nil {
			return err
		}
	}
	return c.Flags.Check(c.Target)
}

// Calibration is the option with the samples that a flag names, or none.
func (c *CompileFlags) Calibration(g *graph.Graph) ([]lowering.TargetOption, error) {
	if c.calibrate == "" {
		return nil, nil
	}
	samples, err := Samples(g, c.calibrate)
	if err != nil {
		return nil, err
	}
	return []lowering.TargetOption{kind(c.Target).Calibrate(samples...)}, nil
}

// NeedsCalibration reports whether what is compiled ahead of time for the target has the ranges of values.
func (c *CompileFlags) NeedsCalibration() bool { return kind(c.Target).Calibrate != nil }
