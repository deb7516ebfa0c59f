package shard

import (
	"slices"

	"fusec/graph"
)

// A rule ties the axes of an operation's operands and results together. Axes with the same factor are split alike, or not at
// all: the operation then computes its part of the results from its parts of the operands. A factor that a result lacks is
// summed over: each participant has a term of that result, or under another reduction a candidate.
type rule struct {
	args, results [][]int // the factor of each axis; none for one that must not be split
	factors       int
	of            []graph.ReduceFn // by result: how the terms of participants combine; Sum unless it says otherwise
	same          map[int][]int    // by result: factors that it lacks and does not depend on; each participant has all of it

	// linear lists the operands in which the operation is linear jointly: where all of them are partial sums, so is the result.
	linear []int
	// local builds the operation on parts; nil adds the operation as it is.
	local func(b *graph.Builder, l local) *graph.Node
	// apart says that the operation is decomposed where its first operand is split along an axis that must not be: its parts need
	// less of the other participants.
	apart bool
	// ring is the factor of the sequence in an attention whose keys go around; see ring.go. Else it is none.
	ring int
	// whole says that nothing is split because no more is known of the operation.
	whole bool
}

// none is the factor of an axis that must not be split.
const none = -1

// local is what an operation is built from on each participant.
type local struct {
	args   []*graph.Node // parts of the operands
	shape  graph.Shape   // of the part of result 0
	factor []int         // how many parts each factor is split into
	// place is the participant's place along the axes of a factor, times the given number, as an i64 scalar.
	place func(factor, times int) *graph.Node
}

// newRule is a rule without factors, under which nothing is split.
func newRule(n *graph.Node) *rule {
	r := &rule{ring: none}
	for _, a := range n.Args {
		r.args = append(r.args, unsplit(a.Type.Shape.Rank()))
	}
	types, err := graph.ResultTypes(n.Op, n.Args)
	if err != nil {
		types = []graph.Type{n.Type}
	}
	for _, t := range types {
		r.results = append(r.results, unsplit(t.Shape.Rank()))
	}
	return r
}

func unsplit(rank int) []int { return slices.Repeat([]int{none}, rank) }

// factor makes a factor.
func (r *rule) factor() int {
	r.factors++
	return r.factors - 1
}

// along makes a factor for each of the axes that keep says, of operand i and result 0, which have the same axes.
func (r *rule) along(i int, keep func(axis int) bool) {
	for axis := range r.args[i] {
		if keep(axis) {
			f := r.factor()
			r.args[i][axis], r.results[0][axis] = f, f
		}
	}
}

// A ruler finds the rule of a node.
type ruler func(n *graph.Node) *rule

// rules has the rules of operations of which the row does not say it all; see [ruleOf].
var rules = graph.NewAnswers[ruler]("the pass shard")

func init() {
	for name, f := range map[string]ruler{
		"binary": binary, "cast": cast, "copy": linearly(elementwise), "matmul": matmul, "reduce": reduce,
		"reshape": linearly(reshape), "transpose": linearly(transpose), "broadcast": broadcast, "pad": pad, "rope": rope,
		"batch_norm": inParts(batchNorm), "group_norm": inParts(firstAxis),
		"gather": gather, "scatter_add": scatterAdd, "top_k": topK, "route": route,
		"attention": attention, "attention_grad": attention, "moe": moe, "moe_grad": moe,
		"conv2d": conv2D, "conv2d_transpose": conv2DTranspose, "conv2d_filter_grad": filterGrad,
		"pool": images, "pool_grad": images, "im2col": firstAxis, "col2im": firstAxis,
	} {
		rules.Add(name, f)
	}
	rules.Rest("it computes whole values")
	if err := rules.Check(); err != nil {
		panic(err)
	}
}

// ruleOf is the rule of a node. An operation of which nothing is known computes whole values, as do those whose numbers follow
// from an element's place in the whole value, such as dropout and sample.
func ruleOf(n *graph.Node) *rule {
	if f, ok := rules.Lookup(n.Op); ok {
		return f(n)
	}
	if graph.Elementwise(n.Op) {
		return elementwise(n)
	}
	if axis, ok := graph.AxisOf(n.Op); ok {
		return inSlices(n, axis)
	}
	if axes, ok := graph.RowAxes(n); ok {
		return inSlices(n, axes.Slice()...)
	}
	return whole(n)
}

