package fusec

import (
	"fmt"
	"testing"
	"time"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// BenchmarkSecondMachine is what it takes to make a machine of a graph that an equal one was compiled of before, import
// included, beside one that is compiled; the graphs are built outside of the time.
func BenchmarkSecondMachine(b *testing.B) {
	for _, steps := range []int{1, 10, 100} {
		for _, kind := range []string{"first", "second"} {
			b.Run(fmt.Sprintf("steps=%d/%s", steps, kind), func(b *testing.B) {
				withCache(b, cachedPrograms, cachedProgramBytes)
				b.ReportAllocs()
				nodes := 0
				s := newSentence(b, "", steps, 0.1)
				closed(b, NewMachine(s.g, gorgonia.BindDualValues(s.weights...)))
				for b.Loop() {
					b.StopTimer()
					if kind == "first" {
						ClearProgramCache()
					}
					s := newSentence(b, "", steps, 0.1)
					nodes = len(s.g.AllNodes())
					b.StartTimer()
					m := NewMachine(s.g, gorgonia.BindDualValues(s.weights...))
					b.StopTimer()
					if m.Err() != nil {
						b.Fatal(m.Err())
					}
					closed(b, m)
					b.StartTimer()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(nodes), "ns/node")
			})
		}
	}
}

// BenchmarkGraphPerStep is a program that builds a graph for every sentence: the graph, its gradients, a machine, a run
// and a solver's step, on fusec and on Gorgonia's own machine by turns. Sentences have 10 to 19 characters. "times" is
// how many times as long the program takes on Gorgonia's machine.
func BenchmarkGraphPerStep(b *testing.B) {
	for _, hidden := range []int{16, 64, 128} {
		b.Run(fmt.Sprintf("hidden=%d", hidden), func(b *testing.B) {
			withCache(b, cachedPrograms, cachedProgramBytes)
			solver := gorgonia.NewVanillaSolver(gorgonia.WithLearnRate(1e-3))
			size := func(s *sentence) { s.hidden, s.rows = hidden, 1 }
			step := func(i int, machine func(s *sentence) gorgonia.VM) time.Duration {
				start := time.Now()
				s := newSentence(b, "", 10+i%10, 0.1, size)
				vm := machine(s)
				if err := vm.RunAll(); err != nil {
					b.Fatal(err)
				}
				if err := solver.Step(gorgonia.NodesToValueGrads(s.weights)); err != nil {
					b.Fatal(err)
				}
				if err := vm.Close(); err != nil {
					b.Fatal(err)
				}
				return time.Since(start)
			}
			fused := func(s *sentence) gorgonia.VM { return NewMachine(s.g, gorgonia.BindDualValues(s.weights...)) }
			tape := func(s *sentence) gorgonia.VM {
				return gorgonia.NewTapeMachine(s.g, gorgonia.BindDualValues(s.weights...))
			}
			for i := range 10 { // every length once
				step(i, fused)
			}
			var ours, theirs time.Duration
			b.ResetTimer()
			for i := range b.N {
				ours += step(i, fused)
				theirs += step(i, tape)
			}
			b.ReportMetric(float64(ours.Microseconds())/float64(b.N), "fusec-µs")
			b.ReportMetric(float64(theirs.Microseconds())/float64(b.N), "TapeMachine-µs")
			b.ReportMetric(float64(theirs)/float64(ours), "times")
		})
	}
}

// BenchmarkManyWeights is what a run takes to read 2,000 weights again.
func BenchmarkManyWeights(b *testing.B) {
	const n = 2000
	g := gorgonia.NewGraph()
	x := gorgonia.NewVector(g, tensor.Float32, gorgonia.WithShape(4), gorgonia.WithName("x"), gorgonia.WithInit(gorgonia.Ones()))
	y := x
	for i := range n {
		w := gorgonia.NewVector(g, tensor.Float32, gorgonia.WithShape(4), gorgonia.WithName(fmt.Sprint("w", i)),
			gorgonia.WithInit(gorgonia.Ones()))
		y = gorgonia.Must(gorgonia.Add(y, w))
	}
	m := NewMachine(g)
	if err := m.RunAll(); err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if err := m.bind(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/weight")
}
