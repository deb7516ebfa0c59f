package dot

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"fusec/graph"
	"fusec/graph/trace"
)

// drawing is the input of a picture.
type drawing struct {
	graph    *graph.Graph
	stage    string         // or empty
	target   string         // or empty
	rule     string         // of the optimiser, or empty
	program  *trace.Program // of the last stage, or nil
	imported int            // operations of the first stage, or 0
	missed   map[*graph.Node][]miss
	pipeline *trace.Pipeline // or nil
	opts     Options
}

// region is a part of the graph with a frame of its own: a phase, in a stage of a pipeline or in the whole graph.
type region struct {
	stage int // from 0; -1 is the whole graph, and what lies between stages
	phase graph.Phase
}

// layout chooses the detail and builds the scene.
func layout(d drawing) *scene {
	consts := foldable(d.graph)
	reps := &repeats{}
	if !d.opts.Expand {
		reps = findRepeats(d.graph, consts, d.regions(d.phases()))
	}
	if d.opts.Detail != Auto {
		return newBuilder(d, d.opts.Detail, consts, reps).build()
	}
	from := Full
	for _, n := range d.graph.Nodes {
		if _, ok := n.Op.(graph.Fusion); ok || n.Phase != graph.Forward {
			from = Compact
		}
	}
	var s *scene
	for detail := from; detail <= Layers; detail++ {
		s = newBuilder(d, detail, consts, reps).build()
		if len(s.nodes) <= d.opts.maxNodes() && s.fits() {
			return s
		}
	}
	for !s.fits() && d.opts.maxNodes() > minGroups {
		d.opts.MaxNodes = d.opts.maxNodes() * 3 / 4
		s = newBuilder(d, Layers, consts, reps).build()
	}
	return s
}

// value is the box from which a value comes in the picture. A source that is written at its readers has no box.
type value struct {
	box    *box
	source *graph.Node
	copied bool     // the value is a copy of the source
	via    []string // the views between that box and the value
	typ    graph.Type
	nhwc   bool // images whose channels stand side by side
}

// builder makes a scene from a graph.
type builder struct {
	drawing
	scene    *scene
	detail   Detail
	consts   folds
	reps     *repeats
	scopes   graph.Scopes
	phases   map[*graph.Node]graph.Phase
	homes    map[*graph.Node]region
	onePhase bool // all of the graph belongs to the forward pass
	dots     bool // the user's names have dots, not slashes
	frames   map[*block]*cluster
	regions  map[region]*cluster
	stages   map[int]*cluster
	values   map[*graph.Node][]value // per result
	launches map[int]numbered        // by node ID
	times    map[*graph.Node]time.Duration
	longest  time.Duration
	boxes    map[*graph.Node]*box // of the operations
	asked    []*askedGradients
	steps    []*optimiserStep
	results  map[*graph.Node][]string // the names of a launch's further results
	updated  map[*graph.Node]bool
	// untrained are the parameters of a training step that it does not change, if they are few: as a rule its data.
	untrained map[*graph.Node]bool
	escapes   map[*graph.Node]bool
	copies    map[copyKey]*copiedWeights
	losses    map[*graph.Node]string // the name of the cost that an operation behind the last layer is a part of
	edges     map[edge]bool
	nhwc      map[*graph.Node]bool   // see channelsLast
	inside    map[*graph.Node][]*box // per operand of a fusion, the first box in its body that reads it
}

// numbered is a launch with its place in the program.
type numbered struct {
	order int
	*trace.Launch
}

