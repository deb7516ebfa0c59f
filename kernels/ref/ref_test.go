package ref

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/ref/cases"
)

// TestEveryOp evaluates every operation of the table and compares types and shapes with the type rule. The magnitudes
// are finite and cover the rounding of the result.
func TestEveryOp(t *testing.T) {
	seen := map[string]bool{"result": true} // every operation with several results reads them through Result
	for d, list := range map[graph.DType][]cases.Case{
		graph.F32: cases.All(graph.F32), graph.F64: cases.All(graph.F64),
		graph.BF16: cases.Half(graph.BF16), graph.F16: cases.Half(graph.F16),
	} {
		for _, c := range list {
			seen[c.Op.OpName()] = true
			t.Run(d.String()+"/"+c.Name, func(t *testing.T) {
				g := graphtest.Graph(t, c)
				in := c.Inputs(rand.New(rand.NewPCG(1, 2)))
				values, err := Nodes(g, in, true)
				if err != nil {
					t.Fatal(err)
				}
				for _, n := range g.Nodes {
					types, err := graph.ResultTypes(n.Op, n.Args)
					if err != nil {
						t.Fatal(err)
					}
					for i, v := range values[n] {
						if _, ok := n.Op.(graph.Result); !ok && v.Type != types[i] {
							t.Errorf("%s: result %d has type %v, want %v", n.Where(), i, v.Type, types[i])
						}
						if l := v.Len(); len(v.F)+len(v.I) != l || len(v.Mag) != l {
							t.Errorf("%s: result %d of type %v has %d+%d elements, %d magnitudes", n.Where(), i, v.Type, len(v.F), len(v.I), len(v.Mag))
						}
						if err := Check(v.Rounded(), v); err != nil {
							t.Errorf("the rounded reference fails its own check: %v", err)
						}
						for _, m := range v.Mag {
							if math.IsInf(m, 0) || math.IsNaN(m) || m < 0 {
								t.Errorf("%s: magnitude %v", n.Where(), m)
							}
						}
					}
				}
				plain, _, err := Eval(g, in)
				if err != nil {
					t.Fatal(err)
				}
				for _, o := range g.Outputs {
					if want := values[o.Node][0].Tensor(); !plain[o.Name].Equal(want) {
						t.Errorf("%s: Eval and EvalBound differ", o.Name)
					}
				}
			})
		}
	}
	for _, info := range graph.Ops() {
		if !seen[info.Name] {
			t.Errorf("no case for %s", info.Name)
		}
	}
}

// TestAlongAxis: what its row says takes each slice along an axis by itself computes the same on transposed operands.
func TestAlongAxis(t *testing.T) {
	for _, c := range cases.All(graph.F64) {
		if _, ok := graph.AxisOf(c.Op); !ok {
			continue
		}
		b, rank := graph.NewBuilder(c.Name), c.Args[0].Type.Shape.Rank()
		turned := func(x *graph.Node) *graph.Node {
			if x.Type.Shape.Rank() != rank {
				return x
			}
			perm := make([]int, rank)
			for i := range perm {
				perm[i] = rank - 1 - i
			}
			return b.Transpose(x, perm...)
		}
		var args, turnedArgs []*graph.Node
		for i, name := range c.Names() {
			args = append(args, b.Input(name, c.Args[i].Type))
			turnedArgs = append(turnedArgs, turned(args[i]))
		}
		b.Output("y", turned(b.Add(c.Op, args...)))
		b.Output("turned", b.Add(graph.ReplaceAxis(c.Op, func(axis int) int { return rank - 1 - axis }), turnedArgs...))
		g, err := b.Graph()
		if err != nil {
			t.Fatalf("%s: %v", c.Name, err)
		}
		out, _, err := Eval(g, c.Inputs(rand.New(rand.NewPCG(7, 8))))
		if err != nil {
			t.Fatalf("%s: %v", c.Name, err)
		}
		if !out["y"].Equal(out["turned"]) {
			t.Errorf("%s: %v, on transposed operands %v", c.Name, out["y"], out["turned"])
		}
	}
}

