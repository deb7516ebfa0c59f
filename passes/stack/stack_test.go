package stack_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/lowering/cpu"
	"fusec/lowering/cuda"
	"fusec/passes"
	"fusec/passes/passtest"
)

func f32(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }

// linear is x·w + bias with weights of a name; without a bias if it has no columns.
func linear(b *graph.Builder, x *graph.Node, name string, columns int, bias bool) *graph.Node {
	y := b.MatMul(x, b.Param("w"+name, f32(x.Type.Shape.At(x.Type.Shape.Rank()-1), columns)), false, false)
	if bias {
		y = b.Binary(graph.Add, y, b.Broadcast(b.Param("b"+name, f32(1, columns)), y.Type.Shape))
	}
	return y
}

// few is x·w with weights [columns, k] of few bits in blocks of 8, and zero points if they are asked for.
func few(b *graph.Builder, x *graph.Node, name string, of, scales graph.DType, columns int, zero bool) *graph.Node {
	k := x.Type.Shape.At(x.Type.Shape.Rank() - 1)
	scale := b.Param("s"+name, graph.TypeOf(scales, columns, k/8))
	if scales != graph.F32 {
		scale = b.CastTo(graph.F32, scale)
	}
	args := []*graph.Node{b.Param("w"+name, graph.TypeOf(of, columns, k)), scale}
	if zero {
		args = append(args, b.Param("z"+name, graph.TypeOf(of, columns, k/8)))
	}
	return b.MatMul(x, b.Add(graph.Dequantize{Axis: 1, Block: 8}, args...), false, true)
}

// three is made of three products of one operand, with 64, third and 64 columns.
func three(b *graph.Builder, third int, part func(x *graph.Node, name string, columns int) *graph.Node) {
	x := b.Input("x", f32(5, 24))
	u, z, v := part(x, "u", 64), part(x, "z", third), part(x, "v", 64)
	b.Output("y", b.MatMul(b.MatMul(u, v, false, true), z, false, false))
}

// rotary is a rotary embedding that is written out: x·cos + [−x2, x1]·sin, of halves of the last axis.
func rotary(b *graph.Builder, x *graph.Node) *graph.Node {
	last, half := x.Type.Shape.Rank()-1, x.Type.Shape.At(x.Type.Shape.Rank()-1)/2
	turned := b.Add(graph.Concat{Axis: last}, b.Unary(graph.Neg, b.Slice(x, last, half, half, 1)), b.Slice(x, last, 0, half, 1))
	table := func(name string) *graph.Node { return b.Input(name, x.Type) }
	if last == 1 {
		return b.Binary(graph.Add, b.Binary(graph.Mul, x, table("cos")), b.Binary(graph.Mul, turned, table("sin")))
	}
	return b.Binary(graph.Sub, b.Binary(graph.Mul, turned, table("sine")), b.Binary(graph.Mul, table("cosine"), x))
}

// attend is the attention of an operand to itself, with heads of 2 elements.
func attend(b *graph.Builder, x *graph.Node, bias bool) *graph.Node {
	rows, heads := x.Type.Shape.At(0), 3
	part := func(name string) *graph.Node {
		return b.Transpose(b.Reshape(linear(b, x, name, 2*heads, bias), rows, heads, 2), 1, 0, 2)
	}
	q, k, v := part("q"), part("k"), part("v")
	y := b.MatMul(b.Add(graph.Softmax{Axis: 2}, b.BinaryScalar(graph.Mul, b.MatMul(q, k, false, true), 0.5)), v, false, false)
	return b.Reshape(b.Transpose(y, 1, 0, 2), rows, 2*heads)
}

