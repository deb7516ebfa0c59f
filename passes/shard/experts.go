package shard

import "fusec/graph"

// Expert parallel mixtures (D. Lepikhin et al., "GShard: Scaling Giant Models with Conditional Computation and Automatic Sharding",
// arXiv 2006.16668): where tokens and experts are split along the same axes, tokens cross to the experts, and what these make of
// them crosses back. Sizes of values are known before a run, and every token of a participant may be for the experts of one other,
// so that a block of all its tokens goes to each. A token crosses once to a participant, however many of its experts are there.
//
// Each participant computes a block while the next one comes, and sends back what it has made of it beside the one after that. Its
// own tokens are last:
//
//	x_1 ← permute x by 1                              beside what makes the gates, and the hidden values of the own tokens
//	for block s = 1 … p−1, that of participant r − s (modulo p):
//	    x_s+1 ← permute x by s+1                      beside block s
//	    z_s ← the own experts on x_s
//	    y_s ← permute z_s by −s                       beside block s+1, and at last the own tokens
//	y ← own tokens + y_1 + … + y_p−1
//
// The gates of all tokens for the own experts come by an all_to_all: they are a few bytes for each token.
// What goes back is rounded to bf16 before, where the sum is rounded to it.

// overLink is how many times faster weights are read from a device's memory than values cross to another one.
const overLink = 8

// A crossing is a mixture of experts whose tokens and experts are split along the same axes.
type crossing struct {
	p       *pass
	op      graph.MoE
	axes    graph.MeshAxes
	axis    int // of the tokens
	parts   int
	x       *graph.Node // the own tokens
	gates   *graph.Node // of all tokens for the own experts
	own     *graph.Node // of the own tokens for all experts, or nil where they are not here
	rounded bool        // what comes out is rounded to bf16: so is what goes back
	weights []*graph.Node
}

// crosses is the axis of the tokens of a mixture that is split along all axes of the mesh along which its experts are, or none. The
// experts' weights are read once for each block: few tokens are gathered instead.
func (p *pass) crosses(n *graph.Node, r *rule, over []graph.MeshAxes) int {
	op, ok := n.Op.(graph.MoE)
	if !ok || !op.Stacked {
		return none
	}
	axes := over[r.results[1][0]]
	parts := p.mesh.Parts(axes)
	if parts < 2 {
		return none
	}
	x, y := n.Args[0].Type, n.Type
	have := p.values[n.Args[0]].want
	for d := range x.Shape.Rank() - 1 {
		s := have.Split[d]
		if s&axes != axes || s&^axes != over[r.args[0][d]] || first(axes) <= last(s&^axes) {
			continue
		}
		block := have.Local(p.mesh, x.Shape).Elems()
		sent := int64(block) * int64(x.DType.Size())
		sent += int64(block/max(x.Shape.At(x.Shape.Rank()-1), 1)*y.Shape.At(y.Shape.Rank()-1)) * int64(y.DType.Size())
		read := int64(0)
		for _, w := range n.Args[2:] {
			read += w.Type.Bytes() / int64(parts)
		}
		if overLink*sent*int64(parts-1) < read*int64(parts) {
			p.c.Note(n, "its tokens are gathered: to read the experts' weights for each of %d blocks of tokens takes longer", parts)
			return none
		}
		return d
	}
	return none
}

// cross makes the results of a mixture.
func (c *crossing) cross(n *graph.Node) []*graph.Node {
	p := c.p
	c.parts = p.mesh.Parts(c.axes)
	c.op.Experts /= c.parts
	c.op.TopK = min(c.op.TopK, c.op.Experts)
	p.c.Note(n, "expert parallel over %s: each participant has %d experts, and a block of %d tokens of each other crosses to them "+
		"and back", p.mesh.Names(c.axes), c.op.Experts, c.x.Type.Shape.Elems()/max(c.x.Type.Shape.At(c.x.Type.Shape.Rank()-1), 1))
	y, loads := c.all()
	return []*graph.Node{y, loads}
}

// permute is the x of the participant shift places before.
func (c *crossing) permute(x *graph.Node, shift int, after ...*graph.Node) *graph.Node {
	return c.p.collective(graph.Permute{Shift: shift, Group: c.p.group(c.axes)}, x, c.axes, after...)
}

// all makes the mixture of the own tokens.
func (c *crossing) all() (y, loads *graph.Node) {
	b := c.p.b
	var made []*graph.Node // in order: the others' blocks, and the own tokens
	var sent []*graph.Node // of those, what goes back
	own := c.ownGates()
	next := c.permute(c.x, 1)
	c.p.early(next)
	var back []*graph.Node
	for s := 1; s < c.parts; s++ {
		x := next
		if s+1 < c.parts { // after the block before this one, so that no more than two are there at a time
			next = c.permute(c.x, s+1, sent[max(len(sent)-1, 0):]...)
		}
		z := c.experts(x, c.gatesOf(s, sent[max(len(sent)-1, 0):]...))
		made = append(made, z)
		if c.rounded { // all that reads a block reads it rounded, so that the mixture itself rounds it
			z = b.CastTo(graph.BF16, z)
		}
		sent = append(sent, z)
		back = append(back, c.permute(z, -s))
	}
	made = append(made, c.experts(c.x, own))
	if b.Err() != nil {
		return c.x, c.x
	}
	y = made[len(made)-1]
	for _, z := range back {
		y = b.Binary(graph.Add, y, b.CastTo(y.Type.DType, z))
	}
	for _, z := range made {
		if load := b.Add(graph.Result{Index: 1}, z); loads == nil {
			loads = load
		} else {
			loads = b.Binary(graph.Add, loads, load)
		}
	}
	return y, loads
}

// ownGates are those of the own tokens for the own experts. They wait for no other participant where those for all experts are
// here.
func (c *crossing) ownGates() *graph.Node {
	if c.own == nil {
		return c.gatesOf(0)
	}
	return c.p.collective(graph.Part{Axis: c.own.Type.Shape.Rank() - 1, Group: c.p.group(c.axes)}, c.own, c.axes)
}

// gatesOf are those of the tokens of the participant that stands back places before, for the own experts. They are made after the
// last operands, so that exchanges have work beside them.
func (c *crossing) gatesOf(back int, after ...*graph.Node) *graph.Node {
	size := c.x.Type.Shape.At(c.axis)
	start := c.p.place(c.axes, graph.I64, func(place int) int { return (place - back + c.parts) % c.parts * size }, after...)
	return c.p.b.Add(graph.Slice{Axis: c.axis, Size: size, Step: 1}, c.gates, start)
}

// experts are the own experts on some tokens.
func (c *crossing) experts(x, gates *graph.Node) *graph.Node {
	return c.p.b.Add(c.op, append([]*graph.Node{x, gates}, c.weights...)...)
}
