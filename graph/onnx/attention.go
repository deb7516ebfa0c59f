package onnx

import (
	"math"
	"slices"

	"fusec/graph"
)

func init() {
	declare(
		operator{name: "LinearAttention", min: 3, max: 6, exact: true, build: buildLinearAttention,
			attrs: []attr{intAttr("chunk_size", 64),
				{name: "kv_num_heads", def: required{int64(0)}}, {name: "q_num_heads", def: required{int64(0)}}, floatAttr("scale", 0),
				{name: "update_rule", def: "gated_delta"}}},
		operator{name: "Attention", min: 3, max: 7, build: buildAttention,
			attrs: []attr{intAttr("is_causal", 0), intAttr("kv_num_heads", 0), intAttr("q_num_heads", 0),
				intAttr("qk_matmul_output_mode", 0), floatAttr("scale", 0), floatAttr("softcap", 0), intAttr("softmax_precision", 0),
				{name: "left_window_size", def: int64(-1), from: 25}, {name: "right_window_size", def: int64(-1), from: 25}}},
	)
}

// An attention is softmax(scale·q·kᵀ + masks)·v of heads: q [B,h,sq,d], k [B,hk,sk,d] and v [B,hk,sk,dv].
type attention struct {
	q, k, v     *graph.Node
	mask        *graph.Node // Bool or added, broadcasts to [B,h,sq,sk], or nil
	lengths     *graph.Node // of the valid keys of each batch, I64 [B], or nil
	scale       float64
	softcap     float64 // 0: none
	causal      bool
	offset      int         // the position of the first query among the keys, where there are no lengths
	left, right int         // how far a query sees; −1: without bound
	sink        *graph.Node // a further score, [1,h,1,1], whose share of the softmax goes to no key, or nil
}

// split turns [B,s,h·d] into [B,h,s,d].
func (c *call) split(x *graph.Node, heads int) *graph.Node {
	d := dims(x)
	if len(d) != 3 || heads < 1 || d[2]%heads != 0 {
		c.refuse("%d heads of %v", heads, x.Type)
	}
	return c.transpose(c.reshape(x, d[0], d[1], heads, d[2]/heads), 0, 2, 1, 3)
}

// joined is the inverse of split.
func (c *call) joined(x *graph.Node) *graph.Node {
	d := dims(x)
	return c.reshape(c.transpose(x, 0, 2, 1, 3), d[0], d[2], d[1]*d[3])
}

func buildAttention(c *call) []*value {
	a := attention{q: c.node(0), k: c.node(1), v: c.node(2), causal: c.flag("is_causal"), scale: c.float("scale"),
		softcap: c.float("softcap"), left: -1, right: -1}
	flat := a.q.Type.Shape.Rank() == 3
	if flat {
		a.q, a.k, a.v = c.split(a.q, c.int("q_num_heads")), c.split(a.k, c.int("kv_num_heads")), c.split(a.v, c.int("kv_num_heads"))
	}
	if c.entry("left_window_size") != nil {
		a.left, a.right = c.int("left_window_size"), c.int("right_window_size")
	}
	if c.there(4) && c.there(5) {
		a.offset = c.node(4).Type.Shape.At(min(2, c.node(4).Type.Shape.Rank()-1))
		a.k, a.v = c.concat(2, c.node(4), a.k), c.concat(2, c.node(5), a.v)
	}
	c.checkHeads(a)
	if !c.has("scale") {
		a.scale = 1 / math.Sqrt(float64(a.q.Type.Shape.At(3)))
	}
	if c.there(6) {
		a.lengths = c.cast(c.node(6), graph.I64)
	}
	if c.there(3) {
		a.mask = c.node(3)
		if a.mask.Type.DType != graph.Bool {
			a.mask = c.cast(a.mask, a.q.Type.DType)
		}
		r := a.mask.Type.Shape.Rank()
		if short := a.k.Type.Shape.At(2) - a.mask.Type.Shape.At(r-1); short > 0 {
			hi := make([]int, r)
			hi[r-1] = short
			a.mask = c.padded(a.mask, make([]int, r), hi, "constant", c.masking(a.mask.Type.DType))
		}
	}
	out := c.proto.GetOutput()
	wantScores := len(out) > 3 && out[3] != ""
	y, scores := c.attend(a, wantScores, c.int("qk_matmul_output_mode"))
	if flat {
		y = c.joined(y)
	}
	return several(y, a.k, a.v, scores)
}

