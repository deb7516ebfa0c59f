package llama

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"fusec"
	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/precision"
	"fusec/lowering"
	"fusec/lowering/cuda"
	"fusec/passes"
)

// expectation is what transformers computes for a checkpoint; testdata/make.py writes it.
type expectation struct {
	Texts []struct {
		Text    string `json:"text"`
		Tokens  []int  `json:"tokens"`
		Decoded string `json:"decoded"`
	} `json:"texts"`
	Prompt []int                `json:"prompt"`
	Logits map[string][]float32 `json:"logits"` // of places of the prompt
	Greedy []int                `json:"greedy"` // the tokens after it
	Next   map[string][]float32 `json:"next"`   // of places of these
}

// checkpoints lists the folders of checkpoints: the one kept here, and those that .ci/long makes.
func checkpoints(t *testing.T) []string {
	t.Helper()
	dirs := []string{"testdata/tiny"}
	if made := os.Getenv("FUSEC_CHECKPOINTS"); made != "" {
		found, err := filepath.Glob(filepath.Join(made, "*", "expected.json"))
		if err != nil || len(found) < 8 {
			t.Fatalf("%s has %d checkpoints: %v", made, len(found), err)
		}
		for _, f := range found {
			dirs = append(dirs, filepath.Dir(f))
		}
	}
	return dirs
}

