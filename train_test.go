package fusec_test

import (
	"math"
	"slices"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/graph"
	fgorgonia "fusec/graph/gorgonia"
	"fusec/kernels/ref"
)

// task is a cost and the nodes to differentiate it with respect to.
type task struct {
	cost *gorgonia.Node
	wrt  gorgonia.Nodes
}

func convTask(b *net) task {
	x, w := b.in("x", 2, 2, 6, 6), b.near("w", 0, 0.4, 3, 2, 3, 3)
	y := must(gorgonia.Conv2d(x, w, tensor.Shape{3, 3}, []int{1, 1}, []int{1, 1}, []int{1, 1}))
	y = must(gorgonia.MaxPool2D(must(gorgonia.Rectify(y)), tensor.Shape{2, 2}, []int{0, 0}, []int{2, 2}))
	y = must(gorgonia.Reshape(y, tensor.Shape{2, 27}))
	y, v, bias := b.linear("out", y, 27, 3)
	return task{must(gorgonia.Mean(must(gorgonia.Square(y)))), gorgonia.Nodes{w, v, bias}}
}

func layerNormTask(b *net) task {
	x, gamma, beta := b.in("x", 5, 6), b.near("gamma", 1, 0.2, 1, 6), b.near("beta", 0, 0.2, 1, 6)
	mean := must(gorgonia.Reshape(must(gorgonia.Mean(x, 1)), tensor.Shape{5, 1}))
	centred := must(gorgonia.BroadcastSub(x, mean, nil, []byte{1}))
	variance := must(gorgonia.Mean(must(gorgonia.Square(centred)), 1))
	deviation := must(gorgonia.Sqrt(must(gorgonia.Add(variance, b.constant(1e-5)))))
	y := must(gorgonia.BroadcastHadamardDiv(centred, must(gorgonia.Reshape(deviation, tensor.Shape{5, 1})), nil, []byte{1}))
	y = must(gorgonia.BroadcastHadamardProd(y, gamma, nil, []byte{0}))
	y = must(gorgonia.BroadcastAdd(y, beta, nil, []byte{0}))
	return task{must(gorgonia.Sum(must(gorgonia.HadamardProd(y, b.in("weigh", 5, 6))))), gorgonia.Nodes{x, gamma, beta}}
}

func embeddingTask(b *net) task {
	table := b.in("table", 7, 4)
	rows := gorgonia.NewVector(b.g, tensor.Int, gorgonia.WithShape(5), gorgonia.WithName("rows"),
		gorgonia.WithValue(tensor.New(tensor.WithBacking([]int{3, 0, 3, 6, 3}))))
	y, w, bias := b.linear("out", must(gorgonia.ByIndices(table, rows, 0)), 4, 3)
	return task{must(gorgonia.Mean(must(gorgonia.Square(y)))), gorgonia.Nodes{table, w, bias}}
}

// classify is the cross-entropy of logits [n, classes] with one class a row.
func classify(b *net, logits *gorgonia.Node, n, classes int) *gorgonia.Node {
	hot := tensor.New(tensor.Of(b.d), tensor.WithShape(n, classes))
	for i := range n {
		if err := hot.SetAt(map[tensor.Dtype]any{tensor.Float32: float32(1), tensor.Float64: 1.0}[b.d], i, (i*i+1)%classes); err != nil {
			panic(err)
		}
	}
	target := b.node("target", n, classes)
	gorgonia.WithValue(hot)(target)
	logs := must(gorgonia.Log(must(gorgonia.SoftMax(logits, 1))))
	return must(gorgonia.Neg(must(gorgonia.Mean(must(gorgonia.Sum(must(gorgonia.HadamardProd(logs, target)), 1))))))
}

func crossEntropyTask(b *net) task {
	h, w1, b1 := b.linear("first", b.in("x", 6, 5), 5, 8)
	y, w2, b2 := b.linear("second", must(gorgonia.Tanh(h)), 8, 4)
	return task{classify(b, y, 6, 4), gorgonia.Nodes{w1, b1, w2, b2}}
}

