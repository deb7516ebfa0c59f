package attention

import (
	"slices"

	"fusec/graph"
	"fusec/passes/constant"
	"fusec/passes/pattern"
	"fusec/passes/rewrite"
)

// attention is what is known of an attention during the search, from the second contraction down to the first:
//
//	second ◄─ casts, dropout ◄─ softmax ◄─ casts, scales, masks ◄─ first
//	   └──── above ────────────────┘└───────────── below ───────────┘
//
// It is a value, so that a search that fails leaves no trace.
type attention struct {
	rewrite.Cover
	second  *graph.Node
	side    int // which operand of second is the probabilities
	softmax *graph.Node
	dtype   graph.DType // of the contractions

	q, k, v operand
	rows    []int // sizes of the rows of the scores, in the shape in which masks have positions
	scale   float64
	factors []factor
	masks   []scoreMask
	dropout float64
	seed    *graph.Node
}

// factor is a product with or quotient by a scalar that is known at run time.
type factor struct {
	fn     graph.BinaryFn
	scalar *graph.Node
}

// maxCovered bounds how many operations an attention covers.
const maxCovered = 64

// enter covers node n on the way from reader, which must be all that reads it. what names its value.
func (a *attention) enter(n, reader *graph.Node, what string) error {
	if len(a.Covered) == maxCovered {
		return a.Stop(n, "more than %d operations stand between the products", maxCovered)
	}
	if err := a.Alone(n, reader, "the "+what, "are"); err != nil {
		return err
	}
	d := n.Type.DType
	rounded := d.Is16() && d == a.second.Args[a.side].Type.DType // as an attention in 16 bits does
	if !rounded && (!d.IsFloat() || !d.Holds(a.dtype)) {
		return a.Stop(n, "the %s are %v, which is narrower than the %v of the products", what, n.Type.DType, a.dtype)
	}
	a.Add(n)
	return nil
}

// keepsKeys checks that a Reshape leaves the keys along the last axis.
func (a *attention) keepsKeys(n *graph.Node) error {
	if rewrite.KeepsRows(n) {
		return nil
	}
	return a.Stop(n, "it gives %v the shape %v, in which the keys are not the last axis", n.Args[0].Type.Shape, n.Type.Shape)
}

// above follows the way from the second contraction down to the softmax, and splits the values into views and base.
func (a *attention) above() error {
	a.Covered = []*graph.Node{a.second}
	reader := a.second
	for n := a.second.Args[a.side]; ; reader, n = n, n.Args[0] {
		if err := a.enter(n, reader, "probabilities"); err != nil {
			return err
		}
		if p, isNaN := guarded(n); p != nil && !a.Uses.Escapes(isNaN) && len(a.Uses.Readers(isNaN)) == 1 && a.readBy(p, isNaN, n) {
			a.Add(isNaN)
			a.Add(p)
			n = p
		}
		switch op := n.Op.(type) {
		case graph.Softmax:
			if last := n.Type.Shape.Rank() - 1; op.Axis != last {
				return a.Stop(n, "it is taken over axis %d of %v, and not over the keys, the last", op.Axis, n.Type.Shape)
			}
			return a.values()
		case graph.Cast:
		case graph.Reshape:
			if err := a.keepsKeys(n); err != nil {
				return err
			}
		case graph.Dropout:
			if a.seed != nil {
				return a.Stop(n, "the probabilities are dropped out twice")
			}
			a.dropout, a.seed = op.P, n.Args[1]
		default:
			return a.Stop(n, "between the softmax and the product with the values stands %s, which is no dropout, cast or reshape",
				pattern.Describe(n))
		}
	}
}

// guarded recognises probabilities p that are 0 where they are NaN, as they are for a query that keeps no key and as an
// Attention has them by itself:
//
//	p ─┬─ isnan ─ select ─►     0 where it is NaN, p elsewhere
//	   └────────────┘
//
// It returns p and the node that tells where p is NaN, or nil.
func guarded(n *graph.Node) (p, isNaN *graph.Node) {
	if _, ok := n.Op.(graph.Select); !ok {
		return nil, nil
	}
	isNaN, p, zero := n.Args[0], n.Args[2], n.Args[1]
	op, ok := isNaN.Op.(graph.Binary)
	if ok && op.Fn == graph.Eq {
		p, zero = zero, p
	}
	if !ok || op.Fn != graph.Ne && op.Fn != graph.Eq || isNaN.Args[0] != p || isNaN.Args[1] != p {
		return nil, nil
	}
	if v, ok := zero.ConstScalar(); !ok || v != 0 {
		return nil, nil
	}
	return p, isNaN
}

// readBy reports whether nothing but the given nodes reads n.
func (a *attention) readBy(n *graph.Node, by ...*graph.Node) bool {
	return !a.Uses.Escapes(n) && !slices.ContainsFunc(a.Uses.Readers(n), func(r *graph.Node) bool { return !slices.Contains(by, r) })
}

// values takes v from the second contraction, p·v or, turned around, vᵀ·pᵀ.
func (a *attention) values() error {
	op := a.second.Op.(graph.MatMul)
	p, v := a.second.Args[a.side], a.second.Args[1-a.side]
	turned := a.side == 1
	if turned && !op.TransB || !turned && op.TransA {
		return a.Stop(a.second, "it sums the probabilities over the queries, and not over the keys")
	}
	lead := rewrite.Leading(a.second.Type.Shape)
	if !slices.Equal(rewrite.Trimmed(graph.ShapeOf(rewrite.Leading(p.Type.Shape)...)), rewrite.Trimmed(graph.ShapeOf(lead...))) {
		return a.Stop(a.second, "the values, %v, have batches that the probabilities, %v, lack", v.Type.Shape, p.Type.Shape)
	}
	swapped := op.TransB
	if turned {
		swapped = !op.TransA
	}
	queries := p.Type.Shape.At(p.Type.Shape.Rank() - 2)
	a.v = newOperand(v, lead, swapped)
	a.v.rows = appendAxis(a.v.rows, queries, 0)
	a.v.descend(nil)
	return nil
}

