package raise_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/dot"
	"fusec/graph/graphtest"
	"fusec/graph/trace"
	"fusec/passes"
	"fusec/passes/passtest"
	"fusec/passes/raise"
)

var update = flag.Bool("update", false, "write docs/fusions.md and its pictures again")

// shown is a fusion on the page.
type shown struct {
	name, doc string
	numeric   trace.Numeric // not stated: left out
	pass      string        // that makes it; the last for launches
	frozen    bool          // it is made of frozen parameters
	build     func(b *graph.Builder)
	not       []unlike
}

// unlike is a graph that is no such fusion, and how.
type unlike struct {
	how   string
	build func(b *graph.Builder)
}

// f32 is the type of values on the page.
func f32(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }

// recognised are the patterns of the pass, with the first of their spellings and those that do not match.
func recognised() (list []shown) {
	for _, p := range raise.Patterns() {
		s := shown{name: p.Name, doc: p.Doc, numeric: p.Numeric.In(graph.F32), pass: "raise"}
		for _, sp := range spellings[p.Name] {
			build := func(b *graph.Builder) { b.Output("y", sp.build(b, b.Input("x", passtest.F64(5, 5)))) }
			switch matches := matched(build, p.Name); {
			case matches && s.build == nil:
				s.build = build
			case !matches:
				s.not = append(s.not, unlike{sp.name, build})
			}
		}
		list = append(list, s)
	}
	return list
}

// matched reports whether the pass applies a pattern.
func matched(build func(b *graph.Builder), name string) bool {
	b := graph.NewBuilder("test")
	build(b)
	g, err := b.Graph()
	if err != nil {
		return false
	}
	_, tr, err := passes.Run(g, passes.Config{Stop: "raise"})
	return err == nil &&
		slices.ContainsFunc(tr.Stages[len(tr.Stages)-1].Matches, func(m trace.Match) bool { return m.Pattern == name })
}

// docOf is what a pass does.
func docOf(pass string) string {
	for _, p := range passes.All() {
		if p.Name == pass {
			return p.Doc
		}
	}
	return ""
}

// searched are the fusions that passes search for without a table.
func searched() []shown {
	attend := func(step passtest.Step) func(b *graph.Builder) {
		return func(b *graph.Builder) {
			q, k, v := passtest.QKV(b, graph.F32, 5, 5)
			b.Output("y", passtest.Attend(b, q, k, v, func(b *graph.Builder, s *graph.Node) *graph.Node {
				return step(b, b.Named(s, "scores"))
			}))
		}
	}
	mix := func(second func(w *passtest.MoEWriter) *graph.Node) func(b *graph.Builder) {
		return func(b *graph.Builder) {
			w := passtest.NewMoEWriter(b, 2, 3)
			b.Output("y", w.Sum(w.Softmax(w.Logits()), func(e int) *graph.Node {
				if e == 1 {
					return b.Named(second(w), "second expert")
				}
				return w.Relu(e)
			}))
		}
	}
	return []shown{
		{name: "attention", pass: "fuse-attention", numeric: trace.Reassociated.In(graph.F32),
			doc: docOf("fuse-attention"),
			build: attend(func(b *graph.Builder, s *graph.Node) *graph.Node {
				return b.Binary(graph.Add, b.BinaryScalar(graph.Mul, s, 0.5), b.Input("mask", f32(5, 5)))
			}),
			not: []unlike{
				{"something else reads the scores, which a fused attention never has in memory",
					attend(func(b *graph.Builder, s *graph.Node) *graph.Node {
						b.Output("largest", b.Named(b.Reduce(graph.MaxOf, s, false, 1), "largest"))
						return s
					})},
				{"an operation on the scores that is neither a scale nor a mask", attend(func(b *graph.Builder, s *graph.Node) *graph.Node {
					return b.Named(b.Unary(graph.Tanh, s), "capped")
				})},
			}},
		{name: "moe", pass: "fuse-moe", numeric: trace.Reassociated.In(graph.F32), doc: docOf("fuse-moe"),
			build: mix(func(w *passtest.MoEWriter) *graph.Node { return w.Relu(1) }),
			not: []unlike{
				{"experts with different activations", mix(func(w *passtest.MoEWriter) *graph.Node {
					h := w.B.Unary(graph.Tanh, w.B.MatMul(w.X, w.Param("up", 4, 5), false, false))
					return w.B.MatMul(h, w.Param("down", 5, 3), false, false)
				})},
				{"something else reads the result of an expert", mix(func(w *passtest.MoEWriter) *graph.Node {
					y := w.Relu(1)
					w.B.Output("z", y)
					return y
				})},
			}},
	}
}

