package trace_test

import (
	"testing"

	"fusec/graph"
	"fusec/graph/trace"
)

func TestNumeric(t *testing.T) {
	order := []trace.Numeric{{}, trace.Exact, trace.Reassociated.In(graph.F64), trace.Approximate(1e-12),
		trace.Reassociated.In(graph.F32), trace.Approximate(1e-7).In(graph.F32), trace.Approximate(graph.BF16.Epsilon())}
	for i, n := range order {
		for j, m := range order {
			if n.Weaker(m) != (i > j) {
				t.Errorf("%v is weaker than %v: %v", n, m, n.Weaker(m))
			}
		}
		if n.Stated() != (i > 0) {
			t.Errorf("%v: stated %v", n, n.Stated())
		}
	}
	for want, n := range map[string]trace.Numeric{
		"exact":                trace.Exact.In(graph.F32),
		"reassociated ±1e-05":  trace.Reassociated.In(graph.F32),
		"reassociated ±1e-12":  trace.Reassociated.In(graph.F64),
		"approximate ±0.00391": trace.Approximate(graph.BF16.Epsilon()),
	} {
		if n.String() != want {
			t.Errorf("%q, want %q", n, want)
		}
	}
}
