package optim

import (
	"errors"
	"fmt"
	"math"

	"fusec/graph"
)

// The names of the nodes, except moments, that [Optimizer.Append] adds to a graph.
const (
	RateInput    = "optim/rate"    // Input, F64: the learning rate, set before each run
	NormOutput   = "optim/norm"    // Output, F64: the norm of all gradients before clipping
	StepState    = "optim/step"    // State, I64: steps done
	SkippedState = "optim/skipped" // State, I64: steps skipped because a gradient or a cost was not finite
	ScaleState   = "optim/scale"   // State, F64: the loss scale; [Optimizer.LossScale] has its first value
	goodState    = "optim/good"    // State, I64: steps since the scale changed
	runState     = "optim/run"     // State, I64: runs accumulated so far
	doubtState   = "optim/doubt"   // State, F64: accumulated runs whose cost was not finite
)

// MomentState is the name of the state that holds a moment of a parameter.
func MomentState(moment, param string) string { return "optim/" + moment + "/" + param }

// Pair is a parameter and its gradient.
type Pair struct{ Param, Grad *graph.Node }

// Seed returns the gradient with which to differentiate the cost: d(cost)/d(cost), nil for 1, times the loss scale.
func (o *Optimizer) Seed(g *graph.Graph, cost, seed *graph.Node) (*graph.Node, error) {
	if o.LossScale.Initial == 0 {
		return seed, nil
	}
	b := graph.Extend(g).In(graph.Backward)
	scale := g.Lookup(ScaleState)
	if scale == nil {
		scale = b.State(ScaleState, graph.TypeOf(graph.F64))
		scale.Phase = graph.Optimiser
	}
	s := b.Broadcast(as(b, scale, cost), cost.Type.Shape)
	if seed != nil {
		s = b.Binary(graph.Mul, s, seed)
	}
	return s, b.Err()
}

// Append adds a step to a graph that computes gradients: an update for every parameter and state. Gradients have the
// number of elements and the element type of their parameters. With loss scaling they must be computed with the result
// of [Optimizer.Seed]. A step is also skipped if one of the costs is not finite.
func (o *Optimizer) Append(g *graph.Graph, pairs []Pair, costs []*graph.Node) error {
	if err := o.Check(); err != nil {
		return err
	}
	if len(pairs) == 0 {
		return errors.New("the optimiser has no parameter to change")
	}
	updated := map[*graph.Node]bool{}
	for _, u := range g.Updates {
		updated[u.Target] = true
	}
	for _, p := range pairs {
		if updated[p.Param] {
			return fmt.Errorf("%s is updated by the graph: the optimiser cannot change it as well", p.Param.Where())
		}
	}
	before := len(g.Nodes)
	w := &writer{o: o, b: graph.Extend(g), sources: g.SourcesByName()}
	err := w.write(pairs, costs)
	for _, n := range g.Nodes[before:] {
		n.Phase = graph.Optimiser
	}
	return err
}

// A writer appends the nodes of a step.
type writer struct {
	o *Optimizer
	b *graph.Builder

	sources map[string]*graph.Node // of the graph before the step, and states of the step

	apply *graph.Node // Bool: this run makes a step
	due   *graph.Node // Bool: this run is the last of those that make a step; nil if each is
	coef  *graph.Node // F64: what gradients are multiplied by
	now   Now
}

func (w *writer) write(pairs []Pair, costs []*graph.Node) error {
	w.mine(RateInput)
	sums := make([]*graph.Node, len(pairs))
	for i, p := range pairs {
		if p.Grad.Type.DType != p.Param.Type.DType || p.Grad.Type.Shape.Elems() != p.Param.Type.Shape.Elems() {
			return fmt.Errorf("the gradient of %s is %v, which does not fit %v", p.Param.Where(), p.Grad.Type,
				p.Param.Type)
		}
		sums[i] = w.sum(p)
	}
	w.scalars(sums, costs)
	if err := w.b.Err(); err != nil {
		return err
	}
	for i, p := range pairs {
		if err := w.step(p.Param, sums[i]); err != nil {
			return err
		}
	}
	return w.b.Err()
}

// mine reports a user's source with a name that the step needs.
func (w *writer) mine(name string) {
	if w.sources[name] != nil {
		w.b.Fail(fmt.Errorf("the graph has a source named %q, which the optimiser needs for itself", name))
	}
}

func (w *writer) state(name string, t graph.Type) *graph.Node {
	w.mine(name)
	s := w.b.State(name, t)
	w.sources[name] = s
	return s
}

// sum is a parameter's gradient, plus those of earlier runs that belong to the same step.
func (w *writer) sum(p Pair) *graph.Node {
	w.b.From(p.Param)
	g := w.b.Reshape(p.Grad, p.Param.Type.Shape.Slice()...)
	if w.o.runs() == 1 {
		return g
	}
	return w.b.Binary(graph.Add, w.state(MomentState("sum", p.Param.Name), p.Param.Type), g)
}

