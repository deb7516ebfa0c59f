package recurrence_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/passes"
	"fusec/passes/passtest"
)

func f64(dims ...int) graph.Type { return graph.TypeOf(graph.F64, dims...) }

// A writer writes the steps of a layer out as programs do.
type writer struct {
	*graph.Builder
	n, in, h int
	prefix   string
}

func (w writer) weight(name string, dims ...int) *graph.Node {
	return w.Param(w.prefix+name, f64(dims...))
}

// gate is f(x·wx + h·wh + b).
func (w writer) gate(name string, f graph.UnaryFn) func(x, h *graph.Node) *graph.Node {
	wx, wh, bias := w.weight("wx"+name, w.in, w.h), w.weight("wh"+name, w.h, w.h), w.weight("b"+name, 1, w.h)
	return func(x, h *graph.Node) *graph.Node {
		z := w.Binary(graph.Add, w.MatMul(x, wx, false, false), w.MatMul(h, wh, false, false))
		return w.Unary(f, w.Binary(graph.Add, z, w.Broadcast(bias, graph.ShapeOf(w.n, w.h))))
	}
}

func (w writer) mul(x, y *graph.Node) *graph.Node { return w.Binary(graph.Mul, x, y) }

// cells are ways to write a step of the cells; each gives what computes the states after a step.
var cells = map[string]func(w writer) func(x *graph.Node, state []*graph.Node) []*graph.Node{
	"tanh": func(w writer) func(x *graph.Node, state []*graph.Node) []*graph.Node {
		g := w.gate("", graph.Tanh)
		return func(x *graph.Node, s []*graph.Node) []*graph.Node { return []*graph.Node{g(x, s[0])} }
	},
	"relu": func(w writer) func(x *graph.Node, state []*graph.Node) []*graph.Node {
		g := w.gate("", graph.Relu)
		return func(x *graph.Node, s []*graph.Node) []*graph.Node { return []*graph.Node{g(x, s[0])} }
	},
	"lstm": func(w writer) func(x *graph.Node, state []*graph.Node) []*graph.Node {
		i, f, o, u := w.gate("i", graph.Sigmoid), w.gate("f", graph.Sigmoid), w.gate("o", graph.Sigmoid), w.gate("u", graph.Tanh)
		return func(x *graph.Node, s []*graph.Node) []*graph.Node {
			h := s[0]
			c := w.Binary(graph.Add, w.mul(f(x, h), s[1]), w.mul(i(x, h), u(x, h)))
			return []*graph.Node{w.mul(o(x, h), w.Unary(graph.Tanh, c)), c}
		}
	},
	"gru": func(w writer) func(x *graph.Node, state []*graph.Node) []*graph.Node {
		z, r, u := w.gate("z", graph.Sigmoid), w.gate("r", graph.Sigmoid), w.gate("u", graph.Tanh)
		return func(x *graph.Node, s []*graph.Node) []*graph.Node {
			h, open := s[0], z(x, s[0])
			rest := w.Binary(graph.Sub, w.Scalar(graph.F64, 1), open)
			return []*graph.Node{w.Binary(graph.Add, w.mul(rest, u(x, w.mul(r(x, h), h))), w.mul(open, h))}
		}
	},
	"gru_after": func(w writer) func(x *graph.Node, state []*graph.Node) []*graph.Node {
		z, r := w.gate("z", graph.Sigmoid), w.gate("r", graph.Sigmoid)
		wx, wh, bias := w.weight("wx", w.in, w.h), w.weight("wh", w.h, w.h), w.weight("b", w.h)
		return func(x *graph.Node, s []*graph.Node) []*graph.Node {
			h, open := s[0], z(x, s[0])
			m := w.Binary(graph.Add, w.MatMul(h, wh, false, false), w.Broadcast(bias, h.Type.Shape))
			u := w.Unary(graph.Tanh, w.Binary(graph.Add, w.mul(r(x, h), m), w.MatMul(x, wx, false, false)))
			rest := w.BinaryScalar(graph.Add, w.Unary(graph.Neg, open), 1)
			return []*graph.Node{w.Binary(graph.Add, w.mul(open, h), w.mul(u, rest))}
		}
	},
}

// layer writes steps of a layer and returns the states after each.
func layer(w writer, cell string, xs []*graph.Node) []*graph.Node {
	step := cells[cell](w)
	state := []*graph.Node{w.Input(w.prefix+"h0", f64(w.n, w.h))}
	if cell == "lstm" {
		state = append(state, w.Input(w.prefix+"c0", f64(w.n, w.h)))
	}
	hs := make([]*graph.Node, len(xs))
	for t, x := range xs {
		state = step(x, state)
		hs[t] = state[0]
	}
	return hs
}

