package fusec_test

import (
	"math"
	"strings"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/graph/trace"
)

// A form is a way in which programs use gorgonia.Grad: a graph, and what is to come out of it.
type form struct {
	name  string
	build func(f *formNet)
	tape  bool     // Gorgonia's TapeMachine gives the same
	notes []string // that the trace has to have
}

// formNet is a form's graph under construction.
type formNet struct {
	*net
	t     *testing.T
	bound gorgonia.Nodes
	wants []formWant
}

// A formWant is a value and what it should be, by finite differences.
type formWant struct {
	what string
	got  func() gorgonia.Value
	want func(gradient func(cost, of *gorgonia.Node) []float64) []float64
}

// grad is gorgonia.Grad.
func (f *formNet) grad(cost *gorgonia.Node, wrt ...*gorgonia.Node) gorgonia.Nodes {
	f.t.Helper()
	d, err := gorgonia.Grad(cost, wrt...)
	if err != nil {
		f.t.Fatal(err)
	}
	return d
}

// binding is the option for what binds expects.
func (f *formNet) binding() []gorgonia.VMOpt {
	if len(f.bound) == 0 {
		return nil
	}
	return []gorgonia.VMOpt{gorgonia.BindDualValues(f.bound...)}
}

// binds expects the gradient of a cost at the given nodes, where solvers look for it.
func (f *formNet) binds(cost *gorgonia.Node, of ...*gorgonia.Node) {
	f.bound = append(f.bound, of...)
	for _, n := range of {
		got := func() gorgonia.Value {
			d, err := n.Grad()
			if err != nil {
				f.t.Fatal(err)
			}
			return d
		}
		f.wants = append(f.wants, formWant{"the gradient of " + n.Name(), got,
			func(gradient func(c, of *gorgonia.Node) []float64) []float64 { return gradient(cost, n) }})
	}
}

// reads expects something made of gradients in a variable.
func (f *formNet) reads(what string, n *gorgonia.Node,
	want func(gradient func(cost, of *gorgonia.Node) []float64) []float64) {
	v := new(gorgonia.Value)
	gorgonia.Read(n, v)
	f.wants = append(f.wants, formWant{what, func() gorgonia.Value { return *v }, want})
}

// readsGradient expects a gradient in a variable.
func (f *formNet) readsGradient(d, cost, of *gorgonia.Node) {
	f.reads("the gradient read of "+of.Name(), d,
		func(gradient func(c, of *gorgonia.Node) []float64) []float64 { return gradient(cost, of) })
}

// squares is Σ x².
func squares(x *gorgonia.Node) *gorgonia.Node { return must(gorgonia.Sum(must(gorgonia.Square(x)))) }

// hidden is tanh(x·w) for an x of 5 rows of 3.
func (f *formNet) hidden() (x, w, h *gorgonia.Node) {
	x, w = f.in("x", 5, 3), f.in("w", 3, 4)
	return x, w, must(gorgonia.Tanh(must(gorgonia.Mul(x, w))))
}

// head is a cost of its own weight on h of 4 columns.
func (f *formNet) head(name string, h *gorgonia.Node) (w, cost *gorgonia.Node) {
	w = f.in(name, 4, 2)
	cost = squares(must(gorgonia.Mul(h, w)))
	gorgonia.WithName("cost of " + name)(cost)
	return w, cost
}

// step is w − 0.1·d.
func step(f *formNet, w, d *gorgonia.Node) *gorgonia.Node {
	return must(gorgonia.Sub(w, must(gorgonia.Mul(d, f.constant(0.1)))))
}

func stepped(t *testing.T, w *gorgonia.Node, d []float64, rate float64) []float64 {
	r := floats(t, w.Value())
	for i := range r {
		r[i] -= rate * d[i]
	}
	return r
}

func norm(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v * v
	}
	return math.Sqrt(sum)
}

