package vec

import (
	"maps"
	"strings"
	"testing"

	"fusec/graph"
)

// TestAVX2IsWhole takes the kernel of each kind of function away: the check names the function.
func TestAVX2IsWhole(t *testing.T) {
	if err := checkAVX2(unaryF32, unaryScalarF32, binaryVVF32); err != nil {
		t.Fatal(err)
	}
	unary, scalar, binary := maps.Clone(unaryF32), maps.Clone(unaryScalarF32), maps.Clone(binaryVVF32)
	delete(unary, graph.Tanh)
	delete(scalar, graph.Elu)
	delete(binary, graph.Max)
	for want, err := range map[string]error{
		"tanh": checkAVX2(unary, unaryScalarF32, binaryVVF32),
		"elu":  checkAVX2(unaryF32, scalar, binaryVVF32),
		"max":  checkAVX2(unaryF32, unaryScalarF32, binary),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want one about %s", err, want)
		}
	}
}
