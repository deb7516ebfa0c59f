package fpga

import (
	"math"
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/lowering"
)

// TestRandomGraphs runs random graphs, launches on the overlay and on the processor mixed, on the model, which finds
// races and descriptors that wait for ever. What the overlay makes lies close to what the processor makes of the same
// operands but for functions that 8 bits do not hold, such as a reciprocal near zero.
func TestRandomGraphs(t *testing.T) {
	taken, far := 0, 0
	for seed := range uint64(150) {
		g := graphtest.Random(rand.New(rand.NewPCG(seed, 5)), graphtest.Options{Nodes: 25,
			Allow: func(name string) bool { return name != "host" }})
		if len(g.Updates) > 0 {
			continue
		}
		d := New(Over(overModel))
		p := lowered(t, g, d)
		x, err := d.Compile(p)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		in := graphtest.Values(rand.New(rand.NewPCG(seed, 6)), g)
		for i, b := range p.Buffers {
			if b.Role > lowering.State {
				continue
			}
			v := in[b.Name]
			if v == nil {
				v = graph.NewTensor(b.Type)
			}
			if err := x.Bind(i, v); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
		if err := x.Run(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for i, c := range own(t, x.(*executable)) {
			if p.Launches[i].Device != "" || math.IsNaN(c.rms) {
				continue
			}
			taken++
			if c.rms > 0.01 {
				far++
			}
		}
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d launches on the overlay, %d of them off by more than 1 %% rms", taken, far)
	if taken < 100 || far > taken/20 {
		t.Errorf("%d of %d launches are off by more than 1 %% of the range", far, taken)
	}
}