// recurrences lists what became of the layers of g after the passes up to "simplify-again", whose values must stay.
func recurrences(t *testing.T, g *graph.Graph) []string {
	t.Helper()
	h, _ := passtest.Run(t, g, passes.Config{Verify: true, Stop: "simplify-again"})
	passtest.SameNumbers(t, g, h, graphtest.Values(rand.New(rand.NewPCG(1, 3)), g))
	var r []string
	for _, n := range h.Nodes {
		if op, ok := n.Op.(graph.Recurrence); ok {
			r = append(r, op.Cell.String()+n.Type.Shape.String())
		}
	}
	return r
}

// separate and whole are the inputs of steps as programs have them.
func separate(b *graph.Builder, steps, n, in int) []*graph.Node {
	xs := make([]*graph.Node, steps)
	for t := range xs {
		xs[t] = b.Input(fmt.Sprint("x", t), f64(n, in))
	}
	return xs
}

func whole(b *graph.Builder, steps, n, in int) []*graph.Node {
	all, xs := b.Input("x", f64(steps, n, in)), make([]*graph.Node, steps)
	for t := range xs {
		xs[t] = b.Reshape(b.Slice(all, 0, t, 1, 1), n, in)
	}
	return xs
}

func TestCells(t *testing.T) {
	for cell := range cells {
		for name, inputs := range map[string]func(b *graph.Builder, steps, n, in int) []*graph.Node{"separate": separate,
			"whole": whole} {
			for _, size := range [][3]int{{3, 5, 4}, {1, 4, 4}} {
				n, in, h := size[0], size[1], size[2]
				t.Run(fmt.Sprint(cell, " ", name, " ", size), func(t *testing.T) {
					g := graphtest.Built(t, func(b *graph.Builder) {
						hs := layer(writer{b, n, in, h, ""}, cell, inputs(b, 5, n, in))
						b.Output("first", hs[0])
						b.Output("last", hs[4])
					})
					if got, want := fmt.Sprint(recurrences(t, g)), fmt.Sprintf("[%s[5,%d,%d]]", cell, n, h); got != want {
						t.Errorf("made %s, want %s", got, want)
					}
				})
			}
		}
	}
}

// TestJoined takes gates that are columns of one product, before or after their activations, and states of three axes.
func TestJoined(t *testing.T) {
	const n, h, steps = 2, 3, 4
	for name, c := range map[string]struct {
		dims    []int // of a state
		through bool  // one sigmoid for the gates that have it
	}{
		"gate by gate":      {[]int{n, h}, false},
		"together":          {[]int{n, h}, true},
		"three axes":        {[]int{1, n, h}, false},
		"one, in three":     {[]int{1, 1, h}, true},
		"a single sequence": {[]int{1, h}, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := graphtest.Built(t, func(b *graph.Builder) {
				last := len(c.dims) - 1
				wx, wh, bias := b.Param("wx", f64(5, 4*h)), b.Param("wh", f64(h, 4*h)), b.Param("b", f64(4*h))
				y, m := b.Input("h0", f64(c.dims...)), b.Input("c0", f64(c.dims...))
				for i := range steps {
					x := b.MatMul(b.Input(fmt.Sprint("x", i), f64(append(c.dims[:last:last], 5)...)), wx, false, false)
					z := b.Binary(graph.Add, x, b.MatMul(y, wh, false, false))
					z = b.Binary(graph.Add, z, b.Broadcast(bias, z.Type.Shape))
					of := func(f graph.UnaryFn, i int) *graph.Node {
						if c.through && f == graph.Sigmoid {
							return b.Slice(b.Unary(f, b.Slice(z, last, 0, 3*h, 1)), last, i*h, h, 1)
						}
						return b.Unary(f, b.Slice(z, last, i*h, h, 1))
					}
					m = b.Binary(graph.Add, b.Binary(graph.Mul, of(graph.Sigmoid, 1), m),
						b.Binary(graph.Mul, of(graph.Sigmoid, 0), of(graph.Tanh, 3)))
					y = b.Binary(graph.Mul, b.Unary(graph.Tanh, m), of(graph.Sigmoid, 2))
				}
				b.Output("y", y)
				b.Output("c", m)
			})
			if got, want := fmt.Sprint(recurrences(t, g)),
				fmt.Sprintf("[lstm[4,%d,3]]", g.Outputs[0].Node.Type.Shape.Elems()/h); got != want {
				t.Errorf("made %s, want %s", got, want)
			}
		})
	}
}

