package fusec_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/examples"
	"fusec/examples/train"
	"fusec/graph"
	"fusec/graph/dot"
	"fusec/graph/optim"
	"fusec/graph/trace"
	"fusec/graph/trace/tracejson"
)

// A picture is the layout of a drawing.
type picture struct {
	width, height float64
	nodes, frames map[string]area
	within        map[string][]string // the frames around a node or frame
	arrows        []arrow
	text          string
}

type area struct{ left, top, right, bottom float64 }

// grown is a with a margin on each side.
func (a area) grown(by float64) area {
	return area{a.left - by, a.top - by, a.right + by, a.bottom + by}
}

func (a area) holds(b area) bool {
	return a.left <= b.left && a.top <= b.top && a.right >= b.right && a.bottom >= b.bottom
}

func (a area) meets(b area) bool {
	return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom
}

// An arrow is a curve from one node to another.
type arrow struct {
	from, to string
	points   []point
}

type point struct{ x, y float64 }

var (
	svgSize  = regexp.MustCompile(`<svg width="(\d+)pt" height="(\d+)pt"`)
	svgGroup = regexp.MustCompile(
		`(?s)<g id="([^"]+)" class="(node|cluster|edge)">\s*<title>([^<]*)</title>(.*?)</g>\n(?:<g id|</g>|<!--)`)
	svgPoints = regexp.MustCompile(` (?:points|d)="([^"]+)"`)
	svgNumber = regexp.MustCompile(`-?[\d.]+`)
	dotNode   = regexp.MustCompile(`^\s*(n\d+)\[.*[\[,]id="([^"]+)"`)
	dotFrame  = regexp.MustCompile(`^(?:.*[;,\s])?id="([^"]+)"`)
)

