package cpu

import (
	"strings"
	"testing"

	"fusec/graph"
)

// TestRefused checks that what is no launch is refused with its reason.
func TestRefused(t *testing.T) {
	x := []Operand{{DType: graph.F32, Layout: graph.Contiguous(graph.ShapeOf(1))}}
	if _, err := Compile(graph.Reshape{Shape: graph.ShapeOf(1)}, x, x, nil); err == nil ||
		!strings.Contains(err.Error(), "the CPU does not compute reshape: it is a view") {
		t.Errorf("a reshape: %v", err)
	}
}