// TestMagnitudes moves every float operand within its error and checks that the result stays within its own.
func TestMagnitudes(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, c := range slices.Concat(cases.All(graph.F64), cases.Half(graph.BF16), cases.Half(graph.F16)) {
		if graph.IsSource(c.Op) || c.Op.OpName() == "host" {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			in := make([]Value, len(c.Args))
			moved := make([]Value, len(c.Args))
			for i, a := range c.Args {
				in[i], moved[i] = FromTensor(a.Draw(r)), zeros(a.Type)
				copy(moved[i].I, in[i].I)
				for j, x := range in[i].F {
					in[i].Mag[j] = 2 * r.Float64()
					moved[i].F[j] = x + in[i].off(j)*(2*r.Float64()-1)
					if d := a.Type.DType; d.Is16() { // by whole units of the last place
						moved[i].F[j] = d.Round(moved[i].F[j])
						in[i].Mag[j] = 0
					}
					rounded := math.Abs(moved[i].F[j]-x) / a.Type.DType.Tolerance() * (1 + 1e-12)
					in[i].Mag[j] = max(in[i].Mag[j], rounded)
				}
			}
			want, err := OpBound(c.Op, in)
			if err != nil {
				t.Fatal(err)
			}
			got, err := Op(c.Op, moved)
			if err != nil {
				t.Fatal(err)
			}
			for i := range want {
				if err := Check(got[i].Rounded(), want[i]); err != nil {
					t.Errorf("result %d: %v", i, err)
				}
			}
		})
	}
}