// TestVectors takes states that are vectors, which are multiplied by weights from the left, and columns.
func TestVectors(t *testing.T) {
	for name, dims := range map[string][]int{"vectors": {4}, "columns": {4, 1}} {
		t.Run(name, func(t *testing.T) {
			g := graphtest.Built(t, func(b *graph.Builder) {
				wx, wh, bias, h := b.Param("wx", f64(4, 3)), b.Param("wh", f64(4, 4)), b.Param("b", f64(dims...)), b.Input("h0", f64(dims...))
				times := func(w, x *graph.Node) *graph.Node {
					return b.Reshape(b.MatMul(w, b.Reshape(x, x.Type.Shape.Elems(), 1), false, false), dims...)
				}
				for i := range 4 {
					x := b.Input(fmt.Sprint("x", i), f64(append([]int{3}, dims[1:]...)...))
					h = b.Unary(graph.Tanh, b.Binary(graph.Add, b.Binary(graph.Add, times(wx, x), times(wh, h)), bias))
				}
				b.Output("y", h)
			})
			if got := fmt.Sprint(recurrences(t, g)); got != "[tanh[4,1,4]]" {
				t.Errorf("made %s", got)
			}
		})
	}
}

// TestLayers takes the states of one layer as the inputs of the next.
func TestLayers(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		hs := layer(writer{b, 2, 3, 4, "first "}, "lstm", whole(b, 4, 2, 3))
		hs = layer(writer{b, 2, 4, 5, "second "}, "gru", hs)
		b.Output("y", b.Add(graph.Concat{Axis: 0}, hs...))
	})
	if got := fmt.Sprint(recurrences(t, g)); got != "[lstm[4,2,4] gru[4,2,5]]" {
		t.Errorf("made %s", got)
	}
	h, _ := passtest.Run(t, g, passes.Config{Verify: true})
	if s := passtest.Ops(h); strings.Contains(s, "concat concat concat") {
		t.Errorf("the states are taken apart between the layers: %s", s)
	}
}

// TestGradients compares the gradients of layers with those of the graph as written.
func TestGradients(t *testing.T) {
	for cell := range cells {
		t.Run(cell, func(t *testing.T) {
			g, cfg := passtest.Trained(t, func(b *graph.Builder) *graph.Node {
				hs := layer(writer{b, 2, 3, 4, ""}, cell, whole(b, 3, 2, 3))
				return b.Add(graph.Concat{Axis: 0}, hs...)
			})
			h, _ := passtest.Gradients(t, g, cfg)
			if s := passtest.Ops(h); !strings.Contains(s, "recurrence_grad") {
				t.Errorf("left %s", s)
			}
		})
	}
}

// TestApart leaves steps that are not a layer.
func TestApart(t *testing.T) {
	for name, build := range map[string]func(b *graph.Builder){
		"two steps": func(b *graph.Builder) {
			b.Output("y", layer(writer{b, 2, 3, 4, ""}, "tanh", separate(b, 2, 2, 3))[1])
		},
		"layers with other weights": func(b *graph.Builder) {
			x := b.Input("x", f64(2, 4))
			for i := range 5 {
				w := writer{b, 2, 4, 4, fmt.Sprint(i)}
				x = w.gate("", graph.Tanh)(b.Input(fmt.Sprint("x", i), f64(2, 4)), x)
			}
			b.Output("y", x)
		},
		"the input follows from the state": func(b *graph.Builder) {
			w := writer{b, 2, 4, 4, ""}
			g, h := w.gate("", graph.Tanh), b.Input("h0", f64(2, 4))
			for i := range 4 {
				h = g(b.Binary(graph.Add, b.Input(fmt.Sprint("x", i), f64(2, 4)), b.Unary(graph.Sin, h)), h)
			}
			b.Output("y", h)
		},
		"a gate is read": func(b *graph.Builder) {
			w := writer{b, 2, 3, 4, ""}
			hs := layer(w, "lstm", separate(b, 4, 2, 3))
			b.Output("y", hs[3])
			for i, h := range hs {
				b.Output(fmt.Sprint("gate", i), b.Unary(graph.Abs, h.Args[0]))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := recurrences(t, graphtest.Built(t, build)); got != nil {
				t.Errorf("made %v", got)
			}
		})
	}
}
