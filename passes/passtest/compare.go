package passtest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/trace"
	"fusec/kernels/ref"
	program "fusec/lowering"
	"fusec/lowering/cpu"
	"fusec/passes"
)

// Same reports where two graphs give different values on random inputs. Where the first gives NaN, the second may give
// anything, and a number where the first overflows: a rewrite may be right where arithmetic as written is not.
func Same(g, h *graph.Graph, in map[string]*graph.Tensor) error {
	want, wantUp, err := ref.EvalBound(g, in)
	if err != nil {
		return fmt.Errorf("before: %w", err)
	}
	got, gotUp, err := ref.EvalBound(h, in)
	if err != nil {
		return fmt.Errorf("after: %w", err)
	}
	if len(want) != len(got) || len(wantUp) != len(gotUp) {
		return fmt.Errorf("%d outputs and %d updates became %d and %d", len(want), len(wantUp), len(got), len(gotUp))
	}
	for name, w := range want {
		if err := sameValue(w, got[name]); err != nil {
			return fmt.Errorf("output %q: %w", name, err)
		}
	}
	for name, w := range wantUp {
		if err := sameValue(w, gotUp[name]); err != nil {
			return fmt.Errorf("update of %q: %w", name, err)
		}
	}
	return nil
}

func sameValue(want, got ref.Value) error {
	if want.Type != got.Type {
		return fmt.Errorf("type %v became %v", want.Type, got.Type)
	}
	for i, w := range want.I {
		if math.IsInf(magnitude(want, i), 1) {
			continue
		}
		if w != got.I[i] {
			return fmt.Errorf("element %d: %d became %d", i, w, got.I[i])
		}
	}
	eps := 1e-5
	switch want.Type.DType {
	case graph.F64:
		eps = 1e-6 // constants written to six digits
	case graph.BF16, graph.F16:
		eps = want.Type.DType.Epsilon()
	}
	for i, w := range want.F {
		v := got.F[i]
		mag := magnitude(want, i)
		if w == v || math.IsNaN(w) || math.IsInf(w, 0) && !math.IsNaN(v-v) || math.IsInf(mag, 1) || math.Abs(w-v) <= eps*mag {
			continue
		}
		return fmt.Errorf("element %d: %v became %v (± %g)", i, w, v, eps*mag)
	}
	return nil
}

func magnitude(v ref.Value, i int) float64 {
	if v.Mag != nil {
		return v.Mag[i]
	}
	if v.F != nil {
		return math.Abs(v.F[i])
	}
	return 0
}

// Contracts checks what the rules that changed a graph say of its numbers: from each stage of a compilation to the next, no
// value that is handed out may depart by more than the weakest contract of the stage's rewrites allows. It returns how many
// stages it compared, by the class of that contract. Stages that the reference cannot compute, since gradients are requested
// in them, are left out.
func Contracts(tr *trace.Trace, in map[string]*graph.Tensor) (map[trace.Class]int, error) {
	compared := map[trace.Class]int{}
	before := -1 // the last stage that was computed
	var values map[string]ref.Value
	contract := trace.Exact
	for i := range tr.Stages {
		s := &tr.Stages[i]
		if s.Numeric.Weaker(contract) {
			contract = s.Numeric
		}
		if before >= 0 && !s.Numeric.Stated() {
			continue
		}
		outputs, updates, err := ref.EvalBound(s.Graph, in)
		if err != nil {
			continue
		}
		for name, v := range updates {
			outputs["update of "+name] = v
		}
		if before >= 0 {
			for name, want := range values {
				if err := within(contract, want, outputs[name]); err != nil {
					return compared, fmt.Errorf("stage %s (%s), %q: %w", s.Name, Matched(s), name, err)
				}
			}
			compared[contract.Class]++
		}
		before, values, contract = i, outputs, trace.Exact
	}
	return compared, nil
}

// within checks a value by a contract, where it is finite and the reference is sure of it.
func within(c trace.Numeric, want, got ref.Value) error {
	for i, w := range want.I {
		if w != got.I[i] && !math.IsInf(magnitude(want, i), 1) {
			return fmt.Errorf("element %d: %d became %d, which is not %v", i, w, got.I[i], c)
		}
	}
	for i, w := range want.F {
		v, room := got.F[i], 0.0
		if c.Class != trace.ClassExact {
			room = c.Bound * magnitude(want, i)
		}
		if w-w == 0 && v-v == 0 && !math.IsInf(magnitude(want, i), 1) && !(math.Abs(w-v) <= room) {
			return fmt.Errorf("element %d: %v became %v, which is not %v (%.3g)", i, w, v, c, room)
		}
	}
	return nil
}

// Eval computes what the graph means.
func Eval(t testing.TB, g *graph.Graph, in map[string]*graph.Tensor) (outputs, updates map[string]*graph.Tensor) {
	t.Helper()
	outputs, updates, err := ref.Eval(g, in)
	if err != nil {
		t.Fatal(err)
	}
	return outputs, updates
}

