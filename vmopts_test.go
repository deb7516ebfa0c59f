package fusec_test

import (
	"bytes"
	"fmt"
	"log"
	"runtime"
	"strings"
	"testing"
	"time"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/graph"
	fgorgonia "fusec/graph/gorgonia"
)

// strangeEngine is an engine of somebody's own.
type strangeEngine struct{ tensor.StdEng }

// TestVMOptions gives a machine every option that Gorgonia v0.9.18 has: each works or is refused by its name.
func TestVMOptions(t *testing.T) {
	var buf bytes.Buffer
	for _, c := range []struct {
		name    string
		opt     func(n *mlp) gorgonia.VMOpt
		refused string // part of the error
		check   func(t *testing.T, n *mlp, m *fusec.Machine)
	}{
		{name: "BindDualValues", opt: func(n *mlp) gorgonia.VMOpt { return gorgonia.BindDualValues(n.params...) },
			check: func(t *testing.T, n *mlp, m *fusec.Machine) {
				if !fgorgonia.HasDual(n.params[0]) {
					t.Error("no gradient is bound")
				}
			}},
		{name: "EvalMode", opt: func(*mlp) gorgonia.VMOpt { return gorgonia.EvalMode() }}, // see TestEvalMode
		{name: "ExecuteBwdOnly", opt: func(*mlp) gorgonia.VMOpt { return gorgonia.ExecuteBwdOnly() },
			refused: "ExecuteBwdOnly, is not an option of a TapeMachine"},
		{name: "ExecuteFwdOnly", opt: func(*mlp) gorgonia.VMOpt { return gorgonia.ExecuteFwdOnly() },
			refused: "ExecuteFwdOnly, is not an option of a TapeMachine"},
		{name: "LogBothDir", opt: func(*mlp) gorgonia.VMOpt { return gorgonia.LogBothDir() },
			refused: "LogBothDir, is not an option of a TapeMachine"},
		{name: "LogBwd", opt: func(*mlp) gorgonia.VMOpt { return gorgonia.LogBwd() },
			refused: "LogBwd, is not an option of a TapeMachine"},
		{name: "LogFwd", opt: func(*mlp) gorgonia.VMOpt { return gorgonia.LogFwd() },
			refused: "LogFwd, is not an option of a TapeMachine"},
		{name: "TraceExec", opt: func(*mlp) gorgonia.VMOpt { return gorgonia.TraceExec() },
			check: func(t *testing.T, n *mlp, m *fusec.Machine) {
				if _, ok := n.hidden.Value().(*tensor.Dense); !ok {
					t.Errorf("the hidden layer's value is a %T", n.hidden.Value())
				}
			}},
		{name: "UseCudaFor", opt: func(*mlp) gorgonia.VMOpt { return gorgonia.UseCudaFor("add") },
			check: noted("UseCudaFor has nothing to do")},
		{name: "WithEngine", opt: func(*mlp) gorgonia.VMOpt { return gorgonia.WithEngine(tensor.Float64Engine{}) }},
		{name: "WithEngine of another", opt: func(*mlp) gorgonia.VMOpt { return gorgonia.WithEngine(strangeEngine{}) },
			refused: "WithEngine(fusec_test.strangeEngine)"},
		{name: "WithInfWatch", opt: func(*mlp) gorgonia.VMOpt { return gorgonia.WithInfWatch() }}, // see TestWatchNonFinite
		{name: "WithLogger and WithValueFmt", opt: func(n *mlp) gorgonia.VMOpt {
			return func(vm gorgonia.VM) {
				if _, ok := vm.(*fusec.Machine); !ok {
					gorgonia.WithLogger(log.New(&buf, "", 0))(vm)
					gorgonia.WithValueFmt("<%v>")(vm)
					gorgonia.WithWatchlist(n.cost)(vm)
				}
			}
		}, check: func(t *testing.T, n *mlp, m *fusec.Machine) {
			if want := fmt.Sprintf("<%v>", n.cost.Value()); !strings.Contains(buf.String(), want) {
				t.Errorf("the log is %q, without %q", buf.String(), want)
			}
		}},
		{name: "WithManualGradient", opt: func(*mlp) gorgonia.VMOpt { return gorgonia.WithManualGradient() },
			check: noted("WithManualGradient has nothing to do")},
		{name: "WithNaNWatch", opt: func(*mlp) gorgonia.VMOpt { return gorgonia.WithNaNWatch() }},
		{name: "WithPointerWatch", opt: func(*mlp) gorgonia.VMOpt { return gorgonia.WithPointerWatch() },
			check: noted("WithPointerWatch has nothing to do")},
		{name: "WithPrecompiled", opt: func(n *mlp) gorgonia.VMOpt {
			p, at, err := gorgonia.CompileFunction(n.g, gorgonia.Nodes{n.x}, gorgonia.Nodes{n.y})
			if err != nil {
				t.Fatal(err)
			}
			return gorgonia.WithPrecompiled(p, at)
		}, check: func(t *testing.T, n *mlp, m *fusec.Machine) {
			if n.cost.Value() != nil {
				t.Error("the cost was computed")
			}
			agrees(t, n.y, reference(t, n.g)(n.y))
		}},
		{name: "WithPrecompiled of nothing", opt: func(*mlp) gorgonia.VMOpt { return gorgonia.WithPrecompiled(nil, nil) },
			refused: "WithPrecompiled"},
		{name: "WithWatchlist", opt: func(n *mlp) gorgonia.VMOpt { return gorgonia.WithWatchlist(n.hidden, gorgonia.NodeID(n.y.ID())) },
			check: func(t *testing.T, n *mlp, m *fusec.Machine) {
				if _, ok := n.hidden.Value().(*tensor.Dense); !ok {
					t.Errorf("the watched node's value is a %T", n.hidden.Value())
				}
			}},
		{name: "WithWatchlist of registers", opt: func(n *mlp) gorgonia.VMOpt { return gorgonia.WithWatchlist(3) },
			refused: "WithWatchlist: numbers of registers"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newMLP(tensor.Float64).withGrad(t)
			m := fusec.NewMachine(n.g, append(elsewhere(t), c.opt(n))...)
			defer m.Close()
			if c.refused != "" {
				wantError(t, m.Err(), c.refused)
				return
			}
			run(t, m)
			if of := n.cost; c.name != "WithPrecompiled" {
				agrees(t, of, reference(t, n.g)(of))
			}
			if c.check != nil {
				c.check(t, n, m)
			}
		})
	}
}

