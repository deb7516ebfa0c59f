package dot

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"fusec/graph"
)

// A training step has three regions, one for each phase. The optimiser's nodes are one box; of the many edges between
// the phases, those of gradients to the optimiser are joined, and those of values that are kept for the backward pass
// become a line of text where they are many.

// optimiserStep is the box of the optimiser, in a stage of a pipeline or in the whole graph.
type optimiserStep struct {
	stage    int // of a pipeline, or -1
	box      *box
	nodes    []*graph.Node
	launches int
}

const (
	maxKept      = 8 // edges from the forward to the backward pass that are drawn singly
	maxGradients = 8 // edges to the optimiser that are drawn singly
)

// fold makes n a part of the optimiser's box.
func (b *builder) fold(n *graph.Node) {
	home := b.homes[n]
	i := slices.IndexFunc(b.steps, func(s *optimiserStep) bool { return s.stage == home.stage })
	if i < 0 {
		i = len(b.steps)
		key := "optimiser"
		if home.stage >= 0 {
			key = fmt.Sprintf("optimiser%d", home.stage+1)
		}
		b.steps = append(b.steps, &optimiserStep{stage: home.stage, box: b.scene.box(&box{key: key, look: lookOptimiser,
			inside: b.region(home), phase: graph.Optimiser})})
	}
	s := b.steps[i]
	s.nodes = append(s.nodes, n)
	if b.isLaunch(n) {
		s.launches++
	}
	count := 1
	if f, ok := n.Op.(graph.Fusion); ok {
		count = len(f.Body.Outputs)
	}
	for range count {
		b.values[n] = append(b.values[n], value{box: s.box, typ: n.Type})
	}
	for _, a := range n.Args {
		if _, folded := b.consts[a]; !folded && graph.ClassOf(a.Op) != graph.ClassSource {
			b.edge(b.operand(a), s.box, n.Type)
		}
	}
}

// finishSteps writes the labels of the optimiser's boxes.
func (b *builder) finishSteps() {
	for _, s := range b.steps {
		b.finishStep(s)
	}
}

func (b *builder) finishStep(s *optimiserStep) {
	x := s.box
	params, moments, bytes := 0, []string(nil), int64(0)
	for _, u := range b.graph.Updates {
		if b.homes[u.Value].stage != s.stage {
			continue
		}
		switch u.Target.Op.(type) {
		case graph.Param:
			params++
		case graph.State:
			if b.phases[u.Value] != graph.Optimiser {
				continue
			}
			bytes += u.Target.Type.Bytes()
			rest, _ := strings.CutPrefix(u.Target.Name, "optim/")
			if moment, _, ok := strings.Cut(rest, "/"); ok && !slices.Contains(moments, moment) {
				moments = append(moments, moment)
			}
		}
	}
	x.head = strings.TrimSpace(clean(b.rule) + " step")
	x.lines = []textLine{{"changes " + plural(params, "parameter"), roleName}}
	if len(moments) > 0 {
		x.lines = append(x.lines, textLine{"moments " + strings.Join(cleanAll(moments), ", ") + " · " + humanBytes(bytes), roleOp})
	}
	var flops, traffic int64
	tips := []string{"the optimiser's launches:"}
	for _, n := range s.nodes {
		if !b.isLaunch(n) {
			continue
		}
		c := graph.CostOf(n)
		f, t := c.FLOPs, c.Bytes()
		number := ""
		if l, ok := b.launches[n.ID]; ok {
			f, t, number = l.FLOPs, l.Bytes, fmt.Sprintf("#%d ", l.order)
		}
		flops, traffic = flops+f, traffic+t
		x.time += float64(b.times[n])
		if len(tips) <= maxOrigins {
			tips = append(tips, number+opName(n.Op)+", "+humanFLOPs(f)+", "+humanBytes(t))
		}
	}
	if x.time > 0 {
		x.time = min(x.time/float64(b.longest), 1)
		b.scene.timed = true
	}
	x.lines = append(x.lines, textLine{plural(s.launches, "launch") + " · " + humanFLOPs(flops) + " · " +
		humanBytes(traffic), roleType})
	x.tooltip = strings.Join(tips, "\n")
}

// askedGradients is the box of the gradients of one cost that a later pass makes.
type askedGradients struct {
	cost *graph.Node
	box  *box
	of   []*graph.Node
}

