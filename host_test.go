package fusec_test

import (
	"errors"
	"fmt"
	"hash"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/chewxy/hm"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/graph"
)

// sine is an operation of the user's own on float64 tensors of any shape.
type sine struct{ fail string }

func (s *sine) Arity() int { return 1 }
func (s *sine) Type() hm.Type {
	a := hm.TypeVariable('a')
	return hm.NewFnType(a, a)
}
func (s *sine) InferShape(in ...gorgonia.DimSizer) (tensor.Shape, error) {
	return in[0].(tensor.Shape).Clone(), nil
}
func (s *sine) Do(in ...gorgonia.Value) (gorgonia.Value, error) {
	switch s.fail {
	case "panic":
		panic("the user's mistake")
	case "error":
		return nil, errors.New("the user's error")
	case "type":
		return tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(in[0].Shape()...)), nil
	case "nil":
		return nil, nil
	case "in place": // what it is given is its own
		in[0].(*tensor.Dense).Zero()
	}
	return in[0].(*tensor.Dense).Apply(math.Sin)
}
func (s *sine) ReturnsPtr() bool      { return false }
func (s *sine) CallsExtern() bool     { return false }
func (s *sine) OverwritesInput() int  { return -1 }
func (s *sine) WriteHash(h hash.Hash) { fmt.Fprint(h, s.String()) }
func (s *sine) Hashcode() uint32      { return 4711 }
func (s *sine) String() string        { return "userSine" }

// sineWithGradient can also be differentiated.
type sineWithGradient struct{ sine }

func (s *sineWithGradient) String() string            { return "userSineD" }
func (s *sineWithGradient) DiffWRT(inputs int) []bool { return []bool{true} }
func (s *sineWithGradient) SymDiff(in gorgonia.Nodes, _, grad *gorgonia.Node) (gorgonia.Nodes, error) {
	cos, err := gorgonia.Cos(in[0])
	if err != nil {
		return nil, err
	}
	d, err := gorgonia.HadamardProd(cos, grad)
	return gorgonia.Nodes{d}, err
}

// TestUserOp runs an operation of the user's own between two that are fusec's.
func TestUserOp(t *testing.T) {
	b := newNet(tensor.Float64)
	x := b.in("x", 3, 4)
	y := must(gorgonia.Square(must(gorgonia.ApplyOp(&sine{}, must(gorgonia.Tanh(x))))))
	m := machine(t, b.g)
	for range 2 {
		run(t, m)
		agrees(t, y, reference(t, b.g)(y))
	}
	found := false
	for _, f := range m.Fusions() {
		for _, n := range f.Nodes {
			found = found || f.Kind == "host" && strings.Contains(n.Name, "userSine")
		}
	}
	if !found {
		t.Errorf("the fusions do not show the operation on the host: %+v", m.Fusions())
	}
	found = false
	for _, s := range m.Trace().Stages {
		for _, n := range s.Notes {
			found = found || strings.Contains(n.Text, "userSine") && strings.Contains(n.Text, "host")
		}
	}
	if !found {
		t.Error("no note says that the operation stays on the host")
	}
}

func TestUserOpGradient(t *testing.T) {
	build := func(b *net) task {
		x, w := b.in("x", 3, 4), b.in("w", 4, 2)
		y := must(gorgonia.ApplyOp(&sineWithGradient{}, must(gorgonia.Mul(x, w))))
		return task{must(gorgonia.Sum(must(gorgonia.Square(y)))), gorgonia.Nodes{x, w}}
	}
	b := newNet(tensor.Float64)
	made := build(b)
	if _, err := gorgonia.Grad(made.cost, made.wrt...); err != nil {
		t.Fatal(err)
	}
	run(t, machine(t, b.g, gorgonia.BindDualValues(made.wrt...)))
	plain := newNet(tensor.Float64)
	same := build(plain)
	d := newDifferences(t, plain.g, same.cost)
	for i, w := range made.wrt {
		g, err := w.Grad()
		if err != nil {
			t.Fatal(err)
		}
		sameFloats(t, "the gradient of "+w.Name(), floats(t, g), d.gradient(same.wrt[i]), 1e-7)
	}
}