// stacked is what becomes one product.
func stacked() []shown {
	linear := func(b *graph.Builder, x *graph.Node, name string) *graph.Node {
		y := b.MatMul(x, b.Param("w"+name, f32(8, 4)), false, false)
		return b.Binary(graph.Add, y, b.Broadcast(b.Param("b"+name, f32(4)), y.Type.Shape))
	}
	x := func(b *graph.Builder) *graph.Node { return b.Input("x", f32(5, 8)) }
	return []shown{{name: "stack-weights", pass: "stack-weights", numeric: trace.Exact, frozen: true, doc: docOf("stack-weights"),
		build: func(b *graph.Builder) {
			x := x(b)
			b.Output("scores", b.MatMul(linear(b, x, "q"), linear(b, x, "k"), false, true))
		},
		not: []unlike{
			{"a gate: one of two products is multiplied by the other in its launch", func(b *graph.Builder) {
				x := x(b)
				b.Output("y", b.Binary(graph.Mul, b.Unary(graph.Silu, b.Named(linear(b, x, "gate"), "gate")), linear(b, x, "up")))
			}},
			{"products that are handed out: each would have to be copied", func(b *graph.Builder) {
				x := x(b)
				b.Output("q", b.Named(linear(b, x, "q"), "q"))
				b.Output("k", linear(b, x, "k"))
			}},
			{"products of different operands", func(b *graph.Builder) {
				x := x(b)
				b.Output("scores", b.MatMul(linear(b, x, "q"), linear(b, b.Unary(graph.Exp, x), "k"), false, true))
			}},
		}}}
}

// launched are the kinds of launches that elementwise work joins.
func launched() []shown {
	x := func(b *graph.Builder) *graph.Node { return b.Input("x", f32(16, 8)) }
	linear := func(b *graph.Builder) *graph.Node {
		y := b.MatMul(x(b), b.Param("w", f32(8, 8)), false, false)
		return b.Binary(graph.Add, y, b.Broadcast(b.Param("b", f32(8)), y.Type.Shape))
	}
	softmaxed := func(b *graph.Builder) *graph.Node { return b.Add(graph.Softmax{Axis: 1}, x(b)) }
	return []shown{
		{name: "linear", doc: "what follows a matrix product element by element: bias, activation, residual",
			build: func(b *graph.Builder) {
				b.Output("y", b.Binary(graph.Add, b.Unary(graph.Relu, linear(b)), b.Input("residual", f32(16, 8))))
			},
			not: []unlike{{"a row statistic of the product: a launch has a block of the row at a time", func(b *graph.Builder) {
				b.Output("y", b.Add(graph.Softmax{Axis: 1}, linear(b)))
			}}, {"work in another type: a launch computes in one", func(b *graph.Builder) {
				b.Output("y", b.Unary(graph.Exp, b.CastTo(graph.F64, linear(b))))
			}}}},
		{name: "conv", doc: "what follows a convolution element by element",
			build: func(b *graph.Builder) {
				y := passtest.Conv(b, b.Input("image", f32(1, 3, 8, 8)), b.Param("filters", f32(4, 3, 3, 3)), 1, 1, 1)
				b.Output("y", b.Unary(graph.Relu, y))
			}},
		{name: "rows", doc: "what precedes and follows a softmax, a norm or a sum over rows, on the same rows",
			build: func(b *graph.Builder) {
				y := b.Add(graph.Softmax{Axis: 1}, b.BinaryScalar(graph.Mul, x(b), 0.5))
				b.Output("y", b.Binary(graph.Mul, y, b.Input("gate", f32(16, 8))))
			},
			not: []unlike{{"sums over other rows", func(b *graph.Builder) {
				b.Output("y", b.Add(graph.Softmax{Axis: 0}, softmaxed(b)))
			}}}},
		{name: "elementwise", doc: "elementwise work that nothing above takes: one pass over memory",
			build: func(b *graph.Builder) {
				y := b.Unary(graph.Tanh, b.Binary(graph.Add, x(b), b.Input("y", f32(16, 8))))
				b.Output("z", b.Binary(graph.Mul, y, b.Unary(graph.Exp, y)))
			}},
	}
}

