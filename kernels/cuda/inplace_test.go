package cuda_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"fusec/graph"
	kernels "fusec/kernels/cuda"
	"fusec/kernels/ref"
	"fusec/kernels/ref/cases"
	"fusec/lowering/cuda/cudatest"
)

// inPlace runs an operation whose result i stands over operand over[i] and compares it with the reference. No other launch writes
// the operands that are own.
func inPlace(t *testing.T, op graph.Op, args []*graph.Tensor, over []int, own ...int) *kernels.Kernel {
	t.Helper()
	return inPlaceOn(t, cudatest.Open(t), op, args, over, own...)
}

func inPlaceOn(t *testing.T, d cudatest.Device, op graph.Op, args []*graph.Tensor, over []int, own ...int) *kernels.Kernel {
	t.Helper()
	in := make([]ref.Value, len(args))
	types := make([]graph.Type, len(args))
	var from, to []cudatest.Buffer
	for i, a := range args {
		in[i], types[i] = ref.FromTensor(a), a.Type
		o := kernels.Operand{DType: a.Type.DType, Layout: graph.Contiguous(a.Type.Shape), Own: slices.Contains(own, i)}
		o.Given = o.Own && !slices.Contains(over, i)
		from = append(from, cudatest.Buffer{Operand: o, Value: a})
	}
	want, err := ref.OpBound(op, in)
	if err != nil {
		t.Fatal(err)
	}
	out, err := graph.InfoOf(op).Infer(op, types)
	if err != nil {
		t.Fatal(err)
	}
	for i, u := range out {
		to = append(to, cudatest.Buffer{Operand: kernels.Operand{DType: u.DType, Layout: graph.Contiguous(u.Shape), Over: 1 + over[i],
			Update: true}})
	}
	operands := func(list []cudatest.Buffer) (o []kernels.Operand) {
		for _, b := range list {
			o = append(o, b.Operand)
		}
		return
	}
	k, err := kernels.Compile(op, operands(from), operands(to), kernels.Config{Chip: d.MadeFor()})
	if err != nil {
		t.Fatal(err)
	}
	status, err := d.Run(k, from, to)
	if err != nil || status.Code != kernels.StatusOK {
		t.Fatalf("status %+v, error %v", status, err)
	}
	for i, b := range to {
		if err := ref.Check(b.Value, want[i]); err != nil {
			t.Errorf("result %d: %v", i, err)
		}
	}
	d.Failed = true
	if status, err = d.Run(k, from, to); err != nil || status.Code == kernels.StatusOK {
		t.Fatalf("status %+v, error %v", status, err)
	}
	for i, b := range to {
		if !b.Value.Equal(args[over[i]]) {
			t.Errorf("result %d of a program that has failed before was written", i)
		}
	}
	return k
}

