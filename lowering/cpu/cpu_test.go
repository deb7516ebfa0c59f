package cpu_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/ref"
	"fusec/lowering"
	"fusec/lowering/cpu"
	"fusec/passes/passtest"
)

// compiled is g as an executable with values bound to its sources.
func compiled(t testing.TB, g *graph.Graph, in map[string]*graph.Tensor,
	opts ...cpu.Option) (lowering.Executable, *lowering.Program) {
	t.Helper()
	return compiledOf(t, g, in, false, opts...)
}

// compiledOf is compiled with parameters that change only by Bind if frozen is set.
func compiledOf(t testing.TB, g *graph.Graph, in map[string]*graph.Tensor, frozen bool,
	opts ...cpu.Option) (lowering.Executable, *lowering.Program) {
	t.Helper()
	d := cpu.New(opts...)
	p := passtest.Lowered(t, g, d, frozen)
	e, err := d.Compile(p)
	if err != nil {
		t.Fatalf("%v\n%s", err, graph.Print(g))
	}
	for i, b := range p.Buffers {
		switch b.Role {
		case lowering.Input, lowering.Param, lowering.State:
			if err := e.Bind(i, in[b.Name].Clone()); err != nil {
				t.Fatal(err)
			}
		}
	}
	return e, p
}

// lowered is the program of a graph.
func lowered(t testing.TB, g *graph.Graph, d *cpu.Device) *lowering.Program {
	t.Helper()
	return passtest.Lowered(t, g, d, false)
}

// check compares the pipeline with the reference and fails with the graph and the program.
func check(t *testing.T, g *graph.Graph, in map[string]*graph.Tensor, workers int) *lowering.Program {
	t.Helper()
	want, updates, err := ref.EvalBound(g, in)
	if err != nil {
		t.Fatalf("reference: %v\n%s", err, graph.Print(g))
	}
	e, p := compiled(t, g, in, cpu.Workers(workers))
	defer e.Close()
	if err := e.Run(); err != nil {
		t.Fatalf("%v\n%s\n%v", err, graph.Print(g), p)
	}
	for _, o := range p.Outputs {
		if err := ref.Check(e.Output(o.Buffer), want[o.Name]); err != nil {
			t.Fatalf("output %q: %v\n%s\n%v", o.Name, err, graph.Print(g), p)
		}
	}
	for _, u := range p.Updates { // run once, so that the state is what was computed
		if err := ref.Check(e.Output(u.Target), updates[p.Buffers[u.Target].Name]); err != nil {
			t.Fatalf("update of %q: %v\n%s\n%v", p.Buffers[u.Target].Name, err, graph.Print(g), p)
		}
	}
	return p
}

// seeds is how many seeds a test goes through.
func seeds(n uint64) uint64 {
	if testing.Short() {
		n /= 5
	}
	return n
}

// runnable leaves out the operation without code.
func runnable(name string) bool { return name != "host" }

func TestRandomGraphs(t *testing.T) {
	for seed := range seeds(400) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			g := graphtest.Random(r, graphtest.Options{Nodes: 5 + r.IntN(25), Allow: runnable})
			in := graphtest.Values(r, g)
			for n, v := range graphtest.Weights(r, g) {
				in[n] = v
			}
			check(t, g, in, 1+int(seed%3))
		})
	}
}
