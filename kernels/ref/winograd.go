package ref

import (
	"fmt"
	"math"
	"slices"

	"fusec/graph"
)

// winograd is a convolution by its definition, with the magnitudes of Winograd's algorithm; see [graph.Winograd].
func winograd(op graph.Conv2D, x, w Value, t graph.Type) (Value, error) {
	algorithm, err := graph.WinogradOf(op.Winograd)
	if err != nil {
		return Value{}, err
	}
	sum := func(x, w Value) Value { return winogradTerms(op, algorithm, x, w, t) }
	v := conv2D(op, x, w, t)
	v.bilinearBound(x, w, func(x, w Value) Value { return conv2D(op, x, w, t) }, func(x, w Value) Value {
		return sum(raised(x), raised(w))
	})
	for i, mag := range v.Mag {
		if mag > most(t.DType) {
			v.Mag[i] = unsure
		}
	}
	for i, operand := range [...]Value{x, w} {
		bad := spoils(operand)
		if !slices.Contains(bad.F, 1) {
			continue
		}
		spoilt := Value{}
		if i == 0 {
			spoilt = sum(bad, ones(w.Type))
		} else {
			spoilt = sum(ones(x.Type), bad)
		}
		for j, s := range spoilt.F {
			if s > 0 {
				v.Mag[j] = unsure
			}
		}
	}
	return v, nil
}

// winogradTransposed is the transpose of a convolution by the convolution that it is; see [graph.Conv2DTranspose.Forward].
func winogradTransposed(op graph.Conv2DTranspose, dy, w Value, t graph.Type) (Value, error) {
	s := w.Type.Shape
	kernel, others := [2]int{2, 3}, [2]int{0, 1} // axes of filters
	if op.Layout == graph.NHWC {
		kernel, others = others, kernel
	}
	forward, ok := op.Forward(s.At(kernel[0]), s.At(kernel[1]))
	if !ok {
		return Value{}, fmt.Errorf("%s with the algorithm of Winograd is no convolution", op.OpName())
	}
	turned := w.Type.Reshaped(s.With(others[0], s.At(others[1])).With(others[1], s.At(others[0])))
	return winograd(forward, dy, pick(w, turned, indexOf(turned.Shape, func(at []int) int {
		from := slices.Clone(at)
		for _, axis := range kernel {
			from[axis] = s.At(axis) - 1 - at[axis]
		}
		from[others[0]], from[others[1]] = at[others[1]], at[others[0]]
		return offset(s, from)
	})), t)
}

// raised is v with the smallest normal number added: what is below may be lost before it is multiplied.
func raised(v Value) Value {
	r := zeros(v.Type)
	for i, x := range v.F {
		r.F[i] = x + least(v.Type.DType)
	}
	return r
}

func ones(t graph.Type) Value {
	v := zeros(t)
	for i := range v.F {
		v.F[i] = 1
	}
	return v
}

// spoils is 1 for each element that a transform may make what is not finite of.
func spoils(x Value) Value {
	v := zeros(x.Type)
	for i := range v.F {
		if !(math.Abs(x.F[i]) < most(x.Type.DType)/64) {
			v.F[i] = 1
		}
	}
	return v
}

// winogradTerms is |Aᵀ|·(Σ (|G|·g·|Gᵀ|) ⊙ (|Bᵀ|·d·|B|))·|A| for each tile, of images x and filters w that are not negative.
func winogradTerms(op graph.Conv2D, by graph.Winograd, x, w Value, t graph.Type) Value {
	v, l := zeros(t), op.Layout
	o, channels, _, _ := l.FilterDims(w.Type.Shape)
	_, _, height, width := l.ImageDims(x.Type.Shape)
	images, _, oh, ow := l.ImageDims(t.Shape)
	points := len(by.B)
	filters := make([][][]float64, o*channels) // transformed
	for i := range filters {
		filters[i] = bothSides(by.G, 3, func(r, c int) float64 {
			return w.F[offset(w.Type.Shape, l.Filters(i/channels, i%channels, r, c).Slice())]
		})
	}
	each(graph.ShapeOf(images, (oh+by.Tile-1)/by.Tile, (ow+by.Tile-1)/by.Tile), func(_ int, at []int) {
		top, left := at[1]*by.Tile, at[2]*by.Tile
		patches := make([][][]float64, channels)
		for ch := range patches {
			patches[ch] = bothSides(by.B, points, func(r, c int) float64 {
				r, c = top+r-op.Pad.At(0), left+c-op.Pad.At(1)
				if r < 0 || r >= height || c < 0 || c >= width {
					return 0
				}
				return x.F[offset(x.Type.Shape, l.Image(at[0], ch, r, c).Slice())]
			})
		}
		for f := range o {
			tile := bothSides(by.A, points, func(r, c int) (sum float64) {
				for ch := range patches {
					sum += filters[f*channels+ch][r][c] * patches[ch][r][c]
				}
				return sum
			})
			for r := range min(by.Tile, oh-top) {
				for c := range min(by.Tile, ow-left) {
					v.F[offset(t.Shape, l.Image(at[0], f, top+r, left+c).Slice())] = tile[r][c]
				}
			}
		}
	})
	return v
}

// bothSides is |m|·d·|mᵀ| of a matrix d with n rows and columns.
func bothSides(m [][]float64, n int, d func(r, c int) float64) [][]float64 {
	half := make([][]float64, n) // d·|mᵀ|
	for r := range half {
		half[r] = make([]float64, len(m))
		for c := range n {
			e := d(r, c)
			for j := range m {
				half[r][j] += e * math.Abs(m[j][c])
			}
		}
	}
	y := make([][]float64, len(m))
	for i := range y {
		y[i] = make([]float64, len(m))
		for r := range n {
			for j := range y[i] {
				y[i][j] += math.Abs(m[i][r]) * half[r][j]
			}
		}
	}
	return y
}
