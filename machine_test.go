package fusec_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	fgorgonia "fusec/graph/gorgonia"
	"fusec/graph/trace"
)

// mlp is two linear layers with ReLU between them, and a cost.
type mlp struct {
	*net
	x, y, hidden, cost *gorgonia.Node
	params             gorgonia.Nodes
}

func newMLP(d tensor.Dtype) *mlp {
	b := newNet(d)
	m := &mlp{net: b, x: b.in("x", 6, 5)}
	h, w1, b1 := b.linear("first", m.x, 5, 7)
	m.hidden = must(gorgonia.Rectify(h))
	y, w2, b2 := b.linear("second", m.hidden, 7, 3)
	m.y, m.params = y, gorgonia.Nodes{w1, b1, w2, b2}
	gorgonia.WithName("logits")(m.y)
	m.cost = must(gorgonia.Mean(must(gorgonia.Square(m.y))))
	return m
}

// withGrad adds the gradients of the parameters.
func (m *mlp) withGrad(t testing.TB) *mlp {
	t.Helper()
	if _, err := gorgonia.Grad(m.cost, m.params...); err != nil {
		t.Fatal(err)
	}
	return m
}

// targetVariable names the environment variable that has the machines of tests run elsewhere than on the processor: the
// name of a target, or "emulator" for the target cuda without a GPU.
const targetVariable = "FUSEC_TEST_TARGET"

// elsewhere is the target that the environment names, whose runs are as users have them; on the processor all is verified.
func elsewhere(t testing.TB) []gorgonia.VMOpt {
	switch name := os.Getenv(targetVariable); name {
	case "":
		return []gorgonia.VMOpt{fusec.WithVerify()}
	case "emulator":
		return []gorgonia.VMOpt{fusec.WithTarget("cuda"), emulated(t)}
	default:
		return []gorgonia.VMOpt{fusec.WithTarget(name)}
	}
}

func machine(t testing.TB, g *gorgonia.ExprGraph, opts ...gorgonia.VMOpt) *fusec.Machine {
	t.Helper()
	m := fusec.NewMachine(g, append(elsewhere(t), opts...)...)
	t.Cleanup(func() { m.Close() })
	if err := m.Err(); err != nil {
		t.Fatal(err)
	}
	return m
}

func run(t testing.TB, m gorgonia.VM) {
	t.Helper()
	m.Reset()
	if err := m.RunAll(); err != nil {
		t.Fatal(err)
	}
}

// wantError fails unless err mentions all of the parts.
func wantError(t testing.TB, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error; want one about %q", parts)
		return
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("the error does not mention %q: %v", p, err)
		}
	}
}

func TestRunAllOnce(t *testing.T) {
	n := newMLP(tensor.Float64)
	m := machine(t, n.g)
	run(t, m)
	first := floats(t, n.cost.Value())
	if err := gorgonia.Let(n.x, n.value(0, 3, 6, 5)); err != nil {
		t.Fatal(err)
	}
	if err := m.RunAll(); err != nil {
		t.Fatal(err)
	}
	sameFloats(t, "the cost after RunAll without Reset", floats(t, n.cost.Value()), first, 0)
	run(t, m)
	if floats(t, n.cost.Value())[0] == first[0] {
		t.Error("after Reset the new input was not read")
	}
}

func TestBadValues(t *testing.T) {
	for _, c := range []struct {
		name  string
		value func(n *mlp) gorgonia.Value // for x
		want  []string
	}{
		{"scalar", func(*mlp) gorgonia.Value { return gorgonia.NewF64(1.5) }, []string{`"x"`, "f64[]", "f64[6,5]"}},
		{"element type", func(*mlp) gorgonia.Value { return tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(6, 5)) },
			[]string{`"x"`, "f32[6,5]", "f64[6,5]"}},
		{"foreign element type", func(*mlp) gorgonia.Value { return tensor.New(tensor.Of(tensor.Uint16), tensor.WithShape(6, 5)) },
			[]string{`"x"`, "uint16"}},
		{"batch size", func(n *mlp) gorgonia.Value { return n.value(0, 1, 4, 5) }, []string{`"x"`, "f64[4,5]", "f64[6,5]"}},
		{"as many elements", func(n *mlp) gorgonia.Value { return n.value(0, 1, 5, 6) }, []string{`"x"`, "f64[5,6]", "f64[6,5]"}},
		{"as many elements, column-major", func(n *mlp) gorgonia.Value { return colMajor(n.value(0, 1, 5, 6)) },
			[]string{`"x"`, "f64[5,6]", "f64[6,5]"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newMLP(tensor.Float64)
			good := n.x.Value().(*tensor.Dense)
			m := machine(t, n.g)
			for range 2 { // the second time after a value that had to be copied
				bind(t, n.x, c.value(n))
				m.Reset()
				wantError(t, m.RunAll(), c.want...)
				wantError(t, m.RunAll(), c.want...)
				bind(t, n.x, colMajor(good))
				run(t, m)
			}
			agrees(t, n.cost, reference(t, n.g)(n.cost))
		})
	}
}

