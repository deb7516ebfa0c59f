package fusec_test

import (
	"fmt"
	"testing"

	"fusec"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// TestRectifierAtZero differentiates a layer whose weights are 0: the derivatives of Rectify and LeakyRelu at 0 are 1, as
// Gorgonia documents them, on every target, and the rectifier stays part of the product.
func TestRectifierAtZero(t *testing.T) {
	build := func(leaky bool) (*gorgonia.ExprGraph, gorgonia.Nodes) {
		b := newNet(tensor.Float32)
		x, w, bias := b.in("x", 7, 9), b.near("w", 0, 0, 9, 5), b.near("bias", 0, 0, 1, 5)
		h := must(gorgonia.BroadcastAdd(must(gorgonia.Mul(x, w)), bias, nil, []byte{0}))
		if leaky {
			h = must(gorgonia.LeakyRelu(h, 0.1))
		} else {
			h = must(gorgonia.Rectify(h))
		}
		w2 := b.in("w2", 5, 3)
		params := gorgonia.Nodes{w, bias, w2}
		if _, err := gorgonia.Grad(must(gorgonia.Mean(must(gorgonia.Mul(h, w2)))), params...); err != nil {
			t.Fatal(err)
		}
		return b.g, params
	}
	grad := func(n *gorgonia.Node) []float64 {
		v, err := n.Grad()
		if err != nil {
			t.Fatal(err)
		}
		return floats(t, v)
	}
	for _, leaky := range []bool{false, true} {
		g, want := build(leaky)
		tape := gorgonia.NewTapeMachine(g, gorgonia.BindDualValues(want...))
		if err := tape.RunAll(); err != nil {
			t.Fatal(err)
		}
		if err := tape.Close(); err != nil {
			t.Fatal(err)
		}
		for _, target := range []string{"cpu", "cuda"} {
			g, got := build(leaky)
			m := fusec.NewMachine(g, gorgonia.BindDualValues(got...), fusec.WithTarget(target), emulated(t))
			if err := m.RunAll(); err != nil {
				t.Fatal(err)
			}
			for i, n := range got {
				sameFloats(t, fmt.Sprintf("leaky %v on %s: gradient of %v", leaky, target, n), grad(n), grad(want[i]), 1e-6)
			}
			for _, f := range m.Fusions() {
				if f.Kind == "elementwise" {
					t.Errorf("leaky %v on %s: a launch of its own for %v", leaky, target, f.Nodes)
				}
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
