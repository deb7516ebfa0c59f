package cases

import (
	"math"

	"fusec/graph"
	"fusec/graph/graphtest"
)

func (m *maker) sources() {
	t := graph.TypeOf(m.d, 3, 1)
	m.add("f", graph.Input{Type: t})
	m.add("i64", graph.Input{Type: graph.TypeOf(graph.I64)})
	m.add("f", graph.Param{Type: t})
	m.add("f", graph.State{Type: t})
	m.add("f", graph.Const{Value: graph.Filled(t, 0.1)})
	m.add("bool", graph.Const{Value: graph.Filled(graph.TypeOf(graph.Bool, 2), 1)})
}

func (m *maker) elementwise() {
	for _, f := range graph.UnaryFns() {
		op := graph.Unary{Fn: f.Fn}
		if f.Of.Has(m.d) {
			if op.Fn.HasAlpha() {
				op.Alpha = 0.3
			}
			m.add(f.Name, op, m.within(f.Lo, f.Hi, 3, 1, 5))
		}
		if f.Of.Has(graph.I32) {
			m.add(f.Name+"_i32", op, integer(graph.I32, -9, 10, 7))
		}
		if f.Of.Has(graph.Bool) {
			m.add(f.Name+"_bool", op, boolean(5))
		}
	}
	m.add("scalar", graph.Unary{Fn: graph.Exp}, m.real())
	m.add("empty", graph.Unary{Fn: graph.Exp}, m.real(3, 0))

	for _, f := range graph.BinaryFns() {
		op := graph.Binary{Fn: f.Fn}
		if f.Of.Has(m.d) {
			x := func(dims ...int) Arg { return m.within(f.XLo, f.XHi, dims...) }
			y := func(dims ...int) Arg { return m.within(f.YLo, f.YHi, dims...) }
			m.add(f.Name, op, x(3, 5), y(3, 5))
			m.add(f.Name+"_scalar_right", op, x(3, 5), y())
			m.add(f.Name+"_scalar_left", op, x(), y(3, 5))
			m.add(f.Name+"_scalars", op, x(), y())
		}
		if f.Of.Has(graph.I64) {
			m.add(f.Name+"_i64", op, integer(graph.I64, -6, 7, 8), integer(graph.I64, 1, 5, 8))
		}
		if f.Of.Has(graph.Bool) {
			m.add(f.Name+"_bool", op, boolean(7), boolean(7))
		}
	}

	m.add("full", graph.Select{}, boolean(3, 5), m.real(3, 5), m.real(3, 5))
	m.add("scalar_cond", graph.Select{}, boolean(), m.real(3, 5), m.real(3, 5))
	m.add("scalar_a", graph.Select{}, boolean(3, 5), m.real(), m.real(3, 5))
	m.add("scalar_b", graph.Select{}, boolean(3, 5), m.real(3, 5), m.real())
	m.add("scalars", graph.Select{}, boolean(3, 5), m.real(), m.real())
	m.add("i32", graph.Select{}, boolean(4), integer(graph.I32, -9, 9, 4), integer(graph.I32, -9, 9, 4))

	m.add("one", graph.Custom{Fn: graphtest.Softsign}, m.real(3, 1, 5))
	m.add("scalar", graph.Custom{Fn: graphtest.Softsign}, m.real())
	m.add("empty", graph.Custom{Fn: graphtest.Softsign}, m.real(3, 0))
	m.add("three", graph.Custom{Fn: graphtest.Blend}, m.real(3, 5), m.real(3, 5), m.real(3, 5))
	m.add("scalar_x", graph.Custom{Fn: graphtest.Blend}, m.real(), m.real(3, 5), m.real(3, 5))
	m.add("scalar_z", graph.Custom{Fn: graphtest.Blend}, m.real(3, 5), m.real(3, 5), m.real())
	m.add("scalars", graph.Custom{Fn: graphtest.Blend}, m.real(), m.real(), m.real())

	for _, to := range []graph.DType{graph.F32, graph.F64, graph.I32, graph.I64, graph.Bool} {
		m.add("float_to_"+to.String(), graph.Cast{To: to}, m.between(-9, 9, 3, 2))
		m.add("i32_to_"+to.String(), graph.Cast{To: to}, integer(graph.I32, -9, 9, 5))
		m.add("bool_to_"+to.String(), graph.Cast{To: to}, boolean(5))
	}
}

