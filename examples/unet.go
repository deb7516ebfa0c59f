package examples

import (
	"fmt"
	"math/rand/v2"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec/examples/train"
	"fusec/graph/nn"
	"fusec/graph/optim"
)

// Sizes of the noisy pictures in which a digit is to be found.
const (
	PictureSide    = 16
	PicturePixels  = PictureSide * PictureSide
	PictureClasses = 1 + DigitClasses // the background, and each digit
)

// unetWidth is the number of channels of the example's highest level.
const unetWidth = 12

var unetExample = &Example{
	Name:     "unet",
	Summary:  "a U-Net that finds the pixels of a digit in a noisy picture",
	Reaches:  "a mean IoU of 0.8, in a minute",
	Samples:  digitsTrain,
	Defaults: train.Settings{Steps: 1000, Batch: 32, Rate: 5e-3, Seed: 1},
	Open: func(s train.Settings) (*train.Task, error) {
		return digitsTask(s, hiddenDigit, 0.5, optim.AdamW{Decay: 0.05}, func(batch int) (*train.Model, error) {
			return UNet(tensor.Float32, batch, unetWidth)
		})
	},
}

// hiddenDigit is a picture of noise with the digit at a random place. Each pixel is of the background, class 0, or of
// the digit.
var hiddenDigit = scene{
	func(x []float32, y []int, image []float32, digit int, bent float64, r *rand.Rand) {
		const noise, part = 0.5, 0.4 // the brightest noise, and the least bright pixel of a digit
		var bright [DigitPixels]float32
		bend(bright[:], image, bent, r)
		for i := range x {
			x[i], y[i] = noise*r.Float32(), 0
		}
		top, left := r.IntN(PictureSide-DigitSide+1), r.IntN(PictureSide-DigitSide+1)
		for i, v := range bright {
			k := (top+i/DigitSide)*PictureSide + left + i%DigitSide
			x[k] = max(x[k], v)
			if v >= part {
				y[k] = 1 + digit
			}
		}
	},
	func(logits []float32, labels []int) train.Score {
		return train.Score{Name: "mean IoU", Value: meanIoU(logits, labels, PictureClasses)}
	},
}

// meanIoU is the mean over the classes of intersection ÷ union of the pixels that are of the class and those that rows of
// logits say are. Classes that neither has do not count.
func meanIoU(logits []float32, labels []int, classes int) float64 {
	both, either := make([]int, classes), make([]int, classes)
	for i, label := range labels {
		said := greatest(logits[i*classes:][:classes])
		either[label]++
		if said == label {
			both[label]++
		} else {
			either[said]++
		}
	}
	sum, count := 0.0, 0
	for c, n := range either {
		if n > 0 {
			sum, count = sum+float64(both[c])/float64(n), count+1
		}
	}
	return sum / float64(max(count, 1))
}

// UNet gives each pixel of pictures logits of its class (Ronneberger et al., arXiv 1505.04597), with batch norms, padded
// convolutions and upsampling to the nearest pixel. It has three levels; the highest has the given number of channels.
func UNet(of tensor.Dtype, batch, width int) (*train.Model, error) {
	n := newNetwork(of)
	pictures := n.input("pictures", batch, PicturePixels)
	x := n.reshape(pictures, batch, 1, PictureSide, PictureSide)
	level := func(name string, x *gorgonia.Node, in, out int) *gorgonia.Node {
		n.normed(name+".conv1", in, out)
		n.normed(name+".conv2", out, out)
		return n.through(x)
	}
	down := func(x *gorgonia.Node) *gorgonia.Node {
		return n.unary(func(x *gorgonia.Node) (*gorgonia.Node, error) { return nn.MaxPool2d(x, nn.Square(2, 2, 0)) }, x)
	}
	up := func(x, beside *gorgonia.Node) *gorgonia.Node {
		x = n.unary(func(x *gorgonia.Node) (*gorgonia.Node, error) { return gorgonia.Upsample2D(x, 2) }, x)
		return n.binary(func(x, y *gorgonia.Node) (*gorgonia.Node, error) { return gorgonia.Concat(1, x, y) }, x, beside)
	}
	var beside []*gorgonia.Node
	in := 1
	for i, out := range []int{width, 2 * width} {
		x = level(fmt.Sprintf("down%d", i+1), x, in, out)
		beside, in = append(beside, x), out
		x = down(x)
	}
	x = level("bottom", x, 2*width, 4*width)
	for i, out := range []int{2 * width, width} {
		x = level(fmt.Sprintf("up%d", 2-i), up(x, beside[1-i]), 3*out, out)
	}
	n.add(nn.NewConv2d(n.g, of, "logits", width, PictureClasses, 1, nn.Conv2dOptions{}))
	x = n.unary(func(x *gorgonia.Node) (*gorgonia.Node, error) { return gorgonia.Transpose(x, 0, 2, 3, 1) }, n.through(x))
	return n.model(x, pictures)
}
