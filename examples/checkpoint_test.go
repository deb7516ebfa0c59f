package examples

import (
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"fusec/examples/llama"
	"fusec/graph"
)

// TestSaveCheckpoint saves a model in the form of Hugging Face, and compares its logits as package llama reads it, and where
// there is one as transformers does, with those of the generator.
func TestSaveCheckpoint(t *testing.T) {
	_, _, weights := saved(t, 8)
	for name, w := range weights { // biases begin as zeros, gains as ones
		if strings.HasSuffix(name, "bias") || strings.HasSuffix(name, "gain") {
			for i, x := range w.Data.([]float32) {
				w.SetFloat(i, float64(x)+0.1*math.Sin(float64(i+len(name))))
			}
		}
	}
	dir := filepath.Join(t.TempDir(), "model")
	if err := SaveCheckpoint(dir, weights, smallSize, 8); err != nil {
		t.Fatal(err)
	}
	const text = "the ab\n~"
	gen, err := NewGenerator(weights, smallSize, 8, 8)
	if err != nil {
		t.Fatal(err)
	}
	defer gen.Close()
	var want []float32
	for _, c := range []byte(text) {
		if want, err = gen.Next(int(c)); err != nil {
			t.Fatal(err)
		}
	}
	c, err := llama.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	tokens, err := c.Tokenizer.Encode(text)
	if err != nil || len(tokens) != len(text) || c.Tokenizer.Decode(tokens) != text {
		t.Fatalf("tokens of %q: %v, %v", text, tokens, err)
	}
	m, err := llama.New(c, llama.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	got, err := m.Append(tokens)
	if err != nil {
		t.Fatal(err)
	}
	sameRow(t, len(text)-1, got, want)

	if python := os.Getenv("FUSEC_PYTHON"); python != "" {
		out, err := exec.Command(python, "-c", `
import sys, torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
tokens = transformers.AutoTokenizer.from_pretrained(sys.argv[1])(sys.argv[2], return_tensors="pt").input_ids
with torch.no_grad():
    print("LOGITS", *model(tokens).logits[0, -1].tolist())
`, dir, text).CombinedOutput()
		_, numbers, found := strings.Cut(string(out), "LOGITS ")
		if err != nil || !found {
			t.Fatalf("%v\n%s", err, out)
		}
		for i, s := range strings.Fields(numbers) {
			v, err := strconv.ParseFloat(s, 32)
			if err != nil {
				t.Fatal(err)
			}
			got[i] = float32(v)
		}
		sameRow(t, len(text)-1, got, want)
	}

	for _, bad := range []struct {
		change func(w map[string]*graph.Tensor, s *Transformer)
		want   string
	}{
		{func(_ map[string]*graph.Tensor, s *Transformer) { s.Heads = 0 }, "0 heads"},
		{func(w map[string]*graph.Tensor, _ *Transformer) { delete(w, "norm.gain") }, `no weight "norm.gain"`},
		{func(_ map[string]*graph.Tensor, s *Transformer) { s.Hidden = 99 }, "feed.gate.weight\" is f32[16,12], not f32[16,99]"},
	} {
		w, size := map[string]*graph.Tensor{}, smallSize
		for name, x := range weights {
			w[name] = x
		}
		bad.change(w, &size)
		if err := SaveCheckpoint(dir, w, size, 8); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("error %v, want one with %q", err, bad.want)
		}
	}
}
