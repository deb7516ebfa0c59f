package simplify

import (
	"hash/maphash"
	"strconv"

	"fusec/graph"
)

// valueTable finds nodes that compute the same: equal operations on equal operands, and constants of equal bits.
//
//	a ─ f ─► x          a ─ f ─┬► x
//	a ─ f ─► y                 └► y
//
// What draws random numbers or runs the user's code is never merged, even where it could be. Neither is a Copy:
// strip-grad puts one behind each value that a gradient is taken by, and two equal values have different gradients.
type valueTable struct {
	byOp    map[valueKey]*graph.Node
	byBytes map[uint64][]*graph.Node
}

func newValueTable(g *graph.Graph) valueTable {
	return valueTable{make(map[valueKey]*graph.Node, len(g.Nodes)), map[uint64][]*graph.Node{}}
}

// clear forgets all values.
func (t *valueTable) clear() {
	clear(t.byOp)
	clear(t.byBytes)
}

// valueKey identifies a computation. Operands beyond the third are in rest, by ID.
type valueKey struct {
	op      graph.Op
	a, b, c *graph.Node
	rest    string
}

// find returns the first node that was found to compute what n does: n itself if it is new.
func (t *valueTable) find(n *graph.Node) *graph.Node {
	switch op := n.Op.(type) {
	case graph.Input, graph.Param, graph.State, graph.Host, graph.Fusion, graph.Copy:
		return n
	case graph.Const:
		return t.constant(n, op.Value)
	}
	if graph.ClassOf(n.Op) == graph.ClassRandom {
		return n
	}
	k := keyOf(n)
	if m := t.byOp[k]; m != nil {
		return m
	}
	t.byOp[k] = n
	return n
}

func keyOf(n *graph.Node) valueKey {
	k := valueKey{op: n.Op}
	args := n.Args
	if b, ok := n.Op.(graph.Binary); ok && b.Fn.Commutes() && args[0].ID > args[1].ID {
		args = []*graph.Node{args[1], args[0]}
	}
	var rest []byte // of few nodes, but the norm of all gradients has thousands of operands
	for i, a := range args {
		switch i {
		case 0:
			k.a = a
		case 1:
			k.b = a
		case 2:
			k.c = a
		default:
			rest = append(strconv.AppendInt(rest, int64(a.ID), 10), ' ')
		}
	}
	k.rest = string(rest)
	return k
}

var constSeed = maphash.MakeSeed()

// constant merges constants. The hash is of a few elements; Equal decides.
func (t *valueTable) constant(n *graph.Node, v *graph.Tensor) *graph.Node {
	var h maphash.Hash
	h.SetSeed(constSeed)
	maphash.WriteComparable(&h, v.Type)
	e := v.Type.Shape.Elems()
	for i := 0; i < e; i += 1 + e/64 {
		maphash.WriteComparable(&h, v.Float(i))
	}
	k := h.Sum64()
	for _, m := range t.byBytes[k] {
		if m.Op.(graph.Const).Value.Equal(v) {
			return m
		}
	}
	t.byBytes[k] = append(t.byBytes[k], n)
	return n
}
