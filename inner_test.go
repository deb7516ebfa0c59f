package fusec_test

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/graph/optim"
	"fusec/kernels/ref"
)

// read compares every computed node that has a value with what the reference computed before, and counts them.
func read(t *testing.T, g *gorgonia.ExprGraph, want func(*gorgonia.Node) ref.Value) (n int) {
	t.Helper()
	for _, v := range g.AllNodes() {
		if v.Op() != nil && v.Value() != nil {
			agrees(t, v, want(v))
			n++
		}
	}
	return n
}

// A program that reads inner nodes from its first round on has the values of the run, whatever happens to weights and
// inputs before it reads.
func TestInnerValues(t *testing.T) {
	for _, d := range []tensor.Dtype{tensor.Float32, tensor.Float64} {
		n := newMLP(d).withGrad(t)
		m := machine(t, n.g, gorgonia.BindDualValues(n.params...))
		solver := gorgonia.NewVanillaSolver(gorgonia.WithLearnRate(0.1))
		var want func(*gorgonia.Node) ref.Value
		for range 4 {
			run(t, m)
			want = reference(t, n.g)
			if err := solver.Step(gorgonia.NodesToValueGrads(n.params)); err != nil {
				t.Fatal(err)
			}
			n.x.Value().(*tensor.Dense).Zero()
			if _, ok := n.hidden.Value().(*fusec.UnstoredTensor); !ok {
				t.Errorf("the hidden layer's value is a %T", n.hidden.Value())
			}
			if n := read(t, n.g, want); n < 12 {
				t.Errorf("only %d nodes have values", n)
			}
			bind(t, n.x, n.value(0, 1, 6, 5))
		}
		m.Close()
		read(t, n.g, want)
	}
}

// The first read in a later round, after weights have been changed, is that of the weights as they are; reads in the
// rounds after are of the run.
func TestInnerValuesReadLate(t *testing.T) {
	n := newMLP(tensor.Float64).withGrad(t)
	m := machine(t, n.g, gorgonia.BindDualValues(n.params...))
	solver := gorgonia.NewVanillaSolver(gorgonia.WithLearnRate(0.1))
	for round := range 5 {
		run(t, m)
		want := reference(t, n.g)
		if err := solver.Step(gorgonia.NodesToValueGrads(n.params)); err != nil {
			t.Fatal(err)
		}
		switch {
		case round == 2:
			want = reference(t, n.g)
			fallthrough
		case round > 2:
			agrees(t, n.y, want(n.y))
		}
	}
}

// A value that was read stays what it was; so does one that gorgonia.Let has given to an input. One that was not read is
// of the last run.
func TestInnerValuesStay(t *testing.T) {
	b := newNet(tensor.Float64)
	x, state, w := b.in("x", 2, 3), b.in("state", 2, 3), b.in("w", 3, 3)
	next := must(gorgonia.Tanh(must(gorgonia.Add(must(gorgonia.Mul(state, w)), x))))
	gorgonia.WithName("next")(next)
	sum := must(gorgonia.Sum(next))
	m := machine(t, b.g)
	var kept, unread []gorgonia.Value
	var want [][]float64
	for range 3 {
		run(t, m)
		v := reference(t, b.g)(next)
		want = append(want, v.F)
		agrees(t, sum, reference(t, b.g)(sum))
		bind(t, state, next.Value()) // reads it
		kept = append(kept, next.Value())
		unread = append(unread, must(next, nil).Value())
	}
	for i, v := range kept {
		sameFloats(t, fmt.Sprintf("the state of step %d", i), floats(t, v), want[i], 1e-12)
	}
	if unread[2] != next.Value() {
		t.Error("two reads of one run gave two values")
	}
}

// Draws of random operations, running statistics and slices that are read again are those of the run.
func TestInnerValuesOfState(t *testing.T) {
	b := newNet(tensor.Float64)
	x, w := b.in("x", 8, 6), b.in("w", 6, 6)
	h := must(gorgonia.Mul(x, w))
	noisy := must(gorgonia.Dropout(h, 0.5))
	gorgonia.WithName("noisy")(noisy)
	half := must(gorgonia.Slice(noisy, gorgonia.S(0, 4)))
	cost := must(gorgonia.Mean(must(gorgonia.Square(half))))
	if _, err := gorgonia.Grad(cost, w); err != nil {
		t.Fatal(err)
	}
	m := machine(t, b.g, gorgonia.BindDualValues(w), fusec.WithDynamicSlices())
	var before []float64
	for step := range 3 {
		if err := gorgonia.UnsafeLet(half, gorgonia.S(step, step+4)); err != nil {
			t.Fatal(err)
		}
		run(t, m)
		drawn, part := floats(t, noisy.Value()), floats(t, half.Value())
		sameFloats(t, "the slice", part, drawn[6*step:6*step+24], 1e-14)
		squares := 0.0
		for _, v := range part {
			squares += v * v / 24
		}
		sameFloats(t, "the cost of what was drawn", floats(t, cost.Value()), []float64{squares}, 1e-12)
		if before != nil && fmt.Sprint(before) == fmt.Sprint(drawn) {
			t.Error("two runs drew the same")
		}
		before = drawn
	}
}

