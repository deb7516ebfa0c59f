// Package narrow keeps values in 16 bits where the caller's choice of precision allows it: the operands of contractions,
// and what contractions hand to later launches.
package narrow

import (
	"fmt"
	"slices"

	"fusec/graph"
	"fusec/passes/rewrite"
)

// Results keeps in 16 bits what contractions hand to later launches:
//
//	Fusion{matmul ─► Add ─► u, Gelu ─► Cast ─► h}      Fusion{matmul ─► Add ─► Cast ─► u, Gelu ─► Cast ─► h}
//	u ─► Fusion{Gelu′ ⊙ matmul}                    to  u ─► Fusion{Cast ─► Gelu′ ⊙ matmul}
//
// A layer's result in 16 bits is rounded in the same way, after its epilogue in f32. A cast that reads such a value is
// dropped, and so is a launch that does nothing else.
//
// A value that the user casts to 16 bits, and that nothing else reads, is kept in 16 bits in any precision: the cast joins
// the launch that makes the value.
//
// These stay in f32: outputs of the graph, and what updates of parameters and state are made of, such as the gradients of
// weights; sums with another value of full size, such as residual streams; sums over rows; the log-sum-exp of an
// attention; what a mixture hands out besides its result; and what is read by anything but a fusion, or by a fusion that
// cannot convert it on the way, such as a contraction in f32.
func Results(c *rewrite.Context, half graph.DType, least int) error {
	for _, to := range []graph.DType{graph.BF16, graph.F16} {
		if to != half && !castsTo(c.Graph, to) {
			continue
		}
		w := narrower{c: c, to: to, free: to == half, least: least, uses: c.Graph.Uses(),
			handed: map[*graph.Node]bool{}, narrow: map[*graph.Node]bool{}}
		for n := range c.Graph.Escapes() {
			addShown(w.handed, n)
		}
		w.choose()
		if len(w.narrow) == 0 {
			continue
		}
		if err := w.rebuild(); err != nil {
			return err
		}
	}
	return nil
}

// castsTo reports whether a fusion casts to a type.
func castsTo(g *graph.Graph, to graph.DType) bool {
	for _, n := range g.Nodes {
		if f, ok := n.Op.(graph.Fusion); ok &&
			slices.ContainsFunc(f.Body.Nodes, func(m *graph.Node) bool { return m.Op == graph.Cast{To: to} }) {
			return true
		}
	}
	return false
}

// narrower changes the types of some of the values between launches.
type narrower struct {
	c      *rewrite.Context
	to     graph.DType
	least  int  // elements of values that are worth rounding
	free   bool // the precision lets values be rounded that are not cast already
	uses   *graph.Uses
	handed map[*graph.Node]bool // what is shown by outputs and updates
	narrow map[*graph.Node]bool // fusions and their results that are to have 16 bits
}

// choose fills narrow.
func (w *narrower) choose() {
	kept := w.kept()
	for _, n := range w.c.Graph.Nodes {
		if n.Type.DType != graph.F32 {
			continue
		}
		if w.exact(n) {
			if reason := w.refused(n); reason != "" {
				w.c.Note(n, "the result %v stays in f32: %s", n.Type, reason)
			} else {
				w.narrow[n] = true
			}
			continue
		}
		f, index, ok := contraction(n)
		if !ok {
			continue
		}
		cast := w.cast(n)
		if !cast && (!w.free || n.Type.Shape.Elems() < w.least) {
			continue
		}
		reason := narrowable(f, index)
		if reason == "" {
			reason = w.refused(n)
		}
		if reason == "" && kept[n] && !cast {
			reason = "it is handed out, or updates are made of it"
		}
		if reason == "" {
			w.narrow[n] = true
		} else if reason != notValue {
			w.c.Note(n, "the result %v stays in f32: %s", n.Type, reason)
		}
	}
	w.joinAlike()
}

// cast reports whether nothing is made of n but its cast to 16 bits.
func (w *narrower) cast(n *graph.Node) bool {
	if w.handed[n] {
		return false
	}
	shown, readers := w.readers(n)
	for _, r := range readers {
		f, ok := r.Op.(graph.Fusion)
		if !ok || !w.onlyCasts(f, r.Args, shown) {
			return false
		}
	}
	return len(readers) > 0
}

