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
	if err := checkFunctions(text, map[graph.BinaryFn]string{graph.Div: "divide"}); err == nil ||
		!strings.Contains(err.Error(), "pow") {
		t.Errorf("a power that reports nothing: %v", err)
	}
}

// TestReductionsAreWhole takes the text of a reduction and of pools away: the check names them.
func TestReductionsAreWhole(t *testing.T) {
	rows, windows := include("rows"), include("windows")
	without := map[string]error{
		"MinOf":          checkReductions(strings.Replace(rows, "struct MinOf {", "", 1), windows, reducers),
		"max_pool":       checkReductions(rows, strings.Replace(windows, " max_pool(", "", 1), reducers),
		"avg_pool_grad":  checkReductions(rows, strings.Replace(windows, " avg_pool_grad(", "", 1), reducers),
		"reduction mean": checkReductions(rows, windows, map[graph.ReduceFn]string{graph.Sum: "Sum"}),
	}
	for name, err := range without {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}
