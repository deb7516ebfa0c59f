package graph

import (
	"fmt"
	"slices"
)

// Reverse-mode differentiation. The rule of an operation is in its row (OpInfo.Grad), in the file of the operation.
// This file applies the rules.
//
// All rules follow these conventions:
//
//   - Gradients are built from operations of the table, so that they can be differentiated again.
//   - Only floating-point values have gradients; indices, seeds and Bools have none. The gradient of a value of 16 bits
//     is F32. It is rounded where a contraction multiplies it with operands of 16 bits.
//   - Functions that are constant between jumps (sign, ceil, floor, round, comparisons, casts to integers) pass no
//     gradient, as in PyTorch.
//   - At ties, Max, Min, MaxOf and MinOf share the gradient evenly among the elements that reach the value; max-pools
//     pass it to the first. Relu, LeakyRelu and Elu have the slope at 0 that their attribute AtZero gives.
//   - A composite without a rule is differentiated through its decomposition, a Fusion through its body.

// Gradients appends to g the gradients of the scalar cost for each of wrt, and returns them in that order. A node that
// the cost does not depend on gets zeros. Gradients also flow through nodes of wrt to other nodes of wrt. An error
// names the operation that has no gradient, and leaves the graph unchanged.
func Gradients(g *Graph, cost *Node, wrt []*Node) ([]*Node, error) {
	if cost.Type.Shape.Elems() != 1 {
		return nil, fmt.Errorf("the cost %s has type %v: a gradient needs a scalar", cost.Where(), cost.Type)
	}
	n := len(g.Nodes)
	seed := Extend(g).From(cost).In(Backward).Const(Filled(cost.Type, 1))
	r, err := VJP(g, []*Node{cost}, []*Node{seed}, wrt)
	if err != nil {
		g.Nodes = g.Nodes[:n]
	}
	return r, err
}

// VJP appends to g the product of dys with the Jacobian of outputs by wrt: for each of wrt the sum over the outputs of
// dy·∂output/∂wrt. Each of dys has the type of its output. See [Gradients].
func VJP(g *Graph, outputs, dys, wrt []*Node) ([]*Node, error) {
	if len(outputs) != len(dys) {
		return nil, fmt.Errorf("%d outputs have %d gradients", len(outputs), len(dys))
	}
	in := NewPerNode[*Node](g)
	for _, n := range g.Nodes {
		in.Set(n, n)
	}
	for _, n := range slices.Concat(outputs, dys, wrt) {
		if in.Get(n) != n {
			return nil, fmt.Errorf("gradients: %s is not a node of the graph", n.Where())
		}
	}
	for i, o := range outputs {
		if !o.Type.DType.IsFloat() || dys[i].Type != o.Type {
			return nil, fmt.Errorf("%s of type %v cannot have the gradient %s of type %v", o.Where(), o.Type, dys[i].Where(), dys[i].Type)
		}
	}
	for _, n := range wrt {
		if !n.Type.DType.IsReal() {
			return nil, fmt.Errorf("%s of type %v has no gradient: only floats have one", n.Where(), n.Type)
		}
	}
	before := len(g.Nodes)
	b := Extend(g).In(Backward)
	grads, err := backward(b, g.Nodes[:before:before], outputs, dys, wrt)
	if err == nil {
		for i, n := range wrt {
			if grads[i] == nil {
				b.From(n)
				grads[i] = b.Broadcast(b.Scalar(n.Type.DType.Accumulator(), 0), n.Type.Shape)
			}
		}
		err = b.Err()
	}
	if err != nil {
		g.Nodes = g.Nodes[:before]
		return nil, err
	}
	prune(g, before, grads)
	for _, n := range g.Nodes[before:] {
		n.Phase = max(n.Phase, Backward)
	}
	return grads, nil
}

// prune drops the nodes from number first on that no root needs.
func prune(g *Graph, first int, roots []*Node) {
	live := NewPerNode[bool](g)
	for _, n := range roots {
		live.Set(n, true)
	}
	for i := len(g.Nodes) - 1; i >= first; i-- {
		if n := g.Nodes[i]; live.Get(n) {
			for _, a := range n.Args {
				live.Set(a, true)
			}
		}
	}
	kept := g.Nodes[:first]
	for _, n := range g.Nodes[first:] {
		if live.Get(n) {
			kept = append(kept, n)
		}
	}
	clear(g.Nodes[len(kept):])
	g.Nodes = kept
}

