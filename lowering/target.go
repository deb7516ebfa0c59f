package lowering

import (
	"encoding/json"

	"fusec/graph"
	"fusec/graph/precision"
)

// A Target is a kind of device as programs name it. The package of a target has one, and package fusec lists them.
type Target struct {
	Name     string // such as "cpu"
	Numbered bool   // there may be several, and "name:1" is the second
	// NoGradients says why the target cannot train; empty if it can.
	NoGradients string
	// Open makes a device.
	Open func(Setup) (Device, error)
	// Load takes what [Ahead] of a device of this target has made. It reports false if header and parts are another
	// target's. What describes the chip that the model was compiled for. The options have [Target.Open] make a device that
	// uses it. Nil if nothing is compiled ahead of time for the target.
	Load func(header json.RawMessage, parts map[string][]byte) (opts []TargetOption, what string, ok bool, err error)
}

// Setup is what a device is opened for.
type Setup struct {
	Name      string // of the target, as the caller gave it: "cuda:1"
	Number    int    // of the device, from 0
	Run       bool   // programs are to run, not only to be planned: the device has to be there
	Workers   int    // cores of the processor to use; 0 is GOMAXPROCS
	Frozen    bool   // parameters change only through [Executable.Bind]
	Verify    bool   // errors name the launch that went wrong, at the cost of time
	Precision precision.Precision
	Options   []TargetOption // all are the target's
}

// A TargetOption is an option of one target. Its package makes it.
type TargetOption interface {
	// Of is the name of the target.
	Of() string
}

// OptionsOf are the options of a setup as the target's own type. They are of no other.
func OptionsOf[T TargetOption](s Setup) []T {
	list := make([]T, len(s.Options))
	for i, o := range s.Options {
		list[i] = o.(T)
	}
	return list
}

// An Ahead compiler is a device for which programs can be compiled ahead of time.
type Ahead interface {
	Device
	// CompileAhead makes what a program needs to run on a device that is not here: a header, which is a JSON object, and
	// files by name. Weights are by parameter and state, and may be nil. Progress, if not nil, is told how many kernels are
	// done.
	CompileAhead(p *Program, weights map[string]*graph.Tensor, progress func(done, all int)) (header any, parts map[string][]byte, err error)
}
