package examples

import (
	"fmt"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec/examples/train"
	"fusec/graph/nn"
)

// contextLength is the number of bytes that a language model sees at once.
const contextLength = 128

// languageSize is the transformer of the example.
var languageSize = Transformer{Layers: 3, Dim: 128, Heads: 4, KVHeads: 2, Hidden: 256}

var languageExample = &Example{
	Name:     "language",
	Summary:  "an autoregressive transformer on the bytes of a novel",
	Reaches:  "1.97 bits per character, in two minutes",
	Samples:  novelSamples,
	Defaults: train.Settings{Steps: 1000, Batch: 16, Rate: 3e-3, Seed: 1},
	Open: func(s train.Settings) (*train.Task, error) {
		return novel(s, contextLength, func(batch int) (*train.Model, error) {
			return Language(tensor.Float32, batch, contextLength, languageSize)
		})
	},
}

// layerName is the prefix of the names of a layer's weights.
func layerName(i int) string { return fmt.Sprintf("layer%d", i) }

// Language predicts the next token at each of length positions, from those up to it: a transformer with rotary
// positions, RMSNorm, grouped-query attention and SwiGLU, as in the Llama models (Touvron et al., arXiv 2302.13971).
// Its inputs are tokens [batch, length], its output logits [batch, length, Vocabulary].
func Language(of tensor.Dtype, batch, length int, t Transformer) (*train.Model, error) {
	n := newNetwork(of)
	return n.language(batch, length, t, func(name string, x *gorgonia.Node) *gorgonia.Node { return n.swiglu(name, x, t) })
}

// language is a language model with the given feed-forward networks.
func (n *network) language(batch, length int, t Transformer, feed part) (*train.Model, error) {
	tokens := n.integers("tokens", batch, length)
	x := n.binary(nn.Embedding, n.matrix("embedding", Vocabulary, t.Dim), tokens)
	for i := range t.Layers {
		x = n.layer(layerName(i), x, t, n.rmsNorm, func(a *nn.MultiHeadAttention) {
			a.Options.Causal = true
			a.Rotary = &nn.RoPEOptions{}
		}, feed)
	}
	x = n.rmsNorm("norm", x, t.Dim)
	return n.model(n.project("logits", x, t.Dim, Vocabulary), tokens)
}
