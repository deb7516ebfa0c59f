package graph_test

import (
	"slices"
	"testing"

	"fusec/graph"
)

// TestSegments takes bodies apart: what shares inputs, views of inputs and constants only is apart.
func TestSegments(t *testing.T) {
	body := graph.New("body")
	b := graph.Extend(body)
	in := func(dims ...int) *graph.Node { return b.Add(graph.Input{Type: graph.TypeOf(graph.F32, dims...)}) }
	rate, x, y, z := in(), in(3, 2), in(5), in(2, 3)
	half := b.Scalar(graph.F32, 0.5)
	flat := b.Reshape(x, 6)
	b.Output("0", b.Binary(graph.Mul, b.Binary(graph.Mul, x, rate), half))
	b.Output("1", b.Binary(graph.Mul, y, half))
	product := b.Binary(graph.Mul, flat, b.Reshape(z, 6))
	b.Output("2", b.Unary(graph.Exp, product))
	b.Output("3", b.Reshape(product, 2, 3))
	b.Output("4", b.Binary(graph.Add, y, rate))
	if err := b.Err(); err != nil {
		t.Fatal(err)
	}
	f := graph.Fusion{Body: body}
	segments := f.Segments()
	want := []struct{ args, results []int }{{[]int{0, 1}, []int{0}}, {[]int{2}, []int{1}}, {[]int{1, 3}, []int{2,
		3}}, {[]int{0, 2}, []int{4}}}
	if len(segments) != len(want) {
		t.Fatalf("%d segments, want %d", len(segments), len(want))
	}
	for i, s := range segments {
		if !slices.Equal(s.Args, want[i].args) || !slices.Equal(s.Results, want[i].results) {
			t.Errorf("segment %d has operands %v and results %v, want %v", i, s.Args, s.Results, want[i])
		}
		args := make([]*graph.Node, len(s.Args))
		outer := graph.NewBuilder("outer")
		for j, a := range s.Args {
			args[j] = outer.Input(string(rune('a'+j)), []*graph.Node{rate, x, y, z}[a].Type)
		}
		outer.Output("y", outer.Add(graph.Fusion{Body: s.Body}, args...))
		if _, err := outer.Graph(); err != nil {
			t.Errorf("segment %d: %v", i, err)
		}
	}

	whole := graph.Fusion{Body: segments[2].Body}
	if s := whole.Segments(); len(s) != 1 || s[0].Body != whole.Body || !slices.Equal(s[0].Args, []int{0, 1}) {
		t.Errorf("a body of one segment gives %v", s)
	}
}
