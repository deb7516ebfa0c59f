package fusec_test

import (
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/graph/optim"
)

// mlp784 is 64×784 → 512 → 512 → 10 with ReLU in between, and with a cost and its gradients if train is set.
func mlp784(b *testing.B, train bool) (*gorgonia.ExprGraph, gorgonia.Nodes) {
	g := gorgonia.NewGraph()
	values := func(rows, cols int) *tensor.Dense {
		data := make([]float32, rows*cols)
		for i := range data {
			data[i] = float32((i*7919)%1000)/5000 - 0.1
		}
		return tensor.New(tensor.WithShape(rows, cols), tensor.WithBacking(data))
	}
	matrix := func(name string, rows, cols int) *gorgonia.Node {
		return gorgonia.NewMatrix(g, tensor.Float32, gorgonia.WithShape(rows, cols), gorgonia.WithName(name), gorgonia.WithValue(values(rows, cols)))
	}
	var params gorgonia.Nodes
	linear := func(name string, x *gorgonia.Node, in, out int) *gorgonia.Node {
		w, bias := matrix(name+".w", in, out), matrix(name+".b", 1, out)
		params = append(params, w, bias)
		return gorgonia.Must(gorgonia.BroadcastAdd(gorgonia.Must(gorgonia.Mul(x, w)), bias, nil, []byte{0}))
	}
	h := gorgonia.Must(gorgonia.Rectify(linear("1", matrix("x", 64, 784), 784, 512)))
	h = gorgonia.Must(gorgonia.Rectify(linear("2", h, 512, 512)))
	y := linear("3", h, 512, 10)
	if train {
		cost := gorgonia.Must(gorgonia.Mean(gorgonia.Must(gorgonia.Square(y))))
		if _, err := gorgonia.Grad(cost, params...); err != nil {
			b.Fatal(err)
		}
	}
	return g, params
}

// BenchmarkMLP runs the network on fusec and on Gorgonia's own machine.
func BenchmarkMLP(b *testing.B) {
	for _, train := range []bool{false, true} {
		name := "forward/"
		if train {
			name = "training/"
		}
		run := func(vm gorgonia.VM) func(b *testing.B) {
			return func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if err := vm.RunAll(); err != nil {
						b.Fatal(err)
					}
					vm.Reset()
				}
			}
		}
		var opts []gorgonia.VMOpt
		g, params := mlp784(b, train)
		if train {
			opts = append(opts, gorgonia.BindDualValues(params...))
		}
		f := fusec.NewMachine(g, opts...)
		b.Run(name+"fusec", run(f))
		f.Close()
		g, params = mlp784(b, train)
		if train {
			opts = []gorgonia.VMOpt{gorgonia.BindDualValues(params...)}
		}
		t := gorgonia.NewTapeMachine(g, opts...)
		b.Run(name+"TapeMachine", run(t))
		t.Close()
	}
}

// BenchmarkStep is a training step of the network with Adam: compiled into the run, and by Gorgonia's solver after it.
// The rate is too small to learn anything: gradients that vanish would make numbers that are slow to compute with.
func BenchmarkStep(b *testing.B) {
	step := func(solver gorgonia.Solver, opts ...gorgonia.VMOpt) func(b *testing.B) {
		return func(b *testing.B) {
			g, params := mlp784(b, true)
			if solver != nil {
				opts = []gorgonia.VMOpt{gorgonia.BindDualValues(params...)}
			}
			vm := fusec.NewMachine(g, opts...)
			defer vm.Close()
			b.ReportAllocs()
			for b.Loop() {
				if err := vm.RunAll(); err != nil {
					b.Fatal(err)
				}
				if solver != nil {
					if err := solver.Step(gorgonia.NodesToValueGrads(params)); err != nil {
						b.Fatal(err)
					}
				}
				vm.Reset()
			}
		}
	}
	b.Run("WithOptimizer", step(nil, fusec.WithOptimizer(&optim.Optimizer{Rule: optim.Adam{}, Rate: optim.Constant(1e-9), Clip: 1})))
	b.Run("AdamSolver", step(gorgonia.NewAdamSolver(gorgonia.WithLearnRate(1e-9))))
	b.Run("gradients alone", step(nil))
}
