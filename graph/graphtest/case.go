package graphtest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"

	"fusec/graph"
)

// A Case is the input of a differential test: a random graph, the gradients to compute, and through [Case.Values] the
// values of its sources.
type Case struct {
	Seed      uint64 // of the values
	Draw      Draw
	Graph     *graph.Graph
	Gradients []Gradient
}

// Gradient requests d(Cost)/d(Of) as an output with a new name. Both are nodes of the graph; the cost has one element.
type Gradient struct {
	Output   string
	Cost, Of *graph.Node
}

// Hostile makes a case from a seed: operations of the table, filtered by allow if it is not nil, as described at
// [Options.Wide], and patterns that passes recognise. Two cases in three request gradients. One in three is tame: its
// functions are smooth and its values of moderate size, so that its gradients can be checked by finite differences.
func Hostile(seed uint64, allow func(name string) bool) *Case {
	r := rand.New(rand.NewPCG(seed, 14))
	c := &Case{Seed: seed}
	o := Options{Nodes: 2 + r.IntN(24), Wide: true, Halves: r.IntN(4) == 0, FewBits: seed%64 == 63, Steps: seed%16 == 7}
	kind := r.IntN(6)
	tame, many := kind < 2, kind%2 == 0
	switch d := r.IntN(4); {
	case tame:
		o.Floats, o.Halves = graph.F64, false
	case d < 2:
		o.Floats = []graph.DType{graph.F32, graph.F64}[d]
	}
	if kind >= 4 {
		o.Draw = Draw(r.IntN(len(draws)))
	}
	c.Draw = o.Draw
	o.Allow = func(name string) bool {
		return (allow == nil || allow(name)) && !(tame && unsmooth[name])
	}
	g := newGenerator(r, o)
	g.tame = tame
	allowed := g.allowed()
	g.input(g.float())
	for range o.Nodes {
		if r.IntN(10) == 0 || many && r.IntN(3) == 0 {
			g.pattern()
		} else if len(allowed) > 0 {
			allowed[r.IntN(len(allowed))](g)
		}
	}
	if kind < 4 {
		for range 1 + r.IntN(2) {
			g.cost()
		}
	}
	c.Graph = g.finish()
	if kind < 4 {
		c.ask(r)
	}
	return c
}

// unsmooth lists the operations whose results jump, or whose gradients are not the derivatives of their results.
var unsmooth = map[string]bool{"cast": true, "select": true, "top_k": true, "route": true, "state": true,
	"attention_grad": true, "moe_grad": true, "pool_grad": true, "random": true, "sample": true}

// cost adds an output of one element that depends on values of the graph.
func (g *generator) cost() {
	var sum *graph.Node
	for range 1 + g.r.IntN(3) {
		y := g.any()
		if g.tame || g.coin() {
			y = g.b.Unary(graph.Tanh, y)
		}
		if g.coin() {
			y = g.b.Binary(graph.Mul, y, g.of(y.Type))
		}
		axes := make([]int, y.Type.Shape.Rank())
		for i := range axes {
			axes[i] = i
		}
		f := []graph.ReduceFn{graph.Sum, graph.Mean}[g.r.IntN(2)]
		if y.Type.Shape.Elems() == 0 {
			f = graph.Sum
		}
		if y = g.b.Reduce(f, y, false, axes...); sum != nil {
			y = g.b.Binary(graph.Add, sum, g.b.CastTo(sum.Type.DType, y))
		}
		sum = y
	}
	g.b.Output(g.name("cost"), g.add(sum))
}

// ask requests gradients with respect to any values, mostly sources, of any values of one element.
func (c *Case) ask(r *rand.Rand) {
	var costs, all []*graph.Node
	for _, n := range c.Graph.Nodes {
		if n.Type.DType.IsFloat() && n.Type.Shape.Elems() == 1 {
			costs = append(costs, n)
		}
		if n.Type.DType.IsReal() {
			all = append(all, n)
			if graph.IsSource(n.Op) {
				all = append(all, n, n)
			}
		}
	}
	for _, o := range c.Graph.Outputs {
		if strings.HasPrefix(o.Name, "cost") {
			costs = append(costs, slices.Repeat([]*graph.Node{o.Node}, 1+len(costs))...)
		}
	}
	if len(costs) == 0 || len(all) == 0 {
		return
	}
	for i := range 1 + r.IntN(5) {
		d := Gradient{fmt.Sprintf("gradient%d", i), costs[r.IntN(len(costs))], all[r.IntN(len(all))]}
		try := &Case{Graph: c.Graph, Gradients: []Gradient{d}}
		if _, err := try.Whole(); err != nil && strings.Contains(err.Error(), " has none; ") {
			continue
		}
		c.Gradients = append(c.Gradients, d)
	}
}