func newBuilder(d drawing, detail Detail, consts folds, reps *repeats) *builder {
	b := &builder{drawing: d, scene: &scene{}, detail: detail, consts: consts, reps: reps, frames: make(map[*block]*cluster),
		regions: make(map[region]*cluster), stages: make(map[int]*cluster),
		values: make(map[*graph.Node][]value), launches: make(map[int]numbered), times: make(map[*graph.Node]time.Duration),
		boxes: make(map[*graph.Node]*box), results: make(map[*graph.Node][]string),
		updated: make(map[*graph.Node]bool), escapes: make(map[*graph.Node]bool), edges: make(map[edge]bool),
		inside: make(map[*graph.Node][]*box), nhwc: channelsLast(d.graph)}
	b.phases = d.phases()
	b.homes = d.regions(b.phases)
	b.onePhase = !slices.ContainsFunc(d.graph.Nodes,
		func(n *graph.Node) bool { return b.phases[n] != graph.Forward && b.phases[n] != prepared })
	slashes := false
	for _, n := range d.graph.Nodes {
		if _, ok := n.Op.(graph.Param); ok {
			b.dots, slashes = b.dots || strings.Contains(n.Name, "."), slashes || strings.Contains(n.Name, "/")
		}
		if _, ok := n.Op.(graph.Result); ok && n.Name != "" {
			b.results[n.Args[0]] = append(b.results[n.Args[0]], n.Name)
		}
	}
	b.dots = b.dots || !slashes
	for _, o := range d.graph.Outputs {
		b.escapes[o.Node] = true
	}
	b.findLosses()
	for _, u := range d.graph.Updates {
		b.updated[u.Target] = true
	}
	if d.program == nil {
		return b
	}
	for i := range d.program.Launches {
		l := &d.program.Launches[i]
		if _, ok := b.launches[l.Node]; !ok {
			b.launches[l.Node] = numbered{i + 1, l}
		}
	}
	if d.opts.Measured {
		for _, n := range d.graph.Nodes {
			if l, ok := b.launches[n.ID]; ok {
				r := reps.rep(n)
				b.times[r] += l.Measured
				b.longest = max(b.longest, b.times[r])
			}
		}
	}
	return b
}

// findLosses walks from each scalar output of a training step's forward pass to the last layer: over the operations
// without parameters that reduce, or that are not of a layer.
func (b *builder) findLosses() {
	b.losses = make(map[*graph.Node]string)
	if b.onePhase {
		return
	}
	var walk func(n *graph.Node, name string)
	walk = func(n *graph.Node, name string) {
		for passes(n) && len(n.Args) > 0 {
			n = n.Args[0]
		}
		l := lookOf(n.Op)
		if graph.ClassOf(n.Op) == graph.ClassSource || b.losses[n] != "" || b.phases[n] != graph.Forward ||
			slices.ContainsFunc(n.Args, func(a *graph.Node) bool { _, param := base(a).Op.(graph.Param); return param }) ||
			l != lookReduce && l != lookSoftmax && !(l == lookElementwise && b.scopes.Of(n) == "") {
			return
		}
		b.losses[n] = name
		for _, a := range n.Args {
			walk(a, name)
		}
	}
	for _, o := range b.graph.Outputs {
		if o.Node.Type.Shape.Rank() == 0 {
			walk(o.Node, clean(o.Name))
		}
	}
}

// phasesOf is the phase of each node in the picture: what an earlier phase reads belongs to it.
func phasesOf(g *graph.Graph) map[*graph.Node]graph.Phase {
	phases := make(map[*graph.Node]graph.Phase, len(g.Nodes))
	for _, n := range g.Nodes {
		phases[n] = n.Phase
	}
	for _, n := range slices.Backward(g.Nodes) {
		for _, a := range n.Args {
			phases[a] = min(phases[a], phases[n])
		}
	}
	return phases
}

// prepared is the phase of what runs when parameters are set, not in each run. It is drawn apart.
const prepared = graph.Optimiser + 1

// phases is the phase of each node in the picture. What only prepared launches read is prepared, too.
func (d *drawing) phases() map[*graph.Node]graph.Phase {
	phases := phasesOf(d.graph)
	if d.program == nil || d.program.PreparedBytes == 0 {
		return phases
	}
	once := map[int]bool{}
	for _, l := range d.program.Launches {
		once[l.Node] = once[l.Node] || l.Prepared
	}
	for _, n := range d.graph.Nodes {
		_, result := n.Op.(graph.Result)
		if once[n.ID] || result && phases[n.Args[0]] == prepared {
			phases[n] = prepared
		}
	}
	uses := d.graph.Uses()
	for _, n := range slices.Backward(d.graph.Nodes) {
		if (graph.ClassOf(n.Op) == graph.ClassSource || graph.IsView(n.Op)) && len(uses.Readers(n)) > 0 && !uses.Escapes(n) &&
			!slices.ContainsFunc(uses.Readers(n), func(u *graph.Node) bool { return phases[u] != prepared }) {
			phases[n] = prepared
		}
	}
	return phases
}

