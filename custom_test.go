package fusec_test

import (
	"bytes"
	"math"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/graph"
	"fusec/graph/dot"
	"fusec/graph/fuselock"
	"fusec/graph/graphtest"
	"fusec/graph/nn"
	"fusec/lowering/cuda"
)

// fails makes the Go body of the custom function test_fails panic.
var fails atomic.Bool

func init() {
	for _, f := range []graph.CustomInfo{
		{Name: "test_host_only", Operands: 1, Eval: func(x []float64) float64 { return math.Cos(x[0]) }},
		{Name: "test_fails", Operands: 2, Eval: func(x []float64) float64 {
			if fails.Load() {
				panic("the user's mistake")
			}
			return x[0] - x[1]
		}},
	} {
		if err := graph.RegisterCustom(f); err != nil {
			panic(err)
		}
	}
}

// customLayer is softsign(x·w + b), blended with x·w by a third matrix.
func customLayer() *graph.Builder {
	b := graph.NewBuilder("layer")
	f32 := func(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }
	x, w := b.Input("x", f32(37, 20)), b.Param("w", f32(20, 50))
	y := b.MatMul(x, w, false, false)
	h := b.Binary(graph.Add, y, b.Broadcast(b.Param("bias", f32(50)), y.Type.Shape))
	b.Output("y", b.Custom(graphtest.Blend, b.Named(b.Custom(graphtest.Softsign, h), "act"), y, b.Input("gate", f32(37, 50))))
	return b
}

// TestCustomFuses: custom functions are part of the product's launch, in pictures, in the lock file, and in the file of the
// graph, and compute the same on all targets.
func TestCustomFuses(t *testing.T) {
	g := built(t, customLayer())
	path := filepath.Join(t.TempDir(), "layer.graph")
	if err := graph.Save(path, g, nil); err != nil {
		t.Fatal(err)
	}
	g, err := graph.LoadGraph(path)
	if err != nil {
		t.Fatal(err)
	}
	in := map[string]*graph.Tensor{}
	for _, n := range g.Sources() {
		in[n.Name] = graph.NewTensor(n.Type)
		for i := range n.Type.Shape.Elems() {
			in[n.Name].SetFloat(i, math.Sin(float64(i*i+len(n.Name))))
		}
	}
	var want []float64
	for _, target := range []fusec.Option{fusec.WithTarget("ref"), fusec.WithTarget("cpu"), emulated(t)} {
		p, err := fusec.Compile(g, target)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		out, err := p.Run(in)
		if err != nil {
			t.Fatal(err)
		}
		if want == nil {
			want = out["y"].Floats()
			continue
		}
		sameFloats(t, "the layer", out["y"].Floats(), want, 1e-5)
		if f := p.Fusions(); len(f) != 1 || f[0].Kind != "linear" {
			t.Errorf("launches %v", f)
		}
		var picture bytes.Buffer
		tr := p.Trace()
		if err := dot.Stage(&picture, tr, len(tr.Stages)-1, dot.Options{Format: dot.FormatDOT}); err != nil {
			t.Fatal(err)
		}
		lock, err := fuselock.Of(tr)
		if err != nil {
			t.Fatal(err)
		}
		for what, text := range map[string]string{"the picture": picture.String(), "the lock file": lock.Fusions[0].String()} {
			if !strings.Contains(text, "test_softsign") && !strings.Contains(text, "act") {
				t.Errorf("%s does not show the function:\n%s", what, text)
			}
		}
	}
}

// ownSoftsign is a Gorgonia operation of a program's own that says what it computes by a custom function.
type ownSoftsign struct{ sine }

func (*ownSoftsign) String() string { return "ownSoftsign" }

func (*ownSoftsign) Build(b *graph.Builder, args []*graph.Node) (*graph.Node, error) {
	return b.Custom(graphtest.Softsign, args...), nil
}