var gradForms = []form{
	{name: "cost read, nodes added afterwards", tape: true, build: func(f *formNet) {
		_, w, h := f.hidden()
		v, cost := f.head("v", h)
		var loss gorgonia.Value
		gorgonia.Read(cost, &loss)
		f.grad(cost, w, v)
		must(gorgonia.Sum(must(gorgonia.Exp(h))))
		f.binds(cost, w, v)
	}},
	{name: "gradients read", tape: true, build: func(f *formNet) {
		x, w, h := f.hidden()
		v, cost := f.head("v", h)
		d := f.grad(cost, x, w, v)
		for i, n := range (gorgonia.Nodes{x, w, v}) {
			f.readsGradient(d[i], cost, n)
		}
	}},
	{name: "update in the graph", tape: true, build: func(f *formNet) {
		_, w, h := f.hidden()
		_, cost := f.head("v", h)
		d := f.grad(cost, w)
		f.reads("the new weights", step(f, w, d[0]), func(gradient func(c, of *gorgonia.Node) []float64) []float64 {
			return stepped(f.t, w, gradient(cost, w), 0.1)
		})
	}},
	{name: "clipping by the norm", tape: true, build: func(f *formNet) {
		_, w, h := f.hidden()
		v, cost := f.head("v", h)
		d := f.grad(cost, w, v)
		length := must(gorgonia.Sqrt(must(gorgonia.Add(squares(d[0]), squares(d[1])))))
		both := func(gradient func(c, of *gorgonia.Node) []float64) float64 {
			return math.Hypot(norm(gradient(cost, w)), norm(gradient(cost, v)))
		}
		f.reads("the norm", length, func(gradient func(c, of *gorgonia.Node) []float64) []float64 {
			return []float64{both(gradient)}
		})
		f.reads("the new weights", step(f, v, must(gorgonia.Div(d[1], length))),
			func(gradient func(c, of *gorgonia.Node) []float64) []float64 {
				return stepped(f.t, v, gradient(cost, v), 0.1/both(gradient))
			})
	}},
	{name: "a weight used twice", tape: true, build: func(f *formNet) {
		x, w := f.in("x", 5, 3), f.in("w", 3, 3)
		cost := squares(must(gorgonia.Mul(must(gorgonia.Tanh(must(gorgonia.Mul(x, w)))), w)))
		f.grad(cost, w)
		f.binds(cost, w)
	}},
	{name: "seed", tape: true, build: func(f *formNet) {
		_, w, h := f.hidden()
		seed := f.in("seed", 5, 4)
		d, err := gorgonia.Backpropagate(gorgonia.Nodes{h}, gorgonia.Nodes{seed}, gorgonia.Nodes{w})
		if err != nil {
			f.t.Fatal(err)
		}
		f.readsGradient(d[0], must(gorgonia.Sum(must(gorgonia.HadamardProd(h, seed)))), w)
	}},
	{name: "computed seed, passed on by a sum", tape: true, build: func(f *formNet) {
		_, w, h := f.hidden()
		z, seed := f.in("z", 5, 4), must(gorgonia.Exp(f.in("s", 5, 4)))
		y := must(gorgonia.Add(h, z))
		d, err := gorgonia.Backpropagate(gorgonia.Nodes{y}, gorgonia.Nodes{seed}, gorgonia.Nodes{w, z})
		if err != nil {
			f.t.Fatal(err)
		}
		cost := must(gorgonia.Sum(must(gorgonia.HadamardProd(y, seed))))
		f.readsGradient(d[0], cost, w)
		f.readsGradient(d[1], cost, z)
	}},
	{name: "bound to a node between", build: func(f *formNet) {
		_, w, h := f.hidden()
		z := f.near("z", 0, 0, 5, 4) // what moves z moves h
		v, cost := f.head("v", must(gorgonia.Add(h, z)))
		f.grad(cost, w, v, z)
		f.binds(cost, w, z)
		f.bound = append(f.bound, h)
		f.wants = append(f.wants, formWant{"the gradient of h", func() gorgonia.Value { return h.Deriv().Value() },
			func(gradient func(c, of *gorgonia.Node) []float64) []float64 { return gradient(cost, z) }})
	}},
	{name: "two outputs together", tape: true, notes: []string{"does not say of which"}, build: func(f *formNet) {
		_, w, h := f.hidden()
		seeds := gorgonia.Nodes{f.in("one seed", 5, 4), f.in("other seed", 5, 4)}
		outs := gorgonia.Nodes{must(gorgonia.Square(h)), must(gorgonia.Exp(h))}
		d, err := gorgonia.Backpropagate(outs, seeds, gorgonia.Nodes{w})
		if err != nil {
			f.t.Fatal(err)
		}
		one, other := must(gorgonia.HadamardProd(outs[0], seeds[0])), must(gorgonia.HadamardProd(outs[1], seeds[1]))
		whole := must(gorgonia.Add(one, other))
		f.readsGradient(d[0], must(gorgonia.Sum(whole)), w)
	}},
	{name: "indices and comparisons on the way", build: func(f *formNet) {
		_, w, h := f.hidden()
		rows := gorgonia.NewVector(f.g, tensor.Int, gorgonia.WithShape(4), gorgonia.WithName("rows"),
			gorgonia.WithValue(tensor.New(tensor.WithBacking([]int{4, 0, 2, 4}))))
		y := must(gorgonia.ByIndices(h, rows, 0))
		keep := must(gorgonia.Gt(y, f.constant(0.1), true))
		cost := squares(must(gorgonia.HadamardProd(y, keep)))
		f.grad(cost, w)
		f.binds(cost, w)
	}},
	{name: "two costs that share a weight", tape: true, notes: []string{
		"both depend on w: ", "returned its own"}, build: func(f *formNet) {
		w := f.in("w", 3, 4)
		one := squares(must(gorgonia.Tanh(must(gorgonia.Mul(f.in("x", 5, 3), w)))))
		two := squares(must(gorgonia.Mul(f.in("y", 2, 3), w)))
		f.grad(one, w)
		d := f.grad(two, w)
		f.binds(one, w)
		f.readsGradient(d[0], two, w)
	}},
	{name: "two heads", tape: true, notes: []string{
		"the costs cost of v and cost of u both depend on tanh"}, build: func(f *formNet) {
		_, w, h := f.hidden()
		v, one := f.head("v", h)
		u, two := f.head("u", h)
		f.grad(one, w, v)
		f.grad(two, u)
		f.binds(one, w, v)
		f.binds(two, u)
	}},
	{name: "two heads, the trunk twice", tape: true, notes: []string{
		"for them the later call returned the same"}, build: func(f *formNet) {
		_, w, h := f.hidden()
		v, one := f.head("v", h)
		u, two := f.head("u", h)
		f.grad(one, w, v)
		d := f.grad(two, w, u)
		f.binds(one, w, v)
		f.binds(two, u)
		f.readsGradient(d[0], one, w) // as the note says
	}},
	{name: "sum of costs after one", tape: true, build: func(f *formNet) {
		_, w, h := f.hidden()
		v, one := f.head("v", h)
		u, two := f.head("u", h)
		f.grad(one, w, v)
		both := must(gorgonia.Add(one, must(gorgonia.Mul(two, f.constant(3)))))
		f.grad(both, u)
		f.binds(one, w, v)
		f.binds(both, u)
	}},
	{name: "gradient penalty", build: func(f *formNet) {
		x, w, h := f.hidden()
		v, cost := f.head("v", h)
		d := f.grad(cost, x)
		total := must(gorgonia.Add(cost, squares(d[0])))
		f.grad(total, w, v)
		f.binds(total, w, v)
		f.readsGradient(d[0], cost, x)
	}},
	{name: "biases of the product's shape", tape: true, build: func(f *formNet) {
		x, w := f.in("x", 5, 3), f.in("w", 3, 4)
		b, c := f.in("b", 5, 4), f.in("c", 5, 4)
		y := must(gorgonia.Add(must(gorgonia.Add(must(gorgonia.Mul(x, w)), b)), c))
		cost := squares(must(gorgonia.Tanh(y)))
		f.grad(cost, w, b, c)
		f.binds(cost, w, b, c)
	}},
	{name: "a bias of the product's shape, and the gradient of the sum read", tape: true, build: func(f *formNet) {
		x, w, b := f.in("x", 5, 3), f.in("w", 3, 4), f.in("b", 5, 4)
		y := must(gorgonia.Add(must(gorgonia.Mul(x, w)), b))
		cost := squares(must(gorgonia.Tanh(y)))
		d := f.grad(cost, w, b)
		f.binds(cost, w, b)
		f.readsGradient(d[1], cost, b)
	}},
	{name: "a bias of the product's shape that the cost reads again", tape: true, build: func(f *formNet) {
		x, w, b := f.in("x", 5, 3), f.in("w", 3, 4), f.in("b", 5, 4)
		y := must(gorgonia.Sub(must(gorgonia.Mul(x, w)), b))
		cost := must(gorgonia.Add(squares(must(gorgonia.Tanh(y))), squares(b)))
		f.grad(cost, w, b)
		f.binds(cost, w, b)
	}},
	{name: "penalty on a gradient that is wanted too", build: func(f *formNet) {
		x, w, h := f.hidden()
		v, cost := f.head("v", h)
		d := f.grad(cost, x, v)
		total := squares(d[0])
		f.grad(total, w)
		f.binds(cost, x, v)
		f.binds(total, w)
	}},
}

