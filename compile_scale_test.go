package fusec_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"fusec"
	"fusec/graph"
	"fusec/graph/optim"
)

// shapes are graphs of about n nodes each before gradients: a cost and the weights that gradients are taken by.
var shapes = map[string]func(b *graph.Builder, n int) (cost *graph.Node, weights []*graph.Node){
	"chain": func(b *graph.Builder, n int) (*graph.Node, []*graph.Node) {
		x, w := b.Input("x", graph.TypeOf(graph.F32, 16)), b.Param("w", graph.TypeOf(graph.F32, 16))
		for range n / 2 {
			x = b.Unary(graph.Tanh, b.Binary(graph.Mul, x, w))
		}
		return x, []*graph.Node{w}
	},
	"batchnorm": func(b *graph.Builder, n int) (*graph.Node, []*graph.Node) {
		x := b.Input("x", graph.TypeOf(graph.F32, 7, 5))
		var ws []*graph.Node
		vector := func(make func(string, graph.Type) *graph.Node, name string, i int) *graph.Node {
			return make(fmt.Sprint(name, i), graph.TypeOf(graph.F32, 5))
		}
		for i := range n / 9 {
			gamma, beta := vector(b.Param, "gamma", i), vector(b.Param, "beta", i)
			mean, variance := vector(b.State, "mean", i), vector(b.State, "variance", i)
			y := b.Add(graph.BatchNorm{Eps: 1e-3, Momentum: 0.9, Train: true}, x, gamma, beta, mean, variance)
			b.Update(mean, b.Add(graph.Result{Index: 1}, y))
			b.Update(variance, b.Add(graph.Result{Index: 2}, y))
			x, ws = b.Unary(graph.Tanh, y), append(ws, gamma, beta)
		}
		return x, ws
	},
	"tree": func(b *graph.Builder, n int) (*graph.Node, []*graph.Node) {
		x, w := b.Input("x", graph.TypeOf(graph.F32, 16)), b.Param("w", graph.TypeOf(graph.F32, 16))
		var ys []*graph.Node
		for i := range n / 4 {
			ys = append(ys, b.Unary(graph.Tanh, b.BinaryScalar(graph.Mul, b.Binary(graph.Add, x, w), float64(i)+0.5)))
		}
		for len(ys) > 1 {
			ys = append(ys[2:], b.Binary(graph.Add, ys[0], ys[1]))
		}
		return ys[0], []*graph.Node{w}
	},
	"mlp": func(b *graph.Builder, n int) (*graph.Node, []*graph.Node) {
		x := b.Input("x", graph.TypeOf(graph.F32, 4, 16))
		var ws []*graph.Node
		for i := range n / 3 {
			w := b.Param(fmt.Sprint("w", i), graph.TypeOf(graph.F32, 16, 16))
			x, ws = b.Unary(graph.Tanh, b.MatMul(x, w, false, false)), append(ws, w)
		}
		return x, ws
	},
	"lstm": func(b *graph.Builder, n int) (*graph.Node, []*graph.Node) {
		const batch, hidden = 4, 8
		wx, wh := b.Param("wx", graph.TypeOf(graph.F32, hidden, 4*hidden)), b.Param("wh", graph.TypeOf(graph.F32, hidden, 4*hidden))
		h, c := b.Input("h", graph.TypeOf(graph.F32, batch, hidden)), b.Input("c", graph.TypeOf(graph.F32, batch, hidden))
		var cost *graph.Node
		for i := range n / 21 {
			x := b.Input(fmt.Sprint("x", i), graph.TypeOf(graph.F32, batch, hidden))
			z := b.Binary(graph.Add, b.MatMul(x, wx, false, false), b.MatMul(h, wh, false, false))
			gate := func(i int, f graph.UnaryFn) *graph.Node { return b.Unary(f, b.Slice(z, 1, i*hidden, hidden, 1)) }
			c = b.Binary(graph.Add, b.Binary(graph.Mul, gate(0, graph.Sigmoid), c),
				b.Binary(graph.Mul, gate(1, graph.Sigmoid), gate(2, graph.Tanh)))
			h = b.Binary(graph.Mul, gate(3, graph.Sigmoid), b.Unary(graph.Tanh, c))
			if l := b.Reduce(graph.Sum, b.Unary(graph.Square, h), false, 0, 1); cost == nil {
				cost = l
			} else {
				cost = b.Binary(graph.Add, cost, l)
			}
		}
		return cost, []*graph.Node{wx, wh}
	},
	"transformer": func(b *graph.Builder, n int) (*graph.Node, []*graph.Node) {
		const seq, width = 8, 16
		x := b.Input("x", graph.TypeOf(graph.F32, seq, width))
		var ws []*graph.Node
		weight := func(dims ...int) *graph.Node {
			ws = append(ws, b.Param(fmt.Sprint("w", len(ws)), graph.TypeOf(graph.F32, dims...)))
			return ws[len(ws)-1]
		}
		for range n / 24 {
			h := b.Add(graph.RMSNorm{Eps: 1e-6}, x, weight(width))
			q, k, v := b.MatMul(h, weight(width, width), false, false), b.MatMul(h, weight(width, width), false, false),
				b.MatMul(h, weight(width, width), false, false)
			p := b.Add(graph.Softmax{Axis: 1}, b.BinaryScalar(graph.Mul, b.MatMul(q, k, false, true), 0.25))
			x = b.Binary(graph.Add, x, b.MatMul(b.MatMul(p, v, false, false), weight(width, width), false, false))
			h = b.Add(graph.RMSNorm{Eps: 1e-6}, x, weight(width))
			h = b.Unary(graph.Tanh, b.MatMul(h, weight(width, 4*width), false, false))
			x = b.Binary(graph.Add, x, b.MatMul(h, weight(4*width, width), false, false))
		}
		return x, ws
	},
}

