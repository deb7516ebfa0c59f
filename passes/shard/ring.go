package shard

import (
	"math"
	"slices"

	"fusec/graph"
)

// Ring attention (H. Liu, M. Zaharia, P. Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context", arXiv
// 2310.01889): where queries, keys and values are split along the sequence alike, each participant has a block of each. The
// blocks of keys and values go around the ring of participants, and each computes the attention of its queries on the block that
// it has. No participant ever has all keys. The results of blocks are merged by their log-sum-exps, as in the online softmax
// (M. Milakov, N. Gimelshein, arXiv 1805.02867). The exchange of a block needs nothing of the attention on the one before, so
// targets make both at the same time.
//
//	forward, participant r of p:    for block s = r, r−1, …, r−p+1 (modulo p):
//	    (k, v)_next ← permute (k, v) by 1          beside
//	    (y_s, lse_s) ← attention(q, k_s, v_s)      causal in block r alone: earlier ones are seen whole, later ones not at all
//	    (y, lse) ← merge((y, lse), (y_s, lse_s))
//
// A block's part of the gradient is that of its own attention with dy scaled by exp(lse_s − lse), row by row: the weight with
// which the block has entered. Then the gradients of keys and values go straight home.

// rings finds the attentions whose queries and keys are split along the sequence alike, and ties their axes. It reports whether
// there are any.
func (p *pass) rings() (found bool) {
	for _, n := range p.g.Nodes {
		r := p.rule[n]
		if r == nil || !ringed(n) {
			continue
		}
		axis := n.Args[0].Type.Shape.Rank() - 2
		q, k := p.values[n.Args[0]].want.Split[axis], p.values[n.Args[1]].want.Split[axis]
		if p.mesh.Parts(q&k) < 2 {
			continue
		}
		r.alongSequence(n)
		found = true
	}
	return found
}

// attentionOf is the attention that a node is, or is the gradient of.
func attentionOf(n *graph.Node) (op graph.Attention, grad, ok bool) {
	switch op := n.Op.(type) {
	case graph.Attention:
		return op, false, true
	case graph.AttentionGrad:
		return op.Attention, true, true
	}
	return op, false, false
}

// ringed reports whether the blocks of keys and values of an attention may go around a ring. What a query sees of a block must
// follow from the blocks' order.
func ringed(n *graph.Node) bool {
	op, _, ok := attentionOf(n)
	if !ok || op.Page != 0 || op.Dropout != 0 || op.Window != 0 || op.Tail || op.HasScales {
		return false
	}
	q, k := n.Args[0].Type.Shape, n.Args[1].Type.Shape
	return !op.Causal || q.At(q.Rank()-2) == k.At(q.Rank()-2)
}

// alongSequence ties the queries of an attention, or of its gradient, to its keys and values.
func (r *rule) alongSequence(n *graph.Node) {
	op, isGrad, _ := attentionOf(n)
	axis := n.Args[0].Type.Shape.Rank() - 2
	if r.args[0][axis] == none {
		f := r.factor()
		rows := append([][]int{r.args[0]}, r.results[:1]...)
		if isGrad {
			rows = append(rows, r.args[n.Op.(graph.AttentionGrad).OutArg():]...)
		} else {
			rows = append(rows, r.results[1])
		}
		for _, v := range rows {
			v[axis] = f
		}
		if i := op.MaskArg(); i >= 0 { // its rows are those of the queries
			m := n.Args[i].Type.Shape
			if row := m.Rank() - 2; row >= 0 && m.At(row) == n.Args[0].Type.Shape.At(axis) {
				r.args[i][row] = f
			}
		}
	}
	r.ring = r.args[0][axis]
	r.args[1][axis], r.args[2][axis] = r.ring, r.ring
	if isGrad {
		r.results[1][axis], r.results[2][axis] = r.ring, r.ring
	}
}

// ring is the attention of one participant on blocks that go around.
type ring struct {
	p           *pass
	b           *graph.Builder
	op          graph.Attention
	axes        graph.MeshAxes // along which the sequence is split
	q, k, v     *graph.Node
	mask        *graph.Node // of all keys; or nil
	lengths     *graph.Node // of all blocks together; or nil
	parts, keys int         // how many blocks there are, and of how many keys each
}

