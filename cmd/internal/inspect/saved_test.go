package inspect

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"gorgonia.org/gorgonia"

	"fusec"
	"fusec/cmd/models/zoo"
	"fusec/examples"
	"fusec/graph"
	"fusec/graph/dot"
	"fusec/graph/optim"
	"fusec/graph/trace"
	"fusec/lowering"
)

// reports are what explain and dump print about a program.
func reports(t *testing.T, tr *trace.Trace, p *lowering.Program) (list []string) {
	t.Helper()
	rep := explain("model", tr, p)
	text, err := json.Marshal(rep)
	if err != nil {
		t.Fatal(err)
	}
	var stages strings.Builder
	if err := dot.Trace(&stages, tr, dot.Options{Format: dot.FormatText}); err != nil {
		t.Fatal(err)
	}
	return append(list, rep.text(), string(text), stages.String())
}

// TestSavedTraining checks that explain and dump tell the same about the file of a training program as about the program
// itself, with frozen parameters as a file's are. Only positions differ: those of a file's nodes are its lines.
func TestSavedTraining(t *testing.T) {
	zooModel := func(m *zoo.Model) *gorgonia.ExprGraph {
		cost := gorgonia.Must(gorgonia.Mean(gorgonia.Must(gorgonia.Square(m.Output))))
		gorgonia.WithName("cost")(cost)
		if _, err := gorgonia.Grad(cost, m.Params...); err != nil {
			t.Fatal(err)
		}
		return m.Graph
	}
	type model struct {
		graph *gorgonia.ExprGraph
		opts  []gorgonia.VMOpt
	}
	adam := &optim.Optimizer{Rule: optim.AdamW{Beta1: 0.8}, Rate: optim.Linear(1, 0, 10), Clip: 1, Accumulate: 2,
		LossScale: optim.LossScale{Initial: 512, GrowAfter: 100}, Group: optim.DecayMatrices}
	models := map[string]model{
		"transformer": {zooModel(zoo.Transformer(2, 2, 8, 16, 2, 32)), []gorgonia.VMOpt{fusec.WithOptimizer(adam)}},
		"LeNet": {zooModel(zoo.LeNet(2)),
			[]gorgonia.VMOpt{fusec.WithOptimizer(&optim.Optimizer{Rule: optim.Momentum{Nesterov: true}, Rate: optim.Constant(0.1)})}},
		"gradients":     {zooModel(zoo.MoEBlock(8, 8, 16, 2)), nil},
		"as Gorgonia's": {zooModel(zoo.DigitsMLP(4)), []gorgonia.VMOpt{fusec.WithGorgoniaSemantics()}},
		"no gradients":  {zooModel(zoo.DigitsMLP(4)), []gorgonia.VMOpt{fusec.WithoutGradients()}},
	}
	for _, x := range examples.All() {
		s := x.Defaults
		s.Seed = 1
		task, err := x.Open(s)
		if err != nil {
			t.Fatal(err)
		}
		defer task.Close()
		if _, err := gorgonia.Grad(task.Model.Cost, task.Model.Learnables...); err != nil {
			t.Fatal(err)
		}
		models[x.Name] = model{task.Model.Graph, []gorgonia.VMOpt{fusec.WithOptimizer(task.Optimizer)}}
	}
	for name, m := range models {
		vm := fusec.NewMachine(m.graph, append(m.opts, fusec.WithTarget("cpu"), fusec.WithFrozenParams())...)
		defer vm.Close()
		if vm.Err() != nil {
			t.Fatalf("%s: %v", name, vm.Err())
		}
		path := filepath.Join(t.TempDir(), "model.graph")
		if err := vm.Save(path); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		g, err := graph.LoadGraph(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range g.Nodes {
			for i := range n.Origin {
				n.Origin[i].Pos = ""
			}
		}
		tr, p, err := fusec.Plan(g, fusec.WithTarget("cpu"))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		live := vm.Trace()
		for i := range live.Stages {
			live.Stages[i].Took, tr.Stages[i].Took = 0, 0
			live.Stages[i].Graph.Name = g.Name // the file's
		}
		want := reports(t, live, vm.Program().Lowered())
		for i, got := range reports(t, tr, p) {
			if got != want[i] {
				a, b := strings.Split(got, "\n"), strings.Split(want[i], "\n")
				for j := range min(len(a), len(b)) {
					if a[j] != b[j] {
						t.Errorf("%s: report %d, line %d:\n%.2000s\nand of the machine\n%.2000s", name, i, j+1, a[j], b[j])
						break
					}
				}
			}
		}
	}
}
