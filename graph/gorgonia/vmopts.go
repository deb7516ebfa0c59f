package gorgonia

import (
	"errors"
	"fmt"
	"log"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unsafe"

	gorg "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// VMConfig is what a list of Gorgonia's machine options asks for.
type VMConfig struct {
	BindDual  bool         // BindDualValues was given
	BindNodes []*gorg.Node // whose gradients to bind; none means all nodes that have a derivative
	Eval      bool         // EvalMode
	Trace     bool         // TraceExec: keep a copy of every node's value
	WatchNaN  bool
	WatchInf  bool
	WatchAll  bool         // WithWatchlist() without arguments
	Watch     []*gorg.Node // WithWatchlist(nodes)
	WatchIDs  []int64      // WithWatchlist(node IDs)
	Logger    *log.Logger  // nil where none was given
	ValueFmt  string       // how the logger prints values

	// Precompiled is the subgraph that gorgonia.CompileFunction took, of WithPrecompiled; else nil. Outputs are the nodes
	// that it was taken for.
	Precompiled *gorg.ExprGraph
	Outputs     []*gorg.Node

	// Of a LispMachine's options.
	ForwardOnly bool // ExecuteFwdOnly
	ManualGrad  bool // WithManualGradient
	LogForward  bool // LogFwd, LogBothDir
	LogBackward bool // LogBwd, LogBothDir

	Ignored []string // names of options that are accepted and have nothing to do, each with the reason
}

// The bits of the machines' flags.
const (
	flagForward  = 1 << 0
	flagBackward = 1 << 1
	flagNaN      = 1 << 2
	flagInf      = 1 << 3
	flagTrace    = 1 << 6
	flagDual     = 1 << 7 // of a tape machine
	flagManual   = 1 << 7 // of a lisp machine
	flagAll      = 1 << 8
)

// idle are the options that a machine of fusec's accepts and has nothing to do for.
var idle = map[vmOption]string{
	"WithPointerWatch": "no two values of a run share memory that one of them could change",
	"UseCudaFor":       "fusec.WithTarget chooses what computes",
}

// idleTape and idleLisp are those that Gorgonia's own machine of the kind ignores, too.
var (
	idleTape = map[vmOption]string{"WithManualGradient": "a TapeMachine ignores it, too; it is an option of NewLispMachine"}
	idleLisp = map[vmOption]string{
		"BindDualValues":  "a LispMachine binds all gradients",
		"WithPrecompiled": "a LispMachine ignores it, too; it is an option of NewMachine",
	}
)

// A VMKind is one of Gorgonia's kinds of machine.
type VMKind uint8

// The kinds of machines.
const (
	TapeMachine VMKind = iota
	LispMachine
)

// String is the kind's name.
func (k VMKind) String() string {
	if k == LispMachine {
		return "LispMachine"
	}
	return "TapeMachine"
}

// The machines that options are applied to copies of.
var (
	tapeTemplate = scratchMachine(func(g *gorg.ExprGraph) gorg.VM { return gorg.NewTapeMachine(g) })
	lispTemplate = scratchMachine(func(g *gorg.ExprGraph) gorg.VM { return gorg.NewLispMachine(g) })
)

// scratchMachine makes a machine of an empty task once, when it is first needed, and gives what copies it. Options set
// fields of a machine and change nothing that these refer to, so a copy of the fields alone is enough. A copy never runs.
func scratchMachine(machine func(*gorg.ExprGraph) gorg.VM) func() (copied func() gorg.VM, err error) {
	return sync.OnceValues(func() (func() gorg.VM, error) {
		g := gorg.NewGraph()
		x := gorg.NewScalar(g, tensor.Float32, gorg.WithName("x"))
		if _, err := gorg.Neg(x); err != nil {
			return nil, err
		}
		m := reflect.ValueOf(machine(g)).Elem()
		return func() gorg.VM {
			c := reflect.New(m.Type())
			c.Elem().Set(m)
			return c.Interface().(gorg.VM)
		}, nil
	})
}

// ReadOptions finds out what options ask for that are given to a machine in place of one of Gorgonia's of that kind.
// Gorgonia's own options are closures over its unexported machines: they are applied to a copy of a machine of an empty
// task and read back from it. Each option is also applied to own, the caller's machine, if that is not nil: an option of the
// caller's package recognises its machine by type and does nothing to another. An option that panics on both is refused
// by its name, as are those that Gorgonia's machine takes and fusec cannot honour.
func ReadOptions(kind VMKind, own gorg.VM, opts ...gorg.VMOpt) (VMConfig, error) {
	template, unused := tapeTemplate, idleTape
	if kind == LispMachine {
		template, unused = lispTemplate, idleLisp
	}
	fresh, err := template()
	if err != nil {
		return VMConfig{}, err
	}
	scratch := fresh()
	f := fieldsOf(scratch)
	var c VMConfig
	var compiled unsafe.Pointer
	if kind == TapeMachine {
		compiled = f.pointer("p")
	}
	var errs []error
	for i, o := range opts {
		if o == nil {
			errs = append(errs, fmt.Errorf("machine option %d is nil", i))
			continue
		}
		name := optionName(o)
		why, ignored := idle[name]
		if !ignored {
			why, ignored = unused[name]
		}
		if ignored {
			c.Ignored = append(c.Ignored, fmt.Sprintf("%s has nothing to do: %s", name, why))
			continue
		}
		err := Apply(o, scratch)
		if own != nil && name == "" {
			// Gorgonia's options panic on machines that they do not know; so may not the caller's own.
			if Apply(o, own) == nil {
				err = nil
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("machine option %d%s is not an option of a %v: %w", i, name.after(), kind, err))
		}
	}
	run, logs := flags(f, "runFlags"), flags(f, "logFlags")
	c.Eval = f.bool("evalMode")
	c.WatchNaN = run&flagNaN != 0
	c.WatchInf = run&flagInf != 0
	c.WatchAll = logs&flagAll != 0
	c.Logger = value[*log.Logger](f, "logger")
	c.ValueFmt = f.string("valueFmt")
	switch e := value[tensor.Engine](f, "Engine").(type) {
	case nil, gorg.StandardEngine, tensor.StdEng, tensor.Float32Engine, tensor.Float64Engine:
	default:
		errs = append(errs,
			fmt.Errorf("WithEngine(%T): fusec computes by its own kernels, and in place of the tensor package's engines only", e))
	}
	if kind == LispMachine {
		c.Watch = value[gorg.Nodes](f, "watchlist")
		c.ForwardOnly = run&flagBackward == 0
		c.ManualGrad = run&flagManual != 0
		c.LogForward = logs&flagForward != 0
		c.LogBackward = logs&flagBackward != 0
		if run&flagForward == 0 {
			errs = append(errs, errors.New("ExecuteBwdOnly: it goes back over what the same machine has run forward, "+
				"so a machine that has it from the start has nothing to do"))
		}
		return c, errors.Join(append(errs, f.err)...)
	}
	c.BindDual = run&flagDual != 0
	c.BindNodes = value[gorg.Nodes](f, "bindNodesDV")
	c.Trace = run&flagTrace != 0
	c.Watch = value[gorg.Nodes](f, "watchNodes")
	for _, id := range value[[]gorg.NodeID](f, "watchNodeIDs") {
		c.WatchIDs = append(c.WatchIDs, int64(id))
	}
	if v, ok := f.get("watchRegs", reflect.Slice); ok && v.Len() > 0 {
		errs = append(errs, errors.New("WithWatchlist: numbers of registers mean nothing here; give it nodes or their IDs"))
	}
	if p := f.pointer("p"); p != compiled && p != nil { // without a program the option has panicked
		program := f.inner("p")
		c.Precompiled = value[*gorg.ExprGraph](&program, "g")
		if program.err != nil || c.Precompiled == nil {
			errs = append(errs, fmt.Errorf("WithPrecompiled: the program has no graph: %w", program.err))
		} else {
			c.Outputs = value[gorg.Nodes](fieldsOf(c.Precompiled), "roots")
		}
	}
	return c, errors.Join(append(errs, f.err)...)
}

// optionName is the name of the function of Gorgonia's that made the option, or "".
func optionName(o gorg.VMOpt) vmOption {
	f := runtime.FuncForPC(reflect.ValueOf(o).Pointer())
	if f == nil {
		return ""
	}
	for _, part := range strings.Split(f.Name(), ".") {
		if slices.Contains(vmOptions, vmOption(part)) {
			return vmOption(part)
		}
	}
	return ""
}

// vmOption is the name of one of Gorgonia's machine options.
type vmOption string

// after is the name as it follows the number of an option.
func (o vmOption) after() string {
	if o == "" {
		return ""
	}
	return ", " + string(o) + ","
}

// vmOptions are all of v0.9.18.
var vmOptions = []vmOption{"BindDualValues", "EvalMode", "ExecuteBwdOnly", "ExecuteFwdOnly", "LogBothDir", "LogBwd",
	"LogFwd", "TraceExec", "UseCudaFor", "WithEngine", "WithInfWatch", "WithLogger", "WithManualGradient", "WithNaNWatch",
	"WithPointerWatch", "WithPrecompiled", "WithValueFmt", "WithWatchlist"}

func flags(f *fields, name string) uint64 {
	if v, ok := f.get(name, reflect.Uint16); ok {
		return v.Uint()
	}
	return 0
}

// After is the name of an option of Gorgonia's as it follows the option's number in a message, or "" for an option of
// somebody else.
func After(o gorg.VMOpt) string { return optionName(o).after() }

// Apply applies one option and turns a panic into an error.
func Apply(o gorg.VMOpt, m gorg.VM) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	o(m)
	return nil
}

// SetTraining switches every operation of g that has a training mode, as Gorgonia's machines do when they are made. To
// switch batch normalisation to training also resets its running statistics.
func SetTraining(g *gorg.ExprGraph, train bool) error {
	for _, n := range g.AllNodes() {
		if op, ok := n.Op().(gorg.TrainModeOp); ok {
			if err := op.SetTraining(train); err != nil {
				return fmt.Errorf("%s: %w", nameOf(n), err)
			}
		}
	}
	return nil
}
