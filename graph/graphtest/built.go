package graphtest

import (
	"testing"

	"fusec/graph"
)

// Built is the graph that build makes, under the name "test".
func Built(t testing.TB, build func(b *graph.Builder)) *graph.Graph {
	t.Helper()
	b := graph.NewBuilder("test")
	build(b)
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	return g
}
