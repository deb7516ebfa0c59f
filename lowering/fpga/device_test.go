package fpga

import (
	"context"
	"errors"
	"flag"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fusec/fpga/isa"
	"fusec/fpga/link"
	"fusec/fpga/model"
	"fusec/graph"
	"fusec/lowering"
)

var update = flag.Bool("update", false, "write the golden files in testdata again")

// TestRefusals holds what the overlay does not take, with the reasons; the processor runs it, so that the results are
// right all the same.
func TestRefusals(t *testing.T) {
	heads := func(a graph.Attention, depth int, more ...graph.Type) func(b *graph.Builder) {
		return func(b *graph.Builder) {
			args := []*graph.Node{b.Input("q", f32(2, 16, depth)), b.Input("k", f32(2, 16, depth)),
				b.Input("v", f32(2, 16, depth))}
			for i, m := range more {
				args = append(args, b.Input(string(rune('a'+i)), m))
			}
			b.Output("y", b.Add(a, args...))
		}
	}
	wide := func(b *graph.Builder) { b.Output("y", linear(b, b.Input("x", f32(3, 520)), "l", 4)) }
	for _, c := range []struct {
		name, overlay string
		build         func(b *graph.Builder)
		want          string
	}{
		{"softmax", "sim8", func(b *graph.Builder) {
			b.Output("y", b.Add(graph.Softmax{Axis: 1}, b.Input("x", f32(4, 8))))
		}, "the overlay does not compute softmax: it has no softmax but that of attention and routers"},
		{"sum", "sim8", func(b *graph.Builder) {
			b.Output("y", b.Reduce(graph.Sum, b.Input("x", f32(4, 8)), false, 1))
		}, "the overlay reduces no axis but in norms"},
		{"quotient", "sim8", func(b *graph.Builder) {
			b.Output("y", b.Binary(graph.Div, b.Input("x", f32(4, 8)),
				b.BinaryScalar(graph.Add, b.Unary(graph.Square, b.Input("z", f32(4, 8))), 1)))
		}, "the overlay adds and multiplies"},
		{"wide rows", "sim8", func(b *graph.Builder) {
			b.Output("y", b.Binary(graph.Add, b.Input("x", f32(3, 9000)), b.Input("z", f32(3, 9000))))
		}, "1125 words of X: the overlay has 1024"},
		{"wide scales", "sim8", func(b *graph.Builder) {
			x := b.Input("x", f32(3, 2400))
			b.Output("y", b.Binary(graph.Mul, x, b.Broadcast(b.Param("s", f32(2400)), x.Type.Shape)))
		}, "2400 words of params: the overlay has 2048"},
		{"long sums", "hx8k", wide, "a product over 520 elements: sums of 24 bits take 516"},
		{"no attention", "hx8k", heads(graph.Attention{Scale: 1}, 16), "the overlay hx8k has no attention"},
		{"no norms", "hx8k", func(b *graph.Builder) {
			b.Output("y", b.Add(graph.RMSNorm{Eps: 1e-5}, b.Input("x", f32(4, 8)), b.Param("gamma", f32(8))))
		}, "the overlay hx8k has no norms"},
		{"no router", "ecp5", func(b *graph.Builder) {
			mixture(b, graph.MoE{Experts: 4, Activation: graph.Relu, Bias: true, Stacked: true, TopK: 1}, 16, 8, 8, 1)
		}, "the overlay ecp5 has no router"},
		{"head size", "sim8", heads(graph.Attention{Scale: 1}, 20), "head size 20 is not a multiple of 8"},
		{"large heads", "ecp5", heads(graph.Attention{Scale: 1}, 128), "head size 128: the overlay ecp5 takes 64"},
		{"mask", "sim8", heads(graph.Attention{Scale: 1, HasMask: true}, 16, f32(16, 16)), "a mask that is not causal"},
		{"window", "sim8", heads(graph.Attention{Scale: 1, Causal: true, Window: 4}, 16), "a window of 4 keys"},
		{"many experts for a token", "sim8", func(b *graph.Builder) {
			mixture(b, graph.MoE{Experts: 8, Activation: graph.Relu, Bias: true, Stacked: true}, 16, 8, 8, 8)
		}, "8 experts for each token: the overlay sim8 takes 4"},
		{"capacity", "sim8", func(b *graph.Builder) {
			x := b.Input("x", f32(16, 8))
			gates := b.Add(graph.Softmax{Axis: 1}, linear(b, x, "gate", 4))
			gates = b.Binary(graph.Mul, gates, b.CastTo(graph.F32, b.Add(graph.Route{K: 1, Capacity: 12}, gates)))
			m := graph.MoE{Experts: 4, Activation: graph.Relu, Stacked: true, TopK: 1}
			b.Output("y", b.Add(m, x, gates, b.Param("w1", f32(4, 8, 8)), b.Param("w2", f32(4, 8, 8))))
		}, "gates that are not a softmax of logits"},
		{"batches of products", "sim8", func(b *graph.Builder) {
			b.Output("y", b.MatMul(b.Input("x", f32(3, 8, 8)), b.Input("z", f32(3, 8, 8)), false, false))
		}, "matmul of 3 pairs of matrices"},
		{"long norms", "sim8", func(b *graph.Builder) {
			b.Output("y", b.Add(graph.RMSNorm{Eps: 1e-5}, b.Input("x", f32(2, 4104)), b.Param("gamma", f32(4104))))
		}, "rows of 4104 elements: the overlay takes 4096"},
		{"greatest by columns", "sim8", func(b *graph.Builder) {
			x := b.Input("x", f32(4, 8))
			b.Output("y", b.Binary(graph.Max, x, b.Broadcast(b.Param("w", f32(8)), x.Type.Shape)))
		}, "max with a number for each column"},
		{"greatest", "sim8", func(b *graph.Builder) {
			b.Output("y", b.Binary(graph.Max, b.Input("x", f32(4, 8)), b.Input("z", f32(4, 8))))
		}, "max of two values"},
		{"computed rows", "sim8", func(b *graph.Builder) {
			x := linear(b, b.Input("x", f32(4, 8)), "l", 8)
			row := b.Reshape(linear(b, b.Input("z", f32(1, 8)), "m", 8), 8)
			b.Output("y", b.Binary(graph.Mul, x, b.Broadcast(row, x.Type.Shape)))
		}, "by a row that is computed"},
		{"integers", "sim8", func(b *graph.Builder) {
			b.Output("y", b.Binary(graph.Add, b.Input("x", graph.TypeOf(graph.I64, 4)),
				b.Input("z", graph.TypeOf(graph.I64, 4))))
		}, "type i64"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, p := compiled(t, built(t, c.build), For(overlay(t, c.overlay)))
			found := false
			var reasons []string
			for _, l := range p.Launches {
				found = found || strings.Contains(l.Reason, c.want)
				if l.Device != "" {
					reasons = append(reasons, l.Kind()+": "+l.Reason)
				}
			}
			if !found {
				t.Errorf("the processor runs %q, want a reason with %q", reasons, c.want)
			}
			e.Profile(true)
			if err := e.Run(); err != nil {
				t.Fatal(err)
			}
			for i, n := range e.counts {
				if !(n.rms <= 0.02) {
					t.Errorf("launch %d is off by %.4f rms", i, n.rms)
				}
			}
		})
	}
}

