package fusec_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/graph"
	fgorgonia "fusec/graph/gorgonia"
	"fusec/kernels/ref"
)

// loaded is a file's graph and weights, and the program that it compiles to.
func loaded(t *testing.T, path string) (*graph.Graph, *graph.Weights, *fusec.Program) {
	t.Helper()
	g, weights, err := graph.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	p, err := fusec.Compile(g)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return g, weights, p
}

// withGradients is a copy of a graph with the gradients of a scalar as further outputs, for the reference, and the options that ask
// for these.
func withGradients(t testing.TB, g *graph.Graph, cost *graph.Node, wrt []*graph.Node) (*graph.Graph, []fusec.CompileOption) {
	t.Helper()
	whole, nodes := g.Clone()
	var at []*graph.Node
	for _, n := range wrt {
		at = append(at, nodes[n])
	}
	grads, err := graph.Gradients(whole, nodes[cost], at)
	if err != nil {
		t.Fatal(err)
	}
	b := graph.Extend(whole)
	var opts []fusec.CompileOption
	for i, n := range wrt {
		name := fmt.Sprint("d", n.Name)
		b.Output(name, grads[i])
		opts = append(opts, fusec.WithGradient(name, cost, n))
	}
	return built(t, b), opts
}

// net is a Gorgonia graph under construction, with seeded values, so that building it twice gives the same.
type net struct {
	g *gorgonia.ExprGraph
	r *rand.Rand
	d tensor.Dtype
}

func newNet(d tensor.Dtype) *net {
	return &net{gorgonia.NewGraph(), rand.New(rand.NewPCG(7, 11)), d}
}

// value draws a tensor of numbers around mean.
func (b *net) value(mean, deviation float64, dims ...int) *tensor.Dense {
	n := tensor.Shape(dims).TotalSize()
	if b.d == tensor.Float32 {
		data := make([]float32, n)
		for i := range data {
			data[i] = float32(mean + deviation*b.r.NormFloat64())
		}
		return tensor.New(tensor.WithShape(dims...), tensor.WithBacking(data))
	}
	data := make([]float64, n)
	for i := range data {
		data[i] = mean + deviation*b.r.NormFloat64()
	}
	return tensor.New(tensor.WithShape(dims...), tensor.WithBacking(data))
}

// node declares an input without a value.
func (b *net) node(name string, dims ...int) *gorgonia.Node {
	return gorgonia.NewTensor(b.g, b.d, len(dims), gorgonia.WithShape(dims...), gorgonia.WithName(name))
}

// in declares an input with values around 0.
func (b *net) in(name string, dims ...int) *gorgonia.Node {
	n := b.node(name, dims...)
	gorgonia.WithValue(b.value(0, 1, dims...))(n)
	return n
}

// near declares an input with values around mean.
func (b *net) near(name string, mean, deviation float64, dims ...int) *gorgonia.Node {
	n := b.node(name, dims...)
	gorgonia.WithValue(b.value(mean, deviation, dims...))(n)
	return n
}

// constant is a scalar constant of the net's element type.
func (b *net) constant(v float64) *gorgonia.Node {
	if b.d == tensor.Float32 {
		return gorgonia.NewConstant(float32(v))
	}
	return gorgonia.NewConstant(v)
}

// linear is x·w + bias for x of in columns.
func (b *net) linear(name string, x *gorgonia.Node, in, out int) (y, w, bias *gorgonia.Node) {
	w = b.near(name+".weight", 0, 1/math.Sqrt(float64(in)), in, out)
	bias = b.near(name+".bias", 0, 0.1, 1, out)
	return must(gorgonia.BroadcastAdd(must(gorgonia.Mul(x, w)), bias, nil, []byte{0})), w, bias
}

func must(n *gorgonia.Node, err error) *gorgonia.Node { return gorgonia.Must(n, err) }

// floats copies a value in row-major order.
func floats(t testing.TB, v gorgonia.Value) []float64 {
	t.Helper()
	x, err := fgorgonia.ToTensor(v)
	if err != nil {
		t.Fatal(err)
	}
	return x.Floats()
}

// sameFloats fails unless both are equal within tol of the larger of 1 and their size.
func sameFloats(t testing.TB, what string, got, want []float64, tol float64) {
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

// reference computes the imported graph of g in float64 and returns the values of its nodes.
func reference(t testing.TB, g *gorgonia.ExprGraph) func(*gorgonia.Node) ref.Value {
	t.Helper()
	im, err := fgorgonia.Import(g, fgorgonia.Options{})
	if err != nil {
		t.Fatal(err)
	}
	in, err := im.Values()
	if err != nil {
		t.Fatal(err)
	}
	values, err := ref.Nodes(im.Graph, in, true)
	if err != nil {
		t.Fatal(err)
	}
	return func(n *gorgonia.Node) ref.Value { return values[im.Node(n)][0] }
}

// agrees compares a node's value with the reference within its error bound.
func agrees(t testing.TB, n *gorgonia.Node, want ref.Value) {
	t.Helper()
	got, err := fgorgonia.ToTensor(n.Value())
	if err != nil {
		t.Fatal(err)
	}
	if err := ref.Check(got, want); err != nil {
		t.Errorf("%v: %v", n, err)
	}
}

// long skips a test of one goroutine that takes long with the race detector, which runs the short tests.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("under -short, which is for the race detector: this test runs in one goroutine")
	}
}
