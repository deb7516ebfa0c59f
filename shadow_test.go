package fusec_test

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/cmd/models/zoo"
	"fusec/graph"
	"fusec/graph/optim"
	"fusec/lowering/fpga"
)

// shadowed is a machine that trains a model of the zoo to small outputs.
func shadowed(t testing.TB, m *zoo.Model, opts ...gorgonia.VMOpt) *fusec.Machine {
	t.Helper()
	shape := m.Input.Shape()
	data := make([]float32, shape.TotalSize())
	for i := range data {
		data[i] = float32(math.Sin(float64(7 * i)))
	}
	if err := gorgonia.Let(m.Input, tensor.New(tensor.WithShape(shape...), tensor.WithBacking(data))); err != nil {
		t.Fatal(err)
	}
	cost := must(gorgonia.Mean(must(gorgonia.Square(m.Output))))
	if _, err := gorgonia.Grad(cost, m.Params...); err != nil {
		t.Fatal(err)
	}
	return machine(t, m.Graph, append(opts, fusec.WithOptimizer(&optim.Optimizer{Rule: optim.Adam{}, Rate: optim.Constant(0.01)}))...)
}

// layer is large enough for its operands to be rounded.
func layer() *zoo.Model {
	const n = 64
	g := gorgonia.NewGraph()
	x := gorgonia.NewMatrix(g, tensor.Float32, gorgonia.WithShape(n, n), gorgonia.WithName("x"))
	w := gorgonia.NewMatrix(g, tensor.Float32, gorgonia.WithShape(n, n), gorgonia.WithName("w"),
		gorgonia.WithInit(gorgonia.GlorotN(1)))
	return &zoo.Model{Graph: g, Input: x, Output: must(gorgonia.Rectify(must(gorgonia.Mul(x, w)))), Params: gorgonia.Nodes{w}}
}

// Programs that are right stay within the bounds on all targets and in the precisions that they have.
func TestShadowOfModels(t *testing.T) {
	const every = 3
	for _, c := range []struct {
		name  string
		model *zoo.Model
		opts  []gorgonia.VMOpt
	}{
		{"digits-mlp", zoo.DigitsMLP(16), nil},
		{"transformer-block", zoo.TransformerBlock(2, 8, 16, 2, 32), nil},
		{"moe-block", zoo.MoEBlock(16, 8, 16, 4), nil},
		{"moe-top2", zoo.MoETop2(16, 8, 16, 4), nil},
		{"lenet", zoo.LeNet(2), nil},
		{"digits-mlp on the reference", zoo.DigitsMLP(16), []gorgonia.VMOpt{fusec.WithTarget("ref")}},
		{"layer on a GPU", layer(), []gorgonia.VMOpt{emulated(t)}},
		{"layer in bf16", layer(), []gorgonia.VMOpt{emulated(t), fusec.WithPrecision(fusec.BF16)}},
		{"layer in tf32", layer(), []gorgonia.VMOpt{emulated(t), fusec.WithPrecision(fusec.TF32)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := shadowed(t, c.model, append(c.opts, fusec.WithShadow(every, t.TempDir()))...)
			for range 2 * every {
				run(t, m)
			}
			launches := len(m.Fusions())
			if seen := m.Program().Shadow(); seen.Launches != int64(2*launches) ||
				!strings.Contains(seen.String(), "launches compared with the reference") {
				t.Errorf("%d launches, each to be compared twice: %v", launches, seen)
			} else {
				t.Log(seen)
			}
		})
	}
}

// TestShadowOfOverlay compares inference in integers of 8 bits. Its launches stay within the bound, and come near it: a
// tenth of the bound would not do.
func TestShadowOfOverlay(t *testing.T) {
	nearest := 0.0
	for _, name := range []string{"digits-mlp", "transformer-block", "moe-top2", "lenet"} {
		g, weights, err := graph.Load(filepath.Join(models, name+".graph"))
		if err != nil {
			t.Fatal(err)
		}
		in := weights.Tensors
		for _, n := range g.Nodes {
			if _, ok := n.Op.(graph.Input); ok {
				x := graph.NewTensor(n.Type)
				for i := range n.Type.Shape.Elems() {
					x.SetFloat(i, math.Sin(float64(7*i)))
				}
				in[n.Name] = x
			}
		}
		p, err := fusec.Compile(g, fusec.WithTarget("fpga", fpga.Link("model")), fusec.WithShadow(1, t.TempDir()))
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if _, err := p.Run(in); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		seen := p.Shadow()
		t.Logf("%s: %v", name, seen)
		if seen.Launches == 0 || seen.Worst.Worst > 1 {
			t.Errorf("%s: %v", name, seen)
		}
		nearest = max(nearest, seen.Worst.Worst)
	}
	if nearest < 0.1 {
		t.Errorf("no launch comes nearer to its bound than %.2g of it", nearest)
	}
}

