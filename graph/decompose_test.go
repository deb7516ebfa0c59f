package graph_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/ref"
	"fusec/kernels/ref/cases"
)

// TestLower compares every operation that may be made of simpler ones with these, in F64 and in 16 bits.
func TestLower(t *testing.T) {
	lowered := map[string]int{}
	for _, c := range append(cases.All(graph.F64), cases.Half(graph.BF16)...) {
		b := graph.NewBuilder(c.Name)
		in := map[string]*graph.Tensor{}
		args := make([]*graph.Node, len(c.Args))
		r := rand.New(rand.NewPCG(3, 4))
		for i, a := range c.Args {
			name := fmt.Sprint("x", i)
			args[i], in[name] = b.Input(name, a.Type), a.Draw(r)
		}
		n := b.Add(c.Op, args...)
		results := graph.Lower(b, n)
		if results == nil {
			continue
		}
		for i, m := range results {
			b.Output(fmt.Sprint("simpler", i), m)
		}
		b.Output("0", n)
		for i := range len(results) - 1 {
			b.Output(fmt.Sprint(i+1), b.Add(graph.Result{Index: i + 1}, n))
		}
		g, err := b.Graph()
		if err != nil {
			t.Fatalf("%s: %v", c.Name, err)
		}
		out, _, err := ref.EvalBound(g, in)
		if err != nil {
			t.Fatalf("%s: %v", c.Name, err)
		}
		for i := range results {
			if err := ref.Check(out[fmt.Sprint("simpler", i)].Rounded(), out[fmt.Sprint(i)]); err != nil {
				t.Errorf("%s: result %d: %v", c.Name, i, err)
			}
		}
		lowered[c.Op.OpName()]++
	}
	for _, info := range graph.Ops() {
		if (info.Lower != nil) != (lowered[info.Name] > 0) {
			t.Errorf("%s: %d cases are made of simpler operations", info.Name, lowered[info.Name])
		}
	}
}

// TestDecompositions compares every composite, computed by its own formula, with its decomposition.
func TestDecompositions(t *testing.T) {
	seen := map[string]bool{}
	compare := func(t *testing.T, op graph.Op, args []ref.Value) {
		t.Helper()
		direct, err := ref.Op(op, args)
		if err != nil {
			t.Fatal(err)
		}
		meaning, err := ref.Decomposed(op, args)
		if err != nil {
			t.Fatal(err)
		}
		if len(direct) != len(meaning) {
			t.Fatalf("%d results, decomposed %d", len(direct), len(meaning))
		}
		for i, v := range direct {
			if err := ref.Check(v.Tensor(), meaning[i]); err != nil {
				t.Errorf("result %d: %v", i, err)
			}
		}
	}
	for _, c := range cases.All(graph.F64) {
		if graph.InfoOf(c.Op).Decompose == nil {
			continue
		}
		seen[c.Op.OpName()] = true
		t.Run(c.Name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			for range 5 {
				args := make([]ref.Value, len(c.Args))
				for i, a := range c.Args {
					args[i] = ref.FromTensor(a.Draw(r))
				}
				compare(t, c.Op, args)
			}
		})
	}
	for _, info := range graph.Ops() {
		if info.Decompose != nil && !seen[info.Name] {
			t.Errorf("no case for %s", info.Name)
		}
		if (info.Decompose != nil) != (info.Class == graph.ClassComposite) {
			t.Errorf("%s: class %d, decomposition %v", info.Name, info.Class, info.Decompose != nil)
		}
	}

	inf := math.Inf(1)
	rows, err := graph.TensorOf([]float64{
		-inf, -inf, -inf,
		-inf, 1, 2,
		-1e9, -1e9, -1e9,
		1000, 0, -1000,
	}, 4, 3)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("masked rows", func(t *testing.T) {
		compare(t, graph.Softmax{Axis: 1}, []ref.Value{ref.FromTensor(rows)})
		compare(t, graph.LogSoftmax{Axis: 1}, []ref.Value{ref.FromTensor(rows)})
		out, err := ref.Op(graph.Softmax{Axis: 1}, []ref.Value{ref.FromTensor(rows)})
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []float64{0, 0, 0} {
			if out[0].F[i] != want {
				t.Errorf("element %d of a row all at −Inf is %v", i, out[0].F[i])
			}
		}
	})
}

// TestDecompose appends to a graph and keeps the origin; a primitive has no decomposition.
func TestDecompose(t *testing.T) {
	b := graph.NewBuilder("g")
	x := b.Input("x", graph.TypeOf(graph.F32, 2, 3))
	y := b.Named(b.Add(graph.Softmax{Axis: 1}, x), "probs")
	b.Output("y", y)
	g := graphtest.Graph(t, b)
	n := len(g.Nodes)
	parts := graph.Decompose(graph.Extend(g), y)
	if len(parts) != 1 || parts[0].Type != y.Type {
		t.Fatalf("decomposed into %v", parts)
	}
	for _, p := range g.Nodes[n:] {
		if len(p.Origin) != 1 || p.Origin[0] != y.Origin[0] {
			t.Errorf("%s has origin %v, want %v", p.Where(), p.Origin, y.Origin)
		}
	}
	if graph.Decompose(graph.Extend(g), x) != nil {
		t.Error("an input was decomposed")
	}
}

// unknown is an operation that is not in the table.
type unknown struct{}

func (unknown) OpName() string { return "unknown" }

// TestFactsOfRows checks that what is usual of an operation is the operation with attributes that its type rule takes, and which
// operands move to the result.
func TestFactsOfRows(t *testing.T) {
	for _, c := range cases.All(graph.F32) {
		b := graph.NewBuilder(c.Name)
		args := make([]*graph.Node, len(c.Args))
		for i, a := range c.Args {
			args[i] = b.Input(fmt.Sprint("x", i), a.Type)
		}
		n := b.Add(c.Op, args...)
		if err := b.Err(); err != nil {
			t.Fatalf("%s: %v", c.Name, err)
		}
		if u := graph.Usual(n); u != nil && u.OpName() != n.Op.OpName() {
			t.Errorf("%s: %v is usual", c.Name, u)
		}
	}
	for _, c := range []struct {
		op    graph.Op
		moves string // the operands
		skips bool
	}{
		{graph.Reshape{}, "0", false}, {graph.Concat{}, "012", false}, {graph.Select{}, "12", false}, {graph.Gather{}, "0", false},
		{graph.UpdateSlice{}, "01", false}, {graph.Unary{}, "", false}, {unknown{}, "", false}, {graph.Dropout{}, "", true},
		{graph.Attention{}, "", true}, {graph.Conv2D{Pad: graph.IntsOf(0, 0, 0, 0)}, "", false},
		{graph.Conv2D{Pad: graph.IntsOf(1, 0, 0, 0)}, "", true}, {graph.Conv2DTranspose{}, "", true},
		{graph.SeparableConv2D{Pad: graph.IntsOf(0, 0, 0, 0)}, "", false},
	} {
		moves := ""
		for i := range 3 {
			if graph.Moves(c.op, i) {
				moves += fmt.Sprint(i)
			}
		}
		if moves != c.moves || graph.Skips(c.op) != c.skips {
			t.Errorf("%s moves %q and skips %v", c.op.OpName(), moves, graph.Skips(c.op))
		}
	}
}
