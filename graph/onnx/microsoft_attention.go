package onnx

import (
	"math"

	"fusec/graph"
)

// headsAttrs are the attributes of attention of as many heads of keys as of queries.
var headsAttrs = []attr{{name: "num_heads", def: required{int64(0)}}, floatAttr("mask_filter_value", -10000), floatAttr("scale", 0),
	intAttr("unidirectional", 0)}

// selfAttentionAttrs are those where queries, keys and values follow from one operand.
var selfAttentionAttrs = append([]attr{intAttr("do_rotary", 0), intAttr("past_present_share_buffer", 0),
	{name: "qkv_hidden_sizes", def: []int64(nil)}, intAttr("rotary_embedding_dim", 0)}, headsAttrs...)

func init() {
	heads, scale := headsAttrs[0], headsAttrs[2]
	declare(
		operator{domain: microsoft, name: "Attention", min: 2, max: 7, build: buildContributedAttention, attrs: selfAttentionAttrs},
		operator{domain: microsoft, name: "MultiHeadAttention", min: 1, max: 8, build: buildMultiHeadAttention, attrs: headsAttrs},
		operator{domain: microsoft, name: "GroupQueryAttention", min: 1, max: 12, build: buildGroupQueryAttention, attrs: []attr{
			heads, {name: "kv_num_heads", def: required{int64(0)}}, scale, intAttr("do_rotary", 0), intAttr("local_window_size", -1),
			intAttr("qk_output", 0), intAttr("rotary_interleaved", 0), intAttr("smooth_softmax", -1), floatAttr("softcap", 0)}},
	)
}

// addedMask is what a mask of ONNX Runtime adds to the scores of total keys, as it broadcasts to [B,h,S,total]: 0, or the
// attribute "mask_filter_value" where a key does not count. The mask has the length of each sentence [B], or their ends and
// then their beginnings [2·B], or a number for each key, [B,total] or [B,S,total], that is positive where the key counts.
func (c *call) addedMask(mask *graph.Node, d graph.DType, batch, total int) *graph.Node {
	s := mask.Type.Shape
	var keep *graph.Node
	switch {
	case !mask.Type.DType.IsInt():
		c.refuse("a mask %v", mask.Type)
	case s == graph.ShapeOf(batch) || s == graph.ShapeOf(2*batch):
		key := c.counting(graph.ShapeOf(1, 1, 1, total), 3)
		bound := func(i int) *graph.Node {
			return c.reshape(c.cast(c.slice(mask, 0, i*batch, batch, 1), graph.I64), batch, 1, 1, 1)
		}
		keep = c.binary(graph.Lt, key, bound(0))
		if s.At(0) == 2*batch {
			keep = c.binary(graph.And, keep, c.binary(graph.Ge, key, bound(1)))
		}
	case s == graph.ShapeOf(batch, total):
		keep = c.with(graph.Gt, c.reshape(mask, batch, 1, 1, total), 0)
	case s.Rank() == 3 && s.At(0) == batch && s.At(2) == total:
		keep = c.with(graph.Gt, c.reshape(mask, batch, 1, s.At(1), total), 0)
	default:
		c.refuse("a mask %v for %d sentences of %d keys", mask.Type, batch, total)
	}
	return c.choose(keep, c.scalar(d, 0), c.scalar(d, c.float("mask_filter_value")))
}

// masksOf joins the mask, operand mask, and the numbers to add to the scores, operand bias, as far as they are given.
func (c *call) masksOf(a *attention, mask, bias int) {
	if c.there(mask) {
		a.mask = c.addedMask(c.node(mask), a.q.Type.DType, a.q.Type.Shape.At(0), a.k.Type.Shape.At(2))
	}
	if c.there(bias) {
		b := c.cast(c.node(bias), a.q.Type.DType)
		if a.mask != nil {
			b = c.plus(a.mask, b)
		}
		a.mask = b
	}
}

// scaleOf is the attribute "scale", by default 1 ÷ √d.
func (c *call) scaleOf(q *graph.Node) float64 {
	if v := c.float("scale"); v != 0 {
		return v
	}
	return 1 / math.Sqrt(float64(q.Type.Shape.At(3)))
}

