package graph_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
)

// TestWinogradOf computes convolutions along an axis, and checks that the matrices which are applied in float32 are exact there.
func TestWinogradOf(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, tile := range []int{2, 4} {
		w, err := graph.WinogradOf(tile)
		if err != nil {
			t.Fatal(err)
		}
		for _, rows := range [][][]float64{w.B, w.A} {
			for _, row := range rows {
				for _, v := range row {
					if float64(float32(v)) != v {
						t.Errorf("F(%d): %v is not exact", tile, v)
					}
				}
			}
		}
		dot := func(row, x []float64) (sum float64) {
			for i := range row {
				sum += row[i] * x[i]
			}
			return sum
		}
		d, g := make([]float64, tile+2), make([]float64, 3)
		for i := range d {
			d[i] = r.NormFloat64()
		}
		for i := range g {
			g[i] = r.NormFloat64()
		}
		m := make([]float64, len(w.B))
		for i := range m {
			m[i] = dot(w.B[i], d) * dot(w.G[i], g)
		}
		for i, row := range w.A {
			if got, want := dot(row, m), dot(g, d[i:]); math.Abs(got-want) > 1e-13 {
				t.Errorf("F(%d): element %d is %v, want %v", tile, i, got, want)
			}
		}
	}
	if _, err := graph.WinogradOf(3); err == nil || !strings.Contains(err.Error(), "tiles of 3×3") {
		t.Errorf("tiles of 3×3: %v", err)
	}
}

// TestWinogradAttribute refuses convolutions that have no such algorithm, with the user's line.
func TestWinogradAttribute(t *testing.T) {
	parse := func(attributes, d, filter string) error {
		_, err := graph.Parse("m.graph", []byte(`fusec graph 1 "m" {
  x = input : `+d+`[1,4,9,9]
  w = param : `+d+`[4,4,`+filter+`]
  y = conv2d[`+attributes+`] x w : `+d+`[1,4,7,7]
  output y = y
}
`), nil)
		return err
	}
	const plain = "dilation=[1,1] pad=[0,0,0,0] groups=1"
	if err := parse("stride=[1,1] "+plain+" winograd=4", "f32", "3,3"); err != nil {
		t.Error(err)
	}
	transposed := func(attributes string) error {
		_, err := graph.Parse("m.graph", []byte(`fusec graph 1 "m" {
  x = input : f32[1,4,9,9]
  w = param : f32[4,4,3,3]
  y = conv2d_transpose[`+attributes+`] x w
  output y = y
}
`), nil)
		return err
	}
	if err := transposed("stride=[1,1] " + plain + " h=11 w=11 winograd=2"); err != nil {
		t.Error(err)
	}
	for attributes, want := range map[string]string{
		"stride=[2,2] " + plain + " h=19 w=19 winograd=2":                        "not for stride [2,2]",
		"stride=[1,1] dilation=[1,1] pad=[3,0,0,0] groups=1 h=8 w=11 winograd=2": "padding [3,0,0,0]",
		"stride=[1,1] " + plain + " h=11 w=11 winograd=5":                        "tiles of 5×5",
	} {
		if err := transposed(attributes); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", attributes, err, want)
		}
	}
	for _, c := range [][4]string{
		{"stride=[1,1] " + plain + " winograd=3", "f32", "3,3", "tiles of 3×3"},
		{"stride=[2,1] " + plain + " winograd=4", "f32", "3,3", "not for filters of 3×3, stride [2,1]"},
		{"stride=[1,1] " + plain + " winograd=2", "f64", "3,3", "and f64"},
		{"stride=[1,1] " + plain + " winograd=2", "f32", "5,3", "filters of 5×3"},
	} {
		if err := parse(c[0], c[1], c[2]); err == nil || !strings.Contains(err.Error(), c[3]) ||
			!strings.Contains(err.Error(), "m.graph:4") {
			t.Errorf("%v: %v, want %q", c[:3], err, c[3])
		}
	}
}