// whole is the rule of an operation of which each participant computes whole values.
func whole(n *graph.Node) *rule {
	r := newRule(n)
	r.whole = true
	return r
}

// inSlices is the rule of an operation that takes each slice along some axes by itself: operands and results have the same other
// axes, or all slices read an operand whole.
func inSlices(n *graph.Node, axes ...int) *rule {
	r := newRule(n)
	var alike [][]int
	for i, v := range slices.Concat(r.args, r.results) {
		arg := i < len(r.args)
		switch {
		case arg && (len(v) == 0 || graph.RowWeights(n.Op, i)):
		case len(v) == len(r.args[0]):
			alike = append(alike, v)
		default:
			return whole(n)
		}
		if arg && graph.Moves(n.Op, i) {
			r.linear = append(r.linear, i)
		}
	}
	r.along(0, func(axis int) bool { return !slices.Contains(axes, axis) })
	for _, v := range alike {
		copy(v, r.args[0])
	}
	r.apart = graph.ClassOf(n.Op) == graph.ClassComposite
	return r
}

// inParts is a rule under which the operation is decomposed if need be; see [rule].
func inParts(f ruler) ruler {
	return func(n *graph.Node) *rule {
		r := f(n)
		r.apart = true
		return r
	}
}

func linearly(f ruler) ruler {
	return func(n *graph.Node) *rule {
		r := f(n)
		r.linear = []int{0}
		return r
	}
}

// elementwise ties all axes; a scalar operand has none.
func elementwise(n *graph.Node) *rule {
	r := newRule(n)
	for axis := range r.results[0] {
		f := r.factor()
		r.results[0][axis] = f
		for i := range r.args {
			if len(r.args[i]) > 0 {
				r.args[i][axis] = f
			}
		}
	}
	if u, ok := n.Op.(graph.Unary); ok && u.Fn == graph.Neg {
		r.linear = []int{0}
	}
	return r
}

// cast is linear where it rounds f32 to bf16: terms are rounded before they are added up, as Megatron-LM does (arXiv 1909.08053),
// so that half as many bytes are exchanged.
func cast(n *graph.Node) *rule {
	r := elementwise(n)
	if n.Args[0].Type.DType == graph.F32 && n.Type.DType == graph.BF16 {
		r.linear = []int{0}
	}
	return r
}

func binary(n *graph.Node) *rule {
	r := elementwise(n)
	whole := func(i int) bool { return n.Args[i].Type.Shape == n.Type.Shape }
	switch fn := n.Op.(graph.Binary).Fn; {
	case !n.Type.DType.IsFloat():
	case (fn == graph.Add || fn == graph.Sub) && whole(0) && whole(1):
		r.linear = []int{0, 1}
	case (fn == graph.Mul || fn == graph.Div) && whole(0) && n.Args[0] != n.Args[1]:
		r.linear = []int{0}
	}
	return r
}

// except ties all axes of operand 0 and of the result but some.
func except(n *graph.Node, axes ...int) *rule {
	r := newRule(n)
	r.along(0, func(axis int) bool { return !slices.Contains(axes, axis) })
	return r
}

func lastWhole(n *graph.Node) *rule { return except(n, n.Type.Shape.Rank()-1) }

// rope ties all axes but the last: the positions of a part begin where the part does.
func rope(n *graph.Node) *rule {
	r := lastWhole(n)
	axis := n.Type.Shape.Rank() - 2
	r.local = func(b *graph.Builder, l local) *graph.Node {
		if f := r.args[0][axis]; l.factor[f] > 1 {
			l.args[1] = b.Binary(graph.Add, l.args[1], l.place(f, l.shape.At(axis)))
		}
		return b.Add(n.Op, l.args...)
	}
	return r
}

func firstAxis(n *graph.Node) *rule {
	r := newRule(n)
	r.along(0, func(axis int) bool { return axis == 0 })
	return r
}

