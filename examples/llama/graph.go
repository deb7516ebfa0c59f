package llama

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"fusec/graph"
	"fusec/graph/gguf"
)

// A decoder builds the graph that runs some tokens of one sequence through a model, after those whose keys and values its
// caches hold.
type decoder struct {
	*Config
	b        *graph.Builder
	weights  map[string]*graph.Tensor
	blocks   map[string]*gguf.Tensor
	params   map[string]*graph.Node // that the graph has
	read     map[string]bool        // the matrices in blocks that it has
	tokens   int                    // of a run
	capacity int                    // tokens that the caches hold
	cache    graph.DType            // of their elements

	activations graph.DType // of what products with weights in blocks multiply
	rounded     map[*graph.Node]*graph.Node
	halves      *graph.Node // see halvesName

	position, length *graph.Node // of the first token; of all tokens after the run
	token            *graph.Node // the state that has the token picked last
	places           *graph.Node // the position of each token, where positions are learnt
	divisors         *graph.Node

	paged   *paged // of a batch of sequences, or nil
	samples bool   // the graph picks a token, and begins with the one that was picked before; see [Sampling]
}

// Graph is the program that runs so many tokens of a sequence whose caches hold capacity. Its inputs are tokens [tokens],
// the position of the first, the length of the sequence after the run, and the row whose logits to give. Its output, logits
// [1, vocabulary], is for the token after that row. Models with learnt positions also get places [tokens], the positions of
// the tokens. The caches are of f32.
func (c *Checkpoint) Graph(tokens, capacity int) (*graph.Graph, error) {
	return c.decoding(tokens, capacity, graph.F32, graph.F32, false)
}

// decoding is Graph with caches, and operands of products with weights in blocks, of some types. If samples is set, it has the
// position as a state, and instead of the logits a picked token, which is a state, too; a run of one token reads both.
func (c *Checkpoint) decoding(tokens, capacity int, cache, activations graph.DType, samples bool) (*graph.Graph, error) {
	if tokens < 1 || capacity < tokens {
		return nil, fmt.Errorf("runs of %d tokens with caches of %d", tokens, capacity)
	}
	d := c.decoder(tokens, cache, activations)
	d.capacity, d.samples = capacity, samples
	return d.graph()
}

// decoder begins the graph for a run of so many tokens; see decoding.
func (c *Checkpoint) decoder(tokens int, cache, activations graph.DType) *decoder {
	return &decoder{Config: c.Config, b: graph.NewBuilder(c.Config.Family), weights: c.Weights, blocks: c.blocks,
		params: map[string]*graph.Node{}, read: map[string]bool{}, tokens: tokens, cache: cache,
		activations: activations, rounded: map[*graph.Node]*graph.Node{}}
}

// graph builds the model, and checks that it has all weights of the checkpoint.
func (d *decoder) graph() (*graph.Graph, error) {
	if d.Family == "gpt2" {
		d.gpt2()
	} else {
		d.llama()
	}
	g, err := d.b.Graph()
	if err != nil {
		return nil, err
	}
	names := slices.AppendSeq(slices.Collect(maps.Keys(d.weights)), maps.Keys(d.blocks))
	slices.Sort(names)
	for _, name := range names {
		if d.params[name] == nil && !d.read[name] && !(d.Tied && name == headName) {
			return nil, fmt.Errorf("the checkpoint has a tensor %q, which models of type %s with this configuration do not have",
				name, d.Family)
		}
	}
	return g, nil
}

const headName = "lm_head.weight"

// The states of a graph that samples, besides caches: where the next token comes, and which it is.
const (
	positionName = "position"
	tokenName    = "token"
)

// The inputs that say how a graph samples.
const (
	temperatureName = "temperature"
	topKName        = "top_k"
	topPName        = "top_p"
	seedName        = "seed"
)

// stored is a weight as the checkpoint has it; nil if it has none.
func (d *decoder) stored(name string, dims ...int) *graph.Node {
	t := d.weights[name]
	if t == nil {
		return nil
	}
	if want := graph.ShapeOf(dims...); t.Type.Shape != want {
		return d.b.Fail(fmt.Errorf("tensor %q has the shape %v; with this configuration it is %v", name, t.Type.Shape, want))
	}
	p := d.params[name]
	if p == nil {
		p = d.b.Param(name, t.Type)
		d.params[name] = p
	}
	return p
}

