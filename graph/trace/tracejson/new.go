package tracejson

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"fusec/graph"
	"fusec/graph/trace"
)

// Options says what New includes.
type Options struct {
	About
	// First and Last are the first and the last stage, counted from 0; Last is the compilation's last if it is below 0.
	// The program comes with the compilation's last stage.
	First, Last int
	Measured    bool // times, and what a run has counted
}

// All is every stage.
func All(about About, measured bool) Options {
	return Options{About: about, Last: -1, Measured: measured}
}

// New makes the JSON form of a trace. The options name stages that it has.
func New(tr *trace.Trace, o Options) *Trace {
	if o.Last < 0 {
		o.Last = len(tr.Stages) - 1
	}
	if o.Model == "" && len(tr.Stages) > 0 && tr.Stages[0].Graph != nil {
		o.Model = tr.Stages[0].Graph.Name
	}
	e := &encoder{Trace: Trace{Schema: Schema, About: o.About, Target: tr.Target, Chip: tr.Chip, Precision: tr.Precision,
		Unfused: tr.Unfused(), Origins: []Origin{}, OriginLists: [][]int{}, Bodies: []Graph{}, Sources: []string{},
		Stages: []Stage{}},
		origins: map[graph.Origin]int{}, lists: map[string]int{}, bodies: map[*graph.Graph]int{}, same: map[string]int{},
		sources: map[string]int{}}
	if o.Last == len(tr.Stages)-1 && tr.Program != nil {
		e.program(tr.Program, o.Measured)
	}
	e.missed(tr)
	before := map[int]*Node{}
	for i := o.First; i <= o.Last; i++ {
		before = e.stage(tr, i, before, o)
	}
	return &e.Trace
}

// encoder fills a Trace and its tables.
type encoder struct {
	Trace
	origins map[graph.Origin]int
	lists   map[string]int // by their indices
	last    []graph.Origin // the list that was last looked up: many nodes may share one long list
	lastID  int            // its number
	bodies  map[*graph.Graph]int
	same    map[string]int // bodies by what they compute
	sources map[string]int
	nodes   map[*graph.Node]*Node // of the stage before
	costs   map[*trace.Miss]trace.MissCost
}

// origin is the number of a list of origins, 0 for an empty one.
func (e *encoder) origin(list []graph.Origin) int {
	if len(list) == 0 {
		return 0
	}
	if len(list) == len(e.last) && &list[0] == &e.last[0] {
		return e.lastID
	}
	ids := make([]int, 0, len(list))
	var key strings.Builder
	for _, o := range list {
		id, ok := e.origins[o]
		if !ok {
			id = len(e.Origins)
			e.origins[o] = id
			e.Origins = append(e.Origins, Origin(o))
		}
		ids = append(ids, id)
		key.WriteString(strconv.Itoa(id))
		key.WriteByte(' ')
	}
	id, ok := e.lists[key.String()]
	if !ok {
		e.OriginLists = append(e.OriginLists, ids)
		id = len(e.OriginLists)
		e.lists[key.String()] = id
	}
	e.last, e.lastID = list, id
	return id
}

// node encodes a node; one of a body without name, origin and cost.
func (e *encoder) node(n *graph.Node, inBody bool) *Node {
	j := &Node{ID: n.ID, Op: n.Op.OpName(), Type: n.Type.String()}
	if !inBody {
		c := graph.CostOf(n)
		j.FLOPs, j.Bytes = c.FLOPs, c.Bytes()
		j.Name, j.Origin = n.Name, e.origin(n.Origin)
		if n.Phase != graph.Forward {
			j.Phase = n.Phase.String()
		}
	}
	for _, a := range n.Args {
		j.Args = append(j.Args, a.ID)
	}
	for _, a := range graph.Attrs(n.Op) {
		if j.Attrs == nil {
			j.Attrs = Attrs{}
		}
		j.Attrs[a.Name] = a.Value
	}
	if f, ok := n.Op.(graph.Fusion); ok {
		j.Body = e.body(f.Body)
	}
	return j
}

// body is the number of a body, which bodies that compute the same share.
func (e *encoder) body(g *graph.Graph) int {
	if id, ok := e.bodies[g]; ok {
		return id
	}
	j := Graph{Nodes: []Node{}, Outputs: []int{}}
	var key strings.Builder
	at := make(map[*graph.Node]int, len(g.Nodes))
	for i, n := range g.Nodes {
		k := e.node(n, true)
		for arg, a := range n.Args {
			k.Args[arg] = at[a]
		}
		k.ID, at[n] = i, i
		j.Nodes = append(j.Nodes, *k)
		k.key(&key)
	}
	for _, o := range g.Outputs {
		j.Outputs = append(j.Outputs, at[o.Node])
		key.WriteString(" ->" + strconv.Itoa(at[o.Node]))
	}
	id, ok := e.same[key.String()]
	if !ok {
		e.Bodies = append(e.Bodies, j)
		id = len(e.Bodies)
		e.same[key.String()] = id
	}
	e.bodies[g] = id
	return id
}

