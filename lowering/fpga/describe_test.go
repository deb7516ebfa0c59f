package fpga

import (
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/fpga/plan"
	"fusec/graph"
	"fusec/graph/trace"
	"fusec/lowering"
	"fusec/lowering/cpu"
)

// TestDescribe holds what a trace says of a program: where ranges come from, what it takes, or why it does not run.
func TestDescribe(t *testing.T) {
	sample := map[string]*graph.Tensor{"x": graph.NewTensor(f32(19, 24))}
	ranges := []Range{}
	large := func(b *graph.Builder) { b.Output("y", linear(b, b.Input("x", f32(900, 64)), "l", 64)) }
	for _, c := range []struct {
		name    string
		build   func(b *graph.Builder)
		options []Option
		want    []string
	}{
		{"nothing", two, nil, []string{"on the inputs of the first run", "on the overlay sim8 the launches take about"}},
		{"samples", two, []Option{Samples(sample, sample)}, []string{"on 2 samples of the inputs"}},
		{"ranges", two, []Option{Calibrated(ranges)}, []string{"on the samples that the program was compiled with"}},
		{"too large", large, []Option{For(overlay(t, "hx8k"))}, []string{"cannot run on the overlay hx8k", "65536"}},
	} {
		d := New(c.options...)
		tr := &trace.Trace{Stages: make([]trace.Stage, 2)}
		d.Describe(tr, lowered(t, built(t, c.build), d))
		var notes []string
		for _, n := range tr.Stages[1].Notes {
			notes = append(notes, n.Text)
		}
		said := strings.Join(notes, "\n")
		for _, w := range c.want {
			if !strings.Contains(said, w) {
				t.Errorf("%s: %q is not said in\n%s", c.name, w, said)
			}
		}
		if tr.Chip != d.Overlay().Name || tr.Precision != "int8" {
			t.Errorf("%s: overlay %q, precision %q", c.name, tr.Chip, tr.Precision)
		}
	}
}

