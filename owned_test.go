package fusec_test

import (
	"slices"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	fgorgonia "fusec/graph/gorgonia"
	"fusec/kernels/ref"
)

// Values that the user owns are never written, and what is handed out is never the user's memory. Gorgonia's own
// machines overwrite inputs and weights in the first three cases.
func TestUserValuesAreNotWritten(t *testing.T) {
	reshape := func(n *gorgonia.Node, dims ...int) *gorgonia.Node { return must(gorgonia.Reshape(n, dims)) }
	for _, c := range []struct {
		name  string
		eval  bool
		build func(b *net) *gorgonia.Node
	}{
		{"elementwise after reshape of an input", false, func(b *net) *gorgonia.Node {
			return must(gorgonia.Tanh(reshape(b.in("x", 4, 6), 6, 4)))
		}},
		{"sum after reshape of a weight", false, func(b *net) *gorgonia.Node {
			return must(gorgonia.Add(reshape(b.in("w", 4, 6), 24), b.in("x", 24)))
		}},
		{"elementwise after dropout in evaluation", true, func(b *net) *gorgonia.Node {
			return must(gorgonia.Square(must(gorgonia.Dropout(b.in("x", 4, 6), 0.5))))
		}},
		{"elementwise after concat of one", false, func(b *net) *gorgonia.Node {
			return must(gorgonia.Exp(must(gorgonia.Concat(0, b.in("x", 4, 6)))))
		}},
		{"dropout in evaluation", true, func(b *net) *gorgonia.Node { return must(gorgonia.Dropout(b.in("x", 4, 6), 0.5)) }},
		{"concat of one", false, func(b *net) *gorgonia.Node { return must(gorgonia.Concat(0, b.in("x", 4, 6))) }},
		{"reshape", false, func(b *net) *gorgonia.Node { return reshape(b.in("x", 4, 6), 3, 8) }},
		{"reshape twice", false, func(b *net) *gorgonia.Node { return reshape(reshape(b.in("x", 4, 6), 3, 8), 24) }},
		{"transpose", false, func(b *net) *gorgonia.Node { return must(gorgonia.Transpose(b.in("x", 4, 6))) }},
		{"transpose of one row", false, func(b *net) *gorgonia.Node { return must(gorgonia.Transpose(b.in("x", 1, 6), 1, 0)) }},
		{"slice of all", false, func(b *net) *gorgonia.Node { return must(gorgonia.Slice(b.in("x", 4, 6), gorgonia.S(0, 4))) }},
		{"slice", false, func(b *net) *gorgonia.Node { return must(gorgonia.Slice(b.in("x", 4, 6), nil, gorgonia.S(1, 3))) }},
		{"sum over an axis of one", false, func(b *net) *gorgonia.Node { return must(gorgonia.Sum(b.in("x", 4, 1), 1)) }},
		{"ravel", false, func(b *net) *gorgonia.Node { return must(gorgonia.Ravel(b.in("x", 4, 6))) }},
		{"softmax", false, func(b *net) *gorgonia.Node { return must(gorgonia.SoftMax(b.in("x", 4, 6), 1)) }},
		{"x + x", false, func(b *net) *gorgonia.Node { x := b.in("x", 4, 6); return must(gorgonia.Add(x, x)) }},
		{"matrix product", false, func(b *net) *gorgonia.Node { return must(gorgonia.Mul(b.in("x", 4, 6), b.in("w", 6, 2))) }},
		{"group norm", false, func(b *net) *gorgonia.Node {
			return must(gorgonia.GroupNorm(b.in("x", 2, 4, 3, 3), b.in("scale", 1, 4, 1, 1), b.in("shift", 1, 4, 1, 1), 2, 4, 1e-5))
		}},
		{"max-pool of a reshape", false, func(b *net) *gorgonia.Node {
			return must(gorgonia.MaxPool2D(reshape(b.in("x", 4, 16), 2, 2, 4, 4), tensor.Shape{2, 2}, []int{0, 0}, []int{2, 2}))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newNet(tensor.Float64)
			y := c.build(b)
			var read gorgonia.Value
			gorgonia.Read(y, &read)
			want := reference(t, b.g)(y)
			before := map[*gorgonia.Node][]float64{}
			for _, n := range b.g.AllNodes() {
				if n.Op() == nil {
					before[n] = floats(t, n.Value())
				}
			}
			var opts []gorgonia.VMOpt
			if c.eval {
				opts = append(opts, gorgonia.EvalMode())
			}
			m := machine(t, b.g, opts...)
			if c.eval { // the reference saw the operation in training mode
				want = reference(t, b.g)(y)
			}
			untouched := func(when string) {
				t.Helper()
				for n, v := range before {
					sameFloats(t, n.Name()+" "+when, floats(t, n.Value()), v, 0)
				}
			}
			for range 2 {
				run(t, m)
				untouched("after a run")
				agrees(t, y, want)
				got, err := fgorgonia.ToTensor(read)
				if err != nil {
					t.Fatal(err)
				}
				if err := ref.Check(got, want); err != nil {
					t.Errorf("the value read: %v", err)
				}
				for _, v := range []gorgonia.Value{y.Value(), read} {
					v.(*tensor.Dense).Memset(0.125)
				}
				untouched("after the user wrote to what was handed out")
			}
		})
	}
}

