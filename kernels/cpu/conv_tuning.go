package cpu

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"fusec/graph"
	"fusec/graph/body"
)

// A Convolution is what a way of computing is measured for: a [graph.Conv2D] with operands of such sizes, in either layout.
type Convolution struct {
	DType                           graph.DType
	Images, Channels, Height, Width int
	Filters, KH, KW                 int
	Stride, Dilation, Pad           graph.Ints
	Groups                          int
}

// ConvolutionOf is the convolution of images and filters of types x and w.
func ConvolutionOf(op graph.Conv2D, x, w graph.Type) Convolution {
	c := Convolution{DType: x.DType, Stride: op.Stride, Dilation: op.Dilation, Pad: op.Pad, Groups: op.Groups}
	c.Images, c.Channels, c.Height, c.Width = op.Layout.ImageDims(x.Shape)
	c.Filters, _, c.KH, c.KW = op.Layout.FilterDims(w.Shape)
	return c
}

// Op is the convolution in a layout, with the types of its images and filters.
func (c Convolution) Op(l graph.ImageLayout) (op graph.Conv2D, x, w graph.Type) {
	return graph.Conv2D{Stride: c.Stride, Dilation: c.Dilation, Pad: c.Pad, Groups: c.Groups, Layout: l},
		graph.Type{DType: c.DType, Shape: l.Image(c.Images, c.Channels, c.Height, c.Width)},
		graph.Type{DType: c.DType, Shape: l.Filters(c.Filters, c.Channels/c.Groups, c.KH, c.KW)}
}

// String is one word, such as f32:1x64x56x56:64x3x3:s1x1:d1x1:p1x1x1x1:g1: the element type, the images, the filters, stride,
// dilation, padding (top, left, bottom, right) and groups.
func (c Convolution) String() string {
	by := func(list ...int) string { return strings.Trim(strings.ReplaceAll(fmt.Sprint(list), " ", "x"), "[]") }
	return fmt.Sprintf("%v:%s:%s:s%s:d%s:p%s:g%d", c.DType, by(c.Images, c.Channels, c.Height, c.Width), by(c.Filters, c.KH, c.KW),
		by(c.Stride.Slice()...), by(c.Dilation.Slice()...), by(c.Pad.Slice()...), c.Groups)
}

// parseConvolution is the inverse of [Convolution.String].
func parseConvolution(word string) (c Convolution, err error) {
	name, sizes, _ := strings.Cut(word, ":")
	if c.DType, err = graph.ParseDType(name); err != nil {
		return c, err
	}
	var s, d [2]int
	var p [4]int
	_, err = fmt.Sscanf(sizes, "%dx%dx%dx%d:%dx%dx%d:s%dx%d:d%dx%d:p%dx%dx%dx%d:g%d", &c.Images, &c.Channels, &c.Height, &c.Width,
		&c.Filters, &c.KH, &c.KW, &s[0], &s[1], &d[0], &d[1], &p[0], &p[1], &p[2], &p[3], &c.Groups)
	c.Stride, c.Dilation, c.Pad = graph.IntsOf(s[:]...), graph.IntsOf(d[:]...), graph.IntsOf(p[:]...)
	if err != nil || c.String() != word || c.Groups < 1 || min(c.Images, c.Channels, c.Height, c.Width, c.Filters, c.KH, c.KW) < 0 {
		return c, fmt.Errorf("%q is no convolution", word)
	}
	op, x, w := c.Op(graph.NCHW)
	_, err = graph.InfoOf(op).Infer(op, []graph.Type{x, w})
	return c, err
}

// An Algorithm computes convolutions.
type Algorithm string

// The algorithms.
const (
	Im2Col    Algorithm = "im2col"    // in NCHW: filters times patches, see newConvNCHW
	Direct    Algorithm = "direct"    // in NHWC: see package conv
	Depthwise Algorithm = "depthwise" // in NHWC, a filter or some for each channel: see package depthwise
	Winograd  Algorithm = "winograd"  // in NHWC, filters that are frozen: see package winograd
)

// A Way is how a convolution is computed.
type Way struct {
	Algorithm Algorithm
	Tile      int // of Winograd
	Band      int // most pixels, of Winograd tiles, that are computed at a time; 0 chooses by the shape
}

// WayOf is how the kernels compute a convolution without tuning, if filters are frozen.
func WayOf(op graph.Conv2D, x, w graph.Type) Way {
	_, channels, _, _ := op.Layout.ImageDims(x.Shape)
	switch {
	case op.Layout == graph.NCHW:
		return Way{Algorithm: Im2Col}
	case op.Groups > 1 && op.Groups == channels:
		return Way{Algorithm: Depthwise}
	case op.Winograd != 0:
		return Way{Algorithm: Winograd, Tile: op.Winograd}
	}
	return Way{Algorithm: Direct}
}

// Op is the convolution computed in a way, with the types of its images and filters.
func (w Way) Op(c Convolution) (op graph.Conv2D, images, filters graph.Type) {
	l := graph.NHWC
	if w.Algorithm == Im2Col {
		l = graph.NCHW
	}
	op, images, filters = c.Op(l)
	op.Winograd = w.Tile
	return op, images, filters
}

// String is one word, such as winograd:4:32: the algorithm, its tile, and the band if there is one.
func (w Way) String() string {
	s := string(w.Algorithm)
	if w.Tile > 0 {
		s += ":" + strconv.Itoa(w.Tile)
	}
	if w.Band > 0 {
		s += ":" + strconv.Itoa(w.Band)
	}
	return s
}

