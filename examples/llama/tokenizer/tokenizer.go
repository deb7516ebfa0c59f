package tokenizer

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Tokenizer converts text to tokens and back. Goroutines may share it.
type Tokenizer struct {
	texts   []string       // of tokens, as the vocabulary has them
	ids     map[string]int // of texts
	special []bool         // tokens that stand for no text
	room    int            // tokens have smaller numbers
	added   []added        // in the order in which they are looked for
	join    joiner
	bytes   [256]int // the tokens of single bytes, or −1
	whole   bool     // a word that is a token is not merged
	unknown int      // the token of what has none, or −1
	fuse    bool     // unknown tokens in a row are one

	normalise []func(string) string
	split     []splitter
	before    []int // tokens that stand before a text, and after it
	after     []int
	byteLevel bool // texts spell bytes by the letters of byteLetters
	space     string
}

// added is a token that is found in a text before anything else.
type added struct {
	text           string
	id             int
	left, right    bool // takes the spaces beside it, too
	word           bool // stands only between characters that are no letters
	normalised     bool // is looked for in the normalised text
	normalisedText string
}

// New tokenizers have room for numbers up to this: some vocabularies leave a few out, and a small file must not ask for much
// memory.
func roomFor(tokens int) int { return 1024 + 16*tokens }

// Vocabulary is the number of tokens: one more than the greatest.
func (t *Tokenizer) Vocabulary() int { return len(t.texts) }

// ID is the number of the token with the given text.
func (t *Tokenizer) ID(text string) (id int, ok bool) { id, ok = t.ids[text]; return id, ok }

// put gives a token its text.
func (t *Tokenizer) put(text string, id int) error {
	if id < 0 || id >= t.room {
		return fmt.Errorf("token %q has the number %d: want one from 0 to %d", text, id, t.room-1)
	}
	for len(t.texts) <= id {
		t.texts, t.special = append(t.texts, ""), append(t.special, false)
	}
	t.texts[id] = text
	t.ids[text] = id
	return nil
}

// Encode gives the tokens of a text, with those that its model requires before and after it.
func (t *Tokenizer) Encode(text string) ([]int, error) {
	tokens, err := t.encode(text)
	return slices.Concat(t.before, tokens, t.after), err
}

// encode gives the tokens of a text alone.
func (t *Tokenizer) encode(text string) ([]int, error) {
	if !utf8.ValidString(text) {
		return nil, fmt.Errorf("the text is not UTF-8")
	}
	var tokens []int
	first := true
	err := t.cut(text, false, func(part string, a *added) error {
		if a != nil {
			tokens, first = append(tokens, a.id), false
			return nil
		}
		for _, f := range t.normalise {
			part = f(part)
		}
		return t.cut(part, true, func(part string, a *added) (err error) {
			if a != nil {
				tokens, first = append(tokens, a.id), false
				return nil
			}
			words := []string{part}
			for _, s := range t.split {
				if words, err = s.words(words, first); err != nil {
					return err
				}
			}
			for _, w := range words {
				tokens = t.merge(tokens, w)
			}
			first = false
			return nil
		})
	})
	return tokens, err
}

// cut calls f with the added tokens of a text, and with what stands between them. Those are looked for that are in texts
// which are normalised, or in others.
func (t *Tokenizer) cut(text string, normalised bool, f func(part string, a *added) error) error {
	start := 0
	for i := 0; i < len(text); {
		var found *added
		for j := range t.added {
			if a := &t.added[j]; a.normalised == normalised && strings.HasPrefix(text[i:], a.normalisedText) && a.stands(text, i) {
				found = a
				break
			}
		}
		if found == nil {
			i++
			continue
		}
		from, to := i, i+len(found.normalisedText)
		if found.left {
			from = start + len(strings.TrimRight(text[start:from], whitespace))
		}
		if found.right {
			to = len(text) - len(strings.TrimLeft(text[to:], whitespace))
		}
		if from > start {
			if err := f(text[start:from], nil); err != nil {
				return err
			}
		}
		if err := f(text[from:to], found); err != nil {
			return err
		}
		i, start = to, to
	}
	if start < len(text) {
		return f(text[start:], nil)
	}
	return nil
}

// whitespace is what added tokens take that stands beside them.
const whitespace = " \t\n\v\f\r"

