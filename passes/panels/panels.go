// Package panels multiplies by frozen weights of few bits as they are stored:
//
//	q, scale ─► dequantize ─► matmul ─►           q ─► pack_weights ─► matmul_panels ─►
//	                x ──────────┘           to    scale ──────────────────┘
//	                                              x ──────────────────────┘
//
// The weights are arranged in panels once. Zero points z are offsets −z·scale of the weights, which the product adds. Where the
// target's products have none, z gives each column the further term −Σ x·z·scale, whose sums of x are one for each block of rows
// that share a scale:
//
//	x ─► sum of each block ─► matmul ─► −
//	z·scale ────────────────────┘
//
// Where x is rounded to 8 bits, as [graph.Builder.RoundRows] writes it out, in the blocks in which the weights have scales, the
// product itself rounds and sums integers. Where x is integers of 8 bits less a zero point, it multiplies the integers; see
// [packer.multiplied]. Scales that were widened from f16 stay as they are, in panels of their own.
//
// Weights of 16 bits that are converted to f32 for a product stay as they are, too, and so do two values of 16 bits that change
// where the target multiplies those.
//
// Where the caller lets contractions round to 16 bits, [Halve] does the same with weights of f32.
//
// Attentions read keys and values of 8 bits as they are stored, too; see [attend].
package panels

import (
	"errors"
	"fmt"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/passes/rewrite"
)

// A Packer is a target that multiplies by weights in panels.
type Packer interface {
	// PacksWeights reports, as an error that carries the reason, that products with frozen weights of a type do not read them
	// in panels of elements of type d.
	PacksWeights(weights graph.Type, d graph.DType) error
}

// Integers is a Packer whose products with weights in panels sum integers. The errors carry the reason why that is not faster.
type Integers interface {
	// MultipliesIntegers is for an operand that the product rounds to 8 bits.
	MultipliesIntegers() error
	// MultipliesBytes is for an operand of U8.
	MultipliesBytes() error
}

// An Offsetter is a Packer whose products add offsets to weights in panels.
type Offsetter interface {
	AddsOffsets() bool
}

// A Pairer is a Packer with products of numbers of 16 bits on both sides.
type Pairer interface {
	// MultipliesPairs reports, as an error that carries the reason, that products of rows of type d with weights in panels of the
	// same type are not faster than those of rows of f32.
	MultipliesPairs(rows int, d graph.DType) error
	// MultipliesChanging is for weights that change, so that each run packs them.
	MultipliesChanging(rows int, d graph.DType) error
}

// A Streamer is a target that multiplies few rows of 16 bits by weights in deep panels.
type Streamer interface {
	// StreamsWeights gives the element type that a product's operand of some rows is rounded to where it reads weights in deep
	// panels of elements of type d. The error carries the reason why it does not; block is the number of rows that share a scale,
	// 0 for all.
	StreamsWeights(rows int, weights graph.Type, d graph.DType, block int) (operand graph.DType, err error)
}

// pattern is the name of the rewrite.
const pattern = "panels"

