package tokenizer

import (
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/dlclark/regexp2/v2"
)

// A splitter divides the words of a text further, or spells them in another way. The first words of a text may be treated
// otherwise.
type splitter interface {
	words(from []string, first bool) ([]string, error)
}

// matchTime bounds how long a regular expression of a file may search: some search for ever.
const matchTime = 10 * time.Second

// byPattern divides words by a regular expression: each match, and what stands between matches, is a word.
type byPattern struct {
	re      *regexp2.Regexp
	removed bool // the matches are no words
	matches bool // what stands between is none
}

// pattern compiles a regular expression that may look ahead, which those of package regexp cannot.
func pattern(expr string) (*regexp2.Regexp, error) {
	re, err := regexp2.Compile(expr)
	if err != nil {
		return nil, fmt.Errorf("the regular expression %q: %w", expr, err)
	}
	re.MatchTimeout = matchTime
	return re, nil
}

func (p byPattern) words(from []string, _ bool) ([]string, error) {
	var words []string
	add := func(w string, keep bool) {
		if keep && w != "" {
			words = append(words, w)
		}
	}
	for _, w := range from {
		found, err := p.re.FindAllStringIndex(w, -1)
		if err != nil {
			return nil, err
		}
		at := 0
		for _, m := range found {
			add(w[at:m[0]], !p.matches)
			add(w[m[0]:m[1]], !p.removed)
			at = m[1]
		}
		add(w[at:], !p.matches)
	}
	return words, nil
}

// spelled writes the bytes of words as letters.
type spelled struct{}

func (spelled) words(from []string, _ bool) ([]string, error) {
	words := make([]string, len(from))
	for i, w := range from {
		var b strings.Builder
		for j := range len(w) {
			b.WriteRune(byteLetters[w[j]])
		}
		words[i] = b.String()
	}
	return words, nil
}

// spaced puts a space before words that begin with none.
type spaced struct{}

func (spaced) words(from []string, _ bool) ([]string, error) {
	words := make([]string, len(from))
	for i, w := range from {
		if !strings.HasPrefix(w, " ") {
			w = " " + w
		}
		words[i] = w
	}
	return words, nil
}

// metaspace writes spaces as a letter, puts one before words or before the first, and divides before each.
type metaspace struct {
	space         string
	always, first bool // where one is put
	divide        bool
}

func (m metaspace) words(from []string, first bool) ([]string, error) {
	var words []string
	for i, w := range from {
		w = strings.ReplaceAll(w, " ", m.space)
		if (m.always || m.first && first && i == 0) && !strings.HasPrefix(w, m.space) {
			w = m.space + w
		}
		for m.divide && w != "" {
			end := strings.Index(w[1:], m.space) + 1
			if end == 0 {
				break
			}
			words, w = append(words, w[:end]), w[end:]
		}
		if w != "" {
			words = append(words, w)
		}
	}
	return words, nil
}

func isWord(r rune) bool {
	return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r)
}

// The regular expressions of vocabularies that do not name their own.
const (
	gpt2Pattern   = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	llama3Pattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|` +
		`\s+(?!\S)|\s+`
	qwen2Pattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)
