package cpu

import (
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	kernels "fusec/kernels/cpu"
	"fusec/passes/layout"
	"fusec/passes/pools"
)

var (
	_ layout.Coster       = (*Device)(nil)
	_ layout.Packer       = (*Device)(nil)
	_ layout.PlanesReader = (*Device)(nil)
	_ pools.Pooler        = (*Device)(nil)
)

// TestImageTime compares the times of operations in two layouts as they were measured.
func TestImageTime(t *testing.T) {
	d := New()
	defer d.Close()
	pair := func(n int) graph.Ints { return graph.IntsOf(n, n) }
	f := func(s graph.Shape) graph.Type { return graph.Type{DType: graph.F32, Shape: s} }
	type images struct{ x, w graph.Shape }
	in := func(l graph.ImageLayout, c, size, o, groups, k int) images {
		return images{l.Image(1, c, size, size), l.Filters(o, c/groups, k, k)}
	}
	for name, c := range map[string]struct{ c, size, o, groups, k int }{
		"3×3": {64, 56, 64, 1, 3}, "1×1": {256, 56, 64, 1, 1}, "stem": {3, 224, 64, 1, 7}, "one channel": {1, 28, 6, 1, 5},
		"depthwise": {128, 56, 128, 128, 3},
	} {
		var times [2]float64
		for l := range times {
			layout := graph.ImageLayout(l)
			s := in(layout, c.c, c.size, c.o, c.groups, c.k)
			op := graph.Conv2D{Stride: pair(1), Dilation: pair(1), Pad: graph.IntsOf(c.k/2, c.k/2, c.k/2, c.k/2), Groups: c.groups,
				Layout: layout}
			args := []graph.Type{f(s.x), f(s.w)}
			results, err := graph.InfoOf(op).Infer(op, args)
			if err != nil {
				t.Fatal(err)
			}
			times[l] = d.ImageTime(op, args, results).Seconds()
			if layout == graph.NHWC && d.PacksFilters(op, args[1]) != (c.c > c.groups) {
				t.Errorf("%s: packs filters: %v", name, c.c == c.groups)
			}
		}
		least, op := 1.2, graph.Conv2D{Stride: pair(1), Dilation: pair(1), Groups: c.groups}
		inPlace := kernels.TakesPlanes(op, in(graph.NCHW, c.c, c.size, c.o, c.groups, c.k).w)
		if name == "1×1" || inPlace && (name == "stem" || name == "depthwise") { // faster in NHWC by less than two conversions take
			least = 1
			convert := 0.0
			for _, shape := range []graph.Shape{graph.ShapeOf(1, c.c, c.size, c.size), graph.ShapeOf(1, c.o, c.size, c.size)} {
				convert += d.ImageTime(graph.Transpose{Perm: graph.ImagePerm(graph.NCHW, graph.NHWC)}, []graph.Type{f(shape)}, nil).Seconds()
			}
			if times[0] > times[1]+convert {
				t.Errorf("%s: %v s in NCHW, %v s in NHWC with conversions", name, times[0], times[1]+convert)
			}
		}
		if times[1] <= 0 || times[0] < least*times[1] {
			t.Errorf("%s: %v s in NCHW, %v s in NHWC", name, times[0], times[1])
		}
	}
	x := f(graph.ShapeOf(1, 64, 56, 56))
	move := graph.Transpose{Perm: graph.ImagePerm(graph.NCHW, graph.NHWC)}
	if d.ImageTime(move, []graph.Type{x}, nil) <= 0 || d.ImageTime(graph.Copy{}, []graph.Type{x}, []graph.Type{x}) != 0 {
		t.Error("a conversion takes no time, or a copy takes some")
	}
}

// TestPoolsConvolution: a pool joins a convolution whose images are larger than a cache, and that there is a kernel for.
func TestPoolsConvolution(t *testing.T) {
	d := New()
	none := graph.IntsOf(0, 0, 0, 0)
	for side, want := range map[int]string{8: "stay in the cache", 400: ""} {
		for _, after := range []graph.UnaryFn{graph.Relu, graph.Tanh} {
			b := graph.NewBuilder("")
			x, w := b.Input("x", graph.TypeOf(graph.F32, 1, side, side, 3)), b.Input("w", graph.TypeOf(graph.F32, 1, 1, 3, 16))
			y := b.Unary(after, b.Add(graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: none, Groups: 1,
				Layout: graph.NHWC}, x, w))
			two := graph.IntsOf(2, 2)
			y = b.Add(graph.Pool{Fn: graph.MaxPool, Kernel: two, Stride: two, Pad: none, Layout: graph.NHWC}, y)
			b.Output("y", y)
			g := graphtest.Graph(t, b)
			why := want
			if want == "" && after == graph.Tanh {
				why = "what is between"
			}
			err := d.PoolsConvolution(graph.Fusion{Anchor: graph.AnchorConv, Body: g}, []graph.Type{x.Type, w.Type}, y.Type)
			if (err == nil) != (why == "") || err != nil && !strings.Contains(err.Error(), why) {
				t.Errorf("%d pixels a side, %v: %v", side, after, err)
			}
			if err := d.PoolsConvolution(graph.Fusion{Anchor: graph.AnchorConv, Body: g}, []graph.Type{x.Type}, y.Type); err == nil {
				t.Error("a fusion without filters has a kernel")
			}
		}
	}
}

// TestReadsPlanes: convolutions of pictures read them as they lie, unless they are computed by Winograd's algorithm.
func TestReadsPlanes(t *testing.T) {
	d := New()
	defer d.Close()
	pair := func(n int) graph.Ints { return graph.IntsOf(n, n) }
	f := func(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }
	conv := graph.Conv2D{Stride: pair(2), Dilation: pair(1), Pad: graph.IntsOf(1, 1, 1, 1), Groups: 1, Layout: graph.NHWC}
	groups, close, near, filters := conv, conv, f(1, 64, 64, 4), f(3, 3, 4, 64)
	groups.Groups, close.Stride = 3, pair(1)
	for name, c := range map[string]struct {
		op   graph.ImageOp
		x, w graph.Type
		want bool
	}{
		"stem":        {conv, f(1, 224, 224, 3), f(3, 3, 3, 32), true},
		"many":        {conv, f(1, 224, 224, 16), f(3, 3, 16, 32), false},
		"groups":      {groups, f(1, 224, 224, 3), f(3, 3, 1, 3), false},
		"pool":        {graph.Pool{}, f(1, 224, 224, 3), f(), false},
		"wrong sizes": {conv, f(1, 224, 224, 3), f(3, 3, 4, 32), false},
		"stride 1":    {close, near, filters, d.WinogradTile(close, []graph.Type{near, filters}, f(1, 64, 64, 64), true, false) == 0},
	} {
		if got := d.ReadsPlanes(c.op, []graph.Type{c.x, c.w}); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