// stands reports whether an added token is a word of its own at place i, if it has to be.
func (a *added) stands(text string, i int) bool {
	if !a.word {
		return true
	}
	before, _ := utf8.DecodeLastRuneInString(text[:i])
	after, _ := utf8.DecodeRuneInString(text[i+len(a.normalisedText):])
	return !isWord(before) && !isWord(after)
}

// ready puts the added tokens in the order in which they are looked for: the longest first.
func (t *Tokenizer) ready() {
	for i := range t.added {
		a := &t.added[i]
		if a.normalisedText = a.text; a.normalised {
			for _, f := range t.normalise {
				a.normalisedText = f(a.normalisedText)
			}
		}
	}
	t.added = slices.DeleteFunc(t.added, func(a added) bool { return a.normalisedText == "" })
	slices.SortStableFunc(t.added, func(a, b added) int { return cmp.Compare(len(b.normalisedText), len(a.normalisedText)) })
}

// Bytes appends the bytes for which a token stands. A special token stands for none.
func (t *Tokenizer) Bytes(to []byte, token int) []byte {
	if token < 0 || token >= len(t.texts) || t.special[token] {
		return to
	}
	text := t.texts[token]
	switch {
	case t.byteLevel:
		for _, r := range text {
			if b, ok := byteOfLetter[r]; ok {
				to = append(to, b)
			} else { // of an added token
				to = utf8.AppendRune(to, r)
			}
		}
		return to
	case len(text) == len(byteToken) && t.isByte(token, text):
		return append(to, byteOf(text))
	}
	for text != "" {
		if t.space != "" && strings.HasPrefix(text, t.space) {
			to, text = append(to, ' '), text[len(t.space):]
			continue
		}
		to, text = append(to, text[0]), text[1:]
	}
	return to
}

// Decode is the text for which tokens stand. What is not UTF-8 is replaced.
func (t *Tokenizer) Decode(tokens []int) string {
	var text []byte
	for _, id := range tokens {
		text = t.Bytes(text, id)
	}
	return strings.ToValidUTF8(string(text), string(utf8.RuneError))
}

// A Stream makes text of tokens that come one by one, of which several may make a character.
type Stream struct {
	t    *Tokenizer
	held []byte // the beginning of a character
	text []byte
}

// Stream begins a text.
func (t *Tokenizer) Stream() *Stream { return &Stream{t: t} }

// Next is the text that a token ends. It is valid until the next call, and UTF-8.
func (s *Stream) Next(token int) []byte {
	return s.valid(s.t.Bytes(s.held, token), false)
}

// Rest is what is held of a character at the end of the tokens.
func (s *Stream) Rest() []byte { return s.valid(s.held, true) }

// valid takes characters off b, and holds the beginning of one unless all is taken.
func (s *Stream) valid(b []byte, all bool) []byte {
	s.text = s.text[:0]
	for len(b) > 0 && (all || utf8.FullRune(b)) {
		r, n := utf8.DecodeRune(b)
		s.text, b = utf8.AppendRune(s.text, r), b[n:]
	}
	s.held = append(s.held[:0], b...)
	return s.text
}

// Byte tokens spell a byte in hexadecimal.
const byteToken = "<0x00>"

func (t *Tokenizer) isByte(token int, text string) bool {
	return strings.HasPrefix(text, "<0x") && text[5] == '>' && isHex(text[3]) && isHex(text[4]) && t.bytes[byteOf(text)] == token
}

func isHex(c byte) bool { return '0' <= c && c <= '9' || 'A' <= c && c <= 'F' }

func byteOf(text string) byte { return unhex(text[3])<<4 | unhex(text[4]) }

func unhex(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c - 'A' + 10
}

// byteLetters are the letters by which byte-level vocabularies spell bytes: those that print in Latin-1 stand for themselves,
// the others for letters from 256 on (Radford et al., Language models are unsupervised multitask learners, 2019).
var (
	byteLetters  [256]rune
	byteOfLetter = map[rune]byte{}
)

func init() {
	next := rune(256)
	for b := range 256 {
		r := rune(b)
		if !('!' <= r && r <= '~' || '¡' <= r && r <= '¬' || '®' <= r && r <= 'ÿ') {
			r, next = next, next+1
		}
		byteLetters[b] = r
		byteOfLetter[r] = byte(b)
	}
}

// Letter is the letter by which byte-level vocabularies spell a byte.
func Letter(b byte) string { return string(byteLetters[b]) }