// Operations of the user's own are not run again for a value behind them.
func TestInnerValuesBehindUserOp(t *testing.T) {
	b := newNet(tensor.Float64)
	op := &counted{}
	x := b.in("x", 3, 4)
	y := must(gorgonia.ApplyOp(op, must(gorgonia.Tanh(x))))
	z := must(gorgonia.Square(y))
	must(gorgonia.Sum(z))
	m := machine(t, b.g)
	for i := range 2 {
		run(t, m)
		same := newSineGraph(x)
		want := reference(t, same.g)
		agrees(t, z, want(same.z))
		agrees(t, y, want(same.y))
		if op.runs != i+1 {
			t.Errorf("the operation ran %d times in %d runs", op.runs, i+1)
		}
	}
}

// counted is sine that counts how often it is run.
type counted struct {
	sine
	runs int
}

func (c *counted) Do(in ...gorgonia.Value) (gorgonia.Value, error) {
	c.runs++
	return c.sine.Do(in...)
}

type sineGraph struct {
	g    *gorgonia.ExprGraph
	y, z *gorgonia.Node
}

// newSineGraph is the graph of TestInnerValuesBehindUserOp over x's value.
func newSineGraph(x *gorgonia.Node) sineGraph {
	g := gorgonia.NewGraph()
	in := gorgonia.NewTensor(g, tensor.Float64, 2, gorgonia.WithShape(3, 4), gorgonia.WithName("x"), gorgonia.WithValue(x.Value()))
	y := must(gorgonia.ApplyOp(&sine{}, must(gorgonia.Tanh(in))))
	return sineGraph{g, y, must(gorgonia.Square(y))}
}

