package nn_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"fusec"
	"fusec/graph"
	"fusec/graph/nn"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// A naiveRouting is a routing by the definition, of logits [t, e] as rows.
type naiveRouting struct {
	t, e         int
	softmax      []float64
	chosen, sent []bool
	dropped      int
}

// ranked lists 0 to n−1 from the largest score to the smallest.
func ranked(n int, score func(int) float64) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		if score(i) > score(j) {
			return -1
		}
		return 1
	})
	return order
}

func naive(logits []float64, e int, o nn.RouteOptions) *naiveRouting {
	t := len(logits) / e
	r := &naiveRouting{t: t, e: e, softmax: make([]float64, t*e), chosen: make([]bool, t*e), sent: make([]bool, t*e)}
	all := make([]bool, t*e)
	for i := range all {
		all[i] = true
	}
	r.softmax = r.softmaxOver(logits, all)
	capacity := int(math.Ceil(max(o.Capacity, 0) * float64(o.K) * float64(t) / float64(e)))
	if o.ExpertChoice {
		if o.Capacity == 0 {
			capacity = int(math.Ceil(float64(o.K) * float64(t) / float64(e)))
		}
		for i := range e {
			for _, at := range ranked(t, func(j int) float64 { return r.softmax[j*e+i] })[:min(capacity, t)] {
				r.chosen[at*e+i], r.sent[at*e+i] = true, true
			}
		}
		for at := range t {
			if !slices.Contains(r.sent[at*e:][:e], true) {
				r.dropped++
			}
		}
		return r
	}
	load := make([]int, e)
	for k := range o.K {
		for at := range t {
			i := ranked(e, func(j int) float64 { return logits[at*e+j] })[k]
			r.chosen[at*e+i] = true
			if capacity > 0 && load[i] == capacity {
				r.dropped++
				continue
			}
			load[i]++
			r.sent[at*e+i] = true
		}
	}
	return r
}

// softmaxOver is the softmax of each row over the elements where keep is true, zero elsewhere.
func (r *naiveRouting) softmaxOver(logits []float64, keep []bool) []float64 {
	p := make([]float64, len(logits))
	for at := range r.t {
		sum := 0.0
		for i := at * r.e; i < (at+1)*r.e; i++ {
			if keep[i] {
				p[i] = math.Exp(logits[i])
				sum += p[i]
			}
		}
		for i := at * r.e; i < (at+1)*r.e && sum > 0; i++ {
			p[i] /= sum
		}
	}
	return p
}

func (r *naiveRouting) gates(logits []float64, of nn.Gate) []float64 {
	g := slices.Clone(r.softmax)
	if of == nn.GateOfChosen {
		g = r.softmaxOver(logits, r.chosen)
	}
	for i, s := range r.sent {
		if !s {
			g[i] = 0
		}
	}
	return g
}

// perExpert counts where which is true for each expert.
func (r *naiveRouting) perExpert(which []bool) []float64 {
	n := make([]float64, r.e)
	for i, b := range which {
		if b {
			n[i%r.e]++
		}
	}
	return n
}

func (r *naiveRouting) loadBalance() float64 {
	all, sum := 0.0, 0.0
	f := r.perExpert(r.chosen)
	for _, n := range f {
		all += n
	}
	for i, p := range r.softmax {
		sum += f[i%r.e] / all * p / float64(r.t) * float64(r.e)
	}
	return sum
}

// routings are options to be tried on 7 tokens and 4 experts.
var routings = []nn.RouteOptions{
	{K: 1},
	{K: 2, Gate: nn.GateOfChosen},
	{K: 4},
	{K: 1, Capacity: 1},
	{K: 2, Capacity: 0.8},
	{K: 2, Capacity: 0.8, Gate: nn.GateOfChosen},
	{K: 3, Capacity: 100},
	{K: 1, ExpertChoice: true},
	{K: 2, Capacity: 1.3, ExpertChoice: true, Gate: nn.GateOfChosen},
	{K: 4, Capacity: 2, ExpertChoice: true},
}

