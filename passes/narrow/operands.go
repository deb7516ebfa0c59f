package narrow

import (
	"fmt"
	"slices"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/passes/rewrite"
)

// Least is the number of elements from which a conversion to 16 bits pays. The cost of smaller values is the launch,
// not memory traffic.
const Least = 4096

// Operands rounds what contractions read to 16 bits, as mixed precision does (Micikevicius et al., arXiv 1710.03740):
//
//	x ─► LayerNorm ─┬─► MatMul ─►           x ─► LayerNorm ─► Cast ─┬─► MatMul ─►
//	                ├─► MatMul ─►     to                            ├─► MatMul ─►
//	w ──────────────┘                       w ─► Cast ──────────────┘
//
// A value is rounded once, before the views through which it is read, so that the cast can join the launch that makes
// it. Sums stay in f32, and so do elementwise work, reductions, norms, losses, parameters and their updates. See
// [Results] for what contractions hand to later launches.
//
// Contractions stay in f32 where all operands are small; where they decide which experts a token goes to, since rounding
// would change close choices; and where an attention reads keys from state, which would be cast again in each run.
// The gradient of such an attention does, too: its probabilities are e^(s − lse), of scores s of the same operands.
func Operands(c *rewrite.Context, to graph.DType, least int) error {
	if to == graph.Invalid {
		return nil
	}
	a := autocast{c: c, to: to, uses: c.Uses(), halves: map[*graph.Node]*graph.Node{}}
	routing := Routing(c.Graph)
	cached := attendsState(c.Graph)
	nodes := slices.Clone(c.Graph.Nodes)
	for _, n := range nodes {
		reason := ""
		switch {
		case !contracts(n) || contracted(n)[0].Type.DType != graph.F32:
			continue
		case routing[n]:
			reason = "it decides which experts a token goes to"
		case cached[n]:
			reason = "its keys are state, which each run would cast"
		case gradientOfWide(n):
			reason = "the attention that it is the gradient of does"
		case !slices.ContainsFunc(multiplied(n), func(x *graph.Node) bool { return x.Type.Shape.Elems() >= least }):
			reason = fmt.Sprintf("its operands have less than %d elements", least)
		default:
			reason = a.cast(n)
		}
		if reason != "" {
			if forward := attentionOf(n); forward != nil && forward.Args[0].Type.DType == a.to {
				a.follow(n)
				reason += "; it reads what the attention that it is the gradient of has rounded"
			}
			c.Note(n, "%s stays in f32: %s", n.Op.OpName(), reason)
		}
	}
	if err := c.Graph.Tidy(); err != nil {
		return err
	}
	a.report(nodes)
	return nil
}

// contracts reports whether n multiplies operands with one another.
func contracts(n *graph.Node) bool { return len(n.Args) > 0 && graph.Contracts(n.Op, 0) }

// multiplied are the operands of a contraction, those that are stored in few bits included.
func multiplied(n *graph.Node) []*graph.Node {
	if op, ok := n.Op.(graph.Attention); ok && op.HasScales {
		return n.Args[:3]
	}
	return contracted(n)
}

// contracted are the operands of a contraction that meet others in products.
func contracted(n *graph.Node) []*graph.Node {
	var args []*graph.Node
	for i, a := range n.Args {
		if graph.Contracts(n.Op, i) {
			args = append(args, a)
		}
	}
	return args
}

// gradientOfWide reports whether n is the gradient of an attention that has been left in f32.
func gradientOfWide(n *graph.Node) bool {
	forward := attentionOf(n)
	return forward != nil && forward.Args[0].Type.DType == graph.F32
}

// attentionOf is the attention that n is the gradient of; nil if n is none, or if its log-sum-exp comes from elsewhere.
func attentionOf(n *graph.Node) *graph.Node {
	op, ok := n.Op.(graph.AttentionGrad)
	if !ok {
		return nil
	}
	x := rewrite.UnderViews(n.Args[op.LSEArg()])
	if _, ok := x.Op.(graph.Result); ok {
		x = x.Args[0]
	}
	if _, ok = x.Op.(graph.Attention); !ok {
		return nil
	}
	return x
}

// autocast places casts to one type.
type autocast struct {
	c      *rewrite.Context
	to     graph.DType
	uses   *graph.Uses
	halves map[*graph.Node]*graph.Node // of a value, its rounded one
}

// cast puts casts before n's operands. If the target does not take them it leaves n alone and returns why.
func (a *autocast) cast(n *graph.Node) string {
	args := slices.Clone(n.Args)
	for i, x := range args {
		if graph.Contracts(n.Op, i) {
			args[i] = a.half(x)
		}
	}
	op := n.Op
	switch conv := op.(type) { // Winograd's algorithm, by which it may be computed, is for f32
	case graph.Conv2D:
		conv.Winograd = 0
		op = conv
	case graph.Conv2DTranspose:
		conv.Winograd = 0
		op = conv
	}
	if err := a.c.Accepts(op, args...); err != nil {
		return err.Error()
	}
	n.Op, n.Args = op, args
	return ""
}

