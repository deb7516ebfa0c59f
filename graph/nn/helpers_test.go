package nn_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"fusec"
	"fusec/graph"
	fgorgonia "fusec/graph/gorgonia"
	"fusec/kernels/ref"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// net is a Gorgonia graph under construction, with seeded values, so that building it twice gives the same.
type net struct {
	g *gorgonia.ExprGraph
	r *rand.Rand
	d tensor.Dtype
}

func newNet(d tensor.Dtype) *net { return &net{gorgonia.NewGraph(), rand.New(rand.NewPCG(3, 5)), d} }

// floats declares an input of the net's type with the given values.
func (b *net) floats(name string, v []float64, dims ...int) *gorgonia.Node {
	t := graph.TypeOf(graph.F64, dims...)
	if b.d == tensor.Float32 {
		t.DType = graph.F32
	}
	x := graph.NewTensor(t)
	for i := range v {
		x.SetFloat(i, v[i])
	}
	return gorgonia.NewTensor(b.g, b.d, len(dims), gorgonia.WithShape(dims...), gorgonia.WithName(name),
		gorgonia.WithValue(fgorgonia.FromTensor(x)))
}

// in declares an input with values around 0.
func (b *net) in(name string, dims ...int) *gorgonia.Node {
	v := make([]float64, tensor.Shape(dims).TotalSize())
	for i := range v {
		v[i] = b.r.NormFloat64()
	}
	return b.floats(name, v, dims...)
}

// ints declares an input of ints.
func (b *net) ints(name string, v ...int) *gorgonia.Node {
	return gorgonia.NewVector(b.g, tensor.Int, gorgonia.WithShape(len(v)), gorgonia.WithName(name),
		gorgonia.WithValue(tensor.New(tensor.WithBacking(v), tensor.WithShape(len(v)))))
}

// int declares a scalar int.
func (b *net) int(name string, v int) *gorgonia.Node {
	return gorgonia.NewScalar(b.g, tensor.Int, gorgonia.WithName(name), gorgonia.WithValue(v))
}

func must(n *gorgonia.Node, err error) *gorgonia.Node { return gorgonia.Must(n, err) }

// cost is a scalar that weighs each element of y differently.
func (b *net) cost(y *gorgonia.Node) *gorgonia.Node {
	if y.IsScalar() {
		return y
	}
	return must(gorgonia.Sum(must(gorgonia.HadamardProd(y, b.in("weight of y", y.Shape()...)))))
}

// values copies a value in row-major order.
func values(t testing.TB, v gorgonia.Value) []float64 {
	t.Helper()
	x, err := fgorgonia.ToTensor(v)
	if err != nil {
		t.Fatal(err)
	}
	return x.Floats()
}

// agree fails unless both are equal within tol of the larger of 1 and their size.
func agree(t testing.TB, what string, got, want []float64, tol float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d elements, want %d", what, len(got), len(want))
	}
	for i, w := range want {
		if g := got[i]; !(g == w || math.IsNaN(g) && math.IsNaN(w) || math.Abs(g-w) <= tol*max(1, math.Abs(w))) {
			t.Fatalf("%s: element %d is %v, want %v", what, i, g, w)
		}
	}
}

// machines are Gorgonia's and fusec's.
var machines = map[string]func(*gorgonia.ExprGraph, ...gorgonia.VMOpt) gorgonia.VM{
	"TapeMachine": func(g *gorgonia.ExprGraph, o ...gorgonia.VMOpt) gorgonia.VM {
		return gorgonia.NewTapeMachine(g, o...)
	},
	"fusec": func(g *gorgonia.ExprGraph, o ...gorgonia.VMOpt) gorgonia.VM { return fusec.NewMachine(g, o...) },
}

// run runs a machine once. All of the graph has to compile on fusec's.
func run(t testing.TB, vm gorgonia.VM) {
	t.Helper()
	if err := vm.RunAll(); err != nil {
		t.Fatal(err)
	}
	if m, ok := vm.(*fusec.Machine); ok && slices.Contains(kinds(m), "host") {
		t.Errorf("something runs on the host: %v", kinds(m))
	}
}

// kinds are those of a machine's launches.
func kinds(m *fusec.Machine) []string {
	var k []string
	for _, f := range m.Fusions() {
		k = append(k, f.Kind)
	}
	return k
}

// differences are the derivatives of a scalar node for an input by central differences, of the imported graph as the
// reference computes it.
func differences(t testing.TB, g *gorgonia.ExprGraph, cost, of *gorgonia.Node) []float64 {
	t.Helper()
	im, err := fgorgonia.Import(g, fgorgonia.Options{})
	if err != nil {
		t.Fatal(err)
	}
	// What does not lead to the cost, Gorgonia's backward pass above all, need not be evaluated each time.
	im.Graph.Outputs, im.Graph.Updates = []graph.Output{{Name: "cost", Node: im.Node(cost)}}, nil
	if err := im.Graph.Tidy(); err != nil {
		t.Fatal(err)
	}
	in, err := im.Values()
	if err != nil {
		t.Fatal(err)
	}
	at := func() float64 {
		v, err := ref.Nodes(im.Graph, in, false)
		if err != nil {
			t.Fatal(err)
		}
		return v[im.Node(cost)][0].F[0]
	}
	x := in[im.Node(of).Name]
	d := make([]float64, x.Type.Shape.Elems())
	for i := range d {
		const h = 1e-5
		was := x.Float(i)
		x.SetFloat(i, was+h)
		up := at()
		x.SetFloat(i, was-h)
		d[i] = (up - at()) / (2 * h)
		x.SetFloat(i, was)
	}
	return d
}
