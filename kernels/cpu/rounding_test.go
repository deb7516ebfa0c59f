package cpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/graph/body"
	"fusec/graph/graphtest"
	"fusec/kernels/ref/cases"
)

// TestRoundings computes bodies that round and limit, in one instruction where they have that form, and counts the instructions.
func TestRoundings(t *testing.T) {
	wide := func(b *graph.Builder, n *graph.Node) *graph.Node { return b.Broadcast(n, graph.ShapeOf(3, 70)) }
	limit := func(b *graph.Builder, x *graph.Node) *graph.Node {
		return b.BinaryScalar(graph.Max, b.BinaryScalar(graph.Min, x, 200), 10)
	}
	for _, c := range []struct {
		name  string
		steps int
		body  func(b *graph.Builder, in cases.Inputs, x *graph.Node) *graph.Node
	}{
		{"all", 1, func(b *graph.Builder, _ cases.Inputs, x *graph.Node) *graph.Node {
			x = b.Unary(graph.Round, b.BinaryScalar(graph.Mul, x, 90))
			return limit(b, b.BinaryScalar(graph.Add, x, 100))
		}},
		{"divided, a rectifier, nothing added", 1, func(b *graph.Builder, _ cases.Inputs, x *graph.Node) *graph.Node {
			x = b.Unary(graph.Round, b.BinaryScalar(graph.Div, x, 0.0125))
			return b.Unary(graph.Relu, b.BinaryScalar(graph.Min, x, 63))
		}},
		{"no scale", 1, func(b *graph.Builder, _ cases.Inputs, x *graph.Node) *graph.Node {
			return limit(b, b.Unary(graph.Round, x))
		}},
		{"a scale and a zero point that are given", 1, func(b *graph.Builder, in cases.Inputs, x *graph.Node) *graph.Node {
			x = b.Unary(graph.Round, b.Binary(graph.Div, x, wide(b, in(graph.F32))))
			return limit(b, b.Binary(graph.Add, x, wide(b, in(graph.F32))))
		}},
		{"a scale for each column", 2, func(b *graph.Builder, in cases.Inputs, x *graph.Node) *graph.Node {
			return limit(b, b.Unary(graph.Round, b.Binary(graph.Mul, x, wide(b, in(graph.F32, 70)))))
		}},
		{"a zero point for each column", 4, func(b *graph.Builder, in cases.Inputs, x *graph.Node) *graph.Node {
			return limit(b, b.Binary(graph.Add, b.Unary(graph.Round, x), wide(b, in(graph.F32, 70))))
		}},
		{"a bound for each column", 3, func(b *graph.Builder, in cases.Inputs, x *graph.Node) *graph.Node {
			return b.Binary(graph.Min, b.BinaryScalar(graph.Max, b.Unary(graph.Round, x), 0), wide(b, in(graph.F32, 70)))
		}},
		{"one bound", 2, func(b *graph.Builder, _ cases.Inputs, x *graph.Node) *graph.Node {
			return b.BinaryScalar(graph.Max, b.Unary(graph.Round, x), 0)
		}},
		{"another function", 3, func(b *graph.Builder, _ cases.Inputs, x *graph.Node) *graph.Node {
			return b.Unary(graph.Abs, b.BinaryScalar(graph.Max, b.Unary(graph.Round, x), 0))
		}},
		{"another operation", 3, func(b *graph.Builder, _ cases.Inputs, x *graph.Node) *graph.Node {
			return b.BinaryScalar(graph.Sub, b.BinaryScalar(graph.Max, b.Unary(graph.Round, x), 0), 2)
		}},
		{"no rounding", 3, func(b *graph.Builder, _ cases.Inputs, x *graph.Node) *graph.Node {
			return limit(b, b.BinaryScalar(graph.Mul, x, 3))
		}},
		{"a value within is read", 5, func(b *graph.Builder, _ cases.Inputs, x *graph.Node) *graph.Node {
			r := b.Unary(graph.Round, b.BinaryScalar(graph.Mul, x, 90))
			return b.Binary(graph.Add, limit(b, r), r)
		}},
		{"a select", 1, func(b *graph.Builder, in cases.Inputs, x *graph.Node) *graph.Node {
			return b.Add(graph.Select{}, in(graph.Bool, 3, 70), x, x)
		}},
	} {
		f, types := bodied(t, graph.AnchorNone, func(b *graph.Builder, in cases.Inputs) {
			y := c.body(b, in, in(graph.F32, 3, 70))
			b.Output("", y)
			b.Output("", b.CastTo(graph.U8, y))
		})
		r := rand.New(rand.NewPCG(9, 10))
		args := make([]*graph.Tensor, len(types))
		for i, u := range types {
			args[i] = graphtest.Tensor(r, u)
		}
		for i, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), 0.5, 2.5} {
			args[0].SetFloat(i, v)
		}
		checkOp(t, f, args...)
		var in, out []Operand
		for _, u := range types {
			in = append(in, Contiguous(u))
		}
		for _, o := range f.Body.Outputs {
			out = append(out, Contiguous(o.Node.Type))
		}
		lowered, err := body.Lower(f, in, out)
		if err != nil {
			t.Fatal(err)
		}
		p := newCompiler[float32](lowered, lowered.Space)
		if err := p.compile(lowered.Stores[0].Value); err != nil {
			t.Fatal(err)
		}
		if len(p.p.steps) != c.steps {
			t.Errorf("%s: %d instructions, want %d", c.name, len(p.p.steps), c.steps)
		}
	}
}

// TestDynamicRoundings has a scale and a zero point that follow from the least and the largest number, as DynamicQuantizeLinear, of
// all numbers or of each row.
func TestDynamicRoundings(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for _, axes := range []graph.Ints{graph.IntsOf(0, 1), graph.IntsOf(1)} {
		f, types := bodied(t, graph.AnchorRow, func(b *graph.Builder, in cases.Inputs) {
			x := in(graph.F32, 37, 130)
			s := x.Type.Shape
			end := func(fn graph.ReduceFn) *graph.Node { return b.Reduce(fn, x, true, axes.Slice()...) }
			least := b.BinaryScalar(graph.Min, end(graph.MinOf), 0)
			scale := b.BinaryScalar(graph.Div, b.Binary(graph.Sub, b.Unary(graph.Relu, end(graph.MaxOf)), least), 255)
			limit := func(x *graph.Node) *graph.Node { return b.Unary(graph.Relu, b.BinaryScalar(graph.Min, x, 255)) }
			zero := limit(b.Unary(graph.Round, b.Binary(graph.Div, b.Unary(graph.Neg, least), scale)))
			y := b.Unary(graph.Round, b.Binary(graph.Div, x, b.Broadcast(scale, s)))
			b.Output("", b.CastTo(graph.U8, limit(b.Binary(graph.Add, y, b.Broadcast(zero, s)))))
		})
		checkOp(t, f, graphtest.Tensor(r, types[0]))
	}
}
