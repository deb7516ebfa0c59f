package dot

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/trace"
)

var update = flag.Bool("update", false, "write the golden files again")

// golden compares what f prints with a file in testdata.
func golden(t *testing.T, name string, f func(w io.Writer) error) {
	t.Helper()
	var b, again bytes.Buffer
	if err := f(&b); err != nil {
		t.Fatal(err)
	}
	if err := f(&again); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.Bytes(), again.Bytes()) {
		t.Errorf("%s: printed twice, the bytes differ", name)
	}
	file := filepath.Join("testdata", name)
	if *update {
		graphtest.WriteFile(t, file, b.Bytes())
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v (go test -update writes it)", err)
	}
	if !bytes.Equal(b.Bytes(), want) {
		t.Errorf("%s differs from what is printed now (go test -update writes it again):\n%s", file, b.String())
	}
}

func TestGolden(t *testing.T) {
	small, large, mixture := mlpTrace(t), transformerTrace(t, 12), mixtureTrace(t)
	for _, c := range []struct {
		name  string
		tr    *trace.Trace
		stage int
		opts  Options
	}{
		{"mlp-import.dot", small, 0, Options{}},
		{"mlp-final.dot", small, 1, Options{}},
		{"mlp-final-full.dot", small, 1, Options{Detail: Full}},
		{"mlp-final-outline.dot", small, 1, Options{Detail: Outline, Measured: true}},
		{"mlp-import.txt", small, 0, Options{Format: FormatText}},
		{"mlp-final.txt", small, 1, Options{Format: FormatText}},
		{"mlp-final-measured.txt", small, 1, Options{Format: FormatText, Measured: true}},
		{"transformer-import.dot", large, 0, Options{}},
		{"transformer-final.dot", large, 1, Options{}},
		{"mixture-final.dot", mixture, 1, Options{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			golden(t, c.name, func(w io.Writer) error { return Stage(w, c.tr, c.stage, c.opts) })
		})
	}
	golden(t, "mlp-trace.txt", func(w io.Writer) error { return Trace(w, small, Options{Format: FormatText}) })
	golden(t, "training.dot", func(w io.Writer) error { return Graph(w, training(t, 8), Options{}) })
	golden(t, "zoo.dot", func(w io.Writer) error { return Graph(w, zoo(t), Options{}) })
	golden(t, "zoo-compact.dot", func(w io.Writer) error { return Graph(w, zoo(t), Options{Detail: Compact}) })
	golden(t, "zoo.txt", func(w io.Writer) error { return Graph(w, zoo(t), Options{Format: FormatText}) })
}

// training is a chain of layers with its gradients, as differentiate appends them: the backward chain reads the
// forward values in reverse.
func training(t testing.TB, layers int) *graph.Graph {
	b := graph.NewBuilder("training")
	x := b.Input("x", graph.TypeOf(graph.F32, 8, 16))
	in, out, ws := []*graph.Node{}, []*graph.Node{}, []*graph.Node{}
	for i := range layers {
		w := b.Param(fmt.Sprintf("w%d", i), graph.TypeOf(graph.F32, 16, 16))
		y := b.Unary(graph.Tanh, b.BinaryScalar(graph.Add, b.MatMul(x, w, false, false), 1))
		in, out, ws = append(in, x), append(out, y), append(ws, w)
		x = y
	}
	b.Output("loss", b.Reduce(graph.Mean, b.Unary(graph.Square, x), false, 0, 1))
	dy := b.BinaryScalar(graph.Mul, x, 2)
	for i := layers - 1; i >= 0; i-- {
		one := b.Scalar(graph.F32, 1)
		dz := b.Binary(graph.Mul, dy, b.Binary(graph.Sub, one, b.Unary(graph.Square, out[i])))
		dw := b.MatMul(in[i], dz, true, false)
		b.Update(ws[i], b.Binary(graph.Sub, ws[i], b.BinaryScalar(graph.Mul, dw, 0.1)))
		dy = b.MatMul(dz, ws[i], false, true)
	}
	b.Output("dx", dy)
	return finish(t, b)
}

