package gorgonia

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/kernels/ref"

	gorg "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// notInGraphs are operations of Gorgonia's that no imported graph holds, and why.
var notInGraphs = map[string]string{
	"ExternalOp": "a wrapper; what it wraps is imported",
	"readOp":     "a statement: Imported.Reads",
	"letOp":      "a statement without effect on a TapeMachine either",
	"devTrans":   "put into compiled programs, never into graphs",
	"clampOp":    "nothing makes one; its Do gives nil",
}

// TestEveryOpIsKnown finds the operations in Gorgonia's source and expects each to be decoded, run on the host or
// never met.
func TestEveryOpIsKnown(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", upstream).Output()
	if err != nil {
		t.Skipf("no Go toolchain to find Gorgonia's source with: %v", err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("Gorgonia's source: %v", err)
	}
	found := map[string]bool{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") || strings.Contains(name, "cuda") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if m, ok := d.(*ast.FuncDecl); ok && m.Recv != nil && m.Name.Name == "InferShape" {
				x := m.Recv.List[0].Type
				if p, ok := x.(*ast.StarExpr); ok {
					x = p.X
				}
				found[x.(*ast.Ident).Name] = true
			}
		}
	}
	for _, embeds := range []string{"ExternalOp", "dropoutDiffOp"} {
		found[embeds] = true
	}
	if len(found) < 45 {
		t.Errorf("only %d operations found", len(found))
	}
	for name := range found {
		n := 0
		if decoders[name].f != nil {
			n++
		}
		if hosted[name] != "" {
			n++
		}
		if notInGraphs[name] != "" {
			n++
		}
		if n != 1 {
			t.Errorf("operation %s is accounted for %d times", name, n)
		}
	}
	for name := range decoders {
		if !found[name] {
			t.Errorf("Gorgonia has no operation %s", name)
		}
	}
	for name := range hosted {
		if !found[name] {
			t.Errorf("Gorgonia has no operation %s", name)
		}
	}
}

func TestKinds(t *testing.T) {
	b := newBuilder()
	x := gorg.NewMatrix(b.ExprGraph, tensor.Float64, gorg.WithShape(2, 3), gorg.WithName("x"))
	w, w2 := b.in("w", 3, 4), b.in("w", 3)
	ix := b.ints("ix", 1, 0)
	free := gorg.NewVector(b.ExprGraph, tensor.Float64, gorg.WithShape(4))
	y := must(gorg.Add(must(gorg.Mul(x, w)),
		must(gorg.ByIndices(must(gorg.Reshape(free, tensor.Shape{1, 4})), b.ints("zeros", 0, 0), 0))))
	must(gorg.Sum(must(gorg.ByIndices(y, ix, 0))))
	must(gorg.Sum(w2))
	im := mustImport(t, b.ExprGraph, Options{})
	for n, want := range map[*gorg.Node]string{
		x: `input "x"`, w: `param "w"`, w2: `param "w#2"`, ix: `input "ix"`, free: fmt.Sprintf(`input "input%d"`, free.ID()),
	} {
		v := im.Node(n)
		if got := fmt.Sprintf("%s %v", v.Op.OpName(), v); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if im.Source(v) != n {
			t.Errorf("%v does not lead back to its node", v)
		}
	}
	if im.Node(ix).Type.DType != graph.I64 {
		t.Errorf("indices are %v", im.Node(ix).Type)
	}
	if !hasNote(im, "an input without a name") {
		t.Errorf("notes are %v", im.Graph.Notes)
	}
	im = mustImport(t, b.ExprGraph, Options{Kind: func(n *gorg.Node) Kind {
		switch n {
		case x:
			return AsParam
		case w:
			return AsInput
		}
		return Auto
	}})
	if _, ok := im.Node(x).Op.(graph.Param); !ok {
		t.Error("x is not a parameter")
	}
	if _, ok := im.Node(w).Op.(graph.Input); !ok {
		t.Error("w is not an input")
	}
	if _, ok := im.Node(w2).Op.(graph.Param); !ok {
		t.Error("w#2 is not a parameter")
	}
	if _, err := im.Weights(); err == nil || !strings.Contains(err.Error(), `"x"`) {
		t.Errorf("a parameter without a value gives %v", err)
	}
}

