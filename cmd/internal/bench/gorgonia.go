package bench

import (
	"errors"
	"fmt"

	"gorgonia.org/gorgonia"

	"fusec/cmd/internal/modelio"
	"fusec/graph"
	fgorgonia "fusec/graph/gorgonia"
)

// tape is the rival: Gorgonia's TapeMachine on the same graph with the same values.
type tape struct {
	vm      gorgonia.VM
	outputs map[string]*gorgonia.Value
}

// newTape writes the graph as an expression graph and makes a machine for it. The error says why that cannot be done.
func newTape(g *graph.Graph, vals *modelio.Values) (t *tape, err error) {
	defer func() {
		if r := recover(); r != nil {
			t, err = nil, fmt.Errorf("a panic in Gorgonia: %v", r)
		}
	}()
	for _, n := range g.Nodes {
		if n.Type.Shape.Elems() == 0 { // such a value ends the process: the machine panics in a goroutine of its own
			return nil, fmt.Errorf("%s is a value without elements, which Gorgonia cannot run", n)
		}
	}
	if g.Training != nil || len(g.OutputNames()) > len(g.Outputs) {
		return nil, errors.New("the file asks for gradients or steps of an optimiser, which the export to Gorgonia leaves out")
	}
	x, err := fgorgonia.Export(g, vals.Weights)
	if err != nil {
		return nil, err
	}
	for _, name := range modelio.SortedKeys(vals.Inputs) {
		n := x.Sources[name]
		v, err := fgorgonia.NewValue(n, vals.Inputs[name])
		if err == nil {
			err = gorgonia.Let(n, v)
		}
		if err != nil {
			return nil, fmt.Errorf("input %s: %w", name, err)
		}
	}
	t = &tape{outputs: map[string]*gorgonia.Value{}}
	for _, o := range g.Outputs {
		t.outputs[o.Name] = new(gorgonia.Value)
		gorgonia.Read(x.Outputs[o.Name], t.outputs[o.Name])
	}
	t.vm = gorgonia.NewTapeMachine(x.Graph)
	return t, nil
}

// run runs the machine once and makes it ready for the next time.
func (t *tape) run() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("a panic in Gorgonia: %v", r)
		}
	}()
	err = t.vm.RunAll()
	t.vm.Reset()
	return err
}

// output is the value of an output after a run.
func (t *tape) output(name string) (*graph.Tensor, error) {
	v := *t.outputs[name]
	if v == nil {
		return nil, errors.New("it has no value")
	}
	return fgorgonia.ToTensor(v)
}

func (t *tape) close() { t.vm.Close() }
