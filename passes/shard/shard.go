// Package shard turns a graph of whole values into the program that each participant of a mesh runs on its parts of them,
// in the manner of GSPMD (Y. Xu et al., "GSPMD: General and Scalable Parallelization for ML Computation Graphs", arXiv
// 2105.04663).
//
// The shardings that sources state are carried to all other values, forward and backward, by rules that tie the axes of each
// operation's operands and results. Then each operation computes its part from parts, and where a reader needs another part
// than its operand has, collective operations stand between them: a partial sum that is wanted whole is all-reduced, one that
// is wanted in parts is reduce-scattered, and so on. Data parallel, tensor parallel and split optimiser states are nothing but
// shardings of inputs, parameters and states.
package shard

import (
	"fmt"
	"slices"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/passes/rewrite"
)

// Run shards the graph over its mesh. A graph without a mesh stays as it is. With a stage of ZeRO from 1 on the states of the
// optimiser, and from 3 on parameters, too, are split along the axes along which inputs are, as far as nothing else is stated.
// Rounded says that gradients of f32 are exchanged in bf16.
func Run(c *rewrite.Context, zero int, rounded bool) error {
	g := c.Graph
	if len(g.Mesh) == 0 || g.Parts {
		return nil
	}
	for _, n := range g.Nodes {
		if _, ok := n.Op.(graph.Collective); ok {
			return fmt.Errorf("%s: a graph that is to be split over a mesh has no collective operations of its own", n.Where())
		}
	}
	p := newPass(c, zero, rounded)
	if p.decompose() {
		if err := g.Tidy(); err != nil {
			return err
		}
		p = newPass(c, zero, rounded)
	}
	return p.partition()
}

// pass is the work on one graph.
type pass struct {
	c       *rewrite.Context
	g       *graph.Graph
	mesh    graph.Mesh
	values  map[*graph.Node]*value
	rule    map[*graph.Node]*rule
	results map[*graph.Node][][]*graph.Node // of an operation: the nodes of each result

	b      *graph.Builder
	late   graph.MeshAxes          // the axis of microbatches, over which sums are made first, and nothing is kept in parts
	blocks map[*graph.Node]*blocks // by attention whose keys go around
	sent   map[string]sent         // by collective and axes

	rounded map[*graph.Node]bool // gradients that are exchanged in bf16
}

// value is what is known of a node's value.
type value struct {
	n      *graph.Node
	want   graph.Sharding // how it is best laid out, without partial sums
	closed graph.MeshAxes // axes along which it must not be split further
	have   []placed
}

// placed is a value as some layout has it: a node of the new graph.
type placed struct {
	s graph.Sharding
	n *graph.Node
}

// sent counts collective operations of one kind.
type sent struct {
	n     int
	bytes int64
}

func newPass(c *rewrite.Context, zero int, rounded bool) *pass {
	g := c.Graph
	p := &pass{c: c, g: g, mesh: g.Mesh, values: make(map[*graph.Node]*value, len(g.Nodes)),
		rule:    make(map[*graph.Node]*rule, len(g.Nodes)),
		results: map[*graph.Node][][]*graph.Node{}, blocks: map[*graph.Node]*blocks{}, sent: map[string]sent{},
		rounded: map[*graph.Node]bool{}}
	for a, axis := range p.mesh {
		if axis.Name == graph.Microbatch {
			p.late |= 1 << a
		}
	}
	if rounded {
		p.findGradients()
	}
	var inputs graph.MeshAxes // axes along which inputs are split
	for _, n := range g.Nodes {
		if _, ok := n.Op.(graph.Input); ok {
			inputs |= n.Sharding.Over()
		}
	}
	var kept []*value // parameters that are kept in parts
	for _, n := range g.Nodes {
		v := &value{n: n, want: graph.Replicated}
		p.values[n] = v
		_, param := n.Op.(graph.Param)
		switch {
		case n.Sharding.Given:
			v.want, v.closed = n.Sharding, p.mesh.All()
			for d := range v.want.Split {
				v.want.Split[d] &^= p.single()
			}
		case isMoment(n) && zero >= 1:
			p.spread(v, inputs)
		case param: // it is split like the data only where that is stated
			v.closed = inputs
			if zero >= 3 {
				kept = append(kept, v)
			}
		}
		if r, ok := n.Op.(graph.Result); ok {
			of := n.Args[0]
			p.results[of][r.Index] = append(p.results[of][r.Index], n)
			continue
		}
		if graph.IsSource(n.Op) {
			continue
		}
		r := ruleOf(n)
		p.rule[n] = r
		p.results[n] = make([][]*graph.Node, len(r.results))
		p.results[n][0] = []*graph.Node{n}
	}
	p.complete()
	if len(kept) > 0 { // after the data: else how a bias is kept would say how the rows that it is added to are split
		for _, v := range kept {
			v.closed = 0
			p.spread(v, inputs)
		}
		p.complete()
	}
	if p.rings() {
		p.complete()
	}
	return p
}