// blocks are the results of the attention on each block, by how many participants it has come from, and those of all together.
type blocks struct {
	layout graph.Sharding // of lse
	lse    []*graph.Node  // of each block
	y, all *graph.Node    // of all
}

// ringOf is the ring of an attention, or of its gradient, that is split over axes, with the participant's own operands.
func (p *pass) ringOf(n *graph.Node, args []*graph.Node, axes graph.MeshAxes) *ring {
	op, _, _ := attentionOf(n)
	r := &ring{p: p, b: p.b, op: op, axes: axes, q: args[0], k: args[1], v: args[2], parts: p.mesh.Parts(axes)}
	r.keys = r.k.Type.Shape.At(r.k.Type.Shape.Rank() - 2)
	if i := op.MaskArg(); i >= 0 {
		r.mask = args[i]
	}
	if i := op.LengthsArg(); i >= 0 {
		r.lengths = args[i]
	}
	return r
}

// attentionRing makes the results of an attention, or of its gradient, whose sequence is split over axes. Layout is that of its
// log-sum-exps.
func (p *pass) attentionRing(n *graph.Node, args []*graph.Node, axes graph.MeshAxes, layout graph.Sharding) []*graph.Node {
	r := p.ringOf(n, args, axes)
	op, isGrad := n.Op.(graph.AttentionGrad)
	if !isGrad {
		made := r.forward(layout)
		p.blocks[n] = made
		p.c.Note(n, "ring attention over %s: %d blocks of %d keys, each of which every participant has in turn", p.mesh.Names(axes),
			r.parts, r.keys)
		return []*graph.Node{made.y, made.all}
	}
	made := p.blocks[p.forward(n)]
	if made == nil || made.layout != layout || len(made.lse) != r.parts {
		made = r.forward(layout)
	}
	var dlse *graph.Node
	if i := op.DLSEArg(); i >= 0 {
		dlse = args[i]
	}
	return r.backward(made, args[op.OutArg()], args[op.DOutArg()], dlse)
}

// forward is the attention that n is the gradient of, or nil.
func (p *pass) forward(n *graph.Node) *graph.Node {
	lse := n.Args[n.Op.(graph.AttentionGrad).LSEArg()]
	if _, ok := lse.Op.(graph.Result); !ok {
		return nil
	}
	return lse.Args[0]
}

// place is a number that depends on the participant's place in the ring.
func (r *ring) place(d graph.DType, f func(i int) int) *graph.Node { return r.p.place(r.axes, d, f) }

// operands are those of the attention on the block that stands back places before the participant's own, and its attributes.
func (r *ring) operands(k, v *graph.Node, back int) (graph.Attention, []*graph.Node) {
	b, op := r.b, r.op
	from := func(place int) int { return (place - back + r.parts) % r.parts }
	args := []*graph.Node{r.q, k, v}
	if r.mask != nil {
		m := r.mask
		if last := m.Type.Shape.Rank() - 1; last >= 0 && m.Type.Shape.At(last) == r.keys*r.parts {
			start := r.place(graph.I64, func(place int) int { return r.keys * from(place) })
			m = b.Add(graph.Slice{Axis: last, Size: r.keys, Step: 1}, m, start)
		}
		args = append(args, m)
	}
	valid := r.lengths
	if valid != nil {
		valid = b.Binary(graph.Sub, valid, r.place(valid.Type.DType, func(place int) int { return r.keys * from(place) }))
	}
	if op.Causal && back > 0 {
		d := graph.I64
		if valid != nil {
			d = valid.Type.DType
		}
		seen := r.place(d, func(place int) int {
			if place < back {
				return 0 // the block is behind the queries
			}
			return r.keys
		})
		if valid != nil {
			valid = b.Binary(graph.Min, valid, seen)
		} else {
			q := r.q.Type.Shape
			valid = b.Broadcast(seen, graph.ShapeOf(q.Slice()[:max(q.Rank()-3, 0)]...))
		}
		op.Causal = false
	}
	if op.HasLengths = valid != nil; op.HasLengths {
		args = append(args, valid)
	}
	return op, args
}

// turn is keys and values of the next place, by a shift of 1 or −1. They are sent after what the blocks before the present one have
// made, so that no more than two blocks are there at a time, and what each makes is added up at once.
func (r *ring) turn(k, v *graph.Node, shift int, after ...*graph.Node) (*graph.Node, *graph.Node) {
	op := graph.Permute{Shift: shift, Group: r.p.group(r.axes)}
	return r.p.collective(op, k, r.axes, after...), r.p.collective(op, v, r.axes, after...)
}

