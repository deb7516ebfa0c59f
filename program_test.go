package fusec_test

import (
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/graph"
)

// f32 is a type of float32 numbers.
func f32(dims ...int) graph.Type { return graph.Type{DType: graph.F32, Shape: graph.ShapeOf(dims...)} }

func tensorOf(t testing.TB, data []float32, dims ...int) *graph.Tensor {
	t.Helper()
	x, err := graph.TensorOf(data, dims...)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func built(t testing.TB, b *graph.Builder) *graph.Graph {
	t.Helper()
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func compiled(t testing.TB, b *graph.Builder, opts ...fusec.CompileOption) *fusec.Program {
	t.Helper()
	p, err := fusec.Compile(built(t, b), append(opts, fusec.WithVerify())...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// linearGraph is relu(x·w), with an input that nothing reads.
func linearGraph() *graph.Builder {
	b := graph.NewBuilder("linear")
	x, w := b.Input("x", f32(2, 3)), b.Param("w", f32(3, 2))
	b.Input("unread", f32(4))
	b.Output("y", b.Unary(graph.Relu, b.MatMul(x, w, false, false)))
	return b
}

func TestProgram(t *testing.T) {
	p := compiled(t, linearGraph())
	x, w := tensorOf(t, []float32{1, 2, 3, -1, -2, -3}, 2, 3), tensorOf(t, []float32{1, 0, 0, 1, 1, -1}, 3, 2)
	out, err := p.Run(map[string]*graph.Tensor{"x": x, "w": w, "unread": graph.NewTensor(f32(4))})
	if err != nil {
		t.Fatal(err)
	}
	sameFloats(t, "y", out["y"].Floats(), []float64{4, 0, 0, 1}, 0)

	w.Data.([]float32)[0] = 2 // frozen until it is set again
	if err := p.Set("w", w); err != nil {
		t.Fatal(err)
	}
	x.Data.([]float32)[0] = 3 // read in place
	if err := p.Exec(); err != nil {
		t.Fatal(err)
	}
	y, err := p.Output("y")
	if err != nil {
		t.Fatal(err)
	}
	sameFloats(t, "y of changed values", y.Floats(), []float64{9, 0, 0, 1}, 0)
	sameFloats(t, "what Run returned", out["y"].Floats(), []float64{4, 0, 0, 1}, 0)

	if f := p.Fusions(); len(f) != 1 || f[0].Kind != "linear" || f[0].FLOPs == 0 || f[0].Bytes == 0 {
		t.Errorf("the fusions are %+v", f)
	}
	if p.CompileTime() <= 0 || p.Bytes() <= 0 || len(p.Lowered().Launches) != 1 || p.Trace().Program == nil {
		t.Error("a report is missing")
	}
	p.Profile(true)
	if err := p.Exec(); err != nil || len(p.Times()) != 1 || p.Times()[0] <= 0 {
		t.Errorf("profiling: %v, %v", p.Times(), err)
	}
	if allocs := testing.AllocsPerRun(10, func() { p.Exec() }); allocs > 0 {
		t.Errorf("Exec makes %v allocations", allocs)
	}
	for range 2 {
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
	wantError(t, p.Exec(), "closed")
}

// Weights that are packed are packed again when they are set.
func TestSetThaws(t *testing.T) {
	const n = 96
	b := graph.NewBuilder("")
	b.Output("y", b.MatMul(b.Input("x", f32(n, n)), b.Param("w", f32(n, n)), false, false))
	p := compiled(t, b)
	x := graph.NewTensor(f32(n, n))
	for i := range n {
		x.SetFloat(i*n+i, 1)
	}
	w := graph.NewTensor(f32(n, n))
	for round := range 3 {
		for i := range n * n {
			w.SetFloat(i, float64(round+1)*float64(i%17))
		}
		out, err := p.Run(map[string]*graph.Tensor{"x": x, "w": w})
		if err != nil {
			t.Fatal(err)
		}
		sameFloats(t, "y", out["y"].Floats(), w.Floats(), 0)
	}
}

func TestProgramBadInput(t *testing.T) {
	p := compiled(t, linearGraph())
	good := map[string]*graph.Tensor{"x": graph.NewTensor(f32(2, 3)), "w": graph.NewTensor(f32(3, 2))}
	wantError(t, p.Exec(), "no value")
	for _, c := range []struct {
		name  string
		value *graph.Tensor
		want  []string
	}{
		{"z", graph.NewTensor(f32(1)), []string{`"z"`, "no input"}},
		{"y", graph.NewTensor(f32(2, 2)), []string{`"y"`, "no input"}},
		{"x", nil, []string{`"x"`, "no value"}},
		{"x", graph.NewTensor(f32(3, 2)), []string{`"x"`, "f32[2,3]", "f32[3,2]"}},
		{"x", graph.NewTensor(graph.Type{DType: graph.F64, Shape: graph.ShapeOf(2, 3)}), []string{`"x"`, "f64"}},
		{"x", &graph.Tensor{Type: f32(2, 3), Data: []float32{1}}, []string{`"x"`, "1 elements"}},
		{"x", &graph.Tensor{Type: f32(2, 3), Data: make([]float64, 6)}, []string{`"x"`, "f64"}},
		{"unread", graph.NewTensor(f32(5)), []string{`"unread"`, "f32[4]"}},
	} {
		wantError(t, p.Set(c.name, c.value), c.want...)
		_, err := p.Run(map[string]*graph.Tensor{c.name: c.value})
		wantError(t, err, c.want...)
	}
	if err := p.Set("x", good["x"]); err != nil {
		t.Fatal(err)
	}
	wantError(t, p.Exec(), `"w"`, "no value")
	if _, err := p.Run(good); err != nil {
		t.Error(err)
	}
	_, err := p.Output("nothing")
	wantError(t, err, `"nothing"`)
	_, err = p.State("w")
	wantError(t, err, `"w"`)

	_, err = fusec.Compile(nil)
	wantError(t, err, "nil")
	_, _, err = fusec.Plan(nil)
	wantError(t, err, "nil")
	torn := built(t, linearGraph())
	torn.Nodes = torn.Nodes[1:]
	_, err = fusec.Compile(torn)
	wantError(t, err, "x")
	for _, opt := range []fusec.CompileOption{fusec.WithTarget("abacus"), fusec.WithWorkers(0), fusec.WithoutPass("none")} {
		if p, err := fusec.Compile(built(t, linearGraph()), opt); err == nil || p != nil {
			t.Errorf("a bad option gave %v, %v", p, err)
		}
		if _, _, err := fusec.Plan(built(t, linearGraph()), opt); err == nil {
			t.Error("a bad option was planned with")
		}
	}
}

// switchable fails when it is told to.
type switchable struct{ fail bool }

func (s *switchable) Do(args []*graph.Tensor) (*graph.Tensor, error) {
	if s.fail {
		return nil, os.ErrInvalid
	}
	return args[0].Clone(), nil
}

// State and updates are committed together, and only by a run that succeeds.
func TestUpdates(t *testing.T) {
	op := &switchable{}
	b := graph.NewBuilder("")
	a, c, w := b.State("a", f32(2)), b.State("c", f32(2)), b.Param("w", f32(2))
	x := b.Input("x", f32(2))
	b.Update(a, c) // a and c change places
	b.Update(c, a)
	moved := b.Binary(graph.Sub, w, x)
	b.Update(w, moved)
	b.Output("y", b.Add(graph.Host{Name: "gate", Type: f32(2), Impl: op}, moved))
	p := compiled(t, b)
	weight, first := tensorOf(t, []float32{10, 20}, 2), tensorOf(t, []float32{1, 2}, 2)
	for name, v := range map[string]*graph.Tensor{"w": weight, "a": first, "x": tensorOf(t, []float32{1, 1}, 2)} {
		if err := p.Set(name, v); err != nil {
			t.Fatal(err)
		}
	}
	holds := func(want map[string][]float64) {
		t.Helper()
		for name, w := range want {
			v, err := p.State(name)
			if err != nil {
				t.Fatal(err)
			}
			sameFloats(t, name, v.Floats(), w, 0)
		}
	}
	zero, one := []float64{0, 0}, []float64{1, 2}
	holds(map[string][]float64{"a": one, "c": zero, "w": {10, 20}})
	if err := p.Exec(); err != nil {
		t.Fatal(err)
	}
	holds(map[string][]float64{"a": zero, "c": one, "w": {9, 19}})
	op.fail = true
	wantError(t, p.Exec(), "gate")
	holds(map[string][]float64{"a": zero, "c": one, "w": {9, 19}})
	op.fail = false
	if err := p.Exec(); err != nil {
		t.Fatal(err)
	}
	holds(map[string][]float64{"a": one, "c": zero, "w": {8, 18}})
	sameFloats(t, "the user's weight", weight.Floats(), []float64{10, 20}, 0)
	sameFloats(t, "the user's state", first.Floats(), one, 0)
	if err := p.Set("w", weight); err != nil {
		t.Fatal(err)
	}
	holds(map[string][]float64{"w": {10, 20}})
	wantError(t, p.Set("a", graph.NewTensor(f32(3))), `"a"`, "f32[3]")
}

func TestPasses(t *testing.T) {
	names := fusec.Passes()
	for _, want := range []string{"simplify", "raise", "differentiate", "fuse-regions", "place", "check-lowered"} {
		if !slices.Contains(names, want) {
			t.Errorf("there is no pass %s in %v", want, names)
		}
	}
	if fusec.Targets()[0] != "cpu" {
		t.Errorf("the default target is %s", fusec.Targets()[0])
	}
}

// A graph that is saved, loaded and compiled gives the machine's values to the bit.
func TestSave(t *testing.T) {
	n := newMLP(tensor.Float32)
	path := filepath.Join(t.TempDir(), "model.graph")
	if err := fusec.Save(path, n.g, n.x); err != nil {
		t.Fatal(err)
	}
	wantError(t, fusec.Save("", n.g), "saving a model: the file's name is empty")
	run(t, machine(t, n.g))
	g, weights, err := graph.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := weights.Tensors["x"]; ok || len(weights.Tensors) != len(n.params) {
		t.Errorf("%d weights were saved, x among them: %v", len(weights.Tensors), ok)
	}
	p, err := fusec.Compile(g)
	if err != nil {
		t.Fatal(err)
	}
	in := weights.Tensors
	in["x"] = tensorOf(t, slices.Clone(n.x.Value().Data().([]float32)), 6, 5)
	out, err := p.Run(in)
	if err != nil {
		t.Fatal(err)
	}
	sameFloats(t, "the cost", out[g.Outputs[0].Name].Floats(), floats(t, n.cost.Value()), 0)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.Set("x", in["x"]); err == nil || err.Error() != "the program is closed" {
		t.Errorf("a value for a closed program: %v", err)
	}
}

func TestSaveTrainingGraph(t *testing.T) {
	n := newMLP(tensor.Float64).withGrad(t)
	path := filepath.Join(t.TempDir(), "model.graph")
	if err := fusec.Save(path, n.g); err != nil {
		t.Fatal(err)
	}
	run(t, machine(t, n.g, gorgonia.BindDualValues(n.params...)))
	_, weights, p := loaded(t, path)
	out, err := p.Run(weights.Tensors)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range n.params {
		name, _, _ := strings.Cut(w.Name(), " ")
		d := out["grad/"+name]
		if d == nil {
			t.Fatalf("there is no gradient of %v among %v", w, slices.Sorted(maps.Keys(out)))
		}
		v, err := w.Grad()
		if err != nil {
			t.Fatal(err)
		}
		sameFloats(t, "the gradient of "+w.Name(), d.Floats(), floats(t, v), 1e-12)
	}
}

func TestSaveNaN(t *testing.T) {
	b := newNet(tensor.Float32)
	w := b.in("w", 2, 2)
	w.Value().Data().([]float32)[1] = float32(math.NaN())
	must(gorgonia.Square(w))
	path := filepath.Join(t.TempDir(), "model.graph")
	if err := fusec.Save(path, b.g); err != nil {
		t.Fatal(err)
	}
	g, weights, p := loaded(t, path)
	out, err := p.Run(weights.Tensors)
	if err != nil {
		t.Fatal(err)
	}
	if y := out[g.Outputs[0].Name].Floats(); !math.IsNaN(y[1]) || math.IsNaN(y[0]) {
		t.Errorf("the squares are %v", y)
	}
}

func TestSaveFails(t *testing.T) {
	n := newMLP(tensor.Float32)
	dir := t.TempDir()
	wantError(t, fusec.Save(filepath.Join(dir, "none", "model.graph"), n.g), "none")
	wantError(t, fusec.Save(dir, n.g), dir)
	b := newNet(tensor.Float32)
	w := b.node("w", 2, 2)
	if _, err := gorgonia.Grad(must(gorgonia.Sum(must(gorgonia.Square(w)))), w); err != nil {
		t.Fatal(err)
	}
	wantError(t, fusec.Save(filepath.Join(dir, "model.graph"), b.g), "w", "no value")
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.Contains(e.Name(), "model") {
			t.Errorf("%s was left behind", e.Name())
		}
	}
}

// TestSetOutput checks that runs write into memory of the caller's, and which outputs they leave to Output.
func TestSetOutput(t *testing.T) {
	b := graph.NewBuilder("outputs")
	x := b.Input("x", f32(2, 3))
	y := b.Unary(graph.Exp, x)
	b.Output("y", y)
	b.Output("twin", y)
	b.Output("same", x)
	p := compiled(t, b)
	if err := p.Set("x", tensorOf(t, []float32{0, 1, 2, 3, 4, 5}, 2, 3)); err != nil {
		t.Fatal(err)
	}
	mine, twin, same := graph.NewTensor(f32(2, 3)), graph.NewTensor(f32(2, 3)), graph.NewTensor(f32(2, 3))
	memory := map[string]*graph.Tensor{"y": mine, "twin": twin, "same": same}
	for name, of := range memory {
		if ok, err := p.SetOutput(name, of); err != nil || !ok {
			t.Errorf("%s: %v, %v", name, ok, err)
		}
	}
	if err := p.Exec(); err != nil {
		t.Fatal(err)
	}
	for name, of := range memory {
		if got, err := p.Output(name); err != nil || got != of {
			t.Errorf("%s is %v, %v", name, got, err)
		}
	}
	if mine.Float(0) != 1 || !twin.Equal(mine) || same.Float(5) != 5 {
		t.Errorf("outputs %v, %v and %v", mine.Data, twin.Data, same.Data)
	}
	for message, err := range map[string]error{
		"no output": second(p.SetOutput("z", mine)), "given no memory": second(p.SetOutput("y", nil)),
		"of type f32[3]": second(p.SetOutput("y", graph.NewTensor(f32(3)))),
		"holds":          second(p.SetOutput("y", &graph.Tensor{Type: f32(2, 3)})),
	} {
		if err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("error %v, not %s", err, message)
		}
	}
	b = graph.NewBuilder("reference")
	b.Output("y", b.Unary(graph.Exp, b.Input("x", f32(2, 3))))
	if ok, err := compiled(t, b, fusec.WithTarget("ref")).SetOutput("y", mine); ok || err != nil {
		t.Errorf("the reference writes into the caller's memory: %v, %v", ok, err)
	}
}

func second(_ bool, err error) error { return err }