// after puts keys or values [B,h,s,d] behind those of the past, if they are given.
func (c *call) after(past, x *graph.Node) *graph.Node {
	if past == nil {
		return x
	}
	return c.concat(2, past, x)
}

// pastLength is how many keys there are of the past.
func pastLength(past *graph.Node) int {
	if past == nil || past.Type.Shape.Rank() != 4 {
		return 0
	}
	return past.Type.Shape.At(2)
}

// buildContributedAttention has one product of the input [B,S,·] with the weights of queries, keys and values side by side.
// The past is keys and values [2,B,h,P,d], as is the second result.
func buildContributedAttention(c *call) []*value {
	x, w := c.node(0), c.node(1)
	if x.Type.Shape.Rank() != 3 || w.Type.Shape.Rank() != 2 {
		c.refuse("it takes [B,S,·] and a matrix, not %v and %v", x.Type, w.Type)
	}
	all := c.matmul(x, w, false, false)
	if c.there(2) {
		all = c.plus(all, c.node(2))
	}
	return c.attentionOf(all)
}

// attentionOf is attention with the queries, keys and values side by side. The mask, the past and what is added to the scores are
// operands 3, 4 and 5, as far as they are given.
func (c *call) attentionOf(all *graph.Node) []*value {
	heads := c.int("num_heads")
	if c.flag("do_rotary") || c.flag("past_present_share_buffer") {
		c.refuse("rotary positions and shared buffers are not supported")
	}
	if all.Type.Shape.Rank() != 3 {
		c.refuse("queries, keys and values %v, not [B,S,·]", all.Type)
	}
	width := all.Type.Shape.At(2)
	sizes := c.ints("qkv_hidden_sizes")
	if len(sizes) == 0 {
		sizes = []int{width / 3, width / 3, width / 3}
	}
	if len(sizes) != 3 || min(sizes[0], sizes[1], sizes[2]) < 0 || sizes[0]+sizes[1]+sizes[2] != width {
		c.refuse("%d columns for queries, keys and values of %v", width, sizes)
	}
	part := func(i, at int) *graph.Node { return c.split(c.slice(all, 2, at, sizes[i], 1), heads) }
	a := attention{causal: c.flag("unidirectional"), left: -1, right: -1}
	a.q, a.k, a.v = part(0, 0), part(1, sizes[0]), part(2, sizes[0]+sizes[1])
	if c.there(4) {
		past := c.node(4)
		if past.Type.Shape.Rank() != 5 || past.Type.Shape.At(0) != 2 {
			c.refuse("a past %v, not [2,B,h,P,d]", past.Type)
		}
		a.offset = past.Type.Shape.At(3)
		a.k, a.v = c.after(c.part(past, 0, 0), a.k), c.after(c.part(past, 0, 1), a.v)
	}
	c.checkHeads(a)
	a.scale = c.scaleOf(a.q)
	c.masksOf(&a, 3, 5)
	y, _ := c.attend(a, false, 0)
	if a.k.Type != a.v.Type {
		return one(c.joined(y))
	}
	present := c.concat(0, c.reshape(a.k, append([]int{1}, dims(a.k)...)...), c.reshape(a.v, append([]int{1}, dims(a.v)...)...))
	return several(c.joined(y), present)
}