func matmul(n *graph.Node) *rule {
	op, r := n.Op.(graph.MatMul), newRule(n)
	rank := n.Type.Shape.Rank()
	for axis := range rank - 2 {
		f := r.factor()
		r.results[0][axis] = f
		for i, a := range n.Args {
			if j := axis - (rank - a.Type.Shape.Rank()); j >= 0 && a.Type.Shape.At(j) == n.Type.Shape.At(axis) {
				r.args[i][j] = f
			}
		}
	}
	last := func(i int, transposed bool) (row, col *int) {
		x := r.args[i]
		row, col = &x[len(x)-2], &x[len(x)-1]
		if transposed {
			row, col = col, row
		}
		return row, col
	}
	rows, inner := last(0, op.TransA)
	innerB, cols := last(1, op.TransB)
	*rows, *inner, *cols = r.factor(), r.factor(), r.factor()
	*innerB = *inner
	r.results[0][rank-2], r.results[0][rank-1] = *rows, *cols
	return r
}

func reduce(n *graph.Node) *rule {
	op, r := n.Op.(graph.Reduce), newRule(n)
	to := 0
	for axis := range r.args[0] {
		reduced := op.Axes.Has(axis)
		if !reduced || op.Fn.Info().OfGroup {
			r.args[0][axis] = r.factor()
		}
		if !reduced {
			r.results[0][to] = r.args[0][axis]
		}
		if !reduced || op.Keep {
			to++
		}
	}
	switch op.Fn {
	case graph.MaxOf, graph.MinOf:
		r.of = []graph.ReduceFn{op.Fn}
	case graph.Mean:
		r.linear = []int{0}
		r.local = func(b *graph.Builder, l local) *graph.Node {
			parts := 1
			for axis, f := range r.args[0] {
				if f != none && op.Axes.Has(axis) {
					parts *= l.factor[f]
				}
			}
			y := b.Add(op, l.args...)
			if parts > 1 {
				y = b.BinaryScalar(graph.Mul, y, 1/float64(parts))
			}
			return y
		}
	case graph.Sum:
		if n.Type.DType.IsFloat() {
			r.linear = []int{0}
		}
	}
	return r
}

// reshape ties the first axes of each group of axes that become one another: a part of the elements in their order is a part
// of both.
func reshape(n *graph.Node) *rule {
	r := newRule(n)
	from, to := n.Args[0].Type.Shape, n.Type.Shape
	r.local = func(b *graph.Builder, l local) *graph.Node { return b.Reshape(l.args[0], l.shape.Slice()...) }
	if from.Elems() == 0 {
		return r
	}
	for i, j := 0, 0; i < from.Rank() && j < to.Rank(); {
		for i < from.Rank() && from.At(i) == 1 {
			i++
		}
		for j < to.Rank() && to.At(j) == 1 {
			j++
		}
		if i == from.Rank() || j == to.Rank() {
			break
		}
		f := r.factor()
		r.args[0][i], r.results[0][j] = f, f
		x, y := from.At(i), to.At(j)
		for i, j = i+1, j+1; x != y; {
			if x < y {
				x *= from.At(i)
				i++
			} else {
				y *= to.At(j)
				j++
			}
		}
	}
	return r
}

func transpose(n *graph.Node) *rule {
	op, r := n.Op.(graph.Transpose), newRule(n)
	for axis := range r.results[0] {
		f := r.factor()
		r.results[0][axis], r.args[0][op.Perm.At(axis)] = f, f
	}
	return r
}

func broadcast(n *graph.Node) *rule {
	r := newRule(n)
	from, to := n.Args[0].Type.Shape, n.Type.Shape
	lead := to.Rank() - from.Rank()
	for axis := range r.results[0] {
		f := r.factor()
		r.results[0][axis] = f
		if i := axis - lead; i >= 0 && from.At(i) == to.At(axis) {
			r.args[0][i] = f
		}
	}
	r.local = func(b *graph.Builder, l local) *graph.Node { return b.Broadcast(l.args[0], l.shape) }
	return r
}

func pad(n *graph.Node) *rule {
	op := n.Op.(graph.Pad)
	var padded []int
	for axis := range op.Lo.Len() {
		if op.Lo.At(axis) != 0 || op.Hi.At(axis) != 0 {
			padded = append(padded, axis)
		}
	}
	r := except(n, padded...)
	if op.Value == 0 {
		r.linear = []int{0}
	}
	return r
}