// A wrong kernel on an overlay is found and named, and the right one is not.
func TestShadowFindsWrongOverlay(t *testing.T) {
	b := graph.NewBuilder("squashing")
	x := b.Input("x", graph.TypeOf(graph.F32, 8, 16))
	hidden := b.Unary(graph.Relu, b.MatMul(x, b.Param("hidden.weight", graph.TypeOf(graph.F32, 16, 16)), false, false))
	b.Output("y", b.Named(b.Unary(graph.Tanh, b.MatMul(hidden, b.Param("out.weight", graph.TypeOf(graph.F32, 16, 4)), false, false)),
		"squashed"))
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]*graph.Tensor{}
	for _, s := range g.Sources() {
		v := graph.NewTensor(s.Type)
		for i := range v.Type.Shape.Elems() {
			v.SetFloat(i, math.Sin(float64(7*i)))
		}
		values[s.Name] = v
	}
	for name, opt := range map[string]fusec.Option{"wrong": fusec.OnWrongOverlay(),
		"right": fusec.WithTarget("fpga", fpga.Link("model"))} {
		p, err := fusec.Compile(g, opt, fusec.WithShadow(1, t.TempDir()))
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		for _, l := range p.Lowered().Launches {
			if l.Device != "" {
				t.Errorf("the %s kernel: a launch is on %s: %s", name, l.Device, l.Reason)
			}
		}
		_, err = p.Run(values)
		var e *fusec.DepartureError
		switch found := errors.As(err, &e); {
		case !found && (name == "wrong" || err != nil):
			t.Errorf("the %s kernel: %v, %v", name, err, p.Shadow())
		case found && (name == "right" || !strings.Contains(err.Error(), "squashed") || e.Launch != 1):
			t.Errorf("the %s kernel: %v", name, err)
		}
	}
}

// A wrong kernel is found, named, and written so that it can be run alone; weights stay as they are.
func TestShadowFindsWrongKernel(t *testing.T) {
	folder := t.TempDir()
	m := zoo.TransformerBlock(2, 8, 16, 2, 32)
	g := m.Graph
	w := gorgonia.NewMatrix(g, tensor.Float32, gorgonia.WithShape(16, 5), gorgonia.WithName("head.weight"),
		gorgonia.WithInit(gorgonia.GlorotN(1)))
	m.Output = must(gorgonia.Tanh(must(gorgonia.Mul(m.Output, w))))
	gorgonia.WithName("squashed")(m.Output)
	m.Params = append(m.Params, w)
	const every = 4
	vm := shadowed(t, m, fusec.OnWrong(), fusec.WithShadow(every, folder))
	before := append([]float32{}, w.Value().Data().([]float32)...)
	var err error
	runs := 0
	for ; runs < every && err == nil; runs++ {
		copy(before, w.Value().Data().([]float32))
		err = vm.RunAll()
		vm.Reset()
	}
	var e *fusec.DepartureError
	if !errors.As(err, &e) {
		t.Fatalf("after %d runs: %v", runs, err)
	}
	for _, want := range []string{"squashed", "departs from the reference: ", "times the bound",
		"fusec run " + e.File + " --against ref --target cpu runs it alone"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
	for i, v := range w.Value().Data().([]float32) {
		if v != before[i] {
			t.Fatalf("the run that departs has changed weights")
		}
	}
	if seen := vm.Program().Shadow(); seen.Launch != e.Launch || seen.Worst.Worst != e.Departure.Worst ||
		!strings.Contains(seen.String(), e.Node) {
		t.Errorf("%v", seen)
	}

	// The file alone departs on the wrong device, and not on the right one.
	if filepath.Dir(e.File) != folder {
		t.Errorf("it is in %s", e.File)
	}
	alone, weights, err := graph.Load(e.File)
	if err != nil {
		t.Fatal(err)
	}
	for name, opt := range map[string]fusec.Option{"wrong": fusec.OnWrong(), "right": fusec.WithTarget("cpu")} {
		p, err := fusec.Compile(alone, opt, fusec.WithReference())
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if _, err := p.Run(weights.Tensors); err != nil {
			t.Fatal(err)
		}
		off := 0
		for _, d := range p.Departures() {
			off += d.Off
		}
		if (off > 0) != (name == "wrong") {
			t.Errorf("on the %s device %d elements are off", name, off)
		}
	}

	// Later runs go on.
	for range every {
		if err = vm.RunAll(); err == nil {
			break
		}
		vm.Reset()
	}
	if err != nil {
		t.Errorf("all runs fail: %v", err)
	}
}

// The file that cannot be written is named with the departure.
func TestShadowWithoutFolder(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "missing")
	b := graph.NewBuilder("g")
	x := b.Input("x", graph.TypeOf(graph.F32, 3))
	b.Output("y", b.Unary(graph.Tanh, b.BinaryScalar(graph.Mul, x, 3)))
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	p, err := fusec.Compile(g, fusec.OnWrong(), fusec.WithShadow(1, folder))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	_, err = p.Run(map[string]*graph.Tensor{"x": tensorOf(t, []float32{1, 2, 3}, 3)})
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "departs from the reference") {
		t.Errorf("%v", err)
	}
}

// Options that mean nothing are refused.
func TestShadowOptions(t *testing.T) {
	g := built(t, linearGraph())
	for want, opts := range map[string][]fusec.CompileOption{
		"WithShadow(0): want at least 1":  {fusec.WithShadow(0)},
		"WithShadow: 2 folders, want one": {fusec.WithShadow(1, "a", "b")},
	} {
		if _, err := fusec.Compile(g, opts...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	p, err := fusec.Compile(g)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if s := p.Shadow(); s.Launches != 0 {
		t.Errorf("without the option: %v", s)
	}
}

// The cost of a step of training with WithShadow: nothing but copied updates where no launch is compared, and where all
// are what a step's share of the comparisons is once in so many steps.
func BenchmarkShadow(b *testing.B) {
	for _, c := range []struct {
		name string
		opts []gorgonia.VMOpt
	}{
		{"without", nil},
		{"none", []gorgonia.VMOpt{fusec.WithShadow(math.MaxInt)}},
		{"all", []gorgonia.VMOpt{fusec.WithShadow(1)}},
	} {
		b.Run(c.name, func(b *testing.B) {
			m := shadowed(b, zoo.TransformerBlock(4, 128, 256, 8, 1024), c.opts...)
			if c.name != "all" {
				run(b, m)
			}
			for b.Loop() {
				run(b, m)
			}
		})
	}
}
