package ref

import (
	"fmt"
	"math"
	"slices"

	"fusec/graph"
)

// Eval computes a graph from the values of its inputs, parameters and states, by name, each of its declared type. It
// returns the outputs by name and the updates' new values by their target's name: floats as F64 tensors.
func Eval(g *graph.Graph, in map[string]*graph.Tensor) (outputs, updates map[string]*graph.Tensor, err error) {
	values, err := Nodes(g, in, false)
	if err != nil {
		return nil, nil, err
	}
	outputs, updates = map[string]*graph.Tensor{}, map[string]*graph.Tensor{}
	for _, o := range g.Outputs {
		outputs[o.Name] = values[o.Node][0].Tensor()
	}
	for _, u := range g.Updates {
		updates[u.Target.Name] = values[u.Value][0].Tensor()
	}
	return outputs, updates, nil
}

// EvalBound is [Eval] with magnitudes; what it returns is made for [Check].
func EvalBound(g *graph.Graph, in map[string]*graph.Tensor) (outputs, updates map[string]Value, err error) {
	values, err := Nodes(g, in, true)
	if err != nil {
		return nil, nil, err
	}
	outputs, updates = results(g, values)
	return outputs, updates, nil
}

// EvalKept is [EvalBound] for what a rewritten graph has to keep: where other arithmetic takes the place of what is
// written, something else may come out than NaN, or than an infinity that finite numbers overflow to. Such elements are
// unsure, and so is what follows from them. So is what attentions, mixtures, dropout and padded convolutions make of
// operands that are not finite: a kernel may leave out what is masked, or multiply it by 0.
func EvalKept(g *graph.Graph, in map[string]*graph.Tensor) (outputs, updates map[string]Value, err error) {
	values, err := run(g, true, given(in), loosen)
	if err != nil {
		return nil, nil, err
	}
	outputs, updates = results(g, values)
	return outputs, updates, nil
}

// loosen makes those elements of a node's results unsure that [EvalKept] names. Those that may be NaN are, so that what
// follows from them may be, too.
func loosen(n *graph.Node, args, out []Value) {
	infinite := func(v Value, i int) bool { return math.IsInf(v.F[i], 0) || math.IsNaN(v.F[i]) }
	finite, sure := true, true
	given := false // some operand is infinite without having overflowed
	grad, isGrad := n.Op.(graph.AttentionGrad)
	for j, a := range args {
		for i := range a.F {
			if isGrad && j == grad.LSEArg() && math.IsInf(a.F[i], -1) {
				continue // of a query with nothing to attend
			}
			if infinite(a, i) {
				finite = false
				given = given || a.mag(i) == 0
			}
			sure = sure && !math.IsInf(a.mag(i), 1)
		}
	}
	follows := func(int) bool { return given }
	if graph.ClassOf(n.Op) == graph.ClassElementwise {
		follows = func(i int) bool {
			return slices.ContainsFunc(args, func(a Value) bool {
				return a.F != nil && infinite(a, a.at(i)) && a.mag(a.at(i)) == 0
			})
		}
	}
	masked := func(result, i int) bool { return false }
	switch {
	case graph.Joins(n.Op) && graph.Skips(n.Op):
		masked = func(_, i int) bool { return infinite(args[0], i) }
	case graph.Skips(n.Op):
		masked = func(int, int) bool { return !finite }
	case graph.InfoOf(n.Op).ChannelWeights: // the vectors of channels may be joined before they meet x
		inner := max(graph.ShapeOf(n.Type.Shape.Slice()[2:]...).Elems(), 1)
		masked = func(result, i int) bool {
			channel := i / inner % n.Type.Shape.At(1)
			return result == 0 && slices.ContainsFunc(args[1:], func(a Value) bool { return infinite(a, channel) })
		}
	case !sure && len(graph.Choosers(n)) > 0:
		for _, v := range out {
			for i := range v.Mag {
				v.Mag[i] = unsure
			}
		}
	}
	for j, v := range out {
		for i := range v.F {
			if masked(j, i) {
				v.F[i] = math.NaN()
			}
			if math.IsNaN(v.F[i]) || infinite(v, i) && !follows(i) {
				v.Mag[i] = unsure
			}
		}
	}
}

