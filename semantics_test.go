package fusec_test

import (
	"bytes"
	"fmt"
	"log"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/graph"
	fgorgonia "fusec/graph/gorgonia"
	"fusec/graph/trace"
)

// A meeting is a graph that meets a divergence.
type meeting struct {
	topic string
	// build makes the value to look at.
	build func(b *net) *gorgonia.Node
	// backward is set where the gradients for all inputs are looked at as well.
	backward bool
	eval     bool
	// fails is set where Gorgonia's machine does not get to the end.
	fails bool
	// other is set where values differ for another reason or not at all, so that they are not compared.
	other string
}

// counted declares an input that holds 1, 2, 3, …, not in order.
func (b *net) counted(name string, dims ...int) *gorgonia.Node {
	n := tensor.Shape(dims).TotalSize()
	v := make([]float64, n)
	for i := range v {
		v[i] = float64((i*7)%n + 1)
	}
	return b.given(name, v, dims...)
}

// given declares an input with the given values.
func (b *net) given(name string, v []float64, dims ...int) *gorgonia.Node {
	t := tensor.New(tensor.Of(b.d), tensor.WithShape(dims...))
	for i, v := range v {
		if b.d == tensor.Float32 {
			t.Float32s()[i] = float32(v)
		} else {
			t.Float64s()[i] = v
		}
	}
	n := b.node(name, dims...)
	gorgonia.WithValue(t)(n)
	return n
}

// grad calls gorgonia.Grad.
func (b *net) grad(cost *gorgonia.Node, by ...*gorgonia.Node) {
	if _, err := gorgonia.Grad(cost, by...); err != nil {
		panic(err)
	}
}

func (b *net) indices(name string, v ...int) *gorgonia.Node {
	return gorgonia.NewVector(b.g, tensor.Int, gorgonia.WithShape(len(v)), gorgonia.WithName(name),
		gorgonia.WithValue(tensor.New(tensor.WithShape(len(v)), tensor.WithBacking(v))))
}