// onlyCasts reports whether a fusion hands out casts, perhaps through views, of those operands that are asked for, and
// makes nothing else of them.
func (w *narrower) onlyCasts(f graph.Fusion, args []*graph.Node, asked map[*graph.Node]bool) bool {
	wide, done := map[*graph.Node]bool{}, map[*graph.Node]bool{} // what shows an operand, and its cast
	input := 0
	for _, n := range f.Body.Nodes {
		if _, ok := n.Op.(graph.Input); ok {
			wide[n] = asked[args[input]]
			input++
			continue
		}
		for _, a := range n.Args {
			cast, isCast := n.Op.(graph.Cast)
			switch {
			case !wide[a] && !done[a]:
			case graph.IsView(n.Op):
				wide[n], done[n] = wide[a], done[a]
			case wide[a] && isCast && cast.To == w.to:
				done[n] = true
			default:
				return false
			}
		}
	}
	return !slices.ContainsFunc(f.Body.Outputs, func(o graph.Output) bool { return wide[o.Node] })
}

// joinAlike leaves in f32 what is joined with values that stay so, directly or through other values.
func (w *narrower) joinAlike() {
	if len(w.narrow) == 0 {
		return
	}
	joined := rewrite.Groups{}     // of concatenations and what they join
	wide := map[*graph.Node]bool{} // what concatenations join that is to stay in f32
	for _, n := range w.c.Graph.Nodes {
		if _, ok := n.Op.(graph.Concat); !ok {
			continue
		}
		for _, a := range n.Args {
			_, isConcat := a.Op.(graph.Concat)
			for moves(a.Op) && !isConcat {
				a = a.Args[0]
				_, isConcat = a.Op.(graph.Concat)
			}
			if !isConcat && !w.narrow[a] {
				wide[a] = true
			}
			joined.Join(a, n)
		}
	}
	mixed := map[*graph.Node]bool{} // roots
	for n := range wide {
		mixed[joined.Find(n)] = true
	}
	for _, n := range w.c.Graph.Nodes {
		if w.narrow[n] && mixed[joined.Find(n)] {
			w.c.Note(n, "the result %v stays in f32: it is joined with values that do", n.Type)
			delete(w.narrow, n)
		}
	}
}

// moves reports whether op only moves its operands' elements, whatever their type.
func moves(op graph.Op) bool {
	switch op.(type) {
	case graph.Concat, graph.Copy:
		return true
	}
	return graph.IsView(op)
}

// addShown adds a and all values whose elements a shows, through operations that move them.
func addShown(shown map[*graph.Node]bool, a *graph.Node) {
	stack := []*graph.Node{a}
	for len(stack) > 0 {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if shown[n] {
			continue
		}
		shown[n] = true
		if moves(n.Op) {
			stack = append(stack, n.Args...)
		}
	}
}

// exact reports whether n is a result of a fusion, not of the graph, that has 16 bits but for its type, so that it loses nothing.
func (w *narrower) exact(n *graph.Node) bool {
	f, index, ok := result(n)
	if !ok || w.handed[n] || n.Type.Shape.Elems() < w.least {
		return false
	}
	return w.isHalf(f.Body.Outputs[index].Node)
}

// isHalf reports whether a value in f32 is one of 16 bits that was cast, zero, or chosen among such values.
func (w *narrower) isHalf(y *graph.Node) bool {
	y = rewrite.UnderViews(y)
	switch op := y.Op.(type) {
	case graph.Cast:
		return y.Args[0].Type.DType == w.to
	case graph.Const:
		return op.Value.Uniform() && op.Value.Float(0) == 0
	case graph.Select:
		return w.isHalf(y.Args[1]) && w.isHalf(y.Args[2])
	}
	return false
}

// result returns the fusion that n is a result of, and its number.
func result(n *graph.Node) (f graph.Fusion, index int, ok bool) {
	if r, isResult := n.Op.(graph.Result); isResult {
		n, index = n.Args[0], r.Index
	}
	f, ok = n.Op.(graph.Fusion)
	return f, index, ok
}

// contraction returns the fusion around a contraction that n is a result of, and the number of the result.
func contraction(n *graph.Node) (f graph.Fusion, index int, ok bool) {
	f, index, ok = result(n)
	return f, index, ok && f.Anchor.Contracts()
}

// kept finds the results of contractions that outputs and updates are made of, by other than contractions and rows.
func (w *narrower) kept() map[*graph.Node]bool {
	g := w.c.Graph
	kept := g.Escapes()
	for _, n := range slices.Backward(g.Nodes) {
		if !kept[n] {
			continue
		}
		if _, _, ok := contraction(n); ok {
			continue
		}
		if f, ok := n.Op.(graph.Fusion); ok && f.Anchor == graph.AnchorRow {
			continue
		}
		if _, ok := n.Op.(graph.Conv2DFilterGrad); ok { // a contraction, too
			continue
		}
		for _, a := range n.Args {
			kept[a] = true
		}
	}
	return kept
}

// notValue is why sums and statistics keep their type. It is not noted.
const notValue = "it is a sum or a statistic"