// two is a model of two layers.
func two(b *graph.Builder) {
	x := b.Unary(graph.GeluTanh, linear(b, b.Input("x", f32(19, 24)), "a", 32))
	b.Output("y", linear(b, x, "b", 10))
}

// TestGolden holds the text of a small program.
func TestGolden(t *testing.T) {
	d := New()
	r, err := d.Plan(lowered(t, built(t, two), d))
	if err != nil {
		t.Fatal(err)
	}
	for i := range r.Launches {
		r.Launches[i].Estimate = 0 // which has constants that are measured
	}
	path := filepath.Join("testdata", "two.txt")
	if *update {
		if err := os.WriteFile(path, []byte(r.String()), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.String(); got != string(want) {
		t.Errorf("the program is not that of %s; go test -update writes it again\n%s", path, got)
	}
}

// TestDeterministic compiles and runs a program twice: same descriptors, same bits.
func TestDeterministic(t *testing.T) {
	var lists [2]string
	var outs [2][]float64
	for i := range lists {
		e, p := compiled(t, built(t, func(b *graph.Builder) { transformer(b, 64, 64, 2, 128) }))
		for range 1 + i {
			if err := e.Run(); err != nil {
				t.Fatal(err)
			}
		}
		code, err := encode(e.parts[0].steps)
		if err != nil {
			t.Fatal(err)
		}
		lists[i], outs[i] = string(code), e.Output(p.Outputs[0].Buffer).Floats()
	}
	if lists[0] != lists[1] {
		t.Error("the descriptors differ")
	}
	for i := range outs[0] {
		if math.Float64bits(outs[0][i]) != math.Float64bits(outs[1][i]) {
			t.Fatalf("element %d is %v, then %v", i, outs[0][i], outs[1][i])
		}
	}
}

// TestCalibration compares ranges found on samples with those found on the first run.
func TestCalibration(t *testing.T) {
	sample := graph.NewTensor(f32(19, 24))
	r := rand.New(rand.NewPCG(1, 2))
	for i := range sample.Type.Shape.Elems() {
		sample.SetFloat(i, 20*r.NormFloat64())
	}
	e, _ := compiled(t, built(t, two), Samples(map[string]*graph.Tensor{"x": sample}))
	first, _ := compiled(t, built(t, two))
	for _, x := range []*executable{e, first} {
		if err := x.Run(); err != nil {
			t.Fatal(err)
		}
	}
	if a, b := e.l.values[0].quant.step, first.l.values[0].quant.step; !(a > 10*b) {
		t.Errorf("a sample of 20 times the numbers gives the input a step of %g, the first run one of %g", a, b)
	}
	bad, _ := compiled(t, built(t, two), Samples(map[string]*graph.Tensor{"x": graph.NewTensor(f32(2, 24))}))
	wants(t, bad.Run(), `calibration sample 0: input "x" is f32[19,24]; the sample has type f32[2,24]`)
}

// TestRanges runs a program with ranges that were found before, to the same bits, and refuses those of another program.
func TestRanges(t *testing.T) {
	want, p := compiled(t, built(t, two))
	if err := want.Run(); err != nil {
		t.Fatal(err)
	}
	values := map[string]*graph.Tensor{}
	for i, b := range p.Buffers {
		if b.Role == lowering.Input || b.Role == lowering.Param {
			values[b.Name] = want.tensors[i]
		}
	}
	d := New()
	ranges, err := d.Calibrate(lowered(t, built(t, two), d), values)
	if err != nil {
		t.Fatal(err)
	}
	got, _ := compiled(t, built(t, two), Calibrated(ranges))
	if err := got.Run(); err != nil {
		t.Fatal(err)
	}
	out := p.Outputs[0].Buffer
	for i, v := range got.Output(out).Floats() {
		if v != want.Output(out).Float(i) {
			t.Fatalf("element %d is %v, calibrated by itself it was %v", i, v, want.Output(out).Float(i))
		}
	}
	few, _ := compiled(t, built(t, two), Calibrated(ranges[1:]))
	wants(t, few.Run(), "they were found for another program")
	ranges[0].Value = "z"
	other, _ := compiled(t, built(t, two), Calibrated(ranges))
	wants(t, other.Run(), `range 0 is of "z"`)
}

// TestWeightsChange runs with weights that change in place: they are read again, unless they are frozen.
func TestWeightsChange(t *testing.T) {
	for _, frozen := range []bool{false, true} {
		e, p := compiledOf(t, built(t, two), frozen)
		y := func() float64 {
			t.Helper()
			if err := e.Run(); err != nil {
				t.Fatal(err)
			}
			return e.Output(p.Outputs[0].Buffer).Float(3)
		}
		before := y()
		var w *graph.Tensor
		var at int
		for i, b := range p.Buffers {
			if b.Name == "b.w" {
				w, at = e.tensors[i], i
			}
		}
		for i := range w.Type.Shape.Elems() {
			w.SetFloat(i, -2*w.Float(i))
		}
		if changed := y() != before; changed == frozen {
			t.Errorf("frozen %v: the result has changed: %v", frozen, changed)
		}
		if want := map[bool]int{false: 2, true: 1}[frozen]; e.remade != want {
			t.Errorf("frozen %v: the codes were made %d times, want %d", frozen, e.remade, want)
		}
		if err := e.Bind(at, w); err != nil {
			t.Fatal(err)
		}
		if y() == before {
			t.Errorf("frozen %v: weights that were bound again are not seen", frozen)
		}
	}
}

// breaking is a link that fails after some accesses.
type breaking struct {
	link.Link
	left int
}

var errBroken = errors.New("the cable is out")

func (b *breaking) Read(at uint32, p []byte) error {
	if b.left--; b.left < 0 {
		return errBroken
	}
	return b.Link.Read(at, p)
}

func (b *breaking) Write(at uint32, p []byte) error {
	if b.left--; b.left < 0 {
		return errBroken
	}
	return b.Link.Write(at, p)
}

// TestLinkFails has the link fail at every access in turn: the run says so, and the next one, over another link, has
// the same result as if nothing had happened.
func TestLinkFails(t *testing.T) {
	left := math.MaxInt
	opened := 0
	open := func(ctx context.Context, cfg isa.Config, n int64) (link.Link, error) {
		l, err := overModel(ctx, cfg, n)
		opened++
		return &breaking{l, left}, err
	}
	want, p := compiled(t, built(t, two))
	if err := want.Run(); err != nil {
		t.Fatal(err)
	}
	for n := range 200 {
		left = n
		e, _ := compiled(t, built(t, two), Over(open))
		err := e.Run()
		if err == nil {
			if n < 5 {
				t.Errorf("a program took %d accesses", n)
			}
			return
		}
		if !errors.Is(err, errBroken) {
			t.Fatalf("access %d fails: %v", n, err)
		}
		left = math.MaxInt
		before := opened
		if err := e.Run(); err != nil {
			t.Fatalf("after access %d failed: %v", n, err)
		}
		if opened != before+1 {
			t.Fatalf("the link was opened %d times", opened-before)
		}
		got, want := e.Output(p.Outputs[0].Buffer).Floats(), want.Output(p.Outputs[0].Buffer).Floats()
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("after access %d failed element %d is %v, want %v", n, i, got[i], want[i])
			}
		}
	}
	t.Error("a program takes more accesses than were tried")
}