// forward makes the attention on all blocks.
func (r *ring) forward(layout graph.Sharding) *blocks {
	b, made := r.b, &blocks{layout: layout}
	k, v := r.k, r.v
	for back := range r.parts {
		op, args := r.operands(k, v, back)
		switch {
		case back+1 == r.parts:
		case back == 0:
			k, v = r.turn(k, v, 1)
		default:
			k, v = r.turn(k, v, 1, made.y)
		}
		y := b.Add(op, args...)
		lse := b.Add(graph.Result{Index: 1}, y)
		if b.Err() != nil {
			return made
		}
		if made.lse = append(made.lse, lse); back == 0 {
			made.y, made.all = y, lse
			continue
		}
		made.y, made.all = r.merge(made.y, made.all, y, lse)
	}
	return made
}

// merge joins the results of two sets of keys. A row that sees none has the log-sum-exp −Inf.
func (r *ring) merge(y1, lse1, y2, lse2 *graph.Node) (y, lse *graph.Node) {
	b, d := r.b, lse1.Type.DType
	top := r.finite(b.Binary(graph.Max, lse1, lse2))
	e1, e2 := b.Unary(graph.Exp, b.Binary(graph.Sub, lse1, top)), b.Unary(graph.Exp, b.Binary(graph.Sub, lse2, top))
	sum := b.Binary(graph.Add, e1, e2)
	some := b.Add(graph.Select{}, b.BinaryScalar(graph.Eq, sum, 0), b.Scalar(d, 1), sum)
	weighted := func(y, e *graph.Node) *graph.Node {
		return b.Binary(graph.Mul, y, r.rows(b.Binary(graph.Div, e, some), y))
	}
	return b.Binary(graph.Add, weighted(y1, e1), weighted(y2, e2)), b.Binary(graph.Add, top, b.Unary(graph.Log, sum))
}

// finite is x with 0 for −Inf.
func (r *ring) finite(x *graph.Node) *graph.Node {
	b := r.b
	return b.Add(graph.Select{}, b.BinaryScalar(graph.Eq, x, math.Inf(-1)), b.Scalar(x.Type.DType, 0), x)
}

// rows repeats x, which has one element for each row, along the rows of y.
func (r *ring) rows(x, y *graph.Node) *graph.Node {
	return r.b.Broadcast(r.b.Reshape(x, append(x.Type.Shape.Slice(), 1)...), y.Type.Shape)
}

// backward makes the gradients of queries, keys and values. The blocks go around the other way than forward: values of one round
// are then not kept for the other.
func (r *ring) backward(made *blocks, out, dout, dlse *graph.Node) []*graph.Node {
	b := r.b
	if b.Err() != nil {
		return slices.Repeat([]*graph.Node{r.q}, 3)
	}
	var sums []*graph.Node
	k, v, all := r.k, r.v, r.finite(made.all)
	for step := range r.parts {
		back := (r.parts - step) % r.parts
		op, args := r.operands(k, v, back)
		if step+1 < r.parts {
			k, v = r.turn(k, v, -1, sums...)
		}
		weight := b.Unary(graph.Exp, b.Binary(graph.Sub, made.lse[back], all))
		scaled := b.Binary(graph.Mul, b.CastTo(weight.Type.DType, dout), r.rows(weight, dout))
		args = append(args, out, made.lse[back], b.CastTo(dout.Type.DType, scaled))
		if dlse != nil {
			args = append(args, b.Binary(graph.Mul, dlse, weight))
		}
		dq := b.Add(graph.AttentionGrad{Attention: op, HasDlse: dlse != nil}, args...)
		for i, part := range []*graph.Node{dq, b.Add(graph.Result{Index: 1}, dq), b.Add(graph.Result{Index: 2}, dq)} {
			if i > 0 && back > 0 {
				part = r.p.collective(graph.Permute{Shift: -back, Group: r.p.group(r.axes)}, part, r.axes)
			}
			if step == 0 {
				sums = append(sums, part)
			} else {
				sums[i] = b.Binary(graph.Add, sums[i], part)
			}
		}
	}
	return sums
}
