package cases

import (
	"math/rand/v2"
	"testing"

	"fusec/graph"
)

func TestAll(t *testing.T) {
	for _, d := range []graph.DType{graph.F32, graph.F64} {
		ops, names := map[string]bool{"result": true}, map[string]bool{}
		for _, c := range All(d) {
			ops[c.Op.OpName()] = true
			if names[c.Name] {
				t.Errorf("two cases are named %s", c.Name)
			}
			names[c.Name] = true
			g, err := c.Graph()
			if err != nil {
				t.Errorf("%s: %v", c.Name, err)
				continue
			}
			a, b := c.Inputs(rand.New(rand.NewPCG(1, 2))), c.Inputs(rand.New(rand.NewPCG(1, 2)))
			for _, s := range g.Sources() {
				switch {
				case a[s.Name] == nil || a[s.Name].Type != s.Type:
					t.Errorf("%s: %s has the value %v", c.Name, s.Where(), a[s.Name])
				case !a[s.Name].Equal(b[s.Name]):
					t.Errorf("%s: the same generator gives two values for %s", c.Name, s.Where())
				}
			}
			if h, ok := c.Op.(graph.Host); ok {
				y, err := h.Impl.Do([]*graph.Tensor{a["x0"]})
				if err != nil || y.Float(0) != a["x0"].Float(4) || y.Float(4) != a["x0"].Float(0) {
					t.Errorf("%s: %v, %v", c.Name, y, err)
				}
			}
		}
		for _, info := range graph.Ops() {
			if !ops[info.Name] {
				t.Errorf("no case for %s", info.Name)
			}
		}
	}
}
