package nn

import (
	"errors"
	"fmt"
	"slices"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// MultiHeadAttention is an attention layer with projections (Vaswani et al., arXiv 1706.03762). Its fields may be
// changed before it is used.
type MultiHeadAttention struct {
	Heads, KVHeads int            // of queries; of keys and values, of which Heads is a multiple
	Wq, Wk, Wv     *gorgonia.Node // [dim, Heads·depth], and twice [dim, KVHeads·depth]
	Wo             *gorgonia.Node // [Heads·depth, dim]
	Bq, Bk, Bv, Bo *gorgonia.Node // their biases, or nil
	// Options are the options of the attention.
	Options AttentionOptions
	// Rotary, if not nil, rotates queries and keys by their positions.
	Rotary *RoPEOptions
}

// NewMultiHeadAttention makes the layer's weights, as nodes of g whose names begin with name: matrices by Glorot and
// Bengio's uniform initialisation, biases of 0. dim, the number of features of a position, is a multiple of heads, and
// heads is a multiple of kvHeads.
func NewMultiHeadAttention(g *gorgonia.ExprGraph, of tensor.Dtype, name string, dim, heads, kvHeads int) (
	*MultiHeadAttention, error) {
	if dim < 1 || heads < 1 || kvHeads < 1 || dim%heads != 0 || heads%kvHeads != 0 {
		return nil, fmt.Errorf("MultiHeadAttention %s: %d features, %d heads, %d of keys and values: "+
			"each should divide the one before", name, dim, heads, kvHeads)
	}
	if err := wantWeights(g, of); err != nil {
		return nil, fmt.Errorf("MultiHeadAttention %s: %w", name, err)
	}
	m := &MultiHeadAttention{Heads: heads, KVHeads: kvHeads}
	kv := dim / heads * kvHeads
	m.Wq, m.Bq = weights(g, of, name+".q", dim, dim)
	m.Wk, m.Bk = weights(g, of, name+".k", dim, kv)
	m.Wv, m.Bv = weights(g, of, name+".v", dim, kv)
	m.Wo, m.Bo = weights(g, of, name+".o", dim, dim)
	return m, nil
}

// wantWeights reports a nil graph or an element type that weights cannot have.
func wantWeights(g *gorgonia.ExprGraph, of tensor.Dtype) error {
	if g == nil {
		return errors.New("the graph is nil")
	}
	if of != tensor.Float32 && of != tensor.Float64 {
		return fmt.Errorf("weights are float32 or float64, not %v", of)
	}
	return nil
}

// weights makes the parameters of a linear layer.
func weights(g *gorgonia.ExprGraph, of tensor.Dtype, name string, in, out int) (w, bias *gorgonia.Node) {
	w = gorgonia.NewMatrix(g, of, gorgonia.WithShape(in, out), gorgonia.WithName(name+".weight"),
		gorgonia.WithInit(gorgonia.GlorotU(1)))
	bias = gorgonia.NewVector(g, of, gorgonia.WithShape(out), gorgonia.WithName(name+".bias"),
		gorgonia.WithInit(gorgonia.Zeroes()))
	return w, bias
}

// Params lists the weights, for solvers and gorgonia.Grad.
func (m *MultiHeadAttention) Params() gorgonia.Nodes {
	return present(m.Wq, m.Bq, m.Wk, m.Bk, m.Wv, m.Bv, m.Wo, m.Bo)
}

// present lists the nodes that are not nil.
func present(nodes ...*gorgonia.Node) gorgonia.Nodes {
	return slices.DeleteFunc(gorgonia.Nodes(nodes), func(n *gorgonia.Node) bool { return n == nil })
}

// Forward attends within x [..., s, dim].
func (m *MultiHeadAttention) Forward(x *gorgonia.Node) (*gorgonia.Node, error) { return m.Cross(x, x) }

// Cross attends from x [..., s, dim] to memory [..., t, dim].
func (m *MultiHeadAttention) Cross(x, memory *gorgonia.Node) (*gorgonia.Node, error) {
	q, k, v, err := m.projected(x, memory, m.Rotary)
	if err != nil {
		return nil, err
	}
	return m.attend(q, k, v, m.Options)
}

// Decode attends from x [..., n, dim], the tokens of a run, to the tokens in a cache and, causally, to each other.
// Options for that are ignored. It appends the tokens to the cache under names that begin with name. Positions are
// those of the cache.
func (m *MultiHeadAttention) Decode(x *gorgonia.Node, c *KVCache, name string) (*gorgonia.Node, error) {
	if m.Options.Lengths != nil {
		return nil, fmt.Errorf("MultiHeadAttention %s: Lengths cannot be set with a cache, which has its own", name)
	}
	turn := m.Rotary
	if turn != nil {
		turn = &RoPEOptions{Base: turn.Base, Interleaved: turn.Interleaved, Start: c.Position()}
	}
	q, k, v, err := m.projected(x, x, turn)
	if err != nil {
		return nil, err
	}
	if k, err = c.Append(name+".keys", k); err != nil {
		return nil, err
	}
	if v, err = c.Append(name+".values", v); err != nil {
		return nil, err
	}
	o := m.Options
	o.Causal, o.Tail = true, true
	if o.Lengths, err = c.Lengths(k); err != nil {
		return nil, err
	}
	return m.attend(q, k, v, o)
}

// projected returns the heads of x's queries and of memory's keys and values.
func (m *MultiHeadAttention) projected(x, memory *gorgonia.Node, turn *RoPEOptions) (
	q, k, v *gorgonia.Node, err error) {
	if q, err = m.project(x, m.Wq, m.Bq, m.Heads, turn); err != nil {
		return nil, nil, nil, err
	}
	if k, err = m.project(memory, m.Wk, m.Bk, m.KVHeads, turn); err != nil {
		return nil, nil, nil, err
	}
	v, err = m.project(memory, m.Wv, m.Bv, m.KVHeads, nil)
	return q, k, v, err
}

// attend attends and merges the heads.
func (m *MultiHeadAttention) attend(q, k, v *gorgonia.Node, o AttentionOptions) (*gorgonia.Node, error) {
	y, err := Attention(q, k, v, o)
	if err != nil {
		return nil, err
	}
	if y, err = MergeHeads(y); err != nil {
		return nil, err
	}
	return Linear(y, m.Wo, m.Bo)
}

// project returns x's heads of queries, keys or values.
func (m *MultiHeadAttention) project(x, w, bias *gorgonia.Node, heads int, turn *RoPEOptions) (*gorgonia.Node, error) {
	y, err := Linear(x, w, bias)
	if err != nil {
		return nil, err
	}
	if y, err = SplitHeads(y, heads); err != nil || turn == nil {
		return y, err
	}
	return RoPE(y, *turn)
}

// GraphConv is a layer of a graph convolutional network (Kipf and Welling, arXiv 1609.02907).
type GraphConv struct {
	W    *gorgonia.Node // [in, out]
	Bias *gorgonia.Node // [out], or nil
}

// NewGraphConv makes the layer's weights as [NewMultiHeadAttention] does.
func NewGraphConv(g *gorgonia.ExprGraph, of tensor.Dtype, name string, in, out int) (*GraphConv, error) {
	d, err := newDense(g, of, "GraphConv", name, in, out)
	if err != nil {
		return nil, err
	}
	return &GraphConv{d.W, d.Bias}, nil
}

// Params lists the weights.
func (c *GraphConv) Params() gorgonia.Nodes { return present(c.W, c.Bias) }

// Forward is [Propagate] of x·W, plus the bias, for features x [n, in] of a graph's vertices and the sources and
// targets [e] of its edges.
func (c *GraphConv) Forward(x, source, target *gorgonia.Node) (*gorgonia.Node, error) {
	h, err := Linear(x, c.W, nil)
	if err != nil {
		return nil, err
	}
	if h, err = Propagate(h, source, target); err != nil || c.Bias == nil {
		return h, err
	}
	return addBias(h, c.Bias)
}
