package fusec_test

import (
	"errors"
	"fmt"
	"path/filepath"
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

// TestSavedProgramTrains checks that a program that was saved while it trained goes on with the same steps from its file.
func TestSavedProgramTrains(t *testing.T) {
	m := zoo.DigitsMLP(4)
	o := &optim.Optimizer{Rule: optim.Momentum{Mu: 0.5}, Rate: optim.Linear(0.2, 0.1, 1), Clip: 1, Group: optim.DecayMatrices}
	vm := fusec.NewMachine(trainingOf(t, m), fusec.WithOptimizer(o))
	defer vm.Close()
	x := graph.NewTensor(graph.TypeOf(graph.F32, 4, 64))
	for i := range x.Type.Shape.Elems() {
		x.SetFloat(i, float64(i%7)/7)
	}
	if err := vm.LetBatch(map[string]*graph.Tensor{"pixels": x}); err != nil {
		t.Fatal(err)
	}
	if err := vm.RunAll(); err != nil {
		t.Fatal(err)
	}
	vm.Reset()
	path := filepath.Join(t.TempDir(), "m.graph")
	if err := vm.Save(path); err != nil {
		t.Fatal(err)
	}
	g, w, p := loaded(t, path)
	state, err := vm.State()
	if err != nil {
		t.Fatal(err)
	}
	for _, values := range []map[string]*graph.Tensor{w.Tensors, state, {"pixels": x}} {
		for name, v := range values {
			if err := p.Set(name, v); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 3 {
		if err := errors.Join(vm.RunAll(), p.Exec()); err != nil {
			t.Fatal(err)
		}
		vm.Reset()
	}
	want, err := vm.Weights()
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range want {
		if got, err := p.State(name); err != nil || !got.Equal(v) {
			t.Errorf("%s differs after three steps: %v", name, err)
		}
		if v.Equal(w.Tensors[name]) {
			t.Errorf("%s has not changed", name)
		}
	}
	if rate := p.StepStats().Rate; rate != 0.1 {
		t.Errorf("the file's learning rate is %v", rate)
	}
	// An optimiser of the options takes the place of the file's, and one of the user's own is not in the file.
	if p, err := fusec.Compile(g, fusec.WithOptimizer(&optim.Optimizer{Rule: optim.SGD{}, Rate: optim.Constant(1)})); err != nil {
		t.Error(err)
	} else if _, err := p.State(optim.MomentState("velocity", "hidden1.weight")); err == nil {
		t.Error("the optimiser of the file is still there")
	}
	type own struct{ optim.SGD }
	mine := fusec.NewMachine(trainingOf(t, zoo.DigitsMLP(4)),
		fusec.WithOptimizer(&optim.Optimizer{Rule: own{}, Rate: optim.Constant(1)}))
	defer mine.Close()
	if err := mine.Save(path); err != nil {
		t.Fatal(err)
	}
	if g, err = graph.LoadGraph(path); err != nil || g.Training != nil || len(g.Notes) != 1 ||
		!strings.Contains(g.Notes[0].Text, "the file is without the optimiser") {
		t.Errorf("a rule of the user's own: %v, notes %v", err, g.Notes)
	}
}

// TestGradientsOfAFile checks that a file's requests are answered, and what is wrong with them is told by name.
func TestGradientsOfAFile(t *testing.T) {
	parse := func(statements string) *graph.Graph {
		g, err := graph.Parse("m.graph", []byte("fusec graph 2 {\n x = input : f32[3]\n w = param : f32[3]\n y = binary[fn=mul] x w\n"+
			" cost = reduce[fn=sum axes=[0] keep=false] y\n output cost = cost\n"+statements+"}"), nil)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	p, err := fusec.Compile(parse(" gradient dw = cost by w\n gradient dx = cost by x seed cost\n"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	x, w := graph.NewTensor(graph.TypeOf(graph.F32, 3)), graph.NewTensor(graph.TypeOf(graph.F32, 3))
	for i := range 3 {
		x.SetFloat(i, float64(i+1))
		w.SetFloat(i, 2)
	}
	out, err := p.Run(map[string]*graph.Tensor{"x": x, "w": w})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(out["cost"].Floats(), out["dw"].Floats(), out["dx"].Floats()); got != "[12] [1 2 3] [24 24 24]" {
		t.Errorf("cost, dw, dx are %s", got)
	}
	// A gradient that cannot be made again is handed out as the graph computes it.
	q, err := fusec.Compile(parse(" gradient dw = y by w value x\n"))
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if out, err = q.Run(map[string]*graph.Tensor{"x": x, "w": w}); err != nil || fmt.Sprint(out["dw"].Floats()) != "[1 2 3]" {
		t.Errorf("dw is %v, %v", out["dw"], err)
	}
	for statements, want := range map[string]string{
		" gradient dw = y by w\n": `the gradient of mul "y" (m.graph:4) by param ` +
			`"w" (m.graph:3): it is f32[3] and not a scalar`,
		" gradient dw = cost by w value cost\n": `by param "w" (m.graph:3): the gradient with ` +
			`respect to "w" is f32[], which does not fit f32[3]`,
		" optimiser sgd\n step w = y\n": `the gradient of mul "y" (m.graph:4) by param ` +
			`"w" (m.graph:3): it is f32[3] and not a scalar`,
		" output \"optim/cost 1\" = y\n optimiser sgd\n step w = cost\n": `an output named "optim/cost 1", which the ` +
			`optimiser needs`,
		" gradient \"optim/gradient 0\" = cost by x\n optimiser sgd\n step w = cost\n": `an output named "optim/gradient 0", which the ` +
			`optimiser needs`,
		" optimiser sgd\n":                       `m.graph:7: optimiser sgd: no step follows it`,
		" optimiser sgd[rate=x]\n step w=cost\n": `m.graph:7: optimiser sgd: rate=x is not a number`,
	} {
		if _, err := fusec.Compile(parse(statements)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", statements, err, want)
		}
		if _, _, err := fusec.Plan(parse(statements)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("planning %q: %v, want %s", statements, err, want)
		}
	}
	if _, err := fusec.Compile(parse(" gradient dw = cost by w\n"), fusec.WithTarget("fpga")); err == nil ||
		!strings.Contains(err.Error(), "too coarse for gradients") {
		t.Errorf("on an FPGA: %v", err)
	}
	g := parse(" gradient dw = cost by w\n")
	if _, err := fusec.Compile(g, fusec.WithGradient("dw", g.Gradients[0].Cost, g.Gradients[0].Of)); err == nil ||
		!strings.Contains(err.Error(), "another output of that name") {
		t.Errorf("two of one name: %v", err)
	}
}
