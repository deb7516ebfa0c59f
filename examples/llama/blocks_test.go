package llama

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"fusec"
	"fusec/graph"
	"fusec/graph/gguf"
)

// inBlocks is a checkpoint of random weights in blocks, and the same with the numbers that these are.
func inBlocks(t *testing.T, kind gguf.Type, tied bool) (c, plain *Checkpoint) {
	t.Helper()
	const dim, hidden, vocabulary, kv = 256, 512, 96, 128
	config, err := ParseConfig(fmt.Appendf(nil, `{"model_type": "llama", "hidden_size": %d, "intermediate_size": %d,
		"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": %d, "rms_norm_eps": 1e-5,
		"max_position_embeddings": 64, "rope_theta": 10000, "hidden_act": "silu", "tie_word_embeddings": %v}`,
		dim, hidden, vocabulary, tied))
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(uint64(kind), 1))
	c = &Checkpoint{Config: config, Weights: map[string]*graph.Tensor{}, blocks: map[string]*gguf.Tensor{}}
	plain = &Checkpoint{Config: config, Weights: map[string]*graph.Tensor{}}
	matrix := func(name string, rows, columns int) {
		x := &gguf.Tensor{Name: name, Type: kind, Shape: []int{rows, columns}}
		for range rows * columns / gguf.BlockElems {
			size := 0.3 / math.Sqrt(float64(columns)) / 127
			if kind == gguf.Q4_0 {
				size *= 16
			}
			x.Data = binary.LittleEndian.AppendUint16(x.Data, graph.F16FromFloat32(float32(size*(1+r.Float64()))))
			for range kind.BlockBytes() - 2 {
				x.Data = append(x.Data, byte(r.Uint32()))
			}
		}
		c.blocks[name] = x
		w := graph.NewTensor(graph.TypeOf(graph.F32, rows, columns))
		if err := x.Floats(w.Data.([]float32)); err != nil {
			t.Fatal(err)
		}
		plain.Weights[name] = w
	}
	gains := func(name string) {
		w := graph.Filled(graph.TypeOf(graph.F32, dim), 1)
		c.Weights[name], plain.Weights[name] = w, w
	}
	matrix("model.embed_tokens.weight", vocabulary, dim)
	if !tied {
		matrix(headName, vocabulary, dim)
	}
	gains("model.norm.weight")
	for i := range config.Layers {
		layer := fmt.Sprintf("model.layers.%d.", i)
		gains(layer + "input_layernorm.weight")
		gains(layer + "post_attention_layernorm.weight")
		matrix(layer+"self_attn.q_proj.weight", dim, dim)
		matrix(layer+"self_attn.k_proj.weight", kv, dim)
		matrix(layer+"self_attn.v_proj.weight", kv, dim)
		matrix(layer+"self_attn.o_proj.weight", dim, dim)
		matrix(layer+"mlp.gate_proj.weight", hidden, dim)
		matrix(layer+"mlp.up_proj.weight", hidden, dim)
		matrix(layer+"mlp.down_proj.weight", dim, hidden)
	}
	return c, plain
}

// logitsOf are those after a prompt and a token.
func logitsOf(t *testing.T, c *Checkpoint, o Options) []float32 {
	t.Helper()
	o.Capacity, o.Block = 16, 8
	o.Compile = append(o.Compile, fusec.WithWorkers(2))
	m := modelOf(t, c, o)
	first, err := m.Append([]int{3, 14, 15, 92, 65, 35, 89, 79, 32, 38})
	if err != nil {
		t.Fatal(err)
	}
	list := slices.Clone(first)
	next, err := m.Append([]int{7})
	if err != nil {
		t.Fatal(err)
	}
	return append(list, next...)
}

func apart(got, want []float32) float64 {
	most, off := 0.0, 0.0
	for i, w := range want {
		most, off = max(most, math.Abs(float64(w))), max(off, math.Abs(float64(got[i]-w)))
	}
	return off / most
}

