package attention_test

import (
	"strings"
	"testing"

	"fusec/passes/passtest"
)

// TestAttentionGradients differentiates fused attentions and compares with finite differences of the graph as written.
func TestAttentionGradients(t *testing.T) {
	pick := func(list []spelling, names ...string) []spelling {
		var r []spelling
		for _, s := range list {
			for _, name := range names {
				if s.name == name {
					r = append(r, s)
				}
			}
		}
		if len(r) != len(names) {
			t.Fatalf("%d of %q", len(r), names)
		}
		return r
	}
	for _, tt := range concatSpellings(
		pick(layoutSpellings, "2d", "cross-attention", "every operand transposed", "stacked projection", "queries for all batches"),
		pick(scaleSpellings, "on q, k and scores", "temperature known at run time"),
		pick(maskSpellings, "input, by batch", "inputs, several", "causal, −1e9", "padding of everything, −Inf", "padding and causal",
			"select by an input", "select by an input, −1e9", "causal from the start, fewer queries"),
		pick(groupSpellings, "grouped queries, keys repeated", "groups among the queries", "keys for all batches and heads"),
		pick(otherSpellings, "dropout"),
	) {
		t.Run(tt.name, func(t *testing.T) {
			g, cfg := passtest.Trained(t, tt.build)
			h, tr := passtest.Gradients(t, g, cfg)
			if got := passtest.Attention(passtest.Stage(t, tr, "simplify-again").Graph); got != tt.want {
				t.Errorf("made %q, want %q", got, tt.want)
			}
			if s := passtest.Ops(h); strings.Contains(s, "softmax") {
				t.Errorf("left %s", s)
			}
		})
	}
}