func (m *maker) contraction() {
	m.add("vectors", graph.MatMul{}, m.real(1, 7), m.real(7, 1))
	m.add("outer", graph.MatMul{}, m.real(3, 1), m.real(1, 5))
	m.add("inner_empty", graph.MatMul{}, m.real(3, 0), m.real(0, 5))
	for _, ta := range []bool{false, true} {
		for _, tb := range []bool{false, true} {
			name := map[bool]string{false: "n", true: "t"}
			op, label := graph.MatMul{TransA: ta, TransB: tb}, name[ta]+name[tb]
			matrices := func(batchA, batchB []int) (a, b Arg) {
				ra, rb := []int{3, 5}, []int{5, 7}
				if ta {
					ra = []int{5, 3}
				}
				if tb {
					rb = []int{7, 5}
				}
				return m.real(append(batchA, ra...)...), m.real(append(batchB, rb...)...)
			}
			for _, k := range []struct {
				name string
				a, b []int
			}{
				{"", nil, nil},
				{"_batched", []int{2, 3}, []int{2, 3}},
				{"_batch_left", []int{2, 3}, nil},
				{"_batch_right", nil, []int{2}},
				{"_broadcast", []int{2, 1}, []int{1, 3}},
				{"_shorter", []int{2, 3}, []int{3}},
			} {
				a, b := matrices(k.a, k.b)
				m.add(label+k.name, op, a, b)
			}
		}
	}
	conv := func(name string, groups, sy, sx, dy, dx int, pad [4]int, x, w Arg) {
		op := graph.Conv2D{Stride: graph.IntsOf(sy, sx), Dilation: graph.IntsOf(dy, dx), Pad: graph.IntsOf(pad[:]...), Groups: groups}
		m.convolutions(name, op, x.Type.Shape, w.Type.Shape)
	}
	conv("plain", 1, 1, 1, 1, 1, [4]int{}, m.real(2, 3, 5, 4), m.real(4, 3, 3, 2))
	conv("pointwise", 1, 1, 1, 1, 1, [4]int{}, m.real(1, 3, 2, 3), m.real(2, 3, 1, 1))
	conv("padded", 1, 1, 1, 1, 1, [4]int{1, 0, 2, 1}, m.real(2, 2, 4, 3), m.real(3, 2, 3, 3))
	conv("strided", 1, 2, 3, 1, 1, [4]int{1, 1, 1, 1}, m.real(1, 2, 6, 5), m.real(3, 2, 3, 2))
	conv("dilated", 1, 1, 1, 2, 3, [4]int{0, 1, 0, 1}, m.real(1, 2, 6, 5), m.real(2, 2, 2, 2))
	conv("grouped", 2, 1, 2, 1, 1, [4]int{1, 1, 1, 1}, m.real(2, 4, 3, 5), m.real(6, 2, 3, 3))
	conv("depthwise", 3, 1, 1, 1, 1, [4]int{1, 1, 1, 1}, m.real(2, 3, 3, 3), m.real(3, 1, 3, 3))
	conv("multiplied", 3, 2, 1, 1, 2, [4]int{0, 2, 1, 1}, m.real(1, 3, 5, 4), m.real(6, 1, 2, 3))
	conv("unread_edge", 1, 3, 2, 1, 1, [4]int{0, 0, 0, 0}, m.real(1, 2, 6, 6), m.real(1, 2, 2, 3))
	conv("ones", 1, 1, 1, 1, 1, [4]int{0, 0, 0, 0}, m.real(1, 1, 1, 1), m.real(1, 1, 1, 1))
	m.separable()
}

// separable adds depthwise convolutions between convolutions of 1×1.
func (m *maker) separable() {
	op := graph.SeparableConv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(1, 1, 1, 1),
		Low: 0, High: 0.5}
	m.add("pointwise after depthwise", op, m.real(2, 5, 4, 3), m.real(3, 3, 1, 3), m.real(3), m.real(1, 1, 3, 2))
	op.Stride, op.High = graph.IntsOf(2, 1), math.Inf(1)
	m.add("expanded", op, m.real(1, 5, 4, 2), m.real(3, 2, 1, 5), m.real(5), m.real(1, 1, 5, 3), m.real(1, 1, 2, 5), m.real(5))
	op.Dilation, op.Pad, op.Low = graph.IntsOf(2, 1), graph.IntsOf(2, 0, 1, 0), math.Inf(-1)
	m.add("dilated", op, m.real(2, 4, 2, 1), m.real(3, 1, 1, 2), m.real(2), m.real(1, 1, 2, 1), m.real(1, 1, 1, 2), m.real(2))
}