// What goes wrong in the user's code is an error that names the operation, and the machine goes on.
func TestUserOpFails(t *testing.T) {
	for _, c := range []struct{ fail, want string }{
		{"panic", "the user's mistake"}, {"error", "the user's error"}, {"type", "f32"}, {"nil", "no value"},
	} {
		t.Run(c.fail, func(t *testing.T) {
			op := &sine{}
			b := newNet(tensor.Float64)
			x := b.in("x", 3, 4)
			y := must(gorgonia.ApplyOp(op, x))
			m := machine(t, b.g)
			run(t, m)
			good, first := floats(t, y.Value()), floats(t, x.Value())
			if err := gorgonia.Let(x, b.value(0, 1, 3, 4)); err != nil {
				t.Fatal(err)
			}
			op.fail = c.fail
			m.Reset()
			wantError(t, m.RunAll(), "userSine", c.want)
			sameFloats(t, "the value after a failed run", floats(t, y.Value()), good, 0)
			op.fail = ""
			run(t, m)
			if floats(t, y.Value())[0] == good[0] {
				t.Errorf("the run after a failed one gave the old value of x = %v", first)
			}
		})
	}
	b := newNet(tensor.Float64)
	x := b.in("x", 3, 4)
	before := floats(t, x.Value())
	must(gorgonia.ApplyOp(&sine{fail: "in place"}, x))
	run(t, machine(t, b.g))
	sameFloats(t, "x, which the operation overwrote", floats(t, x.Value()), before, 0)
}

