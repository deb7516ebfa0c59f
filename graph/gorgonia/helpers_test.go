package gorgonia

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/kernels/ref"

	gorg "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// builder makes float64 graphs with seeded values.
type builder struct {
	*gorg.ExprGraph
	rng *rand.Rand
}

func newBuilder() *builder {
	return &builder{gorg.NewGraph(), rand.New(rand.NewPCG(1, 2))}
}

// in makes an input with values around 0.
func (b *builder) in(name string, dims ...int) *gorg.Node {
	return b.from(name, func() float64 { return b.rng.NormFloat64() }, dims...)
}

// pos makes an input with values in (0.5, 2).
func (b *builder) pos(name string, dims ...int) *gorg.Node {
	return b.from(name, func() float64 { return 0.5 + 1.5*b.rng.Float64() }, dims...)
}

func (b *builder) from(name string, f func() float64, dims ...int) *gorg.Node {
	if len(dims) == 0 {
		return gorg.NewScalar(b.ExprGraph, tensor.Float64, gorg.WithName(name), gorg.WithValue(f()))
	}
	data := make([]float64, elems(dims))
	for i := range data {
		data[i] = f()
	}
	v := tensor.New(tensor.WithShape(dims...), tensor.WithBacking(data))
	return gorg.NewTensor(b.ExprGraph, tensor.Float64, len(dims), gorg.WithShape(dims...), gorg.WithName(name), gorg.WithValue(v))
}

func (b *builder) ints(name string, v ...int) *gorg.Node {
	return gorg.NewVector(b.ExprGraph, tensor.Int, gorg.WithShape(len(v)), gorg.WithName(name),
		gorg.WithValue(tensor.New(tensor.WithBacking(v), tensor.WithShape(len(v)))))
}

func must(n *gorg.Node, err error) *gorg.Node { return gorg.Must(n, err) }

// inputs are the values of an imported graph's sources by name.
func (im *Imported) inputs(t testing.TB) map[string]*graph.Tensor {
	t.Helper()
	in, err := im.Values()
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func mustImport(t testing.TB, g *gorg.ExprGraph, o Options) *Imported {
	t.Helper()
	im, err := Import(g, o)
	if err != nil {
		t.Fatal(err)
	}
	return im
}

// eval evaluates every node of an imported graph with the reference.
func (im *Imported) eval(t testing.TB, in map[string]*graph.Tensor) map[*graph.Node][]ref.Value {
	t.Helper()
	v, err := ref.Nodes(im.Graph, in, false)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// do computes the nodes by Gorgonia's own operations on copies of their operands, until one fails.
func do(t testing.TB, im *Imported, g *gorg.ExprGraph) map[*gorg.Node]gorg.Value {
	t.Helper()
	imp := &importer{Imported: im}
	imp.layout, _ = layout()
	order, err := imp.order(g)
	if err != nil {
		t.Fatal(err)
	}
	vals := map[*gorg.Node]gorg.Value{}
	for _, n := range order {
		if n.Op() == nil {
			vals[n] = n.Value()
			continue
		}
		switch typeName(n.Op()) {
		case "readOp", "letOp":
			continue
		}
		var args []gorg.Value
		for _, c := range imp.children(n) {
			k, err := gorg.CloneValue(vals[c])
			if err != nil {
				t.Fatal(err)
			}
			args = append(args, k)
		}
		v, err := tryDo(n.Op(), args)
		if err != nil {
			t.Logf("Gorgonia's %v: %v", n.Op(), err)
			return vals
		}
		if v, err = gorg.CloneValue(v); err != nil {
			t.Fatal(err)
		}
		vals[n] = v
	}
	return vals
}

func tryDo(op gorg.Op, args []gorg.Value) (v gorg.Value, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	return op.Do(args...)
}

func near(a, b, tol float64) bool {
	return a == b || math.IsNaN(a) && math.IsNaN(b) || math.Abs(a-b) <= tol*max(1, math.Abs(a), math.Abs(b))
}

// sameAsDo compares every node's value with what Gorgonia's operation makes of it, except those of the named types and
// what follows from them.
func sameAsDo(t *testing.T, im *Imported, g *gorg.ExprGraph, except ...string) {
	t.Helper()
	got := im.eval(t, im.inputs(t))
	want := do(t, im, g)
	skip := map[*gorg.Node]bool{}
	imp := &importer{Imported: im}
	imp.layout, _ = layout()
	order, _ := imp.order(g)
	for _, n := range order {
		for _, c := range imp.children(n) {
			skip[n] = skip[n] || skip[c]
		}
		if n.Op() != nil {
			for _, e := range except {
				skip[n] = skip[n] || typeName(n.Op()) == e || describe(n.Op()) == e
			}
		}
		v := im.Node(n)
		if v == nil || skip[n] || want[n] == nil {
			continue
		}
		w, err := ToTensor(want[n])
		if err != nil {
			t.Errorf("%v: %v", describeNode(n), err)
			continue
		}
		x := got[v][0].Tensor()
		if x.Type.Shape != w.Type.Shape {
			t.Errorf("%v: shape %v, Gorgonia's value has %v", describeNode(n), x.Type.Shape, w.Type.Shape)
			continue
		}
		for i := range w.Type.Shape.Elems() {
			if !near(x.Float(i), w.Float(i), 1e-9) {
				t.Errorf("%v: element %d is %v, Gorgonia computes %v", describeNode(n), i, x.Float(i), w.Float(i))
				break
			}
		}
	}
}

func describeNode(n *gorg.Node) string {
	if n.Op() == nil {
		return nameOf(n)
	}
	return fmt.Sprintf("%T %s", n.Op(), describe(n.Op()))
}

// rightGrads compares the derivatives that the user asked for with finite differences of the cost, which the reference
// computes, and with those that the graph's own rules give.
func rightGrads(t *testing.T, im *Imported) {
	t.Helper()
	in := im.inputs(t)
	got := im.eval(t, in)
	wanted := 0
	for _, g := range im.Grads {
		if !g.Wanted {
			continue
		}
		wanted++
		if g.Cost == nil {
			t.Errorf("the cost of the derivative for %v is not known", g.Of)
			continue
		}
		x := in[g.Of.Name]
		d := got[g.Value][0].Tensor()
		if d.Type.Shape.Elems() != x.Type.Shape.Elems() {
			t.Errorf("derivative for %v has type %v", g.Of, d.Type)
			continue
		}
		for i := range x.Type.Shape.Elems() {
			const h = 1e-5
			at := x.Float(i)
			x.SetFloat(i, at+h)
			up := im.eval(t, in)[g.Cost][0].F[0]
			x.SetFloat(i, at-h)
			down := im.eval(t, in)[g.Cost][0].F[0]
			x.SetFloat(i, at)
			if fd := (up - down) / (2 * h); !near(d.Float(i), fd, 2e-5) {
				t.Errorf("d(cost)/d(%v)[%d] is %v, by differences %v", g.Of, i, d.Float(i), fd)
				break
			}
		}
	}
	if wanted == 0 {
		t.Error("no derivative was found")
	}
}

func hasNote(im *Imported, text string) bool {
	for _, n := range im.Graph.Notes {
		if strings.Contains(n.Text, text) {
			return true
		}
	}
	return false
}

func hostCount(im *Imported) int {
	c := 0
	for _, n := range im.Graph.Nodes {
		if _, ok := n.Op.(graph.Host); ok {
			c++
		}
	}
	return c
}
