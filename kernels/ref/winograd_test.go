package ref

import (
	"math"
	"math/rand/v2"
	"testing"

	"fusec/graph"
)

// TestWinograd compares the bound with that of the definition: the value is the same, the bound of an element is not below it,
// holds what the algorithm makes of neighbours, and is open where the transform may overflow.
func TestWinograd(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	draw := func(dims ...int) Value {
		v := zeros(graph.TypeOf(graph.F32, dims...))
		for i := range v.F {
			v.F[i] = float64(float32(r.NormFloat64()))
		}
		return v
	}
	for _, layout := range []graph.ImageLayout{graph.NCHW, graph.NHWC} {
		for _, tile := range []int{2, 4} {
			op := graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(1, 0, 2, 1), Groups: 1,
				Layout: layout}
			x, w := draw(layout.Image(2, 3, 6, 9).Slice()...), draw(layout.Filters(2, 3, 3, 3).Slice()...)
			compute := func(tile int) Value {
				op.Winograd = tile
				v, err := OpBound(op, []Value{x, w})
				if err != nil {
					t.Fatal(err)
				}
				return v[0]
			}
			plain, v := compute(0), compute(tile)
			ratio := 0.0
			for i := range v.F {
				if v.F[i] != plain.F[i] || v.Mag[i] < plain.Mag[i] {
					t.Fatalf("element %d is %v ± %v, by the definition %v ± %v", i, v.F[i], v.Mag[i], plain.F[i], plain.Mag[i])
				}
				ratio += v.Mag[i] / plain.Mag[i] / float64(len(v.F))
			}
			if most := map[int]float64{2: 15, 4: 80}[tile]; ratio < 4 || ratio > most {
				t.Errorf("F(%d): the bound is %v times that of the definition", tile, ratio)
			}
			// The first tile depends on the first element, the last one of the first row does not.
			for _, bad := range []float64{math.NaN(), math.Inf(1), 1e38} {
				x.F[0] = bad
				v := compute(tile)
				last := offset(v.Type.Shape, layout.Image(0, 0, 0, 7).Slice())
				if v.Mag[0] != unsure || v.Mag[last] == unsure {
					t.Errorf("F(%d) with %v: the bounds are %v and %v", tile, bad, v.Mag[0], v.Mag[last])
				}
			}
			x.F[0] = 1
			w.F[0] = math.Inf(-1)
			for i, mag := range compute(tile).Mag {
				if o := i % 2; layout == graph.NHWC && (mag == unsure) != (o == 0) {
					t.Fatalf("F(%d) with an infinite filter: the bound of %d is %v", tile, i, mag)
				}
			}
		}
	}
}

// TestWinogradTransposed compares the transpose of a convolution with its definition: the value is the same but for the order of
// the sum, and the bound of an element is not below it.
func TestWinogradTransposed(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	draw := func(s graph.Shape) Value {
		v := zeros(graph.TypeOf(graph.F32, s.Slice()...))
		for i := range v.F {
			v.F[i] = float64(float32(r.NormFloat64()))
		}
		return v
	}
	for _, l := range []graph.ImageLayout{graph.NCHW, graph.NHWC} {
		for _, pad := range []graph.Ints{graph.IntsOf(1, 0, 2, 1), graph.IntsOf(0, 0, 0, 0), graph.IntsOf(2, 2, 2, 2)} {
			op := graph.Conv2DTranspose{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: pad, Groups: 1, H: 6, W: 9, Layout: l}
			dy := draw(l.Image(2, 5, 6+pad.At(0)+pad.At(2)-2, 9+pad.At(1)+pad.At(3)-2))
			w := draw(l.Filters(5, 3, 3, 3))
			var values [2]Value
			for i, tile := range []int{0, 4} {
				op.Winograd = tile
				v, err := OpBound(op, []Value{dy, w})
				if err != nil {
					t.Fatal(err)
				}
				values[i] = v[0]
			}
			plain, v := values[0], values[1]
			for i := range v.F {
				if math.Abs(v.F[i]-plain.F[i]) > 1e-12*plain.Mag[i] || v.Mag[i] < plain.Mag[i]*(1-1e-12) {
					t.Fatalf("%v, element %d is %v ± %v, by the definition %v ± %v", l, i, v.F[i], v.Mag[i], plain.F[i], plain.Mag[i])
				}
			}
		}
	}
}
