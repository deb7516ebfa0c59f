package nn_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"fusec"
	"fusec/graph"
	"fusec/graph/nn"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// TestHashes requires two nodes to be merged exactly if they compute the same.
func TestHashes(t *testing.T) {
	b := newNet(tensor.Float32)
	x, y, k := b.in("x", 2, 4, 6), b.in("y", 2, 4, 6), b.in("k", 2, 8, 6)
	gain, i, seed := b.in("gain", 6), b.ints("i", 0, 1), b.int("seed", 1)
	attention := func(o nn.AttentionOptions) (*gorgonia.Node, error) { return nn.Attention(x, x, x, o) }
	top := func(k int) [2]*gorgonia.Node {
		v, i, err := nn.TopK(x, k)
		if err != nil {
			t.Fatal(err)
		}
		return [2]*gorgonia.Node{v, i}
	}
	routing, w := route(t, x, nn.RouteOptions{K: 1}), b.in("experts", 6, 6, 6)
	images, filters := b.in("images", 2, 3, 4, 4), b.in("filters", 2, 3, 1, 1)
	narrow := b.in("narrow", 2, 2, 4, 4)
	one, two := batchNorm(b, "one", 3), batchNorm(b, "two", 3)
	two.Gamma, two.Beta = one.Gamma, one.Beta
	made := func() []*gorgonia.Node {
		s := nn.NewSeeds(b.g, 1)
		return []*gorgonia.Node{
			must(nn.GELU(x)), must(nn.GELUTanh(x)), must(nn.SiLU(x)), must(nn.SiLU(y)),
			must(nn.SwiGLU(x, y)), must(nn.SwiGLU(y, x)),
			must(nn.LayerNorm(x, gain, gain, 1e-5)), must(nn.LayerNorm(x, gain, gain, 1e-6)),
			must(nn.LayerNorm(y, gain, gain, 1e-6)),
			must(nn.RMSNorm(x, gain, 1e-5)), must(nn.RMSNorm(x, gain, 1e-6)),
			must(nn.RMSNorm(x, gain, math.Nextafter(1e-6, 1))),
			must(attention(nn.AttentionOptions{})), must(attention(nn.AttentionOptions{Causal: true})),
			must(attention(nn.AttentionOptions{Window: 2})),
			must(attention(nn.AttentionOptions{Window: 258})), must(attention(nn.AttentionOptions{Scale: 0.5})),
			must(attention(nn.AttentionOptions{Dropout: 0.5, Seed: seed})),
			must(attention(nn.AttentionOptions{Dropout: 0.25, Seed: seed})),
			must(nn.Attention(x, k, k, nn.AttentionOptions{})),
			must(nn.RoPE(x, nn.RoPEOptions{})), must(nn.RoPE(x, nn.RoPEOptions{Base: 500})),
			must(nn.RoPE(x, nn.RoPEOptions{Interleaved: true})),
			must(nn.RoPE(x, nn.RoPEOptions{Start: seed})),
			must(nn.SplitHeads(x, 1)), must(nn.SplitHeads(x, 2)), must(nn.SplitHeads(x, 3)), must(nn.MergeHeads(x)),
			must(nn.Dropout(x, 0.5, seed)), must(nn.Dropout(x, 0.25, seed)),
			must(nn.Dropout(x, 0.25, s.Next())), must(nn.Dropout(x, 0.25, s.Next())),
			must(nn.Embedding(x, i)), must(nn.ScatterAdd(x, i, 4)), must(nn.ScatterAdd(x, i, 260)),
			must(nn.ScatterMean(x, i, 4)),
			must(nn.CrossEntropy(gain, seed)), must(nn.CrossEntropyRows(gain, seed)),
			must(nn.Linear(gain, must(nn.MergeHeads(b.in("w", 1, 6, 3))), nil)),
			top(1)[0], top(1)[1], top(2)[0], top(2)[1], routing.Gates, must(routing.LoadBalance()),
			must(routing.ZLoss()), must(routing.Load()), must(routing.Dropped()), route(t, x, nn.RouteOptions{K: 2}).Gates,
			route(t, x, nn.RouteOptions{K: 1, Gate: nn.GateOfChosen}).Gates,
			route(t, x, nn.RouteOptions{K: 1, Capacity: 1}).Gates,
			must(nn.ReLU(x)), must(nn.Convolve(images, filters, nil, nn.Window{}, 1)),
			must(nn.Convolve(images, filters, nil, nn.Square(1, 2, 0), 1)),
			must(nn.ConvolveTransposed(narrow, filters, nil, nn.Square(1, 2, 0), 1, [2]int{})),
			must(nn.ConvolveTransposed(narrow, filters, nil, nn.Square(1, 2, 0), 1, [2]int{0, 1})),
			must(nn.MaxPool2d(images, nn.Square(2, 1, 0))), must(nn.AvgPool2d(images, nn.Square(2, 1, 0))),
			must(nn.GlobalAvgPool2d(images)), must(one.Forward(images)), must(two.Forward(images)),
			must(nn.MoE(y, routing.Gates, nn.Experts{W1: w, W2: w})),
			must(nn.MoE(y, routing.Gates, nn.Experts{W1: w, W2: w, Activation: graph.Relu})),
		}
	}
	first := made()
	for i, n := range first {
		for j, m := range first[:i] {
			if n == m {
				t.Errorf("%d, %v, and %d, %v, are one node", i, n.Op(), j, m.Op())
			}
			if n.Op().Hashcode() == m.Op().Hashcode() && n.Op().String() != m.Op().String() {
				t.Errorf("%v and %v have one hash", n.Op(), m.Op())
			}
		}
	}
	for i, n := range made() {
		if n != first[i] {
			t.Errorf("%v, made again, is another node", n.Op())
		}
	}
}