// Run is the pass pack-quantised. Without frozen parameters it changes attentions and products of two values of 16 bits alone.
func Run(c *rewrite.Context) error {
	if err := attend(c); err != nil {
		return err
	}
	target, ok := c.Target.(Packer)
	streamer, streams := c.Target.(Streamer)
	_, convolves := c.Target.(Convolver)
	if !c.Frozen {
		return pair(c)
	}
	if !ok && !streams && !convolves && c.Target != nil {
		return nil
	}
	g := c.Graph
	p := packer{streamer: streamer, c: c, b: graph.Extend(g), frozen: graph.Frozen(g, true), packed: map[packing]*graph.Node{}}
	if of, ok := c.Target.(Integers); ok {
		p.integers, p.notBytes = of.MultipliesIntegers(), of.MultipliesBytes()
	} else if c.Target != nil {
		p.integers = errors.New("the target has no products of integers")
		p.notBytes = p.integers
	}
	with := map[*graph.Node]*graph.Node{}
	for _, n := range append([]*graph.Node(nil), g.Nodes...) {
		w, trans, ok := p.weights(n)
		if !ok {
			p.pair(n, with)
			continue
		}
		if from := widened(w, graph.Invalid); from != nil && target != nil && streamer == nil {
			if err := target.PacksWeights(from.Type, from.Type.DType); err != nil {
				c.Miss(pattern, n, "its weights are converted to f32 once: "+err.Error(), []*graph.Node{w, n})
				continue
			}
			p.b.From(n, w)
			x := n.Args[0]
			if half := widened(x, from.Type.DType); half != nil && p.pairs(n, from.Type.DType) {
				x = half
			}
			with[n] = p.b.Add(graph.PanelMatMul{Columns: columns(n)}, x, p.pack(from, trans, graph.Invalid, false))
			with[n].Name = n.Name
			c.Match(pattern, trace.Reassociated, "", with[n], n, w)
			continue
		}
		op, ok := w.Op.(graph.Dequantize)
		if !ok {
			continue
		}
		as := signed(w.Args[0].Type.DType)
		var err error
		if streamer != nil {
			err = graph.CheckDeep(as)
		} else if err = graph.CheckPanels(as); err == nil && target != nil {
			err = target.PacksWeights(w.Args[0].Type, as)
		}
		var y *graph.Node
		if err == nil {
			y, err = p.quantised(n, op, w, trans)
		}
		if err != nil {
			c.Miss(pattern, n, "its weights are dequantized to f32 once: "+err.Error(), []*graph.Node{w, n})
			continue
		}
		y.Name = n.Name
		with[n] = y
		change := trace.Reassociated
		if streamer != nil { // the other operand is rounded
			change = trace.Approximate(p.operand.Epsilon())
		}
		c.Match(pattern, change, "", y, n, w)
	}
	p.convolutions(with)
	return p.finish(with)
}

// pair is [packer.pair] of all products of a graph whose weights are not frozen.
func pair(c *rewrite.Context) error {
	if _, ok := c.Target.(Pairer); !ok {
		return nil
	}
	p := packer{c: c, b: graph.Extend(c.Graph), packed: map[packing]*graph.Node{}}
	with := map[*graph.Node]*graph.Node{}
	for _, n := range append([]*graph.Node(nil), c.Graph.Nodes...) {
		p.pair(n, with)
	}
	return p.finish(with)
}

// pair has n, if it is a product of two values of 16 bits that change, multiply them as they are where the target does so faster.
func (p *packer) pair(n *graph.Node, with map[*graph.Node]*graph.Node) {
	pairer, ok := p.c.Target.(Pairer)
	m, isProduct := productOf(n)
	if !ok || !isProduct {
		return
	}
	w := widened(m.w, graph.Invalid)
	if w == nil || pairer.MultipliesChanging(n.Type.Shape.Elems()/columns(n), w.Type.DType) != nil {
		return
	}
	x := widened(m.x, w.Type.DType)
	if x == nil {
		return
	}
	p.b.From(n)
	if m.transX {
		x = p.b.Transpose(x, 1, 0)
	}
	with[n] = p.b.Add(graph.PanelMatMul{Columns: columns(n)}, x, p.pack(w, m.transW, graph.Invalid, false))
	with[n].Name = n.Name
	p.c.Match(pattern, trace.Reassociated, "", with[n], n)
}

// widened is the value of 16 bits that v is in f32, of type d unless that is Invalid; or nil.
func widened(v *graph.Node, d graph.DType) *graph.Node {
	if _, ok := v.Op.(graph.Cast); !ok || v.Type.DType != graph.F32 || !v.Args[0].Type.DType.Is16() {
		return nil
	}
	if from := v.Args[0]; d == graph.Invalid || from.Type.DType == d {
		return from
	}
	return nil
}

// columns is the number of columns of a product.
func columns(n *graph.Node) int { return n.Type.Shape.At(n.Type.Shape.Rank() - 1) }

