package onnx

import (
	"errors"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/onnx/internal/pb"
	"fusec/kernels/ref"
	"fusec/kernels/ref/cases"
)

// sameValues compares what two graphs compute from the same values, by the reference.
func sameValues(t *testing.T, g, h *graph.Graph, in map[string]*graph.Tensor) {
	t.Helper()
	want, _, err := ref.Eval(g, in)
	if err != nil {
		return // such as a division of an integer by zero
	}
	got, _, err := ref.Eval(h, in)
	if err != nil {
		t.Fatal(err)
	}
	for name, w := range want {
		v := got[name]
		if v == nil || v.Type != w.Type {
			t.Errorf("output %q is %v, want %v", name, v, w.Type)
			continue
		}
		for i := range w.Type.Shape.Elems() {
			x, y := v.Float(i), w.Float(i)
			if !(math.Abs(x-y) <= 1e-4*(1+math.Abs(y))) && !(math.IsNaN(x) && math.IsNaN(y)) && x != y {
				t.Errorf("element %d of output %q is %v, want %v", i, name, x, y)
				break
			}
		}
	}
}

func loaded(t *testing.T, path string) *Model {
	t.Helper()
	m, err := Load(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// exported writes the model of a machine and reads it.
func exported(t *testing.T, vm *fusec.Machine, inputs ...*gorgonia.Node) *Model {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m.onnx")
	if err := Export(path, vm, inputs...); err != nil {
		t.Fatal(err)
	}
	return loaded(t, path)
}

// again saves a graph and reads it.
func again(t *testing.T, g *graph.Graph, weights map[string]*graph.Tensor) *Model {
	t.Helper()
	path := filepath.Join(t.TempDir(), "again.onnx")
	if err := Save(path, g, weights); err != nil {
		t.Fatal(err)
	}
	m := loaded(t, path)
	data, err := os.ReadFile(path)
	var p pb.ModelProto
	if err := errors.Join(err, proto.Unmarshal(data, &p)); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{"": true}
	for _, n := range p.GetGraph().GetNode() {
		if seen[n.GetName()] && n.GetName() != "" {
			t.Errorf("two nodes are named %q, which other programs refuse", n.GetName())
		}
		seen[n.GetName()] = true
	}
	return m
}

// TestSaveQuantised writes models of quantised numbers, operators of which are several nodes, and reads them again.
func TestSaveQuantised(t *testing.T) {
	for _, name := range []string{"mlp-qdq-channels", "mlp-dynamic", "convolutions-qlinear", "recurrent-dynamic", "attention-qdq"} {
		m, err := Load("testdata/quantised/"+name+".onnx", Options{})
		if err != nil {
			t.Fatal(err)
		}
		in := graphtest.Values(rand.New(rand.NewPCG(1, 2)), m.Graph)
		for name, v := range m.Weights {
			in[name] = v
		}
		sameValues(t, m.Graph, again(t, m.Graph, m.Weights).Graph, in)
	}
}

// TestSave writes graphs and reads them again.
func TestSave(t *testing.T) {
	for _, name := range []string{"digits-mlp", "lenet"} {
		path := "../../testdata/models/" + name + ".graph"
		g, w, err := graph.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		in := graphtest.Values(rand.New(rand.NewPCG(1, 2)), g)
		maps.Copy(in, w.Tensors)
		m := again(t, g, w.Tensors)
		maps.Copy(in, m.Weights)
		g.Updates = nil
		sameValues(t, g, m.Graph, in)
	}
}

// unsaid are the operations that ONNX cannot say.
var unsaid = []string{"host", "custom", "fusion", "all_reduce", "random", "dropout", "route", "sample", "unslice", "update_slice",
	"scatter_add",
	"col2im", "pool_grad", "attention_grad", "moe", "moe_grad", "attention", "rope", "conv2d_filter_grad", "squared_norm", "result",
	"pack_weights", "matmul_panels",
	"reduce_scatter", "all_gather", "all_to_all", "part", "permute", "broadcast_from"}

// TestSaveNameless: ONNX leaves out what has no name, so an output has to have one.
func TestSaveNameless(t *testing.T) {
	g, err := graph.Parse("m.graph", []byte("fusec graph 1 {\n x = input : f32[2]\n y = unary[fn=relu] x\n output \"\" = y\n}"), nil)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "m.onnx")
	if err := Save(path, g, nil); err == nil || !strings.Contains(err.Error(), `"y" (m.graph:3) has no name`) {
		t.Error(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("it was written")
	}
}

// TestSaveOperations writes the examples of each operation and reads them again.
func TestSaveOperations(t *testing.T) {
	said := map[string]bool{}
	for _, c := range cases.All(graph.F32) {
		name := c.Op.OpName()
		g, err := c.Graph()
		if err != nil {
			t.Fatal(err)
		}
		in := graphtest.Values(rand.New(rand.NewPCG(1, 2)), g)
		path := filepath.Join(t.TempDir(), "m.onnx")
		err = Save(path, g, in)
		if err != nil {
			if !slices.Contains(unsaid, name) && !strings.Contains(err.Error(), "ONNX has no") {
				t.Errorf("%s: %v", c.Name, err)
			}
			continue
		}
		said[name] = true
		m, err := Load(path, Options{Inputs: in})
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
			continue
		}
		maps.Copy(in, m.Weights)
		t.Run(c.Name, func(t *testing.T) { sameValues(t, g, m.Graph, in) })
	}
	for _, info := range graph.Ops() {
		if !said[info.Name] && !slices.Contains(unsaid, info.Name) {
			t.Errorf("no example of %s is written", info.Name)
		}
	}
}

// TestExternal writes weights beside the model.
func TestExternal(t *testing.T) {
	defer func(n int64) { maxInside = n }(maxInside)
	maxInside = 100
	g, w, err := graph.Load("../../testdata/models/lenet.graph")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "m.onnx")
	if err := Save(path, g, w.Tensors); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(strings.TrimSuffix(path, ".onnx") + ".data"); err != nil || info.Size() < 1000 {
		t.Fatal(info, err)
	}
	m := loaded(t, path)
	for name, v := range w.Tensors {
		if !m.Weights[name].Equal(v) {
			t.Errorf("weight %q is %v, want %v", name, m.Weights[name], v)
		}
	}
}