// Values of intermediate nodes are right although they are fused away, and one value may be read several times.
func TestReads(t *testing.T) {
	n := newMLP(tensor.Float32)
	var hidden, again, input, weight, cost gorgonia.Value
	gorgonia.Read(n.hidden, &hidden)
	gorgonia.Read(n.hidden, &again)
	gorgonia.Read(n.x, &input)
	gorgonia.Read(n.params[0], &weight)
	gorgonia.Read(n.cost, &cost)
	m := machine(t, n.g)
	kept := map[*gorgonia.Value]gorgonia.Value{}
	for range 2 {
		run(t, m)
		want := reference(t, n.g)
		for v, node := range map[*gorgonia.Value]*gorgonia.Node{
			&hidden: n.hidden, &again: n.hidden, &input: n.x, &weight: n.params[0], &cost: n.cost,
		} {
			got, err := fgorgonia.ToTensor(*v)
			if err != nil {
				t.Fatal(err)
			}
			if err := ref.Check(got, want(node)); err != nil {
				t.Errorf("the value read of %v: %v", node, err)
			}
			if kept[v] != nil && kept[v] != *v {
				t.Errorf("the value read of %v is another one in the second run", node)
			}
			kept[v] = *v
		}
		if hidden == again || input == n.x.Value() || weight == n.params[0].Value() {
			t.Error("two values share one variable")
		}
		if err := gorgonia.Let(n.x, n.value(0, 1, 6, 5)); err != nil {
			t.Fatal(err)
		}
	}
}

// A variable that holds a value of another shape gets a new one, and the old one stays as it is.
func TestReadIntoUsedVariable(t *testing.T) {
	b := newNet(tensor.Float64)
	y := must(gorgonia.Square(b.in("x", 3, 4)))
	old := b.value(5, 0, 4, 3)
	read := gorgonia.Value(old)
	gorgonia.Read(y, &read)
	run(t, machine(t, b.g))
	if !read.Shape().Eq(tensor.Shape{3, 4}) {
		t.Errorf("the value read has shape %v", read.Shape())
	}
	sameFloats(t, "the value that the variable held", floats(t, old), floats(t, b.value(5, 0, 4, 3)), 0)
}

// Weights and inputs in any layout give what they give row by row.
func TestLayouts(t *testing.T) {
	plain := newMLP(tensor.Float64)
	run(t, machine(t, plain.g))
	n := newMLP(tensor.Float64)
	bind(t, n.x, colMajor(n.x.Value().(*tensor.Dense)))
	bind(t, n.params[2], colMajor(n.params[2].Value().(*tensor.Dense)))
	wide := n.value(0, 1, 8, 9)
	for i, x := range floats(t, n.params[0].Value()) {
		if err := wide.SetAt(x, 2+i/7, 1+i%7); err != nil {
			t.Fatal(err)
		}
	}
	view, err := wide.Slice(gorgonia.S(2, 7), gorgonia.S(1, 8))
	if err != nil {
		t.Fatal(err)
	}
	bind(t, n.params[0], view.(*tensor.Dense))
	run(t, machine(t, n.g))
	sameFloats(t, "the cost", floats(t, n.cost.Value()), floats(t, plain.cost.Value()), 0)
}

// TestUnbindAll unbinds all values between runs, as Gorgonia's examples do: the tensors go back to a pool from which the user's
// next ones come, and are the machine's no more.
func TestUnbindAll(t *testing.T) {
	b := newNet(tensor.Float64)
	x, w := b.in("x", 2, 2), b.in("w", 2, 2)
	y := must(gorgonia.Mul(x, w))
	m := fusec.NewMachine(b.g)
	defer m.Close()
	for i := range 8 {
		given := map[*gorgonia.Node][]float64{}
		for _, n := range []*gorgonia.Node{x, w} {
			v := b.value(0, 1, 2, 2)
			given[n] = slices.Clone(v.Float64s())
			if err := gorgonia.Let(n, v); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.RunAll(); err != nil {
			t.Fatalf("run %d: %v", i, err)
		}
		for n, want := range given {
			sameFloats(t, n.Name(), floats(t, n.Value()), want, 0)
		}
		p, q := given[x], given[w]
		sameFloats(t, "the product", floats(t, y.Value()), []float64{p[0]*q[0] + p[1]*q[2], p[0]*q[1] + p[1]*q[3], p[2]*q[0] + p[3]*q[2],
			p[2]*q[1] + p[3]*q[3]}, 1e-12)
		m.Reset()
		b.g.UnbindAll()
	}
}
