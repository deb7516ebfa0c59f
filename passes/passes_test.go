package passes_test

import (
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/passes"
	"fusec/passes/passtest"
)

func TestConfig(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) { b.Output("y", passtest.Shift(b, b.Input("x", passtest.F64(2)), 0)) })
	for _, tt := range []struct {
		cfg  passes.Config
		want string
	}{
		{passes.Config{Stop: "nowhere"}, `no pass "nowhere" to stop after`},
		{passes.Config{Disable: map[string]bool{"nothing": true}}, `no pass "nothing" to disable`},
	} {
		if _, _, err := passes.Run(g, tt.cfg); err == nil || err.Error() != tt.want {
			t.Errorf("%v, want %s", err, tt.want)
		}
	}
	h, tr, err := passes.Run(g, passes.Config{Disable: map[string]bool{"simplify": true}, Stop: "raise"})
	if err != nil {
		t.Fatal(err)
	}
	if got := passtest.Ops(h); got != "add" {
		t.Errorf("without simplify: %s", got)
	}
	var stages []string
	for _, s := range tr.Stages {
		stages = append(stages, s.Name)
		if s.Doc == "" {
			t.Errorf("stage %s has no doc", s.Name)
		}
	}
	if got := strings.Join(stages, " "); got != "import strip-grad raise" {
		t.Errorf("stages: %s", got)
	}
}

// TestRunLeavesInput checks that the graph given is as it was, and that two runs give the same.
func TestRunLeavesInput(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		b.Output("y", passtest.LayerNorm(b, b.Input("x", passtest.F64(3, 5)), nil, b.Param("beta", passtest.F64(5))))
	})
	before, _ := g.Clone()
	first, _ := passtest.Run(t, g, passes.Config{})
	if err := graph.Equal(before, g); err != nil {
		t.Errorf("the input changed: %v", err)
	}
	second, _ := passtest.Run(t, g, passes.Config{})
	if err := graph.Equal(first, second); err != nil {
		t.Errorf("two runs differ: %v", err)
	}
}
