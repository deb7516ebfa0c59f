package graph_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
)

// roundTrip prints a graph and parses the text.
func roundTrip(t testing.TB, g *graph.Graph) *graph.Graph {
	t.Helper()
	text := graph.Print(g)
	h, err := graph.Parse("random.graph", []byte(text), graph.LookupIn(graph.Constants(g)))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if err := graph.Equal(g, h); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if again := graph.Print(h); again != text {
		t.Fatalf("printed again, the text is\n%s\nand not\n%s", again, text)
	}
	return h
}

func TestRandomGraphsRoundTrip(t *testing.T) {
	for seed := range uint64(300) {
		g := graphtest.Random(rand.New(rand.NewPCG(seed, 5)), graphtest.Options{Nodes: 1 + int(seed)%60, Halves: true})
		h := roundTrip(t, g)
		for i, n := range g.Nodes {
			if got, want := h.Nodes[i].Origin, n.Origin; len(got) != 1 || got[0] != want[0] {
				t.Fatalf("origins of %s became %v", n.Where(), got)
			}
		}
	}
}

// TestSparseIDs has IDs out of order, as passes leave them.
func TestSparseIDs(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 6))
		g := graphtest.Random(r, graphtest.Options{})
		for i, id := range r.Perm(3 * len(g.Nodes))[:len(g.Nodes)] {
			g.Nodes[i].ID = id
		}
		roundTrip(t, g)
	}
}

func TestFilesRoundTrip(t *testing.T) {
	for _, file := range []string{"mlp.graph", "fusion.graph"} {
		src := graphtest.ReadFile(t, "testdata/"+file)
		g, err := graph.Parse(file, src, nil)
		if err != nil {
			t.Fatal(err)
		}
		if file == "fusion.graph" {
			if got := graph.Print(g); got != string(src) {
				t.Errorf("%s is printed as\n%s", file, got)
			}
		}
		roundTrip(t, g)
	}
}

func TestHandWritten(t *testing.T) {
	src := graphtest.ReadFile(t, "testdata/mlp.graph")
	g, err := graph.Parse("dir/mlp.graph", src, nil)
	if err != nil {
		t.Fatal(err)
	}
	find := func(name string) *graph.Node {
		for _, n := range g.Nodes {
			if n.Name == name {
				return n
			}
		}
		t.Fatalf("no node %q", name)
		return nil
	}
	for name, want := range map[string]graph.Origin{
		"x":      {Name: "x", Pos: "mlp.graph:3"},
		"w1":     {Name: "w1", Pos: "model.go:12"},
		"act":    {Name: "activation", Pos: "model.go:21"},
		"logits": {Name: "logits", Pos: "mlp.graph:12"},
	} {
		if got := find(name).Origin; len(got) != 1 || got[0] != want {
			t.Errorf("origin of %s is %v, want %v", name, got, want)
		}
	}
	if got := find("logits").Type; got != graph.TypeOf(graph.F32, 4, 3) {
		t.Errorf("type of logits is %v", got)
	}
	if len(g.Updates) != 1 || g.Updates[0].Value.ID != 20 {
		t.Errorf("updates are %v", g.Updates)
	}
	// The builder goes on after the highest ID.
	b := graph.Extend(g)
	if n := b.Scalar(graph.F32, 1); n.ID != 21 {
		t.Errorf("the next node has ID %d", n.ID)
	}
}

func TestConstantsKeepTheirBits(t *testing.T) {
	floats := []float32{0, float32(math.Copysign(0, -1)), 1.1, math.MaxFloat32, math.SmallestNonzeroFloat32, 1e-40,
		float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()),
		math.Float32frombits(0x7f800001), math.Float32frombits(0xffc12345), 16777217}
	doubles := []float64{math.Copysign(0, -1), 0.1, math.MaxFloat64, math.SmallestNonzeroFloat64, math.NaN(),
		math.Float64frombits(0x7ff0000000000001), math.Float64frombits(0xfff8000000000000), math.Inf(-1)}
	longs := []int64{math.MinInt64, math.MaxInt64, 1<<53 + 1, 0}
	ints := []int32{math.MinInt32, math.MaxInt32}
	b := graph.NewBuilder("constants")
	b.Output("floats", b.Const(tensor(t, floats, 3, 4)))
	b.Output("float", b.Const(tensor(t, floats[10:11])))
	b.Output("doubles", b.Const(tensor(t, doubles, len(doubles))))
	b.Output("longs", b.Const(tensor(t, longs, 1, 4)))
	b.Output("ints", b.Const(tensor(t, ints, 2)))
	b.Output("bools", b.Const(tensor(t, []bool{true, false}, 2)))
	b.Output("empty", b.Const(tensor(t, []float32{}, 0, 3)))
	for _, d := range []graph.DType{graph.BF16, graph.F16} {
		bits := []uint16{0, 0x8000, 1, 0x3f81, 0x7b80, d.Bits16(math.Inf(1)), d.Bits16(math.Inf(-1)), d.Bits16(math.NaN()),
			d.Bits16(math.Inf(1)) + 1, d.Bits16(math.Inf(-1)) + 3}
		b.Output(d.String(), b.Const(&graph.Tensor{Type: graph.TypeOf(d, len(bits)), Data: bits}))
	}
	b.Output("large", b.Const(graph.NewTensor(graph.TypeOf(graph.F32, graph.MaxInline+1))))
	g := graphtest.Graph(t, b)
	roundTrip(t, g)
	if c := graph.Constants(g); len(c) != 1 || c["fusec.const/9"] == nil {
		t.Errorf("constants beside the text: %v", c)
	}
}

