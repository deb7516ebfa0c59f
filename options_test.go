package fusec_test

import (
	"bytes"
	"fmt"
	"log"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	fgorgonia "fusec/graph/gorgonia"
	"fusec/graph/trace"
	"fusec/lowering"
	"fusec/lowering/cpu"
	"fusec/lowering/cuda"
	"fusec/lowering/fpga"
)

func TestBindDualValues(t *testing.T) {
	t.Run("some", func(t *testing.T) {
		n := newMLP(tensor.Float64).withGrad(t)
		stray := newNet(tensor.Float64).in("stray", 2)
		w := n.params[0]
		m := machine(t, n.g, gorgonia.BindDualValues(w, w, n.x, stray))
		run(t, m)
		for _, p := range n.params {
			if got, want := fgorgonia.HasDual(p), p == w; got != want {
				t.Errorf("%v: a gradient is bound: %v, want %v", p, got, want)
			}
		}
		g, err := w.Grad()
		if err != nil {
			t.Fatal(err)
		}
		once := floats(t, g)
		im := reference(t, n.g)
		sameFloats(t, "the gradient of "+w.Name(), once, im(w.Deriv()).F, 1e-12)
	})
	t.Run("all", func(t *testing.T) {
		n := newMLP(tensor.Float64).withGrad(t)
		run(t, machine(t, n.g, gorgonia.BindDualValues()))
		want := reference(t, n.g)
		bound := 0
		for _, v := range n.g.AllNodes() {
			if v.Deriv() == nil {
				continue
			}
			g, err := v.Grad()
			if err != nil {
				t.Errorf("%v: %v", v, err)
				continue
			}
			bound++
			sameFloats(t, "the gradient of "+v.Name(), floats(t, g), want(v.Deriv()).F, 1e-12)
		}
		if bound < 10 {
			t.Errorf("only %d gradients are bound", bound)
		}
	})
	// As on a TapeMachine, gradients that were asked for are right without being bound, and do not add up.
	t.Run("none", func(t *testing.T) {
		n := newMLP(tensor.Float64)
		with := append(gorgonia.Nodes{n.x}, n.params...)
		grads, err := gorgonia.Grad(n.cost, with...)
		if err != nil {
			t.Fatal(err)
		}
		m := machine(t, n.g)
		for range 2 {
			run(t, m)
			want := reference(t, n.g)
			for i, p := range with {
				g, err := p.Grad()
				if err != nil || g == nil {
					t.Fatalf("%v has no gradient: %v", p, err)
				}
				if g != grads[i].Value() || fgorgonia.HasDual(p) {
					t.Errorf("the gradient of %v is bound though nobody asked", p)
				}
				sameFloats(t, "the gradient of "+p.Name(), floats(t, g), want(grads[i]).F, 1e-12)
			}
		}
	})
	t.Run("without", func(t *testing.T) {
		n := newMLP(tensor.Float64).withGrad(t)
		plain := newMLP(tensor.Float64)
		m, want := machine(t, n.g, fusec.WithoutGradients()), machine(t, plain.g)
		run(t, m)
		if g, _ := n.params[0].Grad(); g != nil {
			t.Error("a gradient was computed")
		}
		if got, want := len(m.Fusions()), len(want.Fusions()); got != want {
			t.Errorf("%d launches, %d on the graph without gradients", got, want)
		}
		run(t, machine(t, n.g, fusec.WithoutGradients(), gorgonia.BindDualValues(n.params[0])))
		if g, _ := n.params[0].Grad(); g == nil {
			t.Error("a gradient that was to be bound was left out")
		}
	})
}

// Gradients add up until the solver has zeroed them.
func TestGradientsAccumulate(t *testing.T) {
	n := newMLP(tensor.Float64).withGrad(t)
	m := machine(t, n.g, gorgonia.BindDualValues(n.params...))
	w := n.params[2]
	var once []float64
	for i := range 3 {
		run(t, m)
		g, err := w.Grad()
		if err != nil {
			t.Fatal(err)
		}
		got := floats(t, g)
		if i == 0 {
			once = got
		}
		for j := range got {
			got[j] /= float64(i + 1)
		}
		sameFloats(t, "the gradient per run", got, once, 1e-14)
	}
	if err := gorgonia.NewVanillaSolver(gorgonia.WithLearnRate(0)).Step(gorgonia.NodesToValueGrads(n.params)); err != nil {
		t.Fatal(err)
	}
	run(t, m)
	g, _ := w.Grad()
	sameFloats(t, "the gradient after the solver", floats(t, g), once, 1e-14)
}

