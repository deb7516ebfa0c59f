package gorgonia

import (
	"errors"
	"math"
	"testing"

	"fusec/graph"

	gorg "gorgonia.org/gorgonia"
)

// A built is an operation of the user's own that says what it computes.
type built struct {
	gorg.Op // negation
	build   func(b *graph.Builder, x *graph.Node) (*graph.Node, error)
	train   bool
	steps   *int64
	held    *graph.Tensor
	many    bool // Next gives one value too many
	operand int  // how many Build was given
}

func (o *built) Build(b *graph.Builder, args []*graph.Node) (*graph.Node, error) {
	o.operand = len(args)
	if o.held != nil {
		return b.Binary(graph.Add, args[0], args[len(args)-1]), b.Err()
	}
	return o.build(b, args[0])
}

func (o *built) SetTraining(train bool) error {
	o.train = train
	return nil
}

func (o *built) Training() bool { return o.train }
func (o *built) Steps() *int64  { return o.steps }

func (o *built) Held() []Held {
	if o.held == nil {
		return nil
	}
	return []Held{{"held", o.held}}
}

func (o *built) Next(_ *graph.Builder, v *graph.Node) []*graph.Node {
	if o.many {
		return []*graph.Node{v, v}
	}
	return []*graph.Node{v}
}

// tanh builds another function than that whose Do the operation has.
func tanh(b *graph.Builder, x *graph.Node) (*graph.Node, error) { return b.Unary(graph.Tanh, x), nil }

// builtGraph is a graph of the one operation, and its node.
func builtGraph(t *testing.T, o *built) (*builder, *gorg.Node) {
	t.Helper()
	b := newBuilder()
	x := b.in("x", 2, 3)
	o.Op = must(gorg.Neg(newBuilder().in("x", 2, 3))).Op()
	y := must(gorg.ApplyOp(o, x))
	gorg.WithName("mine")(y)
	return b, y
}

// TestBuilder imports what the operation builds, under the user's name.
func TestBuilder(t *testing.T) {
	o := &built{build: tanh}
	b, y := builtGraph(t, o)
	im := mustImport(t, b.ExprGraph, Options{})
	v := im.Node(y)
	if v.Op != (graph.Unary{Fn: graph.Tanh}) || v.Name != "mine" || len(v.Origin) != 1 || v.Origin[0].Name != "mine" {
		t.Errorf("imported as %v, %v of %v", v.Op, v, v.Origin)
	}
	if o.operand != 1 || len(im.States) != 0 {
		t.Errorf("Build was given %d operands; there are %d states", o.operand, len(im.States))
	}
}

// TestBuilderFails runs by its own Do what cannot be built, and says why. Nothing is left of the attempt.
func TestBuilderFails(t *testing.T) {
	for want, build := range map[string]func(*graph.Builder, *graph.Node) (*graph.Node, error){
		"not today": func(b *graph.Builder, x *graph.Node) (*graph.Node, error) {
			return b.Unary(graph.Tanh, x), errors.New("not today")
		},
		"built nothing":    func(*graph.Builder, *graph.Node) (*graph.Node, error) { return nil, nil },
		"panicked over it": func(*graph.Builder, *graph.Node) (*graph.Node, error) { panic("panicked over it") },
		"Gorgonia inferred f64[2,3]": func(b *graph.Builder, x *graph.Node) (*graph.Node, error) {
			return b.Transpose(b.Slice(x, 0, 0, 1, 1), 1, 0), nil
		},
		"needs rank 4": func(b *graph.Builder, x *graph.Node) (*graph.Node, error) { return b.Add(graph.Pool{}, x), nil },
	} {
		b, y := builtGraph(t, &built{build: build})
		im := mustImport(t, b.ExprGraph, Options{})
		if !hasNote(im, want) {
			t.Errorf("no note says %q: %v", want, im.Graph.Notes)
		}
		if n := len(im.Graph.Nodes); hostCount(im) != 1 || n != 2 {
			t.Errorf("%s: %d nodes, %d on the host", want, n, hostCount(im))
		}
		in := im.inputs(t)
		if got, want := im.eval(t, in)[im.Node(y)][0].F[0], -in["x"].Float(0); math.Abs(got-want) > 0 {
			t.Errorf("value %v, want %v", got, want)
		}
	}
}

