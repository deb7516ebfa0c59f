package graph

import "fmt"

// Slope is the derivative of a function at a kink, in terms of the derivatives on both sides.
type Slope uint8

// The slopes. Frameworks differ. PyTorch and ONNX Runtime use the derivative of the left side. Gorgonia's Rectify and
// LeakyRelu, which test x ≥ 0, use that of the right side. A maximum that shares its gradient among equal operands has
// the mean.
const (
	LeftSlope Slope = iota
	RightSlope
	MeanSlope
)

var slopes = [...]string{"left", "right", "mean"}

// String gives the slope's name in the text form.
func (s Slope) String() string { return slopes[s] }

// ImageLayout is the order of the axes of images [N,C,H,W] and filters [O,C/G,KH,KW] of a convolution or a pool.
type ImageLayout uint8

// The layouts.
const (
	NCHW ImageLayout = iota // images [N,C,H,W], filters [O,C/G,KH,KW]
	NHWC                    // images [N,H,W,C], filters [KH,KW,C/G,O]
)

var imageLayouts = [...]string{"nchw", "nhwc"}

// String gives the layout's name in the text form.
func (l ImageLayout) String() string { return imageLayouts[l] }

// Dist is a distribution to draw from.
type Dist uint8

// The distributions.
const (
	Uniform Dist = iota
	Normal
	Bernoulli
)

var dists = [...]string{"uniform", "normal", "bernoulli"}

// String gives the distribution's name in the text form.
func (d Dist) String() string { return dists[d] }

// Anchor is the expensive part of a Fusion.
type Anchor uint8

// The anchors.
const (
	AnchorNone      Anchor = iota // elementwise work only
	AnchorMatMul                  // slot: out; a and b for views
	AnchorConv                    // slot: out; in for views
	AnchorRow                     // reductions in a chain over one row, the input re-readable
	AnchorAttention               // slots: q, k, v, out, for views
	AnchorMoE                     // slots: the operands and results, for views
	AnchorMoves                   // rotations, casts and writes of parts of values, each result by itself
)

var anchors = [...]string{"none", "matmul", "conv", "row", "attention", "moe", "moves"}

// String gives the anchor's name in the text form.
func (a Anchor) String() string { return anchors[a] }

// Whole reports whether a launch of the anchor is a single operation with its own kernels, into which no elementwise
// work is fused.
func (a Anchor) Whole() bool { return a == AnchorAttention || a == AnchorMoE }

// Contracts reports whether the anchor multiplies values with each other and sums the products: it reads elements of its operands
// many times.
func (a Anchor) Contracts() bool { return a.central() && a != AnchorRow }

// central reports whether a launch of the anchor is built around one operation, or several of one kind.
func (a Anchor) central() bool { return a != AnchorNone && a != AnchorMoves }

// Kind classifies operations and Fusions in reports and drawings.
type Kind uint8

// The kinds.
const (
	KindElementwise Kind = iota
	KindLinear
	KindMatMul
	KindConv
	KindSoftmax
	KindNorm
	KindReduce
	KindAttention
	KindMoE
	KindPool
)

var kinds = [...]string{"elementwise", "linear", "matmul", "conv", "softmax", "norm", "reduce", "attention", "moe", "pool"}

// String gives the kind's name, as reports and drawings show it.
func (k Kind) String() string { return kinds[k] }

// parseEnum finds a name in a list of names of an attribute's type.
func parseEnum[T ~uint8](s string, names func(T) string, n int) (T, error) {
	for i := range n {
		if names(T(i)) == s {
			return T(i), nil
		}
	}
	var want string
	for i := range n {
		if i > 0 {
			want += ", "
		}
		want += names(T(i))
	}
	return 0, fmt.Errorf("unknown name %q (want one of %s)", s, want)
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Slope) UnmarshalText(b []byte) (err error) {
	*s, err = parseEnum(string(b), Slope.String, len(slopes))
	return
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *ImageLayout) UnmarshalText(b []byte) (err error) {
	*l, err = parseEnum(string(b), ImageLayout.String, len(imageLayouts))
	return
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Dist) UnmarshalText(b []byte) (err error) {
	*d, err = parseEnum(string(b), Dist.String, len(dists))
	return
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (a *Anchor) UnmarshalText(b []byte) (err error) {
	*a, err = parseEnum(string(b), Anchor.String, len(anchors))
	return
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *Kind) UnmarshalText(b []byte) (err error) {
	*k, err = parseEnum(string(b), Kind.String, len(kinds))
	return
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *DType) UnmarshalText(b []byte) (err error) {
	*d, err = ParseDType(string(b))
	return
}
