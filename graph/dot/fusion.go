package dot

import (
	"fmt"
	"strings"

	"fusec/graph"
)

// fusion draws a Fusion: one card, or in full detail a cluster with the body inside.
func (b *builder) fusion(n *graph.Node, f graph.Fusion) {
	if b.detail == Full {
		c := &cluster{key: fmt.Sprintf("node%d", n.ID), look: look(f.Kind), inside: b.home(n), title: f.Kind.String(),
			tooltip: b.tooltip(n), phase: b.phases[n]}
		if l, ok := b.launches[n.ID]; ok {
			c.title += fmt.Sprintf("  #%d", l.order)
			c.notes = append(c.notes, strings.Join(b.costs(l), " · "))
		}
		if name := b.title(n); name != "" {
			c.notes = append([]string{shortMiddle(name, 44)}, c.notes...)
		}
		b.scene.cluster(c)
		b.wholeBody(n, f, c)
		return
	}
	x := b.card(n)
	b.body(n, f, x)
	b.close(n, x)
	if f.Anchored() != nil && isDepthwise(f.Anchored()) {
		x.head = "depthwise " + x.head
	}
	for _, a := range n.Args {
		b.edge(b.operand(a), x, n.Type)
	}
	for _, o := range f.Body.Outputs {
		b.values[n] = append(b.values[n], value{box: x, typ: o.Node.Type})
	}
}

// enter records that a box in n's body reads a, if a is an input of the body.
func (b *builder) enter(n, a *graph.Node, reader *box) {
	if i := inputIndex(n.Op.(graph.Fusion).Body, a); i >= 0 && i < len(n.Args) {
		if b.inside[n] == nil {
			b.inside[n] = make([]*box, len(n.Args))
		}
		if b.inside[n][i] == nil {
			b.inside[n][i] = reader
		}
	}
}

// inputIndex is the index of a among the inputs of a body, or −1.
func inputIndex(body *graph.Graph, a *graph.Node) int {
	i := 0
	for _, n := range body.Nodes {
		if n == a {
			break
		}
		if _, ok := n.Op.(graph.Input); ok {
			i++
		}
	}
	if _, ok := a.Op.(graph.Input); ok {
		return i
	}
	return -1
}

// bodyInputs maps a body's inputs to the values of n's operands.
func (b *builder) bodyInputs(n *graph.Node, body *graph.Graph) map[*graph.Node]value {
	in := make(map[*graph.Node]value)
	for _, k := range body.Nodes {
		if _, ok := k.Op.(graph.Input); ok && len(in) < len(n.Args) {
			in[k] = b.operand(n.Args[len(in)])
		}
	}
	return in
}

// wholeBody draws every node of a body.
func (b *builder) wholeBody(n *graph.Node, f graph.Fusion, c *cluster) {
	at := b.bodyInputs(n, f.Body)
	consts := foldable(f.Body)
	for _, k := range f.Body.Nodes {
		if _, folded := consts[k]; folded || at[k].box != nil {
			continue
		}
		x := b.bodyBox(n, k, c)
		if x.lines = nil; k.Name != "" {
			x.lines = append(x.lines, textLine{short(k.Name, 32), roleName})
		}
		x.lines = append(x.lines, textLine{opLabel(k, consts), roleOp}, textLine{k.Type.String(), roleType})
		for _, a := range k.Args {
			b.edge(at[a], x, k.Type)
			b.enter(n, a, x)
		}
		at[k] = value{box: x, typ: k.Type}
	}
	for _, o := range f.Body.Outputs {
		b.values[n] = append(b.values[n], at[o.Node])
	}
}

// bodyBox is the box for node k of n's body.
func (b *builder) bodyBox(n, k *graph.Node, c *cluster) *box {
	lines := []string{fmt.Sprintf("%%%d.%d = %s: %v", n.ID, k.ID, opLabel(k, nil), k.Type)}
	if k.Name != "" {
		lines = append([]string{clean(k.Name)}, lines...)
	}
	return b.scene.box(&box{key: fmt.Sprintf("node%d.%d", n.ID, k.ID), look: lookOf(k.Op), inside: c,
		tooltip: strings.Join(append(lines, origins(k.Origin)...), "\n")})
}

// operandNames returns the names of n's operands in its formula: the user's, or those of the layers that made them.
func (b *builder) operandNames(n *graph.Node) []string {
	names := make([]string, len(n.Args))
	taken := make(map[string]bool)
	of := make(map[*graph.Node]string) // values of which several parts are read have one name
	for i, a := range n.Args {
		k := base(a)
		if of[k] == "" || b.reps.carries(n, i) {
			of[k] = unused(b.operandName(n, i, a), taken)
		}
		names[i] = of[k] + sliced(a, b.consts)
	}
	return names
}

