package passes_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/ref"
	"fusec/passes"
	"fusec/passes/passtest"
)

// gMLP is the graph that Gorgonia makes of a small network, with its own backward pass.
func gMLP(b *graph.Builder) (cost, w, bias, dw, dbias *graph.Node) {
	x := b.Input("x", passtest.F64(4, 8))
	w, bias = b.Param("w", passtest.F64(8, 3)), b.Param("b", passtest.F64(1, 3))
	h := passtest.Bias(b, b.MatMul(x, w, false, false), bias)
	mask := b.Add(graph.Cast{To: graph.F64}, b.BinaryScalar(graph.Ge, h, 0))
	cost = passtest.Mean(b, passtest.Times(b, h, mask), 0, 1)
	one := b.Scalar(graph.F64, 1)
	up := b.Broadcast(b.Reshape(b.Binary(graph.Div, one, b.Scalar(graph.F64, 12)), 1, 1), graph.ShapeOf(4, 3))
	dh := b.Named(passtest.Times(b, mask, up), "dh")
	dw = b.MatMul(x, dh, true, false)
	dbias = b.Reshape(b.Reduce(graph.Sum, dh, false, 0), 1, 3)
	return
}

func TestGradients(t *testing.T) {
	var gs []passes.Gradient
	g := graphtest.Built(t, func(b *graph.Builder) {
		cost, w, bias, dw, dbias := gMLP(b)
		b.Output("cost", cost)
		b.Output("d w", dw)
		b.Output("new b", b.Binary(graph.Sub, bias, passtest.Scale(b, dbias, 0.1)))
		b.Update(w, b.Binary(graph.Sub, w, passtest.Scale(b, dw, 0.1)))
		gs = []passes.Gradient{{Cost: cost, Of: w, Value: dw}, {Cost: cost, Of: bias, Value: dbias, Output: "d b"}}
	})
	h, tr := passtest.Gradients(t, g, passes.Config{Gradients: gs})
	_ = h
	strip := passtest.Stage(t, tr, "strip-grad")
	if got, want := passtest.Ops(strip.Graph),
		"matmul reshape[1,3] broadcast[4,3] add ge cast f64 mul mul sum[0,1] div host mul sub host mul sub"; got != want {
		t.Errorf("strip-grad left: %s\nwant: %s", got, want)
	}
	if len(strip.Notes) != 0 {
		t.Errorf("notes: %+v", strip.Notes)
	}
	if got := passtest.Ops(passtest.Stage(t, tr, "raise").Graph); !strings.Contains(got, "relu") || !strings.Contains(got, "mean") {
		t.Errorf("raise left: %s", got)
	}
	if got := passtest.Ops(passtest.Stage(t, tr, "simplify-again").Graph); strings.Contains(got, "host") ||
		strings.Contains(got, "copy") {
		t.Errorf("left: %s", got)
	}
	if n := len(passtest.Stage(t, tr, "differentiate").Matches); n != 2 {
		t.Errorf("%d gradients were made", n)
	}
	in := graphtest.Values(rand.New(rand.NewPCG(3, 2)), g)
	_, want := passtest.Eval(t, g, in)
	_, got := passtest.Eval(t, h, in)
	for i := range want["w"].Type.Shape.Elems() {
		if math.Abs(want["w"].Float(i)-got["w"].Float(i)) > 1e-12 {
			t.Fatalf("update of w: %v became %v", want["w"].Float(i), got["w"].Float(i))
		}
	}
}

