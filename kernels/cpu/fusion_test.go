package cpu

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/ref"
	"fusec/kernels/ref/cases"
)

// bodied is a fusion, with the types of its operands.
func bodied(t *testing.T, anchor graph.Anchor, build func(b *graph.Builder, in cases.Inputs)) (graph.Fusion, []graph.Type) {
	t.Helper()
	f, types, err := cases.Bodied(anchor, build)
	if err != nil {
		t.Fatal(err)
	}
	return f, types
}

// TestFusions computes bodies of every form, on 1, 2 and 3 workers.
func TestFusions(t *testing.T) {
	for _, tt := range cases.Fusions() {
		t.Run(tt.Name, func(t *testing.T) {
			op, types, err := tt.Op()
			if err != nil {
				t.Fatal(err)
			}
			r := rand.New(rand.NewPCG(1, 2))
			args := make([]*graph.Tensor, len(types))
			for i, u := range types {
				lo, hi := -1.5, 1.5
				if u.DType.IsInt() {
					lo, hi = -20, 20
				}
				args[i] = drawTensor(r, u.DType, lo, hi, u.Shape.Slice()...)
			}
			checkOp(t, op, args...)
		})
	}
}

// TestLines computes elementwise work and reductions over short lines, several of which a segment covers, with vectors along
// the lines, and across them, of which the registers keep what repeats. The parts of a body share the registers' memory.
func TestLines(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	d := []graph.DType{graph.F32, graph.F64}
	for range 30 {
		rows, n := 1+r.IntN(40), 1+r.IntN(300)
		if r.IntN(2) == 0 {
			rows, n = 1+r.IntN(400), 1+r.IntN(20)
		}
		lines := func(b *graph.Builder, in cases.Inputs, rows, n int) *graph.Node {
			d := d[r.IntN(len(d))]
			spread := func(dims ...int) *graph.Node {
				of := []graph.DType{d, graph.BF16, d}[r.IntN(3)]
				v := b.Broadcast(in(of, dims...), graph.ShapeOf(rows, 3, n))
				if of != d {
					v = b.Add(graph.Cast{To: d}, v)
				}
				return v
			}
			x := b.Binary(graph.Mul, in(d, rows, 3, n), spread(n))
			for range r.IntN(3) {
				with := [][]int{{n}, {3, n}, {3, 1}, {1}, {rows, 1, 1}, {rows, 1, n}}[r.IntN(6)]
				x = b.Binary(graph.Sub, x, spread(with...))
			}
			return x
		}
		op, types := bodied(t, graph.AnchorNone, func(b *graph.Builder, in cases.Inputs) {
			b.Output("", lines(b, in, rows, n))
			if r.IntN(3) > 0 { // a part of another shape
				x := lines(b, in, 1+r.IntN(200), 1+r.IntN(30))
				b.Output("", b.Unary(graph.Relu, x))
				b.Output("", b.BinaryScalar(graph.Gt, x, 0))
			}
		})
		if r.IntN(3) == 0 {
			op, types = bodied(t, graph.AnchorRow, func(b *graph.Builder, in cases.Inputs) {
				x := lines(b, in, rows, n)
				b.Output("", b.Reduce(graph.Mean, b.Unary(graph.Square, x), false, 0, 1))
				b.Output("", b.Reduce(graph.MaxOf, x, false, 0, 1))
			})
		}
		args := make([]*graph.Tensor, len(types))
		for i, u := range types {
			args[i] = drawTensor(r, u.DType, -1.5, 1.5, u.Shape.Slice()...)
		}
		checkOp(t, op, args...)
	}
}

