package attention

import (
	"math"
	"slices"

	"fusec/graph"
	"fusec/passes/constant"
	"fusec/passes/pattern"
	"fusec/passes/rewrite"
)

// A scoreMask is something that decides which keys a query attends. It is either added to the scores,
//
//	scores ─ + ─►        mask: 0 for a key that is kept, −Inf or −1e9 for one that is not, or any bias
//
// or it chooses between the scores and a value that masks:
//
//	keep ─ select ─►     scores where keep is true, −Inf or −1e9 elsewhere, or the other way round
//
// Constant masks are looked at element by element (see [attention.masking]); the others become one operand, added or
// of Bools, in the smallest shape that says the same.
//
// A mask is hard if it masks with −Inf. A finite value below [constant.Lowest] is soft: its exponential is exactly 0
// beside that of a kept score, in either type, so it makes no difference to a query that keeps a key. To a query that keeps none it
// does: with a soft mask it weights keys by what is left of their scores, where a hard mask gives zeros. So a soft mask
// may be expressed by position only where every query is known to keep a key, that is, where all masks are constant.
type scoreMask struct {
	operand
	at     *graph.Node // what applies it
	factor float64     // of an added mask
	choice bool
	invert bool          // of a choice: true is masked
	low    float64       // of a choice: what masked scores become
	value  *graph.Tensor // of the operand's base, if it is constant
}

// mask absorbs a mask m that node at adds, times the sign.
func (a *attention) mask(at, m *graph.Node, sign float64) error {
	o, err := a.maskOperand(at, m)
	if err != nil {
		return err
	}
	return a.addMasks(o, scoreMask{at: at, factor: sign * a.scale})
}

// selected absorbs a choice between the scores and a constant.
func (a attention) selected(n *graph.Node) (attention, error) {
	scores, other, invert := n.Args[1], n.Args[2], false
	if rewrite.ProductUnder(scores) == nil {
		scores, other, invert = other, scores, true
	}
	low, ok := other.ConstScalar()
	if !ok {
		return a, a.Stop(n, "it gives masked scores the value of %s, which is not one constant", pattern.Describe(other))
	}
	o, err := a.maskOperand(n, n.Args[0])
	if err != nil {
		return a, err
	}
	if low *= a.scale; !(low <= constant.Lowest) {
		return a, a.Stop(n, "it gives masked scores the value %g, which is not low enough to be nothing beside others", low)
	}
	if err := a.addMasks(o, scoreMask{at: n, choice: true, invert: invert, low: low}); err != nil {
		return a, err
	}
	return a.below(scores, n)
}

// maskOperand splits a mask m that node at applies.
func (a *attention) maskOperand(at, m *graph.Node) (operand, error) {
	if len(a.factors) > 0 {
		return operand{}, a.Stop(at, "the masked scores are scaled by %s, which is not constant",
			pattern.Describe(a.factors[0].scalar))
	}
	if !(a.scale > 0) {
		return operand{}, a.Stop(at, "the masked scores are scaled by %g", a.scale)
	}
	s := at.Type.Shape
	last := s.Rank() - 1
	if len(a.masks) == 0 {
		a.rows = s.Slice()[:last]
		if len(a.rows) == 0 {
			a.rows = []int{1}
		}
	}
	o := operand{from: m, base: m}
	st := make([]int, s.Rank())
	if m.Type.Shape == s {
		st = s.Strides()
	}
	for i := range last {
		o.rows = appendAxis(o.rows, s.At(i), st[i])
	}
	o.tail = [][]axis{appendAxis(nil, s.At(last), st[last])}
	return o, nil
}

// addMasks keeps a mask like m with the given operand: a sum, or a conjunction of choices, as its parts if one of them
// is constant.
func (a *attention) addMasks(o operand, m scoreMask) error {
	m.operand = o
	parts := a.parts(m)
	if !slices.ContainsFunc(parts, func(p scoreMask) bool { return p.value != nil }) {
		m.operand.descend(a.uncast)
		parts = []scoreMask{m}
	}
	for _, p := range parts {
		if !p.choice && p.base.Type.DType != a.dtype && p.value == nil {
			return a.Stop(p.at, "the mask %s is %v, and the products %v", pattern.Describe(p.base), p.base.Type.DType, a.dtype)
		}
	}
	a.masks = append(slices.Clip(a.masks), parts...)
	return nil
}

