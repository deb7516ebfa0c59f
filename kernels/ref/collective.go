package ref

import (
	"fmt"
	"math"

	"fusec/graph"
)

// Mesh computes a graph that the participants of its mesh run together, each on the values of its own sources: in[i] are
// those of the participant of rank i. It returns the outputs and updates of each, as [EvalBound] does. Collective operations
// are simulated, one node after another.
func Mesh(g *graph.Graph, in []map[string]*graph.Tensor) (outputs, updates []map[string]Value, err error) {
	n := g.Mesh.Size()
	if len(in) != n {
		return nil, nil, fmt.Errorf("values of %d participants for the mesh %q of %d", len(in), g.Mesh, n)
	}
	values := make([]map[*graph.Node][]Value, n)
	for r := range values {
		values[r] = make(map[*graph.Node][]Value, len(g.Nodes))
	}
	for _, node := range g.Nodes {
		op, collective := node.Op.(graph.Collective)
		if !collective {
			for r := range values {
				if values[r][node], err = oneNode(node, values[r], in[r]); err != nil {
					return nil, nil, fmt.Errorf("participant %d: %s: %w", r, node.Where(), err)
				}
			}
			continue
		}
		axes, err := op.Of().Axes(g.Mesh)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", node.Where(), err)
		}
		for r := range values {
			ranks, place := g.Mesh.Ranks(axes, r)
			args := make([]Value, len(ranks))
			for i, q := range ranks {
				args[i] = values[q][node.Args[0]][0]
			}
			values[r][node] = []Value{together(op, args, place, node.Type)}
		}
	}
	outputs, updates = make([]map[string]Value, n), make([]map[string]Value, n)
	for r := range values {
		outputs[r], updates[r] = results(g, values[r])
	}
	return outputs, updates, nil
}

// oneNode computes a node that has no part in others' values.
func oneNode(n *graph.Node, values map[*graph.Node][]Value, in map[string]*graph.Tensor) ([]Value, error) {
	switch op := n.Op.(type) {
	case graph.Input, graph.Param, graph.State:
		v, err := given(in)(n)
		return []Value{v}, err
	case graph.Result:
		return values[n.Args[0]][op.Index:], nil
	}
	args := make([]Value, len(n.Args))
	for i, a := range n.Args {
		args[i] = values[a][0]
	}
	return apply(n.Op, args, true)
}

// together computes the result of a collective operation for the participant at a place in its group, from the operands of
// all.
func together(op graph.Collective, args []Value, place int, t graph.Type) Value {
	switch op := op.(type) {
	case graph.AllReduce:
		return groupReduce(op.Fn, args)
	case graph.ReduceScatter:
		return cut(groupReduce(op.Fn, args), op.Axis, place, t)
	case graph.AllGather:
		return concat(graph.Concat{Axis: op.Axis}, args, t)
	case graph.AllToAll:
		part := t.Reshaped(t.Shape.With(op.Join, t.Shape.At(op.Join)/len(args)))
		parts := make([]Value, len(args))
		for i, x := range args {
			parts[i] = cut(x, op.Split, place, part)
		}
		return concat(graph.Concat{Axis: op.Join}, parts, t)
	case graph.Part:
		return cut(args[place], op.Axis, place, t)
	case graph.Permute:
		n := len(args)
		return args[((place-op.Shift)%n+n)%n]
	case graph.BroadcastFrom:
		return args[op.Root]
	}
	panic(fmt.Sprintf("kernels/ref: %s is no collective operation", op.OpName()))
}

// cut is a part, of type t, of x along an axis.
func cut(x Value, axis, part int, t graph.Type) Value {
	index, err := stepIndex(axis, 1, int64(part*t.Shape.At(axis)), t.Shape, x.Type.Shape)
	if err != nil {
		panic(err) // the type rule has checked the sizes
	}
	return pick(x, t, index)
}

// groupReduce combines values element by element, in their order.
func groupReduce(f graph.ReduceFn, args []Value) Value {
	v, row := zeros(args[0].Type), f.Info()
	v.Mag = make([]float64, v.Len())
	for i := range v.Len() {
		for j, x := range args {
			switch {
			case v.F == nil && j == 0:
				v.I[i] = x.I[i]
			case v.F == nil:
				y, _ := row.Join.OfInts(v.Type.DType)(v.I[i], x.I[i]) // no reduction joins by a function that may fail
				v.I[i] = v.Type.DType.Wrap(y)
			case j == 0:
				v.F[i] = x.F[i]
			default:
				v.F[i] = row.Join.Info().Eval(v.F[i], x.F[i])
			}
			switch m := x.mag(i); {
			case f == graph.MaxOf || f == graph.MinOf:
				v.Mag[i] = max(v.Mag[i], m)
			case len(args) == 1:
				v.Mag[i] = m
			case v.F != nil:
				v.Mag[i] += m + math.Abs(x.F[i])
			}
		}
		if row.Averages {
			v.F[i] /= float64(len(args))
			v.Mag[i] /= float64(len(args))
		}
	}
	return v
}

var _ = formulas.Add("all_reduce", alone).Add("reduce_scatter", alone).Add("all_gather", alone).Add("all_to_all", alone).
	Add("part", alone).Add("permute", alone).Add("broadcast_from", alone)

// alone is the result of a collective operation in a group of one, which is its operand.
func alone(op graph.Op, args []Value, types []graph.Type, bound bool) ([]Value, error) {
	if n := op.(graph.Collective).Of().Parts; n > 1 {
		return nil, fmt.Errorf("a group of %d participants: each has a value, see Mesh", n)
	}
	return same(op, args, types, bound)
}