// staged is a training step in two stages: a layer in each, its gradients, and a norm that both are told.
func staged(t testing.TB) *trace.Trace {
	b := graph.NewBuilder("staged")
	p := &trace.Pipeline{Microbatches: 4, At: map[int]int{}, Stages: []trace.PipelineStage{
		{Ends: "h", Devices: []string{"cpu"}, Flight: 2, Sent: 256, Kept: 512}, {Devices: []string{"cpu"}, Flight: 1, Kept: 256}}}
	stage, phase := 0, graph.Forward
	at := func(n *graph.Node) *graph.Node {
		p.At[n.ID], n.Phase = stage, phase
		return n
	}
	stages := graph.Group{Over: "stage", Parts: 2}
	between := func(op graph.Op, n *graph.Node) *graph.Node {
		n = b.Add(op, n)
		n.Phase = phase
		return n
	}
	w, x := at(b.Param("w", graph.TypeOf(graph.F32, 8, 8))), at(b.Input("x", graph.TypeOf(graph.F32, 8, 8)))
	h := at(b.Unary(graph.Tanh, at(b.MatMul(x, w, false, false))))
	h.Name = "h"
	sent := between(graph.Permute{Shift: 1, Group: stages}, h)
	stage = 1
	v := at(b.Param("v", graph.TypeOf(graph.F32, 8, 8)))
	y := at(b.MatMul(sent, v, false, false))
	b.Output("y", y)
	phase = graph.Backward
	dv, dh := at(b.MatMul(sent, y, true, false)), at(b.MatMul(y, v, false, true))
	back := between(graph.Permute{Shift: -1, Group: stages}, dh)
	stage = 0
	dw := at(b.MatMul(x, back, true, false))
	phase = graph.Optimiser
	norm := between(graph.BroadcastFrom{Group: stages}, at(b.Add(graph.SquaredNorm{}, dw)))
	step := func(s int, w, dw *graph.Node) {
		stage = s
		b.Update(w, at(b.Binary(graph.Sub, w, at(b.Binary(graph.Mul, dw, at(b.CastTo(graph.F32, at(b.Broadcast(norm, w.Type.Shape)))))))))
	}
	step(0, w, dw)
	step(1, v, dv)
	g := finish(t, b)
	g.Mesh, g.Parts = graph.Mesh{{Name: "stage", Size: 2}}, true
	return &trace.Trace{Target: "cpu", Rule: "sgd", Stages: []trace.Stage{{Name: "pipeline", Graph: g, Pipeline: p}}}
}

// TestStaged draws stages of a pipeline as frames, with frames of their phases in them. What is handed over lies between them.
func TestStaged(t *testing.T) {
	tr := staged(t)
	golden(t, "pipeline.dot", func(w io.Writer) error { return Stage(w, tr, 0, Options{Detail: Compact}) })
	tr.Stages[0].Pipeline.Stages[0].Devices = []string{"cuda:0", "cuda:1"}
	for _, d := range []Detail{Full, Compact, Outline, Layers} {
		var b strings.Builder
		if err := Stage(&b, tr, 0, Options{Detail: d, Measured: true}); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"2 stages of 2 participants each · 4 microbatches", "stage 1, up to h", "on cuda:0, cuda:1",
			"stage 2<", "4 microbatches, 2 in work at a time", "of each: 256 B sent, 512 B kept"} {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%v: no %q", d, want)
			}
		}
		if strings.Contains(b.String(), "each of 2 participants") {
			t.Errorf("%v: the heading speaks of one participant", d)
		}
	}
}

