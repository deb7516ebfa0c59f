package lowering

import (
	"fmt"
	"strings"
	"testing"

	"fusec/graph"
)

// TestJoinInPlace checks which operands of a Concat are written into its result, and from where others read them.
func TestJoinInPlace(t *testing.T) {
	exp := func(b *graph.Builder, x *graph.Node) *graph.Node { return b.Unary(graph.Exp, x) }
	channels := graph.Concat{Axis: 2}
	for _, c := range []struct {
		name  string
		build func(b *graph.Builder, x *graph.Node)
		want  string // operations with the views of their results
	}{
		{"both", func(b *graph.Builder, x *graph.Node) {
			b.Output("y", exp(b, b.Add(channels, exp(b, x), b.Unary(graph.Tanh, x))))
		}, "unary b1[2,3,4]+0/[24 8 1], unary b1[2,3,4]+4/[24 8 1], unary b2[2,3,8]"},
		{"with readers before and behind", func(b *graph.Builder, x *graph.Node) {
			y := exp(b, x)
			z := b.Unary(graph.Tanh, y)
			b.Output("y", exp(b, b.Add(channels, y, z)))
			b.Output("z", b.Add(graph.Copy{}, b.Slice(y, 2, 1, 2, 2)))
		}, "unary b1[2,3,4]+0/[24 8 1], unary b1[2,3,4]+4/[24 8 1], unary b2[2,3,8], copy b4[2,3,2]"},
		{"one in another", func(b *graph.Builder, x *graph.Node) {
			y := b.Add(channels, exp(b, x), b.Unary(graph.Tanh, x))
			b.Output("y", exp(b, b.Add(channels, y, b.Unary(graph.Sin, y))))
		}, "unary b1[2,3,4]+0/[48 16 1], unary b1[2,3,4]+4/[48 16 1], unary b1[2,3,8]+8/[48 16 1], unary b2[2,3,16]"},
		{"along the first axis", func(b *graph.Builder, x *graph.Node) {
			b.Output("y", exp(b, b.Add(graph.Concat{Axis: 0}, exp(b, x), b.Unary(graph.Tanh, x))))
		}, "unary b1[2,3,4], unary b1[2,3,4]+24/[12 4 1], unary b2[4,3,4]"},
		{"an input and what is handed out are copied", func(b *graph.Builder, x *graph.Node) {
			y := b.Unary(graph.Tanh, x)
			b.Output("z", y)
			b.Output("y", exp(b, b.Add(channels, x, y, exp(b, x))))
		}, "unary b1[2,3,4], unary b2[2,3,4]+8/[36 12 1], concat b2[2,3,12], unary b3[2,3,12]"},
		{"twice", func(b *graph.Builder, x *graph.Node) {
			y := exp(b, x)
			b.Output("y", exp(b, b.Add(channels, y, y)))
		}, "unary b1[2,3,4]+4/[24 8 1], concat b1[2,3,8], unary b2[2,3,8]"},
		{"in two", func(b *graph.Builder, x *graph.Node) {
			y, z := exp(b, x), b.Unary(graph.Tanh, x)
			b.Output("y", exp(b, b.Add(channels, y, z)))
			b.Output("z", exp(b, b.Add(channels, z, b.Unary(graph.Sin, x))))
		}, "unary b1[2,3,4]+0/[24 8 1], unary b3[2,3,4]+0/[24 8 1], concat b1[2,3,8], unary b2[2,3,8], " +
			"unary b3[2,3,4]+4/[24 8 1], unary b4[2,3,8]"},
		{"a reader without strides", func(b *graph.Builder, x *graph.Node) {
			y := exp(b, x)
			b.Output("y", exp(b, b.Add(channels, y, b.Unary(graph.Tanh, x))))
			b.Output("z", b.Reduce(graph.Sum, y, false, 0))
		}, "unary b1[2,3,4], unary b2[2,3,4]+4/[24 8 1], concat b2[2,3,8], unary b3[2,3,8], reduce b4[3,4]"},
		{"the result is handed out", func(b *graph.Builder, x *graph.Node) {
			b.Output("y", b.Add(channels, exp(b, x), b.Unary(graph.Tanh, x)))
		}, "unary b1[2,3,4], unary b2[2,3,4], concat b3[2,3,8]"},
		{"a view over several rows", func(b *graph.Builder, x *graph.Node) {
			y := exp(b, x)
			b.Output("y", exp(b, b.Add(channels, y, y)))
			b.Output("z", exp(b, b.Reshape(y, 24)))
		}, "unary b1[2,3,4], concat b2[2,3,8], unary b3[2,3,8], unary b4[24]"},
	} {
		g := made(t, func(b *graph.Builder) { c.build(b, b.Input("x", f32(2, 3, 4))) })
		p, err := Lower(g, "none", Strides(func(op graph.Op, _, _ []graph.Operand) bool { return op.OpName() != "reduce" }))
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		var got []string
		for _, l := range p.Launches {
			got = append(got, fmt.Sprintf("%s %v", l.Op.OpName(), l.Results[0]))
		}
		if s := strings.Join(got, ", "); s != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s\n%v", c.name, s, c.want, p)
		}
	}
}
