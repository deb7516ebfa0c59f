package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/text/unicode/norm"
)

// A part of a tokenizer.json, whose type says what else it has.
type part struct {
	Type string `json:"type"`

	Normalizers   []part `json:"normalizers"`
	Pretokenizers []part `json:"pretokenizers"`
	Processors    []part `json:"processors"`
	Decoders      []part `json:"decoders"`

	Prepend  string `json:"prepend"`
	Content  string `json:"content"`
	Behavior string `json:"behavior"`
	Invert   bool   `json:"invert"`
	Pattern  struct {
		String *string
		Regex  *string
	} `json:"pattern"`
	AddPrefixSpace   *bool           `json:"add_prefix_space"`
	UseRegex         *bool           `json:"use_regex"`
	Replacement      string          `json:"replacement"`
	PrependScheme    string          `json:"prepend_scheme"`
	Split            *bool           `json:"split"`
	IndividualDigits bool            `json:"individual_digits"`
	Single           json.RawMessage `json:"single"`
	SpecialTokens    map[string]struct {
		IDs []int `json:"ids"`
	} `json:"special_tokens"`
}

// file is a tokenizer.json.
type file struct {
	AddedTokens []struct {
		ID         int    `json:"id"`
		Content    string `json:"content"`
		SingleWord bool   `json:"single_word"`
		LStrip     bool   `json:"lstrip"`
		RStrip     bool   `json:"rstrip"`
		Normalized bool   `json:"normalized"`
		Special    bool   `json:"special"`
	} `json:"added_tokens"`
	Normalizer    *part `json:"normalizer"`
	PreTokenizer  *part `json:"pre_tokenizer"`
	PostProcessor *part `json:"post_processor"`
	Decoder       *part `json:"decoder"`
	Model         struct {
		Type         string            `json:"type"`
		Vocab        json.RawMessage   `json:"vocab"`
		Merges       []json.RawMessage `json:"merges"`
		UnkToken     *string           `json:"unk_token"`
		Prefix       *string           `json:"continuing_subword_prefix"`
		Suffix       *string           `json:"end_of_word_suffix"`
		FuseUnk      bool              `json:"fuse_unk"`
		ByteFallback bool              `json:"byte_fallback"`
		IgnoreMerges bool              `json:"ignore_merges"`
	} `json:"model"`
}

// Parse reads a tokenizer.json.
func Parse(src []byte) (*Tokenizer, error) {
	var f file
	if err := json.Unmarshal(src, &f); err != nil {
		return nil, err
	}
	m := &f.Model
	if m.Type != "BPE" && (m.Type != "" || m.Merges == nil) {
		return nil, fmt.Errorf("a model of type %q: want BPE", m.Type)
	}
	if m.Prefix != nil && *m.Prefix != "" || m.Suffix != nil && *m.Suffix != "" {
		return nil, errors.New("subwords are marked by a prefix or suffix, which is not supported")
	}
	var vocab map[string]int
	if err := json.Unmarshal(m.Vocab, &vocab); err != nil {
		return nil, fmt.Errorf("the vocabulary: %w", err)
	}
	t := &Tokenizer{ids: make(map[string]int, len(vocab)), unknown: -1, fuse: m.FuseUnk, whole: m.IgnoreMerges,
		room: roomFor(len(vocab) + len(f.AddedTokens))}
	for text, id := range vocab {
		if id >= 0 && id < len(t.texts) && t.texts[id] != "" {
			return nil, fmt.Errorf("tokens %q and %q have the number %d", t.texts[id], text, id)
		}
		if err := t.put(text, id); err != nil {
			return nil, err
		}
	}
	if m.UnkToken != nil {
		id, ok := t.ids[*m.UnkToken]
		if !ok {
			return nil, fmt.Errorf("the unknown token %q is not in the vocabulary", *m.UnkToken)
		}
		t.unknown = id
	}
	t.findBytes(m.ByteFallback)
	if err := t.readMerges(m.Merges); err != nil {
		return nil, err
	}
	for _, a := range f.AddedTokens {
		if err := t.put(a.Content, a.ID); err != nil {
			return nil, err
		}
		t.special[a.ID] = a.Special
		t.added = append(t.added, added{text: a.Content, id: a.ID, left: a.LStrip, right: a.RStrip, word: a.SingleWord,
			normalised: a.Normalized})
	}
	for _, read := range []struct {
		name string
		p    *part
		f    func(part) error
	}{
		{"normalizer", f.Normalizer, t.readNormalizer}, {"pre_tokenizer", f.PreTokenizer, t.readPreTokenizer},
		{"post_processor", f.PostProcessor, t.readPostProcessor}, {"decoder", f.Decoder, t.readDecoder},
	} {
		if read.p == nil {
			continue
		}
		if err := read.f(*read.p); err != nil {
			return nil, fmt.Errorf("%s: %w", read.name, err)
		}
	}
	t.ready()
	return t, nil
}

