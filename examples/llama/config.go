package llama

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"fusec/graph"
	"fusec/graph/memlimit"
)

// Config is the form of a language model: what its weights mean.
type Config struct {
	Family     string // llama, mistral, qwen2, mixtral or gpt2
	Layers     int
	Dim        int // features of a token
	Heads      int // of queries
	KVHeads    int // of keys and values
	HeadDim    int // features of a head
	Hidden     int // features inside a feed-forward network
	Vocabulary int
	Context    int // the tokens for which the model is made
	Experts    int // 0 without a mixture
	TopK       int // experts of a token
	Norm       float64
	Activation graph.UnaryFn
	Tied       bool // the embedding is the last layer's weights, too

	// Rotary positions; without, positions are learnt.
	RopeBase        float64   // 0 for learnt positions
	RopeDivisors    []float64 // of each pair's angle; nil for ones
	RopeInterleaved bool      // pairs are neighbours
	Windows         []int     // of each layer: how many tokens one attends to; 0 for all

	// Columns says that weights of linear layers are [in, out], else [out, in].
	Columns bool

	BOS int   // the token that begins a text, −1 for none
	EOS []int // tokens that end one
}

// The limits of sizes keep products of them from overflowing. What is allocated follows the weights, which a file has in
// full.
const (
	maxSize   = 1 << 24
	maxLayers = 1 << 12
)

// check refuses sizes that no model has.
func (c *Config) check() error {
	for _, s := range []struct {
		name string
		v    int
		most int
	}{
		{"layers", c.Layers, maxLayers}, {"features", c.Dim, maxSize}, {"heads", c.Heads, maxSize},
		{"heads of keys and values", c.KVHeads, maxSize}, {"features of a head", c.HeadDim, maxSize},
		{"hidden features", c.Hidden, maxSize}, {"tokens of the vocabulary", c.Vocabulary, maxSize},
		{"tokens of context", c.Context, 1 << 30},
	} {
		if s.v < 1 || s.v > s.most {
			return fmt.Errorf("the configuration has %d %s: want 1 to %d", s.v, s.name, s.most)
		}
	}
	switch {
	case c.Heads%c.KVHeads != 0:
		return fmt.Errorf("%d heads are no multiple of %d of keys and values", c.Heads, c.KVHeads)
	case c.Heads > maxSize/c.HeadDim:
		return fmt.Errorf("%d heads of %d features are too many", c.Heads, c.HeadDim)
	case !(c.Norm >= 0) || math.IsInf(c.Norm, 0):
		return fmt.Errorf("the norms add %v to a variance", c.Norm)
	case c.RopeBase != 0 && (!(c.RopeBase > 0) || math.IsInf(c.RopeBase, 0)):
		return fmt.Errorf("the base of the rotary positions is %v", c.RopeBase)
	case c.RopeBase != 0 && c.HeadDim%2 != 0:
		return fmt.Errorf("rotary positions turn pairs, and a head has %d features", c.HeadDim)
	case c.Experts < 0 || c.Experts > 1<<16 || c.Experts > 0 && (c.TopK < 1 || c.TopK > c.Experts):
		return fmt.Errorf("a token goes to %d of %d experts", c.TopK, c.Experts)
	}
	for _, d := range c.RopeDivisors {
		if !(d > 0) || math.IsInf(d, 0) {
			return fmt.Errorf("an angle of the rotary positions is divided by %v", d)
		}
	}
	return nil
}

// checkCache returns an error if the keys and values of so many tokens do not fit into memory, or cannot be of the type.
func (c *Config) checkCache(tokens int, cache graph.DType) error {
	if cache != graph.F32 && cache != graph.I8 && !cache.Is16() {
		return fmt.Errorf("caches of %v: want f32, bf16, f16 or i8", cache)
	}
	row := float64(c.HeadDim) * float64(cache.Size())
	if cache == graph.I8 {
		row += float64(graph.F32.Size()) // its scale
	}
	need := 2 * float64(c.Layers) * float64(c.KVHeads) * row * float64(tokens)
	if need > 1<<62 {
		return fmt.Errorf("the keys and values of %d tokens take %.3g bytes", tokens, need)
	}
	return memlimit.Check(int64(need))
}

// ids is a token's number, several, or none.
type ids []int