// pairs reports whether the target multiplies rows of type d, as many as n has, by weights of that type.
func (p *packer) pairs(n *graph.Node, d graph.DType) bool {
	pairer, ok := p.c.Target.(Pairer)
	return ok && pairer.MultipliesPairs(n.Type.Shape.Elems()/columns(n), d) == nil
}

// Halve multiplies matrices of weights in a 16-bit type where the target reads them in panels. Sums stay in f32. Frozen weights are
// rounded once, and what they meet stays in f32 unless the target multiplies numbers of 16 bits. If it does, so are products of
// values that change: the parameters of a network that is trained, and the gradients of its layers.
//
//	x ─┬─► matmul ─►             x ─► cast ─┬─► matmul_panels ─►
//	w ─┘                    to   w ─► pack_weights ─┘
//	x ─┬─► matmul[transa] ─►     x ─► cast ─► transpose ─┬─► matmul_panels ─►
//	dy ┘                         dy ─► cast ─► pack_weights ─┘
func Halve(c *rewrite.Context, to graph.DType, least int) error {
	target, ok := c.Target.(Packer)
	if !ok || to == graph.Invalid {
		return nil
	}
	g := c.Graph
	p := packer{operand: to, c: c, b: graph.Extend(g), frozen: graph.Frozen(g, c.Frozen), packed: map[packing]*graph.Node{}}
	with := map[*graph.Node]*graph.Node{}
	for _, n := range append([]*graph.Node(nil), g.Nodes...) {
		if !graph.Contracts(n.Op, 0) || n.Type.DType != graph.F32 {
			continue
		}
		y, err := p.half(n, target, least)
		if err != nil {
			c.Note(n, "%s stays in f32: %v", n.Op.OpName(), err)
			continue
		}
		y.Name = n.Name
		with[n] = y
		c.Match(pattern, trace.Approximate(to.Epsilon()), "", y, n)
	}
	return p.finish(with)
}

// half is the product n with weights in panels of 16 bits. The error carries the reason why there is none.
func (p *packer) half(n *graph.Node, target Packer, least int) (*graph.Node, error) {
	m, ok := productOf(n)
	if !ok {
		return nil, errors.New("it has no matrix of weights")
	}
	rows := n.Type.Shape.Elems() / columns(n)
	if p.frozen.Get(m.w) {
		switch {
		case m.transX || p.frozen.Get(m.x):
			return nil, errors.New("its weights are not the second operand, or both operands are frozen")
		case m.w.Type.Shape.Elems() < least:
			return nil, fmt.Errorf("its weights have less than %d elements", least)
		}
		if err := target.PacksWeights(m.w.Type, p.operand); err != nil {
			return nil, err
		}
	} else {
		pairer, ok := p.c.Target.(Pairer)
		switch {
		case !ok:
			return nil, errors.New("its weights are not frozen")
		case m.w.Type.Shape.Elems() < least || m.x.Type.Shape.Elems() < least:
			return nil, fmt.Errorf("an operand has less than %d elements", least)
		}
		if err := pairer.MultipliesChanging(rows, p.operand); err != nil {
			return nil, err
		}
	}
	b, x := p.b.From(n), m.x
	if p.pairs(n, p.operand) {
		x = p.rounded(x)
	}
	if m.transX {
		x = b.Transpose(x, 1, 0)
	}
	w, as := m.w, p.operand
	if widened(w, as) != nil || !p.frozen.Get(w) && !given(w) {
		w, as = p.rounded(w), graph.Invalid // where it is made
	}
	return b.Add(graph.PanelMatMul{Columns: columns(n)}, x, p.pack(w, m.transW, as, false)), b.Err()
}

// given reports whether v is a value that no launch makes.
func given(v *graph.Node) bool {
	switch rewrite.UnderViews(v).Op.(type) {
	case graph.Param, graph.State, graph.Input, graph.Const:
		return true
	}
	return false
}

// A product is one of rows with a matrix: x [..., m, k], or [k, m] with transX, and w [k, n], or [n, k] with transW.
type product struct {
	x, w           *graph.Node
	transX, transW bool
}

