package graphtest

import (
	"hash/fnv"
	"math"
	"math/rand/v2"

	"fusec/graph"
)

// Draw is the kind of floating-point values that [Fit] draws.
type Draw uint8

// The kinds of values.
const (
	Ordinary Draw = iota // normally distributed
	Tied                 // few different values, so that many are equal: ±0, ±½, ±1, 2
	Scaled               // normally distributed, each tensor with a random scale from 1e-6 to 1e4
	Special              // ordinary values with some NaN, infinities, ±0, subnormal numbers and 1e15
)

var draws = [...]string{"ordinary", "tied", "scaled", "special"}

// String gives the kind's name in the file of a [Case].
func (d Draw) String() string { return draws[d] }

// Fit makes a tensor for every Input, Param and State of g, by name. Integers that give positions (indices, starts,
// lengths, tables of pages) are in range, and divisors and exponents make no run fail. Other integers are small, but in
// one tensor in four some are beyond 2^53, or 2^30 in I32. A value depends on the seed, the name and the type of its
// source, and for an integer on its readers: it stays the same when other parts of the graph change.
func Fit(g *graph.Graph, seed uint64, d Draw) map[string]*graph.Tensor {
	ranges := rangesOf(g)
	m := map[string]*graph.Tensor{}
	for _, n := range g.Sources() {
		h := fnv.New64a()
		h.Write([]byte(n.Name))
		m[n.Name] = fitting(rand.New(rand.NewPCG(seed, h.Sum64())), n.Type, ranges[n], d)
	}
	return m
}

// fitting draws one tensor. An integer tensor is drawn from its range if it has one.
func fitting(r *rand.Rand, t graph.Type, in *span, d Draw) *graph.Tensor {
	x := graph.NewTensor(t)
	scale, large := 1.0, r.IntN(4) == 0
	if d == Scaled {
		scale = math.Pow(10, float64(r.IntN(11)-6))
	}
	for i := range t.Shape.Elems() {
		switch {
		case t.DType == graph.Bool:
			x.SetInt(i, int64(r.IntN(2)))
		case t.DType.IsInt(): // of types that are too small for a large number its low bits
			edge := int64(1) << 53
			if t.DType.Size() < 8 {
				edge = 1 << 30
			}
			x.SetInt(i, in.draw(r, large, edge))
		default:
			x.SetFloat(i, scale*d.float(r, t.DType))
		}
	}
	return x
}

func (d Draw) float(r *rand.Rand, t graph.DType) float64 {
	switch d {
	case Tied:
		return []float64{math.Copysign(0, -1), 0, 0.5, -0.5, 1, -1, 2}[r.IntN(7)]
	case Special:
		if r.IntN(6) == 0 {
			most, least := 1e15, 0x1p-1060
			switch t {
			case graph.F32, graph.BF16:
				least = 0x1p-130
			case graph.F16:
				most, least = 65504, 0x1p-20
			}
			return []float64{math.NaN(), math.Inf(1), math.Inf(-1), math.Copysign(0, -1), 0, least, most, -most}[r.IntN(8)]
		}
	}
	return r.NormFloat64()
}

// span is the range of an integer: from lo to hi−1; nil for any value.
type span struct{ lo, hi int64 }

func (s *span) draw(r *rand.Rand, large bool, edge int64) int64 {
	switch {
	case s != nil:
		return s.lo + r.Int64N(max(s.hi-s.lo, 1))
	case large && r.IntN(2) == 0:
		return (edge + 1 + r.Int64N(99)) * (1 - 2*r.Int64N(2))
	}
	return r.Int64N(7) - 2
}

// rangesOf finds the ranges of integers from their readers, direct ones or through operations that only move them.
func rangesOf(g *graph.Graph) map[*graph.Node]*span {
	ranges := map[*graph.Node]*span{}
	limit := func(n *graph.Node, lo, hi int) {
		if !n.Type.DType.IsInt() {
			return
		}
		s := &span{int64(lo), int64(hi)}
		if old := ranges[n]; old != nil {
			s.lo, s.hi = max(s.lo, old.lo), min(s.hi, old.hi)
		}
		ranges[n] = s
	}
	for i := len(g.Nodes) - 1; i >= 0; i-- {
		n := g.Nodes[i]
		limitOperands(n, limit)
		s := ranges[n]
		if s == nil {
			continue
		}
		for j, a := range n.Args {
			if graph.Moves(n.Op, j) || graph.ClassOf(n.Op) == graph.ClassCollective && j == 0 { // of a group of one participant
				limit(a, int(s.lo), int(s.hi))
			}
		}
	}
	return ranges
}

// limitOperands calls limit for the operands of n that give positions, or that can make it fail.
func limitOperands(n *graph.Node, limit func(n *graph.Node, lo, hi int)) {
	a := n.Args
	if index, below := graph.Index(n); index != nil {
		limit(index, 0, below)
	}
	switch op := n.Op.(type) {
	case graph.Binary:
		switch op.Fn {
		case graph.Div, graph.Rem, graph.Mod:
			limit(a[1], 1, 5)
		case graph.Pow:
			limit(a[1], 0, 4)
		}
	case graph.Attention:
		limitAttention(op, n, limit)
	case graph.AttentionGrad:
		limitAttention(op.Attention, n, limit)
	case graph.Fusion:
		inner, next := rangesOf(op.Body), 0
		for _, m := range op.Body.Nodes {
			if _, ok := m.Op.(graph.Input); !ok {
				continue
			}
			if s := inner[m]; s != nil {
				limit(a[next], int(s.lo), int(s.hi))
			}
			next++
		}
	}
}

// limitAttention occasionally leaves a query without keys, and keeps pages inside the pool.
func limitAttention(op graph.Attention, n *graph.Node, limit func(n *graph.Node, lo, hi int)) {
	if op.HasLengths {
		limit(n.Args[op.LengthsArg()], 0, op.DimsOf(graph.Types(n.Args)).Keys+2)
	}
	if op.Page > 0 {
		limit(n.Args[op.TableArg()], 0, n.Args[1].Type.Shape.At(0))
	}
}
