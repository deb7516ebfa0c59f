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
			in := graphtest.Values(rand.New(rand.NewPCG(1, 2)), g)
			var programs [2]*Program
			for i, opts := range [][]CompileOption{{WithoutPass("fuse-recurrence"), WithoutPass("stack-weights")},
				{WithoutPass("fuse-recurrence")}} {
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
		})
	}
}
