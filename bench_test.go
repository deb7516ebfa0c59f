package fusec_test

import (
	"fmt"
	"testing"
	"time"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/cmd/models/zoo"
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
		return gorgonia.NewMatrix(g, tensor.Float32, gorgonia.WithShape(rows, cols), gorgonia.WithName(name),
			gorgonia.WithValue(values(rows, cols)))
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

// race runs a network on fusec and on Gorgonia's own machine. build gives its graph and the parameters whose gradients
// are bound, if any.
func race(b *testing.B, name string, build func() (*gorgonia.ExprGraph, gorgonia.Nodes)) {
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
	g, params := build()
	f := fusec.NewMachine(g, gorgonia.BindDualValues(params...))
	b.Run(name+"/fusec", func(b *testing.B) {
		run(f)(b)
		b.ReportMetric(float64(f.Program().Bytes())/(1<<20), "MiB-held")
	})
	f.Close()
	g, params = build()
	t := gorgonia.NewTapeMachine(g, gorgonia.BindDualValues(params...))
	b.Run(name+"/TapeMachine", run(t))
	t.Close()
}

// BenchmarkMLP is the forward pass, and forward and backward.
func BenchmarkMLP(b *testing.B) {
	for _, train := range []bool{false, true} {
		name := "forward"
		if train {
			name = "training"
		}
		race(b, name, func() (*gorgonia.ExprGraph, gorgonia.Nodes) {
			g, params := mlp784(b, train)
			if !train {
				params = nil
			}
			return g, params
		})
	}
}

// BenchmarkDropout is Σ x² and the same with a dropout of half of the squares, of 10⁶ elements: forward, and forward
// and backward. The difference by elements and directions is what dropout costs; it is that of the fastest run, since
// other programs may use the machine.
func BenchmarkDropout(b *testing.B) {
	const side = 1000
	for _, dt := range []tensor.Dtype{tensor.Float32, tensor.Float64} {
		for _, train := range []bool{false, true} {
			for _, drop := range []bool{false, true} {
				name, directions := fmt.Sprintf("%v/forward/dropout=%v", dt, drop), 1
				if train {
					name, directions = fmt.Sprintf("%v/training/dropout=%v", dt, drop), 2
				}
				g := gorgonia.NewGraph()
				x := gorgonia.NewMatrix(g, dt, gorgonia.WithShape(side, side), gorgonia.WithName("x"), gorgonia.WithInit(gorgonia.GlorotN(1)))
				y := gorgonia.Must(gorgonia.Square(x))
				if drop {
					y = gorgonia.Must(gorgonia.Dropout(y, 0.5))
				}
				cost := gorgonia.Must(gorgonia.Sum(y))
				var opts []gorgonia.VMOpt
				if train {
					if _, err := gorgonia.Grad(cost, x); err != nil {
						b.Fatal(err)
					}
					opts = append(opts, gorgonia.BindDualValues(x))
				}
				vm := fusec.NewMachine(g, opts...)
				b.Run(name, func(b *testing.B) {
					b.ReportAllocs()
					least := time.Hour
					for b.Loop() {
						start := time.Now()
						if err := vm.RunAll(); err != nil {
							b.Fatal(err)
						}
						least = min(least, time.Since(start))
						vm.Reset()
					}
					b.ReportMetric(float64(least.Nanoseconds())/float64(side*side*directions), "ns/element/direction")
				})
				vm.Close()
			}
		}
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

// BenchmarkBlockTraining is forward and backward of a transformer block: batch 4, sequence 128, width 256, 8 heads,
// feed-forward 1024.
func BenchmarkBlockTraining(b *testing.B) {
	race(b, "training", func() (*gorgonia.ExprGraph, gorgonia.Nodes) {
		m := zoo.TransformerBlock(4, 128, 256, 8, 1024)
		data := make([]float32, 4*128*256)
		for i := range data {
			data[i] = float32((i*7919)%1000)/500 - 1
		}
		x := tensor.New(tensor.WithShape(4*128, 256), tensor.WithBacking(data))
		if err := gorgonia.Let(m.Input, x); err != nil {
			b.Fatal(err)
		}
		cost := gorgonia.Must(gorgonia.Mean(gorgonia.Must(gorgonia.Square(m.Output))))
		if _, err := gorgonia.Grad(cost, m.Params...); err != nil {
			b.Fatal(err)
		}
		return m.Graph, m.Params
	})
}