// regions is where each node belongs.
func (d *drawing) regions(phases map[*graph.Node]graph.Phase) map[*graph.Node]region {
	regions := make(map[*graph.Node]region, len(d.graph.Nodes))
	for _, n := range d.graph.Nodes {
		regions[n] = region{-1, phases[n]}
		if d.pipeline == nil {
			continue
		}
		if at, ok := d.pipeline.At[n.ID]; ok {
			regions[n] = region{at, phases[n]}
		}
	}
	return regions
}

func (b *builder) build() *scene {
	b.heading()
	b.findUntrained()
	b.findCopies()
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
	b.finishCopies()
	b.finishAsked()
	b.finishSteps()
	if b.detail == Layers {
		b.group()
	}
	b.bundle()
	return b.scene
}

func (b *builder) heading() {
	b.scene.heading = clean(cmp.Or(b.opts.Title, b.graph.Name, "graph"))
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
	if p := b.pipeline; p != nil {
		words = append(words, p.String())
	} else if m := b.graph.Mesh; b.graph.Parts && m.Size() > 1 {
		words = append(words, fmt.Sprintf("each of %d participants (%s)", m.Size(), clean(m.String())))
	}
	sum := summarise(b.graph, b.program)
	counts := plural(sum.nodes, "operation")
	if b.imported > 0 {
		counts = plural(b.imported, "operation") + " imported"
	}
	counts += " → " + plural(sum.Launches, "launch")
	words = append(words, counts, humanFLOPs(sum.FLOPs), humanBytes(sum.Bytes)+" of traffic")
	b.scene.facts = append(b.scene.facts, strings.Join(words, " · "))
	if p := b.program; p != nil {
		fact := fmt.Sprintf("arena %s (%s unshared) · weights %s", humanBytes(p.ArenaBytes), humanBytes(p.BufferBytes),
			humanBytes(p.ParamBytes))
		if n := len(p.Launches) - sum.Launches; n > 0 {
			fact += fmt.Sprintf(" · prepared once: %s, %s", plural(n, "launch"), humanBytes(p.PreparedBytes))
		}
		if b.opts.Measured {
			if t := measured(p); t > 0 {
				fact += " · measured " + humanTime(t)
			}
		}
		b.scene.facts = append(b.scene.facts, fact)
	}
}

// home is the innermost frame around a node: of the repeated layers, or of the phase in a graph of several phases.
func (b *builder) home(n *graph.Node) *cluster {
	if blk := b.reps.in[n]; blk != nil {
		return b.frame(blk)
	}
	return b.region(b.homes[n])
}

// region is the frame of a phase, made on first use; nil for the forward pass of a graph without gradients.
func (b *builder) region(r region) *cluster {
	p := r.phase
	if c, ok := b.regions[r]; ok {
		return c
	}
	home := b.stageFrame(r.stage)
	if (b.onePhase || b.pipeline != nil && r.stage < 0) && p != prepared {
		return home
	}
	name := "prepared"
	if p != prepared {
		name = p.String()
	}
	c := &cluster{key: "phase-" + name, kind: clusterPhase, phase: p, title: name, tooltip: name, inside: home}
	if r.stage >= 0 {
		c.key = fmt.Sprintf("stage%d-%s", r.stage+1, name)
	}
	launches, t := b.launched(func(n *graph.Node) bool { return b.homes[n] == r })
	c.notes = []string{plural(launches, "launch")}
	if p == prepared {
		c.tooltip = "computed when parameters are set, not in each run"
		c.notes[0] += " once · " + humanBytes(b.program.PreparedBytes)
	}
	if b.opts.Measured && t > 0 {
		c.notes[0] += " · " + humanTime(t)
	}
	b.regions[r] = c
	return b.scene.cluster(c)
}

