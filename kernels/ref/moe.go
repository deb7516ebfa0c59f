package ref

import (
	"math"
	"slices"

	"fusec/graph"
)

var _ = formulas.Add(composite(moe)).Add("moe_grad", moeGrad)

// moe sends each token to its experts one by one, by the definition.
func moe(op graph.MoE, args []Value, types []graph.Type) ([]Value, error) {
	d := op.Dims(typesOf(args))
	x, gates := args[0], args[1]
	y, load := zeros(types[0]), zeros(types[1])
	for t := range d.Tokens {
		for e := range op.Experts {
			g := gates.F[t*op.Experts+e]
			if g == 0 && !op.Dense {
				continue
			}
			load.I[e]++
			f := expert{op, args, e}.apply(x.F[t*d.Width:][:d.Width])
			for c, v := range f {
				y.F[t*d.Result+c] += g * v
			}
		}
	}
	return []Value{y, load}, nil
}

// expert is one of a mixture's feed-forward networks.
type expert struct {
	op   graph.MoE
	args []Value
	e    int
}

// apply is the network's value for one token.
func (n expert) apply(x []float64) []float64 {
	h := n.linear(x, graph.MoEW1, graph.MoEB1)
	for i := range h {
		h[i] = n.op.Activation.Eval(h[i], n.op.Alpha)
	}
	if n.op.Gated {
		for i, v := range n.linear(x, graph.MoEW3, graph.MoEB3) {
			h[i] *= v
		}
	}
	return n.linear(h, graph.MoEW2, graph.MoEB2)
}

// weight is the elements of one of the expert's weights.
func (n expert) weight(w graph.MoEWeight) []float64 {
	v := n.args[n.op.Weight(w, n.e)]
	if !n.op.Stacked {
		return v.F
	}
	size := v.Len() / n.op.Experts
	return v.F[n.e*size:][:size]
}

// linear is x·w + bias.
func (n expert) linear(x []float64, w, bias graph.MoEWeight) []float64 {
	s := n.args[n.op.Weight(w, n.e)].Type.Shape
	y := make([]float64, s.At(s.Rank()-1))
	if n.op.Bias {
		copy(y, n.weight(bias))
	}
	m := n.weight(w)
	addRows(y, x, m, len(y))
	return y
}

// moeGrad is the gradient by the decomposition, which sends every token to every expert and multiplies by 0 what is not
// wanted. Where that gives NaN, of an expert that is not finite for a token which it is not sent, nothing is checked. Nor is
// it where operands are not finite and the activation is flat: the decomposition leaves its derivative out, and another
// way to compute may multiply them by 0. A gate's gradient dy·(h·w2 + b2) may be computed as h·(w2·dyᵀ) + dy·b2, and is
// checked where it is finite.
func moeGrad(op graph.Op, args []Value, _ []graph.Type, _ bool) ([]Value, error) {
	out, err := Decomposed(op, args)
	flat := false
	if op.(graph.MoEGrad).Activation.Info().Flat {
		for _, a := range args {
			flat = flat || slices.ContainsFunc(a.F, func(x float64) bool { return size(x) != math.Abs(x) })
		}
	}
	for arg, v := range out {
		for i, x := range v.F {
			if flat || math.IsNaN(x) || arg == 1 && math.IsInf(x, 0) {
				v.Mag[i] = unsure
			}
		}
	}
	return out, err
}
