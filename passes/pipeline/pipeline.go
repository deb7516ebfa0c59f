// Package pipeline cuts what trains a model, or runs it, into stages for pipeline parallelism. Each stage has programs of its own:
//
//	   before 1          before 2                    sums of inputs over all microbatches
//	x ─► forward 1 ──h──► forward 2 ─► cost          one microbatch
//	        ┊ kept            ┊ kept
//	     backward 1 ◄─dh── backward 2                the same one
//	        │ sums            │ sums                 over all microbatches
//	     norms 1 ◄─numbers─► norms 2                 once in a step
//	     update 1            update 2
//
// The graph comes from pass shard, over a mesh whose first axis is the microbatches: it is what is computed of one of them, and
// collective operations over that axis stand where a value needs all. Those become sums that the stages keep from one microbatch to
// the next (gradient accumulation). Other axes are of the participants of each stage, which share its work; collective operations
// over these stay as they are. So the result is that of the whole batch whatever the cost is, but for the order of sums. A stage is
// a stretch of the forward pass in its order. The backward pass of an operation is computed where its operands are, and an update
// where its parameter is read. What an optimiser has to know of all gradients, such as their norm, are numbers that stages tell
// each other.
//
// The order in which a stage computes microbatches is not of this package: 1F1B (D. Narayanan et al., "Efficient Large-Scale
// Language Model Training on GPU Clusters Using Megatron-LM", arXiv 2104.04473, PipeDream-Flush) is in lowering/pipeline.
package pipeline

import (
	"fmt"
	"slices"
	"strings"

	"fusec/graph"
)

// prefix begins the names of what programs hand over.
const prefix = "pipeline/"

// Index is the input that says which microbatch is computed, from 0, in programs that need it.
const Index = prefix + "index"

// A Stage is the graphs of a stage. Those that have nothing to compute are nil.
//
// Values of one name are handed over from the outputs of a graph to inputs of others: from Forward to Forward of later stages
// and to Backward, from Backward to Backward of earlier stages, and from Norms to Update of all stages. What Forward or
// Backward gives for each microbatch, and Norms or Update read, are parts that follow one another along the axis in which they
// are shorter. States that Forward or Backward update, and Norms or Update read, are sums over microbatches, which are zero
// before the first. So are those that Before updates, with each microbatch before Forward runs on the first one, and all others
// read: such as the number of labels by which a cost is divided.
type Stage struct {
	Before, Forward, Backward, Norms, Update *graph.Graph
	Ends                                     string // the name of the last value of the forward pass that has one, or of its scope
}

// Graphs lists the graphs in the order in which they run. The names of what they do are those of [Kinds].
func (s *Stage) Graphs() [5]*graph.Graph {
	return [5]*graph.Graph{s.Before, s.Forward, s.Backward, s.Norms, s.Update}
}

// Kinds are what the graphs of a stage do.
var Kinds = [5]string{"before", "forward", "backward", "norms", "update"}

// Cut cuts a graph of pass shard into n stages. Ends names the values with which the stages but the last one end; with none of
// them, stages take about as long as each other, and are cut where little has to be sent. The graph is changed.
func Cut(g *graph.Graph, n int, ends []string) ([]Stage, error) {
	if len(g.Mesh) == 0 || g.Mesh[0].Name != graph.Microbatch || !g.Parts {
		return nil, fmt.Errorf("a pipeline is of a graph over the axis %s, before those of a stage, not over %q", graph.Microbatch,
			g.Mesh)
	}
	names := []string{}
	for _, s := range g.Sources() {
		names = append(names, s.Name)
	}
	for _, o := range g.Outputs {
		names = append(names, o.Name)
	}
	for _, name := range names {
		if strings.HasPrefix(name, prefix) {
			return nil, fmt.Errorf("%q begins with %q, as the names of values that stages hand over do", name, prefix)
		}
	}
	c := &cutter{g: g, n: n, at: map[*graph.Node]int{}, last: map[*graph.Node]int{}, free: map[*graph.Node]bool{},
		first: map[*graph.Node]int{}, sinks: map[*graph.Node]*sink{}}
	for _, step := range []func() error{c.find, func() error { return c.forward(ends) }, c.backward, c.join, c.numbers} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return c.stages()
}

// A sink is a collective operation: what all microbatches have made together.
type sink struct {
	of    *graph.Node // of one microbatch
	join  int         // the axis along which parts follow one another, or -1 for a sum
	stage int         // that keeps it
	early bool        // it is a sum of inputs alone, which microbatches read
}