// TestLinkErrors refuses links that lead to something else than the program was made for.
func TestLinkErrors(t *testing.T) {
	for _, c := range []struct {
		open func(context.Context, isa.Config, int64) (link.Link, error)
		want string
	}{
		{func(context.Context, isa.Config, int64) (link.Link, error) { return nil, errBroken }, "the cable is out"},
		{func(_ context.Context, _ isa.Config, n int64) (link.Link, error) {
			return model.New(overlay(t, "ecp5"), model.Options{Memory: n})
		}, "another configuration than sim8: XWords is 512, not 1024"},
		{func(_ context.Context, cfg isa.Config, _ int64) (link.Link, error) {
			return model.New(cfg, model.Options{Memory: 4096})
		}, "has 4096"},
	} {
		d := New(Over(c.open))
		_, err := d.Compile(lowered(t, built(t, two), d))
		wants(t, err, c.want)
	}
	e, _ := compiled(t, built(t, two))
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	wants(t, e.Run(), "the program is closed")
}

// TestNothingToDo opens no link for a program of which the overlay takes nothing.
func TestNothingToDo(t *testing.T) {
	softmax := func(b *graph.Builder) { b.Output("y", b.Add(graph.Softmax{Axis: 1}, b.Input("x", f32(4, 8)))) }
	e, p := compiled(t, built(t, softmax), Over(func(context.Context, isa.Config, int64) (link.Link, error) {
		return nil, errBroken
	}))
	if err := e.Run(); err != nil {
		t.Fatal(err)
	}
	if y := e.Output(p.Outputs[0].Buffer); !(y.Float(0) > 0) {
		t.Errorf("the softmax is %v", y.Floats())
	}
}