func TestKnownValues(t *testing.T) {
	inf := math.Inf(1)
	f := func(v ...float64) Value {
		x, _ := graph.TensorOf(v, len(v))
		return FromTensor(x)
	}
	image := func(h, w int, v ...float64) Value {
		x, _ := graph.TensorOf(v, 1, 1, h, w)
		return FromTensor(x)
	}
	ints := func(v ...int64) Value {
		x, _ := graph.TensorOf(v, len(v))
		return FromTensor(x)
	}
	i32 := func(v ...int32) Value {
		x, _ := graph.TensorOf(v, len(v))
		return FromTensor(x)
	}
	bools := func(v ...bool) Value {
		x, _ := graph.TensorOf(v, len(v))
		return FromTensor(x)
	}
	start := func(i int64) Value { return FromTensor(graph.Scalar(graph.I64, float64(i))) }
	two, one4 := graph.IntsOf(2, 2), graph.IntsOf(0, 0, 0, 0)
	for _, c := range []struct {
		name string
		op   graph.Op
		args []Value
		want []float64
	}{
		{"softmax of nothing", graph.Softmax{}, []Value{f(-inf, -inf)}, []float64{0, 0}},
		{"softmax, part masked", graph.Softmax{}, []Value{f(1, -inf, 1)}, []float64{0.5, 0, 0.5}},
		{"softmax, large", graph.Softmax{}, []Value{f(1000, 1000)}, []float64{0.5, 0.5}},
		{"softmax with +Inf", graph.Softmax{}, []Value{f(inf, 1, -inf)}, []float64{math.NaN(), 0, 0}},
		{"log softmax with +Inf", graph.LogSoftmax{}, []Value{f(inf, 1, -inf)}, []float64{math.NaN(), -inf, -inf}},
		{"log softmax", graph.LogSoftmax{}, []Value{f(5, 5)}, []float64{-math.Ln2, -math.Ln2}},
		{"max with NaN", graph.Binary{Fn: graph.Max}, []Value{f(inf, 1), f(math.NaN(), 2)}, []float64{math.NaN(), 2}},
		{"min with NaN", graph.Binary{Fn: graph.Min}, []Value{f(-inf, 1), f(math.NaN(), 2)}, []float64{math.NaN(), 1}},
		{"integer division", graph.Binary{Fn: graph.Div}, []Value{ints(-7, 7), ints(2, -2)}, []float64{-3, -3}},
		{"integer powers", graph.Binary{Fn: graph.Pow}, []Value{ints(3, 2, -1, -1, 1), ints(4, -1, -3, -2, -9)},
			[]float64{81, 0, -1, 1, 1}},
		{"i32 wraps", graph.Unary{Fn: graph.Square}, []Value{i32(1 << 16)}, []float64{0}},
		{"cast saturates", graph.Cast{To: graph.I32}, []Value{f(-2.7, 2.7, 1e12, -1e12, math.NaN())},
			[]float64{-2, 2, math.MaxInt32, math.MinInt32, 0}},
		{"cast of −0.5 to bool", graph.Cast{To: graph.Bool}, []Value{f(-0.5, 0)}, []float64{1, 0}},
		{"top 3, NaN last, the first of equals", graph.TopK{K: 3}, []Value{f(2, math.NaN(), inf, 2, -inf)}, []float64{inf, 2, 2}},
		{"top of all", graph.TopK{K: 3}, []Value{f(-inf, math.NaN(), 1)}, []float64{1, -inf, math.NaN()}},
		{"route, the first of equals", graph.Route{K: 1}, []Value{f(1, 3, 3)}, []float64{0, 1, 0}},
		{"route, neither NaN nor −Inf", graph.Route{K: 3}, []Value{f(math.NaN(), -inf, 0, inf)}, []float64{0, 0, 1, 1}},
		{"route, first choices before second", graph.Route{K: 2, Capacity: 1}, []Value{image(2, 2, 2, 1, 1, 2)}, []float64{1, 0, 0, 1}},
		{"route, first tokens before others", graph.Route{K: 1, Capacity: 1}, []Value{image(2, 2, 2, 1, 3, 1)}, []float64{1, 0, 0, 0}},
		{"route, experts choose", graph.Route{Capacity: 1, ExpertChoice: true}, []Value{image(3, 2, 1, 5, 3, 5, 2, 4)},
			[]float64{0, 1, 1, 0, 0, 0}},
		{"slice", graph.Slice{Size: 2, Step: 2}, []Value{f(0, 1, 2, 3), start(1)}, []float64{1, 3}},
		{"slice of nothing at the end", graph.Slice{Step: 1}, []Value{f(0, 1), start(2)}, nil},
		{"unslice", graph.Unslice{Size: 4, Step: 2}, []Value{f(5, 6), start(1)}, []float64{0, 5, 0, 6}},
		{"scatter adds", graph.ScatterAdd{Size: 3}, []Value{ints(2, 0, 2), f(1, 2, 3)}, []float64{2, 0, 4}},
		{"product of none", graph.Reduce{Fn: graph.Prod, Axes: graph.IntsOf(0)}, []Value{f()}, []float64{1}},
		{"maximum of none", graph.Reduce{Fn: graph.MaxOf, Axes: graph.IntsOf(0)}, []Value{f()}, []float64{-inf}},
		{"minimum of none", graph.Reduce{Fn: graph.MinOf, Axes: graph.IntsOf(0)}, []Value{f()}, []float64{inf}},
		{"mean of none", graph.Reduce{Fn: graph.Mean, Axes: graph.IntsOf(0)}, []Value{f()}, []float64{math.NaN()}},
		{"integer maximum of none", graph.Reduce{Fn: graph.MaxOf, Axes: graph.IntsOf(0)}, []Value{i32()}, []float64{math.MinInt32}},
		{"integer minimum of none", graph.Reduce{Fn: graph.MinOf, Axes: graph.IntsOf(0)}, []Value{i32()}, []float64{math.MaxInt32}},
		{"max pool", graph.Pool{Kernel: two, Stride: graph.IntsOf(1, 1), Pad: one4}, []Value{image(2, 3, 1, 5, 2, 3, 4, 9)},
			[]float64{5, 9}},
		{"max pool with NaN", graph.Pool{Kernel: two, Stride: two, Pad: one4}, []Value{image(2, 2, 1, math.NaN(), 2, 3)},
			[]float64{math.NaN()}},
		{"max pool of padding", graph.Pool{Kernel: graph.IntsOf(1, 1), Stride: graph.IntsOf(1, 1), Pad: graph.IntsOf(0, 1, 0, 0)},
			[]Value{image(1, 1, 7)}, []float64{-inf, 7}},
		{"mean pool, padding counts", graph.Pool{Fn: graph.AvgPool, Kernel: two, Stride: two, Pad: graph.IntsOf(1, 1, 0, 0),
			CountPad: true}, []Value{image(1, 1, 8)}, []float64{2}},
		{"mean pool, padding does not", graph.Pool{Fn: graph.AvgPool, Kernel: two, Stride: two, Pad: graph.IntsOf(1, 1, 0, 0)},
			[]Value{image(1, 1, 8)}, []float64{8}},
		{"the first maximum gets the gradient", graph.PoolGrad{Kernel: two, Stride: two, Pad: one4},
			[]Value{image(2, 2, 3, 3, 1, 3), image(1, 1, 6)}, []float64{6, 0, 0, 0}},
		{"nothing gets the gradient of padding", graph.PoolGrad{Kernel: graph.IntsOf(1, 1), Stride: graph.IntsOf(1, 1),
			Pad: graph.IntsOf(0, 1, 0, 0)}, []Value{image(1, 1, 7), image(1, 2, 5, 6)}, []float64{6}},
		{"padding with booleans", graph.Pad{Lo: graph.IntsOf(1), Hi: graph.IntsOf(0), Value: 1}, []Value{bools(false)}, []float64{1, 0}},
		{"batch norm of nothing", graph.BatchNorm{Train: true}, []Value{FromTensor(graph.NewTensor(graph.TypeOf(graph.F64, 0, 1))), f(1),
			f(1), f(1), f(1)}, nil},
		{"convolution correlates", graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: one4, Groups: 1},
			[]Value{image(1, 3, 1, 2, 3), image(1, 2, 10, 1)}, []float64{12, 23}},
		{"patches", graph.Im2Col{Kernel: graph.IntsOf(1, 2), Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1),
			Pad: graph.IntsOf(0, 1, 0, 0)}, []Value{image(1, 2, 1, 2)}, []float64{0, 1, 1, 2}},
	} {
		out, err := OpBound(c.op, c.args)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if out[0].Len() != len(c.want) {
			t.Errorf("%s: %d elements, want %d", c.name, out[0].Len(), len(c.want))
			continue
		}
		for i, w := range c.want {
			if g := out[0].float(i); deviation(w, g) > 1e-14 {
				t.Errorf("%s: element %d is %v, want %v", c.name, i, g, w)
			}
		}
	}
}