// launched counts the launches of some nodes, and the time that they have taken.
func (b *builder) launched(of func(n *graph.Node) bool) (launches int, t time.Duration) {
	for _, n := range b.graph.Nodes {
		if of(n) && b.isLaunch(n) {
			launches++
			t += b.launches[n.ID].measured()
		}
	}
	return launches, t
}

// stageFrame is the frame of a stage of a pipeline, made on first use; nil for what lies between stages.
func (b *builder) stageFrame(stage int) *cluster {
	if c, ok := b.stages[stage]; ok || stage < 0 {
		return c
	}
	s := &b.pipeline.Stages[stage]
	c := &cluster{key: fmt.Sprintf("stage%d", stage+1), kind: clusterStage, title: fmt.Sprintf("stage %d", stage+1)}
	if s.Ends != "" {
		c.title += ", up to " + shortMiddle(clean(s.Ends), 40)
	}
	c.tooltip = c.title
	launches, t := b.launched(func(n *graph.Node) bool { return b.homes[n].stage == stage })
	if len(s.Devices) > 0 {
		c.notes = append(c.notes, "on "+short(clean(strings.Join(s.Devices, ", ")), 60))
	}
	c.notes = append(c.notes, fmt.Sprintf("%s · %s, %d in work at a time", plural(launches, "launch"),
		plural(b.pipeline.Microbatches, "microbatch"), s.Flight), fmt.Sprintf("of each: %s sent, %s kept", humanBytes(s.Sent),
		humanBytes(s.Kept)))
	if b.opts.Measured && t > 0 {
		c.notes[len(c.notes)-2] += " · " + humanTime(t)
	}
	b.stages[stage] = c
	return b.scene.cluster(c)
}

func (l numbered) measured() time.Duration {
	if l.Launch == nil {
		return 0
	}
	return l.Measured
}

