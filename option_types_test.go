package fusec_test

import (
	"reflect"
	"strings"
	"testing"

	"gorgonia.org/gorgonia"

	"fusec"
	"fusec/lowering/cpu"
	"fusec/lowering/cuda"
	"fusec/lowering/fpga"
)

// TestOptionTypes says for which calls Go compiles an option.
func TestOptionTypes(t *testing.T) {
	compiles, machine := reflect.TypeFor[fusec.CompileOption](), reflect.TypeFor[gorgonia.VMOpt]()
	for name, c := range map[string]struct {
		option            any
		compiles, machine bool
	}{
		"TraceExec":        {gorgonia.TraceExec(), false, true},
		"WithNaNWatch":     {gorgonia.WithNaNWatch(), false, true},
		"WithValues":       {fusec.WithValues(), false, true},
		"WithFrozenParams": {fusec.WithFrozenParams(), false, true},
		"WithGradient":     {fusec.WithGradient("d", nil, nil), true, false},
		"WithWorkers":      {fusec.WithWorkers(1), true, true},
		"WithTarget":       {fusec.WithTarget("cpu"), true, true},
	} {
		typ := reflect.TypeOf(c.option)
		if typ.AssignableTo(compiles) != c.compiles || typ.AssignableTo(machine) != c.machine {
			t.Errorf("%s, a %v, is taken by Compile: %v, by NewMachine: %v", name, typ, typ.AssignableTo(compiles),
				typ.AssignableTo(machine))
		}
	}
}

// TestOptionsRefused names options that were given to what they are not for, by a conversion or for another target.
func TestOptionsRefused(t *testing.T) {
	for _, name := range []string{cpu.New(nil).Name(), cuda.New(nil).Name(), fpga.New(nil).Name()} {
		if name == "" {
			t.Error("a device made with an option that is nil has no name")
		}
	}
	g := built(t, linearGraph())
	nothing := func(gorgonia.VM) {}
	for want, opt := range map[string]fusec.CompileOption{
		"option 0, TraceExec, is for machines":                                       fusec.CompileOption(gorgonia.TraceExec()),
		"option 0, WithNaNWatch, is for machines":                                    fusec.CompileOption(gorgonia.WithNaNWatch()),
		"WithValues is for machines":                                                 fusec.CompileOption(fusec.WithValues()),
		"WithoutGradients is for machines":                                           fusec.CompileOption(fusec.WithoutGradients()),
		"option 0 is for machines":                                                   nothing,
		"option 0 is nil":                                                            nil,
		`WithTarget("cpu"): option 1 is nil`:                                         fusec.WithTarget("cpu", cpu.AttentionBlock(4), nil),
		`WithTarget("cpu"): option 0 is nil`:                                         fusec.WithTarget("cpu", cpu.Option(nil)),
		`WithTarget("fpga"): option 0 is nil`:                                        fusec.WithTarget("fpga", fpga.Option(nil)),
		`target "cpu": a cuda.Option was given, which is an option of target "cuda"`: fusec.WithTarget("", cuda.Portable()),
		`target "ref": a cpu.Option was given`:                                       fusec.WithTarget("ref", cpu.AttentionBlock(4)),
	} {
		if _, err := fusec.Compile(g, opt); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Compile: error %v, want %q", err, want)
		}
		if _, _, err := fusec.Plan(g, opt); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Plan: error %v, want %q", err, want)
		}
	}
	m := fusec.NewMachine(gorgonia.NewGraph(), gorgonia.VMOpt(fusec.WithGradient("d", nil, nil)))
	if err := m.Err(); err == nil || !strings.Contains(err.Error(), "WithGradient is for Compile") {
		t.Errorf("NewMachine: error %v", err)
	}
}
