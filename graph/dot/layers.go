package dot

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"fusec/graph"
	"fusec/graph/trace"
)

// Layers with names. The user's names say which layer a node belongs to: layer3/attention/q is of number 3 of "layer".
// The layers of one phase are repetitions of each other if they have the same operations at the same places. What only
// the first or the last layer has stays outside, such as the gradient of an embedding.

// layerKey names a row of numbered layers.
type layerKey struct {
	home   region
	prefix string // of the scope, up to the number
	inside *block
}

// layer is the part of a phase with one number.
type layer struct {
	number, at int // at is the place of the first node in the graph
	parts      map[string][]*graph.Node
	size       int
}

// maxDepth bounds how deep numbered layers are nested.
const maxDepth = 3

// named finds the repetitions of named layers.
func (r *repeats) named(g *graph.Graph, homes map[*graph.Node]region) {
	var scopes graph.Scopes
	at := make(map[*graph.Node]int, len(g.Nodes))
	parts := make(map[*graph.Node]string)
	for i, n := range g.Nodes {
		at[n] = i
	}
	for depth := range maxDepth {
		rows := make(map[layerKey]map[int]*layer)
		var order []layerKey
		for i, n := range g.Nodes {
			if r.isLeaf(n) || graph.IsPlaceholder(n.Op) || !trace.NeedsLaunch(n.Op) || r.first[n] != nil ||
				homes[n].phase == graph.Optimiser {
				continue
			}
			prefix, number, rest, ok := numbered1(scopes.Of(n), depth)
			if !ok {
				continue
			}
			k := layerKey{homes[n], prefix, r.in[n]}
			if rows[k] == nil {
				rows[k] = make(map[int]*layer)
				order = append(order, k)
			}
			l := rows[k][number]
			if l == nil {
				l = &layer{number: number, at: i, parts: make(map[string][]*graph.Node)}
				rows[k][number] = l
			}
			if parts[n] == "" {
				parts[n] = looseText(n)
			}
			p := rest + " " + parts[n]
			l.parts[p] = append(l.parts[p], n)
			l.size++
		}
		for _, k := range order {
			r.row(k, rows[k], at)
		}
	}
	r.views(g)
}

// minLayers is how many alike named layers are drawn as one: two in a graph that is too large to be drawn whole.
func (r *repeats) minLayers() int {
	if r.large {
		return 2
	}
	return minChain
}

// numbered1 splits a scope at the number that ends its part, the depth-th of such.
func numbered1(scope string, depth int) (prefix string, number int, rest string, ok bool) {
	for i := 0; i < len(scope); i++ {
		if notDigit(rune(scope[i])) {
			continue
		}
		j := i
		for j < len(scope) && !notDigit(rune(scope[j])) {
			j++
		}
		if j < len(scope) && scope[j] != '/' {
			i = j
			continue
		}
		if depth == 0 {
			number, err := strconv.Atoi(scope[i:j])
			return scope[:i], number, scope[j:], err == nil
		}
		depth--
		i = j
	}
	return "", 0, "", false
}

// looseText is what a node computes without regard to shapes: a layer's first operand may have another form than that
// of the layers behind it.
func looseText(n *graph.Node) string {
	var b strings.Builder
	var write func(n *graph.Node)
	write = func(n *graph.Node) {
		if graph.IsView(n.Op) || graph.IsSource(n.Op) {
			return
		}
		fmt.Fprintf(&b, "%s %v %d", opName(n.Op), n.Type.DType, n.Type.Shape.Elems())
		if f, ok := n.Op.(graph.Fusion); ok {
			for _, k := range f.Body.Nodes {
				write(k)
			}
			return
		}
		for _, a := range attributes(n.Op) {
			switch a.value.(type) {
			case bool, float64, string, int:
				fmt.Fprintf(&b, " %s=%v", a.key, a.value)
			}
		}
		b.WriteByte(';')
	}
	write(n)
	return b.String()
}

// row finds blocks in a row of layers: of single layers, or of up to four different ones that take turns.
func (r *repeats) row(k layerKey, byNumber map[int]*layer, at map[*graph.Node]int) {
	var layers []*layer
	for _, l := range byNumber {
		layers = append(layers, l)
	}
	slices.SortFunc(layers, func(a, b *layer) int { return cmp.Compare(a.at, b.at) })
	for period := 1; period <= 4; period++ {
		groups := joinLayers(layers, period)
		done := false
		for i := 0; i+r.minLayers() <= len(groups); {
			j, common := alike(groups[i:])
			if j < r.minLayers() || !r.layers(k, groups[i:i+j], common, at) {
				i++
				continue
			}
			i += j
			done = true
		}
		if done {
			return
		}
	}
}

// joinLayers makes one layer of each period layers.
func joinLayers(layers []*layer, period int) []*layer {
	if period == 1 {
		return layers
	}
	var joined []*layer
	for i := 0; i+period <= len(layers); i += period {
		l := &layer{number: layers[i].number, at: layers[i].at, parts: make(map[string][]*graph.Node)}
		for j, m := range layers[i : i+period] {
			for p, nodes := range m.parts {
				l.parts[fmt.Sprint(j, p)] = nodes
			}
			l.size += m.size
		}
		joined = append(joined, l)
	}
	return joined
}

