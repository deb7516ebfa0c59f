package pipeline_test

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/optim"
	"fusec/kernels/ref"
	"fusec/passes"
	"fusec/passes/pipeline"
)

// split is a graph over m microbatches, with the steps of an optimiser, if there is one, for each of its parameters.
func split(g *graph.Graph, m int, o *optim.Optimizer) (*graph.Graph, error) {
	cfg := passes.Config{Verify: true, Optimizer: o, Stop: "simplify-again", Layout: passes.Layout{
		Mesh: graph.Mesh{{Name: graph.Microbatch, Size: m}}, Split: map[string]graph.Sharding{}}}
	for _, n := range g.Sources() {
		s := graph.Replicated
		s.Split[0] = 1
		if _, ok := n.Op.(graph.Input); ok && n.Type.Shape.Rank() > 0 && s.Check(cfg.Layout.Mesh, n.Type.Shape) == nil {
			cfg.Layout.Split[n.Name] = s
		}
		if _, ok := n.Op.(graph.Param); ok && o != nil {
			cfg.Steps = append(cfg.Steps, passes.Step{Param: n, Cost: g.Outputs[0].Node})
		}
	}
	g, _, err := passes.Run(g, cfg)
	return g, err
}

// alone is the same graph for one participant.
func alone(t testing.TB, g *graph.Graph, o *optim.Optimizer) *graph.Graph {
	t.Helper()
	cfg := passes.Config{Optimizer: o, Stop: "simplify-again"}
	for _, n := range g.Sources() {
		if _, ok := n.Op.(graph.Param); ok && o != nil {
			cfg.Steps = append(cfg.Steps, passes.Step{Param: n, Cost: g.Outputs[0].Node})
		}
	}
	g, _, err := passes.Run(g, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// play runs the stages, one microbatch after the other, as the runner of lowering/pipeline does in its order.
func play(g *graph.Graph, stages []pipeline.Stage, m int, in map[string]*graph.Tensor) (out, updates map[string]*graph.Tensor,
	err error) {
	mesh := graph.Mesh{{Name: graph.Microbatch, Size: m}}
	out, updates = map[string]*graph.Tensor{}, map[string]*graph.Tensor{}
	parted := map[string]graph.Sharding{}
	for _, n := range g.Sources() {
		parted[n.Name] = n.Sharding
	}
	joined, sums := map[string][]*graph.Tensor{}, map[string]*graph.Tensor{}
	step := func(g *graph.Graph, handed map[string]*graph.Tensor, i int) (map[string]*graph.Tensor, map[string]*graph.Tensor, error) {
		if g == nil {
			return nil, nil, nil
		}
		if err := graph.Verify(g); err != nil {
			return nil, nil, err
		}
		bound := map[string]*graph.Tensor{}
		for _, n := range g.Sources() {
			whole := in[n.Name]
			switch {
			case n.Name == pipeline.Index:
				bound[n.Name] = graph.Scalar(graph.I64, float64(i))
			case handed[n.Name] != nil:
				bound[n.Name] = handed[n.Name]
			case whole != nil && i >= 0 && parted[n.Name].Over() != 0:
				part, err := parted[n.Name].Part(mesh, whole, i)
				if err != nil {
					return nil, nil, err
				}
				bound[n.Name] = part
			case whole != nil:
				bound[n.Name] = whole
			case sums[n.Name] != nil:
				bound[n.Name] = sums[n.Name]
			case len(joined[n.Name]) > 0:
				t := graph.NewTensor(n.Type)
				s := graph.Replicated
				for d := range n.Type.Shape.Rank() {
					if n.Type.Shape.At(d) != joined[n.Name][0].Type.Shape.At(d) {
						s.Split[d] = 1
					}
				}
				for j, part := range joined[n.Name] {
					if err := s.Join(mesh, t, part, j); err != nil {
						return nil, nil, err
					}
				}
				bound[n.Name] = t
			default:
				sums[n.Name] = graph.NewTensor(n.Type)
				bound[n.Name] = sums[n.Name]
			}
		}
		values, changed, err := ref.EvalBound(g, bound)
		plain := func(m map[string]ref.Value) map[string]*graph.Tensor {
			all := map[string]*graph.Tensor{}
			for name, v := range m {
				all[name] = v.Rounded()
			}
			return all
		}
		return plain(values), plain(changed), err
	}
	early := map[string]*graph.Tensor{} // each stage has its own
	for _, of := range stages {
		own := map[string]bool{}
		for i := range m {
			_, added, err := step(of.Before, nil, i)
			if err != nil {
				return nil, nil, err
			}
			for name, t := range added {
				sums[name], own[name] = t, true
			}
		}
		for name := range own {
			if before := early[name]; before != nil && !equal(before, sums[name]) {
				return nil, nil, fmt.Errorf("stages have different sums %q", name)
			}
			early[name] = sums[name]
			delete(sums, name)
		}
	}
	maps.Copy(sums, early)
	for i := range m {
		handed := map[string]*graph.Tensor{}
		for k := range 2 * len(stages) {
			of := stages[min(k, len(stages)-1)].Forward
			if k >= len(stages) {
				of = stages[2*len(stages)-1-k].Backward
			}
			made, added, err := step(of, handed, i)
			if err != nil {
				return nil, nil, err
			}
			for name, t := range made {
				handed[name] = t
				joined[name] = append(joined[name], t)
			}
			for name, t := range added {
				sums[name] = t
			}
		}
	}
	told := map[string]*graph.Tensor{}
	for _, s := range stages {
		made, _, err := step(s.Norms, nil, -1)
		if err != nil {
			return nil, nil, err
		}
		for name, t := range made {
			told[name] = t
		}
	}
	for _, s := range stages {
		made, changed, err := step(s.Update, told, -1)
		if err != nil {
			return nil, nil, err
		}
		for name, t := range made {
			out[name] = t
		}
		for name, t := range changed {
			if before := updates[name]; before != nil && !equal(before, t) {
				return nil, nil, fmt.Errorf("two stages make different values of %q: %v and %v", name, before, t)
			}
			updates[name] = t
		}
	}
	return out, updates, nil
}

func equal(a, b *graph.Tensor) bool { return string(a.Bytes()) == string(b.Bytes()) }

// same compares a graph in stages with the graph on one participant.
func same(t testing.TB, g *graph.Graph, n, m int, o *optim.Optimizer, in map[string]*graph.Tensor, ends ...string) error {
	t.Helper()
	whole, err := split(g, m, o)
	if err != nil {
		return err
	}
	stages, err := pipeline.Cut(whole, n, ends)
	if err != nil {
		return err
	}
	if joined, err := pipeline.Join(g.Name, stages); err != nil {
		t.Fatal(err)
	} else if err := graph.Verify(joined.Graph); err != nil || len(joined.To) == 0 {
		t.Fatalf("the drawing: %v\n%s", err, graph.Print(joined.Graph))
	} else {
		for _, n := range joined.Graph.Nodes {
			op, between := n.Op.(graph.Collective)
			between = between && op.Of().Over != graph.Microbatch
			if _, ok := joined.At[n.ID]; ok == between {
				t.Fatalf("%s is of a stage: %v", n.Where(), ok)
			}
		}
	}
	one := alone(t, g, o)
	for _, n := range one.Sources() {
		if in[n.Name] == nil {
			in[n.Name] = graph.NewTensor(n.Type)
		}
	}
	if rate := in[optim.RateInput]; rate != nil {
		rate.SetFloat(0, 0.01)
	}
	if scale := in[optim.ScaleState]; scale != nil {
		scale.SetFloat(0, 8)
	}
	want, changed, err := ref.EvalBound(one, in)
	if err != nil {
		t.Fatal(err)
	}
	got, updates, err := play(whole, stages, m, in)
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, got *graph.Tensor, want ref.Value) {
		t.Helper()
		w := want.Rounded()
		if got == nil || got.Type != w.Type {
			t.Fatalf("%s is %v, want %v", what, got, w.Type)
		}
		for i := range w.Type.Shape.Elems() {
			g, w := got.Float(i), w.Float(i)
			if d := math.Abs(g - w); !(d <= 1e-9*(1+math.Abs(w))) && g != w {
				t.Fatalf("%s, %d stages, %d microbatches: element %d is %v, want %v", what, n, m, i, g, w)
			}
		}
	}
	for name, w := range want {
		check("output "+name, got[name], w)
	}
	for name, w := range changed {
		check("the update of "+name, updates[name], w)
	}
	if len(got) != len(want) || len(updates) != len(changed) {
		t.Errorf("%d outputs and %d updates, want %d and %d", len(got), len(updates), len(want), len(changed))
	}
	return nil
}

func f64(dims ...int) graph.Type { return graph.TypeOf(graph.F64, dims...) }

// random is a network of random layers, some of which read values from far before, with a random loss.
func random(t testing.TB, r *rand.Rand, m int) *graph.Graph {
	return graphtest.Built(t, func(b *graph.Builder) {
		rows := m * (1 + r.IntN(2))
		x := b.Input("x", f64(rows, 1+r.IntN(4)))
		tied := b.Param("tied", f64(4, 4))
		h := b.MatMul(x, b.Param("first", f64(x.Type.Shape.At(1), 4)), false, false)
		all := []*graph.Node{h}
		for i := range 2 + r.IntN(5) {
			name := func(s string) string { return fmt.Sprintf("%s%d", s, i) }
			switch r.IntN(10) {
			case 9:
				h = b.Add(graph.LayerNorm{Eps: 1e-3}, h, b.Param(name("g"), f64(4)), b.Param(name("z"), f64(4)))
			case 0:
				h = b.Unary(graph.Tanh, h)
			case 1:
				w := tied
				if r.IntN(2) > 0 {
					w = b.Param(name("w"), f64(4, 4))
				}
				h = b.MatMul(h, w, false, r.IntN(2) > 0)
			case 2:
				h = b.Binary(graph.Add, h, b.Broadcast(b.Param(name("b"), f64(4)), h.Type.Shape))
			case 3:
				h = b.Binary(graph.Mul, h, all[r.IntN(len(all))])
			case 4:
				h = b.Binary(graph.Add, h, all[r.IntN(len(all))])
			case 5:
				h = b.Add(graph.Softmax{Axis: 1}, h)
			case 6:
				h = b.Add(graph.RMSNorm{Eps: 1e-3}, h, b.Param(name("g"), f64(4)))
			case 7:
				q := b.Reshape(h, rows, 2, 2)
				h = b.Reshape(b.Transpose(b.Unary(graph.Sigmoid, q), 0, 2, 1), rows, 4)
			case 8:
				s := b.Param(name("s"), f64())
				h = b.Binary(graph.Mul, h, b.Broadcast(s, h.Type.Shape))
			}
			if b.Err() != nil {
				t.Fatal(b.Err())
			}
			all = append(all, h)
		}
		var cost *graph.Node
		switch r.IntN(4) {
		case 3: // rows that count
			rows := b.Unary(graph.Square, b.Input("rows", f64(rows)))
			cost = b.Binary(graph.Div, b.Reduce(graph.Sum, b.Binary(graph.Mul, rows, b.Reduce(graph.Sum, h, false, 1)), false, 0),
				b.Reduce(graph.Sum, rows, false, 0))
		case 0:
			cost = b.Reduce(graph.Mean, b.Unary(graph.Square, h), false, 0, 1)
		case 1:
			y := b.Input("y", h.Type)
			cost = b.Reduce(graph.Sum, b.Unary(graph.Square, b.Binary(graph.Sub, h, y)), false, 0, 1)
		case 2:
			cost = b.Reduce(graph.Mean, b.Reduce(graph.Sum, h, false, 1), false, 0)
			cost = b.Binary(graph.Add, cost, b.Reduce(graph.Sum, b.Unary(graph.Square, tied), false, 0, 1))
		}
		b.Output("cost", cost)
		if r.IntN(2) > 0 {
			b.Output("h", h)
		}
		if r.IntN(3) == 0 {
			b.Output("far", all[0])
		}
	})
}

// TestRandom compares random networks, with and without an optimiser's step, with one participant in float64.
func TestRandom(t *testing.T) {
	refused := map[string]int{}
	const networks = 200
	done := 0
	for seed := range uint64(networks) {
		r := rand.New(rand.NewPCG(seed, 1))
		m := 2 + r.IntN(3)
		g := random(t, r, m)
		var o *optim.Optimizer
		switch r.IntN(4) {
		case 0:
			o = &optim.Optimizer{Rule: optim.AdamW{}, Rate: optim.Constant(0.01), Clip: 0.1}
		case 1:
			o = &optim.Optimizer{Rule: optim.SGD{}, Rate: optim.Constant(0.01)}
		case 2:
			o = &optim.Optimizer{Rule: optim.AdamW{Decay: 0.1}, Rate: optim.Constant(0.01),
				LossScale: optim.LossScale{Initial: 8, GrowAfter: 2}}
		}
		in := graphtest.Values(r, g)
		if err := same(t, g, 2+r.IntN(3), m, o, in); err != nil {
			refused[err.Error()]++
			continue
		}
		done++
	}
	for why, n := range refused {
		t.Logf("%d: %s", n, why)
	}
	if done < networks*3/4 {
		t.Errorf("only %d of %d networks are cut", done, networks)
	}
}

// TestNoise draws random numbers for the whole batch, counts runs in a state, and keeps a sum of rows in another one.
func TestNoise(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		x, w, v := b.Input("x", f64(6, 4)), b.Param("w", f64(4, 4)), b.Param("v", f64(4, 3))
		runs, seen := b.State("runs", graph.TypeOf(graph.I64)), b.State("seen", f64(4))
		noise := b.Add(graph.Random{Dist: graph.Normal, B: 1, Type: f64(6, 4)}, runs)
		h := b.Named(b.Unary(graph.Tanh, b.MatMul(x, w, false, false)), "first")
		h = b.Binary(graph.Add, h, noise)
		cost := b.Reduce(graph.Mean, b.Unary(graph.Square, b.MatMul(h, v, false, false)), false, 0, 1)
		b.Output("cost", cost)
		b.Output("x", x)
		b.Update(runs, b.Binary(graph.Add, runs, b.Scalar(graph.I64, 1)))
		b.Update(seen, b.Binary(graph.Add, seen, b.Reduce(graph.Sum, h, false, 0)))
	})
	for _, m := range []int{2, 3, 6} {
		in := graphtest.Values(rand.New(rand.NewPCG(1, 2)), g)
		if err := same(t, g, 2, m, &optim.Optimizer{Rule: optim.Adam{}, Rate: optim.Constant(0.01), Clip: 1}, in, "first"); err != nil {
			t.Error(err)
		}
	}
}

