package dot

import (
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/trace"
)

// TestChannelsLast finds the images of NHWC in a graph before and after fusion, and draws them with their layout.
func TestChannelsLast(t *testing.T) {
	b := graph.NewBuilder("images")
	one := graph.IntsOf(1, 1)
	conv := graph.Conv2D{Stride: one, Dilation: one, Pad: graph.IntsOf(0, 0, 0, 0), Groups: 1, Layout: graph.NHWC}
	named := func(name string, n *graph.Node) *graph.Node { n.Name = name; return n }
	x := b.Input("x", graph.TypeOf(graph.F32, 1, 4, 8, 8))
	turned := named("turned", b.Add(graph.Copy{}, b.Transpose(x, 0, 2, 3, 1)))
	scaled := named("scaled", b.Unary(graph.Square, turned))
	y := named("y", b.Add(conv, scaled, b.Param("w", graph.TypeOf(graph.F32, 1, 1, 4, 4))))
	bias := named("bias", b.Broadcast(b.Param("v", graph.TypeOf(graph.F32, 4)), y.Type.Shape))
	z := named("z", b.Unary(graph.Relu, b.Binary(graph.Add, y, bias)))
	joined := named("joined", b.Add(graph.Concat{Axis: 3}, z, z))
	mean := named("mean", b.Reduce(graph.Mean, joined, false, 1, 2))
	filters := b.Add(graph.Conv2DFilterGrad{Stride: one, Dilation: one, Pad: graph.IntsOf(0, 0, 0, 0), Groups: 1, Layout: graph.NHWC,
		KH: 1, KW: 1}, scaled, z)
	named("filters", filters)
	plain := named("plain", b.Transpose(joined, 0, 3, 1, 2))
	vector := b.Param("c", graph.TypeOf(graph.F32, 4))
	two := named("two", b.Add(graph.SeparableConv2D{Stride: one, Dilation: one, Pad: graph.IntsOf(0, 0, 0, 0), Low: 0, High: 6}, z,
		b.Param("d", graph.TypeOf(graph.F32, 1, 1, 1, 4)), vector, b.Param("p", graph.TypeOf(graph.F32, 1, 1, 4, 4))))
	body := graph.NewBuilder("body")
	in := body.Input("a", z.Type)
	body.Output("r", body.Unary(graph.Tanh, in))
	body.Output("s", body.Transpose(in, 0, 3, 1, 2))
	bg := graphtest.Graph(t, body)
	f := b.Add(graph.Fusion{Kind: graph.KindElementwise, Body: bg}, z)
	r, s := named("r", f), named("s", b.Add(graph.Result{Index: 1}, f))
	for _, n := range []*graph.Node{mean, filters, plain, two, r, s} {
		b.Output("out"+n.Name, n)
	}
	g := graphtest.Graph(t, b)
	found := channelsLast(g)
	for _, n := range []*graph.Node{turned, scaled, y, z, joined, two, r} {
		if !found[n] {
			t.Errorf("%s: not found", n.Name)
		}
	}
	for _, n := range []*graph.Node{x, bias, mean, filters, plain, s} {
		if found[n] {
			t.Errorf("%s: no image of NHWC", n.Name)
		}
	}
	var text strings.Builder
	tr := &trace.Trace{Stages: []trace.Stage{{Name: "layout", Graph: g}}}
	if err := Stage(&text, tr, 0, Options{}); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(text.String(), `NHWC`); n < 5 {
		t.Errorf("%d edges with NHWC:\n%s", n, text.String())
	}
}
