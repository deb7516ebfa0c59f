package cpu

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/ref"
	"fusec/kernels/ref/cases"
)

// drawTensor makes a tensor with values in [lo,hi).
func drawTensor(r *rand.Rand, d graph.DType, lo, hi float64, dims ...int) *graph.Tensor {
	return cases.Arg{Type: graph.TypeOf(d, dims...), Lo: lo, Hi: hi}.Draw(r)
}

// standing is a kernel of one operation on contiguous tensors, with its memories.
type standing struct {
	Kernel
	args, results []Memory
	out           []*graph.Tensor
}

// stand compiles an operation that stands alone. Its results are full of values that it must not leave there.
func stand(op graph.Op, args []*graph.Tensor, workers *pool.Pool) (*standing, error) {
	s := &standing{}
	in, from := make([]graph.Type, len(args)), make([]Operand, len(args))
	for i, a := range args {
		in[i], from[i] = a.Type, Contiguous(a.Type)
		s.args = append(s.args, MemoryOf(a))
	}
	types, err := graph.InfoOf(op).Infer(op, in)
	if err != nil {
		return nil, err
	}
	to := make([]Operand, len(types))
	for i, t := range types {
		to[i] = Contiguous(t)
		s.out = append(s.out, graph.Filled(t, 77))
		s.results = append(s.results, MemoryOf(s.out[i]))
	}
	s.Kernel, err = Compile(op, from, to, NewEnv(workers))
	return s, err
}

// run computes the results.
func (s *standing) run() error { return s.Run(s.args, s.results) }

// checkOp compares an operation with the reference on 1, 2 and 3 workers, whose results must be the same bits, twice
// each, and checks that a run allocates nothing.
func checkOp(t *testing.T, op graph.Op, args ...*graph.Tensor) {
	t.Helper()
	in := make([]ref.Value, len(args))
	for i, a := range args {
		in[i] = ref.FromTensor(a)
	}
	want, err := ref.OpBound(op, in)
	if err != nil {
		t.Fatalf("%#v: reference: %v", op, err)
	}
	checkAgainst(t, want, op, args...)
}

// checkAgainst is checkOp for known results.
func checkAgainst(t *testing.T, want []ref.Value, op graph.Op, args ...*graph.Tensor) {
	t.Helper()
	var first []*graph.Tensor
	for workers := 1; workers <= 3; workers++ {
		p := pool.New(workers)
		s, err := stand(op, args, p)
		if err != nil {
			t.Fatalf("%#v: %v", op, err)
		}
		for range 2 {
			if err := s.run(); err != nil {
				t.Fatalf("%#v: %v", op, err)
			}
		}
		if n := allocations(func() { _ = s.run() }); n > 0 && !isHost(op) {
			t.Errorf("%#v: %v allocations per run", op, n)
		}
		p.Close()
		if first == nil {
			first = s.out
		}
		for i, y := range s.out {
			if err := ref.Check(y, want[i]); err != nil {
				t.Fatalf("%#v of %v: result %d: %v", op, typesOf(args), i, err)
			}
			if !y.Equal(first[i]) {
				t.Fatalf("%#v of %v: result %d differs with %d workers", op, typesOf(args), i, workers)
			}
		}
	}
}

func isHost(op graph.Op) bool {
	_, ok := op.(graph.Host)
	return ok
}

func typesOf(args []*graph.Tensor) []graph.Type {
	var types []graph.Type
	for _, a := range args {
		types = append(types, a.Type)
	}
	return types
}

// wantError checks that an operation fails, when compiled or when run, with an error that holds all of the words.
func wantError(t *testing.T, op graph.Op, args []*graph.Tensor, words ...string) {
	t.Helper()
	p := pool.New(2)
	defer p.Close()
	s, err := stand(op, args, p)
	if err == nil {
		err = s.run()
	}
	if err == nil {
		t.Fatalf("%#v of %v: no error", op, typesOf(args))
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%#v: error %q does not say %q", op, err, w)
		}
	}
}

// standsAlone reports whether an operation is a launch without being a Fusion. One that is refused because it consists of
// simpler operations is none.
func standsAlone(op graph.Op) bool {
	if Refuses(op) != nil {
		return false
	}
	switch op.(type) {
	case graph.Fusion:
		return false
	case graph.Slice:
		return true
	}
	return graph.ClassOf(op) != graph.ClassSource && !graph.IsView(op)
}