func TestWeights(t *testing.T) {
	b := newBuilder()
	y, _, _, _, err := gorg.BatchNorm(b.in("x", 4, 3), b.in("γ", 1, 3), b.in("β", 1, 3), 0.9, 1e-5)
	must(gorg.Dropout(must(y, err), 0.5))
	counter := int64(7)
	im := mustImport(t, b.ExprGraph, Options{Counter: &counter})
	w, err := im.Weights()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for n := range w {
		names = append(names, n)
	}
	slices.Sort(names)
	if len(names) != 6 || w["seed"].Float(0) != 7 || w["γ"].Type != graph.TypeOf(graph.F64, 1, 3) {
		t.Errorf("weights are %v, the seed %v", names, w["seed"])
	}
}

// TestState runs a batch normalisation and two dropouts and writes their state back.
func TestState(t *testing.T) {
	b := newBuilder()
	x := b.in("x", 8, 3)
	y, _, _, op, err := gorg.BatchNorm(x, b.in("γ", 1, 3), b.in("β", 1, 3), 0.25, 1e-5)
	d := must(gorg.Dropout(must(y, err), 0.5))
	e := must(gorg.Dropout(d, 0.25))
	if err := SetTraining(b.ExprGraph, true); err != nil {
		t.Fatal(err)
	}
	im := mustImport(t, b.ExprGraph, Options{})
	if err := im.Stale(); err != nil {
		t.Error(err)
	}
	in := im.inputs(t)
	_, updates, err := ref.Eval(im.Graph, in)
	if err != nil {
		t.Fatal(err)
	}
	if len(updates) != 3 || len(im.States) != 3 {
		t.Fatalf("%d updates of %d states", len(updates), len(im.States))
	}
	for _, s := range im.States {
		if err := s.Store(updates[s.Value.Name]); err != nil {
			t.Fatal(err)
		}
	}
	if got := im.inputs(t)["seed"].Float(0); got != 2 {
		t.Errorf("after a run with two dropouts the seed is %v", got)
	}
	mean, _ := op.Stats()
	data := x.Value().Data().([]float64)
	sum := 0.0
	for i := 0; i < len(data); i += 3 {
		sum += data[i]
	}
	if got := mean.Data().([]float64)[0]; math.Abs(got-0.25*sum/8) > 1e-12 {
		t.Errorf("the running mean is %v, want a quarter of %v", got, sum/8)
	}
	if im.Node(d).Args[1] == im.Node(e).Args[1] {
		t.Error("two dropouts have one seed")
	}
	if err := SetTraining(b.ExprGraph, false); err != nil {
		t.Fatal(err)
	}
	if err := im.Stale(); err == nil || !strings.Contains(err.Error(), "training mode") {
		t.Errorf("after switching to evaluation: %v", err)
	}
	im = mustImport(t, b.ExprGraph, Options{})
	if len(im.Graph.Updates) != 0 || len(im.States) != 2 {
		t.Errorf("in evaluation there are %d updates and %d states", len(im.Graph.Updates), len(im.States))
	}
}

// window is a slice that moves.
type window struct{ at, n int }

func (w *window) Start() int { return w.at }
func (w *window) End() int   { return w.at + w.n }
func (w *window) Step() int  { return 1 }

func TestDynamicSlices(t *testing.T) {
	b := newBuilder()
	w := &window{1, 2}
	x := b.in("x", 6)
	y := must(gorg.Slice(x, w))
	gorg.WithName("part")(y)
	cost := must(gorg.Sum(must(gorg.Square(y))))
	if _, err := gorg.Grad(cost, x); err != nil {
		t.Fatal(err)
	}
	im := mustImport(t, b.ExprGraph, Options{})
	if len(im.Fills) != 2 || im.Fills[0].Value.Name != "part.start" {
		t.Fatalf("fills are %v", im.Fills)
	}
	for _, at := range []int{1, 4, 0} {
		w.at = at
		v := im.eval(t, im.inputs(t))
		if got, want := v[im.Node(y)][0].F[1], x.Value().Data().([]float64)[at+1]; got != want {
			t.Errorf("from %d on: %v, want %v", at, got, want)
		}
		rightGrads(t, im)
	}
	w.n = 3
	if err := im.Fills[0].Fill(graph.NewTensor(im.Fills[0].Value.Type)); err == nil {
		t.Error("a slice that has become longer goes unnoticed")
	}
	if err := im.Stale(); err != nil {
		t.Error(err)
	}
}