// partNames are, for operands that consist of the results of several layers, the names of these parts.
func (b *builder) partNames(n *graph.Node) map[int]func(part string) string {
	names := make(map[int]func(string) string)
	for i, a := range n.Args {
		if k := base(a); b.phases[k] != prepared {
			if s := b.stackedBy(k); s != nil {
				names[i] = s.part
			}
		}
	}
	return names
}

func (b *builder) operandName(n *graph.Node, i int, a *graph.Node) string {
	carried := b.reps.carries(n, i)
	if a.Name == "" {
		a = base(a)
	}
	if s := copiedParam(a); s != nil {
		a = s
	}
	switch {
	case b.phases[a] == graph.Backward || strings.HasPrefix(a.Name, graph.GradientOf) || b.phases[n] == graph.Backward &&
		(carried || b.starts(n, a)):
		return "dy"
	case carried:
		return "x"
	case a.Name != "":
		return variable(b.common(b.reps.rep(a)))
	case a.Op.OpName() == "concat" && b.stackedBy(a) != nil:
		return variable(base(a.Args[0]).Name) // what all of them are called, such as weight
	}
	of, scope := b.scopes.Of(n), b.scopes.Of(a)
	switch {
	case b.losses[a] != "" && lookOf(a.Op) == lookElementwise && len(a.Args) > 0:
		return b.operandName(a, 0, a.Args[0]) // labels as a number, or whether they are in range
	case scope == "", scope == of && b.phases[a] == b.phases[n] && (b.losses[a] != "") == (b.losses[n] != ""),
		scope != of && strings.HasPrefix(of+"/", scope+"/"):
		return b.made(a)
	}
	return variable(b.local(b.reps.rep(a), scope))
}

// made is what a value without a name of its own is called: the kind of operation that made it, or the number of its launch
// where the kind says little.
func (b *builder) made(a *graph.Node) string {
	switch op := a.Op.(type) {
	case graph.Input, graph.Param, graph.State:
		return "x"
	case graph.Const:
		if last, ok := countsUp(op.Value); ok {
			return fmt.Sprintf("0…%d", last)
		}
		return "const"
	}
	switch lookOf(a.Op) {
	case lookElementwise, lookMove, lookReduce, lookView:
	default:
		return opName(a.Op)
	}
	if l, ok := b.launches[b.reps.rep(a).ID]; ok && b.detail < Layers {
		return fmt.Sprintf("#%d", l.order)
	}
	return "x"
}

// countsUp reports whether t has the numbers from 0 to last in a row.
func countsUp(t *graph.Tensor) (last int, ok bool) {
	k := t.Type.Shape.Elems()
	if t.Type.DType == graph.Bool || k < 2 {
		return 0, false
	}
	for i := range k {
		if v := t.Float(i); v != float64(i) {
			return 0, false
		}
	}
	return k - 1, true
}

// starts reports whether the backward pass begins with n: a is the last of its operands, none of which is a gradient.
func (b *builder) starts(n, a *graph.Node) bool {
	var last *graph.Node
	for _, k := range n.Args {
		if k = base(k); b.phases[k] == graph.Backward {
			return false
		} else if graph.ClassOf(k.Op) != graph.ClassSource && (last == nil || b.madeAfter(k, last)) {
			last = k
		}
	}
	return a == last
}

// madeAfter reports whether x is made after y: by the order of launches, else by that in which passes made the nodes.
func (b *builder) madeAfter(x, y *graph.Node) bool {
	l, okX := b.launches[x.ID]
	m, okY := b.launches[y.ID]
	if okX && okY {
		return l.order > m.order
	}
	return x.ID > y.ID
}

// Lines of a body that a card shows.
const (
	compactLines = 8
	outlineLines = 3
)

// body writes the formulas of a body into its card. Of a body of several segments it shows the first.
func (b *builder) body(n *graph.Node, f graph.Fusion, x *box) {
	segments, all := f.Segments(), b.operandNames(n)
	first, names, parts := f.Body, all, b.partNames(n)
	if len(segments) > 1 {
		names, parts = nil, nil
		for _, a := range segments[0].Args {
			names = append(names, all[a])
		}
		first = segments[0].Body
	}
	var lines []textLine
	for _, p := range condense(first, names, parts) {
		x.tooltip = p.formula() + "\n" + x.tooltip
		lines = append(lines, formulaLines(p)...)
	}
	most := compactLines
	if b.detail >= Outline {
		most = outlineLines
	}
	if more := len(lines) - most; more > 1 {
		lines = append(lines[:most], textLine{fmt.Sprintf("and %d more lines", more), roleType})
	}
	x.lines = append(x.lines, lines...)
	if more := len(segments) - 1; more > 0 {
		x.lines = append(x.lines, textLine{"and " + plural(more, "more segment"), roleType})
	}
}

// formulaLines formats a part as lines.
func formulaLines(p part) []textLine {
	var lines []textLine
	for i, l := range wrap(short(p.formula(), 120), 38) {
		if i > 0 {
			l = "   " + l
		}
		lines = append(lines, textLine{l, roleOp})
	}
	return lines
}
