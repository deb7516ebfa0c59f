package fusec

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"fusec/graph"
	"fusec/graph/graphtest"
)

// recurrent is 4 steps of an LSTM whose input and state have the same width.
func recurrent(b *testing.B, batch, width int) *graph.Graph {
	w := graph.NewBuilder("recurrent")
	f32 := func(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }
	names, params := []string{"input", "forget", "output", "new"}, map[string][3]*graph.Node{}
	for _, name := range names {
		params[name] = [3]*graph.Node{w.Param(name+".x", f32(width, width)), w.Param(name+".h", f32(width, width)),
			w.Param(name+".b", f32(width))}
	}
	h, c := w.Input("h", f32(batch, width)), w.Input("c", f32(batch, width))
	for step := range 4 {
		x, gates := w.Input(fmt.Sprint("x", step), f32(batch, width)), map[string]*graph.Node{}
		for i, name := range names {
			p := params[name]
			y := w.Binary(graph.Add, w.MatMul(x, p[0], false, false), w.MatMul(h, p[1], false, false))
			fn := graph.Sigmoid
			if i == 3 {
				fn = graph.Tanh
			}
			gates[name] = w.Unary(fn, w.Binary(graph.Add, y, w.Broadcast(p[2], y.Type.Shape)))
		}
		c = w.Binary(graph.Add, w.Binary(graph.Mul, gates["forget"], c), w.Binary(graph.Mul, gates["input"], gates["new"]))
		h = w.Binary(graph.Mul, gates["output"], w.Unary(graph.Tanh, c))
	}
	w.Output("h", h)
	g, err := w.Graph()
	if err != nil {
		b.Fatal(err)
	}
	return g
}

// BenchmarkStacked times an LSTM whose gates are one product, and one whose gates are products of their own, in turn: the
// metric is the median of how many times as fast the first is.
func BenchmarkStacked(b *testing.B) {
	for _, dims := range [][2]int{{1, 64}, {1, 128}, {1, 512}, {4, 128}, {8, 512}, {32, 128}} {
		b.Run(fmt.Sprint(dims[0], "x", dims[1]), func(b *testing.B) {
			g := recurrent(b, dims[0], dims[1])
			stacked(b, g, WithoutPass("fuse-recurrence"))
		})
	}
}

// attending is the attention of rows to themselves, with heads of 32 elements and weights of four bits in blocks of 32 rows, with
// zero points. Keys and values have a quarter of the heads.
func attending(b *testing.B, rows, width int) *graph.Graph {
	w := graph.NewBuilder("attending")
	x := w.Input("x", graph.TypeOf(graph.F32, rows, width))
	part := func(name string, columns int) *graph.Node {
		blocks := width / 32
		of := w.Add(graph.Dequantize{Axis: 1, Block: 32}, w.Param("w"+name, graph.TypeOf(graph.I4, columns, width)),
			w.Param("s"+name, graph.TypeOf(graph.F32, columns, blocks)), w.Param("z"+name, graph.TypeOf(graph.I4, columns, blocks)))
		return w.Transpose(w.Reshape(w.MatMul(x, of, false, true), rows, columns/32, 32), 1, 0, 2)
	}
	q, k, v := part("q", width), part("k", width/4), part("v", width/4)
	spread := func(v *graph.Node) *graph.Node {
		s := v.Type.Shape
		return w.Reshape(w.Broadcast(w.Reshape(v, s.At(0), 1, rows, 32), graph.ShapeOf(s.At(0), 4, rows, 32)), width/32, rows, 32)
	}
	w.Output("y", w.MatMul(w.Add(graph.Softmax{Axis: 2}, w.MatMul(q, spread(k), false, true)), spread(v), false, false))
	g, err := w.Graph()
	if err != nil {
		b.Fatal(err)
	}
	return g
}

// BenchmarkStackedPanels is BenchmarkStacked for the products before an attention with weights of four bits.
func BenchmarkStackedPanels(b *testing.B) {
	for _, dims := range [][2]int{{1, 256}, {8, 256}, {8, 1024}, {32, 256}, {128, 256}, {128, 512}, {512, 256}, {512, 512}} {
		b.Run(fmt.Sprint(dims[0], "x", dims[1]), func(b *testing.B) { stacked(b, attending(b, dims[0], dims[1])) })
	}
}

// stacked times a graph with the pass stack-weights and without, in turn.
func stacked(b *testing.B, g *graph.Graph, opts ...CompileOption) {
	in := graphtest.Values(rand.New(rand.NewPCG(1, 2)), g)
	var programs [2]*Program
	for i, opts := range [][]CompileOption{append(slices.Clip(opts), WithoutPass("stack-weights")), opts} {
		p, err := Compile(g, opts...)
		if err != nil {
			b.Fatal(err)
		}
		defer p.Close()
		if _, err := p.Run(in); err != nil {
			b.Fatal(err)
		}
		programs[i] = p
	}
	var ratios []float64
	for b.Loop() {
		var times [2]time.Duration
		for i, p := range programs {
			start := time.Now()
			for range 10 {
				if err := p.Exec(); err != nil {
					b.Fatal(err)
				}
			}
			times[i] = time.Since(start)
		}
		ratios = append(ratios, float64(times[0])/float64(times[1]))
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "times-as-fast")
}
