package fusec_test

import (
	"bytes"
	"log"
	"strings"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/graph/optim"
)

func lisp(t *testing.T, g *gorgonia.ExprGraph, opts ...gorgonia.VMOpt) *fusec.LispMachine {
	t.Helper()
	m := fusec.NewLispMachine(g, append(elsewhere(t), opts...)...)
	t.Cleanup(func() { m.Close() })
	if err := m.Err(); err != nil {
		t.Fatal(err)
	}
	return m
}

// A LispMachine trains a graph that nobody has differentiated, as gorgonia.NewLispMachine does and as NewMachine does on
// one that gorgonia.Grad has differentiated.
func TestLispMachine(t *testing.T) {
	for _, d := range []tensor.Dtype{tensor.Float32, tensor.Float64} {
		n, same, gorgonias := newMLP(d), newMLP(d).withGrad(t), newMLP(d)
		vm, want := lisp(t, n.g), machine(t, same.g, gorgonia.BindDualValues(same.params...))
		vm.ForceCPU()
		theirs := gorgonia.NewLispMachine(gorgonias.g)
		if err := theirs.RunAll(); err != nil {
			t.Fatal(err)
		}
		solver, other := gorgonia.NewVanillaSolver(gorgonia.WithLearnRate(0.1)), gorgonia.NewVanillaSolver(gorgonia.WithLearnRate(0.1))
		for step := range 3 {
			run(t, vm)
			run(t, want)
			sameFloats(t, "the cost", floats(t, n.cost.Value()), floats(t, same.cost.Value()), 1e-6)
			for i, p := range n.params {
				g, err := p.Grad()
				if err != nil {
					t.Fatal(err)
				}
				exact, _ := same.params[i].Grad()
				sameFloats(t, "the gradient of "+p.Name(), floats(t, g), floats(t, exact), 1e-6)
				if step == 0 {
					gorg, _ := gorgonias.params[i].Grad()
					sameFloats(t, "Gorgonia's gradient of "+p.Name(), floats(t, g), floats(t, gorg), 1e-5)
				}
			}
			if err := solver.Step(gorgonia.NodesToValueGrads(n.params)); err != nil {
				t.Fatal(err)
			}
			if err := other.Step(gorgonia.NodesToValueGrads(same.params)); err != nil {
				t.Fatal(err)
			}
		}
		agrees(t, n.hidden, reference(t, n.g)(n.hidden)) // an inner node
		vm.UnbindAll()
		for _, v := range n.g.AllNodes() {
			if held := v.Value() != nil; held != (v.Op() == nil) && !strings.Contains(v.Name(), "0") {
				t.Errorf("%v has a value after UnbindAll: %v", v, held)
			}
		}
		run(t, vm)
		agrees(t, n.cost, reference(t, n.g)(n.cost))
	}
}

// Of several roots the gradients are those of their sum, and what no root depends on has zeros.
func TestLispMachineRoots(t *testing.T) {
	b := newNet(tensor.Float64)
	x, y, far := b.in("x", 3, 1), b.in("y", 1, 3), b.in("far", 2)
	must(gorgonia.Sum(must(gorgonia.Square(x))))
	must(gorgonia.Sum(must(gorgonia.Mul(x, y))))
	run(t, lisp(t, b.g))
	xs, ys := floats(t, x.Value()), floats(t, y.Value())
	total := ys[0] + ys[1] + ys[2]
	for _, c := range []struct {
		of   *gorgonia.Node
		want []float64
	}{
		{x, []float64{2*xs[0] + total, 2*xs[1] + total, 2*xs[2] + total}},
		{far, []float64{0, 0}},
	} {
		g, err := c.of.Grad()
		if err != nil {
			t.Fatal(err)
		}
		sameFloats(t, "the gradient of "+c.of.Name(), floats(t, g), c.want, 1e-12)
	}
}