// convolutions adds a convolution of images x with filters w, its transpose and its filters' gradient, in all layouts.
func (m *maker) convolutions(name string, op graph.Conv2D, x, w graph.Shape) {
	n, c, height, width := graph.NCHW.ImageDims(x)
	o, perGroup, kh, kw := graph.NCHW.FilterDims(w)
	size := func(i, in, kernel int) int {
		return (in+op.Pad.At(i)+op.Pad.At(i+2)-op.Dilation.At(i)*(kernel-1)-1)/op.Stride.At(i) + 1
	}
	for _, l := range []graph.ImageLayout{graph.NCHW, graph.NHWC} {
		label := name
		if l != graph.NCHW {
			label += "_" + l.String()
		}
		op.Layout = l
		real := func(s graph.Shape) Arg { return m.real(s.Slice()...) }
		image, filters := real(l.Image(n, c, height, width)), real(l.Filters(o, perGroup, kh, kw))
		y := real(l.Image(n, o, size(0, height, kh), size(1, width, kw)))
		m.add(label, op, image, filters)
		m.add(label, graph.Conv2DTranspose{Stride: op.Stride, Dilation: op.Dilation, Pad: op.Pad, Groups: op.Groups,
			H: height, W: width, Layout: l}, y, filters)
		m.add(label, graph.Conv2DFilterGrad{Stride: op.Stride, Dilation: op.Dilation, Pad: op.Pad, Groups: op.Groups,
			KH: kh, KW: kw, Layout: l}, image, y)
	}
}

func (m *maker) reduction() {
	for _, f := range graph.Reductions() {
		for _, keep := range []bool{false, true} {
			label := f.Name
			if keep {
				label += "_keep"
			}
			reduce := func(axes ...int) graph.Reduce {
				return graph.Reduce{Fn: f.Fn, Axes: graph.IntsOf(axes...), Keep: keep}
			}
			m.add(label+"_last", reduce(2), m.real(2, 3, 5))
			m.add(label+"_first", reduce(0), m.real(2, 3, 5))
			m.add(label+"_middle", reduce(1), m.real(2, 3, 5))
			m.add(label+"_outer", reduce(2, 0), m.real(2, 3, 5))
			m.add(label+"_all", reduce(0, 1, 2), m.real(2, 3, 1))
			m.add(label+"_none", reduce(), m.real(2, 3))
		}
		if f.Of.Has(graph.I32) {
			m.add(f.Name+"_i32", graph.Reduce{Fn: f.Fn, Axes: graph.IntsOf(1)}, integer(graph.I32, -4, 5, 3, 4))
		}
	}
	for _, f := range graph.Pools() {
		for _, count := range []bool{false, true} {
			label := f.Name
			if count {
				label += "_count"
			}
			two := func(name string, ky, kx, sy, sx int, pad [4]int, oh, ow int, x Arg) {
				p := graph.Pool{Fn: f.Fn, Kernel: graph.IntsOf(ky, kx), Stride: graph.IntsOf(sy, sx), Pad: graph.IntsOf(pad[:]...),
					CountPad: count}
				m.add(label+name, p, x)
				s := x.Type.Shape
				m.add(label+name, graph.PoolGrad(p), x, m.real(s.At(0), s.At(1), oh, ow))
				p.Layout = graph.NHWC
				x = m.real(s.At(0), s.At(2), s.At(3), s.At(1))
				m.add(label+name+"_nhwc", p, x)
				m.add(label+name+"_nhwc", graph.PoolGrad(p), x, m.real(s.At(0), oh, ow, s.At(1)))
			}
			two("_plain", 2, 2, 2, 2, [4]int{}, 2, 2, m.real(2, 3, 5, 4))
			two("_overlapping", 3, 2, 1, 1, [4]int{}, 3, 3, m.real(1, 2, 5, 4))
			two("_padded", 3, 3, 2, 1, [4]int{1, 1, 1, 0}, 3, 3, m.real(1, 2, 5, 4))
		}
	}
}