// TestErrors requires errors to name what does not fit.
func TestErrors(t *testing.T) {
	b := newNet(tensor.Float32)
	x, y, v := b.in("x", 2, 3), b.in("y", 4, 5), b.in("v", 3)
	i, seed, half := b.ints("i", 1, 2), b.int("seed", 1), b.in("half", 2)
	double := newNet(tensor.Float64)
	double.g = b.g
	type node = *gorgonia.Node
	for _, c := range []struct {
		make func() (node, error)
		want []string
	}{
		{func() (node, error) { return nn.GELU(nil) }, []string{"GELU", "x is nil"}},
		{func() (node, error) { return nn.GELU(i) }, []string{"GELU", "x = i", "needs f32 or f64, not i64"}},
		{func() (node, error) { return nn.SwiGLU(x, y) }, []string{"SwiGLU", "x = y", "[2,3] and [4,5] differ"}},
		{func() (node, error) { return nn.LayerNorm(x, v, y, 1e-5) },
			[]string{"LayerNorm(eps=1e-05)", "beta = y", "needs f32[3], not f32[4,5]"}},
		{func() (node, error) { return nn.RMSNorm(x, double.in("w", 3), 1e-5) },
			[]string{"gamma = w", "needs f32[3], not f64[3]"}},
		{func() (node, error) { return nn.Attention(x, y, y, nn.AttentionOptions{}) },
			[]string{"Attention", "q = x", "k = y", "differ in the last axis"}},
		{func() (node, error) { return nn.Attention(v, v, v, nn.AttentionOptions{}) }, []string{"of the same rank of 2 or more"}},
		{func() (node, error) { return nn.Attention(x, x, x, nn.AttentionOptions{Dropout: 0.5}) },
			[]string{"dropout=0.5", "seed is nil"}},
		{func() (node, error) { return nn.Attention(x, x, x, nn.AttentionOptions{Tail: true}) }, []string{"needs lengths"}},
		{func() (node, error) { return nn.Attention(x, x, x, nn.AttentionOptions{Mask: y}) },
			[]string{"mask = y", "does not broadcast to [2,2]"}},
		{func() (node, error) { return nn.RoPE(x, nn.RoPEOptions{}) },
			[]string{"RoPE(base=10000)", "x", "the last axis of [2,3] has 3"}},
		{func() (node, error) { return nn.RoPE(b.in("z", 2, 4), nn.RoPEOptions{Start: i}) },
			[]string{"start = i", "not an i64 scalar"}},
		{func() (node, error) { return nn.SplitHeads(x, 2) }, []string{"SplitHeads(2)", "does not split into 2 heads"}},
		{func() (node, error) { return nn.SplitHeads(x, 0) }, []string{"does not split into 0 heads"}},
		{func() (node, error) { return nn.SplitHeads(v, 1) }, []string{"does not split"}},
		{func() (node, error) { return nn.MergeHeads(x) }, []string{"MergeHeads", "has no heads to merge"}},
		{func() (node, error) { return nn.Dropout(x, 1, seed) }, []string{"Dropout(p=1)", "probability 1 is outside"}},
		{func() (node, error) { return nn.Dropout(x, 0.5, half) }, []string{"seed = half", "not an i64 scalar"}},
		{func() (node, error) { return nn.Linear(x, y, nil) },
			[]string{"Linear", "w = y", "want x [..., in] and w [in, out]"}},
		{func() (node, error) { return nn.Linear(x, b.in("u", 3, 4), v) }, []string{"bias = v", "want [4]"}},
		{func() (node, error) { return nn.Embedding(x, v) }, []string{"Embedding", "indices = v", "not i32 or i64"}},
		{func() (node, error) { return nn.CrossEntropy(x, v) },
			[]string{"CrossEntropy", "labels = v", "want floats [..., c] and numbers [...]"}},
		{func() (node, error) { return nn.CrossEntropyRows(i, seed) }, []string{"logits = i", "want floats"}},
		{func() (node, error) { return nn.ScatterAdd(x, v, 3) },
			[]string{"ScatterAdd(3)", "index = v", "want floats [e, ...] and integers [e]"}},
		{func() (node, error) { return nn.ScatterMean(x, i, -1) }, []string{"ScatterMean(-1)"}},
		{func() (node, error) { return nn.ScatterMean(x, half, 3) }, []string{"indices are f32"}},
		{func() (node, error) { return nn.Propagate(x, i, seed) },
			[]string{"Propagate", "target = seed", "integers [e], twice"}},
		{func() (node, error) { return nn.SwiGLU(x, newNet(tensor.Float32).in("far", 2, 3)) },
			[]string{"SwiGLU", "same graph"}},
		{func() (node, error) { return nn.GELU(newNet(tensor.Complex64).nothing()) }, []string{"GELU", "nothing"}},
		{func() (node, error) {
			return nil, second(nn.NewMultiHeadAttention(b.g, tensor.Float32, "m", 8, 3, 1))
		},
			[]string{"MultiHeadAttention m", "8 features, 3 heads"}},
		{func() (node, error) {
			return nil, second(nn.NewMultiHeadAttention(b.g, tensor.Int, "m", 8, 2, 1))
		},
			[]string{"MultiHeadAttention m", "not int"}},
		{func() (node, error) { return nil, second(nn.NewGraphConv(nil, tensor.Float32, "c", 1, 1)) },
			[]string{"GraphConv c: the graph is nil"}},
		{func() (node, error) { return nil, second(nn.NewGraphConv(b.g, tensor.Float32, "c", 0, 1)) },
			[]string{"GraphConv c", "0 features"}},
	} {
		n, err := c.make()
		if err == nil {
			t.Errorf("%v was made; want an error with %q", n, c.want)
			continue
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("error %q does not say %q", err, w)
			}
		}
	}
}