func batchNormTask(b *net) task {
	x, scale, shift := b.near("x", 2, 2, 4, 2, 3, 3), b.near("scale", 1, 0.2, 1, 2, 1, 1), b.near("shift", 0, 0.2, 1, 2, 1, 1)
	y, _, _, _, err := gorgonia.BatchNorm(x, scale, shift, 0.9, 1e-5)
	y = must(gorgonia.HadamardProd(must(y, err), b.in("weigh", 4, 2, 3, 3)))
	return task{must(gorgonia.Sum(must(gorgonia.Tanh(y)))), gorgonia.Nodes{x}}
}

func attentionTask(b *net) task {
	x := b.in("x", 2, 4, 3)
	w := b.in("w", 2, 3, 3)
	q := must(gorgonia.BatchedMatMul(x, w))
	scores := must(gorgonia.HadamardDiv(must(gorgonia.BatchedMatMul(q, x, false, true)), b.constant(math.Sqrt(3))))
	y := must(gorgonia.BatchedMatMul(must(gorgonia.SoftMax(scores, 2)), x))
	return task{must(gorgonia.Sum(must(gorgonia.Square(y)))), gorgonia.Nodes{x, w}}
}

// penaltyTask uses a gradient in the cost: d(cost)/dx, squared, is added to it.
func penaltyTask(b *net) task {
	x, w1, w2 := b.in("x", 3, 4), b.in("w1", 4, 5), b.in("w2", 5, 2)
	y := must(gorgonia.Mul(must(gorgonia.Tanh(must(gorgonia.Mul(x, w1)))), w2))
	cost := must(gorgonia.Sum(must(gorgonia.Square(y))))
	dx, err := gorgonia.Grad(cost, x)
	if err != nil {
		panic(err)
	}
	total := must(gorgonia.Add(cost, must(gorgonia.Sum(must(gorgonia.Square(dx[0]))))))
	gorgonia.WithName("total")(total)
	return task{total, gorgonia.Nodes{w1, w2}}
}

func TestGradients(t *testing.T) {
	for _, c := range []struct {
		name  string
		build func(b *net) task
	}{
		{"mlp", func(b *net) task {
			h, w1, b1 := b.linear("first", b.in("x", 6, 5), 5, 7)
			y, w2, b2 := b.linear("second", must(gorgonia.Rectify(h)), 7, 3)
			return task{must(gorgonia.Mean(must(gorgonia.Square(y)))), gorgonia.Nodes{w1, b1, w2, b2}}
		}},
		{"convolution", convTask},
		{"layer norm by hand", layerNormTask},
		{"embedding", embeddingTask},
		{"cross-entropy", crossEntropyTask},
		{"batch norm", batchNormTask},
		{"attention", attentionTask},
		{"gradient penalty", penaltyTask},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newNet(tensor.Float64)
			made := c.build(b)
			if _, err := gorgonia.Grad(made.cost, made.wrt...); err != nil {
				t.Fatal(err)
			}
			m := machine(t, b.g, gorgonia.BindDualValues(made.wrt...))
			run(t, m)

			plain := newNet(tensor.Float64)
			same := c.build(plain)
			if err := fgorgonia.SetTraining(plain.g, true); err != nil {
				t.Fatal(err)
			}
			d := newDifferences(t, plain.g, same.cost)
			sameFloats(t, "the cost", floats(t, made.cost.Value()), []float64{d.cost()}, 1e-10)
			for i, w := range made.wrt {
				g, err := w.Grad()
				if err != nil {
					t.Fatal(err)
				}
				sameFloats(t, "d(cost)/d("+w.Name()+")", floats(t, g), d.gradient(same.wrt[i]), 1e-6)
			}
		})
	}
}

// differences computes gradients by central differences of what the reference makes of a graph.
type differences struct {
	t     *testing.T
	im    *fgorgonia.Imported
	at    *graph.Node
	input map[string]*graph.Tensor
}

func newDifferences(t *testing.T, g *gorgonia.ExprGraph, cost *gorgonia.Node) *differences {
	t.Helper()
	im, err := fgorgonia.Import(g, fgorgonia.Options{})
	if err != nil {
		t.Fatal(err)
	}
	in, err := im.Values()
	if err != nil {
		t.Fatal(err)
	}
	return &differences{t, im, im.Node(cost), in}
}

