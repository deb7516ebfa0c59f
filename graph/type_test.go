package graph_test

import (
	"fmt"
	"strings"
	"testing"

	"fusec/graph"
)

func TestDType(t *testing.T) {
	for d, want := range map[graph.DType]struct {
		name       string
		size       int
		float, int bool
	}{
		graph.F32: {"f32", 4, true, false}, graph.F64: {"f64", 8, true, false},
		graph.I32: {"i32", 4, false, true}, graph.I64: {"i64", 8, false, true}, graph.Bool: {"bool", 1, false, false},
		graph.BF16: {"bf16", 2, false, false}, graph.F16: {"f16", 2, false, false},
	} {
		if d.String() != want.name || d.Size() != want.size || d.IsFloat() != want.float || d.IsInt() != want.int {
			t.Errorf("%v: size %d, float %v, int %v", d, d.Size(), d.IsFloat(), d.IsInt())
		}
		if d.Is16() != (want.size == 2) || d.IsReal() != (want.float || want.size == 2) {
			t.Errorf("%v: 16 bits %v, real %v", d, d.Is16(), d.IsReal())
		}
		if got, err := graph.ParseDType(want.name); got != d || err != nil {
			t.Errorf("ParseDType(%s) = %v, %v", want.name, got, err)
		}
	}
	for _, s := range []string{"", "invalid", "f8"} {
		if _, err := graph.ParseDType(s); err == nil {
			t.Errorf("ParseDType(%q) succeeded", s)
		}
	}
}

func TestInts(t *testing.T) {
	l := graph.IntsOf(3, -1)
	if l.Len() != 2 || l.At(1) != -1 || !l.Has(3) || l.Has(0) || l.String() != "[3,-1]" || fmt.Sprint(l.Slice()) != "[3 -1]" {
		t.Errorf("got %v", l)
	}
	if m := graph.IntsOf(3, -1); l != m || graph.IntsOf(0) == graph.IntsOf() {
		t.Error("lists are not compared by their values")
	}
	l.Slice()[0] = 9
	if l.At(0) != 3 {
		t.Error("Slice shares its values")
	}
	defer func() {
		if recover() == nil {
			t.Error("no panic with too many values")
		}
	}()
	graph.IntsOf(1, 2, 3, 4, 5, 6, 7, 8, 9)
}

func TestShape(t *testing.T) {
	s := graph.ShapeOf(2, 3, 4)
	if s.Rank() != 3 || s.Elems() != 24 || fmt.Sprint(s.Strides()) != "[12 4 1]" {
		t.Errorf("%v: %d elements, strides %v", s, s.Elems(), s.Strides())
	}
	if graph.ShapeOf().Elems() != 1 || graph.ShapeOf(3, 0).Elems() != 0 {
		t.Error("wrong number of elements")
	}
	if got := s.With(1, 7); got != graph.ShapeOf(2, 7, 4) || s.At(1) != 3 {
		t.Errorf("With gives %v and leaves %v", got, s)
	}
	if got := s.Drop(graph.IntsOf(0, 2)); got != graph.ShapeOf(3) {
		t.Errorf("Drop gives %v", got)
	}
	for want, s := range map[string]graph.Shape{
		"":            graph.ShapeOf(graph.MaxElems, 1, 0),
		"negative":    graph.ShapeOf(2, -1),
		"more than":   graph.ShapeOf(graph.MaxElems, 2),
		"has more":    graph.ShapeOf(0, graph.MaxElems+1),
		"more than 1": graph.ShapeOf(1<<32, 1<<32, 1<<32),
	} {
		if err := s.Check(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("Check(%v) = %v, want %q", s, err, want)
		}
	}
}

func TestType(t *testing.T) {
	u := graph.TypeOf(graph.F64, 2, 3)
	if u.String() != "f64[2,3]" || u.Bytes() != 48 || u.With(graph.I32) != graph.TypeOf(graph.I32, 2, 3) ||
		u.Reshaped(graph.ShapeOf(6)) != graph.TypeOf(graph.F64, 6) || graph.TypeOf(graph.Bool).String() != "bool[]" {
		t.Errorf("got %v of %d bytes", u, u.Bytes())
	}
}