// zoo has what the other graphs lack: state, several results, host operations, unkind names, sources that escape.
func zoo(t testing.TB) *graph.Graph {
	b := graph.NewBuilder("zoo \"<&>\"\n")
	c := graph.TypeOf(graph.F32, 4)
	x := b.Input("x <b>bold</b> \"quoted\"\nnext line\x01é漢"+strings.Repeat("long", 30), graph.TypeOf(graph.F32, 2, 4, 8, 8))
	mean, variance := b.State("running.mean", c), b.State("running.var", c)
	bn := b.Add(graph.BatchNorm{Eps: 1e-5, Momentum: 0.9, Train: true}, x, b.Param("gamma", c), b.Param("beta", c), mean, variance)
	b.Update(mean, b.Add(graph.Result{Index: 1}, bn))
	b.Update(variance, b.Add(graph.Result{Index: 2}, bn))
	pad := b.Add(graph.Pad{Lo: graph.IntsOf(0, 0, 1, 1), Hi: graph.IntsOf(0, 0, 1, 1), Value: 0.5}, bn)
	conv := b.Add(graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(0, 0, 0, 0), Groups: 1},
		pad, b.Param("filters", graph.TypeOf(graph.F32, 6, 4, 3, 3)))
	pool := b.Add(graph.Pool{Fn: graph.MaxPool, Kernel: graph.IntsOf(2, 2), Stride: graph.IntsOf(2, 2), Pad: graph.IntsOf(0, 0, 0, 0)},
		conv)
	flat := b.Reshape(pool, 2, 96)
	start := b.Input("start", graph.TypeOf(graph.I64))
	moving := b.Add(graph.Slice{Axis: 1, Size: 32, Step: 2}, flat, start)
	fixed := b.Slice(flat, 1, 4, 32, 1)
	strided := b.Slice(flat, 1, 4, 32, 2)
	table := graph.NewTensor(graph.TypeOf(graph.F32, 2, 32))
	table.SetFloat(3, 7)
	sum := b.Binary(graph.Max, b.Binary(graph.Add, moving, fixed), b.Const(table))
	sum = b.Binary(graph.Sub, b.Scalar(graph.F32, 1), b.Binary(graph.Max, b.Binary(graph.Add, sum, strided), b.Scalar(graph.F32, 0)))
	pick := b.Add(graph.Select{}, b.BinaryScalar(graph.Lt, sum, 0), b.Scalar(graph.F32, -1), sum)
	host := b.Named(b.Add(graph.Host{Name: "user \"op\"", Type: pick.Type}, pick), "opaque")
	noisy := b.Add(graph.Dropout{P: 0.1}, b.Unary(graph.LeakyRelu, host), b.Scalar(graph.I64, 7))
	wide := b.Add(graph.Cast{To: graph.F64}, noisy)
	random := b.Add(graph.Random{Dist: graph.Normal, B: 1, Type: wide.Type}, b.Scalar(graph.I64, 3))
	f := body(t, func(b *graph.Builder, in func(...int) *graph.Node) []*graph.Node {
		x, y := in(2, 32), in(2, 32)
		s := b.Binary(graph.Mul, b.Unary(graph.Neg, b.Unary(graph.Square, b.Binary(graph.Add, x, y))), b.Unary(graph.Recip, x))
		low := b.Binary(graph.Lt, s, b.Binary(graph.Max, x, y))
		e := b.Add(graph.Select{}, low, b.Binary(graph.Pow, s, y), b.Add(graph.Unary{Fn: graph.Elu, Alpha: 0.5}, s))
		d := b.Add(graph.Dropout{P: 0.25}, e, b.Scalar(graph.I64, 1))
		return []*graph.Node{d,
			b.Add(graph.Cast{To: graph.I32}, b.Binary(graph.Div, s, b.Binary(graph.Sub, y, b.Binary(graph.Sub, x, y))))}
	})
	two := b.Named(b.Add(graph.Fusion{Kind: graph.KindElementwise, Body: f}, noisy, pick), "two")
	b.Output("first", two)
	b.Output("second", b.Add(graph.Result{Index: 1}, two))
	b.Output("noise", b.Binary(graph.Add, random, wide))
	b.Output("same", x)
	return finish(t, b)
}

func TestRepeatsAreGrouped(t *testing.T) {
	tr := transformerTrace(t, 12)
	for i := range tr.Stages {
		s := layout(stageDrawing(tr, i, Options{}))
		if len(s.nodes) > DefaultMaxNodes {
			t.Errorf("stage %d: %d nodes in sight, want at most %d", i, len(s.nodes), DefaultMaxNodes)
		}
		frames := 0
		for _, c := range s.clusters {
			if c.kind == clusterRepeat {
				frames++
				if c.repeats != 12 || !strings.Contains(c.title, "× 12") || !strings.Contains(c.title, "blocks.{0…11}") {
					t.Errorf("stage %d: a frame %q of %d repetitions", i, c.title, c.repeats)
				}
			}
		}
		if frames != 1 {
			t.Errorf("stage %d: %d frames, want 1", i, frames)
		}
		carried := 0
		for _, e := range s.edges {
			if e.style == edgeCarried {
				carried++
			}
		}
		if carried != 1 {
			t.Errorf("stage %d: %d carried edges, want 1", i, carried)
		}
	}
	whole := layout(stageDrawing(tr, 1, Options{Expand: true, Detail: Compact}))
	if len(whole.nodes) < 12*9 {
		t.Errorf("expanded: %d nodes", len(whole.nodes))
	}
}