// compileShapes are the shapes that compile time is measured by. What follows a + is the optimiser that trains the weights;
// without one, their gradients are outputs.
var compileShapes = []string{"lstm", "transformer", "chain", "tree", "batchnorm", "mlp", "mlp+sgd", "mlp+adam", "mlp+clip"}

var optimizers = map[string]optim.Optimizer{
	"sgd":  {Rule: optim.SGD{}, Rate: optim.Constant(0.1)},
	"adam": {Rule: optim.Adam{}, Rate: optim.Constant(0.1)},
	"clip": {Rule: optim.Adam{}, Rate: optim.Constant(0.1), Clip: 1},
}

// shapeOf builds one of compileShapes of about n nodes, before gradients and the optimiser's, and asks for these.
func shapeOf(t testing.TB, name string, n int) (*graph.Graph, []fusec.CompileOption) {
	b := graph.NewBuilder(name)
	name, rule, _ := strings.Cut(name, "+")
	cost, ws := shapes[name](b, n)
	axes := make([]int, cost.Type.Shape.Rank())
	for i := range axes {
		axes[i] = i
	}
	if len(axes) > 0 {
		cost = b.Reduce(graph.Sum, cost, false, axes...)
	}
	b.Output("cost", cost)
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	if rule != "" {
		o := optimizers[rule]
		return g, []fusec.CompileOption{fusec.WithOptimizer(&o)}
	}
	var opts []fusec.CompileOption
	for i, w := range ws {
		opts = append(opts, fusec.WithGradient(fmt.Sprint("d", i), cost, w))
	}
	return g, opts
}

// TestCompileIsLinear compares what compiling allocates for each node of a graph and of one eight times as large.
func TestCompileIsLinear(t *testing.T) {
	long(t)
	for _, name := range compileShapes {
		perNode := func(n int) float64 {
			g, opts := shapeOf(t, name, n)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if _, _, err := fusec.Plan(g, opts...); err != nil {
				t.Fatalf("%s of %d nodes: %v", name, n, err)
			}
			runtime.ReadMemStats(&after)
			return float64(after.TotalAlloc-before.TotalAlloc) / float64(len(g.Nodes))
		}
		perNode(100) // what is made once
		if small, large := perNode(500), perNode(4000); large > 1.5*small {
			t.Errorf("%s: %.0f bytes a node of 500, %.0f of 4000", name, small, large)
		}
	}
}

// BenchmarkCompile plans each shape with gradients at 1,000 to 100,000 nodes.
func BenchmarkCompile(b *testing.B) {
	for _, name := range compileShapes {
		for _, n := range []int{1000, 10000, 100000} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				g, opts := shapeOf(b, name, n)
				b.ReportAllocs()
				for b.Loop() {
					if _, _, err := fusec.Plan(g, opts...); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(g.Nodes)), "ns/node")
			})
		}
	}
}
