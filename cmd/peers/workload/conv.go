package workload

import (
	"fmt"
	"math"
)

// The operations of a network of convolutions. All values are images [n, c, h, w].
const (
	LayerConv = "conv" // tensors w [out, c/Groups, Kernel, Kernel] and perhaps bias [out]
	// batch normalisation in evaluation; tensors gamma, beta, mean and variance [c]; Eps is added to the variance
	LayerNorm     = "norm"
	LayerRelu     = "relu"     // max(x, 0)
	LayerRelu6    = "relu6"    // min(max(x, 0), 6)
	LayerSilu     = "silu"     // x·sigmoid(x)
	LayerSigmoid  = "sigmoid"  // 1 ÷ (1 + exp(−x))
	LayerAdd      = "add"      // of two values
	LayerConcat   = "concat"   // of several, along Axis
	LayerMaxPool  = "maxpool"  // padding is −Inf
	LayerUpsample = "upsample" // each pixel becomes 2×2
	LayerMean     = "mean"     // of each channel, as [n, c, 1, 1]
	LayerLinear   = "linear"   // of [n, c, 1, 1]; tensors w [c, out] and bias [out]
	LayerFlat     = "flat"     // [n, c, h·w, 1]
)

// Layer is one operation of a network.
type Layer struct {
	Kind    string
	Args    []int    // what it reads: value 0 is the input, value i+1 that of layer i
	Tensors []string // names of parameters, in the order of the kind's list
	Kernel  int
	Stride  int
	Pad     int // on each side
	Groups  int
	Axis    int
	Shape   [4]int // of its value
}

// convTolerance is the Tolerance of networks of convolutions: algorithms with transforms, such as Winograd's, round more.
const convTolerance = 1e-5

// convolutions lists single layers, and networks for one image and for eight.
func convolutions() []Workload {
	list := []Workload{
		oneConv("conv-7x7-3-64", 3, 224, 64, 7, 2, 1, 157081.22477412541, 317482.64441615081),
		oneConv("conv-3x3-64", 64, 56, 64, 3, 1, 1, 39461.335645153682, 79686.821173299875),
		oneConv("conv-3x3-256", 256, 14, 256, 3, 1, 1, 9316.1495349762827, 18822.415382441603),
		oneConv("conv-1x1-256-64", 256, 56, 64, 1, 1, 1, 39722.329828454465, 80208.150408836373),
		oneConv("conv-depthwise-128", 128, 56, 128, 3, 1, 128, 79680.510314471278, 160793.87705653041),
	}
	for _, m := range []struct {
		name, meaning string
		side          int
		build         func(*netBuilder)
		one, eight    [2]float64 // Checksum and AbsSum
	}{
		{"conv-resnet18", "ResNet-18", 224, resNet18,
			[2]float64{94.884885745011616, 4161.2785101178715}, [2]float64{693.14956737037687, 33316.383335641614}},
		{"conv-resnet50", "ResNet-50", 224, resNet50,
			[2]float64{-77.284029441929988, 10426.894101345015}, [2]float64{-1641.0672001222038, 84037.275795321679}},
		{"conv-mobilenet-v2", "MobileNet-v2", 224, mobileNetV2,
			[2]float64{1.7817978026480734, 945.98636333957688}, [2]float64{-121.11133632412115, 7483.0314851200837}},
		{"conv-unet", "U-Net of 5 levels of 32 to 512 channels", 160, uNet,
			[2]float64{121355.64123520366, 305018.79422831326}, [2]float64{965454.55770652718, 2425924.3308141162}},
		{"conv-yolo", "detector like YOLOv5s, 20 classes", 320, detector,
			[2]float64{39860.542956508318, 80490.076321782006}, [2]float64{318633.65076613083, 643658.66745610908}},
	} {
		for _, batch := range []int{1, 8} {
			sums, name, images := m.one, m.name, "1 image"
			if batch > 1 {
				sums, name, images = m.eight, fmt.Sprintf("%s-b%d", m.name, batch), fmt.Sprintf("%d images", batch)
			}
			b := newNet(name, fmt.Sprintf("%s, %s of 3×%d×%d", m.meaning, images, m.side, m.side), batch, 3, m.side)
			m.build(b)
			list = append(list, b.workload(sums[0], sums[1]))
		}
	}
	return list
}