// optional is a weight in f32; nil if the checkpoint has none.
func (d *decoder) optional(name string, dims ...int) *graph.Node {
	if t := d.inBlocks(name, dims...); t != nil {
		return d.dequantised(name, t)
	}
	w := d.stored(name, dims...)
	if w == nil {
		return nil
	}
	return d.b.CastTo(graph.F32, w)
}

// weight is a weight in f32.
func (d *decoder) weight(name string, dims ...int) *graph.Node {
	w := d.optional(name, dims...)
	if w == nil {
		return d.b.Fail(fmt.Errorf("the checkpoint has no tensor %q", name))
	}
	return w
}

// linear is x·w + b, without b if the checkpoint has none.
func (d *decoder) linear(name string, x *graph.Node, in, out int) *graph.Node {
	var y *graph.Node
	x = d.operand(x, name+".weight")
	if d.Columns {
		y = d.b.MatMul(x, d.weight(name+".weight", in, out), false, false)
	} else {
		y = d.b.MatMul(x, d.weight(name+".weight", out, in), false, true)
	}
	if b := d.optional(name+".bias", out); b != nil && d.b.Err() == nil {
		y = d.b.Binary(graph.Add, y, d.b.Broadcast(b, y.Type.Shape))
	}
	return y
}

// inputs declares the tokens and where they are, and gives the embedding of each.
func (d *decoder) inputs(embedding string) *graph.Node {
	b := d.b
	var tokens *graph.Node
	if d.samples && d.paged == nil {
		d.position = b.State(positionName, graph.TypeOf(graph.I64))
		d.length = b.BinaryScalar(graph.Add, d.position, float64(d.tokens))
		d.token = b.State(tokenName, graph.TypeOf(graph.I64, 1))
		tokens = d.token
	}
	if tokens == nil || d.tokens > 1 {
		tokens = b.Input("tokens", graph.TypeOf(graph.I64, d.tokens))
	}
	if d.paged == nil && !d.samples {
		d.position, d.length = b.Input(positionName, graph.TypeOf(graph.I64)), b.Input("length", graph.TypeOf(graph.I64))
	}
	return d.rows(embedding, d.Vocabulary, d.Dim, tokens)
}

// logits makes the logits after one row of x: of the last norm's result times the head, or the embedding if they are tied. If
// the graph samples, it makes the token that is picked by them.
func (d *decoder) logits(x *graph.Node, norm func(x *graph.Node) *graph.Node, embedding string) {
	var row *graph.Node
	if d.tokens > 1 && (d.paged == nil || d.tokens > d.paged.sequences) {
		row = d.b.Input("row", graph.TypeOf(graph.I64))
		x = d.b.Add(graph.Slice{Size: 1, Step: 1}, x, row)
	}
	head := headName
	if d.Tied {
		head = embedding
	}
	y := d.b.MatMul(d.operand(norm(x), head), d.weight(head, d.Vocabulary, d.Dim), false, true)
	if !d.samples {
		d.b.Output("logits", y)
		return
	}
	at := d.position // of the token whose logits these are
	switch {
	case d.paged != nil && row != nil:
		at = d.b.Add(graph.Slice{Size: 1, Step: 1}, d.paged.positions, row)
	case d.paged != nil:
		at = d.paged.positions
	case row != nil:
		at = d.b.Binary(graph.Add, at, row)
	}
	next := d.b.BinaryScalar(graph.Add, at, 1)
	if d.b.Err() != nil {
		return
	}
	option := func(name string, t graph.DType) *graph.Node { // one, or one for each sequence
		return d.b.Input(name, graph.Type{DType: t, Shape: next.Type.Shape})
	}
	picked := d.b.Add(graph.Sample{}, y, option(temperatureName, graph.F32), option(topKName, graph.I64),
		option(topPName, graph.F32), option(seedName, graph.I64), next)
	d.b.Output("picked", picked)
	if d.paged == nil && d.b.Err() == nil {
		d.b.Update(d.position, next)
		d.b.Update(d.token, picked)
	}
}