func TestTrainingReadsForwardBlocksBackwards(t *testing.T) {
	g := training(t, 8)
	r := findRepeats(g, foldable(g), (&drawing{graph: g}).regions(phasesOf(g)))
	if len(r.blocks) != 2 {
		t.Fatalf("%d blocks, want the forward and the backward one", len(r.blocks))
	}
	for _, b := range r.blocks {
		if b.count != 8 {
			t.Errorf("a block of %d repetitions, want 8", b.count)
		}
	}
}

func TestNestedAndParallelRepeats(t *testing.T) {
	b := graph.NewBuilder("experts")
	x := b.Input("x", graph.TypeOf(graph.F32, 4, 8))
	for l := range 4 {
		var parts []*graph.Node
		for e := range 6 {
			w := b.Param(fmt.Sprintf("l%d.e%d", l, e), graph.TypeOf(graph.F32, 8, 8))
			parts = append(parts, b.Unary(graph.Tanh, b.MatMul(x, w, false, false)))
		}
		x = b.Unary(graph.Sigmoid, b.Reduce(graph.Sum, b.Reshape(b.Add(graph.Concat{Axis: 0}, parts...), 6, 4, 8), false, 0))
	}
	b.Output("y", x)
	g := finish(t, b)
	r := findRepeats(g, foldable(g), (&drawing{graph: g}).regions(phasesOf(g)))
	if len(r.blocks) != 2 || r.blocks[0].count != 4 || r.blocks[1].count != 6 || r.blocks[1].parent != r.blocks[0] {
		t.Errorf("blocks %+v, want 4 layers of 6 experts", r.blocks)
	}
	s := layout(drawing{graph: g})
	if len(s.nodes) > 10 {
		t.Errorf("%d nodes in sight", len(s.nodes))
	}
}

func TestUnlikeLayersAreNotGrouped(t *testing.T) {
	b := graph.NewBuilder("unlike")
	x := b.Input("x", graph.TypeOf(graph.F32, 4, 4))
	skip := []*graph.Node{x}
	for i := range 20 {
		// Each layer reads another one before it, in no regular distance, and scales by its own constant.
		y := b.Binary(graph.Add, b.Unary(graph.Tanh, x), skip[i*i*7%len(skip)])
		x = b.BinaryScalar(graph.Mul, y, float64(i+2))
		skip = append(skip, x)
	}
	b.Output("y", x)
	g := finish(t, b)
	if r := findRepeats(g, foldable(g), (&drawing{graph: g}).regions(phasesOf(g))); len(r.blocks) != 0 {
		t.Errorf("%d blocks, want none", len(r.blocks))
	}
}

