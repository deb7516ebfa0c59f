package fusec_test

import (
	"strings"
	"testing"

	"gorgonia.org/gorgonia"

	"fusec"
	"fusec/cmd/models/zoo"
	"fusec/graph"
	"fusec/graph/optim"
)

// trainingOf adds a cost and its gradients to a model.
func trainingOf(t testing.TB, m *zoo.Model) *gorgonia.ExprGraph {
	t.Helper()
	cost, err := gorgonia.Mean(gorgonia.Must(gorgonia.Square(m.Output)))
	if err == nil {
		gorgonia.WithName("cost")(cost)
		_, err = gorgonia.Grad(cost, m.Params...)
	}
	if err != nil {
		t.Fatal(err)
	}
	return m.Graph
}

// TestPhasesAndScopes checks that each launch of a training step has its phase and its layer, however the gradients are
// made.
func TestPhasesAndScopes(t *testing.T) {
	adam := fusec.WithOptimizer(&optim.Optimizer{Rule: optim.AdamW{}, Rate: optim.Constant(1e-3), Clip: 1,
		LossScale: optim.LossScale{Initial: 1024}})
	for name, c := range map[string]struct {
		opts   []gorgonia.VMOpt
		phases [3]int // launches
	}{
		"made again":    {[]gorgonia.VMOpt{adam}, [3]int{20, 34, 4}},
		"memory budget": {[]gorgonia.VMOpt{adam, fusec.WithMemoryBudget(1)}, [3]int{20, 45, 4}},
		"Gorgonia's":    {[]gorgonia.VMOpt{fusec.WithGorgoniaSemantics()}, [3]int{23, 43, 0}},
	} {
		m := zoo.Transformer(2, 2, 8, 16, 2, 32)
		vm := fusec.NewMachine(trainingOf(t, m), c.opts...)
		defer vm.Close()
		if vm.Err() != nil {
			t.Fatal(vm.Err())
		}
		var phases [3]int
		gradients := map[string]bool{}
		for _, l := range vm.Trace().Program.Launches {
			phases[l.Phase]++
			anchored := l.Kind != "elementwise" && l.Kind != "squared_norm" && l.Kind != "copy"
			if anchored && !strings.HasPrefix(l.Scope, "layer") {
				t.Errorf("%s: the launch %+v has no scope", name, l)
			}
			if strings.HasPrefix(l.Name, "gradient of ") && (l.Phase != graph.Backward || l.Scope != graph.ScopeOf(l.Name)) {
				t.Errorf("%s: %s is %v in %q", name, l.Name, l.Phase, l.Scope)
			}
			gradients[l.Name] = true
		}
		if phases != c.phases {
			t.Errorf("%s: %v launches of each phase, want %v", name, phases, c.phases)
		}
		for _, p := range m.Params {
			if strings.HasSuffix(p.Name(), ".weight") && !strings.Contains(p.Name(), "down") && !gradients["gradient of "+p.Name()] {
				t.Errorf("%s: no launch is named after the gradient of %s", name, p.Name())
			}
		}
	}
}