// nothing is an input of a type that fusec does not know.
func (b *net) nothing() *gorgonia.Node {
	return gorgonia.NewVector(b.g, b.d, gorgonia.WithShape(2), gorgonia.WithName("nothing"))
}

func second[T any](_ T, err error) error { return err }

// TestRunErrors requires both machines to return errors of a run.
func TestRunErrors(t *testing.T) {
	for name, machine := range machines {
		b := newNet(tensor.Float32)
		y := must(nn.Embedding(b.in("table", 3, 2), b.ints("i", 1, 3)))
		gorgonia.WithName("Embedding of words")(y)
		vm := machine(b.g)
		if got := fmt.Sprint(vm.RunAll()); !strings.Contains(got, "index 3") || !strings.Contains(got, "Embedding") {
			t.Errorf("%s: index 3 of a table of 3 rows gives the error %v", name, got)
		}
		if err := vm.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestBadLabel requires an invalid label to be noticed.
func TestBadLabel(t *testing.T) {
	for name, machine := range machines {
		b := newNet(tensor.Float32)
		y := must(nn.CrossEntropyRows(b.in("x", 3, 4), b.ints("l", 4, 3, 1000)))
		vm := machine(b.g)
		run(t, vm)
		if v := values(t, y.Value()); !math.IsNaN(v[0]) || math.IsNaN(v[1]) || !math.IsNaN(v[2]) {
			t.Errorf("%s: labels 4, 3 and 1000 of 4 classes have the losses %v", name, v)
		}
		if err := vm.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestLargeLogits requires that nothing overflows, and a gradient if all classes but one are excluded.
func TestLargeLogits(t *testing.T) {
	for name, machine := range machines {
		b := newNet(tensor.Float32)
		inf := math.Inf(-1)
		x := b.floats("x", []float64{300, 299, -300, inf, 3, inf}, 2, 3)
		cost := must(nn.CrossEntropy(x, b.ints("l", 1, 1)))
		if _, err := gorgonia.Grad(cost, x); err != nil {
			t.Fatal(err)
		}
		vm := machine(b.g, gorgonia.BindDualValues(x))
		run(t, vm)
		p := 1 / (1 + math.Exp(-1))
		agree(t, name, values(t, cost.Value()), []float64{(1 - math.Log(p)) / 2}, 1e-6)
		grad, err := x.Grad()
		if err != nil {
			t.Fatal(err)
		}
		agree(t, name+", gradient", values(t, grad), []float64{p / 2, -p / 2, 0, 0, 0, 0}, 1e-6)
		if err := vm.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestCrossEntropyLaunches requires one launch to read the rows and to compute the gradient, too. Besides, labels are
// turned into numbers and counted, and the rows' losses summed: nothing of the size of the logits.
func TestCrossEntropyLaunches(t *testing.T) {
	b := newNet(tensor.Float32)
	x := b.in("x", 16, 100)
	cost := must(nn.CrossEntropy(x, b.ints("l", make([]int, 16)...)))
	if _, err := gorgonia.Grad(cost, x); err != nil {
		t.Fatal(err)
	}
	m := fusec.NewMachine(b.g)
	defer m.Close()
	run(t, m)
	rows := 0
	for _, f := range m.Fusions() {
		if f.Bytes > 16*100 {
			rows++
		}
	}
	if rows != 1 || len(m.Fusions()) != 4 {
		t.Errorf("%d launches read rows, of %d:\n%v", rows, len(m.Fusions()), m.Program().Lowered())
	}
}

// TestDropoutRuns requires both machines to drop the same elements in each run, different ones from run to run, and
// none in evaluation.
func TestDropoutRuns(t *testing.T) {
	drawn := map[string][][]float64{}
	for name, machine := range machines {
		b := newNet(tensor.Float32)
		x := b.floats("x", slices.Repeat([]float64{1}, 40), 40)
		seeds := nn.NewSeeds(b.g, 42)
		y := must(nn.Dropout(x, 0.5, seeds.Next()))
		z := must(nn.Dropout(x, 0.5, seeds.Next()))
		vm := machine(b.g)
		for range 3 {
			run(t, vm)
			drawn[name] = append(drawn[name], values(t, y.Value()), values(t, z.Value()))
			vm.Reset()
		}
		if err := vm.Close(); err != nil {
			t.Error(err)
		}
		eval := machine(b.g, gorgonia.EvalMode())
		run(t, eval)
		agree(t, name+" in evaluation", values(t, y.Value()), values(t, x.Value()), 0)
		if err := eval.Close(); err != nil {
			t.Error(err)
		}
	}
	all := drawn["fusec"]
	for i, v := range all {
		agree(t, fmt.Sprintf("draw %d", i), v, drawn["TapeMachine"][i], 0)
		for j, w := range all[:i] {
			if slices.Equal(v, w) {
				t.Errorf("draws %d and %d are the same", i, j)
			}
		}
	}
}

// TestDropoutMode requires a change of mode between two runs of one machine to take effect.
func TestDropoutMode(t *testing.T) {
	b := newNet(tensor.Float32)
	x := b.floats("x", slices.Repeat([]float64{1}, 40), 40)
	y := must(nn.Dropout(x, 0.5, b.int("seed", 7)))
	m := fusec.NewMachine(b.g)
	defer m.Close()
	want := make([]float64, 40)
	for i := range want {
		if graph.DropoutKeep(7, uint64(i), 0.5) {
			want[i] = 2
		}
	}
	mode := y.Op().(gorgonia.TrainModeOp)
	for i, w := range [][]float64{want, values(t, x.Value()), want} {
		if err := mode.SetTraining(i != 1); err != nil {
			t.Fatal(err)
		}
		run(t, m)
		agree(t, fmt.Sprintf("run %d", i), values(t, y.Value()), w, 0)
		m.Reset()
	}
}

// TestRunAllocatesNothing after the first run.
func TestRunAllocatesNothing(t *testing.T) {
	b := newNet(tensor.Float32)
	x := b.in("x", 2, 6, 8)
	seeds := nn.NewSeeds(b.g, 1)
	o := nn.AttentionOptions{Dropout: 0.1, Seed: seeds.Next()}
	y := must(nn.Attention(x, x, must(nn.RoPE(x, nn.RoPEOptions{})), o))
	y = must(nn.Dropout(must(nn.RMSNorm(y, b.in("gain", 8), 1e-6)), 0.1, seeds.Next()))
	if _, err := gorgonia.Grad(must(nn.CrossEntropy(y, b.floats("labels", make([]float64, 12), 2, 6))), x); err != nil {
		t.Fatal(err)
	}
	m := fusec.NewMachine(b.g)
	defer m.Close()
	run(t, m)
	n := testing.AllocsPerRun(10, func() {
		m.Reset()
		if err := m.RunAll(); err != nil {
			t.Error(err)
		}
	})
	if n > 0 {
		t.Errorf("%v allocations per run", n)
	}
}

// TestTwoCosts keeps Gorgonia's own backward pass, which is of two costs together: nn's gradients are then
// imported as what they compute.
func TestTwoCosts(t *testing.T) {
	var first []float64
	for _, machine := range machines {
		b := newNet(tensor.Float64)
		x := b.in("x", 3, 4)
		h := must(nn.LayerNorm(x, b.in("gamma", 4), b.in("beta", 4), 1e-2))
		one, two := b.cost(must(nn.GELU(h))), b.cost(must(nn.SiLU(h)))
		var seeds gorgonia.Nodes
		for i, name := range []string{"seed one", "seed two"} {
			s := gorgonia.NewScalar(b.g, tensor.Float64, gorgonia.WithName(name), gorgonia.WithValue(1.5-float64(i)))
			seeds = append(seeds, s)
		}
		grads, err := gorgonia.Backpropagate(gorgonia.Nodes{one, two}, seeds, gorgonia.Nodes{x})
		if err != nil {
			t.Fatal(err)
		}
		var got gorgonia.Value
		gorgonia.Read(grads[0], &got)
		vm := machine(b.g)
		run(t, vm)
		if first == nil {
			first = values(t, got)
		}
		agree(t, "gradient", values(t, got), first, 1e-10)
		if m, ok := vm.(*fusec.Machine); ok && !backward(m) {
			t.Error("Gorgonia's backward pass is gone")
		}
		if err := vm.Close(); err != nil {
			t.Error(err)
		}
	}
}

// backward reports whether a launch computes what gorgonia.Grad added of nn's operations.
func backward(m *fusec.Machine) bool {
	for _, f := range m.Fusions() {
		for _, o := range f.Nodes {
			if strings.HasPrefix(o.Name, "∂") {
				return true
			}
		}
	}
	return false
}

// TestSecondDerivative differentiates gradients.
func TestSecondDerivative(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(b *net, x *gorgonia.Node) *gorgonia.Node
	}{
		{"SiLU", func(_ *net, x *gorgonia.Node) *gorgonia.Node { return must(nn.SiLU(x)) }},
		{"RMSNorm", func(b *net, x *gorgonia.Node) *gorgonia.Node { return must(nn.RMSNorm(x, b.in("gain", 4), 1e-2)) }},
		{"Attention", func(b *net, x *gorgonia.Node) *gorgonia.Node {
			return must(nn.Attention(x, b.in("k", 5, 4), b.in("v", 5, 4), nn.AttentionOptions{Causal: true}))
		}},
		{"CrossEntropy", func(b *net, x *gorgonia.Node) *gorgonia.Node {
			return must(nn.CrossEntropyRows(x, b.ints("l", 0, 3, 1)))
		}},
		{"Gates", func(_ *net, x *gorgonia.Node) *gorgonia.Node {
			return route(t, x, nn.RouteOptions{K: 3, Capacity: 1, Gate: nn.GateOfChosen}).Gates
		}},
		{"MoE", func(b *net, x *gorgonia.Node) *gorgonia.Node {
			gates := route(t, b.in("logits", 3, 2), nn.RouteOptions{K: 1}).Gates
			return must(nn.MoE(x, gates, nn.Experts{W1: b.in("w1", 2, 4, 3), W2: b.in("w2", 2, 3, 2)}))
		}},
	} {
		var first []float64
		for name, machine := range machines {
			b := newNet(tensor.Float64)
			x := b.in("x", 3, 4)
			y := c.make(b, x)
			dx := derivative(t, y, b.in("dy", y.Shape()...))
			u := b.in("u", 3, 4)
			cost := must(gorgonia.Sum(must(gorgonia.HadamardProd(dx, u))))
			ddx := derivative(t, dx, u)
			var got gorgonia.Value
			gorgonia.Read(ddx, &got)
			by := differences(t, b.g, cost, x)
			vm := machine(b.g)
			run(t, vm)
			if first == nil {
				first = values(t, got)
			}
			agree(t, c.name+" on "+name, values(t, got), first, 1e-10)
			agree(t, c.name+" by differences", values(t, got), by, 1e-6)
			if err := vm.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// derivative is the gradient of y's first operand, given that of y.
func derivative(t *testing.T, y, dy *gorgonia.Node) *gorgonia.Node {
	t.Helper()
	var operands gorgonia.Nodes
	for it := y.Graph().From(y.ID()); it.Next(); {
		operands = append(operands, it.Node().(*gorgonia.Node))
	}
	d, err := y.Op().(gorgonia.SDOp).SymDiff(operands, y, dy)
	if err != nil {
		t.Fatal(err)
	}
	return d[0]
}
