package cpu

import (
	"maps"
	"strings"
	"testing"

	"fusec/graph"
)

// TestAnswers checks that each operation has a kernel or a reason to be refused, and that a missing one is named.
func TestAnswers(t *testing.T) {
	for name, a := range answers {
		if (a.kernel == nil) == (a.refused == "") {
			t.Errorf("%s has a kernel and a reason to refuse it, or neither", name)
		}
	}
	less, more := maps.Clone(answers), maps.Clone(answers)
	delete(less, "rms_norm")
	more["rms"] = more["rms_norm"]
	for want, a := range map[string]map[string]answer{"neither a kernel for rms_norm nor": less, "kernel for rms, which": more} {
		if err := graph.CheckAnswers("the CPU", a); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := Compile(graph.Reshape{}, []Operand{{DType: graph.F32, Layout: graph.Contiguous(graph.ShapeOf(1))}},
		[]Operand{{DType: graph.F32}}, nil); err == nil || !strings.Contains(err.Error(), "the CPU has no kernel for reshape: it is a view") {
		t.Errorf("a reshape: %v", err)
	}
}