func TestErrors(t *testing.T) {
	b := graph.NewBuilder("errors")
	x := b.Input("x", graph.TypeOf(graph.F32, 3))
	i := b.Input("i", graph.TypeOf(graph.I64))
	for _, c := range []struct {
		n    *graph.Node
		want string
	}{
		{b.Named(b.Add(graph.Gather{}, x, i), "row"), `gather "row" (`},
		{b.Add(graph.ScatterAdd{Size: 2}, i, x), "outside 0..1"},
		{b.Add(graph.Slice{Size: 2, Step: 1}, x, i), "out of range"},
		{b.Add(graph.Slice{Step: 1}, x, i), "out of range"},
		{b.Add(graph.Unslice{Size: 4, Step: 1}, x, i), "out of range"},
		{b.Binary(graph.Div, i, b.Scalar(graph.I64, 0)), "by zero"},
		{b.Binary(graph.Pow, b.Scalar(graph.I64, 0), b.Scalar(graph.I64, -1)), "zero to a negative power"},
		{b.Add(graph.Host{Name: "mine", Type: x.Type}, x), "no implementation"},
		{b.Add(graph.Host{Name: "mine", Type: x.Type, Impl: wrong{}}, i), "not f32[3]"},
	} {
		if b.Err() != nil {
			t.Fatal(b.Err())
		}
		one := graph.New("one")
		one.Nodes = append(one.Nodes, x, i)
		one.Nodes = append(one.Nodes, c.n.Args...)
		one.Nodes = append(one.Nodes, c.n)
		_, _, err := Eval(one, map[string]*graph.Tensor{"x": graph.NewTensor(x.Type), "i": graph.Scalar(graph.I64, 7)})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v does not say %q", c.n.Where(), err, c.want)
		}
	}
	g := graph.New("g")
	g.Nodes = []*graph.Node{x}
	for want, in := range map[string]*graph.Tensor{"no value": nil, "of type f32[2]": graph.NewTensor(graph.TypeOf(graph.F32, 2))} {
		if _, _, err := EvalBound(g, map[string]*graph.Tensor{"x": in}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
	for _, op := range []graph.Op{graph.Result{Index: 1}, graph.Select{}, graph.Softmax{Axis: 9}, unknown{}} {
		if _, err := Op(op, []Value{FromTensor(graph.NewTensor(x.Type))}); err == nil {
			t.Errorf("%s: no error", op.OpName())
		}
	}
	if _, err := Op(graph.Input{Type: x.Type}, nil); err == nil {
		t.Error("an input has no value of its own")
	}
	if _, err := Decomposed(graph.Copy{}, nil); err == nil {
		t.Error("a primitive has no decomposition")
	}
}

type unknown struct{}

func (unknown) OpName() string { return "unknown" }

type wrong struct{}

func (wrong) Do(args []*graph.Tensor) (*graph.Tensor, error) { return args[0], nil }

func TestUpdates(t *testing.T) {
	b := graph.NewBuilder("counter")
	n := b.State("n", graph.TypeOf(graph.I32))
	b.Update(n, b.Binary(graph.Add, n, b.Scalar(graph.I32, 1)))
	g := graphtest.Graph(t, b)
	in := map[string]*graph.Tensor{"n": graph.Scalar(graph.I32, 41)}
	_, updates, err := Eval(g, in)
	if err != nil || updates["n"].Float(0) != 42 || updates["n"].Type != n.Type {
		t.Errorf("update is %v, error %v", updates["n"], err)
	}
	_, bound, err := EvalBound(g, in)
	if err != nil || Check(graph.Scalar(graph.I32, 42), bound["n"]) != nil || Check(graph.Scalar(graph.I32, 43), bound["n"]) == nil {
		t.Errorf("update is %v, error %v", bound["n"], err)
	}
}

func TestCheck(t *testing.T) {
	tensor := func(v ...float32) *graph.Tensor {
		x, _ := graph.TensorOf(v, 1, len(v))
		return x
	}
	inf := math.Inf(1)
	want := func(mag float64, v ...float64) Value {
		x := Value{Type: graph.TypeOf(graph.F32, 1, len(v)), F: v, Mag: make([]float64, len(v))}
		for i := range x.Mag {
			x.Mag[i] = mag
		}
		return x
	}
	plain := want(0, 2)
	plain.Mag = nil
	for _, c := range []struct {
		name string
		got  *graph.Tensor
		want Value
		err  string
	}{
		{"within", tensor(1, 2.00005), want(10, 1, 2), ""},
		{"beyond", tensor(1, 2.001), want(10, 1, 2), "[0 1]"},
		{"no magnitude", tensor(2.00001), plain, ""},
		{"no magnitude, beyond", tensor(2.0001), plain, "1 of 1"},
		{"exact", tensor(1), want(0, 1), ""},
		{"not exact", tensor(1.0000001), want(0, 1), "+Inf times"},
		{"unsure", tensor(float32(math.NaN())), want(inf, 1), ""},
		{"NaN", tensor(float32(math.NaN())), want(1, math.NaN()), ""},
		{"NaN for a number", tensor(float32(math.NaN())), want(1, 1), "NaN"},
		{"a number for NaN", tensor(1), want(1, math.NaN()), "NaN"},
		{"infinities", tensor(float32(inf), float32(-inf)), want(1, inf, -inf), ""},
		{"wrong infinity", tensor(float32(-inf)), want(1, inf), "-Inf"},
		{"type", tensor(1, 2), want(1, 1), "f32[1,2]"},
	} {
		err := Check(c.got, c.want)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.err)
		}
	}
}

