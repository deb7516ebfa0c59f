package tokenizer

import (
	"errors"
	"fmt"
	"strings"
)

// Vocabulary is a tokenizer as GGUF files have it.
type Vocabulary struct {
	Model       string   // llama: SentencePiece, with scores; gpt2: byte-level, with merges
	Pre         string   // which regular expressions divide a text; of gpt2
	Tokens      []string // by their number
	Kinds       []Kind   // of tokens; may be nil
	Scores      []float64
	Merges      []string // "left right"
	BOS, EOS    int      // −1 for none
	Unknown     int      // −1 for none
	AddBOS      bool     // before a text
	AddEOS      bool     // after it
	SpacePrefix bool     // a text begins with a space
}

// Kind tells what a token is for.
type Kind int

// The kinds of tokens.
const (
	Normal Kind = 1 + iota
	UnknownToken
	Control
	UserDefined
	Unused
	Byte
)

// The regular expressions that Pre names; some words that are tokens are not merged.
var patterns = map[string]struct {
	expr  []string
	whole bool
}{
	"gpt-2":     {[]string{gpt2Pattern}, false},
	"llama-bpe": {[]string{llama3Pattern}, true},
	"llama3":    {[]string{llama3Pattern}, true},
	"llama-v3":  {[]string{llama3Pattern}, true},
	"qwen2":     {[]string{qwen2Pattern}, false},
	"smollm":    {[]string{`\p{N}`, gpt2Pattern}, false},
}

// spaceLetter is what SentencePiece writes for a space.
const spaceLetter = "▁"

// New makes the tokenizer of a vocabulary.
func New(v Vocabulary) (*Tokenizer, error) {
	n := len(v.Tokens)
	if n == 0 {
		return nil, errors.New("the vocabulary has no tokens")
	}
	if v.Kinds != nil && len(v.Kinds) != n {
		return nil, fmt.Errorf("%d tokens have %d kinds", n, len(v.Kinds))
	}
	t := &Tokenizer{ids: make(map[string]int, n), room: n, unknown: -1}
	for id, text := range v.Tokens {
		if err := t.put(text, id); err != nil {
			return nil, err
		}
	}
	for id, kind := range v.Kinds {
		if kind == Control || kind == UserDefined {
			t.special[id] = kind == Control
			t.added = append(t.added, added{text: v.Tokens[id], id: id})
		}
	}
	for _, end := range []struct {
		name string
		id   int
		want bool
		to   *[]int
	}{{"bos", v.BOS, v.AddBOS, &t.before}, {"eos", v.EOS, v.AddEOS, &t.after}, {"unknown", v.Unknown, false, nil}} {
		if end.id < -1 || end.id >= n || end.want && end.id < 0 {
			return nil, fmt.Errorf("the %s token has the number %d: the vocabulary has %d tokens", end.name, end.id, n)
		}
		if end.want {
			*end.to = []int{end.id}
		}
	}
	var err error
	switch v.Model {
	case "llama":
		err = t.sentencePiece(&v)
	case "gpt2":
		err = t.bytePairs(&v)
	default:
		err = fmt.Errorf("a tokenizer of the model %q: want llama or gpt2", v.Model)
	}
	t.ready()
	return t, err
}

func (t *Tokenizer) sentencePiece(v *Vocabulary) error {
	if len(v.Scores) != len(v.Tokens) {
		return fmt.Errorf("%d tokens have %d scores", len(v.Tokens), len(v.Scores))
	}
	s := scores{t: t, score: make([]float32, len(v.Scores))}
	for i, x := range v.Scores {
		s.score[i] = float32(x)
	}
	t.join, t.unknown, t.space = s, v.Unknown, spaceLetter
	t.findBytes(true)
	t.split = []splitter{metaspace{space: spaceLetter, first: v.SpacePrefix}}
	return nil
}

func (t *Tokenizer) bytePairs(v *Vocabulary) error {
	p, ok := patterns[v.Pre]
	if !ok {
		return fmt.Errorf("texts are divided in the way of %q, which is not known", v.Pre)
	}
	for _, expr := range p.expr {
		re, err := pattern(expr)
		if err != nil {
			return err
		}
		t.split = append(t.split, byPattern{re: re})
	}
	t.split, t.whole, t.byteLevel = append(t.split, spelled{}), p.whole, true
	t.findBytes(false)
	m := make(merges, len(v.Merges))
	for rank, s := range v.Merges {
		left, right, ok := strings.Cut(s, " ")
		if !ok {
			return fmt.Errorf("merge %d is %.40q: want two tokens", rank, s)
		}
		if err := t.learn(m, [2]string{left, right}, rank); err != nil {
			return err
		}
	}
	t.join = m
	return nil
}