// alike counts the layers at the beginning that have nearly all parts in common, and how often each part is in all.
func alike(layers []*layer) (count int, common map[string]int) {
	common = make(map[string]int)
	for p, nodes := range layers[0].parts {
		common[p] = len(nodes)
	}
	largest := layers[0].size
	for i, l := range layers {
		if i > 0 {
			if d := l.number - layers[i-1].number; i > 1 && d != layers[1].number-layers[0].number || d == 0 {
				return i, common
			}
		}
		next, size := make(map[string]int), 0
		for p, k := range common {
			if k = min(k, len(l.parts[p])); k > 0 {
				next[p] = k
				size += k
			}
		}
		// Only the first and the last may have something that the others lack.
		if largest = max(largest, l.size); 4*size < 3*largest || i > 1 && layers[i-1].size != size {
			return i, common
		}
		common = next
	}
	return len(layers), common
}

// layers records a block of alike layers, unless their wiring differs.
func (r *repeats) layers(k layerKey, layers []*layer, common map[string]int, at map[*graph.Node]int) bool {
	// The nodes of each layer, all in the same order: that in the first layer.
	type key struct {
		part string
		i    int
	}
	var order []key
	for p, count := range common {
		for i := range count {
			order = append(order, key{p, i})
		}
	}
	slices.SortFunc(order, func(a, b key) int {
		return cmp.Compare(at[layers[0].parts[a.part][a.i]], at[layers[0].parts[b.part][b.i]])
	})
	if (len(layers)-1)*len(order) < minHidden {
		return false
	}
	nodes := make([][]*graph.Node, len(layers))
	where := make(map[*graph.Node][2]int) // repetition and offset
	for l := range layers {
		for j, o := range order {
			n := layers[l].parts[o.part][o.i]
			nodes[l] = append(nodes[l], n)
			where[n] = [2]int{l, j}
		}
	}
	if len(layers) == 2 && r.detour(where) {
		return false
	}
	b := &block{count: len(layers), nodes: nodes[0], last: nodes[len(nodes)-1], parent: k.inside, prefix: k.prefix,
		first: layers[0].number, final: layers[len(layers)-1].number}
	for j, n := range nodes[1] {
		for i, a := range n.Args {
			if i >= len(nodes[0][j].Args) {
				return false
			}
			w, in := where[base(a)]
			for l := 2; l < len(nodes)-1; l++ {
				m := nodes[l][j]
				if len(m.Args) != len(n.Args) {
					return false
				}
				v, inside := where[base(m.Args[i])]
				if in != inside || in && (v[1] != w[1] || v[0]-l != w[0]-1) {
					return false
				}
			}
			if in && w[0] == 0 {
				b.carried = append(b.carried, carry{nodes[0][w[1]], nodes[0][j], i})
			}
		}
	}
	for j, n0 := range b.nodes {
		r.in[n0] = b
		for l := range nodes {
			n := nodes[l][j]
			r.places[n] = append(r.places[n], place{b, l, j})
			if l == 0 {
				continue
			}
			r.first[n] = n0
			for i, a := range n.Args {
				if a = base(a); i >= len(n0.Args) || !r.isLeaf(a) || r.consts[a] != nil {
					continue
				}
				a0 := base(n0.Args[i])
				if a != a0 && r.isLeaf(a0) && r.consts[a0] == nil && r.rep(a) == a && r.rep(a0) == a0 && a.Type == a0.Type {
					r.first[a] = a0
					if r.in[a0] == nil {
						r.in[a0] = b
						b.leaves = append(b.leaves, a0)
						b.lastOwn = append(b.lastOwn, a)
					}
				}
				if l == len(nodes)-1 {
					if i := slices.Index(b.leaves, a0); i >= 0 {
						b.lastOwn[i] = a
					}
				}
			}
		}
	}
	r.blocks = append(r.blocks, b)
	return true
}

// detour reports whether a value of the given nodes comes back to them by way of an operation that is not among them.
// Drawn as one, the layers would have an arrow against the order of the program.
func (r *repeats) detour(among map[*graph.Node][2]int) bool {
	out := make(map[*graph.Node]bool) // follows from one of the nodes, and is none
	for _, n := range r.graph.Nodes {
		if passes(n) {
			continue
		}
		_, in := among[n]
		for _, a := range n.Args {
			a = base(a)
			_, from := among[a]
			switch {
			case in && out[a]:
				return true
			case !in && (from || out[a]):
				out[n] = true
			}
		}
	}
	return false
}

// base looks through views and Results.
func base(n *graph.Node) *graph.Node {
	for passes(n) {
		n = n.Args[0]
	}
	return n
}

// views makes the views and Results of hidden nodes hidden, too.
func (r *repeats) views(g *graph.Graph) {
	type key struct {
		of   *graph.Node
		text string
		i    int
	}
	seen := make(map[key]*graph.Node)
	count := make(map[key]int)
	type hidden struct {
		n *graph.Node
		k key
	}
	var all []hidden
	for _, n := range g.Nodes {
		if !passes(n) || r.isLeaf(n) || r.first[n] != nil || len(n.Args) == 0 {
			continue
		}
		each := key{n.Args[0], opLabel(n, r.consts), 0}
		k := key{n.Args[0], each.text, count[each]}
		count[each]++
		if of := r.rep(n.Args[0]); of != n.Args[0] {
			k.of = of
			all = append(all, hidden{n, k})
			if m := seen[k]; m != nil {
				r.first[n] = m
			}
			continue
		}
		seen[k] = n
		if b := r.in[n.Args[0]]; b != nil && r.in[n] == nil {
			r.in[n] = b
		}
	}
	for _, h := range all {
		if m := seen[h.k]; m != nil && r.first[h.n] == nil {
			r.first[h.n] = m
		}
	}
}
