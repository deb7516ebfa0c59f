package examples

import (
	"math"
	"path/filepath"
	"strings"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/examples/llama"
	"fusec/examples/train"
	"fusec/graph"
	"fusec/lowering"
)

var smallSize = Transformer{Layers: 2, Dim: 16, Heads: 4, KVHeads: 2, Hidden: 12}

// saved builds a small language model for so many tokens, gives it random weights, and saves and loads it.
func saved(t testing.TB, length int) (m *train.Model, g *graph.Graph, weights map[string]*graph.Tensor) {
	t.Helper()
	m, err := Language(tensor.Float32, 1, length, smallSize)
	if err != nil {
		t.Fatal(err)
	}
	if err := seed(m, 3); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "m.graph")
	if err := fusec.Save(path, m.Graph, m.Inputs...); err != nil {
		t.Fatal(err)
	}
	g, w, err := graph.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return m, g, w.Tensors
}

// logits is what the model gives for tokens, all at once: the rows of the last axis.
func logits(t testing.TB, m *train.Model, tokens []int) [][]float32 {
	t.Helper()
	x := tensor.New(tensor.WithShape(1, len(tokens)), tensor.WithBacking(tokens))
	if err := gorgonia.Let(m.Inputs[0], x); err != nil {
		t.Fatal(err)
	}
	vm := machine(t, m.Graph)
	if err := vm.RunAll(); err != nil {
		t.Fatal(err)
	}
	all := m.Output.Value().Data().([]float32)
	var rows [][]float32
	for i := range tokens {
		rows = append(rows, all[i*Vocabulary:][:Vocabulary])
	}
	return rows
}

func sameRow(t testing.TB, at int, got, want []float32) {
	t.Helper()
	for i, w := range want {
		if d := math.Abs(float64(got[i] - w)); !(d <= 1e-4*max(1, math.Abs(float64(w)))) {
			t.Fatalf("token %d: logit %d is %v, want %v", at, i, got[i], w)
		}
	}
}

// TestCache: token by token with a cache the model gives what it gives for all tokens at once.
func TestCache(t *testing.T) {
	const length = 11
	m, g, weights := saved(t, length)
	size, window, err := SizeOf(g)
	if err != nil || size != smallSize || window != length {
		t.Fatalf("the size is %+v, the window %d, %v", size, window, err)
	}
	tokens := make([]int, length)
	for i := range tokens {
		tokens[i] = (i*i*7 + 3) % Vocabulary
	}
	want := logits(t, m, tokens)
	gen, err := NewGenerator(weights, size, window, length)
	if err != nil {
		t.Fatal(err)
	}
	defer gen.Close()
	attention, inPlace := 0, 0
	p := gen.Program().Lowered()
	for _, l := range p.Launches {
		if l.Kind() == "attention" {
			attention++
		}
		if p.Buffers[l.Results[0].Buffer].Role == lowering.State {
			inPlace++
		}
	}
	if attention != smallSize.Layers || inPlace != 2*smallSize.Layers {
		t.Errorf("%d launches are attention, want %d; %d write into the cache in place, want %d", attention, smallSize.Layers,
			inPlace, 2*smallSize.Layers)
	}
	for i, token := range tokens {
		got, err := gen.Next(token)
		if err != nil {
			t.Fatal(err)
		}
		sameRow(t, i, got, want[i])
	}
	if _, err := gen.Next(0); err == nil || !strings.Contains(err.Error(), "it holds 11 tokens") {
		t.Errorf("error %v", err)
	}
}