// oneConv is a single convolution with bias and relu.
func oneConv(name string, in, side, out, kernel, stride, groups int, sum, abs float64) Workload {
	b := newNet(name, fmt.Sprintf("relu(conv(x, w) + b), %d×%d, %d→%d channels, %d groups, %d×%d pixels, stride %d",
		kernel, kernel, in, out, groups, side, side, stride), 1, in, side)
	b.act(LayerRelu, b.conv(0, out, kernel, stride, groups, true))
	return b.workload(sum, abs)
}

// A netBuilder builds a network layer by layer. Its methods return the number of a value.
type netBuilder struct {
	w      Workload
	shapes [][4]int
	gain   []float64 // of values: what the second moment of the values that made them is divided by
}

// newNet begins a network for images of the given number of channels and side.
func newNet(name, meaning string, batch, channels, side int) *netBuilder {
	x := Tensor{Name: "x", Seed: 1, Noise: true, Scale: float32(math.Sqrt(12)), Shape: []int{batch, channels, side, side}}
	return &netBuilder{
		w:      Workload{Name: name, Meaning: meaning, Tensors: []Tensor{x}, Tolerance: convTolerance},
		shapes: [][4]int{{batch, channels, side, side}}, gain: []float64{1},
	}
}

// workload is the network with its answer.
func (b *netBuilder) workload(sum, abs float64) Workload {
	out := b.shapes[len(b.shapes)-1]
	b.w.Out, b.w.Checksum, b.w.AbsSum = out[:], sum, abs
	return b.w
}

// add appends a layer whose value has the given shape and gain.
func (b *netBuilder) add(l Layer, shape [4]int, gain float64) int {
	l.Shape = shape
	b.w.Net, b.shapes, b.gain = append(b.w.Net, l), append(b.shapes, shape), append(b.gain, gain)
	return len(b.w.Net)
}

// tensor appends a parameter with values in [offset − scale/2, offset + scale/2), and returns its name.
func (b *netBuilder) tensor(kind string, offset, scale float64, shape ...int) string {
	n := len(b.w.Tensors)
	t := Tensor{Name: fmt.Sprintf("%s%d", kind, n), Seed: n + 1, Noise: true, Offset: float32(offset), Scale: float32(scale),
		Shape: shape}
	b.w.Tensors = append(b.w.Tensors, t)
	return t.Name
}

// conv is a convolution padded by kernel/2. Its weights keep the second moment of the values (He et al., arXiv 1502.01852).
func (b *netBuilder) conv(x, out, kernel, stride, groups int, bias bool) int {
	s := b.shapes[x]
	per, pad := s[1]/groups, kernel/2
	side := func(n int) int { return (n+2*pad-kernel)/stride + 1 }
	l := Layer{Kind: LayerConv, Args: []int{x}, Kernel: kernel, Stride: stride, Pad: pad, Groups: groups}
	l.Tensors = append(l.Tensors, b.tensor("w", 0, math.Sqrt(12*b.gain[x]/float64(per*kernel*kernel)), out, per, kernel, kernel))
	if bias {
		l.Tensors = append(l.Tensors, b.tensor("b", 0, 0.1, out))
	}
	shape := [4]int{s[0], out, side(s[2]), side(s[3])}
	b.w.FLOPs += 2 * float64(elems(shape[:])) * float64(per*kernel*kernel)
	return b.add(l, shape, 1)
}

// norm is a batch normalisation with gamma in [3/4, 5/4) times by.
func (b *netBuilder) norm(x int, by float64) int {
	c := b.shapes[x][1]
	l := Layer{Kind: LayerNorm, Args: []int{x}, Tensors: []string{
		b.tensor("gamma", by, by/2, c), b.tensor("beta", 0, 0.5, c), b.tensor("mean", 0, 0.5, c), b.tensor("variance", 1, 0.5, c),
	}}
	return b.add(l, b.shapes[x], 1)
}

// act is an elementwise function.
func (b *netBuilder) act(kind string, x int) int {
	gain := 2.0
	if kind == LayerSilu {
		gain = 2.5
	}
	return b.add(Layer{Kind: kind, Args: []int{x}}, b.shapes[x], gain)
}

// normed is a convolution, a norm and, if kind is not empty, an elementwise function.
func (b *netBuilder) normed(kind string, x, out, kernel, stride, groups int) int {
	x = b.norm(b.conv(x, out, kernel, stride, groups, false), 1)
	if kind == "" {
		return x
	}
	return b.act(kind, x)
}