// cutter is the work on one graph.
type cutter struct {
	g     *graph.Graph
	n     int                    // stages
	sinks map[*graph.Node]*sink  // by collective operation
	each  map[*graph.Node]bool   // what is computed of each microbatch
	free  map[*graph.Node]bool   // what any stage can compute: it does not depend on both inputs and parameters
	at    map[*graph.Node]int    // the stage that computes what is not free
	last  map[*graph.Node]int    // of a value of the forward pass, or a parameter: the last stage whose forward pass reads it
	first map[*graph.Node]int    // of a parameter: the first one
	order []*graph.Node          // of each, those that are not free
	place map[*graph.Node]int    // of what follows the microbatches: its stage, or everywhere
	late  map[*graph.Node]bool   // it needs numbers of other stages
	told  map[*graph.Node]bool   // numbers that stages tell each other
	piece map[*graph.Node]*piece // of tensors that follow the microbatches
}

// everywhere is the place of what every stage computes.
const everywhere = -1

// back reports whether a node of a microbatch belongs to the backward pass. Results belong to the pass of their operation, whoever
// reads them.
func back(n *graph.Node) bool {
	if r, ok := n.Op.(graph.Result); ok && r.Index > 0 {
		return back(n.Args[0])
	}
	return n.Phase != graph.Forward
}

// find tells what is computed of each microbatch from what follows all.
func (c *cutter) find() error {
	var of []*graph.Node
	reader := map[*graph.Node]*graph.Node{}
	for _, n := range c.g.Nodes {
		for _, a := range n.Args {
			reader[a] = n
		}
	}
	for _, n := range c.g.Nodes {
		if !over(n) && !isKept(n) {
			continue // of each microbatch, or of what follows, like any other node
		}
		switch op := n.Op.(type) {
		case graph.Part:
			// of each microbatch, too
		case graph.AllReduce:
			if op.Fn != graph.Sum {
				return fmt.Errorf("%s needs the %v over all microbatches, which a pipeline does not keep: only sums", n.Where(), op.Fn)
			}
			c.sinks[n] = &sink{of: n.Args[0], join: -1}
			of = append(of, n.Args[0])
		case graph.AllGather:
			r := reader[n]
			for r != nil && !over(r) { // it is gathered along other axes, too
				if _, gather := r.Op.(graph.AllGather); !gather {
					break
				}
				r = reader[r]
			}
			if r != nil { // it is not an output alone
				return needsAll(r)
			}
			c.sinks[n] = &sink{of: n.Args[0], join: op.Axis}
			of = append(of, n.Args[0])
		case graph.Collective:
			return fmt.Errorf("%s needs values of other microbatches, which are computed at other times", n.Where())
		case graph.Param, graph.State:
			if n.Sharding.Over().Has(0) {
				return fmt.Errorf("%s belongs to a batch, and each microbatch would have a part of it: state how it is split, as on no axis",
					n.Where())
			}
		}
	}
	c.each = graph.Ancestors(of...)
	const params, inputs, sums = 1, 2, 4
	from := map[*graph.Node]int{}
	for _, n := range c.g.Nodes {
		switch n.Op.(type) {
		case graph.Param:
			from[n] = params
		case graph.Input:
			from[n] = inputs
		}
		for _, a := range n.Args {
			from[n] |= from[a]
		}
		if s := c.sinks[n]; s != nil && c.each[n] {
			if s.early = s.join < 0 && from[n]&(params|sums) == 0; !s.early {
				return needsAll(n)
			}
			from[n] |= sums
		}
		c.free[n] = from[n]&(params|inputs) != params|inputs
		if c.each[n] && !c.free[n] {
			c.order = append(c.order, n)
		}
	}
	return nil
}

// over reports whether a node is a collective operation over microbatches.
func over(n *graph.Node) bool {
	op, ok := n.Op.(graph.Collective)
	return ok && slices.Contains(strings.Split(op.Of().Over, "+"), graph.Microbatch)
}

func needsAll(n *graph.Node) error {
	return fmt.Errorf("%s needs all microbatches before the next value of each can be computed, as a batch norm in training or a "+
		"dropout does: leave it out, or do without a pipeline", n.Where())
}

// byteCost is how many floating-point operations take as long as to read or write a byte, about, and sendCost as to send one.
const (
	byteCost = 8
	sendCost = 64
)

// forward cuts the forward pass in its order.
func (c *cutter) forward(ends []string) error {
	var nodes []*graph.Node
	for _, n := range c.order {
		if !back(n) {
			nodes = append(nodes, n)
		}
	}
	cuts, err := c.ends(nodes, ends) // before which nodes stages begin
	if err != nil {
		return err
	}
	stage := 0
	for i, n := range nodes {
		for stage < len(cuts) && cuts[stage] <= i {
			stage++
		}
		c.at[n] = stage
		if _, ok := n.Op.(graph.Result); ok {
			c.at[n] = c.at[n.Args[0]]
		}
	}
	for _, n := range nodes {
		s := c.at[n]
		c.last[n] = max(c.last[n], s)
		for _, a := range n.Args {
			c.reads(a, s)
		}
	}
	return nil
}