func (d *differences) cost() float64 {
	v, err := ref.Nodes(d.im.Graph, d.input, false)
	if err != nil {
		d.t.Fatal(err)
	}
	return v[d.at][0].F[0]
}

func (d *differences) gradient(of *gorgonia.Node) []float64 {
	const h = 1e-5
	x := d.input[d.im.Node(of).Name]
	g := make([]float64, x.Type.Shape.Elems())
	for i := range g {
		v := x.Float(i)
		x.SetFloat(i, v+h)
		up := d.cost()
		x.SetFloat(i, v-h)
		g[i] = (up - d.cost()) / (2 * h)
		x.SetFloat(i, v)
	}
	return g
}

// Two costs that share no weights train side by side.
func TestSeveralCosts(t *testing.T) {
	b := newNet(tensor.Float64)
	x := b.in("x", 4, 3)
	y1, w1, b1 := b.linear("one", x, 3, 2)
	y2, w2, b2 := b.linear("two", x, 3, 5)
	c1 := must(gorgonia.Mean(must(gorgonia.Square(y1))))
	c2 := must(gorgonia.Sum(must(gorgonia.Tanh(y2))))
	for cost, wrt := range map[*gorgonia.Node]gorgonia.Nodes{c1: {w1, b1}, c2: {w2, b2}} {
		if _, err := gorgonia.Grad(cost, wrt...); err != nil {
			t.Fatal(err)
		}
	}
	run(t, machine(t, b.g, gorgonia.BindDualValues(w1, b1, w2, b2)))
	for _, w := range (gorgonia.Nodes{w1, b1, w2, b2}) {
		cost := c1
		if w == w2 || w == b2 {
			cost = c2
		}
		g, err := w.Grad()
		if err != nil {
			t.Fatal(err)
		}
		sameFloats(t, "the gradient of "+w.Name(), floats(t, g), newDifferences(t, b.g, cost).gradient(w), 1e-7)
	}
}

// Where Gorgonia is right, training on its TapeMachine and on fusec's machine goes the same way, with every solver.
func TestSolvers(t *testing.T) {
	rate := gorgonia.WithLearnRate(0.02)
	solvers := []struct {
		name string
		make func() gorgonia.Solver
	}{
		{"vanilla", func() gorgonia.Solver { return gorgonia.NewVanillaSolver(rate, gorgonia.WithClip(1)) }},
		{"momentum", func() gorgonia.Solver { return gorgonia.NewMomentum(rate, gorgonia.WithL2Reg(1e-3)) }},
		{"rmsprop", func() gorgonia.Solver { return gorgonia.NewRMSPropSolver(rate) }},
		{"adam", func() gorgonia.Solver { return gorgonia.NewAdamSolver(rate, gorgonia.WithBatchSize(6)) }},
		{"adagrad", func() gorgonia.Solver { return gorgonia.NewAdaGradSolver(rate) }},
		{"barzilai-borwein", func() gorgonia.Solver { return gorgonia.NewBarzilaiBorweinSolver(gorgonia.WithLearnRate(1e-3)) }},
		{"adamw", func() gorgonia.Solver { return gorgonia.NewAdamW(rate) }},
	}
	tasks := []struct {
		name  string
		build func(b *net) task
	}{{"cross-entropy", crossEntropyTask}, {"convolution", convTask}, {"layer norm by hand", layerNormTask}}
	type vmMaker func(*gorgonia.ExprGraph, ...gorgonia.VMOpt) gorgonia.VM
	for _, c := range tasks {
		for i, s := range solvers {
			t.Run(c.name+"/"+s.name, func(t *testing.T) {
				train := func(vm vmMaker) (losses []float64) {
					b := newNet(tensor.Float64)
					made := c.build(b)
					var loss gorgonia.Value
					gorgonia.Read(made.cost, &loss)
					if _, err := gorgonia.Grad(made.cost, made.wrt...); err != nil {
						t.Fatal(err)
					}
					var opts []gorgonia.VMOpt
					if i > 0 { // the first does without, as many programs do
						opts = append(opts, gorgonia.BindDualValues(made.wrt...))
					}
					m := vm(b.g, opts...)
					defer m.Close()
					solver := s.make()
					for range 40 {
						if err := m.RunAll(); err != nil {
							t.Fatal(err)
						}
						losses = append(losses, loss.Data().(float64))
						if err := solver.Step(gorgonia.NodesToValueGrads(made.wrt)); err != nil {
							t.Fatal(err)
						}
						m.Reset()
					}
					return losses
				}
				want := train(func(g *gorgonia.ExprGraph, o ...gorgonia.VMOpt) gorgonia.VM { return gorgonia.NewTapeMachine(g, o...) })
				got := train(func(g *gorgonia.ExprGraph, o ...gorgonia.VMOpt) gorgonia.VM { return fusec.NewMachine(g, o...) })
				sameFloats(t, "the losses", got, want, 1e-9)
				if still := s.name == "adamw"; still != (got[39] == got[0]) { // Gorgonia's changes a copy of the weights
					t.Errorf("the losses go from %v to %v", got[0], got[39])
				}
			})
		}
	}
}