// uncast returns what a mask was cast from, if that has the type of the products.
func (a *attention) uncast(n *graph.Node) *graph.Node {
	if _, ok := n.Op.(graph.Cast); ok && n.Args[0].Type.DType == a.dtype && n.Type.DType.Holds(a.dtype) {
		return n.Args[0]
	}
	return nil
}

// maxParts is the most masks that one is split into.
const maxParts = 64

// parts lists the masks that m is the sum or conjunction of; none if they are very many.
func (a *attention) parts(m scoreMask) (all []scoreMask) {
	for todo := []scoreMask{m}; len(todo) > 0; {
		if len(all)+len(todo) > maxParts {
			return nil
		}
		m, todo = todo[len(todo)-1], todo[:len(todo)-1]
		m.operand.descend(a.uncast)
		m.value = constant.Of(m.base)
		op, ok := m.base.Op.(graph.Binary)
		splits := ok && (!m.choice && (op.Fn == graph.Add || op.Fn == graph.Sub) ||
			m.choice && (op.Fn == graph.And && !m.invert || op.Fn == graph.Or && m.invert))
		if m.value != nil || !splits {
			all = append(all, m)
			continue
		}
		x, y := m, m
		if op.Fn == graph.Sub {
			y.factor = -y.factor
		}
		x.operand, y.operand = m.operand.of(m.base.Args[0]), m.operand.of(m.base.Args[1])
		todo = append(todo, y, x)
	}
	return all
}

// of is o with its base, which is elementwise, replaced by one of the base's operands.
func (o operand) of(x *graph.Node) operand {
	still := func(axes []axis) []axis {
		axes = slices.Clone(axes)
		for i := range axes {
			if x.Type.Shape.Rank() == 0 {
				axes[i].stride = 0
			}
		}
		return axes
	}
	r := operand{base: x, rows: still(o.rows)}
	for _, g := range o.tail {
		r.tail = append(r.tail, still(g))
	}
	return r
}

// positional reports whether a constant mask only keeps keys or masks them, and whether it is hard.
func (m *scoreMask) positional() (ok, hard bool) {
	if m.value == nil {
		return false, false
	}
	if m.choice {
		return true, math.IsInf(m.low, -1)
	}
	hard = true
	for i := range m.value.Type.Shape.Elems() {
		v := m.value.Float(i)
		switch {
		case v == 0:
		case !(v*m.factor <= constant.Lowest):
			return false, false
		case !math.IsInf(v*m.factor, -1):
			hard = false
		}
	}
	return true, hard
}

// keeps reports whether a positional mask keeps what element i of its value belongs to.
func (m *scoreMask) keeps(i int) bool {
	if m.choice {
		return (m.value.Float(i) != 0) != m.invert
	}
	return m.value.Float(i) == 0
}

// masking is all masks as attributes and operands of an Attention.
type masking struct {
	causal  bool
	window  int
	tail    bool // queries are the last of the valid keys
	lengths *graph.Tensor
	operand *graph.Node // added, or of Bools
	some    *graph.Node // if not nil: whether a query keeps a key at all; the operand keeps all keys of those that do not
}

// masking expresses by position the masks for which that is possible, and makes one operand of the rest.
func (a *attention) masking(b *graph.Builder, s *rowShape) (masking, error) {
	var fixed, rest []scoreMask
	soft := false
	for _, m := range a.masks {
		if ok, hard := m.positional(); ok {
			fixed, soft = append(fixed, m), soft || !hard
		} else {
			rest = append(rest, m)
		}
	}
	keys := a.k.keys()
	if soft && (len(rest) > 0 || !allKeep(spansOf(s, fixed, keys))) {
		var hard []scoreMask
		for _, m := range fixed {
			if _, isHard := m.positional(); isHard {
				hard = append(hard, m)
			} else {
				rest = append(rest, m)
			}
		}
		fixed, soft = hard, false
	}
	if soft { // every query keeps a key: hard masks say the same
		for i := range fixed {
			fixed[i].low = math.Inf(-1)
		}
	}
	m, rest := explain(s, fixed, rest, keys)
	err := a.operandOf(b, s, rest, &m)
	return m, err
}

// keys is how many keys an operand that has keys first after its rows has.
func (o *operand) keys() int { return extentOf(o.tail[0]) }