// TestGradientsKept checks what stays of a backward pass, and why.
func TestGradientsKept(t *testing.T) {
	tests := []struct {
		name  string
		build func(b *graph.Builder) []passes.Gradient
		note  string
		host  bool // a request was made
	}{
		{"cost unknown", func(b *graph.Builder) []passes.Gradient {
			_, w, _, dw, _ := gMLP(b)
			b.Output("d", dw)
			return []passes.Gradient{{Of: w, Value: dw}}
		}, `the gradient with respect to "w" stays as the graph computes it: it is not known of what`, false},
		{"host on the way", func(b *graph.Builder) []passes.Gradient {
			x := b.Param("x", passtest.F64(3))
			y := b.Add(graph.Host{Name: "mine", Type: passtest.F64(3)}, x)
			cost := b.Named(b.Reduce(graph.Sum, y, false, 0), "cost")
			d := b.Add(graph.Host{Name: "mine'", Type: passtest.F64(3)}, x, y)
			b.Output("d", d)
			return []passes.Gradient{{Cost: cost, Of: x, Value: d}}
		}, `the backward pass of "cost" stays as the graph computes it: host %1`, false},
		{"not a scalar", func(b *graph.Builder) []passes.Gradient {
			x := b.Param("x", passtest.F64(3))
			d := passtest.Scale(b, x, 2)
			b.Output("d", d)
			return []passes.Gradient{{Cost: b.Named(b.Unary(graph.Square, x), "sq"), Of: x, Value: d}}
		}, `the backward pass of "sq" stays as the graph computes it: it is f64[3] and not a scalar`, false},
		{"another shape", func(b *graph.Builder) []passes.Gradient {
			x := b.Param("x", passtest.F64(3))
			d := b.Slice(x, 0, 0, 2, 1)
			b.Output("d", d)
			return []passes.Gradient{{Cost: b.Named(b.Reduce(graph.Sum, x, false, 0), "sum"), Of: x, Value: d}}
		}, `the backward pass of "sum" stays as the graph computes it: the gradient with respect to "x" is f64[2], which does not fit ` +
			`f64[3]`, false},
		{"integers", func(b *graph.Builder) []passes.Gradient {
			x := b.Param("x", graph.TypeOf(graph.I64))
			d := b.Unary(graph.Neg, x)
			b.Output("d", d)
			return []passes.Gradient{{Cost: x, Of: x, Value: d}}
		}, `the backward pass of "x" stays as the graph computes it: "x" is i64[] and "x" is i64[]`, false},
		{"bad seed", func(b *graph.Builder) []passes.Gradient {
			x, c := b.Param("x", passtest.F64(3)), b.Scalar(graph.F64, 2)
			d := passtest.Times(b, x, c)
			b.Output("d", d)
			return []passes.Gradient{{Cost: b.Named(b.Unary(graph.Square, x), "sq"), Seed: c, Of: x, Value: d}}
		}, `the backward pass of "sq" stays as the graph computes it: it is seeded with %1 of type f64[], not f64[3]`, false},
		{"inside the backward", func(b *graph.Builder) []passes.Gradient {
			cost, w, _, dw, dbias := gMLP(b)
			b.Output("d", dw)
			b.Output("other", dbias)
			return []passes.Gradient{{Cost: cost, Of: w, Value: dw}}
		}, `mul "dh" of the backward pass stays: sum`, true},
		{"handed out", func(b *graph.Builder) []passes.Gradient {
			cost, w, _, dw, _ := gMLP(b)
			b.Output("d", dw)
			b.Output("dh", dw.Args[1])
			return []passes.Gradient{{Cost: cost, Of: w, Value: dw}}
		}, `mul "dh" of the backward pass stays: it is handed out`, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var gs []passes.Gradient
			g := graphtest.Built(t, func(b *graph.Builder) {
				gs = tt.build(b)
				if gs[0].Cost != nil {
					b.Output("cost", gs[0].Cost)
				}
			})
			_, tr, err := passes.Run(g, passes.Config{Gradients: gs, Verify: true, Stop: "strip-grad"})
			if err != nil {
				t.Fatal(err)
			}
			s := passtest.Stage(t, tr, "strip-grad")
			var notes []string
			for _, n := range s.Notes {
				notes = append(notes, passtest.WithoutLines(n.Text))
			}
			if len(notes) != 1 || !strings.HasPrefix(notes[0], tt.note) {
				t.Errorf("notes %q\nwant %q", notes, tt.note)
			}
			asked := false
			for _, n := range s.Graph.Nodes {
				asked = asked || passes.IsRequest(n)
			}
			if asked != tt.host {
				t.Errorf("requests: %v, want %v", asked, tt.host)
			}
		})
	}
}

