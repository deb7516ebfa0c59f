package graphtest

import "fusec/graph"

// fewBits are the operations on elements of few bits; see [Options].
var fewBits = map[string]bool{"quantize": true, "dequantize": true, "pack_weights": true, "matmul_panels": true}

// scales is scales, or one scale, for a value of shape s, all of the type d, and the axis and the size of the blocks.
func (g *generator) scales(d graph.DType, s graph.Shape) (scale *graph.Node, axis, block int) {
	shape := graph.ShapeOf()
	if s.Rank() > 0 && g.coin() {
		axis = g.r.IntN(s.Rank())
		shape = graph.ShapeOf(s.At(axis))
		if g.coin() {
			block = 1 + g.r.IntN(4)
			shape = s.With(axis, (s.At(axis)+block-1)/block)
		}
	}
	t := graph.NewTensor(graph.Type{DType: d, Shape: shape})
	for i := range shape.Elems() {
		t.SetFloat(i, 0.0625*float64(1+g.r.IntN(16)))
	}
	return g.b.Const(t), axis, block
}

// Operands are constants: no gradient flows through elements of few bits.

// quantize stores a value, and gives the scales that it is stored with.
func (g *generator) quantize() (q, scale *graph.Node, axis, block int) {
	x := g.b.Const(Tensor(g.r, g.float()))
	types := append([]graph.DType{graph.I8, graph.U8, graph.I16, graph.U16}, graph.StoredTypes()...)
	scale, axis, block = g.scales(x.Type.DType, x.Type.Shape)
	return g.b.Add(graph.Quantize{To: oneOf(g, types), Axis: axis, Block: block}, x, scale), scale, axis, block
}

// makeQuantize also reads what it stores, so that nothing else meets elements that are only stored.
func makeQuantize(g *generator) { g.dequantize(g.quantize()) }

func (g *generator) dequantize(q, scale *graph.Node, axis, block int) {
	g.op(graph.Dequantize{Axis: axis, Block: block}, q, scale)
}

// packed is weights [k, n] of four or eight bits in panels.
func (g *generator) packed() (panels *graph.Node, k, n int) {
	k, n = g.dim(), g.dim()
	t := graph.TypeOf([]graph.DType{graph.I4, graph.I8}[g.r.IntN(2)], k, n)
	op := graph.PackWeights{Trans: g.coin()}
	if op.Trans {
		t.Shape = graph.ShapeOf(n, k)
	}
	panels = g.b.Add(op, g.b.Const(Tensor(g.r, t)))
	x := g.b.Const(Tensor(g.r, graph.TypeOf(graph.F32, 1, k)))
	g.product(graph.PanelMatMul{Columns: n}, x, panels)
	return panels, k, n
}

func makePanelMatMul(g *generator) {
	panels, k, n := g.packed()
	op := graph.PanelMatMul{Columns: n, Block: 8}
	x := g.b.Const(Tensor(g.r, graph.TypeOf(graph.F32, g.dim(), k)))
	scale := g.b.Const(Tensor(g.r, graph.TypeOf(graph.F32, op.Blocks(k), n)))
	args := []*graph.Node{x, panels, scale}
	if g.coin() {
		args = append(args, g.b.Const(Tensor(g.r, scale.Type)))
	}
	g.product(op, args...)
}

// product is a product with weights in panels, in the graph's floating-point type.
func (g *generator) product(op graph.PanelMatMul, args ...*graph.Node) {
	y := g.b.Add(op, args...)
	if g.o.Floats == graph.F64 {
		g.op(graph.Cast{To: graph.F64}, y)
		return
	}
	g.add(y)
}