func TestPicturesRender(t *testing.T) {
	small, large := mlpTrace(t), transformerTrace(t, 12)
	one := &trace.Trace{Stages: []trace.Stage{{Graph: zoo(t)}}}
	for name, tr := range map[string]*trace.Trace{"mlp": small, "transformer": large, "zoo": one,
		"training": {Stages: []trace.Stage{{Graph: training(t, 8)}}}} {
		last := len(tr.Stages) - 1
		var svg, raster bytes.Buffer
		if err := Stage(&svg, tr, last, Options{Format: FormatSVG}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		d := xml.NewDecoder(&svg)
		texts := 0
		for {
			tok, err := d.Token()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("%s: SVG is not well-formed: %v", name, err)
			}
			if e, ok := tok.(xml.StartElement); ok && e.Name.Local == "text" {
				texts++
			}
		}
		if texts < 10 {
			t.Errorf("%s: SVG with %d texts", name, texts)
		}
		if err := Stage(&raster, tr, last, Options{Format: FormatPNG}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		img, err := png.Decode(&raster)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		size := img.Bounds().Size()
		if size.X < 400 || size.Y < 400 || size.X > 5000 || size.Y > 8000 {
			t.Errorf("%s: PNG of %v pixels", name, size)
		}
		inked := 0
		for y := range size.Y {
			for x := range size.X {
				if r, g, b, _ := img.At(x, y).RGBA(); r+g+b < 3*0x8000 {
					inked++
				}
			}
		}
		if share := float64(inked) / float64(size.X*size.Y); share < 0.005 || share > 0.3 {
			t.Errorf("%s: %.2f%% of the PNG is dark", name, 100*share)
		}
	}
}

// chain is a graph of n operations without repetitions that could be grouped.
func chain(t testing.TB, n int) *graph.Graph {
	b := graph.NewBuilder("chain")
	x := b.Input("x", graph.TypeOf(graph.F32, 4))
	for i := range n {
		x = b.BinaryScalar(graph.Mul, x, float64(i))
	}
	b.Output("y", x)
	return finish(t, b)
}

func TestLargeGraph(t *testing.T) {
	g := chain(t, 5000)
	start := time.Now()
	var b bytes.Buffer
	if err := Graph(&b, g, Options{Detail: Outline}); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("DOT of 5000 nodes took %v", took)
	}
	var large *TooLargeError
	for _, f := range []Format{FormatSVG, FormatPNG} {
		if err := Graph(io.Discard, g, Options{Format: f, Detail: Outline}); !errors.As(err, &large) ||
			!strings.Contains(err.Error(), "dot -Tsvg") {
			t.Errorf("%s of 5000 nodes: error %v", f, err)
		}
		if _, err := Render(b.Bytes(), f); !errors.As(err, &large) {
			t.Errorf("rendering 5000 nodes as %s: error %v", f, err)
		}
	}
}

// TestLayers joins operations without names in runs, and those of layers by their names.
func TestLayers(t *testing.T) {
	b := graph.NewBuilder("layers")
	x := b.Input("x", graph.TypeOf(graph.F32, 4, 4))
	for i := range 9 {
		name := fmt.Sprintf("part%c", 'a'+i)
		for j := range 9 { // no two layers are alike
			x = b.Unary(graph.Tanh, b.MatMul(x, b.Param(fmt.Sprintf("%s/%c/w", name, 'a'+j), graph.TypeOf(graph.F32, 4, 4)), false, false))
			if (i+j*j)%4 == 0 {
				x = b.Unary(graph.Square, x)
			}
			if (i*i+j)%5 == 0 {
				x = b.Unary(graph.Sin, x)
			}
		}
	}
	b.Output("y", x)
	named := finish(t, b)
	for name, c := range map[string]struct {
		g    *graph.Graph
		want string
	}{"chain": {chain(t, 5000), "operations"}, "layers": {named, "<B>partc</B>"}} {
		s := layout(drawing{graph: c.g, opts: Options{Expand: true}})
		if len(s.nodes) > DefaultMaxNodes {
			t.Errorf("%s: %d nodes", name, len(s.nodes))
		}
		joined := false
		for _, x := range s.nodes {
			joined = joined || strings.Contains(x.head+x.card(), c.want)
		}
		for _, e := range s.edges {
			if !slices.Contains(s.nodes, e.from) || !slices.Contains(s.nodes, e.to) {
				t.Fatalf("%s: an edge leads to a card that is not drawn", name)
			}
		}
		if depth := s.depths(); !joined || len(depth) == 0 || depth[s.nodes[len(s.nodes)-1]] == 0 {
			t.Errorf("%s: no card has %q, or there is a cycle", name, c.want)
		}
	}
}

