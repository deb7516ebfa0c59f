package graph_test

import (
	"math"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
)

// TestBits8 checks numbers of the 8-bit floating-point types against the tables of the specification, and that every number is
// nearest to itself.
func TestBits8(t *testing.T) {
	for _, tt := range []struct {
		d    graph.DType
		v    float64
		bits uint8
	}{
		{graph.F8E4M3, 448, 0x7e}, {graph.F8E4M3, 1e9, 0x7e}, {graph.F8E4M3, math.Inf(-1), 0xfe}, {graph.F8E4M3, 1, 0x38},
		{graph.F8E4M3, 0x1p-9, 1}, {graph.F8E4M3, 0x1p-6, 8}, {graph.F8E4M3, 0x1p-10, 0}, {graph.F8E4M3, 0x3p-10, 2},
		{graph.F8E5M2, 57344, 0x7b}, {graph.F8E5M2, 1e9, 0x7b}, {graph.F8E5M2, 1, 0x3c}, {graph.F8E5M2, 0x1p-16, 1},
		{graph.F8E5M2, 0x1p-14, 4}, {graph.F8E5M2, 1.125, 0x3c}, {graph.F8E5M2, 1.375, 0x3e}, {graph.F8E5M2, math.Copysign(0, -1), 0x80},
		{graph.F8E4M3, math.NaN(), 0x7f}, {graph.F8E5M2, math.NaN(), 0x7e},
	} {
		if got := tt.d.Bits8(tt.v); got != tt.bits {
			t.Errorf("%v of %v is %#x, want %#x", tt.v, tt.d, got, tt.bits)
		}
	}
	for _, d := range []graph.DType{graph.F8E4M3, graph.F8E5M2} {
		for i, v := range d.Values8() {
			if got := d.Bits8(float64(v)); v == v && !math.IsInf(float64(v), 0) && int(got) != i {
				t.Errorf("%v of %v is %#x, want %#x", v, d, got, i)
			}
		}
	}
	if v := graph.F8E5M2.Values8(); !math.IsInf(float64(v[0x7c]), 1) || !math.IsInf(float64(v[0xfc]), -1) || v[0x7d] == v[0x7d] {
		t.Error("f8e5m2 lacks infinities or NaN")
	}
	if v := graph.F8E4M3.Values8(); v[0xff] == v[0xff] || v[0x7e] != 448 {
		t.Error("f8e4m3 lacks NaN")
	}
}

// TestNibbles sets and reads elements that share bytes.
func TestNibbles(t *testing.T) {
	x := graph.NewTensor(graph.TypeOf(graph.I4, 5))
	for i, v := range []float64{-8, 7, -9, 100, 2.5} {
		x.SetFloat(i, v)
	}
	for i, want := range []float64{-8, 7, -8, 7, 2} {
		if x.Float(i) != want {
			t.Errorf("element %d is %v, want %v", i, x.Float(i), want)
		}
	}
	if x.Type.Bytes() != 3 || len(x.Bytes()) != 3 || x.Bytes()[2]>>4 != 0 || x.Check() != nil {
		t.Errorf("%v has bytes %x", x.Type, x.Bytes())
	}
	if uniform := graph.Filled(graph.TypeOf(graph.I4, 4), -3); !uniform.Uniform() || x.Uniform() {
		t.Error("equal elements are not told from others")
	}
	if d := graph.I4; d.Quantised(math.NaN(), 3) != 3 || d.Quantised(9, 0) != 7 || graph.U8.Quantised(-4, 100) != 96 {
		t.Error("a wrong number is stored")
	}
}