// TestGradientOfSeveral has a node that is the gradient with respect to a sum and to its terms, as Gorgonia marks it: who
// reads it needs one request, by the term that comes from outside, and nothing has to be kept apart.
func TestGradientOfSeveral(t *testing.T) {
	for _, read := range []string{"bias", "product"} {
		var gs []passes.Gradient
		g := graphtest.Built(t, func(b *graph.Builder) {
			x, w, bias := b.Input("x", passtest.F64(4, 8)), b.Param("w", passtest.F64(8, 3)), b.Param("b", passtest.F64(4, 3))
			product := b.Named(b.MatMul(x, w, false, false), "product")
			sum := b.Named(b.Binary(graph.Add, product, bias), "sum")
			h := b.Unary(graph.Tanh, sum)
			cost := b.Reduce(graph.Sum, h, false, 0, 1)
			dsum := b.Binary(graph.Sub, b.Scalar(graph.F64, 1), b.Unary(graph.Square, h))
			dw := b.MatMul(x, dsum, true, false)
			b.Output("cost", cost)
			b.Output("d b", dsum)
			b.Output("d w", dw)
			gs = []passes.Gradient{{Cost: cost, Of: w, Value: dw}, {Cost: cost, Of: sum, Value: dsum},
				{Cost: cost, Of: product, Value: dsum}}
			if read == "bias" {
				gs = append(gs, passes.Gradient{Cost: cost, Of: bias, Value: dsum})
			}
		})
		_, tr := passtest.Gradients(t, g, passes.Config{Gradients: gs})
		strip := passtest.Stage(t, tr, "strip-grad")
		requests, copies := 0, 0
		for _, n := range strip.Graph.Nodes {
			if passes.IsRequest(n) {
				requests++
			}
			if _, ok := n.Op.(graph.Copy); ok {
				copies++
			}
		}
		want := 0 // only a value between has to be kept apart
		if read == "product" {
			want = 1
		}
		if requests != 2 || copies != want {
			t.Errorf("%s: strip-grad left %d requests and %d copies: %s", read, requests, copies, passtest.Ops(strip.Graph))
		}
		if read == "bias" && len(strip.Notes) != 0 {
			t.Errorf("notes: %+v", strip.Notes)
		}
	}
}

// TestGradientPenalty differentiates a cost that holds a gradient, with respect to a computed value too.
func TestGradientPenalty(t *testing.T) {
	var gs []passes.Gradient
	g := graphtest.Built(t, func(b *graph.Builder) {
		x, w := b.Input("x", passtest.F64(2, 3)), b.Param("w", passtest.F64(3, 2))
		h := b.Named(b.MatMul(x, w, false, false), "h")
		a := b.Unary(graph.Tanh, h)
		inner := b.Reduce(graph.Sum, a, false, 0, 1)
		// d inner/dh, as a user's own backward has it
		dh := b.Binary(graph.Sub, b.Scalar(graph.F64, 1), b.Unary(graph.Square, a))
		cost := passtest.Plus(b, inner, b.Reduce(graph.Sum, b.Unary(graph.Square, dh), false, 0, 1))
		b.Output("cost", cost)
		gs = []passes.Gradient{{Cost: inner, Of: h, Value: dh}, {Cost: cost, Of: w, Output: "d w"}, {Cost: cost, Of: x, Output: "d x"}}
	})
	h, tr := passtest.Gradients(t, g, passes.Config{Gradients: gs})
	for _, n := range h.Nodes {
		if _, ok := n.Op.(graph.Copy); ok {
			t.Errorf("the copy %s is left", n.Where())
		}
	}
	if s := passtest.Ops(passtest.Stage(t, tr, "strip-grad").Graph); !strings.Contains(s, "copy") {
		t.Errorf("strip-grad left %s", s)
	}
}

// TestGradientsOfValuesBetween asks for gradients of values that rewrites would otherwise merge or take apart.
func TestGradientsOfValuesBetween(t *testing.T) {
	var gs []passes.Gradient
	g := graphtest.Built(t, func(b *graph.Builder) {
		x := b.Param("x", passtest.F64(3))
		y := b.Named(passtest.Shift(b, x, 0), "y") // x itself, but what is behind it is not all of x's influence
		cost := b.Reduce(graph.Sum, passtest.Plus(b, b.Unary(graph.Exp, y), b.Unary(graph.Sin, x)), false, 0)
		b.Output("cost", cost)
		b.Output("want dy", b.Unary(graph.Exp, x))
		gs = []passes.Gradient{{Cost: cost, Of: y, Output: "dy"}, {Cost: cost, Of: x, Output: "d x"}}
	})
	h, _ := passtest.Gradients(t, g, passes.Config{Gradients: gs})
	out, _ := passtest.Eval(t, h, graphtest.Values(rand.New(rand.NewPCG(1, 1)), g))
	for i := range 3 {
		if out["dy"].Float(i) != out["want dy"].Float(i) {
			t.Errorf("dy[%d] is %v, want %v", i, out["dy"].Float(i), out["want dy"].Float(i))
		}
	}
}