// findBytes finds the tokens of single bytes, if there is a fallback to them.
func (t *Tokenizer) findBytes(fallback bool) {
	for b := range t.bytes {
		t.bytes[b] = -1
		if id, ok := t.ids[fmt.Sprintf("<0x%02X>", b)]; ok && fallback {
			t.bytes[b] = id
		}
	}
}

// readMerges reads merges, each as "left right" or as two strings.
func (t *Tokenizer) readMerges(list []json.RawMessage) error {
	m := make(merges, len(list))
	for rank, raw := range list {
		var pair [2]string
		if bytes.HasPrefix(raw, []byte("[")) {
			var two []string
			if err := json.Unmarshal(raw, &two); err != nil || len(two) != 2 {
				return fmt.Errorf("merge %d is %.40q: want two tokens", rank, raw)
			}
			pair = [2]string(two)
		} else {
			var s string
			if err := json.Unmarshal(raw, &s); err != nil {
				return fmt.Errorf("merge %d: %w", rank, err)
			}
			var ok bool
			if pair[0], pair[1], ok = strings.Cut(s, " "); !ok {
				return fmt.Errorf("merge %d is %.40q: want two tokens", rank, s)
			}
		}
		if err := t.learn(m, pair, rank); err != nil {
			return err
		}
	}
	t.join = m
	return nil
}

// learn adds a merge. Of equal ones the last counts, as in Hugging Face's tokenizers.
func (t *Tokenizer) learn(m merges, pair [2]string, rank int) error {
	left, ok1 := t.ids[pair[0]]
	right, ok2 := t.ids[pair[1]]
	to, ok3 := t.ids[pair[0]+pair[1]]
	if !ok1 || !ok2 || !ok3 {
		return fmt.Errorf("merge %d, %.40q and %.40q, is of tokens that the vocabulary has not", rank, pair[0], pair[1])
	}
	m[[2]int32{int32(left), int32(right)}] = merged{int32(to), int32(rank)}
	return nil
}

// maxNested bounds how deep parts stand within one another.
const maxNested = 8

// each calls f for a part, or for those in a Sequence, in order.
func each(p part, list func(part) []part, depth int, f func(part) error) error {
	if p.Type != "Sequence" {
		if err := f(p); err != nil {
			return fmt.Errorf("%s: %w", p.Type, err)
		}
		return nil
	}
	if depth == maxNested {
		return errors.New("sequences are nested too deep")
	}
	for _, q := range list(p) {
		if err := each(q, list, depth+1, f); err != nil {
			return err
		}
	}
	return nil
}

var errUnsupported = errors.New("is not supported")

func (t *Tokenizer) readNormalizer(p part) error {
	return each(p, func(p part) []part { return p.Normalizers }, 0, func(p part) error {
		var f func(string) string
		switch p.Type {
		case "NFC":
			f = norm.NFC.String
		case "NFD":
			f = norm.NFD.String
		case "NFKC":
			f = norm.NFKC.String
		case "NFKD":
			f = norm.NFKD.String
		case "Prepend":
			f = func(s string) string {
				if s == "" {
					return s
				}
				return p.Prepend + s
			}
		case "Replace":
			if p.Pattern.String == nil || *p.Pattern.String == "" {
				return errUnsupported
			}
			f = strings.NewReplacer(*p.Pattern.String, p.Content).Replace
		default:
			return errUnsupported
		}
		t.normalise = append(t.normalise, f)
		return nil
	})
}

