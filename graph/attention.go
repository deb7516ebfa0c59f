package graph

import (
	"fmt"
	"math"
)

// Attention is softmax(Scale·q·kᵀ + masks)·v for q [..., h, sq, d], k [..., hk, sk, d] and v [..., hk, sk, dv]; without
// further axes there is one head. h is a multiple of hk: head i reads keys and values of head i÷(h÷hk) (grouped
// queries). Result 0 is [..., h, sq, dv]; result 1 the log-sum-exp [..., h, sq] of the masked scores. A query that
// attends to no key gets zeros and −Inf.
//
// Queries are at the last positions of the keys: query i is at the position of key i+sk−sq, or with Tail of key
// i+length−sq. With Causal, it attends to keys up to its position. With Window w > 0, it attends to keys less than w
// positions away, on both sides unless Causal.
//
// Optional operands follow in this order: mask if HasMask, broadcast to [..., h, sq, sk] and added to the scores, or if
// it is a Bool, with false for the scores to remove; lengths if HasLengths, the number of valid keys of each batch
// [...], clamped to 0..sk; a table if Page > 0; and for Dropout > 0 a seed: probability (..., i, j) is dropped like
// element (..., i, j) of a [Dropout] of shape [..., h, sq, sk]. Result 1 is computed before dropout.
//
// With q, k and v of a 16-bit type, masks and results are F32; probabilities are rounded before they are multiplied by
// v.
//
// With Page > 0, k and v are pools of pages, [pages, hk, Page, d] and [pages, hk, Page, dv], and the table (I64,
// [..., n]) lists the pages of each batch in order, so that sk = n·Page; lengths are required. An entry that is not a
// page of the pool is an error at run time, unless all its keys are beyond the valid ones.
//
// With HasScales, k and v are I8, as [Quantize] stores them with one scale for each key and head. The last two operands are the
// scales of k and of v, of the type of the results and of the shapes of k and v with a last axis of 1: key j is k[j]·scale[j], and
// a value likewise. The same attention with two [Dequantize] in front of it computes the same, but keeps both results in memory;
// the pass pack-quantised makes this of that.
type Attention struct {
	Scale               float64
	Causal              bool
	Window              int
	Dropout             float64
	HasMask, HasLengths bool
	Page                int  `attr:"optional"` // keys per page, 0 without pages
	Tail                bool // needs lengths: queries are at the end of the valid keys, as with a key-value cache
	HasScales           bool // keys and values are I8, and multiplied by scales
}

// OpName implements Op.
func (Attention) OpName() string { return "attention" }

var attentionRow = OpInfo{
	Name:     "attention",
	Doc:      "softmax of scaled, masked products of queries and keys, times values; results y, log-sum-exp",
	Operands: "q, k, v, mask?, lengths?, table?, seed?, key_scale?, value_scale?", Proto: Attention{}, Class: ClassComposite,
	Fails: func(n *Node) bool { return n.Op.(Attention).Page != 0 }, Fuses: true, Anchor: AnchorAttention,
	Kind: KindAttention, MinArgs: 3, MaxArgs: 9, Infer: inferAttention, FLOPs: flopsAttention,
	Decompose: decomposeAttention, Grad: gradAttention,
	Contracts: func(op Op, i int) bool {
		return i == attentionQ || i < attentionOptional && !op.(Attention).HasScales
	},
	Usual: func(n *Node) Op { return usualAttention(n) },
}

// usualAttention scales by 1/√d.
func usualAttention(n *Node) Attention {
	s := n.Args[attentionQ].Type.Shape
	return Attention{Scale: 1 / math.Sqrt(float64(s.At(s.Rank()-1)))}
}

// Operand indices of an Attention; those of the optional operands are given by its methods.
const (
	attentionQ = iota
	attentionK
	attentionV
	attentionOptional // the first optional operand
)

// MaskArg is the index of the operand mask, -1 if there is none.
func (a Attention) MaskArg() int {
	if !a.HasMask {
		return -1
	}
	return attentionOptional
}

// LengthsArg is the index of the operand lengths, -1 if there is none.
func (a Attention) LengthsArg() int {
	if !a.HasLengths {
		return -1
	}
	return attentionOptional + count(a.HasMask)
}

// SeedArg is the index of the operand seed, -1 if there is none.
func (a Attention) SeedArg() int {
	if a.Dropout == 0 {
		return -1
	}
	return attentionOptional + count(a.HasMask, a.HasLengths, a.Page != 0)
}

