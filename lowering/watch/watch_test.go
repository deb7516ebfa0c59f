package watch_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"fusec"
	"fusec/graph"
	_ "fusec/graph/graphtest/untuned"
	"fusec/lowering/fpga"
)

// f32 is a type of float32 numbers.
func f32(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }

func tensorOf(t testing.TB, data []float32, dims ...int) *graph.Tensor {
	t.Helper()
	x, err := graph.TensorOf(data, dims...)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// compiled is the program of a graph.
func compiled(t testing.TB, b *graph.Builder, opts ...fusec.CompileOption) *fusec.Program {
	t.Helper()
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	p, err := fusec.Compile(g, append(opts, fusec.WithVerify())...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// The watch names the first operation that made a value which is not finite, inside of a fusion too.
func TestWatchNonFinite(t *testing.T) {
	for _, c := range []struct {
		name   string
		build  func(b *graph.Builder, x *graph.Node) *graph.Node
		x      float32
		want   []string
		source bool
	}{
		{"logarithm in an epilogue", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := b.MatMul(x, b.Param("w", f32(3, 2)), false, false)
			return b.Unary(graph.Tanh, b.Named(b.Unary(graph.Log, b.BinaryScalar(graph.Sub, y, 1)), "depth"))
		}, 0, []string{`log "depth" (watch_test.go:`, "made NaN of operands without NaN"}, false},
		{"overflow of float32", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.BinaryScalar(graph.Mul, b.Named(b.Unary(graph.Exp, x), "power"), 0.5)
		}, 100, []string{`"power"`, "made Inf of finite operands"}, false},
		{"in a launch of its own", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Add(graph.Concat{Axis: 0}, b.Named(b.Unary(graph.Recip, x), "inverse"), x)
		}, 0, []string{`"inverse"`, "made Inf"}, false},
		{"infinity less infinity", func(b *graph.Builder, x *graph.Node) *graph.Node {
			low := b.Const(graph.Filled(x.Type, math.Inf(-1)))
			return b.Named(b.Binary(graph.Sub, b.Binary(graph.Add, x, low), low), "difference")
		}, 0, []string{`"difference"`, "made NaN"}, false},
		{"without a name, in a fusion", func(b *graph.Builder, x *graph.Node) *graph.Node {
			y := b.MatMul(x, b.Param("w", f32(3, 2)), false, false)
			return b.Unary(graph.Tanh, b.Unary(graph.Log, b.BinaryScalar(graph.Sub, y, 1)))
		}, 0, []string{` of "x" and "w" (watch_test.go:`, "made NaN of operands without NaN"}, false},
		{"without a name, alone", func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Add(graph.Concat{Axis: 0}, b.Unary(graph.Recip, x), x)
		}, 0, []string{`recip %1 of "x" (watch_test.go:`, "made Inf of finite operands"}, false},
		{"an input", func(b *graph.Builder, x *graph.Node) *graph.Node { return b.Unary(graph.Tanh, x) },
			float32(math.NaN()), []string{`input "x" holds NaN`}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := graph.NewBuilder("watched")
			count := b.State("count", f32())
			b.Update(count, b.BinaryScalar(graph.Add, count, 1))
			b.Output("y", c.build(b, b.Input("x", f32(2, 3))))
			p := compiled(t, b, fusec.WithWatchNonFinite())
			x := tensorOf(t, []float32{1, 1, 1, 1, 1, 1}, 2, 3)
			in := map[string]*graph.Tensor{"x": x}
			for _, s := range p.Lowered().Buffers {
				if s.Name == "w" {
					in["w"] = graph.Filled(f32(3, 2), 1)
				}
			}
			if c.name != "infinity less infinity" {
				if _, err := p.Run(in); err != nil {
					t.Fatalf("finite values: %v", err)
				}
			}
			before, err := p.State("count")
			if err != nil {
				t.Fatal(err)
			}
			had := before.Float(0)
			for i := range x.Data.([]float32)[:3] {
				x.Data.([]float32)[i] = c.x
			}
			_, err = p.Run(in)
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("the error does not mention %q: %v", want, err)
				}
			}
			var fault *fusec.NonFiniteError
			if !errors.As(err, &fault) || fault.Source != c.source {
				t.Errorf("the error is %#v", err)
			}
			if before.Float(0) != had {
				t.Error("the run that was ended counted")
			}
		})
	}
}

// What is not finite on purpose is not reported: masks of −Inf, and a query with nothing to attend.
func TestWatchLetsMasksPass(t *testing.T) {
	b := graph.NewBuilder("masked")
	q := b.Input("q", f32(1, 4, 8))
	scores := b.BinaryScalar(graph.Mul, b.MatMul(q, q, false, true), 0.3)
	low := graph.Filled(f32(1, 4, 4), math.Inf(-1))
	for i := range 3 {
		low.SetFloat(5*i, 0) // the last query attends nothing
	}
	scores = b.Binary(graph.Add, scores, b.Const(low))
	b.Output("y", b.MatMul(b.Add(graph.Softmax{Axis: 2}, scores), q, false, false))
	p := compiled(t, b, fusec.WithWatchNonFinite())
	if _, err := p.Run(map[string]*graph.Tensor{"q": graph.Filled(f32(1, 4, 8), 0.1)}); err != nil {
		t.Error(err)
	}
}

// TestWithReference has the reference compute what each launch makes: on the CPU within the bound, watched for NaN at the
// same time, and on an overlay in integers of 8 bits out of it. A program that is not compared has no departures.
func TestWithReference(t *testing.T) {
	b := graph.NewBuilder("compared")
	x := b.Input("x", f32(5, 7))
	y := b.Unary(graph.Relu, b.MatMul(x, b.Param("w", f32(7, 3)), false, false))
	b.Output("y", b.Add(graph.Softmax{Axis: 1}, y))
	in := map[string]*graph.Tensor{"x": graph.Filled(f32(5, 7), 0.3), "w": graph.Filled(f32(7, 3), 0.7)}
	in["x"].SetFloat(4, -2)
	for name, c := range map[string]struct {
		opts []fusec.CompileOption
		off  bool
	}{
		"cpu":  {[]fusec.CompileOption{fusec.WithReference(), fusec.WithWatchNonFinite()}, false},
		"ref":  {[]fusec.CompileOption{fusec.WithReference(), fusec.WithTarget("ref")}, false},
		"fpga": {[]fusec.CompileOption{fusec.WithReference(), fusec.WithTarget("fpga", fpga.Link("model"))}, true},
	} {
		p := compiled(t, b, c.opts...)
		for range 2 {
			if _, err := p.Run(in); err != nil {
				t.Fatal(err)
			}
		}
		if got := len(p.Departures()); got != len(p.Fusions()) {
			t.Errorf("%s: %d departures of %d launches", name, got, len(p.Fusions()))
		}
		off := 0
		for _, d := range p.Departures() {
			off += d.Off
			if d.Elements == 0 || d.Worst < 0 || d.Off > 0 != (d.Worst > 1) {
				t.Errorf("%s: %+v", name, d)
			}
		}
		if off > 0 != c.off {
			t.Errorf("%s: %d elements off", name, off)
		}
	}
	p := compiled(t, b)
	if _, err := p.Run(in); err != nil || p.Departures() != nil {
		t.Errorf("error %v, departures %v of a program that is not compared", err, p.Departures())
	}
}