// TestExportTrained writes the forward pass of a machine that makes gradients, also where ONNX has no form for them.
func TestExportTrained(t *testing.T) {
	g := gorgonia.NewGraph()
	node := func(name string, dims ...int) *gorgonia.Node {
		return gorgonia.NewTensor(g, tensor.Float32, 4, gorgonia.WithShape(dims...), gorgonia.WithName(name),
			gorgonia.WithInit(gorgonia.GlorotN(1)))
	}
	x, w := node("x", 2, 1, 6, 6), node("w", 3, 1, 3, 3)
	y := gorgonia.Must(gorgonia.Conv2d(x, w, tensor.Shape{3, 3}, []int{1, 1}, []int{1, 1}, []int{1, 1}))
	y = gorgonia.Must(gorgonia.MaxPool2D(y, tensor.Shape{2, 2}, []int{0, 0}, []int{2, 2}))
	cost := gorgonia.Must(gorgonia.Sum(gorgonia.Must(gorgonia.Square(y))))
	gorgonia.WithName("cost")(cost)
	d, err := gorgonia.Grad(cost, w)
	if err != nil {
		t.Fatal(err)
	}
	gorgonia.WithName("step")(gorgonia.Must(gorgonia.Sub(w, d[0])))
	vm := fusec.NewMachine(g, gorgonia.BindDualValues(w))
	defer vm.Close()
	m := exported(t, vm, x)
	if o := m.Graph.Outputs; len(o) != 1 || o[0].Name != "cost" {
		t.Errorf("outputs %v", o)
	}
}

// TestSaveBackward refuses a graph of which nothing is of the forward pass.
func TestSaveBackward(t *testing.T) {
	g, err := graph.Parse("m.graph", []byte("fusec graph 2 {\n x = input : f32[2]\n"+
		" y = unary[fn=relu] x : f32[2] backward\n output y = y\n}"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := Save(filepath.Join(t.TempDir(), "m.onnx"), g, nil); err == nil || !strings.Contains(err.Error(), "forward pass") {
		t.Error(err)
	}
}

// TestExport writes a machine's model.
func TestExport(t *testing.T) {
	g := gorgonia.NewGraph()
	x := gorgonia.NewMatrix(g, tensor.Float32, gorgonia.WithShape(2, 3), gorgonia.WithName("x"),
		gorgonia.WithInit(gorgonia.GlorotN(1)))
	w := gorgonia.NewMatrix(g, tensor.Float32, gorgonia.WithShape(3, 4), gorgonia.WithName("w"),
		gorgonia.WithInit(gorgonia.GlorotN(1)))
	y := gorgonia.Must(gorgonia.Tanh(gorgonia.Must(gorgonia.Mul(x, w))))
	vm := fusec.NewMachine(g)
	defer vm.Close()
	if err := vm.RunAll(); err != nil {
		t.Fatal(err)
	}
	m := exported(t, vm, x)
	in := maps.Clone(m.Weights)
	var err error
	for _, n := range m.Graph.Sources() {
		if n.Name == "x" {
			in["x"], err = graph.TensorOf(x.Value().Data().([]float32), 2, 3)
		}
	}
	if err != nil || len(m.Weights) != 1 {
		t.Fatal(err, m.Weights)
	}
	out, _, err := ref.Eval(m.Graph, in)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range out {
		for i, want := range y.Value().Data().([]float32) {
			if math.Abs(v.Float(i)-float64(want)) > 1e-5 {
				t.Errorf("element %d is %v, want %v", i, v.Float(i), want)
			}
		}
	}
}
