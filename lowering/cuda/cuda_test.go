package cuda_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/ref"
	"fusec/lowering"
	"fusec/lowering/cuda"
	"fusec/passes/passtest"
)

// built is the graph that a function makes.
var built = graphtest.Built

// lowered is the program of a graph.
func lowered(t testing.TB, g *graph.Graph, d *cuda.Device) *lowering.Program {
	t.Helper()
	return passtest.Lowered(t, g, d, false)
}

// compiled is g as an executable with values bound to its sources.
func compiled(t testing.TB, g *graph.Graph, in map[string]*graph.Tensor,
	opts ...cuda.Option) (lowering.Executable, *lowering.Program) {
	t.Helper()
	return compiledOf(t, g, in, false, opts...)
}

// compiledOf is compiled with parameters that change only by Bind if frozen is set.
func compiledOf(t testing.TB, g *graph.Graph, in map[string]*graph.Tensor, frozen bool,
	opts ...cuda.Option) (lowering.Executable, *lowering.Program) {
	t.Helper()
	gpu, compiler := open(t)
	d := cuda.New(append([]cuda.Option{cuda.On(gpu, compiler)}, opts...)...)
	p := passtest.Lowered(t, g, d, frozen)
	var sources []string
	for _, s := range d.Sources(p) {
		sources = append(sources, s.Text)
	}
	ready(t, compiler, sources, gpu.Chip())
	e, err := d.Compile(p)
	if err != nil {
		t.Fatalf("%v\n%s", err, graph.Print(g))
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	for i, b := range p.Buffers {
		switch b.Role {
		case lowering.Input, lowering.Param, lowering.State:
			if err := e.Bind(i, in[b.Name].Clone()); err != nil {
				t.Fatal(err)
			}
		}
	}
	return e, p
}

// check runs g twice on the GPU and compares the first run with the reference, and the second, from the same state, with
// the first: the same bits.
func check(t *testing.T, g *graph.Graph, in map[string]*graph.Tensor) *lowering.Program {
	t.Helper()
	want, updates, err := ref.EvalBound(g, in)
	if err != nil {
		t.Fatalf("reference: %v\n%s", err, graph.Print(g))
	}
	e, p := compiled(t, g, in)
	var first []*graph.Tensor
	for run := range 2 {
		bound := map[int]*graph.Tensor{}
		for i, b := range p.Buffers {
			if b.Role == lowering.State || b.Role == lowering.Param {
				bound[i] = in[b.Name].Clone()
				if err := e.Bind(i, bound[i]); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := e.Run(); err != nil {
			t.Fatalf("%v\n%s\n%v", err, graph.Print(g), p)
		}
		if err := e.Sync(); err != nil {
			t.Fatal(err)
		}
		var got []*graph.Tensor
		for _, o := range p.Outputs {
			v := e.Output(o.Buffer)
			if err := ref.Check(v, want[o.Name]); err != nil {
				t.Fatalf("output %q: %v\n%s\n%v", o.Name, err, graph.Print(g), p)
			}
			got = append(got, v.Clone())
		}
		for _, u := range p.Updates {
			if err := ref.Check(bound[u.Target], updates[p.Buffers[u.Target].Name]); err != nil {
				t.Fatalf("update of %q: %v\n%s\n%v", p.Buffers[u.Target].Name, err, graph.Print(g), p)
			}
			got = append(got, bound[u.Target])
		}
		if run == 0 {
			first = got
		}
		for i, v := range got {
			if !v.Equal(first[i]) {
				t.Fatalf("two runs differ in result %d\n%s", i, graph.Print(g))
			}
		}
	}
	return p
}

// TestRandomGraphs compares random programs with the reference; what has no kernel runs on the processor.
func TestRandomGraphs(t *testing.T) {
	for seed := range uint64(6 * effort) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 7))
			g := graphtest.Random(r, graphtest.Options{Nodes: 5 + r.IntN(20), Allow: func(name string) bool { return name != "host" }})
			in := graphtest.Values(r, g)
			for n, v := range graphtest.Weights(r, g) {
				in[n] = v
			}
			check(t, g, in)
		})
	}
}

// onBoth has a launch on the GPU before and behind one that must run on the processor: a user's operation.
func onBoth(b *graph.Builder) {
	x := b.Input("x", graph.TypeOf(graph.F32, 6, 8))
	y := b.Unary(graph.GeluTanh, b.BinaryScalar(graph.Add, x, 0.5))
	h := b.Add(graph.Host{Name: "half", Type: y.Type, Impl: half{}}, y)
	b.Output("y", b.Unary(graph.Tanh, b.Binary(graph.Mul, h, x)))
}

// half is a user's operation.
type half struct{}

func (half) Do(args []*graph.Tensor) (*graph.Tensor, error) {
	y := args[0].Clone()
	for i := range y.Type.Shape.Elems() {
		y.SetFloat(i, y.Float(i)/2)
	}
	return y, nil
}

// TestHost runs a user's operation between two launches on the GPU; the program says where each runs, and why.
func TestHost(t *testing.T) {
	g := built(t, onBoth)
	in := graphtest.Values(rand.New(rand.NewPCG(1, 1)), g)
	e, p := compiled(t, g, in)
	var where []string
	for _, l := range p.Launches {
		where = append(where, l.Device)
	}
	if fmt.Sprint(where) != "[ cpu ]" || !strings.Contains(p.Launches[1].Reason, "host") {
		t.Fatalf("launches on %q, the second because %q", where, p.Launches[1].Reason)
	}
	for range 2 {
		if err := e.Run(); err != nil {
			t.Fatal(err)
		}
	}
	gelu := func(x float64) float64 { return graph.GeluTanh.Eval(x, 0) }
	got := e.Output(p.Outputs[0].Buffer)
	for i := range got.Type.Shape.Elems() {
		x := in["x"].Float(i)
		if want := graph.Tanh.Eval(gelu(x+0.5)/2*x, 0); got.Float(i)-want > 1e-6 || want-got.Float(i) > 1e-6 {
			t.Fatalf("element %d is %v, not %v", i, got.Float(i), want)
		}
	}
}

// TestSquaredNorm sums the squares of elements of all types together.
func TestSquaredNorm(t *testing.T) {
	g := built(t, func(b *graph.Builder) {
		var args []*graph.Node
		for _, d := range []graph.DType{graph.F32, graph.BF16, graph.F64, graph.F16, graph.BF16} {
			args = append(args, b.Input(fmt.Sprint("x", len(args)), graph.TypeOf(d, 5000+len(args))))
		}
		b.Output("y", b.Add(graph.SquaredNorm{}, args...))
	})
	check(t, g, values(g))
}