// cell is a step of an LSTM.
func cell(b *graph.Builder, x, h, c *graph.Node) (*graph.Node, *graph.Node) {
	width := h.Type.Shape.At(1)
	gate := func(name string, fn graph.UnaryFn) *graph.Node {
		return b.Unary(fn, b.Binary(graph.Add, linear(b, x, "x"+name, width, false), linear(b, h, "h"+name, width, true)))
	}
	i, f, o, g := gate("i", graph.Sigmoid), gate("f", graph.Sigmoid), gate("o", graph.Sigmoid), gate("g", graph.Tanh)
	c = b.Binary(graph.Add, b.Binary(graph.Mul, f, c), b.Binary(graph.Mul, i, g))
	return b.Binary(graph.Mul, o, b.Unary(graph.Tanh, c)), c
}

// programs are those of the tests, with the products that are left, and what is said of those that stay apart.
var programs = []struct {
	name     string
	build    func(b *graph.Builder)
	products int
	missed   string
}{
	{"attention", func(b *graph.Builder) { b.Output("y", attend(b, b.Input("x", f32(5, 7)), false)) }, 1, ""},
	{"attention with biases", func(b *graph.Builder) { b.Output("y", attend(b, b.Input("x", f32(5, 7)), true)) }, 1, ""},
	{"one row", func(b *graph.Builder) { b.Output("y", attend(b, b.Input("x", f32(1, 7)), true)) }, 1, ""},
	{"gates", func(b *graph.Builder) {
		h, c := cell(b, b.Input("x", f32(3, 5)), b.Input("h", f32(3, 4)), b.Input("c", f32(3, 4)))
		b.Output("h'", h)
		b.Output("c'", c)
	}, 2, ""},
	{"gates of one unit", func(b *graph.Builder) {
		h, _ := cell(b, b.Input("x", f32(1, 1)), b.Input("h", f32(1, 1)), b.Input("c", f32(1, 1)))
		b.Output("h'", h)
	}, 2, ""},
	{"weights that are transposed and not", func(b *graph.Builder) {
		x := b.Input("x", f32(2, 3, 5))
		y := b.MatMul(x, b.Param("u", f32(4, 5)), false, true)
		z := b.MatMul(x, b.Param("v", f32(5, 2)), false, false)
		b.Output("y", b.MatMul(y, z, true, false))
	}, 1, ""},
	{"weights on the left", func(b *graph.Builder) {
		x := b.Input("x", f32(5, 3))
		y := b.MatMul(b.Param("u", f32(4, 5)), x, false, false)
		z := b.MatMul(b.Param("v", f32(5, 2)), x, true, false)
		bias := func(n *graph.Node, name string) *graph.Node {
			return b.Binary(graph.Sub, b.Broadcast(b.Param(name, f32(n.Type.Shape.At(0), 1)), n.Type.Shape), n)
		}
		b.Output("y", b.MatMul(bias(y, "bu"), bias(z, "bv"), false, true))
	}, 1, ""},
	{"the same scale and function", func(b *graph.Builder) {
		x := b.Input("x", f32(5, 3))
		part := func(name string, columns int) *graph.Node {
			return b.Unary(graph.Tanh, b.BinaryScalar(graph.Mul, linear(b, x, name, columns, false), 0.3))
		}
		b.Output("y", b.MatMul(part("u", 4), part("v", 2), true, false))
	}, 1, ""},
	{"a gated layer", func(b *graph.Builder) {
		x := b.Input("x", f32(5, 3))
		y := b.Binary(graph.Mul, b.Unary(graph.Silu, linear(b, x, "gate", 4, true)), linear(b, x, "up", 4, true))
		b.Output("y", linear(b, y, "down", 3, true))
	}, 3, "what follows the 2 products is not the same for all: with it apart from them, one product makes it 2 launches"},
	{"outputs", func(b *graph.Builder) {
		x := b.Input("x", f32(5, 3))
		b.Output("y", linear(b, x, "y", 4, true))
		b.Output("z", linear(b, x, "z", 2, true))
	}, 2, "what follows the 2 products is not the same for all: with it apart from them, one product makes it 3 launches"},
	{"a weight that changes", func(b *graph.Builder) {
		x, w := b.Input("x", f32(5, 3)), b.Param("u", f32(3, 4))
		b.Output("y", b.MatMul(b.MatMul(x, w, false, false), linear(b, x, "v", 4, false), true, false))
		b.Update(w, b.BinaryScalar(graph.Mul, w, 0.5))
	}, 2, ""},
	{"weights of four bits with zero points", func(b *graph.Builder) {
		three(b, 7, func(x *graph.Node, name string, columns int) *graph.Node {
			return few(b, x, name, graph.I4, graph.F32, columns, true)
		})
	}, 1, ""},
	{"weights of eight bits with scales of 16 and biases", func(b *graph.Builder) {
		three(b, 32, func(x *graph.Node, name string, columns int) *graph.Node {
			y := few(b, x, name, graph.I8, graph.F16, columns, false)
			return b.Binary(graph.Add, y, b.Broadcast(b.Param("b"+name, f32(columns)), y.Type.Shape))
		})
	}, 1, ""},
	{"weights of 16 bits", func(b *graph.Builder) {
		three(b, 33, func(x *graph.Node, name string, columns int) *graph.Node {
			return b.MatMul(x, b.CastTo(graph.F32, b.Param("w"+name, graph.TypeOf(graph.BF16, 24, columns))), false, false)
		})
	}, 1, ""},
	{"rotary embeddings", func(b *graph.Builder) {
		x := b.Input("x", f32(5, 24))
		q := rotary(b, few(b, x, "q", graph.I4, graph.F32, 32, true))
		k := rotary(b, b.Reshape(few(b, x, "k", graph.I4, graph.F32, 32, true), 5, 1, 32))
		v := few(b, x, "v", graph.I4, graph.F32, 64, true)
		b.Output("y", b.MatMul(b.MatMul(q, b.Reshape(k, 5, 32), false, true), v, false, false))
	}, 1, ""},
	{"weights of different types", func(b *graph.Builder) {
		x := b.Input("x", f32(5, 24))
		b.Output("y", b.MatMul(few(b, x, "u", graph.I4, graph.F32, 64, true), few(b, x, "v", graph.I8, graph.F32, 64, true), false, true))
	}, 2, ""},
	{"weights and scales of different types", func(b *graph.Builder) {
		x := b.Input("x", f32(5, 24))
		u, v := few(b, x, "u", graph.I4, graph.F32, 64, false), few(b, x, "v", graph.I4, graph.F16, 64, false)
		b.Output("y", b.MatMul(u, v, false, true))
	}, 2, ""},
	{"different operands", func(b *graph.Builder) {
		x, w := b.Input("x", f32(5, 3)), b.Param("w", f32(3, 4))
		b.Output("y", b.MatMul(b.MatMul(x, w, false, false), b.MatMul(b.Unary(graph.Exp, x), w, false, false), true, false))
	}, 2, ""},
}