// masking is the element of a mask that removes a score.
func (c *call) masking(d graph.DType) float64 {
	if d == graph.Bool {
		return 0
	}
	return math.Inf(-1)
}

// checkHeads refuses operands that do not fit.
func (c *call) checkHeads(a attention) {
	q, k, v := a.q.Type.Shape, a.k.Type.Shape, a.v.Type.Shape
	if q.Rank() != 4 || k.Rank() != 4 || v.Rank() != 4 || k.At(1) == 0 || q.At(1)%k.At(1) != 0 || k.At(1) != v.At(1) ||
		k.At(2) != v.At(2) || q.At(3) != k.At(3) ||
		q.At(0) != k.At(0) || q.At(0) != v.At(0) {
		c.refuse("queries %v, keys %v and values %v", a.q.Type, a.k.Type, a.v.Type)
	}
}

// attend is the attention, and the scores at one of four stages if they are wanted: the products, after the cap, after the
// masks, or after the softmax.
func (c *call) attend(a attention, wantScores bool, stage int) (y, scores *graph.Node) {
	q, k := a.q.Type.Shape, a.k.Type.Shape
	op := graph.Attention{Scale: a.scale, Causal: a.causal, HasLengths: a.lengths != nil}
	fits := !wantScores && a.softcap == 0 && a.sink == nil
	// The operation puts the queries at the last keys, or with Tail at the last valid ones.
	positioned := a.causal || a.left >= 0 || a.right >= 0
	if positioned {
		op.Tail = a.lengths != nil
		fits = fits && (a.lengths != nil || a.offset == k.At(2)-q.At(2))
	}
	switch {
	case a.left >= 0 && (a.causal || a.right == a.left):
		op.Window = a.left + 1
	case a.left >= 0, a.right >= 0 && !a.causal:
		fits = false
	}
	if fits {
		args := []*graph.Node{a.q, a.k, a.v}
		if a.mask != nil {
			op.HasMask = true
			args = append(args, a.mask)
		}
		if a.lengths != nil {
			args = append(args, a.lengths)
		}
		return c.add(op, args...), nil
	}
	return c.attendPlain(a, wantScores, stage)
}

// attendPlain is attend in single operations.
func (c *call) attendPlain(a attention, wantScores bool, stage int) (y, scores *graph.Node) {
	qs, ks, vs := a.q.Type.Shape, a.k.Type.Shape, a.v.Type.Shape
	b, h, hk, sq, sk := qs.At(0), qs.At(1), ks.At(1), qs.At(2), ks.At(2)
	group := h / hk
	// Queries of a group are rows of one product.
	q := c.reshape(a.q, b, hk, group*sq, qs.At(3))
	at := c.scaled(c.reshape(c.matmul(q, a.k, false, true), b, h, sq, sk), a.scale)
	keep := func(n int) {
		if wantScores && stage == n {
			scores = at
		}
	}
	keep(0)
	if a.softcap != 0 {
		at = c.scaled(c.unary(graph.Tanh, c.scaled(at, 1/a.softcap)), a.softcap)
	}
	keep(1)
	d := a.q.Type.DType
	out := c.scalar(d, math.Inf(-1))
	if allowed := c.allowed(a, sq, sk); allowed != nil {
		at = c.choose(allowed, at, out)
	}
	if a.mask != nil && a.mask.Type.DType == graph.Bool {
		at = c.choose(a.mask, at, out)
	} else if a.mask != nil {
		at = c.plus(at, a.mask)
	}
	keep(2)
	at = c.expand(at, c.shape(b, h, sq, sk))
	if a.sink != nil {
		at = c.concat(3, at, c.expand(a.sink, c.shape(b, h, sq, 1)))
	}
	at = c.slice(c.add(graph.Softmax{Axis: 3}, at), 3, 0, sk, 1)
	keep(3)
	y = c.matmul(c.reshape(at, b, hk, group*sq, sk), a.v, false, false)
	return c.reshape(y, b, h, sq, vs.At(3)), scores
}