func TestErrors(t *testing.T) {
	tr := mlpTrace(t)
	for want, err := range map[string]error{
		"stage 7 of a trace with 2 stages": Stage(io.Discard, tr, 7, Options{}),
		`unknown format "gif"`:             Stage(io.Discard, tr, 0, Options{Format: "gif"}),
		"one stage at a time":              Trace(io.Discard, tr, Options{}),
		"disk full":                        Stage(broken{}, tr, 0, Options{}),
		"no space":                         Stage(broken{"no space"}, tr, 0, Options{Format: FormatSVG}),
		"is full":                          Stage(broken{"is full"}, tr, 0, Options{Format: FormatText}),
		"is fuller":                        Stage(broken{"is fuller"}, tr, 0, Options{Format: FormatJSON}),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if _, err := Render([]byte("digraph { a -> "), FormatSVG); err == nil {
		t.Error("broken DOT is rendered")
	}
	if out, err := Render([]byte("digraph { a -> b }"), FormatSVG); err != nil || len(out) == 0 {
		t.Errorf("after broken DOT, good DOT fails: %v", err)
	}
	if _, err := Render([]byte("digraph {}"), FormatText); err == nil {
		t.Error("DOT is rendered as text")
	}
	if out, err := Render([]byte("digraph {}"), FormatDOT); err != nil || string(out) != "digraph {}" {
		t.Errorf("DOT as DOT: %q, %v", out, err)
	}
	for _, s := range []string{"", "<svg", "<g/>", `<svg width="0pt"/>`, `<svg width="9pt" height="9pt"><text>`} {
		if _, err := rasterise([]byte(s)); err == nil {
			t.Errorf("%q is drawn", s)
		}
	}
	for _, f := range Formats() {
		if g, err := ParseFormat(string(f)); err != nil || g != f || !strings.HasPrefix(f.Ext(), ".") {
			t.Errorf("format %s: %v, %v", f, g, err)
		}
	}
}

// broken is a writer that fails.
type broken []string

func (b broken) Write([]byte) (int, error) {
	if len(b) == 0 {
		return 0, errors.New("disk full")
	}
	return 0, errors.New(b[0])
}

// TestNamesRender draws names that HTML-like labels have trouble with.
func TestNamesRender(t *testing.T) {
	for _, name := range []string{"", " ", "\t", "\x00", "<", "&amp", "\x1b[31m", "\xff", "\\N", "]]>", "]", "é"} {
		b := graph.NewBuilder(name)
		x := b.Input(cmp.Or(name, "x"), graph.TypeOf(graph.F32, 2))
		b.Output(name, b.Named(b.Unary(graph.Tanh, x), name))
		g := graphtest.Graph(t, b)
		tr := &trace.Trace{Stages: []trace.Stage{{Name: name, Graph: g}}}
		for _, f := range []Format{FormatDOT, FormatSVG} {
			var out bytes.Buffer
			if err := Stage(&out, tr, 0, Options{Format: f}); err != nil {
				t.Errorf("%q as %s: %v", name, f, err)
			}
			if f == FormatDOT && bytes.Contains(out.Bytes(), []byte("<B></B>")) {
				t.Errorf("%q: an empty element", name)
			}
		}
	}
}

// stack is a row of named layers, each of the function that its number selects.
func stack(t testing.TB, layers int, fns ...graph.UnaryFn) *graph.Graph {
	b := graph.NewBuilder("stack")
	x := b.Input("x", graph.TypeOf(graph.F32, 4, 8))
	for i := range layers {
		w := b.Param(fmt.Sprintf("stage.layer%d.up.w", i), graph.TypeOf(graph.F32, 8, 8))
		h := b.Unary(fns[i%len(fns)], b.MatMul(x, w, false, false))
		x = b.Binary(graph.Add, b.Reshape(b.Unary(graph.Square, h), 4, 8), x)
	}
	b.Output("y", x)
	return finish(t, b)
}

func TestNamedLayers(t *testing.T) {
	for want, g := range map[string]*graph.Graph{
		"[3]":  stack(t, 3, graph.Tanh),
		"[12]": stack(t, 12, graph.Tanh),
		"[6]":  stack(t, 12, graph.Tanh, graph.Sigmoid),
		"[]":   stack(t, 2, graph.Tanh),
		"[40]": stack(t, 40, graph.Tanh),
		"[2 2 2 2]": stack(t, 32, graph.Tanh, graph.Tanh, graph.Sigmoid, graph.Sigmoid, graph.Exp, graph.Log, graph.Neg, graph.Abs,
			graph.Square, graph.Sqrt, graph.Relu, graph.Sin, graph.Cos, graph.Erf, graph.Floor, graph.Ceil),
	} {
		r := findRepeats(g, foldable(g), (&drawing{graph: g}).regions(phasesOf(g)))
		counts := []int{}
		for _, b := range r.blocks {
			counts = append(counts, b.count)
			if !strings.HasPrefix(blockName(b), "stage/layer{") || len(b.carried) == 0 {
				t.Errorf("%s: a block %q that carries %d values", want, blockName(b), len(b.carried))
			}
		}
		if fmt.Sprint(counts) != want {
			t.Errorf("repetitions %v, want %s", counts, want)
		}
	}
}

// TestMarks draws a missed fusion, measured times and a launch on the host.
func TestMarks(t *testing.T) {
	tr := mlpTrace(t)
	tr.Stages[1].Misses[0] = trace.Miss{Pattern: "linear-residual", Node: tr.Stages[0].Graph.Nodes[7].ID,
		Reason: "wants one reader, has 2", Origin: tr.Stages[1].Graph.Nodes[6].Origin, Nodes: []int{5, 6}, Joins: []int{5, 6}, Became: 6}
	tr.Program.Launches[2].Device, tr.Program.Launches[2].Reason = "host", "it has no kernel"
	s := layout(stageDrawing(tr, 1, Options{Measured: true, Title: "my model"}))
	marks, bars, hosts := 0, 0, 0
	for _, b := range s.nodes {
		if len(b.marks) > 0 && b.marks[0] == "not fused: linear-residual" && strings.Contains(b.tooltip, "wants one reader") {
			marks++
		}
		if b.time > 0 {
			bars++
		}
		if b.host && strings.Contains(b.head, "on host") && strings.Contains(b.tooltip, "it has no kernel") {
			hosts++
		}
	}
	if marks != 1 || bars != 3 || hosts != 1 || !strings.HasPrefix(s.heading, "my model") || !s.used[lookHost] {
		t.Errorf("%d marks, %d bars, %d launches on the host, title %q", marks, bars, hosts, s.heading)
	}
	var b bytes.Buffer
	if err := s.emit(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"▲ not fused: linear-residual", "missed fusion", "measured time", `STYLE="DASHED"`} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q", want)
		}
	}
}

