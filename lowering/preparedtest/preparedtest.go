// Package preparedtest checks that a device runs the prepared part of programs when it has to, and only then.
package preparedtest

import (
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/ref"
	"fusec/lowering"
)

// Compile makes an executable of a graph whose parameters are frozen. Nothing is bound.
type Compile func(t *testing.T, g *graph.Graph) (lowering.Executable, *lowering.Program)

// Random compares random programs with the reference: in their first run and in those after it, with parameters that are
// bound again, measured and watched.
func Random(t *testing.T, seeds uint64, compile Compile) {
	t.Helper()
	prepared := 0
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 31))
		g := graphtest.Prepared(r)
		e, p := compile(t, g)
		c := &checker{T: t, g: g, e: e, p: p, bound: map[string]*graph.Tensor{}}
		for i, b := range p.Buffers {
			if b.Role <= lowering.State {
				c.bind(i, graphtest.Tensor(r, b.Type))
			}
		}
		c.run()
		c.run()
		for i, b := range p.Buffers {
			if b.Role != lowering.Param || r.IntN(2) == 0 {
				continue
			}
			x := graphtest.Tensor(r, b.Type)
			if r.IntN(2) == 0 { // the same tensor with other values
				c.bound[b.Name].CopyFrom(x)
				x = c.bound[b.Name]
			}
			c.bind(i, x)
			if r.IntN(2) == 0 {
				c.run()
			}
		}
		e.Profile(true)
		c.run()
		c.run()
		for i, d := range e.Times()[:p.Prepared] {
			if d != 0 {
				t.Errorf("launch %d of the prepared part took %v in a run that leaves it out", i+1, d)
			}
		}
		e.Profile(false)
		var seen []*lowering.Launch
		e.Watch(func(l *lowering.Launch, _ func(lowering.View) (*graph.Tensor, error)) error {
			seen = append(seen, l)
			return nil
		})
		c.run()
		e.Watch(nil)
		c.run()
		if len(seen) != len(p.Launches) || seen[0] != &p.Launches[0] {
			t.Errorf("%d launches of %d were watched", len(seen), len(p.Launches))
		}
		prepared += p.Prepared
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Fatalf("seed %d\n%s\n%v", seed, graph.Print(g), p)
		}
	}
	if prepared == 0 {
		t.Error("nothing was prepared")
	}
}

type checker struct {
	*testing.T
	g     *graph.Graph
	e     lowering.Executable
	p     *lowering.Program
	bound map[string]*graph.Tensor
}

func (c *checker) bind(i int, x *graph.Tensor) {
	c.Helper()
	if err := c.e.Bind(i, x); err != nil {
		c.Fatal(err)
	}
	c.bound[c.p.Buffers[i].Name] = x
}

// run runs the program, and compares outputs and updates with the reference.
func (c *checker) run() {
	c.Helper()
	want, updates, err := ref.EvalBound(c.g, c.bound)
	if err != nil {
		c.Fatal(err)
	}
	if err := c.e.Run(); err != nil {
		c.Fatalf("%v\n%s\n%v", err, graph.Print(c.g), c.p)
	}
	if err := c.e.Sync(); err != nil {
		c.Fatal(err)
	}
	for _, o := range c.p.Outputs {
		if err := ref.Check(c.e.Output(o.Buffer), want[o.Name]); err != nil {
			c.Errorf("output %q: %v", o.Name, err)
		}
	}
	for _, u := range c.p.Updates {
		name := c.p.Buffers[u.Target].Name
		if err := ref.Check(c.bound[name], updates[name]); err != nil {
			c.Errorf("update of %q: %v", name, err)
		}
	}
}