// below follows the way from the softmax down to the first contraction. Where a sum may go on by either of its
// operands, it tries both.
func (a attention) below(n, reader *graph.Node) (attention, error) {
	if err := a.enter(n, reader, "scores"); err != nil {
		return a, err
	}
	switch op := n.Op.(type) {
	case graph.MatMul:
		err := a.products(n, false)
		return a, err
	case graph.Transpose:
		if _, ok := n.Args[0].Op.(graph.MatMul); ok && rewrite.SwapsLast(n) {
			if err := a.enter(n.Args[0], n, "scores"); err != nil {
				return a, err
			}
			err := a.products(n.Args[0], true)
			return a, err
		}
	case graph.Cast:
		return a.below(n.Args[0], n)
	case graph.Reshape:
		if err := a.keepsKeys(n); err != nil {
			return a, err
		}
		return a.below(n.Args[0], n)
	case graph.Unary:
		if op.Fn == graph.Neg {
			a.scale = -a.scale
			return a.below(n.Args[0], n)
		}
	case graph.Binary:
		switch op.Fn {
		case graph.Add:
			return a.sum(n)
		case graph.Sub:
			if err := a.mask(n, n.Args[1], -1); err != nil {
				return a, err
			}
			return a.below(n.Args[0], n)
		case graph.Mul, graph.Div:
			return a.scaled(n)
		}
	case graph.Select:
		return a.selected(n)
	}
	return a, a.Stop(n, "between the product of queries and keys and the softmax stands %s, which is no scale, mask, cast or reshape",
		pattern.Describe(n))
}

// sum absorbs scores + mask, whichever of the operands the scores are.
func (a attention) sum(n *graph.Node) (attention, error) {
	var far error
	for side := range 2 {
		scores, m := n.Args[side], n.Args[1-side]
		if rewrite.ProductUnder(scores) == nil {
			continue
		}
		next := a
		err := next.mask(n, m, 1)
		if err == nil {
			next, err = next.below(scores, n)
		}
		if err == nil {
			return next, nil
		}
		if far == nil || len(err.(*rewrite.Stopped).Covered) > len(far.(*rewrite.Stopped).Covered) {
			far = err
		}
	}
	if far == nil {
		far = a.Stop(n, "neither operand of %s follows from a product of queries and keys", pattern.Describe(n))
	}
	return a, far
}

// scaled absorbs a product with or quotient by a scalar.
func (a attention) scaled(n *graph.Node) (attention, error) {
	f, x, y := n.Op.(graph.Binary).Fn, n.Args[0], n.Args[1]
	if f == graph.Mul && x.Type.Shape.Rank() == 0 {
		x, y = y, x
	}
	c, isConst := constant.Factor(f, y)
	switch {
	case isConst:
		a.scale *= c
	case y.Type.Shape.Rank() == 0:
		a.factors = append(slices.Clip(a.factors), factor{f, y})
	default:
		return a, a.Stop(n, "the scores are scaled by %s of %v, which is no scalar", pattern.Describe(y), y.Type)
	}
	return a.below(x, n)
}

// products takes q and k from the first contraction q·kᵀ or, turned around, (k·qᵀ)ᵀ.
func (a *attention) products(n *graph.Node, turned bool) error {
	if n.Type.DType != a.dtype {
		return a.Stop(n, "the product of queries and keys is %v, that with the values %v", n.Type.DType, a.dtype)
	}
	if q, v := n.Args[0].Type.DType, a.second.Args[a.side].Type.DType; q != v {
		return a.Stop(n, "the queries and keys are %v, the values and the probabilities %v", q, v)
	}
	if n.Type.Shape.Elems() == 0 || a.second.Type.Shape.Elems() == 0 || n.Args[0].Type.Shape.Elems() == 0 {
		return a.Stop(n, "there is nothing to compute: its operands are %v and %v", n.Args[0].Type, n.Args[1].Type)
	}
	op := n.Op.(graph.MatMul)
	q, k, qSwapped, kSwapped := n.Args[0], n.Args[1], op.TransA, !op.TransB
	queries := n.Type.Shape.At(n.Type.Shape.Rank() - 2)
	if turned {
		q, k, qSwapped, kSwapped = k, q, kSwapped, qSwapped
		queries = n.Type.Shape.At(n.Type.Shape.Rank() - 1)
	}
	lead := rewrite.Leading(n.Type.Shape)
	a.q, a.k = newOperand(q, lead, qSwapped), newOperand(k, lead, kSwapped)
	a.q.rows, a.q.tail = append(a.q.rows, a.q.tail[0]...), a.q.tail[1:]
	a.k.rows = appendAxis(a.k.rows, queries, 0)
	for _, o := range []*operand{&a.q, &a.k} {
		o.descend(func(n *graph.Node) *graph.Node {
			if b, ok := n.Op.(graph.Binary); ok && (b.Fn == graph.Mul || b.Fn == graph.Div) {
				if c, ok := constant.Factor(b.Fn, n.Args[1]); ok && n.Args[0].Type == n.Type {
					a.scale *= c
					return n.Args[0]
				}
			}
			return nil
		})
	}
	if len(a.masks) == 0 {
		a.rows = append(lead, queries)
	}
	return nil
}