// TestWidth fits the tables of a listing into a terminal.
func TestWidth(t *testing.T) {
	for _, width := range []int{0, 60, 80, 100} {
		var b bytes.Buffer
		if err := Trace(&b, mlpTrace(t), Options{Format: FormatText, Measured: true, Width: width}); err != nil {
			t.Fatal(err)
		}
		widest := 0
		for line := range strings.Lines(b.String()) {
			if strings.HasPrefix(line, "%") || strings.HasPrefix(line, "  %") || strings.HasPrefix(line, "1 ") {
				widest = max(widest, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")))
			}
		}
		if width == 0 && widest <= 100 || width >= 80 && widest > width {
			t.Errorf("%d characters in a width of %d:\n%s", widest, width, &b)
		}
	}
}

// TestUsualAttributes leaves out what every framework does unless told otherwise.
func TestUsualAttributes(t *testing.T) {
	b := graph.NewBuilder("attributes")
	x := b.Input("x", graph.TypeOf(graph.F32, 2, 4, 8, 8))
	conv := func(groups, stride, pad int) *graph.Node {
		w := b.Param(fmt.Sprint("w", groups, stride, pad), graph.TypeOf(graph.F32, 4, 4/groups, 3, 3))
		return b.Add(graph.Conv2D{Stride: graph.IntsOf(stride, stride), Dilation: graph.IntsOf(1, 1),
			Pad: graph.IntsOf(pad, pad, pad, pad), Groups: groups}, x, w)
	}
	for want, n := range map[string]*graph.Node{
		"conv2d":                            conv(1, 1, 0),
		"conv2d depthwise, stride 2, pad 1": conv(4, 2, 1),
		"conv2d groups 2":                   conv(2, 1, 0),
		"softmax":                           b.Add(graph.Softmax{Axis: 3}, x),
		"softmax axis 1":                    b.Add(graph.Softmax{Axis: 1}, x),
	} {
		if got := opLabel(n, nil); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if err := b.Err(); err != nil {
		t.Fatal(err)
	}
}

// TestPrepared draws what runs when parameters are set in a frame of its own, also in a graph without gradients.
func TestPrepared(t *testing.T) {
	b := graph.NewBuilder("prepared")
	w := b.Unary(graph.Exp, b.Param("w", graph.TypeOf(graph.F32, 8, 4)))
	s := b.Add(graph.Softmax{Axis: 1}, w)
	y := b.MatMul(b.Input("x", graph.TypeOf(graph.F32, 3, 4)), b.Transpose(s, 1, 0), false, false)
	b.Output("y", b.Unary(graph.Tanh, y))
	g := graphtest.Graph(t, b)
	p := &trace.Program{PreparedBytes: 128, Launches: []trace.Launch{{Node: w.ID, Prepared: true}, {Node: s.ID, Prepared: true},
		{Node: y.ID},
		{Node: g.Outputs[0].Node.ID}}}
	for _, detail := range []Detail{Full, Compact, Layers} {
		scene := layout(drawing{graph: g, program: p, opts: Options{Detail: detail}})
		if n := len(scene.clusters); n != 1 {
			t.Fatalf("detail %v: %d frames", detail, n)
		}
		c := scene.clusters[0]
		if c.title != "prepared" || !slices.Equal(c.notes, []string{"2 launches once · 128 B"}) ||
			!strings.Contains(scene.facts[1], "prepared once: 2 launches, 128 B") {
			t.Errorf("detail %v: frame %q with %q, facts %q", detail, c.title, c.notes, scene.facts)
		}
		inside := 0
		for _, x := range scene.nodes {
			if x.inside == c {
				inside++
				if x.phase != prepared {
					t.Errorf("%s is of phase %v", x.key, x.phase)
				}
			} else if x.phase == prepared {
				t.Errorf("%s is not in the frame", x.key)
			}
		}
		if want := map[Detail]int{Full: 3, Compact: 2, Layers: 2}[detail]; inside != want {
			t.Errorf("detail %v: %d nodes are in the frame, want %d", detail, inside, want)
		}
	}
}

// TestPhases draws a training step: a region for each phase, one card for the optimiser, few edges between them.
func TestPhases(t *testing.T) {
	for _, layers := range []int{2, 12} {
		g := training(t, layers)
		late := false
		for _, n := range g.Nodes {
			if b, ok := n.Op.(graph.Binary); ok && b.Fn == graph.Mul {
				late = true // by 2, the first of the backward pass
			}
			if late && graph.ClassOf(n.Op) != graph.ClassSource {
				n.Phase = graph.Backward
			}
		}
		for i, u := range g.Updates {
			u.Value.Phase, u.Value.Args[1].Phase = graph.Optimiser, graph.Optimiser
			u.Value.Args[1].Args[0].Name = graph.GradientOf + u.Target.Name
			if i == 0 {
				moment := &graph.Node{ID: 9999, Op: graph.State{Type: u.Target.Type}, Type: u.Target.Type, Name: "optim/velocity/w",
					Phase: graph.Optimiser}
				g.Nodes = append([]*graph.Node{moment}, g.Nodes...)
				g.Updates = append(g.Updates, graph.Update{Target: moment, Value: u.Value})
			}
		}
		s := layout(drawing{graph: g})
		regions, notes := 0, ""
		for _, c := range s.clusters {
			if c.kind == clusterPhase {
				regions++
			}
			notes += strings.Join(c.notes, "\n")
		}
		joined, kept, step := 0, 0, ""
		for _, e := range s.edges {
			if e.whole {
				joined++
			}
			if e.style == edgeKept {
				kept++
			}
		}
		for _, b := range s.nodes {
			if b.key == "optimiser" {
				step = fmt.Sprint(b.lines)
			}
		}
		if regions != 3 || !strings.Contains(step, fmt.Sprintf("changes %d parameters", layers)) || !strings.Contains(step, "velocity") {
			t.Errorf("%d layers: %d regions, the step %s", layers, regions, step)
		}
		if many := strings.Contains(notes, "kept value"); kept == 0 && !many || kept > maxKept {
			t.Errorf("%d layers: %d edges of kept values, notes %q", layers, kept, notes)
		}
		whole := layout(drawing{graph: g, opts: Options{Detail: Full}})
		if len(whole.nodes) <= len(s.nodes) {
			t.Errorf("%d layers: %d nodes in full detail, %d else", layers, len(whole.nodes), len(s.nodes))
		}
		var b bytes.Buffer
		if err := Graph(&b, g, Options{Format: FormatSVG}); err != nil {
			t.Error(err)
		}
	}
}
