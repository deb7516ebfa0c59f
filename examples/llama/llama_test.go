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
			src, err := os.ReadFile(filepath.Join(dir, "expected.json"))
			if err != nil {
				t.Fatal(err)
			}
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
						compareLogits(t, c, &want, block)
					}
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

func compareLogits(t *testing.T, c *Checkpoint, want *expectation, block int) {
	t.Helper()
	m := modelOf(t, c, Options{Capacity: len(want.Prompt) + len(want.Greedy), Block: block,
		Compile: []fusec.CompileOption{fusec.WithWorkers(2)}})
	near := func(what string, logits, want []float32) {
		t.Helper()
		most, apart := 1.0, 0.0
		for i, w := range want {
			most = max(most, math.Abs(float64(w)))
			apart = max(apart, math.Abs(float64(logits[i]-w)))
		}
		if len(logits) != len(want) || !(apart <= 1e-4*most) {
			t.Errorf("blocks of %d, logits of %s: %g apart, of up to %g", block, what, apart, most)
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
		if got := slices.Index(logits, slices.Max(logits)); got != token {
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
