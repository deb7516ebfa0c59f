package fusec_test

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/graph"
	"fusec/graph/optim"
)

// trained runs a task with an optimiser and returns the cost before each step and the machine.
func trained(t testing.TB, build func(b *net) task, steps int, o *optim.Optimizer,
	opts ...gorgonia.VMOpt) (losses []float64, made task, m *fusec.Machine) {
	t.Helper()
	b := newNet(tensor.Float64)
	made = build(b)
	if _, err := gorgonia.Grad(made.cost, made.wrt...); err != nil {
		t.Fatal(err)
	}
	m = machine(t, b.g, append(opts, fusec.WithOptimizer(o))...)
	for range steps {
		run(t, m)
		losses = append(losses, made.cost.Value().Data().(float64))
	}
	return losses, made, m
}

// synced brings the weights back from where they are trained.
func synced(t testing.TB, m *fusec.Machine) {
	t.Helper()
	if err := m.Sync(); err != nil {
		t.Fatal(err)
	}
}

// plainly trains by a function that changes weights by their gradients, which a machine without an optimiser makes.
func plainly(t testing.TB, build func(b *net) task, steps int, step func(t int, w,
	g [][]float64)) (losses []float64, made task) {
	t.Helper()
	b := newNet(tensor.Float64)
	made = build(b)
	if _, err := gorgonia.Grad(made.cost, made.wrt...); err != nil {
		t.Fatal(err)
	}
	m := machine(t, b.g, gorgonia.BindDualValues(made.wrt...))
	for i := range steps {
		run(t, m)
		losses = append(losses, made.cost.Value().Data().(float64))
		var w, g [][]float64
		for _, n := range made.wrt {
			d, err := n.Grad()
			if err != nil {
				t.Fatal(err)
			}
			w, g = append(w, n.Value().Data().([]float64)), append(g, d.Data().([]float64))
		}
		step(i, w, g)
		for _, d := range g {
			clear(d)
		}
	}
	return losses, made
}

// each calls f for every element of every weight, with the element's number.
func each(w, g [][]float64, f func(k int, w *float64, g float64)) {
	k := 0
	for i := range w {
		for j := range w[i] {
			f(k, &w[i][j], g[i][j])
			k++
		}
	}
}

// plainAdam is Adam as the paper has it; decay is L2 regularisation, decoupled that of AdamW.
func plainAdam(rate func(int) float64, decay, decoupled float64) func(int, [][]float64, [][]float64) {
	m, v := make([]float64, 1000), make([]float64, 1000)
	return func(t int, w, g [][]float64) {
		if t == 0 {
			clear(m)
			clear(v)
		}
		each(w, g, func(k int, w *float64, g float64) {
			g += decay * *w
			m[k] = 0.9*m[k] + 0.1*g
			v[k] = 0.999*v[k] + 0.001*g*g
			mHat, vHat := m[k]/(1-math.Pow(0.9, float64(t+1))), v[k]/(1-math.Pow(0.999, float64(t+1)))
			*w -= rate(t) * (mHat/(math.Sqrt(vHat)+1e-8) + decoupled**w)
		})
	}
}

// clipped scales gradients to a norm of at most c before the step.
func clipped(c float64, step func(int, [][]float64, [][]float64)) func(int, [][]float64, [][]float64) {
	return func(t int, w, g [][]float64) {
		sum := 0.0
		each(w, g, func(_ int, _ *float64, g float64) { sum += g * g })
		if n := math.Sqrt(sum); n > c {
			for i := range g {
				for j := range g[i] {
					g[i][j] *= c / n
				}
			}
		}
		step(t, w, g)
	}
}