func (b *netBuilder) sum(x, y int) int {
	return b.add(Layer{Kind: LayerAdd, Args: []int{x, y}}, b.shapes[x], 1)
}

// concat joins values along an axis.
func (b *netBuilder) concat(axis int, values ...int) int {
	s := b.shapes[values[0]]
	for _, v := range values[1:] {
		s[axis] += b.shapes[v][axis]
	}
	return b.add(Layer{Kind: LayerConcat, Args: values, Axis: axis}, s, b.gain[values[0]])
}

func (b *netBuilder) maxPool(x, kernel, stride, pad int) int {
	s := b.shapes[x]
	s[2], s[3] = (s[2]+2*pad-kernel)/stride+1, (s[3]+2*pad-kernel)/stride+1
	return b.add(Layer{Kind: LayerMaxPool, Args: []int{x}, Kernel: kernel, Stride: stride, Pad: pad}, s, b.gain[x])
}

func (b *netBuilder) upsample(x int) int {
	s := b.shapes[x]
	s[2], s[3] = 2*s[2], 2*s[3]
	return b.add(Layer{Kind: LayerUpsample, Args: []int{x}}, s, b.gain[x])
}

func (b *netBuilder) flat(x int) int {
	s := b.shapes[x]
	return b.add(Layer{Kind: LayerFlat, Args: []int{x}}, [4]int{s[0], s[1], s[2] * s[3], 1}, b.gain[x])
}

// classify is global pooling and a linear layer to 1000 classes.
func (b *netBuilder) classify(x int) {
	s := b.shapes[x]
	x = b.add(Layer{Kind: LayerMean, Args: []int{x}}, [4]int{s[0], s[1], 1, 1}, b.gain[x])
	const classes = 1000
	l := Layer{Kind: LayerLinear, Args: []int{x}, Tensors: []string{
		b.tensor("w", 0, math.Sqrt(12/float64(s[1])), s[1], classes), b.tensor("b", 0, 0.1, classes),
	}}
	b.w.FLOPs += 2 * float64(s[0]*s[1]*classes)
	b.add(l, [4]int{s[0], classes, 1, 1}, 1)
}

// residual adds x, or a projection of it, to y.
func (b *netBuilder) residual(x, y, stride int) int {
	y = b.norm(y, 0.5)
	if out := b.shapes[y][1]; stride != 1 || b.shapes[x][1] != out {
		x = b.normed("", x, out, 1, stride, 1)
	}
	return b.act(LayerRelu, b.sum(y, x))
}

// stem is what ResNets begin with.
func (b *netBuilder) stem() int { return b.maxPool(b.normed(LayerRelu, 0, 64, 7, 2, 1), 3, 2, 1) }

// resNet18 and resNet50 are of He et al. (arXiv 1512.03385); the latter moves by 2 in its convolutions of 3×3.
func resNet18(b *netBuilder) {
	x := b.stem()
	for i := range 8 {
		out, stride := 64<<(i/2), 1
		if i > 0 && i%2 == 0 {
			stride = 2
		}
		y := b.normed(LayerRelu, x, out, 3, stride, 1)
		x = b.residual(x, b.conv(y, out, 3, 1, 1, false), stride)
	}
	b.classify(x)
}

func resNet50(b *netBuilder) {
	x := b.stem()
	for i, n := range []int{3, 4, 6, 3} {
		for j := range n {
			mid, stride := 64<<i, 1
			if i > 0 && j == 0 {
				stride = 2
			}
			y := b.normed(LayerRelu, x, mid, 1, 1, 1)
			y = b.normed(LayerRelu, y, mid, 3, stride, 1)
			x = b.residual(x, b.conv(y, 4*mid, 1, 1, 1, false), stride)
		}
	}
	b.classify(x)
}