// Dropout draws again in each run, the same for the same seed, and its gradient sees what the value saw.
func TestDropout(t *testing.T) {
	const elems = 48
	masks := func(seed int64) (drawn []string) {
		b := newNet(tensor.Float64)
		x := b.near("x", 3, 0.1, 6, 8)
		y := must(gorgonia.Dropout(x, 0.5))
		cost := must(gorgonia.Sum(y))
		if _, err := gorgonia.Grad(cost, x); err != nil {
			t.Fatal(err)
		}
		m := machine(t, b.g, gorgonia.BindDualValues(x), gorgonia.WithWatchlist(y), fusec.WithSeed(seed))
		before := make([]float64, elems)
		for range 3 {
			run(t, m)
			g, err := x.Grad()
			if err != nil {
				t.Fatal(err)
			}
			values, sum := floats(t, y.Value()), floats(t, g)
			mask := ""
			for i, v := range values {
				d := sum[i] - before[i] // gradients add up
				if (v == 0) != (d == 0) || v != 0 && math.Abs(d-2) > 1e-12 {
					t.Fatalf("seed %d: element %d is %v and its gradient %v", seed, i, v, d)
				}
				mask += map[bool]string{true: "0", false: "1"}[v == 0]
			}
			before = sum
			drawn = append(drawn, mask)
		}
		return drawn
	}
	one, again, two := masks(1), masks(1), masks(2)
	if !slices.Equal(one, again) {
		t.Errorf("one seed drew %v and %v", one, again)
	}
	if one[0] == one[1] || one[1] == one[2] {
		t.Errorf("two runs drew the same: %v", one)
	}
	if one[0] == two[0] {
		t.Errorf("two seeds drew the same: %v", one)
	}
}

// Running statistics are the operation's own: they move in training and are what evaluation uses.
func TestBatchNormStatistics(t *testing.T) {
	b := newNet(tensor.Float64)
	x := b.near("x", 5, 2, 8, 2, 3, 3)
	y, _, _, op, err := gorgonia.BatchNorm(x, b.near("scale", 1, 0, 1, 2, 1, 1), b.near("shift", 0, 0, 1, 2, 1, 1), 0.5, 1e-5)
	if err != nil {
		t.Fatal(err)
	}
	m := machine(t, b.g)
	for range 30 {
		run(t, m)
	}
	trained := floats(t, y.Value())
	if err := op.SetTraining(false); err != nil { // the machine takes up the change
		t.Fatal(err)
	}
	run(t, m)
	sameFloats(t, "evaluation on the batch of the training", floats(t, y.Value()), trained, 0.02)
	if err := gorgonia.Let(x, b.near("other", 50, 2, 8, 2, 3, 3).Value()); err != nil {
		t.Fatal(err)
	}
	run(t, m)
	if v := floats(t, y.Value())[0]; v < 10 {
		t.Errorf("a batch far off is %v after normalisation: its own statistics were used", v)
	}
}