// narrowable returns why result number index of a fusion should keep its type, or "".
func narrowable(f graph.Fusion, index int) string {
	n := rewrite.UnderViews(f.Body.Outputs[index].Node)
	if anchor, _ := graph.AnchorOf(n.Op); anchor.Whole() {
		return ""
	}
	switch n.Op.(type) {
	case graph.Result:
		if _, ok := n.Args[0].Op.(graph.AttentionGrad); !ok {
			return notValue
		}
		return ""
	case graph.Reduce:
		return notValue
	}
	if residual(f, n) {
		return "it is a sum with another value of its size"
	}
	return ""
}

// residual reports whether a sum on the way from the anchor to n has a term of full size that is not made of the anchor.
func residual(f graph.Fusion, n *graph.Node) bool {
	size := n.Type.Shape.Elems()
	of := map[*graph.Node]bool{f.Anchored(): true}
	whole := map[*graph.Node]bool{} // as many elements as n, each read once
	sum := map[*graph.Node]bool{}
	for _, m := range f.Body.Nodes {
		_, repeats := m.Op.(graph.Broadcast)
		_, input := m.Op.(graph.Input)
		whole[m] = (input || !repeats && slices.ContainsFunc(m.Args, func(a *graph.Node) bool { return whole[a] })) &&
			m.Type.Shape.Elems() == size
		for _, a := range m.Args {
			of[m] = of[m] || of[a]
			sum[m] = sum[m] || sum[a]
		}
		if op, ok := m.Op.(graph.Binary); ok && (op.Fn == graph.Add || op.Fn == graph.Sub) {
			x, y := m.Args[0], m.Args[1]
			sum[m] = sum[m] || of[x] && !of[y] && whole[y] || of[y] && !of[x] && whole[x]
		}
	}
	return sum[n]
}

// refused returns why a reader of n or the target needs it in f32, or "".
func (w *narrower) refused(n *graph.Node) string {
	fusion, index := n, 0
	if r, ok := n.Op.(graph.Result); ok {
		fusion, index = n.Args[0], r.Index
	}
	k := w.convert(fusion.Op.(graph.Fusion), nil, map[int]bool{index: true})
	if k.launches() {
		if err := w.c.Accepts(k.op, k.args(fusion.Args)...); err != nil {
			return err.Error()
		}
	}
	shown, readers := w.readers(n)
	for _, r := range readers {
		f, ok := r.Op.(graph.Fusion)
		if !ok {
			return fmt.Sprintf("%s reads it", r.Op.OpName())
		}
		at := map[int]bool{}
		args := slices.Clone(r.Args)
		for i, a := range r.Args {
			if shown[a] {
				at[i] = true
				args[i] = &graph.Node{ID: -1, Op: graph.Input{Type: a.Type.With(w.to)}, Type: a.Type.With(w.to)}
			}
		}
		if !w.converts(f, at) {
			return fmt.Sprintf("%s reads it as it stands", r.Where())
		}
		if k := w.convert(f, at, nil); k.launches() && w.c.Accepts(k.op, k.args(args)...) != nil {
			return fmt.Sprintf("%s cannot convert it", r.Where())
		}
	}
	return ""
}

// readers returns n with all that shows its elements by moving them, and lists what else reads these.
func (w *narrower) readers(n *graph.Node) (shown map[*graph.Node]bool, list []*graph.Node) {
	shown = map[*graph.Node]bool{n: true}
	for stack := []*graph.Node{n}; len(stack) > 0; {
		v := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		for _, u := range w.uses.Readers(v) {
			if _, ok := u.Op.(graph.Result); ok {
				continue // another result of the same fusion
			}
			if !moves(u.Op) {
				list = append(list, u)
			} else if !shown[u] {
				shown[u] = true
				stack = append(stack, u)
			}
		}
	}
	return shown, list
}

// converts reports whether the fusion reads the given operands by elementwise work and by reductions alone, which a
// conversion can precede.
func (w *narrower) converts(f graph.Fusion, operands map[int]bool) bool {
	raw := map[*graph.Node]bool{} // the operands, and views of them
	input := 0
	for _, n := range f.Body.Nodes {
		if _, ok := n.Op.(graph.Input); ok {
			raw[n] = operands[input]
			input++
			continue
		}
		for i, a := range n.Args {
			if !raw[a] {
				continue
			}
			_, isReduce := n.Op.(graph.Reduce)
			switch {
			case graph.IsView(n.Op):
				raw[n] = true
			case graph.Joins(n.Op) || isReduce:
			case f.Anchor == graph.AnchorRow && i == 0: // of a softmax or a norm
			default:
				return false
			}
		}
	}
	return !slices.ContainsFunc(f.Body.Outputs, func(o graph.Output) bool { return raw[o.Node] })
}