// single are the axes of one participant, along which nothing need be split.
func (p *pass) single() (axes graph.MeshAxes) {
	for a, axis := range p.mesh {
		if axis.Size == 1 {
			axes |= 1 << a
		}
	}
	return axes
}

// leastRounded is how many elements a gradient has, at least, that is rounded before it is exchanged: to round fewer by themselves
// takes longer than to send them.
const leastRounded = 1 << 14

// findGradients finds the large gradients that an optimiser reads: those whose norm it computes, or sums of them.
func (p *pass) findGradients() {
	var of func(n *graph.Node)
	of = func(n *graph.Node) {
		p.rounded[n] = n.Phase == graph.Backward && n.Type.DType == graph.F32 && n.Type.Shape.Elems() >= leastRounded
		if n.Phase == graph.Optimiser {
			for _, a := range n.Args {
				of(a)
			}
		}
	}
	for _, n := range p.g.Nodes {
		if _, ok := n.Op.(graph.SquaredNorm); ok {
			of(n)
		}
	}
}

// isMoment reports whether n is a state of an optimiser that is as large as a parameter.
func isMoment(n *graph.Node) bool {
	_, state := n.Op.(graph.State)
	return state && n.Phase == graph.Optimiser && n.Type.Shape.Rank() > 0
}

// spread splits a value along its first axis that allows it.
func (p *pass) spread(v *value, axes graph.MeshAxes) {
	for a := range p.mesh {
		for d := range v.n.Type.Shape.Rank() {
			if axes.Has(a) && !p.late.Has(a) && p.allows(v, d, a) {
				v.want.Split[d] |= 1 << a
				break
			}
		}
	}
	v.closed = axes
}

// operands calls f for each operand of a node with the factors of its axes.
func (p *pass) operands(n *graph.Node, f func(v *value, factors []int)) {
	for i, a := range n.Args {
		f(p.values[a], p.rule[n].args[i])
	}
}

// outcomes calls f for each value that is a result of a node.
func (p *pass) outcomes(n *graph.Node, f func(v *value, factors []int)) {
	for i, nodes := range p.results[n] {
		for _, m := range nodes {
			f(p.values[m], p.rule[n].results[i])
		}
	}
}

// maxRounds bounds how often shardings are carried through the graph. Each round that changes something splits a value along
// one more axis.
const maxRounds = 8

// complete carries shardings through the graph until nothing changes.
func (p *pass) complete() {
	for range maxRounds {
		changed := false
		for _, n := range p.g.Nodes {
			changed = p.carry(n, true) || changed
		}
		for _, n := range slices.Backward(p.g.Nodes) {
			changed = p.carry(n, false) || changed
		}
		for _, u := range p.g.Updates { // a new value is laid out as what it updates
			changed = p.tie(p.values[u.Target], p.values[u.Value]) || changed
		}
		if !changed {
			return
		}
	}
}

// tie splits a value that has the same axes as another along the same axes of the mesh.
func (p *pass) tie(from, to *value) (changed bool) {
	for d := range from.n.Type.Shape.Rank() {
		for a := range p.mesh {
			if from.want.Split[d].Has(a) && p.allows(to, d, a) {
				to.want.Split[d] |= 1 << a
				changed = true
			}
		}
	}
	return changed
}

// carry takes the shardings of a node's operands to its other operands and its results, or those of its results to its
// operands.
func (p *pass) carry(n *graph.Node, forward bool) (changed bool) {
	r := p.rule[n]
	if r == nil || r.factors == 0 {
		return false
	}
	uses := make([]graph.MeshAxes, r.factors) // by factor
	look := func(v *value, factors []int) {
		for d, f := range factors {
			if f != none {
				uses[f] |= v.want.Split[d]
			}
		}
	}
	p.operands(n, look)
	if !forward {
		p.outcomes(n, look)
	}
	var seen, twice graph.MeshAxes
	for _, a := range uses {
		twice |= seen & a
		seen |= a
	}
	if seen == twice {
		return false
	}
	give := func(v *value, factors []int) {
		for d, f := range factors {
			if f == none {
				continue
			}
			for a := range p.mesh {
				if uses[f].Has(a) && !twice.Has(a) && p.allows(v, d, a) {
					v.want.Split[d] |= 1 << a
					changed = true
				}
			}
		}
	}
	p.operands(n, give)
	p.outcomes(n, give)
	return changed
}

