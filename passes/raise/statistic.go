package raise

import (
	"math"
	"slices"

	"fusec/graph"
	"fusec/graph/trace"
	pat "fusec/passes/pattern"
)

// statisticPatterns find the mean:
//
//	x ─ Σ ─ ÷ n ─►      x ─ mean ─►        n: the number of elements that each sum adds
var statisticPatterns = []raising{
	{"mean", "a sum divided by the number of its terms", trace.Approximate(perCount), pat.Or(
		pat.Binary(graph.Div, pat.Capture("sum", pat.Reduce(graph.Sum, pat.Any())),
			pat.Where("the number of terms", isCount, pat.AnyConst())),
		pat.Commute(graph.Mul, pat.Capture("sum", pat.Reduce(graph.Sum, pat.Any())),
			pat.Where("one over the number of terms", isPerCount, pat.AnyConst()))),
		"mean", makeMean},
}

// terms is the number of elements that each element of a reduction's result is made of.
func terms(reduction *graph.Node) float64 {
	return float64(reduction.Args[0].Type.Shape.Elems()) / float64(max(reduction.Type.Shape.Elems(), 1))
}

func isCount(m *pat.Match, n *graph.Node) bool {
	c, _ := n.ConstScalar()
	return c == terms(m.Get("sum"))
}

// perCount is the relative accuracy of 1/n as either float type rounds it.
const perCount = 1e-7

func isPerCount(m *pat.Match, n *graph.Node) bool {
	c, _ := n.ConstScalar()
	return math.Abs(c*terms(m.Get("sum"))-1) <= perCount
}

func makeMean(b *graph.Builder, m *pat.Match) *graph.Node {
	sum := m.Get("sum")
	if !sum.Type.DType.IsFloat() || sum.Type.Shape != m.Root.Type.Shape {
		return nil
	}
	op := sum.Op.(graph.Reduce)
	return b.Add(graph.Reduce{Fn: graph.Mean, Axes: op.Axes, Keep: op.Keep}, sum.Args[0])
}

// maxOrigins is the most nodes that spread looks at.
const maxOrigins = 64

// spread finds the axes of shape s along which the statistic n is constant: n is computed elementwise from one reduction
// of a value of shape s, and reshaped and repeated to the shape s. For
//
//	x[4,6] ─ mean[1] ─ reshape[4,1] ─ broadcast[4,6] ─►
//
// they are [1]. Without the Reshape there is no match: the means of rows would be along the columns of a square.
func spread(n *graph.Node, s graph.Shape) (axes graph.Ints, ok bool) {
	looks := maxOrigins
	labels, axes, ok := origins(n, s, &looks)
	if !ok {
		return axes, false
	}
	d := n.Type.Shape
	if d != s && d.Rank() != 0 {
		return axes, false
	}
	for i, l := range labels {
		if d.At(i) != 1 && l != i && !(l == repeated && axes.Has(i)) {
			return axes, false
		}
	}
	if d.Rank() == 0 {
		for i := range s.Rank() {
			if s.At(i) != 1 && !axes.Has(i) {
				return axes, false
			}
		}
	}
	return axes, true
}

// repeated marks an axis along which a value is repeated.
const repeated = -1

// origins gives, for each axis of a statistic n, the axis of the reduction's operand (of shape s) that it comes from,
// or repeated; axes of size 1 may have any. It looks at as many nodes as looks says, and counts that down.
func origins(n *graph.Node, s graph.Shape, looks *int) (labels []int, axes graph.Ints, ok bool) {
	if *looks--; *looks < 0 {
		return nil, axes, false
	}
	switch op := n.Op.(type) {
	case graph.Reduce:
		if n.Args[0].Type.Shape != s {
			return nil, axes, false
		}
		for i := range s.Rank() {
			switch {
			case !op.Axes.Has(i):
				labels = append(labels, i)
			case op.Keep:
				labels = append(labels, repeated)
			}
		}
		return labels, op.Axes, true
	case graph.Unary, graph.Binary:
		for _, a := range n.Args {
			if _, isConst := a.ConstScalar(); isConst {
				continue
			}
			l, x, found := origins(a, s, looks)
			if !found || a.Type.Shape != n.Type.Shape || ok && (x != axes || !slices.Equal(l, labels)) {
				return nil, axes, false
			}
			labels, axes, ok = l, x, true
		}
		return labels, axes, ok
	case graph.Reshape:
		from, axes, ok := origins(n.Args[0], s, looks)
		if !ok {
			return nil, axes, false
		}
		labels, ok = relabel(from, n.Args[0].Type.Shape, n.Type.Shape)
		return labels, axes, ok
	case graph.Broadcast:
		from, axes, ok := origins(n.Args[0], s, looks)
		if !ok {
			return nil, axes, false
		}
		lead := n.Type.Shape.Rank() - len(from)
		for i := range n.Type.Shape.Rank() {
			if i < lead || n.Args[0].Type.Shape.At(i-lead) != n.Type.Shape.At(i) {
				labels = append(labels, repeated)
			} else {
				labels = append(labels, from[i-lead])
			}
		}
		return labels, axes, true
	}
	return nil, axes, false
}

// relabel carries labels over a Reshape that only adds and drops axes of size 1.
func relabel(labels []int, from, to graph.Shape) ([]int, bool) {
	var out []int
	i := 0
	for j := range to.Rank() {
		if to.At(j) == 1 {
			out = append(out, repeated)
			continue
		}
		for i < from.Rank() && from.At(i) == 1 {
			i++
		}
		if i == from.Rank() || from.At(i) != to.At(j) {
			return nil, false
		}
		out = append(out, labels[i])
		i++
	}
	for ; i < from.Rank(); i++ {
		if from.At(i) != 1 {
			return nil, false
		}
	}
	return out, true
}

// stat is a statistic of values shaped like the captured one: e, repeated along just the axes of the reduction in it.
func stat(of string, e pat.Expr) pat.Expr {
	return pat.Where("a statistic repeated along the axes that it was taken over", func(m *pat.Match, n *graph.Node) bool {
		_, ok := spread(n, m.Get(of).Type.Shape)
		return ok
	}, pat.Through(e))
}

// lastAxis tests whether a reduction is over the last axis alone.
func lastAxis(r *graph.Node) bool {
	op := r.Op.(graph.Reduce)
	return op.Axes.Len() == 1 && op.Axes.At(0) == r.Args[0].Type.Shape.Rank()-1
}
