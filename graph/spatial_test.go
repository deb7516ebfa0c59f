package graph_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
)

// A layer is a window over images of some axes, with the numbers that its definition needs.
type layer struct {
	win    graph.Window
	n, c   int
	size   []int // of the images
	o      int   // filters
	groups int
	extra  []int
}

// randomLayer draws a window that fits on images.
func randomLayer(r *rand.Rand, axes int, ceil bool) layer {
	l := layer{n: 1 + r.IntN(2), groups: 1 + r.IntN(2)}
	l.c, l.o = l.groups*(1+r.IntN(2)), l.groups*(1+r.IntN(2))
	l.win.Ceil = ceil
	plain := r.IntN(3) == 0 // only along the first axis
	for i := range axes {
		k, s, d, lo, hi := 1+r.IntN(3), 1+r.IntN(3), 1+r.IntN(2), r.IntN(3), r.IntN(3)
		if plain && i > 0 {
			k, s, lo, hi = 1, 1, 0, 0
		}
		l.win.Kernel, l.win.Stride, l.win.Dilation = append(l.win.Kernel, k), append(l.win.Stride, s), append(l.win.Dilation, d)
		l.win.Lo, l.win.Hi = append(l.win.Lo, lo), append(l.win.Hi, hi)
		l.size = append(l.size, max(1, d*(k-1)+1-lo-hi+r.IntN(4)))
		l.extra = append(l.extra, r.IntN(4))
	}
	return l
}

// windows is the number of windows along each axis.
func (l layer) windows() []int {
	var r []int
	w := l.win
	for i, size := range l.size {
		room := w.Lo[i] + size + w.Hi[i] - w.Dilation[i]*(w.Kernel[i]-1) - 1
		count := room/w.Stride[i] + 1
		if w.Ceil && room%w.Stride[i] != 0 && count*w.Stride[i] < w.Lo[i]+size {
			count++
		}
		r = append(r, count)
	}
	return r
}

// walk calls f with each position in a block of the given size.
func walk(size []int, f func(at []int)) {
	at := make([]int, len(size))
	var down func(i int)
	down = func(i int) {
		if i == len(size) {
			f(at)
			return
		}
		for at[i] = 0; at[i] < size[i]; at[i]++ {
			down(i + 1)
		}
	}
	down(0)
}

func offsetOf(size, at []int) (i int) {
	for j := range size {
		i = i*size[j] + at[j]
	}
	return
}

// taps calls f with the position of each element of window `at` within the padded image, its place in the window, and whether
// it is within the image, or within the padding.
func (l layer) taps(at []int, f func(place, pos []int, image, padded bool)) {
	pos := make([]int, len(at))
	walk(l.win.Kernel, func(place []int) {
		image, padded := true, true
		for i := range at {
			pos[i] = at[i]*l.win.Stride[i] - l.win.Lo[i] + place[i]*l.win.Dilation[i]
			image = image && pos[i] >= 0 && pos[i] < l.size[i]
			padded = padded && pos[i] >= -l.win.Lo[i] && pos[i] < l.size[i]+l.win.Hi[i]
		}
		f(place, pos, image, padded)
	})
}

// products calls f with the offsets of every product of a convolution: in the image, the filters and the result.
func (l layer) products(f func(x, w, y int)) {
	windows := l.windows()
	images, filters := append([]int{l.n, l.c}, l.size...), append([]int{l.o, l.c / l.groups}, l.win.Kernel...)
	results := append([]int{l.n, l.o}, windows...)
	walk(results, func(y []int) {
		first := y[1] / (l.o / l.groups) * (l.c / l.groups)
		l.taps(slices.Clone(y[2:]), func(place, pos []int, image, _ bool) {
			if !image {
				return
			}
			for c := range l.c / l.groups {
				x, w := append([]int{y[0], first + c}, pos...), append([]int{y[1], c}, place...)
				f(offsetOf(images, x), offsetOf(filters, w), offsetOf(results, y))
			}
		})
	})
}

func f64s(dims ...int) graph.Type { return graph.TypeOf(graph.F64, dims...) }

// wantNear compares a value with numbers of shape dims.
func wantNear(t *testing.T, got *graph.Tensor, want []float64, dims ...int) {
	t.Helper()
	if got.Type.Shape != graph.ShapeOf(dims...) {
		t.Fatalf("shape %v, not %v", got.Type.Shape, dims)
	}
	for i, w := range want {
		if g := got.Float(i); !(math.Abs(g-w) <= 1e-12*(1+math.Abs(w))) && g != w && !(math.IsNaN(g) && math.IsNaN(w)) {
			t.Fatalf("element %d is %v, not %v", i, g, w)
		}
	}
}

