package dot

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"fusec/graph"
)

// Layers as cards. A graph that has too many operations even with its repeated layers drawn once gets a card for each
// layer: the operations of one phase and frame whose scopes begin alike. The longer the common part, the more cards; the
// longest that keeps the picture within its number of nodes is chosen. Operations without scopes are joined in runs.

// grouping is a choice of cards: a group for each operation, numbered.
type grouping struct {
	of    map[*box]int
	count int
}

// minGroups is how many cards must remain: fewer say too little about the graph.
const minGroups = 6

// group joins cards until the picture has few enough of them.
func (b *builder) group() {
	nodes := make(map[*box]*graph.Node, len(b.boxes))
	for n, x := range b.boxes {
		if graph.ClassOf(n.Op) != graph.ClassSource {
			nodes[x] = n
		}
	}
	var cards []*box
	parts := make(map[*box][]string)
	deepest := 0
	for _, x := range b.scene.nodes {
		if n := nodes[x]; n != nil {
			cards = append(cards, x)
			if scope := b.scopes.Of(n); scope != "" {
				parts[x] = strings.Split(scope, "/")
			}
			deepest = max(deepest, len(parts[x]))
		}
	}
	room := max(b.opts.maxNodes()-len(b.scene.nodes)+len(cards), minGroups)
	for depth := deepest; depth > 0; depth-- {
		g := b.grouped(cards, room, func(i int, x *box) string {
			if p := parts[x]; len(p) > 0 {
				return strings.Join(p[:min(depth, len(p))], "/")
			}
			return "/" + x.key
		})
		if g.count <= room && g.count >= min(minGroups, len(cards)) {
			b.join(cards, nodes, g)
			return
		}
	}
	for size := (len(cards) + room - 1) / room; size <= len(cards); size *= 2 {
		g := b.grouped(cards, len(cards), func(i int, x *box) string { return fmt.Sprint(i / size) })
		if g.count <= room || 2*size > len(cards) {
			b.join(cards, nodes, g)
			return
		}
	}
}

// grouped joins the cards of one frame and phase that have the same key, unless a path from one to the other leads
// through other groups. With more keys than room it gives only their number.
func (b *builder) grouped(cards []*box, room int, key func(i int, x *box) string) grouping {
	type place struct {
		inside *cluster
		phase  graph.Phase
		key    string
	}
	g := grouping{of: make(map[*box]int, len(cards))}
	keys := make(map[place]int)
	places := make([]place, len(cards))
	for i, x := range cards {
		places[i] = place{x.inside, x.phase, key(i, x)}
		keys[places[i]] = -1
	}
	if g.count = len(keys); g.count > room {
		return g
	}
	g.count = 0
	reads := make(map[*box][]*box)
	for _, e := range b.scene.edges {
		if e.style != edgeCarried {
			reads[e.to] = append(reads[e.to], e.from)
		}
	}
	var out []map[int]bool // per group, the groups that read it
	reaches := func(from int, to map[int]bool) bool {
		seen, todo := map[int]bool{from: true}, []int{from}
		for len(todo) > 0 {
			k := todo[0]
			todo = todo[1:]
			if to[k] {
				return true
			}
			for next := range out[k] {
				if !seen[next] {
					seen[next] = true
					todo = append(todo, next)
				}
			}
		}
		return false
	}
	for i, x := range cards {
		from := make(map[int]bool)
		for _, a := range reads[x] {
			if k, ok := g.of[a]; ok {
				from[k] = true
			}
		}
		k := keys[places[i]]
		inside := k >= 0 && from[k]
		delete(from, k)
		if k < 0 || reaches(k, from) {
			if inside {
				from[k] = true
			}
			k = g.count
			keys[places[i]] = k
			out = append(out, make(map[int]bool))
			g.count++
		}
		g.of[x] = k
		for f := range from {
			out[f][k] = true
		}
	}
	return g
}

// join replaces the cards of each group by one.
func (b *builder) join(cards []*box, nodes map[*box]*graph.Node, g grouping) {
	members := make([][]*box, g.count)
	for _, x := range cards {
		members[g.of[x]] = append(members[g.of[x]], x)
	}
	to := make(map[*box]*box)
	for _, all := range members {
		x := all[0]
		if len(all) > 1 {
			x = b.groupCard(all, nodes)
		}
		for _, m := range all {
			to[m] = x
		}
	}
	drawn := make(map[*box]bool)
	boxes := b.scene.nodes
	b.scene.nodes, b.scene.used = nil, nil
	for _, x := range boxes {
		x = cmp.Or(to[x], x)
		if !drawn[x] {
			drawn[x] = true
			b.scene.box(x)
			if x.host {
				b.scene.use(lookHost)
			}
		}
	}
	seen := make(map[edge]bool)
	b.scene.edges = slices.DeleteFunc(b.scene.edges, func(e *edge) bool {
		e.from, e.to = cmp.Or(to[e.from], e.from), cmp.Or(to[e.to], e.to)
		same := edge{from: e.from, to: e.to, style: e.style}
		if e.from == e.to || seen[same] {
			return true
		}
		seen[same] = true
		return false
	})
}