// allows reports whether axis d of a value may be split along axis a of the mesh, too.
func (p *pass) allows(v *value, d, a int) bool {
	if p.mesh[a].Size == 1 || v.closed.Has(a) || v.want.Over().Has(a) || v.n.Type.DType.IsStored() {
		return false
	}
	size := v.n.Type.Shape.At(d)
	return size > 0 && size%p.mesh.Parts(v.want.Split[d]|1<<a) == 0
}

// decompose takes apart operations that would compute along an axis that is split, such as a batch norm over a batch, where
// their parts need less of the others: the sums. It reports whether there are any.
func (p *pass) decompose() bool {
	with := map[*graph.Node]*graph.Node{}
	b := graph.Extend(p.g)
	for _, n := range slices.Clone(p.g.Nodes) {
		if _, ok := n.Op.(graph.MatMul); ok {
			if m := p.rowsApart(b.From(n), n); m != nil {
				m.Name, with[n] = n.Name, m
				p.c.Match("rows apart", trace.Reassociated, "", m, n)
			}
			continue
		}
		r := p.rule[n]
		if r == nil || !r.apart {
			continue
		}
		whole := false
		for d, f := range r.args[0] {
			whole = whole || f == none && p.values[n.Args[0]].want.Split[d] != 0
		}
		if !whole {
			continue
		}
		parts := graph.Decompose(b.From(n), n)
		if b.Err() != nil || parts == nil {
			continue
		}
		for i, nodes := range p.results[n] {
			for _, m := range nodes {
				if parts[i].Name == "" && !graph.IsSource(parts[i].Op) {
					parts[i].Name = m.Name
				}
				with[m] = parts[i]
			}
		}
		p.c.Match("taken apart", trace.Reassociated, "", parts[0], n)
		p.c.Note(n, "it computes along an axis that is split over %s: its parts exchange sums only",
			p.mesh.Names(p.values[n.Args[0]].want.Over()))
	}
	p.g.Replace(with)
	return len(with) > 0
}

// rowsApart is a product AᵀB that sums over the joined leading axes of two values, as the gradient of weights does, where one of
// these axes is split and not the first: joined they could not be split. It is nil for all other products. With the axis in front
// they are joined in another order, which the sum does not see. If those before it are split, too, they stay apart, and
// are summed over later.
func (p *pass) rowsApart(b *graph.Builder, n *graph.Node) *graph.Node {
	if (n.Op != graph.MatMul{TransA: true}) {
		return nil
	}
	var from [2]*graph.Node
	var uses [graph.MaxRank]graph.MeshAxes
	for i, a := range n.Args {
		if _, ok := a.Op.(graph.Reshape); !ok || a.Type.Shape.Rank() != 2 {
			return nil
		}
		x := a.Args[0]
		last := x.Type.Shape.Rank() - 1
		if last < 2 || x.Type.Shape.At(last) != a.Type.Shape.At(1) || x.Type.Shape.Elems() == 0 {
			return nil
		}
		for d := range last {
			uses[d] |= p.values[x].want.Split[d]
		}
		from[i] = x
	}
	x, y := from[0].Type.Shape, from[1].Type.Shape
	last := x.Rank() - 1
	if y.Rank() != x.Rank() || x.With(last, 1) != y.With(last, 1) {
		return nil
	}
	axis, before, rows := 0, false, 1
	for d := range last {
		if uses[d] != 0 && rows > 1 {
			axis = d
			break
		}
		before = before || uses[d] != 0
		rows *= x.At(d)
	}
	switch {
	case axis == 0:
		return nil
	case before && axis == last-1:
		m := b.MatMul(from[0], from[1], true, false)
		axes := make([]int, last-1)
		for d := range axes {
			axes[d] = d
		}
		return b.Reduce(graph.Sum, m, false, axes...)
	case before:
		return nil
	}
	perm := []int{axis}
	for d := range last + 1 {
		if d != axis {
			perm = append(perm, d)
		}
	}
	joined := func(v *graph.Node) *graph.Node {
		t := b.Transpose(v, perm...)
		return b.Reshape(t, x.Elems()/x.At(last), v.Type.Shape.At(last))
	}
	return b.MatMul(joined(from[0]), joined(from[1]), true, false)
}