// TestEveryOperation runs all operations that may stand alone on the common examples.
func TestEveryOperation(t *testing.T) {
	for d, list := range map[graph.DType][]cases.Case{
		graph.F32: cases.All(graph.F32), graph.F64: cases.All(graph.F64),
		graph.BF16: cases.Half(graph.BF16), graph.F16: cases.Half(graph.F16),
		graph.I8: cases.Integers(graph.I8), graph.I16: cases.Integers(graph.I16), graph.I32: cases.Integers(graph.I32),
		graph.I64: cases.Integers(graph.I64), graph.U8: cases.Integers(graph.U8), graph.U16: cases.Integers(graph.U16),
		graph.U32: cases.Integers(graph.U32), graph.U64: cases.Integers(graph.U64),
	} {
		for _, c := range list {
			if !standsAlone(c.Op) || d.Is16() && graph.Contracts(c.Op, 0) {
				continue
			}
			t.Run(fmt.Sprintf("%s_%v", c.Name, d), func(t *testing.T) {
				r := rand.New(rand.NewPCG(1, uint64(d)))
				checkOp(t, c.Op, operandsOf(t, c, r)...)
			})
		}
	}
}

// operandsOf draws operands of an example. The log-sum-exp of an attention's gradient is the attention's own.
func operandsOf(t *testing.T, c cases.Case, r *rand.Rand) []*graph.Tensor {
	t.Helper()
	args := make([]*graph.Tensor, len(c.Args))
	for i, a := range c.Args {
		args[i] = a.Draw(r)
	}
	if op, ok := c.Op.(graph.AttentionGrad); ok {
		_, own := gradientOf(t, r, op.Attention, args[:op.OutArg()], false)
		args[op.LSEArg()] = own[op.LSEArg()]
	}
	return args
}

var allTypes = graph.DTypes()

// movedTypes are types that are moved. In short tests they are one of each size.
func movedTypes() []graph.DType {
	if testing.Short() {
		return []graph.DType{graph.Bool, graph.BF16, graph.F32, graph.I64}
	}
	return allTypes
}

func TestMovement(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 3))
	start := func(i int) *graph.Tensor { return graph.Scalar(graph.I64, float64(i)) }
	for _, d := range movedTypes() {
		x := func(dims ...int) *graph.Tensor { return drawTensor(r, d, -9, 9, dims...) }
		for _, s := range [][]int{{1, 1, 1}, {7, 1, 3}, {3, 5, 1}, {3, 17, 40}, {2, 150, 130}, {1, 33000, 2}, {0, 3, 2}, {2, 3, 0}} {
			for axis := range 3 {
				n := s[axis]
				part := append([]int(nil), s...)
				if part[axis] = (n + 1) / 2; n > 0 {
					checkOp(t, graph.Slice{Axis: axis, Size: part[axis], Step: 1}, x(s...), start(n/2))
					checkOp(t, graph.Slice{Axis: axis, Size: part[axis], Step: 2}, x(s...), start(0))
					checkOp(t, graph.Unslice{Axis: axis, Size: n, Step: 1}, x(part...), start(n/2))
					checkOp(t, graph.Unslice{Axis: axis, Size: 2*n + 1, Step: 2}, x(part...), start(n%2))
				}
				checkOp(t, graph.Slice{Axis: axis, Step: 1}, x(s...), start(n))
				checkOp(t, graph.Concat{Axis: axis}, x(s...), x(part...), x(s...))
			}
			checkOp(t, graph.Copy{}, x(s...))
			if d != graph.Bool {
				checkOp(t, graph.Pad{Lo: graph.IntsOf(1, 0, 2), Hi: graph.IntsOf(0, 3, 1), Value: 3}, x(s...))
			}
			checkOp(t, graph.Pad{Lo: graph.IntsOf(0, 0, 0), Hi: graph.IntsOf(0, 0, 0), Value: 1}, x(s...))
		}
		checkOp(t, graph.Copy{}, x())
		checkOp(t, graph.Concat{Axis: 0}, x(3))
	}
}

func TestSliceRange(t *testing.T) {
	x := graph.NewTensor(graph.TypeOf(graph.F32, 3, 7))
	at := func(i float64) []*graph.Tensor { return []*graph.Tensor{x, graph.Scalar(graph.I64, i)} }
	op := graph.Slice{Axis: 1, Size: 3, Step: 2}
	wantError(t, op, at(-1), "slice from -1", "3 elements", "dimension 1", "7 elements")
	wantError(t, op, at(3), "slice from 3")
	wantError(t, op, at(1<<62), "slice from")
	wantError(t, graph.Slice{Axis: 0, Step: 1}, at(4), "slice from 4", "0 elements")
	wantError(t, graph.Unslice{Axis: 1, Size: 9, Step: 1}, at(3), "unslice from 3", "7 elements", "of 9 elements")
}

