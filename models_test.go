package fusec_test

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/cmd/models/zoo"
	"fusec/examples"
	"fusec/graph"
	"fusec/graph/dot"
	"fusec/graph/npy"
)

const models = "testdata/models"

func TestFusionsOfMLP(t *testing.T) {
	m := machine(t, zoo.DigitsMLP(16).Graph)
	var kinds []string
	for i, f := range m.Fusions() {
		kinds = append(kinds, f.Kind)
		var names []string
		for _, n := range f.Nodes {
			names = append(names, n.Name)
		}
		if !slices.Contains(names, "A × B") || !slices.Contains(names, "+") {
			t.Errorf("launch %d covers %q, not the product and the bias", i, names)
		}
		if relu := slices.Contains(names, ">=") && slices.Contains(names, "⊙"); relu != (i < 2) {
			t.Errorf("launch %d covers %q: with ReLU is %v", i, names, relu)
		}
		if f.FLOPs == 0 || f.Bytes == 0 {
			t.Errorf("launch %d costs nothing: %+v", i, f)
		}
	}
	if !slices.Equal(kinds, []string{"linear", "linear", "linear"}) {
		t.Errorf("the launches are %v", kinds)
	}
}

func TestFusionsOfTransformerBlock(t *testing.T) {
	m := machine(t, zoo.TransformerBlock(2, 8, 16, 2, 32).Graph)
	count := map[string]int{}
	for _, f := range m.Fusions() {
		count[f.Kind]++
	}
	if want := map[string]int{"linear": 6, "attention": 1, "norm": 2}; !maps.Equal(count, want) {
		t.Errorf("the launches are %v, want %v", count, want)
	}
}

// digits are the images that the model of digits was trained on, and those that it is tested with.
func digits(t *testing.T) (known, test examples.Digits) {
	t.Helper()
	known, test, err := examples.LoadDigits()
	if err != nil {
		t.Fatal(err)
	}
	return known, test
}

// The saved model of digits classifies as many images right as when it was trained.
func TestDigits(t *testing.T) {
	const images, wantRight = 360, 346
	g, weights, err := graph.Load(filepath.Join(models, "digits-mlp.graph"))
	if err != nil {
		t.Fatal(err)
	}
	pixels, err := npy.ReadFile(filepath.Join(models, "digits-mlp.pixels.npy"))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := weights.Tensors["pixels"]; ok {
		t.Error("the images are among the weights")
	}
	p, err := fusec.Compile(g)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	in := weights.Tensors
	in["pixels"] = pixels
	out, err := p.Run(in)
	if err != nil {
		t.Fatal(err)
	}
	_, test := digits(t)
	if test.Count() != images {
		t.Fatalf("%d test images, want %d", test.Count(), images)
	}
	logits, right := out[g.Outputs[0].Name].Floats(), 0
	for i, label := range test.Labels {
		row := logits[i*10 : (i+1)*10]
		if slices.Index(row, slices.Max(row)) == label {
			right++
		}
	}
	t.Logf("%d of %d images are classified right: %.2f %%", right, images, 100*float64(right)/images)
	if right != wantRight {
		t.Errorf("%d of %d images are classified right, want %d", right, images, wantRight)
	}
}

// The models in the repository are what their programs make; the trained weights of digits apart.
func TestModelsAreCurrent(t *testing.T) {
	for name, m := range map[string]*zoo.Model{
		"digits-mlp":        zoo.DigitsMLP(360),
		"transformer-block": zoo.TransformerBlock(4, 128, 256, 8, 1024),
		"moe-block":         zoo.MoEBlock(64, 64, 128, 4),
		"moe-top2":          zoo.MoETop2(64, 32, 64, 8),
		"lenet":             zoo.LeNet(8),
	} {
		path := filepath.Join(t.TempDir(), name+".graph")
		if err := fusec.Save(path, m.Graph); err != nil {
			t.Fatal(err)
		}
		files := []string{name + ".graph", name + ".safetensors"}
		if name == "digits-mlp" {
			files = files[:1]
		}
		for _, f := range files {
			got, err := os.ReadFile(filepath.Join(filepath.Dir(path), f))
			if err != nil {
				t.Fatal(err)
			}
			want, err := os.ReadFile(filepath.Join(models, f))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s is not what cmd/models makes now: run `go run ./cmd/models`", f)
			}
		}
	}
}

func TestCompileTime(t *testing.T) {
	g, err := graph.LoadGraph(filepath.Join(models, "transformer-block.graph"))
	if err != nil {
		t.Fatal(err)
	}
	best := time.Hour
	for range 3 {
		p, err := fusec.Compile(g)
		if err != nil {
			t.Fatal(err)
		}
		best = min(best, p.CompileTime())
		p.Close()
	}
	t.Logf("the transformer block compiles in %v; the aim is 50 ms", best)
	if best > 500*time.Millisecond {
		t.Errorf("the transformer block compiles in %v", best)
	}
}