func tensor[T graph.Elem](t testing.TB, data []T, dims ...int) *graph.Tensor {
	t.Helper()
	x, err := graph.TensorOf(data, dims...)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func TestStrangeNames(t *testing.T) {
	names := []string{"output", "update", "note", "fusec", "a b", "Wᵀ", "層", "\xff", "\x00", "quote\"", "back\\slash", "new\nline",
		"1st", "-x", "+", "a+b", "%3", "", "nan", "layer.0/w-1_", "�", "#", "}"}
	b := graph.NewBuilder("strange \"names\"\n")
	for i, name := range names {
		x := b.Input(name+"!", graph.TypeOf(graph.F32))
		n := b.Named(b.Unary(graph.Exp, x), name)
		n.Origin = []graph.Origin{{Name: name, Pos: name}, {Name: "é é", Pos: "x.go:1"}}
		m := b.Named(b.Unary(graph.Neg, n), "twin")
		b.Output(name, m)
		s := b.State(string(rune('A'+i)), graph.TypeOf(graph.F32))
		b.Update(s, m)
	}
	g := graphtest.Graph(t, b)
	for i, name := range names {
		g.Notes = append(g.Notes, graph.Note{Text: name, Node: g.Nodes[i]},
			graph.Note{Kind: graph.Divergence, Topic: "pool-padding", Text: name},
			graph.Note{Kind: graph.Imitation, Topic: "x", Text: name, Node: g.Nodes[len(g.Nodes)-1-i]})
	}
	h := roundTrip(t, g)
	for i, n := range g.Nodes {
		if len(n.Origin) == 2 && (h.Nodes[i].Origin[1] != n.Origin[1] || n.Name != "" && h.Nodes[i].Origin[0] != n.Origin[0]) {
			t.Errorf("origins %q became %q", n.Origin, h.Nodes[i].Origin)
		}
	}
}

// TestNotes follows notes through copies and the dropping of nodes, and has Verify refuse what cannot be written.
func TestNotes(t *testing.T) {
	b := graph.NewBuilder("notes")
	x := b.Input("note", graph.TypeOf(graph.F32))
	dead := b.Unary(graph.Exp, x)
	b.Output("y", b.Unary(graph.Neg, x))
	b.Output("dead", dead)
	g := graphtest.Graph(t, b)
	g.Notes = []graph.Note{{Text: "one", Node: x}, {Kind: graph.Divergence, Topic: "two", Text: "two", Node: dead}}
	if text := graph.Print(g); !strings.Contains(text, "\n  note remark \"one\" note\n  note divergence two \"two\" %1\n}") {
		t.Errorf("printed:\n%s", text)
	}
	c, to := roundTrip(t, g).Clone()
	if len(c.Notes) != 2 || c.Notes[0].Node != c.Nodes[0] || len(to) != 3 {
		t.Errorf("copied notes: %v", c.Notes)
	}
	g.Outputs = g.Outputs[:1]
	if err := g.Tidy(); err != nil {
		t.Fatal(err)
	}
	if g.Notes[0].Node != x || g.Notes[1].Node != nil || graph.Verify(g) != nil {
		t.Errorf("notes of a tidied graph: %v", g.Notes)
	}
	for _, n := range []graph.Note{
		{Kind: 7}, {Kind: graph.Divergence, Text: "no topic"}, {Topic: "topic"}, {Kind: graph.Imitation, Topic: "two words"},
		{Node: dead},
	} {
		g.Notes = []graph.Note{n}
		if graph.Verify(g) == nil {
			t.Errorf("Verify accepts %+v", n)
		}
	}
}

func TestAttrs(t *testing.T) {
	for _, c := range []struct {
		op   graph.Op
		want string
	}{
		{graph.Input{Type: graph.TypeOf(graph.F32, 2)}, ""},
		{graph.Unary{Fn: graph.Neg}, "fn=neg"},
		{graph.Unary{Fn: graph.Elu, Alpha: math.Copysign(0, -1)}, "fn=elu alpha=-0"},
		{graph.Cast{To: graph.I64}, "to=i64"},
		{graph.MatMul{}, ""},
		{graph.MatMul{TransB: true}, "trans_b=true"},
		{graph.Reduce{Fn: graph.Mean, Axes: graph.IntsOf(0, 2), Keep: true}, "fn=mean axes=[0,2] keep=true"},
		{graph.Reshape{}, "shape=[]"},
		{graph.Pad{Lo: graph.IntsOf(1), Hi: graph.IntsOf(0), Value: math.Inf(-1)}, "lo=[1] hi=[0] value=-inf"},
		{graph.Softmax{}, "axis=0"},
		{graph.Dropout{P: math.NaN()}, "p=nan"},
		{graph.Random{Dist: graph.Normal, B: 0.1, Type: graph.TypeOf(graph.F32)}, "dist=normal b=0.1"},
		{graph.Const{Value: graph.Scalar(graph.F32, 0.1)}, "value=0.1"},
		{graph.Const{Value: graph.NewTensor(graph.TypeOf(graph.F32, 99))}, ""},
		{graph.Const{}, ""},
		{graph.Host{Name: "a b"}, `name="a b"`},
		{graph.Fusion{Anchor: graph.AnchorRow, Kind: graph.KindNorm}, "anchor=row kind=norm"},
	} {
		var s []string
		for _, a := range graph.Attrs(c.op) {
			s = append(s, a.Name+"="+a.Value)
		}
		if got := strings.Join(s, " "); got != c.want {
			t.Errorf("%T: %s, want %s", c.op, got, c.want)
		}
	}
}

func TestEqualExplains(t *testing.T) {
	base := func() *graph.Graph {
		src := graphtest.ReadFile(t, "testdata/fusion.graph")
		g, err := graph.Parse("fusion.graph", src, nil)
		if err != nil {
			t.Fatal(err)
		}
		g.Updates = []graph.Update{{Target: g.Nodes[1], Value: g.Nodes[1]}}
		return g
	}
	if err := graph.Equal(base(), base()); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*graph.Graph){
		"named":         func(g *graph.Graph) { g.Name = "x" },
		"nodes":         func(g *graph.Graph) { g.Nodes = g.Nodes[1:] },
		"IDs":           func(g *graph.Graph) { g.Nodes[1].ID = 99 },
		"names":         func(g *graph.Graph) { g.Nodes[1].Name = "x" },
		"types":         func(g *graph.Graph) { g.Nodes[1].Type = graph.TypeOf(graph.F64) },
		"operands":      func(g *graph.Graph) { g.Nodes[2].Args[0] = g.Nodes[1] },
		"operations":    func(g *graph.Graph) { g.Nodes[0].Op = graph.Param{Type: g.Nodes[0].Type} },
		"attributes":    func(g *graph.Graph) { g.Nodes[3].Op = graph.Result{Index: 2} },
		"constants":     func(g *graph.Graph) { g.Nodes[4].Op.(graph.Const).Value.SetFloat(0, 1) },
		"bodies":        func(g *graph.Graph) { g.Nodes[2].Op.(graph.Fusion).Body.Nodes[2].Name = "x" },
		"outputs":       func(g *graph.Graph) { g.Outputs[0].Name = "x" },
		"updates":       func(g *graph.Graph) { g.Updates = nil },
		"number of out": func(g *graph.Graph) { g.Outputs = g.Outputs[1:] },
	} {
		g := base()
		change(g)
		err := graph.Equal(base(), g)
		if err == nil {
			t.Errorf("%s: no difference found", want)
		} else if !strings.Contains(err.Error(), want) && want != "number of out" {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestOrigins: what a node stands for survives, with a position and without.
func TestOrigins(t *testing.T) {
	const src = `fusec graph 1 "origins" {
  x = input : f32[2] @ "model.go:3"
  "for" = param : f32[2] for "the weights"
  %2 = unary[fn=relu] x for "A × B" for second
  %3 = binary[fn=add] %2 "for" : f32[2] @ "model.go:9" sum for third
  output y = %3
}
`
	g, err := graph.Parse("m.graph", []byte(src), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := [][]graph.Origin{
		{{Name: "x", Pos: "model.go:3"}},
		{{Name: "the weights", Pos: "m.graph:3"}},
		{{Name: "A × B", Pos: "m.graph:4"}, {Name: "second"}},
		{{Name: "sum", Pos: "model.go:9"}, {Name: "third"}},
	}
	for i, n := range g.Nodes {
		if !slices.Equal(n.Origin, want[i]) {
			t.Errorf("%v stands for %q, want %q", n, n.Origin, want[i])
		}
	}
	again, err := graph.Parse("m.graph", []byte(graph.Print(g)), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range again.Nodes {
		if !slices.Equal(n.Origin, want[i]) {
			t.Errorf("printed and read again, %v stands for %q, want %q", n, n.Origin, want[i])
		}
	}
}