// key writes what a node of a body computes.
func (n *Node) key(b *strings.Builder) {
	b.WriteString(n.Op + n.Type + "(")
	for _, a := range n.Args {
		b.WriteString(strconv.Itoa(a) + " ")
	}
	for _, k := range slices.Sorted(maps.Keys(n.Attrs)) {
		b.WriteString(k + "=" + strconv.Quote(n.Attrs[k]))
	}
	b.WriteString(strconv.Itoa(n.Body) + ")")
}

func (n *Node) equal(o *Node) bool {
	return n.Name == o.Name && n.Phase == o.Phase && n.Op == o.Op && n.Type == o.Type && n.Origin == o.Origin && n.Body == o.Body &&
		slices.Equal(n.Args, o.Args) && maps.Equal(n.Attrs, o.Attrs)
}

// stage adds stage i; before are the nodes of the stage before it. It returns those of this one.
func (e *encoder) stage(tr *trace.Trace, i int, before map[int]*Node, o Options) map[int]*Node {
	s := &tr.Stages[i]
	j := Stage{Name: s.Name, Doc: s.Doc, Index: i, Work: trace.Unfused(s.Graph), Changed: []Node{}, Numeric: contract(s.Numeric),
		Pipeline: stages(s.Pipeline, o.Measured)}
	if i == len(tr.Stages)-1 && tr.Program != nil {
		j.Work = tr.Program.Work()
	}
	if o.Measured {
		j.TookNS = s.Took.Nanoseconds()
	}
	for _, n := range s.Notes {
		j.Notes = append(j.Notes, Note{n.Node, n.Text, n.Kind.String(), n.Topic, e.origin(n.Origin)})
	}
	if s.Graph == nil { // of a compilation that failed
		e.Stages = append(e.Stages, j)
		return before
	}
	here, nodes := make(map[int]*Node, len(s.Graph.Nodes)), make(map[*graph.Node]*Node, len(s.Graph.Nodes))
	for _, n := range s.Graph.Nodes {
		if trace.IsOperation(n.Op) {
			j.Nodes++
		}
		k, old := e.nodes[n], before[n.ID]
		if k == nil {
			if k = e.node(n, false); old != nil && old.equal(k) {
				k = old
			}
		}
		if k != old {
			j.Changed = append(j.Changed, *k)
		}
		here[n.ID], nodes[n] = k, k
	}
	for id := range before {
		if here[id] == nil {
			j.Removed = append(j.Removed, id)
		}
	}
	slices.Sort(j.Removed)
	e.nodes = nodes
	outputs, updates := []Output{}, []Update{}
	for _, o := range s.Graph.Outputs {
		outputs = append(outputs, Output{o.Name, o.Node.ID})
	}
	for _, u := range s.Graph.Updates {
		updates = append(updates, Update{u.Target.ID, u.Value.ID})
	}
	if last := e.lastStage(func(s *Stage) bool { return s.Outputs != nil }); last == nil || !slices.Equal(last.Outputs, outputs) {
		j.Outputs = outputs
	}
	if last := e.lastStage(func(s *Stage) bool { return s.Updates != nil }); last == nil || !slices.Equal(last.Updates, updates) {
		j.Updates = updates
	}
	for _, m := range s.Matches {
		match := Match{Pattern: m.Pattern, Kind: m.Kind, Node: m.Node, Origin: e.origin(m.Origin), Numeric: inexact(m.Numeric)}
		if m.Pattern == s.Name {
			match.Pattern = ""
		}
		j.Matches = append(j.Matches, match)
	}
	for k := range s.Misses {
		m := &s.Misses[k]
		c := e.costs[m]
		list := c.Launches[:min(len(c.Launches), mostMissed)]
		if e.Program == nil {
			list = nil
		}
		j.Misses = append(j.Misses, Miss{Pattern: m.Pattern, Node: m.Node, At: m.At, Reason: m.Reason,
			Cause: trace.Cause(m.Reason), Origin: e.origin(m.Origin),
			Launches: list, Saves: c.Saves, Counts: c.Counts})
	}
	e.Stages = append(e.Stages, j)
	return here
}

// stages are those of a pipeline, or nil, with times if these are wanted.
func stages(p *trace.Pipeline, measured bool) *trace.Pipeline {
	if p == nil || measured || p.Measured == nil {
		return p
	}
	c := *p
	c.Measured = nil
	return &c
}

// contract is what a rule states, or nil.
func contract(n trace.Numeric) *trace.Numeric {
	if !n.Stated() {
		return nil
	}
	return &n
}

// inexact is what a match may change, or nil if it changes nothing, as most do.
func inexact(n trace.Numeric) *trace.Numeric {
	if n == trace.Exact {
		return nil
	}
	return contract(n)
}

