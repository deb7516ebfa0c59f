package depthwise

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"fusec/graph"
)

// testPlanes compares convolutions of planes with those of images of NHWC.
func testPlanes[T Float](t *testing.T) {
	r := rand.New(rand.NewPCG(91, 92))
	for n := range 60 {
		images, channels, h, w, kh := 1+r.IntN(2), 2+r.IntN(5), 1+r.IntN(20), 1+r.IntN(40), 1+r.IntN(3)
		pad := graph.IntsOf(r.IntN(5), r.IntN(3), r.IntN(5), r.IntN(3))
		oh, ow := h+pad.At(0)+pad.At(2)-kh+1, w+pad.At(1)+pad.At(3)-2
		if oh < 1 || ow < 1 {
			continue
		}
		op := graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: pad, Groups: channels}
		x := graph.Contiguous(graph.ShapeOf(images, channels, h+1, w+2)).Slice(2, 1, h, 1).Slice(3, 1, w, 1)
		cfg := PlanesConfig{Op: op, X: x, W: graph.Contiguous(graph.ShapeOf(channels, 1, kh, 3)),
			Y: graph.Contiguous(graph.ShapeOf(images, channels, oh, ow))}
		k := NewPlanes[T](cfg, 1)
		if k == nil {
			t.Skip("this processor has no kernel for planes: AVX-512 has")
		}
		if k.Bytes() <= 0 {
			t.Error("a plan without memory")
		}
		xs, ws, shift := drawn[T](r, images*channels*(h+1)*(w+2)), drawn[T](r, channels*kh*3), drawn[T](r, channels)
		y := drawn[T](r, images*channels*oh*ow)
		low, high := T(-0.5), T(0.75)
		bias := shift
		if n%3 == 0 {
			bias = nil
		}
		k.Bind(xs, ws, y, bias, low, high)
		for item := range k.Items() {
			k.Do(0, item)
		}
		k.Bind(nil, nil, nil, nil, 0, 0)
		for i, got := range y {
			image, channel, oy, ox := i/ow/oh/channels, i/ow/oh%channels, i/ow%oh, i%ow
			var want, terms float64
			if bias != nil {
				want = float64(bias[channel])
			}
			for tap := range kh * 3 {
				iy, ix := oy-pad.At(0)+tap/3, ox-pad.At(1)+tap%3
				if iy < 0 || iy >= h || ix < 0 || ix >= w {
					continue
				}
				v := float64(xs[x.Offset+image*x.Stride[0]+channel*x.Stride[1]+iy*x.Stride[2]+ix]) * float64(ws[channel*kh*3+tap])
				want, terms = want+v, terms+max(v, -v)
			}
			want = min(max(want, float64(low)), float64(high))
			if d := float64(got) - want; !(max(d, -d) <= 1e-5*(terms+1)) {
				t.Fatalf("%v of %v: element %d is %v, want %v", op, x, i, got, want)
			}
		}
	}
}

func TestPlanes(t *testing.T) {
	t.Run("float32", testPlanes[float32])
	t.Run("float64", testPlanes[float64])
}

// TestPlanesRefused names convolutions that there is no kernel for.
func TestPlanesRefused(t *testing.T) {
	one, two := graph.IntsOf(1, 1), graph.IntsOf(2, 2)
	for i, c := range []struct {
		stride, dilation graph.Ints
		groups, kh, kw   int
	}{{two, one, 4, 3, 3}, {one, two, 4, 3, 3}, {one, one, 2, 3, 3}, {one, one, 4, 4, 3}, {one, one, 4, 3, 2}} {
		op := graph.Conv2D{Stride: c.stride, Dilation: c.dilation, Pad: graph.IntsOf(0, 0, 0, 0), Groups: c.groups}
		if TakesPlanes[float32](op, 4, c.kh, c.kw) {
			t.Error(fmt.Sprint(i), "is taken")
		}
	}
}
