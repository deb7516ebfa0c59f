package graph_test

import (
	"fmt"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
)

func row(n int) graph.Operand {
	return graph.Operand{DType: graph.F32, Layout: graph.Contiguous(graph.ShapeOf(n))}
}

func TestCheckOperands(t *testing.T) {
	apart := row(4)
	apart.Layout.Stride[0] = 2
	add := graph.Binary{Fn: graph.Add}
	for _, c := range []struct {
		op            graph.Op
		args, results []graph.Operand
		want          string
	}{
		{add, []graph.Operand{row(4), row(4)}, []graph.Operand{row(4)}, ""},
		{graph.Copy{}, []graph.Operand{apart}, []graph.Operand{row(4)}, ""},
		{add, []graph.Operand{row(4), apart}, []graph.Operand{row(4)}, "binary: operand 1 of type f32[4] is not contiguous"},
		{add, []graph.Operand{row(4)}, []graph.Operand{row(4)}, "binary of 1 operands"},
		{add, []graph.Operand{row(4), row(5)}, []graph.Operand{row(4)}, "binary: "},
		{add, []graph.Operand{row(4), row(4)}, nil, "binary: 0 results, not 1"},
		{add, []graph.Operand{row(4), row(4)}, []graph.Operand{row(5)}, "binary: result 0 has type f32[5], not f32[4]"},
		{add, []graph.Operand{row(4), row(4)}, []graph.Operand{apart}, "binary: result 0 of type f32[4] is not contiguous"},
		{nil, nil, nil, "is not in the table"},
	} {
		err := graph.CheckOperands(c.op, c.args, c.results)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v of %d: error %v, want one about %q", c.op, len(c.args), err, c.want)
		}
	}
}

// TestSegmentOperands takes from the operands of two segments what is each one's.
func TestSegmentOperands(t *testing.T) {
	b := graph.NewBuilder("two")
	x, y, z := b.Input("x", row(3).Type()), b.Input("y", row(5).Type()), b.Input("z", row(5).Type())
	b.Output("a", b.Unary(graph.Neg, x))
	b.Output("b", b.Binary(graph.Add, z, y))
	body := graphtest.Graph(t, b)
	segments := graph.Fusion{Body: body}.Segments()
	args, results := []graph.Operand{row(3), row(5), row(5)}, []graph.Operand{row(3), row(5)}
	results[1].Over = 3
	if err := graph.CheckSegments(segments, results); err != nil {
		t.Error(err)
	}
	for i, want := range []string{"[[3]] [[3]] 0", "[[5] [5]] [[5]] 2"} {
		in, out := segments[i].Operands(args, results)
		shapes := func(list []graph.Operand) (s []graph.Shape) {
			for _, o := range list {
				s = append(s, o.Layout.Shape)
			}
			return
		}
		if got := fmt.Sprint(shapes(in), shapes(out), out[0].Over); got != want {
			t.Errorf("segment %d: %s, want %s", i, got, want)
		}
	}
	results[0].Over = 2
	want := "result 0 is written over operand 1, which another segment reads"
	if err := graph.CheckSegments(segments, results); err == nil || err.Error() != want {
		t.Errorf("error %v, want %q", err, want)
	}
}

func TestAround(t *testing.T) {
	s := graph.ShapeOf(2, 3, 5, 7)
	for _, c := range [][5]int{{0, 1, 1, 2, 105}, {1, 2, 2, 15, 7}, {3, 1, 30, 7, 1}, {2, 0, 6, 1, 35}} {
		if outer, dim, inner := s.Around(c[0], c[1]); [3]int{outer, dim, inner} != [3]int(c[2:]) {
			t.Errorf("%v around %d: %d, %d, %d", s, c[0], outer, dim, inner)
		}
	}
}