// pictureOf lays out a drawing in the DOT language.
func pictureOf(t *testing.T, src []byte) *picture {
	t.Helper()
	svg, err := dot.Render(src, dot.FormatSVG)
	if err != nil {
		t.Fatal(err)
	}
	p := &picture{nodes: map[string]area{}, frames: map[string]area{}, within: map[string][]string{}, text: string(svg)}
	names, ids := map[string]string{}, map[string]string{} // of nodes and of frames, by those in the source
	var around []string
	for _, line := range strings.Split(string(src), "\n") {
		switch line = strings.TrimSpace(line); {
		case strings.HasPrefix(line, "subgraph "):
			name := strings.Fields(line)[1]
			p.within[name] = slices.Clone(around)
			around = append(around, name)
		case line == "}" && len(around) > 0:
			around = around[:len(around)-1]
		default:
			if m := dotNode.FindStringSubmatch(line); m != nil {
				names[m[1]] = m[2]
				p.within[m[2]] = slices.Clone(around)
			} else if m := dotFrame.FindStringSubmatch(line); m != nil && len(around) > 0 {
				ids[around[len(around)-1]] = m[1]
			}
		}
	}
	for _, name := range slices.Collect(maps.Keys(p.within)) {
		for i, frame := range p.within[name] {
			p.within[name][i] = ids[frame]
		}
		if id := ids[name]; id != "" {
			p.within[id] = p.within[name]
			delete(p.within, name)
		}
	}
	number := func(s string) float64 {
		v, err := strconv.ParseFloat(s, 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	size := svgSize.FindStringSubmatch(p.text)
	p.width, p.height = number(size[1]), number(size[2])
	for rest := p.text; ; {
		m := svgGroup.FindStringSubmatchIndex(rest)
		if m == nil {
			break
		}
		part := func(i int) string { return rest[m[2*i]:m[2*i+1]] }
		id, class, title, body := html.UnescapeString(part(1)), part(2), html.UnescapeString(part(3)), part(4)
		a := area{math.Inf(1), math.Inf(1), math.Inf(-1), math.Inf(-1)}
		var points []point
		for _, l := range svgPoints.FindAllStringSubmatch(body, -1) {
			n := svgNumber.FindAllString(l[1], -1)
			for i := 0; i+1 < len(n); i += 2 {
				q := point{number(n[i]), number(n[i+1])}
				points = append(points, q)
				a = area{min(a.left, q.x), min(a.top, q.y), max(a.right, q.x), max(a.bottom, q.y)}
			}
			if class == "edge" {
				break // the arrowhead follows
			}
		}
		switch class {
		case "node":
			p.nodes[id] = a
		case "cluster":
			p.frames[id] = a
		case "edge":
			ends := strings.Split(title, "->")
			p.arrows = append(p.arrows, arrow{names[ends[0]], names[ends[1]], points})
		}
		rest = rest[m[9]:]
	}
	return p
}

// check reports what lies where it should not: nodes outside their frames or in others, nodes and frames that overlap,
// arrows that run through nodes.
func (p *picture) check(t *testing.T) {
	t.Helper()
	if len(p.nodes) == 0 || len(p.within) != len(p.nodes)+len(p.frames) {
		t.Fatalf("%d nodes and %d frames, of %d", len(p.nodes), len(p.frames), len(p.within))
	}
	for id, a := range p.nodes {
		for f, b := range p.frames {
			switch in := slices.Contains(p.within[id], f); {
			case in && !b.grown(1).holds(a):
				t.Errorf("%s lies outside its frame %s: %v, %v", id, f, a, b)
			case !in && b.grown(-1).meets(a):
				t.Errorf("%s lies in the frame %s of others: %v, %v", id, f, a, b)
			}
		}
		for other, b := range p.nodes {
			if id < other && a.grown(-1).meets(b) {
				t.Errorf("%s and %s overlap", id, other)
			}
		}
	}
	for id, a := range p.frames {
		for other, b := range p.frames {
			if id < other && a.grown(-1).meets(b) && !slices.Contains(p.within[id], other) && !slices.Contains(p.within[other], id) {
				t.Errorf("the frames %s and %s overlap", id, other)
			}
		}
	}
	crossed := 0
	for _, e := range p.arrows {
		for id, a := range p.nodes {
			if id != e.from && id != e.to && e.meets(a.grown(-3)) {
				crossed++
			}
		}
	}
	if crossed > 0 {
		t.Errorf("%d arrows run through nodes", crossed)
	}
}

// bounded reports a picture that nobody can read.
func (p *picture) bounded(t *testing.T) {
	t.Helper()
	if len(p.nodes) > 80 || p.width > 4000 || p.height > 4000 {
		t.Errorf("%d nodes on %v × %v points", len(p.nodes), p.width, p.height)
	}
}

// meets reports whether the arrow runs through a.
func (e arrow) meets(a area) bool {
	for i := 0; i+3 < len(e.points); i += 3 {
		p := e.points[i : i+4]
		for k := range 33 {
			s := float64(k) / 32
			r := 1 - s
			x := r*r*r*p[0].x + 3*r*r*s*p[1].x + 3*r*s*s*p[2].x + s*s*s*p[3].x
			y := r*r*r*p[0].y + 3*r*r*s*p[1].y + 3*r*s*s*p[2].y + s*s*s*p[3].y
			if a.left < x && x < a.right && a.top < y && y < a.bottom {
				return true
			}
		}
	}
	return false
}

// pictured draws a stage.
func pictured(t *testing.T, tr *trace.Trace, stage int, o dot.Options) *picture {
	t.Helper()
	return pictureOf(t, drawingOf(t, tr, stage, o))
}

// drawingOf is the drawing of a stage in the DOT language.
func drawingOf(t *testing.T, tr *trace.Trace, stage int, o dot.Options) []byte {
	t.Helper()
	o.Format = dot.FormatDOT
	var b bytes.Buffer
	if err := dot.Stage(&b, tr, stage, o); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// planned compiles a graph for a drawing.
func planned(t *testing.T, g *graph.Graph, opts ...fusec.CompileOption) *trace.Trace {
	t.Helper()
	tr, _, err := fusec.Plan(g, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// languageStep is a training step of a language model with layers of a usual form.
func languageStep(t *testing.T, layers int) *trace.Trace {
	t.Helper()
	m, err := examples.Language(tensor.Float32, 2, 16, examples.Transformer{Layers: layers, Dim: 16, Heads: 4, KVHeads: 2, Hidden: 32})
	if err != nil {
		t.Fatal(err)
	}
	if err := examples.Classify(m); err != nil {
		t.Fatal(err)
	}
	if _, err := gorgonia.Grad(m.Cost, m.Learnables...); err != nil {
		t.Fatal(err)
	}
	return machine(t, m.Graph, fusec.WithOptimizer(&optim.Optimizer{Rule: optim.AdamW{}, Rate: optim.Constant(0.1), Clip: 1})).Trace()
}

// The JSON of all stages of a step of 12 layers takes at most 3 MB.
func TestJSONOfDeepStep(t *testing.T) {
	long(t)
	src, err := json.Marshal(tracejson.New(languageStep(t, 12), tracejson.All(tracejson.About{}, false)))
	if err != nil || len(src) > 3e6 {
		t.Errorf("%d bytes, want at most 3e6; %v", len(src), err)
	}
}

// residual is a convolutional network of stages of three residual blocks.
func residual(t *testing.T, stages int, training bool) *graph.Graph {
	b := graph.NewBuilder("resnet")
	conv := func(name string, x *graph.Node, out, size, stride int) *graph.Node {
		pad := size / 2
		y := b.Add(graph.Conv2D{Stride: graph.IntsOf(stride, stride), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(pad, pad, pad, pad),
			Groups: 1}, x, b.Param(name+".conv.weight", graph.TypeOf(graph.F32, out, x.Type.Shape.At(1), size, size)))
		c := graph.TypeOf(graph.F32, out)
		mean, variance := b.State(name+".norm.mean", c), b.State(name+".norm.var", c)
		y = b.Add(graph.BatchNorm{Eps: 1e-5, Momentum: 0.9, Train: training}, y, b.Param(name+".norm.gamma", c),
			b.Param(name+".norm.beta", c), mean, variance)
		if training {
			b.Update(mean, b.Add(graph.Result{Index: 1}, y))
			b.Update(variance, b.Add(graph.Result{Index: 2}, y))
		}
		return y
	}
	x := b.Unary(graph.Relu, conv("stem", b.Input("image", graph.TypeOf(graph.F32, 2, 3, 16, 16)), 8, 3, 1))
	for s := range stages {
		for i := range 3 {
			name, width, stride, skip := fmt.Sprintf("stage%d.block%d", s, i), 8<<s, 1, x
			if s > 0 && i == 0 {
				stride, skip = 2, conv(name+".down", x, width, 1, 2)
			}
			y := b.Unary(graph.Relu, conv(name+".first", x, width, 3, stride))
			x = b.Unary(graph.Relu, b.Binary(graph.Add, conv(name+".second", y, width, 3, 1), skip))
		}
	}
	y := b.MatMul(b.Reduce(graph.Mean, x, false, 2, 3), b.Param("head.weight", graph.TypeOf(graph.F32, 4<<stages, 10)), false, false)
	b.Output("cost", b.Reduce(graph.Mean, b.Unary(graph.Square, y), false, 0, 1))
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// checkStages draws all stages, those that look like the one before once.
func checkStages(t *testing.T, tr *trace.Trace) {
	t.Helper()
	var last string
	for i, s := range tr.Stages {
		src := drawingOf(t, tr, i, dot.Options{Title: "one"})
		if text := strings.ReplaceAll(string(src), s.Name, ""); text != last {
			t.Run(s.Name, func(t *testing.T) {
				p := pictureOf(t, src)
				p.bounded(t)
				p.check(t)
			})
			last = text
		}
	}
}

// TestPictures lays out drawings of every saved model at every stage, and of training steps.
func TestPictures(t *testing.T) {
	long(t)
	files, err := filepath.Glob(filepath.Join(models, "*.graph"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d models, %v", len(files), err)
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			g, _, err := graph.Load(f)
			if err != nil {
				t.Fatal(err)
			}
			tr := planned(t, g)
			checkStages(t, tr)
			pictured(t, tr, len(tr.Stages)-1, dot.Options{Detail: dot.Full}).check(t)
		})
	}
	adam := fusec.WithOptimizer(&optim.Optimizer{Rule: optim.Adam{}, Rate: optim.Constant(0.1)})
	steps := map[string]func(t *testing.T) *trace.Trace{
		"resnet":      func(t *testing.T) *trace.Trace { return planned(t, residual(t, 2, false)) },
		"resnet step": func(t *testing.T) *trace.Trace { return planned(t, residual(t, 3, true), adam) },
		"lstm step": func(t *testing.T) *trace.Trace {
			g, opts := shapeOf(t, "lstm", 250)
			return planned(t, g, opts...)
		},
	}
	for _, x := range examples.All() {
		steps["step of "+x.Name] = func(t *testing.T) *trace.Trace {
			s := x.Defaults
			if x.Name != "karate" {
				s.Batch = 4
			}
			task, err := x.Open(s)
			if err != nil {
				t.Fatal(err)
			}
			r, err := train.Start(task, s)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			return r.Machine().Trace()
		}
	}
	for name, f := range steps {
		t.Run(name, func(t *testing.T) {
			checkStages(t, f(t))
		})
	}
}

// TestPictureOfPipeline draws the stages of a pipeline as frames, each with its phases, layers and device.
func TestPictureOfPipeline(t *testing.T) {
	long(t)
	b := graph.NewBuilder("tower")
	h, y := b.Input("x", graph.TypeOf(graph.F32, 16, 32)), b.Input("y", graph.TypeOf(graph.F32, 16, 8))
	for i := range 8 {
		s := fmt.Sprintf("layer%d.", i)
		up := b.Unary(graph.Relu, b.MatMul(h, b.Param(s+"up.weight", graph.TypeOf(graph.F32, 32, 64)), false, false))
		h = b.Binary(graph.Add, h, b.MatMul(up, b.Param(s+"down.weight", graph.TypeOf(graph.F32, 64, 32)), false, false))
		h.Name = s + "out"
	}
	off := b.Binary(graph.Sub, b.MatMul(h, b.Param("head.weight", graph.TypeOf(graph.F32, 32, 8)), false, false), y)
	b.Output("cost", b.Reduce(graph.Mean, b.Unary(graph.Square, off), false, 0, 1))
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	tr := planned(t, g, fusec.WithPipeline(4, "layer3.out"), fusec.WithDevices("cpu", "cpu"), fusec.WithOptimizer(&optim.Optimizer{
		Rule: optim.AdamW{}, Rate: optim.Constant(0.1), Clip: 1}))
	checkStages(t, tr)
	p := pictured(t, tr, len(tr.Stages)-1, dot.Options{})
	for _, want := range []string{"2 stages · 4 microbatches", ">stage 1, up to layer3.out<", ">on cpu<", ">layer{0…3} × 4<",
		">layer{4…7} × 4<"} {
		if !strings.Contains(p.text, want) {
			t.Errorf("no %q", want)
		}
	}
	for frame, inside := range map[string]string{"stage1-forward": "stage1", "stage2-backward": "stage2",
		"stage2-optimiser": "stage2"} {
		if !slices.Contains(p.within[frame], inside) {
			t.Errorf("frame %s is within %q, not %s", frame, p.within[frame], inside)
		}
	}
}

// TestPictureOfDeepStep draws a step of 12 layers, and one of 48, which looks the same.
func TestPictureOfDeepStep(t *testing.T) {
	long(t)
	var drawn []string
	for _, layers := range []int{3, 12, 48} {
		tr := languageStep(t, layers)
		checkStages(t, tr)
		p := pictured(t, tr, len(tr.Stages)-1, dot.Options{})
		frames := regexp.MustCompile(fmt.Sprintf(`font-weight="bold"[^<]*>layer\{0…%d\} × %d<`, layers-1, layers)).FindAllString(p.text,
			-1)
		if len(frames) != 2 {
			t.Errorf("%d layers: frames %q, want one forward and one backward", layers, frames)
		}
		drawn = append(drawn, fmt.Sprintf("%d nodes, %d frames, %d arrows", len(p.nodes), len(p.frames), len(p.arrows)))
		for _, want := range []string{">forward<", ">backward<", ">optimiser<", ">gradient of embedding<", "attention(q, k, v, causal)",
			">adamw step<", ">cost<"} {
			if !strings.Contains(p.text, want) {
				t.Errorf("%d layers: no %q", layers, want)
			}
		}
	}
	if drawn[0] != drawn[1] || drawn[1] != drawn[2] {
		t.Errorf("3, 12 and 48 layers are drawn with %q", drawn)
	}
}
