package rewrite

import (
	"fmt"
	"slices"

	"fusec/graph"
	"fusec/graph/trace"
)

// Target is what a pass asks about the machine that will run the graph.
type Target interface {
	Name() string
	// Accepts reports, as an error that carries the reason, that the target has no kernel for the operation.
	Accepts(op graph.Op, args, results []graph.Type) error
}

// Context is what a pass works on.
type Context struct {
	Graph  *graph.Graph
	Target Target       // nil accepts everything
	Stage  *trace.Stage // the record of the pass that runs
	Verify bool         // check that what is kept of the graph is of the graph as it is
	Frozen bool         // parameters without an update are frozen; see [graph.Frozen]

	types  []graph.Type // of the operands that were last asked about
	uses   *graph.Uses  // nil if not asked for since the graph was changed
	frozen *graph.PerNode[bool]

	followed []followed
	heirs    map[*graph.Node]heir // of the nodes of missed fusions, and of what they became
}

// Uses are those of the graph as the last pass left it, for a pass that has not changed it yet. With Verify, another pass panics:
// it has a fault, which package passes reports as an error with its name.
func (c *Context) Uses() *graph.Uses {
	if c.uses == nil {
		c.uses = c.Graph.Uses()
	} else if c.Verify && !c.uses.Of(c.Graph) {
		panic("the pass asks for uses after it has changed the graph")
	}
	return c.uses
}

// FrozenNodes is [graph.Frozen] of the graph as the last pass left it, under the same condition as Uses.
func (c *Context) FrozenNodes() graph.PerNode[bool] {
	if c.frozen == nil {
		frozen := graph.Frozen(c.Graph, c.Frozen)
		c.frozen = &frozen
	} else if c.Verify {
		fresh := graph.Frozen(c.Graph, c.Frozen)
		if slices.ContainsFunc(c.Graph.Nodes, func(n *graph.Node) bool { return c.frozen.Get(n) != fresh.Get(n) }) {
			panic("the pass asks for frozen nodes after it has changed the graph")
		}
	}
	return *c.frozen
}

// Changed says that a pass has changed the graph.
func (c *Context) Changed() { c.uses, c.frozen = nil, nil }

// manyOrigins is how many of the user's nodes a match lists at most besides those that were covered: where thousands of
// equal nodes become one, each match would list them all.
const manyOrigins = 64

// Match records a rewrite: the pattern or rule, what that may change of the value, what it made, and the nodes that it
// replaces.
func (c *Context) Match(pattern string, numeric trace.Numeric, kind string, made *graph.Node, covered ...*graph.Node) {
	numeric = c.allow(pattern, numeric, made)
	if len(covered) == 0 || len(made.Origin) <= manyOrigins {
		covered = append(slices.Clip(covered), made)
	}
	c.Stage.Matches = append(c.Stage.Matches, trace.Match{
		Pattern: pattern, Numeric: numeric, Kind: kind, Node: made.ID, Origin: graph.MergeOrigins(covered...)})
}

// allow takes into account what a rule may have changed of the value that it made. A rule that does not say what it may
// change panics: that is a mistake in the rule's code, which the first test that matches it finds, and no graph can cause it.
func (c *Context) allow(rule string, numeric trace.Numeric, made *graph.Node) trace.Numeric {
	if !numeric.Stated() {
		panic("the rule " + rule + " does not say what it may change")
	}
	numeric = numeric.In(made.Type.DType)
	if numeric.Weaker(c.Stage.Numeric) {
		c.Stage.Numeric = numeric
	}
	return numeric
}

// Miss records a missed fusion of a pattern that stopped at node at, after it had matched the covered nodes. ahead are
// further nodes that would have been covered, if they are known.
func (c *Context) Miss(pattern string, at *graph.Node, reason string, covered []*graph.Node, ahead ...*graph.Node) {
	c.Stage.Misses = append(c.Stage.Misses, trace.Miss{
		Pattern: pattern, Node: at.ID, At: at.Where(), Reason: reason, Origin: graph.MergeOrigins(covered...)})
	c.follow(at, slices.Concat(covered, ahead))
}

// Note records anything else; n may be nil.
func (c *Context) Note(n *graph.Node, format string, args ...any) {
	c.Stage.Notes = append(c.Stage.Notes, TraceNote(graph.Note{Node: n, Text: fmt.Sprintf(format, args...)}))
}

// TraceNote is a note as the trace has it.
func TraceNote(n graph.Note) trace.Note {
	t := trace.Note{Kind: n.Kind, Topic: n.Topic, Node: -1, Text: n.Text}
	if n.Node != nil {
		t.Node, t.Origin = n.Node.ID, n.Node.Origin
	}
	return t
}

// Accepts asks the target whether it has a kernel for the operation; without a target everything is accepted.
func (c *Context) Accepts(op graph.Op, args ...*graph.Node) error {
	if c.Target == nil {
		return nil
	}
	return c.Ask(c.Target.Accepts, op, args)
}

// Ask puts the question of [Target.Accepts] with the types of an operation's operands and results.
func (c *Context) Ask(accepts func(graph.Op, []graph.Type, []graph.Type) error, op graph.Op, args []*graph.Node) error {
	results, err := graph.ResultTypes(op, args)
	if err != nil {
		return err
	}
	c.types = c.types[:0]
	for _, a := range args {
		c.types = append(c.types, a.Type)
	}
	return accepts(op, c.types, results)
}