// frame is the cluster of a block, made on first use.
func (b *builder) frame(blk *block) *cluster {
	if c := b.frames[blk]; c != nil {
		return c
	}
	home := b.region(b.homes[blk.nodes[0]])
	if blk.parent != nil {
		home = b.frame(blk.parent)
	}
	c := &cluster{key: fmt.Sprintf("repeat%d", len(b.frames)), kind: clusterRepeat, repeats: blk.count, inside: home}
	b.frames[blk] = c
	c.title = fmt.Sprintf("× %d", blk.count)
	if name := b.path(blockName(blk)); name != "" {
		c.title = fmt.Sprintf("%s × %d", short(name, 40), blk.count)
	}
	launches, t := 0, time.Duration(0)
	for _, n := range blk.nodes {
		if b.isLaunch(n) {
			launches++
			t += b.times[n]
		}
	}
	if launches > 0 {
		c.notes = append(c.notes, fmt.Sprintf("%s in each, %d in all", plural(launches, "launch"), launches*blk.count))
	}
	if t > 0 {
		c.notes = append(c.notes, humanTime(t)+" in all")
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

// node draws one visible node.
func (b *builder) node(n *graph.Node) {
	if b.folds(n) {
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
	x := b.card(n)
	b.values[n] = []value{{box: x, typ: n.Type}}
	if x.head == "" {
		x.lines = b.lines(n)
	} else {
		x.lines = b.opLines(n)
	}
	b.close(n, x)
	for _, a := range n.Args {
		b.edge(b.operand(a), x, n.Type)
	}
}

// folds draws nothing of its own for a node that is a part of something else: a source that is written at its readers,
// or a part of the optimiser's step.
func (b *builder) folds(n *graph.Node) bool {
	if b.detail == Full {
		return false
	}
	if b.phases[n] == graph.Optimiser && (b.pipeline == nil || b.homes[n].stage >= 0) {
		b.fold(n)
		return true
	}
	if graph.IsPlaceholder(n.Op) && len(n.Args) > 1 {
		b.ask(n)
		return true
	}
	if b.copied(n) {
		return true
	}
	switch n.Op.(type) {
	case graph.Param, graph.State, graph.Const:
		if !b.escapes[n] && !b.untrained[n] {
			b.values[n] = []value{{source: n, typ: n.Type}}
			return true
		}
	}
	return false
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

// card is the box for a node at the top level. An operation gets a head with its kind and its number in the program.
func (b *builder) card(n *graph.Node) *box {
	x := b.scene.box(&box{key: fmt.Sprintf("node%d", n.ID), look: lookOf(n.Op), inside: b.home(n), phase: b.phases[n],
		tooltip: b.tooltip(n)})
	b.boxes[n] = x
	if b.untrained[n] {
		x.look = lookInput
	}
	if graph.ClassOf(n.Op) == graph.ClassSource || x.look == lookView {
		return x
	}
	x.head = looks[x.look].name
	if f, ok := n.Op.(graph.Fusion); ok {
		x.head = f.Kind.String()
	}
	l, ok := b.launches[n.ID]
	if ok {
		x.head += fmt.Sprintf("  #%d", l.order)
		if l.Device != "" && b.program.Target != l.Device {
			x.host = true
			x.head += " on " + short(l.Device, 16)
		}
	}
	if _, host := n.Op.(graph.Host); host {
		x.host = true
	}
	if x.host {
		b.scene.use(lookHost)
	}
	if name := b.title(n); name != "" {
		x.lines = append(x.lines, textLine{shortMiddle(name, 44), roleName})
	}
	return x
}

// title is what a node is called: by its user's name, else by the layer to which it belongs.
func (b *builder) title(n *graph.Node) string {
	if n.Name != "" {
		return b.common(n)
	}
	if name := b.losses[n]; name != "" {
		return name
	}
	if s := b.stackedBy(n); s != nil {
		return b.local(n, b.path(s.name()))
	}
	scope := b.scopes.Of(n)
	for _, a := range n.Args {
		// The weights of a mixture are of several experts: none of them is its layer.
		if _, param := a.Op.(graph.Param); param && lookOf(n.Op) == lookMoE && !strings.HasPrefix(b.scopes.Of(a)+"/", scope+"/") {
			return ""
		}
	}
	return b.local(n, b.path(scope))
}

// path is a scope as the user writes it.
func (b *builder) path(scope string) string {
	if b.dots {
		return strings.ReplaceAll(scope, "/", ".")
	}
	return scope
}

// opLines is what an operation outside a fusion does.
func (b *builder) opLines(n *graph.Node) (lines []textLine) {
	if name := b.title(n); name != "" {
		lines = append(lines, textLine{shortMiddle(name, 44), roleName})
	}
	text := opLabel(n, b.consts)
	if b.detail != Full {
		text = formulaOf(n, b.operandNames(n), b.partNames(n), b.consts)
	}
	for _, l := range wrap(short(text, 120), 38) {
		lines = append(lines, textLine{l, roleOp})
	}
	return lines
}

// close adds what every card ends with: the type, costs, sources, missed fusions and time.
func (b *builder) close(n *graph.Node, x *box) {
	if x.head == "" {
		return
	}
	switch names := slices.DeleteFunc(slices.Clone(b.results[n]), func(name string) bool { return name == n.Name }); {
	case len(names) > 2:
		x.lines = append(x.lines, textLine{fmt.Sprintf("and %d more, such as the", len(names)), roleType},
			textLine{short(b.local(n, names[0]), 40), roleType})
	default:
		for _, name := range names {
			x.lines = append(x.lines, textLine{"and " + short(b.local(n, name), 40), roleType})
		}
	}
	facts := []string{n.Type.String()}
	if l, ok := b.launches[n.ID]; ok {
		facts = append(facts, b.costs(l)...)
	} else if _, ok := n.Op.(graph.Fusion); ok {
		c := graph.CostOf(n)
		facts = append(facts, humanFLOPs(c.FLOPs), humanBytes(c.Bytes()))
	}
	for _, f := range joinShort(facts, 40) {
		x.lines = append(x.lines, textLine{f, roleType})
	}
	if b.detail != Full {
		x.sources = b.sources(n)
	}
	for _, m := range b.missed[n] {
		mark := "not fused: " + short(m.pattern, 24)
		x.marks = append(x.marks, mark)
		x.tooltip = mark + ", " + clean(m.reason) + "\n" + x.tooltip
		b.scene.missed = true
	}
	if t := b.times[n]; t > 0 && b.longest > 0 {
		x.time = max(float64(t)/float64(b.longest), 0.01)
		b.scene.timed = true
	}
}

// costs are a launch's kernel and cost.
func (b *builder) costs(l numbered) (words []string) {
	if l.Kernel != "" && l.Kernel != "fusion" && l.Kernel != l.Kind {
		words = append(words, short(l.Kernel, 28))
	}
	if c := l.Words(); c != "" {
		words = append(words, c)
	}
	words = append(words, humanFLOPs(l.FLOPs), humanBytes(l.Bytes))
	if b.opts.Measured && l.Measured > 0 {
		words = append(words, humanTime(l.Measured))
	}
	list, about := l.Counts, ""
	if !b.opts.Measured || len(list) == 0 {
		list, about = l.Estimates, "about "
	}
	for _, m := range list[:min(2, len(list))] {
		words = append(words, humanMeasure(m, about))
	}
	return words
}

// sources lists the parameters, states and tables that a node reads, those with names that differ in a number as one.
func (b *builder) sources(n *graph.Node) []string {
	type kind struct {
		typ  graph.Type
		name string // with numbers left out
	}
	var order []kind
	alike := make(map[kind][]*graph.Node)
	seen, copied := make(map[*graph.Node]bool), make(map[*graph.Node]bool)
	for _, a := range n.Args {
		if _, folded := b.consts[a]; folded {
			continue
		}
		v := b.operand(a)
		s := v.source
		if s == nil || seen[s] {
			continue
		}
		seen[s], copied[s] = true, v.copied
		k := kind{s.Type, unnumbered(s.Name)}
		if alike[k] == nil {
			order = append(order, k)
		}
		alike[k] = append(alike[k], s)
	}
	if b.detail >= Outline && len(seen) > 3 {
		var bytes int64
		for s := range seen {
			bytes += s.Type.Bytes()
		}
		return []string{plural(len(seen), "parameter") + " · " + humanBytes(bytes)}
	}
	var list []string
	line := func(name string, s *graph.Node, count int) {
		what := s.Type.String()
		if s.Type.DType == n.Type.DType {
			what = s.Type.Shape.String()
		}
		if count > 1 {
			what = fmt.Sprintf("%d × %s", count, what)
		}
		if _, state := s.Op.(graph.State); state && b.updated[s] {
			what += ", updated"
		}
		if copied[s] {
			what += ", copied"
		}
		list = append(list, strings.TrimSpace(shortMiddle(name, 40)+" "+what))
	}
	for _, k := range order {
		all := alike[k]
		if p := namePattern(all[0].Name, all[len(all)-1].Name); len(all) > 2 && strings.Contains(p, "…") {
			line(b.local(n, p), all[0], len(all))
			continue
		}
		for _, s := range all {
			line(b.sourceName(n, s), s, 1)
		}
	}
	if len(list) > 8 {
		list = append(list[:7], fmt.Sprintf("and %d more", len(list)-7))
	}
	return joinShort(list, 36)
}

// joinShort joins words to lines of up to width characters.
func joinShort(words []string, width int) (lines []string) {
	for _, w := range words {
		if k := len(lines) - 1; k >= 0 && utf8.RuneCountInString(lines[k]+w) < width {
			lines[k] += " · " + w
		} else {
			lines = append(lines, w)
		}
	}
	return lines
}

// sourceName is the name of a source at its reader, without the scope that both share.
func (b *builder) sourceName(n, s *graph.Node) string {
	if s.Name == "" {
		return opName(s.Op)
	}
	if scope := b.path(b.scopes.Of(n)); scope != "" {
		if rest, ok := strings.CutPrefix(s.Name, scope); ok && len(rest) > 1 && strings.ContainsRune("./_", rune(rest[0])) {
			return rest[1:]
		}
	}
	return b.local(n, s.Name)
}

// lines is the label of a source or a view.
func (b *builder) lines(n *graph.Node) []textLine {
	var lines []textLine
	name := short(b.common(n), 32)
	switch n.Op.(type) {
	case graph.Input, graph.State:
		return []textLine{{name, roleName}, {opName(n.Op) + " " + n.Type.String(), roleType}}
	case graph.Param:
		if b.untrained[n] && b.detail != Full {
			return []textLine{{name, roleName}, {"input, not trained " + n.Type.String(), roleType}}
		}
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
	if blk == nil || blk.named() {
		return b.local(n, n.Name)
	}
	return b.local(n, namePattern(n.Name, blk.counterpart(n).Name))
}

// local is a name at n without the part that the frame around n shows.
func (b *builder) local(n *graph.Node, name string) string {
	blk := b.reps.in[n]
	if blk == nil {
		return name
	}
	of := ""
	if rest, ok := strings.CutPrefix(name, graph.GradientOf); ok {
		of, name = graph.GradientOf, rest
	}
	if blk.named() {
		rest, ok := strings.CutPrefix(name, b.path(blk.prefix))
		if cut := strings.TrimLeft(rest, "0123456789"); ok && cut != rest {
			return of + strings.TrimLeft(cut, "./:_- ")
		}
	} else if rest, ok := strings.CutPrefix(name, blockName(blk)); ok && rest != name {
		if rest = strings.TrimLeft(rest, "./:_- "); rest != "" {
			return of + rest
		}
	}
	return of + name
}

// operand is the source of a top-level value; a value of a further repetition counts as that of the first.
func (b *builder) operand(n *graph.Node) value {
	v := value{typ: n.Type}
	if all := b.values[b.reps.rep(n)]; len(all) > 0 {
		v = all[0]
	}
	for b.detail != Full && graph.IsView(n.Op) { // its box is that of what it views
		n = n.Args[0]
	}
	v.nhwc = b.nhwc[n]
	return v
}

// edge draws an edge for a value that a box of type typ reads, unless the same edge exists.
func (b *builder) edge(v value, to *box, typ graph.Type) {
	if v.box == nil || v.box == to {
		return
	}
	e := edge{from: v.box, to: to, style: edgeData,
		tooltip: strings.TrimPrefix(strings.Join(append(v.via[:len(v.via):len(v.via)], v.typ.String()), ", "), ", ")}
	switch v.box.look {
	case lookParam, lookConst, lookState:
		e.style = edgeSide
	}
	if v.nhwc {
		e.label = "NHWC"
	}
	same := e
	if b.detail != Full {
		same.label, same.tooltip = "", "" // one arrow from box to box is enough
	}
	if !b.edges[same] {
		b.edges[same] = true
		b.scene.edges = append(b.scene.edges, &e)
	}
}

// carried draws the values that one repetition of a block gets from the one before, each at its first reader.
func (b *builder) carried(blk *block) {
	drawn := make(map[*graph.Node]bool)
	for _, c := range blk.carried {
		from, to := b.operand(c.from), b.operand(c.to)
		if from.box == nil || to.box == nil || drawn[c.from] {
			continue
		}
		drawn[c.from] = true
		if passes(c.to) {
			for _, n := range blk.nodes {
				if b.boxes[n] != nil && slices.ContainsFunc(n.Args, func(a *graph.Node) bool { return base(a) == base(c.to) }) {
					to.box = b.boxes[n]
					break
				}
			}
		}
		if in := b.inside[c.to]; c.operand < len(in) && in[c.operand] != nil {
			to.box = in[c.operand]
		}
		before := "from the repetition before"
		if blk.named() {
			before = "from the layer before"
		}
		x := b.scene.box(&box{key: fmt.Sprintf("carried%d.%d", c.to.ID, c.operand), look: lookCarried, inside: b.frame(blk),
			phase: to.box.phase,
			lines: []textLine{{before, roleOp}, {cmp.Or(short(b.local(c.from, b.path(b.scopes.Of(c.from))), 32),
				looks[from.box.look].name), roleName}},
			tooltip: from.typ.String() + " of the repetition before"})
		b.scene.edges = append(b.scene.edges, &edge{from: x, to: to.box, style: edgeCarried, tooltip: x.tooltip})
	}
}

// maxOutputs is how many outputs are drawn singly.
const maxOutputs = 12

// outputs draws the graph's outputs. Outputs of the repetitions of one block are drawn as one, and of many outputs
// those with names that differ in numbers.
func (b *builder) outputs() {
	type group struct {
		from  []value
		home  region
		names []string
	}
	type kind struct {
		home region
		name string // with numbers left out
	}
	var groups []*group
	at, alike := make(map[*graph.Node]*group), make(map[kind]*group)
	for _, o := range b.graph.Outputs {
		n, k := b.reps.rep(o.Node), kind{b.homes[o.Node], unnumbered(o.Name)}
		if g := at[n]; g != nil && n != o.Node {
			g.names = append(g.names, o.Name)
			continue
		}
		if g := alike[k]; g != nil && len(b.graph.Outputs) > maxOutputs {
			g.from, g.names = append(g.from, b.operand(o.Node)), append(g.names, o.Name)
			continue
		}
		alike[k] = &group{[]value{b.operand(o.Node)}, k.home, []string{o.Name}}
		at[n] = alike[k]
		groups = append(groups, at[n])
	}
	for i, g := range groups {
		name, what := clean(g.names[0]), "output"
		if k := len(g.names); k > 1 {
			name, what = namePattern(name, clean(g.names[k-1])), plural(k, "output")
		}
		typ := g.from[0].typ.String()
		if slices.ContainsFunc(g.from, func(v value) bool { return v.typ != g.from[0].typ }) {
			typ = ""
		}
		x := b.scene.box(&box{key: fmt.Sprintf("output%d", i), look: lookOutput, inside: b.region(g.home), phase: g.home.phase,
			tooltip: "output " + strings.Join(cleanAll(g.names), ", "),
			lines:   []textLine{{short(name, 32), roleName}, {strings.TrimSpace(what + " " + typ), roleType}}})
		for _, v := range g.from {
			b.edge(v, x, v.typ)
		}
	}
}

// updates says at the launches which states and parameters they change when a run has succeeded.
func (b *builder) updates() {
	for i, u := range b.graph.Updates {
		from := b.operand(u.Value)
		if from.box == nil || b.reps.rep(u.Target) != u.Target || b.phases[u.Value] == graph.Optimiser && b.detail != Full {
			continue
		}
		if b.detail != Full {
			if slices.ContainsFunc(readsOf(u.Value), func(a *graph.Node) bool { return b.operand(a).source == u.Target }) {
				continue // it is listed among what the operation reads
			}
			if line := "updates " + short(b.local(u.Value, u.Target.Name), 36); !slices.Contains(from.box.sources, line) {
				from.box.sources = append(from.box.sources, line)
			}
			continue
		}
		x := b.scene.box(&box{key: fmt.Sprintf("update%d", i), look: lookState, inside: b.region(b.homes[u.Value]),
			lines:   []textLine{{short(u.Target.Name, 32), roleName}, {"update", roleType}},
			tooltip: "written to " + clean(u.Target.Name) + " when the run has succeeded"})
		b.scene.edges = append(b.scene.edges, &edge{from: from.box, to: x, style: edgeUpdate, tooltip: x.tooltip})
	}
}

// readsOf are the operands of the operation that n is a result of.
func readsOf(n *graph.Node) []*graph.Node {
	if _, ok := n.Op.(graph.Result); ok {
		n = n.Args[0]
	}
	return n.Args
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
	if l, ok := b.launches[n.ID]; ok && l.Reason != "" {
		lines = append(lines, "on "+clean(l.Device)+": "+clean(l.Reason))
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