// TestCustomBuilder: such an operation fuses, and its Do is not called.
func TestCustomBuilder(t *testing.T) {
	b := newNet(tensor.Float64)
	x := b.in("x", 3, 4)
	y := must(gorgonia.Square(must(gorgonia.ApplyOp(&ownSoftsign{sine{fail: "panic"}}, must(gorgonia.Tanh(x))))))
	m := machine(t, b.g)
	run(t, m)
	want := floats(t, x.Value())
	for i, v := range want {
		h := math.Tanh(v)
		want[i] = math.Pow(h/(1+math.Abs(h)), 2)
	}
	sameFloats(t, "the value", floats(t, y.Value()), want, 1e-12)
	if f := m.Fusions(); len(f) != 1 || f[0].Kind != "elementwise" {
		t.Errorf("launches %v", f)
	}
}

// TestCustomAhead: a file that was compiled ahead of time for a chip has the kernels of the CUDA body.
func TestCustomAhead(t *testing.T) {
	g := built(t, customLayer())
	in, weights := map[string]*graph.Tensor{}, map[string]*graph.Tensor{}
	for _, n := range g.Sources() {
		v := graph.Filled(n.Type, 0.1)
		if in[n.Name] = v; n.Name == "w" || n.Name == "bias" {
			weights[n.Name] = v
		}
	}
	path := filepath.Join(t.TempDir(), "layer.fuse")
	if err := fusec.CompileAhead(path, g, weights, nil, emulated(t), fusec.WithTarget("cuda", cuda.Arch("sm_90a"))); err != nil {
		t.Fatal(err)
	}
	a, err := fusec.OpenAhead(path)
	if err != nil {
		t.Fatal(err)
	}
	p, err := fusec.Compile(a.Graph, fusec.WithAhead(a), emulated(t))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	out, err := p.Run(in)
	if err != nil {
		t.Fatal(err)
	}
	h := 20*0.1*0.1 + 0.1
	s := 1 / (1 + math.Exp(-0.1))
	sameFloats(t, "the layer", out["y"].Floats()[:1], []float64{s*h/(1+h) + (1-s)*(h-0.1)}, 1e-6)
}

// TestCustomOnHost: what has no body for a GPU runs on the processor, with the reason, and leaves the product on the GPU.
func TestCustomOnHost(t *testing.T) {
	b := graph.NewBuilder("layer")
	in := b.Input("x", graph.TypeOf(graph.F32, 5, 5))
	b.Output("y", b.BinaryScalar(graph.Mul, b.Custom("test_host_only", b.Unary(graph.Tanh, b.MatMul(in, in, false, false))), 2))
	g := built(t, b)
	x := graph.Filled(graph.TypeOf(graph.F32, 5, 5), 0.25)
	p, err := fusec.Compile(g, emulated(t))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	out, err := p.Run(map[string]*graph.Tensor{"x": x})
	if err != nil {
		t.Fatal(err)
	}
	sameFloats(t, "the value", out["y"].Floats()[:1], []float64{2 * math.Cos(math.Tanh(5.0/16))}, 1e-6)
	if n := len(p.Fusions()); n != 3 {
		t.Errorf("%d launches: %v", n, p.Fusions())
	}
	var notes []string
	for _, s := range p.Trace().Stages {
		for _, n := range s.Notes {
			notes = append(notes, n.Text)
		}
	}
	if text := strings.Join(notes, "\n"); !strings.Contains(text,
		"runs on the processor: the custom function test_host_only has no body for CUDA") {
		t.Errorf("the notes do not give the reason:\n%s", text)
	}
}

// TestCustomPanic: a mistake in the Go body is an error that names the node, and the next run works.
func TestCustomPanic(t *testing.T) {
	b := newNet(tensor.Float32)
	x := b.in("x", 30, 40)
	gorgonia.WithName("mine")(must(nn.Custom("test_fails", must(gorgonia.Tanh(x)), x)))
	m := machine(t, b.g, fusec.WithWorkers(2))
	fails.Store(true)
	err := m.RunAll()
	fails.Store(false)
	wantError(t, err, "mine", "the user's mistake")
	run(t, m)
	if _, err := nn.Custom("test_fails", x); err == nil || !strings.Contains(err.Error(), "test_fails takes 2 operands, not 1") {
		t.Errorf("error %v", err)
	}
}
