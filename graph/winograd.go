package graph

import "fmt"

// A Winograd is the three matrices of the algorithm F(m×m, 3×3): a tile of m×m elements of a convolution is
//
//	Aᵀ·(Σ (G·g·Gᵀ) ⊙ (Bᵀ·d·B))·A
//
// with the sum over channels, g a filter, and d the m+2 elements to a side that the tile depends on (A. Lavin and S. Gray, "Fast
// Algorithms for Convolutional Neural Networks", arXiv 1509.09308). B and A are given transposed. A row of G and of B, and a
// column of A, is one of the m+2 points.
//
// An implementation in f32 is off by at most ε times
//
//	|Aᵀ|·(Σ (|G|·|g|·|Gᵀ|) ⊙ (|Bᵀ|·|d|·|B|))·|A|
//
// the sum of the sizes of the algorithm's own terms (B. Barabasz et al., "Error Analysis and Improving the Accuracy of Winograd
// Convolution for Deep Neural Networks", arXiv 1803.10986), with the ε of [DType.Tolerance], as a convolution by its definition
// is by ε·Σ|terms|. For elements of one size this is about 7 times as much with m = 2, and 37 times with m = 4; for an element
// of large ones around small ones it may be any number of times. An element that is not finite, or so large that the
// transform overflows, spoils all tiles that depend on it.
type Winograd struct {
	Tile    int // m
	B, G, A [][]float64
}

// WinogradOf is F(2×2, 3×3), with the points 0, 1, −1 and infinity, or F(4×4, 3×3), with 0, ±5/8, ±3/2 and infinity: these
// give about half the rounding errors of the small integers (S. A. Alam et al., "Winograd Convolution for Deep Neural Networks:
// Efficient Point Selection", arXiv 2201.10369). All elements of B and A are exact in float32. Other tiles are an error.
func WinogradOf(tile int) (Winograd, error) {
	var points []float64
	switch tile {
	case 2:
		points = []float64{0, 1, -1}
	case 4:
		points = []float64{0, 5. / 8, -5. / 8, 3. / 2, -3. / 2}
	default:
		return Winograd{}, fmt.Errorf("there is no Winograd algorithm for tiles of %d×%d: only for 2×2 and 4×4", tile, tile)
	}
	w := Winograd{Tile: tile, A: make([][]float64, tile)}
	// without is Π (x − q) over the points q but one, as coefficients of 1, x, x², …
	without := func(skip int) []float64 {
		c := make([]float64, tile+2)
		c[0] = 1
		for i, q := range points {
			if i == skip {
				continue
			}
			for j := tile + 1; j >= 0; j-- {
				c[j] *= -q
				if j > 0 {
					c[j] += c[j-1]
				}
			}
		}
		return c
	}
	power := make([]float64, len(points)) // of each point, p⁰ first
	for i, p := range points {
		power[i] = 1
		scale := 1.
		for j, q := range points {
			if i != j {
				scale *= p - q
			}
		}
		w.B = append(w.B, without(i))
		w.G = append(w.G, []float64{1 / scale, p / scale, p * p / scale})
	}
	w.B = append(w.B, without(-1))
	w.G = append(w.G, []float64{0, 0, 1})
	for i := range w.A {
		w.A[i] = append(w.A[i], power...)
		last := 0.
		if i == tile-1 {
			last = 1
		}
		w.A[i] = append(w.A[i], last)
		for j, p := range points {
			power[j] *= p
		}
	}
	return w, nil
}

// WinogradTile is the tile of the algorithm of Winograd that an operation allows, 0 if it allows none.
func WinogradTile(op Op) int {
	switch op := op.(type) {
	case Conv2D:
		return op.Winograd
	case Conv2DTranspose:
		return op.Winograd
	}
	return 0
}

// winogradOf reports why the convolution of operands of these types has no Winograd algorithm.
func (c Conv2D) winogradOf(args []Type) error {
	if _, err := WinogradOf(c.Winograd); err != nil {
		return err
	}
	_, _, kh, kw := c.Layout.FilterDims(args[1].Shape)
	one := IntsOf(1, 1)
	if kh != 3 || kw != 3 || c.Stride != one || c.Dilation != one || c.Groups != 1 || args[0].DType != F32 {
		return fmt.Errorf("the algorithm of Winograd is for filters of 3×3, stride and dilation 1, one group and f32, "+
			"not for filters of %d×%d, stride %v, dilation %v, %d groups and %v", kh, kw, c.Stride, c.Dilation, c.Groups, args[0].DType)
	}
	return nil
}