// bind binds a value past the checks of gorgonia.Let.
func bind(t testing.TB, n *gorgonia.Node, v gorgonia.Value) {
	t.Helper()
	if err := fgorgonia.Bind(n, v); err != nil {
		t.Fatal(err)
	}
}

// colMajor is v with its elements in column-major order.
func colMajor(v *tensor.Dense) *tensor.Dense {
	rows, cols := v.Shape()[0], v.Shape()[1]
	data := make([]float64, rows*cols)
	for i := range rows {
		for j := range cols {
			data[j*rows+i] = v.Float64s()[i*cols+j]
		}
	}
	c := tensor.New(tensor.Of(tensor.Float64), tensor.WithShape(rows, cols), tensor.AsFortran(nil))
	copy(c.Float64s(), data)
	return c
}

func TestUnboundInput(t *testing.T) {
	b := newNet(tensor.Float64)
	x := b.node("late", 2, 3)
	y := must(gorgonia.Tanh(x))
	m := machine(t, b.g)
	wantError(t, m.RunAll(), `"late"`, "no value")
	if err := m.Let(x, b.value(0, 1, 2, 3)); err != nil {
		t.Fatal(err)
	}
	run(t, m)
	agrees(t, y, reference(t, b.g)(y))

	unnamed := newNet(tensor.Float64)
	must(gorgonia.Tanh(gorgonia.NewMatrix(unnamed.g, tensor.Float64, gorgonia.WithShape(2, 3))))
	wantError(t, machine(t, unnamed.g).RunAll(), "an input of shape (2, 3) without a name that tanh", "reads, has no value")

	b.node("read by nothing", 2) // needs no value
	must(gorgonia.Tanh(b.in("other", 2)))
	run(t, machine(t, b.g))
}

func TestLetAndSet(t *testing.T) {
	n := newMLP(tensor.Float64)
	other := newNet(tensor.Float64).in("other", 6, 5)
	z := n.node("z", 6, 5)
	m := machine(t, n.g)
	wantError(t, m.Let(nil, 1.0), "nil")
	wantError(t, m.Let(n.x, nil), "no value")
	wantError(t, m.Let(other, 1.0), "not in this graph")
	wantError(t, m.Let(n.y, 1.0), "non input")
	wantError(t, m.Set(nil, nil), "nil")
	wantError(t, m.Set(n.x, other), "not in this graph")
	wantError(t, m.Set(n.x, z), "no value")
	v := n.value(0, 1, 6, 5)
	if err := m.Let(z, v); err != nil {
		t.Fatal(err)
	}
	if err := m.Set(n.x, z); err != nil {
		t.Fatal(err)
	}
	if n.x.Value() != gorgonia.Value(v) {
		t.Error("Set did not give x the value of z")
	}
	run(t, m)
	agrees(t, n.cost, reference(t, n.g)(n.cost))
}

// The value of an input may be replaced, moved, transposed or reshaped in place between two runs.
func TestInputsMoveBetweenRuns(t *testing.T) {
	b := newNet(tensor.Float64)
	x := b.in("x", 4, 4)
	y := must(gorgonia.Mul(x, b.in("w", 4, 3)))
	m := machine(t, b.g)
	check := func(what string) {
		t.Helper()
		run(t, m)
		t.Log(what)
		agrees(t, y, reference(t, b.g)(y))
	}
	check("as bound")
	if err := x.Value().(*tensor.Dense).T(); err != nil {
		t.Fatal(err)
	}
	check("transposed lazily")
	x.Value().(*tensor.Dense).UT()
	check("transposed back")
	for i := range 16 {
		x.Value().(*tensor.Dense).Float64s()[i] += float64(i)
	}
	check("changed in place")
	wide := b.value(0, 1, 4, 9)
	view, err := wide.Slice(nil, gorgonia.S(2, 6))
	if err != nil {
		t.Fatal(err)
	}
	bind(t, x, view.(*tensor.Dense))
	check("a view with strides")
	bind(t, x, colMajor(b.value(0, 1, 4, 4)))
	check("column-major")
	bind(t, x, b.value(0, 1, 4, 4))
	check("contiguous again")
}

