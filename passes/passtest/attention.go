package passtest

import (
	"fmt"
	"strings"

	"fusec/graph"
)

// A step changes scores or probabilities.
type Step func(b *graph.Builder, x *graph.Node) *graph.Node

// Attend is softmax(q·kᵀ)·v with steps on the scores.
func Attend(b *graph.Builder, q, k, v *graph.Node, steps ...Step) *graph.Node {
	s := b.MatMul(q, k, false, true)
	for _, f := range steps {
		s = f(b, s)
	}
	return b.MatMul(Softmax(b, s), v, false, false)
}

// Softmax is taken over the last axis.
func Softmax(b *graph.Builder, x *graph.Node) *graph.Node {
	return b.Add(graph.Softmax{Axis: x.Type.Shape.Rank() - 1}, x)
}

// QKV declares queries [lead, sq, d], keys [lead, sk, d] and values [lead, sk, dv] of the given type.
func QKV(b *graph.Builder, d graph.DType, sq, sk int, lead ...int) (q, k, v *graph.Node) {
	in := func(name string, n, m int) *graph.Node {
		return b.Input(name, graph.TypeOf(d, append(append([]int(nil), lead...), n, m)...))
	}
	return in("q", sq, 4), in("k", sk, 4), in("v", sk, 6)
}

// Attention describes the attentions of a graph: shapes of queries, keys and values, and whatever is not default.
func Attention(g *graph.Graph) string {
	var all []string
	for _, n := range g.Nodes {
		op, ok := n.Op.(graph.Attention)
		if !ok {
			continue
		}
		s := fmt.Sprintf("%v %v %v", n.Args[0].Type.Shape, n.Args[1].Type.Shape, n.Args[2].Type.Shape)
		if op.Scale != 1 {
			s += fmt.Sprintf(" ×%.4g", op.Scale)
		}
		if op.Causal {
			s += " causal"
		}
		if op.Window > 0 {
			s += fmt.Sprintf(" window %d", op.Window)
		}
		if op.HasMask {
			s += fmt.Sprintf(" mask %v", n.Args[op.MaskArg()].Type)
		}
		if op.HasLengths {
			s += fmt.Sprintf(" lengths %v", n.Args[op.LengthsArg()].Op.(graph.Const).Value.Data)
		}
		if op.Tail {
			s += " tail"
		}
		if op.Dropout > 0 {
			s += fmt.Sprintf(" dropout %.4g", op.Dropout)
		}
		all = append(all, s)
	}
	return strings.Join(all, "; ")
}
