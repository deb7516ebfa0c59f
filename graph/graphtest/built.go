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
	return Graph(t, b)
}

// Graph is the graph of a builder in which nothing has gone wrong, or of an example.
func Graph(t testing.TB, b interface{ Graph() (*graph.Graph, error) }) *graph.Graph {
	t.Helper()
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	return g
}