// A transformer of twelve layers fits on a page.
func TestTwelveLayersInSight(t *testing.T) {
	m := machine(t, zoo.Transformer(12, 1, 16, 32, 2, 64).Graph)
	tr := m.Trace()
	var out strings.Builder
	if err := dot.Stage(&out, tr, len(tr.Stages)-1, dot.Options{Format: dot.FormatDOT}); err != nil {
		t.Fatal(err)
	}
	nodes := 0
	for line := range strings.Lines(out.String()) {
		if strings.Contains(line, "[") && strings.Contains(line, "label=") && !strings.Contains(line, "->") {
			nodes++
		}
	}
	t.Logf("%d nodes in sight", nodes)
	if nodes == 0 || nodes > 60 {
		t.Errorf("%d nodes are in sight, want at most 60", nodes)
	}
	if !strings.Contains(out.String(), "× 12") {
		t.Error("the drawing does not say that a layer is repeated 12 times")
	}
}

// Every model computes what the reference does, and what Gorgonia does.
func TestModels(t *testing.T) {
	for name, build := range map[string]func() *zoo.Model{
		"digits-mlp":        func() *zoo.Model { return zoo.DigitsMLP(7) },
		"transformer-block": func() *zoo.Model { return zoo.TransformerBlock(2, 5, 12, 3, 20) },
		"transformer":       func() *zoo.Model { return zoo.Transformer(3, 1, 6, 8, 2, 16) },
		"moe-block":         func() *zoo.Model { return zoo.MoEBlock(9, 6, 10, 3) },
		"moe-top2":          func() *zoo.Model { return zoo.MoETop2(9, 6, 10, 5) },
		"lenet":             func() *zoo.Model { return zoo.LeNet(2) },
	} {
		t.Run(name, func(t *testing.T) {
			m, other := build(), build()
			x := newNet(tensor.Float32).value(0, 1, m.Input.Shape()...)
			for _, m := range []*zoo.Model{m, other} {
				if err := gorgonia.Let(m.Input, x.Clone()); err != nil {
					t.Fatal(err)
				}
			}
			run(t, machine(t, m.Graph))
			agrees(t, m.Output, reference(t, m.Graph)(m.Output))
			tape := gorgonia.NewTapeMachine(other.Graph)
			defer tape.Close()
			run(t, tape)
			sameFloats(t, "the output", floats(t, m.Output.Value()), floats(t, other.Output.Value()), 1e-4)
		})
	}
}

// Every model trains: its gradients are what the derivatives that Gorgonia wrote down come to in float64.
func TestModelGradients(t *testing.T) {
	for name, m := range map[string]*zoo.Model{
		"digits-mlp":        zoo.DigitsMLP(7),
		"transformer-block": zoo.TransformerBlock(2, 5, 12, 3, 20),
		"moe-block":         zoo.MoEBlock(9, 6, 10, 3),
		"moe-top2":          zoo.MoETop2(9, 6, 10, 5),
		"lenet":             zoo.LeNet(1),
	} {
		t.Run(name, func(t *testing.T) {
			if err := gorgonia.Let(m.Input, newNet(tensor.Float32).value(0, 1, m.Input.Shape()...)); err != nil {
				t.Fatal(err)
			}
			cost := must(gorgonia.Mean(must(gorgonia.Square(m.Output))))
			if _, err := gorgonia.Grad(cost, m.Params...); err != nil {
				t.Fatal(err)
			}
			run(t, machine(t, m.Graph, gorgonia.BindDualValues(m.Params...)))
			want := reference(t, m.Graph)
			for _, p := range m.Params {
				g, err := p.Grad()
				if err != nil {
					t.Fatal(err)
				}
				sameFloats(t, "the gradient of "+p.Name(), floats(t, g), want(p.Deriv()).F, 2e-5)
			}
		})
	}
}

// TestZooTrained checks that Gorgonia's backward, which reads the values within an attention and a mixture, does not
// prevent their fusions, and that a mixture is differentiated as one.
func TestZooTrained(t *testing.T) {
	for name, c := range map[string]struct {
		model *zoo.Model
		want  map[string]int
	}{
		"attention": {zoo.TransformerBlock(2, 5, 12, 3, 20), map[string]int{"attention": 2, "softmax": 0}},
		"mixture":   {zoo.MoEBlock(5, 6, 8, 3), map[string]int{"moe": 2}},
	} {
		m := c.model
		cost := must(gorgonia.Sum(must(gorgonia.Square(m.Output))))
		if _, err := gorgonia.Grad(cost, m.Params...); err != nil {
			t.Fatal(err)
		}
		shape := m.Input.Shape()
		x := tensor.New(tensor.WithShape(shape...), tensor.WithBacking(tensor.Random(tensor.Float32, shape.TotalSize())))
		if err := gorgonia.Let(m.Input, x); err != nil {
			t.Fatal(err)
		}
		vm := fusec.NewMachine(m.Graph, gorgonia.BindDualValues(m.Params...))
		defer vm.Close()
		if err := vm.RunAll(); err != nil {
			t.Fatal(err)
		}
		kinds := map[string]int{}
		for _, f := range vm.Fusions() {
			kinds[f.Kind]++
		}
		for kind, want := range c.want {
			if kinds[kind] != want {
				t.Errorf("%s: %d launches of %s, want %d; the launches are %v", name, kinds[kind], kind, want, kinds)
			}
		}
	}
}