func results(g *graph.Graph, values map[*graph.Node][]Value) (outputs, updates map[string]Value) {
	outputs, updates = map[string]Value{}, map[string]Value{}
	for _, o := range g.Outputs {
		outputs[o.Name] = values[o.Node][0]
	}
	for _, u := range g.Updates {
		updates[u.Target.Name] = values[u.Value][0]
	}
	return outputs, updates
}

// Nodes computes the results of every node of a graph, with magnitudes if bound is true.
func Nodes(g *graph.Graph, in map[string]*graph.Tensor, bound bool) (map[*graph.Node][]Value, error) {
	return run(g, bound, given(in), nil)
}

// given are the values of sources by name.
func given(in map[string]*graph.Tensor) func(n *graph.Node) (Value, error) {
	return func(n *graph.Node) (Value, error) {
		t := in[n.Name]
		if t == nil {
			return Value{}, fmt.Errorf("no value is given")
		}
		if t.Type != n.Type {
			return Value{}, fmt.Errorf("a value of type %v is given, not %v", t.Type, n.Type)
		}
		return FromTensor(t), nil
	}
}

// evalArgs computes the outputs of a graph whose i-th Input has the value args[i].
func evalArgs(g *graph.Graph, args []Value, bound bool, after func(n *graph.Node, args, out []Value)) ([]Value, error) {
	next := 0
	values, err := run(g, bound, func(*graph.Node) (Value, error) {
		next++
		return args[next-1], nil
	}, after)
	if err != nil {
		return nil, err
	}
	out := make([]Value, len(g.Outputs))
	for i, o := range g.Outputs {
		out[i] = values[o.Node][0]
	}
	return out, nil
}

// run computes a graph from the values of its sources. It calls after, if it is not nil, with the operands and results of
// each node that computes, of a fusion with those of the nodes of its body.
func run(g *graph.Graph, bound bool, source func(*graph.Node) (Value, error),
	after func(n *graph.Node, args, out []Value)) (map[*graph.Node][]Value, error) {
	values := make(map[*graph.Node][]Value, len(g.Nodes))
	for _, n := range g.Nodes {
		var err error
		switch op := n.Op.(type) {
		case graph.Input, graph.Param, graph.State:
			var v Value
			v, err = source(n)
			values[n] = []Value{v}
		case graph.Result:
			values[n] = values[n.Args[0]][op.Index:]
		default:
			args := make([]Value, len(n.Args))
			for i, a := range n.Args {
				args[i] = values[a][0]
			}
			if f, ok := op.(graph.Fusion); ok && after != nil {
				values[n], err = evalArgs(f.Body, args, bound, after)
			} else if values[n], err = apply(op, args, bound); err == nil && after != nil {
				after(n, args, values[n])
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", n.Where(), err)
		}
	}
	return values, nil
}

// Op computes the results of one operation, without magnitudes. Sources other than Const, and Result, have no value
// of their own and are errors.
func Op(op graph.Op, args []Value) ([]Value, error) { return apply(op, args, false) }

// OpBound is [Op] with magnitudes.
func OpBound(op graph.Op, args []Value) ([]Value, error) { return apply(op, args, true) }

// typesOf are the types of values.
func typesOf(args []Value) []graph.Type {
	types := make([]graph.Type, len(args))
	for i, a := range args {
		types[i] = a.Type
	}
	return types
}

func apply(op graph.Op, args []Value, bound bool) ([]Value, error) {
	info := graph.InfoOf(op)
	if info == nil {
		return nil, fmt.Errorf("operation %T is not in the table", op)
	}
	if len(args) < info.MinArgs || info.MaxArgs >= 0 && len(args) > info.MaxArgs {
		return nil, fmt.Errorf("%s of %d operands", info.Name, len(args))
	}
	args = slices.Clone(args)
	for i, a := range args {
		if bound && a.Mag == nil {
			args[i].Mag = make([]float64, a.Len())
		}
	}
	types, err := info.Infer(op, typesOf(args))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", info.Name, err)
	}
	var out []Value
	compute, err := formulas.Of(op)
	switch {
	case err == nil:
		out, err = compute(op, args, types, bound)
	case info.Decompose != nil:
		out, err = Decomposed(op, args)
	}
	if err != nil {
		return nil, err
	}
	for i := range out {
		switch {
		case !bound:
			out[i].Mag = nil
		case out[i].Mag == nil:
			out[i].Mag = make([]float64, out[i].Len())
		}
	}
	return out, nil
}
