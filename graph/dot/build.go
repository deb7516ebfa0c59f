package dot

import (
	"fmt"
	"strings"

	"fusec/graph"
	"fusec/graph/trace"
)

// drawing is the input of a picture.
type drawing struct {
	graph    *graph.Graph
	stage    string         // or empty
	target   string         // or empty
	overlay  string         // of the target, or empty
	program  *trace.Program // of the last stage, or nil
	imported int            // operations of the first stage, or 0
	opts     Options
}

// layout chooses the detail and builds the scene.
func layout(d drawing) *scene {
	consts := foldable(d.graph)
	reps := &repeats{}
	if !d.opts.Expand {
		reps = findRepeats(d.graph, consts)
	}
	if d.opts.Detail != Auto {
		return newBuilder(d, d.opts.Detail, consts, reps).build()
	}
	from := Full
	for _, n := range d.graph.Nodes {
		if _, ok := n.Op.(graph.Fusion); ok {
			from = Compact
		}
	}
	var s *scene
	for detail := from; detail <= Outline; detail++ {
		s = newBuilder(d, detail, consts, reps).build()
		if len(s.nodes) <= d.opts.maxNodes() {
			break
		}
	}
	return s
}

// value is the box from which a value comes in the picture.
type value struct {
	box *box
	via []string // the views between that box and the value
	typ graph.Type
}

// builder makes a scene from a graph.
type builder struct {
	drawing
	scene    *scene
	detail   Detail
	consts   folds
	reps     *repeats
	frames   map[*block]*cluster
	values   map[*graph.Node][]value // per result
	launches map[int]numbered        // by node ID
	readers  map[*graph.Node][]*graph.Node
	escapes  map[*graph.Node]bool
	edges    map[edge]bool
	inside   map[*graph.Node][]*box        // per operand of a fusion, the first box in its body that reads it
	alike    map[*graph.Node][]*graph.Node // families of parameters
}

// numbered is a launch with its place in the program.
type numbered struct {
	order int
	*trace.Launch
}

func newBuilder(d drawing, detail Detail, consts folds, reps *repeats) *builder {
	b := &builder{drawing: d, scene: &scene{}, detail: detail, consts: consts, reps: reps, frames: make(map[*block]*cluster),
		values: make(map[*graph.Node][]value), launches: make(map[int]numbered), readers: d.graph.Users(),
		escapes: d.graph.Escapes(), edges: make(map[edge]bool), inside: make(map[*graph.Node][]*box)}
	if detail == Compact {
		b.alike = b.families()
	}
	if d.program != nil {
		for i := range d.program.Launches {
			l := &d.program.Launches[i]
			if _, ok := b.launches[l.Node]; !ok {
				b.launches[l.Node] = numbered{i + 1, l}
			}
		}
	}
	return b
}

func (b *builder) build() *scene {
	b.heading()
	for _, n := range b.graph.Nodes {
		if _, folded := b.consts[n]; folded || b.reps.rep(n) != n {
			continue
		}
		b.node(n)
	}
	for _, blk := range b.reps.blocks {
		b.carried(blk)
	}
	b.outputs()
	b.updates()
	return b.scene
}

func (b *builder) heading() {
	b.scene.heading = clean(b.graph.Name)
	if b.graph.Name == "" {
		b.scene.heading = "graph"
	}
	switch {
	case b.stage == trace.Final && b.target != "":
		b.scene.heading += " · compiled for " + clean(b.target)
	case b.stage != "":
		b.scene.heading += " · " + clean(b.stage)
	}
	var words []string
	if b.target != "" {
		words = append(words, "target "+clean(b.target))
	}
	if b.overlay != "" {
		words = append(words, "overlay "+clean(b.overlay))
	}
	sum := summarise(b.graph, b.program)
	counts := plural(sum.nodes, "operation")
	if b.imported > 0 {
		counts = plural(b.imported, "operation") + " imported"
		if sum.nodes != sum.Launches {
			counts += " → " + fmt.Sprint(sum.nodes)
		}
	}
	counts += " → " + plural(sum.Launches, "launch")
	words = append(words, counts, humanFLOPs(sum.FLOPs), humanBytes(sum.Bytes)+" of traffic")
	b.scene.facts = append(b.scene.facts, strings.Join(words, " · "))
	if p := b.program; p != nil {
		fact := fmt.Sprintf("arena %s (%s unshared) · weights %s", humanBytes(p.ArenaBytes), humanBytes(p.BufferBytes), humanBytes(p.ParamBytes))
		if b.opts.Measured {
			if t := measured(p); t > 0 {
				fact += " · measured " + humanTime(t)
			}
		}
		b.scene.facts = append(b.scene.facts, fact)
	}
}