// Every optimiser goes the way of a plain float64 one over 40 steps, and changes the values of the nodes in place.
func TestOptimizers(t *testing.T) {
	cosine := optim.WarmupCosine(0.1, 0.001, 5, 40)
	velocity := make([]float64, 1000)
	momentum := func(nesterov bool) func(int, [][]float64, [][]float64) {
		return func(s int, w, g [][]float64) {
			if s == 0 {
				clear(velocity)
			}
			each(w, g, func(k int, w *float64, g float64) {
				g += 1e-3 * *w
				velocity[k] = 0.8*velocity[k] + g
				by := velocity[k]
				if nesterov {
					by = g + 0.8*velocity[k]
				}
				*w -= cosine(s) * by
			})
		}
	}
	sgd := func(rate, decay float64) func(int, [][]float64, [][]float64) {
		return func(_ int, w, g [][]float64) {
			each(w, g, func(_ int, w *float64, g float64) { *w -= rate * (g + decay**w) })
		}
	}
	constant := func(int) float64 { return 0.02 }
	for _, c := range []struct {
		name  string
		o     optim.Optimizer
		plain func(int, [][]float64, [][]float64)
	}{
		{"sgd", optim.Optimizer{Rule: optim.SGD{}, Rate: optim.Constant(0.1)}, sgd(0.1, 0)},
		{"sgd with decay", optim.Optimizer{Rule: optim.SGD{Decay: 0.1}, Rate: optim.Constant(0.1)}, sgd(0.1, 0.1)},
		{"momentum", optim.Optimizer{Rule: optim.Momentum{Mu: 0.8, Decay: 1e-3}, Rate: cosine}, momentum(false)},
		{"nesterov", optim.Optimizer{Rule: optim.Momentum{Mu: 0.8, Nesterov: true, Decay: 1e-3}, Rate: cosine},
			momentum(true)},
		{"adam", optim.Optimizer{Rule: optim.Adam{}, Rate: optim.Constant(0.02)}, plainAdam(constant, 0, 0)},
		{"adam with decay", optim.Optimizer{Rule: optim.Adam{Decay: 0.1}, Rate: optim.Constant(0.02)},
			plainAdam(constant, 0.1, 0)},
		{"adamw", optim.Optimizer{Rule: optim.AdamW{Decay: 0.1}, Rate: cosine}, plainAdam(cosine, 0, 0.1)},
		{"adamw clipped", optim.Optimizer{Rule: optim.AdamW{}, Rate: optim.Constant(0.02), Clip: 0.05},
			clipped(0.05, plainAdam(constant, 0, 0.01))},
		{"sgd clipped", optim.Optimizer{Rule: optim.SGD{}, Rate: optim.Constant(0.1), Clip: 0.3}, clipped(0.3,
			sgd(0.1, 0))},
		{"loss scale", optim.Optimizer{Rule: optim.Adam{}, Rate: optim.Constant(0.02),
			LossScale: optim.LossScale{Initial: 1024, GrowAfter: 7}}, plainAdam(constant, 0, 0)},
		{"odd loss scale", optim.Optimizer{Rule: optim.SGD{}, Rate: optim.Constant(0.1),
			LossScale: optim.LossScale{Initial: 0.3}}, sgd(0.1, 0)},
	} {
		for name, build := range map[string]func(b *net) task{"cross-entropy": crossEntropyTask,
			"layer norm by hand": layerNormTask, "attention": attentionTask} {
			t.Run(c.name+"/"+name, func(t *testing.T) {
				steps := 40
				got, made, m := trained(t, build, steps, &c.o)
				synced(t, m)
				want, same := plainly(t, build, steps, c.plain)
				sameFloats(t, "the costs", got, want, 1e-9)
				for i, w := range made.wrt {
					sameFloats(t, w.Name(), floats(t, w.Value()), floats(t, same.wrt[i].Value()), 1e-9)
				}
				if got[steps-1] == got[0] {
					t.Error("nothing was learnt")
				}
				s := m.StepStats()
				if s.Steps != 40 || s.Skipped != 0 || s.Norm <= 0 || s.Rate != c.o.Rate(39) {
					t.Errorf("the statistics are %+v", s)
				}
				if scale := c.o.LossScale; scale.GrowAfter > 0 && s.LossScale != scale.Initial*32 {
					t.Errorf("the loss scale is %v after 40 steps", s.LossScale)
				}
			})
		}
	}
}

// Where Gorgonia's solvers are right, they and the compiled optimisers go the same way.
func TestOptimizersAgainstSolvers(t *testing.T) {
	rate := gorgonia.WithLearnRate(0.02)
	for _, c := range []struct {
		name   string
		solver gorgonia.Solver
		rule   optim.Rule
	}{
		{"vanilla", gorgonia.NewVanillaSolver(rate), optim.SGD{}},
		{"vanilla with L2", gorgonia.NewVanillaSolver(rate, gorgonia.WithL2Reg(0.1)), optim.SGD{Decay: 0.1}},
		{"momentum", gorgonia.NewMomentum(rate, gorgonia.WithMomentum(0.7)), optim.Momentum{Mu: 0.7}},
		{"adam", gorgonia.NewAdamSolver(rate), optim.Adam{}},
		{"adam with L2", gorgonia.NewAdamSolver(rate, gorgonia.WithL2Reg(0.1)), optim.Adam{Decay: 0.1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, _, _ := trained(t, crossEntropyTask, 40, &optim.Optimizer{Rule: c.rule, Rate: optim.Constant(0.02)})
			b := newNet(tensor.Float64)
			made := crossEntropyTask(b)
			if _, err := gorgonia.Grad(made.cost, made.wrt...); err != nil {
				t.Fatal(err)
			}
			m := gorgonia.NewTapeMachine(b.g, gorgonia.BindDualValues(made.wrt...))
			defer m.Close()
			var want []float64
			for range 40 {
				if err := m.RunAll(); err != nil {
					t.Fatal(err)
				}
				want = append(want, made.cost.Value().Data().(float64))
				if err := c.solver.Step(gorgonia.NodesToValueGrads(made.wrt)); err != nil {
					t.Fatal(err)
				}
				m.Reset()
			}
			sameFloats(t, "the costs", got, want, 1e-9)
		})
	}
}

