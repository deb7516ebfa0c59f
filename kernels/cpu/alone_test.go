package cpu

import (
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/ref/cases"
)

// TestBodies compiles the elementwise operations and those along rows, which are bodies unless the CPU has more: what emit has no
// instructions for is named.
func TestBodies(t *testing.T) {
	r, p := rand.New(rand.NewPCG(1, 2)), pool.New(1)
	defer p.Close()
	for _, c := range cases.All(graph.F32) {
		if a, ok := graph.AnchorOf(c.Op); ok && (a == graph.AnchorNone || a == graph.AnchorRow) {
			if _, err := stand(c.Op, operandsOf(t, c, r), p); err != nil {
				t.Errorf("%s: %v", c.Name, err)
			}
		}
	}
}

// TestRefused checks that what is no launch is refused with its reason.
func TestRefused(t *testing.T) {
	x := []Operand{{DType: graph.F32, Layout: graph.Contiguous(graph.ShapeOf(1))}}
	if _, err := Compile(graph.Reshape{Shape: graph.ShapeOf(1)}, x, x, nil); err == nil ||
		!strings.Contains(err.Error(), "the CPU does not compute reshape: it is a view") {
		t.Errorf("a reshape: %v", err)
	}
}
