package examples

import (
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec/examples/train"
	"fusec/graph/nn"
	"fusec/graph/optim"
)

// vitPatch is the side of a patch in pixels.
const vitPatch = 4

// vitSize is the vision transformer of the example.
var vitSize = Transformer{Layers: 3, Dim: 64, Heads: 4, KVHeads: 4, Hidden: 128}

var digitsViTExample = &Example{
	Name:     "digits-vit",
	Summary:  "a vision transformer on images of handwritten digits",
	Reaches:  "97 % of the test images right, in a minute",
	Samples:  digitsTrain,
	Defaults: train.Settings{Steps: 4000, Batch: 64, Rate: 2e-3, Seed: 1},
	Open: func(s train.Settings) (*train.Task, error) {
		return digitsTask(s, oneDigit, 0.8, optim.AdamW{Decay: 0.05}, func(batch int) (*train.Model, error) {
			return DigitsViT(tensor.Float32, batch, vitSize)
		})
	},
}

// DigitsViT classifies digits by attention between patches of 4×4 pixels (Dosovitskiy et al., arXiv 2010.11929), with
// the mean over the patches instead of a class token.
func DigitsViT(of tensor.Dtype, batch int, t Transformer) (*train.Model, error) {
	n := newNetwork(of)
	images := n.input("images", batch, DigitPixels)

	const side, pixels = DigitSide / vitPatch, vitPatch * vitPatch
	x := n.reshape(images, batch, side, vitPatch, side, vitPatch)
	x = n.unary(func(x *gorgonia.Node) (*gorgonia.Node, error) { return gorgonia.Transpose(x, 0, 1, 3, 2, 4) }, x)
	x = n.linear("patches", n.reshape(x, batch, side*side, pixels), pixels, t.Dim)
	places := n.reshape(n.matrix("places", side*side, t.Dim), 1, side*side, t.Dim)
	x = n.broadcast(gorgonia.BroadcastAdd, x, places, 0)

	for i := range t.Layers {
		x = n.layer(layerName(i), x, t, n.layerNorm, func(*nn.MultiHeadAttention) {},
			func(name string, x *gorgonia.Node) *gorgonia.Node { return n.gelu(name, x, t) })
	}
	x = n.layerNorm("norm", x, t.Dim)
	x = n.unary(func(x *gorgonia.Node) (*gorgonia.Node, error) { return gorgonia.Mean(x, 1) }, x)
	return n.model(n.linear("logits", x, t.Dim, DigitClasses), images)
}