func TestEvalMode(t *testing.T) {
	build := func() (*net, *gorgonia.Node, *gorgonia.Node) {
		b := newNet(tensor.Float64)
		x := b.near("x", 3, 2, 4, 2, 3, 3)
		norm, _, _, _, err := gorgonia.BatchNorm(x, b.near("scale", 1, 0.1, 1, 2, 1, 1), b.near("shift", 0, 0.1, 1, 2, 1, 1), 0.9, 1e-5)
		if err != nil {
			t.Fatal(err)
		}
		return b, norm, must(gorgonia.Dropout(norm, 0.5))
	}
	b, norm, drop := build()
	train := machine(t, b.g, gorgonia.TraceExec(), fusec.WithSeed(3))
	for range 4 {
		run(t, train)
	}
	mean := 0.0
	for _, v := range floats(t, norm.Value()) {
		mean += v / 72
	}
	if math.Abs(mean) > 0.3 {
		t.Errorf("batch normalisation in training leaves a mean of %v", mean)
	}
	zeros := 0
	for _, v := range floats(t, drop.Value()) {
		if v == 0 {
			zeros++
		}
	}
	if zeros < 15 || zeros > 57 {
		t.Errorf("dropout of one half dropped %d of 72", zeros)
	}
	trained := floats(t, norm.Value())

	eval := machine(t, b.g, gorgonia.EvalMode(), gorgonia.TraceExec())
	run(t, eval)
	sameFloats(t, "dropout in evaluation", floats(t, drop.Value()), floats(t, norm.Value()), 0)
	agrees(t, norm, reference(t, b.g)(norm))
	if got := floats(t, norm.Value()); got[0] == trained[0] {
		t.Error("batch normalisation in evaluation uses the batch's statistics")
	}
	first := floats(t, norm.Value())
	run(t, eval)
	sameFloats(t, "a second evaluation", floats(t, norm.Value()), first, 0)
}

func TestTraceExec(t *testing.T) {
	n := newMLP(tensor.Float64).withGrad(t)
	run(t, machine(t, n.g, gorgonia.TraceExec()))
	want := reference(t, n.g)
	for _, v := range n.g.AllNodes() {
		if v.Op() == nil {
			continue
		}
		if v.Value() == nil {
			t.Errorf("%v has no value", v)
			continue
		}
		agrees(t, v, want(v))
	}
}

func TestWatchlist(t *testing.T) {
	for _, c := range []struct {
		name      string
		list      func(n *mlp) []any
		lines     int
		want, not []string
	}{
		{"a node and an input", func(n *mlp) []any { return []any{n.y, n.x} }, 2, []string{"logits", "x"}, []string{"weight"}},
		{"all", func(n *mlp) []any { return nil }, 0, []string{"logits", "x", "first.weight", "second.bias"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newMLP(tensor.Float64)
			var out bytes.Buffer
			m := machine(t, n.g, gorgonia.WithLogger(log.New(&out, "", 0)), gorgonia.WithWatchlist(c.list(n)...),
				gorgonia.WithValueFmt("%1.1s|"))
			run(t, m)
			if got := strings.Count(out.String(), "|\n"); c.lines > 0 && got != c.lines {
				t.Errorf("%d values are logged, want %d:\n%s", got, c.lines, out.String())
			}
			for _, w := range c.want {
				if !strings.Contains(out.String(), w) {
					t.Errorf("%s is not in the log:\n%s", w, out.String())
				}
			}
			for _, w := range c.not {
				if strings.Contains(out.String(), w) {
					t.Errorf("%s is in the log:\n%s", w, out.String())
				}
			}
		})
	}
	var out bytes.Buffer
	run(t, machine(t, newMLP(tensor.Float64).g, gorgonia.WithLogger(log.New(&out, "", 0))))
	if out.Len() > 0 {
		t.Errorf("nothing is watched, but this was logged:\n%s", out.String())
	}
}

