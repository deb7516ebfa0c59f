package fusec_test

import (
	"math"
	"slices"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/graph"
)

func TestParams(t *testing.T) {
	n := newMLP(tensor.Float64).withGrad(t)
	for _, c := range []struct {
		name string
		vm   *fusec.Machine
		want gorgonia.Nodes
	}{
		{"of gorgonia.Grad", machine(t, n.g), n.params},
		{"bound all", machine(t, n.g, gorgonia.BindDualValues()), n.params},
		{"bound some", machine(t, n.g, gorgonia.BindDualValues(n.params[2], n.params[0], n.y)), gorgonia.Nodes{n.params[0], n.params[2]}},
		{"without gradients", machine(t, newMLP(tensor.Float64).g), nil},
	} {
		if got := c.vm.Params(); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	l := newMLP(tensor.Float64)
	if got, want := lisp(t, l.g).Params(), append(gorgonia.Nodes{l.x}, l.params...); !slices.Equal(got, want) {
		t.Errorf("of a LispMachine: %v, want %v", got, want)
	}
	if got := fusec.NewMachine(nil).Params(); got != nil {
		t.Errorf("of no graph: %v", got)
	}
}

func TestWeights(t *testing.T) {
	n, other := newMLP(tensor.Float32).withGrad(t), newMLP(tensor.Float32).withGrad(t)
	m, to := machine(t, n.g, gorgonia.BindDualValues(n.params...)), machine(t, other.g)
	run(t, m)
	if err := gorgonia.NewVanillaSolver().Step(gorgonia.NodesToValueGrads(m.Params())); err != nil {
		t.Fatal(err)
	}
	w, err := m.Weights()
	if err != nil || len(w) != 4 {
		t.Fatalf("%d weights, error %v", len(w), err)
	}
	if err := to.SetWeights(w); err != nil {
		t.Fatal(err)
	}
	run(t, m)
	run(t, to)
	sameFloats(t, "the cost with the weights of another", floats(t, other.cost.Value()), floats(t, n.cost.Value()), 0)

	before := floats(t, n.params[1].Value())
	bad := map[string]*graph.Tensor{"first.bias": w["first.bias"], "extra": w["first.bias"], "second.bias": graph.Scalar(graph.F32, 1)}
	w["first.bias"].SetFloat(0, math.Pi)
	wantError(t, m.SetWeights(bad), `"first.weight" is missing`, `trains no "extra"`, `"second.bias" is f32[1,3]`)
	sameFloats(t, "a weight after a refusal", floats(t, n.params[1].Value()), before, 0)
	_, err = fusec.NewMachine(nil).Weights()
	wantError(t, err, "nil")
}

func TestLetBatch(t *testing.T) {
	g := gorgonia.NewGraph()
	x := gorgonia.NewMatrix(g, tensor.Float32, gorgonia.WithShape(4, 3), gorgonia.WithName("x"))
	i := gorgonia.NewVector(g, tensor.Int, gorgonia.WithShape(4), gorgonia.WithName("i"))
	y := must(gorgonia.ByIndices(x, i, 0))
	m := machine(t, g)
	batch := map[string]*graph.Tensor{"x": graph.NewTensor(graph.TypeOf(graph.F32, 4, 3)),
		"i": graph.NewTensor(graph.TypeOf(graph.I64, 4))}
	for step := range 2 {
		for k := range 12 {
			batch["x"].SetFloat(k, float64(k*step))
			batch["i"].SetFloat(k/3, float64((k/3+step)%4))
		}
		if err := m.LetBatch(batch); err != nil {
			t.Fatal(err)
		}
		value := x.Value()
		run(t, m)
		agrees(t, y, reference(t, g)(y))
		if step == 1 {
			if allocs := testing.AllocsPerRun(10, func() { _ = m.LetBatch(batch) }); allocs > 0 || x.Value() != value {
				t.Errorf("%v allocations", allocs)
			}
		}
	}
	before := floats(t, x.Value())
	batch["x"].SetFloat(0, -1)
	wantError(t, m.LetBatch(map[string]*graph.Tensor{"x": batch["x"], "z": batch["i"]}), `no input "z"`)
	wantError(t, m.LetBatch(map[string]*graph.Tensor{"x": batch["x"], "i": graph.NewTensor(graph.TypeOf(graph.I64, 3))}),
		`"i" is i64[4]`, "i64[3]")
	wantError(t, m.LetBatch(map[string]*graph.Tensor{"x": batch["x"], "i": nil}), `"i" is missing`)
	sameFloats(t, "an input after a refusal", floats(t, x.Value()), before, 0)
	wantError(t, fusec.NewMachine(nil).LetBatch(batch), "nil")
}
