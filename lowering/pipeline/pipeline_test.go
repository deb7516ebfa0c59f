package pipeline_test

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

	"fusec"
	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/optim"
	"fusec/kernels/group"
	"fusec/lowering/cuda"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/emulator"
)

const batch = 12

// network is three layers with a residual connection across them, and a loss.
func network(t testing.TB) *graph.Graph {
	return graphtest.Built(t, func(b *graph.Builder) {
		f := func(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }
		x, y := b.Input("x", f(batch, 9)), b.Input("y", f(batch, 5))
		layer := func(h *graph.Node, i, to int) *graph.Node {
			w := b.Param(fmt.Sprintf("w%d", i), f(h.Type.Shape.At(1), to))
			bias := b.Param(fmt.Sprintf("b%d", i), f(to))
			h = b.MatMul(h, w, false, false)
			return b.Named(b.Binary(graph.Add, h, b.Broadcast(bias, h.Type.Shape)), fmt.Sprintf("h%d", i))
		}
		h1 := b.Unary(graph.Tanh, layer(x, 1, 7))
		h2 := b.Unary(graph.Relu, layer(h1, 2, 7))
		h3 := b.Binary(graph.Add, b.Unary(graph.GeluTanh, layer(h2, 3, 7)), h1)
		p := b.Add(graph.LogSoftmax{Axis: 1}, layer(h3, 4, 5))
		cost := b.Unary(graph.Neg, b.Reduce(graph.Mean, b.Binary(graph.Mul, p, y), false, 0, 1))
		b.Output("cost", cost)
		b.Output("p", p)
	})
}

// run is what some steps have made.
type run struct {
	costs   []float64
	out     map[string]*graph.Tensor
	weights map[string]*graph.Tensor
	stats   fusec.StepStats
}

// train makes some steps on random values.
func train(g *graph.Graph, p *fusec.Program, steps int) (run, error) {
	r := rand.New(rand.NewPCG(7, 8))
	out := run{weights: map[string]*graph.Tensor{}}
	for _, n := range g.Sources() {
		if _, ok := n.Op.(graph.Param); ok {
			if err := p.Set(n.Name, graphtest.Tensor(r, n.Type)); err != nil {
				return out, err
			}
		}
	}
	for range steps {
		in := map[string]*graph.Tensor{}
		for _, n := range g.Sources() {
			if _, ok := n.Op.(graph.Input); ok {
				in[n.Name] = graphtest.Tensor(r, n.Type)
			}
		}
		var err error
		if out.out, err = p.Run(in); err != nil {
			return out, err
		}
		out.costs = append(out.costs, out.out["cost"].Float(0))
	}
	out.stats = p.StepStats()
	for _, n := range g.Sources() {
		if _, ok := n.Op.(graph.Param); ok {
			w, err := p.Whole(n.Name)
			if err != nil {
				return out, err
			}
			out.weights[n.Name] = w.Clone()
		}
	}
	return out, nil
}

func near(t testing.TB, what string, got, want *graph.Tensor) {
	t.Helper()
	for i := range want.Type.Shape.Elems() {
		if d := math.Abs(got.Float(i) - want.Float(i)); !(d <= 2e-5*(1+math.Abs(want.Float(i)))) {
			t.Errorf("%s: element %d is %v, want %v", what, i, got.Float(i), want.Float(i))
			return
		}
	}
}

func compare(t testing.TB, what string, got, want run) {
	t.Helper()
	for name := range want.out {
		near(t, what+": output "+name, got.out[name], want.out[name])
	}
	for name := range want.weights {
		near(t, what+": "+name, got.weights[name], want.weights[name])
	}
	if got.stats.Steps != want.stats.Steps || math.Abs(got.stats.Norm-want.stats.Norm) > 1e-4*want.stats.Norm {
		t.Errorf("%s: %+v, want %+v", what, got.stats, want.stats)
	}
}