// productOf is the product n of values of f32, if it is one with a matrix.
func productOf(n *graph.Node) (product, bool) {
	op, ok := n.Op.(graph.MatMul)
	if !ok || n.Type.DType != graph.F32 || n.Args[0].Type.DType != graph.F32 || n.Type.Shape.Elems() == 0 {
		return product{}, false
	}
	m := product{x: n.Args[0], w: n.Args[1], transX: op.TransA, transW: op.TransB}
	m.w, m.transW = underTranspose(m.w, m.transW)
	return m, m.w.Type.Shape.Rank() == 2 && (!op.TransA || m.x.Type.Shape.Rank() == 2)
}

// underTranspose is the matrix that v is the transpose of, or v, and whether it is read the other way round.
func underTranspose(v *graph.Node, trans bool) (*graph.Node, bool) {
	if t, ok := v.Op.(graph.Transpose); ok && v.Type.Shape.Rank() == 2 && t.Perm == graph.IntsOf(1, 0) {
		return v.Args[0], !trans
	}
	return v, trans
}

// Stream packs frozen weights in deep panels of the 16-bit type to, where the target reads those for products of few rows. Weights
// of less than least elements stay as they are, and so do those that something reads as they lie, too: they are held in one order.
// The products in wide are not rounded.
func Stream(c *rewrite.Context, to graph.DType, least int, wide map[*graph.Node]bool) error {
	streamer, ok := c.Target.(Streamer)
	if !ok || to == graph.Invalid || !c.Frozen {
		return nil
	}
	g := c.Graph
	p := packer{streamer: streamer, operand: to, c: c, b: graph.Extend(g), frozen: graph.Frozen(g, true),
		packed: map[packing]*graph.Node{}}
	with := map[*graph.Node]*graph.Node{}
	var list []*graph.Node
	streams := map[*graph.Node]bool{}
	for _, n := range g.Nodes {
		w, _, ok := p.weights(n)
		if !ok || wide[n] || w.Type.DType != graph.F32 || w.Type.Shape.Elems() < max(least, leastStream) {
			continue
		}
		if as, err := streamer.StreamsWeights(n.Type.Shape.Elems()/columns(n), w.Type, to, 0); err != nil || as != to {
			continue // its operands are rounded where they lie
		}
		list, streams[n] = append(list, n), true
	}
	uses := c.Uses()
	for _, n := range list {
		w, trans, _ := p.weights(n)
		as := to
		if from := widened(w, to); from != nil {
			w, as = from, graph.Invalid
		}
		if other := asTheyLie(uses, w, as == graph.Invalid, streams); other != nil {
			c.Note(n, "its weights stay as they lie, as %s reads them", other.Where())
			continue
		}
		p.b.From(n)
		y := p.b.Add(graph.PanelMatMul{Columns: columns(n), Deep: true}, p.rounded(n.Args[0]), p.pack(w, trans, as, false))
		y.Name = n.Name
		with[n] = y
		c.Match(pattern, trace.Approximate(to.Epsilon()), "", y, n)
	}
	if len(with) > 0 {
		c.Changed()
	}
	return p.finish(with)
}

// asTheyLie is what reads weights as they lie, which are stored in the type that products read or rounded to it, or nil. Products
// in streams read panels. Of weights that are rounded only products read what that makes.
func asTheyLie(uses *graph.Uses, weights *graph.Node, stored bool, streams map[*graph.Node]bool) *graph.Node {
	for _, r := range uses.Readers(weights) {
		switch r.Op.(type) {
		case graph.Cast, graph.Transpose:
			if other := asTheyLie(uses, r, stored, streams); other != nil {
				return other
			}
		default:
			if !streams[r] && (stored || graph.Contracts(r.Op, 0)) {
				return r
			}
		}
	}
	return nil
}

// leastStream is the number of elements of the smallest weights that are worth an order of their own.
const leastStream = 1 << 17

