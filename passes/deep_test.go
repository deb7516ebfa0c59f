package passes_test

import (
	"runtime/debug"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/precision"
	"fusec/passes"
	"fusec/passes/passtest"
)

// TestDeep compiles long chains of every kind that a pass follows, with a stack too small for recursion along them,
// and values that lead to one another by 2^60 ways.
func TestDeep(t *testing.T) {
	defer debug.SetMaxStack(debug.SetMaxStack(1 << 20))
	const depth, doubled = 10000, 60
	plain := passes.Config{}
	as := map[string]bool{"simplify": true, "simplify-again": true}
	views := func(b *graph.Builder, x *graph.Node) *graph.Node { // [4,4] through views that do not merge
		for range depth / 2 {
			x = b.Reshape(b.Transpose(x, 1, 0), 2, 8)
			x = b.Reshape(b.Transpose(x, 1, 0), 4, 4)
		}
		return x
	}
	// double is f of a value and of itself, again and again.
	double := func(b *graph.Builder, x *graph.Node, f func(x *graph.Node) *graph.Node) *graph.Node {
		for range doubled {
			x = f(x)
		}
		return x
	}
	mixture := func(b *graph.Builder, gates func(b *graph.Builder, w *passtest.MoEWriter) *graph.Node) {
		w := passtest.NewMoEWriter(b, 2, 6)
		b.Output("y", w.Sum(gates(b, w), w.Relu))
	}
	tests := []struct {
		name  string
		cfg   passes.Config
		build func(b *graph.Builder) (cost, of *graph.Node)
	}{
		{"elementwise", plain, func(b *graph.Builder) (cost, of *graph.Node) {
			x, w := b.Input("x", passtest.F64(4)), b.Param("w", passtest.F64(4))
			for range depth / 2 {
				x = b.Unary(graph.Tanh, b.Binary(graph.Mul, x, w))
			}
			return b.Reduce(graph.Sum, x, false, 0), w
		}},
		{"products, recomputed", passes.Config{Budget: 1}, func(b *graph.Builder) (cost, of *graph.Node) {
			x, w := b.Input("x", passtest.F64(4, 4)), b.Param("w", passtest.F64(4, 4))
			for range depth / 10 {
				x = b.Unary(graph.Tanh, b.MatMul(x, w, false, false))
			}
			return b.Reduce(graph.Sum, x, false, 0, 1), w
		}},
		{"dropped work", plain, func(b *graph.Builder) (cost, of *graph.Node) {
			w := b.Param("w", passtest.F64(4))
			x := w
			for range 2 * depth {
				x = b.Unary(graph.Tanh, x)
			}
			b.Output("w", b.Slice(b.Add(graph.Concat{}, x, w), 0, 4, 4, 1))
			return nil, nil
		}},
		{"part of long work", plain, func(b *graph.Builder) (cost, of *graph.Node) {
			x := b.Input("x", passtest.F64(4))
			for range 2 * depth {
				x = b.Unary(graph.Tanh, x)
			}
			b.Output("y", b.Slice(x, 0, 1, 2, 1))
			return nil, nil
		}},
		{"views before a convolution in 16 bits", passes.Config{Precision: precision.BF16, Disable: as}.RoundingFrom(1),
			func(b *graph.Builder) (cost, of *graph.Node) {
				x := views(b, b.Input("x", graph.TypeOf(graph.F32, 4, 4)))
				w := views(b, b.Param("w", graph.TypeOf(graph.F32, 4, 4)))
				b.Output("y", b.Add(graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(0, 0, 0, 0),
					Groups: 1}, b.Reshape(x, 1, 1, 4, 4), b.Reshape(w, 4, 1, 2, 2)))
				return nil, nil
			}},
		{"views of a value in 16 bits", passes.Config{Precision: precision.BF16, Disable: as}.RoundingFrom(1),
			func(b *graph.Builder) (cost, of *graph.Node) { // of values that are cast, and of values that are joined
				swap := func(x *graph.Node) *graph.Node {
					for range depth + 1 {
						x = b.Transpose(x, 1, 0, 2)
					}
					return x
				}
				w := b.Param("w", graph.TypeOf(graph.F32, 4, 4))
				x := b.Unary(graph.Tanh, b.MatMul(b.Input("x", graph.TypeOf(graph.F32, 2, 3, 4)), w, false, false))
				y := b.MatMul(swap(b.Unary(graph.Tanh, b.MatMul(x, w, false, false))), w, false, false)
				z := b.Add(graph.Concat{Axis: 1}, swap(b.MatMul(x, w, false, false)), swap(b.MatMul(b.Unary(graph.Exp, x), w, false, false)))
				half := func(x *graph.Node) *graph.Node { return b.Add(graph.Cast{To: graph.BF16}, x) }
				b.Output("y", y)
				b.Output("z", b.MatMul(z, w, false, false))
				b.Output("cast", b.MatMul(half(swap(b.MatMul(x, w, false, false))), half(w), false, false))
				return nil, nil
			}},
		{"casts of a constant", passes.Config{Disable: as}, func(b *graph.Builder) (cost, of *graph.Node) {
			x := b.Broadcast(b.Scalar(graph.F64, 1), graph.ShapeOf(4))
			for range depth / 2 {
				x = b.Add(graph.Cast{To: graph.F64}, b.Add(graph.Cast{To: graph.F32}, x))
			}
			b.Output("y", b.Binary(graph.Mul, b.Input("x", passtest.F64(4)), x))
			return nil, nil
		}},
		{"scores", plain, func(b *graph.Builder) (cost, of *graph.Node) {
			q, k, v := b.Input("q", passtest.F64(4, 4)), b.Input("k", passtest.F64(4, 4)), b.Input("v", passtest.F64(4, 4))
			s, m := b.MatMul(q, k, false, true), b.Input("m", passtest.F64(4, 4))
			for range depth / 2 {
				s = b.Binary(graph.Add, s, b.Unary(graph.Tanh, m))
				m = b.Unary(graph.Sin, m)
			}
			b.Output("y", b.MatMul(passtest.Softmax(b, s), v, false, false))
			return nil, nil
		}},
		{"masks", plain, func(b *graph.Builder) (cost, of *graph.Node) {
			q, k, v := b.Input("q", passtest.F64(4, 4)), b.Input("k", passtest.F64(4, 4)), b.Input("v", passtest.F64(4, 4))
			m := b.Input("m", passtest.F64(4, 4))
			for range depth {
				m = b.Binary(graph.Add, m, b.Unary(graph.Tanh, m))
			}
			s := b.Binary(graph.Add, b.MatMul(q, k, false, true), m)
			b.Output("y", b.MatMul(passtest.Softmax(b, s), v, false, false))
			return nil, nil
		}},
		{"a doubled mask", plain, func(b *graph.Builder) (cost, of *graph.Node) {
			q, k, v := b.Input("q", passtest.F64(4, 4)), b.Input("k", passtest.F64(4, 4)), b.Input("v", passtest.F64(4, 4))
			m := double(b, b.Input("m", passtest.F64(4, 4)), func(x *graph.Node) *graph.Node {
				return b.Binary(graph.Add, x, b.Transpose(x, 1, 0))
			})
			s := b.Binary(graph.Add, b.MatMul(q, k, false, true), m)
			b.Output("y", b.MatMul(passtest.Softmax(b, s), v, false, false))
			return nil, nil
		}},
		{"a sum of many", plain, func(b *graph.Builder) (cost, of *graph.Node) {
			w := passtest.NewMoEWriter(b, 2, 6)
			y := w.Sum(w.Softmax(w.Logits()), w.Relu)
			z := y
			for range depth {
				z = b.Unary(graph.Sin, z)
				y = b.Binary(graph.Sub, z, y)
			}
			b.Output("y", y)
			return nil, nil
		}},
		{"gates", plain, func(b *graph.Builder) (cost, of *graph.Node) {
			mixture(b, func(b *graph.Builder, w *passtest.MoEWriter) *graph.Node {
				g := w.Softmax(w.Logits())
				for range depth {
					g = b.Unary(graph.Tanh, g)
				}
				return g
			})
			return nil, nil
		}},
		{"doubled gates", plain, func(b *graph.Builder) (cost, of *graph.Node) {
			mixture(b, func(b *graph.Builder, w *passtest.MoEWriter) *graph.Node {
				return double(b, w.Softmax(w.Logits()), func(x *graph.Node) *graph.Node {
					return b.Binary(graph.Max, x, b.Unary(graph.Tanh, x))
				})
			})
			return nil, nil
		}},
		{"doubled logits", plain, func(b *graph.Builder) (cost, of *graph.Node) {
			mixture(b, func(b *graph.Builder, w *passtest.MoEWriter) *graph.Node {
				return w.Softmax(double(b, w.Logits(), func(x *graph.Node) *graph.Node {
					return b.Binary(graph.Add, x, b.BinaryScalar(graph.Mul, x, 2))
				}))
			})
			return nil, nil
		}},
		{"the largest of each row, one after the other", plain, func(b *graph.Builder) (cost, of *graph.Node) {
			mixture(b, func(b *graph.Builder, w *passtest.MoEWriter) *graph.Node {
				p := w.Softmax(w.Logits())
				left, kept := p, p
				for range doubled {
					top := b.Broadcast(b.Reduce(graph.MaxOf, left, true, 1), p.Type.Shape)
					left = b.Add(graph.Select{}, b.Binary(graph.Lt, p, top), left, b.Scalar(graph.F64, 0))
					kept = b.Add(graph.Select{}, b.Binary(graph.Ge, p, top), p, b.Scalar(graph.F64, 0))
				}
				return kept
			})
			return nil, nil
		}},
		{"a doubled statistic", plain, func(b *graph.Builder) (cost, of *graph.Node) {
			x := b.Input("x", passtest.F64(4, 6))
			s := double(b, b.Reduce(graph.Sum, x, false, 1), func(x *graph.Node) *graph.Node {
				return b.Binary(graph.Add, x, b.Unary(graph.Tanh, x))
			})
			c := b.Binary(graph.Mul, b.Reshape(s, 4, 1), b.Reshape(b.Unary(graph.Sin, s), 4, 1))
			b.Output("y", b.Binary(graph.Sub, x, b.Broadcast(c, graph.ShapeOf(4, 6))))
			return nil, nil
		}},
		{"a doubled constant", passes.Config{Disable: as}, func(b *graph.Builder) (cost, of *graph.Node) {
			q, k, v := b.Input("q", passtest.F64(4, 4)), b.Input("k", passtest.F64(4, 4)), b.Input("v", passtest.F64(4, 4))
			m := double(b, b.Const(graph.NewTensor(passtest.F64(4, 4))), func(x *graph.Node) *graph.Node {
				return b.Binary(graph.Add, x, b.Unary(graph.Tanh, x))
			})
			s := b.Binary(graph.Add, b.MatMul(q, k, false, true), m)
			b.Output("y", b.MatMul(b.Add(graph.Softmax{Axis: 1}, s), v, false, false))
			return nil, nil
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var cost, of *graph.Node
			g := graphtest.Built(t, func(b *graph.Builder) {
				if cost, of = tt.build(b); cost != nil {
					b.Output("cost", cost)
				}
			})
			cfg := tt.cfg
			if cost != nil {
				cfg.Gradients = []passes.Gradient{{Cost: cost, Of: of, Output: "dw"}}
			}
			if _, _, err := passes.Run(g, cfg); err != nil {
				t.Fatal(err)
			}
		})
	}
}