// products counts those of a matrix of weights.
func products(g *graph.Graph) (count int) {
	for _, n := range g.Nodes {
		if _, ok := n.Op.(graph.MatMul); ok && (n.Args[0].Type.Shape.Rank() == 2 && isWeight(n.Args[0]) || isWeight(n.Args[1])) {
			count++
		}
		if _, ok := n.Op.(graph.PanelMatMul); ok {
			count++
		}
	}
	return count
}

// isWeight reports whether a value follows from parameters alone.
func isWeight(n *graph.Node) bool {
	if graph.IsSource(n.Op) {
		_, ok := n.Op.(graph.Param)
		return ok
	}
	for _, a := range n.Args {
		if !isWeight(a) {
			return false
		}
	}
	return true
}

func TestStack(t *testing.T) {
	for _, p := range programs {
		t.Run(p.name, func(t *testing.T) {
			g := graphtest.Built(t, p.build)
			h, tr := passtest.Run(t, g, passes.Config{Frozen: true, Stop: "stack-weights"})
			if got := products(h); got != p.products {
				t.Errorf("%d products with weights, want %d: %s", got, p.products, passtest.Ops(h))
			}
			missed := ""
			for _, m := range passtest.Stage(t, tr, "stack-weights").Misses {
				missed += m.Reason
			}
			if missed != p.missed {
				t.Errorf("missed: %q, want %q", missed, p.missed)
			}
			for _, d := range []passes.Target{cpu.New(), cuda.New()} {
				whole, _ := passtest.Run(t, g, passes.Config{Frozen: true, Target: d})
				apart, _, err := passes.Run(g, passes.Config{Frozen: true, Target: d, Disable: map[string]bool{"stack-weights": true}})
				if err != nil {
					t.Fatal(err)
				}
				if a, b := launches(whole), launches(apart); p.missed == "" && a > b || p.missed != "" && a != b {
					t.Errorf("%s: %d launches, %d with the products apart: %s", d.Name(), a, b, passtest.Launches(whole))
				}
				if d.Name() == "cpu" {
					passtest.SameOnCPU(t, g, whole, graphtest.Values(rand.New(rand.NewPCG(3, 5)), g))
				}
			}
			changing, _ := passtest.Run(t, g, passes.Config{Stop: "stack-weights"})
			if got, all := products(changing), products(g); got != all {
				t.Errorf("%d products of %d are left where weights may change", got, all)
			}
		})
	}
}

