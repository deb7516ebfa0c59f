package fusec_test

import (
	"errors"
	"strings"
	"testing"

	"fusec"
	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/optim"
	"fusec/graph/trace"
	"fusec/lowering"
	"fusec/passes"
	"fusec/passes/passtest"
)

// refusing is a target that has no kernel for one operation.
type refusing struct{ op string }

func (refusing) Name() string { return "cpu" }

func (r refusing) Accepts(op graph.Op, _, _ []graph.Type) error {
	if op.OpName() == r.op {
		return errors.New("there is no kernel")
	}
	return nil
}

// lowered compiles g for a target and lowers it.
func lowered(t *testing.T, g *graph.Graph, target passes.Target) *trace.Trace {
	t.Helper()
	final, tr, err := passes.Run(g, passes.Config{Target: target, Verify: true})
	if err != nil {
		t.Fatal(err)
	}
	p, err := lowering.Lower(final, "cpu")
	if err != nil {
		t.Fatal(err)
	}
	tr.Program = p.Trace()
	return tr
}

// TestMissSaves compares what a missed fusion is said to cost with what the program costs on a target that has the kernel.
func TestMissSaves(t *testing.T) {
	for _, tt := range []struct {
		name, op string
		build    func(b *graph.Builder)
		launches int
	}{
		{"attention", "attention", func(b *graph.Builder) {
			q, k, v := passtest.QKV(b, graph.F32, 5, 7, 3)
			b.Output("y", passtest.Attend(b, q, k, v))
		}, 2},
		{"attention between layers", "attention", func(b *graph.Builder) {
			q, k, v := passtest.QKV(b, graph.F32, 5, 7, 3)
			y := passtest.Attend(b, b.MatMul(q, b.Param("wq", graph.TypeOf(graph.F32, 4, 4)), false, false), k, v,
				func(b *graph.Builder, x *graph.Node) *graph.Node { return b.BinaryScalar(graph.Mul, x, 0.5) })
			b.Output("y", b.Unary(graph.Relu, b.MatMul(y, b.Param("wo", graph.TypeOf(graph.F32, 6, 4)), false, false)))
		}, 2},
		{"gelu in the launch of its product", "unary", func(b *graph.Builder) {
			x := b.MatMul(b.Input("x", graph.TypeOf(graph.F32, 3, 5)), b.Param("w", graph.TypeOf(graph.F32, 5, 4)), false, false)
			b.Output("y", passtest.Relu(b, x))
		}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := graphtest.Built(t, tt.build)
			with, without := lowered(t, g, refusing{}), lowered(t, g, refusing{tt.op})
			missed := without.Missed()
			if len(missed) != 1 || len(missed[0].List) != 1 {
				t.Fatalf("missed %+v", missed)
			}
			a, b := with.Program.Work(), without.Program.Work()
			want := trace.Work{Launches: b.Launches - a.Launches, Bytes: b.Bytes - a.Bytes}
			got := missed[0].List[0]
			if want.Launches != tt.launches {
				t.Errorf("%d launches and %d: the difference is not %d", a.Launches, b.Launches, tt.launches)
			}
			if got.Saves != want || got.Counts != (tt.launches > 0) || missed[0].Saves != want {
				t.Errorf("it is said to save %+v; it saves %+v", got.Saves, want)
			}
		})
	}
}

// TestMissCosts says which missed fusions of programs count, and what they cost.
func TestMissCosts(t *testing.T) {
	f32 := func(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }
	for _, tt := range []struct {
		name, reason string
		build        func(b *graph.Builder)
		want         trace.Work
	}{
		{"a sum behind a mixture", "moe takes views only", func(b *graph.Builder) {
			w := passtest.NewMoEWriter(b, 3, 6)
			y := w.Sum(w.Softmax(w.Logits()), w.Relu)
			b.Output("y", b.Binary(graph.Add, y, b.Input("r", y.Type)))
		}, trace.Work{Launches: 1, Bytes: 2 * 6 * 3 * 8}},
		{"a sum of a value that is needed whole before", "depends on this launch by another way", func(b *graph.Builder) {
			y := b.MatMul(b.Input("x", f32(6, 4)), b.Param("w", f32(4, 5)), false, false)
			s := b.Broadcast(b.Reduce(graph.MaxOf, y, true, 0), y.Type.Shape)
			b.Output("y", b.Binary(graph.Mul, y, s))
		}, trace.Work{}},
		{"a sum over columns", "the launch's rows are not those that it sums over", func(b *graph.Builder) {
			y := b.MatMul(b.Input("x", f32(2, 3, 4)), b.Param("w", f32(4, 5)), false, false)
			b.Output("y", b.Unary(graph.Exp, y))
			b.Output("z", b.Reduce(graph.Sum, b.Unary(graph.Exp, y), false, 0))
		}, trace.Work{Launches: 1, Bytes: 2 * 3 * 5 * 4}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			missed := lowered(t, graphtest.Built(t, tt.build), refusing{}).Missed()
			if len(missed) != 1 || missed[0].List[0].Saves != tt.want || missed[0].Counts != (tt.want.Launches > 0) {
				t.Fatalf("missed %+v, want one that saves %+v", missed, tt.want)
			}
			if m := missed[0].List[0]; !strings.Contains(m.Reason, tt.reason) {
				t.Errorf("reason %q, want %q", m.Reason, tt.reason)
			}
		})
	}
}

// TestMissOfStep checks that clipped updates, which no launch can take before all gradients are known, do not count.
func TestMissOfStep(t *testing.T) {
	tr := planned(t, graphtest.Transformer(t, 2, -1),
		fusec.WithOptimizer(&optim.Optimizer{Rule: optim.Adam{}, Rate: optim.Constant(0.1), Clip: 1}))
	listed := 0
	for _, g := range tr.Missed() {
		listed += len(g.List)
		if g.Counts {
			t.Errorf("%s: %s costs %+v", g.Pattern, g.Cause, g.Saves)
		}
	}
	if listed == 0 {
		t.Error("no fusion is missed")
	}
}
