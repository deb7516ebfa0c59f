package onnx

import (
	"fusec/graph"
)

// convolutionAttrs are the attributes of all operators that are convolutions.
var convolutionAttrs = []attr{{name: "auto_pad", def: "NOTSET"}, {name: "dilations", def: []int64(nil)},
	{name: "kernel_shape", def: []int64(nil)}, {name: "pads", def: []int64(nil)}, {name: "strides", def: []int64(nil)},
	intAttr("group", 1)}

func init() {
	transposed := append([]attr{{name: "output_padding", def: []int64(nil)}, {name: "output_shape", def: []int64(nil)}},
		convolutionAttrs...)
	declare(
		operator{name: "Conv", min: 2, max: 3, exact: true, attrs: convolutionAttrs, build: func(c *call) []*value {
			return one(c.cast(c.biasedConvolution(), c.node(0).Type.DType))
		}},
		operator{name: "ConvTranspose", min: 2, max: 3, exact: true, attrs: transposed, build: buildConvTranspose},
	)
}

// A windows is the geometry of a window that slides over the axes of an image: per axis.
type windows struct {
	kernel, stride, dilation, lo, hi []int
}

// span is the size of the window along an axis, dilated.
func (w windows) span(i int) int { return w.dilation[i]*(w.kernel[i]-1) + 1 }

// window reads the attributes of an operator on images whose axes have the given sizes.
func (c *call) window(sizes, kernel []int) windows {
	n := len(sizes)
	list := func(name string, def int) []int {
		l := c.ints(name)
		if !c.has(name) {
			l = make([]int, n)
			for i := range l {
				l[i] = def
			}
		}
		if len(l) != n {
			c.refuse("attribute %q has %d values for %d axes", name, len(l), n)
		}
		for _, v := range l {
			if v < 1 || v > 1<<30 {
				c.refuse("attribute %q is %v", name, l)
			}
		}
		return l
	}
	w := windows{kernel: kernel, stride: list("strides", 1), dilation: list("dilations", 1), lo: make([]int, n), hi: make([]int, n)}
	if kernel == nil {
		if !c.has("kernel_shape") {
			c.refuse("its attribute \"kernel_shape\" is missing")
		}
		w.kernel = list("kernel_shape", 1)
	} else if c.has("kernel_shape") {
		for i, k := range list("kernel_shape", 1) {
			if k != kernel[i] {
				c.refuse("attribute \"kernel_shape\" is %v; the filters have %v", c.ints("kernel_shape"), kernel)
			}
		}
	}
	for i := range n {
		if w.kernel[i] < 1 || w.kernel[i] > 1<<30/w.dilation[i] {
			c.refuse("windows of %v", w.kernel)
		}
	}
	switch pad := c.string("auto_pad"); pad {
	case "NOTSET", "":
		if pads := c.ints("pads"); c.has("pads") {
			if len(pads) != 2*n {
				c.refuse("attribute \"pads\" has %d values for %d axes", len(pads), n)
			}
			for i, p := range pads {
				if p < -1<<30 || p > 1<<30 {
					c.refuse("attribute \"pads\" is %v", pads)
				}
				if i < n {
					w.lo[i] = p
				} else {
					w.hi[i-n] = p
				}
			}
		}
	case "VALID":
	case "SAME_UPPER", "SAME_LOWER":
		for i, size := range sizes {
			out := (size + w.stride[i] - 1) / w.stride[i]
			all := max((out-1)*w.stride[i]+w.span(i)-size, 0)
			w.lo[i] = all / 2
			if pad == "SAME_LOWER" {
				w.lo[i] = all - all/2
			}
			w.hi[i] = all - w.lo[i]
		}
	default:
		c.refuse("attribute \"auto_pad\" is %q", pad)
	}
	return w
}

// perChannel brings a vector [C] to the shape in which it broadcasts to x [N,C,...].
func (c *call) perChannel(v, x *graph.Node) *graph.Node {
	to := make([]int, x.Type.Shape.Rank()-1)
	for i := range to {
		to[i] = 1
	}
	to[0] = v.Type.Shape.Elems()
	return c.reshape(v, to...)
}