var meetings = []meeting{
	{topic: "overwritten-input", build: func(b *net) *gorgonia.Node {
		return must(gorgonia.Square(must(gorgonia.Reshape(b.counted("x", 2, 3), tensor.Shape{6}))))
	}, other: "the value is the same; TestNothingIsOverwritten looks at the input"},
	{topic: "softmax-maximum", build: func(b *net) *gorgonia.Node {
		return must(gorgonia.SoftMax(b.given("x", []float64{0, 1, 2000, 1}, 2, 2), 1))
	}},
	{topic: "middle-axis", build: func(b *net) *gorgonia.Node { return must(gorgonia.Sum(b.counted("x", 2, 3, 4, 5), 2)) }},
	{topic: "middle-axis", build: func(b *net) *gorgonia.Node { return must(gorgonia.Max(b.counted("x", 2, 3, 4, 5), 2)) }},
	{topic: "middle-axis", build: func(b *net) *gorgonia.Node { return must(gorgonia.Mean(b.counted("x", 2, 3, 4, 5), 2)) }},
	{topic: "average-divisor", build: func(b *net) *gorgonia.Node {
		return must(gorgonia.AveragePool2D(b.counted("x", 2, 2, 4, 5), tensor.Shape{2, 3}, []int{1, 1}, []int{1, 2}))
	}},
	{topic: "pool-padding", backward: true, build: func(b *net) *gorgonia.Node {
		return must(gorgonia.MaxPool2D(b.counted("x", 2, 3, 5, 4), tensor.Shape{3, 2}, []int{1, 0, 1, 0}, []int{1, 1}))
	}},
	{topic: "pool-padding", build: func(b *net) *gorgonia.Node {
		return must(gorgonia.AveragePool2D(b.counted("x", 1, 2, 5, 4), tensor.Shape{2, 2}, []int{1, 0, 0, 1}, []int{2, 1}))
	}},
	{topic: "by-indices", build: func(b *net) *gorgonia.Node {
		return must(gorgonia.ByIndices(b.counted("x", 2, 3, 2), b.indices("ix", 2, 0), 1))
	}},
	{topic: "one-element", fails: true, build: func(b *net) *gorgonia.Node {
		return must(gorgonia.Add(b.counted("x", 1, 1), b.counted("y", 1)))
	}},
	{topic: "batch-of-one", build: func(b *net) *gorgonia.Node {
		y, _, _, _, err := gorgonia.BatchNorm(b.counted("x", 1, 3, 1, 1), b.counted("scale", 1, 3, 1, 1), b.counted("bias", 1, 3, 1, 1),
			0.1, 1e-5)
		return must(y, err)
	}, other: "the value is the same; the running variance is not"},
	{topic: "step-slice", fails: true, build: func(b *net) *gorgonia.Node {
		return must(gorgonia.Slice(b.counted("x", 7), gorgonia.S(0, 7, 2)))
	}},
	{topic: "merged-constants", fails: true, build: func(b *net) *gorgonia.Node {
		f := gorgonia.NewVector(b.g, tensor.Float32, gorgonia.WithShape(2), gorgonia.WithName("f"),
			gorgonia.WithValue(tensor.New(tensor.WithBacking([]float32{1, 2}))))
		must(gorgonia.Add(f, gorgonia.NewConstant(float32(0.1))))
		return must(gorgonia.Add(b.counted("x", 2), gorgonia.NewConstant(0.1)))
	}},
	{topic: "random-numbers", build: func(b *net) *gorgonia.Node {
		return gorgonia.UniformRandomNode(b.g, tensor.Float64, 0, 1, 3, 4)
	}},
	{topic: "by-indices-gradient", backward: true, build: func(b *net) *gorgonia.Node {
		return must(gorgonia.ByIndices(b.counted("x", 3, 4), b.indices("ix", 0, 2), 1))
	}},
	{topic: "average-gradient", backward: true, build: func(b *net) *gorgonia.Node {
		return must(gorgonia.AveragePool2D(b.counted("x", 2, 2, 4, 5), tensor.Shape{2, 3}, []int{0, 0}, []int{1, 2}))
	}},
	{topic: "dropout-gradient", backward: true, eval: true, build: func(b *net) *gorgonia.Node {
		return must(gorgonia.Dropout(must(gorgonia.Square(b.given("x", []float64{1, 0, 2, -3}, 4))), 0.25))
	}},
	{topic: "dropout-gradient", backward: true, build: func(b *net) *gorgonia.Node {
		return must(gorgonia.Dropout(must(gorgonia.Square(b.counted("x", 4))), 0))
	}},
	{topic: "batch-norm-gradient", backward: true, eval: true, build: func(b *net) *gorgonia.Node {
		y, _, _, op, err := gorgonia.BatchNorm(b.counted("x", 2, 3, 2, 2), b.counted("scale", 1, 3, 1, 1), b.counted("bias", 1, 3, 1, 1),
			0.1, 1e-3)
		if err == nil {
			err = op.SetStats(tensor.New(tensor.WithShape(3), tensor.WithBacking([]float64{1, 2, 3})),
				tensor.New(tensor.WithShape(3), tensor.WithBacking([]float64{4, 5, 6})))
		}
		return must(y, err)
	}},
	{topic: "log2-gradient", backward: true, build: func(b *net) *gorgonia.Node { return must(gorgonia.Log2(b.counted("x", 4))) }},
	{topic: "inverse-sqrt-gradient", backward: true, build: func(b *net) *gorgonia.Node {
		return must(gorgonia.InverseSqrt(b.counted("x", 4)))
	}},
	{topic: "outer-product-gradient", backward: true, build: func(b *net) *gorgonia.Node {
		return must(gorgonia.OuterProd(b.counted("x", 3), b.counted("y", 3)))
	}},
	{topic: "outer-product-gradient", backward: true, fails: true, build: func(b *net) *gorgonia.Node {
		return must(gorgonia.OuterProd(b.counted("x", 3), b.counted("y", 2)))
	}},
	{topic: "gradient-penalty", backward: true, build: func(b *net) *gorgonia.Node {
		x, w := b.counted("x", 3), b.given("w", []float64{0.5, -0.25, 0.125}, 3)
		d, err := gorgonia.Grad(must(gorgonia.Sum(must(gorgonia.Tanh(must(gorgonia.HadamardProd(x, w)))))), x)
		if err != nil {
			panic(err)
		}
		return must(gorgonia.Square(d[0]))
	}},
	{topic: "second-grad", backward: true, build: func(b *net) *gorgonia.Node {
		x := b.counted("x", 4)
		h := must(gorgonia.Tanh(x))
		b.grad(must(gorgonia.Sum(must(gorgonia.Square(h)))), x)
		return must(gorgonia.Cube(h))
	}},
	{topic: "second-grad", backward: true, build: func(b *net) *gorgonia.Node { // the second cost contains the first
		x := b.counted("x", 4)
		h := must(gorgonia.Tanh(x))
		first := must(gorgonia.Sum(must(gorgonia.Square(h))))
		b.grad(first, x)
		return must(gorgonia.Mul(h, first))
	}},
	{topic: "tied-maximum", backward: true, build: func(b *net) *gorgonia.Node {
		return must(gorgonia.Max(b.given("x", []float64{1, 3, 3, 2, 2, 2}, 2, 3), 1))
	}},
	{topic: "tied-pair", backward: true, build: func(b *net) *gorgonia.Node {
		return must(gorgonia.MaxBetween(b.given("x", []float64{1, 3, 3}, 3), b.given("y", []float64{2, 3, 1}, 3)))
	}},
	{topic: "tied-pair", backward: true, build: func(b *net) *gorgonia.Node {
		return must(gorgonia.MinBetween(b.given("x", []float64{1, 3, 3}, 3), b.given("y", []float64{2, 3, 1}, 3)))
	}},
}

