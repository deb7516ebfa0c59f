package inspect

import (
	"strings"
	"testing"

	"fusec"
	"fusec/graph"
)

// TestExplainDivergences counts the notes that a file has about what its graph means elsewhere.
func TestExplainDivergences(t *testing.T) {
	g, err := graph.Parse("m.graph", []byte(`fusec graph 1 {
  x = input : f32[2,3]
  y = softmax[axis=1] x
  output y = y
  note divergence softmax-maximum "one" y
  note remark "two"
  note divergence softmax-maximum "three"
  note imitation pool-padding "four" x
}
`), nil)
	if err != nil {
		t.Fatal(err)
	}
	tr, program, err := fusec.Plan(g)
	if err != nil {
		t.Fatal(err)
	}
	text := explain("m", tr, program).text()
	for _, want := range []string{
		"\ndiffers from Gorgonia in 2 places; docs/divergences.md has the reasons\n", "    2  softmax-maximum\n",
		"\nimitates Gorgonia in 1 place\n", "    1  pool-padding\n", "  import: one\n", "  import: two\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
}
