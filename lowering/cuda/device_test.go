package cuda_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	kernels "fusec/kernels/cuda"
	"fusec/kernels/ref"
	"fusec/lowering"
	"fusec/lowering/cuda"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/pool"
	"fusec/passes/passtest"
)

// values draws all that a graph reads.
func values(g *graph.Graph) map[string]*graph.Tensor {
	r := rand.New(rand.NewPCG(7, 7))
	in := graphtest.Values(r, g)
	for n, v := range graphtest.Weights(r, g) {
		in[n] = v
	}
	return in
}

// bufferOf finds a buffer by its name.
func bufferOf(t testing.TB, p *lowering.Program, name string) int {
	t.Helper()
	for i, b := range p.Buffers {
		if b.Name == name {
			return i
		}
	}
	t.Fatalf("no buffer %q in\n%v", name, p)
	return 0
}

// wants fails the test if the error is not about the text.
func wants(t testing.TB, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("error %v, want one about %q", err, text)
	}
}

func run(t testing.TB, e lowering.Executable) {
	t.Helper()
	if err := e.Run(); err != nil {
		t.Fatal(err)
	}
}

// layer has a product, a row and an update of a state.
func layer(b *graph.Builder) {
	x := b.Input("x", graph.TypeOf(graph.F32, 6, 8))
	y := b.MatMul(x, b.Param("w", graph.TypeOf(graph.F32, 8, 8)), false, false)
	p := b.Add(graph.Softmax{Axis: 1}, b.Unary(graph.GeluTanh, y))
	b.Output("p", p)
	s := b.State("s", graph.TypeOf(graph.F32, 8))
	b.Update(s, b.Binary(graph.Add, s, b.Reduce(graph.Sum, p, false, 0)))
}

// training is a step of gradient descent on layer's weights, with a momentum beside them, which is updated in place.
func training(b *graph.Builder) {
	x := b.Input("x", graph.TypeOf(graph.F32, 6, 8))
	w, m := b.Param("w", graph.TypeOf(graph.F32, 8, 5)), b.State("m", graph.TypeOf(graph.F32, 8, 5))
	y := b.Unary(graph.Tanh, b.MatMul(x, w, false, false))
	b.Output("loss", b.Reduce(graph.Mean, b.Unary(graph.Square, y), false, 0, 1))
	dy := b.Binary(graph.Mul, y, b.BinaryScalar(graph.Add, b.Unary(graph.Neg, b.Unary(graph.Square, y)), 1))
	dw := b.MatMul(x, dy, true, false)
	step := b.Binary(graph.Add, b.BinaryScalar(graph.Mul, m, 0.9), dw)
	b.Update(m, step)
	b.Update(w, b.Binary(graph.Sub, w, b.BinaryScalar(graph.Mul, step, 0.1)))
}

// TestTraining runs several steps whose weights and state stay on the GPU, and compares each with the reference. The
// bound tensors change when they are asked for, and when the program is closed.
func TestTraining(t *testing.T) {
	g := built(t, training)
	in := values(g)
	e, p := compiled(t, g, in)
	bound := map[string]*graph.Tensor{"w": in["w"].Clone(), "m": in["m"].Clone()}
	for name, v := range bound {
		if err := e.Bind(bufferOf(t, p, name), v); err != nil {
			t.Fatal(err)
		}
	}
	for step := range 4 {
		want, updates, err := ref.EvalBound(g, in)
		if err != nil {
			t.Fatal(err)
		}
		before := bound["w"].Clone()
		run(t, e)
		if err := ref.Check(e.Output(p.Outputs[0].Buffer), want["loss"]); err != nil {
			t.Errorf("step %d: %v", step, err)
		}
		if !bound["w"].Equal(before) {
			t.Error("the bound tensor changed without being asked for")
		}
		if step == 3 {
			err = e.Close()
		} else {
			err = e.Sync()
		}
		if err != nil {
			t.Fatal(err)
		}
		for name, v := range bound {
			if err := ref.Check(v, updates[name]); err != nil {
				t.Errorf("step %d, %q: %v", step, name, err)
			}
			in[name] = v.Clone()
		}
	}
	if err := e.Sync(); err != nil {
		t.Errorf("of a closed program: %v", err)
	}
}

