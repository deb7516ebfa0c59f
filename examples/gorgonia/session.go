package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// A program is a typical program written with Gorgonia.
type program struct {
	name, doc string
	run       func(*session) // panics with its error
	// tolerance is how far a number may be from the TapeMachine's, relative to the larger of 1 and its absolute value.
	// In float32, rounding differences grow from step to step of training.
	tolerance float64
	// inner says that the program reads values inside the graph. A TapeMachine reuses their memory for other values,
	// unless gorgonia.TraceExec makes it keep copies.
	inner bool
}

// A session provides a program with machines, and with random numbers that are the same in each run.
type session struct {
	machines
	*rand.Rand
	seen []sight
}

// A sight is a value that a program read.
type sight struct {
	what   string
	values []float64
}

func newSession(m machines) *session {
	return &session{machines: m, Rand: rand.New(rand.NewPCG(1, 2))}
}

// see records a value that the program reads: a loss, a prediction, a weight after training.
func (s *session) see(what string, v any) {
	var values []float64
	switch v := v.(type) {
	case float32:
		values = []float64{float64(v)}
	case float64:
		values = []float64{v}
	case int:
		values = []float64{float64(v)}
	case []float32:
		for _, x := range v {
			values = append(values, float64(x))
		}
	case []float64:
		values = slices.Clone(v)
	case gorgonia.Value:
		if v == nil {
			panic(what + ": no value")
		}
		s.see(what, v.Data())
		return
	default:
		panic(fmt.Sprintf("%s: a value of type %T", what, v))
	}
	s.seen = append(s.seen, sight{what, values})
}

// seeAll is see for the values of nodes, under their names.
func (s *session) seeAll(nodes gorgonia.Nodes) {
	for _, n := range nodes {
		s.see(n.Name(), n.Value())
	}
}

// train does steps of training as most programs do: one machine binds the gradients of the weights, feed gives the inputs their
// values, and the solver changes the weights. The program sees the cost of each step.
func (s *session) train(steps int, solver gorgonia.Solver, weights gorgonia.Nodes, cost func() gorgonia.Value, feed func()) {
	vm := s.tape(weights[0].Graph(), gorgonia.BindDualValues(weights...))
	defer vm.Close()
	for range steps {
		feed()
		must1(vm.RunAll())
		s.see("cost", cost())
		must1(solver.Step(gorgonia.NodesToValueGrads(weights)))
		vm.Reset()
	}
}

// held is what a variable of gorgonia.Read holds after a run.
func held(v *gorgonia.Value) func() gorgonia.Value { return func() gorgonia.Value { return *v } }

// same compares the values of two runs.
func same(want, got []sight, tolerance float64) (values int, largest float64, err error) {
	if len(want) != len(got) {
		return 0, 0, fmt.Errorf("the program saw %d values, and %d on the TapeMachine", len(got), len(want))
	}
	for i, w := range want {
		g := got[i]
		if g.what != w.what || len(g.values) != len(w.values) {
			return 0, 0, fmt.Errorf("value %d is %s of %d elements, and %s of %d on the TapeMachine",
				i, g.what, len(g.values), w.what, len(w.values))
		}
		for j, x := range w.values {
			y := g.values[j]
			if x == y || math.IsNaN(x) && math.IsNaN(y) {
				continue
			}
			d := math.Abs(x-y) / max(1, math.Abs(x))
			if !(d <= tolerance) {
				return 0, 0, fmt.Errorf("%s (value %d of %d), element %d: %v, and %v on the TapeMachine", w.what, i, len(want), j, y, x)
			}
			largest = max(largest, d)
		}
		values += len(w.values)
	}
	return values, largest, nil
}

// normal draws a tensor of normally distributed numbers.
func (s *session) normal(dt tensor.Dtype, deviation float64, shape ...int) *tensor.Dense {
	return s.fill(dt, shape, func() float64 { return deviation * s.NormFloat64() })
}

// uniform draws a tensor of numbers between low and high.
func (s *session) uniform(dt tensor.Dtype, low, high float64, shape ...int) *tensor.Dense {
	return s.fill(dt, shape, func() float64 { return low + (high-low)*s.Float64() })
}

func (s *session) fill(dt tensor.Dtype, shape []int, draw func() float64) *tensor.Dense {
	n := tensor.Shape(shape).TotalSize()
	if dt == tensor.Float32 {
		data := make([]float32, n)
		for i := range data {
			data[i] = float32(draw())
		}
		return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(data))
	}
	data := make([]float64, n)
	for i := range data {
		data[i] = draw()
	}
	return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(data))
}

// weight is a parameter with Glorot's initial values.
func (s *session) weight(g *gorgonia.ExprGraph, dt tensor.Dtype, name string, shape ...int) *gorgonia.Node {
	in, out := shape[0], shape[len(shape)-1]
	if len(shape) == 4 { // a filter
		in, out = shape[1]*shape[2]*shape[3], shape[0]*shape[2]*shape[3]
	}
	v := s.normal(dt, math.Sqrt(2/float64(in+out)), shape...)
	return gorgonia.NewTensor(g, dt, len(shape), gorgonia.WithShape(shape...), gorgonia.WithName(name), gorgonia.WithValue(v))
}

// input is a node without a value.
func input(g *gorgonia.ExprGraph, dt tensor.Dtype, name string, shape ...int) *gorgonia.Node {
	return gorgonia.NewTensor(g, dt, len(shape), gorgonia.WithShape(shape...), gorgonia.WithName(name))
}

// oneHot is a matrix with a 1 in each row, in the column of its class.
func oneHot(dt tensor.Dtype, columns int, classes ...int) *tensor.Dense {
	t := tensor.New(tensor.Of(dt), tensor.WithShape(len(classes), columns))
	for i, c := range classes {
		if dt == tensor.Float32 {
			t.Float32s()[i*columns+c] = 1
		} else {
			t.Float64s()[i*columns+c] = 1
		}
	}
	return t
}

// must1 is gorgonia.Must for functions that return only an error.
func must1(err error) {
	if err != nil {
		panic(err)
	}
}

// must is gorgonia.Must for any value.
func must[T any](v T, err error) T {
	must1(err)
	return v
}