// llama is the model of the families with rotary positions: Llama, Mistral, Qwen2 and Mixtral (arXiv 2302.13971, 2310.06825,
// 2407.10671, 2401.04088).
func (d *decoder) llama() {
	const embedding = "model.embed_tokens.weight"
	b := d.b
	norm := func(name string) func(*graph.Node) *graph.Node {
		return func(x *graph.Node) *graph.Node {
			return b.Add(graph.RMSNorm{Eps: d.Norm}, x, d.weight(name+".weight", d.Dim))
		}
	}
	x := d.inputs(embedding)
	if d.paged != nil {
		d.paged.angles(d)
	} else if d.RopeDivisors != nil {
		t := graph.NewTensor(graph.TypeOf(graph.F64, len(d.RopeDivisors)))
		copy(t.Data.([]float64), d.RopeDivisors)
		d.divisors = b.Const(t)
	}
	for i := range d.Layers {
		layer := fmt.Sprintf("model.layers.%d.", i)
		h := norm(layer + "input_layernorm")(x)
		project := func(name string, heads int) *graph.Node {
			return d.heads(d.linear(layer+"self_attn."+name, h, d.Dim, heads*d.HeadDim), heads)
		}
		q, k, v := project("q_proj", d.Heads), project("k_proj", d.KVHeads), project("v_proj", d.KVHeads)
		y := d.attention(layer+"self_attn", i, d.rotated(q), d.rotated(k), v)
		x = b.Binary(graph.Add, x, d.linear(layer+"self_attn.o_proj", y, d.Heads*d.HeadDim, d.Dim))
		h = norm(layer + "post_attention_layernorm")(x)
		if d.Experts > 0 {
			h = d.mixture(layer+"block_sparse_moe.", h)
		} else {
			gate := b.Unary(d.Activation, d.linear(layer+"mlp.gate_proj", h, d.Dim, d.Hidden))
			up := d.linear(layer+"mlp.up_proj", h, d.Dim, d.Hidden)
			h = d.linear(layer+"mlp.down_proj", b.Binary(graph.Mul, gate, up), d.Hidden, d.Dim)
		}
		if x = b.Binary(graph.Add, x, h); b.Err() != nil {
			return
		}
	}
	d.logits(x, norm("model.norm"), embedding)
}

// gpt2 is the model of Radford et al., Language models are unsupervised multitask learners, 2019.
func (d *decoder) gpt2() {
	const embedding = "wte.weight"
	b := d.b
	norm := func(name string) func(*graph.Node) *graph.Node {
		return func(x *graph.Node) *graph.Node {
			return b.Add(graph.LayerNorm{Eps: d.Norm}, x, d.weight(name+".weight", d.Dim), d.weight(name+".bias", d.Dim))
		}
	}
	x := d.inputs(embedding)
	if d.samples && d.tokens == 1 {
		d.places = b.Reshape(d.position, 1)
	} else {
		d.places = b.Input("places", graph.TypeOf(graph.I64, d.tokens))
	}
	x = b.Binary(graph.Add, x, d.rows("wpe.weight", d.Context, d.Dim, d.places))
	for i := range d.Layers {
		layer := fmt.Sprintf("h.%d.", i)
		qkv := d.linear(layer+"attn.c_attn", norm(layer+"ln_1")(x), d.Dim, 3*d.Dim)
		part := func(i int) *graph.Node { return d.heads(b.Slice(qkv, 1, i*d.Dim, d.Dim, 1), d.Heads) }
		y := d.attention(layer+"attn", i, part(0), part(1), part(2))
		x = b.Binary(graph.Add, x, d.linear(layer+"attn.c_proj", y, d.Dim, d.Dim))
		h := b.Unary(d.Activation, d.linear(layer+"mlp.c_fc", norm(layer+"ln_2")(x), d.Dim, d.Hidden))
		if x = b.Binary(graph.Add, x, d.linear(layer+"mlp.c_proj", h, d.Hidden, d.Dim)); b.Err() != nil {
			return
		}
	}
	d.logits(x, norm("ln_f"), embedding)
}

