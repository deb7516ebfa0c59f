package examples

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"fusec/examples/llama/tokenizer"
	"fusec/graph"
	"fusec/graph/atomicfile"
	"fusec/graph/safetensors"
)

// SaveCheckpoint writes a model that [Language] trained, from its weights by name, to a folder in the form of Hugging Face's
// transformers: as a Llama model for windows of so many tokens, whose tokens are the characters of ASCII. A folder that is not
// there is made. One that holds another model, by its configuration, is refused; otherwise all files are replaced, or none.
func SaveCheckpoint(dir string, weights map[string]*graph.Tensor, t Transformer, window int) error {
	if t.Heads < 1 || t.KVHeads < 1 || t.Dim%t.Heads != 0 {
		return fmt.Errorf("%d heads, %d of keys and values, of %d features", t.Heads, t.KVHeads, t.Dim)
	}
	tensors, err := checkpointTensors(weights, t)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	weightsPath := filepath.Join(dir, "model.safetensors")
	if _, err := os.Stat(weightsPath); err == nil {
		if _, err := os.Stat(filepath.Join(dir, "config.json")); err != nil {
			return anothers(weightsPath)
		}
	}
	var made []*atomicfile.File
	defer func() {
		for _, f := range made {
			f.Abort()
		}
	}()
	create := func(path string, write func(io.Writer) error) error {
		f, err := atomicfile.Create(path)
		if err != nil {
			return err
		}
		made = append(made, f)
		if err := write(f); err != nil {
			return err
		}
		return f.Sync()
	}
	for _, f := range []struct {
		name    string
		content any
	}{
		{"config.json", map[string]any{
			"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama", "vocab_size": Vocabulary, "hidden_size": t.Dim,
			"intermediate_size": t.Hidden, "num_hidden_layers": t.Layers, "num_attention_heads": t.Heads,
			"num_key_value_heads": t.KVHeads, "head_dim": t.Dim / t.Heads, "max_position_embeddings": window, "hidden_act": "silu",
			"rms_norm_eps": normEps, "rope_theta": 10000.0, "attention_bias": true, "mlp_bias": false, "tie_word_embeddings": false,
			"bos_token_id": nil, "eos_token_id": nil, "torch_dtype": "float32",
		}},
		{"tokenizer.json", asciiTokenizer()},
		{"tokenizer_config.json", map[string]any{"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": window,
			"clean_up_tokenization_spaces": false}},
	} {
		text, err := json.MarshalIndent(f.content, "", " ")
		if err != nil {
			return err
		}
		text = append(text, '\n')
		path := filepath.Join(dir, f.name)
		if old, err := os.ReadFile(path); err == nil && !bytes.Equal(old, text) {
			return anothers(path)
		}
		if err := create(path, func(w io.Writer) error { _, err := w.Write(text); return err }); err != nil {
			return err
		}
	}
	err = create(weightsPath, func(w io.Writer) error {
		return safetensors.Write(w, tensors, map[string]string{"format": "pt"})
	})
	for _, f := range made {
		if err == nil {
			err = f.Commit()
		}
	}
	return err
}

// anothers refuses to replace a file.
func anothers(path string) error {
	return fmt.Errorf("%s belongs to another model, which would be replaced: name another folder, or remove the file", path)
}

// checkpointTensors are a model's weights under the names of the Llama family, whose matrices are [out, in].
func checkpointTensors(weights map[string]*graph.Tensor, t Transformer) ([]safetensors.Tensor, error) {
	var list []safetensors.Tensor
	var err error
	add := func(to, name string, shape ...int) {
		w := weights[name]
		switch want := graph.TypeOf(graph.F32, shape...); {
		case err != nil:
		case w == nil:
			err = fmt.Errorf("there is no weight %q: is it a model of fusec train language?", name)
		case w.Type != want:
			err = fmt.Errorf("weight %q is %v, not %v", name, w.Type, want)
		case len(shape) == 1 || name == "embedding":
			list = append(list, safetensors.Tensor{Name: to, Shape: shape, Data: w.Data})
		default:
			list = append(list, safetensors.Tensor{Name: to, Shape: []int{shape[1], shape[0]},
				Data: turned(w.Data.([]float32), shape[0], shape[1])})
		}
	}
	add("model.embed_tokens.weight", "embedding", Vocabulary, t.Dim)
	kv := t.Dim / t.Heads * t.KVHeads
	for i := range t.Layers {
		from, to := layerName(i)+".", fmt.Sprintf("model.layers.%d.", i)
		add(to+"input_layernorm.weight", from+"norm1.gain", t.Dim)
		add(to+"post_attention_layernorm.weight", from+"norm2.gain", t.Dim)
		for part, out := range map[string]int{"q": t.Dim, "k": kv, "v": kv, "o": t.Dim} {
			add(to+"self_attn."+part+"_proj.weight", from+"attention."+part+".weight", t.Dim, out)
			add(to+"self_attn."+part+"_proj.bias", from+"attention."+part+".bias", out)
		}
		add(to+"mlp.gate_proj.weight", from+"feed.gate.weight", t.Dim, t.Hidden)
		add(to+"mlp.up_proj.weight", from+"feed.up.weight", t.Dim, t.Hidden)
		add(to+"mlp.down_proj.weight", from+"feed.down.weight", t.Hidden, t.Dim)
	}
	add("model.norm.weight", "norm.gain", t.Dim)
	add("lm_head.weight", "logits.weight", t.Dim, Vocabulary)
	return list, err
}

// turned is a matrix transposed.
func turned(x []float32, rows, columns int) []float32 {
	y := make([]float32, len(x))
	for i := range rows {
		for j := range columns {
			y[j*rows+i] = x[i*columns+j]
		}
	}
	return y
}

// asciiTokenizer is a tokenizer.json whose tokens are the characters of ASCII, without merges.
func asciiTokenizer() map[string]any {
	vocabulary := map[string]int{}
	for b := range Vocabulary {
		vocabulary[tokenizer.Letter(byte(b))] = b
	}
	byteLevel := map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}
	return map[string]any{
		"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": []any{}, "normalizer": nil,
		"pre_tokenizer": byteLevel, "post_processor": nil, "decoder": byteLevel,
		"model": map[string]any{"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil,
			"end_of_word_suffix": nil, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
			"vocab": vocabulary, "merges": []string{}},
	}
}

// IsCheckpoint reports whether a path names a folder: the form in which [SaveCheckpoint] writes.
func IsCheckpoint(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir() || strings.HasSuffix(path, "/")
}
