package gorgonia

import (
	"bytes"
	"io"
	"log"
	"strings"
	"testing"

	"fusec/graph"

	gorg "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

func dense(dims []int, v any) *tensor.Dense {
	return tensor.New(tensor.WithShape(dims...), tensor.WithBacking(v))
}

func TestToTensor(t *testing.T) {
	matrix := func() *tensor.Dense { return dense([]int{2, 3}, []float64{1, 2, 3, 4, 5, 6}) }
	m, transposed := matrix(), matrix()
	if err := transposed.T(); err != nil {
		t.Fatal(err)
	}
	column, err := m.Slice(nil, gorg.S(1))
	if err != nil {
		t.Fatal(err)
	}
	part, err := matrix().Slice(nil, gorg.S(0, 2))
	if err != nil {
		t.Fatal(err)
	}
	byColumn := tensor.New(tensor.WithShape(2, 3), tensor.AsFortran([]float64{1, 2, 3, 4, 5, 6}))
	for _, c := range []struct {
		name string
		v    gorg.Value
		typ  graph.Type
		want []float64
	}{
		{"matrix", matrix(), graph.TypeOf(graph.F64, 2, 3), []float64{1, 2, 3, 4, 5, 6}},
		{"transposed", transposed, graph.TypeOf(graph.F64, 3, 2), []float64{1, 4, 2, 5, 3, 6}},
		{"column", column.(gorg.Value), graph.TypeOf(graph.F64, 2), []float64{2, 5}},
		{"part", part.(gorg.Value), graph.TypeOf(graph.F64, 2, 2), []float64{1, 2, 4, 5}},
		{"column-major", byColumn, graph.TypeOf(graph.F64, 2, 3), []float64{1, 2, 3, 4, 5, 6}},
		{"f32", dense([]int{2}, []float32{1, 2}), graph.TypeOf(graph.F32, 2), []float64{1, 2}},
		{"int", dense([]int{2}, []int{1, -2}), graph.TypeOf(graph.I64, 2), []float64{1, -2}},
		{"int64", dense([]int{2}, []int64{1, -2}), graph.TypeOf(graph.I64, 2), []float64{1, -2}},
		{"int32", dense([]int{2}, []int32{1, -2}), graph.TypeOf(graph.I32, 2), []float64{1, -2}},
		{"byte", dense([]int{2}, []uint8{1, 255}), graph.TypeOf(graph.I32, 2), []float64{1, 255}},
		{"bool", dense([]int{2}, []bool{true, false}), graph.TypeOf(graph.Bool, 2), []float64{1, 0}},
		{"scalar f32", gorg.NewF32(1), graph.TypeOf(graph.F32), []float64{1}},
		{"scalar f64", gorg.NewF64(1), graph.TypeOf(graph.F64), []float64{1}},
		{"scalar int", gorg.NewI(-1), graph.TypeOf(graph.I64), []float64{-1}},
		{"scalar int64", gorg.NewI64(-1), graph.TypeOf(graph.I64), []float64{-1}},
		{"scalar int32", gorg.NewI32(-1), graph.TypeOf(graph.I32), []float64{-1}},
		{"scalar byte", gorg.NewU8(200), graph.TypeOf(graph.I32), []float64{200}},
		{"scalar bool", gorg.NewB(true), graph.TypeOf(graph.Bool), []float64{1}},
		{"tensor scalar", tensor.New(tensor.FromScalar(2.5)), graph.TypeOf(graph.F64), []float64{2.5}},
	} {
		t.Run(c.name, func(t *testing.T) {
			x, err := ToTensor(c.v)
			if err != nil {
				t.Fatal(err)
			}
			if x.Type != c.typ {
				t.Fatalf("type %v, want %v", x.Type, c.typ)
			}
			for i, w := range c.want {
				if x.Float(i) != w {
					t.Errorf("got %v, want %v", x.Floats(), c.want)
					break
				}
			}
			// Writing what was read changes nothing; writing zeros shows that the right elements are reached.
			if err := Store(c.v, x); err != nil {
				t.Fatal(err)
			}
			if back, _ := ToTensor(c.v); !back.Equal(x) {
				t.Errorf("stored and read again: %v", back.Floats())
			}
			alias, ok := Alias(c.v)
			if ok && !alias.Equal(x) {
				t.Errorf("alias holds %v", alias.Floats())
			}
			if err := Store(c.v, graph.NewTensor(x.Type)); err != nil {
				t.Fatal(err)
			}
			for i := range c.want {
				if back, _ := ToTensor(c.v); back.Float(i) != 0 || ok && alias.Float(i) != 0 {
					t.Errorf("zeros were not stored: %v", back.Floats())
				}
			}
		})
	}
	// The column wrote its elements and no others.
	if got := m.Float64s(); got[0] != 1 || got[1] != 0 || got[2] != 3 || got[4] != 0 {
		t.Errorf("the matrix is %v", got)
	}
}

func TestValueErrors(t *testing.T) {
	want := graph.NewTensor(graph.TypeOf(graph.F64, 2))
	for name, v := range map[string]gorg.Value{
		"nothing": nil, "another type": dense([]int{2}, []float32{1, 2}), "another length": dense([]int{3}, []float64{1, 2, 3}),
		"an unknown type": dense([]int{2}, []uint16{1, 2}),
	} {
		if err := Load(want, v); err == nil {
			t.Errorf("%s was loaded", name)
		}
		if err := Store(v, want); err == nil {
			t.Errorf("%s was written", name)
		}
	}
	if _, err := ToTensor(nil); err == nil {
		t.Error("nothing became a tensor")
	}
	if _, err := ToTensor(dense([]int{2}, []uint16{1, 2})); err == nil {
		t.Error("a tensor of uint16 was accepted")
	}
	if _, ok := Alias(gorg.NewF64(1)); ok {
		t.Error("a scalar was aliased")
	}
}

func TestLoadAllocatesNothing(t *testing.T) {
	for name, v := range map[string]gorg.Value{"f32": dense([]int{8, 8}, make([]float32, 64)),
		"int": dense([]int{64}, make([]int, 64)), "scalar": gorg.NewF64(1)} {
		x, err := ToTensor(v)
		if err != nil {
			t.Fatal(err)
		}
		if n := testing.AllocsPerRun(100, func() { _ = Load(x, v) }); n > 0 {
			t.Errorf("loading %s allocates %v times", name, n)
		}
	}
}

func TestNewValue(t *testing.T) {
	b := newBuilder()
	for _, n := range []*gorg.Node{b.in("x", 2, 3), b.in("s"), b.ints("ix", 1, 2)} {
		x, err := ToTensor(n.Value())
		if err != nil {
			t.Fatal(err)
		}
		v, err := NewValue(n, x)
		if err != nil {
			t.Fatal(err)
		}
		if v.Dtype() != n.Dtype() || !v.Shape().Eq(n.Shape()) {
			t.Errorf("value of type %v%v for a node of %v%v", v.Dtype(), v.Shape(), n.Dtype(), n.Shape())
		}
		if _, err := NewValue(n, graph.NewTensor(graph.TypeOf(graph.F32, 7))); err == nil {
			t.Error("a value of another type was accepted")
		}
	}
	for _, x := range []*graph.Tensor{
		graph.Filled(graph.TypeOf(graph.I32, 2), 3), graph.Scalar(graph.I64, 3), graph.Scalar(graph.I32, 3), graph.Scalar(graph.F32, 3),
		graph.Scalar(graph.Bool, 1), graph.Filled(graph.TypeOf(graph.Bool, 2), 1),
	} {
		if back, err := ToTensor(FromTensor(x)); err != nil || !back.Equal(x) {
			t.Errorf("%v came back as %v: %v", x, back, err)
		}
	}
}

func TestBind(t *testing.T) {
	b := newBuilder()
	x := b.in("x", 2, 3)
	y := must(gorg.Exp(x))
	v := dense([]int{2, 3}, make([]float64, 6))
	if err := Bind(y, v); err != nil || y.Value() != gorg.Value(v) {
		t.Errorf("bound %v: %v", y.Value(), err)
	}
	// A value of another shape is refused by gorgonia.UnsafeLet.
	odd := dense([]int{6}, make([]float64, 6))
	if err := Bind(y, odd); err != nil || y.Value() != gorg.Value(odd) {
		t.Errorf("bound %v: %v", y.Value(), err)
	}
	one := graph.Filled(graph.TypeOf(graph.F64, 2, 3), 1)
	if err := BindGrad(x, one, true); err != nil {
		t.Fatal(err)
	}
	if !HasDual(x) || HasDual(y) {
		t.Error("the gradient is not beside the value")
	}
	if err := Bind(x, odd); err != nil || x.Value() != gorg.Value(odd) || !HasDual(x) {
		t.Errorf("binding a value beside a gradient: %v", err)
	}
	check := func(want float64) {
		t.Helper()
		g, err := x.Grad()
		if err != nil {
			t.Fatal(err)
		}
		if got := g.Data().([]float64)[5]; got != want {
			t.Errorf("the gradient is %v, want %v", got, want)
		}
	}
	check(1)
	if err := BindGrad(x, one, true); err != nil {
		t.Fatal(err)
	}
	check(2)
	if err := BindGrad(x, one, false); err != nil {
		t.Fatal(err)
	}
	check(1)

	s := b.in("s")
	for range 3 {
		if err := BindGrad(s, graph.Scalar(graph.F64, 0.5), true); err != nil {
			t.Fatal(err)
		}
	}
	if g, _ := s.Grad(); *g.(*gorg.F64) != 1.5 {
		t.Errorf("the gradient of a scalar is %v", g)
	}
	f := gorg.NewVector(b.ExprGraph, tensor.Float32, gorg.WithShape(2), gorg.WithName("f"))
	half := graph.Filled(graph.TypeOf(graph.F32, 2), 0.5)
	if err := BindGrad(f, half, true); err == nil {
		t.Error("a node without a value was given a gradient")
	}
	if err := Bind(f, FromTensor(half)); err != nil {
		t.Fatal(err)
	}
	if err := BindGrad(f, one, true); err == nil {
		t.Error("a gradient of another type was accepted")
	}
	for range 2 {
		if err := BindGrad(f, half, true); err != nil {
			t.Fatal(err)
		}
	}
	if g, _ := f.Grad(); g.Data().([]float32)[1] != 1 {
		t.Errorf("the gradient is %v", g)
	}
}

// machine is a machine outside Gorgonia, with an option of its own.
type machine struct{ set int }

func (*machine) RunAll() error { return nil }
func (*machine) Reset()        {}
func (*machine) Close() error  { return nil }

func own(v int) gorg.VMOpt {
	return func(m gorg.VM) {
		if m, ok := m.(*machine); ok {
			m.set = v
		}
	}
}

func TestReadOptions(t *testing.T) {
	b := newBuilder()
	x := b.in("x", 2)
	var buf bytes.Buffer
	l := log.New(&buf, "", 0)
	m := &machine{}
	c, err := ReadOptions(TapeMachine, m, gorg.BindDualValues(x), own(3), gorg.EvalMode(), gorg.TraceExec(), gorg.WithLogger(l),
		gorg.WithValueFmt("%v"), gorg.WithNaNWatch(), gorg.WithInfWatch(), gorg.WithWatchlist(x, gorg.NodeID(7)), gorg.WithWatchlist())
	if err != nil {
		t.Fatal(err)
	}
	if !c.BindDual || len(c.BindNodes) != 1 || c.BindNodes[0] != x || !c.Eval || !c.Trace || c.Logger != l || c.ValueFmt != "%v" ||
		!c.WatchNaN || !c.WatchInf || !c.WatchAll || len(c.Watch) != 1 || len(c.WatchIDs) != 1 || c.WatchIDs[0] != 7 {
		t.Errorf("options read as %+v", c)
	}
	if m.set != 3 {
		t.Error("the machine's own option was not applied")
	}
	c, err = ReadOptions(TapeMachine, nil)
	if err != nil || c.BindDual || c.Eval || c.Trace || c.WatchNaN || c.Logger != nil {
		t.Errorf("no options read as %+v: %v", c, err)
	}
	for _, o := range []gorg.VMOpt{gorg.ExecuteFwdOnly(), nil, func(gorg.VM) { panic("no") }} {
		for _, m := range []gorg.VM{nil, m} {
			if _, err := ReadOptions(TapeMachine, m, o); err == nil || !strings.Contains(err.Error(), "machine option 0") {
				t.Errorf("error %v", err)
			}
		}
	}
	l.SetOutput(io.Discard)
}

func TestFields(t *testing.T) {
	type inner struct{ N int }
	x := struct {
		inner
		s []string
		v gorg.Value
	}{inner{3}, nil, gorg.NewF64(1)}
	if f := fieldsOf(x); f.int("N") != 3 || f.err != nil || value[gorg.Value](f, "v") != x.v {
		t.Errorf("reading fields: %v", f.err)
	}
	for name, read := range map[string]func(*fields){
		"int": func(f *fields) { f.int("x") }, "byte": func(f *fields) { f.byte("N") }, "bool": func(f *fields) { f.bool("N") },
		"float": func(f *fields) { f.float("N") }, "string": func(f *fields) { f.string("N") }, "ints": func(f *fields) { f.ints("s") },
		"value": func(f *fields) { value[gorg.Nodes](f, "s") }, "inner": func(f *fields) { f.inner("N") },
		"set": func(f *fields) { _ = f.set("N", 1) }, "ints of no slice": func(f *fields) { f.ints("N") },
	} {
		f := fieldsOf(x)
		read(f)
		if f.err == nil || !strings.Contains(f.err.Error(), version) {
			t.Errorf("%s: error %v", name, f.err)
		}
		if f.int("N") != 0 {
			t.Errorf("%s: reading goes on after an error", name)
		}
	}
	if f := fieldsOf(3); f.err == nil {
		t.Error("a number has fields")
	}
}

// TestAccumulate adds to gradients that lie in memory in other ways than one element after the other.
func TestAccumulate(t *testing.T) {
	b := newBuilder()
	for _, v := range []gorg.Value{
		dense([]int{2, 2}, []float64{1, 2, 3, 4}),
		tensor.New(tensor.WithShape(2, 2), tensor.AsFortran([]float64{1, 2, 3, 4})),
	} {
		x := b.in("x", 2, 2)
		gorg.WithGrad(v)(x)
		for range 2 {
			one, _ := graph.TensorOf([]float64{1, 10, 100, 1000}, 2, 2)
			if err := BindGrad(x, one, true); err != nil {
				t.Fatal(err)
			}
		}
		got, err := ToTensor(v)
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []float64{3, 22, 203, 2004} {
			if got.Float(i) != want {
				t.Errorf("gradient %v", got.Floats())
			}
		}
	}
	s := gorg.NewScalar(b.ExprGraph, tensor.Float32, gorg.WithName("f32"), gorg.WithValue(float32(1)))
	for range 2 {
		if err := BindGrad(s, graph.Scalar(graph.F32, 0.5), true); err != nil {
			t.Fatal(err)
		}
	}
	if g, _ := s.Grad(); *g.(*gorg.F32) != 1 {
		t.Errorf("the gradient of a scalar is %v", g)
	}
	// A derivative whose node has a value is no gradient of the node's own.
	x := b.in("y", 2)
	if _, err := gorg.Grad(must(gorg.Sum(must(gorg.Square(x)))), x); err != nil {
		t.Fatal(err)
	}
	d := dense([]int{2}, []float64{5, 5})
	if err := Bind(x.Deriv(), d); err != nil {
		t.Fatal(err)
	}
	if err := BindGrad(x, graph.Filled(graph.TypeOf(graph.F64, 2), 1), true); err != nil {
		t.Fatal(err)
	}
	if g, _ := x.Grad(); g.Data().([]float64)[0] != 1 || d.Float64s()[0] != 5 {
		t.Errorf("the gradient is %v beside the derivative %v", g, d)
	}
}
