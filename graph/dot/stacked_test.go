package dot

import (
	"fmt"
	"strings"
	"testing"

	"fusec/graph"
)

// TestStackedWeights draws a product of stacked weights as stack-weights makes it: the card is called after all layers, by
// the names of their parameters or, where these have none, of the nodes that were stacked, and formulas name their parts.
func TestStackedWeights(t *testing.T) {
	for _, name := range []string{"block.%s.weight", "onnx::MatMul_%s"} {
		for _, fused := range []bool{false, true} {
			layers := []string{"query", "key", "value"}
			b := graph.NewBuilder("")
			x := b.Input("x", graph.TypeOf(graph.F32, 4, 6))
			var weights []*graph.Node
			for _, l := range layers {
				weights = append(weights, b.Param(fmt.Sprintf(name, l), graph.TypeOf(graph.F32, 6, 3)))
			}
			w := b.Add(graph.Concat{Axis: 1}, weights...)
			y := b.MatMul(x, w, false, false)
			part := func(b *graph.Builder, y *graph.Node, i int) *graph.Node {
				return b.Slice(y, 1, 3*i, 3, 1)
			}
			sum := func(b *graph.Builder, y *graph.Node) *graph.Node {
				return b.Binary(graph.Mul, b.Binary(graph.Add, part(b, y, 0), part(b, y, 1)), part(b, y, 2))
			}
			want := "(query + key) × value"
			if fused {
				y = b.Add(graph.Fusion{Kind: graph.KindElementwise,
					Body: body(t, func(b *graph.Builder, in func(dims ...int) *graph.Node) []*graph.Node {
						return []*graph.Node{sum(b, in(4, 9))}
					})}, y)
			} else {
				y, want = b.Binary(graph.Sub, part(b, y, 2), part(b, y, 1)), "value − key"
			}
			b.Output("y", y)
			g := finish(t, b)
			for _, n := range []*graph.Node{w, w.Args[0]} {
				n.Origin = nil
			}
			for _, l := range layers {
				w.Origin = append(w.Origin, graph.Origin{Name: "/block/" + l + "/MatMul"}, graph.Origin{Name: "/block/" + l + "/Transpose"})
			}
			var text []string
			for _, x := range layout(drawing{graph: g, opts: Options{Detail: Compact, Expand: true}}).nodes {
				text = append(text, fmt.Sprint(x.lines))
			}
			all := strings.Join(text, "\n")
			if strings.Count(all, "{block.query, key, value ") != 2 || !strings.Contains(all, "{"+want+" ") {
				t.Errorf("%s, fused %v: want %q in\n%s", name, fused, want, all)
			}
		}
	}
}
