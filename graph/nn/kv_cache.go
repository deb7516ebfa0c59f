package nn

import (
	"errors"
	"fmt"

	"fusec/graph"
	fgorgonia "fusec/graph/gorgonia"

	"gorgonia.org/gorgonia"
)

// KVCache stores the keys and values of earlier tokens, for decoding: a run appends those of its own tokens, and
// attends to all. All values in it share one length, which grows by a fixed number of tokens with each run:
//
//	c, err := nn.NewKVCache(g, 1024, 1) // up to 1024 tokens, one for each run q, err := nn.RoPE(q,
//	nn.RoPEOptions{Start: c.Position()}) k, err = c.Append("layer 0 keys", k) // [..., h, 1, d] becomes [..., h, 1024,
//	d] v, err = c.Append("layer 0 values", v) n, err := c.Lengths(k) y, err := nn.Attention(q, k, v,
//	nn.AttentionOptions{Causal: true, Lengths: n, Tail: true})
//
// On fusec's machine a run writes the new tokens into the cache's memory and copies nothing else, if only operations
// read the result of Append. A run that fails, for example because the cache is full, changes nothing. Gorgonia's
// machine copies the cache, and counts the tokens of a failed run; Truncate removes them. No gradient flows into the
// stored values.
type KVCache struct {
	tokens int             // appended by a run
	length *gorgonia.Node  // after the run
	start  *gorgonia.Node  // before it
	names  map[string]bool // used in calls of Append
	kept   *kept
}

// kept is the memory of a cache, which several graphs may share.
type kept struct {
	most   int
	bytes  bool                         // values are stored in 8 bits
	length *graph.Tensor                // how many tokens are valid, an I64
	values map[string][]*graph.Tensor   // [..., most, d], and if bytes is set scales [..., most, 1]
	graphs map[*gorgonia.ExprGraph]bool // that have the cache
}

// NewKVCache makes an empty cache for graph g, of up to most tokens, to which each run appends the given number.
func NewKVCache(g *gorgonia.ExprGraph, most, tokens int) (*KVCache, error) {
	return newKVCache(g, most, tokens, false)
}

// NewKVCache8 is NewKVCache with keys and values stored in 8 bits, each row [d] of them as integers with one scale, the largest
// divided by 127. The cache takes little more than a quarter of the memory of float32. fusec's attention reads the integers, so
// that a run over a long context takes less time, too. What Append returns is what the integers stand for.
func NewKVCache8(g *gorgonia.ExprGraph, most, tokens int) (*KVCache, error) {
	return newKVCache(g, most, tokens, true)
}

func newKVCache(g *gorgonia.ExprGraph, most, tokens int, bytes bool) (*KVCache, error) {
	k := &kept{most, bytes, graph.Scalar(graph.I64, 0), map[string][]*graph.Tensor{}, map[*gorgonia.ExprGraph]bool{}}
	return (&KVCache{kept: k}).Share(g, tokens)
}

// Share is the same cache for another graph, g, whose runs append another number of tokens: for example, one graph
// processes a whole prompt, and another the following tokens one by one. Machines of both use the same memory in turn.
// A graph can have a cache only once.
func (c *KVCache) Share(g *gorgonia.ExprGraph, tokens int) (*KVCache, error) {
	if g == nil {
		return nil, errors.New("KVCache: the graph is nil")
	}
	if c.kept.graphs[g] {
		return nil, errors.New("KVCache: the graph has this cache already")
	}
	if tokens < 1 || tokens > c.kept.most {
		return nil, fmt.Errorf("KVCache: a run appends %d tokens, but the cache holds %d", tokens, c.kept.most)
	}
	d := &KVCache{tokens: tokens, names: map[string]bool{}, kept: c.kept}
	o, _, err := newOp(advance{plus{tokens}}, holding([]*graph.Tensor{c.kept.length}))
	if err != nil {
		return nil, err
	}
	d.length = gorgonia.NewUniqueNode(gorgonia.WithType(o.Type()), gorgonia.WithOp(o), gorgonia.In(g),
		gorgonia.WithShape(), gorgonia.WithName("length of cache"))
	if d.start, err = apply(plus{-tokens}, operand{"length", d.length}); err != nil {
		return nil, err
	}
	c.kept.graphs[g] = true
	return d, nil
}

// Position is the number of tokens before those of the run, a scalar int: the position of the run's first token.
func (c *KVCache) Position() *gorgonia.Node { return c.start }

// Append appends x [..., n, d], for the n tokens of a run, to the values stored under the name, and returns all of
// them, [..., most, d]. Rows beyond the length, which [KVCache.Lengths] gives, are undefined. A graph may append once
// under each name. A full cache is an error of the run.
func (c *KVCache) Append(name string, x *gorgonia.Node) (*gorgonia.Node, error) {
	if x == nil {
		return nil, fmt.Errorf("KVCache.Append(%q): x is nil", name)
	}
	held, err := c.memory(name, x)
	if err != nil {
		return nil, fmt.Errorf("KVCache.Append(%q): %w", name, err)
	}
	var def definition = write{name}
	if c.kept.bytes {
		def = write8{write{name}}
	}
	n, err := applyHeld(def, holding(held), operand{"x", x}, operand{"position", c.start})
	if err != nil {
		return nil, err
	}
	c.names[name], c.kept.values[name] = true, held
	gorgonia.WithName(name)(n)
	return n, nil
}