// A watch finds NaN and Inf in every value, also in one that no result depends on.
func TestNaNAndInfWatch(t *testing.T) {
	for _, c := range []struct {
		name string
		x    float64
		opt  gorgonia.VMOpt
		want string
	}{
		{"NaN", -1, gorgonia.WithNaNWatch(), "NaN"},
		{"Inf", 0, gorgonia.WithInfWatch(), "Inf"},
		{"only NaN is watched", 0, gorgonia.WithNaNWatch(), ""},
		{"only Inf is watched", -1, gorgonia.WithInfWatch(), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newNet(tensor.Float64)
			x := gorgonia.NewVector(b.g, tensor.Float64, gorgonia.WithShape(3), gorgonia.WithName("x"),
				gorgonia.WithValue(tensor.New(tensor.WithBacking([]float64{1, c.x, 2}))))
			logs := must(gorgonia.Log(x))
			gorgonia.WithName("log of x")(logs)
			y := must(gorgonia.Square(must(gorgonia.Slice(logs, gorgonia.S(2)))))
			m := machine(t, b.g, c.opt)
			m.Reset()
			err := m.RunAll()
			if c.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wantError(t, err, c.want, "log of x")
			wantError(t, m.RunAll(), c.want)
			if y.Value() != nil {
				t.Error("a run that found what was watched for handed out a value")
			}
			x.Value().(*tensor.Dense).Float64s()[1] = 1
			run(t, m)
			agrees(t, y, reference(t, b.g)(y))
		})
	}
}

func TestOwnOptionsOnForeignMachines(t *testing.T) {
	own := []gorgonia.VMOpt{fusec.WithTarget("abacus"), fusec.WithWorkers(-1), fusec.WithVerify(), fusec.WithFrozenParams(),
		fusec.WithDynamicSlices(), fusec.WithoutGradients(), fusec.WithSeed(1), fusec.WithoutPass("x"), fusec.WithMemoryBudget(1)}
	n := newMLP(tensor.Float64)
	tape := gorgonia.NewTapeMachine(n.g, own...)
	defer tape.Close()
	run(t, tape)
	agrees(t, n.cost, reference(t, n.g)(n.cost))
	for _, o := range own {
		o(nil)
	}
}

func TestBadOptions(t *testing.T) {
	for _, c := range []struct {
		name string
		opts []gorgonia.VMOpt
		want string
	}{
		{"nil", []gorgonia.VMOpt{nil}, "option 0 is nil"},
		{"panics", []gorgonia.VMOpt{fusec.WithVerify(), func(gorgonia.VM) { panic("boo") }}, "option 1"},
		{"no workers", []gorgonia.VMOpt{fusec.WithWorkers(0)}, "WithWorkers(0)"},
		{"too many workers", []gorgonia.VMOpt{fusec.WithWorkers(1 << 40)}, "at most 16384"},
		{"no memory", []gorgonia.VMOpt{fusec.WithMemoryBudget(0)}, "WithMemoryBudget(0): want at least 1 byte"},
		{"less memory", []gorgonia.VMOpt{fusec.WithMemoryBudget(-5)}, "WithMemoryBudget(-5): want at least 1 byte"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := fusec.NewMachine(newMLP(tensor.Float64).g, c.opts...)
			defer m.Close()
			wantError(t, m.Err(), c.want)
			wantError(t, m.RunAll(), c.want)
		})
	}
}

// Every order and number of passes that a user may leave out gives the same values.
func TestWithoutPass(t *testing.T) {
	n := newMLP(tensor.Float64).withGrad(t)
	want := reference(t, n.g)(n.cost)
	for _, pass := range []string{"simplify", "raise", "fuse-regions"} {
		run(t, machine(t, n.g, fusec.WithoutPass(pass), gorgonia.BindDualValues(n.params...)))
		agrees(t, n.cost, want)
	}
}

