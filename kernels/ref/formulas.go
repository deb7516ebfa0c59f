package ref

import "fusec/graph"

// A formula computes the results of an operation, of the given types, and their magnitudes if bound is true.
type formula func(op graph.Op, args []Value, types []graph.Type, bound bool) ([]Value, error)

// formulas has the reference of each operation, which stands beside what it computes with, but of those whose decomposition is
// enough: their parts have formulas, and finite differences check gradients.
var formulas = graph.NewAnswers[formula]("the reference")

var _ = formulas.Add("reshape", same).Add("copy", same).
	Add(one(func(op graph.Const, _ []Value, _ graph.Type, _ bool) (Value, error) { return FromTensor(op.Value), nil })).
	Add("fusion", func(op graph.Op, a []Value, _ []graph.Type, bound bool) ([]Value, error) {
		return evalArgs(op.(graph.Fusion).Body, a, bound, nil)
	})

func init() {
	formulas.Refuse("a graph gives its value", "input", "param", "state")
	formulas.Refuse("it is another result of its operand", "result")
	if err := formulas.Check(); err != nil {
		panic(err)
	}
}

// one is a formula for an operation of one result, with its name.
func one[O graph.Op](f func(op O, args []Value, t graph.Type, bound bool) (Value, error)) (string, formula) {
	var of O
	return of.OpName(), func(op graph.Op, args []Value, types []graph.Type, bound bool) ([]Value, error) {
		v, err := f(op.(O), args, types[0], bound)
		return []Value{v}, err
	}
}

// moved is a formula for an operation that makes magnitudes as it makes values.
func moved[O graph.Op](f func(op O, args []Value, t graph.Type) (Value, error)) (string, formula) {
	return one(func(op O, args []Value, t graph.Type, _ bool) (Value, error) { return f(op, args, t) })
}

// same has the elements of its operand in their order.
func same(_ graph.Op, args []Value, types []graph.Type, _ bool) ([]Value, error) {
	v := args[0]
	v.Type = types[0]
	return []Value{v}, nil
}
