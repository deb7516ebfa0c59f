package ref

import (
	"math"
	"testing"

	"fusec/graph"
)

// TestUnsureNaN makes what is computed of a NaN that may be a number unsure, and of one that is sure a NaN.
func TestUnsureNaN(t *testing.T) {
	v := func(mag float64) Value {
		return Value{Type: graph.TypeOf(graph.F32, 1), F: []float64{math.NaN()}, Mag: []float64{mag}}
	}
	two := Value{Type: graph.TypeOf(graph.F32, 1), F: []float64{2}, Mag: []float64{0}}
	for _, c := range []struct{ mag, want float64 }{{0, 0}, {unsure, unsure}} {
		x := v(c.mag)
		for name, got := range map[string][]float64{
			"exp":   unaryBound(graph.Exp, math.Exp, x, v(0)),
			"left":  binaryBound(graph.Mul, x, two, v(0)),
			"right": binaryBound(graph.Add, two, x, v(0)),
		} {
			if got[0] != c.want {
				t.Errorf("%s of a NaN off by %v: magnitude %v, want %v", name, c.mag, got[0], c.want)
			}
		}
	}
}

// TestUnsureNumber makes bounded functions of a number that may be a NaN unsure.
func TestUnsureNumber(t *testing.T) {
	x := Value{Type: graph.TypeOf(graph.F32, 1), F: []float64{0}, Mag: []float64{unsure}}
	custom := customBound(func(x []float64) float64 { return math.Tanh(x[0]) }, []float64{0}, 0, []Value{x}, 0)
	if got := unaryBound(graph.Tanh, math.Tanh, x, x)[0]; got != unsure || custom != unsure {
		t.Errorf("tanh of an unsure 0: magnitudes %v and, as a function of a user, %v, want %v", got, custom, unsure)
	}
}

// TestUnsureSums: a sum is unsure if some of its terms may be infinite in float32, whether it is itself or not.
func TestUnsureSums(t *testing.T) {
	a := Value{Type: graph.TypeOf(graph.F32, 1, 3), F: []float64{1, 1e30, 1e30}, Mag: make([]float64, 3)}
	for name, c := range map[string]struct {
		b    []float64
		want float64
	}{
		"an infinity": {[]float64{math.Inf(1), 1, -1}, 0},
		"an infinity and a term beyond the range": {[]float64{math.Inf(1), 0, -1e30}, unsure},
		"terms beyond the range":                  {[]float64{1, 1e30, -1e30}, unsure},
	} {
		b := Value{Type: graph.TypeOf(graph.F32, 3, 1), F: c.b, Mag: make([]float64, 3)}
		v, err := OpBound(graph.MatMul{}, []Value{a, b})
		if err != nil {
			t.Fatal(err)
		}
		if got := v[0].Mag[0]; got != c.want {
			t.Errorf("%s: magnitude %v, want %v", name, got, c.want)
		}
	}
}
