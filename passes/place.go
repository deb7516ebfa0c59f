package passes

import (
	"slices"

	"fusec/graph"
)

// place decides where every value is stored. Views are strides as long as strides can express them and the reader takes
// them; where they cannot, it inserts the one Copy that makes the value contiguous:
//
//	x ─► Transpose ─► Reshape ─►      to      x ─► Transpose ─► Copy ─► Reshape ─►
//
// What is handed out or kept as state gets a buffer that nothing else has. Operations that stay on the host are named.
func place(c *Context) error {
	p := placer{g: c.Graph, at: map[*graph.Node]graph.Layout{}, base: map[*graph.Node]*graph.Node{},
		copies: map[*graph.Node]*graph.Node{}, owned: map[*graph.Node]bool{}, results: map[result]*graph.Node{}}
	for _, n := range slices.Clone(c.Graph.Nodes) {
		if h, ok := n.Op.(graph.Host); ok {
			c.Note(n, "%s stays on the host: it is opaque and runs by its own code", h.Name)
		}
		p.node(n)
	}
	for i := range c.Graph.Outputs {
		p.own(&c.Graph.Outputs[i].Node)
	}
	for i := range c.Graph.Updates {
		p.own(&c.Graph.Updates[i].Value)
	}
	return c.Graph.Tidy()
}

type placer struct {
	g      *graph.Graph
	at     map[*graph.Node]graph.Layout
	base   map[*graph.Node]*graph.Node // the node whose buffer holds a value
	copies map[*graph.Node]*graph.Node // the contiguous copy of a value
	owned  map[*graph.Node]bool        // buffers that are handed out or kept

	results map[result]*graph.Node // the first node that reads a further result
}

// result is a further result of an operation: several nodes that read it have one buffer.
type result struct {
	of    *graph.Node
	index int
}

func (p *placer) node(n *graph.Node) {
	p.at[n], p.base[n] = graph.Contiguous(n.Type.Shape), n
	if graph.IsView(n.Op) {
		l, ok := p.at[n.Args[0]].View(n)
		if !ok {
			p.contiguous(n, 0)
			if l, ok = p.at[n.Args[0]].View(n); !ok { // a Slice from where an operand says: a launch
				return
			}
		}
		p.at[n], p.base[n] = l, p.base[n.Args[0]]
		return
	}
	if r, ok := n.Op.(graph.Result); ok {
		same := result{n.Args[0], r.Index}
		if p.results[same] == nil {
			p.results[same] = n
		}
		p.base[n] = p.results[same]
		return
	}
	if graph.ReadsStrides(n.Op) {
		return
	}
	for i := range n.Args {
		p.contiguous(n, i)
	}
}

// contiguous makes operand i of n contiguous, from the start of its buffer.
func (p *placer) contiguous(n *graph.Node, i int) {
	if l := p.at[n.Args[i]]; !l.IsContiguous() || l.Offset != 0 {
		n.Args[i] = p.copyOf(n.Args[i])
	}
}

// copyOf is the copy of a value, made when it is first asked for.
func (p *placer) copyOf(a *graph.Node) *graph.Node {
	if k := p.copies[a]; k != nil {
		return k
	}
	k := graph.Extend(p.g).Add(graph.Copy{}, a)
	k.Like(a)
	k.Origin = slices.Clip(k.Origin) // one list for all copies: it may be long
	p.copies[a] = k
	p.at[k], p.base[k] = graph.Contiguous(a.Type.Shape), k
	return k
}

// own gives a value that leaves the run a buffer that nothing else owns.
func (p *placer) own(n **graph.Node) {
	b := p.base[*n]
	_, isConst := b.Op.(graph.Const)
	whole := p.at[*n].IsContiguous() && (*n).Type.Shape.Elems() == b.Type.Shape.Elems()
	if graph.IsSource(b.Op) || isConst || !whole || p.owned[b] {
		if p.owned[p.copies[*n]] {
			delete(p.copies, *n)
		}
		*n = p.copyOf(*n)
		b = *n
	}
	p.owned[b] = true
}
