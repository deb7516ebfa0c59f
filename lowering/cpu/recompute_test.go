package cpu_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/trace"
	"fusec/lowering"
	"fusec/lowering/cpu"
	"fusec/passes"
)

// withGradients makes a graph's cost and the gradients by its parameters outputs.
func withGradients(t testing.TB, g *graph.Graph) *graph.Graph {
	t.Helper()
	cost := withCost(g)
	var of []*graph.Node
	for _, n := range g.Sources() {
		if _, ok := n.Op.(graph.Param); ok {
			of = append(of, n)
		}
	}
	grads, err := graph.Gradients(g, cost, of)
	if err != nil {
		t.Fatal(err)
	}
	b := graph.Extend(g)
	for i, n := range of {
		b.Output("d "+n.Name, grads[i])
	}
	return g
}

// deep is a network of so many equal layers, every third with dropout, and its gradients.
func deep(t testing.TB, layers, rows, width int) *graph.Graph {
	t.Helper()
	b := graph.NewBuilder("deep")
	x := b.Input("x", graph.TypeOf(graph.F32, rows, width))
	seed := b.Input("seed", graph.TypeOf(graph.I64))
	for i := range layers {
		w := b.Param(fmt.Sprintf("w%d", i), graph.TypeOf(graph.F32, width, width))
		bias := b.Param(fmt.Sprintf("b%d", i), graph.TypeOf(graph.F32, width))
		y := b.MatMul(x, w, false, false)
		x = b.Unary(graph.Tanh, b.Binary(graph.Add, y, b.Broadcast(bias, y.Type.Shape)))
		if i%3 == 1 {
			x = b.Add(graph.Dropout{P: 0.25}, x, b.BinaryScalar(graph.Add, seed, float64(i)))
		}
	}
	b.Output("y", x)
	g := graphtest.Graph(t, b)
	return withGradients(t, g)
}

// budgeted is the program of a graph under a budget, and what pass recompute records of it.
func budgeted(t testing.TB, g *graph.Graph, budget int64) (*lowering.Program, *trace.Recompute) {
	t.Helper()
	d := cpu.New()
	final, tr, err := passes.Run(g, passes.Config{Target: d, Verify: true, Budget: budget})
	if err != nil {
		t.Fatalf("%v\n%s", err, graph.Print(g))
	}
	p, err := lowering.Lower(final, d.Name())
	if err != nil {
		t.Fatalf("%v\n%s", err, graph.Print(g))
	}
	for _, s := range tr.Stages {
		if s.Recompute != nil {
			return p, s.Recompute
		}
	}
	t.Fatal("the pass left no record")
	return nil, nil
}