// buildMultiHeadAttention takes queries, keys and values [B,s,h·d], or packed as [B,s,h,3,d] or [B,s,h,2,d], or keys and
// values that are split already, [B,h,s,d].
func buildMultiHeadAttention(c *call) []*value {
	heads := c.int("num_heads")
	query := c.node(0)
	if r := query.Type.Shape.Rank(); r != 3 && r != 5 {
		c.refuse("queries are [B,s,h·d] or [B,s,h,3,d], not %v", query.Type)
	}
	var bias []*graph.Node // of queries, keys and values, where they are there
	size := query.Type.Shape.At(query.Type.Shape.Rank() - 1)
	if query.Type.Shape.Rank() == 5 {
		size *= heads
	}
	if c.there(3) {
		b := c.node(3)
		if b.Type.Shape.Rank() != 1 || b.Type.Shape.At(0) < 2*size {
			c.refuse("a bias %v for queries %v", b.Type, query.Type)
		}
		rest := b.Type.Shape.At(0) - 2*size
		bias = []*graph.Node{c.slice(b, 0, 0, size, 1), c.slice(b, 0, size, size, 1), c.slice(b, 0, 2*size, rest, 1)}
	}
	// flat is [B,s,h·d] with its bias as [B,h,s,d]; packed is one of n in [B,s,h,n,d].
	flat := func(x *graph.Node, i int) *graph.Node {
		if bias != nil {
			x = c.plus(x, bias[i])
		}
		return c.split(x, heads)
	}
	packed := func(x *graph.Node, n, i, which int) *graph.Node {
		d := dims(x)
		if len(d) != 5 || d[2] != heads || d[3] != n {
			c.refuse("%d heads of %d packed in %v", heads, n, x.Type)
		}
		return flat(c.reshape(c.part(x, 3, i), d[0], d[1], d[2]*d[4]), which)
	}
	a := attention{causal: c.flag("unidirectional"), left: -1, right: -1}
	switch {
	case !c.there(1):
		a.q, a.k, a.v = packed(query, 3, 0, 0), packed(query, 3, 1, 1), packed(query, 3, 2, 2)
	case c.node(1).Type.Shape.Rank() == 5:
		a.q, a.k, a.v = flat(query, 0), packed(c.node(1), 2, 0, 1), packed(c.node(1), 2, 1, 2)
	case c.node(1).Type.Shape.Rank() == 4:
		a.q, a.k, a.v = flat(query, 0), c.node(1), c.node(2)
	default:
		a.q, a.k, a.v = flat(query, 0), flat(c.node(1), 1), flat(c.node(2), 2)
	}
	if c.there(6) && c.there(7) {
		a.offset = pastLength(c.node(6))
		a.k, a.v = c.after(c.node(6), a.k), c.after(c.node(7), a.v)
	}
	c.checkHeads(a)
	a.scale = c.scaleOf(a.q)
	c.masksOf(&a, 4, 5)
	y, _ := c.attend(a, false, 0)
	return several(c.joined(y), a.k, a.v)
}