func (e *encoder) lastStage(is func(*Stage) bool) *Stage {
	for i := len(e.Stages) - 1; i >= 0; i-- {
		if is(&e.Stages[i]) {
			return &e.Stages[i]
		}
	}
	return nil
}

func (e *encoder) program(p *trace.Program, measured bool) {
	j := &Program{Target: p.Target, Refusal: p.Refusal, ArenaBytes: p.ArenaBytes, BufferBytes: p.BufferBytes,
		ParamBytes: p.ParamBytes, PreparedBytes: p.PreparedBytes,
		Buffers: []Buffer{}, Launches: []Launch{}}
	for _, b := range p.Buffers {
		j.Buffers = append(j.Buffers, Buffer{b.Name, b.Role, b.Type.String(), b.Type.Bytes(), b.Offset, b.First, b.Last})
	}
	for _, l := range p.Launches {
		k := Launch{Node: l.Node, Kernel: l.Kernel, Kind: l.Kind, Name: l.Name, Prepared: l.Prepared, Phase: l.Phase.String(),
			Scope: l.Scope, Layer: layerOf(l.Scope), Device: l.Device, Reason: l.Reason,
			Company: l.Company,
			Reads:   append([]int{}, l.Reads...), Writes: append([]int{},
				l.Writes...), FLOPs: l.FLOPs, Bytes: l.Bytes, Origin: e.origin(l.Origin), Estimates: l.Estimates}
		if l.Source != "" {
			if e.sources[l.Source] == 0 {
				e.Sources = append(e.Sources, l.Source)
				e.sources[l.Source] = len(e.Sources)
			}
			k.Source = e.sources[l.Source]
		}
		if measured {
			k.MeasuredNS, k.Counts = l.Measured.Nanoseconds(), l.Counts
		}
		j.Launches = append(j.Launches, k)
	}
	j.repeats()
	e.Program = j
}

// mostMissed bounds how many launches are listed for one miss.
const mostMissed = 64

// missed encodes what is known of missed fusions in all stages.
func (e *encoder) missed(tr *trace.Trace) {
	e.costs = map[*trace.Miss]trace.MissCost{}
	for _, g := range tr.Missed() {
		for _, c := range g.List {
			e.costs[c.Miss] = c
		}
		e.Missed = append(e.Missed, Missed{Stage: g.Stage, Pattern: g.Pattern, Cause: g.Cause, Times: len(g.List),
			Saves: g.Saves, Counts: g.Counts})
	}
}

// layerOf is a scope up to its first part with a number or a letter that counts, or its first part if none has one.
func layerOf(scope string) string {
	for at, end := 0, 0; at < len(scope); at = end + 1 {
		if end = strings.IndexByte(scope[at:], '/'); end < 0 {
			end = len(scope)
		} else {
			end += at
		}
		if _, _, ok := numbered(scope[at:end]); ok {
			return scope[:end]
		}
	}
	layer, _, _ := strings.Cut(scope, "/")
	return layer
}

// numbered cuts the last number out of a layer's name, or the letter of one such as layerB.
func numbered(layer string) (pattern string, number int, ok bool) {
	end := strings.LastIndexAny(layer, "0123456789") + 1
	start := end
	for start > 0 && layer[start-1] >= '0' && layer[start-1] <= '9' {
		start--
	}
	if number, err := strconv.Atoi(layer[start:end]); err == nil {
		return layer[:start] + "#" + layer[end:], number, true
	}
	last := len(layer) - 1
	if last < 1 || layer[last] < 'A' || layer[last] > 'Z' || layer[last-1] < 'a' || layer[last-1] > 'z' {
		return "", 0, false
	}
	return layer[:last] + "#", int(layer[last] - 'A'), true
}

// fewest is the number of layers that are a repetition.
const fewest = 3

// repeats finds the layers that differ only in a number.
func (p *Program) repeats() {
	type layer struct {
		number int
		key    strings.Builder
	}
	layers, groups, order := map[string]*layer{}, map[string][]string{}, []string{}
	for _, l := range p.Launches {
		pattern, number, ok := numbered(l.Layer)
		if !ok {
			continue
		}
		if layers[l.Layer] == nil {
			layers[l.Layer] = &layer{number: number}
			if groups[pattern] == nil {
				order = append(order, pattern)
			}
			groups[pattern] = append(groups[pattern], l.Layer)
		}
		k := &layers[l.Layer].key
		k.WriteString(l.Kind + " " + l.Phase + " ")
		for _, b := range l.Writes {
			k.WriteString(p.Buffers[b].Type + " ")
		}
	}
	for _, pattern := range order {
		list := groups[pattern]
		if len(list) < fewest {
			continue
		}
		slices.SortFunc(list, func(a, b string) int { return cmp.Compare(layers[a].number, layers[b].number) })
		first := layers[list[0]].key.String()
		alike := !slices.ContainsFunc(list, func(l string) bool { return layers[l].key.String() != first })
		p.Repeats = append(p.Repeats, Repeat{pattern, list, alike})
	}
}
