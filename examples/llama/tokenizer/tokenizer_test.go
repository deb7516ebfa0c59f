package tokenizer

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// spm is a vocabulary of SentencePiece: its special tokens, all bytes, and some pieces with their scores.
func spm(pieces ...string) Vocabulary {
	v := Vocabulary{Model: "llama", Tokens: []string{"<unk>", "<s>", "</s>"}, Kinds: []Kind{UnknownToken, Control, Control},
		Scores: make([]float64, 3), BOS: 1, EOS: 2, AddBOS: true, SpacePrefix: true}
	for b := range 256 {
		v.Tokens, v.Kinds = append(v.Tokens, fmt.Sprintf("<0x%02X>", b)), append(v.Kinds, Byte)
		v.Scores = append(v.Scores, 0)
	}
	for i, p := range pieces {
		v.Tokens, v.Kinds, v.Scores = append(v.Tokens, p), append(v.Kinds, Normal), append(v.Scores, -float64(i))
	}
	return v
}

func TestSentencePiece(t *testing.T) {
	v := spm("he", "ll", "▁he", "hell", "▁hell", "▁", "h", "e", "l", "o")
	tok, err := New(v)
	if err != nil {
		t.Fatal(err)
	}
	const first = 3 + 256
	// The best pair is "he", then "ll"; "▁" and "he" make "▁he"; "▁he" and "ll" make "▁hell".
	for text, want := range map[string][]int{
		"hello":   {1, first + 4, first + 9},
		"é":       {1, first + 5, 3 + 0xC3, 3 + 0xA9},
		"":        {1},
		"</s>lo":  {1, 2, first + 8, first + 9},
		"h</s>":   {1, first + 5, first + 6, 2},
		"  hello": {1, first + 5, first + 4, first + 9},
	} {
		got, err := tok.Encode(text)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("tokens of %q: %v, %v, want %v", text, got, err, want)
		}
	}
	s := tok.Stream()
	var parts []string
	for _, id := range []int{1, first + 4, first + 9, 3 + 0xC3, 3 + 0xA9, 3 + 0xF0, 3 + 'x', 3 + 0xE2} {
		parts = append(parts, string(s.Next(id)))
	}
	parts = append(parts, string(s.Rest()))
	if want := []string{"", " hell", "o", "", "é", "", "\uFFFDx", "", "\uFFFD"}; !slices.Equal(parts, want) {
		t.Errorf("streamed %q, want %q", parts, want)
	}
	if text := tok.Decode([]int{-1, 1 << 40, first + 2}); text != " he" {
		t.Errorf("tokens that there are not: %q", text)
	}
	if n := testing.AllocsPerRun(100, func() { s.Next(first + 4) }); n > 0 {
		t.Errorf("a token allocates %v times", n)
	}
	if id, ok := tok.ID("▁hell"); !ok || id != first+4 || tok.Vocabulary() != len(v.Tokens) {
		t.Errorf("▁hell is %d, %v, of %d tokens", id, ok, tok.Vocabulary())
	}
}

func TestBytePairs(t *testing.T) {
	v := Vocabulary{Model: "gpt2", Pre: "llama-bpe", BOS: -1, EOS: -1, Unknown: -1}
	for b := range 256 {
		v.Tokens = append(v.Tokens, string(byteLetters[b]))
	}
	v.Tokens = append(v.Tokens, "Ġa", "ab", "Ġab", "12", "123", "<|end|>")
	v.Merges = []string{"a b", "Ġ ab", "Ġ a", "1 2"}
	v.Kinds = make([]Kind, len(v.Tokens))
	v.Kinds[len(v.Tokens)-1] = Control
	tok, err := New(v)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string][]int{
		" ab":          {258},
		"ab ab":        {257, 258},
		"1234":         {260, '4'}, // a token, though no merge makes it
		"é\n":          {0xC3, 0xA9, '\n'},
		"a<|end|> aab": {'a', 261, 256, 257},
	} {
		got, err := tok.Encode(text)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("tokens of %q: %v, %v, want %v", text, got, err, want)
		}
		if back := tok.Decode(got); back != strings.ReplaceAll(text, "<|end|>", "") {
			t.Errorf("%q comes back as %q", text, back)
		}
	}
	if _, err := tok.Encode("\xFF"); err == nil {
		t.Error("text that is not UTF-8 has tokens")
	}
}

func TestVocabularyErrors(t *testing.T) {
	for _, c := range []struct {
		change func(v *Vocabulary)
		want   string
	}{
		{func(v *Vocabulary) { v.Tokens = nil }, "no tokens"},
		{func(v *Vocabulary) { v.Kinds = v.Kinds[1:] }, "kinds"},
		{func(v *Vocabulary) { v.Scores = nil }, "0 scores"},
		{func(v *Vocabulary) { v.BOS = 1000 }, "the bos token has the number 1000"},
		{func(v *Vocabulary) { v.BOS = -1 }, "the bos token"},
		{func(v *Vocabulary) { v.Unknown = -7 }, "the unknown token"},
		{func(v *Vocabulary) { v.Model = "bert" }, `the model "bert"`},
		{func(v *Vocabulary) { v.Model, v.Pre = "gpt2", "falcon" }, `"falcon", which is not known`},
		{func(v *Vocabulary) { v.Model, v.Pre, v.Merges = "gpt2", "gpt-2", []string{"ab"} }, "want two tokens"},
		{func(v *Vocabulary) { v.Model, v.Pre, v.Merges = "gpt2", "gpt-2", []string{"a zz"} }, "that the vocabulary has not"},
	} {
		v := spm("a")
		c.change(&v)
		if _, err := New(v); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want one with %q", err, c.want)
		}
	}
}