// results are a program's outputs, and its updates, after a run.
func results(t testing.TB, p *lowering.Program, in map[string]*graph.Tensor) map[string]*graph.Tensor {
	t.Helper()
	e, err := cpu.New(cpu.Workers(2)).Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for i, b := range p.Buffers {
		switch b.Role {
		case lowering.Input, lowering.Param, lowering.State:
			if err := e.Bind(i, in[b.Name].Clone()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := e.Run(); err != nil {
		t.Fatal(err)
	}
	all := map[string]*graph.Tensor{}
	for _, o := range p.Outputs {
		all[o.Name] = e.Output(o.Buffer).Clone()
	}
	for _, u := range p.Updates {
		all["update of "+p.Buffers[u.Target].Name] = e.Output(u.Target).Clone()
	}
	return all
}

// checkSame compares bit for bit.
func checkSame(t *testing.T, want, got map[string]*graph.Tensor) {
	t.Helper()
	if len(want) != len(got) {
		t.Errorf("%d values became %d", len(want), len(got))
	}
	for name, w := range want {
		if !w.Equal(got[name]) {
			t.Errorf("%q differs", name)
		}
	}
}

// checkRecord compares the record with the program.
func checkRecord(t *testing.T, p, plain *lowering.Program, rec *trace.Recompute) {
	t.Helper()
	if rec.Before != plain.ArenaBytes || rec.After != p.ArenaBytes || rec.After > rec.Before {
		t.Errorf("recorded are %d bytes before and %d after, the arenas have %d and %d", rec.Before, rec.After,
			plain.ArenaBytes, p.ArenaBytes)
	}
	at := map[int]int{}
	var flops int64
	for i, l := range p.Launches {
		at[l.Node.ID] = i
		flops += l.FLOPs
	}
	for _, l := range rec.Launches {
		second, ok := at[l.Node]
		first, ok1 := at[l.Of]
		a, b := &p.Launches[first], &p.Launches[second]
		if !ok || !ok1 || first >= second || a.Kind() != b.Kind() || b.FLOPs != l.FLOPs {
			t.Errorf("%+v: launch %d repeats %d", l, second, first)
		}
		flops -= l.FLOPs
	}
	for _, l := range plain.Launches {
		flops -= l.FLOPs
	}
	if flops != 0 || len(p.Launches) != len(plain.Launches)+len(rec.Launches) {
		t.Errorf("%d FLOPs are not accounted for, and %d launches became %d with %d repeated", flops,
			len(plain.Launches), len(p.Launches), len(rec.Launches))
	}
}

// TestRecompute trains deep networks under smaller and smaller budgets: the arena is within the budget, values are the
// same bits, and a smaller budget takes no less work. The smallest arena is bounded as measured, with some slack.
func TestRecompute(t *testing.T) {
	for _, tt := range []struct {
		name     string
		g        *graph.Graph
		smallest float64 // arena, relative to the one without a budget
		work     float64 // FLOPs at a quarter of the memory, relative to those without a budget
	}{
		{"mlp", deep(t, 24, 16, 24), 0.25, 1.50},
		{"transformer", withGradients(t, transformer(8, 1, 8, 16, 2, 64)), 0.21, 1.35},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := values(tt.g)
			plain := lowered(t, tt.g, cpu.New())
			want := results(t, plain, in)
			var flops int64
			for _, l := range plain.Launches {
				flops += l.FLOPs
			}
			total := func(rec *trace.Recompute) int64 {
				sum := flops
				for _, l := range rec.Launches {
					sum += l.FLOPs
				}
				return sum
			}
			_, least := budgeted(t, tt.g, 1)
			if share := float64(least.After) / float64(least.Before); share > tt.smallest {
				t.Errorf("the smallest arena has %.3f of the bytes, want at most %.3f", share, tt.smallest)
			}
			last := flops
			for _, percent := range []int64{100, 90, 75, 60, 50, 35, 25, 15, 10, 5} {
				budget := plain.ArenaBytes * percent / 100
				p, rec := budgeted(t, tt.g, budget)
				if budget < least.After {
					break
				}
				if p.ArenaBytes > budget {
					t.Errorf("the arena has %d bytes, the budget %d", p.ArenaBytes, budget)
				}
				if now := total(rec); now < last {
					t.Errorf("%d %% of the memory take %d FLOPs, a larger budget %d", percent, now, last)
				} else {
					last = now
				}
				if percent == 25 && float64(last) > tt.work*float64(flops) {
					t.Errorf("a quarter of the memory takes %.3f of the work, want at most %.3f",
						float64(last)/float64(flops), tt.work)
				}
				checkRecord(t, p, plain, rec)
				checkSame(t, want, results(t, p, in))
				t.Logf("%3d %%: %.3f of the memory, %.3f of the work, %d repeated", percent,
					float64(rec.After)/float64(rec.Before), float64(last)/float64(flops), len(rec.Launches))
			}
			t.Logf("least: %.3f of the memory, %.3f of the work", float64(least.After)/float64(least.Before),
				float64(total(least))/float64(flops))
		})
	}
}

// TestRecomputeSublinear quadruples the depth: activations grow with it, what a minimal plan keeps of them much less.
func TestRecomputeSublinear(t *testing.T) {
	_, short := budgeted(t, deep(t, 12, 16, 24), 1)
	_, long := budgeted(t, deep(t, 48, 16, 24), 1)
	plain, with := float64(long.Before)/float64(short.Before), float64(long.After)/float64(short.After)
	t.Logf("4 times the depth takes %.2f times the memory, and with recomputation %.2f times", plain, with)
	if plain < 3.5 || with > 2.6 {
		t.Error("want about 4 times and at most 2.6 times")
	}
}

// TestRecomputeRandom gives random graphs, with the gradients of the sum of all that they hand out, random budgets.
func TestRecomputeRandom(t *testing.T) {
	repeated, moved, unmet := 0, 0, 0
	for seed := range seeds(150) {
		r := rand.New(rand.NewPCG(seed, 10))
		g := grown(r, 4+r.IntN(40))
		if seed%5 > 0 {
			withSums(t, g)
		}
		shuffled(r, g)
		plain := lowered(t, g, cpu.New())
		if plain.ArenaBytes == 0 {
			continue
		}
		p, rec := budgeted(t, g, 1+r.Int64N(plain.ArenaBytes))
		checkRecord(t, p, plain, rec)
		checkPlan(t, p)
		in := values(g)
		checkSame(t, results(t, plain, in), results(t, p, in))
		repeated += len(rec.Launches)
		if rec.After < rec.Before && len(rec.Launches) == 0 {
			moved++
		}
		if rec.After > rec.Budget {
			unmet++
		}
		if t.Failed() {
			t.Fatalf("seed %d\n%s\n%v", seed, graph.Print(g), p)
		}
	}
	t.Logf("%d launches repeated, %d graphs helped by another order alone, %d budgets not met", repeated, moved, unmet)
	if repeated == 0 || moved == 0 || unmet == 0 {
		t.Error("one of them is no test")
	}
}

// withSums makes the gradients of the sum of a graph's outputs by its parameters outputs.
func withSums(t *testing.T, g *graph.Graph) {
	t.Helper()
	b := graph.Extend(g)
	var cost *graph.Node
	for _, o := range g.Outputs {
		s := b.SumTo(o.Node, graph.ShapeOf())
		if cost == nil {
			cost = s
		} else {
			cost = b.Binary(graph.Add, cost, s)
		}
	}
	var of []*graph.Node
	for _, n := range g.Sources() {
		if _, ok := n.Op.(graph.Param); ok {
			of = append(of, n)
		}
	}
	grads, err := graph.Gradients(g, cost, of)
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range of {
		if grads[i] != nil {
			b.Output("d "+n.Name, grads[i])
		}
	}
	if err := b.Err(); err != nil {
		t.Fatal(err)
	}
}