func TestNoGraph(t *testing.T) {
	m := fusec.NewMachine(nil)
	wantError(t, m.Err(), "graph is nil")
	if err := m.RunAll(); err != m.Err() {
		t.Errorf("RunAll gives %v, Err %v", err, m.Err())
	}
	m.Reset()
	if m.Fusions() != nil || m.Trace() != nil || m.Program() != nil {
		t.Error("a machine without a graph has fusions, a trace or a program")
	}
	wantError(t, m.Let(newNet(tensor.Float64).in("x", 1), 1.0), "not in this graph")
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	wantError(t, fusec.Save(t.TempDir()+"/model.graph", nil), "nil")
}

func TestEmptyGraph(t *testing.T) {
	for name, g := range map[string]*gorgonia.ExprGraph{
		"no nodes":   gorgonia.NewGraph(),
		"input only": newMLP(tensor.Float64).x.Graph(),
	} {
		if name == "input only" {
			b := newNet(tensor.Float32)
			b.in("x", 2, 2)
			g = b.g
		}
		t.Run(name, func(t *testing.T) {
			m := machine(t, g)
			run(t, m)
			if n := len(m.Fusions()); n != 0 {
				t.Errorf("%d launches for nothing", n)
			}
		})
	}
}

func TestCompileErrorIsKept(t *testing.T) {
	n := newMLP(tensor.Float64)
	m := fusec.NewMachine(n.g, fusec.WithTarget("abacus"), fusec.WithWorkers(-1))
	defer m.Close()
	wantError(t, m.Err(), "WithWorkers(-1)")
	for range 2 {
		if err := m.RunAll(); err == nil || err.Error() != m.Err().Error() {
			t.Errorf("RunAll gives %v, Err %v", err, m.Err())
		}
	}
	m = fusec.NewMachine(n.g, fusec.WithTarget("abacus"))
	wantError(t, m.Err(), "abacus")
	m = fusec.NewMachine(n.g, fusec.WithoutPass("fold-time"))
	wantError(t, m.Err(), "fold-time")
	if m.Program() != nil {
		t.Error("a graph that did not compile has a program")
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

func TestClose(t *testing.T) {
	n := newMLP(tensor.Float64)
	var read gorgonia.Value
	gorgonia.Read(n.hidden, &read)
	m := machine(t, n.g)
	run(t, m)
	cost, hidden := floats(t, n.cost.Value()), floats(t, read)
	for range 2 {
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	m.Reset()
	wantError(t, m.RunAll(), "closed")
	sameFloats(t, "the cost after Close", floats(t, n.cost.Value()), cost, 0)
	sameFloats(t, "the value read, after Close", floats(t, read), hidden, 0)
	if len(m.Fusions()) == 0 || m.Trace() == nil {
		t.Error("a closed machine has lost its reports")
	}
}

func TestTwoMachinesOnOneGraph(t *testing.T) {
	n := newMLP(tensor.Float64).withGrad(t)
	train := machine(t, n.g, gorgonia.BindDualValues(n.params...))
	eval := machine(t, n.g, gorgonia.EvalMode(), fusec.WithWorkers(1))
	for range 3 {
		run(t, train)
		trained := floats(t, n.cost.Value())
		run(t, eval)
		sameFloats(t, "the cost of the second machine", floats(t, n.cost.Value()), trained, 0)
		if err := gorgonia.NewVanillaSolver(gorgonia.WithLearnRate(0.1)).Step(gorgonia.NodesToValueGrads(n.params)); err != nil {
			t.Fatal(err)
		}
	}
}

// Gorgonia keeps shared constants and group numbers in package variables without a lock, so graphs are built one after
// the other; compiling and running them is fusec's, and safe at once.
func TestMachinesInParallel(t *testing.T) {
	var wg sync.WaitGroup
	costs := make([]float64, 6)
	for i := range costs {
		n := newMLP(tensor.Float64)
		if _, err := gorgonia.Grad(n.cost, n.params...); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			m := fusec.NewMachine(n.g, gorgonia.BindDualValues(n.params...))
			defer m.Close()
			solver := gorgonia.NewAdamSolver()
			for range 10 {
				m.Reset()
				if err := errors.Join(m.RunAll(), solver.Step(gorgonia.NodesToValueGrads(n.params))); err != nil {
					t.Error(err)
					return
				}
			}
			costs[i] = n.cost.Value().Data().(float64)
		})
	}
	wg.Wait()
	for _, c := range costs {
		if c != costs[0] || math.IsNaN(c) {
			t.Errorf("the same training gave %v", costs)
		}
	}
}

func TestCloseEndsGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 5 {
		n := newMLP(tensor.Float64)
		m := fusec.NewMachine(n.g, fusec.WithWorkers(8))
		run(t, m)
		m.Close()
		fusec.NewMachine(n.g, fusec.WithoutPass("nonsense")).Close()
	}
	for wait := time.Millisecond; runtime.NumGoroutine() > before; wait *= 2 {
		if wait > time.Second {
			t.Fatalf("%d goroutines before, %d after", before, runtime.NumGoroutine())
		}
		time.Sleep(wait)
	}
}

