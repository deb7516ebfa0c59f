package gorgonia

import (
	"errors"
	"fmt"
	"log"
	"reflect"

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
}

// The bits of a tape machine's flags.
const (
	flagNaN   = 1 << 2
	flagInf   = 1 << 3
	flagTrace = 1 << 6
	flagDual  = 1 << 7
	flagAll   = 1 << 8
)

// ReadOptions finds out what options ask for. Gorgonia's own are closures over its unexported machines: they are
// applied to a machine of an empty task and read back from it. Each option is also applied to own, the caller's
// machine, if that is not nil: an option of the caller's package recognises its machine by type and does nothing to
// another. An option that panics on both is reported, as are those that only another machine of Gorgonia's knows.
func ReadOptions(own gorg.VM, opts ...gorg.VMOpt) (VMConfig, error) {
	g := gorg.NewGraph()
	x := gorg.NewScalar(g, tensor.Float32, gorg.WithName("x"))
	if _, err := gorg.Neg(x); err != nil {
		return VMConfig{}, err
	}
	scratch := gorg.NewTapeMachine(g)
	defer scratch.Close()
	var errs []error
	for i, o := range opts {
		if o == nil {
			errs = append(errs, fmt.Errorf("machine option %d is nil", i))
			continue
		}
		err := apply(o, scratch)
		if own != nil && err != nil {
			// Gorgonia's options panic on machines that they do not know; so may not the caller's own.
			if apply(o, own) == nil {
				err = nil
			}
		} else if own != nil {
			_ = apply(o, own)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("machine option %d: %w", i, err))
		}
	}
	f := fieldsOf(scratch)
	run, logs := flags(f, "runFlags"), flags(f, "logFlags")
	c := VMConfig{
		BindDual:  run&flagDual != 0,
		BindNodes: value[gorg.Nodes](f, "bindNodesDV"),
		Eval:      f.bool("evalMode"),
		Trace:     run&flagTrace != 0,
		WatchNaN:  run&flagNaN != 0,
		WatchInf:  run&flagInf != 0,
		WatchAll:  logs&flagAll != 0,
		Watch:     value[gorg.Nodes](f, "watchNodes"),
		Logger:    value[*log.Logger](f, "logger"),
		ValueFmt:  f.string("valueFmt"),
	}
	for _, id := range value[[]gorg.NodeID](f, "watchNodeIDs") {
		c.WatchIDs = append(c.WatchIDs, int64(id))
	}
	return c, errors.Join(append(errs, f.err)...)
}

func flags(f *fields, name string) uint64 {
	if v, ok := f.get(name, reflect.Uint16); ok {
		return v.Uint()
	}
	return 0
}

// apply applies one option and turns a panic into an error.
func apply(o gorg.VMOpt, m gorg.VM) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("not an option of a tape machine: %v", r)
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