// TestGradForms compares every form with finite differences and, where that is right, with Gorgonia's TapeMachine.
func TestGradForms(t *testing.T) {
	for _, c := range gradForms {
		t.Run(c.name, func(t *testing.T) {
			made := func() *formNet {
				f := &formNet{net: newNet(tensor.Float64), t: t}
				c.build(f)
				return f
			}
			f := made()
			m := machine(t, f.g, f.binding()...)
			run(t, m)
			for _, w := range f.wants {
				want := w.want(func(cost, of *gorgonia.Node) []float64 { return newDifferences(t, f.g, cost).gradient(of) })
				sameFloats(t, w.what, floats(t, w.got()), want, 1e-6)
			}
			for _, n := range c.notes {
				if !hasNote(m.Trace(), n) {
					t.Errorf("no note says %q: %v", n, notesOf(m.Trace()))
				}
			}
			if !c.tape {
				return
			}
			other := made()
			vm := gorgonia.NewTapeMachine(other.g, other.binding()...)
			defer vm.Close()
			if err := vm.RunAll(); err != nil {
				t.Fatal(err)
			}
			for i, w := range f.wants {
				sameFloats(t, w.what+" beside Gorgonia's", floats(t, w.got()), floats(t, other.wants[i].got()), 1e-9)
			}
		})
	}
}