// TestOptimiser updates many parameters in place. The text does not grow with their number, and further launches start
// where the parameter of one is full.
func TestOptimiser(t *testing.T) {
	build := func(n int) (graph.Fusion, []graph.Type, []int) {
		var over []int
		op, types, err := cases.Bodied(graph.AnchorNone, func(b *graph.Builder, in cases.Inputs) {
			rate := in(graph.F32)
			for i := range n {
				dims := [][]int{{7, 30}, {1}, {1023}, {2, 3, 4}, {}}[i%5]
				w, g, m := in(graph.F32, dims...), in(graph.F32, dims...), in(graph.F32, dims...)
				m2 := b.Binary(graph.Add, b.BinaryScalar(graph.Mul, m, 0.9), g)
				b.Output(fmt.Sprint("m", i), m2)
				b.Output(fmt.Sprint("w", i), b.Binary(graph.Sub, w, b.Binary(graph.Mul, m2, rate)))
				over = append(over, 3+3*i, 1+3*i)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		return op, types, over
	}
	size := 0
	for _, n := range []int{5, 200} {
		l := newList(40)
		op, types, over := build(n)
		var args []*graph.Tensor
		for _, u := range types {
			args = append(args, draw(l.r, u))
		}
		k := inPlace(t, op, args, over)
		if n == 5 {
			size = len(k.Source)
		} else if len(k.Source) > size+100 {
			t.Errorf("the text has %d bytes for %d parameters, and %d for 5", len(k.Source), n, size)
		}
		for _, s := range k.Steps {
			if _, bytes := s.Offsets(); bytes > kernels.MaxParams {
				t.Errorf("a parameter of %d bytes", bytes)
			}
		}
	}
}

// TestUpdateInPlace writes only the slice.
func TestUpdateInPlace(t *testing.T) {
	l := newList(41)
	args := []*graph.Tensor{l.tensor(graph.F32, 3, 20, 8), l.tensor(graph.F32, 3, 2, 8), number(5)}
	inPlace(t, graph.UpdateSlice{Axis: 1}, args, []int{0})
}

// TestClustersInPlace: where a program has failed, all blocks of a cluster end.
func TestClustersInPlace(t *testing.T) {
	chip := kernels.H200
	chip.SMs = 4
	for _, c := range []struct {
		name   string
		anchor graph.Anchor
		over   int
		build  func(b *graph.Builder, in cases.Inputs)
	}{
		{"rows", graph.AnchorRow, 0, func(b *graph.Builder, in cases.Inputs) {
			b.Output("", b.Add(graph.Softmax{Axis: 1}, in(graph.F32, 2, 36868)))
		}},
		{"product", graph.AnchorMatMul, 2, func(b *graph.Builder, in cases.Inputs) {
			slope := b.MatMul(in(graph.BF16, 1024, 64), in(graph.BF16, 64, 1024), false, false)
			b.Output("", b.Binary(graph.Sub, in(graph.F32, 1024, 1024), b.BinaryScalar(graph.Mul, slope, 0.125)))
		}},
	} {
		op, types, err := cases.Bodied(c.anchor, c.build)
		if err != nil {
			t.Fatal(err)
		}
		l := newList(44)
		var args []*graph.Tensor
		for _, u := range types {
			args = append(args, draw(l.r, u))
		}
		if k := inPlaceOn(t, cudatest.OpenFor(t, chip), op, args, []int{c.over}); !strings.Contains(k.Generated(), "cluster_agrees") {
			t.Errorf("%s: no cluster\n%s", c.name, k.Generated())
		}
	}
}

// TestOverAnother refuses a result over what another segment reads.
func TestOverAnother(t *testing.T) {
	op, types, err := cases.Bodied(graph.AnchorNone, func(b *graph.Builder, in cases.Inputs) {
		x, y := in(graph.F32, 9), in(graph.F32, 9)
		b.Output("", b.Unary(graph.Exp, x))
		b.Output("", b.Unary(graph.Tanh, y))
	})
	if err != nil {
		t.Fatal(err)
	}
	var o []kernels.Operand
	for _, u := range types {
		o = append(o, kernels.Operand{DType: u.DType, Layout: graph.Contiguous(u.Shape)})
	}
	to := []kernels.Operand{o[0], o[1]}
	to[0].Over = 2
	_, err = kernels.Compile(op, o, to, kernels.Config{Chip: kernels.H200})
	if err == nil || !strings.Contains(err.Error(), "result 0 is written over operand 1, which another segment reads") {
		t.Errorf("error %v", err)
	}
}

// TestRefusals names what has no place in a body, or no kernel.
func TestRefusals(t *testing.T) {
	const f32 = graph.F32
	unseen := func(b *graph.Builder, in cases.Inputs) *graph.Node {
		return b.Reshape(b.Transpose(in(f32, 6, 4), 1, 0), 24)
	}
	for _, tt := range []struct {
		want   string
		anchor graph.Anchor
		build  func(b *graph.Builder, in cases.Inputs)
	}{
		{"a fusion of anchor row without one", graph.AnchorRow, func(b *graph.Builder, in cases.Inputs) {
			b.Output("", b.Unary(graph.Exp, in(f32, 4)))
		}},
		{"a fusion of anchor conv without one", graph.AnchorConv, func(b *graph.Builder, in cases.Inputs) {
			b.Output("", b.Unary(graph.Exp, in(f32, 4)))
		}},
		{"matmul %3 has no place in a body", graph.AnchorMatMul, func(b *graph.Builder, in cases.Inputs) { // products side by side
			x, y := in(f32, 4, 4), in(f32, 4, 4)
			b.Output("", b.MatMul(x, y, false, false))
			b.Output("", b.MatMul(y, x, false, false))
		}},
		{"concat %1 has no place in a body", graph.AnchorNone, func(b *graph.Builder, in cases.Inputs) {
			b.Output("", b.Unary(graph.Exp, b.Add(graph.Concat{}, in(f32, 4))))
		}},
		{"exp %1: a value of shape [6] has no place in an iteration space of [4,6]", graph.AnchorNone,
			func(b *graph.Builder, in cases.Inputs) {
				b.Output("", b.Unary(graph.Exp, b.Broadcast(b.Unary(graph.Exp, in(f32, 6)), graph.ShapeOf(4, 6))))
			}},
		{"reshape %2 cannot be read through strides", graph.AnchorNone, func(b *graph.Builder, in cases.Inputs) {
			b.Output("", b.Unary(graph.Exp, unseen(b, in)))
		}},
		{"reshape %2 cannot be read through strides", graph.AnchorRow, func(b *graph.Builder, in cases.Inputs) {
			b.Output("", b.Add(graph.Softmax{}, unseen(b, in)))
		}},
		{"a value of shape [7] has no place", graph.AnchorRow, func(b *graph.Builder, in cases.Inputs) {
			b.Output("", b.Reduce(graph.Sum, in(f32, 99, 4), false, 0))
			b.Output("", b.Unary(graph.Exp, in(f32, 7)))
		}},
		{"exp %1, an operand of conv2d %3, is computed in the same launch", graph.AnchorConv, func(b *graph.Builder, in cases.Inputs) {
			op := graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(1, 1, 1, 1), Groups: 1}
			b.Output("", b.Add(op, b.Unary(graph.Exp, in(f32, 1, 1, 4, 6)), in(f32, 1, 1, 3, 3)))
		}},
	} {
		op, types, err := cases.Bodied(tt.anchor, tt.build)
		if err != nil {
			t.Fatal(err)
		}
		var args, results []kernels.Operand
		for _, u := range types {
			args = append(args, kernels.Operand{DType: u.DType, Layout: graph.Contiguous(u.Shape)})
		}
		for _, o := range op.Body.Outputs {
			results = append(results, kernels.Operand{DType: o.Node.Type.DType, Layout: graph.Contiguous(o.Node.Type.Shape)})
		}
		if _, err := kernels.Compile(op, args, results, kernels.Config{Chip: kernels.H200}); err == nil ||
			!strings.Contains(err.Error(), tt.want) {
			t.Errorf("error %v, want one about %s", err, tt.want)
		}
	}
	if _, err := kernels.Compile(graph.ScatterAdd{Axis: 0, Size: 3}, []kernels.Operand{}, nil,
		kernels.Config{Chip: kernels.H200}); err == nil {
		t.Error("a scatter_add of nothing is compiled")
	}
}