func (m *maker) movement() {
	m.add("flat", graph.Reshape{Shape: graph.ShapeOf(15)}, m.real(3, 5))
	m.add("to_scalar", graph.Reshape{}, m.real(1, 1))
	m.add("i32", graph.Reshape{Shape: graph.ShapeOf(2, 3)}, integer(graph.I32, -9, 9, 6))
	m.add("2d", graph.Transpose{Perm: graph.IntsOf(1, 0)}, m.real(3, 5))
	m.add("4d", graph.Transpose{Perm: graph.IntsOf(2, 0, 3, 1)}, m.real(2, 3, 1, 5))
	m.add("scalar", graph.Broadcast{Shape: graph.ShapeOf(2, 3)}, m.real())
	m.add("rows", graph.Broadcast{Shape: graph.ShapeOf(4, 3)}, m.real(3))
	m.add("inner", graph.Broadcast{Shape: graph.ShapeOf(2, 3, 4)}, m.real(3, 1))
	m.add("bool", graph.Broadcast{Shape: graph.ShapeOf(2, 3)}, boolean(2, 1))
	m.add("first", graph.Slice{Axis: 0, Size: 2, Step: 1}, m.real(4, 3), integer(graph.I64, 0, 3))
	m.add("steps", graph.Slice{Axis: 1, Size: 2, Step: 3}, m.real(2, 7), integer(graph.I64, 0, 4))
	m.add("i64", graph.Slice{Axis: 0, Size: 1, Step: 1}, integer(graph.I64, -5, 5, 3), integer(graph.I64, 0, 3))
	m.add("first", graph.Unslice{Axis: 0, Size: 4, Step: 1}, m.real(2, 3), integer(graph.I64, 0, 3))
	m.add("steps", graph.Unslice{Axis: 1, Size: 7, Step: 3}, m.real(2, 2), integer(graph.I64, 0, 4))
	m.add("first", graph.UpdateSlice{Axis: 0}, m.real(4, 3), m.real(2, 3), integer(graph.I64, 0, 3))
	m.add("middle", graph.UpdateSlice{Axis: 1}, m.real(2, 5, 3), m.real(2, 1, 3), integer(graph.I64, 0, 5))
	m.add("whole", graph.UpdateSlice{Axis: 1}, m.real(2, 3), m.real(2, 3), integer(graph.I64, 0, 1))
	m.add("i64", graph.UpdateSlice{Axis: 0}, integer(graph.I64, -5, 5, 3), integer(graph.I64, -5, 5, 1), integer(graph.I64, 0, 3))
	m.add("one", graph.Concat{Axis: 0}, m.real(2, 3))
	m.add("rows", graph.Concat{Axis: 0}, m.real(2, 3), m.real(1, 3), m.real(3, 3))
	m.add("columns", graph.Concat{Axis: 1}, m.real(2, 3, 2), m.real(2, 1, 2))
	m.add("zeros", graph.Pad{Lo: graph.IntsOf(1, 0), Hi: graph.IntsOf(0, 2)}, m.real(2, 3))
	m.add("value", graph.Pad{Lo: graph.IntsOf(0, 2, 1), Hi: graph.IntsOf(1, 0, 1), Value: -1.5}, m.real(2, 1, 3))
	option := func(d graph.DType, lo, hi float64, dims ...int) Arg {
		return Arg{Type: graph.TypeOf(d, dims...), Lo: lo, Hi: hi}
	}
	m.add("rows", graph.Sample{}, m.real(3, 2, 7), option(graph.F32, 0.5, 2, 3, 2), integer(graph.I64, 0, 9, 3, 2),
		option(graph.F32, 0.3, 1.1, 3, 2), integer(graph.I64, 0, 99, 3, 2), integer(graph.I64, 0, 99, 3, 2))
	m.add("vector", graph.Sample{}, m.real(65), option(graph.F32, 0.5, 2), integer(graph.I64, 0, 40), option(graph.F32, 0.3, 1.1),
		integer(graph.I64, 0, 99), integer(graph.I64, 0, 99))
	m.add("greatest", graph.Sample{}, m.real(5, 1), option(graph.F32, -1, 0), integer(graph.I64, 0, 1), option(graph.F32, 0, 1),
		integer(graph.I64, 0, 99, 5), integer(graph.I64, 0, 99))
	m.add("no_rows", graph.Sample{}, m.real(0, 3), option(graph.F32, 0, 1), integer(graph.I64, 0, 1), option(graph.F32, 0, 1),
		integer(graph.I64, 0, 99), integer(graph.I64, 0, 99))
	m.add("f", graph.Copy{}, m.real(3, 5))
	for _, f := range graph.Reductions() {
		if f.OfGroup {
			m.add(f.Name, graph.AllReduce{Fn: f.Fn}, m.real(3, 5))
		}
	}
	m.add("i32", graph.AllReduce{Fn: graph.Sum}, integer(graph.I32, -9, 9, 4))
	one := graph.Group{Parts: 1}
	for _, f := range []graph.ReduceFn{graph.Sum, graph.Mean, graph.MaxOf, graph.MinOf} {
		m.add("one_"+f.String(), graph.AllReduce{Fn: f, Group: one}, m.real(3, 5))
	}
	for _, f := range []graph.ReduceFn{graph.Sum, graph.Mean} {
		m.add("one_"+f.String(), graph.ReduceScatter{Fn: f, Axis: 1, Group: one}, m.real(3, 5))
	}
	m.add("one", graph.AllGather{Axis: 1, Group: one}, m.real(3, 5))
	m.add("one_bool", graph.AllGather{Axis: 0, Group: one}, boolean(3, 5))
	m.add("one", graph.AllToAll{Split: 0, Join: 1, Group: one}, m.real(3, 5))
	m.add("one", graph.Part{Axis: 1, Group: one}, m.real(3, 5, 2))
	m.add("after another", graph.Part{Axis: 1, Group: one}, m.real(3, 5), m.real(2))
	m.add("one", graph.Permute{Shift: -1, Group: one}, m.real(3, 5))
	m.add("after another", graph.Permute{Shift: -1, Group: one}, m.real(3, 5), m.real(2))
	m.add("one", graph.BroadcastFrom{Group: one}, m.real(3, 5))

	patches := func(name string, ky, kx, sy, sx, dy, dx int, pad [4]int, oh, ow int, x Arg) {
		o := graph.Im2Col{Kernel: graph.IntsOf(ky, kx), Stride: graph.IntsOf(sy, sx), Dilation: graph.IntsOf(dy, dx),
			Pad: graph.IntsOf(pad[:]...)}
		s := x.Type.Shape
		m.add(name, o, x)
		m.add(name, graph.Col2Im{Kernel: o.Kernel, Stride: o.Stride, Dilation: o.Dilation, Pad: o.Pad, H: s.At(2), W: s.At(3)},
			m.real(s.At(0), oh, ow, s.At(1)*ky*kx))
	}
	patches("plain", 3, 2, 1, 1, 1, 1, [4]int{}, 3, 3, m.real(2, 3, 5, 4))
	patches("padded", 3, 3, 2, 1, 1, 1, [4]int{1, 2, 1, 0}, 2, 4, m.real(1, 2, 4, 4))
	patches("dilated", 2, 2, 1, 2, 3, 1, [4]int{0, 1, 0, 1}, 2, 3, m.real(1, 2, 5, 4))
}