// frame is the cluster of a block, made on first use.
func (b *builder) frame(blk *block) *cluster {
	if blk == nil {
		return nil
	}
	if c := b.frames[blk]; c != nil {
		return c
	}
	c := &cluster{key: fmt.Sprintf("repeat%d", len(b.frames)), repeats: blk.count, inside: b.frame(blk.parent)}
	b.frames[blk] = c
	c.title = fmt.Sprintf("× %d", blk.count)
	if name := blockName(blk); name != "" {
		c.title += " · " + short(name, 40)
	}
	launches := 0
	for _, n := range blk.nodes {
		if b.isLaunch(n) {
			launches++
		}
	}
	if launches > 0 {
		c.notes = append(c.notes, fmt.Sprintf("%s in each, %d in all", plural(launches, "launch"), launches*blk.count))
	}
	c.tooltip = fmt.Sprintf("drawn once, repeated %d times", blk.count)
	return b.scene.cluster(c)
}

// isLaunch reports whether the node is, or will be, run by a kernel.
func (b *builder) isLaunch(n *graph.Node) bool {
	if b.program != nil {
		_, ok := b.launches[n.ID]
		return ok
	}
	return trace.NeedsLaunch(n.Op)
}

// launchNotes are the lines with a launch's number, kernel and cost; nil if n is not a launch of the program.
func (b *builder) launchNotes(n *graph.Node) []string {
	l, ok := b.launches[n.ID]
	if !ok {
		return nil
	}
	first := fmt.Sprintf("#%d", l.order)
	if l.Kernel != "" {
		first += " · " + short(l.Kernel, 28)
	}
	if b.program.Target != l.Device && l.Device != "" {
		first += " on " + short(l.Device, 16)
	}
	second := humanFLOPs(l.FLOPs) + " · " + humanBytes(l.Bytes)
	if b.opts.Measured && l.Measured > 0 {
		second += " · " + humanTime(l.Measured)
	}
	if n := l.Counted; b.opts.Measured && n > 0 {
		second += fmt.Sprintf(" · %d cycles", n)
		if e := errorPart(l.MaxError); e != "" {
			first += " · error at most " + e
		}
	} else if l.Cycles > 0 {
		second += fmt.Sprintf(" · about %d cycles", l.Cycles)
	}
	return []string{first, second}
}

// node draws one visible node.
func (b *builder) node(n *graph.Node) {
	if b.skipParam(n) {
		return
	}
	if all := b.alike[n]; all != nil {
		b.family(n, all)
		return
	}
	if f, ok := n.Op.(graph.Fusion); ok {
		b.fusion(n, f)
		return
	}
	if r, ok := n.Op.(graph.Result); ok {
		if all := b.values[b.reps.rep(n.Args[0])]; r.Index < len(all) {
			b.values[n] = []value{all[r.Index]}
			return
		}
	}
	if b.foldsIntoEdge(n) {
		v := b.operand(n.Args[0])
		v.via, v.typ = append(v.via[:len(v.via):len(v.via)], opLabel(n, b.consts)), n.Type
		b.values[n] = []value{v}
		return
	}
	x := b.scene.box(&box{key: fmt.Sprintf("node%d", n.ID), look: lookOf(n.Op), inside: b.frame(b.reps.in[n]), tooltip: b.tooltip(n)})
	b.values[n] = []value{{box: x, typ: n.Type}}
	x.lines = b.lines(n)
	for _, note := range b.launchNotes(n) {
		x.lines = append(x.lines, textLine{note, roleType})
	}
	b.connect(n, x)
}

// foldsIntoEdge reports whether a view or Result is written on the edges of its readers.
func (b *builder) foldsIntoEdge(n *graph.Node) bool {
	_, result := n.Op.(graph.Result)
	if b.detail == Full || !graph.IsView(n.Op) && !result || b.isLaunch(n) {
		return false
	}
	for _, a := range n.Args[1:] {
		if _, folded := b.consts[a]; !folded {
			return false
		}
	}
	_, folded := b.consts[n.Args[0]]
	return !folded
}

// lines is the label of a node outside a fusion.
func (b *builder) lines(n *graph.Node) []textLine {
	var lines []textLine
	name := short(b.common(n), 32)
	switch n.Op.(type) {
	case graph.Input, graph.State:
		return []textLine{{name, roleName}, {opName(n.Op) + " " + n.Type.String(), roleType}}
	case graph.Param:
		return []textLine{{name, roleOp}, {n.Type.String(), roleType}}
	}
	if name != "" {
		lines = append(lines, textLine{name, roleName})
	}
	for _, l := range wrap(opLabel(n, b.consts), 34) {
		lines = append(lines, textLine{l, roleOp})
	}
	return append(lines, textLine{n.Type.String(), roleType})
}

// common is the node's name, or for a node of a repeated block the pattern of all repetitions' names, without the part
// that the block's frame shows.
func (b *builder) common(n *graph.Node) string {
	blk := b.reps.in[n]
	if blk == nil {
		return n.Name
	}
	name := namePattern(n.Name, blk.counterpart(n).Name)
	if rest, ok := strings.CutPrefix(name, blockName(blk)); ok {
		if rest = strings.TrimLeft(rest, "./:_- "); rest != "" {
			return rest
		}
	}
	return name
}

