package examples

import (
	"fmt"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec/examples/train"
	"fusec/graph/nn"
	"fusec/graph/optim"
)

// resnetWidth is the number of channels of the example's first block.
const resnetWidth = 16

var resnetExample = &Example{
	Name:     "resnet",
	Summary:  "a residual network of 8 layers on images of handwritten digits",
	Reaches:  "97 % of the test images right, in half a minute",
	Samples:  digitsTrain,
	Defaults: train.Settings{Steps: 1000, Batch: 64, Rate: 5e-3, Seed: 1},
	Open: func(s train.Settings) (*train.Task, error) {
		return digitsTask(s, oneDigit, 0.8, optim.AdamW{Decay: 0.05}, func(batch int) (*train.Model, error) {
			return DigitsResNet(tensor.Float32, batch, resnetWidth)
		})
	},
}

// DigitsResNet classifies digits by a residual network (He et al., arXiv 1512.03385): a convolution to the given number
// of channels and three blocks, of which the second and the third halve the sides of an image and double the channels.
func DigitsResNet(of tensor.Dtype, batch, width int) (*train.Model, error) {
	n := newNetwork(of)
	images := n.input("images", batch, DigitPixels)
	n.normed("stem", 1, width)
	for i, stride := range []int{1, 2, 2} {
		in := width << max(i-1, 0)
		n.add(nn.NewBasicBlock(n.g, of, fmt.Sprintf("block%d", i+1), in, width<<i, stride))
	}
	n.add(nn.Func(nn.GlobalAvgPool2d), nil)
	n.add(nn.NewDense(n.g, of, "logits", width<<2, DigitClasses))
	return n.model(n.through(n.reshape(images, batch, 1, DigitSide, DigitSide)), images)
}

// normed appends a convolution of 3×3 from in to out channels, a batch norm and a rectifier to the layers.
func (n *network) normed(name string, in, out int) {
	n.add(nn.NewConv2d(n.g, n.of, name, in, out, 3, nn.Conv2dOptions{Pad: 1, NoBias: true}))
	n.add(nn.NewBatchNorm(n.g, n.of, name+".norm", out))
	n.add(nn.Func(nn.ReLU), nil)
}

// through applies the layers that were appended, and removes them from the list.
func (n *network) through(x *gorgonia.Node) *gorgonia.Node {
	layers := n.layers
	n.layers = nil
	if n.err != nil {
		return nil
	}
	n.learnables = append(n.learnables, layers.Params()...)
	n.norms = append(n.norms, nn.Norms(layers)...)
	return n.keep(layers.Forward(x))
}