// TestKnifeEdges computes graphs whose decisions hang on rounding, the other way round from the reference.
func TestKnifeEdges(t *testing.T) {
	b := graph.NewBuilder("edges")
	x := b.Input("x", graph.TypeOf(graph.F32, 2))
	tiny := b.BinaryScalar(graph.Sub, b.BinaryScalar(graph.Add, x, 100), 100) // 0 up to rounding for x = 1e-6
	mask := b.BinaryScalar(graph.Ge, tiny, 0)
	b.Output("mask", mask)
	b.Output("inverse", b.Unary(graph.Not, mask))
	b.Output("float", b.Add(graph.Cast{To: graph.F32}, mask))
	b.Output("relu", b.Binary(graph.Mul, b.Add(graph.Cast{To: graph.F32}, mask), tiny))
	b.Output("select", b.Add(graph.Select{}, mask, b.Scalar(graph.F32, 5), b.Scalar(graph.F32, 1)))
	b.Output("int", b.Add(graph.Cast{To: graph.I32}, b.BinaryScalar(graph.Add, tiny, 3)))
	b.Output("bool", b.Add(graph.Cast{To: graph.Bool}, tiny))
	b.Output("index", b.Add(graph.Gather{}, x, b.Add(graph.Cast{To: graph.I64}, mask)))
	b.Output("recip", b.Unary(graph.Recip, tiny))
	b.Output("div", b.Binary(graph.Div, x, tiny))
	b.Output("and", b.Binary(graph.And, mask, b.Const(graph.Scalar(graph.Bool, 0))))
	b.Output("picked", b.Add(graph.Select{}, mask, b.Scalar(graph.I32, 5), b.Scalar(graph.I32, 1)))
	b.Output("huge", b.BinaryScalar(graph.Mul, b.BinaryScalar(graph.Add, x, 1e30), 1e30))
	g := graphtest.Graph(t, b)
	xs, _ := graph.TensorOf([]float32{1e-6, 2.5}, 2)
	out, _, err := EvalBound(g, map[string]*graph.Tensor{"x": xs})
	if err != nil {
		t.Fatal(err)
	}
	no, _ := graph.TensorOf([]bool{false, true}, 2)
	yes, _ := graph.TensorOf([]bool{true, false}, 2)
	f := func(a, b float32) *graph.Tensor { r, _ := graph.TensorOf([]float32{a, b}, 2); return r }
	i := func(a, b int32) *graph.Tensor { r, _ := graph.TensorOf([]int32{a, b}, 2); return r }
	inf := float32(math.Inf(1))
	for name, c := range map[string]struct{ good, bad *graph.Tensor }{
		"mask":    {no, yes},
		"inverse": {yes, no},
		"float":   {f(0, 1), f(0, 0)},
		"relu":    {f(0, 2.5), f(0, 0)},
		"select":  {f(1, 5), f(1, 1)},
		"int":     {i(2, 5), i(2, 4)},
		"bool":    {no, yes},
		"index":   {f(1e-6, 2.5), nil}, // one unsure index makes all rows unsure
		"recip":   {f(-inf, 0.4), f(1, 0.6)},
		"div":     {f(inf, 1), f(1, 1.1)},
		"and":     {func() *graph.Tensor { r, _ := graph.TensorOf([]bool{false, false}, 2); return r }(), yes},
		"picked":  {i(1, 5), i(1, 1)},
	} {
		if err := Check(c.good, out[name]); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if c.bad == nil {
			continue
		}
		if err := Check(c.bad, out[name]); err == nil {
			t.Errorf("%s: a wrong value passes", name)
		}
	}
	if err := Check(f(inf, inf), out["huge"]); err != nil {
		t.Errorf("beyond f32: %v", err)
	}
}