func TestParseErrors(t *testing.T) {
	const model = `"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}`
	for src, want := range map[string]string{
		``:                                    "JSON",
		`{}`:                                  `type ""`,
		`{"model":{"type":"WordPiece"}}`:      `type "WordPiece"`,
		`{"model":{"type":"BPE","vocab":[]}}`: "the vocabulary",
		`{"model":{"type":"BPE","vocab":{"a":-1},"merges":[]}}`:                       "has the number -1",
		`{"model":{"type":"BPE","vocab":{"a":16000000},"merges":[]}}`:                 "has the number 16000000",
		`{"model":{"type":"BPE","vocab":{"a":1,"b":1},"merges":[]}}`:                  "have the number 1",
		`{"model":{"type":"BPE","vocab":{"a":1},"merges":["a"]}}`:                     "want two tokens",
		`{"model":{"type":"BPE","vocab":{"a":1},"merges":[["a"]]}}`:                   "want two tokens",
		`{"model":{"type":"BPE","vocab":{"a":1},"merges":[7]}}`:                       "merge 0",
		`{"model":{"type":"BPE","vocab":{"a":1},"merges":["a a"]}}`:                   "that the vocabulary has not",
		`{"model":{"type":"BPE","vocab":{"a":1},"merges":[],"unk_token":"x"}}`:        `"x" is not in the vocabulary`,
		`{"model":{"type":"BPE","vocab":{},"merges":[],"end_of_word_suffix":"</w>"}}`: "suffix",
		`{` + model +
			`,"added_tokens":[{"id":1000000,"content":"x"}]}`: "has the number 1000000",
		`{` + model +
			`,"normalizer":{"type":"Lowercase"}}`: "normalizer: Lowercase: is not supported",
		`{` + model +
			`,"normalizer":{"type":"Replace","pattern":{"Regex":"x"}}}`: "Replace: is not supported",
		`{` + model +
			`,"pre_tokenizer":{"type":"Split","pattern":{"Regex":"("}}}`: "regular expression",
		`{` + model +
			`,"pre_tokenizer":{"type":"Split"}}`: "no pattern",
		`{` + model +
			`,"pre_tokenizer":{"type":"Split","pattern":{"String":"x"}}}`: "behavior",
		`{` + model +
			`,"pre_tokenizer":{"type":"Metaspace"}}`: "by nothing",
		`{` + model +
			`,"pre_tokenizer":{"type":"BertPreTokenizer"}}`: "BertPreTokenizer: is not supported",
		`{` + model +
			`,"post_processor":{"type":"BertProcessing"}}`: "BertProcessing: is not supported",
		`{` + model +
			`,"post_processor":{"type":"TemplateProcessing","single":7}}`: "single",
		`{` + model +
			`,"decoder":{"type":"WordPiece"}}`: "WordPiece: is not supported",
		`{` + model + `,"decoder":` + strings.Repeat(`{"type":"Sequence","decoders":[`, 20) + strings.Repeat(`]}`, 20) +
			`}`: "too deep",
		`{` + model + `,"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x"}}],` +
			`"special_tokens":{"x":{"ids":[9]}}}}`: "the number 9",
	} {
		if _, err := Parse([]byte(src)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", src, err, want)
		}
	}
	tok, err := Parse([]byte(`{` + model + `,"pre_tokenizer":{"type":"Sequence","pretokenizers":[
		{"type":"Split","pattern":{"String":"."},"behavior":"Removed"},{"type":"Digits","individual_digits":true}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := tok.Encode("ab.a.xb"); err != nil || !slices.Equal(got, []int{2, 0, 1}) {
		t.Errorf("tokens %v, %v", got, err)
	}
}

// FuzzParse requires errors, not panics, of files and of texts.
func FuzzParse(f *testing.F) {
	f.Add([]byte(
		`{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"<0x41>":3},"merges":["a b"],"byte_fallback":true,"unk_token":"a"},
		"added_tokens":[{"id":4,"content":"<s>","special":true,"lstrip":true,"rstrip":true,"single_word":true,"normalized":true}],
		"normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Prepend","prepend":"_"},
		{"type":"Replace","pattern":{"String":" "},"content":"_"}]},
		"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"a+"},"behavior":"Isolated"},
		{"type":"ByteLevel"},{"type":"Metaspace","replacement":"_"}]},
		"decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"_"},"content":" "},{"type":"ByteFallback"}]},
		"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x"}},{"Sequence":{}}],
		"special_tokens":{"x":{"ids":[1]}}}}`), "abba <s> A")
	f.Fuzz(func(t *testing.T, src []byte, text string) {
		tok, err := Parse(src)
		if err != nil {
			return
		}
		tokens, err := tok.Encode(text)
		if err != nil {
			return
		}
		for _, id := range tokens {
			if id < 0 || id >= tok.Vocabulary() {
				t.Fatalf("token %d of %d", id, tok.Vocabulary())
			}
		}
		tok.Decode(tokens)
	})
}