// TestFusionErrors names what has no place in a body.
func TestFusionErrors(t *testing.T) {
	const f32 = graph.F32
	type inputs = func(d graph.DType, dims ...int) *graph.Node
	conv := graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(1, 1, 1, 1), Groups: 1}
	grouped := conv
	grouped.Groups = 2
	input := func(b *graph.Builder, in inputs) { b.Output("", b.Unary(graph.Exp, in(f32, 4))) }
	spreadOf := func(b *graph.Builder, x *graph.Node) *graph.Node {
		return b.Broadcast(b.Unary(graph.Exp, x), graph.ShapeOf(4, 6))
	}
	unseen := func(b *graph.Builder, in inputs) *graph.Node {
		return b.Reshape(b.Transpose(in(f32, 6, 4), 1, 0), 24)
	}
	for _, tt := range []struct {
		want   string
		anchor graph.Anchor
		build  func(b *graph.Builder, in inputs)
	}{
		{"a fusion of anchor 99 has no form", graph.Anchor(99), input},
		{"a fusion of anchor row without one", graph.AnchorRow, input},
		{"a fusion of anchor matmul without one", graph.AnchorMatMul, input},
		{"a fusion of anchor conv without one", graph.AnchorConv, input},
		{"matmul %3 has no place in a body", graph.AnchorMatMul, func(b *graph.Builder, in inputs) { // products side by side
			x, y := in(f32, 4, 4), in(f32, 4, 4)
			b.Output("", b.MatMul(x, y, false, false))
			b.Output("", b.MatMul(y, x, false, false))
		}},
		{"concat %1 has no place in a body", graph.AnchorNone, func(b *graph.Builder, in inputs) {
			b.Output("", b.Unary(graph.Exp, b.Add(graph.Concat{}, in(f32, 4))))
		}},
		{"const %1 is not one number", graph.AnchorNone, func(b *graph.Builder, in inputs) {
			c, _ := graph.TensorOf([]float32{1, 2}, 2)
			b.Output("", b.Binary(graph.Add, in(f32, 2), b.Const(c)))
		}},
		{"exp %1: a value of shape [6] has no place in an iteration space of [4,6]", graph.AnchorNone, func(b *graph.Builder, in inputs) {
			b.Output("", b.Unary(graph.Exp, spreadOf(b, in(f32, 6))))
		}},
		{"reshape %2 cannot be read through strides", graph.AnchorNone, func(b *graph.Builder, in inputs) {
			b.Output("", b.Unary(graph.Exp, unseen(b, in)))
		}},
		{"reshape %2 cannot be read through strides", graph.AnchorNone, func(b *graph.Builder, in inputs) {
			b.Output("", b.Unary(graph.Exp, b.Unary(graph.Exp, b.Slice(unseen(b, in), 0, 0, 3, 1))))
		}},
		{"add %3: a value of shape [5] has no place in an iteration space of [4,6]", graph.AnchorNone, func(b *graph.Builder, in inputs) {
			x := b.Unary(graph.Exp, in(f32)) // which makes one segment of both
			b.Output("", b.Binary(graph.Add, x, in(f32, 5)))
			b.Output("", b.Binary(graph.Add, x, in(f32, 4, 6)))
		}},
		{"reshape %2 cannot be stored through strides", graph.AnchorNone, func(b *graph.Builder, in inputs) {
			y := b.Transpose(b.Reshape(b.Unary(graph.Exp, in(f32, 6, 4)), 3, 2, 4), 1, 0, 2)
			b.Output("", b.Reshape(y, 24))
		}},
		{"a seed that is computed in the same launch", graph.AnchorNone, func(b *graph.Builder, in inputs) {
			b.Output("", b.Add(graph.Dropout{P: 0.5}, in(graph.F64), b.BinaryScalar(graph.Add, in(graph.I64), 1)))
		}},
		{"concat %2 has no place", graph.AnchorNone, func(b *graph.Builder, in inputs) {
			b.Output("", b.Add(graph.Dropout{P: 0.5}, in(f32), b.Reshape(b.Add(graph.Concat{}, in(graph.I64, 1)))))
		}},
		{"reshape %2 cannot be read", graph.AnchorNone, func(b *graph.Builder, in inputs) {
			b.Output("", b.Add(graph.Dropout{P: 0.5}, unseen(b, in), in(graph.I64)))
		}},
		{"reshape %2 cannot be read", graph.AnchorRow, func(b *graph.Builder, in inputs) {
			b.Output("", b.Add(graph.Softmax{}, unseen(b, in)))
		}},
		{"reshape %2 cannot be read", graph.AnchorRow, func(b *graph.Builder, in inputs) {
			b.Output("", b.Reduce(graph.Sum, b.Reshape(b.Broadcast(unseen(b, in), graph.ShapeOf(9999, 24)), 9999, 24), false, 0))
		}},
		{"a value of shape [7] has no place in an iteration space of [9999,4]", graph.AnchorRow, func(b *graph.Builder, in inputs) {
			b.Output("", b.Reduce(graph.Sum, in(f32, 9999, 4), false, 0))
			b.Output("", b.Unary(graph.Exp, in(f32, 7)))
		}},
		{"reshape %2 cannot be read", graph.AnchorMatMul, func(b *graph.Builder, in inputs) {
			b.Output("", b.MatMul(b.Reshape(unseen(b, in), 4, 6), in(f32, 6, 4), false, false))
		}},
		{"reshape %3 cannot be read", graph.AnchorMatMul, func(b *graph.Builder, in inputs) {
			b.Output("", b.MatMul(in(f32, 4, 6), b.Reshape(unseen(b, in), 6, 4), false, false))
		}},
		{"exp %1, an operand of matmul %3, is computed in the same launch", graph.AnchorMatMul, func(b *graph.Builder, in inputs) {
			b.Output("", b.MatMul(b.Unary(graph.Exp, in(f32, 4, 4)), in(f32, 4, 4), false, false))
		}},
		{"has no place in an iteration space of [4,4]", graph.AnchorMatMul, func(b *graph.Builder, in inputs) {
			b.Output("", b.MatMul(in(f32, 4, 6), in(f32, 6, 4), false, false))
			b.Output("", b.Unary(graph.Exp, in(f32, 7)))
		}},
		{"reshape %2 cannot be read", graph.AnchorConv, func(b *graph.Builder, in inputs) {
			b.Output("", b.Add(conv, b.Reshape(unseen(b, in), 1, 1, 4, 6), in(f32, 1, 1, 3, 3)))
		}},
		{"reshape %3 cannot be read", graph.AnchorConv, func(b *graph.Builder, in inputs) {
			b.Output("", b.Add(conv, in(f32, 1, 1, 4, 6), b.Reshape(unseen(b, in), 2, 1, 3, 4)))
		}},
		{"exp %1, an operand of conv2d %3, is computed in the same launch", graph.AnchorConv, func(b *graph.Builder, in inputs) {
			b.Output("", b.Add(conv, b.Unary(graph.Exp, in(f32, 1, 1, 4, 6)), in(f32, 1, 1, 3, 3)))
		}},
		{"broadcast %2, an operand of matmul %3, is computed in the same launch", graph.AnchorMatMul, func(b *graph.Builder, in inputs) {
			b.Output("", b.MatMul(in(f32, 4, 6), b.Broadcast(b.Scalar(f32, 2), graph.ShapeOf(6, 4)), false, false))
		}},
		{"filters that are not side by side", graph.AnchorConv, func(b *graph.Builder, in inputs) {
			b.Output("", b.Add(grouped, in(f32, 1, 4, 4, 6), b.Transpose(in(f32, 2, 3, 3, 4), 3, 0, 2, 1)))
		}},
		{"has no place in an iteration space of [1,1,4,6]", graph.AnchorConv, func(b *graph.Builder, in inputs) {
			b.Output("", b.Add(conv, in(f32, 1, 1, 4, 6), in(f32, 1, 1, 3, 3)))
			b.Output("", b.Unary(graph.Exp, in(f32, 7)))
		}},
	} {
		op, types := bodied(t, tt.anchor, func(b *graph.Builder, in inputs) { tt.build(b, in) })
		args := make([]*graph.Tensor, len(types))
		for i, u := range types {
			args[i] = graph.NewTensor(u)
		}
		p := pool.New(1)
		if _, err := stand(op, args, p); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("error %v, want one about %s", err, tt.want)
		}
		p.Close()
	}
}