// A machine with a memory budget trains with less memory, to the same bits.
func TestMemoryBudget(t *testing.T) {
	b := newNet(tensor.Float32)
	x := b.in("x", 16, 24)
	var params gorgonia.Nodes
	for i := range 12 {
		y, w, bias := b.linear(fmt.Sprintf("layer%d", i), x, 24, 24)
		x = must(gorgonia.Tanh(y))
		params = append(params, w, bias)
	}
	cost := must(gorgonia.Mean(must(gorgonia.Square(x))))
	grads, err := gorgonia.Grad(cost, params...)
	if err != nil {
		t.Fatal(err)
	}
	trained := func(opts ...gorgonia.VMOpt) (values [][]float64, arena int64) {
		m := machine(t, b.g, opts...)
		run(t, m)
		for _, g := range grads {
			values = append(values, floats(t, g.Value()))
		}
		return append(values, floats(t, cost.Value())), m.Trace().Program.ArenaBytes
	}
	want, all := trained()
	got, less := trained(fusec.WithMemoryBudget(all / 2))
	if less > all/2 || less == 0 {
		t.Errorf("the values take %d bytes, without a budget %d", less, all)
	}
	for i := range want {
		sameFloats(t, fmt.Sprintf("value %d", i), got[i], want[i], 0)
	}
}

func TestDynamicSlices(t *testing.T) {
	for _, opts := range [][]gorgonia.VMOpt{nil, {fusec.WithDynamicSlices()}} {
		b := newNet(tensor.Float64)
		x := b.in("x", 5, 3)
		y := must(gorgonia.Slice(x, gorgonia.S(0, 2)))
		z := must(gorgonia.Tanh(y))
		m := machine(t, b.g, opts...)
		all := floats(t, x.Value())
		for start := range 4 {
			if start > 0 {
				if err := gorgonia.UnsafeLet(y, gorgonia.S(start, start+2)); err != nil {
					t.Fatal(err)
				}
			}
			run(t, m)
			var want []float64
			for _, v := range all[start*3 : (start+2)*3] {
				want = append(want, math.Tanh(v))
			}
			sameFloats(t, "the slice's tanh", floats(t, z.Value()), want, 1e-14)
		}
	}
}

// Slices that are replaced before each run are compiled again twice, and then are inputs; those that stay are not. One that
// becomes longer is compiled again.
func TestReplacedSlicesBecomeDynamic(t *testing.T) {
	b := newNet(tensor.Float64)
	x := b.in("x", 9, 3)
	var parts []*gorgonia.Node
	for i := range 3 {
		parts = append(parts, must(gorgonia.Slice(x, gorgonia.S(i, i+2))))
	}
	y := must(gorgonia.Tanh(must(gorgonia.Add(must(gorgonia.Add(parts[0], parts[1])), parts[2]))))
	m := machine(t, b.g)
	all := floats(t, x.Value())
	at := []int{0, 1, 2}
	check := func() {
		t.Helper()
		run(t, m)
		var want []float64
		for i := range 6 {
			want = append(want, math.Tanh(all[at[0]*3+i]+all[at[1]*3+i]+all[at[2]*3+i]))
		}
		sameFloats(t, "the sum of slices", floats(t, y.Value()), want, 1e-14)
	}
	check()
	compiled := 0
	last := m.Program()
	for i, step := range []struct{ part, start int }{{0, 4}, {1, 5}, {0, 6}, {1, 0}, {0, 1}, {1, 7}} {
		at[step.part] = step.start
		if err := gorgonia.UnsafeLet(parts[step.part], gorgonia.S(step.start, step.start+2)); err != nil {
			t.Fatal(err)
		}
		check()
		if m.Program() != last {
			compiled, last = compiled+1, m.Program()
		}
		noted := slices.ContainsFunc(m.Trace().Stages[0].Notes, func(n trace.Note) bool {
			return strings.Contains(n.Text, "2 slices were replaced")
		})
		if noted != (i > 0) {
			t.Errorf("after change %d: the trace says so: %v", i+1, noted)
		}
	}
	if compiled != 2 {
		t.Errorf("the graph was compiled again %d times, want 2", compiled)
	}
	if n := len(last.Lowered().Sources(lowering.Input)); n != 2 {
		t.Errorf("%d starts are read before each run, want 2", n)
	}
	if err := gorgonia.UnsafeLet(parts[0], gorgonia.S(1, 4)); err != nil {
		t.Fatal(err)
	}
	m.Reset()
	if err := m.RunAll(); err == nil && m.Program() == last {
		t.Error("a longer slice goes unnoticed")
	}
}

