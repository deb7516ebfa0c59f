// Package passtest holds what the tests of several passes share: graphs as users write them, comparisons of values, and
// descriptions of graphs. No package but tests imports it.
package passtest

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/trace"
	"fusec/lowering"
	"fusec/passes"
)

// Run compiles g, checks that its values stay, and returns the result.
func Run(t testing.TB, g *graph.Graph, cfg passes.Config) (*graph.Graph, *trace.Trace) {
	t.Helper()
	cfg.Verify = true
	h, tr, err := passes.Run(g, cfg)
	if err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(3) {
		r := rand.New(rand.NewPCG(seed, 7))
		if err := Same(g, h, graphtest.Values(r, g)); err != nil {
			t.Fatalf("%v\nbefore: %s\nafter:  %s", err, Ops(g), Ops(h))
		}
		if _, err := Contracts(tr, graphtest.Values(r, g)); err != nil {
			t.Fatalf("%v\nbefore: %s\nafter:  %s", err, Ops(g), Ops(h))
		}
	}
	return h, tr
}

// Lowered is the program of a graph for a device. Its parameters change only by Bind if frozen is set.
func Lowered(t testing.TB, g *graph.Graph, d lowering.Device, frozen bool) *lowering.Program {
	t.Helper()
	final, _, err := passes.Run(g, passes.Config{Target: d, Verify: true, Frozen: frozen})
	if err != nil {
		t.Fatalf("%v\n%s", err, graph.Print(g))
	}
	opts := d.Lowering()
	if frozen {
		opts = append(opts, lowering.Frozen())
	}
	p, err := lowering.Lower(final, d.Name(), opts...)
	if err != nil {
		t.Fatalf("%v\n%s", err, graph.Print(final))
	}
	return p
}

// Ops lists the operations of a graph, sources and constants left out.
func Ops(g *graph.Graph) string {
	var s []string
	for _, n := range g.Nodes {
		if graph.ClassOf(n.Op) != graph.ClassSource {
			s = append(s, Op(n))
		}
	}
	return strings.Join(s, " ")
}

// Op describes an operation in a few characters.
func Op(n *graph.Node) string {
	switch op := n.Op.(type) {
	case graph.Unary:
		if op.Alpha != 0 {
			return fmt.Sprintf("%v(%.4g)", op.Fn, op.Alpha)
		}
		return op.Fn.String()
	case graph.Binary:
		return op.Fn.String()
	case graph.Reduce:
		return fmt.Sprintf("%v%v", op.Fn, op.Axes)
	case graph.MatMul:
		s := "matmul"
		if op.TransA {
			s += "ᵀA"
		}
		if op.TransB {
			s += "ᵀB"
		}
		return s
	case graph.Reshape, graph.Broadcast, graph.Slice:
		return n.Op.OpName() + n.Type.Shape.String()
	case graph.Transpose:
		return "transpose" + op.Perm.String()
	case graph.Cast:
		return "cast " + op.To.String()
	case graph.Softmax:
		return fmt.Sprintf("softmax[%d]", op.Axis)
	case graph.LogSoftmax:
		return fmt.Sprintf("log_softmax[%d]", op.Axis)
	}
	return n.Op.OpName()
}

// Stage finds a stage by name.
func Stage(t testing.TB, tr *trace.Trace, name string) *trace.Stage {
	t.Helper()
	for i := range tr.Stages {
		if tr.Stages[i].Name == name {
			return &tr.Stages[i]
		}
	}
	t.Fatalf("no stage %q", name)
	return nil
}

var line = regexp.MustCompile(` \([^ ]*\.go:\d+\)`)

// WithoutLines is a message without the user's file and line, which change with the tests.
func WithoutLines(s string) string { return line.ReplaceAllString(s, "") }

// Misses lists the missed fusions of a stage, all of the given pattern, without lines.
func Misses(t *testing.T, s *trace.Stage, pattern string) (list []string) {
	t.Helper()
	for _, m := range s.Misses {
		if m.Pattern != pattern {
			t.Errorf("pattern %q", m.Pattern)
		}
		list = append(list, WithoutLines(m.At+": "+m.Reason))
	}
	return list
}

// Matched lists the patterns or rules that a stage applied.
func Matched(s *trace.Stage) string {
	var names []string
	for _, m := range s.Matches {
		names = append(names, m.Pattern)
	}
	return strings.Join(names, " ")
}

var (
	F64 = func(dims ...int) graph.Type { return graph.TypeOf(graph.F64, dims...) }
)

// The spellings that Gorgonia's functions give, as the importer writes them.

// Bias is x plus a bias row: Reshape and Repeat.
func Bias(b *graph.Builder, x, bias *graph.Node) *graph.Node {
	n := x.Type.Shape.At(1)
	return b.Binary(graph.Add, x, b.Broadcast(b.Add(graph.Reshape{Shape: graph.ShapeOf(1, n)}, bias), x.Type.Shape))
}

// Relu is Rectify.
func Relu(b *graph.Builder, x *graph.Node) *graph.Node {
	return b.Binary(graph.Mul, x, b.Add(graph.Cast{To: x.Type.DType}, b.BinaryScalar(graph.Ge, x, 0)))
}