// TestCompileErrors refuses what cannot be compiled.
func TestCompileErrors(t *testing.T) {
	d := New()
	_, err := d.Compile(lowered(t, built(t, two), d))
	wants(t, err, "no link to an overlay")
	d = New(Over(overModel))
	_, err = d.Compile(lowered(t, built(t, func(b *graph.Builder) {
		w := b.Param("w", f32(4, 4))
		b.Update(w, b.BinaryScalar(graph.Mul, w, 0.5))
		b.Output("y", b.MatMul(b.Input("x", f32(4, 4)), w, false, false))
	}), d))
	wants(t, err, `the graph updates "w"`)
	d = New(Over(overModel), For(overlay(t, "hx8k")))
	_, err = d.Compile(lowered(t, built(t, func(b *graph.Builder) {
		b.Output("y",
			linear(b, b.Input("x", f32(900, 64)), "l", 64))
	}), d))
	wants(t, err, "addresses of 16 bits reach 65536")
	e, p := compiled(t, built(t, two))
	wants(t, e.Bind(0, nil), "was given no value")
	wants(t, e.Bind(0, graph.NewTensor(f32(1))), "it was given a value of type f32[1]")
	wants(t, e.Bind(p.Outputs[0].Buffer, graph.NewTensor(p.Buffers[p.Outputs[0].Buffer].Type)), "cannot be bound")
}