// withCost is a graph with the output y, and one with the gradient of its weighted sum for each source; see
// compareWithDifferences.
func withCost(t *testing.T, build func(b *graph.Builder) *graph.Node) (plain, costed *graph.Graph, wrt []string) {
	t.Helper()
	plain = graphtest.Built(t, func(b *graph.Builder) { b.Output("y", build(b)) })
	costed = graphtest.Built(t, func(b *graph.Builder) { b.Output("cost", weightedSum(b, build(b), rand.New(rand.NewPCG(3, 4)))) })
	grads, err := graph.Gradients(costed, costed.Outputs[0].Node, costed.Sources())
	if err != nil {
		t.Fatal(err)
	}
	b := graph.Extend(costed)
	for i, s := range costed.Sources() {
		wrt = append(wrt, s.Name)
		b.Output("d"+s.Name, grads[i])
	}
	if _, err := b.Graph(); err != nil {
		t.Fatal(err)
	}
	return plain, costed, wrt
}

// TestConvolve compares convolutions over one to three axes, their transposes and their gradients with the definition.
func TestConvolve(t *testing.T) {
	for seed := range uint64(90) {
		r := rand.New(rand.NewPCG(seed, 1))
		axes := 1 + int(seed%3)
		l := randomLayer(r, axes, false)
		x, w := f64s(append([]int{l.n, l.c}, l.size...)...), f64s(append([]int{l.o, l.c / l.groups}, l.win.Kernel...)...)
		windows := l.windows()
		ys := append([]int{l.n, l.o}, windows...)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			g, costed, wrt := withCost(t, func(b *graph.Builder) *graph.Node {
				return b.Convolve(b.Input("x", x), b.Input("w", w), l.win, l.groups)
			})
			in := graphtest.Values(r, g)
			want := make([]float64, graph.ShapeOf(ys...).Elems())
			l.products(func(x, w, y int) { want[y] += in["x"].Float(x) * in["w"].Float(w) })
			wantNear(t, evalRef(t, g, in)["y"], want, ys...)
			compareWithDifferences(t, costed, in, wrt)
		})
		full := l // images of the size that the windows cover, and extra elements
		full.size, full.win.Hi = nil, nil
		for i, count := range windows {
			s := (count-1)*l.win.Stride[i] + l.win.Dilation[i]*(l.win.Kernel[i]-1) + 1 - l.win.Lo[i] - l.win.Hi[i]
			l.extra[i] = max(l.extra[i], 1-s)
			full.size, full.win.Hi = append(full.size, s+l.extra[i]), append(full.win.Hi, l.win.Hi[i]-l.extra[i])
		}
		t.Run(fmt.Sprint(seed, " transposed"), func(t *testing.T) {
			g, costed, wrt := withCost(t, func(b *graph.Builder) *graph.Node {
				return b.ConvolveTransposed(b.Input("y", f64s(ys...)), b.Input("w", w), l.win, l.groups, l.extra)
			})
			in := graphtest.Values(r, g)
			xs := append([]int{l.n, l.c}, full.size...)
			want := make([]float64, graph.ShapeOf(xs...).Elems())
			full.products(func(x, w, y int) { want[x] += in["y"].Float(y) * in["w"].Float(w) })
			wantNear(t, evalRef(t, g, in)["y"], want, xs...)
			compareWithDifferences(t, costed, in, wrt)
		})
	}
}

// TestPools compares pools over one to three axes, and their gradients, with the definition.
func TestPools(t *testing.T) {
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 2))
		axes := 1 + int(seed%3)
		l := randomLayer(r, axes, r.IntN(2) == 0)
		if r.IntN(2) == 0 {
			l.win.Dilation = slices.Repeat([]int{1}, axes)
		}
		x := f64s(append([]int{l.n, l.c}, l.size...)...)
		windows := l.windows()
		ys := append([]int{l.n, l.c}, windows...)
		p := []float64{1, 2, 3}[r.IntN(3)]
		for kind, build := range map[string]func(b *graph.Builder, x *graph.Node) *graph.Node{
			"max":   func(b *graph.Builder, x *graph.Node) *graph.Node { return b.MaxPool(x, l.win) },
			"mean":  func(b *graph.Builder, x *graph.Node) *graph.Node { return b.AvgPool(x, l.win, false) },
			"count": func(b *graph.Builder, x *graph.Node) *graph.Node { return b.AvgPool(x, l.win, true) },
			"p":     func(b *graph.Builder, x *graph.Node) *graph.Node { return b.LpPool(x, l.win, p) },
		} {
			t.Run(fmt.Sprint(seed, kind), func(t *testing.T) {
				g, costed, wrt := withCost(t, func(b *graph.Builder) *graph.Node { return build(b, b.Input("x", x)) })
				in := graphtest.Values(r, g)
				defined := true // everywhere finite
				var want []float64
				walk(ys, func(y []int) {
					most, sum, inImage, inPadding := math.Inf(-1), 0.0, 0.0, 0.0
					l.taps(slices.Clone(y[2:]), func(_, pos []int, image, padded bool) {
						if padded {
							inPadding++
						}
						if !image {
							return
						}
						v := in["x"].Float(offsetOf(x.Shape.Slice(), append(slices.Clone(y[:2]), pos...)))
						inImage++
						most = max(most, v)
						if kind == "p" {
							v = math.Pow(math.Abs(v), p)
						}
						sum += v
					})
					defined = defined && inImage > 0
					values := map[string]float64{"max": most, "mean": sum / inImage, "count": sum / inPadding, "p": math.Pow(sum, 1/p)}
					want = append(want, values[kind])
				})
				wantNear(t, evalRef(t, g, in)["y"], want, ys...)
				if defined {
					compareWithDifferences(t, costed, in, wrt)
				}
			})
		}
	}
}