// allowed tells which keys each query may see by position, as a Bool that broadcasts to [B,h,sq,sk]; nil: all.
func (c *call) allowed(a attention, sq, sk int) *graph.Node {
	key := c.counting(graph.ShapeOf(1, 1, 1, sk), 3)
	query := c.counting(graph.ShapeOf(1, 1, sq, 1), 2)
	position := c.with(graph.Add, query, float64(a.offset))
	var all *graph.Node
	and := func(x *graph.Node) {
		if all != nil {
			x = c.binary(graph.And, all, x)
		}
		all = x
	}
	if a.lengths != nil {
		n := c.reshape(a.lengths, a.lengths.Type.Shape.Elems(), 1, 1, 1)
		and(c.binary(graph.Lt, key, n))
		position = c.with(graph.Sub, c.plus(query, n), float64(sq))
	}
	if a.causal {
		and(c.binary(graph.Le, key, position))
	}
	if a.left >= 0 {
		and(c.binary(graph.Ge, key, c.with(graph.Sub, position, float64(a.left))))
	}
	if a.right >= 0 {
		and(c.binary(graph.Le, key, c.with(graph.Add, position, float64(a.right))))
	}
	return all
}

// buildLinearAttention is a recurrence over a state [B,h,d,dv], which each step multiplies by a decay and adds the outer
// product of the key and the value to, less with the delta rule what the state has for the key already. Its steps are
// written out.
func buildLinearAttention(c *call) []*value {
	heads, kvHeads := c.int("q_num_heads"), c.int("kv_num_heads")
	rule := c.string("update_rule")
	gated, delta := rule == "gated" || rule == "gated_delta", rule == "delta" || rule == "gated_delta"
	if !gated && !delta && rule != "linear" || gated != c.there(4) || delta != c.there(5) {
		c.refuse("the rule %q, given a decay: %v, given a rate: %v", rule, c.there(4), c.there(5))
	}
	wide := func(i int) *graph.Node { return c.cast(c.node(i), graph.F32) }
	q, k, v := c.split(wide(0), heads), c.split(wide(1), kvHeads), c.split(wide(2), kvHeads)
	c.checkHeads(attention{q: q, k: k, v: v})
	ks := k.Type.Shape
	batch, steps, d, dv := ks.At(0), ks.At(2), ks.At(3), v.Type.Shape.At(3)
	if steps != q.Type.Shape.At(2) || steps < 1 || steps > maxSteps {
		c.refuse("queries %v and keys %v", c.node(0).Type, c.node(1).Type)
	}
	scale := c.float("scale")
	if scale == 0 {
		scale = 1 / math.Sqrt(float64(d))
	}
	// perStep is an operand that broadcasts to the state, [B,h,steps,·] with one number or d for each head, and one for all.
	perStep := func(i int, sizes ...int) *graph.Node {
		x := wide(i)
		s := x.Type.Shape
		if s.Rank() != 3 || s.At(0) != batch || s.At(1) != steps || s.At(2) < 1 || !slices.Contains(sizes, s.At(2)) {
			c.refuse("operand %d is %v, for %d heads of %d elements", i, s, kvHeads, d)
		}
		n := min(s.At(2), kvHeads)
		return c.transpose(c.reshape(x, batch, steps, n, s.At(2)/n), 0, 2, 1, 3)
	}
	var decay, rate *graph.Node
	if gated {
		decay = c.unary(graph.Exp, perStep(4, kvHeads, kvHeads*d))
	}
	if delta {
		rate = perStep(5, kvHeads, 1)
	}
	state, stored := c.filled(graph.TypeOf(graph.F32, batch, kvHeads, d, dv), 0), c.node(0).Type.DType
	if c.there(3) {
		if state, stored = wide(3), c.node(3).Type.DType; state.Type.Shape != graph.ShapeOf(batch, kvHeads, d, dv) {
			c.refuse("a state %v", state.Type)
		}
	}
	// at is step t of [B,h,steps,n] as a column [B,h,n,1] or a row [B,h,1,n].
	at := func(x *graph.Node, t int, column bool) *graph.Node {
		x = c.slice(x, 2, t, 1, 1)
		if s := dims(x); column {
			return c.reshape(x, s[0], s[1], s[3], 1)
		}
		return x
	}
	var ys []*graph.Node
	for t := range steps {
		key, value := at(k, t, true), at(v, t, false)
		if gated {
			state = c.mul(state, at(decay, t, true))
		}
		if delta {
			value = c.mul(at(rate, t, false), c.minus(value, c.matmul(key, state, true, false)))
		}
		state = c.plus(state, c.mul(key, value))
		query := c.reshape(at(q, t, false), batch, kvHeads, heads/kvHeads, d)
		ys = append(ys, c.reshape(c.matmul(query, state, false, false), batch, heads, 1, dv))
	}
	y := c.joined(c.scaled(c.concat(2, ys...), scale))
	return several(c.cast(y, c.node(0).Type.DType), c.cast(state, stored))
}