// scalars computes what this run does, in float64; a flag is 1 or 0.
func (w *writer) scalars(sums, costs []*graph.Node) {
	b := w.b.From()
	number := func(v float64) *graph.Node { return b.Scalar(graph.F64, v) }
	mul := func(x, y *graph.Node) *graph.Node { return b.Binary(graph.Mul, x, y) }
	not := func(x *graph.Node) *graph.Node { return b.Binary(graph.Sub, number(1), x) }
	flag := func(x *graph.Node) *graph.Node { return b.Add(graph.Cast{To: graph.F64}, x) }
	finite := func(x *graph.Node) *graph.Node { return flag(b.Binary(graph.Lt, x, number(math.Inf(1)))) }
	count := func(name string) (state, value *graph.Node) {
		state = w.state(name, graph.TypeOf(graph.I64))
		return state, b.Add(graph.Cast{To: graph.F64}, state)
	}
	update := func(state, value *graph.Node) {
		b.Update(state, b.Add(graph.Cast{To: state.Type.DType}, value))
	}

	// Everything depends on the norm, so that it becomes one launch.
	norm := b.Unary(graph.Sqrt, b.Add(graph.SquaredNorm{}, sums...))
	inverse := number(1 / float64(w.o.runs()))
	scale := w.sources[ScaleState]
	if w.o.LossScale.Initial > 0 {
		if scale == nil {
			b.Fail(errors.New("the gradients were made without the loss scale"))
			return
		}
		inverse = b.Binary(graph.Div, inverse, scale)
	}
	norm = mul(norm, inverse)
	good := finite(norm)
	if len(costs) > 0 {
		good = mul(good, finite(b.Add(graph.SquaredNorm{}, costs...)))
	}
	due := number(1)
	if k := w.o.runs(); k > 1 {
		state, runs := count(runState)
		runs = b.BinaryScalar(graph.Add, runs, 1)
		due = flag(b.BinaryScalar(graph.Ge, runs, float64(k)))
		update(state, mul(runs, not(due)))
		doubt := w.state(doubtState, graph.TypeOf(graph.F64))
		bad := b.Binary(graph.Add, doubt, not(good))
		good = flag(b.BinaryScalar(graph.Eq, bad, 0))
		b.Update(doubt, mul(bad, not(due)))
	}
	step, skip := mul(good, due), mul(not(good), due)
	w.apply = b.BinaryScalar(graph.Gt, step, 0)
	if w.o.runs() > 1 { // equals due, but depends on the norm, so that the sums are updated in place with the parameters
		w.due = b.BinaryScalar(graph.Gt, b.Binary(graph.Add, step, skip), 0)
	}

	state, steps := count(StepState)
	steps = b.Binary(graph.Add, steps, step)
	update(state, steps)
	state, skipped := count(SkippedState)
	update(state, b.Binary(graph.Add, skipped, skip))
	w.now.Count = b.BinaryScalar(graph.Max, steps, 1)
	w.now.Rate = mul(b.Input(RateInput, graph.TypeOf(graph.F64)), step)

	w.coef = mul(inverse, step)
	if w.o.Clip > 0 {
		w.coef = mul(w.coef, b.Binary(graph.Div, number(w.o.Clip), b.BinaryScalar(graph.Max, norm, w.o.Clip)))
	}
	b.Output(NormOutput, norm)
	if grow := w.o.LossScale.GrowAfter; scale != nil {
		next := b.Binary(graph.Sub, scale, mul(b.BinaryScalar(graph.Mul, scale, 0.5), skip))
		if grow > 0 {
			state, held := count(goodState)
			held = b.Binary(graph.Add, held, step)
			double := mul(step, flag(b.BinaryScalar(graph.Ge, held, float64(grow))))
			next = b.Binary(graph.Add, next, mul(scale, double))
			update(state, mul(held, not(b.Binary(graph.Add, skip, double))))
		}
		next = b.BinaryScalar(graph.Max, next, min(leastScale, w.o.LossScale.Initial))
		b.Update(scale, b.BinaryScalar(graph.Min, next, greatestScale))
	}
}

// The scale stays between these; if its first value is less than 1, that is the minimum.
const leastScale, greatestScale = 1, 0x1p126

// step appends the update of one parameter.
func (w *writer) step(param, sum *graph.Node) error {
	b := w.b.From(param)
	group, err := w.o.Of(param.Name, param.Type)
	if err != nil {
		return err
	}
	// In a run without a step the factor is 0, and the result is not used. Its dependence on the norm keeps the update
	// out of the launches that compute the gradients, where it would be half done.
	g := b.Binary(graph.Mul, sum, as(b, w.coef, sum))
	now := w.now
	now.Decay = !group.NoDecay
	if group.Rate != 1 {
		now.Rate = b.BinaryScalar(graph.Mul, now.Rate, group.Rate)
	}
	var moments []*graph.Node
	for _, m := range w.o.Rule.Moments() {
		moments = append(moments, w.state(MomentState(m, param.Name), param.Type))
	}
	value, next := w.o.Rule.Step(b, now, param, g, moments)
	if b.Err() == nil && len(next) != len(moments) {
		return fmt.Errorf("%T gives %d new moments for %d", w.o.Rule, len(next), len(moments))
	}
	commit := func(old, new *graph.Node) { b.Update(old, b.Add(graph.Select{}, w.apply, new, old)) }
	commit(param, value)
	for i, m := range moments {
		commit(m, next[i])
	}
	if w.due != nil {
		zero := b.Scalar(sum.Type.DType, 0)
		b.Update(w.sources[MomentState("sum", param.Name)], b.Add(graph.Select{}, w.due, zero, sum))
	}
	return b.Err()
}