// operand is the source of a top-level value; a value of a further repetition counts as that of the first.
func (b *builder) operand(n *graph.Node) value {
	if all := b.values[b.reps.rep(n)]; len(all) > 0 {
		return all[0]
	}
	return value{typ: n.Type}
}

// connect draws the edges into a node outside a fusion.
func (b *builder) connect(n *graph.Node, to *box) {
	for _, a := range n.Args {
		b.edge(b.operand(a), to, n.Type)
	}
}

// edge draws an edge for a value that a box of type typ reads, unless the same edge exists.
func (b *builder) edge(v value, to *box, typ graph.Type) {
	if v.box == nil {
		return
	}
	e := edge{from: v.box, to: to, style: edgeData, tooltip: v.typ.String()}
	switch v.box.look {
	case lookParam, lookConst:
		e.style = edgeParam
	}
	switch {
	case len(v.via) > 0:
		e.label = strings.Join(v.via, ", ") + "\n" + v.typ.Shape.String()
	case v.typ.Shape != typ.Shape && v.box.look < lookInput && (v.box.inside == nil || v.box.inside != to.inside):
		e.label = v.typ.Shape.String()
	}
	if !b.edges[e] {
		b.edges[e] = true
		b.scene.edges = append(b.scene.edges, &e)
	}
}

// carried draws the values that one repetition of a block passes to the next, each to its first reader there.
func (b *builder) carried(blk *block) {
	drawn := make(map[*graph.Node]bool)
	for _, c := range blk.carried {
		from, to := b.operand(c.from), b.operand(c.to)
		if from.box == nil || to.box == nil || drawn[c.from] {
			continue
		}
		drawn[c.from] = true
		if in := b.inside[c.to]; c.operand < len(in) && in[c.operand] != nil {
			to.box = in[c.operand]
		}
		b.scene.edges = append(b.scene.edges, &edge{from: from.box, to: to.box, style: edgeCarried, label: "next",
			tooltip: from.typ.String() + " to the next repetition"})
	}
}

// outputs draws the graph's outputs. Outputs of the repetitions of one block are drawn as one.
func (b *builder) outputs() {
	type group struct {
		from  value
		names []string
	}
	var groups []*group
	at := make(map[*graph.Node]*group)
	for _, o := range b.graph.Outputs {
		n := b.reps.rep(o.Node)
		if g := at[n]; g != nil && n != o.Node {
			g.names = append(g.names, o.Name)
			continue
		}
		at[n] = &group{from: b.operand(o.Node), names: []string{o.Name}}
		groups = append(groups, at[n])
	}
	for i, g := range groups {
		name, what := clean(g.names[0]), "output"
		if k := len(g.names); k > 1 {
			name, what = namePattern(name, clean(g.names[k-1])), plural(k, "output")
		}
		x := b.scene.box(&box{key: fmt.Sprintf("output%d", i), look: lookOutput, tooltip: "output " + strings.Join(cleanAll(g.names), ", "),
			lines: []textLine{{short(name, 32), roleName}, {what + " " + g.from.typ.String(), roleType}}})
		b.edge(g.from, x, g.from.typ)
	}
}

// updates draws the values that are written into state and parameters when a run has succeeded.
func (b *builder) updates() {
	for _, u := range b.graph.Updates {
		from, to := b.operand(u.Value), b.operand(u.Target)
		if from.box == nil || to.box == nil || b.reps.rep(u.Target) != u.Target {
			continue
		}
		b.scene.edges = append(b.scene.edges, &edge{from: from.box, to: to.box, style: edgeUpdate, label: "update",
			tooltip: "written to " + clean(u.Target.Name) + " when the run has succeeded"})
	}
}

// tooltip has everything about a node, including what its label may have truncated.
func (b *builder) tooltip(n *graph.Node) string {
	var lines []string
	if n.Name != "" {
		lines = append(lines, clean(n.Name))
	}
	lines = append(lines, fmt.Sprintf("%%%d = %s: %v", n.ID, opLabel(n, b.consts), n.Type))
	if c := graph.CostOf(n); c.Bytes() > 0 {
		lines = append(lines, humanFLOPs(c.FLOPs)+", "+humanBytes(c.Bytes()))
	}
	return strings.Join(append(lines, origins(n.Origin)...), "\n")
}

// maxOrigins bounds the user's nodes that a tooltip lists.
const maxOrigins = 12

func origins(list []graph.Origin) []string {
	var lines []string
	for i, o := range list {
		if i == maxOrigins {
			return append(lines, fmt.Sprintf("and %d more", len(list)-i))
		}
		words := strings.TrimSpace(short(o.Name, 60) + " " + position(o.Pos))
		if words != "" {
			lines = append(lines, words)
		}
	}
	return lines
}
