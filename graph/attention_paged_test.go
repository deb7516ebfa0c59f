package graph_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/kernels/ref"
)

// TestPagedTypes is the type rule of an attention with pages of 6 keys.
func TestPagedTypes(t *testing.T) {
	f := func(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }
	i := func(dims ...int) graph.Type { return graph.TypeOf(graph.I64, dims...) }
	q, k, v, l, table := f(5, 4, 2, 3), f(7, 2, 6, 3), f(7, 2, 6, 8), i(5), i(5, 9)
	op := graph.Attention{Page: 6, HasLengths: true}
	with := func(change func(op *graph.Attention)) graph.Attention { o := op; change(&o); return o }
	for _, c := range []struct {
		op   graph.Attention
		args []graph.Type
		want string // the type of the result, or ! and part of the error
	}{
		{op, []graph.Type{q, k, v, l, table}, "f32[5,4,2,8]"},
		{op, []graph.Type{f(4, 2, 3), k, v, i(), i(9)}, "f32[4,2,8]"},
		{with(func(op *graph.Attention) { op.HasMask = true }), []graph.Type{q, k, v, f(2, 54), l, table}, "f32[5,4,2,8]"},
		{with(func(op *graph.Attention) { op.HasMask = true }), []graph.Type{q, k, v, f(2, 9), l, table},
			"! mask [2,9] does not broadcast to [5,4,2,54]"},
		{with(func(op *graph.Attention) { op.Dropout = 0.5 }), []graph.Type{q, k, v, l, table, i()}, "f32[5,4,2,8]"},
		{op, []graph.Type{q, k, v, l}, "! needs 5 operands"},
		{with(func(op *graph.Attention) { op.HasLengths = false }), []graph.Type{q, k, v, table}, "! paged keys need lengths"},
		{with(func(op *graph.Attention) { op.Page = -6 }), []graph.Type{q, k, v, l, table}, "! pages of -6 keys"},
		{with(func(op *graph.Attention) { op.Page = 5 }), []graph.Type{q, k, v, l, table}, "! needs pools [pages, heads, 5, depth]"},
		{op, []graph.Type{f(2, 3), k, v, i(), i(9)}, "! needs queries of 3 to 7 axes"},
		{op, []graph.Type{q, f(5, 7, 2, 6, 3), f(5, 7, 2, 6, 8), l, table}, "! needs pools"},
		{op, []graph.Type{q, k, f(8, 2, 6, 8), l, table}, "! needs pools"},
		{op, []graph.Type{q, f(0, 2, 6, 3), f(0, 2, 6, 8), l, table}, "! a pool of no pages"},
		{op, []graph.Type{f(5, 4, 2, 4), k, v, l, table}, "! differ in the last axis"},
		{op, []graph.Type{f(5, 3, 2, 3), k, v, l, table}, "! 3 heads of queries are not a multiple of 2"},
		{op, []graph.Type{q, k, v, l, i(4, 9)}, "! the table is i64[4,9], not i64 of [5] and an axis of pages"},
		{op, []graph.Type{q, k, v, l, l}, "! the table is i64[5]"},
		{op, []graph.Type{q, k, v, l, table.With(graph.I32)}, "! the table is i32[5,9]"},
		{op, []graph.Type{q, k, v, l, i(5, math.MaxInt32)}, "! are too many"},
		{op, []graph.Type{q, k, v, i(4), table}, "! the lengths are i64[4]"},
	} {
		out, err := graph.InfoOf(c.op).Infer(c.op, c.args)
		want, fails := strings.CutPrefix(c.want, "! ")
		switch {
		case fails && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%v: error %v, want %q", c.args, err, want)
		case !fails &&
			(err != nil || out[0].String() != want || out[1].Shape != c.args[0].Shape.Drop(graph.IntsOf(c.args[0].Shape.Rank()-1))):
			t.Errorf("%v: %v, %v, want %s", c.args, out, err, want)
		}
	}
}

// TestPagedEntries puts entries that are no pages into the table: those that count are an error, the others nothing.
func TestPagedEntries(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	draw := func(dims ...int) ref.Value {
		x := graph.NewTensor(graph.TypeOf(graph.F64, dims...))
		for i := range x.Type.Shape.Elems() {
			x.SetFloat(i, r.NormFloat64())
		}
		return ref.FromTensor(x)
	}
	integers := func(v ...int64) ref.Value {
		x, err := graph.TensorOf(v, len(v))
		if err != nil {
			t.Fatal(err)
		}
		return ref.FromTensor(x)
	}
	op := graph.Attention{Scale: 0.5, Page: 2, HasLengths: true}
	args := []ref.Value{draw(1, 2, 3, 4), draw(3, 1, 2, 4), draw(3, 1, 2, 5), integers(3), integers(2, 0, 1)}
	args[4].Type.Shape = graph.ShapeOf(1, 3)
	want, err := ref.Op(op, args)
	if err != nil {
		t.Fatal(err)
	}
	args[4].I[2] = 99
	for _, compute := range []func(graph.Op, []ref.Value) ([]ref.Value, error){ref.Op, ref.Decomposed} {
		got, err := compute(op, args)
		if err != nil {
			t.Fatal(err)
		}
		if err := ref.Check(got[0].Tensor(), want[0]); err != nil {
			t.Error(err)
		}
	}
	args[4].I[1] = 3
	if _, err := ref.Op(op, args); err == nil ||
		!strings.Contains(err.Error(), "page 3, entry 1 of the table of batch 0, is outside 0..2") {
		t.Errorf("error %v", err)
	}
	if _, err := ref.Decomposed(op, args); err == nil || !strings.Contains(err.Error(), "outside 0..2") {
		t.Errorf("error of the decomposition %v", err)
	}
}
