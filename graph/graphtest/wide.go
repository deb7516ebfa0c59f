package graphtest

import (
	"slices"

	"fusec/graph"
)

// wideSizes are the sizes of axes of [Options.Wide], one list for each graph.
var wideSizes = [][]int{
	{1, 1, 2, 3, 3, 4, 5, 7},
	{1, 1, 1, 1, 1, 2, 3},
	{0, 1, 2, 3, 4},
	{1, 3, 8, 9, 16, 17, 33},
	{2, 4, 8, 16},
}

// rarely is true once in n times if the graph is Wide.
func (g *generator) rarely(n int) bool { return g.o.Wide && g.r.IntN(n) == 0 }

// constant is a new constant: in Wide graphs with values of [Options.Draw], which are sometimes all equal.
func (g *generator) constant(t graph.Type) *graph.Node {
	if !g.o.Wide {
		return g.add(g.b.Const(Tensor(g.r, t)))
	}
	x := fitting(g.r, t, nil, g.o.Draw)
	if g.r.IntN(3) == 0 && t.Shape.Elems() > 0 {
		one := fitting(g.r, t.Reshaped(graph.ShapeOf()), nil, g.o.Draw)
		for i := range t.Shape.Elems() {
			x.SetElem(i, one, 0)
		}
	}
	return g.add(g.b.Const(x))
}

// moved is an operand for operations that only move elements: of any type in Wide graphs, else of floats.
func (g *generator) moved(lo, hi int) *graph.Node {
	if g.rarely(4) {
		d := oneOf(g, append(graph.IntegerTypes(), graph.Bool))
		rank := lo + g.r.IntN(min(hi, 4)-lo+1)
		return g.find(func(t graph.Type) bool {
			return t.DType == d && t.Shape.Rank() >= lo && t.Shape.Rank() <= hi
		}, graph.TypeOf(d, g.dims(rank)...))
	}
	return g.half(g.ofRank(lo, hi))
}

// integer is an operand of integers.
func (g *generator) integer() *graph.Node {
	d := []graph.DType{graph.I32, graph.I64}[g.r.IntN(2)]
	if g.r.IntN(3) == 0 {
		d = oneOf(g, graph.IntegerTypes())
	}
	return g.find(func(t graph.Type) bool { return t.DType == d }, graph.TypeOf(d, g.dims(g.r.IntN(4))...))
}

// oneOf picks an element.
func oneOf[T any](g *generator, list []T) T { return list[g.r.IntN(len(list))] }

func (g *generator) unaryOfIntegers() {
	g.op(graph.Unary{Fn: oneOf(g, graph.UnaryFnsOf(graph.I64))}, g.integer())
}

func (g *generator) binaryOfIntegers() {
	if g.r.IntN(4) == 0 {
		f := oneOf(g, graph.BinaryFnsOf(graph.Bool))
		x := g.of(graph.TypeOf(graph.Bool, g.dims(g.r.IntN(4))...))
		g.op(graph.Binary{Fn: f}, x, g.of(x.Type))
		return
	}
	f := oneOf(g, graph.BinaryFnsOf(graph.I64))
	x := g.integer()
	t := x.Type
	if g.coin() {
		t.Shape = graph.ShapeOf()
	}
	if f.Info().Fails { // its operands are limited by Fit
		y := g.input(t)
		if g.coin() {
			limits := &span{1, 5}
			y = g.add(g.b.Const(fitting(g.r, t, limits, Ordinary)))
		}
		g.nodes = slices.DeleteFunc(g.nodes, func(n *graph.Node) bool { return n == y }) // nothing else limits it
		g.op(graph.Binary{Fn: f}, x, y)
		return
	}
	g.op(graph.Binary{Fn: f}, x, g.of(t))
}

// selectByAny chooses by a Bool of any origin between floats, integers or Bools; each may be a scalar.
func (g *generator) selectByAny() {
	t := g.moved(0, 4).Type
	if t.DType.Is16() {
		t.DType = graph.F32
	}
	scalar := func(t graph.Type) *graph.Node {
		if g.r.IntN(4) == 0 {
			t.Shape = graph.ShapeOf()
		}
		return g.of(t)
	}
	g.op(graph.Select{}, scalar(t.With(graph.Bool)), scalar(t), scalar(t))
}

// results appends an operation with several results and reads some of them, sometimes one twice, sometimes not the
// first.
func (g *generator) results(op graph.Op, args ...*graph.Node) *graph.Node {
	n := g.op(op, args...)
	further := 0
	for i := 1; i < n.Results(); i++ {
		if g.coin() {
			g.op(graph.Result{Index: i}, n)
			further++
		}
	}
	if further > 0 && g.r.IntN(3) == 0 {
		g.nodes = slices.DeleteFunc(g.nodes, func(m *graph.Node) bool { return m == n })
	}
	return n
}

// widerAttention gives an attention a mask of Bools or one that is broadcast, lengths, or dropout.
func (g *generator) widerAttention(op graph.Attention, args []*graph.Node, lead []int) (graph.Attention, []*graph.Node) {
	q, keys := args[0].Type, args[1].Type.Shape
	args = args[:3]
	if op.HasMask {
		dims := append(slices.Clone(q.Shape.Slice()[:q.Shape.Rank()-1]), keys.At(keys.Rank()-2))
		for i := range dims {
			if g.r.IntN(4) == 0 {
				dims[i] = 1
			}
		}
		d := q.DType
		if g.coin() {
			d = graph.Bool
		}
		args = append(args, g.of(graph.TypeOf(d, dims[g.r.IntN(len(dims)):]...)))
	}
	if op.HasLengths = g.coin(); op.HasLengths {
		op.Tail = g.coin()
		d := []graph.DType{graph.I32, graph.I64}[g.r.IntN(2)]
		args = append(args, g.input(graph.TypeOf(d, lead[:max(len(lead)-1, 0)]...)))
	}
	if g.r.IntN(4) == 0 {
		op.Dropout = 0.4
		args = append(args, g.i64(g.r.IntN(100)))
	}
	return op, args
}

// Reversal is a host operation for any graph, with a gradient: the elements from last to first.
var Reversal graph.HostImpl = &reversal{}

type reversal struct{ _ byte } // not of size 0, so that its address is unique

const reversalName = "reversal"

// Do implements graph.HostImpl.
func (*reversal) Do(args []*graph.Tensor) (*graph.Tensor, error) {
	y := graph.NewTensor(args[0].Type)
	n := y.Type.Shape.Elems()
	for i := range n {
		y.SetFloat(i, args[0].Float(n-1-i))
	}
	return y, nil
}

// Gradient implements graph.HostGradient.
func (*reversal) Gradient(b *graph.Builder, n, dy *graph.Node) ([]*graph.Node, error) {
	return []*graph.Node{b.Add(n.Op, dy)}, nil
}

func (g *generator) reversed() {
	x := g.any()
	g.op(graph.Host{Name: reversalName, Type: x.Type, Impl: Reversal}, x)
}