func TestPatches(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 5))
	for range 60 {
		pick := func(n int) int { return 1 + r.IntN(n) }
		k := graph.IntsOf(pick(4), pick(4))
		op := graph.Im2Col{Kernel: k, Stride: graph.IntsOf(pick(3), pick(3)), Dilation: graph.IntsOf(pick(3), pick(3)),
			Pad: graph.IntsOf(r.IntN(6), r.IntN(6), r.IntN(6), r.IntN(6))}
		d := allTypes[r.IntN(len(allTypes))]
		width := 10 + r.IntN(30)
		if r.IntN(3) == 0 { // fewer positions than the kernel has columns
			width = pick(9)
			k = graph.IntsOf(pick(4), 1+max(width+op.Pad.At(1)+op.Pad.At(3)-pick(3), 0)/op.Dilation.At(1))
			op.Kernel = k
		}
		x := drawTensor(r, d, -9, 9, r.IntN(3), r.IntN(40), 10+r.IntN(9), width)
		checkOp(t, op, x)
		types, err := graph.InfoOf(op).Infer(op, []graph.Type{x.Type})
		if err != nil {
			t.Fatal(err)
		}
		back := graph.Col2Im{Kernel: k, Stride: op.Stride, Dilation: op.Dilation, Pad: op.Pad, H: x.Type.Shape.At(2),
			W: x.Type.Shape.At(3)}
		y := drawTensor(r, d, -9, 9, types[0].Shape.Slice()...)
		if d == graph.Bool {
			wantError(t, back, []*graph.Tensor{y}, "sums of bool")
			continue
		}
		if d.Is16() { // which the type rule does not sum
			continue
		}
		checkOp(t, back, y)
	}
}

func TestOperandsChecked(t *testing.T) {
	p := pool.New(1)
	defer p.Close()
	env := NewEnv(p)
	m := Contiguous(graph.TypeOf(graph.F32, 3, 5))
	turned := Operand{DType: graph.F32, Layout: graph.Contiguous(graph.ShapeOf(5, 3)).Transpose(graph.IntsOf(1, 0))}
	i := Contiguous(graph.TypeOf(graph.I64))
	none := graph.Pad{Lo: graph.IntsOf(0, 0), Hi: graph.IntsOf(0, 0)}
	for _, c := range []struct {
		op            graph.Op
		args, results []Operand
		want          string
	}{
		{graph.Unslice{Size: 3, Step: 1}, []Operand{turned, i}, []Operand{m}, "operand 0 of type f32[3,5] is not contiguous"},
		{none, []Operand{m}, []Operand{turned}, "result 0 of type f32[3,5] is not contiguous"},
		{graph.Concat{Axis: 2}, []Operand{m}, []Operand{m}, "axis 2"},
		{graph.Concat{}, []Operand{m}, []Operand{i}, "result 0 has type i64[], not f32[3,5]"},
		{graph.Concat{}, []Operand{m}, nil, "0 results, not 1"},
		{graph.Concat{}, nil, []Operand{m}, "0 operands"},
		{graph.Copy{}, []Operand{m, m}, []Operand{m}, "2 operands"},
		{graph.Reshape{Shape: graph.ShapeOf(3, 5)}, []Operand{m}, []Operand{m}, "does not compute reshape"},
		{unknownOp{}, []Operand{m}, []Operand{m}, "not in the table"},
	} {
		_, err := Compile(c.op, c.args, c.results, env)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%#v: error %v, want %q", c.op, err, c.want)
		}
	}
}

// unknownOp is an operation without a row in the table.
type unknownOp struct{}

// OpName implements graph.Op.
func (unknownOp) OpName() string { return "unknown" }

