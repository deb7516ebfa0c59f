package llama

import (
	"bytes"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/safetensors"
)

// copied is a copy of the checkpoint that is kept here.
func copied(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"config.json", "tokenizer.json", "model.safetensors", "f30.gguf"} {
		src, err := os.ReadFile(filepath.Join("testdata/tiny", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), src, 0o666)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// attempt opens a folder and compiles the decoding step.
func attempt(dir string) error {
	c, err := Open(dir)
	if err != nil {
		return err
	}
	defer c.Close()
	m, err := New(c, Options{Capacity: 4, Block: 2})
	if err != nil {
		return err
	}
	defer m.Close()
	_, err = m.Append([]int{0, 1, 2})
	return err
}

// TestConfigErrors changes one entry of a config.json at a time.
func TestConfigErrors(t *testing.T) {
	src := graphtest.ReadFile(t, "testdata/tiny/config.json")
	var config map[string]any
	if err := json.Unmarshal(src, &config); err != nil {
		t.Fatal(err)
	}
	type m = map[string]any
	for _, c := range []struct {
		change m // null deletes
		want   string
	}{
		{m{"model_type": "bert"}, `type "bert"`},
		{m{"model_type": 7}, "config.json"},
		{m{"num_hidden_layers": 0}, "0 layers"},
		{m{"num_hidden_layers": 1 << 40}, "layers: want 1 to"},
		{m{"num_hidden_layers": 3}, `no tensor "model.layers.2.input_layernorm.weight"`},
		{m{"num_hidden_layers": 1}, `has a tensor "model.layers.1.`},
		{m{"hidden_size": -1}, "features"},
		{m{"hidden_size": 32}, "with this configuration it is"},
		{m{"hidden_size": 1 << 62, "head_dim": nil}, "features"},
		{m{"num_attention_heads": 0}, "0 heads"},
		{m{"num_attention_heads": 3, "head_dim": nil}, "16 features do not make 3 heads"},
		{m{"num_key_value_heads": 3}, "4 heads are no multiple of 3"},
		{m{"num_key_value_heads": 4}, "with this configuration it is"},
		{m{"head_dim": 3}, "turn pairs"},
		{m{"head_dim": 1 << 23}, "too many"},
		{m{"intermediate_size": 0}, "hidden features"},
		{m{"vocab_size": 125}, "with this configuration it is"},
		{m{"max_position_embeddings": 0}, "tokens of context"},
		{m{"rms_norm_eps": -1}, "the norms add -1"},
		{m{"hidden_act": "softmax"}, `activation "softmax"`},
		{m{"rope_parameters": m{"rope_theta": -1}}, "base of the rotary positions"},
		{m{"rope_parameters": m{"rope_type": "yarn"}}, `type "yarn"`},
		{m{"rope_parameters": m{"rope_type": "linear"}}, "divided by 0"},
		{m{"rope_scaling": m{"type": "llama3"}}, "low_freq_factor"},
		{m{"tie_word_embeddings": false}, `no tensor "lm_head.weight"`},
		{m{"attention_bias": true}, ""},
		{m{"model_type": "mistral", "sliding_window": 0}, "a window of 0"},
		{m{"model_type": "mistral", "sliding_window": 4, "layer_types": []string{"full_attention"}}, "layer_types has 1"},
		{m{"model_type": "mistral", "sliding_window": 4, "layer_types": []string{"x", "y"}}, `type "x"`},
		{m{"model_type": "mixtral"}, "0 experts"},
		{m{"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3}, "3 of 2 experts"},
		{m{"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 1}, `block_sparse_moe.gate.weight"`},
		{m{"model_type": "gpt2"}, "0 layers"},
		{m{"model_type": "gpt2", "scale_attn_weights": false}, "scores"},
		{m{"eos_token_id": []int{1, 2}, "bos_token_id": nil}, ""},
		{m{"eos_token_id": "x"}, "config.json"},
	} {
		dir := copied(t)
		changed := maps.Clone(config)
		for k, v := range c.change {
			if changed[k] = v; v == nil {
				delete(changed, k)
			}
		}
		text, err := json.Marshal(changed)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "config.json"), text, 0o666)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := attempt(dir); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: error %v, want one with %q", c.change, err, c.want)
		}
	}
}

// TestFolderErrors takes files away and puts others in their place.
func TestFolderErrors(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       string
	}{
		{"config.json", "", "config.json: no such file"},
		{"config.json", "{", "config.json: unexpected end"},
		{"tokenizer.json", "", "tokenizer.json: no such file"},
		{"tokenizer.json", "[]", "tokenizer.json: "},
		{"generation_config.json", "[", "generation_config.json: "},
		{"model.safetensors", "", "there is neither"},
		{"model.safetensors", "short", "model.safetensors: file of 5 bytes"},
	} {
		dir := copied(t)
		path := filepath.Join(dir, c.name)
		var err error
		if c.text == "" {
			err = os.Remove(path)
		} else {
			err = os.WriteFile(path, []byte(c.text), 0o666)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := attempt(dir); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %q: error %v, want one with %q", c.name, c.text, err, c.want)
		}
	}
	for index, want := range map[string]string{
		`{}`: "names no file", `[`: "index.json: ", `{"weight_map":{"x":"../model.safetensors"}}`: "not in this folder",
		`{"weight_map":{"x":"/etc/passwd"}}`:      "not in this folder",
		`{"weight_map":{"x":"none.safetensors"}}`: "none.safetensors: no such file",
	} {
		dir := copied(t)
		if err := os.Rename(filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "a.safetensors")); err != nil {
			t.Fatal(err)
		}
		graphtest.WriteFile(t, filepath.Join(dir, "model.safetensors.index.json"), []byte(index))
		if err := attempt(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("index %s: error %v, want one with %q", index, err, want)
		}
	}
	if err := attempt(filepath.Join(t.TempDir(), "none")); !os.IsNotExist(err) {
		t.Errorf("a folder that is not there: %v", err)
	}
}

// TestWeightErrors has tensors of other types and more of them.
func TestWeightErrors(t *testing.T) {
	for _, c := range []struct {
		extra safetensors.Tensor
		want  string
	}{
		{safetensors.Tensor{Name: "model.norm.bias", Shape: []int{1}, Data: []float32{1}}, `has a tensor "model.norm.bias"`},
		{safetensors.Tensor{Name: "x", Shape: []int{1}, Data: []int64{1}}, `"x": numbers of type I64`},
		{safetensors.Tensor{Name: "y", Shape: make([]int, 9), Data: []float32{}}, `"y": it has 9 axes`},
		{safetensors.Tensor{Name: "transformer.model.norm.weight", Shape: []int{1}, Data: []float32{1}}, "twice"},
		{safetensors.Tensor{Name: "rotary_emb.inv_freq", Shape: []int{1}, Data: []float32{1}}, ""},
		{safetensors.Tensor{Name: "lm_head.weight", Shape: []int{1}, Data: []float32{1}}, ""},
	} {
		dir := copied(t)
		old, err := safetensors.Open(filepath.Join(dir, "model.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		var all []safetensors.Tensor
		for _, info := range old.Tensors() {
			bits, err := old.ReadBits(info.Name)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, safetensors.Tensor{Name: info.Name, Shape: info.Shape, Data: safetensors.BF16(bits)})
		}
		if err := old.Close(); err != nil {
			t.Fatal(err)
		}
		c.extra.Name = strings.Replace(c.extra.Name, "rotary", "model.layers.0.self_attn.rotary", 1)
		if err := safetensors.WriteFile(filepath.Join(dir, "model.safetensors"), append(all, c.extra), nil); err != nil {
			t.Fatal(err)
		}
		if err := attempt(dir); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", c.extra.Name, err, c.want)
		}
	}
}

// TestDamage changes bytes of every file, and cuts them off: whatever comes of it, it is no panic.
func TestDamage(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	dir := copied(t)
	for _, name := range []string{"config.json", "tokenizer.json", "model.safetensors", "f30.gguf"} {
		path, whole := filepath.Join(dir, name), dir
		if name == "f30.gguf" {
			whole = path
		}
		src := graphtest.ReadFile(t, path)
		for range 60 {
			bad := bytes.Clone(src)
			for range 1 + r.IntN(3) {
				bad[r.IntN(min(len(bad), 2000))] = byte(r.IntN(256))
			}
			if r.IntN(4) == 0 {
				bad = bad[:r.IntN(len(bad))]
			}
			graphtest.WriteFile(t, path, bad)
			_ = attempt(whole)
		}
		graphtest.WriteFile(t, path, src)
	}
	for _, whole := range []string{dir, filepath.Join(dir, "f30.gguf")} {
		if err := attempt(whole); err != nil {
			t.Error(err)
		}
	}
}

// TestGGUFErrors changes names in a GGUF file, to others of the same length.
func TestGGUFErrors(t *testing.T) {
	src := graphtest.ReadFile(t, "testdata/tiny/f30.gguf")
	for _, c := range []struct{ from, to, want string }{
		{"general.architecture", "general.architectura", `architecture ""`},
		{"llama.block_count", "llama.block_caunt", "0 layers"},
		{"llama.embedding_length", "llama.embedding_langth", "0 features"},
		{"llama.attention.head_count_kv", "llama.attention.head_caunt_kv", "with this configuration it is"},
		{"llama.rope.freq_base", "llama.rope.freq_bass", ""},
		{"tokenizer.ggml.model", "tokenizer.ggml.modal", `the model ""`},
		{"tokenizer.ggml.pre", "tokenizer.ggml.prx", `in the way of ""`},
		{"tokenizer.ggml.tokens", "tokenizer.ggml.takens", "tokens of the vocabulary"},
		{"tokenizer.ggml.merges", "tokenizer.ggml.tokens", "given twice"},
		{"blk.1.attn_q.weight", "blk.1.attn_x.weight", `"blk.1.attn_x.weight" is not one`},
		{"blk.1.attn_q.weight", "blk.9.attn_q.weight", `no tensor "model.layers.1.self_attn.q_proj.weight"`},
		{"blk.1.attn_q.weight", "blk.0.attn_q.weight", "given twice"},
		{"output_norm.weight", "output_norm.weighs", `no tensor "model.norm.weight"`},
	} {
		if !bytes.Contains(src, []byte(c.from)) {
			t.Errorf("the file has no %s", c.from)
			continue
		}
		path := filepath.Join(t.TempDir(), "x.gguf")
		graphtest.WriteFile(t, path, bytes.Replace(src, []byte(c.from), []byte(c.to), 1))
		if err := attempt(path); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s for %s: error %v, want one with %q", c.to, c.from, err, c.want)
		}
	}
	path := filepath.Join(t.TempDir(), "short.gguf")
	graphtest.WriteFile(t, path, src[:len(src)-100])
	if err := attempt(path); err == nil || !strings.Contains(err.Error(), "short.gguf: tensor ") {
		t.Errorf("error %v", err)
	}
}

// TestSequence refuses what does not fit, and stays as it was.
func TestSequence(t *testing.T) {
	c := opened(t, "testdata/tiny")
	m := modelOf(t, c, Options{Capacity: 10, Block: 8})
	fails := func(want string, tokens ...int) {
		t.Helper()
		was := m.Len()
		if _, err := m.Append(tokens); err == nil || !strings.Contains(err.Error(), want) || m.Len() != was {
			t.Errorf("%v: error %v, want one with %q; %d tokens", tokens, err, want, m.Len())
		}
	}
	fails("there are no tokens")
	fails("11 more do not fit", make([]int, 11)...)
	fails("outside", 1, 2, 1000)
	fails("outside", -1)
	if _, err := m.Append([]int{1, 2, 3, 4, 5, 6}); err != nil || m.Len() != 6 || m.Block() != 8 {
		t.Errorf("%v, %d tokens", err, m.Len())
	}
	fails("5 more do not fit", 1, 2, 3, 4, 5)
	if m.Truncate(7) == nil || m.Truncate(-1) == nil || m.Prepare(3) == nil {
		t.Error("a sequence of 6 tokens is cut to 7 or -1, or prepared again")
	}
	if m.PromptProgram() == nil {
		t.Error("no program for prompts")
	}
	logits := make([]int, 1)
	if n := testing.AllocsPerRun(10, func() {
		if _, err := m.Append(logits); err != nil {
			t.Fatal(err)
		}
		m.done--
	}); n > 0 {
		t.Errorf("a token allocates %v times", n)
	}
	for _, o := range []Options{{Capacity: -1}, {Block: -1}, {Capacity: 1 << 50}, {Capacity: 1 << 60},
		{Capacity: 1 << 50, Cache: graph.I8}, {Cache: graph.I4}} {
		if _, err := New(c, o); err == nil {
			t.Errorf("a model with %+v", o)
		}
	}
	if _, err := c.Graph(3, 2); err == nil {
		t.Error("a run of 3 tokens with caches of 2")
	}
}