// TestBiasOfTheProductsShape is fused as a broadcast one is, whatever gradients are bound.
func TestBiasOfTheProductsShape(t *testing.T) {
	for _, rows := range []int{1, 4} {
		b := newNet(tensor.Float32)
		x, w, bias := b.in("x", 4, 8), b.in("w", 8, 6), b.in("b", rows, 6)
		y := must(gorgonia.Mul(x, w))
		if rows == 1 {
			y = must(gorgonia.BroadcastAdd(y, bias, nil, []byte{0}))
		} else {
			y = must(gorgonia.Add(y, bias))
		}
		if _, err := gorgonia.Grad(must(gorgonia.Mean(must(gorgonia.Square(must(gorgonia.Tanh(y)))))), w, bias); err != nil {
			t.Fatal(err)
		}
		m := machine(t, b.g, gorgonia.BindDualValues(w, bias))
		var kinds []string
		for _, f := range m.Fusions() {
			kinds = append(kinds, f.Kind)
		}
		if got, want := strings.Join(kinds, " "), "linear linear reduce"; got != want {
			t.Errorf("a bias of %d rows: %s, want %s", rows, got, want)
		}
		if hasNote(m.Trace(), "stays") {
			t.Errorf("a bias of %d rows: %v", rows, notesOf(m.Trace()))
		}
	}
}

// TestBatchNormTraining leaves no copies between a normalisation in training and what it feeds, if images stay in NCHW.
func TestBatchNormTraining(t *testing.T) {
	b := newNet(tensor.Float32)
	x, w := b.in("x", 4, 2, 6, 6), b.in("w", 3, 2, 3, 3)
	y := must(gorgonia.Conv2d(x, w, tensor.Shape{3, 3}, []int{1, 1}, []int{1, 1}, []int{1, 1}))
	y, scale, bias, _, err := gorgonia.BatchNorm(y, nil, nil, 0.9, 1e-5)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []*gorgonia.Node{scale, bias} {
		must(n, gorgonia.Let(n, b.value(1, 0.1, n.Shape()...)))
	}
	if _, err := gorgonia.Grad(squares(must(gorgonia.Rectify(y))), w, scale, bias); err != nil {
		t.Fatal(err)
	}
	m := fusec.NewMachine(b.g, append(elsewhere(t), gorgonia.BindDualValues(w, scale, bias), fusec.WithoutPass("layout"))...)
	defer m.Close()
	if err := m.Err(); err != nil {
		t.Fatal(err)
	}
	for _, f := range m.Fusions() {
		if f.Kind == "copy" {
			t.Errorf("a copy is left: %v", f)
		}
	}
	if hasNote(m.Trace(), "stays") {
		t.Errorf("notes: %v", notesOf(m.Trace()))
	}
	run(t, m)
}

func notesOf(tr *trace.Trace) (notes []string) {
	for _, s := range tr.Stages {
		for _, n := range s.Notes {
			notes = append(notes, n.Text)
		}
	}
	return notes
}

func hasNote(tr *trace.Trace, text string) bool {
	for _, n := range notesOf(tr) {
		if strings.Contains(n, text) {
			return true
		}
	}
	return false
}

// Gradients that Gorgonia does not give are refused while the graph is built.
func TestGradUnused(t *testing.T) {
	b := newNet(tensor.Float64)
	x, unused := b.in("x", 3), b.in("unused", 3)
	if _, err := gorgonia.Grad(squares(x), unused); err == nil {
		t.Error("Gorgonia differentiates by what the cost does not depend on")
	}
	m := fusec.NewMachine(b.g)
	defer m.Close()
	run(t, m)
}