func noted(text string) func(*testing.T, *mlp, *fusec.Machine) {
	return func(t *testing.T, _ *mlp, m *fusec.Machine) {
		if !hasNote(m.Trace(), text) {
			t.Errorf("no note says that %s", text)
		}
	}
}

// TestPrecompiled runs the subgraphs that gorgonia.CompileFunction takes of a graph with a cost and gradients: they need
// their own inputs alone, and do nothing that they were not asked for.
func TestPrecompiled(t *testing.T) {
	b := newNet(tensor.Float32)
	x, w, label := b.in("x", 5, 3), b.in("w", 3, 2), b.node("label", 5, 2)
	scores := must(gorgonia.Mul(x, w))
	h := must(gorgonia.Tanh(scores))
	cost := must(gorgonia.Mean(must(gorgonia.Square(must(gorgonia.Sub(h, label))))))
	var prediction, loss gorgonia.Value
	read := gorgonia.Read(h, &prediction)
	gorgonia.Read(cost, &loss)
	if _, err := gorgonia.Grad(cost, w); err != nil {
		t.Fatal(err)
	}
	precompiled := func(in, out gorgonia.Nodes, opts ...gorgonia.VMOpt) *fusec.Machine {
		p, at, err := gorgonia.CompileFunction(b.g, in, out)
		if err != nil {
			t.Fatal(err)
		}
		return machine(t, b.g, append(opts, gorgonia.WithPrecompiled(p, at))...)
	}
	predict := precompiled(gorgonia.Nodes{x, w}, gorgonia.Nodes{read}, gorgonia.BindDualValues(w))
	run(t, predict)
	if prediction == nil || loss != nil || fgorgonia.HasDual(w) {
		t.Errorf("prediction %v, loss %v, a gradient is bound: %v", prediction, loss, fgorgonia.HasDual(w))
	}
	sameFloats(t, "the prediction", floats(t, prediction), floats(t, h.Value()), 0)
	wantError(t, predict.Let(label, prediction), "not in this graph")

	// An output inside the subgraph of another is handed out, too.
	both := gorgonia.Nodes{scores, h}
	run(t, precompiled(gorgonia.Nodes{x, w}, both))
	for _, n := range both {
		if _, ok := n.Value().(*tensor.Dense); !ok {
			t.Errorf("the value of %v is a %T", n, n.Value())
		}
	}
	train := precompiled(gorgonia.Nodes{x, w, label}, gorgonia.Nodes{cost, w.Deriv()})
	wantError(t, train.RunAll(), `"label" has no value`)
	bind(t, label, b.value(0, 1, 5, 2))
	run(t, train)
	want := reference(t, b.g)
	agrees(t, cost, want(cost))
	agrees(t, w.Deriv(), want(w.Deriv()))
}

// Machines that are dropped without Close give back their goroutines.
func TestDroppedMachines(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 5 {
		n := newMLP(tensor.Float64).withGrad(t)
		run(t, fusec.NewMachine(n.g, fusec.WithWorkers(8), gorgonia.BindDualValues()))
	}
	for wait := time.Millisecond; ; wait *= 2 {
		runtime.GC()
		if runtime.NumGoroutine() <= before {
			return
		}
		if wait > 2*time.Second {
			t.Fatalf("%d goroutines before, %d after", before, runtime.NumGoroutine())
		}
		time.Sleep(wait)
	}
}

func TestFusionString(t *testing.T) {
	f := fusec.Fusion{Kind: "linear", Name: "hid\x1bden", FLOPs: 1234567, Bytes: 2500}
	for i, name := range []string{"a", "b\x1b", "c", "d", "e", "f", "g", "h"} {
		f.Nodes = append(f.Nodes, graph.Origin{Name: name, Pos: []string{"", "model.go:12"}[i%2]})
	}
	const want = `linear "hid\x1bden": a, b�, c, d, e, f and 2 more (model.go:12); 1.23 MFLOP, 0.00238 MiB`
	if got := fmt.Sprint(f); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if got, want := (fusec.Fusion{Kind: "copy"}).String(), "copy; 0 MFLOP, 0 MiB"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	n := newMLP(tensor.Float64)
	for _, f := range machine(t, n.g).Fusions() {
		if s := fmt.Sprint(f); strings.Contains(s, "\n") || !strings.HasPrefix(s, f.Kind) {
			t.Errorf("a fusion prints as %q", s)
		}
	}
}
