package examples

import (
	"fmt"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec/examples/train"
	"fusec/graph/nn"
)

// moeExperts is the number of experts of a layer, of which each token uses two.
const moeExperts = 8

// moeSize is the transformer of the example.
var moeSize = Transformer{Layers: 2, Dim: 96, Heads: 4, KVHeads: 2, Hidden: 96}

var moeExample = &Example{
	Name:     "moe",
	Summary:  "a language model with a mixture of experts in each layer",
	Reaches:  "2.12 bits per character, in a minute and a half",
	Samples:  novelSamples,
	Defaults: train.Settings{Steps: 1000, Batch: 16, Rate: 3e-3, Seed: 1},
	Open: func(s train.Settings) (*train.Task, error) {
		return novel(s, contextLength, func(batch int) (*train.Model, error) {
			return MoE(tensor.Float32, batch, contextLength, moeExperts, moeSize)
		})
	},
}

// MoE is [Language] with a mixture of experts for the feed-forward network of each layer, of which every token uses two
// (Shazeer et al., arXiv 1701.06538). It uses Gorgonia's operations only: all tokens go through all experts, and the
// gate multiplies most results by 0. The compiler finds out what need not be computed.
func MoE(of tensor.Dtype, batch, length, experts int, t Transformer) (*train.Model, error) {
	n := newNetwork(of)
	return n.language(batch, length, t, func(name string, x *gorgonia.Node) *gorgonia.Node {
		tokens := batch * length
		x = n.reshape(x, tokens, t.Dim)
		gate := n.top2(n.project(name+".router", x, t.Dim, experts), tokens)
		n.gates = append(n.gates, train.Gate{Name: name, Node: gate})
		return n.reshape(n.experts(name, x, gate, tokens, experts, t), batch, length, t.Dim)
	})
}

// top2 is the softmax of scores [tokens, experts], of which each row keeps its two largest, scaled to a sum of 1.
func (n *network) top2(scores *gorgonia.Node, tokens int) *gorgonia.Node {
	type node = gorgonia.Node
	perRow := func(f func(x *node, along ...int) (*node, error), x *node) *node {
		return n.reshape(n.unary(func(x *node) (*node, error) { return f(x, 1) }, x), tokens, 1)
	}
	where := func(f func(x, y *node, same bool, left, right []byte) (*node, error), x, y *node) *node {
		same := func(x, y *node, left, right []byte) (*node, error) { return f(x, y, true, left, right) }
		return n.broadcast(same, x, y, 1)
	}
	gate := n.unary(func(x *gorgonia.Node) (*gorgonia.Node, error) { return gorgonia.SoftMax(x, 1) }, scores)
	rest := n.binary(gorgonia.HadamardProd, gate, where(gorgonia.BroadcastLt, gate, perRow(gorgonia.Max, gate)))
	kept := n.binary(gorgonia.HadamardProd, gate, where(gorgonia.BroadcastGte, gate, perRow(gorgonia.Max, rest)))
	return n.broadcast(gorgonia.BroadcastHadamardDiv, kept, perRow(gorgonia.Sum, kept), 1)
}

// experts is the sum of the results of feed-forward networks for x [tokens, dim], weighted by the gate [tokens,
// experts].
func (n *network) experts(name string, x, gate *gorgonia.Node, tokens, experts int, t Transformer) *gorgonia.Node {
	var sum *gorgonia.Node
	for e := range experts {
		expert := fmt.Sprintf("%s.expert%d", name, e)
		h := n.unary(nn.SiLU, n.project(expert+".up", x, t.Dim, t.Hidden))
		y := n.project(expert+".down", h, t.Hidden, t.Dim)
		weight := n.unary(func(x *gorgonia.Node) (*gorgonia.Node, error) {
			return gorgonia.Slice(x, nil, gorgonia.S(e))
		}, gate)
		y = n.broadcast(gorgonia.BroadcastHadamardProd, y, n.reshape(weight, tokens, 1), 1)
		if sum == nil {
			sum = y
		} else {
			sum = n.binary(gorgonia.Add, sum, y)
		}
	}
	return sum
}