// UnmarshalJSON implements [json.Unmarshaler].
func (l *ids) UnmarshalJSON(b []byte) error {
	*l = nil
	if string(b) == "null" {
		return nil
	}
	if len(b) > 0 && b[0] == '[' {
		return json.Unmarshal(b, (*[]int)(l))
	}
	*l = ids{0}
	return json.Unmarshal(b, &(*l)[0])
}

// configFile is what counts of a config.json. The first names are those of the Llama family, the second those of GPT-2.
type configFile struct {
	ModelType  string `json:"model_type"`
	Layers     int    `json:"num_hidden_layers"`
	NLayer     int    `json:"n_layer"`
	Dim        int    `json:"hidden_size"`
	NEmbd      int    `json:"n_embd"`
	Heads      int    `json:"num_attention_heads"`
	NHead      int    `json:"n_head"`
	KVHeads    int    `json:"num_key_value_heads"`
	HeadDim    int    `json:"head_dim"`
	Hidden     int    `json:"intermediate_size"`
	NInner     int    `json:"n_inner"`
	Vocab      int    `json:"vocab_size"`
	Context    int    `json:"max_position_embeddings"`
	NPositions int    `json:"n_positions"`
	Experts    int    `json:"num_local_experts"`
	TopK       int    `json:"num_experts_per_tok"`

	RMSNormEps     *float64 `json:"rms_norm_eps"`
	LayerNormEps   *float64 `json:"layer_norm_epsilon"`
	HiddenAct      string   `json:"hidden_act"`
	ActivationFn   string   `json:"activation_function"`
	Tied           *bool    `json:"tie_word_embeddings"`
	RopeTheta      *float64 `json:"rope_theta"`
	RopeScaling    *rope    `json:"rope_scaling"`
	RopeParameters *rope    `json:"rope_parameters"` // which newer files have instead
	Window         *int     `json:"sliding_window"`
	UseWindow      *bool    `json:"use_sliding_window"`
	WindowLayers   *int     `json:"max_window_layers"`
	LayerTypes     []string `json:"layer_types"`

	ScaleAttn  *bool `json:"scale_attn_weights"`
	ScaleByIdx bool  `json:"scale_attn_by_inverse_layer_idx"`

	BOS ids `json:"bos_token_id"`
	EOS ids `json:"eos_token_id"`
}

// rope is how rotary positions are stretched.
type rope struct {
	Type     string   `json:"rope_type"`
	OldType  string   `json:"type"`
	Theta    *float64 `json:"rope_theta"`
	Factor   float64  `json:"factor"`
	Low      float64  `json:"low_freq_factor"`
	High     float64  `json:"high_freq_factor"`
	Original float64  `json:"original_max_position_embeddings"`
}

var activations = map[string]graph.UnaryFn{
	"silu": graph.Silu, "swish": graph.Silu, "gelu": graph.GeluErf, "gelu_new": graph.GeluTanh,
	"gelu_pytorch_tanh": graph.GeluTanh, "gelu_fast": graph.GeluTanh, "relu": graph.Relu,
}

