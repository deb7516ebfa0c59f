package fusec_test

import (
	"errors"
	"fmt"
	"hash"
	"math"
	"testing"

	"github.com/chewxy/hm"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/graph"
	fgorgonia "fusec/graph/gorgonia"
)

// turning is sin, turned by quarters of a circle: its derivative is again an operation of the user's own.
type turning struct {
	sine
	turns int
}

func (s *turning) String() string        { return fmt.Sprintf("userSine+%d", s.turns) }
func (s *turning) Hashcode() uint32      { return uint32(4800 + s.turns) }
func (s *turning) WriteHash(h hash.Hash) { fmt.Fprint(h, s.String()) }
func (s *turning) Do(in ...gorgonia.Value) (gorgonia.Value, error) {
	return in[0].(*tensor.Dense).Apply(func(x float64) float64 { return math.Sin(x + float64(s.turns)*math.Pi/2) })
}

func (s *turning) DiffWRT(int) []bool { return []bool{true} }
func (s *turning) SymDiff(in gorgonia.Nodes, _, grad *gorgonia.Node) (gorgonia.Nodes, error) {
	d, err := gorgonia.ApplyOp(&turning{turns: s.turns + 1}, in[0])
	if err == nil {
		d, err = gorgonia.HadamardProd(d, grad)
	}
	return gorgonia.Nodes{d}, err
}

// scaled is a ⊙ b^count for a count that has no derivative. That by a reads the result.
type scaled struct{ sine }

func (s *scaled) Arity() int { return 3 }
func (s *scaled) Type() hm.Type {
	a := hm.TypeVariable('a')
	return hm.NewFnType(a, a, tensor.Int, a)
}
func (s *scaled) String() string     { return "userScaled" }
func (s *scaled) Hashcode() uint32   { return 4900 }
func (s *scaled) DiffWRT(int) []bool { return []bool{true, true, false} }
func (s *scaled) Do(in ...gorgonia.Value) (gorgonia.Value, error) {
	a, b, n := in[0].(*tensor.Dense), in[1].(*tensor.Dense), in[2].Data().(int)
	y := a.Clone().(*tensor.Dense)
	for i, x := range b.Float64s() {
		y.Float64s()[i] *= math.Pow(x, float64(n))
	}
	return y, nil
}
func (s *scaled) SymDiff(in gorgonia.Nodes, out, grad *gorgonia.Node) (gorgonia.Nodes, error) {
	da, err := gorgonia.HadamardDiv(out, in[0])
	if err == nil {
		da, err = gorgonia.HadamardProd(da, grad)
	}
	if err != nil {
		return nil, err
	}
	n, err := gorgonia.ConvType(in[2], tensor.Int, tensor.Float64)
	if err != nil {
		return nil, err
	}
	db, err := gorgonia.HadamardDiv(out, in[1])
	if err == nil {
		db, err = gorgonia.HadamardProd(db, grad)
	}
	if err == nil {
		db, err = gorgonia.Mul(db, n)
	}
	return gorgonia.Nodes{da, db, nil}, err
}

// gradientsMatch compares the gradients that a machine binds with finite differences, and returns the machine.
func gradientsMatch(t *testing.T, build func(b *net) task) *fusec.Machine {
	t.Helper()
	b := newNet(tensor.Float64)
	made := build(b)
	if _, err := gorgonia.Grad(made.cost, made.wrt...); err != nil {
		t.Fatal(err)
	}
	m := machine(t, b.g, gorgonia.BindDualValues(made.wrt...))
	run(t, m)
	for _, w := range made.wrt {
		g, err := w.Grad()
		if err != nil {
			t.Fatal(err)
		}
		sameFloats(t, "the gradient of "+w.Name(), floats(t, g), newDifferences(t, b.g, made.cost).gradient(w), 1e-6)
	}
	return m
}

// hosts counts the launches that run the user's code.
func hosts(m *fusec.Machine) (n int) {
	for _, f := range m.Fusions() {
		if f.Kind == "host" {
			n++
		}
	}
	return n
}

// TestHostGradient differentiates operations of the user's own by what their SymDiff says.
func TestHostGradient(t *testing.T) {
	for _, c := range []struct {
		name  string
		build func(b *net) task
		hosts int
	}{
		{"in Gorgonia's operations", func(b *net) task {
			x, w := b.in("x", 3, 4), b.in("w", 4, 2)
			return task{squares(must(gorgonia.ApplyOp(&sineWithGradient{}, must(gorgonia.Mul(x, w))))), gorgonia.Nodes{x, w}}
		}, 1},
		{"in another of the user's", func(b *net) task {
			x, w := b.in("x", 3, 4), b.in("w", 4, 2)
			return task{squares(must(gorgonia.ApplyOp(&turning{}, must(gorgonia.Mul(x, w))))), gorgonia.Nodes{x, w}}
		}, 2},
		{"penalty through it", func(b *net) task {
			x, w, v := b.in("x", 3, 4), b.in("w", 4, 2), b.in("v", 2, 2)
			h := must(gorgonia.ApplyOp(&turning{}, must(gorgonia.Mul(x, w))))
			cost := squares(must(gorgonia.Mul(h, v)))
			d, err := gorgonia.Grad(cost, x)
			if err != nil {
				panic(err)
			}
			return task{must(gorgonia.Add(cost, squares(d[0]))), gorgonia.Nodes{w, v}}
		}, 4}, // the value, its derivative for each of the two costs, and the second derivative
		{"of some operands, by the result", func(b *net) task {
			x, w := b.in("x", 3, 4), b.near("w", 2, 0.2, 3, 4)
			n := gorgonia.NewScalar(b.g, tensor.Int, gorgonia.WithName("n"), gorgonia.WithValue(3))
			return task{squares(must(gorgonia.ApplyOp(&scaled{}, x, w, n))), gorgonia.Nodes{x, w}}
		}, 1},
		{"sparsemax", func(b *net) task {
			x, w := b.in("x", 3, 4), b.in("w", 4, 5)
			y := must(gorgonia.Sparsemax(must(gorgonia.Mul(x, w))))
			return task{squares(must(gorgonia.HadamardProd(y, b.in("weigh", 3, 5)))), gorgonia.Nodes{x, w}}
		}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := gradientsMatch(t, c.build)
			if hasNote(m.Trace(), "stays as the graph computes it") {
				t.Errorf("the backward pass stayed: %v", notesOf(m.Trace()))
			}
			if !hasNote(m.Trace(), "is differentiated by the rule that it brings") {
				t.Errorf("no note says how it was differentiated: %v", notesOf(m.Trace()))
			}
			if n := hosts(m); n != c.hosts {
				t.Errorf("%d launches run the user's code, want %d", n, c.hosts)
			}
		})
	}
}

