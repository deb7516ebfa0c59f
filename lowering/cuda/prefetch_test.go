package cuda_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/lowering"
	"fusec/lowering/cuda"
)

// summing adds two inputs to what was added before: y = s + x + u, which becomes s.
func summing(b *graph.Builder) {
	t := graph.TypeOf(graph.F32, 3, 5)
	s := b.State("s", t)
	y := b.Binary(graph.Add, s, b.Binary(graph.Add, b.Input("x", t), b.Input("u", t)))
	b.Output("y", y)
	b.Update(s, y)
}

// onLate is a program on a late GPU.
func onLate(t *testing.T, build func(b *graph.Builder)) (*late, lowering.Executable, *lowering.Program) {
	t.Helper()
	gpu, compiler := open(t)
	l := &late{GPU: gpu}
	d := cuda.New(cuda.On(l, compiler))
	p := lowered(t, built(t, build), d)
	e, err := d.Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return l, e, p
}

// full is a tensor of one number.
func full(v float32) *graph.Tensor {
	x := graph.NewTensor(graph.TypeOf(graph.F32, 3, 5))
	for i := range x.Data.([]float32) {
		x.Data.([]float32)[i] = v
	}
	return x
}

// ok ends the test if there is an error.
func ok(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// prefetch is Prefetch on a device that copies.
func prefetch(e lowering.Executable, buffer int, t *graph.Tensor) error {
	copied, err := e.Prefetch(buffer, t)
	if !copied {
		return errors.Join(err, errors.New("nothing was copied ahead"))
	}
	return err
}

// TestPrefetch gives the inputs of runs in all ways, in random order, by tensors that are overwritten as soon as they may
// be, on a GPU that does all as late as it may. Each run sees what was given to it.
func TestPrefetch(t *testing.T) {
	_, e, p := onLate(t, summing)
	r := rand.New(rand.NewPCG(5, 6))
	type input struct {
		buffer int
		holds  float32       // what the next run is to see
		tensor *graph.Tensor // that is bound
		ahead  bool          // it does not count, for the value was copied ahead
	}
	x, u := &input{buffer: bufferOf(t, p, "x")}, &input{buffer: bufferOf(t, p, "u")}
	give := func(in *input, how int) {
		v := float32(1 + r.IntN(50))
		switch {
		case how == 0:
			in.tensor, in.ahead = full(v), false
			ok(t, e.Bind(in.buffer, in.tensor))
		case how == 1 && in.tensor != nil:
			in.tensor.CopyFrom(full(v))
			in.ahead = false
			ok(t, e.Bind(in.buffer, in.tensor))
		case how == 2:
			now := full(v)
			in.ahead = true
			ok(t, prefetch(e, in.buffer, now))
			now.CopyFrom(full(-1000))
		default: // nothing new
			return
		}
		in.holds = v
	}
	state, sum := full(0), float32(0)
	ok(t, e.Bind(bufferOf(t, p, "s"), state))
	give(x, 0)
	give(u, 2)
	for step := range 300 {
		for _, in := range []*input{x, u, x} {
			give(in, r.IntN(6))
		}
		sum += x.holds + u.holds // a whole number that f32 can hold
		ok(t, e.Start())
		for _, in := range []*input{x, u} {
			if in.tensor != nil {
				in.tensor.CopyFrom(full(-2000)) // it has been read
			}
		}
		if err := e.Start(); err == nil || !strings.Contains(err.Error(), "started already") {
			t.Fatalf("a second start: %v", err)
		}
		for _, in := range []*input{u, x} {
			give(in, r.IntN(6))
		}
		if step%3 == 0 { // which waits
			ok(t, e.Sync())
			if !state.Equal(full(sum)) {
				t.Fatalf("run %d: the state is %v, want %v", step, state.Data, sum)
			}
		}
		ok(t, e.Wait(), e.Wait())
		if y := e.Output(p.Outputs[0].Buffer); !y.Equal(full(sum)) {
			t.Fatalf("run %d gives %v, want %v", step, y.Data, sum)
		}
		for _, in := range []*input{x, u} {
			if in.tensor != nil && !in.ahead {
				in.tensor.CopyFrom(full(in.holds))
			}
		}
	}
}

// TestPrefetchOrder holds what waits for what: a copy ahead for the copies that the run which was started began with,
// and for nothing else of it; the run after for the copy ahead.
func TestPrefetchOrder(t *testing.T) {
	in, copied, run := "stream 2: copy in", "stream 1: copy", "stream 1: run"
	for _, c := range []struct {
		name string
		do   func(s lowering.Executable, ahead, end func() error) []error
		want []string
	}{
		{"in turn", func(s lowering.Executable, ahead, _ func() error) []error {
			return []error{s.Start(), ahead(), s.Wait(), s.Start(), s.Wait()}
		}, []string{in, copied, run, in, copied, run}},
		{"while the run has only begun", func(s lowering.Executable, ahead, _ func() error) []error {
			return []error{s.Start(), ahead(), ahead()} // the second waits for the copy of the first
		}, []string{in, copied, in}},
		{"not waited for", func(s lowering.Executable, ahead, end func() error) []error {
			return []error{s.Start(), ahead(), end()} // which brings the state back
		}, []string{in, copied, run, "stream 1: copy out", in}},
	} {
		l, e, p := onLate(t, summing)
		for _, name := range []string{"s", "x", "u"} {
			ok(t, e.Bind(bufferOf(t, p, name), full(1)))
		}
		ahead := func() error { return prefetch(e, bufferOf(t, p, "x"), full(2)) }
		ok(t, e.Start(), ahead(), e.Wait())
		l.log = nil
		ok(t, c.do(e, ahead, e.Close)...)
		if !slices.Equal(l.log, c.want) {
			t.Errorf("%s: the order is %q, want %q", c.name, l.log, c.want)
		}
	}
}

// TestPrefetchHost has a launch on the processor between those on the GPU.
func TestPrefetchHost(t *testing.T) {
	_, e, p := onLate(t, onBoth)
	x := p.Buffers[bufferOf(t, p, "x")].Type
	var first *graph.Tensor
	for range 3 {
		in := graph.NewTensor(x)
		in.SetFloat(0, 0.5)
		ok(t, prefetch(e, bufferOf(t, p, "x"), in))
		in.SetFloat(0, 7)
		ok(t, e.Start(), e.Wait())
		y := e.Output(p.Outputs[0].Buffer)
		if first == nil {
			first = y.Clone()
		}
		if !y.Equal(first) || y.Float(0) == 0 {
			t.Errorf("the run gives %v, and gave %v", y.Data, first.Data)
		}
	}
}

// TestPrefetchFailedRun starts a run on an index that is out of range: waiting gives the error, the state is as it was,
// and the run after goes on.
func TestPrefetchFailedRun(t *testing.T) {
	_, e, p := onLate(t, func(b *graph.Builder) {
		s := b.State("s", graph.TypeOf(graph.F32, 2))
		b.Update(s, b.Binary(graph.Add, s, b.Add(graph.Gather{Axis: 0}, b.Param("table", graph.TypeOf(graph.F32, 3)),
			b.Input("index", graph.TypeOf(graph.I64, 2)))))
	})
	table, state := graph.NewTensor(graph.TypeOf(graph.F32, 3)), graph.NewTensor(graph.TypeOf(graph.F32, 2))
	table.SetFloat(2, 1)
	ok(t, e.Bind(bufferOf(t, p, "table"), table), e.Bind(bufferOf(t, p, "s"), state))
	index := graph.NewTensor(graph.TypeOf(graph.I64, 2))
	for i, at := range []float64{2, 3, 2} {
		index.SetFloat(1, at)
		ok(t, prefetch(e, bufferOf(t, p, "index"), index), e.Start())
		if err := e.Wait(); at < 3 {
			ok(t, err)
		} else {
			wants(t, err, "index 3, element 1 of the indices")
		}
		ok(t, e.Sync())
		if want := []float64{1, 1, 2}[i]; state.Float(1) != want {
			t.Errorf("after run %d the state is %v, want %v", i, state.Float(1), want)
		}
	}
}

// TestPrefetchRefuses names what cannot be copied ahead; the input keeps what it was given.
func TestPrefetchRefuses(t *testing.T) {
	_, e, p := onLate(t, summing)
	x := graph.NewTensor(graph.TypeOf(graph.F32, 3, 5))
	for _, c := range []struct {
		name string
		x    *graph.Tensor
		want string
	}{
		{"s", x, `state "s" is not copied ahead: that is for what each run reads again`},
		{"x", nil, `input "x" was given no value`},
		{"x", graph.NewTensor(graph.TypeOf(graph.F32, 4)), `input "x" is f32[3,5]`},
		{"x", &graph.Tensor{Type: x.Type, Data: []float32{1}}, `input "x"`},
	} {
		if err := prefetch(e, bufferOf(t, p, c.name), c.x); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: error %v, want %q", c.name, err, c.want)
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{"Start": e.Start(), "Prefetch": prefetch(e, bufferOf(t, p, "x"), x)} {
		if err == nil || !strings.Contains(err.Error(), "closed") {
			t.Errorf("%s of a closed program: %v", what, err)
		}
	}
	if err := e.Wait(); err != nil {
		t.Errorf("Wait of a closed program: %v", err)
	}
}