// Ways lists how a convolution with frozen filters can be computed, first as the kernels do it without tuning.
func (c Convolution) Ways() []Way {
	op, x, w := c.Op(graph.NHWC)
	first := WayOf(op, x, w)
	list := []Way{first}
	allowed := func() bool {
		_, err := graph.InfoOf(op).Infer(op, []graph.Type{x, w})
		return err == nil
	}
	if first.Algorithm == Direct {
		for _, band := range []int{48, 96, 192, 384} {
			list = append(list, Way{Algorithm: Direct, Band: band})
		}
		for _, tile := range []int{2, 4} {
			if op.Winograd = tile; !allowed() {
				continue
			}
			for _, band := range []int{0, 24, 48, 96} {
				list = append(list, Way{Algorithm: Winograd, Tile: tile, Band: band})
			}
		}
	}
	return append(list, Way{Algorithm: Im2Col})
}

// A Tuning is the times of convolutions that were measured on one chip, in some ways. What it lacks goes by rules. A nil
// Tuning lacks everything.
type Tuning struct {
	Chip  string
	Times map[Convolution]map[Way]time.Duration
}

// Best is the way by one of the algorithms that was measured to be fastest, and its time; 0 if none was measured.
func (t *Tuning) Best(c Convolution, among ...Algorithm) (best Way, least time.Duration) {
	if t == nil {
		return best, 0
	}
	for w, d := range t.Times[c] {
		if slices.Contains(among, w.Algorithm) && (least == 0 || d < least || d == least && w.String() < best.String()) {
			best, least = w, d
		}
	}
	return best, least
}

// winogradWorth is the least part of its time that Winograd's algorithm saves where it is chosen: it rounds more.
const winogradWorth = 0.05

// Fastest is the way with images in a layout that was measured to be fastest, and its time; 0 if none was measured. Winograd's
// algorithm counts if it saves at least 5 % of the time of the other.
func (t *Tuning) Fastest(c Convolution, l graph.ImageLayout) (Way, time.Duration) {
	if l == graph.NCHW {
		return t.Best(c, Im2Col)
	}
	way, least := t.Best(c, Direct, Depthwise)
	if w, d := t.Best(c, Winograd); least > 0 && d > 0 && float64(d) < (1-winogradWorth)*float64(least) {
		return w, d
	}
	return way, least
}

// Tuned is the way of a convolution, as the kernels choose it; ok reports whether it was measured.
func (t *Tuning) Tuned(op graph.Conv2D, x, w graph.Type) (way Way, ok bool) {
	way = WayOf(op, x, w)
	if t == nil {
		return way, false
	}
	var least time.Duration
	for measured, d := range t.Times[ConvolutionOf(op, x, w)] {
		if measured.Algorithm == way.Algorithm && measured.Tile == way.Tile &&
			(!ok || d < least || d == least && measured.Band < way.Band) {
			way, least, ok = measured, d, true
		}
	}
	return way, ok
}

// bandOf is the band of a convolution of two operands, 0 if it is chosen by the shape.
func (t *Tuning) bandOf(op graph.Conv2D, x, w body.Operand) int {
	way, _ := t.Tuned(op, x.Node.Type.Reshaped(x.Layout.Shape), w.Node.Type.Reshaped(w.Layout.Shape))
	return way.Band
}

// Text is the way in words.
func (w Way) Text() string {
	s := string(w.Algorithm)
	if w.Tile > 0 {
		s += fmt.Sprintf(" %d×%[1]d", w.Tile)
	}
	if w.Band > 0 {
		s += fmt.Sprintf(" in bands of %d", w.Band)
	}
	return s
}

// tuningHead begins a tuning's text; the chip's name follows.
const tuningHead = "fusec tuning 1 "

// String is a readable text that [ParseTuning] reads: a line for each convolution and way, with the time in nanoseconds.
func (t *Tuning) String() string {
	var b strings.Builder
	b.WriteString(tuningHead + t.Chip + "\n")
	byText := func(a, b Convolution) int { return cmp.Compare(a.String(), b.String()) }
	for _, c := range slices.SortedFunc(maps.Keys(t.Times), byText) {
		for _, w := range slices.SortedFunc(maps.Keys(t.Times[c]), func(a, b Way) int { return cmp.Compare(a.String(), b.String()) }) {
			fmt.Fprintf(&b, "%v %v %d\n", c, w, t.Times[c][w].Nanoseconds())
		}
	}
	return b.String()
}

// ParseTuning is the inverse of [Tuning.String]. A way that a convolution does not have, or a time that is not positive, is an
// error that names the line.
func ParseTuning(text string) (*Tuning, error) {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	chip, ok := strings.CutPrefix(lines[0], tuningHead)
	if !ok {
		return nil, fmt.Errorf("a tuning begins with %q, not %q", tuningHead, lines[0])
	}
	t := &Tuning{Chip: chip, Times: map[Convolution]map[Way]time.Duration{}}
	for i, l := range lines[1:] {
		words := strings.Split(l, " ")
		if len(words) != 3 {
			return nil, fmt.Errorf("line %d is no convolution, its way and its time: %q", i+2, l)
		}
		c, err := parseConvolution(words[0])
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+2, err)
		}
		ns, err := strconv.ParseInt(words[2], 10, 64)
		if err != nil || ns <= 0 {
			return nil, fmt.Errorf("line %d: the time is %q", i+2, words[2])
		}
		at := slices.IndexFunc(c.Ways(), func(w Way) bool { return w.String() == words[1] })
		if at < 0 {
			return nil, fmt.Errorf("line %d: there is no way %q of such a convolution", i+2, words[1])
		}
		if t.Times[c] == nil {
			t.Times[c] = map[Way]time.Duration{}
		}
		t.Times[c][c.Ways()[at]] = time.Duration(ns)
	}
	return t, nil
}