// TestGradientsOfEqualValues asks for gradients by inner values that rewrites find equal. Each has the influence of its own
// readers only.
func TestGradientsOfEqualValues(t *testing.T) {
	for _, tt := range []struct {
		name   string
		u, v   func(b *graph.Builder, x, u *graph.Node) *graph.Node
		du, dv float64
	}{
		{"equal", tanh, tanh, 2, 5},
		{"equal behind views", tanh, func(b *graph.Builder, x, _ *graph.Node) *graph.Node {
			return b.Add(graph.Reshape{Shape: x.Type.Shape}, b.Unary(graph.Tanh, x))
		}, 2, 5},
		{"one the other", tanh, func(b *graph.Builder, _, u *graph.Node) *graph.Node { return passtest.Scale(b, u, 1) }, 7, 5},
		{"equal but for a factor 1", tanh, func(b *graph.Builder, x, _ *graph.Node) *graph.Node {
			return passtest.Scale(b, b.Unary(graph.Tanh, x), 1)
		}, 2, 5},
		{"both the source", func(b *graph.Builder, x, _ *graph.Node) *graph.Node { return b.Slice(x, 0, 0, 3, 1) },
			func(b *graph.Builder, x, _ *graph.Node) *graph.Node { return passtest.Shift(b, x, 0) }, 2, 5},
		{"constants", func(b *graph.Builder, x, _ *graph.Node) *graph.Node { return b.Const(graph.Filled(x.Type, 3)) },
			func(b *graph.Builder, x, _ *graph.Node) *graph.Node { return b.Const(graph.Filled(x.Type, 3)) }, 2, 5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var gs []passes.Gradient
			g := graphtest.Built(t, func(b *graph.Builder) {
				x := b.Input("x", passtest.F64(3))
				u := tt.u(b, x, nil)
				v := tt.v(b, x, u)
				cost := b.Reduce(graph.Sum, passtest.Plus(b, passtest.Scale(b, u, 2), passtest.Scale(b, v, 5)), false, 0)
				b.Output("cost", cost)
				gs = []passes.Gradient{{Cost: cost, Of: u, Output: "du"}, {Cost: cost, Of: v, Output: "dv"}, {Cost: cost, Of: x, Output: "d x"}}
			})
			for _, off := range [][]string{nil, {"simplify"}, {"simplify-again"}, {"simplify", "simplify-again"}} {
				cfg := passes.Config{Gradients: gs, Disable: map[string]bool{}}
				for _, name := range off {
					cfg.Disable[name] = true
				}
				h, _ := passtest.Gradients(t, g, cfg)
				out, _ := passtest.Eval(t, h, graphtest.Values(rand.New(rand.NewPCG(1, 1)), g))
				for name, want := range map[string]float64{"du": tt.du, "dv": tt.dv} {
					if d := out[name]; d.Float(0) != want || d.Float(1) != want || d.Float(2) != want {
						t.Errorf("without %v: %s is %v, want %v", off, name, d.Data, want)
					}
				}
			}
		})
	}
}

func tanh(b *graph.Builder, x, _ *graph.Node) *graph.Node { return b.Unary(graph.Tanh, x) }