func adam() fusec.CompileOption {
	return fusec.CompileOption(fusec.WithOptimizer(&optim.Optimizer{Rule: optim.AdamW{}, Rate: optim.Constant(1e-2), Clip: 0.5}))
}

// devices are n shares of the processor's cores.
func devices(n int) fusec.CompileOption {
	names := make([]string, n)
	for i := range names {
		names[i] = "cpu"
	}
	return fusec.CompileOption(fusec.WithDevices(names...))
}

// together trains in a group of goroutines.
func together(g *graph.Graph, n, steps int, opts ...fusec.CompileOption) ([]run, error) {
	errs, runs := make([]error, n), make([]run, n)
	var all sync.WaitGroup
	for r, transport := range group.Local(n, 2*time.Minute) {
		all.Go(func() {
			p, err := fusec.Compile(g, append([]fusec.CompileOption{fusec.CompileOption(fusec.WithGroup(group.New(transport))),
				fusec.CompileOption(fusec.WithWorkers(1))}, opts...)...)
			if err != nil {
				errs[r] = err
				return
			}
			defer p.Close()
			runs[r], errs[r] = train(g, p, steps)
		})
	}
	all.Wait()
	return runs, errors.Join(errs...)
}

// TestTrains compares steps of a pipeline with those of one participant.
func TestTrains(t *testing.T) {
	g := network(t)
	alone, err := fusec.Compile(g, adam())
	if err != nil {
		t.Fatal(err)
	}
	defer alone.Close()
	want, err := train(g, alone, 4)
	if err != nil {
		t.Fatal(err)
	}
	for _, stages := range []int{2, 3, 4} {
		for _, m := range []int{2, 3, 4, 12} {
			what := fmt.Sprintf("%d stages, %d microbatches", stages, m)
			p, err := fusec.Compile(g, adam(), devices(stages), fusec.WithPipeline(m), fusec.CompileOption(fusec.WithVerify()))
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			defer p.Close()
			got, err := train(g, p, 4)
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			compare(t, what, got, want)
		}
	}
}

// TestGroup compares a pipeline of a group with one of this process: they are the same bits, on each participant.
func TestGroup(t *testing.T) {
	g := network(t)
	for _, stages := range []int{2, 4} {
		p, err := fusec.Compile(g, adam(), devices(stages), fusec.WithPipeline(3))
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		want, err := train(g, p, 3)
		if err != nil {
			t.Fatal(err)
		}
		runs, err := together(g, stages, 3, adam(), fusec.WithPipeline(3))
		if err != nil {
			t.Fatal(err)
		}
		for r, got := range runs {
			for name := range want.weights {
				if !slices.Equal(got.weights[name].Floats(), want.weights[name].Floats()) {
					t.Errorf("participant %d of %d: %s is %v, want %v", r, stages, name, got.weights[name], want.weights[name])
				}
			}
			for name := range want.out {
				if !slices.Equal(got.out[name].Floats(), want.out[name].Floats()) {
					t.Errorf("participant %d of %d: output %s is %v, want %v", r, stages, name, got.out[name], want.out[name])
				}
			}
			if got.stats != want.stats {
				t.Errorf("participant %d of %d: %+v, want %+v", r, stages, got.stats, want.stats)
			}
		}
	}
}

// TestTied has a weight in the first and in the last stage, and a middle one that keeps to itself.
func TestTied(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		f := func(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }
		x, w, v := b.Input("x", f(batch, 6)), b.Param("w", f(6, 8)), b.Param("v", f(8, 8))
		h := b.Unary(graph.Tanh, b.MatMul(x, w, false, false))
		h = b.Named(b.Unary(graph.Tanh, b.MatMul(h, v, false, false)), "middle")
		y := b.MatMul(h, w, false, true)
		b.Output("cost", b.Reduce(graph.Mean, b.Unary(graph.Square, b.Binary(graph.Sub, y, x)), false, 0, 1))
	})
	alone, err := fusec.Compile(g, adam())
	if err != nil {
		t.Fatal(err)
	}
	defer alone.Close()
	want, err := train(g, alone, 3)
	if err != nil {
		t.Fatal(err)
	}
	p, err := fusec.Compile(g, adam(), devices(2), fusec.WithPipeline(4, "middle"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	got, err := train(g, p, 3)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "devices", got, want)
	runs, err := together(g, 2, 3, adam(), fusec.WithPipeline(4, "middle"))
	if err != nil {
		t.Fatal(err)
	}
	for _, got := range runs {
		compare(t, "group", got, want)
	}
}