// What Gorgonia and the tensor package do with values works with those of inner nodes.
func TestUnstored(t *testing.T) {
	b := newNet(tensor.Float64)
	x := b.in("x", 2, 3)
	h := must(gorgonia.Tanh(x))
	mean := must(gorgonia.Mean(h))
	must(gorgonia.Square(must(gorgonia.Add(mean, mean))))
	m := machine(t, b.g)
	values := func() (tensor.Tensor, gorgonia.Scalar) {
		run(t, m)
		return h.Value().(*fusec.UnstoredTensor), mean.Value().(*fusec.UnstoredScalar)
	}
	want := reference(t, b.g)
	for name, f := range map[string]func(v tensor.Tensor, s gorgonia.Scalar) gorgonia.Value{
		"add":    func(v tensor.Tensor, _ gorgonia.Scalar) gorgonia.Value { return result(t)(tensor.Add(v, v)) },
		"add to": func(v tensor.Tensor, _ gorgonia.Scalar) gorgonia.Value { return result(t)(tensor.Add(x.Value(), v)) },
		"multiply": func(v tensor.Tensor, _ gorgonia.Scalar) gorgonia.Value {
			return result(t)(tensor.MatMul(x.Value().(*tensor.Dense),
				tensor.New(tensor.WithShape(3, 1), tensor.WithBacking(v.Data().([]float64)[:3]))))
		},
		"slice": func(v tensor.Tensor, _ gorgonia.Scalar) gorgonia.Value {
			s, err := v.Slice(gorgonia.S(0, 1))
			return result(t)(s, err)
		},
		"clone":        func(v tensor.Tensor, _ gorgonia.Scalar) gorgonia.Value { return result(t)(gorgonia.CloneValue(v)) },
		"clone scalar": func(_ tensor.Tensor, s gorgonia.Scalar) gorgonia.Value { return result(t)(gorgonia.CloneValue(s)) },
		"input": func(v tensor.Tensor, s gorgonia.Scalar) gorgonia.Value {
			g := gorgonia.NewGraph()
			in := gorgonia.NewTensor(g, tensor.Float64, 2, gorgonia.WithShape(2, 3), gorgonia.WithName("in"), gorgonia.WithValue(v))
			by := gorgonia.NewScalar(g, tensor.Float64, gorgonia.WithName("by"))
			if err := gorgonia.Let(by, s); err != nil {
				t.Fatal(err)
			}
			y := must(gorgonia.Mul(in, by))
			run(t, machine(t, g))
			return y.Value()
		},
		"format": func(v tensor.Tensor, s gorgonia.Scalar) gorgonia.Value {
			if got := fmt.Sprintf("%.3f %.2f %s", v, s, v); strings.Contains(got, "0x") || strings.Contains(got, "%!") {
				t.Errorf("they print as %s", got)
			}
			return nil
		},
		"npy": func(v tensor.Tensor, _ gorgonia.Scalar) gorgonia.Value {
			var buf bytes.Buffer
			if err := v.WriteNpy(&buf); err != nil {
				t.Fatal(err)
			}
			back := new(tensor.Dense)
			if err := back.ReadNpy(&buf); err != nil {
				t.Fatal(err)
			}
			return back
		},
		"number": func(_ tensor.Tensor, s gorgonia.Scalar) gorgonia.Value {
			return gorgonia.NewF64(s.Data().(float64))
		},
		"type": func(v tensor.Tensor, s gorgonia.Scalar) gorgonia.Value {
			if !gorgonia.TypeOf(s).Eq(tensor.Float64) || s.Dtype() != tensor.Float64 || len(s.Shape()) != 0 {
				t.Errorf("the scalar is of type %v", gorgonia.TypeOf(s))
			}
			if !gorgonia.TypeOf(v).Eq(gorgonia.TypeOf(x.Value())) || v.Size() != 6 || v.MemSize() != 48 || v.Engine() == nil {
				t.Errorf("the tensor is of type %v", gorgonia.TypeOf(v))
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := f(values())
			plain := f(result(t)(m.Value(h)).(tensor.Tensor), result(t)(m.Value(mean)).(gorgonia.Scalar))
			if got != nil {
				sameFloats(t, name, floats(t, got), floats(t, plain), 0)
			}
			agrees(t, h, want(h))
			agrees(t, mean, want(mean))
		})
	}
}