func TestLispMachineOptions(t *testing.T) {
	var buf bytes.Buffer
	logger := log.New(&buf, "", 0)
	for _, c := range []struct {
		name    string
		opts    func(n *mlp) []gorgonia.VMOpt
		refused string
		noted   string
		logs    []string
		silent  []string
		forward bool // no gradients
	}{
		{name: "BindDualValues", opts: option(func(n *mlp) gorgonia.VMOpt { return gorgonia.BindDualValues(n.params[0]) }),
			noted: "BindDualValues has nothing to do"},
		{name: "EvalMode", opts: option(func(*mlp) gorgonia.VMOpt { return gorgonia.EvalMode() })},
		{name: "ExecuteBwdOnly", opts: option(func(*mlp) gorgonia.VMOpt { return gorgonia.ExecuteBwdOnly() }), refused: "ExecuteBwdOnly"},
		{name: "ExecuteFwdOnly", opts: option(func(*mlp) gorgonia.VMOpt { return gorgonia.ExecuteFwdOnly() }), forward: true},
		{name: "LogBothDir", opts: func(n *mlp) []gorgonia.VMOpt {
			return []gorgonia.VMOpt{gorgonia.WithLogger(logger), gorgonia.LogBothDir(), gorgonia.WithWatchlist(n.params[1]),
				gorgonia.WithValueFmt("<%1.1f>")}
		}, logs: []string{"first.bias", "gradient of first.bias", "<"}},
		{name: "LogBwd", opts: func(n *mlp) []gorgonia.VMOpt {
			return []gorgonia.VMOpt{gorgonia.WithLogger(logger), gorgonia.LogBwd(), gorgonia.WithWatchlist(n.params[1])}
		}, logs: []string{"gradient of first.bias"}, silent: []string{"\nfirst.bias"}},
		{name: "LogFwd", opts: func(n *mlp) []gorgonia.VMOpt {
			return []gorgonia.VMOpt{gorgonia.WithLogger(logger), gorgonia.LogFwd(), gorgonia.WithWatchlist(n.params[1])}
		}, logs: []string{"first.bias"}, silent: []string{"gradient of"}},
		{name: "TraceExec", opts: option(func(*mlp) gorgonia.VMOpt { return gorgonia.TraceExec() }),
			refused: "TraceExec, is not an option of a LispMachine"},
		{name: "UseCudaFor", opts: option(func(*mlp) gorgonia.VMOpt { return gorgonia.UseCudaFor() }),
			noted: "UseCudaFor has nothing to do"},
		{name: "WithEngine", opts: option(func(*mlp) gorgonia.VMOpt { return gorgonia.WithEngine(strangeEngine{}) }),
			refused: "WithEngine"},
		{name: "WithInfWatch", opts: option(func(*mlp) gorgonia.VMOpt { return gorgonia.WithInfWatch() })},
		{name: "WithManualGradient", opts: option(func(*mlp) gorgonia.VMOpt { return gorgonia.WithManualGradient() })},
		{name: "WithNaNWatch", opts: option(func(*mlp) gorgonia.VMOpt { return gorgonia.WithNaNWatch() })},
		{name: "WithPointerWatch", opts: option(func(*mlp) gorgonia.VMOpt { return gorgonia.WithPointerWatch() }),
			noted: "WithPointerWatch has nothing to do"},
		{name: "WithPrecompiled", opts: option(func(*mlp) gorgonia.VMOpt { return gorgonia.WithPrecompiled(nil, nil) }),
			noted: "WithPrecompiled has nothing to do"},
		{name: "WithWatchlist of a number", opts: option(func(*mlp) gorgonia.VMOpt { return gorgonia.WithWatchlist(3) }),
			refused: "WithWatchlist"},
		{name: "WithOptimizer", opts: option(func(*mlp) gorgonia.VMOpt {
			return fusec.WithOptimizer(&optim.Optimizer{Rule: optim.SGD{}, Rate: optim.Constant(0.1)})
		}), refused: "WithOptimizer"},
		{name: "WithWorkers", opts: option(func(*mlp) gorgonia.VMOpt { return fusec.WithWorkers(0) }), refused: "WithWorkers"},
	} {
		t.Run(c.name, func(t *testing.T) {
			buf.Reset()
			n := newMLP(tensor.Float64)
			m := fusec.NewLispMachine(n.g, append(elsewhere(t), c.opts(n)...)...)
			defer m.Close()
			if c.refused != "" {
				wantError(t, m.Err(), c.refused)
				return
			}
			run(t, m)
			agrees(t, n.cost, reference(t, n.g)(n.cost))
			if g, _ := n.params[0].Grad(); (g == nil) != c.forward {
				t.Errorf("the gradient is %v", g)
			}
			if c.noted != "" && !hasNote(m.Trace(), c.noted) {
				t.Errorf("no note says that %s", c.noted)
			}
			logged := "\n" + buf.String()
			for _, s := range c.logs {
				if !strings.Contains(logged, s) {
					t.Errorf("the log lacks %q: %s", s, logged)
				}
			}
			for _, s := range c.silent {
				if strings.Contains(logged, s) {
					t.Errorf("the log has %q: %s", s, logged)
				}
			}
		})
	}
}