func TestReplacedSlices(t *testing.T) {
	b := newBuilder()
	x := b.in("x", 6)
	y := must(gorg.Slice(x, gorg.S(1, 3)))
	im := mustImport(t, b.ExprGraph, Options{})
	dyn := mustImport(t, b.ExprGraph, Options{DynamicSlices: true})
	if len(im.Fills) != 0 || len(dyn.Fills) != 1 {
		t.Fatalf("%d and %d fills", len(im.Fills), len(dyn.Fills))
	}
	for _, c := range []struct {
		s     tensor.Slice
		stale string
	}{{gorg.S(1, 3), ""}, {gorg.S(2, 4), "replaced"}, {gorg.S(2, 5), "another length"}} {
		if err := gorg.UnsafeLet(y, c.s); err != nil {
			t.Fatal(err)
		}
		err := im.Stale()
		if (err != nil) != (c.stale != "") || err != nil && !strings.Contains(err.Error(), c.stale) {
			t.Errorf("slice from %d to %d: %v", c.s.Start(), c.s.End(), err)
		}
	}
	if err := gorg.UnsafeLet(y, gorg.S(3, 5)); err != nil {
		t.Fatal(err)
	}
	if got, want := dyn.eval(t, dyn.inputs(t))[dyn.Node(y)][0].F[0], x.Value().Data().([]float64)[3]; got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestSeveralCosts(t *testing.T) {
	b := newBuilder()
	x, y := b.in("x", 3), b.in("y", 3)
	c1, c2 := must(gorg.Sum(must(gorg.Square(x)))), must(gorg.Sum(must(gorg.Cube(y))))
	for _, g := range [][2]*gorg.Node{{c1, x}, {c2, y}} {
		if _, err := gorg.Grad(g[0], g[1]); err != nil {
			t.Fatal(err)
		}
	}
	im := mustImport(t, b.ExprGraph, Options{})
	for _, g := range im.Grads {
		if g.Node == x && g.Cost != im.Node(c1) || g.Node == y && g.Cost != im.Node(c2) {
			t.Errorf("the cost for %v is %v", g.Of, g.Cost)
		}
	}
	rightGrads(t, im)

	b = newBuilder()
	x = b.in("x", 3)
	h := must(gorg.Square(x))
	c1, c2 = must(gorg.Sum(h)), must(gorg.Sum(must(gorg.Exp(h))))
	for _, c := range []*gorg.Node{c1, c2} {
		if _, err := gorg.Grad(c, x); err != nil {
			t.Fatal(err)
		}
	}
	im = mustImport(t, b.ExprGraph, Options{})
	if !hasNote(im, "both depend on square") {
		t.Errorf("notes are %v", im.Graph.Notes)
	}
	for _, g := range im.Grads {
		if g.Node == x && g.Cost != im.Node(c1) {
			t.Errorf("the cost for x is %v", g.Cost)
		}
	}
	rightGrads(t, im)
}

// Where the derivatives from which two costs start are one node, the graph does not tell which came first.
func TestUnknownCost(t *testing.T) {
	for _, together := range []bool{false, true} {
		b := newBuilder()
		x := b.in("x", 3)
		h := must(gorg.Square(x))
		c1, c2 := must(gorg.Sum(must(gorg.Exp(h)))), must(gorg.Sum(h))
		if together {
			one := gorg.NewConstant(1.0)
			s := gorg.NewScalar(b.ExprGraph, tensor.Float64, gorg.WithName("s"), gorg.WithValue(2.0))
			one = b.AddNode(one)
			if _, err := gorg.Backpropagate(gorg.Nodes{c1, c2}, gorg.Nodes{one, s}, gorg.Nodes{x}); err != nil {
				t.Fatal(err)
			}
		} else {
			for _, c := range []*gorg.Node{c1, c2} {
				if _, err := gorg.Grad(c, x); err != nil {
					t.Fatal(err)
				}
			}
		}
		im := mustImport(t, b.ExprGraph, Options{})
		if !hasNote(im, "does not say of which") {
			t.Errorf("notes are %v", im.Graph.Notes)
		}
		for _, g := range im.Grads {
			if g.Node == x && g.Cost != nil {
				t.Errorf("the cost for x is %v", g.Cost)
			}
		}
	}
}

func TestSeed(t *testing.T) {
	b := newBuilder()
	x, s := b.in("x", 3), b.in("s", 3)
	y := must(gorg.Square(x))
	if _, err := gorg.Backpropagate(gorg.Nodes{y}, gorg.Nodes{s}, gorg.Nodes{x}); err != nil {
		t.Fatal(err)
	}
	im := mustImport(t, b.ExprGraph, Options{})
	for _, g := range im.Grads {
		if g.Cost != im.Node(y) || g.Seed != im.Node(s) {
			t.Errorf("derivative for %v: cost %v, seed %v", g.Of, g.Cost, g.Seed)
		}
	}
}

func TestRandom(t *testing.T) {
	b := newBuilder()
	u := gorg.UniformRandomNode(b.ExprGraph, tensor.Float64, -1, 2, 3, 4)
	n := gorg.GaussianRandomNode(b.ExprGraph, tensor.Float32, 1, 0.5, 3)
	y := must(gorg.Add(u, must(gorg.Exp(u))))
	k := gorg.BinomialRandomNode(b.ExprGraph, tensor.Float64, 10, 0.5, 2)
	must(gorg.Exp(n))
	must(gorg.Exp(k))
	im := mustImport(t, b.ExprGraph, Options{})
	if got, want := im.Node(u).Op, (graph.Random{Dist: graph.Uniform, A: -1, B: 2, Type: graph.TypeOf(graph.F64, 3, 4)}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	if got, want := im.Node(n).Op, (graph.Random{Dist: graph.Normal, A: 1, B: 0.5, Type: graph.TypeOf(graph.F32, 3)}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	if _, ok := im.Node(k).Op.(graph.Host); !ok || !hasNote(im, "one trial") || !hasNote(im, "merges all of one type") {
		t.Errorf("%v; notes are %v", im.Node(k).Op, im.Graph.Notes)
	}
	v := im.eval(t, im.inputs(t))
	if got := v[im.Node(y)][0].F; len(got) != 12 {
		t.Errorf("%d values", len(got))
	}
}

func TestNotes(t *testing.T) {
	b := newBuilder()
	x := b.in("x", 300, 2)
	s := must(gorg.Slice(x, gorg.S(0, 10)))
	must(gorg.Add(must(gorg.Exp(s)), s))
	d := must(gorg.Dropout(x, 0.5))
	must(gorg.Add(must(gorg.Exp(d)), d))
	r := must(gorg.InverseSqrt(b.pos("r", 2)))
	if _, err := gorg.Grad(must(gorg.Sum(r)), b.ByName("r")[0]); err != nil {
		t.Fatal(err)
	}
	k := gorg.NewConstant(tensor.New(tensor.WithShape(300, 2), tensor.WithBacking(make([]float64, 600))))
	must(gorg.Add(must(gorg.Add(x, k)), k))
	gorg.Set(x, d)
	im := mustImport(t, b.ExprGraph, Options{})
	for _, want := range []string{"modulo 256", "two dropouts", "the gradient −dy ÷ 2y³", "print alike",
		"gorgonia.Set has no effect"} {
		if !hasNote(im, want) {
			t.Errorf("no note says %q", want)
		}
	}
}

func TestMergedConstants(t *testing.T) {
	g := gorg.NewGraph()
	x := gorg.NewVector(g, tensor.Float32, gorg.WithShape(2), gorg.WithName("x"),
		gorg.WithValue(tensor.New(tensor.WithBacking([]float32{1, 2}))))
	y := gorg.NewVector(g, tensor.Float64, gorg.WithShape(2), gorg.WithName("y"),
		gorg.WithValue(tensor.New(tensor.WithBacking([]float64{1, 2}))))
	must(gorg.Add(x, gorg.NewConstant(float32(0.1))))
	z := must(gorg.Add(y, gorg.NewConstant(0.1)))
	im := mustImport(t, g, Options{})
	if got := im.eval(t, im.inputs(t))[im.Node(z)][0].F[0]; got != 1.1 || !hasNote(im, "has merged constants") {
		t.Errorf("1 + 0.1 is %v; notes are %v", got, im.Graph.Notes)
	}
}

// failing is an operation that cannot be run.
type failing struct {
	gorg.Iop
	how string
}

func (f failing) Hashcode() uint32 { return uint32(len(f.how)) }

func (f failing) Do(v ...gorg.Value) (gorg.Value, error) {
	switch f.how {
	case "panic":
		panic("no")
	case "error":
		return nil, errors.New("no")
	case "nil":
		return nil, nil
	}
	return gorg.NewF64(1), nil
}

func TestHostErrors(t *testing.T) {
	for how, want := range map[string]string{"panic": "panicked: no", "error": "no", "nil": "no value", "shape": "is wanted"} {
		b := newBuilder()
		y := must(gorg.ApplyOp(failing{how: how}, b.in("x", 3)))
		im := mustImport(t, b.ExprGraph, Options{})
		h := im.Node(y).Op.(graph.Host)
		if _, err := h.Impl.Do([]*graph.Tensor{graph.NewTensor(graph.TypeOf(graph.F64, 3))}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", how, err, want)
		}
		for _, args := range [][]*graph.Tensor{nil, {graph.NewTensor(graph.TypeOf(graph.F32, 3))}} {
			if _, err := h.Impl.Do(args); err == nil {
				t.Errorf("operands %v are accepted", args)
			}
		}
	}
}

func TestExternalOp(t *testing.T) {
	b := newBuilder()
	x := b.in("x", 3)
	y := must(gorg.Exp(x))
	z := must(gorg.ApplyOp(&gorg.ExternalOp{Op: y.Op()}, must(gorg.Neg(x))))
	im := mustImport(t, b.ExprGraph, Options{})
	if got := im.Node(z).Op; got != (graph.Unary{Fn: graph.Exp}) {
		t.Errorf("got %v", got)
	}
}

func TestCTC(t *testing.T) {
	b := newBuilder()
	logits := b.in("logits", 5, 1, 4)
	p := must(gorg.LogSoftMax(logits, 2))
	loss := must(gorg.CTCLoss(p, b.ints("targets", 1, 2), b.ints("inLen", 5), b.ints("targetLen", 2), gorg.ReductionSum))
	if _, err := gorg.Grad(loss, logits); err != nil {
		t.Fatal(err)
	}
	im := mustImport(t, b.ExprGraph, Options{})
	if hostCount(im) != 2 {
		t.Errorf("%d operations run on the host", hostCount(im))
	}
	rightGrads(t, im)
}

func TestImportErrors(t *testing.T) {
	if _, err := Import(nil, Options{}); err == nil {
		t.Error("a nil graph is accepted")
	}
	for want, f := range map[string]func(g *gorg.ExprGraph){
		"no shape": func(g *gorg.ExprGraph) { gorg.NewMatrix(g, tensor.Float32, gorg.WithName("x")) },
		"more than 8 axes": func(g *gorg.ExprGraph) {
			gorg.NewTensor(g, tensor.Float32, 9, gorg.WithShape(1, 1, 1, 1, 1, 1, 1, 1, 1), gorg.WithName("x"))
		},
	} {
		g := gorg.NewGraph()
		f(g)
		if _, err := Import(g, Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	im := mustImport(t, gorg.NewGraph(gorg.WithGraphName("empty")), Options{})
	if im.Graph.Name != "empty" || len(im.Graph.Nodes) != 0 {
		t.Errorf("graph %q of %d nodes", im.Graph.Name, len(im.Graph.Nodes))
	}
}

// TestDeterministic imports a graph several times and expects the same text.
func TestDeterministic(t *testing.T) {
	b := newBuilder()
	y, _ := models[5].build(b)
	if _, err := gorg.Grad(must(gorg.Sum(y)), b.ByName("wq")[0]); err != nil {
		t.Fatal(err)
	}
	text := func() string {
		var s strings.Builder
		for _, n := range mustImport(t, b.ExprGraph, Options{}).Graph.Nodes {
			fmt.Fprintln(&s, n.ID, n.Op.OpName(), n.Args, n.Type, n.Name, n.Origin)
		}
		return s.String()
	}
	first := text()
	for range 3 {
		if text() != first {
			t.Fatal("two imports of one graph differ")
		}
	}
}

// TestSaveLoad writes an imported graph with its weights and reads it back.
func TestSaveLoad(t *testing.T) {
	b := newBuilder()
	models[5].build(b)
	im := mustImport(t, b.ExprGraph, Options{})
	w, err := im.Weights()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "model.graph")
	if err := graph.Save(path, im.Graph, w); err != nil {
		t.Fatal(err)
	}
	g, back, err := graph.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	want, _, err := ref.Eval(im.Graph, w)
	if err != nil {
		t.Fatal(err)
	}
	got, _, err := ref.Eval(g, back.Tensors)
	if err != nil {
		t.Fatal(err)
	}
	for name := range want {
		if !want[name].Equal(got[name]) {
			t.Errorf("output %s differs", name)
		}
	}
}