// ParseConfig reads a config.json.
func ParseConfig(src []byte) (*Config, error) {
	var f configFile
	if err := json.Unmarshal(src, &f); err != nil {
		return nil, err
	}
	c := &Config{Family: f.ModelType, Layers: f.Layers, Dim: f.Dim, Heads: f.Heads, KVHeads: f.KVHeads, HeadDim: f.HeadDim,
		Hidden: f.Hidden, Vocabulary: f.Vocab, Context: f.Context, BOS: -1, EOS: f.EOS}
	if len(f.BOS) > 0 {
		c.BOS = f.BOS[0]
	}
	act := f.HiddenAct
	switch f.ModelType {
	case "llama", "mistral", "qwen2", "mixtral":
		c.Norm = orElse(f.RMSNormEps, 1e-6)
		c.Tied = orElse(f.Tied, false)
		if act == "" {
			act = "silu"
		}
	case "gpt2":
		c.Layers, c.Dim, c.Heads, c.Context, c.Hidden = f.NLayer, f.NEmbd, f.NHead, f.NPositions, f.NInner
		c.KVHeads, c.HeadDim, c.Columns = c.Heads, 0, true
		c.Norm = orElse(f.LayerNormEps, 1e-5)
		c.Tied = orElse(f.Tied, true)
		if c.Hidden == 0 && c.Dim > 0 && c.Dim <= maxSize {
			c.Hidden = 4 * c.Dim
		}
		if act = f.ActivationFn; act == "" {
			act = "gelu_new"
		}
		if !orElse(f.ScaleAttn, true) || f.ScaleByIdx {
			return nil, errors.New("scores that are not divided by the root of a head's features are not supported")
		}
	default:
		return nil, fmt.Errorf("a model of type %q: want llama, mistral, qwen2, mixtral or gpt2", f.ModelType)
	}
	var ok bool
	if c.Activation, ok = activations[act]; !ok {
		return nil, fmt.Errorf("the activation %q is not known", act)
	}
	if c.KVHeads == 0 {
		c.KVHeads = c.Heads
	}
	if c.HeadDim == 0 && c.Heads > 0 {
		if c.Dim%c.Heads != 0 {
			return nil, fmt.Errorf("%d features do not make %d heads", c.Dim, c.Heads)
		}
		c.HeadDim = c.Dim / c.Heads
	}
	if f.ModelType == "mixtral" {
		c.Experts, c.TopK = f.Experts, f.TopK
		if c.Experts < 1 {
			return nil, fmt.Errorf("a mixture of %d experts", c.Experts)
		}
	}
	if f.ModelType != "gpt2" {
		c.RopeBase = orElse(f.RopeTheta, 10000)
		if f.RopeParameters != nil {
			c.RopeBase = orElse(f.RopeParameters.Theta, c.RopeBase)
		}
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	for _, r := range []*rope{f.RopeScaling, f.RopeParameters} {
		if r != nil && c.RopeBase != 0 {
			if err := c.stretch(r); err != nil {
				return nil, err
			}
		}
	}
	return c, errors.Join(c.windows(&f), c.check())
}

func orElse[T any](p *T, v T) T {
	if p != nil {
		return *p
	}
	return v
}

// stretch sets the divisors of the angles.
func (c *Config) stretch(r *rope) error {
	kind := r.Type
	if kind == "" {
		kind = r.OldType
	}
	pairs := c.HeadDim / 2
	switch kind {
	case "", "default":
		return nil
	case "linear":
		c.RopeDivisors = make([]float64, pairs)
		for j := range c.RopeDivisors {
			c.RopeDivisors[j] = r.Factor
		}
	case "llama3":
		if !(r.Low > 0 && r.High > r.Low && r.Original > 0) {
			return fmt.Errorf("rotary positions of type llama3 with low_freq_factor %v, high_freq_factor %v and "+
				"original_max_position_embeddings %v", r.Low, r.High, r.Original)
		}
		c.RopeDivisors = make([]float64, pairs)
		for j := range c.RopeDivisors {
			c.RopeDivisors[j] = r.llama3(graph.RoPE{Base: c.RopeBase}.Angle(1, j, c.HeadDim, 1))
		}
	default:
		return fmt.Errorf("rotary positions of type %q: want default, linear or llama3", kind)
	}
	return nil
}

// llama3 is the divisor of an angle per position: one for the fast pairs, Factor for those that turn less than Low times in
// the original context, and in between what makes a straight line of the quotients.
func (r *rope) llama3(angle float64) float64 {
	turns := r.Original * angle / (2 * math.Pi)
	switch {
	case turns < r.Low:
		return r.Factor
	case turns > r.High:
		return 1
	}
	smooth := (turns - r.Low) / (r.High - r.Low)
	return 1 / ((1-smooth)/r.Factor + smooth)
}

// windows sets which layers attend to how many tokens.
func (c *Config) windows(f *configFile) error {
	c.Windows = make([]int, c.Layers)
	if f.Window == nil || c.Family == "llama" || c.Family == "gpt2" || !orElse(f.UseWindow, c.Family != "qwen2") {
		return nil
	}
	if *f.Window < 1 {
		return fmt.Errorf("a window of %d tokens", *f.Window)
	}
	if f.LayerTypes != nil && len(f.LayerTypes) != c.Layers {
		return fmt.Errorf("layer_types has %d layers, and the model %d", len(f.LayerTypes), c.Layers)
	}
	for i := range c.Windows {
		switch {
		case f.LayerTypes == nil:
			if c.Family != "qwen2" || i >= orElse(f.WindowLayers, 0) {
				c.Windows[i] = *f.Window
			}
		case f.LayerTypes[i] == "sliding_attention":
			c.Windows[i] = *f.Window
		case f.LayerTypes[i] != "full_attention":
			return fmt.Errorf("a layer of type %q: want full_attention or sliding_attention", f.LayerTypes[i])
		}
	}
	return nil
}
