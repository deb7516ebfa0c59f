//go:build amd64 || arm64

package vec

import (
	"maps"
	"strings"
	"testing"

	"fusec/graph"
)

// TestAssemblyIsWhole takes the kernel of each kind of function away: the check names the function.
func TestAssemblyIsWhole(t *testing.T) {
	if err := checkAssembly(unaryF32, unaryScalarF32, binaryVVF32); err != nil {
		t.Fatal(err)
	}
	unary, scalar, binary := maps.Clone(unaryF32), maps.Clone(unaryScalarF32), maps.Clone(binaryVVF32)
	delete(unary, graph.Tanh)
	delete(scalar, graph.Elu)
	delete(binary, graph.Max)
	for want, err := range map[string]error{
		"tanh": checkAssembly(unary, unaryScalarF32, binaryVVF32),
		"elu":  checkAssembly(unaryF32, scalar, binaryVVF32),
		"max":  checkAssembly(unaryF32, unaryScalarF32, binary),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want one about %s", err, want)
		}
	}
}
