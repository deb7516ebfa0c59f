package ref_test

import (
	"testing"

	"fusec/graph"
	"fusec/lowering"
	"fusec/lowering/preparedtest"
	"fusec/lowering/ref"
	"fusec/passes"
)

func TestPrepared(t *testing.T) {
	preparedtest.Random(t, 100, func(t *testing.T, g *graph.Graph) (lowering.Executable, *lowering.Program) {
		final, _, err := passes.Run(g, passes.Config{Target: ref.Device{}, Verify: true, Frozen: true})
		if err != nil {
			t.Fatal(err)
		}
		p, err := lowering.Lower(final, "ref", lowering.Frozen())
		if err != nil {
			t.Fatal(err)
		}
		e, err := ref.Device{}.Compile(p)
		if err != nil {
			t.Fatal(err)
		}
		return e, p
	})
}