// TestRefuses names what cannot be cut.
func TestRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		stages int
		ends   []string
		want   string
		build  func(b *graph.Builder, x, w *graph.Node) *graph.Node // of the forward pass, before the cost
	}{
		{"batch norm", 2, nil, "needs all microbatches before", func(b *graph.Builder, x, w *graph.Node) *graph.Node {
			c := func() *graph.Node { return b.Reshape(b.Slice(w, 0, 0, 1, 1), 4) }
			h := b.MatMul(x, w, false, false)
			return b.Add(graph.BatchNorm{Train: true, Eps: 1e-3, Momentum: 0.9}, h, c(), c(), c(), c())
		}},
		{"maximum", 2, nil, "the max over all microbatches", func(b *graph.Builder, x, w *graph.Node) *graph.Node {
			return b.Reduce(graph.MaxOf, b.MatMul(x, w, false, false), false, 0, 1)
		}},
		{"all rows", 2, nil, "needs all microbatches before", func(b *graph.Builder, x, w *graph.Node) *graph.Node {
			h := b.MatMul(x, w, false, false)
			return b.MatMul(h, h, false, true)
		}},
		{"dropout", 2, nil, "needs all microbatches before", func(b *graph.Builder, x, w *graph.Node) *graph.Node {
			return b.Add(graph.Dropout{P: 0.5}, b.MatMul(x, w, false, false), b.Scalar(graph.I64, 1))
		}},
		{"few operations", 9, nil, "cannot be cut into 9 stages", func(b *graph.Builder, x, w *graph.Node) *graph.Node {
			return b.MatMul(x, w, false, false)
		}},
		{"ends", 3, []string{"h"}, "1 ends of stages are named, and 3 stages have 2", linear},
		{"unknown end", 2, []string{"nobody"}, `no value of the forward pass is named "nobody"`, linear},
		{"order of ends", 3, []string{"k", "h"}, "name the ends in their order", linear},
		{"nothing left", 2, []string{"last"}, "leaves nothing for the last stage", func(b *graph.Builder, x, w *graph.Node) *graph.Node {
			return b.Named(b.MatMul(x, w, false, false), "last")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := graphtest.Built(t, func(b *graph.Builder) {
				x, w := b.Input("x", f64(4, 4)), b.Param("w", f64(4, 4))
				h := c.build(b, x, w)
				if h.Type.Shape.Rank() > 0 && h.Name == "" {
					h = b.Reduce(graph.Sum, h, false, 0, 1)
				}
				b.Output("cost", h)
			})
			whole, err := split(g, 2, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err = pipeline.Cut(whole, c.stages, c.ends); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
	plain := graphtest.Built(t, func(b *graph.Builder) { b.Output("y", b.Unary(graph.Exp, b.Input("x", f64(4)))) })
	if _, err := pipeline.Cut(plain, 2, nil); err == nil || !strings.Contains(err.Error(), "over the axis microbatch") {
		t.Errorf("error %v", err)
	}
	for _, build := range []func(b *graph.Builder){
		func(b *graph.Builder) { b.Output("pipeline/y", b.Unary(graph.Exp, b.Input("x", f64(4)))) },
		func(b *graph.Builder) { b.Output("y", b.Unary(graph.Exp, b.Input("pipeline/x", f64(4)))) },
	} {
		g, err := split(graphtest.Built(t, build), 2, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := pipeline.Cut(g, 2, nil); err == nil || !strings.Contains(err.Error(), "names of values that stages") {
			t.Errorf("error %v", err)
		}
	}
}

func linear(b *graph.Builder, x, w *graph.Node) *graph.Node {
	h := b.Named(b.MatMul(x, w, false, false), "h")
	k := b.Named(b.Unary(graph.Tanh, h), "k")
	return b.MatMul(k, w, false, true)
}

// TestState refuses a state of a batch, such as a cache of keys: each microbatch would have a part of it.
func TestState(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		x, s := b.Input("x", f64(4, 2)), b.State("cache", f64(4, 2))
		y := b.Binary(graph.Add, x, s)
		b.Output("y", y)
		b.Update(s, y)
	})
	whole, err := split(g, 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pipeline.Cut(whole, 2, nil); err == nil || !strings.Contains(err.Error(), `state "cache"`) {
		t.Errorf("error %v", err)
	}
}