// TestLongChain compiles and runs a body whose values follow one another.
func TestLongChain(t *testing.T) {
	f, _ := bodied(t, graph.AnchorNone, func(b *graph.Builder, in cases.Inputs) {
		x := in(graph.F32, 8)
		for range 100_000 {
			x = b.Unary(graph.Neg, x)
		}
		b.Output("", x)
	})
	x := drawTensor(rand.New(rand.NewPCG(1, 2)), graph.F32, -1, 1, 8)
	p := pool.New(1)
	defer p.Close()
	s, err := stand(f, []*graph.Tensor{x}, p)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.run(); err != nil {
		t.Fatal(err)
	}
	if err := ref.Check(s.out[0], ref.FromTensor(x)); err != nil {
		t.Error(err)
	}
}

// TestMaskedRows gives zeros where a row is masked everywhere.
func TestMaskedRows(t *testing.T) {
	for _, d := range []graph.DType{graph.F32, graph.F64} {
		x := graph.Filled(graph.TypeOf(d, 3, 20), math.Inf(-1))
		x.SetFloat(25, 1)
		checkOp(t, graph.Softmax{Axis: 1}, x)
		checkOp(t, graph.LogSoftmax{Axis: 1}, x)
	}
}

// TestIntegerErrors ends a run in which integers cannot be divided.
func TestIntegerErrors(t *testing.T) {
	x := graph.NewTensor(graph.TypeOf(graph.I32, 70000))
	wantError(t, graph.Binary{Fn: graph.Div}, []*graph.Tensor{x, x}, "division of an integer by zero")
	wantError(t, graph.Binary{Fn: graph.Pow}, []*graph.Tensor{x, graph.Filled(graph.TypeOf(graph.I32), -1)},
		"integer zero to a negative power")
	// Before a sum, within rows and in blocks.
	for _, shape := range [][]int{{5, 30}, {70000, 2}} {
		f, types := bodied(t, graph.AnchorRow, func(b *graph.Builder, in func(d graph.DType, dims ...int) *graph.Node) {
			x := in(graph.I32, shape...)
			y := b.Add(graph.Cast{To: graph.F64}, b.Binary(graph.Div, b.Scalar(graph.I32, 1), x))
			axis := 1
			if shape[0] > shape[1] {
				axis = 0
			}
			b.Output("", b.Reduce(graph.Sum, y, false, axis))
		})
		wantError(t, f, []*graph.Tensor{graph.NewTensor(types[0])}, "division of an integer by zero")
	}
}