// heads makes [heads, tokens, features] of x [tokens, heads·features].
func (d *decoder) heads(x *graph.Node, heads int) *graph.Node {
	if d.paged != nil { // which has tokens before heads
		return d.b.Reshape(x, d.tokens, heads, d.HeadDim)
	}
	if d.tokens == 1 {
		return d.b.Reshape(x, heads, 1, d.HeadDim)
	}
	return d.b.Transpose(d.b.Reshape(x, d.tokens, heads, d.HeadDim), 1, 0, 2)
}

// rotated has each head turned by its position.
func (d *decoder) rotated(x *graph.Node) *graph.Node {
	if d.paged != nil {
		return d.paged.rotated(d, x)
	}
	args := []*graph.Node{x, d.position}
	if d.divisors != nil {
		args = append(args, d.divisors)
	}
	return d.b.Add(graph.RoPE{Base: d.RopeBase, Interleaved: d.RopeInterleaved}, args...)
}

// attention adds the tokens' keys and values to the caches, and attends to these with the queries. It gives [tokens,
// heads·features].
func (d *decoder) attention(name string, layer int, q, k, v *graph.Node) *graph.Node {
	if d.paged != nil {
		return d.paged.attention(d, name, layer, q, k, v)
	}
	b := d.b
	q, k, v = d.queries(q), d.cached(name+".keys", k), d.cached(name+".values", v)
	op := graph.Attention{Scale: 1 / math.Sqrt(float64(d.HeadDim)), Causal: true, HasLengths: true, Tail: true}
	if d.Windows != nil {
		op.Window = d.Windows[layer]
	}
	y := b.CastTo(graph.F32, b.Add(op, q, k, v, d.length))
	if d.tokens > 1 {
		y = b.Transpose(y, 1, 0, 2)
	}
	return b.Reshape(y, d.tokens, d.Heads*d.HeadDim)
}

// queries is q as it meets what the caches hold: in 16 bits if that has them.
func (d *decoder) queries(q *graph.Node) *graph.Node {
	if d.cache.Is16() {
		return d.b.CastTo(d.cache, q)
	}
	return q
}

// cached is a cache [heads, capacity, features] in which the rows of a run are written at their positions.
func (d *decoder) cached(name string, rows *graph.Node) *graph.Node {
	return d.kept(name, rows, func(name string, rows *graph.Node) *graph.Node {
		return d.b.Cache(name, 1, d.capacity, rows, d.position)
	})
}

// kept writes rows to a cache, in the type of its elements. Rows of 8 bits and the scale of each have caches of their own.
func (d *decoder) kept(name string, rows *graph.Node, write func(name string, rows *graph.Node) *graph.Node) *graph.Node {
	b := d.b
	if d.cache != graph.I8 {
		return write(name, b.CastTo(d.cache, rows))
	}
	q, scale := b.QuantizeRows(rows)
	q, scale = write(name, q), write(name+".scale", scale)
	if b.Err() != nil {
		return rows
	}
	last := q.Type.Shape.Rank() - 1
	return b.Add(graph.Dequantize{Axis: last, Block: d.HeadDim}, q, scale)
}

// mixture sends each token to the experts with its highest scores, weighted by the softmax of these.
func (d *decoder) mixture(name string, x *graph.Node) *graph.Node {
	b := d.b
	scores := d.linear(name+"gate", x, d.Dim, d.Experts)
	if b.Err() != nil {
		return x
	}
	chosen := b.Add(graph.Route{K: d.TopK}, scores)
	scores = b.Add(graph.Select{}, chosen, scores, b.Scalar(graph.F32, math.Inf(-1)))
	gates := b.Add(graph.Softmax{Axis: 1}, scores)
	op := graph.MoE{Experts: d.Experts, Activation: d.Activation, Gated: true, TopK: d.TopK}
	args := []*graph.Node{x, gates}
	for _, w := range []struct {
		name    string
		in, out int
	}{{"w1", d.Dim, d.Hidden}, {"w3", d.Dim, d.Hidden}, {"w2", d.Hidden, d.Dim}} {
		for e := range d.Experts {
			w := d.weight(fmt.Sprintf("%sexperts.%d.%s.weight", name, e, w.name), w.out, w.in)
			if b.Err() != nil {
				return x
			}
			args = append(args, b.Transpose(w, 1, 0))
		}
	}
	return b.Add(op, args...)
}
