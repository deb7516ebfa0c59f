package examples

import (
	"gorgonia.org/gorgonia"

	"fusec/graph/nn"
)

// Transformer is the size of a stack of transformer layers.
type Transformer struct {
	Layers, Dim    int // Dim features of a position
	Heads, KVHeads int // of queries; of keys and values: fewer make the cache smaller
	Hidden         int // features inside a layer's feed-forward network
}

// part is a piece of a layer: what it makes of x under a name for its weights.
type part func(name string, x *gorgonia.Node) *gorgonia.Node

// layer is x + attention(norm x), and then x + feed(norm x), for x [batch, positions, dim].
func (n *network) layer(name string, x *gorgonia.Node, t Transformer,
	norm func(name string, x *gorgonia.Node, dim int) *gorgonia.Node, change func(*nn.MultiHeadAttention), feed part) (
	y *gorgonia.Node) {
	h := n.attention(name+".attention", norm(name+".norm1", x, t.Dim), t, change)
	x = n.binary(gorgonia.Add, x, h)
	h = feed(name+".feed", norm(name+".norm2", x, t.Dim))
	return n.binary(gorgonia.Add, x, h)
}

// attention is multi-head attention within x, with options that change may set.
func (n *network) attention(name string, x *gorgonia.Node, t Transformer, change func(*nn.MultiHeadAttention)) (
	y *gorgonia.Node) {
	if n.err != nil {
		return nil
	}
	a, err := nn.NewMultiHeadAttention(n.g, n.of, name, t.Dim, t.Heads, t.KVHeads)
	if err != nil {
		return n.keep(nil, err)
	}
	change(a)
	n.learnables = append(n.learnables, a.Params()...)
	return n.keep(a.Forward(x))
}

// gelu is a feed-forward network with one hidden layer.
func (n *network) gelu(name string, x *gorgonia.Node, t Transformer) *gorgonia.Node {
	h := n.unary(nn.GELU, n.linear(name+".up", x, t.Dim, t.Hidden))
	return n.linear(name+".down", h, t.Hidden, t.Dim)
}

// swiglu is a feed-forward network whose hidden layer is gated (Shazeer, arXiv 2002.05202).
func (n *network) swiglu(name string, x *gorgonia.Node, t Transformer) *gorgonia.Node {
	gate, up := n.project(name+".gate", x, t.Dim, t.Hidden), n.project(name+".up", x, t.Dim, t.Hidden)
	return n.project(name+".down", n.binary(nn.SwiGLU, gate, up), t.Hidden, t.Dim)
}