// outcome is what a machine makes of a meeting: the value, and the gradients of the inputs.
type outcome struct {
	values [][]float64
	notes  []trace.Note
	log    string
	err    error
}

// meet runs a meeting by a machine.
func (m meeting) meet(t *testing.T, machine func(*gorgonia.ExprGraph, ...gorgonia.VMOpt) gorgonia.VM) (o outcome) {
	b := newNet(tensor.Float64)
	y := m.build(b)
	var value gorgonia.Value
	gorgonia.Read(y, &value)
	var inputs gorgonia.Nodes
	for _, n := range b.g.AllNodes() {
		if n.Op() == nil && n.Dtype() == tensor.Float64 && !strings.HasPrefix(n.Name(), "scale") && !strings.HasPrefix(n.Name(), "bias") {
			inputs = append(inputs, n)
		}
	}
	slices.SortFunc(inputs, func(n, k *gorgonia.Node) int { return strings.Compare(n.Name(), k.Name()) })
	var out bytes.Buffer
	opts := []gorgonia.VMOpt{gorgonia.WithLogger(log.New(&out, "", 0))}
	if m.backward {
		dy := b.counted("dy", y.Shape()...)
		if _, err := gorgonia.Grad(must(gorgonia.Sum(must(gorgonia.HadamardProd(y, dy)))), inputs...); err != nil {
			t.Fatal(err)
		}
		opts = append(opts, gorgonia.BindDualValues(inputs...))
	}
	if m.eval {
		opts = append(opts, gorgonia.EvalMode())
	}
	vm := machine(b.g, opts...)
	defer vm.Close()
	o.err = vm.RunAll()
	if f, ok := vm.(*fusec.Machine); ok && f.Trace() != nil {
		o.notes, o.log = f.Trace().Stages[0].Notes, out.String()
	}
	if o.err != nil {
		return o
	}
	o.values = append(o.values, floats(t, value))
	if m.backward {
		for _, n := range inputs {
			g, err := n.Grad()
			if err != nil {
				t.Fatal(err)
			}
			o.values = append(o.values, floats(t, g))
		}
	}
	return o
}

