package fusec_test

import (
	"path/filepath"
	"slices"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/graph"
	"fusec/graph/optim"
)

func adam() *optim.Optimizer {
	return &optim.Optimizer{Rule: optim.Adam{}, Rate: optim.WarmupCosine(0.1, 0, 3, 30), Clip: 0.5,
		LossScale: optim.LossScale{Initial: 8, GrowAfter: 2}}
}

// valuesOf copies the values of a task's weights as their nodes have them.
func valuesOf(t *testing.T, made task) [][]float64 {
	var list [][]float64
	for _, n := range made.wrt {
		list = append(list, floats(t, n.Value()))
	}
	return list
}

// TestTrainingApart trains on a device with memory of its own: the costs are those of the CPU, the nodes keep their first
// values until something syncs, and then have those of the CPU.
func TestTrainingApart(t *testing.T) {
	const steps = 6
	losses, here, m := trained(t, dropoutTask, steps, adam(), fusec.WithSeed(3))
	stats := m.StepStats()
	want := valuesOf(t, here)
	first := valuesOf(t, dropoutTask(newNet(tensor.Float64)))
	for _, c := range []struct {
		name string
		sync func(t *testing.T, m *fusec.Machine, made task) error
	}{
		{"Sync", func(_ *testing.T, m *fusec.Machine, _ task) error { return m.Sync() }},
		{"Close", func(_ *testing.T, m *fusec.Machine, _ task) error { return m.Close() }},
		{"State", func(_ *testing.T, m *fusec.Machine, _ task) error { _, err := m.State(); return err }},
		{"Save", func(t *testing.T, m *fusec.Machine, _ task) error {
			return m.Save(filepath.Join(t.TempDir(), "m.graph"))
		}},
		{"Value", func(t *testing.T, m *fusec.Machine, made task) error {
			for _, n := range made.wrt {
				if v, err := m.Value(n); err != nil || v != n.Value() {
					t.Errorf("the value of %v is %v, %v", n, v, err)
				}
			}
			return nil
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, made, m := trained(t, dropoutTask, steps, adam(), fusec.WithSeed(3), fusec.OnApart())
			if !slices.Equal(got, losses) {
				t.Errorf("the costs are %v, on the CPU %v", got, losses)
			}
			if s := m.StepStats(); s != stats {
				t.Errorf("the statistics are %+v, on the CPU %+v", s, stats)
			}
			for i, v := range valuesOf(t, made) {
				sameFloats(t, "before", v, first[i], 0)
			}
			if err := c.sync(t, m, made); err != nil {
				t.Fatal(err)
			}
			for i, v := range valuesOf(t, made) {
				sameFloats(t, "after", v, want[i], 0)
			}
		})
	}
}

// TestChangesApart changes weights between runs: in place after Sync, and by a new value at any time.
func TestChangesApart(t *testing.T) {
	var want [][]float64
	for _, opts := range [][]gorgonia.VMOpt{nil, {fusec.OnApart()}} {
		_, made, m := trained(t, dropoutTask, 3, adam(), opts...)
		if err := m.Sync(); err != nil {
			t.Fatal(err)
		}
		w := made.wrt[0].Value().Data().([]float64)
		for i := range w {
			w[i] *= 2
		}
		run(t, m)
		if err := m.Let(made.wrt[1], made.wrt[1].Value().(*tensor.Dense).Clone().(*tensor.Dense)); err != nil {
			t.Fatal(err)
		}
		next := made.wrt[1].Value().Data().([]float64)
		for i := range next {
			next[i] = 0.5
		}
		run(t, m)
		run(t, m)
		if err := m.Sync(); err != nil {
			t.Fatal(err)
		}
		got := valuesOf(t, made)
		for i := range want {
			sameFloats(t, made.wrt[i].Name(), got[i], want[i], 0)
		}
		want = got
	}
}

// TestStateRestoredApart goes on from a state with another machine, to the same bits.
func TestStateRestoredApart(t *testing.T) {
	_, whole, one := trained(t, dropoutTask, 8, adam(), fusec.WithSeed(3))
	want := bits(t, whole, one)
	_, first, m := trained(t, dropoutTask, 5, adam(), fusec.WithSeed(3), fusec.OnApart())
	state, err := m.State()
	if err != nil {
		t.Fatal(err)
	}
	_, second, again := trained(t, dropoutTask, 2, adam(), fusec.OnApart())
	if err := again.SetState(state); err != nil { // which syncs
		t.Fatal(err)
	}
	for i, w := range second.wrt {
		copy(w.Value().Data().([]float64), first.wrt[i].Value().Data().([]float64))
	}
	for range 3 {
		run(t, again)
	}
	if err := again.Sync(); err != nil {
		t.Fatal(err)
	}
	if d := changed(want, bits(t, second, again)); d != nil {
		t.Errorf("what goes on differs in %v", d)
	}
}