// six is images of six channels.
func six(b *graph.Builder, x *graph.Node) *graph.Node {
	return b.Add(graph.Concat{Axis: 1}, x, b.Slice(x, 1, 0, 2, 1))
}

// TestSpatialErrors checks that windows that do not fit are errors that name the operand.
func TestSpatialErrors(t *testing.T) {
	square := graph.Window{Kernel: []int{2, 2}}
	for name, c := range map[string]struct {
		build func(b *graph.Builder, x, w *graph.Node) *graph.Node
		want  string
	}{
		"filters of another rank": {func(b *graph.Builder, x, w *graph.Node) *graph.Node {
			return b.Convolve(b.Reshape(x, 1, 4, 25), w, graph.Window{}, 1)
		}, "of type f32[6,4,3,3]: want filters of rank 3"},
		"no axes": {func(b *graph.Builder, x, w *graph.Node) *graph.Node {
			return b.MaxPool(b.Reshape(x, 4, 25), graph.Window{})
		}, "want [n, c, ...]"},
		"four axes": {func(b *graph.Builder, x, w *graph.Node) *graph.Node {
			return b.MaxPool(b.Reshape(x, 1, 4, 5, 5, 1, 1), graph.Window{Kernel: []int{1, 1, 1, 1}})
		}, "one to 3 axes"},
		"another kernel": {func(b *graph.Builder, x, w *graph.Node) *graph.Node {
			return b.Convolve(x, w, square, 1)
		}, "the window is [2 2]"},
		"groups": {func(b *graph.Builder, x, w *graph.Node) *graph.Node {
			return b.Convolve(x, w, graph.Window{}, 2)
		}, "channels do not fit"},
		"transposed groups": {func(b *graph.Builder, x, w *graph.Node) *graph.Node {
			return b.ConvolveTransposed(x, w, graph.Window{}, 1, nil)
		}, "channels do not fit"},
		"negative extra": {func(b *graph.Builder, x, w *graph.Node) *graph.Node {
			return b.ConvolveTransposed(six(b, x), w, graph.Window{}, 1, []int{-1, 0})
		}, "extra elements"},
		"all cut off": {func(b *graph.Builder, x, w *graph.Node) *graph.Node {
			return b.ConvolveTransposed(six(b, x), w, graph.Window{Lo: []int{9, 0}}, 1, nil)
		}, "images of [-2 7] elements"},
		"a stride of 0": {func(b *graph.Builder, x, w *graph.Node) *graph.Node {
			return b.MaxPool(x, graph.Window{Kernel: []int{1, 1}, Stride: []int{0, 1}})
		}, "of type f32[1,4,5,5]: the stride is [0 1]: want 1 to"},
		"too large": {func(b *graph.Builder, x, w *graph.Node) *graph.Node {
			return b.AvgPool(x, graph.Window{Kernel: []int{6, 2}}, true)
		}, "does not fit"},
		"one number": {func(b *graph.Builder, x, w *graph.Node) *graph.Node {
			return b.MaxPool(x, graph.Window{Kernel: []int{2, 2}, Lo: []int{1}})
		}, "the padding before is [1] for images of 2 axes"},
		"p": {func(b *graph.Builder, x, w *graph.Node) *graph.Node { return b.LpPool(x, square, -1) }, "p = -1"},
		"padding": {func(b *graph.Builder, x, w *graph.Node) *graph.Node {
			return b.AvgPool(x, graph.Window{Kernel: []int{2, 2}, Dilation: []int{2, 1}, Hi: []int{0, 1 << 20}}, false)
		}, "is larger than the image"},
		"size": {func(b *graph.Builder, x, w *graph.Node) *graph.Node {
			return b.LpPool(x, graph.Window{Kernel: []int{2, 1 << 29}, Ceil: true}, 2)
		}, "does not fit"},
	} {
		b := graph.NewBuilder("wrong")
		c.build(b, b.Input("x", graph.TypeOf(graph.F32, 1, 4, 5, 5)), b.Input("w", graph.TypeOf(graph.F32, 6, 4, 3, 3)))
		if err := b.Err(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, c.want)
		}
		again := b.MaxPool(b.AvgPool(b.ConvolveTransposed(b.Convolve(nil, nil, square, 1), nil, square, 1, nil), square, true), square)
		if b.LpPool(again, square, 2) == nil {
			t.Errorf("%s: no node after an error", name)
		}
	}
}