// batchNorm ties the channels, and in evaluation all axes.
func batchNorm(n *graph.Node) *rule {
	r := newRule(n)
	train := n.Op.(graph.BatchNorm).Train
	r.along(0, func(axis int) bool { return axis == 1 || !train })
	for i := range r.args[1:] {
		r.args[1+i][0] = r.args[0][1]
	}
	r.results[1][0], r.results[2][0] = r.args[0][1], r.args[0][1]
	if !train {
		r.same = map[int][]int{1: r.args[0], 2: r.args[0]}
	}
	return r
}

func gather(n *graph.Node) *rule {
	r := newRule(n)
	r.picks(n.Op.(graph.Gather).Axis, r.args[0], r.args[1], r.results[0])
	return r
}

// picks makes the factors of the axes of a whole, of indices along an axis of it, and of what these pick.
func (r *rule) picks(axis int, whole, indices, picked []int) {
	for i := range whole {
		if i != axis {
			to := i
			if i > axis {
				to += len(indices) - 1
			}
			whole[i] = r.factor()
			picked[to] = whole[i]
		}
	}
	for i := range indices {
		indices[i] = r.factor()
		picked[axis+i] = indices[i]
	}
}

func scatterAdd(n *graph.Node) *rule {
	r := newRule(n)
	r.picks(n.Op.(graph.ScatterAdd).Axis, r.results[0], r.args[0], r.args[1])
	if n.Type.DType.IsFloat() {
		r.linear = []int{1}
	}
	return r
}

func topK(n *graph.Node) *rule {
	r := lastWhole(n)
	copy(r.results[1], r.results[0])
	return r
}

// route assigns each token by itself, unless experts are full, or choose.
func route(n *graph.Node) *rule {
	if op := n.Op.(graph.Route); op.Capacity > 0 || op.ExpertChoice {
		return newRule(n)
	}
	return lastWhole(n)
}

// attention ties batches and heads, the queries where their positions do not matter, and the columns of values. The operands
// of an attention and of its gradient begin alike.
func attention(n *graph.Node) *rule {
	r := newRule(n)
	grad, isGrad := n.Op.(graph.AttentionGrad)
	op, isOp := n.Op.(graph.Attention)
	if isGrad {
		op = grad.Attention
	}
	if !isOp && !isGrad || op.Page != 0 || op.Dropout != 0 {
		return r
	}
	q, k := n.Args[0].Type.Shape, n.Args[1].Type.Shape
	rank := q.Rank()
	rows := [][]int{r.args[0], r.args[1], r.args[2]}
	if op.HasScales {
		rows = append(rows, r.args[op.KeyScaleArg()], r.args[op.ValueScaleArg()])
	}
	var scores [][]int // values [..., h, sq] or [..., h, sq, d] besides q
	if isGrad {
		first := grad.OutArg()
		scores = r.args[first:]
		rows = append(rows, r.results...)
	} else {
		scores = r.results
	}
	for axis := range rank - 2 {
		if axis == rank-3 && k.At(axis) != q.At(axis) && k.At(axis) == 1 {
			// one head of keys and values for all queries
			f := r.factor()
			r.args[0][axis] = f
			for _, v := range scores {
				v[axis] = f
			}
			if isGrad {
				r.results[0][axis] = f
			}
			continue
		}
		f := r.factor()
		for _, v := range slices.Concat(rows, scores) {
			v[axis] = f
		}
	}
	queries := none
	if !op.Causal && op.Window == 0 && !op.Tail {
		queries = r.factor()
		r.args[0][rank-2] = queries
		for _, v := range scores {
			v[rank-2] = queries
		}
		if isGrad {
			r.results[0][rank-2] = queries
		}
	}
	if !isGrad {
		f := r.factor()
		r.args[2][rank-1], r.results[0][rank-1] = f, f
		r.same = map[int][]int{1: {f}}
	}
	if i := op.MaskArg(); i >= 0 {
		m := n.Args[i].Type.Shape
		full := q.With(rank-1, k.At(rank-2))
		for j := range m.Rank() {
			axis := rank - m.Rank() + j
			if m.At(j) == full.At(axis) && axis < rank-1 {
				r.args[i][j] = r.args[0][axis]
			}
		}
	}
	if i := op.LengthsArg(); i >= 0 {
		copy(r.args[i], r.args[0][:len(r.args[i])])
	}
	return r
}