// TestPoolKnifeEdge lets either of two nearly equal maxima take the gradient.
func TestPoolKnifeEdge(t *testing.T) {
	op := graph.PoolGrad{Kernel: graph.IntsOf(1, 3), Stride: graph.IntsOf(1, 1), Pad: graph.IntsOf(0, 0, 0, 0)}
	image := graph.TypeOf(graph.F32, 1, 1, 1, 3)
	x := Value{image, []float64{5, 5.00001, 1}, nil, []float64{5, 5, 5}}
	out, err := OpBound(op, []Value{x, FromTensor(graph.Filled(graph.TypeOf(graph.F32, 1, 1, 1, 1), 7))})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		got  [3]float32
		good bool
	}{{[3]float32{0, 7, 0}, true}, {[3]float32{7, 0, 0}, true}, {[3]float32{0, 0, 7}, false}} {
		got, err := graph.TensorOf(c.got[:], 1, 1, 1, 3)
		if err != nil {
			t.Fatal(err)
		}
		if err := Check(got, out[0]); (err == nil) != c.good {
			t.Errorf("%v: %v", c.got, err)
		}
	}
}

// TestEvalKeptInFusion has an infinite key that causality hides from the first query: a kernel may multiply by it, in a
// fusion as outside of one.
func TestEvalKeptInFusion(t *testing.T) {
	x := graph.TypeOf(graph.F32, 1, 2, 1)
	plain := graph.NewBuilder("plain")
	plain.Output("y", plain.Add(graph.Attention{Scale: 1, Causal: true}, plain.Input("q", x), plain.Input("k", x),
		plain.Input("v", x)))
	g := graphtest.Graph(t, plain)
	fused := graph.NewBuilder("fused")
	fused.Output("y", fused.Add(graph.Fusion{Anchor: graph.AnchorAttention, Kind: graph.KindAttention, Body: g},
		fused.Input("q", x), fused.Input("k", x), fused.Input("v", x)))
	h := graphtest.Graph(t, fused)
	of := func(x ...float32) *graph.Tensor {
		y, err := graph.TensorOf(x, 1, len(x), 1)
		if err != nil {
			t.Fatal(err)
		}
		return y
	}
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, g := range []*graph.Graph{g, h} {
		for _, c := range []struct {
			last, got float32
			good      bool
		}{{inf, 3, true}, {inf, nan, true}, {4, nan, false}} {
			out, _, err := EvalKept(g, map[string]*graph.Tensor{"q": of(1, 1), "k": of(0, c.last), "v": of(3, 3)})
			if err != nil {
				t.Fatal(err)
			}
			if err := Check(of(c.got, 3), out["y"]); (err == nil) != c.good {
				t.Errorf("%s, %v beside %v: %v", g.Name, c.got, c.last, err)
			}
		}
	}
}
