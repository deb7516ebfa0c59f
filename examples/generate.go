package examples

import (
	"errors"
	"fmt"
	"math"

	"fusec"
	"fusec/examples/llama"
	"fusec/graph"
)

// Generator runs a language model one token at a time. The program's state is a cache of the keys and values of the
// tokens so far, so a token costs one pass of a single row.
type Generator struct {
	p                       *fusec.Program
	token, position, length *graph.Tensor
	done, capacity          int
}

// NewGenerator compiles the program for a model that [Language] trained, from its weights by name. The cache holds
// capacity tokens. A token attends to the last window tokens, itself included; window should be the length that the
// model was trained on.
func NewGenerator(weights map[string]*graph.Tensor, t Transformer, window, capacity int, opts ...fusec.CompileOption) (
	*Generator, error) {
	if window < 1 || capacity < 1 {
		return nil, fmt.Errorf("a window of %d tokens and a cache of %d: want at least 1", window, capacity)
	}
	d := &decoder{b: graph.NewBuilder("decode"), weights: weights, size: t, window: window, capacity: capacity}
	d.step()
	g, err := d.b.Graph()
	if err != nil {
		return nil, err
	}
	p, err := fusec.Compile(g, opts...)
	if err != nil {
		return nil, err
	}
	gen := &Generator{p: p, capacity: capacity, token: graph.NewTensor(graph.TypeOf(graph.I64, 1)),
		position: graph.Scalar(graph.I64, 0), length: graph.Scalar(graph.I64, 0)}
	inputs := map[string]*graph.Tensor{"token": gen.token, "position": gen.position, "length": gen.length}
	for _, n := range g.Sources() {
		v := inputs[n.Name]
		if _, ok := n.Op.(graph.Param); ok {
			v = weights[n.Name]
		}
		if v != nil {
			err = errors.Join(err, p.Set(n.Name, v))
		}
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return gen, nil
}

// Program is the compiled decode step, for drawings and reports.
func (g *Generator) Program() *fusec.Program { return g.p }

// Next takes the next token and returns the logits of the one after it, which are valid until the next call.
func (g *Generator) Next(token int) ([]float32, error) {
	if g.done == g.capacity {
		return nil, fmt.Errorf("the cache is full: it holds %d tokens", g.capacity)
	}
	g.token.SetFloat(0, float64(token))
	g.position.SetFloat(0, float64(g.done))
	g.length.SetFloat(0, float64(g.done+1))
	if err := g.p.Exec(); err != nil {
		return nil, err
	}
	g.done++
	y, err := g.p.Output("logits")
	if err != nil {
		return nil, err
	}
	return y.Data.([]float32), nil
}

// Close releases the program.
func (g *Generator) Close() error { return g.p.Close() }

// decoder builds the decode step of a language model.
type decoder struct {
	b                *graph.Builder
	weights          map[string]*graph.Tensor
	size             Transformer
	window, capacity int
	position, length *graph.Node
}

// step builds the model for one token: the layers of [Language], with a cache instead of the other positions.
func (d *decoder) step() {
	b, t := d.b, d.size
	if t.Heads < 1 || t.KVHeads < 1 || t.Dim%t.Heads != 0 {
		b.Fail(fmt.Errorf("%d heads, %d of keys and values, of %d features", t.Heads, t.KVHeads, t.Dim))
		return
	}
	token := b.Input("token", graph.TypeOf(graph.I64, 1))
	d.position, d.length = b.Input("position", graph.TypeOf(graph.I64)), b.Input("length", graph.TypeOf(graph.I64))
	x := b.Add(graph.Gather{}, d.param("embedding"), token)
	for i := range t.Layers {
		name := layerName(i)
		x = b.Binary(graph.Add, x, d.attention(name+".attention", d.norm(name+".norm1", x)))
		h := d.norm(name+".norm2", x)
		gate := b.Unary(graph.Silu, b.MatMul(h, d.param(name+".feed.gate.weight"), false, false))
		up := b.MatMul(h, d.param(name+".feed.up.weight"), false, false)
		h = b.MatMul(b.Binary(graph.Mul, gate, up), d.param(name+".feed.down.weight"), false, false)
		x = b.Binary(graph.Add, x, h)
	}
	b.Output("logits", b.MatMul(d.norm("norm", x), d.param("logits.weight"), false, false))
}

// param is a weight of the model.
func (d *decoder) param(name string) *graph.Node {
	w := d.weights[name]
	if w == nil {
		return d.b.Fail(fmt.Errorf("there is no weight %q: is it a model of fusec train language?", name))
	}
	return d.b.Param(name, w.Type)
}

func (d *decoder) norm(name string, x *graph.Node) *graph.Node {
	return d.b.Add(graph.RMSNorm{Eps: normEps}, x, d.param(name+".gain"))
}

// attention adds the token's key and value to the cache, and attends to the cache with the token's query.
func (d *decoder) attention(name string, x *graph.Node) *graph.Node {
	b, t := d.b, d.size
	depth := t.Dim / t.Heads
	linear := func(part string, x *graph.Node) *graph.Node {
		y := b.MatMul(x, d.param(name+"."+part+".weight"), false, false)
		return b.Binary(graph.Add, y, b.Broadcast(d.param(name+"."+part+".bias"), y.Type.Shape))
	}
	heads := func(part string, heads int) *graph.Node { return b.Reshape(linear(part, x), heads, 1, depth) }
	rope := graph.RoPE{Base: 10000}
	q := b.Add(rope, heads("q", t.Heads), d.position)
	k := b.Cache(name+".keys", 1, d.capacity, b.Add(rope, heads("k", t.KVHeads), d.position), d.position)
	v := b.Cache(name+".values", 1, d.capacity, heads("v", t.KVHeads), d.position)
	op := graph.Attention{Scale: 1 / math.Sqrt(float64(depth)), Causal: true, Window: d.window, HasLengths: true, Tail: true}
	y := b.Add(op, q, k, v, d.length)
	return linear("o", b.Reshape(y, 1, t.Dim))
}

// SizeOf reads the size of the model, and the length of its training windows, from a saved graph of [Language].
func SizeOf(g *graph.Graph) (t Transformer, window int, err error) {
	dims := func(name string, rank int) []int {
		n := g.Lookup(name)
		if err == nil && (n == nil || n.Type.Shape.Rank() != rank) {
			err = fmt.Errorf("the graph %q has no %s with %d axes: is it a model of fusec train language?", g.Name, name, rank)
		}
		if err != nil {
			return make([]int, rank)
		}
		return n.Type.Shape.Slice()
	}
	window = dims("tokens", 2)[1]
	t.Dim = dims("embedding", 2)[1]
	t.Hidden = dims(layerName(0)+".feed.up.weight", 2)[1]
	for _, n := range g.Nodes {
		if a, ok := n.Op.(graph.Attention); ok {
			q, k := n.Args[0].Type.Shape, n.Args[1].Type.Shape
			if q.Rank() != 4 || !a.Causal {
				return t, 0, fmt.Errorf("%s is not causal attention of several heads", n.Where())
			}
			t.Layers, t.Heads, t.KVHeads = t.Layers+1, q.At(1), k.At(1)
		}
	}
	return t, window, err
}

// Generate feeds the prompt to the model, then the tokens that it picks, and passes each of those to emit. It stops
// after n tokens or when emit returns an error.
func (g *Generator) Generate(prompt []byte, n int, s *llama.Sampler, emit func(token byte) error) error {
	tokens, err := tokensOf(prompt)
	if err != nil {
		return fmt.Errorf("the prompt: %w", err)
	}
	if len(tokens) == 0 {
		return errors.New("the prompt is empty: the model needs at least one token")
	}
	var logits []float32
	for _, t := range tokens {
		if logits, err = g.Next(t); err != nil {
			return err
		}
	}
	for i := range n {
		t := s.Pick(logits)
		if err := emit(byte(t)); err != nil {
			return err
		}
		if i == n-1 {
			break
		}
		if logits, err = g.Next(t); err != nil {
			return err
		}
	}
	return nil
}