// A run allocates nothing after the first, whatever is read and bound.
func TestAllocs(t *testing.T) {
	for _, d := range []tensor.Dtype{tensor.Float32, tensor.Float64} {
		for _, c := range []struct {
			name string
			opts func(n *mlp) []gorgonia.VMOpt
		}{
			{"forward", func(*mlp) []gorgonia.VMOpt { return nil }},
			{"gradients", func(n *mlp) []gorgonia.VMOpt { return []gorgonia.VMOpt{gorgonia.BindDualValues(n.params...)} }},
			{"all gradients", func(n *mlp) []gorgonia.VMOpt { return []gorgonia.VMOpt{gorgonia.BindDualValues()} }},
			{"traced", func(n *mlp) []gorgonia.VMOpt { return []gorgonia.VMOpt{gorgonia.TraceExec(), gorgonia.WithNaNWatch()} }},
			{"frozen", func(n *mlp) []gorgonia.VMOpt { return []gorgonia.VMOpt{fusec.WithFrozenParams()} }},
		} {
			t.Run(fmt.Sprintf("%v/%s", d, c.name), func(t *testing.T) {
				n := newMLP(d)
				var cost, hidden gorgonia.Value
				gorgonia.Read(n.cost, &cost)
				gorgonia.Read(n.hidden, &hidden)
				if d == tensor.Float64 {
					bind(t, n.x, colMajor(n.x.Value().(*tensor.Dense)))
				}
				n.withGrad(t)
				m := machine(t, n.g, c.opts(n)...)
				run(t, m)
				allocs := testing.AllocsPerRun(20, func() {
					m.Reset()
					if err := m.RunAll(); err != nil {
						t.Error(err)
					}
				})
				if allocs > 0 {
					t.Errorf("a run makes %v allocations", allocs)
				}
			})
		}
	}
}

// TestProgramStateIsEachMachines runs two machines of one program by turns: draws of dropout and running statistics of one
// are not those of the other, and both are as without the cache.
func TestProgramStateIsEachMachines(t *testing.T) {
	type trained struct {
		m   *fusec.Machine
		x   *gorgonia.Node
		out gorgonia.Value
	}
	build := func(opts ...gorgonia.VMOpt) *trained {
		b := newNet(tensor.Float64)
		k := &trained{x: b.in("x", 4, 2, 3, 3)}
		y, scale, bias, _, err := gorgonia.BatchNorm(k.x, nil, nil, 0.9, 1e-5)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []*gorgonia.Node{scale, bias} {
			if err := gorgonia.Let(n, b.value(1, 0.1, n.Shape()...)); err != nil {
				t.Fatal(err)
			}
		}
		gorgonia.Read(must(gorgonia.Dropout(y, 0.5)), &k.out)
		k.m = machine(t, b.g, opts...)
		return k
	}
	step := func(k *trained, n int) []float64 {
		v := k.x.Value().Data().([]float64)
		for i := range v {
			v[i] += float64((i*n)%5) - 2
		}
		run(t, k.m)
		k.m.Reset()
		return floats(t, k.out)
	}
	fusec.ClearProgramCache()
	alone := build(fusec.WithoutProgramCache())
	var want [][]float64
	for n := range 4 {
		want = append(want, step(alone, n))
	}
	one, other := build(), build()
	if !slices.ContainsFunc(other.m.Trace().Stages[0].Notes, func(n trace.Note) bool {
		return strings.HasPrefix(n.Text, "program reused")
	}) {
		t.Fatal("the machines have no program in common, so that nothing is tested")
	}
	for n := range 4 {
		sameFloats(t, "the first machine", step(one, n), want[n], 0)
		if n > 0 { // a run behind, and begun after the first machine has run
			sameFloats(t, "the second machine", step(other, n-1), want[n-1], 0)
		}
	}
}

// TestBadIndex names the values that an index out of range belongs to.
func TestBadIndex(t *testing.T) {
	for bad, want := range map[int]string{5: "index 5", -1: "index -1"} {
		b := newNet(tensor.Float32)
		must(gorgonia.Tanh(must(gorgonia.ByIndices(b.in("embedding", 5, 3), b.indices("words", 1, bad, 2), 0))))
		wantError(t, machine(t, b.g).RunAll(), `"embedding" and "words"`, want+", element 1 of the indices, is outside 0..4")
	}
}
