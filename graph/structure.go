package graph

import (
	"encoding/binary"
	"hash/maphash"
	"math"
	"reflect"
	"slices"
)

// The structure of a graph is everything that determines what it computes: the operations in their order with their
// attributes, types, shardings and operands, the elements of constants, the mesh, and which nodes are outputs and updates. Names,
// IDs, phases, origins and notes are labels, which are not part of the structure.

// structureSeed is the seed of this process: hashes are valid only within it.
var structureSeed = maphash.MakeSeed()

// StructureHash is equal for graphs of the same structure, within one process. Different structures may have the same
// hash; see [SameStructure].
func StructureHash(g *Graph) uint64 {
	var h maphash.Hash
	h.SetSeed(structureSeed)
	hashStructure(&h, g)
	return h.Sum64()
}

func hashStructure(h *maphash.Hash, g *Graph) {
	at := Positions(g)
	var word [8]byte
	put := func(x uint64) {
		binary.LittleEndian.PutUint64(word[:], x)
		h.Write(word[:])
	}
	put(uint64(len(g.Nodes)))
	for _, a := range g.Mesh {
		maphash.WriteComparable(h, a)
	}
	for _, n := range g.Nodes {
		for _, a := range n.Args {
			put(uint64(at.Of(a)))
		}
		if n.Sharding.Given {
			maphash.WriteComparable(h, n.Sharding)
		}
		switch op := n.Op.(type) {
		case Const:
			maphash.WriteComparable(h, op.Value.Type)
			hashElements(h, op.Value)
		case Fusion:
			put(uint64(op.Anchor)<<32 | uint64(op.Kind))
			hashStructure(h, op.Body)
		default:
			maphash.WriteComparable(h, n.Op)
		}
	}
	for _, o := range g.Outputs {
		put(uint64(at.Of(o.Node)))
	}
	for _, u := range g.Updates {
		put(uint64(at.Of(u.Target))<<32 ^ uint64(at.Of(u.Value)))
	}
}

// maxHashed bounds how many elements of a constant are hashed. [SameStructure] compares all elements.
const maxHashed = 1 << 10

func hashElements(h *maphash.Hash, t *Tensor) {
	n := t.Type.Shape.Elems()
	step := 1 + n/maxHashed
	for i := 0; i < n; i += step {
		if t.Type.DType.IsInt() {
			maphash.WriteComparable(h, t.Int(i))
		} else {
			maphash.WriteComparable(h, math.Float64bits(t.Float(i)))
		}
	}
}

// SameStructure reports whether two graphs have the same structure, bit for bit. Host operations are the same only if
// both have the same code. An attribute that is NaN equals no other.
func SameStructure(a, b *Graph) bool {
	if a == b {
		return true
	}
	if len(a.Nodes) != len(b.Nodes) || len(a.Outputs) != len(b.Outputs) || len(a.Updates) != len(b.Updates) ||
		!slices.Equal(a.Mesh, b.Mesh) || a.Parts != b.Parts {
		return false
	}
	p, q := Positions(a), Positions(b)
	for i, n := range a.Nodes {
		m := b.Nodes[i]
		if n.Type != m.Type || n.Sharding != m.Sharding || len(n.Args) != len(m.Args) {
			return false
		}
		for j, x := range n.Args {
			if p.Of(x) != q.Of(m.Args[j]) {
				return false
			}
		}
		if !sameOp(n.Op, m.Op) {
			return false
		}
	}
	for i, o := range a.Outputs {
		if p.Of(o.Node) != q.Of(b.Outputs[i].Node) {
			return false
		}
	}
	for i, u := range a.Updates {
		if v := b.Updates[i]; p.Of(u.Target) != q.Of(v.Target) || p.Of(u.Value) != q.Of(v.Value) {
			return false
		}
	}
	return true
}

// SameLabels reports whether two graphs of the same structure have the same names, IDs, phases, origins and notes, too.
func SameLabels(a, b *Graph) bool {
	if a == b {
		return true
	}
	if a.Name != b.Name || a.nextID != b.nextID {
		return false
	}
	for i, n := range a.Nodes {
		m := b.Nodes[i]
		if n.ID != m.ID || n.Name != m.Name || n.Phase != m.Phase || !slices.Equal(n.Origin, m.Origin) {
			return false
		}
		if f, ok := n.Op.(Fusion); ok && !SameLabels(f.Body, m.Op.(Fusion).Body) {
			return false
		}
	}
	for i, o := range a.Outputs {
		if o.Name != b.Outputs[i].Name {
			return false
		}
	}
	return slices.EqualFunc(a.Notes, b.Notes, func(n, m Note) bool {
		if n.Node != nil && m.Node != nil && n.Node.ID == m.Node.ID {
			n.Node = m.Node
		}
		return n == m
	})
}

// sameOp compares operations with their attributes, bit for bit, and the elements of constants.
func sameOp(p, q Op) bool {
	switch p := p.(type) {
	case Const:
		q, ok := q.(Const)
		return ok && (p.Value == q.Value || p.Value.Equal(q.Value))
	case Fusion:
		q, ok := q.(Fusion)
		return ok && p.Anchor == q.Anchor && p.Kind == q.Kind && SameStructure(p.Body, q.Body)
	}
	if p != q {
		return false
	}
	for _, i := range floatAttrs[reflect.TypeOf(p)] { // == does not distinguish 0 and −0
		x, y := reflect.ValueOf(p).FieldByIndex(i).Float(), reflect.ValueOf(q).FieldByIndex(i).Float()
		if math.Signbit(x) != math.Signbit(y) {
			return false
		}
	}
	return true
}

// floatAttrs lists which attributes of an operation are floating-point numbers.
var floatAttrs = map[reflect.Type][][]int{}

func init() {
	for _, info := range opTable {
		t := reflect.TypeOf(info.Proto)
		for _, f := range reflect.VisibleFields(t) {
			if f.Type.Kind() == reflect.Float64 {
				floatAttrs[t] = append(floatAttrs[t], f.Index)
			}
		}
	}
}

// NodePositions gives the positions of nodes in the list of their graph.
type NodePositions struct {
	nodes []*Node
	byID  []int32       // by ID, where IDs are small
	by    map[*Node]int // else
}

// Positions numbers the nodes of a graph in their order.
func Positions(g *Graph) NodePositions {
	p, most := NodePositions{nodes: g.Nodes}, 0
	for _, n := range g.Nodes {
		if n.ID < 0 || n.ID > 8*len(g.Nodes)+1024 {
			p.by = make(map[*Node]int, len(g.Nodes))
			for i, n := range g.Nodes {
				p.by[n] = i
			}
			return p
		}
		most = max(most, n.ID)
	}
	p.byID = make([]int32, most+1)
	for i, n := range g.Nodes {
		p.byID[n.ID] = int32(i)
	}
	return p
}

// Of is the position of n, or -1 if it is not a node of the graph.
func (p NodePositions) Of(n *Node) int {
	if n == nil {
		return -1
	}
	if p.by != nil {
		if i, ok := p.by[n]; ok {
			return i
		}
		return -1
	}
	if uint(n.ID) < uint(len(p.byID)) {
		if i := int(p.byID[n.ID]); p.nodes[i] == n {
			return i
		}
	}
	return -1
}