// TestOffsets runs operations on operands that begin inside larger buffers.
func TestOffsets(t *testing.T) {
	p := pool.New(2)
	defer p.Close()
	r := rand.New(rand.NewPCG(6, 7))
	for _, c := range cases.All(graph.F32) {
		if !standsAlone(c.Op) {
			continue
		}
		var args, results []Operand
		var from, to []Memory
		var values []ref.Value
		var types []graph.Type
		for i, x := range operandsOf(t, c, r) {
			values, types = append(values, ref.FromTensor(x)), append(types, x.Type)
			o, m := shifted(x, 3+i)
			args, from = append(args, o), append(from, m)
		}
		out, err := graph.InfoOf(c.Op).Infer(c.Op, types)
		if err != nil {
			t.Fatal(err)
		}
		for i, y := range out {
			o, m := shifted(graph.NewTensor(y), 5+i)
			results, to = append(results, o), append(to, m)
		}
		k, err := Compile(c.Op, args, results, NewEnv(p))
		if err == nil {
			err = k.Run(from, to)
		}
		if err != nil {
			t.Fatalf("%s: %v", c.Name, err)
		}
		want, err := ref.OpBound(c.Op, values)
		if err != nil {
			t.Fatal(err)
		}
		for i := range want {
			if err := ref.Check(tensorIn(to[i], results[i]), want[i]); err != nil {
				t.Errorf("%s: result %d: %v", c.Name, i, err)
			}
		}
	}
}

// shifted puts a tensor into a buffer from element by on.
func shifted(x *graph.Tensor, by int) (Operand, Memory) {
	n := x.Type.Shape.Elems()
	if x.Type.DType == graph.I4 {
		by = 0 // its values begin at a byte
	}
	buf := graph.NewTensor(graph.TypeOf(x.Type.DType, by+n))
	for i := range by {
		buf.SetFloat(i, 55)
	}
	m, o := MemoryOf(buf), Contiguous(x.Type)
	o.Layout.Offset = by
	tensorIn(m, o).CopyFrom(x)
	return o, m
}

// TestBytes requires the kernels that keep memory to say so.
func TestBytes(t *testing.T) {
	p := pool.New(1)
	defer p.Close()
	f := func(dims ...int) *graph.Tensor { return graph.NewTensor(graph.TypeOf(graph.F32, dims...)) }
	i := graph.NewTensor(graph.TypeOf(graph.I64, 6))
	window := graph.Pool{Fn: graph.AvgPool, Kernel: graph.IntsOf(2, 2), Stride: graph.IntsOf(1, 1), Pad: graph.IntsOf(0, 0, 0, 0)}
	for _, c := range []struct {
		op   graph.Op
		args []*graph.Tensor
		want int64
	}{
		{graph.Copy{}, []*graph.Tensor{f(3)}, 0},
		{graph.Gather{}, []*graph.Tensor{f(3, 2), i}, 6 * 8},
		{graph.ScatterAdd{Size: 3}, []*graph.Tensor{i, f(6, 2)}, (6 + 4 + 6) * 8},
		{graph.Reduce{Fn: graph.Sum, Axes: graph.IntsOf(0)}, []*graph.Tensor{i}, 8},
		{window, []*graph.Tensor{f(1, 1, 3, 5)}, 4 * 4},
		{graph.PoolGrad(window), []*graph.Tensor{f(1, 1, 3, 5), f(1, 1, 2, 4)}, 4*4 + 4*8},
		{graph.BatchNorm{}, []*graph.Tensor{f(2, 3), f(3), f(3), f(3), f(3)}, 3 * 3 * 4},
	} {
		s, err := stand(c.op, c.args, p)
		if err != nil {
			t.Fatal(err)
		}
		if n := Bytes(s.Kernel); n != c.want {
			t.Errorf("%s keeps %d bytes, want %d", c.op.OpName(), n, c.want)
		}
	}
	train := graph.BatchNorm{Train: true}
	s, err := stand(train, []*graph.Tensor{f(2, 3), f(3), f(3), f(3), f(3)}, p)
	if err != nil {
		t.Fatal(err)
	}
	if n := Bytes(s.Kernel); n < 3*3*4 {
		t.Errorf("batch_norm in training keeps %d bytes", n)
	}
}

// TestCastsBesideTies rounds to 16 bits once.
func TestCastsBesideTies(t *testing.T) {
	for _, to := range []graph.DType{graph.BF16, graph.F16} {
		for _, from := range []graph.DType{graph.F64, graph.I32, graph.I64} {
			checkOp(t, graph.Cast{To: to}, cases.BesideTies(from, to))
		}
	}
}

// allocations is how often a run allocates: the least of three, as the Go runtime may allocate beside one.
func allocations(run func()) float64 {
	n := testing.AllocsPerRun(1, run)
	for range 2 {
		if n > 0 {
			n = min(n, testing.AllocsPerRun(1, run))
		}
	}
	return n
}