// groupCard is the card of several operations: how many there are, the part of their names that they share, the kinds,
// costs, parameters and missed fusions. It has the colour of the one with the most arithmetic.
func (b *builder) groupCard(all []*box, nodes map[*box]*graph.Node) *box {
	first := nodes[all[0]]
	x := &box{key: fmt.Sprintf("group%d", first.ID), look: all[0].look, inside: all[0].inside, phase: all[0].phase}
	kinds, misses, updates := make(map[string]int), make(map[string]int), make(map[string]bool)
	sources := make(map[*graph.Node]bool)
	var scope []string
	var flops, most, bytes, weights int64
	var tips []string
	launches, hosts := 0, 0
	for i, m := range all {
		n := nodes[m]
		c := graph.CostOf(n)
		f, t := c.FLOPs, c.Bytes()
		if l, ok := b.launches[n.ID]; ok {
			f, t = l.FLOPs, l.Bytes
		}
		if flops, bytes = flops+f, bytes+t; f > most {
			x.look, most = m.look, f
		}
		if b.isLaunch(n) {
			launches++
		}
		if m.host {
			hosts++
		}
		x.time += m.time
		if _, host := n.Op.(graph.Host); host {
			kinds[looks[lookHost].name]++
		} else {
			kinds[opName(n.Op)]++
		}
		for _, k := range m.marks {
			misses[k]++
		}
		for _, s := range m.sources {
			if u, ok := strings.CutPrefix(s, "updates "); ok {
				updates[u] = true
			}
		}
		for _, a := range n.Args {
			if s := b.operand(a).source; s != nil && b.consts[a] == nil && !sources[s] {
				sources[s] = true
				weights += s.Type.Bytes()
			}
		}
		if p := strings.Split(b.scopes.Of(n), "/"); i == 0 {
			scope = p
		} else {
			k := 0
			for k < min(len(p), len(scope)) && p[k] == scope[k] {
				k++
			}
			scope = scope[:k]
		}
		if len(tips) < maxOrigins {
			tip, _, _ := strings.Cut(m.tooltip, "\n")
			tips = append(tips, tip)
		} else if i == len(all)-1 {
			tips = append(tips, fmt.Sprintf("and %d more", len(all)-maxOrigins))
		}
	}
	x.tooltip, x.time, x.host = strings.Join(tips, "\n"), min(x.time, 1), hosts == len(all)
	x.head = plural(len(all), "operation")
	if launches == len(all) && b.program != nil {
		x.head = plural(launches, "launch")
	}
	if name := b.local(first, b.path(strings.Join(scope, "/"))); name != "" {
		x.lines = append(x.lines, textLine{short(name, 44), roleName})
	}
	var words []string
	byCount := slices.SortedFunc(maps.Keys(kinds),
		func(a, b string) int { return cmp.Or(kinds[b]-kinds[a], strings.Compare(a, b)) })
	for i, k := range byCount {
		if i == 4 {
			words = append(words, fmt.Sprintf("and %d more", len(byCount)-i))
			break
		}
		if kinds[k] > 1 {
			k = fmt.Sprintf("%d × %s", kinds[k], k)
		}
		words = append(words, k)
	}
	for _, l := range joinShort(words, 38) {
		x.lines = append(x.lines, textLine{l, roleOp})
	}
	x.lines = append(x.lines, textLine{humanFLOPs(flops) + " · " + humanBytes(bytes), roleType})
	if hosts > 0 && hosts < len(all) {
		x.lines = append(x.lines, textLine{fmt.Sprintf("%d of them on the host", hosts), roleType})
	}
	if len(sources) > 0 {
		x.sources = append(x.sources, plural(len(sources), "parameter")+" · "+humanBytes(weights))
	}
	if len(updates) > 0 {
		x.sources = append(x.sources, "updates "+plural(len(updates), "state"))
	}
	for _, k := range slices.Sorted(maps.Keys(misses)) {
		if misses[k] > 1 {
			k = fmt.Sprintf("%s (× %d)", k, misses[k])
		}
		x.marks = append(x.marks, k)
	}
	return x
}