func option(f func(*mlp) gorgonia.VMOpt) func(*mlp) []gorgonia.VMOpt {
	return func(n *mlp) []gorgonia.VMOpt { return []gorgonia.VMOpt{f(n)} }
}

// The gradient of a root is the user's with WithManualGradient.
func TestLispMachineManualGradient(t *testing.T) {
	b := newNet(tensor.Float64)
	x := b.in("x", 2, 3)
	y := must(gorgonia.Square(x))
	m := lisp(t, b.g, gorgonia.WithManualGradient())
	run(t, m)
	at := floats(t, x.Value())
	check := func(what string, weigh func(int) float64) {
		t.Helper()
		g, err := x.Grad()
		if err != nil {
			t.Fatal(err)
		}
		want := make([]float64, len(at))
		for i, v := range at {
			want[i] = 2 * v * weigh(i)
		}
		sameFloats(t, what, floats(t, g), want, 1e-12)
	}
	check("by default", func(int) float64 { return 1 })
	gorgonia.WithGrad(tensor.New(tensor.WithShape(2, 3), tensor.WithBacking([]float64{0, 1, 2, 3, 4, 5})))(y)
	run(t, m)
	check("with the first added", func(i int) float64 { return 1 + float64(i) })
}

func TestLispMachineRefuses(t *testing.T) {
	wantError(t, fusec.NewLispMachine(newMLP(tensor.Float64).withGrad(t).g).Err(), "gorgonia.Grad", "ExecuteFwdOnly")
	run(t, lisp(t, newMLP(tensor.Float64).withGrad(t).g, gorgonia.ExecuteFwdOnly()))
	b := newNet(tensor.Float64)
	must(gorgonia.Square(b.in("x", 2)))
	wantError(t, fusec.NewLispMachine(b.g).Err(), "square", "scalar")
	wantError(t, fusec.NewLispMachine(nil).Err(), "nil")
	fusec.NewLispMachine(nil).UnbindAll()
	ints := gorgonia.NewGraph()
	i := gorgonia.NewVector(ints, tensor.Int, gorgonia.WithShape(3), gorgonia.WithName("i"),
		gorgonia.WithValue(tensor.New(tensor.WithBacking([]int{1, 2, 3}))))
	must(gorgonia.Add(i, i))
	wantError(t, fusec.NewLispMachine(ints).Err(), "no gradient")
}

// TestLispMachineRunsAgain runs a machine again after a weight has changed. Gorgonia's gives the first run's value, or panics.
func TestLispMachineRunsAgain(t *testing.T) {
	b := newNet(tensor.Float64)
	w := b.in("w", 3)
	cost := must(gorgonia.Sum(must(gorgonia.Square(w))))
	m := fusec.NewLispMachine(b.g)
	defer m.Close()
	for range 3 {
		run(t, m)
		want := 0.0
		for _, v := range floats(t, w.Value()) {
			want += v * v
		}
		sameFloats(t, "cost", floats(t, cost.Value()), []float64{want}, 1e-12)
		w.Value().Data().([]float64)[0]++
		m.Reset()
	}
}