// KeyScaleArg is the index of the operand key_scale, -1 if there is none.
func (a Attention) KeyScaleArg() int {
	if !a.HasScales {
		return -1
	}
	return attentionOptional + count(a.HasMask, a.HasLengths, a.Page != 0, a.Dropout != 0)
}

// ValueScaleArg is the index of the operand value_scale, -1 if there is none.
func (a Attention) ValueScaleArg() int {
	if !a.HasScales {
		return -1
	}
	return a.KeyScaleArg() + 1
}

// operands is how many operands there are.
func (a Attention) operands() int {
	return attentionOptional + count(a.HasMask, a.HasLengths, a.Page != 0, a.Dropout != 0, a.HasScales, a.HasScales)
}

func count(flags ...bool) int {
	n := 0
	for _, f := range flags {
		if f {
			n++
		}
	}
	return n
}

// AttentionDims are the sizes of an attention. Absent axes count as 1.
type AttentionDims struct {
	Batch         Shape // the axes before that of the heads
	Heads, Group  int   // heads of queries; how many of them share a head of keys and values
	Queries, Keys int
	Depth, Width  int // of a query and key; of a value and result
}

// DimsOf returns the sizes for operands of these types. It is meaningful only for types that the type rule accepts.
func (a Attention) DimsOf(args []Type) AttentionDims {
	q, k, v := args[attentionQ].Shape, args[attentionK].Shape, args[attentionV].Shape
	if a.Page != 0 {
		return a.pagedDims(q, k, v, args[a.TableArg()].Shape)
	}
	return a.Dims(q, k, v)
}

// Dims is DimsOf for an attention without pages.
func (a Attention) Dims(q, k, v Shape) AttentionDims {
	r := q.Rank()
	d := AttentionDims{Heads: 1, Group: 1, Queries: q.At(r - 2), Keys: k.At(r - 2), Depth: q.At(r - 1), Width: v.At(r - 1)}
	if r > 2 {
		d.Heads = q.At(r - 3)
		d.Group = max(d.Heads, 1) / max(k.At(r-3), 1)
		d.Batch = ShapeOf(q.Slice()[:r-3]...)
	}
	return d
}

// Scores is the shape [..., h, sq, sk] of the scores; q is the shape of the queries.
func (d AttentionDims) Scores(q Shape) Shape { return q.With(q.Rank()-1, d.Keys) }

// Range returns the keys [lo, hi) that query i may attend to by its position. Only the first valid keys count; without
// lengths all keys are valid. lo and hi are at most valid, and neither decreases as i grows. It only reads d.
func (a Attention) Range(d *AttentionDims, i, valid int) (lo, hi int) {
	valid = min(max(valid, 0), d.Keys)
	at := i + d.Keys - d.Queries // the key at the query's position
	if a.Tail {
		at = i + valid - d.Queries
	}
	lo, hi = 0, valid
	if a.Causal {
		hi = min(hi, at+1)
	}
	if a.Window > 0 {
		// A window that covers all positions restricts nothing. The bound prevents overflow of the sums.
		w := min(a.Window, d.Keys+d.Queries)
		lo = max(lo, at-w+1)
		hi = min(hi, at+w)
	}
	hi = max(hi, 0)
	return min(lo, hi), hi
}

