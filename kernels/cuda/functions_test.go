package cuda

import (
	"strings"
	"testing"

	"fusec/graph"
)

// TestFunctionsAreWhole takes the text of each kind of function away: the check names the function.
func TestFunctionsAreWhole(t *testing.T) {
	text := include("ops")
	if err := checkFunctions(text, checked); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"UNARY(tanh)", "UNARY_ALPHA(elu)", "BINARY(logical_and)", "CHECKED(power)"} {
		if err := checkFunctions(strings.Replace(text, f, "", 1), checked); err == nil || !strings.Contains(err.Error(), f) {
			t.Errorf("without %s: %v", f, err)
		}
	}
	if err := checkFunctions(text, map[graph.BinaryFn]string{graph.Div: "divide"}); err == nil || !strings.Contains(err.Error(), "pow") {
		t.Errorf("a power that reports nothing: %v", err)
	}
}
