package cases

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"fusec/graph"
)

func TestAll(t *testing.T) {
	for _, d := range []graph.DType{graph.F32, graph.F64} {
		ops, names := map[string]bool{"result": true}, map[string]bool{}
		for _, c := range All(d) {
			ops[c.Op.OpName()] = true
			if names[c.Name] {
				t.Errorf("two cases are named %s", c.Name)
			}
			names[c.Name] = true
			g, err := c.Graph()
			if err != nil {
				t.Errorf("%s: %v", c.Name, err)
				continue
			}
			a, b := c.Inputs(rand.New(rand.NewPCG(1, 2))), c.Inputs(rand.New(rand.NewPCG(1, 2)))
			for _, s := range g.Sources() {
				switch {
				case a[s.Name] == nil || a[s.Name].Type != s.Type:
					t.Errorf("%s: %s has the value %v", c.Name, s.Where(), a[s.Name])
				case !a[s.Name].Equal(b[s.Name]):
					t.Errorf("%s: the same generator gives two values for %s", c.Name, s.Where())
				}
			}
			if h, ok := c.Op.(graph.Host); ok {
				y, err := h.Impl.Do([]*graph.Tensor{a["x0"]})
				if err != nil || y.Float(0) != a["x0"].Float(4) || y.Float(4) != a["x0"].Float(0) {
					t.Errorf("%s: %v, %v", c.Name, y, err)
				}
			}
		}
		for _, info := range graph.Ops() {
			if !ops[info.Name] {
				t.Errorf("no case for %s", info.Name)
			}
		}
	}
}

// TestFusions holds that every body keeps the contract of fusions, and that each anchor has one.
func TestFusions(t *testing.T) {
	anchors := map[graph.Anchor]bool{}
	for _, f := range slices.Concat(Fusions(), Dropouts(rand.New(rand.NewPCG(3, 4)), 40)) {
		op, types, err := f.Op()
		if err != nil {
			t.Errorf("%s: %v", f.Name, err)
			continue
		}
		anchors[op.Anchor] = true
		b := graph.NewBuilder(f.Name)
		args := make([]*graph.Node, len(types))
		for i, of := range types {
			args[i] = b.Input(fmt.Sprint("x", i), of)
		}
		y := b.Add(op, args...)
		b.Output("0", y)
		for i := 1; i < len(op.Body.Outputs); i++ {
			b.Output(fmt.Sprint(i), b.Add(graph.Result{Index: i}, y))
		}
		g, err := b.Graph()
		if err == nil {
			err = graph.Verify(g)
		}
		if err != nil {
			t.Errorf("%s: %v", f.Name, err)
		}
	}
	for _, a := range []graph.Anchor{graph.AnchorNone, graph.AnchorRow, graph.AnchorMatMul, graph.AnchorConv} {
		if !anchors[a] {
			t.Errorf("no body has the anchor %v", a)
		}
	}
}

// TestHalf holds that the examples of 16 bits have an operand or result of 16 bits, and those of integers one of the integer.
func TestHalf(t *testing.T) {
	for d, list := range map[graph.DType][]Case{graph.BF16: Half(graph.BF16), graph.F16: Half(graph.F16), graph.I8: Integers(graph.I8),
		graph.U64: Integers(graph.U64)} {
		if len(list) < 10 {
			t.Errorf("%v has %d examples", d, len(list))
		}
		for _, c := range list {
			g, err := c.Graph()
			if err != nil {
				t.Errorf("%v, %s: %v", d, c.Name, err)
				continue
			}
			if !slices.ContainsFunc(g.Nodes, func(n *graph.Node) bool { return n.Type.DType == d }) {
				t.Errorf("%v, %s: no value is %v", d, c.Name, d)
			}
		}
	}
}

// TestBesideTies holds that F32 rounds some of the numbers to the middle, so that rounding twice is not rounding once.
func TestBesideTies(t *testing.T) {
	for _, c := range [][2]graph.DType{{graph.F64, graph.BF16}, {graph.F64, graph.F16}, {graph.I64, graph.BF16}} {
		x := BesideTies(c[0], c[1])
		twice := 0
		for i := range x.Type.Shape.Elems() {
			if c[1].Round(x.Float(i)) != c[1].Round(float64(float32(x.Float(i)))) {
				twice++
			}
		}
		if twice == 0 {
			t.Errorf("%v to %v: rounding twice changes nothing", c[0], c[1])
		}
	}
}

// TestRandomAttention holds that the operands fit the operation, and that all attributes are drawn.
func TestRandomAttention(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	drawn := map[string]bool{}
	for range 300 {
		op, args := RandomAttention(r, graph.F32, AttentionSizes{Queries: 40, Keys: 50, Few: 90, Columns: []int{16, 70}, Heads: 3})
		types := make([]graph.Type, len(args))
		for i, a := range args {
			types[i] = a.Type
		}
		if _, err := graph.InfoOf(op).Infer(op, types); err != nil {
			t.Errorf("%+v of %v: %v", op, types, err)
		}
		for what, has := range map[string]bool{"causal": op.Causal, "mask": op.HasMask, "lengths": op.HasLengths, "window": op.Window > 0,
			"pages": op.Page > 0, "dropout": op.Dropout > 0, "scales": op.HasScales} {
			drawn[what] = drawn[what] || has
		}
	}
	if len(drawn) != 7 || slices.Contains(slices.Collect(maps.Values(drawn)), false) {
		t.Errorf("drawn: %v", drawn)
	}
}