func inferAttention(op Op, args []Type) ([]Type, error) {
	a := op.(Attention)
	if want := a.operands(); len(args) != want {
		return nil, fmt.Errorf("needs %d operands with these attributes, not %d", want, len(args))
	}
	q, k, v := args[attentionQ], args[attentionK], args[attentionV]
	if err := wantContracted(q); err != nil {
		return nil, err
	}
	switch {
	case a.HasScales && (k.DType != I8 || v.DType != I8):
		return nil, fmt.Errorf("keys of %v and values of %v with scales: they are i8", k.DType, v.DType)
	case !a.HasScales && (k.DType != q.DType || v.DType != q.DType):
		return nil, fmt.Errorf("element types %v, %v and %v differ", q.DType, k.DType, v.DType)
	}
	var err error
	if a.Page != 0 {
		err = a.checkPages(q.Shape, k.Shape, v.Shape, args[a.TableArg()])
	} else {
		err = checkAttentionShapes(q.Shape, k.Shape, v.Shape)
	}
	if err != nil {
		return nil, err
	}
	switch {
	case a.Window < 0:
		return nil, fmt.Errorf("window %d is negative", a.Window)
	case !(a.Dropout >= 0 && a.Dropout < 1):
		return nil, fmt.Errorf("probability %v is outside [0,1)", a.Dropout)
	case a.Tail && !a.HasLengths:
		return nil, fmt.Errorf("tail needs lengths")
	}
	d := a.DimsOf(args)
	if a.HasMask {
		m := args[a.MaskArg()]
		if want := q.DType.Accumulator(); m.DType != Bool && m.DType != want {
			return nil, fmt.Errorf("the mask is %v, not bool or %v", m.DType, want)
		}
		if _, err := inferBroadcast(Broadcast{d.Scores(q.Shape)}, []Type{m}); err != nil {
			return nil, fmt.Errorf("mask %w", err)
		}
	}
	if a.HasLengths {
		if l := args[a.LengthsArg()]; !l.DType.IsIndex() || l.Shape != d.Batch {
			return nil, fmt.Errorf("the lengths are %v, not i32%v or i64%v", l, d.Batch, d.Batch)
		}
	}
	if a.Dropout != 0 {
		if err := wantSeed(args[a.SeedArg()]); err != nil {
			return nil, err
		}
	}
	if a.HasScales {
		if err := checkRowScales(q.DType.Accumulator(), "keys", k.Shape, args[a.KeyScaleArg()]); err != nil {
			return nil, err
		}
		if err := checkRowScales(q.DType.Accumulator(), "values", v.Shape, args[a.ValueScaleArg()]); err != nil {
			return nil, err
		}
	}
	r := q.Shape.Rank()
	y := q.Accumulator()
	return []Type{y.Reshaped(q.Shape.With(r-1, d.Width)), y.Reshaped(q.Shape.Drop(IntsOf(r - 1)))}, nil
}

// checkRowScales checks the scales of the rows of keys or values of shape s.
func checkRowScales(d DType, what string, s Shape, scale Type) error {
	if want := (Type{DType: d, Shape: s.With(s.Rank()-1, 1)}); scale != want {
		return fmt.Errorf("the scales of the %s are %v, not %v", what, scale, want)
	}
	return nil
}

func checkAttentionShapes(q, k, v Shape) error {
	r := q.Rank()
	if r < 2 || k.Rank() != r || v.Rank() != r {
		return fmt.Errorf("needs q, k and v of the same rank of 2 or more, not %v, %v and %v", q, k, v)
	}
	if q.At(r-1) != k.At(r-1) {
		return fmt.Errorf("queries %v and keys %v differ in the last axis", q, k)
	}
	if k.With(r-1, 0) != v.With(r-1, 0) {
		return fmt.Errorf("keys %v and values %v differ elsewhere than in the last axis", k, v)
	}
	for i := range r - 3 {
		if q.At(i) != k.At(i) {
			return fmt.Errorf("batch axes of queries %v and keys %v differ", q, k)
		}
	}
	if r > 2 {
		if h, hk := q.At(r-3), k.At(r-3); h > 0 && hk == 0 || hk > 0 && h%hk != 0 {
			return fmt.Errorf("%d heads of queries are not a multiple of %d of keys and values", h, hk)
		} else if h == 0 && hk > 0 {
			return fmt.Errorf("no head of queries reads the %d of keys and values", hk)
		}
	}
	return nil
}

// flopsAttention counts two products and a softmax for each pair of a query and a key that position allows. Lengths and
// masks are known only at run time and are not taken into account.
func flopsAttention(op Op, args, _ []Type) int64 {
	a := op.(Attention)
	d := a.DimsOf(args)
	return a.work(d, 2*d.Depth+2*d.Width)
}

// work is the cost of a softmax and of the given number of products for each pair of a query and a key that position
// allows.
func (a Attention) work(d AttentionDims, products int) int64 {
	const softmax = 16 // as a Softmax per element
	n := a.pairs(d) * float64(d.Batch.Elems()) * float64(d.Heads) * float64(products+softmax)
	if n >= math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(n)
}

