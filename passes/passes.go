package passes

import (
	"cmp"
	"fmt"
	"runtime/debug"
	"time"

	"fusec/graph"
	"fusec/graph/optim"
	"fusec/graph/precision"
	"fusec/graph/trace"
	"fusec/passes/narrow"
	"fusec/passes/rewrite"
)

// Target is what a pass asks about the machine that will run the graph.
type Target = rewrite.Target

// Gradient asks for d(Cost)/d(Of). The nodes belong to the graph given to [Run].
type Gradient struct {
	Cost *graph.Node // nil if unknown: then Value stays as it is
	Of   *graph.Node
	Seed *graph.Node // d(Cost)/d(Cost); nil for 1. It counts as constant
	// Value is the node that the graph already has for it; it gives way to a new one. Nil if there is none.
	Value *graph.Node
	// Output names the output under which the gradient is handed out. If empty, only what reads Value gets it.
	Output string
}

// Layout lays a graph over the participants of a mesh. The zero Layout is one participant, even for a graph with a mesh.
type Layout struct {
	Mesh  graph.Mesh
	Split map[string]graph.Sharding // of sources, by name
	ZeRO  int                       // 1 to 3: what training keeps is split like the data; see [shard.Run]
	// Rounded says that participants exchange gradients in bf16.
	Rounded bool
}

// Config says how to compile.
type Config struct {
	Target    Target // nil accepts everything
	Verify    bool   // check the graph after each pass, and that passes do not ask about the graph before their changes
	Gradients []Gradient
	// Optimizer makes the update of parameters part of the graph; Steps says of which, and by which gradients.
	Optimizer *optim.Optimizer
	Steps     []Step
	Disable   map[string]bool // passes to leave out
	Stop      string          // the last pass to run; empty for all
	// Precision is what contractions may be rounded to.
	Precision precision.Precision
	// Layout is how the graph is laid over the participants of a mesh.
	Layout Layout
	// Budget is the number of bytes that temporary values may take; see package recompute. 0 is no limit.
	Budget int64
	// Frozen says that parameters without an update change only between runs, and seldom: what follows from them and from
	// constants is computed once, not in each run.
	Frozen bool

	leastHalf int    // for tests; 0 is [narrow.Least]
	meshed    string // why the pass shard cannot be left out; empty if it can
}

func (cfg Config) check() error {
	names := map[string]bool{"": true}
	for _, p := range table {
		names[p.Name] = true
	}
	if cfg.Budget < 0 {
		return fmt.Errorf("a memory budget of %d bytes", cfg.Budget)
	}
	if !cfg.Precision.Known() {
		return fmt.Errorf("%v is not known", cfg.Precision)
	}
	if !names[cfg.Stop] {
		return fmt.Errorf("no pass %q to stop after", cfg.Stop)
	}
	for name := range cfg.Disable {
		if !names[name] || name == "" {
			return fmt.Errorf("no pass %q to disable", name)
		}
	}
	if err := cfg.checkSteps(); err != nil {
		return err
	}
	for _, p := range table {
		if cfg.Disable[p.Name] && !cfg.Disable[p.For] && p.Needed != nil {
			if why := p.Needed(cfg); why != "" {
				return fmt.Errorf("pass %q cannot be left out: %s", p.Name, why)
			}
		}
		if p.Name == cfg.Stop {
			break
		}
	}
	return nil
}

// Context is what a pass works on: the graph, and what the caller asked for.
type Context struct {
	*rewrite.Context
	cfg       Config
	gradients []Gradient // of cfg and for steps, in terms of Graph's nodes as they were before the first pass
	steps     []Step     // of cfg, in the same terms
}