// Leaky is LeakyRelu.
func Leaky(b *graph.Builder, x *graph.Node, alpha float64) *graph.Node {
	ge := b.Add(graph.Cast{To: x.Type.DType}, b.BinaryScalar(graph.Ge, x, 0))
	lt := b.Add(graph.Cast{To: x.Type.DType}, b.BinaryScalar(graph.Lt, x, 0))
	return b.Binary(graph.Add, b.Binary(graph.Mul, x, ge), b.BinaryScalar(graph.Mul, b.Binary(graph.Mul, x, lt), alpha))
}

// Mean is a sum over the given axes divided by the product of their sizes, each a constant.
func Mean(b *graph.Builder, x *graph.Node, axes ...int) *graph.Node {
	var size *graph.Node
	for _, a := range axes {
		d := b.Scalar(x.Type.DType, float64(x.Type.Shape.At(a)))
		if size == nil {
			size = d
		} else {
			size = b.Binary(graph.Mul, size, d)
		}
	}
	return b.Binary(graph.Div, b.Reduce(graph.Sum, x, false, axes...), size)
}

// Spread gives a row statistic of x the shape of x: Reshape and Repeat.
func Spread(b *graph.Builder, s, x *graph.Node) *graph.Node {
	sh := x.Type.Shape
	return b.Broadcast(b.Add(graph.Reshape{Shape: sh.With(sh.Rank()-1, 1)}, s), sh)
}

// LayerNorm is the norm that people write by hand.
func LayerNorm(b *graph.Builder, x, gamma, beta *graph.Node) *graph.Node {
	last := x.Type.Shape.Rank() - 1
	d := b.Binary(graph.Sub, x, Spread(b, Mean(b, x, last), x))
	v := Mean(b, b.Unary(graph.Square, d), last)
	std := b.Unary(graph.Sqrt, b.BinaryScalar(graph.Add, v, 1e-5))
	y := b.Binary(graph.Div, d, Spread(b, std, x))
	if gamma != nil {
		y = b.Binary(graph.Mul, y, b.Broadcast(gamma, x.Type.Shape))
	}
	if beta != nil {
		y = b.Binary(graph.Add, y, b.Broadcast(beta, x.Type.Shape))
	}
	return y
}

// Conv is Conv2d.
func Conv(b *graph.Builder, x, f *graph.Node, stride, pad, dilation int) *graph.Node {
	s := f.Type.Shape
	o, z := s.At(0), s.At(1)*s.At(2)*s.At(3)
	col := b.Add(graph.Im2Col{Kernel: graph.IntsOf(s.At(2), s.At(3)), Stride: graph.IntsOf(stride, stride),
		Dilation: graph.IntsOf(dilation, dilation), Pad: graph.IntsOf(pad, pad, pad, pad)}, x)
	flat := b.Add(graph.Reshape{Shape: graph.ShapeOf(o, z)}, f)
	c := col.Type.Shape
	patch := b.Add(graph.Reshape{Shape: graph.ShapeOf(c.At(0)*c.At(1)*c.At(2), z)}, col)
	y := b.MatMul(patch, flat, false, true)
	y = b.Add(graph.Reshape{Shape: graph.ShapeOf(c.At(0), c.At(1), c.At(2), o)}, y)
	return b.Transpose(y, 0, 3, 1, 2)
}

// Sources lists the inputs and parameters that y depends on.
func Sources(y *graph.Node) []*graph.Node {
	var r []*graph.Node
	seen := map[*graph.Node]bool{y: true}
	for todo := []*graph.Node{y}; len(todo) > 0; todo = todo[1:] {
		if graph.IsSource(todo[0].Op) {
			r = append(r, todo[0])
		}
		for _, a := range todo[0].Args {
			if !seen[a] {
				seen[a] = true
				todo = append(todo, a)
			}
		}
	}
	return r
}

// Launches describes what is left for a target to launch: fusions with their bodies, other operations by name.
func Launches(g *graph.Graph) string { return LaunchesOf(g.Nodes) }

// LaunchesOf is [Launches] of some nodes.
func LaunchesOf(nodes []*graph.Node) string {
	var s []string
	for _, n := range nodes {
		switch op := n.Op.(type) {
		case graph.Fusion:
			s = append(s, fmt.Sprintf("%v{%s}", op.Kind, Ops(op.Body)))
		case graph.Result:
		default:
			if c := graph.ClassOf(op); c != graph.ClassSource && c != graph.ClassView {
				s = append(s, Op(n))
			}
		}
	}
	return strings.Join(s, " ")
}

// Linear is x·w plus a bias.
func Linear(b *graph.Builder, x *graph.Node, name string, n int) *graph.Node {
	s := x.Type.Shape
	y := b.MatMul(x, b.Param(name, F64(s.At(s.Rank()-1), n)), false, false)
	return b.Binary(graph.Add, y, b.Broadcast(b.Param(name+"b", F64(n)), y.Type.Shape))
}