// reads says that the forward pass of a stage reads a value. Of a free one it reads the parameters and states.
func (c *cutter) reads(n *graph.Node, stage int) {
	if isKept(n) || !c.free[n] {
		c.last[n] = max(c.last[n], stage)
		if first, ok := c.first[n]; !ok || stage < first {
			c.first[n] = stage
		}
		return
	}
	for _, a := range n.Args {
		c.reads(a, stage)
	}
}

// isKept reports whether n is a parameter or a state, which a stage keeps.
func isKept(n *graph.Node) bool {
	switch n.Op.(type) {
	case graph.Param, graph.State:
		return true
	}
	return false
}

// ends finds where stages end: before which of the nodes the next one begins.
func (c *cutter) ends(nodes []*graph.Node, names []string) (cuts []int, err error) {
	if len(names) > 0 {
		if len(names) != c.n-1 {
			return nil, fmt.Errorf("%d ends of stages are named, and %d stages have %d", len(names), c.n, c.n-1)
		}
		for _, name := range names {
			i := slices.IndexFunc(nodes, func(n *graph.Node) bool { return n.Name == name })
			switch {
			case i < 0:
				return nil, fmt.Errorf("no value of the forward pass is named %q, with which a stage could end", name)
			case len(cuts) > 0 && i < cuts[len(cuts)-1]:
				return nil, fmt.Errorf("%s is computed before the stage that it ends begins: name the ends in their order", nodes[i].Where())
			}
			cuts = append(cuts, i+1)
		}
		if cuts[len(cuts)-1] == len(nodes) {
			return nil, fmt.Errorf("%s is the last value of the forward pass, and leaves nothing for the last stage",
				nodes[len(nodes)-1].Where())
		}
		return cuts, nil
	}
	if len(nodes) < c.n {
		return nil, fmt.Errorf("the forward pass has %d operations, which cannot be cut into %d stages", len(nodes), c.n)
	}
	index, reader := map[*graph.Node]int{}, make([]int, len(nodes))
	before := make([]float64, len(nodes)+1) // the cost of the nodes before each
	for i, n := range nodes {
		index[n] = i
		cost := graph.CostOf(n)
		before[i+1] = before[i] + float64(cost.FLOPs) + byteCost*float64(cost.Bytes())
		for _, a := range n.Args {
			if j, ok := index[a]; ok {
				reader[j] = i
			}
		}
	}
	crossing := make([]float64, len(nodes)+1) // bytes of values that are read behind a cut before each node
	for i, n := range nodes {
		if reader[i] > i {
			crossing[i+1] += float64(n.Type.Bytes())
			crossing[reader[i]+1] -= float64(n.Type.Bytes())
		}
	}
	for i := range nodes {
		crossing[i+1] += crossing[i]
	}
	for s := 1; s < c.n; s++ {
		share := before[len(nodes)] / float64(c.n)
		best, least := 0, 0.0
		low := 1
		if s > 1 {
			low = cuts[s-2] + 1
		}
		for i := low; i <= len(nodes)-(c.n-s); i++ {
			off := before[i] - share*float64(s)
			if cost := max(off, -off) + sendCost*crossing[i]; best == 0 || cost < least {
				best, least = i, cost
			}
		}
		cuts = append(cuts, best)
	}
	return cuts, nil
}

// backward finds the stage of what the backward pass computes: the last one in which all its operands are.
func (c *cutter) backward() error {
	for _, n := range c.order {
		if !back(n) {
			continue
		}
		if r, ok := n.Op.(graph.Result); ok && r.Index > 0 {
			c.at[n] = c.at[n.Args[0]]
			continue
		}
		at := c.n - 1
		var of []*graph.Node // of the forward pass, and parameters
		var look func(a *graph.Node)
		look = func(a *graph.Node) {
			switch {
			case isKept(a) || !c.free[a] && !back(a):
				of = append(of, a)
				if last, ok := c.last[a]; ok {
					at = min(at, last)
				}
			case !c.free[a]:
				at = min(at, c.at[a])
			default:
				for _, b := range a.Args {
					look(b)
				}
			}
		}
		for _, a := range n.Args {
			look(a)
		}
		for _, a := range of {
			if !isKept(a) && c.at[a] > at {
				return fmt.Errorf("%s reads %s of stage %d, which stage %d would need before: cut the model elsewhere", n.Where(), a.Where(),
					c.at[a]+1, at+1)
			}
		}
		c.at[n] = at
	}
	return nil
}