// A graph with an operation of the user's own can be saved and looked at; to run it is an error that names it.
func TestUserOpSaved(t *testing.T) {
	b := newNet(tensor.Float64)
	must(gorgonia.ApplyOp(&sine{}, b.in("x", 3, 4)))
	path := t.TempDir() + "/model.graph"
	if err := fusec.Save(path, b.g); err != nil {
		t.Fatal(err)
	}
	g, err := graph.LoadGraph(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, program, err := fusec.Plan(g); err != nil || len(program.Launches) != 1 {
		t.Errorf("planning gives %v, %v", program, err)
	}
	p, err := fusec.Compile(g)
	wantError(t, err, "userSine", "no implementation")
	if p != nil {
		t.Error("a program came with the error")
	}
}

// A run that fails leaves state as it was: the next one draws what the failed one would have drawn.
func TestFailedRunKeepsState(t *testing.T) {
	draws := func(failing bool) [][]float64 {
		op := &sine{}
		b := newNet(tensor.Float64)
		y := must(gorgonia.ApplyOp(op, must(gorgonia.Dropout(b.near("x", 1, 0.1, 6, 8), 0.5))))
		m := machine(t, b.g, fusec.WithSeed(5))
		var drawn [][]float64
		for i := range 3 {
			if failing && i == 1 {
				op.fail = "error"
				m.Reset()
				wantError(t, m.RunAll(), "userSine")
				op.fail = ""
			}
			run(t, m)
			drawn = append(drawn, floats(t, y.Value()))
		}
		return drawn
	}
	smooth, failing := draws(false), draws(true)
	for i := range smooth {
		sameFloats(t, "the values of a run", failing[i], smooth[i], 0)
	}
}

// stamped multiplies, and its derivative writes the gradient of the second operand into an Iop, as Gorgonia's example of
// Iop does.
type stamped struct{ sine }

func (s *stamped) Arity() int { return 2 }
func (s *stamped) Type() hm.Type {
	a := hm.TypeVariable('a')
	return hm.NewFnType(a, a, a)
}
func (s *stamped) String() string { return "userStamped" }
func (s *stamped) Do(in ...gorgonia.Value) (gorgonia.Value, error) {
	return tensor.Mul(in[0], in[1])
}
func (s *stamped) DiffWRT(int) []bool { return []bool{true, true} }
func (s *stamped) SymDiff(in gorgonia.Nodes, _, grad *gorgonia.Node) (gorgonia.Nodes, error) {
	second := gorgonia.NewUniqueNode(gorgonia.WithType(in[1].Type()), gorgonia.WithShape(in[1].Shape()...),
		gorgonia.WithChildren(gorgonia.Nodes{in[1]}), gorgonia.In(in[0].Graph()), gorgonia.WithOp(gorgonia.Iop{}))
	first, err := gorgonia.ApplyOp(&stampedDiff{}, in[0], in[1], grad, second)
	return gorgonia.Nodes{first, second}, err
}

// stampedDiff gives the derivative by the first operand, and writes that by the second into its last.
type stampedDiff struct{ sine }

func (s *stampedDiff) Arity() int { return 4 }
func (s *stampedDiff) Type() hm.Type {
	a := hm.TypeVariable('a')
	return hm.NewFnType(a, a, a, a, a)
}
func (s *stampedDiff) String() string { return "userStampedDiff" }
func (s *stampedDiff) Do(in ...gorgonia.Value) (gorgonia.Value, error) {
	if _, err := tensor.Mul(in[0], in[2], tensor.WithReuse(in[3].(*tensor.Dense))); err != nil {
		return nil, err
	}
	return tensor.Mul(in[1], in[2])
}

// What an operation of the user's writes into an Iop is the Iop's value.
func TestIop(t *testing.T) {
	gradientsMatch(t, func(b *net) task {
		x, w, v := b.in("x", 3, 4), b.in("w", 4, 2), b.in("v", 3, 2)
		return task{squares(must(gorgonia.ApplyOp(&stamped{}, must(gorgonia.Mul(x, w)), must(gorgonia.Tanh(v))))),
			gorgonia.Nodes{x, w, v}}
	})
	// Forward, too, where what reads the Iop comes after the operation.
	b := newNet(tensor.Float64)
	x, y, z := b.in("x", 2, 2), b.in("y", 2, 2), b.in("z", 2, 2)
	written := gorgonia.NewUniqueNode(gorgonia.WithType(z.Type()), gorgonia.WithShape(2, 2), gorgonia.WithChildren(gorgonia.Nodes{z}),
		gorgonia.In(b.g), gorgonia.WithOp(gorgonia.Iop{}))
	product := must(gorgonia.ApplyOp(&stampedDiff{}, x, y, y, written))
	before := floats(t, z.Value())
	m := machine(t, b.g)
	run(t, m)
	xs, ys := floats(t, x.Value()), floats(t, y.Value())
	for i := range xs {
		xs[i] *= ys[i]
		ys[i] *= ys[i]
	}
	sameFloats(t, "what was written", floats(t, written.Value()), xs, 1e-14)
	sameFloats(t, "the result", floats(t, product.Value()), ys, 1e-14)
	sameFloats(t, "the Iop's operand", floats(t, z.Value()), before, 0)
}

// Class is an element type of the user's own.
type Class int

var classes = tensor.Dtype{Type: reflect.TypeFor[Class]()}

func init() { tensor.RegisterNumber(classes) }

// toClass makes classes of numbers, next makes the following classes, and weigh multiplies numbers by classes.
type toClass struct{ sine }
type nextClass struct{ sine }
type weigh struct{ sine }

func vectorOf(of hm.Type) hm.Type { return gorgonia.TensorType{Dims: 1, Of: of} }

func (*toClass) Type() hm.Type {
	return hm.NewFnType(vectorOf(tensor.Float64), vectorOf(classes))
}
func (*nextClass) Type() hm.Type { return hm.NewFnType(vectorOf(classes), vectorOf(classes)) }
func (*weigh) Type() hm.Type {
	return hm.NewFnType(vectorOf(tensor.Float64), vectorOf(classes), vectorOf(tensor.Float64))
}
func (*weigh) Arity() int         { return 2 }
func (*toClass) String() string   { return "toClass" }
func (*nextClass) String() string { return "nextClass" }
func (*weigh) String() string     { return "weigh" }
func (*toClass) Hashcode() uint32 { return 1 }
func (*nextClass) Hashcode() uint32 {
	return 2
}
func (*weigh) Hashcode() uint32 { return 3 }

func (*toClass) Do(in ...gorgonia.Value) (gorgonia.Value, error) {
	var c []Class
	for _, x := range in[0].Data().([]float64) {
		c = append(c, Class(math.Round(4*x)))
	}
	return tensor.New(tensor.WithBacking(c)), nil
}

func (*nextClass) Do(in ...gorgonia.Value) (gorgonia.Value, error) {
	var c []Class
	for _, x := range in[0].Data().([]Class) {
		c = append(c, x+1)
	}
	return tensor.New(tensor.WithBacking(c)), nil
}

func (*weigh) Do(in ...gorgonia.Value) (gorgonia.Value, error) {
	var y []float64
	for i, c := range in[1].Data().([]Class) {
		y = append(y, float64(c)*in[0].Data().([]float64)[i])
	}
	return tensor.New(tensor.WithBacking(y)), nil
}

// Element types that fusec lacks are computed as Gorgonia does.
func TestHostDtypes(t *testing.T) {
	for _, of := range []tensor.Dtype{tensor.Int8, tensor.Int16, tensor.Uint32, tensor.Uint64, tensor.Complex64} {
		g := gorgonia.NewGraph()
		in := func(name string, from int) *gorgonia.Node {
			v := tensor.New(tensor.WithShape(2, 3), tensor.WithBacking(tensor.Range(of, from, from+6)))
			return gorgonia.NewMatrix(g, of, gorgonia.WithName(name), gorgonia.WithShape(2, 3), gorgonia.WithValue(v))
		}
		x, y := in("x", 1), in("y", 3)
		sum := must(gorgonia.Add(x, y))
		product := must(gorgonia.HadamardProd(sum, must(gorgonia.Sub(y, x))))
		column := must(gorgonia.Slice(must(gorgonia.Transpose(product)), gorgonia.S(1)))
		same := must(gorgonia.Eq(sum, sum, false))
		m := machine(t, g)
		for range 2 {
			run(t, m)
			for n, want := range map[*gorgonia.Node]string{product: "[8 12 16 20 24 28]", column: "[12 24]",
				same: "[true true true true true true]", x: "[1 2 3 4 5 6]"} {
				v := n.Value().(tensor.Tensor)
				if v.RequiresIterator() {
					v = v.(*tensor.Dense).Materialize()
				}
				got := strings.NewReplacer("(", "", "+0i)", "").Replace(fmt.Sprint(v.Data()))
				if got != want {
					t.Errorf("%v: %v is %s, not %s", of, n, got, want)
				}
			}
			m.Reset()
		}
	}
}

// Values of the user's own element types pass between the user's operations on the host: from inputs, through inner
// nodes, to roots and reads.
func TestUserDtype(t *testing.T) {
	b := newNet(tensor.Float64)
	x := b.in("x", 3)
	given := gorgonia.NewVector(b.g, classes, gorgonia.WithShape(3), gorgonia.WithName("given"))
	h := must(gorgonia.Tanh(x))
	c := must(gorgonia.ApplyOp(&nextClass{}, must(gorgonia.ApplyOp(&toClass{}, h))))
	y := must(gorgonia.Square(must(gorgonia.ApplyOp(&weigh{}, must(gorgonia.ApplyOp(&weigh{}, h, c)), given))))
	root := must(gorgonia.ApplyOp(&nextClass{}, c))
	var seen gorgonia.Value
	gorgonia.Read(c, &seen)
	m := machine(t, b.g)
	wantError(t, m.RunAll(), `"given" has no value`)
	for step := range 2 {
		bind(t, x, b.value(0, 1, 3))
		g := []Class{Class(step), 2, 3}
		bind(t, given, tensor.New(tensor.WithBacking(g)))
		run(t, m)
		var want []float64
		var next []Class
		for i, v := range floats(t, x.Value()) {
			v = math.Tanh(v)
			k := Class(math.Round(4*v)) + 1
			next = append(next, k)
			want = append(want, math.Pow(v*float64(k)*float64(g[i]), 2))
		}
		sameFloats(t, "what is computed with classes", floats(t, y.Value()), want, 1e-12)
		for i, v := range []gorgonia.Value{c.Value(), seen, root.Value()} {
			for j, k := range next {
				if i == 2 {
					k++
				}
				if got := v.Data().([]Class)[j]; got != k {
					t.Errorf("class %d of value %d is %d, want %d", j, i, got, k)
				}
			}
		}
	}
}
