package lowering

import (
	"fmt"
	"strings"

	"fusec/graph"
)

// SamePrepared tells, by buffer, which Prepared buffer of another program has the same value as that of p, if parameters of the
// same name have the same values; −1 for none. Programs of several participants have none.
func (p *Program) SamePrepared(q *Program) []int {
	n := numbering{ids: map[valueKey]int{}, fusions: map[uint64][]graph.Fusion{}}
	same := make([]int, len(p.Buffers))
	for i := range same {
		same[i] = -1
	}
	if len(p.Mesh) > 0 || len(q.Mesh) > 0 || !p.Frozen || !q.Frozen {
		return same
	}
	at := map[int]int{}
	for i, id := range n.values(q) {
		if q.Buffers[i].Role == Prepared && id > 0 {
			at[id] = i
		}
	}
	for i, id := range n.values(p) {
		if j, ok := at[id]; ok && p.Buffers[i].Role == Prepared {
			same[i] = j
		}
	}
	return same
}

// numbering gives equal values that follow from parameters and constants equal numbers, above 0.
type numbering struct {
	ids     map[valueKey]int
	fusions map[uint64][]graph.Fusion // by the hash of their structure
	consts  []*graph.Tensor
}

// valueKey is what a value is computed from: a parameter's name, the index of a constant, or an operation, of which a fusion is
// given by its hash and its place among those with that hash.
type valueKey struct {
	op   any
	what string
	part int
}

type fusionKey struct {
	hash uint64
	at   int
}

func (n *numbering) id(k valueKey) int {
	if n.ids[k] == 0 {
		n.ids[k] = len(n.ids) + 1
	}
	return n.ids[k]
}

// values numbers the buffers of a program: 0 are those that are not prepared.
func (n *numbering) values(p *Program) []int {
	ids := make([]int, len(p.Buffers))
	for i, b := range p.Buffers {
		switch b.Role {
		case Param:
			ids[i] = n.id(valueKey{"param", b.Name + " " + b.Type.String(), 0})
		case Const:
			ids[i] = n.id(valueKey{"const", "", n.constant(b.Value)})
		}
	}
	for _, l := range p.Launches[:p.Prepared] {
		var of strings.Builder
		for _, v := range l.Args {
			fmt.Fprint(&of, ids[v.Buffer], v.DType, v.Layout, ";")
		}
		for i, v := range l.Results {
			ids[v.Buffer] = n.id(valueKey{n.op(l.Op), fmt.Sprint(of.String(), p.Buffers[v.Buffer].Type, v.Layout), i})
		}
	}
	return ids
}

// constant is the index of a constant of these elements.
func (n *numbering) constant(t *graph.Tensor) int {
	for i, c := range n.consts {
		if c == t || c.Type == t.Type && t.Type.Shape.Elems() <= graph.MaxInline && c.Equal(t) {
			return i
		}
	}
	n.consts = append(n.consts, t)
	return len(n.consts) - 1
}

func (n *numbering) op(op graph.Op) any {
	f, ok := op.(graph.Fusion)
	if !ok {
		return op
	}
	k := fusionKey{hash: graph.StructureHash(f.Body)}
	list := n.fusions[k.hash]
	for k.at < len(list) && !(list[k.at].Anchor == f.Anchor && list[k.at].Kind == f.Kind &&
		graph.SameStructure(list[k.at].Body, f.Body)) {
		k.at++
	}
	if k.at == len(list) {
		n.fusions[k.hash] = append(list, f)
	}
	return k
}