// TestSwap exchanges two states, in several runs.
func TestSwap(t *testing.T) {
	check(t, built(t, func(b *graph.Builder) {
		s, u := b.State("s", graph.TypeOf(graph.F32, 3)), b.State("u", graph.TypeOf(graph.F32, 3))
		b.Update(s, u)
		b.Update(u, s)
		b.Output("y", s)
	}), values(built(t, func(b *graph.Builder) {
		b.Output("y", b.Binary(graph.Add, b.State("s", graph.TypeOf(graph.F32, 3)), b.State("u", graph.TypeOf(graph.F32, 3))))
	})))
}

// TestFailedRun reports an index that is out of range with its launch and node; no state has changed, and the next run
// is as if nothing had happened.
func TestFailedRun(t *testing.T) {
	g := built(t, func(b *graph.Builder) {
		table, index := b.Param("table", graph.TypeOf(graph.F32, 5, 4)), b.Input("index", graph.TypeOf(graph.I64, 3))
		s := b.State("s", graph.TypeOf(graph.F32, 3, 4))
		u := b.State("u", graph.TypeOf(graph.F32, 3, 4))
		b.Update(s, b.BinaryScalar(graph.Add, s, 1)) // in place, and independent of the rows
		picked := b.Named(b.Add(graph.Gather{Axis: 0}, table, index), "picked")
		b.Update(u, b.Binary(graph.Add, u, picked))
		b.Output("y", b.Unary(graph.Neg, picked))
	})
	in := values(g)
	e, p := compiled(t, g, in)
	state := map[string]*graph.Tensor{"s": in["s"].Clone(), "u": in["u"].Clone()}
	for name, v := range state {
		if err := e.Bind(bufferOf(t, p, name), v); err != nil {
			t.Fatal(err)
		}
	}
	index := graph.NewTensor(graph.TypeOf(graph.I64, 3))
	if err := e.Bind(bufferOf(t, p, "index"), index); err != nil {
		t.Fatal(err)
	}
	for i, bad := range []float64{0, 5, -1, 2} {
		index.SetFloat(1, bad)
		before := map[string]*graph.Tensor{"s": state["s"].Clone(), "u": state["u"].Clone()}
		err := e.Run()
		if i == 0 || i == 3 {
			if err != nil {
				t.Fatal(err)
			}
		} else {
			wants(t, err, fmt.Sprintf("gather: index %v, element 1 of the indices, is outside 0..4", bad))
			wants(t, err, "launch ")
			wants(t, err, `"picked"`)
		}
		if err := e.Sync(); err != nil {
			t.Fatal(err)
		}
		for name, v := range state {
			if changed := !v.Equal(before[name]); changed != (i == 0 || i == 3) {
				t.Errorf("run %d with index %v: %q changed: %v", i, bad, name, changed)
			}
		}
	}
}