// emulated are two GPUs.
func emulated() fusec.CompileOption {
	return fusec.CompileOption(fusec.WithTarget("cuda:0,cuda:1",
		cuda.Driver(func(int) (driver.GPU, driver.Compiler, error) { return emulator.Open(emulator.Options{}) })))
}

// TestGPUs has programs whose memory is their own: values go from one to another over this process's memory.
func TestGPUs(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		x, w, v := b.Input("x", graph.TypeOf(graph.F32, 6, 3)), b.Param("w", graph.TypeOf(graph.F32, 3, 4)),
			b.Param("v", graph.TypeOf(graph.F32, 4, 2))
		h := b.Named(b.Unary(graph.Tanh, b.MatMul(x, w, false, false)), "h")
		b.Output("cost", b.Reduce(graph.Mean, b.Unary(graph.Square, b.MatMul(h, v, false, false)), false, 0, 1))
	})
	sgd := fusec.CompileOption(fusec.WithOptimizer(&optim.Optimizer{Rule: optim.SGD{}, Rate: optim.Constant(0.1)}))
	var runs [2]run
	for i, on := range []fusec.CompileOption{devices(2), emulated()} {
		p, err := fusec.Compile(g, sgd, on, fusec.WithPipeline(3, "h"))
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if runs[i], err = train(g, p, 2); err != nil {
			t.Fatal(err)
		}
	}
	compare(t, "emulated GPUs", runs[1], runs[0])
	four := fusec.CompileOption(fusec.WithTarget("cuda:0,cuda:1,cuda:2,cuda:3",
		cuda.Driver(func(int) (driver.GPU, driver.Compiler, error) { return emulator.Open(emulator.Options{}) })))
	for _, zero := range []int{0, 1, 3} {
		opts := []fusec.CompileOption{sgd, four, fusec.WithPipeline(3, "h"), fusec.WithMesh("stage=2,data=2")}
		if zero > 0 {
			opts = append(opts, fusec.WithZeRO(zero))
		}
		p, err := fusec.Compile(g, opts...)
		if err != nil {
			t.Fatal(err)
		}
		if runs[1], err = train(g, p, 2); err != nil {
			t.Fatal(err)
		}
		compare(t, "emulated GPUs, two of each stage", runs[1], runs[0])
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// picking has rows that an input picks in its last stage, and a state of the user's that counts runs.
func picking(t testing.TB) *graph.Graph {
	return graphtest.Built(t, func(b *graph.Builder) {
		x, w := b.Input("x", graph.TypeOf(graph.F32, 4, 3)), b.Param("w", graph.TypeOf(graph.F32, 3, 3))
		i, table := b.Input("i", graph.TypeOf(graph.I64, 4)), b.Param("table", graph.TypeOf(graph.F32, 5, 3))
		h := b.Named(b.Unary(graph.Tanh, b.MatMul(x, w, false, false)), "first")
		runs := b.State("runs", graph.TypeOf(graph.I64))
		noise := b.Add(graph.Random{Dist: graph.Normal, B: 0.1, Type: graph.TypeOf(graph.F32, 4, 3)}, runs)
		h = b.Binary(graph.Add, h, noise)
		y := b.Named(b.Binary(graph.Mul, h, b.Add(graph.Gather{Axis: 0}, table, i)), "picked")
		b.Output("y", y)
		b.Output("cost", b.Reduce(graph.Sum, y, false, 0, 1))
		s := b.State("seen", graph.TypeOf(graph.F32, 3))
		b.Update(s, b.Binary(graph.Add, s, b.Reduce(graph.Sum, y, false, 0)))
		b.Update(runs, b.Binary(graph.Add, runs, b.Scalar(graph.I64, 1)))
	})
}

// TestInference runs forward passes alone, noise that is drawn for the whole batch, states, and errors of one stage.
func TestInference(t *testing.T) {
	g := picking(t)
	alone, err := fusec.Compile(g)
	if err != nil {
		t.Fatal(err)
	}
	defer alone.Close()
	for _, on := range []fusec.CompileOption{devices(2), emulated()} {
		p, err := fusec.Compile(g, on, fusec.WithPipeline(2, "first"))
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if _, err := p.Run(nil); err == nil || !strings.Contains(err.Error(), "has no value") {
			t.Errorf("without inputs: %v", err)
		}
		r := rand.New(rand.NewPCG(1, 2))
		w, table := graphtest.Tensor(r, graph.TypeOf(graph.F32, 3, 3)), graphtest.Tensor(r, graph.TypeOf(graph.F32, 5, 3))
		i := graph.NewTensor(graph.TypeOf(graph.I64, 4))
		in := map[string]*graph.Tensor{"w": w, "table": table, "i": i, "x": graphtest.Tensor(r, graph.TypeOf(graph.F32, 4, 3))}
		if err := alone.Set("runs", graph.NewTensor(graph.TypeOf(graph.I64))); err != nil {
			t.Fatal(err)
		}
		if err := alone.Set("seen", graph.NewTensor(graph.TypeOf(graph.F32, 3))); err != nil {
			t.Fatal(err)
		}
		for _, last := range []int64{1, 9, 3} {
			i.SetInt(3, last)
			got, err := p.Run(in)
			if last > 4 {
				if err == nil || !strings.Contains(err.Error(), "participant 1: stage 2, forward of microbatch 2") ||
					!strings.Contains(err.Error(), `"table"`) {
					t.Errorf("error %v", err)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			want, err := alone.Run(in)
			if err != nil {
				t.Fatal(err)
			}
			for name := range want {
				near(t, name, got[name], want[name])
			}
		}
		for _, name := range []string{"runs", "seen"} {
			got, err := p.State(name)
			if err != nil {
				t.Fatal(err)
			}
			if p.Lowered().Target != "cuda" {
				want, _ := alone.State(name)
				near(t, name, got, want)
			}
		}
		p.Profile(true)
		if m := p.Memory(); m.Outputs == 0 || m.Bytes() != p.Bytes() {
			t.Errorf("memory %+v", m)
		}
	}
}

// opaqueSum is code that fusec cannot look into.
type opaqueSum struct{}

func (*opaqueSum) Do([]*graph.Tensor) (*graph.Tensor, error) {
	return graph.NewTensor(graph.TypeOf(graph.F64, 4)), nil
}

// TestRefuses gives errors of options, and of graphs.
func TestRefuses(t *testing.T) {
	wants := func(want string, opts ...fusec.CompileOption) {
		t.Helper()
		_, err := fusec.Compile(network(t), opts...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	two := fusec.WithPipeline(2)
	wants("at least 2 microbatches", devices(2), fusec.WithPipeline(1))
	wants("at least 2 stages", two)
	wants("runs programs alone", two, fusec.CompileOption(fusec.WithTarget("ref,ref")))
	wants("WithZeRO", devices(2), two, fusec.WithZeRO(1))
	wants("not watched", devices(2), two, fusec.CompileOption(fusec.WithWatchNonFinite()))
	wants(`is not "stage"`, devices(2), two, fusec.WithMesh("a=1,b=2"))
	wants(`the axis "microbatch"`, devices(4), two, fusec.WithMesh("stage=2,microbatch=2"))
	wants("is for 4 participants, not for 2", devices(2), two, fusec.WithMesh("stage=4"))
	wants("at least 2 stages", devices(2), two, fusec.WithMesh("stage=1,data=2"))
	wants("a mesh of 8 axes", devices(2), two, fusec.WithMesh("stage=2,a=1,b=1,c=1,d=1,e=1,f=1,g=1"))
	wants("no input can be split into 2 microbatches on each of 5 participants", devices(10), two, fusec.WithMesh("stage=2,data=5"))
	wants("no input can be split into 5 microbatches", devices(2), fusec.WithPipeline(5))
	wants(`no value of the forward pass is named "nobody"`, devices(2), fusec.WithPipeline(2, "nobody"))
	wants("no input, parameter or state of this name", devices(2), two, fusec.WithSplit("nobody"))
	meshed := network(t)
	meshed.Mesh = graph.Mesh{{Name: "data", Size: 2}}
	if _, err := fusec.Compile(meshed, devices(2), two); err == nil || !strings.Contains(err.Error(), "a mesh") {
		t.Errorf("error %v", err)
	}
	host := graphtest.Built(t, func(b *graph.Builder) {
		x := b.Unary(graph.Exp, b.Binary(graph.Mul, b.Input("x", graph.TypeOf(graph.F64, 4)), b.Param("w", graph.TypeOf(graph.F64, 4))))
		y := b.Add(graph.Host{Name: "sum", Type: graph.TypeOf(graph.F64, 4), Impl: &opaqueSum{}}, x)
		b.Output("y", b.Named(y, "mine"))
	})
	if _, err := fusec.Compile(host, devices(2), two); err == nil || !strings.Contains(err.Error(), `host "mine"`) {
		t.Errorf("error %v", err)
	}
}

// TestElsewhere asks participants of a group for what another one has.
func TestElsewhere(t *testing.T) {
	g := network(t)
	errs := make([]error, 2)
	var all sync.WaitGroup
	for r, transport := range group.Local(2, time.Minute) {
		all.Go(func() {
			errs[r] = func() error {
				p, err := fusec.Compile(g, adam(), fusec.CompileOption(fusec.WithGroup(group.New(transport))), fusec.WithPipeline(2, "h2"))
				if err != nil {
					return err
				}
				defer p.Close()
				p.Profile(true)
				if _, err := train(g, p, 1); err != nil {
					return err
				}
				if len(p.Times()) != len(p.Lowered().Launches) {
					return fmt.Errorf("%d times of %d launches", len(p.Times()), len(p.Lowered().Launches))
				}
				own, other := "w1", "w4"
				if r == 1 {
					own, other = other, own
				}
				if _, err := p.State(own); err != nil {
					return err
				}
				if _, err := p.State(other); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("participant %d keeps", 1-r)) {
					return fmt.Errorf("error %v", err)
				}
				if _, err := p.Whole("nobody"); err == nil {
					return errors.New("nobody has a value")
				}
				if _, err := p.Piece(own, nil); err == nil || !strings.Contains(err.Error(), "not in pieces") {
					return fmt.Errorf("error %v", err)
				}
				if err := p.Set(own, graph.Scalar(graph.F32, 1)); err == nil {
					return errors.New("a value of another type is accepted")
				}
				moment, err := p.Whole("optim/mean/w4")
				if err == nil && moment.Type.Shape.At(0) != 7 {
					err = fmt.Errorf("a moment of type %v", moment.Type)
				}
				return err
			}()
		})
	}
	all.Wait()
	for r, err := range errs {
		if err != nil {
			t.Errorf("participant %d: %v", r, err)
		}
	}
}

// TestPlan makes no device.
func TestPlan(t *testing.T) {
	tr, p, err := fusec.Plan(network(t), adam(), fusec.WithMesh("stage=3"), fusec.WithPipeline(4))
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Launches) == 0 || p.ArenaBytes == 0 || len(p.Outputs) != 3 {
		t.Errorf("%v", p)
	}
	names := map[string]bool{}
	for _, s := range tr.Stages {
		names[s.Name] = true
		for _, n := range s.Notes {
			if s.Name == "pipeline" {
				t.Log(n.Text)
			}
		}
	}
	if !names["pipeline"] || !names["final"] {
		t.Errorf("stages %v", names)
	}
}

// transformer is layers of attention on a batch of sequences, before a loss.
func transformer(t testing.TB, layers int) *graph.Graph {
	const sequences, tokens, dim = 4, 6, 8
	f := func(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }
	return graphtest.Built(t, func(b *graph.Builder) {
		linear := func(x *graph.Node, name string, out int) *graph.Node {
			rows := b.Reshape(x, sequences*tokens, x.Type.Shape.At(2))
			y := b.MatMul(rows, b.Param(name+"/weight", f(x.Type.Shape.At(2), out)), false, false)
			y = b.Binary(graph.Add, y, b.Broadcast(b.Param(name+"/bias", f(out)), y.Type.Shape))
			return b.Reshape(y, sequences, tokens, out)
		}
		norm := func(x *graph.Node, name string) *graph.Node {
			return b.Add(graph.LayerNorm{Eps: 1e-5}, x, b.Param(name+"/gain", f(dim)), b.Param(name+"/shift", f(dim)))
		}
		ids := b.Input("tokens", graph.TypeOf(graph.I64, sequences, tokens))
		x := b.Add(graph.Gather{}, b.Param("embedding", f(10, dim)), ids)
		for i := range layers {
			at := fmt.Sprintf("block%d/", i)
			h := norm(x, at+"norm1")
			q, k, v := linear(h, at+"query", dim), linear(h, at+"key", dim), linear(h, at+"value", dim)
			p := b.Add(graph.Softmax{Axis: 2}, b.BinaryScalar(graph.Mul, b.MatMul(q, k, false, true), 0.3))
			x = b.Binary(graph.Add, x, linear(b.MatMul(p, v, false, false), at+"project", dim))
			h = b.Unary(graph.GeluTanh, linear(norm(x, at+"norm2"), at+"up", 2*dim))
			x = b.Named(b.Binary(graph.Add, x, linear(h, at+"down", dim)), at+"out")
		}
		d := b.Binary(graph.Sub, linear(norm(x, "norm"), "head", 10), b.Input("want", f(sequences, tokens, 10)))
		b.Output("cost", b.Reduce(graph.Mean, b.Unary(graph.Square, d), false, 0, 1, 2))
	})
}

// TestTransformer has stages of layers of attention: each step is that of one participant.
func TestTransformer(t *testing.T) {
	g := transformer(t, 3)
	sgd := fusec.CompileOption(fusec.WithOptimizer(&optim.Optimizer{Rule: optim.SGD{}, Rate: optim.Constant(0.1), Clip: 1}))
	alone, err := fusec.Compile(g, sgd)
	if err != nil {
		t.Fatal(err)
	}
	defer alone.Close()
	want, err := train(g, alone, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, pipe := range []fusec.CompileOption{fusec.WithPipeline(4), fusec.WithPipeline(2, "block0/out", "block1/out")} {
		p, err := fusec.Compile(g, sgd, devices(3), pipe)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		got, err := train(g, p, 2)
		if err != nil {
			t.Fatal(err)
		}
		compare(t, "a transformer", got, want)
	}
}

// TestOneSequence has a batch of tokens of one sequence, each of which attends all: it cannot be cut into microbatches.
func TestOneSequence(t *testing.T) {
	g := graphtest.Transformer(t, 2, -1)
	if _, err := fusec.Compile(g, adam(), devices(2), fusec.WithPipeline(2)); err == nil ||
		!strings.Contains(err.Error(), `"block0/attn/key/out"`) || !strings.Contains(err.Error(), "needs values of other microbatches") {
		t.Errorf("error %v", err)
	}
}