// pairs is the sum of hi−lo of [Attention.Range] over the queries of one head, with all keys valid.
func (a Attention) pairs(d AttentionDims) float64 {
	// sum is Σ min(max(i+c, 0), Keys) over the queries.
	sum := func(c int) float64 {
		first := min(max(-c, 0), d.Queries)               // from here on the terms are at least 0
		full := max(first, min(d.Keys-c, d.Queries))      // and from here on they are Keys
		n, least := float64(full-first), float64(first+c) // in between they grow by 1
		return n*least + n*(n-1)/2 + float64(d.Queries-full)*float64(d.Keys)
	}
	at, w := d.Keys-d.Queries, min(a.Window, d.Keys+d.Queries)
	hi, lo := float64(d.Queries)*float64(d.Keys), 0.0
	switch {
	case a.Causal:
		hi = sum(at + 1)
	case w > 0:
		hi = sum(at + w)
	}
	if w > 0 {
		lo = sum(at - w + 1)
	}
	return hi - lo
}

// attentionParts has the steps of an attention in primitives, which its decomposition and its gradient share.
type attentionParts struct {
	b    *Builder
	op   Attention
	args []*Node
	d    AttentionDims
	s    Shape // of the scores
}

func partsOf(b *Builder, op Op, args []*Node) attentionParts {
	a := op.(Attention)
	q := args[attentionQ].Type.Shape
	d := a.Dims(q, args[attentionK].Type.Shape, args[attentionV].Type.Shape)
	return attentionParts{b, a, args, d, d.Scores(q)}
}

// grouped turns x [..., h, n, m] into [..., hk, h÷hk·n, m], with one batch for each head of keys and values.
func (p attentionParts) grouped(x *Node) *Node {
	dims := x.Type.Shape.Slice()
	if r := len(dims); r > 2 {
		dims[r-3], dims[r-2] = dims[r-3]/p.d.Group, dims[r-2]*p.d.Group
	}
	return p.b.Reshape(x, dims...)
}

// heads undoes grouped for n queries: x [..., hk, h÷hk·sq, m] becomes [..., h, sq, m].
func (p attentionParts) heads(x *Node) *Node {
	return p.b.Reshape(x, p.s.With(p.s.Rank()-1, x.Type.Shape.At(p.s.Rank()-1)).Slice()...)
}

// scores are Scale·q·kᵀ with every mask applied: −Inf for masked scores.
func (p attentionParts) scores() *Node {
	b, d := p.b, p.args[0].Type.DType.Accumulator()
	s := p.heads(b.MatMul(p.grouped(p.args[attentionQ]), p.args[attentionK], false, true))
	s = b.BinaryScalar(Mul, s, p.op.Scale)
	low := b.Scalar(d, math.Inf(-1))
	if p.op.HasMask {
		m := b.Broadcast(p.args[p.op.MaskArg()], p.s)
		if m.Type.DType == Bool {
			s = b.Add(Select{}, m, s, low)
		} else {
			s = b.Binary(Add, s, m)
		}
	}
	if keep := p.keep(); keep != nil {
		s = b.Add(Select{}, keep, s, low)
	}
	return s
}

// keep says for each score whether position allows it, as [Attention.Range] does; nil if it always does.
func (p attentionParts) keep() *Node {
	b, a := p.b, p.op
	if !a.Causal && a.Window == 0 && !a.HasLengths {
		return nil
	}
	index := I64
	var valid *Node
	if a.HasLengths {
		l := p.args[a.LengthsArg()]
		index = l.Type.DType
		l = b.Binary(Min, b.BinaryScalar(Max, l, 0), b.Scalar(index, float64(p.d.Keys)))
		ones := p.s
		for i := p.d.Batch.Rank(); i < p.s.Rank(); i++ {
			ones = ones.With(i, 1)
		}
		valid = b.Broadcast(b.Reshape(l, ones.Slice()...), p.s)
	}
	key := b.Broadcast(b.Const(indices(index, p.d.Keys, p.d.Keys)), p.s)
	var keep *Node
	also := func(f BinaryFn, x, y *Node) {
		c := b.Binary(f, x, y)
		if keep != nil {
			c = b.Binary(And, keep, c)
		}
		keep = c
	}
	if a.HasLengths {
		also(Lt, key, valid)
	}
	if !a.Causal && a.Window == 0 {
		return keep
	}
	at := b.Broadcast(b.Const(indices(index, p.d.Queries, p.d.Queries, 1)), p.s)
	if a.Tail {
		at = b.Binary(Add, at, b.BinaryScalar(Sub, valid, float64(p.d.Queries)))
	} else {
		at = b.BinaryScalar(Add, at, float64(p.d.Keys-p.d.Queries))
	}
	if a.Causal {
		also(Le, key, at)
	}
	if w := float64(min(a.Window, p.d.Keys+p.d.Queries)); w > 0 {
		also(Gt, key, b.BinaryScalar(Sub, at, w))
		if !a.Causal {
			also(Lt, key, b.BinaryScalar(Add, at, w))
		}
	}
	return keep
}