// TestWindow: beyond its window a token sees as little as one of a model of one layer for just those tokens, turned by
// the same differences of position.
func TestWindow(t *testing.T) {
	const length, window = 9, 4
	one := smallSize
	one.Layers = 1
	m, err := Language(tensor.Float32, 1, window, one)
	if err != nil {
		t.Fatal(err)
	}
	if err := seed(m, 3); err != nil {
		t.Fatal(err)
	}
	weights := map[string]*graph.Tensor{}
	for _, n := range m.Learnables {
		x, err := graph.TensorOf(n.Value().Data().([]float32), n.Shape()...)
		if err != nil {
			t.Fatal(err)
		}
		weights[n.Name()] = x
	}
	gen, err := NewGenerator(weights, one, window, length)
	if err != nil {
		t.Fatal(err)
	}
	defer gen.Close()
	var tokens []int
	for i := range length {
		tokens = append(tokens, 40+i*i%50)
		got, err := gen.Next(tokens[i])
		if err != nil {
			t.Fatal(err)
		}
		if i >= window-1 {
			sameRow(t, i, got, logits(t, m, append([]int(nil), tokens[i-window+1:]...))[window-1])
		}
	}
}

func TestGenerate(t *testing.T) {
	_, _, weights := saved(t, 8)
	write := func(prompt string, temperature float64, topK int, s uint64) (string, error) {
		const n = 12
		gen, err := NewGenerator(weights, smallSize, 8, len(prompt)+n)
		if err != nil {
			t.Fatal(err)
		}
		defer gen.Close()
		sampler, err := llama.NewSampler(temperature, topK, 1, s)
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		err = gen.Generate([]byte(prompt), n, sampler, b.WriteByte)
		if err == nil && b.Len() != n {
			t.Errorf("it wrote %d tokens, not %d", b.Len(), n)
		}
		return b.String(), err
	}
	text := func(temperature float64, topK int, s uint64) string {
		text, err := write("the ", temperature, topK, s)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	greedy := text(0, 0, 1)
	for what, other := range map[string]string{"another seed": text(0, 5, 2), "the best one": text(1, 1, 3)} {
		if other != greedy {
			t.Errorf("%s changes what is likeliest: %q, %q", what, other, greedy)
		}
	}
	if a, b := text(1, 0, 4), text(1, 0, 4); a != b {
		t.Errorf("one seed writes %q and %q", a, b)
	}
	if a, b := text(1, 0, 4), text(1, 0, 5); a == b {
		t.Errorf("two seeds write %q", a)
	}
	for prompt, want := range map[string]string{"": "the prompt is empty", "é": "the prompt: byte 0"} {
		if _, err := write(prompt, 1, 0, 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}

func TestGeneratorRefuses(t *testing.T) {
	_, g, weights := saved(t, 4)
	for _, c := range []struct {
		change           func(map[string]*graph.Tensor, *Transformer)
		window, capacity int
		want             string
	}{
		{nil, 0, 4, "a window of 0 tokens"},
		{nil, 4, 0, "a cache of 0"},
		{func(w map[string]*graph.Tensor, _ *Transformer) { delete(w, "layer1.attention.k.bias") }, 4, 4,
			`no weight "layer1.attention.k.bias"`},
		{func(_ map[string]*graph.Tensor, s *Transformer) { s.Heads = 5 }, 4, 4, "5 heads"},
		{func(_ map[string]*graph.Tensor, s *Transformer) { s.KVHeads = 4 }, 4, 4, "reshape"},
		{func(_ map[string]*graph.Tensor, s *Transformer) { s.Layers = 3 }, 4, 4, "layer2"},
	} {
		w, size := map[string]*graph.Tensor{}, smallSize
		for name, x := range weights {
			w[name] = x
		}
		if c.change != nil {
			c.change(w, &size)
		}
		if _, err := NewGenerator(w, size, c.window, c.capacity); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want one with %q", err, c.want)
		}
	}
	g.Lookup("embedding").Name = "table"
	if _, _, err := SizeOf(g); err == nil || !strings.Contains(err.Error(), `no embedding with 2 axes`) {
		t.Errorf("error %v", err)
	}
	moe, err := MoE(tensor.Float32, 1, 4, 2, smallSize)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "moe.graph")
	if err := fusec.Save(path, moe.Graph, moe.Inputs...); err != nil {
		t.Fatal(err)
	}
	if g, err = graph.LoadGraph(path); err != nil {
		t.Fatal(err)
	}
	if _, _, err := SizeOf(g); err == nil || !strings.Contains(err.Error(), "no layer0.feed.up.weight") {
		t.Errorf("error %v", err)
	}
}