// follow has n, the gradient in f32 of an attention in 16 bits, read queries, keys and values as that has rounded them:
//
//	q ─► cast bf16 ─┬─► attention ─ lse ─► attention_grad
//	                └─► cast f32 ───────────────┘
//
// The gradient computes the probabilities again as exp(s − lse). With scores of operands that are not rounded they would
// not be those of the attention, nor add up to 1.
func (a *autocast) follow(n *graph.Node) {
	n.Args = slices.Clone(n.Args)
	for i, x := range n.Args[:3] {
		n.Args[i] = graph.Extend(a.c.Graph).From(x).Add(graph.Cast{To: graph.F32}, a.half(x))
	}
}

// half is x rounded: before the views that lead to it, and before copies of it that nothing else reads.
func (a *autocast) half(x *graph.Node) *graph.Node {
	var moved []*graph.Node // from x on, what moves the elements of what is rounded
	for a.halves[x] == nil && a.passes(x) {
		moved = append(moved, x)
		x = x.Args[0]
	}
	k := a.halves[x]
	if k == nil {
		k = a.rounded(x)
		a.halves[x] = k
	}
	for _, m := range slices.Backward(moved) {
		k = graph.Extend(a.c.Graph).From(m).Add(m.Op, append([]*graph.Node{k}, m.Args[1:]...)...)
		a.halves[m] = k
	}
	return k
}

// passes reports whether x moves elements that may as well be rounded before.
func (a *autocast) passes(x *graph.Node) bool {
	switch x.Op.(type) {
	case graph.Reshape, graph.Transpose, graph.Broadcast, graph.Slice:
		return true
	case graph.Copy, graph.Im2Col:
		return len(a.uses.Readers(x)) == 1
	case graph.AllGather: // half as much is sent then
		return a.contractedOnly(x)
	}
	return false
}

// contractedOnly reports whether only contractions read x, as what they multiply, or views of it that only they read.
func (a *autocast) contractedOnly(x *graph.Node) bool {
	if a.uses.Escapes(x) {
		return false
	}
	for _, r := range a.uses.Readers(x) {
		if graph.IsView(r.Op) && !a.contractedOnly(r) {
			return false
		}
		for i, arg := range r.Args {
			if arg == x && !graph.IsView(r.Op) && !graph.Contracts(r.Op, i) {
				return false
			}
		}
	}
	return true
}

// rounded is x cast, or a value equal to that.
func (a *autocast) rounded(x *graph.Node) *graph.Node {
	b := graph.Extend(a.c.Graph).From(x)
	switch op := x.Op.(type) {
	case graph.Cast:
		if x.Args[0].Type.DType == a.to {
			return x.Args[0]
		}
	case graph.Const:
		t := graph.NewTensor(x.Type.With(a.to))
		for i := range x.Type.Shape.Elems() {
			t.SetFloat(i, op.Value.Float(i))
		}
		return b.Const(t)
	}
	return b.Add(graph.Cast{To: a.to}, x)
}

// report records the casts that are in the graph, in the order of the values that they round.
func (a *autocast) report(nodes []*graph.Node) {
	live := map[*graph.Node]bool{}
	for _, n := range a.c.Graph.Nodes {
		live[n] = true
	}
	for _, n := range nodes {
		if k := a.halves[n]; k != nil && live[k] {
			if _, ok := k.Op.(graph.Cast); ok {
				a.c.Match("cast", trace.Approximate(a.to.Epsilon()), a.to.String(), k, n)
			}
		}
	}
}

// Routing finds the contractions that decide which experts a token goes to. Rounding their operands would change close choices.
func Routing(g *graph.Graph) map[*graph.Node]bool { return contractionsBehind(g, graph.Choosers) }

// contractionsBehind finds the contractions that the given operands are made of, without going through them.
func contractionsBehind(g *graph.Graph, from func(*graph.Node) []*graph.Node) map[*graph.Node]bool {
	behind, found := map[*graph.Node]bool{}, map[*graph.Node]bool{}
	for _, n := range slices.Backward(g.Nodes) {
		for _, a := range from(n) {
			behind[a] = true
		}
		switch {
		case !behind[n]:
		case contracts(n):
			found[n] = true
		default:
			for _, a := range n.Args {
				behind[a] = true
			}
		}
	}
	return found
}

// attendsState finds the attentions that read keys or values from state, as it was or with new ones written into it.
func attendsState(g *graph.Graph) map[*graph.Node]bool {
	state, found := map[*graph.Node]bool{}, map[*graph.Node]bool{}
	for _, n := range g.Nodes {
		_, source := n.Op.(graph.State)
		_, update := n.Op.(graph.UpdateSlice)
		state[n] = source || (update || graph.IsView(n.Op)) && state[n.Args[0]]
		if op, ok := n.Op.(graph.Attention); ok && !op.HasScales { // else it rounds queries alone
			found[n] = state[n.Args[1]] || state[n.Args[2]]
		}
	}
	return found
}