// moe ties tokens, and with stacked weights the experts, whose terms of a token are summed; a bias that is added to the sum of
// hidden values keeps these whole.
func moe(n *graph.Node) *rule {
	r := newRule(n)
	grad, isGrad := n.Op.(graph.MoEGrad)
	op, isOp := n.Op.(graph.MoE)
	if isGrad {
		op = grad.MoE()
	}
	if !isOp && !isGrad {
		return r
	}
	tokens := len(r.args[0]) - 1
	like := func(v []int, from []int) { copy(v[:tokens], from[:tokens]) }
	for axis := range tokens {
		r.args[0][axis] = r.factor()
	}
	like(r.args[1], r.args[0])
	if isGrad {
		like(r.args[len(r.args)-1], r.args[0])
		like(r.results[0], r.args[0])
		like(r.results[1], r.args[0])
	} else {
		like(r.results[0], r.args[0])
	}
	if !op.Stacked {
		return r
	}
	experts := r.factor()
	hidden := none
	if !op.Bias {
		hidden = r.factor()
	}
	r.args[1][tokens] = experts
	if isGrad {
		r.results[1][tokens] = experts
	} else {
		r.results[1][0] = experts
		r.same = map[int][]int{1: {hidden}}
	}
	for _, w := range op.Weights() {
		i := op.Weight(w, 0)
		at := []int{experts, none, none}
		switch w {
		case graph.MoEW1, graph.MoEW3:
			at[2] = hidden
		case graph.MoEW2:
			at[1] = hidden
		}
		copy(r.args[i], at)
		if isGrad {
			copy(r.results[i], at)
		}
	}
	r.local = func(b *graph.Builder, l local) *graph.Node {
		op := op
		op.Experts /= l.factor[experts]
		op.TopK = min(op.TopK, op.Experts)
		if isGrad {
			return b.Add(graph.MoEGrad(op), l.args...)
		}
		return b.Add(op, l.args...)
	}
	return r
}

// A place is an axis of operand 0 or 1, or of the result, which counts as value 2.
type place struct{ value, axis int }

// convolution ties the places of images, and in one group those of the two kinds of channels.
func convolution(n *graph.Node, l graph.ImageLayout, groups int, ties [3][2]place) *rule {
	r := newRule(n)
	if l != graph.NCHW {
		return r
	}
	values := [][]int{r.args[0], r.args[1], r.results[0]}
	for i, tie := range ties {
		if i > 0 && groups > 1 {
			break
		}
		f := r.factor()
		for _, p := range tie {
			values[p.value][p.axis] = f
		}
	}
	return r
}

// conv2D sums over the channels of images.
func conv2D(n *graph.Node) *rule {
	op := n.Op.(graph.Conv2D)
	return convolution(n, op.Layout, op.Groups, [3][2]place{{{0, 0}, {2, 0}}, {{0, 1}, {1, 1}}, {{1, 0}, {2, 1}}})
}

// conv2DTranspose sums over the filters.
func conv2DTranspose(n *graph.Node) *rule {
	op := n.Op.(graph.Conv2DTranspose)
	return convolution(n, op.Layout, op.Groups, [3][2]place{{{0, 0}, {2, 0}}, {{0, 1}, {1, 0}}, {{1, 1}, {2, 1}}})
}

// filterGrad sums over the images.
func filterGrad(n *graph.Node) *rule {
	op := n.Op.(graph.Conv2DFilterGrad)
	return convolution(n, op.Layout, op.Groups, [3][2]place{{{0, 0}, {1, 0}}, {{0, 1}, {2, 1}}, {{1, 1}, {2, 0}}})
}

// images ties images and channels of a pool or its gradient.
func images(n *graph.Node) *rule {
	r := newRule(n)
	if n.Op.(graph.ImageOp).ImageLayout() != graph.NCHW {
		return r
	}
	r.along(0, func(axis int) bool { return axis < 2 })
	for i := range r.args {
		copy(r.args[i][:2], r.args[0][:2])
	}
	return r
}