// TestGradientsOfInnerNodes compares the gradients by inner nodes of random graphs, some of which compute the same, with
// those of the graph that no pass has touched.
func TestGradientsOfInnerNodes(t *testing.T) {
	graphs := uint64(60)
	if testing.Short() {
		graphs = 15
	}
	differentiable := func(name string) bool {
		info := graph.OpByName(name)
		return name != "fusion" && name != "host" && (info.Grad != nil || info.Decompose != nil)
	}
	checked := 0
	for seed := range graphs {
		r := rand.New(rand.NewPCG(seed, 14))
		g := graphtest.Random(r, graphtest.Options{Nodes: 5 + int(seed%25), Floats: graph.F64, Allow: differentiable})
		b := graph.Extend(g)
		var of []*graph.Node
		for _, n := range g.Nodes {
			if n.Type.DType == graph.F64 && r.IntN(3) == 0 && graph.ClassOf(n.Op) != graph.ClassRandom {
				of = append(of, n)
			}
		}
		for _, n := range of[:len(of):len(of)] {
			if !graph.IsSource(n.Op) {
				of = append(of, b.Add(n.Op, n.Args...))
			}
		}
		cost := b.Scalar(graph.F64, 0)
		for _, n := range g.Nodes {
			if n.Type.DType == graph.F64 && n != cost {
				axes := make([]int, n.Type.Shape.Rank())
				for i := range axes {
					axes[i] = i
				}
				term := b.BinaryScalar(graph.Mul, b.Unary(graph.Tanh, n), r.NormFloat64())
				cost = b.Binary(graph.Add, cost, b.Reduce(graph.Sum, term, false, axes...))
			}
		}
		if err := b.Err(); err != nil {
			t.Fatal(err)
		}
		var gs []passes.Gradient
		plain, to := g.Clone()
		var wrt []*graph.Node
		for i, n := range of {
			gs = append(gs, passes.Gradient{Cost: cost, Of: n, Output: fmt.Sprintf("gradient %d", i)})
			wrt = append(wrt, to[n])
		}
		ds, err := graph.Gradients(plain, to[cost], wrt)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		plain.Outputs = nil
		for i, d := range ds {
			plain.Outputs = append(plain.Outputs, graph.Output{Name: gs[i].Output, Node: d})
		}
		h, _, err := passes.Run(g, passes.Config{Gradients: gs, Verify: true})
		if err != nil {
			t.Errorf("seed %d: %v", seed, err)
			continue
		}
		in := graphtest.Values(r, g)
		want, _ := passtest.Eval(t, plain, in)
		got, _, err := ref.Eval(h, in)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for i, n := range of {
			w, v := want[gs[i].Output].Floats(), got[gs[i].Output].Floats()
			for k := range w {
				checked++
				if math.Abs(w[k]-v[k]) > 1e-6*(1+math.Abs(w[k])) {
					t.Errorf("seed %d: the gradient by %s is %v, want %v", seed, n.Where(), v, w)
					break
				}
			}
		}
	}
	if checked == 0 {
		t.Error("no gradient was compared")
	}
}

// TestGradientsSeeded weighs a cost that is not a scalar, and shares a constant between forward and backward.
func TestGradientsSeeded(t *testing.T) {
	var gs []passes.Gradient
	g := graphtest.Built(t, func(b *graph.Builder) {
		x, seed := b.Param("x", passtest.F64(3)), b.Input("seed", passtest.F64(3))
		one := b.Scalar(graph.F64, 1)
		y := passtest.Plus(b, b.Unary(graph.Square, x), one)
		b.Output("cost", b.Reduce(graph.Sum, passtest.Times(b, y, seed), false, 0))
		b.Output("one", one)
		far := b.Param("far", passtest.F64(2))
		gs = []passes.Gradient{
			{Cost: y, Seed: seed, Of: x, Output: "d x"},
			{Cost: y, Seed: seed, Of: far, Output: "d far"},
		}
		sum := b.Reduce(graph.Sum, y, false, 0)
		b.Output("sum", sum)
		gs = append(gs, passes.Gradient{Cost: sum, Of: b.Param("z", passtest.F64()), Value: one})
	})
	passtest.Gradients(t, g, passes.Config{Gradients: gs})
}

func TestGradientErrors(t *testing.T) {
	var gs []passes.Gradient
	other := graph.NewBuilder("other").Input("o", passtest.F64())
	g := graphtest.Built(t, func(b *graph.Builder) {
		x := b.Param("x", passtest.F64())
		b.Output("y", x)
		gs = []passes.Gradient{
			{Cost: x, Of: other, Output: "d"},
			{Cost: x, Output: "d"},
			{Cost: x, Of: x},
			{Of: x, Output: "d"},
		}
	})
	for i, want := range []string{
		`a gradient was asked for in terms of input "o"`,
		"a gradient was asked for without saying of what",
		`the gradient with respect to "x" was asked for without a cost and an output`,
		`the gradient with respect to "x" was asked for without a cost and an output`,
	} {
		_, _, err := passes.Run(g, passes.Config{Gradients: gs[i : i+1]})
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("request %d: %v, want %s", i, err, want)
		}
	}
	for _, off := range []string{"strip-grad", "differentiate"} {
		_, _, err := passes.Run(g, passes.Config{Gradients: []passes.Gradient{{Cost: g.Nodes[0], Of: g.Nodes[0], Output: "d"}},
			Disable: map[string]bool{off: true}})
		if want := `pass "` + off + `" cannot be left out: `; err == nil || !strings.HasPrefix(err.Error(), want) ||
			!strings.Contains(err.Error(), `the gradient of "x" by "x"`) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := passes.Request.Do(nil); err == nil {
		t.Errorf("a request was run")
	}
}