// Frozen weights keep the value of the first run or take the present one, and a new value is always seen.
func TestFrozenParams(t *testing.T) {
	n := newMLP(tensor.Float64)
	bind(t, n.params[2], colMajor(n.params[2].Value().(*tensor.Dense)))
	m := machine(t, n.g, fusec.WithFrozenParams())
	run(t, m)
	run(t, m)
	agrees(t, n.cost, reference(t, n.g)(n.cost))
	bind(t, n.params[2], colMajor(n.value(0, 1, 7, 3)))
	run(t, m)
	agrees(t, n.cost, reference(t, n.g)(n.cost))
	if err := gorgonia.Let(n.params[0], n.value(0, 1, 5, 7)); err != nil {
		t.Fatal(err)
	}
	run(t, m)
	agrees(t, n.cost, reference(t, n.g)(n.cost))
}

// TestOptionTypes says for which calls Go compiles an option.
func TestOptionTypes(t *testing.T) {
	compiles, machine := reflect.TypeFor[fusec.CompileOption](), reflect.TypeFor[gorgonia.VMOpt]()
	for name, c := range map[string]struct {
		option            any
		compiles, machine bool
	}{
		"TraceExec":        {gorgonia.TraceExec(), false, true},
		"WithNaNWatch":     {gorgonia.WithNaNWatch(), false, true},
		"WithValues":       {fusec.WithValues(), false, true},
		"WithFrozenParams": {fusec.WithFrozenParams(), false, true},
		"WithGradient":     {fusec.WithGradient("d", nil, nil), true, false},
		"WithWorkers":      {fusec.WithWorkers(1), true, true},
		"WithTarget":       {fusec.WithTarget("cpu"), true, true},
	} {
		typ := reflect.TypeOf(c.option)
		if typ.AssignableTo(compiles) != c.compiles || typ.AssignableTo(machine) != c.machine {
			t.Errorf("%s, a %v, is taken by Compile: %v, by NewMachine: %v", name, typ, typ.AssignableTo(compiles),
				typ.AssignableTo(machine))
		}
	}
}

// TestOptionsRefused names options that were given to what they are not for, by a conversion or for another target.
func TestOptionsRefused(t *testing.T) {
	for _, name := range []string{cpu.New(nil).Name(), cuda.New(nil).Name(), fpga.New(nil).Name()} {
		if name == "" {
			t.Error("a device made with an option that is nil has no name")
		}
	}
	g := built(t, linearGraph())
	nothing := func(gorgonia.VM) {}
	for want, opt := range map[string]fusec.CompileOption{
		"option 0, TraceExec, is for machines":                                       fusec.CompileOption(gorgonia.TraceExec()),
		"option 0, WithNaNWatch, is for machines":                                    fusec.CompileOption(gorgonia.WithNaNWatch()),
		"WithValues is for machines":                                                 fusec.CompileOption(fusec.WithValues()),
		"WithoutGradients is for machines":                                           fusec.CompileOption(fusec.WithoutGradients()),
		"option 0 is for machines":                                                   nothing,
		"option 0 is nil":                                                            nil,
		"WithAhead: the compiled model is nil":                                       fusec.WithAhead(nil),
		`WithTarget("cpu"): option 1 is nil`:                                         fusec.WithTarget("cpu", cpu.AttentionBlock(4), nil),
		`WithTarget("cpu"): option 0 is nil`:                                         fusec.WithTarget("cpu", cpu.Option(nil)),
		`WithTarget("fpga"): option 0 is nil`:                                        fusec.WithTarget("fpga", fpga.Option(nil)),
		`target "cpu": a cuda.Option was given, which is an option of target "cuda"`: fusec.WithTarget("", cuda.Portable()),
		`target "ref": a cpu.Option was given`:                                       fusec.WithTarget("ref", cpu.AttentionBlock(4)),
	} {
		if _, err := fusec.Compile(g, opt); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Compile: error %v, want %q", err, want)
		}
		if _, _, err := fusec.Plan(g, opt); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Plan: error %v, want %q", err, want)
		}
	}
	m := fusec.NewMachine(gorgonia.NewGraph(), gorgonia.VMOpt(fusec.WithGradient("d", nil, nil)))
	if err := m.Err(); err == nil || !strings.Contains(err.Error(), "WithGradient is for Compile") {
		t.Errorf("NewMachine: error %v", err)
	}
}
