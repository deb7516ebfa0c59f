package cuda

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
	less := maps.Clone(answers)
	delete(less, "rms_norm")
	if err := graph.CheckAnswers("CUDA", less); err == nil || !strings.Contains(err.Error(), "CUDA has neither a kernel for rms_norm") {
		t.Errorf("without rms_norm: %v", err)
	}
}