// biasedConvolution is the convolution of operand 0 with the filters of operand 1 plus the bias of operand 2, if that is
// given. Operands of 16 bits are widened.
func (c *call) biasedConvolution() *graph.Node {
	y := c.convolution(c.wide(c.node(0)), c.wide(c.node(1)))
	if c.there(2) {
		y = c.plus(y, c.perChannel(c.cast(c.node(2), y.Type.DType), y))
	}
	return y
}

// convolution is the convolution of x [N,C,...] with filters w [O,C/groups,...].
func (c *call) convolution(x, w *graph.Node) *graph.Node {
	n := x.Type.Shape.Rank() - 2
	if n < 1 || w.Type.Shape.Rank() != n+2 {
		c.refuse("a convolution of %v with filters %v", x.Type, w.Type)
	}
	win := c.window(dims(x)[2:], dims(w)[2:])
	x = c.cutNegative(x, win)
	return c.convolve(x, w, win, c.int("group"))
}

// cutNegative cuts off what negative padding takes away, and clears it.
func (c *call) cutNegative(x *graph.Node, w windows) *graph.Node {
	lo, hi := make([]int, len(w.lo)+2), make([]int, len(w.lo)+2)
	for i := range w.lo {
		lo[i+2], hi[i+2] = min(w.lo[i], 0), min(w.hi[i], 0)
		w.lo[i], w.hi[i] = max(w.lo[i], 0), max(w.hi[i], 0)
	}
	return c.padded(x, lo, hi, "constant", 0)
}

// convolve is a convolution over one, two or three axes. Over one it is that of images of one row.
func (c *call) convolve(x, w *graph.Node, win windows, groups int) *graph.Node {
	switch len(win.kernel) {
	case 1:
		d := dims(x)
		y := c.convolve(c.reshape(x, d[0], d[1], 1, d[2]), c.reshape(w, w.Type.Shape.At(0), w.Type.Shape.At(1), 1, w.Type.Shape.At(2)),
			win.asImage(), groups)
		return c.reshape(y, y.Type.Shape.At(0), y.Type.Shape.At(1), y.Type.Shape.At(3))
	case 2:
		return c.add(graph.Conv2D{Stride: graph.IntsOf(win.stride...), Dilation: graph.IntsOf(win.dilation...),
			Pad: graph.IntsOf(win.lo[0], win.lo[1], win.hi[0], win.hi[1]), Groups: groups}, x, w)
	case 3:
		if n := win.kernel[0]; n > maxGraph/16 {
			c.refuse("filters of %d slices", n)
		}
		return c.sure(c.b.Convolve(x, w, graph.Window{Stride: win.stride, Dilation: win.dilation, Lo: win.lo, Hi: win.hi}, groups))
	}
	c.refuse("convolutions over %d axes are not supported", len(win.kernel))
	return nil
}

// without drops an axis of size 1.
func (c *call) without(x *graph.Node, axis int) *graph.Node {
	return c.reshape(x, x.Type.Shape.Drop(graph.IntsOf(axis)).Slice()...)
}

// asImage is a window over one axis as that over images of one row.
func (w windows) asImage() windows {
	one := func(v int, l []int) []int { return []int{v, l[0]} }
	return windows{one(1, w.kernel), one(1, w.stride), one(1, w.dilation), one(0, w.lo), one(0, w.hi)}
}

func buildConvTranspose(c *call) []*value {
	x, w := c.node(0), c.node(1)
	n := x.Type.Shape.Rank() - 2
	if n < 1 || w.Type.Shape.Rank() != n+2 {
		c.refuse("a convolution of %v with filters %v", x.Type, w.Type)
	}
	sizes, groups := dims(x)[2:], c.int("group")
	if groups < 1 || x.Type.Shape.At(1) != w.Type.Shape.At(0) || w.Type.Shape.At(0)%groups != 0 {
		c.refuse("a convolution of %v with filters %v in %d groups", x.Type, w.Type, groups)
	}
	win := c.window(sizes, dims(w)[2:])
	extra := make([]int, n) // output_padding
	if c.has("output_padding") {
		if extra = c.ints("output_padding"); len(extra) != n {
			c.refuse("attribute \"output_padding\" is %v", extra)
		}
	}
	full := make([]int, n) // the result without padding
	out := c.ints("output_shape")
	if c.has("output_shape") && len(out) != n {
		c.refuse("attribute \"output_shape\" is %v", out)
	}
	for i := range n {
		full[i] = win.stride[i]*(sizes[i]-1) + win.span(i)
		auto := c.string("auto_pad")
		if !c.has("output_shape") && auto != "SAME_UPPER" && auto != "SAME_LOWER" {
			continue
		}
		want := sizes[i] * win.stride[i]
		if c.has("output_shape") {
			want = out[i]
		}
		all := full[i] + extra[i] - want
		win.lo[i], win.hi[i] = all/2, all-all/2
		if auto == "SAME_LOWER" {
			win.lo[i], win.hi[i] = win.hi[i], win.lo[i]
		}
	}
	y := c.convolveTransposed(c.wide(x), c.wide(w), win, full, extra, groups)
	if c.there(2) {
		y = c.plus(y, c.perChannel(c.cast(c.node(2), y.Type.DType), y))
	}
	return one(c.cast(y, x.Type.DType))
}