func (t *Tokenizer) readPreTokenizer(p part) error {
	return each(p, func(p part) []part { return p.Pretokenizers }, 0, func(p part) error {
		switch p.Type {
		case "ByteLevel":
			if p.AddPrefixSpace == nil || *p.AddPrefixSpace {
				t.split = append(t.split, spaced{})
			}
			if p.UseRegex == nil || *p.UseRegex {
				re, err := pattern(gpt2Pattern)
				if err != nil {
					return err
				}
				t.split = append(t.split, byPattern{re: re})
			}
			t.split = append(t.split, spelled{})
		case "Split":
			return t.readSplit(p)
		case "Digits":
			expr := `\p{N}+`
			if p.IndividualDigits {
				expr = `\p{N}`
			}
			re, err := pattern(expr)
			if err != nil {
				return err
			}
			t.split = append(t.split, byPattern{re: re})
		case "Metaspace":
			m := metaspace{space: p.Replacement, divide: p.Split == nil || *p.Split}
			switch {
			case p.Replacement == "":
				return errors.New("it replaces spaces by nothing")
			case p.PrependScheme == "always", p.PrependScheme == "" && (p.AddPrefixSpace == nil || *p.AddPrefixSpace):
				m.always = true
			case p.PrependScheme == "first":
				m.first = true
			}
			t.split = append(t.split, m)
		default:
			return errUnsupported
		}
		return nil
	})
}

// readSplit reads a division by a regular expression or a string.
func (t *Tokenizer) readSplit(p part) error {
	var expr string
	switch {
	case p.Pattern.Regex != nil:
		expr = *p.Pattern.Regex
	case p.Pattern.String != nil:
		expr = quoteMeta(*p.Pattern.String)
	default:
		return errors.New("it has no pattern")
	}
	re, err := pattern(expr)
	if err != nil {
		return err
	}
	s := byPattern{re: re}
	switch {
	case p.Behavior == "Isolated":
	case p.Behavior == "Removed" && p.Invert:
		s.matches = true
	case p.Behavior == "Removed":
		s.removed = true
	default:
		return fmt.Errorf("the behavior %q %w", p.Behavior, errUnsupported)
	}
	t.split = append(t.split, s)
	return nil
}

func (t *Tokenizer) readPostProcessor(p part) error {
	return each(p, func(p part) []part { return p.Processors }, 0, func(p part) error {
		switch p.Type {
		case "ByteLevel": // which changes places in the text, not tokens
			return nil
		case "TemplateProcessing":
			return t.readTemplate(p)
		}
		return errUnsupported
	})
}

// readTemplate reads which tokens stand before and after a text.
func (t *Tokenizer) readTemplate(p part) error {
	var list []struct {
		Sequence     *struct{}
		SpecialToken *struct {
			ID string `json:"id"`
		}
	}
	if err := json.Unmarshal(p.Single, &list); err != nil {
		return fmt.Errorf("single: %w", err)
	}
	to := &t.before
	for _, item := range list {
		switch {
		case item.Sequence != nil:
			to = &t.after
		case item.SpecialToken != nil:
			ids := p.SpecialTokens[item.SpecialToken.ID].IDs
			for _, id := range ids {
				if id < 0 || id >= len(t.texts) {
					return fmt.Errorf("the token %q has the number %d, which there is not", item.SpecialToken.ID, id)
				}
			}
			*to = append(*to, ids...)
		}
	}
	return nil
}

func (t *Tokenizer) readDecoder(p part) error {
	return each(p, func(p part) []part { return p.Decoders }, 0, func(p part) error {
		switch p.Type {
		case "ByteLevel":
			t.byteLevel = true
		case "Metaspace":
			t.space = p.Replacement
		case "Replace":
			if p.Pattern.String == nil || p.Content != " " || t.space != "" {
				return errUnsupported
			}
			t.space = *p.Pattern.String
		case "ByteFallback", "Fuse": // as byte tokens always are
		case "Strip": // of the space before the first word of a text, which goes on from a prompt here
		default:
			return errUnsupported
		}
		return nil
	})
}

// quoteMeta is a regular expression for a string.
func quoteMeta(s string) string {
	var b strings.Builder
	for _, r := range s {
		if strings.ContainsRune(`\.+*?()|[]{}^$#-`, r) || r == ' ' {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}