// TestFrozenOperand packs a frozen operand once and again after a thaw.
func TestFrozenOperand(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	p := pool.New(2)
	defer p.Close()
	env := NewEnv(p)
	op := graph.MatMul{}
	x, w := drawTensor(r, graph.F32, -1, 1, 3, 20, 30), drawTensor(r, graph.F32, -1, 1, 30, 40)
	y := graph.NewTensor(graph.TypeOf(graph.F32, 3, 20, 40))
	from := []Operand{Contiguous(x.Type), Contiguous(w.Type)}
	from[1].Frozen = true
	k, err := Compile(op, from, []Operand{Contiguous(y.Type)}, env)
	if err != nil {
		t.Fatal(err)
	}
	if Bytes(k) != 0 {
		t.Errorf("%d bytes are packed before the first run", Bytes(k))
	}
	run := func() {
		t.Helper()
		if err := k.Run([]Memory{MemoryOf(x), MemoryOf(w)}, []Memory{MemoryOf(y)}); err != nil {
			t.Fatal(err)
		}
	}
	check := func() error {
		want, err := ref.OpBound(op, []ref.Value{ref.FromTensor(x), ref.FromTensor(w)})
		if err != nil {
			t.Fatal(err)
		}
		return ref.Check(y, want[0])
	}
	run()
	if err := check(); err != nil {
		t.Error(err)
	}
	if n := Bytes(k); n < w.Type.Bytes() || n > 4*w.Type.Bytes() {
		t.Errorf("%d bytes are packed of %d", n, w.Type.Bytes())
	}
	w.CopyFrom(drawTensor(r, graph.F32, -1, 1, 30, 40))
	run()
	if check() == nil {
		t.Error("a frozen operand was read again without a thaw")
	}
	Thaw(k)
	run()
	if err := check(); err != nil {
		t.Error(err)
	}
	if env.WorkspaceBytes() == 0 {
		t.Error("no workspace")
	}
}