// TestBuilderMode notices a switch of mode, and keeps a count where the operation does.
func TestBuilderMode(t *testing.T) {
	count := int64(7)
	o := &built{steps: &count, build: tanh}
	b, _ := builtGraph(t, o)
	im := mustImport(t, b.ExprGraph, Options{})
	if o.operand != 2 || len(im.States) != 1 || im.States[0].Value.Name != "mine.steps" {
		t.Fatalf("Build was given %d operands; the states are %v", o.operand, im.States)
	}
	s, x := im.States[0], graph.Scalar(graph.I64, 0)
	if err := s.Load(x); err != nil || x.Float(0) != 7 {
		t.Errorf("the count is %v, %v", x.Float(0), err)
	}
	values := im.eval(t, im.inputs(t))
	if err := s.Store(values[im.Graph.Updates[0].Value][0].Rounded()); err != nil || count != 8 {
		t.Errorf("after a run the count is %d, %v", count, err)
	}
	if err := im.Stale(); err != nil {
		t.Error(err)
	}
	if err := o.SetTraining(true); err != nil {
		t.Fatal(err)
	}
	if err := im.Stale(); err == nil {
		t.Error("a switch of mode was not noticed")
	}
}

// TestBuilderHolds imports what an operation holds as a state, in its own memory, that its value replaces.
func TestBuilderHolds(t *testing.T) {
	o := &built{held: graph.Filled(graph.TypeOf(graph.F64, 2, 3), 7)}
	b, y := builtGraph(t, o)
	im := mustImport(t, b.ExprGraph, Options{})
	if o.operand != 2 || len(im.States) != 1 || len(im.Graph.Updates) != 1 {
		t.Fatalf("Build was given %d operands; there are %d states and %d updates", o.operand, len(im.States),
			len(im.Graph.Updates))
	}
	s, u := im.States[0], im.Graph.Updates[0]
	if s.Held != o.held || s.Value.Name != "mine.held" || u.Target != s.Value || u.Value != im.Node(y) {
		t.Errorf("state %v holds %p, not %p; %v is updated with %v", s.Value, s.Held, o.held, u.Target, u.Value)
	}
	x := graph.NewTensor(o.held.Type)
	if err := s.Load(x); err != nil || !x.Equal(o.held) {
		t.Errorf("loaded %v, %v", x.Floats(), err)
	}
	x.SetFloat(5, -1)
	if err := s.Store(x); err != nil || o.held.Float(5) != -1 || o.held.Float(4) != 7 {
		t.Errorf("stored %v, %v", o.held.Floats(), err)
	}
}

// TestBuilderHoldsAnotherType runs by its own Do an operation whose value does not fit what it holds.
func TestBuilderHoldsAnotherType(t *testing.T) {
	b, _ := builtGraph(t, &built{held: graph.Scalar(graph.F64, 7)})
	im := mustImport(t, b.ExprGraph, Options{})
	if !hasNote(im, "of what it holds") || hostCount(im) != 1 || len(im.States) != 0 || len(im.Graph.Updates) != 0 {
		t.Errorf("%d on the host, states %v, updates %v, notes %v", hostCount(im), im.States, im.Graph.Updates,
			im.Graph.Notes)
	}
}

// TestBuildersShare: of two operations that hold the same value, the second finds what the first left, and one update
// has the last value.
func TestBuildersShare(t *testing.T) {
	held := graph.Filled(graph.TypeOf(graph.F64, 2, 3), 7)
	o := &built{held: held}
	b, y := builtGraph(t, o)
	second := &built{Op: o.Op, held: held}
	z := must(gorg.ApplyOp(second, y))
	im := mustImport(t, b.ExprGraph, Options{})
	if len(im.States) != 1 || len(im.Graph.Updates) != 1 {
		t.Fatalf("%d states, %d updates", len(im.States), len(im.Graph.Updates))
	}
	if u := im.Graph.Updates[0]; u.Target != im.States[0].Value || u.Value != im.Node(z) {
		t.Errorf("%v is updated with %v", u.Target, u.Value)
	}
	in := im.inputs(t)
	if got, want := im.eval(t, in)[im.Node(z)][0].F[0], 2*(in["x"].Float(0)+7); got != want {
		t.Errorf("the second finds a value of which it makes %v, want %v", got, want)
	}
}

// TestBuilderHoldsTooMany runs by its own Do an operation that builds more values than it holds; the state of another
// that holds the same value stays.
func TestBuilderHoldsTooMany(t *testing.T) {
	held := graph.Filled(graph.TypeOf(graph.F64, 2, 3), 7)
	o := &built{held: held}
	b, y := builtGraph(t, o)
	must(gorg.ApplyOp(&built{Op: o.Op, held: held, many: true}, y))
	im := mustImport(t, b.ExprGraph, Options{})
	if !hasNote(im, "built 2 values for the 1 that it holds") || hostCount(im) != 1 || len(im.States) != 1 {
		t.Errorf("%d on the host, states %v, notes %v", hostCount(im), im.States, im.Graph.Notes)
	}
	if len(im.Graph.Updates) != 1 || im.Graph.Updates[0].Value != im.Node(y) {
		t.Errorf("updates %v", im.Graph.Updates)
	}
}
