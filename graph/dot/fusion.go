package dot

import (
	"fmt"
	"strings"

	"fusec/graph"
)

// fusion draws a Fusion: a cluster with the body inside.
func (b *builder) fusion(n *graph.Node, f graph.Fusion) {
	c := &cluster{key: fmt.Sprintf("node%d", n.ID), look: look(f.Kind), inside: b.frame(b.reps.in[n]), title: f.Kind.String(),
		tooltip: b.tooltip(n)}
	if n.Name != "" {
		c.title += " · " + short(b.common(n), 28)
	}
	if notes := b.launchNotes(n); notes != nil {
		c.notes = notes
	} else {
		cost := graph.CostOf(n)
		c.notes = append(c.notes, "1 launch", humanFLOPs(cost.FLOPs)+" · "+humanBytes(cost.Bytes()))
	}
	b.scene.cluster(c)
	switch b.detail {
	case Full:
		b.wholeBody(n, f, c)
	case Outline:
		b.outlineBody(n, f, c)
	default:
		b.compactBody(n, f, c)
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

// operandNames returns the names of n's operands in the expressions of its body.
func (b *builder) operandNames(n *graph.Node) []string {
	names := make([]string, len(n.Args))
	taken := make(map[string]bool)
	for i, a := range n.Args {
		name := "x"
		if a.Name != "" && !b.reps.carries(n, i) {
			name = variable(b.common(b.reps.rep(a)))
		}
		names[i] = unused(name, taken)
	}
	return names
}

// compactBody draws a body's parts.
func (b *builder) compactBody(n *graph.Node, f graph.Fusion, c *cluster) {
	at := b.bodyInputs(n, f.Body)
	for _, p := range condense(f.Body, b.operandNames(n)) {
		x := b.bodyBox(n, p.node, c)
		x.tooltip = p.formula() + "\n" + x.tooltip
		x.lines = append(formulaLines(p), textLine{p.node.Type.String(), roleType})
		for _, r := range p.reads {
			b.edge(at[r], x, p.node.Type)
			b.enter(n, r, x)
		}
		at[p.node] = value{box: x, typ: p.node.Type}
	}
	for _, o := range f.Body.Outputs {
		b.values[n] = append(b.values[n], outputValue(o.Node, at))
	}
}

// outputValue finds the value that a body's output is a view of.
func outputValue(n *graph.Node, at map[*graph.Node]value) value {
	t := n.Type
	for at[n].box == nil && len(n.Args) > 0 {
		n = n.Args[0]
	}
	v := at[n]
	v.typ = t
	return v
}

// formulaLines formats a part as lines.
func formulaLines(p part) []textLine {
	role := roleOp
	if !graph.Joins(p.node.Op) {
		role = roleName
	}
	var lines []textLine
	for i, l := range wrap(short(p.formula(), 120), 38) {
		if i > 0 {
			l = "   " + l
		}
		lines = append(lines, textLine{l, role})
	}
	return lines
}

// outlineBody draws a body as one box. For a body of several segments it shows the first, and the number of the others.
func (b *builder) outlineBody(n *graph.Node, f graph.Fusion, c *cluster) {
	x := b.scene.box(&box{key: fmt.Sprintf("node%d.body", n.ID), look: look(f.Kind), inside: c, tooltip: b.tooltip(n)})
	segments, all := f.Segments(), b.operandNames(n)
	var names []string
	for _, a := range segments[0].Args {
		names = append(names, all[a])
	}
	for _, p := range condense(segments[0].Body, names) {
		x.lines = append(x.lines, formulaLines(p)...)
	}
	x.lines = append(x.lines, textLine{n.Type.String(), roleType})
	if more := len(segments) - 1; more > 0 {
		x.lines = append(x.lines, textLine{fmt.Sprintf("and %d more segments", more), roleType})
	}
	b.connect(n, x)
	if own := b.ownParams(n); len(own) > 1 {
		b.bundle(n, own, x)
	}
	for _, o := range f.Body.Outputs {
		b.values[n] = append(b.values[n], value{box: x, typ: o.Node.Type})
	}
}

// ownParams lists the parameters that only the fusion n reads, in the order of its operands.
func (b *builder) ownParams(n *graph.Node) []*graph.Node {
	var own []*graph.Node
	for _, a := range n.Args {
		if b.solelyRead(a) {
			own = append(own, a)
		}
	}
	return own
}

// solelyRead reports whether a is a parameter with one reader, of which it is one operand.
func (b *builder) solelyRead(a *graph.Node) bool {
	_, param := a.Op.(graph.Param)
	return param && len(b.readers[a]) == 1 && !b.escapes[a]
}

// skipParam reports whether Outline draws the parameter n together with others of its only reader.
func (b *builder) skipParam(n *graph.Node) bool {
	if b.detail != Outline || !b.solelyRead(n) {
		return false
	}
	reader := b.readers[n][0]
	_, fused := reader.Op.(graph.Fusion)
	return fused && len(b.ownParams(reader)) > 1
}

// bundle draws several parameters as one box.
func (b *builder) bundle(n *graph.Node, params []*graph.Node, to *box) {
	var names, tips []string
	var bytes int64
	for _, p := range params {
		names = append(names, variable(b.common(p)))
		tips = append(tips, clean(p.Name)+" "+p.Type.String())
		bytes += p.Type.Bytes()
	}
	x := b.scene.box(&box{key: fmt.Sprintf("params%d", n.ID), look: lookParam, inside: b.frame(b.reps.in[n]), tooltip: strings.Join(tips, "\n")})
	for _, l := range wrap(strings.Join(names, ", "), 24) {
		x.lines = append(x.lines, textLine{l, roleOp})
	}
	x.lines = append(x.lines, textLine{plural(len(params), "parameter") + " · " + humanBytes(bytes), roleType})
	b.edge(value{box: x, typ: params[0].Type}, to, n.Type)
}