// opened opens a checkpoint until the test ends.
func opened(t testing.TB, path string) *Checkpoint {
	t.Helper()
	c, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// modelOf compiles a model until the test ends.
func modelOf(t testing.TB, c *Checkpoint, o Options) *Model {
	t.Helper()
	m, err := New(c, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// TestTransformers compares the logits of a prompt and of the tokens after it, these tokens, and the tokens of texts, with
// those of transformers.
func TestTransformers(t *testing.T) {
	for _, dir := range checkpoints(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			src := graphtest.ReadFile(t, filepath.Join(dir, "expected.json"))
			var want expectation
			if err := json.Unmarshal(src, &want); err != nil {
				t.Fatal(err)
			}
			files := []string{dir}
			more, _ := filepath.Glob(filepath.Join(dir, "f*.gguf"))
			for _, path := range append(files, more...) {
				t.Run(filepath.Base(path), func(t *testing.T) {
					c := opened(t, path)
					if path == dir {
						compareTexts(t, c, &want)
					}
					for _, block := range []int{16, 1} {
						compareLogits(t, c, &want, Options{Block: block}, 1e-4)
					}
					compareLogits(t, c, &want, Options{Block: 16, Cache: graph.BF16}, 3e-2)
					compareLogits(t, c, &want, Options{Block: 1, Cache: graph.F16}, 4e-3)
					compareLogits(t, c, &want, Options{Block: 16, Cache: graph.I8}, 3e-2)
					compareLogits(t, c, &want, Options{Block: 1, Cache: graph.I8}, 3e-2)
				})
			}
		})
	}
}

func compareTexts(t *testing.T, c *Checkpoint, want *expectation) {
	for _, x := range want.Texts {
		tokens, err := c.Tokenizer.Encode(x.Text)
		if err != nil || !slices.Equal(tokens, x.Tokens) {
			t.Errorf("tokens of %q: %v, %v, want %v", x.Text, tokens, err, x.Tokens)
		}
		// transformers takes the space off that SentencePiece puts before a text.
		if text := c.Tokenizer.Decode(x.Tokens); text != x.Decoded && text != " "+x.Decoded {
			t.Errorf("text of %v: %q, want %q", x.Tokens, text, x.Decoded)
		}
		s, text := c.Tokenizer.Stream(), ""
		for _, id := range x.Tokens {
			text += string(s.Next(id))
		}
		if text += string(s.Rest()); text != c.Tokenizer.Decode(x.Tokens) {
			t.Errorf("one by one %q, together %q", text, c.Tokenizer.Decode(x.Tokens))
		}
	}
}

// compareLogits compares logits, which may be so far from those of transformers, as a part of the largest, and the tokens that
// are picked.
func compareLogits(t *testing.T, c *Checkpoint, want *expectation, o Options, bound float64) {
	t.Helper()
	o.Capacity, o.Compile = len(want.Prompt)+len(want.Greedy), []fusec.CompileOption{fusec.WithWorkers(2)}
	block := o.Block
	m := modelOf(t, c, o)
	near := func(what string, logits, want []float32) {
		t.Helper()
		most, apart := 1.0, 0.0
		for i, w := range want {
			most = max(most, math.Abs(float64(w)))
			apart = max(apart, math.Abs(float64(logits[i]-w)))
		}
		if len(logits) != len(want) || !(apart <= bound*most) {
			t.Errorf("blocks of %d, caches of %v, logits of %s: %g apart, of up to %g", block, m.cache, what, apart, most)
		}
	}
	for place, row := range want.Logits {
		i, err := strconv.Atoi(place)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Truncate(0); err != nil {
			t.Fatal(err)
		}
		logits, err := m.Append(want.Prompt[:i+1])
		if err != nil {
			t.Fatal(err)
		}
		near("place "+place, logits, row)
	}
	if err := m.Truncate(0); err != nil {
		t.Fatal(err)
	}
	logits, err := m.Append(want.Prompt)
	for i, token := range want.Greedy {
		if err != nil {
			t.Fatal(err)
		}
		if row := want.Next[strconv.Itoa(i)]; row != nil {
			near("token "+strconv.Itoa(i), logits, row)
		}
		if got := slices.Index(logits, slices.Max(logits)); got != token && m.cache == graph.F32 {
			t.Errorf("blocks of %d: token %d is %d, want %d", block, i, got, token)
		}
		logits, err = m.Append([]int{token})
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Append([]int{0}); err == nil {
		t.Error("a sequence that is full takes a token")
	}
}

// TestGPUTraffic plans decoding steps for a GPU: nothing runs on the processor, attention reads the caches as they are, and only
// new keys and values are written to them.
func TestGPUTraffic(t *testing.T) {
	for _, dir := range checkpoints(t) {
		c := opened(t, dir)
		for _, cache := range []graph.DType{graph.F32, graph.BF16, graph.I8} {
			step, err := c.decoding(1, 64, cache, graph.F32, false)
			if err != nil {
				t.Fatal(err)
			}
			samples, err := c.decoding(1, 64, cache, graph.F32, true)
			if err != nil {
				t.Fatal(err)
			}
			pages, err := c.pagedGraph(2, 1, 4, 2, 9, cache, graph.F32, cache == graph.F32)
			if err != nil {
				t.Fatal(err)
			}
			for _, g := range []*graph.Graph{step, samples, pages} {
				planned(t, c, g, cache)
			}
		}
	}
}

// planned checks the plan of a decoding step.
func planned(t *testing.T, c *Checkpoint, g *graph.Graph, cache graph.DType) {
	t.Helper()
	config := passes.Config{Target: cuda.New(), Frozen: true}
	if cache == graph.BF16 {
		config.Precision = precision.BF16
	}
	final, _, err := passes.Run(g, config)
	if err != nil {
		t.Fatal(err)
	}
	p, err := lowering.Lower(final, "cuda", lowering.Frozen())
	if err != nil {
		t.Fatal(err)
	}
	config.Target.(*cuda.Device).Place(p)
	for i, l := range p.Launches {
		if l.Device != "" {
			t.Errorf("launch %d, %v, runs on %s: %s", i+1, l.Op, l.Device, l.Reason)
		}
		state := func(v lowering.View) bool { return p.Buffers[v.Buffer].Role == lowering.State }
		switch l.Kind() {
		case "attention":
			if !state(l.Args[1]) || !state(l.Args[2]) || p.Buffers[l.Args[1].Buffer].Type.DType != cache {
				t.Errorf("caches of %v: attention reads copies of them\n%v", cache, p)
			}
		case "update_slice":
			if !state(l.Results[0]) && p.Buffers[l.Results[0].Buffer].Type.Shape.At(0) > 1 {
				t.Errorf("caches of %v: launch %d makes another value of a cache\n%v", cache, i+1, p)
			}
		}
	}
}