// memory is the tensors stored under a name, or new ones, to which x is appended.
func (c *KVCache) memory(name string, x *gorgonia.Node) ([]*graph.Tensor, error) {
	t, err := fgorgonia.TypeOf(x)
	if err != nil {
		return nil, err
	}
	if c.names[name] {
		return nil, errors.New("the graph appends under that name already")
	}
	r := t.Shape.Rank()
	if !t.DType.IsFloat() || r < 2 || t.Shape.At(r-2) != c.tokens {
		return nil, fmt.Errorf("x of type %v: want floats [..., %d, d], of the tokens of a run", t, c.tokens)
	}
	t.Shape = t.Shape.With(r-2, c.kept.most)
	types := []graph.Type{t}
	if c.kept.bytes {
		types = []graph.Type{t.With(graph.I8), t.Reshaped(t.Shape.With(r-1, 1))}
	}
	held := c.kept.values[name]
	if held == nil {
		for _, t := range types {
			held = append(held, graph.NewTensor(t))
		}
	}
	for i, k := range held {
		if k.Type != types[i] {
			return nil, fmt.Errorf("the cache has %v under that name, not %v", k.Type, types[i])
		}
	}
	return held, nil
}

// Lengths is the number of valid tokens after the run as [Attention] takes it: for keys [..., h, most, d], as Append
// gives them, one int for each of the leading axes.
func (c *KVCache) Lengths(keys *gorgonia.Node) (*gorgonia.Node, error) {
	if keys == nil {
		return nil, errors.New("KVCache.Lengths: keys is nil")
	}
	t, err := fgorgonia.TypeOf(keys)
	if err != nil {
		return nil, fmt.Errorf("KVCache.Lengths: %w", err)
	}
	batch := t.Shape.Slice()[:max(t.Shape.Rank()-3, 0)]
	if len(batch) == 0 {
		return c.length, nil
	}
	return apply(spread{graph.ShapeOf(batch...)}, operand{"length", c.length})
}

// Len is the number of stored tokens.
func (c *KVCache) Len() int { return int(c.kept.length.Data.([]int64)[0]) }

// Max is the largest number of tokens.
func (c *KVCache) Max() int { return c.kept.most }

// Truncate removes all tokens except the first n. It is called between runs.
func (c *KVCache) Truncate(n int) error {
	if n < 0 || n > c.Len() {
		return fmt.Errorf("KVCache.Truncate: %d tokens of %d", n, c.Len())
	}
	c.kept.length.Data.([]int64)[0] = int64(n)
	return nil
}

// Reset removes all tokens, for another sequence.
func (c *KVCache) Reset() { c.kept.length.Data.([]int64)[0] = 0 }

// holding is the state of an operation that keeps its value, or what that is made of.
func holding(of []*graph.Tensor) []fgorgonia.Held {
	held := []fgorgonia.Held{{Name: "held", Value: of[0]}}
	for _, t := range of[1:] {
		held = append(held, fgorgonia.Held{Name: "scale", Value: t})
	}
	return held
}

// plus adds a constant to an int.
type plus struct{ n int }

// advance is a plus whose value is its state.
type advance struct{ plus }

// next implements keeper.
func (advance) next(_ *graph.Builder, y *graph.Node) []*graph.Node { return []*graph.Node{y} }

func (d plus) name() string { return fmt.Sprintf("Plus(%d)", d.n) }

func (d plus) build(b *graph.Builder, args []*graph.Node) *graph.Node {
	return b.BinaryScalar(graph.Add, args[0], float64(d.n))
}

// write overwrites rows of the tensor under a name. Its operands are the rows, their position, and the tensor.
type write struct{ to string }

// next implements keeper.
func (write) next(_ *graph.Builder, y *graph.Node) []*graph.Node { return []*graph.Node{y} }

// differentiable implements judge: no gradient flows into stored values.
func (write) differentiable(int) bool { return false }

func (d write) name() string { return fmt.Sprintf("Append(%s)", d.to) }

func (d write) build(b *graph.Builder, args []*graph.Node) *graph.Node {
	x, at, held := args[0], args[1], args[2]
	return b.Add(graph.UpdateSlice{Axis: x.Type.Shape.Rank() - 2}, held, x, at)
}

// write8 is a write of rows that are stored in 8 bits, to two tensors: the integers and the scales.
type write8 struct{ write }

// next implements keeper.
func (write8) next(_ *graph.Builder, y *graph.Node) []*graph.Node { return y.Args }

func (d write8) name() string { return fmt.Sprintf("Append8(%s)", d.to) }

func (d write8) build(b *graph.Builder, args []*graph.Node) *graph.Node {
	x, at, held, scales := args[0], args[1], args[2], args[3]
	last := x.Type.Shape.Rank() - 1
	q, scale := b.QuantizeRows(x)
	q = b.Add(graph.UpdateSlice{Axis: last - 1}, held, q, at)
	scale = b.Add(graph.UpdateSlice{Axis: last - 1}, scales, scale, at)
	return b.Add(graph.Dequantize{Axis: last, Block: x.Type.Shape.At(last)}, q, scale)
}

// spread repeats a scalar.
type spread struct{ to graph.Shape }

func (d spread) name() string { return fmt.Sprintf("Spread(%v)", d.to) }

func (d spread) build(b *graph.Builder, args []*graph.Node) *graph.Node {
	return b.Broadcast(args[0], d.to)
}