// rounded is x in the type that products read, one value for all of them, made before the views that lead to x.
func (p *packer) rounded(x *graph.Node) *graph.Node {
	if p.casts == nil {
		p.casts = map[*graph.Node]*graph.Node{}
	}
	if p.casts[x] == nil {
		switch x.Op.(type) {
		case graph.Reshape, graph.Transpose:
			p.casts[x] = p.b.Add(x.Op, p.rounded(x.Args[0]))
		default:
			if p.casts[x] = widened(x, p.operand); p.casts[x] == nil {
				p.casts[x] = p.b.CastTo(p.operand, x)
			}
		}
	}
	return p.casts[x]
}

type packer struct {
	c        *rewrite.Context
	b        *graph.Builder
	frozen   graph.PerNode[bool]
	packed   map[packing]*graph.Node
	integers error       // why products do not sum integers, or nil
	notBytes error       // why they do not of an operand of U8, or nil
	streamer Streamer    // nil where panels are not deep
	operand  graph.DType // that the streamer rounds to
	casts    map[*graph.Node]*graph.Node
}

// packing is weights and how they are packed.
type packing struct {
	weights *graph.Node
	trans   bool
	to      graph.DType
	quads   bool
}

// weights are those of n, if it is a product of rows of f32 that change and a frozen matrix, and whether the matrix is [n, k].
func (p *packer) weights(n *graph.Node) (w *graph.Node, trans, ok bool) {
	m, ok := productOf(n)
	return m.w, m.transW, ok && !m.transX && p.frozen.Get(m.w) && !p.frozen.Get(m.x)
}

// pack is weights in panels, made once for all products that read them.
func (p *packer) pack(w *graph.Node, trans bool, to graph.DType, quads bool) *graph.Node {
	key := packing{w, trans, to, quads}
	if p.packed[key] == nil {
		p.packed[key] = p.b.Add(graph.PackWeights{Trans: trans, To: to, Deep: p.streamer != nil, Quads: quads}, w)
	}
	return p.packed[key]
}

// halved is the value of f16 that scales are widened from, or nil.
func halved(scale *graph.Node) *graph.Node {
	if _, ok := scale.Op.(graph.Cast); ok && scale.Args[0].Type.DType == graph.F16 {
		return scale.Args[0]
	}
	return nil
}

// signed is the type of the panels of weights that are stored as d.
func signed(d graph.DType) graph.DType {
	if d == graph.U8 {
		return graph.I8
	}
	return d
}

