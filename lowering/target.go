package lowering

import (
	"context"
	"encoding/json"
	"fmt"

	"fusec/graph"
	"fusec/graph/precision"
	"fusec/kernels/group"
)

// A Target is a named kind of device. Each target's package has one, and package fusec lists them.
type Target struct {
	Name string // such as "cpu"
	// Synonyms are names that other tools give it, in small letters.
	Synonyms []string
	// Device is what one device is called, such as "GPU", if there may be several: "name:1" is the second.
	Device string
	// Groups says that programs run in a group of participants, if they are asked to.
	Groups bool
	// InPlace says that the devices have no memory of their own: programs read and write bound tensors themselves.
	InPlace bool
	// Integers says that the devices compute in integers of 8 bits.
	Integers bool
	// Untimed says that how long a run takes tells nothing: it may be that of a simulator, or of code that is not made to be fast.
	Untimed bool
	// Reference says that the values of programs for other targets are compared with those of programs for this one.
	Reference bool
	// Cycles is the name under which the devices count the cycles of launches; see [Counts]. Empty: they do not.
	Cycles string
	// NoGradients says why the target cannot train; empty if it can.
	NoGradients string
	// Needs lists what programs of the target need besides the processor, whether it is there or not. Nil: nothing.
	Needs func() []Need
	// There reports whether the machine has a device of the target. Nil: every machine has.
	There func() bool
	// Flags are the options that commands offer.
	Flags []Flag
	// Calibrate is the option with samples of inputs, on which the ranges of a program's values are found. Nil: nothing has
	// to be calibrated.
	Calibrate func(samples ...map[string]*graph.Tensor) TargetOption
	// Opening is the option that shows, line by line, what slow steps of opening a device do, and ends them with the context.
	// Nil: there are none.
	Opening func(ctx context.Context, show func(line string)) TargetOption
	// Untuned is the option that ignores what fusec tune has measured. Nil: there is nothing to measure.
	Untuned TargetOption
	// Queued is the option by which runs take memory of the caller's; see [Queuer]. Nil: they cannot.
	Queued TargetOption
	// AttentionBlock is the option that sets how many queries and keys a block of an attention has. Nil: they are fixed.
	AttentionBlock func(n int) TargetOption
	// Code is what a [Coder] shows, such as "the kernels' CUDA C++", and CodeFormat another format of it, such as "ptx". Empty:
	// there is none.
	Code, CodeFormat string
	// Open makes a device.
	Open func(Setup) (Device, error)
	// Load takes the result of [Ahead] of a device of this target. It reports false if header and parts belong to
	// another target. What describes the chip for which the model was compiled. With the options, [Target.Open] makes a
	// device that uses the result. Nil if the target has no ahead-of-time compilation.
	Load func(header json.RawMessage, parts map[string][]byte) (opts []TargetOption, what string, ok bool, err error)
}

// A Flag is an option of a target as a flag of commands.
type Flag struct {
	Name string
	Help string // with the name of its value between backquotes
	// Values lists what it takes. Nil: what Check accepts, or anything if that is nil, too.
	Values []string
	Check  func(value string) error
	// Chip says that it names the chip to plan for. Default is the chip without it, and Noun what texts put before the name:
	// "the overlay ".
	Chip          bool
	Default, Noun string
	Option        func(value string) TargetOption
}

// ChipFlag is the flag that names the chip to plan for; its name is empty if there is none.
func (t Target) ChipFlag() Flag {
	for _, f := range t.Flags {
		if f.Chip {
			return f
		}
	}
	return Flag{}
}

// A Need is something that a target needs.
type Need struct {
	Name string // such as "NVIDIA driver", or that of a program on the path
	For  string // what it is for, behind the target's name; empty for all
	// Version is the arguments with which a program prints its version. Nil: it is no program.
	Version []string
	// Found is what was found, if it is no program and is there. Err says why it is not.
	Found string
	Err   error
}

// Setup is the parameters for opening a device.
type Setup struct {
	Name      string // of the target, as given by the caller: "cuda:1"
	Number    int    // of the device, from 0
	Run       bool   // programs will run, not only be planned: the device must exist
	Workers   int    // cores of the processor to use; 0 is GOMAXPROCS
	Verify    bool   // errors name the launch that failed, at the cost of time
	Precision precision.Precision
	Group     *group.Group   // with which programs run, or nil
	Options   []TargetOption // all belong to the target
}

// Refuses is the error of a target that computes in the given numbers only, and not in the setup's precision.
func (s Setup) Refuses(computes string) error {
	return fmt.Errorf("target %q computes in %s: precision %v requires another target", s.Name, computes, s.Precision)
}

// A TargetOption is an option of one target. Its package makes it.
type TargetOption interface {
	// Of is the name of the target.
	Of() string
}

// OptionsOf are the options of a setup as the target's type; there are no others.
func OptionsOf[T TargetOption](s Setup) []T {
	list := make([]T, len(s.Options))
	for i, o := range s.Options {
		list[i] = o.(T)
	}
	return list
}

// A Coder is a device that shows the code that it makes of programs.
type Coder interface {
	Device
	// Code is that of a program, in [Target.CodeFormat] if format is not empty.
	Code(p *Program, format string) (string, error)
}

// An Ahead compiler is a device for which programs can be compiled ahead of time.
type Ahead interface {
	Device
	// CompileAhead makes everything that a program needs to run on a device of another machine: a header, which is a
	// JSON object, and files by name. Weights are by parameter and state, and may be nil. Progress, if not nil, is
	// called with the number of finished kernels.
	CompileAhead(p *Program, weights map[string]*graph.Tensor, progress func(done, all int)) (header any, parts map[string][]byte,
		err error)
}