// alike reports whether both have the same values.
func (o outcome) alike(p outcome) bool {
	return slices.EqualFunc(o.values, p.values, func(x, y []float64) bool {
		return slices.EqualFunc(x, y, func(x, y float64) bool {
			return x == y || math.IsNaN(x) && math.IsNaN(y) || math.Abs(x-y) <= 1e-9*max(1, math.Abs(y))
		})
	})
}

// kinds lists the kinds of the notes on a topic.
func (o outcome) kinds(topic string) (kinds []graph.NoteKind) {
	for _, n := range o.notes {
		if n.Topic == topic {
			kinds = append(kinds, n.Kind)
		}
	}
	return kinds
}

// TestDivergences meets every divergence that a graph shows. By itself fusec does what the table says, notes and logs it;
// with WithGorgoniaSemantics it does what Gorgonia's machine does, where that can be imitated.
func TestDivergences(t *testing.T) {
	tape := func(g *gorgonia.ExprGraph, opts ...gorgonia.VMOpt) gorgonia.VM {
		return gorgonia.NewTapeMachine(g, opts...)
	}
	own := func(g *gorgonia.ExprGraph, opts ...gorgonia.VMOpt) gorgonia.VM { return fusec.NewMachine(g, opts...) }
	imitating := func(g *gorgonia.ExprGraph, opts ...gorgonia.VMOpt) gorgonia.VM {
		return fusec.NewMachine(g, append(opts, fusec.WithGorgoniaSemantics())...)
	}
	page, err := os.ReadFile("docs/divergences.md")
	if err != nil {
		t.Fatal(err)
	}
	met := map[string]bool{}
	for _, d := range fgorgonia.Divergences() {
		if !strings.Contains(string(page), "`"+d.Topic+"`") {
			t.Errorf("docs/divergences.md has no row %s", d.Topic)
		}
		for _, m := range meetings {
			if m.topic != d.Topic {
				continue
			}
			met[d.Topic] = true
			t.Run(d.Topic, func(t *testing.T) {
				got := m.meet(t, own)
				if got.err != nil {
					t.Fatal(got.err)
				}
				alone := graph.Divergence
				if d.Always {
					alone = graph.Imitation
				}
				if k := got.kinds(d.Topic); !slices.Contains(k, alone) {
					t.Errorf("notes: %v", got.notes)
				}
				if !strings.Contains(got.log, fmt.Sprint(alone, ": ", d.Topic)) {
					t.Errorf("logged: %s", got.log)
				}
				var theirs outcome
				if !m.fails {
					if theirs = m.meet(t, tape); theirs.err != nil {
						t.Fatal(theirs.err)
					}
					if m.other == "" && got.alike(theirs) != d.Always {
						t.Errorf("%v, Gorgonia: %v", got.values, theirs.values)
					}
				}
				same := m.meet(t, imitating)
				kind := graph.Divergence
				if d.Imitated {
					kind = graph.Imitation
				}
				if same.err != nil {
					if !m.fails {
						t.Error(same.err)
					}
					return
				}
				if k := same.kinds(d.Topic); !slices.Contains(k, kind) {
					t.Errorf("notes of the imitation: %v", same.notes)
				}
				if d.Imitated && !same.alike(theirs) {
					t.Errorf("imitated: %v\nGorgonia: %v", same.values, theirs.values)
				}
			})
		}
		if !met[d.Topic] {
			t.Errorf("no graph meets %s", d.Topic)
		}
	}
}

