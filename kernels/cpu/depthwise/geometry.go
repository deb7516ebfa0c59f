package depthwise

import "fusec/graph"

// A Geometry says how windows slide over images: pairs are vertical, horizontal.
type Geometry struct {
	Images   int
	Channels int    // of the images
	Size     [2]int // of an image
	Windows  [2]int // positions of the window
	Kernel   [2]int // taps of the window
	Stride   [2]int // between positions
	Dilation [2]int // between taps
	Before   [2]int // padding at the top and at the left
}

// NewGeometry is the geometry of the windows [N,OH,OW,·] of images x [N,H,W,C].
func NewGeometry(x, windows graph.Shape, kernel, stride, dilation, pad graph.Ints) Geometry {
	pair := func(l graph.Ints) [2]int { return [2]int{l.At(0), l.At(1)} }
	return Geometry{Images: x.At(0), Channels: x.At(3), Size: [2]int{x.At(1), x.At(2)}, Windows: [2]int{windows.At(1), windows.At(2)},
		Kernel: pair(kernel), Stride: pair(stride), Dilation: pair(dilation), Before: pair(pad)}
}

// An Image is where the elements of images stand: the distances, in elements, of images, rows and pixels. Those of
// channels are 1.
type Image struct{ Image, Row, Pixel int }

// Packed is an image of so many rows of so many pixels without gaps.
func Packed(size [2]int, channels int) Image {
	return Image{size[0] * size[1] * channels, size[1] * channels, channels}
}

func (m Image) at(image, row, column int) int { return image*m.Image + row*m.Row + column*m.Pixel }

// A position is what an output position needs along an axis: n taps from first on, the first of which meets input in.
type position struct{ first, n, in int }

// A run is pixels output positions from out on, that need the same taps. The input moves on evenly.
type run struct {
	position
	out, pixels int
}

// An axis has the output positions of one axis.
type axis struct {
	at      []position
	tap, in int // from tap to tap: the distances of taps and of inputs
	out     int // from pixel to pixel of a run: the distances of outputs
	advance int // and of inputs
}

// forward is the axis of windows, whose inputs are the image.
func (g *Geometry) forward(i int) axis {
	a := axis{at: make([]position, g.Windows[i]), tap: 1, in: g.Dilation[i], out: 1, advance: g.Stride[i]}
	for o := range a.at {
		start := o*g.Stride[i] - g.Before[i]
		lo, hi := within(start, g.Kernel[i], g.Dilation[i], g.Size[i])
		a.at[o] = position{lo, hi - lo, start + lo*g.Dilation[i]}
	}
	return a
}

// backward is the axis of the image, whose inputs are the windows. Tap k of window o meets row
// o·stride + k·dilation − before.
func (g *Geometry) backward(i int) axis {
	s, d := g.Stride[i], g.Dilation[i]
	common := s
	for b := d; b > 0; {
		common, b = b, common%b
	}
	step := s / common
	a := axis{at: make([]position, g.Size[i]), tap: step, in: -d / common, out: s, advance: 1}
	starts := map[int]int{} // by residue, the first tap that meets it
	for k := range min(step, g.Kernel[i]) {
		starts[k*d%s] = k
	}
	for p := range a.at {
		place := p + g.Before[i]
		k, ok := starts[place%s]
		if !ok {
			continue
		}
		o, taps := floorDiv(place-k*d, s), (g.Kernel[i]-k+step-1)/step
		// The windows of the taps are o, o+a.in, …: those that there are.
		lo := 0
		if last := g.Windows[i] - 1; o > last {
			lo = (o - last - a.in - 1) / -a.in
		}
		hi := 0
		if o >= 0 {
			hi = min(o/-a.in+1, taps)
		}
		if lo < hi {
			a.at[p] = position{k + lo*step, hi - lo, o + lo*a.in}
		}
	}
	return a
}

func floorDiv(a, b int) int {
	if a < 0 {
		return -((-a + b - 1) / b)
	}
	return a / b
}

// within gives the taps lo to hi, step apart, that hit one of size elements, if the first is at start.
func within(start, taps, step, size int) (lo, hi int) {
	if start < 0 {
		lo = min((-start+step-1)/step, taps)
	}
	hi = taps
	if start+(taps-1)*step >= size {
		hi = max((size-start+step-1)/step, 0)
	}
	return lo, max(hi, lo)
}

// runs cuts the axis into runs.
func (a *axis) runs() []run {
	var list []run
	for phase := range min(a.out, len(a.at)) {
		start := len(list)
		for o := phase; o < len(a.at); o += a.out {
			p := a.at[o]
			if len(list) > start {
				if r := &list[len(list)-1]; r.n == p.n && (p.n == 0 || r.first == p.first && p.in == r.in+r.pixels*a.advance) {
					r.pixels++
					continue
				}
			}
			list = append(list, run{p, o, 1})
		}
	}
	return list
}

// span is the inputs that positions lo to hi need: from first to end.
func (a *axis) span(lo, hi int) (first, end int) {
	first, end = -1, 0
	for _, p := range a.at[lo:hi] {
		if p.n == 0 {
			continue
		}
		other := p.in + (p.n-1)*a.in
		low, high := min(p.in, other), max(p.in, other)
		if first < 0 || low < first {
			first = low
		}
		end = max(end, high+1)
	}
	return max(first, 0), end
}