// batches is a layer on rows [from,to) of fixed data, with the mean square as cost; the input node goes into x.
func batches(from, to int, x **gorgonia.Node) func(b *net) task {
	return func(b *net) task {
		all := b.value(0, 1, 12, 4)
		rows, err := all.Slice(gorgonia.S(from, to))
		if err != nil {
			panic(err)
		}
		*x = b.node("x", to-from, 4)
		gorgonia.WithValue(rows.Materialize())(*x)
		y, w, bias := b.linear("out", *x, 4, 3)
		return task{must(gorgonia.Mean(must(gorgonia.Square(must(gorgonia.Tanh(y)))))), gorgonia.Nodes{w, bias}}
	}
}

// Three runs of small batches make the step of one large one.
func TestAccumulate(t *testing.T) {
	o := optim.Optimizer{Rule: optim.Adam{}, Rate: optim.StepDecay(0.05, 0.5, 4), Clip: 0.1,
		LossScale: optim.LossScale{Initial: 256, GrowAfter: 3}}
	var x *gorgonia.Node
	_, large, one := trained(t, batches(0, 12, &x), 10, &o)
	synced(t, one)
	parts := make([]gorgonia.Value, 3)
	for k := range parts {
		batches(4*k, 4*k+4, &x)(newNet(tensor.Float64))
		parts[k] = x.Value()
	}
	o.Accumulate = 3
	_, small, m := trained(t, batches(0, 4, &x), 0, &o)
	for range 10 {
		for k, part := range parts {
			before := slices.Clone(floats(t, small.wrt[0].Value()))
			if err := gorgonia.Let(x, part); err != nil {
				t.Fatal(err)
			}
			run(t, m)
			synced(t, m)
			if moved := !slices.Equal(before, floats(t, small.wrt[0].Value())); moved != (k == 2) {
				t.Fatalf("after run %d of 3 the weights moved: %v", k+1, moved)
			}
		}
	}
	for i := range large.wrt {
		sameFloats(t, large.wrt[i].Name(), floats(t, small.wrt[i].Value()), floats(t, large.wrt[i].Value()), 1e-12)
	}
	a, b := one.StepStats(), m.StepStats()
	if a.Steps != 10 || b.Steps != 10 || a.LossScale != b.LossScale || math.Abs(a.Norm-b.Norm) > 1e-12 {
		t.Errorf("the statistics are %+v and %+v", a, b)
	}
}

// bits are the weights' and the machine's state, for comparison to the bit.
func bits(t testing.TB, made task, m *fusec.Machine) map[string][]float64 {
	t.Helper()
	state, err := m.State()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]float64{}
	for name, s := range state {
		all[name] = s.Floats()
	}
	for _, w := range made.wrt {
		all[w.Name()] = slices.Clone(floats(t, w.Value()))
	}
	return all
}