// convolveTransposed is the transpose of [call.convolve]; full are the sizes of its result without padding, and extra is
// added at the ends of axes.
func (c *call) convolveTransposed(x, w *graph.Node, win windows, full, extra []int, groups int) *graph.Node {
	switch d := dims(x); len(full) {
	case 1:
		w = c.reshape(w, w.Type.Shape.At(0), w.Type.Shape.At(1), 1, w.Type.Shape.At(2))
		y := c.convolveTransposed(c.reshape(x, d[0], d[1], 1, d[2]), w, win.asImage(), []int{1, full[0]}, []int{0, extra[0]}, groups)
		return c.without(y, 2)
	case 2:
		op := graph.Conv2DTranspose{Stride: graph.IntsOf(win.stride...), Dilation: graph.IntsOf(win.dilation...), Groups: groups}
		direct := min(win.lo[0], win.lo[1], win.hi[0], win.hi[1], extra[0], extra[1]) >= 0 && extra[0] < win.stride[0] &&
			extra[1] < win.stride[1]
		if direct {
			op.Pad = graph.IntsOf(win.lo[0], win.lo[1], win.hi[0], win.hi[1])
			op.H, op.W = full[0]+extra[0]-win.lo[0]-win.hi[0], full[1]+extra[1]-win.lo[1]-win.hi[1]
			return c.add(op, x, w)
		}
		op.Pad, op.H, op.W = graph.IntsOf(0, 0, 0, 0), full[0], full[1]
		y := c.add(op, x, w)
		return c.padded(y, []int{0, 0, -win.lo[0], -win.lo[1]}, []int{0, 0, extra[0] - win.hi[0], extra[1] - win.hi[1]}, "constant", 0)
	case 3:
		inner := windows{win.kernel[1:], win.stride[1:], win.dilation[1:], win.lo[1:], win.hi[1:]}
		images := c.reshape(c.transpose(x, 0, 2, 1, 3, 4), d[0]*d[2], d[1], d[3], d[4])
		var sum *graph.Node
		for k := range win.kernel[0] {
			y := c.convolveTransposed(images, c.without(c.slice(w, 2, k, 1, 1), 2), inner, full[1:], extra[1:], groups)
			s := dims(y)
			// Each result is stride apart from the next, and zeros are between.
			y = c.reshape(y, d[0], d[2], 1, s[1], s[2], s[3])
			y = c.pad(y, make([]int, 6), []int{0, 0, win.stride[0] - 1, 0, 0, 0}, 0)
			y = c.slice(c.reshape(y, d[0], d[2]*win.stride[0], s[1], s[2], s[3]), 1, 0, (d[2]-1)*win.stride[0]+1, 1)
			at := k * win.dilation[0]
			y = c.pad(y, []int{0, at, 0, 0, 0}, []int{0, full[0] - at - dims(y)[1], 0, 0, 0}, 0)
			if sum == nil {
				sum = y
			} else {
				sum = c.plus(sum, y)
			}
		}
		sum = c.transpose(sum, 0, 2, 1, 3, 4)
		return c.padded(sum, []int{0, 0, -win.lo[0], 0, 0}, []int{0, 0, extra[0] - win.hi[0], 0, 0}, "constant", 0)
	}
	c.refuse("convolutions over %d axes are not supported", len(full))
	return nil
}