// TestOuterProductGradient checks d/dx and d/dy of Σ dz ⊙ (x ⊗ y), which are dz·y and dzᵀ·x, for all shapes.
func TestOuterProductGradient(t *testing.T) {
	for _, s := range [][2]int{{3, 3}, {3, 2}, {2, 5}, {1, 3}, {3, 1}, {1, 1}} {
		b := newNet(tensor.Float64)
		x, y, dz := b.in("x", s[0]), b.in("y", s[1]), b.in("dz", s[0], s[1])
		z := must(gorgonia.OuterProd(x, y))
		if _, err := gorgonia.Grad(must(gorgonia.Sum(must(gorgonia.HadamardProd(z, dz)))), x, y); err != nil {
			t.Fatal(err)
		}
		m := fusec.NewMachine(b.g, gorgonia.BindDualValues(x, y))
		if err := m.RunAll(); err != nil {
			t.Fatalf("%v: %v", s, err)
		}
		xs, ys, d := floats(t, x.Value()), floats(t, y.Value()), floats(t, dz.Value())
		dx, dy := make([]float64, s[0]), make([]float64, s[1])
		for i := range dx {
			for j := range dy {
				dx[i] += d[i*s[1]+j] * ys[j]
				dy[j] += d[i*s[1]+j] * xs[i]
			}
		}
		for n, want := range map[*gorgonia.Node][]float64{x: dx, y: dy} {
			g, err := n.Grad()
			if err != nil {
				t.Fatal(err)
			}
			sameFloats(t, "gradient for "+n.Name(), floats(t, g), want, 1e-12)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestRowsWithoutTopic holds the rows of docs/divergences.md that no graph shows, or where both are the same.
func TestRowsWithoutTopic(t *testing.T) {
	compute := func(vm gorgonia.VM, value *gorgonia.Value, of ...*gorgonia.Node) (all [][]float64) {
		t.Helper()
		defer vm.Close()
		if err := vm.RunAll(); err != nil {
			t.Fatal(err)
		}
		all = append(all, floats(t, *value))
		for _, n := range of {
			g, err := n.Grad()
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, floats(t, g))
		}
		return all
	}
	t.Run("AveragePool1D is a maximum pool", func(t *testing.T) {
		build := func() (*net, *gorgonia.Node, *gorgonia.Value) {
			b := newNet(tensor.Float64)
			x := b.counted("x", 1, 2, 1, 8)
			y := must(gorgonia.AveragePool1D(x, 2, 0, 2))
			var value gorgonia.Value
			gorgonia.Read(y, &value)
			if _, err := gorgonia.Grad(must(gorgonia.Sum(must(gorgonia.Square(y)))), x); err != nil {
				t.Fatal(err)
			}
			return b, x, &value
		}
		b, x, v := build()
		got := compute(fusec.NewMachine(b.g, gorgonia.BindDualValues(x)), v, x)
		b, x, v = build()
		want := compute(gorgonia.NewTapeMachine(b.g, gorgonia.BindDualValues(x)), v, x)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%v, Gorgonia computes %v", got, want)
		}
		for i, y := range got[0] { // the maximum of each pair
			if in := floats(t, x.Value()); y != max(in[2*i], in[2*i+1]) {
				t.Errorf("element %d is %v", i, y)
			}
		}
	})
	t.Run("GlobalAveragePool2D has no gradient", func(t *testing.T) {
		b := newNet(tensor.Float64)
		x := b.counted("x", 1, 2, 3, 3)
		cost := must(gorgonia.Sum(must(gorgonia.GlobalAveragePool2D(x))))
		defer func() { _ = recover() }() // Grad panics
		if _, err := gorgonia.Grad(cost, x); err == nil {
			t.Error("Grad differentiates it: fusec has to as well")
		}
	})
	t.Run("a view as operand of a product", func(t *testing.T) {
		build := func() (*net, *gorgonia.Value) {
			b := newNet(tensor.Float64)
			x := b.node("x", 2, 3)
			view, err := tensor.New(tensor.WithShape(3, 5), tensor.WithBacking(tensor.Range(tensor.Float64, 0, 15))).Slice(gorgonia.S(1, 3),
				gorgonia.S(1, 4))
			if err != nil {
				t.Fatal(err)
			}
			if err := gorgonia.Let(x, view); err != nil {
				t.Fatal(err)
			}
			var value gorgonia.Value
			gorgonia.Read(must(gorgonia.Mul(x, gorgonia.NewConstant(tensor.I(tensor.Float64, 3, 3, 0)))), &value)
			return b, &value
		}
		b, v := build()
		sameFloats(t, "fusec", compute(fusec.NewMachine(b.g), v)[0], []float64{6, 7, 8, 11, 12, 13}, 0)
		b, v = build()
		if got := compute(gorgonia.NewTapeMachine(b.g), v)[0]; slices.Equal(got, []float64{6, 7, 8, 11, 12, 13}) {
			t.Error("Gorgonia computes the same: docs/divergences.md has a row too many")
		}
	})
	t.Run("CTCLoss with mean reduction runs Gorgonia's operation", func(t *testing.T) {
		build := func() (*net, *gorgonia.Node, *gorgonia.Value) {
			b := newNet(tensor.Float64)
			x := b.in("x", 5, 1, 3)
			loss := must(gorgonia.CTCLoss(must(gorgonia.LogSoftMax(x, 2)), b.indices("targets", 1, 2), b.indices("inLen", 5),
				b.indices("targetLen", 2), gorgonia.ReductionMean))
			var value gorgonia.Value
			gorgonia.Read(loss, &value)
			if _, err := gorgonia.Grad(loss, x); err != nil {
				t.Fatal(err)
			}
			return b, x, &value
		}
		b, x, v := build()
		got := compute(fusec.NewMachine(b.g, gorgonia.BindDualValues(x)), v, x)
		b, x, v = build()
		want := compute(gorgonia.NewTapeMachine(b.g, gorgonia.BindDualValues(x)), v, x)
		for i := range want {
			sameFloats(t, "the loss and its gradient", got[i], want[i], 1e-12)
		}
	})
}

// TestBehindOuterProduct checks gradients that pass through an outer product of vectors of different lengths into what
// computed them.
func TestBehindOuterProduct(t *testing.T) {
	b := newNet(tensor.Float64)
	x, v, w, u, dz := b.in("x", 2), b.in("v", 2), b.in("w", 2, 5), b.in("u", 2, 4), b.in("dz", 2, 5)
	left, right := must(gorgonia.Sum(u, 1)), must(gorgonia.Mul(v, w))
	z := must(gorgonia.OuterProd(must(gorgonia.Add(x, left)), right))
	if _, err := gorgonia.Grad(must(gorgonia.Sum(must(gorgonia.HadamardProd(z, dz)))), u, w); err != nil {
		t.Fatal(err)
	}
	run(t, machine(t, b.g, gorgonia.BindDualValues(u, w)))
	ls, rs, d := floats(t, left.Value()), floats(t, right.Value()), floats(t, dz.Value())
	vs, xs := floats(t, v.Value()), floats(t, x.Value())
	du, dw := make([]float64, 8), make([]float64, 10)
	for i := range 2 {
		for j := range 5 {
			for k := range 4 {
				du[i*4+k] += d[i*5+j] * rs[j]
			}
			for k := range 2 {
				dw[k*5+j] += d[i*5+j] * (xs[i] + ls[i]) * vs[k]
			}
		}
	}
	for n, want := range map[*gorgonia.Node][]float64{u: du, w: dw} {
		g, err := n.Grad()
		if err != nil {
			t.Fatal(err)
		}
		sameFloats(t, "gradient for "+n.Name(), floats(t, g), want, 1e-12)
	}
}
