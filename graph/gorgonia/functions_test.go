package gorgonia

import (
	"maps"
	"strings"
	"testing"

	"fusec/graph"
)

// TestFunctionsAreWhole takes what a function is in Gorgonia away: the check names it.
func TestFunctionsAreWhole(t *testing.T) {
	if err := checkFunctions(unaries, binaries); err != nil {
		t.Fatal(err)
	}
	one, two := maps.Clone(unaries), maps.Clone(binaries)
	delete(one, graph.Erf)
	delete(two, graph.Or)
	for want, err := range map[string]error{"erf": checkFunctions(one, binaries), "or": checkFunctions(unaries, two)} {
		if err == nil || !strings.HasSuffix(err.Error(), " "+want) {
			t.Errorf("%v, want one about %s", err, want)
		}
	}
}