// indices is the tensor 0, 1, …, n−1 of an integer type, of the given dimensions.
func indices(d DType, n int, dims ...int) *Tensor {
	t := NewTensor(TypeOf(d, dims...))
	for i := range n {
		t.SetFloat(i, float64(i))
	}
	return t
}

// operand rounds x to the element type of the queries, for a contraction with operands of that type.
func (p attentionParts) operand(x *Node) *Node { return p.b.CastTo(p.args[attentionQ].Type.DType, x) }

// dropped applies the dropout of the probabilities.
func (p attentionParts) dropped(x *Node) *Node {
	if p.op.Dropout == 0 {
		return x
	}
	return p.b.Add(Dropout{p.op.Dropout}, x, p.args[p.op.SeedArg()])
}

func decomposeAttention(b *Builder, op Op, args []*Node) []*Node {
	a := op.(Attention)
	if a.HasScales {
		a, args = a.dequantized(b, args)
	}
	if a.Page != 0 {
		a, args = a.gathered(b, args)
	}
	op = a
	p := partsOf(b, op, args)
	prob, lse := p.weights()
	y := p.heads(b.MatMul(p.grouped(p.operand(p.dropped(prob))), args[attentionV], false, false))
	return []*Node{y, lse}
}

// weights are the probabilities of the scores before dropout, all NaN in a row with a score of +Inf, and their
// log-sum-exp.
func (p attentionParts) weights() (prob, lse *Node) {
	b, last, scores := p.b, p.s.Rank()-1, p.scores()
	zero := b.Scalar(scores.Type.DType, 0)

	top := b.Reduce(MaxOf, scores, true, last)
	top = b.Add(Select{}, b.BinaryScalar(Eq, top, math.Inf(-1)), zero, top)
	e := b.Unary(Exp, b.Binary(Sub, scores, b.Broadcast(top, p.s)))
	sum := b.Reduce(Sum, e, true, last)
	lse = b.Binary(Add, top, b.Unary(Log, sum))

	some := b.Add(Select{}, b.BinaryScalar(Eq, sum, 0), b.Scalar(scores.Type.DType, 1), sum)
	return b.Binary(Div, e, b.Broadcast(some, p.s)), b.Reshape(lse, p.s.Drop(IntsOf(last)).Slice()...)
}

// dequantized returns the operands of the same attention without scales: keys and values in the type of the queries.
func (a Attention) dequantized(b *Builder, args []*Node) (Attention, []*Node) {
	at := a.KeyScaleArg()
	flat := append([]*Node(nil), args[:at]...)
	for i, scale := range args[at:] {
		x := args[attentionK+i]
		x = b.Binary(Mul, b.CastTo(scale.Type.DType, x), b.Broadcast(scale, x.Type.Shape))
		flat[attentionK+i] = b.CastTo(args[attentionQ].Type.DType, x)
	}
	a.HasScales = false
	return a, flat
}

// gradAttention is one AttentionGrad. The gradient of a mask of numbers is as large as the scores. It is computed by
// separate primitives, which are removed if nothing reads them.
func gradAttention(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	op := n.Op.(Attention)
	if op.Page != 0 || op.HasScales {
		return gradStored(b, n, dys)
	}
	lse, dout, dlse := b.Add(Result{Index: 1}, n), dys[0], dys[1]
	if dout == nil {
		dout = b.Broadcast(b.Scalar(n.Type.DType, 0), n.Type.Shape)
	}
	p := partsOf(b, op, n.Args)
	out := p.operand(n)
	dout = p.operand(dout)
	args := append(append([]*Node(nil), n.Args...), out, lse, dout)
	if dlse != nil {
		args = append(args, dlse)
	}
	dq := b.Add(AttentionGrad{op, dlse != nil}, args...)
	grads := make([]*Node, len(n.Args))
	grads[attentionQ] = dq
	grads[attentionK], grads[attentionV] = b.Add(Result{Index: attentionK}, dq), b.Add(Result{Index: attentionV}, dq)
	if op.HasMask {
		if m := n.Args[op.MaskArg()]; m.Type.DType.IsFloat() {
			ds := p.gradScores(p.probabilities(), out, lse, dout, dlse)
			grads[op.MaskArg()] = b.SumTo(ds, m.Type.Shape)
		}
	}
	return grads, nil
}