// TestRouted plans a mixture whose router sends all tokens to two experts of eight: it takes other cycles than one whose
// experts get equally many, and fewer, since the weights of six are not read.
func TestRouted(t *testing.T) {
	g := built(t, func(b *graph.Builder) {
		mixture(b, graph.MoE{Experts: 8, Activation: graph.Relu, Bias: true, Stacked: true, TopK: 2}, 32, 64, 128, 2)
	})
	memory := func(d *Device) { d.memory = plan.Memory{Bytes: 1, Latency: 40} }
	d := New(memory)
	p := lowered(t, g, d)
	values := map[string]*graph.Tensor{}
	r := rand.New(rand.NewPCG(3, 4))
	for _, b := range p.Buffers {
		if b.Role == lowering.Input || b.Role == lowering.Param {
			values[b.Name] = randomOf(b, r)
		}
	}
	for i := range 8 {
		values["gate.b"].SetFloat(i, 100*float64(i))
	}
	cycles := func(d *Device) (sum int64) {
		t.Helper()
		listing, err := d.Plan(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range listing.Launches {
			sum += l.Estimate
		}
		return sum
	}
	even, routed := cycles(d), cycles(New(memory, Routed(values), Processor(cpu.New(cpu.Workers(2)))))
	if !(routed < even*3/4) {
		t.Errorf("%d cycles with two experts, %d with eight", routed, even)
	}
	delete(values, "w1")
	_, err := New(Routed(values)).Plan(p)
	wants(t, err, `param "w1" has no value`)
}

// TestAccounts holds what an executable tells of itself.
func TestAccounts(t *testing.T) {
	e, p := compiled(t, built(t, two))
	var x lowering.Executable = e
	x.Profile(true)
	if err := x.Start(); err != nil {
		t.Fatal(err)
	}
	if err := x.Sync(); err != nil {
		t.Fatal(err)
	}
	m := x.Memory()
	if want := p.Buffers[p.Outputs[0].Buffer].Type.Bytes(); m.Outputs != want || m.Arena <= 0 || m.Kernels <= 0 {
		t.Errorf("memory %+v, want %d bytes of outputs", m, want)
	}
	if len(x.Times()) != len(p.Launches) || len(x.Counts().Launches) != len(p.Launches) {
		t.Errorf("%d times and %d counts of %d launches", len(x.Times()), len(x.Counts().Launches), len(p.Launches))
	}
	if n := e.Counts().Program.Get(Quantised); n != 1 {
		t.Errorf("weights were quantised %v times", n)
	}
}

// TestArithmetic runs operations with numbers and rows on the overlay, whichever side they are on, and compares with the
// processor.
func TestArithmetic(t *testing.T) {
	row := func(b *graph.Builder, x *graph.Node) *graph.Node {
		return b.Broadcast(b.Param("row", f32(16)), x.Type.Shape)
	}
	constant := func(b *graph.Builder, x *graph.Node, v float64) *graph.Node {
		return b.Broadcast(b.Const(graph.Scalar(graph.F32, v)), x.Type.Shape)
	}
	for name, f := range map[string]func(b *graph.Builder, x, y *graph.Node) *graph.Node{
		"x + row": func(b *graph.Builder, x, _ *graph.Node) *graph.Node { return b.Binary(graph.Add, x, row(b, x)) },
		"x - row": func(b *graph.Builder, x, _ *graph.Node) *graph.Node { return b.Binary(graph.Sub, x, row(b, x)) },
		"row - x": func(b *graph.Builder, x, _ *graph.Node) *graph.Node { return b.Binary(graph.Sub, row(b, x), x) },
		"x * row": func(b *graph.Builder, x, _ *graph.Node) *graph.Node { return b.Binary(graph.Mul, x, row(b, x)) },
		"x / 3":   func(b *graph.Builder, x, _ *graph.Node) *graph.Node { return b.BinaryScalar(graph.Div, x, 3) },
		"2 - relu(x)": func(b *graph.Builder, x, _ *graph.Node) *graph.Node {
			return b.Binary(graph.Sub, constant(b, x, 2), b.Unary(graph.Relu, x))
		},
		"2 / (1 + e^x)": func(b *graph.Builder, x, _ *graph.Node) *graph.Node {
			return b.Binary(graph.Div, constant(b, x, 2), b.BinaryScalar(graph.Add, b.Unary(graph.Exp, x), 1))
		},
		"max(x, 0.5)": func(b *graph.Builder, x, _ *graph.Node) *graph.Node {
			return b.Binary(graph.Max, x, constant(b, x, 0.5))
		},
		"x - y": func(b *graph.Builder, x, y *graph.Node) *graph.Node { return b.Binary(graph.Sub, x, y) },
		"x - 2y": func(b *graph.Builder, x, y *graph.Node) *graph.Node {
			return b.Binary(graph.Sub, x, b.BinaryScalar(graph.Mul, y, 2))
		},
		"x * y": func(b *graph.Builder, x, y *graph.Node) *graph.Node { return b.Binary(graph.Mul, x, y) },
		"tanh(x) squared": func(b *graph.Builder, x, _ *graph.Node) *graph.Node {
			v := b.Unary(graph.Tanh, x)
			return b.Binary(graph.Mul, v, v)
		},
	} {
		t.Run(name, func(t *testing.T) {
			e, p := compiled(t, built(t, func(b *graph.Builder) {
				x := b.Input("x", f32(12, 16))
				b.Output("y", f(b, x, b.Input("z", f32(12, 16))))
			}))
			for i, l := range p.Launches {
				if l.Device != "" {
					t.Errorf("launch %d is the processor's: %s", i, l.Reason)
				}
			}
			if err := e.Run(); err != nil { // which finds the ranges
				t.Fatal(err)
			}
			for i, d := range own(t, e) {
				if !(d.rms <= 0.01) {
					t.Errorf("launch %d departs by %.4f rms", i, d.rms)
				}
			}
		})
	}
}
