package fusec_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/optim"
	"fusec/kernels/group"
)

// network is two layers with a loss, on a batch of 8.
func network(t testing.TB) *graph.Graph {
	return graphtest.Built(t, func(b *graph.Builder) {
		f := func(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }
		x, y := b.Input("x", f(8, 12)), b.Input("y", f(8, 4))
		w1, b1, w2, b2 := b.Param("w1", f(12, 16)), b.Param("b1", f(16)), b.Param("w2", f(16, 4)), b.Param("b2", f(4))
		h := b.MatMul(x, w1, false, false)
		h = b.Unary(graph.GeluTanh, b.Binary(graph.Add, h, b.Broadcast(b1, h.Type.Shape)))
		p := b.MatMul(h, w2, false, false)
		p = b.Add(graph.LogSoftmax{Axis: 1}, b.Binary(graph.Add, p, b.Broadcast(b2, p.Type.Shape)))
		cost := b.Unary(graph.Neg, b.Reduce(graph.Mean, b.Binary(graph.Mul, p, y), false, 0, 1))
		b.Output("cost", cost)
	})
}

// together compiles a graph for each participant of a group, and calls f for each in a goroutine of its own.
func together(t testing.TB, g *graph.Graph, n int, opts []fusec.CompileOption, f func(p *fusec.Program) error) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for r, transport := range group.Local(n, 2*time.Minute) {
		all.Go(func() {
			mine := append([]fusec.CompileOption{fusec.WithGroup(group.New(transport)), fusec.WithWorkers(1), fusec.WithVerify()}, opts...)
			p, err := fusec.Compile(g, mine...)
			if err != nil {
				errs[r] = err
				return
			}
			defer p.Close()
			errs[r] = f(p)
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// groupRun is what some steps of AdamW make of the network's weights, and the costs on the way.
type groupRun struct {
	costs   []float64
	weights map[string]*graph.Tensor
}

func trainGroup(p *fusec.Program, steps int) (groupRun, error) {
	r := rand.New(rand.NewPCG(7, 8))
	out := groupRun{weights: map[string]*graph.Tensor{}}
	dims := map[string][]int{"w1": {12, 16}, "b1": {16}, "w2": {16, 4}, "b2": {4}}
	for _, name := range []string{"w1", "b1", "w2", "b2"} {
		if err := p.Set(name, graphtest.Tensor(r, graph.TypeOf(graph.F32, dims[name]...))); err != nil {
			return out, err
		}
	}
	for range steps {
		in := map[string]*graph.Tensor{"x": graphtest.Tensor(r, graph.TypeOf(graph.F32, 8, 12)),
			"y": graph.NewTensor(graph.TypeOf(graph.F32, 8, 4))}
		for i := range 8 {
			in["y"].SetFloat(4*i+r.IntN(4), 1)
		}
		got, err := p.Run(in)
		if err != nil {
			return out, err
		}
		out.costs = append(out.costs, got["cost"].Float(0))
	}
	for _, name := range []string{"w1", "b1", "w2", "b2"} {
		w, err := p.Whole(name) // which all call in the same order
		if err != nil {
			return out, err
		}
		out.weights[name] = w
	}
	return out, nil
}

// TestGroupTrains compares training in a group, in every way of splitting, with training alone.
func TestGroupTrains(t *testing.T) {
	for name, target := range map[string]fusec.CompileOption{"cpu": fusec.WithTarget("cpu"), "cuda": emulated(t)} {
		t.Run(name, func(t *testing.T) { groupTrains(t, target, name == "cuda") })
	}
}

// devices names some processors, or GPUs.
func devices(n int, gpus bool) fusec.CompileOption {
	names := slices.Repeat([]string{"cpu"}, n)
	for i := range names {
		if gpus {
			names[i] = fmt.Sprintf("cuda:%d", i)
		}
	}
	return fusec.CompileOption(fusec.WithDevices(names...))
}

// groupTrains trains on a target; some only in a few ways of splitting.
func groupTrains(t *testing.T, target fusec.CompileOption, some bool) {
	g := network(t)
	adam := fusec.WithOptimizer(&optim.Optimizer{Rule: optim.AdamW{}, Rate: optim.Constant(1e-2), Clip: 0.1})
	alone, err := fusec.Compile(g, fusec.CompileOption(adam), target)
	if err != nil {
		t.Fatal(err)
	}
	defer alone.Close()
	want, err := trainGroup(alone, 5)
	if err != nil {
		t.Fatal(err)
	}
	columns, rows := fusec.WithSplit("w1", "", "tensor"), fusec.WithSplit("w2", "tensor", "")
	for _, c := range []struct {
		name string
		n    int
		opts []fusec.CompileOption
		has  string // a collective operation
	}{
		{"data", 2, nil, "all_reduce"},
		{"data of 4", 4, nil, "all_reduce"},
		{"ZeRO 1", 2, []fusec.CompileOption{fusec.WithZeRO(1)}, "reduce_scatter"},
		{"ZeRO 3", 4, []fusec.CompileOption{fusec.WithZeRO(3)}, "all_gather"},
		{"tensor", 2, []fusec.CompileOption{fusec.WithMesh("tensor=2"), columns, rows, fusec.WithSplit("x", "", "")}, "all_reduce"},
		{"data and tensor", 4, []fusec.CompileOption{fusec.WithMesh("data=2,tensor=2"), columns, rows}, "all_reduce"},
		{"data and tensor, ZeRO 1", 8, []fusec.CompileOption{fusec.WithMesh("data=4,tensor=2"), columns, rows, fusec.WithZeRO(1)},
			"reduce_scatter"},
		{"one", 1, nil, ""},
	} {
		if some && c.name != "data" && c.name != "ZeRO 3" && c.name != "data and tensor, ZeRO 1" {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			var got [2][]groupRun
			for run := range got {
				got[run] = make([]groupRun, c.n)
				var lock sync.Mutex
				next := 0
				err := together(t, g, c.n, append(c.opts, fusec.CompileOption(adam), target), func(p *fusec.Program) error {
					if c.has != "" && !strings.Contains(p.Lowered().String(), c.has) {
						return fmt.Errorf("no %s in\n%v", c.has, p.Lowered())
					}
					r, err := trainGroup(p, 5)
					lock.Lock()
					defer lock.Unlock()
					got[run][next] = r
					next++
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			p, err := fusec.Compile(g, append(c.opts, fusec.CompileOption(adam), target, devices(c.n, some))...)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			inOne, err := trainGroup(p, 5)
			if err != nil {
				t.Fatal(err)
			}
			got[1] = append(got[1], inOne)
			for run := range got {
				for _, r := range got[run] {
					for i, cost := range r.costs {
						if d := cost - want.costs[i]; d > 1e-5 || d < -1e-5 {
							t.Errorf("cost %d is %v, alone %v", i, cost, want.costs[i])
						}
						if cost != got[0][0].costs[i] {
							t.Errorf("cost %d is %v, on another participant or in another run %v", i, cost, got[0][0].costs[i])
						}
					}
					for name, w := range want.weights {
						if !r.weights[name].Equal(got[0][0].weights[name]) {
							t.Errorf("%s differs between participants or runs", name)
						}
						for i := range w.Type.Shape.Elems() {
							if d := r.weights[name].Float(i) - w.Float(i); d > 2e-4 || d < -2e-4 {
								t.Fatalf("%s[%d] is %v, alone %v", name, i, r.weights[name].Float(i), w.Float(i))
							}
						}
					}
				}
			}
		})
	}
}

// TestRoundedGradients compares gradients that participants exchange in bf16 with the sum of what each has: they are within the
// stated bound, and those of few elements are not rounded.
func TestRoundedGradients(t *testing.T) {
	const rows, width, n = 512, 128, 2
	graphOf := func(rows int) *graph.Graph {
		return graphtest.Built(t, func(b *graph.Builder) {
			x, w := b.Input("x", graph.TypeOf(graph.F32, rows, width)), b.Param("w", graph.TypeOf(graph.F32, width, width))
			y := b.MatMul(x, w, false, false)
			y = b.Binary(graph.Add, y, b.Broadcast(b.Param("b", graph.TypeOf(graph.F32, width)), y.Type.Shape))
			b.Output("cost", b.Reduce(graph.Sum, b.Unary(graph.Square, y), false, 0, 1))
		})
	}
	r := rand.New(rand.NewPCG(8, 1))
	x := graphtest.Tensor(r, graph.TypeOf(graph.F32, rows, width))
	weights := graphtest.Weights(r, graphOf(rows))
	// gradients are what the first step subtracts.
	gradients := func(x *graph.Tensor, opts ...fusec.CompileOption) map[string][]float64 {
		g := graphOf(x.Type.Shape.At(0))
		step := fusec.WithOptimizer(&optim.Optimizer{Rule: optim.Momentum{Mu: 0.9}, Rate: optim.Constant(1)})
		p, err := fusec.Compile(g, append(opts, fusec.CompileOption(step))...)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		for name, w := range weights {
			if err := p.Set(name, w.Clone()); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := p.Run(map[string]*graph.Tensor{"x": x}); err != nil {
			t.Fatal(err)
		}
		list := map[string][]float64{}
		for name, w := range weights {
			next, err := p.State(name)
			if err != nil {
				t.Fatal(err)
			}
			for i := range w.Type.Shape.Elems() {
				list[name] = append(list[name], w.Float(i)-next.Float(i))
			}
		}
		return list
	}
	var terms []map[string][]float64
	for k := range n {
		part := graph.NewTensor(graph.TypeOf(graph.F32, rows/n, width))
		copy(part.Bytes(), x.Bytes()[k*len(part.Bytes()):])
		terms = append(terms, gradients(part, fusec.WithTarget("cpu")))
	}
	for name, opts := range map[string][]fusec.CompileOption{"cpu": {devices(n, false)}, "cuda": {emulated(t), devices(n, true)}} {
		for _, zero := range []int{0, 1} {
			opts := append(slices.Clone(opts), fusec.WithRoundedGradients())
			if zero > 0 {
				opts = append(opts, fusec.WithZeRO(zero))
			}
			got, most := gradients(x, opts...), 0.0
			for w, list := range got {
				for i, v := range list {
					sum, size := 0.0, 0.0
					for _, t := range terms {
						sum, size = sum+t[w][i], size+math.Abs(t[w][i])
					}
					off := math.Abs(v-sum) / size
					if bound := map[string]float64{"w": n / 256.0, "b": 1e-4}[w]; off > bound+1e-4 {
						t.Fatalf("%s, ZeRO %d: the gradient of %s[%d] is %g, not %g", name, zero, w, i, v, sum)
					}
					most = max(most, off)
				}
			}
			if most < 1.0/1024 {
				t.Errorf("%s, ZeRO %d: gradients are not rounded", name, zero)
			}
		}
	}
}

// trainSplit gives the costs of some steps of training on values of x, from drawn parameters, and the program.
func trainSplit(t *testing.T, g *graph.Graph, steps int, opts ...fusec.CompileOption) (costs []float64, p *fusec.Program) {
	t.Helper()
	opts = append(opts, fusec.CompileOption(fusec.WithOptimizer(&optim.Optimizer{Rule: optim.AdamW{}, Rate: optim.Constant(1e-2)})))
	p, err := fusec.Compile(g, append(opts, fusec.CompileOption(fusec.WithVerify()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	r := rand.New(rand.NewPCG(3, 1))
	for name, w := range graphtest.Weights(r, g) {
		if err := p.Set(name, w); err != nil {
			t.Fatal(err)
		}
	}
	for range steps {
		out, err := p.Run(map[string]*graph.Tensor{"x": graphtest.Tensor(r, g.Lookup("x").Type)})
		if err != nil {
			t.Fatal(err)
		}
		costs = append(costs, out["cost"].Float(0))
	}
	return costs, p
}

// TestSequence trains a causal attention with rotary positions, whose sequence is split, as one participant does.
func TestSequence(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		f := func(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }
		const batch, length, heads, depth = 2, 24, 2, 8
		x := b.Input("x", f(batch, length, heads*depth))
		x = b.Binary(graph.Add, x, b.Broadcast(b.Param("place", f(1, length, heads*depth)), x.Type.Shape))
		part := func(name string, heads int) *graph.Node {
			y := b.MatMul(x, b.Param(name, f(x.Type.Shape.At(2), heads*depth)), false, false)
			return b.Transpose(b.Reshape(y, batch, length, heads, depth), 0, 2, 1, 3)
		}
		turned := func(y *graph.Node) *graph.Node { return b.Add(graph.RoPE{Base: 1000}, y, b.Scalar(graph.I64, 0)) }
		y := b.Add(graph.Attention{Scale: 0.35, Causal: true}, turned(part("wq", heads)), turned(part("wk", 1)), part("wv", 1))
		y = b.Reshape(b.Transpose(y, 0, 2, 1, 3), batch, length, heads*depth)
		y = b.Binary(graph.Add, x, b.MatMul(y, b.Param("wo", f(heads*depth, heads*depth)), false, false))
		b.Output("cost", b.Reduce(graph.Mean, b.Unary(graph.Square, b.BinaryScalar(graph.Sub, y, 0.5)), false, 0, 1, 2))
	})
	want, _ := trainSplit(t, g, 4)
	split := fusec.WithSplit("x", "data", "sequence", "")
	for _, c := range []struct {
		mesh string
		gpus bool
	}{{"data=1,sequence=2", false}, {"data=1,sequence=4", false}, {"data=2,sequence=4", false}, {"data=1,sequence=8", false},
		{"data=1,sequence=3", true}} {
		mesh, err := graph.ParseMesh(c.mesh)
		if err != nil {
			t.Fatal(err)
		}
		opts := []fusec.CompileOption{fusec.WithMesh(c.mesh), split, devices(mesh.Size(), c.gpus)}
		if c.gpus {
			opts = append(opts, emulated(t), devices(mesh.Size(), c.gpus))
		}
		got, p := trainSplit(t, g, 4, opts...)
		sameFloats(t, c.mesh, got, want, 1e-4)
		text := p.Lowered().String() // of moments that are split like the positions, new weights are gathered
		if gathers := strings.Count(text, "all_gather"); !strings.Contains(text, "permute") || gathers > 1 {
			t.Errorf("%s: keys do not go around, or %d values are gathered:\n%s", c.mesh, gathers, text)
		}
	}
}

// TestExperts trains a mixture of experts, whose tokens cross to the experts of other participants and back, as one participant
// does.
func TestExperts(t *testing.T) {
	const tokens, width, hidden, experts = 128, 6, 32, 8
	g := graphtest.Built(t, func(b *graph.Builder) {
		f := func(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }
		x := b.Input("x", f(tokens, width))
		x = b.Unary(graph.Tanh, b.MatMul(x, b.Param("in", f(width, width)), false, false))
		scores := b.Add(graph.Softmax{Axis: 1}, b.MatMul(x, b.Param("router", f(width, experts)), false, false))
		gates := b.Add(graph.Select{}, b.Add(graph.Route{K: 2}, scores), scores, b.Scalar(graph.F32, 0))
		y := b.Add(graph.MoE{Experts: experts, Activation: graph.GeluErf, Stacked: true, TopK: 2}, x, gates,
			b.Param("up", f(experts, width, hidden)), b.Param("down", f(experts, hidden, width)))
		b.Output("cost", b.Reduce(graph.Mean, b.Unary(graph.Square, b.Binary(graph.Sub, b.Binary(graph.Add, x, y), b.Broadcast(
			b.Scalar(graph.F32, 0.5), y.Type.Shape))), false, 0, 1))
	})
	want, _ := trainSplit(t, g, 3)
	for _, c := range []struct {
		mesh, tokens string
		gpus         bool
	}{{"expert=2", "expert", false}, {"data=2,expert=2", "data+expert", false}, {"expert=4", "expert", false},
		{"data=2,expert=4", "data+expert", false}, {"expert=2", "expert", true}} {
		mesh, err := graph.ParseMesh(c.mesh)
		if err != nil {
			t.Fatal(err)
		}
		opts := []fusec.CompileOption{fusec.WithMesh(c.mesh), fusec.WithSplit("x", c.tokens, ""), fusec.WithSplit("up", "expert", "", ""),
			fusec.WithSplit("down", "expert", "", "")}
		if c.gpus {
			opts = append(opts, emulated(t))
		}
		got, p := trainSplit(t, g, 3, append(opts, devices(mesh.Size(), c.gpus))...)
		sameFloats(t, c.mesh, got, want, 1e-4)
		if text := p.Lowered().String(); !strings.Contains(text, "permute") {
			t.Errorf("%s: no tokens cross:\n%s", c.mesh, text)
		}
	}
}

// TestGroupFails ends the run of all with the error of one.
func TestGroupFails(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		i := b.Input("i", graph.TypeOf(graph.I64, 2))
		x := b.Add(graph.Gather{Axis: 0}, b.Input("x", graph.TypeOf(graph.F32, 3)), i)
		b.Output("y", b.Reduce(graph.Sum, x, false, 0))
	})
	errs := make(chan error, 2)
	err := together(t, g, 2, []fusec.CompileOption{fusec.WithSplit("i", "data")}, func(p *fusec.Program) error {
		i := graph.NewTensor(graph.TypeOf(graph.I64, 2))
		i.SetInt(1, 5)
		_, err := p.Run(map[string]*graph.Tensor{"x": graph.NewTensor(graph.TypeOf(graph.F32, 3)), "i": i})
		errs <- err
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	a, b := <-errs, <-errs
	text := fmt.Sprint(a, "\n", b)
	if a == nil || b == nil || !strings.Contains(text, "participant 1 is lost") || !strings.Contains(text, "gather") {
		t.Errorf("errors %v and %v", a, b)
	}
}

// TestPiece says where a participant's part of a value lies, and which values have one.
func TestPiece(t *testing.T) {
	g := network(t)
	adam := fusec.CompileOption(fusec.WithOptimizer(&optim.Optimizer{Rule: optim.AdamW{}, Rate: optim.Constant(1e-2)}))
	look := func(p *fusec.Program, rows int) error {
		w := graph.NewTensor(graph.TypeOf(graph.F32, 12, 16))
		if err := p.Set("w1", w); err != nil {
			return err
		}
		part, err := p.State("w1")
		if err != nil {
			return err
		}
		for _, tensor := range []*graph.Tensor{part, nil} {
			piece, err := p.Piece("w1", tensor)
			if err != nil {
				return err
			}
			if piece.Whole != w.Type.Shape || piece.Type.Shape != graph.ShapeOf(rows, 16) || piece.Copies != 1 || piece.At[0]%rows != 0 {
				return fmt.Errorf("a piece of shape %v at %v, one of %d", piece.Type.Shape, piece.At, piece.Copies)
			}
		}
		for _, name := range []string{"x", "w3"} {
			if _, err := p.Piece(name, nil); err == nil || !strings.Contains(err.Error(), "has no parameter or state") {
				return fmt.Errorf("error %v of %s", err, name)
			}
		}
		_, err = p.Piece("w1", graph.NewTensor(graph.TypeOf(graph.F32, 1, 16)))
		if err == nil || !strings.Contains(err.Error(), "\"w1\"") {
			return fmt.Errorf("error %v of a part of another type", err)
		}
		return nil
	}
	opts := []fusec.CompileOption{adam, fusec.WithZeRO(3)}
	if err := together(t, g, 2, opts, func(p *fusec.Program) error { return look(p, 6) }); err != nil {
		t.Error(err)
	}
	p, err := fusec.Compile(g, adam, fusec.WithZeRO(3), devices(2, false))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := look(p, 12); err != nil {
		t.Error(err)
	}
}

// TestMeshRefused names what does not fit.
func TestMeshRefused(t *testing.T) {
	g := network(t)
	two := fusec.WithGroup(group.New(group.Local(2, 0)[0]))
	for want, opts := range map[string][]fusec.CompileOption{
		"the mesh \"data=3\" has 3 participants, and the group 2": {two, fusec.WithMesh("data=3")},
		"WithMesh: mesh \"data\": want axes":                      {fusec.WithMesh("data")},
		"the group is nil":                                        {fusec.WithGroup(nil)},
		"WithSplit(\"v\"): the graph has no input":                {two, fusec.WithSplit("v", "data")},
		"has no axis \"rows\"":                                    {two, fusec.WithSplit("w1", "rows", "")},
		"1 axes for a value of type f32[12,16]":                   {two, fusec.WithSplit("w1", "data")},
		"is given twice":                                          {two, fusec.WithSplit("b1", "data"), fusec.WithSplit("b1", "")},
		"want a stage from 1 to 3":                                {two, fusec.WithZeRO(4)},
		"are for a program on a mesh":                             {fusec.WithZeRO(1)},
		"WithRoundedGradients are for a program on":               {fusec.WithRoundedGradients()},
		"runs in a group: give WithGroup":                         {fusec.WithMesh("data=2")},
		"target \"ref\" runs programs alone":                      {two, fusec.CompileOption(fusec.WithTarget("ref"))},
		"target \"fpga\" runs programs alone":                     {fusec.CompileOption(fusec.WithTarget("fpga,fpga"))},
		"0 devices, want 1 to 256":                                {fusec.CompileOption(fusec.WithDevices())},
		"\"cpu\" and \"cuda:0\" are of different targets":         {fusec.CompileOption(fusec.WithDevices("cpu", "cuda:0"))},
		"\"cuda:1\" is given twice":                               {fusec.CompileOption(fusec.WithDevices("cuda:1", "cuda:1"))},
		"target \"cpu:1\" is not known":                           {fusec.CompileOption(fusec.WithDevices("cpu", "cpu:1"))},
		"both given":                                              {two, devices(2, false)},
		"has 3 participants, and WithDevices 2":                   {fusec.WithMesh("data=3"), devices(2, false)},
		"compare programs that run alone":                         {devices(2, false), fusec.CompileOption(fusec.WithShadow(1))},
	} {
		if _, err := fusec.Compile(g, opts...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if _, p, err := fusec.Plan(g, fusec.WithMesh("data=2")); err != nil || p.Mesh.Size() != 2 {
		t.Errorf("planning for a mesh: %v", err)
	}
}

// trainedMachine is the costs of some steps of a Gorgonia graph on batches of some samples, whose values change in place, and the
// weights at the end. Its machine changes the weights itself if own, else a solver of Gorgonia's does.
func trainedMachine(t testing.TB, samples int, own bool, opts ...gorgonia.VMOpt) (got [][]float64, m *fusec.Machine) {
	b := newNet(tensor.Float64)
	x := b.node("x", samples, 5)
	h, w1, b1 := b.linear("first", x, 5, 8)
	y, w2, b2 := b.linear("second", must(gorgonia.Tanh(h)), 8, 4)
	cost := must(gorgonia.Mean(must(gorgonia.Square(y))))
	wrt := gorgonia.Nodes{w1, b1, w2, b2}
	if _, err := gorgonia.Grad(cost, wrt...); err != nil {
		t.Error(err)
		return nil, nil
	}
	if own {
		opts = append(opts, fusec.WithOptimizer(&optim.Optimizer{Rule: optim.AdamW{}, Rate: optim.Constant(0.01)}))
	} else {
		opts = append(opts, gorgonia.BindDualValues(wrt...))
	}
	m = fusec.NewMachine(b.g, opts...)
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}()
	solver := gorgonia.NewVanillaSolver(gorgonia.WithLearnRate(0.1))
	batch := b.value(0, 1, samples, 5)
	gorgonia.WithValue(batch)(x)
	for step := range 4 {
		batch.Float64s()[0] = float64(step)
		if step == 2 && own { // a weight that the user changes
			if err := m.Sync(); err != nil {
				t.Error(err)
			}
			w1.Value().Data().([]float64)[3] = 0.25
		}
		if step == 3 { // another value
			gorgonia.WithValue(b.value(0, 1, samples, 5))(x)
		}
		m.Reset()
		if err := m.RunAll(); err != nil {
			t.Errorf("step %d: %v", step, err)
			return nil, m
		}
		if !own {
			if err := solver.Step(gorgonia.NodesToValueGrads(wrt)); err != nil {
				t.Error(err)
			}
		}
		got = append(got, []float64{cost.Value().Data().(float64)})
	}
	if err := m.Sync(); err != nil {
		t.Error(err)
	}
	for _, n := range wrt {
		got = append(got, slices.Clone(n.Value().Data().([]float64)))
	}
	return got, m
}

// TestDevicesMachine trains a Gorgonia graph on several devices, and in a group, as on one, with an optimiser and with a solver of
// Gorgonia's. Batches that cannot be split evenly are whole on each.
func TestDevicesMachine(t *testing.T) {
	three := []gorgonia.VMOpt{fusec.WithDevices("cpu", "cpu", "cpu"), fusec.WithVerify()}
	for _, own := range []bool{true, false} {
		for _, samples := range []int{6, 7, 1} {
			want, _ := trainedMachine(t, samples, own)
			compare := func(on string, got [][]float64, m *fusec.Machine) {
				t.Helper()
				if len(got) != len(want) {
					t.Fatalf("%s: %d results", on, len(got))
				}
				for i, w := range want {
					sameFloats(t, on, got[i], w, 1e-6)
				}
				program := fmt.Sprint(m.Program().Lowered())
				whole := strings.Contains(fmt.Sprint(m.Trace().Stages), "nothing is split: each participant computes everything")
				if even := samples == 6; strings.Contains(program, "all_reduce") != even || whole == even {
					t.Errorf("%s: %d samples are split or not: %v\n%s", on, samples, whole, program)
				}
			}
			got, m := trainedMachine(t, samples, own, three...)
			compare("processors", got, m)
			if samples == 6 {
				got, m = trainedMachine(t, samples, own, emulated(t), fusec.WithDevices("cuda:0", "cuda:1"))
				compare("GPUs", got, m)
			}
			var all sync.WaitGroup
			const n = 2
			results, machines := make([][][]float64, n), make([]*fusec.Machine, n)
			for r, transport := range group.Local(n, 2*time.Minute) {
				all.Go(func() {
					g := group.New(transport)
					if results[r], machines[r] = trainedMachine(t, samples, own, fusec.WithGroup(g), fusec.WithWorkers(1)); results[r] == nil {
						g.Abort(errors.New("this one has failed"))
					}
				})
			}
			all.Wait()
			for r := range n {
				compare("a group", results[r], machines[r])
			}
		}
	}
}

// TestPipelineMachine trains a Gorgonia graph in stages, on devices of one process and in a group, as on one device, with an
// optimiser and with a solver of Gorgonia's.
func TestPipelineMachine(t *testing.T) {
	for _, own := range []bool{true, false} {
		want, _ := trainedMachine(t, 6, own)
		compare := func(on string, got [][]float64, m *fusec.Machine) {
			t.Helper()
			if len(got) != len(want) {
				t.Fatalf("%s: %d results", on, len(got))
			}
			for i, w := range want {
				sameFloats(t, on, got[i], w, 1e-6)
			}
			if len(m.Program().Lowered().Stages) == 0 {
				t.Errorf("%s: the program has no stages", on)
			}
		}
		stages := fusec.WithPipeline(3)
		alone, m := trainedMachine(t, 6, own, stages, fusec.WithDevices("cpu", "cpu"), fusec.WithVerify())
		compare("processors", alone, m)
		got, m := trainedMachine(t, 6, own, stages, emulated(t), fusec.WithDevices("cuda:0", "cuda:1"))
		compare("GPUs", got, m)
		var all sync.WaitGroup
		const n = 2
		results, machines := make([][][]float64, n), make([]*fusec.Machine, n)
		for r, transport := range group.Local(n, 2*time.Minute) {
			all.Go(func() {
				g := group.New(transport)
				if results[r], machines[r] = trainedMachine(t, 6, own, stages, fusec.WithGroup(g), fusec.WithWorkers(1)); results[r] == nil {
					g.Abort(errors.New("this one has failed"))
				}
			})
		}
		all.Wait()
		for r := range n {
			compare("a group", results[r], machines[r])
			for i := range alone {
				if !slices.Equal(results[r][i], alone[i]) {
					t.Errorf("participant %d has other bits than one process", r)
				}
			}
		}
	}
}