// quantised is the product n with the dequantized weights w.
func (p *packer) quantised(n *graph.Node, op graph.Dequantize, w *graph.Node, trans bool) (*graph.Node, error) {
	b, x, q, scale := p.b.From(n, w), n.Args[0], w.Args[0], w.Args[1]
	inner, outer := 0, 1 // the axes of the weights
	if trans {
		inner, outer = 1, 0
	}
	k, cols := w.Type.Shape.At(inner), w.Type.Shape.At(outer)
	block := 0
	switch {
	case scale.Type.Shape.Rank() == 0:
	case op.Block == 0 && op.Axis == inner:
		return nil, fmt.Errorf("each row has a scale of its own")
	case op.Block == 0:
	case op.Axis == outer:
		return nil, fmt.Errorf("its scales are for blocks of columns")
	case op.Block%8 != 0 && op.Block < k:
		return nil, fmt.Errorf("blocks of %d rows are no multiple of 8", op.Block)
	case op.Block < k:
		block = op.Block
	}
	if p.streamer != nil {
		d, err := p.streamer.StreamsWeights(n.Type.Shape.Elems()/cols, q.Type, signed(q.Type.DType), block)
		if err != nil {
			return nil, err
		}
		p.operand = d
		x = p.rounded(x)
	}
	panels := graph.PanelMatMul{Columns: cols, Block: block, Deep: p.streamer != nil}
	blocks := panels.Blocks(k)
	operand := x // of the product
	if from, in, ok := graph.RoundedRows(x); ok && (in == block || block == 0 && in == k) {
		err := p.integers
		if err == nil && block == 0 && k > graph.MaxIntegerRows {
			err = fmt.Errorf("sums of %d products have no room in 32 bits", k)
		}
		if err == nil {
			operand, panels.Integers = from, true
		} else {
			p.c.Note(n, "%s rounds %s to 8 bits, and sums in f32: %v", n.Where(), from.Where(), err)
		}
	}
	if stated := len(w.Args) > 2; block > 0 && k%block != 0 && (stated || q.Type.DType == graph.U8 && !p.offsets()) {
		return nil, fmt.Errorf("%d rows with zero points are not whole blocks of %d", k, block)
	}
	// each brings scales, or what there is for each of them, to [blocks, columns].
	each := func(v *graph.Node) *graph.Node {
		switch {
		case v.Type.Shape.Rank() == 0:
			return b.Add(graph.Copy{}, b.Broadcast(v, graph.ShapeOf(1, cols)))
		case v.Type.Shape.Rank() == 2 && trans:
			return b.Add(graph.Copy{}, b.Transpose(v, 1, 0))
		}
		return b.Reshape(v, blocks, cols)
	}
	var moved *graph.Node // what is taken from each weight
	if len(w.Args) > 2 {
		moved = b.Add(elementwise(scale), w.Args[2], scale)
	}
	if q.Type.DType == graph.U8 {
		q = b.CastTo(graph.I8, b.BinaryScalar(graph.Sub, b.CastTo(graph.I16, q), 128))
		half := b.BinaryScalar(graph.Mul, scale, 128)
		if moved == nil {
			moved = b.Unary(graph.Neg, half)
		} else {
			moved = b.Binary(graph.Sub, moved, half)
		}
	}
	// less is a product less what the zero points of the weights bring.
	less := func(y *graph.Node) (*graph.Node, error) {
		if moved == nil {
			return y, b.Err()
		}
		x := b.CastTo(graph.F32, x)
		last := x.Type.Shape.Rank() - 1
		sums := b.Reduce(graph.Sum, b.Reshape(x, append(x.Type.Shape.Slice()[:last], blocks, k/blocks)...), false, last+1)
		return b.Binary(graph.Sub, y, b.MatMul(sums, each(moved), false, false)), b.Err()
	}
	if block == 0 && !panels.Integers && q.Type.DType == graph.I8 {
		of, err := p.bytes(x)
		if err == nil && p.notBytes != nil {
			err = p.notBytes
		}
		if err == nil && k > graph.MaxIntegerRows {
			err = fmt.Errorf("sums of %d products have no room in 32 bits", k)
		}
		if err == nil {
			return less(p.multiplied(of, q, trans, scale, cols))
		}
		p.c.Note(n, "%s sums in f32: of %s: %v", n.Where(), x.Where(), err)
	}
	args := []*graph.Node{operand, p.pack(q, trans, graph.Invalid, panels.Integers && signed(q.Type.DType) == graph.I8)}
	if from := halved(scale); from != nil && block > 0 && p.streamer == nil {
		args = append(args, p.pack(from, trans, graph.Invalid, false))
	} else {
		args = append(args, each(scale))
	}
	if moved != nil && !panels.Integers && p.offsets() {
		args, moved = append(args, each(b.Unary(graph.Neg, moved))), nil
	}
	return less(b.Add(panels, args...))
}

// offsets reports whether the target's products add offsets to weights in panels.
func (p *packer) offsets() bool {
	of, ok := p.c.Target.(Offsetter)
	return ok && of.AddsOffsets() || p.c.Target == nil
}

// elementwise dequantizes a value of the shape of its scales.
func elementwise(scale *graph.Node) graph.Dequantize {
	if scale.Type.Shape.Rank() > 1 {
		return graph.Dequantize{Block: 1}
	}
	return graph.Dequantize{}
}

func (p *packer) finish(with map[*graph.Node]*graph.Node) error {
	if err := p.b.Err(); err != nil || len(with) == 0 {
		return err
	}
	p.c.Graph.Replace(with)
	return p.c.Graph.Tidy()
}
