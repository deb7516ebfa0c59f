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
