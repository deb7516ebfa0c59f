package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/ref"
	"fusec/kernels/ref/cases"
)

// drawSeparable draws a depthwise convolution between convolutions of 1×1, and its operands, of type d.
func drawSeparable(r *rand.Rand, d graph.DType) (op graph.SeparableConv2D, args []graph.Type) {
	size := func(n int) int { return 1 + r.IntN(n) }
	kh, kw := size(5), size(4)
	dy, dx := size(2), size(2)
	pad := []int{r.IntN(3), r.IntN(3), r.IntN(3), r.IntN(3)}
	h, w := max((kh-1)*dy+1-pad[0]-pad[2], 1)+r.IntN(12), max((kw-1)*dx+1-pad[1]-pad[3], 1)+r.IntN(20)
	op = graph.SeparableConv2D{Stride: graph.IntsOf(size(3), size(3)), Dilation: graph.IntsOf(dy, dx), Pad: graph.IntsOf(pad...),
		Low: -0.4, High: 0.6}
	switch r.IntN(3) {
	case 0:
		op.Low, op.High = 0, math.Inf(1)
	case 1:
		op.Low = math.Inf(-1)
	}
	c, e, o := r.IntN(12), []int{size(7), size(50), size(50), 512}[r.IntN(4)], size(40)
	if e == 512 {
		h, w, o = min(h, 9), min(w, 9), 3
	}
	expand := c == 0 || r.IntN(3) > 0
	if !expand {
		e = c
	}
	args = []graph.Type{graph.TypeOf(d, size(3), h, w, c), graph.TypeOf(d, kh, kw, 1, e), graph.TypeOf(d, e),
		graph.TypeOf(d, 1, 1, e, o)}
	if expand {
		args = append(args, graph.TypeOf(d, 1, 1, c, e), graph.TypeOf(d, e))
	}
	return op, args
}

// TestSeparable compares random convolutions, with what may follow them, with the reference.
func TestSeparable(t *testing.T) {
	r := rand.New(rand.NewPCG(71, 72))
	for n := range 40 {
		d := []graph.DType{graph.F32, graph.F64}[n%2]
		op, operands := drawSeparable(r, d)
		f, types := bodied(t, graph.AnchorConv, func(b *graph.Builder, in cases.Inputs) {
			var args []*graph.Node
			for _, u := range operands {
				args = append(args, in(d, u.Shape.Slice()...))
			}
			y := b.Add(op, args...)
			s := y.Type.Shape
			switch n % 5 {
			case 1:
				y = b.Unary(graph.Relu, b.Binary(graph.Add, y, b.Broadcast(in(d, s.At(3)), s)))
			case 2:
				y = b.Binary(graph.Add, b.Binary(graph.Add, y, b.Broadcast(in(d, s.At(3)), s)), in(d, s.Slice()...))
			case 3:
				y = b.Unary(graph.Tanh, y)
				b.Output("", b.Binary(graph.Gt, y, b.Scalar(d, 0)))
			}
			b.Output("", y)
		})
		args := make([]*graph.Tensor, len(types))
		for i, u := range types {
			args[i] = drawTensor(r, d, -1, 1, u.Shape.Slice()...)
		}
		t.Run(fmt.Sprint(n), func(t *testing.T) { checkOp(t, f, args...) })
	}
}

// TestSeparableOperands reads operands in strides, packs frozen ones once, and again after a thaw.
func TestSeparableOperands(t *testing.T) {
	r := rand.New(rand.NewPCG(73, 74))
	p := pool.New(2)
	defer p.Close()
	for n := range 9 {
		op, types := drawSeparable(r, graph.F32)
		f, _ := bodied(t, graph.AnchorConv, func(b *graph.Builder, in cases.Inputs) {
			var args []*graph.Node
			for _, u := range types {
				args = append(args, in(graph.F32, u.Shape.Slice()...))
			}
			b.Output("", b.Add(op, args...))
		})
		operands, memories := make([]Operand, len(types)), make([]Memory, len(types))
		for i, u := range types {
			s := u.Shape
			operands[i] = Operand{DType: graph.F32, Frozen: i > 0}
			switch {
			case i == 0 && n%3 == 0: // images of NCHW
				operands[i].Layout = graph.Contiguous(graph.ShapeOf(s.At(0), s.At(3), s.At(1), s.At(2))).Transpose(graph.IntsOf(0, 2, 3, 1))
			case s.Rank() == 1: // every second element
				operands[i].Layout = graph.Contiguous(graph.ShapeOf(2*s.At(0))).Slice(0, 1, s.At(0), 2)
			default: // some of the channels
				operands[i].Layout = graph.Contiguous(s.With(3, s.At(3)+3)).Slice(3, 2, s.At(3), 1)
			}
			memories[i] = MemoryOf(drawTensor(r, graph.F32, -1, 1, 2*(s.Elems()+3*s.Elems()/max(s.At(s.Rank()-1), 1))+2))
		}
		env := NewEnv(p)
		result, err := graph.InfoOf(op).Infer(op, types)
		if err != nil {
			t.Fatal(err)
		}
		y := graph.NewTensor(result[0])
		k, err := Compile(f, operands, []Operand{Contiguous(y.Type)}, env)
		if err != nil {
			t.Fatal(err)
		}
		check := func() error {
			t.Helper()
			if err := k.Run(memories, []Memory{MemoryOf(y)}); err != nil {
				t.Fatal(err)
			}
			var args []ref.Value
			for i, o := range operands {
				v, err := TensorOf(memories[i], o, env)
				if err != nil {
					t.Fatal(err)
				}
				args = append(args, ref.FromTensor(v))
			}
			want, err := ref.OpBound(f, args)
			if err != nil {
				t.Fatal(err)
			}
			return ref.Check(y, want[0])
		}
		if err := check(); err != nil {
			t.Errorf("%d: %+v of %v: %v", n, op, types, err)
		}
		copy(memories[3], MemoryOf(drawTensor(r, graph.F32, 2, 3, len(memories[3])/4)))
		if y.Type.Shape.Elems() > 0 && check() == nil {
			t.Error("frozen filters were read again without a thaw")
		}
		Thaw(k)
		if err := check(); err != nil {
			t.Errorf("%d: after a thaw: %v", n, err)
		}
		if Bytes(k) <= 0 {
			t.Error("the kernel keeps nothing")
		}
	}
}