// Run compiles a graph. It leaves g as it is and returns the graph after the last pass and a record of every stage.
// After an error the Trace holds the stages until then.
func Run(g *graph.Graph, cfg Config) (*graph.Graph, *trace.Trace, error) {
	tr := &trace.Trace{}
	if len(cfg.Layout.Mesh) > 0 && !g.Parts {
		cfg.meshed = fmt.Sprintf("the graph is for %d participants", cfg.Layout.Mesh.Size())
	}
	if err := cfg.check(); err != nil {
		return nil, tr, err
	}
	if cfg.Target != nil {
		tr.Target = cfg.Target.Name()
	}
	if cfg.Verify {
		if err := graph.Verify(g); err != nil {
			return nil, tr, fmt.Errorf("the graph as given: %w", err)
		}
	}
	work, to := g.Clone()
	work.Gradients, work.Training = nil, nil // cfg has what is asked for
	if !work.Parts {
		work.Mesh = cfg.Layout.Mesh
		for _, n := range work.Sources() {
			n.Sharding = cfg.Layout.Split[n.Name]
		}
	}
	cfg.leastHalf = cmp.Or(cfg.leastHalf, narrow.Least)
	c := &Context{Context: &rewrite.Context{Graph: work, Target: cfg.Target, Verify: cfg.Verify, Frozen: cfg.Frozen}, cfg: cfg}
	tr.Precision = cfg.Precision.String()
	if cfg.Optimizer != nil {
		tr.Rule = optim.RuleName(cfg.Optimizer.Rule)
	}
	for _, r := range cfg.Gradients {
		r, err := r.in(to)
		if err != nil {
			return nil, tr, err
		}
		c.gradients = append(c.gradients, r)
	}
	for _, r := range cfg.Steps {
		r, err := r.in(to)
		if err != nil {
			return nil, tr, err
		}
		c.steps = append(c.steps, r)
	}
	if err := c.askSteps(); err != nil {
		return nil, tr, err
	}
	var stages graph.Recorder
	snapshot := func(s trace.Stage) {
		if s.Graph = stages.Snapshot(c.Graph); len(tr.Stages) > 0 && s.Graph != tr.Stages[len(tr.Stages)-1].Graph {
			c.Changed()
		}
		tr.Stages = append(tr.Stages, s)
	}
	came := trace.Stage{Name: "import", Doc: "the graph as given"}
	for _, n := range g.Notes {
		came.Notes = append(came.Notes, rewrite.TraceNote(n))
	}
	work.Notes = nil
	snapshot(came)
	for _, p := range table {
		if cfg.Disable[p.Name] || cfg.Disable[p.For] {
			continue
		}
		s := trace.Stage{Name: p.Name, Doc: p.Doc}
		if p.Name == table[len(table)-1].Name {
			s.Name = trace.Final
		}
		c.Stage = &s
		start := time.Now()
		if err := c.run(p); err != nil {
			return nil, tr, fmt.Errorf("pass %s: %w", p.Name, err)
		}
		s.Took = time.Since(start)
		if cfg.Verify {
			if err := graph.Verify(c.Graph); err != nil {
				return nil, tr, fmt.Errorf("pass %s left a malformed graph: %w", p.Name, err)
			}
		}
		snapshot(s)
		if cfg.Verify {
			if err := stages.Check(c.Graph); err != nil {
				return nil, tr, fmt.Errorf("pass %s: %w", p.Name, err)
			}
		}
		if p.Name == cfg.Stop {
			break
		}
	}
	c.Locate(tr)
	return c.Graph, tr, nil
}

// run calls the pass and turns a panic, which would be a mistake in it, into an error.
func (c *Context) run(p Pass) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("internal error: %v\n%s", r, debug.Stack())
		}
	}()
	return p.Run(c)
}

// in translates the request to the nodes of a cloned graph.
func (r Gradient) in(to map[*graph.Node]*graph.Node) (Gradient, error) {
	if err := translate(to, "gradient", &r.Cost, &r.Of, &r.Value, &r.Seed); err != nil {
		return r, err
	}
	if r.Of == nil {
		return r, fmt.Errorf("a gradient was asked for without saying of what")
	}
	if r.Value == nil && (r.Cost == nil || r.Output == "") {
		return r, fmt.Errorf(
			"the gradient with respect to %v was asked for without a cost and an output, and the graph has no value for it", r.Of)
	}
	return r, nil
}

// translate leads from the nodes of a graph, as far as they are not nil, to those of its clone.
func translate(to map[*graph.Node]*graph.Node, asked string, nodes ...**graph.Node) error {
	for _, n := range nodes {
		if *n == nil {
			continue
		}
		m, ok := to[*n]
		if !ok {
			return fmt.Errorf("a %s was asked for in terms of %s, which is not a node of the graph", asked, (*n).Where())
		}
		*n = m
	}
	return nil
}