// TestStoredText writes constants of the types that are only stored, and refuses what they do not hold.
func TestStoredText(t *testing.T) {
	text := `fusec graph 1 {
a = const[value=[-8,7,3]] : i4[3]
b = const[value=[nan,nan.ff,-0,448,0.001953125]] : f8e4m3[5]
c = const[value=[inf,-inf,nan.7d,1.5]] : f8e5m2[4]
output a = a
output b = b
output c = c
}
`
	g, err := graph.Parse("m.graph", []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	h, err := graph.Parse("m.graph", []byte(graph.Print(g)), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := graph.Equal(g, h); err != nil {
		t.Error(err)
	}
	for _, s := range []string{"[8] : i4[1]", "[-9] : i4[1]", "[1.5] : i4[1]", "[nan.00] : f8e4m3[1]", "[nan.123] : f8e5m2[1]",
		"[x] : f8e5m2[1]"} {
		if _, err := graph.Parse("m.graph", []byte("fusec graph 1 {\na = const[value="+s+"\noutput a = a\n}\n"), nil); err == nil {
			t.Errorf("%s is read", s)
		}
	}
}

// TestStoredRefused lists operations that do not take elements that are only stored.
func TestStoredRefused(t *testing.T) {
	for want, build := range map[string]func(b *graph.Builder, x *graph.Node) *graph.Node{
		"only dequantize": func(b *graph.Builder, x *graph.Node) *graph.Node { return b.Unary(graph.Neg, x) },
		"only quantize": func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Add(graph.Cast{To: graph.F8E5M2}, b.Scalar(graph.F32, 1))
		},
		"read such": func(b *graph.Builder, x *graph.Node) *graph.Node { return b.Transpose(x, 1, 0) },
	} {
		b := graph.NewBuilder("refused")
		b.Output("y", build(b, b.Input("x", graph.TypeOf(graph.I4, 2, 2))))
		if _, err := b.Graph(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one about %s", err, want)
		}
	}
	g := graphtest.Built(t, func(b *graph.Builder) { b.Output("y", b.Reshape(b.Input("x", graph.TypeOf(graph.I4, 3, 3)), 9)) })
	if g.Outputs[0].Node.Type != graph.TypeOf(graph.I4, 9) {
		t.Error("a view of I4 is refused")
	}
}

// TestScaleIndex counts scales of each form.
func TestScaleIndex(t *testing.T) {
	s := graph.ShapeOf(2, 5, 3)
	for _, tt := range []struct {
		axis, block int
		scale       graph.Shape
		element     int
		want        int
	}{{0, 0, graph.ShapeOf(), 29, 0}, {1, 0, graph.ShapeOf(5), 16, 0}, {1, 0, graph.ShapeOf(5), 20, 1},
		{1, 2, graph.ShapeOf(2, 3, 3), 14, 8},
		{1, 2, graph.ShapeOf(2, 3, 3), 16, 10}, {2, 2, graph.ShapeOf(2, 5, 2), 5, 3}} {
		if got := graph.ScaleIndex(tt.axis, tt.block, s, tt.scale)(tt.element); got != tt.want {
			t.Errorf("%+v: %d", tt, got)
		}
	}
}

// TestRoundTrip dequantizes what was quantized before, both made of simpler operations: no value of integers is between.
func TestRoundTrip(t *testing.T) {
	number := func(b *graph.Builder) *graph.Node { return b.Input("x", graph.TypeOf(graph.F32, 3, 4)) }
	axis := graph.ShapeOf(4)
	for name, c := range map[string]struct {
		quantize func(b *graph.Builder) *graph.Node
		casts    bool
	}{
		"one scale": {func(b *graph.Builder) *graph.Node {
			return b.Add(graph.Quantize{To: graph.I8}, number(b), b.Scalar(graph.F32, 0.1))
		}, false},
		"known zero point": {func(b *graph.Builder) *graph.Node {
			return b.Add(graph.Quantize{To: graph.U8}, number(b), b.Scalar(graph.F32, 0.1), b.Scalar(graph.U8, 7))
		}, false},
		"zero points of an axis": {func(b *graph.Builder) *graph.Node {
			return b.Add(graph.Quantize{To: graph.U8, Axis: 1}, number(b), b.Param("s", graph.Type{DType: graph.F32, Shape: axis}),
				b.Param("z", graph.Type{DType: graph.U8, Shape: axis}))
		}, false},
		"integers": {func(b *graph.Builder) *graph.Node { return b.Input("q", graph.TypeOf(graph.U8, 3, 4)) }, true},
		"not limited": {func(b *graph.Builder) *graph.Node {
			return b.CastTo(graph.U8, b.Unary(graph.Round, number(b)))
		}, true},
		"limited by less": {func(b *graph.Builder) *graph.Node {
			x := b.BinaryScalar(graph.Min, b.Unary(graph.Round, number(b)), 100)
			return b.CastTo(graph.U8, b.Unary(graph.Relu, x))
		}, false},
		"limited by more": {func(b *graph.Builder) *graph.Node {
			x := b.BinaryScalar(graph.Min, b.Unary(graph.Round, number(b)), 300)
			return b.CastTo(graph.U8, b.BinaryScalar(graph.Max, x, 0))
		}, true},
		"limited by a value": {func(b *graph.Builder) *graph.Node {
			x := b.Binary(graph.Min, b.Unary(graph.Round, number(b)), b.Input("most", graph.TypeOf(graph.F32)))
			return b.CastTo(graph.U8, b.BinaryScalar(graph.Max, x, 0))
		}, true},
		"not rounded": {func(b *graph.Builder) *graph.Node {
			return b.CastTo(graph.U8, b.BinaryScalar(graph.Max, b.BinaryScalar(graph.Min, number(b), 255), 0))
		}, true},
		"moved by a fraction": {func(b *graph.Builder) *graph.Node {
			x := b.BinaryScalar(graph.Add, b.Unary(graph.Round, number(b)), 0.5)
			return b.CastTo(graph.U8, b.BinaryScalar(graph.Max, b.BinaryScalar(graph.Min, x, 255), 0))
		}, true},
	} {
		b := graph.NewBuilder("g")
		q := c.quantize(b)
		if lowered := graph.Lower(b, q); lowered != nil {
			q = lowered[0]
		}
		y := graph.Lower(b, b.Add(graph.Dequantize{}, q, b.Scalar(graph.F32, 0.1)))[0]
		b.Output("y", y)
		if _, err := b.Graph(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := graph.Ancestors(y)[q]; got != c.casts {
			t.Errorf("%s: read from integers: %v", name, got)
		}
	}
}

// TestIsWhole has values that are whole because of what they are made of.
func TestIsWhole(t *testing.T) {
	b := graph.NewBuilder("g")
	x := b.Input("x", graph.TypeOf(graph.F32, 1, 2, 4, 4))
	bytes := b.BinaryScalar(graph.Max, b.BinaryScalar(graph.Min, b.Unary(graph.Round, x), 255), 0)
	pool := graph.Pool{Fn: graph.MaxPool, Kernel: graph.IntsOf(2, 2), Stride: graph.IntsOf(1, 1), Pad: graph.IntsOf(0, 0, 0, 0)}
	mean := pool
	mean.Fn = graph.AvgPool
	for i, c := range []struct {
		n     *graph.Node
		d     graph.DType
		whole bool
	}{
		{x, graph.U8, false}, {bytes, graph.U8, true}, {bytes, graph.I16, true}, {bytes, graph.I8, false},
		{b.Reshape(bytes, 32), graph.U8, true}, {b.Add(pool, bytes), graph.U8, true}, {b.Add(mean, bytes), graph.U8, false},
		{b.CastTo(graph.F32, b.Input("q", graph.TypeOf(graph.I8, 2))), graph.I8, true},
		{b.CastTo(graph.F32, b.Input("p", graph.TypeOf(graph.I16, 2))), graph.I8, false},
		{b.CastTo(graph.F32, b.Input("m", graph.TypeOf(graph.Bool, 2))), graph.I8, false},
	} {
		if got := c.n.IsWhole(c.d); got != c.whole {
			t.Errorf("%d: %s in the range of %v: %v", i, c.n.Where(), c.d, got)
		}
	}
	if err := b.Err(); err != nil {
		t.Fatal(err)
	}
}