// TestCopiesApart has weights whose values the machine copies: their nodes are current after every run.
func TestCopiesApart(t *testing.T) {
	var want [][]float64
	for _, opts := range [][]gorgonia.VMOpt{nil, {fusec.OnApart()}} {
		_, made, _ := trained(t, func(b *net) task {
			w := b.in("w", 4, 3)
			gorgonia.WithValue(colMajor(w.Value().(*tensor.Dense)))(w)
			s := gorgonia.NewScalar(b.g, tensor.Float64, gorgonia.WithName("s"), gorgonia.WithValue(1.5))
			y := must(gorgonia.HadamardProd(must(gorgonia.Tanh(must(gorgonia.Mul(b.in("x", 2, 4), w)))), s))
			return task{must(gorgonia.Mean(must(gorgonia.Square(y)))), gorgonia.Nodes{w, s}}
		}, 5, adam(), opts...)
		got := valuesOf(t, made)
		for i := range want {
			sameFloats(t, made.wrt[i].Name(), got[i], want[i], 0)
		}
		want = got
	}
	if want[1][0] == 1.5 {
		t.Error("the scalar has not changed")
	}
}

// TestStatisticsApart has state that a Gorgonia operation owns, which every run reads and writes.
func TestStatisticsApart(t *testing.T) {
	var want map[string]*graph.Tensor
	for _, opts := range [][]gorgonia.VMOpt{nil, {fusec.OnApart()}} {
		b := newNet(tensor.Float64)
		x := b.near("x", 2, 2, 4, 2, 3, 3)
		y, _, _, _, err := gorgonia.BatchNorm(x, b.near("scale", 1, 0.2, 1, 2, 1, 1), b.near("shift", 0, 0.2, 1, 2, 1, 1), 0.9, 1e-5)
		must(gorgonia.Mean(must(gorgonia.Square(must(y, err)))))
		m := machine(t, b.g, opts...)
		for range 3 {
			run(t, m)
		}
		got, err := m.State()
		if err != nil {
			t.Fatal(err)
		}
		for name, w := range want {
			if !got[name].Equal(w) {
				t.Errorf("%s is %v, on the CPU %v", name, got[name].Floats(), w.Floats())
			}
		}
		want = got
	}
	if len(want) == 0 {
		t.Error("there is no state")
	}
}

// TestProgramApart has a program with state, set and read between runs.
func TestProgramApart(t *testing.T) {
	b := graph.NewBuilder("count")
	s := b.State("s", f32(2))
	b.Update(s, b.Binary(graph.Add, s, b.Input("x", f32(2))))
	b.Output("before", b.BinaryScalar(graph.Mul, s, 1))
	p := compiled(t, b, fusec.OnApart())
	one := tensorOf(t, []float32{1, 2}, 2)
	check := func(want ...float64) {
		t.Helper()
		got, err := p.State("s")
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got.Floats(), want) {
			t.Errorf("the state is %v, want %v", got.Floats(), want)
		}
	}
	for range 3 {
		if _, err := p.Run(map[string]*graph.Tensor{"x": one}); err != nil {
			t.Fatal(err)
		}
	}
	check(3, 6)
	if err := p.Set("s", tensorOf(t, []float32{10, 10}, 2)); err != nil {
		t.Fatal(err)
	}
	check(10, 10)
	out, err := p.Run(nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := out["before"].Floats(); !slices.Equal(got, []float64{10, 10}) {
		t.Errorf("the run saw %v", got)
	}
	check(11, 12)
	if err := p.Sync(); err != nil {
		t.Fatal(err)
	}
}

// TestValue refuses nodes that have none.
func TestValue(t *testing.T) {
	n := newMLP(tensor.Float32)
	m := machine(t, n.g)
	_, err := m.Value(n.hidden)
	wantError(t, err, "has no value: runs hand out roots, gradients and what gorgonia.Read asks for")
	_, err = m.Value(nil)
	wantError(t, err, "the node is nil")
	_, err = m.Value(newMLP(tensor.Float32).x)
	wantError(t, err, "is not in this graph")
	if v, err := m.Value(n.x); err != nil || v != n.x.Value() {
		t.Errorf("the value of the input is %v, %v", v, err)
	}
}

// TestPrecisionOption refuses what a target lacks.
func TestPrecisionOption(t *testing.T) {
	n := newMLP(tensor.Float32)
	for want, opts := range map[string][]gorgonia.VMOpt{
		`target "cpu" computes in f32: precision tf32 requires another target`: {fusec.WithPrecision(fusec.TF32)},
		"WithPrecision: precision 9 is not known":                              {fusec.WithPrecision(9)},
	} {
		wantError(t, fusec.NewMachine(n.g, opts...).Err(), want)
	}
	for want, p := range map[string]fusec.Precision{"f32": fusec.F32, "bf16": fusec.BF16, "f16": fusec.F16} {
		m := machine(t, n.g, fusec.WithPrecision(p))
		run(t, m)
		if got := m.Trace().Precision; got != want {
			t.Errorf("the trace says %q, want %q", got, want)
		}
	}
}
