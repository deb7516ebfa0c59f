package vec

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// TestPanels compares the opcodes on panels with their definition, with and without assembly.
func TestPanels(t *testing.T) {
	testPanels[float64](t, 1e-15)
	native := strips
	defer func() { strips = native }()
	for i := range native {
		strips = native[i:]
		testPanels[float32](t, 2e-7)
	}
	strips = nil
	testPanels[float32](t, 2e-7)
}

func testPanels[T Float](t *testing.T, eps float64) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, width := range []int{1, 4, 8, 12, 16, 32} {
		for rows := range 12 {
			name := fmt.Sprintf("%T %d×%d", *new(T), rows, width)
			x, c, sum, top := make([]T, rows*width), make([]T, width), make([]T, width), make([]T, width)
			for j := range c {
				c[j], sum[j] = T(r.NormFloat64()), T(j)
				top[j] = T(math.Inf(-1))
				for i := range rows {
					x[i*width+j] = c[j] - T(r.ExpFloat64()*20)
				}
			}
			if rows > 2 {
				x[2*width] = T(math.Inf(-1))
			}
			PanelMax(x, top)
			for j := range top {
				want := math.Inf(-1)
				for i := range rows {
					want = max(want, float64(x[i*width+j]))
				}
				if float64(top[j]) != want {
					t.Errorf("%s: maximum of column %d is %v, want %v", name, j, top[j], want)
				}
			}
			y := append([]T(nil), x...)
			PanelExp(y, c, sum)
			for j := range c {
				total := float64(j)
				for i := range rows {
					want := math.Exp(float64(x[i*width+j] - c[j]))
					total += want
					if got := float64(y[i*width+j]); math.Abs(got-want) > eps*want+2e-38 {
						t.Errorf("%s: exponential [%d,%d] is %v, want %v", name, i, j, got, want)
					}
				}
				if math.Abs(float64(sum[j])-total) > 10*eps*total {
					t.Errorf("%s: sum of column %d is %v, want %v", name, j, sum[j], total)
				}
			}
			copy(x, y)
			PanelScale(y, c)
			for i, v := range x {
				if want := v * c[i%width]; y[i] != want {
					t.Errorf("%s: scaled element %d is %v, want %v", name, i, y[i], want)
				}
			}
		}
	}
	// NaN does not become the maximum, but stays what it is.
	for _, width := range []int{2, 16} {
		x, top, sum := make([]T, 2*width), make([]T, width), make([]T, width)
		x[1], x[width], x[width+1] = T(math.NaN()), 3, 4
		PanelMax(x, top)
		PanelExp(x, top, sum)
		if top[0] != 3 || top[1] != 4 || !(sum[0] > 1) || sum[1] == sum[1] {
			t.Errorf("%T, width %d, with NaN: maxima %v, sums %v", *new(T), width, top, sum)
		}
	}
}