// explain expresses as many of the fixed masks as it can by position, all together or else one of them, and adds the
// others to rest.
func explain(s *rowShape, fixed, rest []scoreMask, keys int) (masking, []scoreMask) {
	if len(fixed) == 0 {
		return masking{}, rest
	}
	if m, ok := fit(s, spansOf(s, fixed, keys), keys); ok {
		return m, rest
	}
	for i := range fixed {
		if m, ok := fit(s, spansOf(s, fixed[i:i+1], keys), keys); ok && len(fixed) > 1 {
			return m, append(rest, slices.Delete(slices.Clone(fixed), i, i+1)...)
		}
	}
	return masking{}, append(rest, fixed...)
}

// operandOf makes one operand of masks.
func (a *attention) operandOf(b *graph.Builder, s *rowShape, masks []scoreMask, to *masking) error {
	var sum, keep *graph.Node
	for _, m := range masks {
		x := s.narrow(b, m.operand, s.batch, s.heads, s.queries)
		if x == nil {
			return a.Stop(m.at, "the mask takes more than %d axes to describe", graph.MaxRank)
		}
		if m.choice {
			if m.invert {
				x = b.Unary(graph.Not, x)
			}
			if !math.IsInf(m.low, -1) {
				if len(masks) > 1 || to.causal || to.window > 0 || to.lengths != nil {
					return a.Stop(m.at, "it gives masked scores the value %g beside another mask, and a query may keep no key",
						m.low)
				}
				x = to.keepSome(b, x, a.dtype)
			}
			keep = both(b, graph.And, keep, x)
			continue
		}
		if x.Type.DType != a.dtype {
			var ok bool
			if x, ok = narrowed(b, x, a.dtype); !ok {
				return a.Stop(m.at, "the mask %s is %v, and not all of its values are %v", pattern.Describe(m.base),
					m.base.Type.DType, a.dtype)
			}
		}
		switch m.factor {
		case 1:
		case -1:
			x = b.Unary(graph.Neg, x)
		default:
			x = b.BinaryScalar(graph.Mul, x, m.factor)
		}
		sum = both(b, graph.Add, sum, x)
	}
	if to.operand = sum; keep != nil {
		to.operand = keep
		if sum != nil {
			shape := jointShape(sum.Type.Shape, keep.Type.Shape)
			to.operand = b.Add(graph.Select{}, b.Broadcast(keep, shape), b.Broadcast(sum, shape), b.Scalar(a.dtype, math.Inf(-1)))
		}
	}
	return nil
}

// keepSome makes queries that keep no key keep all, and sets some to tell which these are not.
func (m *masking) keepSome(b *graph.Builder, keep *graph.Node, d graph.DType) *graph.Node {
	last := keep.Type.Shape.Rank() - 1
	count := b.Reduce(graph.MaxOf, b.Add(graph.Cast{To: d}, keep), true, last)
	m.some = b.BinaryScalar(graph.Gt, count, 0)
	return b.Binary(graph.Or, keep, b.Broadcast(b.Unary(graph.Not, m.some), keep.Type.Shape))
}

// both is f(x, y) with both repeated to a joint shape, or y alone if there is no x.
func both(b *graph.Builder, f graph.BinaryFn, x, y *graph.Node) *graph.Node {
	if x == nil {
		return y
	}
	s := jointShape(x.Type.Shape, y.Type.Shape)
	return b.Binary(f, b.Broadcast(x, s), b.Broadcast(y, s))
}

// jointShape is the shape that two shapes of one rank broadcast to.
func jointShape(x, y graph.Shape) graph.Shape {
	for i := range x.Rank() {
		x = x.With(i, max(x.At(i), y.At(i)))
	}
	return x
}

// narrowed casts a view of a constant to another type, if that keeps every value, or keeps it below [constant.Lowest].
func narrowed(b *graph.Builder, x *graph.Node, d graph.DType) (*graph.Node, bool) {
	v := constant.Of(x)
	to := graph.NewTensor(graph.Type{DType: d, Shape: x.Type.Shape})
	for i := range v.Type.Shape.Elems() {
		to.SetFloat(i, v.Float(i))
		if w := to.Float(i); w != v.Float(i) && !(v.Float(i) <= constant.Lowest && !math.IsInf(w, -1)) {
			return nil, false
		}
	}
	return b.Const(to), true
}