// mobileNetV2 is of Sandler et al. (arXiv 1801.04381).
func mobileNetV2(b *netBuilder) {
	x := b.normed(LayerRelu6, 0, 32, 3, 2, 1)
	for _, m := range []struct{ expand, out, count, stride int }{
		{1, 16, 1, 1}, {6, 24, 2, 2}, {6, 32, 3, 2}, {6, 64, 4, 2}, {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1},
	} {
		for j := range m.count {
			in, stride := b.shapes[x][1], 1
			if j == 0 {
				stride = m.stride
			}
			y := x
			if m.expand > 1 {
				y = b.normed(LayerRelu6, y, m.expand*in, 1, 1, 1)
			}
			y = b.normed(LayerRelu6, y, m.expand*in, 3, stride, m.expand*in)
			if stride == 1 && in == m.out {
				x = b.sum(x, b.norm(b.conv(y, m.out, 1, 1, 1, false), 0.5))
			} else {
				x = b.normed("", y, m.out, 1, 1, 1)
			}
		}
	}
	b.classify(b.normed(LayerRelu6, x, 1280, 1, 1, 1))
}

// uNet is of Ronneberger et al. (arXiv 1505.04597), with padding, norms and upsampling to the nearest pixel.
func uNet(b *netBuilder) {
	level := func(x, out int) int { return b.normed(LayerRelu, b.normed(LayerRelu, x, out, 3, 1, 1), out, 3, 1, 1) }
	const width, levels = 32, 5
	x, beside := 0, []int{}
	for i := range levels - 1 {
		x = level(x, width<<i)
		beside = append(beside, x)
		x = b.maxPool(x, 2, 2, 0)
	}
	x = level(x, width<<(levels-1))
	for i := levels - 2; i >= 0; i-- {
		x = level(b.concat(1, b.upsample(x), beside[i]), width<<i)
	}
	b.conv(x, 2, 1, 1, 1, true)
}

// detector has the blocks of YOLOv5s, with a stem of 3×3. Its value has, for each place of three grids, 3 boxes of 25
// numbers.
func detector(b *netBuilder) {
	conv := func(x, out, kernel, stride int) int { return b.normed(LayerSilu, x, out, kernel, stride, 1) }
	c3 := func(x, out, count int, shortcut bool) int {
		y, z := conv(x, out/2, 1, 1), conv(x, out/2, 1, 1)
		for range count {
			v := conv(conv(y, out/2, 1, 1), out/2, 3, 1)
			if shortcut {
				v = b.sum(y, v)
			}
			y = v
		}
		return conv(b.concat(1, y, z), out, 1, 1)
	}
	x := conv(conv(0, 32, 3, 2), 64, 3, 2)
	x = c3(x, 64, 1, true)
	p3 := c3(conv(x, 128, 3, 2), 128, 2, true)
	p4 := c3(conv(p3, 256, 3, 2), 256, 3, true)
	x = c3(conv(p4, 512, 3, 2), 512, 1, true)
	x = conv(x, 256, 1, 1)
	m1 := b.maxPool(x, 5, 1, 2)
	m2 := b.maxPool(m1, 5, 1, 2)
	x = conv(b.concat(1, x, m1, m2, b.maxPool(m2, 5, 1, 2)), 512, 1, 1)

	h5 := conv(x, 256, 1, 1)
	h4 := conv(c3(b.concat(1, b.upsample(h5), p4), 256, 1, false), 128, 1, 1)
	o3 := c3(b.concat(1, b.upsample(h4), p3), 128, 1, false)
	o4 := c3(b.concat(1, conv(o3, 128, 3, 2), h4), 256, 1, false)
	o5 := c3(b.concat(1, conv(o4, 256, 3, 2), h5), 512, 1, false)
	var grids []int
	for _, o := range []int{o3, o4, o5} {
		grids = append(grids, b.flat(b.conv(o, 75, 1, 1, 1, true)))
	}
	b.act(LayerSigmoid, b.concat(2, grids...))
}

// Noise makes n numbers in [offset − scale/2, offset + scale/2) from a hash of their place and the seed: the 24 high bits
// of h, divided by 2²⁴, less 1/2, times scale, plus offset, each step rounded to float32. For place i,
// h = mix(mix(i) + seed·9E3779B9₁₆).
func Noise(seed int, offset, scale float32, n int) []float32 {
	x, s := make([]float32, n), uint32(seed)*0x9e3779b9
	for i := range x {
		u := float32(mix(mix(uint32(i))+s)>>8)/(1<<24) - 0.5
		u = float32(u * scale)
		x[i] = u + offset
	}
	return x
}

// mix is the hash lowbias32 of Chris Wellons.
func mix(x uint32) uint32 {
	x ^= x >> 16
	x *= 0x7feb352d
	x ^= x >> 15
	x *= 0x846ca68b
	return x ^ x>>16
}