// TestWatch shows every launch of a program, some on the processor, with what it reads and writes.
func TestWatch(t *testing.T) {
	e, p := compiled(t, built(t, func(b *graph.Builder) {
		x := linear(b, b.Input("x", f32(12, 16)), "a", 24)
		x = linear(b, b.Add(graph.Softmax{Axis: 1}, x), "b", 16)
		b.Output("y", b.Unary(graph.Relu, x))
	}))
	var seen []string
	e.Watch(func(l *lowering.Launch, value func(lowering.View) (*graph.Tensor, error)) error {
		seen = append(seen, l.Kind())
		for _, v := range append(l.Args[:len(l.Args):len(l.Args)], l.Results...) {
			got, err := value(v)
			if err != nil {
				return err
			}
			if got.Type.Shape != v.Layout.Shape {
				t.Errorf("a value of shape %v is shown as %v", v.Layout.Shape, got.Type.Shape)
			}
		}
		return nil
	})
	if err := e.Run(); err != nil {
		t.Fatal(err)
	}
	if len(seen) != len(p.Launches) {
		t.Errorf("%q were shown of %d launches", seen, len(p.Launches))
	}
	watched := e.Output(p.Outputs[0].Buffer).Floats()
	e.Watch(nil)
	if err := e.Run(); err != nil {
		t.Fatal(err)
	}
	for i, v := range e.Output(p.Outputs[0].Buffer).Floats() {
		if v != watched[i] {
			t.Fatalf("element %d is %v, watched it was %v", i, v, watched[i])
		}
	}
	e.Watch(func(*lowering.Launch, func(lowering.View) (*graph.Tensor, error)) error { return errBroken })
	if err := e.Run(); !errors.Is(err, errBroken) {
		t.Errorf("the watcher's error is %v", err)
	}
}

// encode is the descriptors as the overlay reads them.
func encode(steps []Step) (code []byte, err error) {
	for _, s := range steps {
		if code, err = isa.Encode(code, s.Cmd); err != nil {
			return nil, err
		}
	}
	return code, nil
}