// TestBlocks compares weights in blocks with the numbers that they are, and activations that are rounded with the reference.
func TestBlocks(t *testing.T) {
	for _, kind := range []gguf.Type{gguf.Q8_0, gguf.Q4_0} {
		for _, tied := range []bool{false, true} {
			t.Run(fmt.Sprint(kind, tied), func(t *testing.T) {
				c, plain := inBlocks(t, kind, tied)
				want := logitsOf(t, plain, Options{})
				if off := apart(logitsOf(t, c, Options{}), want); !(off < 1e-5) {
					t.Errorf("logits are %g apart", off)
				}
				got := logitsOf(t, c, Options{Activations: graph.I8})
				if off := apart(got, want); !(off < 0.05) {
					t.Errorf("logits with rounded activations are %g apart", off)
				}
				ref := logitsOf(t, c, Options{Activations: graph.I8, Compile: []fusec.CompileOption{fusec.WithTarget("ref")}})
				if off := apart(got, ref); !(off < 5e-3) {
					t.Errorf("logits with rounded activations are %g apart from the reference", off)
				}
			})
		}
	}
}

// TestBlocksMemory counts what two programs hold of weights in blocks.
func TestBlocksMemory(t *testing.T) {
	for _, kind := range []gguf.Type{gguf.Q8_0, gguf.Q4_0} {
		for _, activations := range []graph.DType{graph.F32, graph.I8} {
			c, _ := inBlocks(t, kind, false)
			m := modelOf(t, c, Options{Capacity: 16, Block: 8, Activations: activations})
			if err := m.Prepare(8); err != nil {
				t.Fatal(err)
			}
			bytes := 0
			for name, w := range c.blocks {
				if !strings.Contains(name, "embed") { // whose rows are read in the file's memory
					bytes += len(w.Data)
				}
			}
			held := m.Program().Memory().Prepared + m.PromptProgram().Memory().Prepared
			if float64(held) > 1.02*float64(bytes) || held < int64(bytes) {
				t.Errorf("%v: %d bytes are held of weights of %d", kind, held, bytes)
			}
		}
	}
}

// TestBlocksBatch runs a sequence of a batch with rounded activations.
func TestBlocksBatch(t *testing.T) {
	c, plain := inBlocks(t, gguf.Q8_0, false)
	b, err := NewBatch(c, BatchOptions{Slots: 2, Activations: graph.I8})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	tokens := []int{1, 2, 3, 4, 5, 6, 7}
	_, logits, err := b.Join(tokens)
	if err != nil {
		t.Fatal(err)
	}
	m := modelOf(t, plain, Options{Capacity: 16, Block: 8})
	want, err := m.Append(tokens)
	if err != nil {
		t.Fatal(err)
	}
	if off := apart(logits, want); !(off < 0.05) {
		t.Errorf("logits are %g apart", off)
	}
}

func TestBlocksErrors(t *testing.T) {
	c, _ := inBlocks(t, gguf.Q8_0, true)
	if _, err := New(c, Options{Activations: graph.F16}); err == nil || !strings.Contains(err.Error(), "activations of f16") {
		t.Errorf("error %v", err)
	}
	if _, err := NewBatch(c, BatchOptions{Slots: 1, Activations: graph.F16}); err == nil {
		t.Error("a batch with activations of f16")
	}
	if _, err := c.Value("x" + integersEnding); err == nil {
		t.Error("a value of no tensor")
	}
	c.blocks["model.layers.7.mlp.up_proj.weight"] = c.blocks["model.layers.1.mlp.up_proj.weight"]
	if _, err := New(c, Options{Capacity: 4}); err == nil || !strings.Contains(err.Error(), "layers.7") {
		t.Errorf("error %v", err)
	}
	delete(c.blocks, "model.layers.7.mlp.up_proj.weight")
	c.blocks["model.embed_tokens.weight"].Shape = []int{48, 512}
	if _, err := New(c, Options{Capacity: 4}); err == nil || !strings.Contains(err.Error(), "has the shape [48,512]") {
		t.Errorf("error %v", err)
	}
}