// launches counts the launches of a run: not those of the prepared part.
func launches(g *graph.Graph) (count int) {
	frozen := graph.Frozen(g, true)
	for _, n := range g.Nodes {
		_, further := n.Op.(graph.Result)
		if !further && !graph.IsView(n.Op) && !graph.IsSource(n.Op) && !frozen.Get(n) {
			count++
		}
	}
	return count
}

// TestBroken leaves products apart of which several have a panel that is not full.
func TestBroken(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		x := b.Input("x", f32(5, 24))
		part := func(name string) *graph.Node { return few(b, x, name, graph.I4, graph.F32, 40, true) }
		b.Output("y", b.MatMul(part("u"), part("v"), false, true))
	})
	_, tr := passtest.Run(t, g, passes.Config{Frozen: true, Stop: "stack-weights"})
	stage := passtest.Stage(t, tr, "stack-weights")
	if len(stage.Matches) != 0 || len(stage.Notes) != 1 || !strings.Contains(stage.Notes[0].Text, "multiples of 32 columns") {
		t.Errorf("%d matches, %v", len(stage.Matches), stage.Notes)
	}
}

// TestStays leaves products apart that are no faster together on the CPU, and says why.
func TestStays(t *testing.T) {
	for _, c := range []struct {
		name       string
		rows, side int
		want       string
	}{
		{"small", 4, 64, ""},
		{"one row", 1, 64, ""},
		{"one row of large weights", 1, 512, "one row takes as long as reading the weights"},
		{"weights in panels", 128, 256, ""},
		{"much to do in panels", 1024, 256, "what is saved by starting one launch is little"},
		{"much to do", 64, 512, "what is saved by starting one launch is little"},
	} {
		g := graphtest.Built(t, func(b *graph.Builder) {
			x := b.Input("x", f32(c.rows, c.side))
			part := func(name string) *graph.Node {
				if strings.HasSuffix(c.name, "panels") {
					return few(b, x, name, graph.I4, graph.F32, c.side, true)
				}
				return linear(b, x, name, c.side, false)
			}
			b.Output("y", b.MatMul(part("u"), part("v"), false, true))
		})
		_, tr, err := passes.Run(g, passes.Config{Frozen: true, Target: cpu.New(), Stop: "stack-weights"})
		if err != nil {
			t.Fatal(err)
		}
		stage, said := passtest.Stage(t, tr, "stack-weights"), ""
		for _, n := range stage.Notes {
			said += n.Text
		}
		if !strings.Contains(said, c.want) || (c.want == "") != (len(stage.Matches) == 1) {
			t.Errorf("%s: %d matches, %q", c.name, len(stage.Matches), said)
		}
	}
}