func (m *maker) indexing() {
	m.add("rows", graph.Gather{Axis: 0}, m.real(5, 3), integer(graph.I64, 0, 5, 7))
	m.add("scalar", graph.Gather{Axis: 1}, m.real(2, 3), integer(graph.I32, 0, 3))
	m.add("middle", graph.Gather{Axis: 1}, m.real(2, 4, 3), integer(graph.I32, 0, 4, 2, 3))
	m.add("i32", graph.Gather{Axis: 0}, integer(graph.I32, -9, 9, 5), integer(graph.I32, 0, 5, 4))
	m.add("rows", graph.ScatterAdd{Axis: 0, Size: 5}, integer(graph.I64, 0, 5, 7), m.real(7, 3))
	m.add("scalar", graph.ScatterAdd{Axis: 1, Size: 3}, integer(graph.I32, 0, 3), m.real(2))
	m.add("middle", graph.ScatterAdd{Axis: 1, Size: 4}, integer(graph.I32, 0, 4, 2, 3), m.real(2, 2, 3, 3))
	m.add("i32", graph.ScatterAdd{Axis: 0, Size: 3}, integer(graph.I32, 0, 3, 6), integer(graph.I32, -9, 9, 6))
}

func (m *maker) random() {
	seed := integer(graph.I64, -1000, 1000)
	m.add("half", graph.Dropout{P: 0.5}, m.real(3, 7), seed)
	m.add("none", graph.Dropout{}, m.real(5), seed)
	for d := graph.Uniform; d <= graph.Bernoulli; d++ {
		m.add(d.String(), graph.Random{Dist: d, A: 0.25, B: 2, Type: graph.TypeOf(m.d, 3, 5)}, seed)
	}
}