// TestMemory looks at buffers as their element types.
func TestMemory(t *testing.T) {
	bytes := make([]byte, 64)
	for _, d := range []graph.DType{graph.F32, graph.F64, graph.I32, graph.I64, graph.Bool, graph.BF16, graph.F16} {
		m := Memory(bytes[:5*d.Size()])
		if x := tensorIn(m, Contiguous(graph.TypeOf(d, 5))); x.Check() != nil || &x.Bytes()[0] != &bytes[0] {
			t.Errorf("%v: the memory is not shared as 5 elements", d)
		}
		o := Contiguous(graph.TypeOf(d, 5))
		if err := checkLen("operand", 0, o, m); err != nil {
			t.Error(err)
		}
		o.Layout = o.Layout.Broadcast(graph.ShapeOf(2, 5))
		o.Layout.Offset = 1
		if err := checkLen("operand", 3, o, m); err == nil || !strings.HasPrefix(err.Error(), "operand 3 holds 5 elements") {
			t.Errorf("error %v", err)
		}
		if err := checkLen("operand", 0, Contiguous(graph.TypeOf(d, 0)), nil); err != nil {
			t.Error(err)
		}
	}
	if m := MemoryOf(&graph.Tensor{}); len(m) != 0 {
		t.Error("a tensor without data has memory")
	}
	if Bytes(&checked{Kernel: &elementwise[float32]{}}) != 0 {
		t.Error("a kernel that keeps nothing has bytes")
	}
	Thaw(&checked{Kernel: &elementwise[float32]{}}) // keeps nothing either
}

// TestShortBuffers is an error before anything is written.
func TestShortBuffers(t *testing.T) {
	p := pool.New(1)
	defer p.Close()
	x := drawTensor(rand.New(rand.NewPCG(1, 1)), graph.F32, -1, 1, 6)
	s, err := stand(graph.Unary{Fn: graph.Exp}, []*graph.Tensor{x}, p)
	if err != nil {
		t.Fatal(err)
	}
	short := memoryOf(make([]float32, 5))
	if err := s.Run([]Memory{short}, s.results); err == nil || !strings.HasPrefix(err.Error(), "operand 0 holds 5 elements") {
		t.Errorf("error %v", err)
	}
	if err := s.Run(s.args, []Memory{short}); err == nil || !strings.HasPrefix(err.Error(), "result 0 holds 5 elements") {
		t.Errorf("error %v", err)
	}
	if s.out[0].Float(0) != 77 {
		t.Error("a run that failed wrote a result")
	}
}

// TestLongSums holds the error of sums of many f32 numbers of one sign.
func TestLongSums(t *testing.T) {
	x := graph.Filled(graph.TypeOf(graph.F32, 1<<20, 2), 0.1)
	checkOp(t, graph.Reduce{Fn: graph.Sum, Axes: graph.IntsOf(0)}, x)
	checkOp(t, graph.Reduce{Fn: graph.Mean, Axes: graph.IntsOf(0, 1)}, x)
}