func route(t testing.TB, logits *gorgonia.Node, o nn.RouteOptions) *nn.Routing {
	r, err := nn.Route(logits, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// routingExamples go through [TestValues] and [TestGradients].
func routingExamples() []example {
	type (
		node  = *gorgonia.Node
		nodes = gorgonia.Nodes
		s     = []int
	)
	list := []example{
		of("TopK", func(x ...node) (node, error) {
			v, _, err := nn.TopK(x[0], 2)
			return v, err
		}, func(in [][]float64) (y []float64) {
			for row := range slices.Chunk(in[0], 5) {
				for _, i := range ranked(5, func(i int) float64 { return row[i] })[:2] {
					y = append(y, row[i])
				}
			}
			return y
		}, s{2, 3, 5}),
		of("ZLoss", func(x ...node) (node, error) {
			r, err := nn.Route(x[0], nn.RouteOptions{K: 1})
			if err != nil {
				return nil, err
			}
			return r.ZLoss()
		}, func(in [][]float64) []float64 {
			z := 0.0
			for row := range slices.Chunk(in[0], 4) {
				sum := 0.0
				for _, x := range row {
					sum += math.Exp(x)
				}
				z += math.Log(sum) * math.Log(sum) / 6
			}
			return []float64{z}
		}, s{2, 3, 4}),
		{"Router with noise", func(b *net) (node, nodes) {
			r := nn.Router{W: b.in("w", 5, 4), Noise: b.in("noise", 5, 4), Seed: nn.NewSeeds(b.g, 8).Next(),
				Options: nn.RouteOptions{K: 2}}
			x := b.in("x", 2, 3, 5)
			routing, err := r.Forward(x)
			if err != nil {
				panic(err)
			}
			return routing.Gates, append(r.Params(), x)
		}, nil},
	}
	for _, o := range routings {
		list = append(list,
			of(fmt.Sprintf("Gates %+v", o), func(x ...node) (node, error) {
				r, err := nn.Route(x[0], o)
				if err != nil {
					return nil, err
				}
				return r.Gates, nil
			}, func(in [][]float64) []float64 { return naive(in[0], 4, o).gates(in[0], o.Gate) }, s{7, 4}),
			of(fmt.Sprintf("LoadBalance %+v", o), func(x ...node) (node, error) {
				r, err := nn.Route(x[0], o)
				if err != nil {
					return nil, err
				}
				return r.LoadBalance()
			}, func(in [][]float64) []float64 { return []float64{naive(in[0], 4, o).loadBalance()} }, s{7, 1, 4}))
	}
	for _, gated := range []bool{true, false} {
		for _, bias := range []bool{true, false} {
			list = append(list, example{fmt.Sprintf("MoE gated %v bias %v", gated, bias), func(b *net) (node, nodes) {
				e := nn.Experts{W1: b.in("w1", 4, 3, 5), W2: b.in("w2", 4, 5, 2)}
				if gated {
					e.W3 = b.in("w3", 4, 3, 5)
				} else {
					e.Activation = graph.GeluTanh
				}
				if bias {
					e.B1, e.B2 = b.in("b1", 4, 5), b.in("b2", 4, 2)
					if gated {
						e.B3 = b.in("b3", 4, 5)
					}
				}
				x := b.in("x", 2, 3, 3)
				logits := b.in("logits", 2, 3, 4)
				r, err := nn.Route(logits, nn.RouteOptions{K: 2, Capacity: 1})
				if err != nil {
					panic(err)
				}
				return must(nn.MoE(x, r.Gates, e)), append(nodes{x, logits}, e.Params()...)
			}, mixed(gated, bias)})
		}
	}
	return list
}

// mixed is a MoE of 6 tokens of 3 features by 4 experts of 5 hidden features and 2 results, by the definition. Its
// inputs are x, the logits and the weights.
func mixed(gated, bias bool) func(in [][]float64) []float64 {
	return func(in [][]float64) []float64 {
		o := nn.RouteOptions{K: 2, Capacity: 1}
		gates := naive(in[1], 4, o).gates(in[1], o.Gate)
		rest := in[2:]
		next := func(there bool) (w []float64) {
			if there {
				w, rest = rest[0], rest[1:]
			}
			return w
		}
		w1, b1, w3, b3, w2, b2 := next(true), next(bias), next(gated), next(gated && bias), next(true), next(bias)
		y := make([]float64, 6*2)
		for t := range 6 {
			for e := range 4 {
				linear := func(x, w, b []float64, n, m int) []float64 {
					in := [][]float64{x, w[e*n*m:][:n*m]}
					if b != nil {
						in = append(in, b[e*m:][:m])
					}
					return affine(n, m)(in)
				}
				x := in[0][t*3:][:3]
				h := linear(x, w1, b1, 3, 5)
				for i, up := range h {
					if h[i] = silu(up); !gated {
						h[i] = graph.GeluTanh.Eval(up, 0)
					}
				}
				if gated {
					for i, v := range linear(x, w3, b3, 3, 5) {
						h[i] *= v
					}
				}
				for i, v := range linear(h, w2, b2, 5, 2) {
					y[t*2+i] += gates[t*4+e] * v
				}
			}
		}
		return y
	}
}

// TestCounts compares loads, dropped choices and indices with the definition, on both machines.
func TestCounts(t *testing.T) {
	for name, machine := range machines {
		for _, o := range routings {
			b := newNet(tensor.Float32)
			x := b.in("logits", 7, 4)
			r := route(t, x, o)
			load, dropped := must(r.Load()), must(r.Dropped())
			_, at, err := nn.TopK(x, o.K)
			if err != nil {
				t.Fatal(err)
			}
			vm := machine(b.g)
			run(t, vm)
			logits := values(t, x.Value())
			want := naive(logits, 4, o)
			what := fmt.Sprintf("%s, %v: ", name, o)
			agree(t, what+"load", values(t, load.Value()), want.perExpert(want.sent), 0)
			agree(t, what+"dropped", values(t, dropped.Value()), []float64{float64(want.dropped)}, 0)
			var indices []float64
			for row := range slices.Chunk(logits, 4) {
				for _, i := range ranked(4, func(i int) float64 { return row[i] })[:o.K] {
					indices = append(indices, float64(i))
				}
			}
			agree(t, what+"indices", values(t, at.Value()), indices, 0)
			if err := vm.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// layer makes a MoE layer with values that are the same for each machine.
func layer(t testing.TB, b *net, dim, experts, hidden int, o nn.MoEOptions) *nn.MixtureOfExperts {
	t.Helper()
	l, err := nn.NewMoE(b.g, b.d, "moe", dim, experts, hidden, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range l.Params() {
		gorgonia.WithValue(b.in("", w.Shape()...).Value())(w)
	}
	return l
}

// TestMoETraining compares a layer's gradients, with noise and both losses in the cost, on both machines and with
// differences; and what the layer tells, for three runs that draw different noise.
func TestMoETraining(t *testing.T) {
	first := map[string][]float64{}
	for name, machine := range machines {
		b := newNet(tensor.Float64)
		x := b.in("x", 2, 5, 3)
		l := layer(t, b, 3, 4, 6, nn.MoEOptions{Route: nn.RouteOptions{K: 2, Capacity: 1, Gate: nn.GateOfChosen},
			NoiseSeed: nn.NewSeeds(b.g, 11).Next(), Bias: true})
		y, r, err := l.Forward(x)
		if err != nil {
			t.Fatal(err)
		}
		cost := must(gorgonia.Add(b.cost(y), must(r.LoadBalance())))
		cost = must(gorgonia.Add(cost, must(r.ZLoss())))
		var load, dropped gorgonia.Value
		gorgonia.Read(must(r.Load()), &load)
		gorgonia.Read(must(r.Dropped()), &dropped)
		weights := append(l.Params(), x)
		if len(weights) != 9 {
			t.Errorf("%d weights, want 8", len(weights)-1)
		}
		if _, err := gorgonia.Grad(cost, weights...); err != nil {
			t.Fatal(err)
		}
		by := map[*gorgonia.Node][]float64{}
		for _, w := range weights {
			by[w] = differences(t, b.g, cost, w)
		}
		vm := machine(b.g, gorgonia.BindDualValues(weights...))
		for i := range 3 {
			run(t, vm)
			agreeFirst(t, first, fmt.Sprint("cost ", i), values(t, cost.Value()))
			agreeFirst(t, first, fmt.Sprint("load ", i), values(t, load))
			agreeFirst(t, first, fmt.Sprint("dropped ", i), values(t, dropped))
			for _, w := range weights {
				g, err := w.Grad()
				if err != nil {
					t.Fatal(err)
				}
				agreeFirst(t, first, fmt.Sprint("gradient of ", w.Name(), i), values(t, g))
				if i == 0 {
					agree(t, name+", by differences, of "+w.Name(), values(t, g), by[w], 1e-6)
				}
			}
			vm.Reset()
		}
		if slices.Equal(first["cost 0"], first["cost 1"]) {
			t.Error("the noise of two runs is the same")
		}
		if err := vm.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestMoEEvaluation draws no noise in evaluation.
func TestMoEEvaluation(t *testing.T) {
	for name, machine := range machines {
		b := newNet(tensor.Float32)
		x := b.in("x", 6, 3)
		r := nn.Router{W: b.in("w", 3, 4), Noise: b.in("noise", 3, 4), Seed: b.int("seed", 5),
			Options: nn.RouteOptions{K: 1}}
		routing, err := r.Forward(x)
		if err != nil {
			t.Fatal(err)
		}
		plain := must(nn.Linear(x, r.W, nil))
		var got gorgonia.Value
		gorgonia.Read(routing.Logits, &got)
		vm := machine(b.g, gorgonia.EvalMode())
		run(t, vm)
		agree(t, name, values(t, got), values(t, plain.Value()), 1e-6)
		if err := vm.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestMoELaunches requires a layer to be four launches, one of them the mixture, and no launches for unused values.
func TestMoELaunches(t *testing.T) {
	for _, c := range []struct {
		o    nn.RouteOptions
		topK int
		want []string
	}{
		{nn.RouteOptions{K: 2}, 2, []string{"linear", "route", "softmax", "moe"}},
		{nn.RouteOptions{K: 1, Gate: nn.GateOfChosen}, 1, []string{"linear", "route", "softmax", "moe"}},
		{nn.RouteOptions{K: 2, Capacity: 1.25}, 2, []string{"linear", "route", "softmax", "moe"}},
		{nn.RouteOptions{K: 2, ExpertChoice: true}, 0, []string{"linear", "softmax", "route", "elementwise", "moe"}},
	} {
		b := newNet(tensor.Float32)
		l := layer(t, b, 16, 8, 32, nn.MoEOptions{Route: c.o})
		if _, _, err := l.Forward(b.in("x", 64, 16)); err != nil {
			t.Fatal(err)
		}
		m := fusec.NewMachine(b.g)
		run(t, m)
		if k := kinds(m); !slices.Equal(k, c.want) {
			t.Errorf("%+v: launches %v, want %v", c.o, k, c.want)
		}
		for _, launch := range m.Program().Lowered().Launches {
			op, ok := launch.Op.(graph.MoE)
			if f, fused := launch.Op.(graph.Fusion); fused && f.Kind == graph.KindMoE {
				for _, n := range f.Body.Nodes {
					if o, is := n.Op.(graph.MoE); is {
						op, ok = o, true
					}
				}
			}
			want := graph.MoE{Experts: 8, Activation: graph.Silu, Gated: true, Stacked: true, TopK: c.topK, Exact: c.topK > 0}
			if ok && op != want {
				t.Errorf("%+v: the operation is %+v, want %+v", c.o, op, want)
			}
		}
		n := testing.AllocsPerRun(10, func() {
			m.Reset()
			if err := m.RunAll(); err != nil {
				t.Error(err)
			}
		})
		if n > 0 {
			t.Errorf("%+v: %v allocations per run", c.o, n)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestMoEErrors requires errors to name what does not fit.
func TestMoEErrors(t *testing.T) {
	b := newNet(tensor.Float32)
	x, logits, i := b.in("x", 5, 3), b.in("logits", 5, 4), b.ints("i", 1, 2)
	scored := func(r nn.Router) error {
		r.Options.K = 1
		return second(r.Forward(x))
	}
	w1, w2 := b.in("w1", 4, 3, 6), b.in("w2", 4, 6, 3)
	gates := route(t, logits, nn.RouteOptions{K: 2}).Gates
	routed := func(x *gorgonia.Node, o nn.RouteOptions) error { return second(nn.Route(x, o)) }
	made := func(dim, experts, hidden int, d tensor.Dtype, k int) error {
		o := nn.MoEOptions{Route: nn.RouteOptions{K: k}}
		return second(nn.NewMoE(b.g, d, "layer", dim, experts, hidden, o))
	}
	topK := func(k int) error {
		_, _, err := nn.TopK(x, k)
		return err
	}
	for _, c := range []struct {
		err  error
		want []string
	}{
		{topK(4), []string{"TopK(4)", "x", "k = 4 is outside 0..3"}},
		{topK(-1), []string{"TopK(-1)", "outside"}},
		{routed(nil, nn.RouteOptions{K: 1}), []string{"Gates(top 1)", "logits is nil"}},
		{routed(i, nn.RouteOptions{K: 1}), []string{"logits = i", "want floats [..., e]"}},
		{routed(logits, nn.RouteOptions{}), []string{"0 experts for each token, of 4"}},
		{routed(logits, nn.RouteOptions{K: 5, ExpertChoice: true}), []string{"choice by experts", "5 experts"}},
		{routed(logits, nn.RouteOptions{K: 1, Capacity: -1}), []string{"capacity -1 is not a factor"}},
		{routed(logits, nn.RouteOptions{K: 1, Capacity: math.NaN()}), []string{"capacity NaN is not a factor"}},
		{routed(logits, nn.RouteOptions{K: 1, Gate: 7}), []string{"gate 7 is not known"}},
		{scored(nn.Router{W: w1}), []string{"Router", "w = w1", "want x [..., in]"}},
		{scored(nn.Router{W: b.in("w", 3, 4), Noise: b.in("noise", 3, 4)}), []string{"Router", "seed is nil"}},
		{second(nn.MoE(x, nil, nn.Experts{W1: w1, W2: w2})), []string{"MoE(0)", "gates is nil"}},
		{second(nn.MoE(x, gates, nn.Experts{W1: w1})), []string{"MoE(top 2 of 4)", "w2 is nil"}},
		{second(nn.MoE(x, gates, nn.Experts{W1: w1, W2: w2, B2: b.in("b2", 4, 3)})), []string{"b1 is nil"}},
		{second(nn.MoE(x, gates, nn.Experts{W1: w1, W2: w2, B3: b.in("b3", 4, 6)})), []string{"a b3 without a w3"}},
		{second(nn.MoE(x, gates, nn.Experts{W1: w2, W2: w1})),
			[]string{"w1 of all experts is f32[4,6,3], not f32[4,3,3]"}},
		{second(nn.MoE(logits, x, nn.Experts{W1: w1, W2: w2})), []string{"MoE(3)", "gates"}},
		{made(3, 4, 6, tensor.Int, 1), []string{"MoE layer", "not int"}},
		{made(3, 4, 0, tensor.Float32, 1), []string{"MoE layer", "0 hidden features"}},
		{made(3, 4, 6, tensor.Float32, 5), []string{"5 experts for each token, of 4"}},
	} {
		for _, w := range c.want {
			if !strings.Contains(fmt.Sprint(c.err), w) {
				t.Errorf("error %q does not say %q", fmt.Sprint(c.err), w)
			}
		}
	}
}