func (m *maker) composites() {
	for axis := range 3 {
		m.add(string(rune('0'+axis)), graph.Softmax{Axis: axis}, m.between(-4, 4, 2, 3, 5)).gives(m.real(2, 3, 5))
		m.add(string(rune('0'+axis)), graph.LogSoftmax{Axis: axis}, m.between(-4, 4, 2, 3, 5)).gives(m.real(2, 3, 5))
	}
	m.refuse("axis 2", graph.Softmax{Axis: 2}, m.real(2, 3))
	m.refuse("axis -1", graph.LogSoftmax{Axis: -1}, m.real(2, 3))
	m.add("one", graph.Softmax{Axis: 1}, m.real(3, 1))
	m.add("one", graph.LogSoftmax{Axis: 1}, m.real(3, 1))
	m.add("2d", graph.LayerNorm{Eps: 1e-5}, m.real(3, 7), m.real(7), m.real(7)).gives(m.real(3, 7))
	m.add("3d", graph.LayerNorm{Eps: 0.1}, m.real(2, 1, 5), m.real(5), m.real(5))
	m.refuse("needs f32[7], not f32[3]", graph.LayerNorm{}, m.real(3, 7), m.real(7), m.real(3))
	m.refuse("at least one axis", graph.LayerNorm{}, m.real(), m.real(7), m.real(7))
	m.add("2d", graph.RMSNorm{Eps: 1e-5}, m.real(3, 7), m.real(7)).gives(m.real(3, 7))
	m.add("3d", graph.RMSNorm{Eps: 0.1}, m.real(2, 1, 5), m.real(5))
	m.refuse("needs f32[7], not f64[7]", graph.RMSNorm{}, m.real(3, 7), Arg{Type: graph.TypeOf(graph.F64, 7)})
	for _, train := range []bool{true, false} {
		label := map[bool]string{true: "train", false: "eval"}[train]
		op := graph.BatchNorm{Eps: 1e-3, Momentum: 0.9, Train: train}
		vector := func(n int) []Arg { return []Arg{m.real(n), m.real(n), m.real(n), m.between(0.5, 2, n)} }
		m.add(label+"_4d", op, append([]Arg{m.real(2, 3, 2, 3)}, vector(3)...)...)
		m.add(label+"_2d", op, append([]Arg{m.real(5, 3)}, vector(3)...)...)
		m.add(label+"_one_channel", op, append([]Arg{m.real(4, 1, 3)}, vector(1)...)...)
	}
	m.add("two", graph.GroupNorm{Groups: 2, Eps: 1e-3}, m.real(2, 4, 3, 1), m.real(4), m.real(4)).gives(m.real(2, 4, 3, 1))
	m.refuse("multiple of 3 groups", graph.GroupNorm{Groups: 3}, m.real(2, 4, 5), m.real(4), m.real(4))
	m.add("instance", graph.GroupNorm{Groups: 3, Eps: 1e-3}, m.real(2, 3, 5), m.real(3), m.real(3))
	m.add("layer", graph.GroupNorm{Groups: 1, Eps: 1e-3}, m.real(2, 3), m.real(3), m.real(3))
	ints := func(dims ...int) Arg { return integer(graph.I32, -9, 9, dims...) }
	m.refuse("needs f32 or f64", graph.Softmax{}, ints(2, 3))
	m.refuse("needs f32 or f64", graph.LayerNorm{}, ints(2, 3), m.real(3), m.real(3))
	m.refuse("needs f32 or f64", graph.GroupNorm{Groups: 2}, ints(2, 4, 3), m.real(4), m.real(4))
}