// moody is a sine whose SymDiff does as it should once, when the user's graph is built, and then something else.
type moody struct {
	sineWithGradient
	then  string
	calls int
	other *gorgonia.Node
}

func (s *moody) SymDiff(in gorgonia.Nodes, out, grad *gorgonia.Node) (gorgonia.Nodes, error) {
	s.calls++
	d, err := s.sineWithGradient.SymDiff(in, out, grad)
	if s.calls == 1 || err != nil {
		return d, err
	}
	switch s.then {
	case "panic":
		panic("the user's mistake")
	case "error":
		return nil, errors.New("the user's error")
	case "value":
		return gorgonia.Nodes{gorgonia.NewConstant(in[0].Value().Data())}, nil
	case "none":
		return nil, nil
	case "nil":
		return gorgonia.Nodes{nil}, nil
	case "shape":
		d[0], err = gorgonia.Sum(d[0])
	case "graph":
		d[0] = s.other
	case "state":
		d[0], err = gorgonia.Dropout(d[0], 0.5)
	case "input":
		n := gorgonia.NewTensor(in[0].Graph(), tensor.Float64, 2, gorgonia.WithShape(3, 4), gorgonia.WithName("mine"))
		d[0], err = gorgonia.Add(d[0], n)
	}
	return d, err
}

func (s *moody) DiffWRT(n int) []bool {
	if s.calls > 0 && s.then == "wrt" {
		return []bool{true, true}
	}
	return s.sineWithGradient.DiffWRT(n)
}

// TestHostGradientFails keeps Gorgonia's backward pass where an operation's own gradient cannot be had again.
func TestHostGradientFails(t *testing.T) {
	for then, want := range map[string]string{
		"panic": "its SymDiff panicked: the user's mistake",
		"error": "its SymDiff: the user's error",
		"value": "its SymDiff panicked",
		"none":  "its SymDiff gives 0 derivatives of 1 operands",
		"nil":   "its SymDiff gives no derivative of operand 0",
		"shape": "its SymDiff gives a derivative of operand 0 that is f64[], not f64[3,4]",
		"graph": "its SymDiff gives a derivative of operand 0 that is of another graph",
		"state": "what its SymDiff adds keeps state between runs",
		"input": `its SymDiff adds input "mine", which nobody gives a value`,
		"wrt":   "its DiffWRT speaks of 2 operands instead of 1",
	} {
		t.Run(then, func(t *testing.T) {
			m := gradientsMatch(t, func(b *net) task {
				x := b.in("x", 3, 4)
				op := &moody{then: then, other: newNet(tensor.Float64).in("other", 3, 4)}
				cost := squares(must(gorgonia.ApplyOp(op, must(gorgonia.Square(x)))))
				gorgonia.WithName("cost")(cost)
				return task{cost, gorgonia.Nodes{x}}
			})
			for _, n := range []string{`the backward pass of "cost" stays as the graph computes it`, "userSineD", want} {
				if !hasNote(m.Trace(), n) {
					t.Errorf("no note says %q: %q", n, notesOf(m.Trace()))
				}
			}
		})
	}
}

// onlyDoDiff can be differentiated by Gorgonia's LispMachine only.
type onlyDoDiff struct{ sine }

func (*onlyDoDiff) DoDiff(gorgonia.ExecutionContext, gorgonia.Nodes, *gorgonia.Node) error {
	return nil
}

// TestHostWithoutGradient says what an operation lacks.
func TestHostWithoutGradient(t *testing.T) {
	for want, op := range map[string]gorgonia.Op{
		`"userSine": it has no SymDiff, and its DoDiff wants values`: &onlyDoDiff{},
		`"userSine": it has no SymDiff`:                              &sine{},
	} {
		b := newNet(tensor.Float64)
		x := b.in("x", 3)
		cost := squares(must(gorgonia.ApplyOp(op, x)))
		im, err := fgorgonia.Import(b.g, fgorgonia.Options{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = graph.Gradients(im.Graph, im.Node(cost), []*graph.Node{im.Node(x)})
		wantError(t, err, want)
	}
}