// Values are the values of the case's sources; see [Fit].
func (c *Case) Values() map[string]*graph.Tensor { return Fit(c.Graph, c.Seed, c.Draw) }

// Clone copies the case.
func (c *Case) Clone() *Case {
	d := *c
	var to map[*graph.Node]*graph.Node
	d.Graph, to = c.Graph.Clone()
	d.Gradients = slices.Clone(c.Gradients)
	for i := range d.Gradients {
		d.Gradients[i].Cost, d.Gradients[i].Of = to[d.Gradients[i].Cost], to[d.Gradients[i].Of]
	}
	return &d
}

// Whole is the meaning of the case: its graph with the gradients as further outputs, made by [graph.Gradients] from the
// graph as it is, those of one cost together.
func (c *Case) Whole() (*graph.Graph, error) {
	d := c.Clone()
	asked := map[*graph.Node][]*graph.Node{}
	for _, r := range d.Gradients {
		asked[r.Cost] = append(asked[r.Cost], r.Of)
	}
	made := map[*graph.Node]map[*graph.Node]*graph.Node{}
	for _, r := range d.Gradients {
		if made[r.Cost] == nil {
			values, err := graph.Gradients(d.Graph, r.Cost, asked[r.Cost])
			if err != nil {
				return nil, err
			}
			made[r.Cost] = map[*graph.Node]*graph.Node{}
			for i, of := range asked[r.Cost] {
				made[r.Cost][of] = values[i]
			}
		}
		d.Graph.Outputs = append(d.Graph.Outputs, graph.Output{Name: r.Output, Node: made[r.Cost][r.Of]})
	}
	return d.Graph, d.Graph.Tidy()
}

// The comments of a file, for what is not in the graph.
const (
	valuesLine   = "# values %d %s\n"
	gradientLine = "# gradient %q %%%d %%%d\n"
)

// Save writes the case as a .graph, with the rest as comments.
func (c *Case) Save(path string) error {
	if err := graph.Save(path, c.Graph, nil); err != nil {
		return err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	head := fmt.Sprintf(valuesLine, c.Seed, c.Draw)
	for _, d := range c.Gradients {
		head += fmt.Sprintf(gradientLine, d.Output, d.Cost.ID, d.Of.ID)
	}
	return os.WriteFile(path, append([]byte(head), text...), 0o666)
}

// Load reads a case that [Case.Save] wrote, or any graph: without comments the values are ordinary ones of seed 0.
func Load(path string) (*Case, error) {
	g, err := graph.LoadGraph(path)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	c := &Case{Graph: g}
	at := map[int]*graph.Node{}
	for _, n := range g.Nodes {
		at[n.ID] = n
		if h, ok := n.Op.(graph.Host); ok && h.Name == reversalName {
			h.Impl = Reversal
			n.Op = h
		}
	}
	for line := range strings.Lines(string(text)) {
		var d Gradient
		var cost, of int
		var draw string
		if _, err := fmt.Sscanf(line, valuesLine, &c.Seed, &draw); err == nil {
			if c.Draw = Draw(slices.Index(draws[:], draw)); int(c.Draw) >= len(draws) {
				return nil, fmt.Errorf("%s: unknown kind of values %q", path, draw)
			}
		} else if _, err := fmt.Sscanf(line, gradientLine, &d.Output, &cost, &of); err == nil {
			if d.Cost, d.Of = at[cost], at[of]; d.Cost == nil || d.Of == nil {
				return nil, fmt.Errorf("%s: gradient %q of, or with respect to, a node that does not exist", path, d.Output)
			}
			c.Gradients = append(c.Gradients, d)
		}
	}
	return c, nil
}