var svgText = regexp.MustCompile(`>[^<>]+</text>`)

// TestFusionsPage compares docs/fusions.md and its pictures, which it makes of the patterns and their tests. Of the
// pictures it compares the words: their style is tested where it is made.
func TestFusionsPage(t *testing.T) {
	const page, pictures = "../../docs/fusions.md", "../../docs/fusions"
	var b strings.Builder
	b.WriteString(pageHead)
	size := 0
	for _, part := range []struct {
		title, text string
		list        []shown
	}{
		{"Operations written by hand", handText, recognised()},
		{"Attention and mixtures of experts", searchText, searched()},
		{"Products of one operand", stackText, stacked()},
		{"Launches", launchText, launched()},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n", part.title, part.text)
		for _, s := range part.list {
			fmt.Fprintf(&b, "\n### %s\n\n%s", s.name, sentence(s.doc))
			if s.numeric.Stated() {
				fmt.Fprintf(&b, " Numbers: %v.", s.numeric)
			}
			fmt.Fprintf(&b, "\n\n![%s before and after](fusions/%s.svg)\n", s.name, s.name)
			picture := s.picture(t)
			size += len(picture)
			if path := filepath.Join(pictures, s.name+".svg"); *update {
				if err := os.WriteFile(path, []byte(picture), 0o666); err != nil {
					t.Fatal(err)
				}
			} else if old, err := os.ReadFile(path); err != nil {
				t.Error(err)
			} else if old, now := svgText.FindAllString(string(old), -1), svgText.FindAllString(picture, -1); !slices.Equal(old, now) {
				t.Errorf("%s says %q, now %q; go test -update rewrites it", path, old, now)
			}
			for i, n := range s.not {
				if i == 0 {
					b.WriteString("\nNot fused:\n\n")
				}
				fmt.Fprintf(&b, "- %s\n", n.how)
				if why := s.miss(t, n); why != "" {
					fmt.Fprintf(&b, "\n      %s\n\n", why)
				}
			}
		}
	}
	text := strings.ReplaceAll(b.String(), "\n\n\n", "\n\n")
	if *update {
		if err := os.WriteFile(page, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if old, err := os.ReadFile(page); err != nil || string(old) != text {
		t.Errorf("docs/fusions.md differs (%v); go test -update rewrites it", err)
	}
	if size > 600<<10 {
		t.Errorf("the pictures take %d bytes", size)
	}
}

// sentence makes a sentence of a doc, which may begin with a formula.
func sentence(doc string) string {
	if first, _, _ := strings.Cut(doc, " "); len(first) > 1 &&
		!strings.ContainsFunc(first, func(r rune) bool { return r < 'a' || r > 'z' }) || doc[:2] == "a " {
		doc = strings.ToUpper(doc[:1]) + doc[1:]
	}
	return doc + "."
}

// config is how the fusion is compiled.
func (s shown) config() passes.Config { return passes.Config{Stop: s.pass, Frozen: s.frozen} }

// miss is the message of the missed fusion, or empty if nothing is told.
func (s shown) miss(t *testing.T, n unlike) string {
	t.Helper()
	g := graphtest.Built(t, n.build)
	h, tr, err := passes.Run(g, s.config())
	if err != nil {
		t.Fatal(err)
	}
	if launches := passtest.Launches(h); s.pass == "" && len(strings.Fields(braces.ReplaceAllString(launches, ""))) < 2 {
		t.Errorf("%s: %s is one launch, %s", s.name, n.how, launches)
	}
	for _, stage := range tr.Stages {
		for _, m := range stage.Misses {
			if s.pass == "" || m.Pattern == s.name {
				return m.Pattern + ": " + passtest.WithoutLines(m.Reason)
			}
		}
		for _, m := range stage.Matches {
			if s.pass != "" && m.Pattern == s.name {
				t.Errorf("%s: %s is fused", s.name, n.how)
			}
		}
	}
	return ""
}

// picture draws the graph before and after, side by side.
func (s shown) picture(t *testing.T) string {
	t.Helper()
	g := graphtest.Built(t, s.build)
	h, tr, err := passes.Run(g, s.config())
	if err != nil {
		t.Fatal(err)
	}
	g.Name, h.Name = "before", "after"
	var before, after bytes.Buffer
	opts := dot.Options{Format: dot.FormatSVG, Detail: dot.Full}
	if err := dot.Graph(&before, g, opts); err != nil {
		t.Fatal(err)
	}
	if s.pass != "" {
		err = dot.Graph(&after, h, opts)
	} else {
		tr.Stages[len(tr.Stages)-1].Graph.Name = "after"
		err = dot.Stage(&after, tr, len(tr.Stages)-1, opts)
	}
	if err != nil {
		t.Fatal(err)
	}
	w1, h1, left := inner(t, before.String())
	w2, h2, right := inner(t, after.String())
	const gap = 40
	tall := max(h1, h2)
	return fmt.Sprintf(
		`<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="%.0fpt" height="%.0fpt" `+
			`viewBox="0 0 %.0f %.0f" font-family="Helvetica,sans-serif"><rect width="100%%" height="100%%" fill="#fff"/>`+
			`<svg y="%.0f" width="%.0f" height="%.0f" %s<text x="%.0f" y="%.0f" font-size="24" fill="#4b5563">→</text>`+
			`<svg x="%.0f" y="%.0f" width="%.0f" height="%.0f" %s</svg>`+"\n",
		w1+gap+w2, tall, w1+gap+w2, tall, (tall-h1)/2, w1, h1, left, w1+8, tall/2, w1+gap, (tall-h2)/2, w2, h2, right)
}

var (
	braces  = regexp.MustCompile(`\{[^}]*\}`)
	viewBox = regexp.MustCompile(`viewBox="[\d.]+ [\d.]+ ([\d.]+) ([\d.]+)"`)
	clutter = regexp.MustCompile(
		`(?s)<!--.*?-->|<title>.*?</title>| xlink:title="[^"]*"| font-family="Helvetica,sans-Serif"| text-anchor="start"|\n`)
	// Coordinates are in attributes. Numbers of labels stay.
	attribute = regexp.MustCompile(`"[^"<>]*"`)
	digits2   = regexp.MustCompile(`(\.\d)\d+`)
)

// inner is the size of a drawing, and it from its viewBox on, without what a small picture does not need.
func inner(t *testing.T, svg string) (w, h float64, text string) {
	t.Helper()
	at := viewBox.FindStringSubmatchIndex(svg)
	if at == nil {
		t.Fatalf("no viewBox: %.200s", svg)
	}
	w, _ = strconv.ParseFloat(svg[at[2]:at[3]], 64)
	h, _ = strconv.ParseFloat(svg[at[4]:at[5]], 64)
	text = strings.Replace(svg[at[0]:], "\n", " ", 1)
	return w, h, attribute.ReplaceAllStringFunc(clutter.ReplaceAllString(text, ""),
		func(s string) string { return digits2.ReplaceAllString(s, "$1") })
}

const pageHead = `# What fuses and what does not

fusec looks for operations that were written out by hand, for attention and mixtures of experts, and then puts elementwise
work into the launches that produce or read it. This page has each pattern, with the graph before and after, what is not
such a pattern, and the message of ` + "`fusec explain`" + ` where it was nearly one. Without a message nothing was near. The test
TestFusionsPage in [passes/raise](../passes/raise/page_test.go) makes the page and its pictures from the patterns and
their tests.

*Numbers* is what a fusion may change of a result: nothing (exact), the order of sums (reassociated), or a formula
(approximate), each with its bound in f32. ` + "`fusec explain --numeric`" + ` prints it for a model.
`

const handText = `These become one operation each, so that kernels, gradients and later fusions see what is meant. Order of ` +
	`operands,
brackets and constants as people write them do not matter. Values that others read stay.`

const searchText = `Two searches look for larger forms. They report a missed fusion for each softmax between two products, and ` +
	`for each tensor
whose slices weight the terms of a sum.`

const stackText = `With frozen weights, as in what ` + "`Compile`" +
	` makes, several products become one with weights that are stacked once. A
target says whether that is faster: the CPU leaves large products apart, and CUDA none.`

const launchText = `Boxes are launches: what is in a box is computed in one pass, and only what leaves it is stored.`
