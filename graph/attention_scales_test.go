package graph_test

import (
	"strings"
	"testing"

	"fusec/graph"
)

// TestScaledTypes is the type rule of an attention with keys and values of 8 bits.
func TestScaledTypes(t *testing.T) {
	f := func(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }
	i8 := func(dims ...int) graph.Type { return graph.TypeOf(graph.I8, dims...) }
	q, k, v, ks, vs := f(5, 4, 2, 3), i8(5, 2, 6, 3), i8(5, 2, 6, 8), f(5, 2, 6, 1), f(5, 2, 6, 1)
	op := graph.Attention{HasScales: true}
	everything := graph.Attention{HasScales: true, HasMask: true, HasLengths: true, Page: 6, Dropout: 0.5}
	index := graph.TypeOf(graph.I64, 5)
	for _, c := range []struct {
		op   graph.Attention
		args []graph.Type
		want string // the type of the result, or ! and part of the error
	}{
		{op, []graph.Type{q, k, v, ks, vs}, "f32[5,4,2,8]"},
		{op, []graph.Type{q.With(graph.BF16), k, v, ks, vs}, "f32[5,4,2,8]"},
		{op, []graph.Type{q.With(graph.F64), k, v, ks.With(graph.F64), vs.With(graph.F64)}, "f64[5,4,2,8]"},
		{everything, []graph.Type{q, k, v, f(12), index, graph.TypeOf(graph.I64, 5, 2), graph.TypeOf(graph.I64), ks, vs}, "f32[5,4,2,8]"},
		{op, []graph.Type{q, k, v}, "! needs 5 operands"},
		{op, []graph.Type{q, k.With(graph.F32), v, ks, vs}, "! keys of f32 and values of i8 with scales: they are i8"},
		{op, []graph.Type{q, k, v.With(graph.U8), ks, vs}, "! keys of i8 and values of u8 with scales"},
		{graph.Attention{}, []graph.Type{q, k, v}, "! element types f32, i8 and i8 differ"},
		{op, []graph.Type{q, k, v, f(5, 2, 6), vs}, "! the scales of the keys are f32[5,2,6], not f32[5,2,6,1]"},
		{op, []graph.Type{q, k, v, ks, vs.With(graph.F16)}, "! the scales of the values are f16[5,2,6,1], not f32[5,2,6,1]"},
		{op, []graph.Type{q.With(graph.F64), k, v, ks, vs}, "! the scales of the keys are f32[5,2,6,1], not f64[5,2,6,1]"},
		{op, []graph.Type{q.With(graph.I8), k, v, ks, vs}, "! "},
	} {
		out, err := graph.InfoOf(c.op).Infer(c.op, c.args)
		msg, wantError := strings.CutPrefix(c.want, "! ")
		switch {
		case wantError && (err == nil || !strings.Contains(err.Error(), msg)):
			t.Errorf("%+v of %v: error %v, want %q", c.op, c.args, err, msg)
		case !wantError && (err != nil || out[0].String() != c.want):
			t.Errorf("%+v of %v: %v, %v, want %s", c.op, c.args, out, err, c.want)
		}
	}
	grad := graph.AttentionGrad{Attention: op}
	lse := f(5, 4, 2)
	_, err := graph.InfoOf(grad).Infer(grad, []graph.Type{q, k, v, ks, vs, f(5, 4, 2, 8), lse, f(5, 4, 2, 8)})
	if err == nil || !strings.Contains(err.Error(), "few bits have no gradient") {
		t.Errorf("error %v", err)
	}
}

// TestQuantizeRows stores rows with a scale for each, and refuses what has none.
func TestQuantizeRows(t *testing.T) {
	b := graph.NewBuilder("")
	q, scale := b.QuantizeRows(b.Input("x", graph.TypeOf(graph.F64, 2, 3, 5)))
	if q.Type != graph.TypeOf(graph.I8, 2, 3, 5) || scale.Type != graph.TypeOf(graph.F64, 2, 3, 1) {
		t.Errorf("%v with scales %v", q.Type, scale.Type)
	}
	for _, x := range []graph.Type{graph.TypeOf(graph.F32), graph.TypeOf(graph.F32, 3, 0), graph.TypeOf(graph.BF16, 3, 4)} {
		b := graph.NewBuilder("")
		b.QuantizeRows(b.Input("x", x))
		if err := b.Err(); err == nil || !strings.Contains(err.Error(), "rows of "+x.String()+" are not quantised") {
			t.Errorf("%v: error %v", x, err)
		}
		b.QuantizeRows(b.Input("y", x)) // after an error
	}
}
