package graphtest

import "fusec/graph"

func makeTopK(g *generator) {
	x := g.ofRank(1, 4)
	if g.o.Wide {
		g.results(graph.TopK{K: g.r.IntN(last(x) + 1)}, x)
		return
	}
	y := g.op(graph.TopK{K: 1 + g.r.IntN(last(x))}, x)
	g.op(graph.Result{Index: 1}, y)
}

func makeRoute(g *generator) {
	x := g.ofRank(1, 4)
	if last(x) == 0 {
		return
	}
	op := graph.Route{K: 1 + g.r.IntN(last(x)), Capacity: g.r.IntN(3), ExpertChoice: g.coin()}
	if op.ExpertChoice {
		op.Capacity++
	}
	if g.o.Wide {
		g.results(op, x)
		return
	}
	g.op(graph.Result{Index: 1}, g.op(op, x))
}

// makeSample draws from rows, with options that all rows have, or each its own.
func makeSample(g *generator) {
	x := g.ofRank(1, 4)
	if last(x) == 0 {
		return
	}
	s := x.Type.Shape
	rows := s.Slice()[:s.Rank()-1]
	option := func(d graph.DType, v float64) *graph.Node {
		if g.coin() {
			return g.b.Scalar(d, v)
		}
		return g.b.Const(graph.Filled(graph.TypeOf(d, rows...), v))
	}
	g.op(graph.Sample{}, x, option(graph.F32, float64(g.r.IntN(3))/2), option(graph.I64, float64(g.r.IntN(4))),
		option(graph.F32, g.r.Float64()), option(graph.I64, float64(g.r.IntN(100))), g.i64(g.r.IntN(100)))
}

// mixture makes attributes and operands of a mixture of experts over any value of at least one axis, with some gates at
// zero.
func (g *generator) mixture() (graph.MoE, []*graph.Node) {
	x := g.ofRank(1, 3)
	d, s := x.Type.DType, x.Type.Shape
	op := graph.MoE{Experts: 1 + g.r.IntN(3), Activation: oneOf(g, graph.UnaryFnsOf(graph.F32)),
		Alpha: g.r.Float64(), Gated: g.coin(), Bias: g.coin(), Stacked: g.coin(), Dense: g.coin()}
	gates := g.of(graph.Type{DType: d, Shape: s.With(s.Rank()-1, op.Experts)})
	if g.coin() {
		gates = g.op(graph.Unary{Fn: graph.Relu}, gates)
	}
	args := []*graph.Node{x, gates}
	sizes := graph.MoEDims{Width: last(x), Hidden: g.dim(), Result: g.dim()}
	for _, w := range op.Weights() {
		n := 1
		if !op.Stacked {
			n = op.Experts
		}
		for range n {
			args = append(args, g.of(graph.Type{DType: d, Shape: op.WeightShape(sizes, w)}))
		}
	}
	return op, args
}

func makeMoE(g *generator) {
	op, args := g.mixture()
	if g.o.Wide {
		g.results(op, args...)
		return
	}
	g.op(graph.Result{Index: 1}, g.op(op, args...))
}

func makeMoEGrad(g *generator) {
	op, args := g.mixture()
	dy := g.of(g.b.Add(op, args...).Type)
	if g.o.Wide {
		g.results(graph.MoEGrad(op), append(args, dy)...)
		return
	}
	dx := g.op(graph.MoEGrad(op), append(args, dy)...)
	g.op(graph.Result{Index: 1 + g.r.IntN(len(args)-1)}, dx)
}
