package llama

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"fusec/examples/llama/tokenizer"
	"fusec/graph"
	"fusec/graph/filemap"
	"fusec/graph/gguf"
)

// openGGUF reads a file that has everything.
func (c *Checkpoint) openGGUF(path string) error {
	f, err := filemap.Open(path)
	if err != nil {
		return err
	}
	c.files = append(c.files, f)
	parsed, err := gguf.Parse(f.Data)
	if err == nil {
		m := &metadata{values: parsed.Metadata}
		c.Config, err = m.config()
		if err == nil {
			c.Tokenizer, err = m.tokenizer(c.Config)
		}
		if err == nil {
			err = c.take(parsed.Tensors)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// metadata reads values by their keys. The first error is kept.
type metadata struct {
	values map[string]any
	arch   string
	err    error
}

func (m *metadata) fail(format string, args ...any) {
	if m.err == nil {
		m.err = fmt.Errorf(format, args...)
	}
}

// valueOf is the value of a key, or def if there is none.
func valueOf[T any](m *metadata, key string, def T) T {
	switch v := m.values[key].(type) {
	case nil:
		return def
	case T:
		return v
	default:
		m.fail("metadata %s is %T, not %T", key, v, def)
		return def
	}
}

// integer is a number of the model's architecture, or def. A list has to have one number many times.
func (m *metadata) integer(key string, def int) int {
	key = m.arch + "." + key
	switch v := m.values[key].(type) {
	case nil:
		return def
	case uint64:
		if v > math.MaxInt32 {
			m.fail("metadata %s is %d", key, v)
			return def
		}
		return int(v)
	case []int64:
		if len(v) == 0 || slices.Max(v) != slices.Min(v) {
			m.fail("metadata %s differs from layer to layer", key)
			return def
		}
		return int(v[0])
	}
	return int(valueOf(m, key, int64(def)))
}

func (m *metadata) float(key string, def float64) float64 { return valueOf(m, m.arch+"."+key, def) }

func (m *metadata) config() (*Config, error) {
	m.arch = valueOf(m, "general.architecture", "")
	c := &Config{Family: m.arch, Activation: graph.Silu}
	switch m.arch {
	case "llama":
		c.RopeInterleaved = true
		if c.Experts = m.integer("expert_count", 0); c.Experts > 0 {
			c.Family = "mixtral"
			c.TopK = m.integer("expert_used_count", 0)
		}
	case "qwen2":
	case "gpt2":
		c.Activation = graph.GeluTanh
	default:
		m.fail("a model of the architecture %q: want llama, qwen2 or gpt2", m.arch)
	}
	c.Layers, c.Dim = m.integer("block_count", 0), m.integer("embedding_length", 0)
	c.Heads = m.integer("attention.head_count", 0)
	c.KVHeads = m.integer("attention.head_count_kv", c.Heads)
	c.Hidden, c.Context = m.integer("feed_forward_length", 0), m.integer("context_length", 0)
	c.Vocabulary = len(valueOf[[]string](m, "tokenizer.ggml.tokens", nil))
	if c.Heads > 0 {
		c.HeadDim = c.Dim / c.Heads
	}
	c.HeadDim = m.integer("attention.key_length", c.HeadDim)
	if v := m.integer("attention.value_length", c.HeadDim); v != c.HeadDim {
		m.fail("heads have %d features for keys and %d for values", c.HeadDim, v)
	}
	if m.arch == "gpt2" {
		c.Norm = m.float("attention.layer_norm_epsilon", 1e-5)
	} else {
		c.Norm = m.float("attention.layer_norm_rms_epsilon", 1e-5)
		c.RopeBase = m.float("rope.freq_base", 10000)
		if d := m.integer("rope.dimension_count", c.HeadDim); d != c.HeadDim {
			m.fail("positions turn %d of the %d features of a head", d, c.HeadDim)
		}
	}
	c.BOS = int(valueOf(m, "tokenizer.ggml.bos_token_id", int64(-1)))
	if eos := valueOf(m, "tokenizer.ggml.eos_token_id", int64(-1)); eos >= 0 {
		c.EOS = []int{int(eos)}
	}
	if m.err == nil {
		m.err = c.check()
	}
	if m.err != nil {
		return nil, m.err
	}
	switch kind := valueOf(m, m.arch+".rope.scaling.type", "none"); kind {
	case "none":
	case "linear":
		m.err = c.stretch(&rope{Type: kind, Factor: m.float("rope.scaling.factor", 1)})
	default:
		m.fail("rotary positions of type %q: want none or linear", kind)
	}
	c.Windows = make([]int, c.Layers)
	if w := m.integer("attention.sliding_window", 0); w > 0 {
		for i := range c.Windows {
			c.Windows[i] = w
		}
	}
	if m.err == nil {
		m.err = c.check()
	}
	return c, m.err
}

func (m *metadata) tokenizer(c *Config) (*tokenizer.Tokenizer, error) {
	const prefix = "tokenizer.ggml."
	v := tokenizer.Vocabulary{
		Model: valueOf(m, prefix+"model", ""), Pre: valueOf(m, prefix+"pre", ""),
		Tokens: valueOf[[]string](m, prefix+"tokens", nil), Merges: valueOf[[]string](m, prefix+"merges", nil),
		Scores: valueOf[[]float64](m, prefix+"scores", nil),
		BOS:    c.BOS, EOS: -1, Unknown: int(valueOf(m, prefix+"unknown_token_id", int64(-1))),
		SpacePrefix: valueOf(m, prefix+"add_space_prefix", true),
	}
	if len(c.EOS) > 0 {
		v.EOS = c.EOS[0]
	}
	sentencePiece := v.Model == "llama"
	v.AddBOS = valueOf(m, prefix+"add_bos_token", sentencePiece && v.BOS >= 0)
	v.AddEOS = valueOf(m, prefix+"add_eos_token", false)
	for _, k := range valueOf[[]int64](m, prefix+"token_type", nil) {
		v.Kinds = append(v.Kinds, tokenizer.Kind(k))
	}
	if m.err != nil {
		return nil, m.err
	}
	t, err := tokenizer.New(v)
	if err != nil {
		return nil, fmt.Errorf("the tokenizer: %w", err)
	}
	return t, nil
}

// Names of weights, in a GGUF file and in a checkpoint of Hugging Face, without layers and endings.
var (
	ggufNames = map[string]string{
		"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
		"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
		"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
		"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
		"ffn_gate_inp": "block_sparse_moe.gate",
	}
	gpt2Names = map[string]string{
		"token_embd": "wte", "position_embd": "wpe", "output_norm": "ln_f", "output": "lm_head",
		"attn_norm": "ln_1", "ffn_norm": "ln_2", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj",
		"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj",
	}
	expertNames = map[string]string{"ffn_gate_exps": "w1", "ffn_down_exps": "w2", "ffn_up_exps": "w3"}
)

// take takes over the tensors of a GGUF file under the names of Hugging Face.
func (c *Checkpoint) take(tensors []gguf.Tensor) error {
	names, layers := ggufNames, "model.layers."
	if c.Config.Family == "gpt2" {
		names, layers = gpt2Names, "h."
	}
	c.Config.Tied = !slices.ContainsFunc(tensors, func(t gguf.Tensor) bool { return t.Name == "output.weight" })
	for i := range tensors {
		t := &tensors[i]
		if len(t.Shape) > graph.MaxRank {
			return fmt.Errorf("tensor %q has %d axes, more than %d", t.Name, len(t.Shape), graph.MaxRank)
		}
		if t.Name == "rope_freqs.weight" {
			c.Config.RopeDivisors = make([]float64, t.Elems())
			v := make([]float32, t.Elems())
			if err := t.Floats(v); err != nil {
				return err
			}
			for j, x := range v {
				c.Config.RopeDivisors[j] = float64(x)
			}
			if len(v) != c.Config.HeadDim/2 {
				return fmt.Errorf("tensor %q has %d elements, and heads have %d features", t.Name, len(v), c.Config.HeadDim)
			}
			if err := c.Config.check(); err != nil {
				return err
			}
			continue
		}
		stem, ending, _ := cutLast(t.Name, ".")
		layer := ""
		if rest, ok := strings.CutPrefix(stem, "blk."); ok {
			number, part, _ := strings.Cut(rest, ".")
			layer, stem = layers+number+".", part
		}
		if w, ok := expertNames[stem]; ok && len(t.Shape) == 3 && t.Shape[0] > 0 {
			size := len(t.Data) / t.Shape[0]
			for e := range t.Shape[0] {
				one := gguf.Tensor{Name: t.Name, Type: t.Type, Shape: t.Shape[1:], Data: t.Data[e*size:][:size]}
				if err := c.add(fmt.Sprintf("%sblock_sparse_moe.experts.%d.%s.%s", layer, e, w, ending), &one); err != nil {
					return err
				}
			}
			continue
		}
		name, ok := names[stem]
		if !ok {
			return fmt.Errorf("tensor %q is not one that models of %s have", t.Name, c.Config.Family)
		}
		if err := c.add(layer+name+"."+ending, t); err != nil {
			return err
		}
	}
	return nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

var ggufTypes = map[gguf.Type]graph.DType{gguf.F32: graph.F32, gguf.F16: graph.F16, gguf.BF16: graph.BF16}

// add takes over a tensor under a name, in the file's memory.
func (c *Checkpoint) add(name string, t *gguf.Tensor) error {
	if c.Weights[name] != nil || c.blocks[name] != nil {
		return fmt.Errorf("tensor %q is in the file twice", name)
	}
	if d, ok := ggufTypes[t.Type]; ok {
		c.Weights[name] = tensorAt(t.Data, graph.TypeOf(d, t.Shape...))
		return nil
	}
	if len(t.Shape) == 2 {
		c.blocks[name] = t
		return nil
	}
	w := graph.NewTensor(graph.TypeOf(graph.F32, t.Shape...))
	c.Weights[name] = w
	return t.Floats(w.Data.([]float32))
}
