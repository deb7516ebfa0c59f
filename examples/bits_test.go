package examples

import (
	"math"
	"testing"

	"fusec/examples/llama"
	"fusec/graph"
)

// TestBitsPerCharacter predicts with a model whose weights are random, and compares with its logits one after another.
func TestBitsPerCharacter(t *testing.T) {
	m, g, weights := saved(t, 16)
	text := HeldOut()[:40]
	got, err := BitsPerCharacter(g, weights, text)
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := tokensOf(text)
	if err != nil {
		t.Fatal(err)
	}
	want := 0.0
	for at := 0; at < len(tokens)-1; at += 16 {
		window := make([]int, 16)
		copy(window, tokens[at:])
		for i, row := range logits(t, m, window) {
			if at+i+1 < len(tokens) {
				wide := make([]float64, len(row))
				for j, v := range row {
					wide[j] = float64(v)
				}
				want -= logProbability(wide, tokens[at+i+1]) / float64(len(tokens)-1) / math.Ln2
			}
		}
	}
	if math.Abs(got-want) > 1e-4 {
		t.Errorf("%v bits per character, want %v", got, want)
	}
	windows, err := Windows(3, 16)
	if err != nil || windows.Type != graph.TypeOf(graph.I64, 3, 1, 16) || windows.Int(0) != int64(Known()[0]) {
		t.Errorf("%v, %v", windows.Type, err)
	}
	for _, bad := range [][2]int{{0, 1}, {1, 0}, {1, 1 << 30}} {
		if _, err := Windows(bad[0], bad[1]); err == nil {
			t.Errorf("%v windows", bad)
		}
	}
	for _, text := range []string{"", "é"} {
		if _, err := BitsPerCharacter(g, weights, []byte(text)); err == nil {
			t.Errorf("a text %q is taken", text)
		}
	}
	if _, err := BitsPerCharacter(graph.New("none"), nil, text); err == nil {
		t.Error("a graph without tokens is taken")
	}
}

// TestBitsByCaches reads a text by a checkpoint, with caches of f32 as the graph does, and with caches of 8 bits nearly.
func TestBitsByCaches(t *testing.T) {
	const window = 16
	_, g, weights := saved(t, window)
	size, _, err := SizeOf(g)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := SaveCheckpoint(dir, weights, size, window); err != nil {
		t.Fatal(err)
	}
	c, err := llama.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	text := HeldOut()[:40]
	want, err := BitsPerCharacter(g, weights, text)
	if err != nil {
		t.Fatal(err)
	}
	for cache, bound := range map[graph.DType]float64{graph.F32: 1e-4, graph.I8: 2e-2} {
		got, err := BitsByCaches(c, text, window, cache)
		if err != nil || !(math.Abs(got-want) < bound) {
			t.Errorf("caches of %v: %v bits per character, %v, want %v", cache, got, err, want)
		}
	}
	for _, text := range []string{"", "é"} {
		if _, err := BitsByCaches(c, []byte(text), window, graph.F32); err == nil {
			t.Errorf("a text %q is taken", text)
		}
	}
	if _, err := BitsByCaches(c, text, 0, graph.F32); err == nil {
		t.Error("pieces of no characters are taken")
	}
	if _, err := BitsByCaches(c, text, window, graph.U8); err == nil {
		t.Error("caches of u8 are taken")
	}
}