// backward walks nodes, which are in topological order, from outputs back to wrt. It returns the gradients of wrt, nil
// where none flows. Operands outside nodes end the walk. The gradient of a value of 16 bits that is a sum of several is
// rounded to 16 bits before it is handed on.
func backward(b *Builder, nodes, outputs, dys, wrt []*Node) ([]*Node, error) {
	needed, first := dependants(nodes, wrt), b.g.nextID
	grads := make(map[*Node][]*Node) // of each result
	summed := make(map[*Node]bool)   // first results whose gradient is a sum
	accumulate := func(n *Node, result int, dy *Node) {
		if grads[n] == nil {
			grads[n] = make([]*Node, n.Results())
		}
		if sum := &grads[n][result]; *sum == nil {
			*sum = dy
		} else {
			*sum = b.Binary(Add, *sum, dy)
			summed[n] = result == 0
		}
	}
	for i, o := range outputs {
		if dys[i] != nil && needed[o] {
			accumulate(o, 0, dys[i])
		}
	}
	for i := len(nodes) - 1; i >= 0; i-- {
		n := nodes[i]
		if grads[n] == nil || !anyNeeded(n.Args, needed) {
			continue
		}
		if r, ok := n.Op.(Result); ok {
			accumulate(n.Args[0], r.Index, grads[n][0])
			continue
		}
		dys := grads[n]
		if d := n.Type.DType; summed[n] && d.Is16() { // as a value of its type would be kept
			dys = append([]*Node{b.From(n).CastTo(dys[0].Type.DType, b.CastTo(d, dys[0]))}, dys[1:]...)
		}
		args, err := operandGradients(b.From(n), n, dys, needed)
		if err == nil {
			err = b.Err()
		}
		if err != nil {
			return nil, fmt.Errorf("gradient of %s: %w", n.Where(), err)
		}
		for j, dx := range args {
			if a := n.Args[j]; dx != nil && needed[a] {
				if dx.Type != a.Type.Accumulator() {
					return nil, fmt.Errorf("gradient of %s: operand %d has type %v, its gradient %v", n.Where(), j, a.Type, dx.Type)
				}
				accumulate(a, 0, dx)
			}
		}
	}
	r := make([]*Node, len(wrt))
	for i, n := range wrt {
		if d := grads[n]; d != nil {
			r[i] = d[0]
		}
	}
	name := func(d, of *Node) { // one node may be the gradient of several
		if d != nil && d.ID >= first {
			NameGradient(d, of)
		}
	}
	for i, n := range wrt {
		name(r[i], n)
	}
	for _, n := range nodes {
		if d := grads[n]; d != nil && n.Name != "" {
			name(d[0], n)
		}
	}
	return r, nil
}

// dependants are wrt and the nodes whose values depend on them through values that have gradients.
func dependants(nodes, wrt []*Node) map[*Node]bool {
	needed := make(map[*Node]bool)
	for _, n := range wrt {
		needed[n] = true
	}
	for _, n := range nodes {
		if !needed[n] && anyNeeded(n.Args, needed) {
			needed[n] = n.Type.DType.IsReal() || n.Results() > 1
		}
	}
	return needed
}

func anyNeeded(nodes []*Node, needed map[*Node]bool) bool {
	for _, n := range nodes {
		if needed[n] {
			return true
		}
	}
	return false
}

// operandGradients applies n's rule. It returns one node per operand, nil where no gradient flows.
func operandGradients(b *Builder, n *Node, dys []*Node, needed map[*Node]bool) ([]*Node, error) {
	info := InfoOf(n.Op)
	if info == nil {
		return nil, fmt.Errorf("%T is not in the operation table", n.Op)
	}
	if info.Grad != nil {
		return info.Grad(b, n, dys)
	}
	first := len(b.g.Nodes)
	var results []*Node
	if f, ok := n.Op.(Fusion); ok {
		results = b.Inline(f.Body, n.Args)
	} else if results = Decompose(b, n); results == nil {
		return nil, fmt.Errorf("%s has none; the cost must not depend on it, or the operation needs a gradient", info.Name)
	}
	if b.Err() != nil {
		return nil, b.Err()
	}
	return throughNodes(b, n, first, results, dys, func(a *Node) bool { return needed[a] })
}

// throughNodes computes the needed gradients of n's operands through the nodes from number first on, which compute n's
// results from other operations. An operand that is given twice has its whole gradient at its first position.
func throughNodes(b *Builder, n *Node, first int, results, dys []*Node, wanted func(*Node) bool) ([]*Node, error) {
	var wrt []*Node
	var place []int
	for i, a := range n.Args {
		if wanted(a) && !slices.Contains(wrt, a) {
			wrt, place = append(wrt, a), append(place, i)
		}
	}
	end := len(b.g.Nodes)
	grads, err := backward(b, b.g.Nodes[first:end:end], results, dys, wrt)
	if err != nil {
		return nil, err
	}
	r := make([]*Node, len(n.Args))
	for i, p := range place {
		r[p] = grads[i]
	}
	return r, nil
}