// ask makes n, which waits for the gradient of its first operand by its second, a part of the box of that cost.
func (b *builder) ask(n *graph.Node) {
	i := slices.IndexFunc(b.asked, func(a *askedGradients) bool { return a.cost == n.Args[0] })
	if i < 0 {
		i = len(b.asked)
		b.asked = append(b.asked, &askedGradients{cost: n.Args[0],
			box: b.scene.box(&box{key: fmt.Sprintf("asked%d", i), look: lookCarried, inside: b.region(b.homes[n]),
				phase: b.phases[n]})})
	}
	a := b.asked[i]
	a.of = append(a.of, n.Args[1])
	b.values[n] = []value{{box: a.box, typ: n.Type}}
	for j, arg := range n.Args {
		if j != 1 {
			b.edge(b.operand(arg), a.box, n.Type)
		}
	}
}

// finishAsked writes the labels of the boxes of gradients.
func (b *builder) finishAsked() {
	const listed = 4
	for _, a := range b.asked {
		a.box.head = plural(len(a.of), "gradient") + " to be made"
		if name := cmp.Or(a.cost.Name, b.losses[a.cost]); name != "" {
			a.box.lines = append(a.box.lines, textLine{"of " + short(clean(name), 40), roleName})
		}
		tips := []string{"by"}
		for i, n := range a.of {
			switch {
			case i < listed:
				a.box.lines = append(a.box.lines, textLine{"by " + short(clean(cmp.Or(n.Name, opName(n.Op))), 40), roleOp})
			case i == listed:
				a.box.lines = append(a.box.lines, textLine{fmt.Sprintf("and %d more", len(a.of)-i), roleType})
			}
			if i < maxOrigins {
				tips = append(tips, clean(cmp.Or(n.Name, opName(n.Op))))
			} else if i == maxOrigins {
				tips = append(tips, fmt.Sprintf("and %d more", len(a.of)-i))
			}
		}
		a.box.tooltip = strings.Join(tips, "\n")
	}
}

// bundle thins out the edges between the phases.
func (b *builder) bundle() {
	if len(b.regions) < 2 || b.detail == Full {
		return
	}
	last := make(map[*box]*edge) // into a box of the backward pass, the edge that is drawn in any case
	flows := make(map[*box]bool) // has an edge from the backward pass
	depth := b.scene.depths()
	for _, e := range b.scene.edges {
		if e.style == edgeCarried {
			continue
		}
		if e.from.phase == graph.Backward {
			flows[e.to] = true
		}
		if l := last[e.to]; e.from.phase == graph.Forward && e.from.look != lookInput &&
			(l == nil || depth[l.from] < depth[e.from]) {
			last[e.to] = e
		}
	}
	kept, gradients := make(map[*edge]bool), make(map[*edge]bool)
	for _, e := range b.scene.edges {
		switch {
		case e.style == edgeCarried:
		case e.to.phase == graph.Optimiser && e.from.phase == graph.Backward:
			gradients[e] = true
		case e.to.phase > graph.Forward && e.to.phase != prepared && e.from.phase == graph.Forward &&
			(flows[e.to] || last[e.to] != e):
			kept[e] = true
			e.style = edgeKept
		}
	}
	type pair struct{ from, to *cluster }
	count := make(map[pair]int)
	joined := make(map[*cluster]*edge)
	b.scene.edges = slices.DeleteFunc(b.scene.edges, func(e *edge) bool {
		switch {
		case kept[e] && len(kept) > maxKept:
			if e.to.phase == graph.Backward {
				count[pair{e.from.inside, e.to.inside}]++
			}
			return true
		case gradients[e] && len(gradients) > maxGradients:
			if j := joined[e.from.inside]; j != nil && depth[j.from] > depth[e.from] {
				return true
			}
			joined[e.from.inside] = e
			return true
		}
		return false
	})
	var notes []string
	for _, from := range b.scene.clusters {
		for _, to := range b.scene.clusters {
			if k := count[pair{from, to}]; k > 0 {
				notes = append(notes, fmt.Sprintf("reads %s of %s", plural(k, "kept value"), from.title))
				to.notes = append(to.notes, notes[len(notes)-1])
			}
		}
		if e := joined[from]; e != nil {
			k := 0
			for g := range gradients {
				if g.from.inside == from {
					k++
				}
			}
			e.whole, e.label, e.tooltip = true, "gradients", plural(k, "gradient")
			b.scene.edges = append(b.scene.edges, e)
		}
	}
}