// SameNumbers checks that two graphs give the same numbers, up to the rounding of constants. Unlike [Same] it allows for
// nothing large on the way: −1e9 is meant to vanish.
func SameNumbers(t *testing.T, g, h *graph.Graph, in map[string]*graph.Tensor) {
	t.Helper()
	want, _ := Eval(t, g, in)
	got, _ := Eval(t, h, in)
	for name, w := range want {
		if got[name].Type != w.Type {
			t.Fatalf("output %q: %v became %v", name, w.Type, got[name].Type)
		}
		for i := range w.Type.Shape.Elems() {
			x, y := w.Float(i), got[name].Float(i)
			if !(math.Abs(x-y) <= 1e-6*(1+math.Abs(x))) {
				t.Fatalf("output %q, element %d: %v became %v\nbefore: %s\nafter:  %s (%s)", name, i, x, y, Ops(g), Ops(h), Attention(h))
			}
		}
	}
}

// Near compares what two graphs compute in norm, output by output and update by update: h may be off by limit times the
// norm of g's value.
func Near(t *testing.T, g, h *graph.Graph, in map[string]*graph.Tensor, limit float64) {
	t.Helper()
	outputs, updates := Eval(t, g, in)
	gotOutputs, gotUpdates := Eval(t, h, in)
	for _, pair := range []struct{ got, want map[string]*graph.Tensor }{{gotOutputs, outputs}, {gotUpdates, updates}} {
		for name, want := range pair.want {
			off, size := 0.0, 0.0
			for i, w := range want.Floats() {
				off, size = off+math.Pow(pair.got[name].Float(i)-w, 2), size+w*w
			}
			if !(math.Sqrt(off) <= limit*math.Sqrt(size)) {
				t.Errorf("%s is off by %.3g of %.3g", name, math.Sqrt(off), math.Sqrt(size))
			}
		}
	}
}

// SameOnCPU runs the compiled graph h on the CPU and compares with what g means.
func SameOnCPU(t *testing.T, g, h *graph.Graph, in map[string]*graph.Tensor) {
	t.Helper()
	want, _, err := ref.EvalBound(g, in)
	if err != nil {
		t.Fatal(err)
	}
	d := cpu.New()
	p, err := program.Lower(h, d.Name(), d.Lowering()...)
	if err != nil {
		t.Fatal(err)
	}
	e, err := d.Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for i, b := range p.Buffers {
		if b.Role == program.Input || b.Role == program.Param || b.Role == program.State {
			if err := e.Bind(i, in[b.Name]); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := e.Run(); err != nil {
		t.Fatal(err)
	}
	for _, o := range p.Outputs {
		if err := ref.Check(e.Output(o.Buffer), want[o.Name]); err != nil {
			t.Fatalf("output %q: %v\nof %s (%s)\n%v", o.Name, err, Ops(g), Attention(h), p)
		}
	}
}

// Gradients compiles g and compares each output named "d NAME" with the finite difference of the output "cost" by
// the source NAME.
func Gradients(t *testing.T, g *graph.Graph, cfg passes.Config) (*graph.Graph, *trace.Trace) {
	t.Helper()
	cfg.Verify = true
	h, tr, err := passes.Run(g, cfg)
	if err != nil {
		t.Fatal(err)
	}
	in := graphtest.Values(rand.New(rand.NewPCG(1, 2)), g)
	eval := func(g *graph.Graph) map[string]*graph.Tensor {
		out, _ := Eval(t, g, in)
		return out
	}
	got := eval(h)
	checked := 0
	for name, d := range got {
		of := in[strings.TrimPrefix(name, "d ")]
		if of == nil || !strings.HasPrefix(name, "d ") {
			continue
		}
		checked++
		for i := range of.Type.Shape.Elems() {
			const step = 1e-5
			v := of.Float(i)
			of.SetFloat(i, v+step)
			up := eval(g)["cost"].Float(0)
			of.SetFloat(i, v-step)
			down := eval(g)["cost"].Float(0)
			of.SetFloat(i, v)
			if want := (up - down) / (2 * step); math.Abs(d.Float(i)-want) > 1e-5*(1+math.Abs(want)) {
				t.Errorf("%s[%d] is %v, by finite differences %v", name, i, d.Float(i), want)
			}
		}
	}
	if checked == 0 {
		t.Errorf("no gradient is handed out")
	}
	return h, tr
}

// Trained is the graph of y with the sum of its squares as the output "cost", and asks for the gradient by each source
// of floats NAME as the output "d NAME".
func Trained(t *testing.T, build func(b *graph.Builder) (y *graph.Node)) (*graph.Graph, passes.Config) {
	t.Helper()
	var cfg passes.Config
	g := graphtest.Built(t, func(b *graph.Builder) {
		y := build(b)
		axes := make([]int, y.Type.Shape.Rank())
		for i := range axes {
			axes[i] = i
		}
		cost := b.Reduce(graph.Sum, b.Unary(graph.Square, y), false, axes...)
		b.Output("cost", cost)
		for _, of := range Sources(y) {
			if of.Type.DType.IsFloat() {
				cfg.Gradients = append(cfg.Gradients, passes.Gradient{Cost: cost, Of: of, Output: "d " + of.Name})
			}
		}
	})
	return g, cfg
}
