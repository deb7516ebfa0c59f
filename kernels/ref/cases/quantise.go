package cases

import "fusec/graph"

// quantised has values stored in few bits: each type, and scales for all elements, for each channel and for each block.
func (m *maker) quantised() {
	positive := func(dims ...int) Arg { return m.between(0.02, 0.5, dims...) }
	types := append([]graph.DType{graph.I8, graph.U8, graph.I16, graph.U16}, graph.StoredTypes()...)
	for _, d := range types {
		name := d.String()
		stored := func(dims ...int) Arg {
			lo, hi := -7, 8
			if d.IsUnsigned() {
				lo = 0
			}
			return integer(d, lo, hi, dims...)
		}
		m.add(name+"_all", graph.Quantize{To: d}, m.real(3, 5), positive())
		m.add(name+"_channel", graph.Quantize{To: d, Axis: 1}, m.real(2, 3, 5), positive(3))
		m.add(name+"_block", graph.Quantize{To: d, Block: 4}, m.real(9, 3), positive(3, 3))
		m.add(name+"_all", graph.Dequantize{}, stored(7), positive())
		m.add(name+"_channel", graph.Dequantize{Axis: 1}, stored(3, 5), positive(5))
		m.add(name+"_block", graph.Dequantize{Axis: 1, Block: 2}, stored(2, 5, 3), positive(2, 3, 3))
		if d.IsInt() || d == graph.I4 {
			m.add(name+"_zero", graph.Quantize{To: d, Axis: 1}, m.real(3, 5), positive(5), stored(5))
			m.add(name+"_zero", graph.Dequantize{Axis: 0, Block: 3}, stored(5, 3), positive(2, 3), stored(2, 3))
		}
	}
	m.add("empty", graph.Quantize{To: graph.I4}, m.real(0, 3), positive())
	m.add("empty", graph.Dequantize{}, integer(graph.I4, -7, 8, 3, 0), positive())
	m.add("i32", graph.Dequantize{}, integer(graph.I32, -900, 900, 3, 2), positive())

	f32 := func(dims ...int) Arg { return Arg{Type: graph.TypeOf(graph.F32, dims...), Lo: -2, Hi: 2} }
	for _, s := range [][2]int{{1, 1}, {8, 32}, {13, 33}, {40, 70}} {
		k, n := s[0], s[1]
		name := graph.ShapeOf(k, n).String()
		for _, d := range []graph.DType{graph.I4, graph.I8, graph.BF16, graph.F16} {
			of := integer(d, -7, 8, k, n)
			panels := of
			panels.Type.Shape = graph.PanelShape(d, k, n)
			m.add(d.String()+name, graph.PackWeights{}, of)
			front := integer(d, -7, 8, k, 64)
			m.add(d.String()+name+"_stacked", graph.PackWeights{}, front, of)
			of.Type.Shape = graph.ShapeOf(n, k)
			m.add(d.String()+name+"_transposed", graph.PackWeights{Trans: true}, of)
			front.Type.Shape = graph.ShapeOf(32, k)
			m.add(d.String()+name+"_transposed_stacked", graph.PackWeights{Trans: true}, front, front, of)
			if d == graph.I8 {
				m.add(d.String()+name+"_quads", graph.PackWeights{Trans: true, Quads: true}, of)
			}
			if d.Is16() {
				m.add(d.String()+name+"_rounded", graph.PackWeights{To: d}, f32(k, n))
			}
			for _, rows := range []int{1, 2, 5} {
				x := f32(rows, k)
				rowsName := d.String() + name + "_" + graph.ShapeOf(rows).String()
				m.add(rowsName, graph.PanelMatMul{Columns: n}, x, panels)
				m.add(rowsName+"_channel", graph.PanelMatMul{Columns: n}, x, panels, f32(1, n))
				m.add(rowsName+"_block", graph.PanelMatMul{Columns: n, Block: 16}, x, panels, f32((k+15)/16, n))
				halves := Arg{Type: graph.Type{DType: graph.F16, Shape: graph.PanelShape(graph.F16, (k+15)/16, n)}, Lo: -2, Hi: 2}
				m.add(rowsName+"_halves", graph.PanelMatMul{Columns: n, Block: 16}, x, panels, halves)
				if d == graph.BF16 {
					x.Type.DType = d
					m.add(rowsName+"_bf16", graph.PanelMatMul{Columns: n}, x, panels)
				}
				if d.Is16() {
					continue
				}
				m.add(rowsName+"_offset", graph.PanelMatMul{Columns: n, Block: 16}, x, panels, f32((k+15)/16, n), f32((k+15)/16, n))
				quads := panels
				if d == graph.I8 {
					quads.Type.Shape = graph.QuadShape(k, n)
				}
				integers := graph.PanelMatMul{Columns: n, Integers: true}
				if d == graph.I8 {
					m.add(rowsName+"_bytes", integers, integer(graph.U8, 0, 256, rows, k), quads)
				}
				m.add(rowsName+"_integers", integers, x, quads)
				m.add(rowsName+"_integers_channel", integers, x, quads, f32(1, n))
				integers.Block = 16
				m.add(rowsName+"_integers_block", integers, x, quads, f32((k+15)/16, n))
				m.add(rowsName+"_integers_halves", integers, x, quads, halves)
			}
		}
	}
	i8 := integer(graph.I8, -9, 9)
	i8.Type.Shape = graph.PanelShape(graph.I8, 24, 40)
	m.add("batched", graph.PanelMatMul{Columns: 40}, f32(2, 3, 24), i8, f32(1, 40))
	m.add("many", graph.PanelMatMul{Columns: 40}, f32(70, 24), i8, f32(1, 40))
	m.add("many_offset", graph.PanelMatMul{Columns: 40, Block: 8}, f32(70, 24), i8, f32(3, 40), f32(3, 40))
	quads := integer(graph.I8, -128, 128)
	quads.Type.Shape = graph.QuadShape(24, 40)
	m.add("many_bytes", graph.PanelMatMul{Columns: 40, Integers: true}, integer(graph.U8, 0, 256, 70, 24), quads)
	m.add("no_rows", graph.PanelMatMul{Columns: 40}, f32(0, 24), i8, f32(1, 40))
}