// TestBindErrors names what is missing or does not fit.
func TestBindErrors(t *testing.T) {
	g := built(t, layer)
	in := values(g)
	d := cuda.New(cuda.On(open(t)))
	p := lowered(t, g, d)
	e, err := d.Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Compile(p); err == nil || !strings.Contains(err.Error(), "has no GPU open") {
		t.Errorf("a second program of a device: %v", err)
	}
	wants(t, e.Run(), " has no value")
	x := bufferOf(t, p, "x")
	wants(t, e.Bind(x, nil), `input "x" was given no value`)
	wants(t, e.Bind(x, graph.NewTensor(graph.TypeOf(graph.F32, 8, 6))),
		`input "x" is f32[6,8]; it was given a value of type f32[8,6]`)
	wants(t, e.Bind(bufferOf(t, p, "p"), graph.NewTensor(graph.TypeOf(graph.F32, 6, 8))),
		`buffer "p" cannot be bound: its role is output`)
	for name, v := range in {
		if name != "w" {
			if err := e.Bind(bufferOf(t, p, name), v); err != nil {
				t.Fatal(err)
			}
		}
	}
	wants(t, e.Run(), `param "w" has no value`)
	short := &graph.Tensor{Type: in["w"].Type, Data: make([]float32, 3)}
	if err := e.Bind(bufferOf(t, p, "w"), short); err != nil {
		t.Fatal(err)
	}
	wants(t, e.Run(), `param "w"`)
	for range 2 {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
	wants(t, e.Run(), "the program is closed")
}

// TestProfile measures launches only when asked, and gives what it gave.
func TestProfile(t *testing.T) {
	g := built(t, layer)
	e, p := compiled(t, g, values(g))
	run(t, e)
	first := e.Output(p.Outputs[0].Buffer).Clone()
	for i, d := range e.Times() {
		if d != 0 {
			t.Errorf("launch %d took %v and was not measured", i, d)
		}
	}
	e.Profile(true)
	run(t, e)
	for i, d := range e.Times() {
		if d <= 0 {
			t.Errorf("launch %d took %v", i, d)
		}
	}
	if len(e.Times()) != len(p.Launches) || !e.Output(p.Outputs[0].Buffer).Equal(first) {
		t.Error("a profile is not of this program, or changes what it computes")
	}
}

// TestWatch sees what every launch reads and makes; its error ends a run before the updates.
func TestWatch(t *testing.T) {
	g := built(t, layer)
	in := values(g)
	e, p := compiled(t, g, in)
	state := in["s"].Clone()
	if err := e.Bind(bufferOf(t, p, "s"), state); err != nil {
		t.Fatal(err)
	}
	stop := errors.New("stop")
	seen := map[string]*graph.Tensor{}
	e.Watch(func(l *lowering.Launch, value func(lowering.View) (*graph.Tensor, error)) error {
		for _, v := range append(append([]lowering.View(nil), l.Args...), l.Results...) {
			x, err := value(v)
			if err != nil {
				return err
			}
			seen[p.Buffers[v.Buffer].Name] = x
		}
		return stop
	})
	if err := e.Run(); !errors.Is(err, stop) {
		t.Errorf("error %v, want %v", err, stop)
	}
	for _, name := range []string{"x", "w"} {
		if seen[name] == nil || !seen[name].Equal(in[name]) {
			t.Errorf("%q was seen as %v", name, seen[name])
		}
	}
	if err := e.Sync(); err != nil || !state.Equal(in["s"]) {
		t.Errorf("a run that was stopped changed the state (%v)", err)
	}
	e.Watch(nil)
	run(t, e)
	if err := e.Sync(); err != nil || state.Equal(in["s"]) {
		t.Errorf("a run that was not stopped left the state as it was (%v)", err)
	}
}

// TestParameters binds parameters again: their values are read before each run, or, if they are frozen, when they are
// bound.
func TestParameters(t *testing.T) {
	g := built(t, func(b *graph.Builder) {
		b.Output("y", b.Binary(graph.Mul, b.Input("x", graph.TypeOf(graph.F32, 4)), b.Param("w", graph.TypeOf(graph.F32, 4))))
	})
	in := map[string]*graph.Tensor{"x": graph.Filled(graph.TypeOf(graph.F32, 4), 3), "w": graph.Filled(graph.TypeOf(graph.F32, 4), 2)}
	for _, frozen := range []bool{false, true} {
		e, p := compiledOf(t, g, in, frozen)
		w := in["w"].Clone()
		bind := func() {
			if err := e.Bind(bufferOf(t, p, "w"), w); err != nil {
				t.Fatal(err)
			}
		}
		is := func(want float64) {
			t.Helper()
			run(t, e)
			if got := e.Output(p.Outputs[0].Buffer).Float(2); got != want {
				t.Errorf("frozen %v: %v, want %v", frozen, got, want)
			}
		}
		bind()
		is(6)
		w.SetFloat(2, 5)
		if frozen {
			is(6)
			bind()
		}
		is(15)
	}
}

// TestMemory counts what a program takes.
func TestMemory(t *testing.T) {
	g := built(t, layer)
	gpu, compiler := open(t)
	c := countedGPU(gpu)
	free, _, err := gpu.Memory()
	if err != nil {
		t.Fatal(err)
	}
	d := cuda.New(cuda.On(c, compiler))
	e, err := d.Compile(lowered(t, g, d))
	if err != nil {
		t.Fatal(err)
	}
	left, _, err := gpu.Memory()
	if err != nil {
		t.Fatal(err)
	}
	m := e.Memory()
	if m.Outputs != 6*8*4 || m.Bytes() <= 0 || free-left < m.Bytes() {
		t.Errorf("%+v; the GPU gave %d bytes", m, free-left)
	}
	if err := errors.Join(e.Close(), gpu.Close()); err != nil {
		t.Error(err)
	}
	c.none(t)
}

// TestRounds compiles, runs and closes a program many times: nothing is held in the end, by count and as the GPU says.
// On a GPU that is shared the memory of the first serves all, and is given back when it is asked for.
func TestRounds(t *testing.T) {
	g := built(t, layer)
	in := values(g)
	gpu, compiler := open(t)
	c := countedGPU(gpu)
	round := func(i int, on driver.GPU) {
		d := cuda.New(cuda.On(on, compiler))
		p := lowered(t, g, d)
		e, err := d.Compile(p)
		if err != nil {
			t.Fatal(err)
		}
		for name, v := range in {
			if err := e.Bind(bufferOf(t, p, name), v.Clone()); err != nil {
				t.Fatal(err)
			}
		}
		run(t, e)
		e.Profile(i%2 == 0)
		run(t, e)
		if c.held["modules"] == 0 || c.held["blocks of memory"] == 0 {
			t.Fatalf("a program holds %v", c.held)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
	round(0, c)
	before, _, err := gpu.Memory()
	if err != nil {
		t.Fatal(err)
	}
	for i := range rounds {
		round(i, c)
		c.none(t)
	}
	shared := pool.NewShared(func(int) (driver.GPU, error) { return c, nil })
	user := sharedGPU(t, shared)
	for i := range rounds {
		round(i, sharedGPU(t, shared))
		if c.held["modules"] != 0 || c.held["blocks of memory"] != 1 || c.held["blocks of host memory"] != 1 {
			t.Fatalf("after round %d on a shared GPU %v are held", i, c.held)
		}
	}
	if err := errors.Join(shared.Release(), user.Close()); err != nil {
		t.Error(err)
	}
	c.none(t)
	after, _, err := gpu.Memory()
	if err := errors.Join(err, gpu.Close()); err != nil {
		t.Fatal(err)
	}
	if after < before { // others may have given theirs back
		t.Errorf("%d bytes were free, and %d rounds later %d", before, rounds, after)
	}
}

// TestDriverErrors lets each call of the driver fail in turn, in the life of a program of the GPU's launches, of one with a
// launch on the processor between them, and of one whose weights are prepared: the error comes back, and nothing is held in
// the end.
func TestDriverErrors(t *testing.T) {
	gpu, compiler := open(t)
	for name, build := range map[string]func(*graph.Builder){"on the GPU": layer, "on both": onBoth, "prepared": rounded(8, false)} {
		g := built(t, build)
		in := values(g)
		failed := 0
		for {
			c := countedGPU(gpu)
			c.left = failed
			err := live(t, g, in, cuda.New(cuda.On(c, compiler)), name == "prepared")
			c.none(t)
			if err == nil {
				break
			}
			if !errors.Is(err, errDriver) {
				t.Fatalf("%s, call %d: error %v", name, failed, err)
			}
			failed++
		}
		if failed < 60 {
			t.Errorf("%s, %d calls failed", name, failed)
		}
	}
	if err := gpu.Close(); err != nil {
		t.Error(err)
	}
}

// live does all that is done with a program, with frozen parameters or not, up to the first error.
func live(t *testing.T, g *graph.Graph, in map[string]*graph.Tensor, d *cuda.Device, frozen bool) error {
	t.Helper()
	p := passtest.Lowered(t, g, d, frozen)
	e, err := d.Compile(p)
	if err != nil {
		return err
	}
	steps := []func() error{
		e.Run,
		func() error { return prefetch(e, bufferOf(t, p, "x"), in["x"]) },
		e.Run,
		func() error { e.Profile(true); return e.Run() },
		func() error { e.Profile(false); _, err := e.Measure(2); return err },
		func() error { _, err := e.Inspect(); return err },
		func() error {
			e.Watch(func(l *lowering.Launch, value func(lowering.View) (*graph.Tensor, error)) error {
				_, err := value(l.Results[0])
				return err
			})
			return e.Run()
		},
	}
	for name, v := range in {
		err = errors.Join(err, e.Bind(bufferOf(t, p, name), v.Clone()))
	}
	for _, step := range steps {
		if err == nil {
			err = step()
		}
	}
	return errors.Join(err, e.Close())
}

// sharedGPU opens the GPU that is shared.
func sharedGPU(t testing.TB, s *pool.Shared) driver.GPU {
	t.Helper()
	g, err := s.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// TestTogether runs programs at the same time, some on a GPU that each opened, some on one that they share; each is
// closed and made again.
func TestTogether(t *testing.T) {
	g := built(t, layer)
	in := values(g)
	want, _, err := ref.EvalBound(g, in)
	if err != nil {
		t.Fatal(err)
	}
	gpu, compiler := open(t)
	shared := pool.NewShared(func(int) (driver.GPU, error) { return gpu, nil })
	t.Cleanup(func() {
		if err := shared.Release(); err != nil {
			t.Error(err)
		}
	})
	for i := range 4 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			for range 2 {
				var on cuda.Option
				if i%2 == 0 {
					on = cuda.On(sharedGPU(t, shared), compiler)
				} else {
					on = cuda.On(open(t))
				}
				d := cuda.New(on)
				p := lowered(t, g, d)
				e, err := d.Compile(p)
				if err != nil {
					t.Fatal(err)
				}
				for name, v := range in {
					err = errors.Join(err, e.Bind(bufferOf(t, p, name), v.Clone()))
				}
				for range 3 {
					err = errors.Join(err, e.Run())
				}
				err = errors.Join(err, ref.Check(e.Output(p.Outputs[0].Buffer), want["p"]), e.Close())
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestTypes brings values of every type to the GPU and back, and values of no elements.
func TestTypes(t *testing.T) {
	g := built(t, func(b *graph.Builder) {
		for _, d := range []graph.DType{graph.F32, graph.F64, graph.I32, graph.I64, graph.Bool, graph.BF16, graph.F16} {
			for _, n := range []int{0, 5} {
				name := fmt.Sprint(d, n)
				b.Output(name, b.Transpose(b.Input("x"+name, graph.TypeOf(d, 3, n)), 1, 0))
			}
		}
	})
	check(t, g, values(g))
}

// TestDevice plans without a GPU, and says what it cannot do.
func TestDevice(t *testing.T) {
	d := cuda.New()
	p := lowered(t, built(t, layer), d)
	if _, err := d.Compile(p); err == nil || !strings.Contains(err.Error(), "no GPU open") {
		t.Errorf("error %v", err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	sources := d.Sources(p)
	if len(sources) < 2 || !strings.HasPrefix(sources[0].Where, "launch 1, ") ||
		len(sources[0].Generated) >= len(sources[0].Text) || !strings.Contains(sources[0].Generated, "KERNEL(") {
		t.Errorf("%d sources, the first of %q", len(sources), sources[0].Where)
	}
	if err := d.Accepts(unknown{}, nil, nil); err == nil || err.Error() != "CUDA does not know unknown" {
		t.Errorf("error %v", err)
	}
	x, v, image := graph.TypeOf(graph.F32, 8, 8), graph.TypeOf(graph.F32, 8), graph.TypeOf(graph.F32, 1, 2, 8, 8)
	for _, c := range []struct {
		op            graph.Op
		args, results []graph.Type
	}{
		{graph.MatMul{}, []graph.Type{x, x}, []graph.Type{x}},
		{graph.Softmax{Axis: 1}, []graph.Type{x}, []graph.Type{x}},
		{graph.LayerNorm{Eps: 1e-5}, []graph.Type{x, v, v}, []graph.Type{x}},
		{graph.Unary{Fn: graph.Tanh}, []graph.Type{x}, []graph.Type{x}},
		{graph.Dropout{P: 0.5}, []graph.Type{x, graph.TypeOf(graph.I64)}, []graph.Type{x}},
		{graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(0, 0, 0, 0), Groups: 1},
			[]graph.Type{image, graph.TypeOf(graph.F32, 3, 2, 3, 3)}, []graph.Type{graph.TypeOf(graph.F32, 1, 3, 6, 6)}},
	} {
		for _, d := range []*cuda.Device{d, cuda.New(cuda.For(kernels.ChipOf(80)), cuda.Precision(kernels.TF32), cuda.Portable())} {
			if err := d.Accepts(c.op, c.args, c.results); err != nil {
				t.Error(err)
			}
		}
	}
	opened := cuda.New(cuda.On(open(t)))
	if err := opened.Close(); err != nil {
		t.Error(err)
	}
}

// unknown is an operation that is in no table.
type unknown struct{}

func (unknown) OpName() string { return "unknown" }