func result(t *testing.T) func(v gorgonia.Value, err error) gorgonia.Value {
	return func(v gorgonia.Value, err error) gorgonia.Value {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// WithValues binds plain values, and refuses nodes of other graphs.
func TestWithValues(t *testing.T) {
	n := newMLP(tensor.Float64).withGrad(t)
	m := machine(t, n.g, fusec.WithValues(n.hidden), gorgonia.BindDualValues(n.params...))
	for range 2 {
		run(t, m)
		if _, ok := n.hidden.Value().(*tensor.Dense); !ok {
			t.Errorf("the named node's value is a %T", n.hidden.Value())
		}
		if _, ok := n.y.Value().(*fusec.UnstoredTensor); !ok {
			t.Errorf("another node's value is a %T", n.y.Value())
		}
		agrees(t, n.hidden, reference(t, n.g)(n.hidden))
	}
	all := newMLP(tensor.Float64).withGrad(t)
	run(t, machine(t, all.g, fusec.WithValues()))
	for _, v := range all.g.AllNodes() {
		switch v.Value().(type) {
		case *fusec.UnstoredTensor, *fusec.UnstoredScalar:
			t.Errorf("%v holds no plain value", v)
		}
	}
	read(t, all.g, reference(t, all.g))
	wantError(t, fusec.NewMachine(n.g, fusec.WithValues(all.y)).Err(), "WithValues", "not in this graph")
	wantError(t, fusec.NewMachine(n.g, fusec.WithValues(nil)).Err(), "WithValues", "nil")
}

// Under an optimiser, which changes weights in the run, inner values are those before the step.
func TestInnerValuesWithOptimizer(t *testing.T) {
	n := newMLP(tensor.Float64).withGrad(t)
	m := machine(t, n.g, fusec.WithOptimizer(&optim.Optimizer{Rule: optim.SGD{}, Rate: optim.Constant(0.1)}))
	for range 3 {
		want := reference(t, n.g)
		run(t, m)
		agrees(t, n.y, want(n.y))
		agrees(t, n.hidden, want(n.hidden))
		if g, _ := n.params[0].Grad(); g != nil {
			t.Error("a gradient that nobody asked for is there for a solver")
		}
	}
}

// What cannot be computed is an error of Machine.Value and a panic that names the node elsewhere.
func TestInnerValuesFail(t *testing.T) {
	n := newMLP(tensor.Float64)
	m := machine(t, n.g)
	run(t, m)
	m.Reset()
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Value(n.y); err == nil || !strings.Contains(err.Error(), "logits") || !strings.Contains(err.Error(), "Wait") {
		t.Errorf("error %v", err)
	}
	func() {
		defer func() {
			if r := fmt.Sprint(recover()); !strings.Contains(r, "logits") {
				t.Errorf("panic %v", r)
			}
		}()
		n.y.Value().Data()
		t.Error("a value of a run that is not over")
	}()
	if err := m.Wait(); err != nil {
		t.Fatal(err)
	}
	agrees(t, n.y, reference(t, n.g)(n.y))
}

// Two machines of one graph in turn leave the values of the one that ran last.
func TestInnerValuesOfTwoMachines(t *testing.T) {
	n := newMLP(tensor.Float64)
	a, b := machine(t, n.g), machine(t, n.g)
	for i := range 4 {
		bind(t, n.x, n.value(float64(i), 1, 6, 5))
		run(t, []*fusec.Machine{a, b}[i%2])
		agrees(t, n.y, reference(t, n.g)(n.y))
	}
}

// Nodes do not keep a machine alive that nobody has any more, and inner values can still be read.
func TestInnerValuesOfDroppedMachine(t *testing.T) {
	n := newMLP(tensor.Float64)
	run(t, fusec.NewMachine(n.g, fusec.WithWorkers(4)))
	for range 3 {
		runtime.GC()
	}
	agrees(t, n.y, reference(t, n.g)(n.y))
}

// Inner nodes that nobody reads cost a run no allocation and next to no time.
func BenchmarkInnerValues(b *testing.B) {
	for name, opts := range map[string][]gorgonia.VMOpt{"unread": nil, "WithValues": {fusec.WithValues()}} {
		b.Run(name, func(b *testing.B) {
			n := newMLP(tensor.Float32)
			m := machine(b, n.g, opts...)
			b.ReportAllocs()
			for b.Loop() {
				run(b, m)
			}
		})
	}
}

// An inner value is compared with one that the program hands out as if both were computed alike: rows have their maximum.
func TestInnerValuesComparedWithOutputs(t *testing.T) {
	b := newNet(tensor.Float32)
	// The steps of a recurrence are one launch, which rounds otherwise than their products do.
	w, u, bias, h := b.in("w", 17, 16), b.in("u", 16, 16), b.in("bias", 1, 16), b.in("h", 50, 16)
	for i := range 4 {
		y := must(gorgonia.Add(must(gorgonia.Mul(b.in(fmt.Sprint("x", i), 50, 17), w)), must(gorgonia.Mul(h, u))))
		h = must(gorgonia.Tanh(must(gorgonia.BroadcastAdd(y, bias, nil, []byte{0}))))
	}
	gates := must(gorgonia.SoftMax(must(gorgonia.Mul(h, b.in("v", 16, 6))), 1))
	most := must(gorgonia.Max(gates, 1))
	chosen := must(gorgonia.BroadcastGte(gates, must(gorgonia.Reshape(most, tensor.Shape{50, 1})), true, nil, []byte{1}))
	must(gorgonia.Sum(must(gorgonia.HadamardProd(gates, chosen))))
	var read gorgonia.Value
	gorgonia.Read(most, &read)
	run(t, machine(t, b.g))
	for i, c := range floats(t, chosen.Value()) {
		if g := floats(t, gates.Value())[i]; c == 0 && g > 0.5 {
			t.Fatalf("element %d, %v, is not the largest of its row", i, g)
		}
	}
}

// Nodes that Gorgonia's backward pass shares with the forward one hold values.
func TestInnerValuesOfSharedNodes(t *testing.T) {
	b := newNet(tensor.Float64)
	w := b.in("w", 2, 3)
	y := must(gorgonia.Tanh(w))
	square := must(gorgonia.HadamardProd(y, y)) // the derivative of a tanh is 1 − y·y
	if _, err := gorgonia.Grad(must(gorgonia.Sum(must(gorgonia.Exp(square)))), w); err != nil {
		t.Fatal(err)
	}
	want := reference(t, b.g)(square)
	run(t, machine(t, b.g))
	agrees(t, square, want)
}