// buildGroupQueryAttention is the attention of language models with a cache of keys and values [B,hk,P,d]. Operand 5 is the
// number of valid keys of each sentence less one, with the new ones, and operand 6 the largest of these numbers, which
// decides the shape of the cache that follows. If all keys are new the sentences begin at position 0, else the new ones are
// behind those of the past.
func buildGroupQueryAttention(c *call) []*value {
	heads, kvHeads := c.int("num_heads"), c.int("kv_num_heads")
	if c.flag("qk_output") {
		c.refuse("scores as a result are not supported")
	}
	a := attention{q: c.node(0), causal: true, softcap: c.float("softcap"), left: -1, right: -1}
	if c.there(1) && c.there(2) {
		a.q, a.k, a.v = c.split(a.q, heads), c.split(c.node(1), kvHeads), c.split(c.node(2), kvHeads)
	} else {
		d := dims(a.q)
		if len(d) != 3 || heads < 1 || kvHeads < 1 || heads > 1<<20 || kvHeads > 1<<20 || d[2]%(heads+2*kvHeads) != 0 {
			c.refuse("%d heads of queries and %d of keys in %v", heads, kvHeads, a.q.Type)
		}
		all := a.q
		w := d[2] / (heads + 2*kvHeads)
		a.q = c.split(c.slice(all, 2, 0, heads*w, 1), heads)
		a.k = c.split(c.slice(all, 2, heads*w, kvHeads*w, 1), kvHeads)
		a.v = c.split(c.slice(all, 2, (heads+kvHeads)*w, kvHeads*w, 1), kvHeads)
	}
	c.checkHeads(a)
	batch, n := a.q.Type.Shape.At(0), a.q.Type.Shape.At(2)
	total := c.knownInt(6)
	var past [2]*graph.Node
	for i := range past {
		if c.there(3 + i) {
			past[i] = c.node(3 + i)
		}
	}
	room := max(pastLength(past[0]), total) // of the cache that follows
	if total < n || total > graph.MaxElems || (past[0] == nil) != (past[1] == nil) || total > n+pastLength(past[0]) {
		c.refuse("%d keys in all, of which %d are new and %d are of the past", total, n, pastLength(past[0]))
	}
	first := total == n
	lengths := c.with(graph.Add, c.reshape(c.cast(c.node(5), graph.I64), batch), 1)
	before := c.with(graph.Sub, lengths, float64(n)) // [B]: the keys of the past
	if first {
		before = c.filled(graph.TypeOf(graph.I64, batch), 0)
	}
	if c.flag("do_rotary") {
		at := c.reshape(c.counting(graph.ShapeOf(1, n), 1), 1, n)
		if c.there(9) {
			at = c.reshape(c.node(9), batch, n)
		} else if !first {
			at = c.plus(c.reshape(before, batch, 1), at)
		}
		cos, sin := c.atPositions(c.node(7), at), c.atPositions(c.node(8), at)
		width := 2 * c.node(7).Type.Shape.At(1)
		a.q = c.rotated(a.q, cos, sin, width, c.flag("rotary_interleaved"))
		a.k = c.rotated(a.k, cos, sin, width, c.flag("rotary_interleaved"))
	}
	newK, newV := a.k, a.v
	if past[0] != nil {
		if ps, ks := past[0].Type.Shape, a.k.Type.Shape; ps.Rank() != 4 || ps.With(2, n) != ks || past[1].Type.Shape.Rank() != 4 {
			c.refuse("keys %v and those of the past %v", a.k.Type, past[0].Type)
		}
		a.k, a.v = c.cached(past[0], a.k, before, total-n, room, first), c.cached(past[1], a.v, before, total-n, room, first)
	}
	k, v := a.k, a.v
	if window := c.int("local_window_size"); window > 0 {
		a.left = window - 1
	}
	if first { // the new keys are all that are seen, those behind the valid ones by queries there
		a.k, a.v = newK, newV
	} else {
		a.lengths = lengths
	}
	if c.there(10) {
		b := c.cast(c.node(10), a.q.Type.DType)
		r := b.Type.Shape.Rank()
		if keys := a.k.Type.Shape.At(2); r == 4 && b.Type.Shape.At(3) > keys {
			b = c.slice(b, 3, 0, keys, 1)
		}
		a.mask = b
	}
	if c.there(11) {
		if c.node(11).Type.Shape != graph.ShapeOf(heads) {
			c.refuse("a sink %v for %d heads", c.node(11).Type, heads)
		}
		a.sink = c.cast(c.reshape(c.node(11), 1, heads, 1, 1), a.q.Type.DType)
	} else if c.int("smooth_softmax") > 0 {
		a.sink = c.filled(graph.TypeOf(a.q.Type.DType, 1, heads, 1, 1), 0)
	}
	a.scale = c.scaleOf(a.q)
	y, _ := c.attend(a, false, 0)
	return several(c.joined(y), k, v)
}

// cached puts keys or values x [B,h,n,d] behind the first before[b] ones of the past [B,h,P,d] of sentence b, of which most
// have most, in a cache with room for so many. What is beyond the valid ones is any of these.
func (c *call) cached(past, x, before *graph.Node, most, room int, first bool) *graph.Node {
	d := dims(x)
	p := past.Type.Shape.At(2)
	if first || d[0] == 1 { // all sentences have as many
		parts := []*graph.Node{c.slice(past, 2, 0, most, 1), x}
		if rest := room - most - d[2]; rest > 0 {
			parts = append(parts, c.slice(past, 2, p-rest, rest, 1))
		}
		if most == 0 {
			parts = parts[1:]
		}
		return c.concat(2, parts...)
	}
	all := c.transpose(c.concat(2, past, x), 0, 2, 1, 3) // [B,P+n,h,d]
	at := c.counting(graph.ShapeOf(1, room), 1)
	from := c.reshape(before, d[0], 1)
	behind := c.with(graph.Min, c.with(graph.Add, c.minus(at, from), float64(p)), float64(p+d[2]-1))
	return c.transpose(c.gatherAlong(all, c.choose(c.binary(graph.Lt, at, from), at, behind), 1), 0, 2, 1, 3)
}