// changed lists what differs, in order.
func changed(a, b map[string][]float64) (names []string) {
	for name, x := range a {
		if !slices.EqualFunc(x, b[name], func(u,
			v float64) bool {
			return math.Float64bits(u) == math.Float64bits(v)
		}) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// A gradient or cost that is not finite leaves weights and moments as they are, to the bit, and is counted.
func TestSkip(t *testing.T) {
	var x *gorgonia.Node
	for _, c := range []struct {
		name string
		bad  float64
		o    optim.Optimizer
	}{
		{"NaN", math.NaN(), optim.Optimizer{Rule: optim.AdamW{}, Rate: optim.Constant(0.1)}},
		{"infinity", math.Inf(1), optim.Optimizer{Rule: optim.Momentum{}, Rate: optim.Constant(0.1), Clip: 1}},
		{"with loss scale", math.NaN(), optim.Optimizer{Rule: optim.Adam{}, Rate: optim.Constant(0.1),
			LossScale: optim.LossScale{Initial: 64, GrowAfter: 100}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, made, m := trained(t, batches(0, 4, &x), 3, &c.o)
			before := bits(t, made, m)
			good := x.Value().Data().([]float64)[5]
			x.Value().Data().([]float64)[5] = c.bad
			run(t, m)
			want := []string{"optim/skipped"}
			if c.o.LossScale.Initial > 0 {
				want = []string{"optim/good", "optim/scale", "optim/skipped"}
			}
			if d := changed(before, bits(t, made, m)); !slices.Equal(d, want) {
				t.Errorf("the skipped step changed %v, want %v", d, want)
			}
			x.Value().Data().([]float64)[5] = good
			run(t, m)
			s := m.StepStats()
			if s.Steps != 4 || s.Skipped != 1 || c.o.LossScale.Initial > 0 && s.LossScale != 32 {
				t.Errorf("the statistics are %+v", s)
			}
		})
	}
}

// A cost may be infinite where its gradient is not; and a bad run spoils the step that it is accumulated into.
func TestSkipByCost(t *testing.T) {
	for _, runs := range []int{1, 3} {
		b := newNet(tensor.Float64)
		w, add := b.in("w", 3, 2), b.in("add", 1)
		cost := must(gorgonia.Add(must(gorgonia.Sum(must(gorgonia.Square(w)))), must(gorgonia.Sum(add))))
		if _, err := gorgonia.Grad(cost, w); err != nil {
			t.Fatal(err)
		}
		m := machine(t, b.g, fusec.WithOptimizer(&optim.Optimizer{Rule: optim.SGD{}, Rate: optim.Constant(0.1),
			Accumulate: runs}))
		before := slices.Clone(floats(t, w.Value()))
		for k := range 2 * runs {
			add.Value().Data().([]float64)[0] = 1
			if k == 0 {
				add.Value().Data().([]float64)[0] = math.Inf(1)
			}
			run(t, m)
			synced(t, m)
			if k < 2*runs-1 {
				sameFloats(t, "w", floats(t, w.Value()), before, 0)
			}
		}
		for i := range before {
			before[i] *= 0.8
		}
		sameFloats(t, "w after a good step", floats(t, w.Value()), before, 1e-12)
		if s := m.StepStats(); s.Steps != 1 || s.Skipped != 1 {
			t.Errorf("%d runs a step: the statistics are %+v", runs, s)
		}
	}
}

// stepLaunches counts the launches that write weights or the moments of weights, and those of the norm.
func stepLaunches(p *fusec.Program) (steps, norms int) {
	for _, l := range p.Lowered().Launches {
		if _, ok := l.Op.(graph.SquaredNorm); ok {
			norms++
		}
		for _, r := range l.Results {
			if b := p.Lowered().Buffers[r.Buffer]; b.Type.Shape.Rank() > 0 && b.Role <= 2 {
				steps++
				break
			}
		}
	}
	return steps, norms
}

// One launch updates a group of parameters, in place, whatever their shapes; one more makes the norm.
func TestStepLaunches(t *testing.T) {
	for _, d := range []tensor.Dtype{tensor.Float32, tensor.Float64} {
		for _, c := range []struct {
			name  string
			o     optim.Optimizer
			steps int
		}{
			{"adam", optim.Optimizer{Rule: optim.Adam{}, Clip: 1}, 1},
			{"sgd", optim.Optimizer{Rule: optim.SGD{}}, 1},
			{"biases without decay", optim.Optimizer{Rule: optim.AdamW{}, Group: optim.DecayMatrices}, 2},
			{"accumulation", optim.Optimizer{Rule: optim.AdamW{}, Accumulate: 4}, 2},
		} {
			t.Run(fmt.Sprint(c.name, d), func(t *testing.T) {
				m := newMLP(d).withGrad(t)
				c.o.Rate = optim.Constant(0.01)
				with := machine(t, m.g, fusec.WithOptimizer(&c.o))
				run(t, with)
				p := with.Program()
				if steps, norms := stepLaunches(p); steps != c.steps || norms != 2 {
					t.Errorf("%d launches update parameters and %d make norms, want %d and 2 (gradients, cost)\n%v", steps, norms, c.steps,
						p.Lowered())
				}
				for _, u := range p.Lowered().Updates {
					if b := p.Lowered().Buffers[u.Target]; b.Type.Shape.Rank() > 0 && u.Value != u.Target {
						t.Errorf("%q is not updated in place", b.Name)
					}
				}
				plain := machine(t, newMLP(d).withGrad(t).g, gorgonia.BindDualValues())
				if more := len(p.Lowered().Launches) - len(plain.Program().Lowered().Launches); more > c.steps+4 {
					t.Errorf("the step takes %d launches\n%v", more, p.Lowered())
				}
			})
		}
	}
}

// A step allocates nothing, with accumulation, clipping and scaling.
func TestStepAllocatesNothing(t *testing.T) {
	o := optim.Optimizer{Rule: optim.AdamW{}, Rate: optim.WarmupCosine(0.1, 0, 3, 30), Clip: 1, Accumulate: 2,
		LossScale: optim.LossScale{Initial: 8, GrowAfter: 2}, Group: optim.DecayMatrices}
	_, _, m := trained(t, crossEntropyTask, 2, &o)
	if n := testing.AllocsPerRun(20, func() {
		m.Reset()
		if err := m.RunAll(); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("a step makes %v allocations", n)
	}
}

// Ten thousand steps neither allocate nor leave goroutines behind.
func TestLongTrainingDoesNotGrow(t *testing.T) {
	steps := 10_000
	if testing.Short() {
		steps = 1_000
	}
	o := optim.Optimizer{Rule: optim.Adam{}, Rate: optim.Constant(1e-3), Clip: 1}
	_, _, m := trained(t, crossEntropyTask, 2, &o)
	var before, after runtime.MemStats
	held, goroutines := m.Program().Bytes(), runtime.NumGoroutine()
	runtime.ReadMemStats(&before)
	for range steps {
		run(t, m)
	}
	runtime.ReadMemStats(&after)
	// The runtime itself allocates a little, now and then; an allocation a step would make as many as there are steps.
	if n := after.Mallocs - before.Mallocs; n > uint64(steps/10) {
		t.Errorf("%d steps made %d allocations", steps, n)
	}
	if n := m.Program().Bytes(); n != held {
		t.Errorf("the program held %d bytes and holds %d", held, n)
	}
	if n := runtime.NumGoroutine(); n > goroutines {
		t.Errorf("there were %d goroutines and there are %d", goroutines, n)
	}
}

// The same bits come from any number of workers.
func TestStepWorkers(t *testing.T) {
	o := optim.Optimizer{Rule: optim.AdamW{}, Rate: optim.Constant(0.01), Clip: 0.1}
	var want map[string][]float64
	for _, workers := range []int{1, 2, 3} {
		_, made, m := trained(t, convTask, 5, &o, fusec.WithWorkers(workers))
		got := bits(t, made, m)
		if want != nil && changed(want, got) != nil {
			t.Errorf("%d workers give other bits of %v", workers, changed(want, got))
		}
		want = got
	}
}

// dropoutTask has random draws, whose counter is state as well.
func dropoutTask(b *net) task {
	h, w1, b1 := b.linear("first", b.in("x", 6, 5), 5, 8)
	y, w2, b2 := b.linear("second", must(gorgonia.Dropout(must(gorgonia.Tanh(h)), 0.3)), 8, 4)
	return task{classify(b, y, 6, 4), gorgonia.Nodes{w1, b1, w2, b2}}
}

// A machine that is closed, and another of the same graph that is given its weights and state, go on to the same bits.
func TestStateRestored(t *testing.T) {
	o := optim.Optimizer{Rule: optim.AdamW{}, Rate: optim.WarmupCosine(0.1, 0, 3, 30), Clip: 0.5, Accumulate: 2,
		LossScale: optim.LossScale{Initial: 8, GrowAfter: 2}}
	_, whole, one := trained(t, dropoutTask, 14, &o, fusec.WithSeed(3))
	want := bits(t, whole, one)

	_, first, m := trained(t, dropoutTask, 7, &o, fusec.WithSeed(3))
	state, err := m.State()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if err := m.SetState(state); err == nil || err.Error() != "the machine is closed" {
		t.Errorf("state of a closed machine: %v", err)
	}
	_, second, again := trained(t, dropoutTask, 2, &o) // other runs come between
	synced(t, again)
	for i, w := range second.wrt {
		copy(w.Value().Data().([]float64), first.wrt[i].Value().Data().([]float64))
	}
	if err := again.SetState(state); err != nil {
		t.Fatal(err)
	}
	for range 7 {
		run(t, again)
	}
	if d := changed(want, bits(t, second, again)); d != nil {
		t.Errorf("what goes on differs in %v", d)
	}

	before := bits(t, second, again)
	for _, c := range []struct {
		change func(map[string]*graph.Tensor)
		want   string
	}{
		{func(s map[string]*graph.Tensor) { delete(s, "optim/step") },
			`keeps "optim/step", which the given state lacks`},
		{func(s map[string]*graph.Tensor) { s["other"] = graph.Scalar(graph.F64, 1) }, `keeps no "other"`},
		{func(s map[string]*graph.Tensor) { s["optim/step"] = graph.Scalar(graph.F64, 1) }, `"optim/step" is i64`},
	} {
		bad, err := again.State()
		if err != nil {
			t.Fatal(err)
		}
		c.change(bad)
		wantError(t, again.SetState(bad), c.want)
	}
	if d := changed(before, bits(t, second, again)); d != nil {
		t.Errorf("refused state changed %v", d)
	}
}

// A change of the graph that compiles it again keeps the optimiser's state.
func TestStateKeptByRecompiling(t *testing.T) {
	o := optim.Optimizer{Rule: optim.Adam{}, Rate: optim.Constant(0.01)}
	b := newNet(tensor.Float64)
	x := b.near("x", 2, 2, 4, 2, 3, 3)
	w := b.near("w", 1, 0.2, 4, 2, 3, 3)
	y, _, _, op, err := gorgonia.BatchNorm(must(gorgonia.HadamardProd(x, w)), b.near("scale", 1, 0.2, 1, 2, 1,
		1), b.near("shift", 0, 0.2, 1, 2, 1, 1), 0.9, 1e-5)
	cost := must(gorgonia.Mean(must(gorgonia.Square(must(gorgonia.Tanh(must(y, err)))))))
	if _, err := gorgonia.Grad(cost, w); err != nil {
		t.Fatal(err)
	}
	m := machine(t, b.g, fusec.WithOptimizer(&o))
	run(t, m)
	run(t, m)
	if err := op.SetTraining(false); err != nil {
		t.Fatal(err)
	}
	run(t, m)
	if s := m.StepStats(); s.Steps != 3 {
		t.Errorf("the statistics are %+v", s)
	}
}

// Groups have rates of their own, or are left alone.
func TestGroups(t *testing.T) {
	o := optim.Optimizer{Rule: optim.SGD{}, Rate: optim.Constant(0.1), Group: func(name string,
		ty graph.Type) optim.Group {
		switch name {
		case "first.weight":
			return optim.Group{Rate: 0.5}
		case "second.weight":
			return optim.Group{Frozen: true}
		}
		return optim.Group{}
	}}
	got, made, m := trained(t, crossEntropyTask, 20, &o)
	synced(t, m)
	want, same := plainly(t, crossEntropyTask, 20, func(_ int, w, g [][]float64) {
		for i, rate := range []float64{0.05, 0.1, 0, 0.1} {
			for j := range w[i] {
				w[i][j] -= rate * g[i][j]
			}
		}
	})
	sameFloats(t, "the costs", got, want, 1e-9)
	sameFloats(t, "the frozen weights", floats(t, made.wrt[2].Value()), floats(t, same.wrt[2].Value()), 0)
}

// Weights that do not lie in row-major order, and single numbers, are trained in copies and given back.
func TestWeightsInCopies(t *testing.T) {
	build := func(transposed bool) (*net, task) {
		b := newNet(tensor.Float64)
		w := b.in("w", 4, 3)
		if transposed {
			d := w.Value().(*tensor.Dense).Clone().(*tensor.Dense)
			if err := d.T(); err != nil {
				t.Fatal(err)
			}
			if err := d.Transpose(); err != nil {
				t.Fatal(err)
			}
			if err := d.T(); err != nil { // a view of the other order
				t.Fatal(err)
			}
			gorgonia.WithValue(d)(w)
		}
		s := gorgonia.NewScalar(b.g, tensor.Float64, gorgonia.WithName("s"), gorgonia.WithValue(1.5))
		y := must(gorgonia.HadamardProd(must(gorgonia.Tanh(must(gorgonia.Mul(b.in("x", 2, 4), w)))), s))
		return b, task{must(gorgonia.Mean(must(gorgonia.Square(y)))), gorgonia.Nodes{w, s}}
	}
	var want [][]float64
	for _, transposed := range []bool{false, true} {
		b, made := build(transposed)
		if _, err := gorgonia.Grad(made.cost, made.wrt...); err != nil {
			t.Fatal(err)
		}
		m := machine(t, b.g, fusec.WithOptimizer(&optim.Optimizer{Rule: optim.Adam{}, Rate: optim.Constant(0.1)}))
		value := made.wrt[0].Value()
		for range 5 {
			run(t, m)
		}
		synced(t, m)
		if made.wrt[0].Value() != value || floats(t, made.wrt[1].Value())[0] == 1.5 {
			t.Error("the value was replaced or stayed")
		}
		got := [][]float64{floats(t, made.wrt[0].Value()), floats(t, made.wrt[1].Value())}
		for i := range want {
			sameFloats(t, made.wrt[i].Name(), got[i], want[i], 0)
		}
		want = got
	}
}

// A graph without Gorgonia names its cost by its one output of a single number.
func TestCompileWithOptimizer(t *testing.T) {
	b := graph.NewBuilder("fit")
	x, w, unread := b.Input("x", f32(5, 3)), b.Param("w", f32(3, 2)), b.Param("other", f32(2))
	y := b.MatMul(x, w, false, false)
	b.Output("cost", b.Reduce(graph.Mean, b.Unary(graph.Square, b.BinaryScalar(graph.Sub, y, 1)), false, 0, 1))
	b.Output("twice", b.Binary(graph.Add, unread, unread))
	p := compiled(t, b, fusec.WithOptimizer(&optim.Optimizer{Rule: optim.AdamW{Decay: 1e-4},
		Rate: optim.Constant(0.05)}))
	weights := tensorOf(t, make([]float32, 6), 3, 2)
	in := map[string]*graph.Tensor{"x": tensorOf(t, []float32{1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 0, 0, 1, 1}, 5,
		3), "w": weights, "other": graph.NewTensor(f32(2))}
	out, err := p.Run(in)
	if err != nil {
		t.Fatal(err)
	}
	first := out["cost"].Float(0)
	for range 200 {
		if err := p.Exec(); err != nil {
			t.Fatal(err)
		}
	}
	cost, err := p.Output("cost")
	if err != nil {
		t.Fatal(err)
	}
	trained, err := p.State("w")
	if err != nil {
		t.Fatal(err)
	}
	if first != 1 || cost.Float(0) > 0.2 || trained.Float(0) == 0 || weights.Float(0) != 0 {
		t.Errorf("the cost went from %v to %v with weights %v; the caller's are %v", first, cost.Float(0),
			trained.Floats(), weights.Floats())
	}
	if s := p.StepStats(); s.Steps != 201 || s.Norm <= 0 {
		t.Errorf("the statistics are %+v", s)
	}
	wantError(t, p.Set("optim/rate", graph.Scalar(graph.F64, 1)), "no input")
}

func TestOptimizerErrors(t *testing.T) {
	rate := optim.Constant(0.1)
	sgd := &optim.Optimizer{Rule: optim.SGD{}, Rate: rate}
	m := newMLP(tensor.Float64)
	wantError(t, fusec.NewMachine(m.g, fusec.WithOptimizer(sgd)).Err(), "WithOptimizer",
		"call gorgonia.Grad(cost, weights...) before NewMachine")
	m.withGrad(t)
	for _, c := range []struct {
		o    *optim.Optimizer
		want string
	}{
		{nil, "no rule"},
		{&optim.Optimizer{Rate: rate}, "no rule"},
		{&optim.Optimizer{Rule: optim.SGD{}}, "learning rate is missing"},
		{&optim.Optimizer{Rule: optim.SGD{}, Rate: rate, Clip: math.NaN()}, "clipping norm NaN"},
		{&optim.Optimizer{Rule: optim.SGD{}, Rate: rate, Accumulate: -1}, "runs to accumulate is -1"},
		{&optim.Optimizer{Rule: optim.SGD{}, Rate: rate, LossScale: optim.LossScale{GrowAfter: 1}},
			"loss scale is 0, growing after 1"},
		{&optim.Optimizer{Rule: optim.Adam{Beta2: 1}, Rate: rate}, "decay of moments is 1"},
		{&optim.Optimizer{Rule: optim.Momentum{Mu: -0.1}, Rate: rate}, "momentum is -0.1"},
		{&optim.Optimizer{Rule: optim.AdamW{Decay: -1}, Rate: rate}, "weight decay is -1"},
		{&optim.Optimizer{Rule: optim.SGD{}, Rate: rate, Group: func(string,
			graph.Type) optim.Group {
			return optim.Group{Frozen: true}
		}}, "every parameter is frozen"},
		{&optim.Optimizer{Rule: optim.SGD{}, Rate: rate, Group: func(string,
			graph.Type) optim.Group {
			return optim.Group{Rate: -1}
		}}, `rate's factor of "first.weight" is -1`},
	} {
		wantError(t, fusec.NewMachine(m.g, fusec.WithOptimizer(c.o)).Err(), c.want)
	}
	wantError(t, fusec.NewMachine(m.g, fusec.WithOptimizer(sgd), fusec.WithOptimizer(sgd)).Err(),
		"WithOptimizer is given twice")
	wantError(t, fusec.NewMachine(m.g, fusec.WithOptimizer(sgd), fusec.WithoutPass("optimise-step")).Err(),
		"optimise-step")

	// A schedule that gives no number leaves everything as it is.
	vm := machine(t, m.g, fusec.WithOptimizer(&optim.Optimizer{Rule: optim.SGD{},
		Rate: func(step int) float64 { return math.Inf(1 - 2*step) }}))
	before := slices.Clone(floats(t, m.params[0].Value()))
	wantError(t, vm.RunAll(), "the learning rate +Inf at step 0")
	sameFloats(t, "the weights", floats(t, m.params[0].Value()), before, 0)

	// Two weights in one memory would be changed twice at once.
	b := newNet(tensor.Float64)
	w, v := b.in("w", 3, 3), b.node("v", 3, 3)
	gorgonia.WithValue(w.Value())(v)
	cost := must(gorgonia.Sum(must(gorgonia.Mul(w, v))))
	if _, err := gorgonia.Grad(cost, w, v); err != nil {
		t.Fatal(err)
	}
	tied := machine(t, b.g, fusec.WithOptimizer(sgd))
	for range 2 {
		wantError(t, tied.RunAll(), `"v"`, `"w"`, "share the memory")
	}

	g := graph.NewBuilder("two costs")
	p := g.Param("p", f32(3))
	g.Output("a", g.Reduce(graph.Sum, p, false, 0))
	g.Output("b", g.Reduce(graph.Mean, p, false, 0))
	_, err := fusec.Compile(built(t, g), fusec.WithOptimizer(sgd))
	wantError(t, err, "the cost must be the only one")
	g = graph.NewBuilder("no cost")
	g.Output("a", g.Unary(graph.Exp, g.Param("p", f32(3))))
	_, err = fusec.Compile(built(t, g), fusec.WithOptimizer(sgd))
	wantError(t, err, "no output of one number")
	g = graph.NewBuilder("no parameter")
	g.Output("a", g.Reduce(graph.Sum, g.Input("p", f32(3)), false, 0))
	_, err = fusec.Compile(built(t, g), fusec.WithOptimizer(sgd))
	wantError(t, err, "depends on no parameter")
	g = graph.NewBuilder("taken")
	p = g.Param("p", f32(3))
	g.Output("a", g.Reduce(graph.Sum, g.Binary(graph.Mul, p, g.Input("optim/step", f32(3))), false, 0))
	_, err = fusec.Compile(built(t, g), fusec.WithOptimizer(sgd))
	wantError(t, err, `a source named "optim/step"`)
}

// A gradient may be part of the cost. What it is with respect to was asked for, too: its group leaves it alone.
func TestOptimizerOfGradientPenalty(t *testing.T) {
	for _, scale := range []float64{0, 128} {
		o := optim.Optimizer{Rule: optim.SGD{}, Rate: optim.Constant(0.01), LossScale: optim.LossScale{Initial: scale},
			Group: func(name string, _ graph.Type) optim.Group { return optim.Group{Frozen: name == "x"} }}
		got, made, _ := trained(t, penaltyTask, 20, &o)
		want, same := plainly(t, penaltyTask, 20, func(_ int, w, g [][]float64) {
			each(w, g, func(_ int, w *float64, g float64) { *w -= 0.01 * g })
		})
		sameFloats(t, "the costs", got, want, 1e-9)
		for i, w := range made.wrt {
			sameFloats(t, w.Name(), floats(t, w.Value()), floats(t, same.wrt[i].Value()), 1e-9)
		}
	}
}

// Two costs that share no weights are stepped together.
func TestOptimizerOfSeveralCosts(t *testing.T) {
	b := newNet(tensor.Float64)
	u, v := b.in("u", 3), b.in("v", 2, 2)
	for _, w := range []*gorgonia.Node{u, v} {
		if _, err := gorgonia.Grad(must(gorgonia.Sum(must(gorgonia.Square(w)))), w); err != nil {
			t.Fatal(err)
		}
	}
	want := append(slices.Clone(floats(t, u.Value())), floats(t, v.Value())...)
	m := machine(t, b.g, fusec.WithOptimizer(&optim.Optimizer{Rule: optim.SGD{}, Rate: optim.Constant(0.25)}))
	run(t, m)
	synced(t, m)
	for i := range want {
		want[i] /= 2
	}
	sameFloats(t, "the weights", append(slices.Clone(floats(t, u.Value())), floats(t, v.Value())...), want, 1e-15)
}

// A memory budget is kept by a program that takes the optimiser's step, too, whose launches come last.
func TestStepWithinMemoryBudget(t *testing.T) {
	const layers, rows, width = 16, 64, 32
	b := graph.NewBuilder("deep")
	h := b.Input("x", graph.TypeOf(graph.F32, rows, width))
	for i := range layers {
		h = b.Unary(graph.Tanh, b.MatMul(h, b.Param(fmt.Sprint("w", i), graph.TypeOf(graph.F32, width, width)), false, false))
	}
	b.Output("cost", b.Reduce(graph.Sum, h, false, 0, 1))
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	arena := func(budget int64) int64 {
		o := &optim.Optimizer{Rule: optim.Adam{}, Rate: optim.Constant(1e-3), Clip: 1}
		_, p, err := fusec.Plan(g, fusec.WithOptimizer(o), fusec.WithMemoryBudget(budget))
		if err != nil {
			t.Fatal(err)
		}
		return p.ArenaBytes
	}
	all := arena(1 << 40)
	for _, percent := range []int64{75, 50} {
		if budget := all * percent / 100; arena(budget) > budget {
			t.Errorf("with a budget of %d of %d bytes the arena has %d", budget, all, arena(budget))
		}
	}
}

// A solver of Gorgonia's beside WithOptimizer would make each step twice: the next run is refused. To look at gradients,
// to zero them, and to set weights, are not.
func TestSolverBesideOptimizer(t *testing.T) {
	for _, d := range []tensor.Dtype{tensor.Float32, tensor.Float64} {
		n := newMLP(d).withGrad(t)
		m := machine(t, n.g, gorgonia.BindDualValues(n.params...),
			fusec.WithOptimizer(&optim.Optimizer{Rule: optim.SGD{}, Rate: optim.Constant(0.1)}))
		for range 2 {
			run(t, m)
			for _, p := range n.params {
				g, err := p.Grad()
				if err != nil {
					t.Fatal(err)
				}
				g.(*tensor.Dense).Zero()
			}
		}
		bind(t, n.params[0], n.value(0, 1, 5, 7))
		run(t, m)
		if err := gorgonia.NewAdamSolver().Step(gorgonia.NodesToValueGrads(n.params)); err != nil {
			t.Fatal(err)
		}
		m.Reset()
		wantError(t, m.RunAll(), "solver", "first.weight", "WithOptimizer")
	}
}
