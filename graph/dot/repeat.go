package dot

import (
	"cmp"
	"slices"

	"fusec/graph"
	"fusec/graph/trace"
)

// Repeated layers. The computing nodes are listed in a row, numbered by signature. A part of the row that equals itself
// shifted by p nodes is a candidate: k repetitions of p nodes. It is a repetition if the edges are equal, too, that is,
// if each operand in repetition r is
//
//   - the corresponding node of the same repetition, or
//   - the value that the corresponding node of repetition r−1 passes on (a carried value), or
//   - the same node for all repetitions, or
//   - a source or constant of this repetition only, or
//   - the corresponding node of another, earlier repetition with the same count, in step with this one or backwards,
//     as a gradient reads the values of the forward layers.
//
// The candidate that hides most nodes is chosen. Then the search continues before it, after it and inside the
// repetition that is drawn.

// block is a sequence of nodes that repeats.
type block struct {
	count   int           // of repetitions
	nodes   []*graph.Node // of the first repetition
	last    []*graph.Node // of the last one
	leaves  []*graph.Node // sources and constants that only the first repetition reads
	lastOwn []*graph.Node // the same of the last one
	carried []carry
	parent  *block // the block whose first repetition contains this one

	prefix       string // of named layers, the scope up to their numbers
	first, final int    // the numbers of the first and the last repetition
}

// carry is a value that a repetition passes to the next.
type carry struct {
	from    *graph.Node // of the first repetition
	to      *graph.Node // of the first repetition; represents its counterpart in the second
	operand int         // of to
}

// named reports whether the repetitions are layers that the user has numbered.
func (b *block) named() bool { return b.first != b.final }

// counterpart is the node of the last repetition that corresponds to n of the first.
func (b *block) counterpart(n *graph.Node) *graph.Node {
	if i := slices.Index(b.nodes, n); i >= 0 {
		return b.last[i]
	}
	if i := slices.Index(b.leaves, n); i >= 0 {
		return b.lastOwn[i]
	}
	return n
}

// carries reports whether operand i of n comes from the repetition before.
func (r *repeats) carries(n *graph.Node, i int) bool {
	for b := r.in[n]; b != nil; b = b.parent {
		if slices.ContainsFunc(b.carried, func(c carry) bool { return c.to == n && c.operand == i }) {
			return true
		}
	}
	return false
}

// place is the position of a node in its block. The value that the first repetition reads instead of a carried value
// counts as passed on by repetition −1.
type place struct {
	block      *block
	repetition int
	offset     int // in nodes, or below 0 for one of the leaves
}

// repeats is the result of the search.
type repeats struct {
	blocks []*block
	// first maps the nodes of further repetitions to their counterparts in the first.
	first map[*graph.Node]*graph.Node
	// in is the innermost block whose first repetition contains a node.
	in map[*graph.Node]*block

	places map[*graph.Node][]place
	consts folds
	sigs   map[*graph.Node]int
	large  bool // more launches than a picture is to have
	graph  *graph.Graph
}

const (
	minChain    = 3   // repetitions with carried values
	minParallel = 4   // repetitions without carried values
	minHidden   = 4   // nodes that a repetition must save
	maxBlocks   = 64  // bounds the search
	maxTries    = 64  // candidates per stretch that are checked
	maxRotation = 512 // starting points per candidate
	smallGraph  = 24  // graphs of fewer operations are drawn completely
)

// rep is the node that represents n in the picture.
func (r *repeats) rep(n *graph.Node) *graph.Node {
	for {
		m, ok := r.first[n]
		if !ok {
			return n
		}
		n = m
	}
}

// findRepeats searches g: first layers that the user has numbered, then, region by region, anything else that repeats.
func findRepeats(g *graph.Graph, consts folds, homes map[*graph.Node]region) *repeats {
	r := &repeats{first: make(map[*graph.Node]*graph.Node), in: make(map[*graph.Node]*block),
		places: make(map[*graph.Node][]place), consts: consts, sigs: make(map[*graph.Node]int), graph: g}
	launches := 0
	for _, n := range g.Nodes {
		if trace.NeedsLaunch(n.Op) && homes[n].phase != graph.Optimiser {
			launches++
		}
	}
	r.large = launches > DefaultMaxNodes
	r.named(g, homes)
	sigs := newSignatures(consts)
	rest := func(home region) func(n *graph.Node) bool {
		return func(n *graph.Node) bool {
			return homes[n] == home && !r.isLeaf(n) && !graph.IsPlaceholder(n.Op) && r.first[n] == nil && r.in[n] == nil
		}
	}
	for _, b := range slices.Clone(r.blocks) {
		var row []*graph.Node
		for _, n := range g.Nodes {
			if r.in[n] == b && !r.isLeaf(n) {
				r.sigs[n] = sigs.of(n)
				row = append(row, n)
			}
		}
		r.search(row, b)
	}
	deep := r.depthFirst(g)
	stages := -1
	for _, h := range homes {
		stages = max(stages, h.stage)
	}
	var all []region
	for stage := -1; stage <= stages; stage++ {
		for _, phase := range []graph.Phase{graph.Forward, graph.Backward, prepared} {
			all = append(all, region{stage, phase})
		}
	}
	for _, home := range all {
		row := slices.DeleteFunc(slices.Clone(g.Nodes), func(n *graph.Node) bool { return !rest(home)(n) })
		if len(row) <= smallGraph {
			continue
		}
		for _, n := range row {
			r.sigs[n] = sigs.of(n)
		}
		other := slices.DeleteFunc(slices.Clone(deep), func(n *graph.Node) bool { return !rest(home)(n) })
		if r.best(other).hidden() > r.best(row).hidden() {
			row = other
		}
		r.search(row, nil)
	}
	return r
}

// isLeaf reports whether n is a source or constant, or a view of a constant that is folded.
func (r *repeats) isLeaf(n *graph.Node) bool {
	if _, ok := r.consts[n]; ok {
		return true
	}
	return graph.ClassOf(n.Op) == graph.ClassSource
}

// depthFirst lists the computing nodes in the order in which a walk from the outputs completes them, which depends only
// on the edges.
func (r *repeats) depthFirst(g *graph.Graph) []*graph.Node {
	type step struct {
		n    *graph.Node
		next int
	}
	var row []*graph.Node
	var stack []step
	seen := make(map[*graph.Node]bool, len(g.Nodes))
	visit := func(root *graph.Node) {
		push := func(n *graph.Node) {
			if !seen[n] {
				seen[n] = true
				stack = append(stack, step{n, 0})
			}
		}
		for push(root); len(stack) > 0; {
			top := &stack[len(stack)-1]
			if top.next < len(top.n.Args) {
				top.next++
				push(top.n.Args[top.next-1])
				continue
			}
			if !r.isLeaf(top.n) {
				row = append(row, top.n)
			}
			stack = stack[:len(stack)-1]
		}
	}
	for _, o := range g.Outputs {
		visit(o.Node)
	}
	for _, u := range g.Updates {
		visit(u.Value)
	}
	return row
}

// search finds blocks in a row of nodes and in its remaining parts.
func (r *repeats) search(row []*graph.Node, parent *block) {
	type stretch struct {
		row    []*graph.Node
		parent *block
	}
	todo := []stretch{{row, parent}}
	for len(todo) > 0 && len(r.blocks) < maxBlocks {
		s := todo[0]
		todo = todo[1:]
		f := r.best(s.row)
		if f == nil {
			continue
		}
		b := r.accept(s.row, f, s.parent)
		end := f.start + f.period*f.count
		todo = append(todo, stretch{s.row[:f.start], s.parent}, stretch{s.row[end:], s.parent}, stretch{b.nodes, b})
	}
}

// found is a part of a row that repeats.
type found struct {
	start, period, count int
	carried              []carry
	own                  []map[*graph.Node]*graph.Node // per repetition: leaf of the first → leaf of this one
}

func (f *found) hidden() int {
	if f == nil {
		return 0
	}
	return (f.count - 1) * f.period
}

// better compares candidates: more hidden nodes are better, unless one repetition less gives a cleaner cut.
func (f *found) better(g *found) bool {
	if g == nil {
		return true
	}
	values, others := f.values(), g.values()
	if f.period == g.period && max(f.count-g.count, g.count-f.count) <= 1 && values != others && values > 0 && others > 0 {
		return values < others
	}
	return f.hidden() > g.hidden()
}

// values counts the values that a repetition passes to the next.
func (f *found) values() int {
	from := make(map[*graph.Node]bool)
	for _, c := range f.carried {
		from[c.from] = true
	}
	return len(from)
}

// best finds the candidate that hides most nodes of a row, or nil.
func (r *repeats) best(row []*graph.Node) *found {
	type candidate struct{ start, period, length int }
	var list []candidate
	sigs := make([]int, len(row))
	for i, n := range row {
		sigs[i] = r.sigs[n]
	}
	for p := 1; p <= len(row)/2; p++ {
		run := 0
		for i := 0; i+p <= len(row); i++ {
			if i+p < len(row) && sigs[i] == sigs[i+p] {
				run++
				continue
			}
			if k := run/p + 1; k >= minChain && (k-1)*p >= minHidden {
				list = append(list, candidate{i - run, p, run + p})
			}
			run = 0
		}
	}
	slices.SortStableFunc(list, func(a, b candidate) int {
		return cmp.Or(cmp.Compare((b.length/b.period-1)*b.period, (a.length/a.period-1)*a.period), cmp.Compare(a.period, b.period))
	})
	var top *found
	for _, c := range list[:min(len(list), maxTries)] {
		if top != nil && (c.length/c.period-1)*c.period <= top.hidden() {
			break
		}
		var own *found
		for off := 0; off <= min(c.period, maxRotation); off++ {
			f := r.check(row, c.start+off, c.period, (c.length-off)/c.period)
			if f != nil && f.better(own) {
				own = f
			}
		}
		if own.hidden() > top.hidden() {
			top = own
		}
	}
	return top
}

// check compares the wiring of the repetitions that start at row[start] and returns those that agree, or nil.
func (r *repeats) check(row []*graph.Node, start, period, count int) *found {
	if count < minChain {
		return nil
	}
	at := make(map[*graph.Node]int, period*count)
	for i := range period * count {
		at[row[start+i]] = i
	}
	f := &found{start: start, period: period, own: []map[*graph.Node]*graph.Node{{}}}
	carried := make(map[[2]int]int) // (node, operand) of the first repetition → offset of the carried value
	owner := make(map[*graph.Node]int)
	// wire compares operand i of the node at offset j in repetition k with that of the first repetition.
	wire := func(k, j, i int, own map[*graph.Node]*graph.Node) bool {
		a0, a := row[start+j].Args[i], row[start+k*period+j].Args[i]
		p0, in0 := at[a0]
		p, in := at[a]
		switch {
		case in0:
			return in && p0 < period && p == p0+k*period
		case in:
			if p < (k-1)*period || p >= k*period {
				return false
			}
			off, known := carried[[2]int{j, i}]
			if k == 1 {
				carried[[2]int{j, i}] = p
				return true
			}
			return known && off == p-(k-1)*period
		}
		if _, known := carried[[2]int{j, i}]; known {
			return false
		}
		if a == a0 {
			return true
		}
		if r.isLeaf(a0) && r.isLeaf(a) && r.rep(a0) == a0 && r.rep(a) == a {
			return r.ownLeaf(own, owner, k, a0, a)
		}
		return r.inStep(a0, a, row[start+period+j].Args[i], k)
	}
	for k := 1; k < count; k++ {
		own := make(map[*graph.Node]*graph.Node)
		for j := range period {
			for i := range row[start+j].Args {
				if !wire(k, j, i, own) {
					count = k
					break
				}
			}
			if count == k {
				break
			}
		}
		if k < count {
			f.own = append(f.own, own)
		}
	}
	f.count = count
	least := minParallel
	if len(carried) > 0 {
		least = minChain
	}
	if count < least || f.hidden() < minHidden {
		return nil
	}
	for _, key := range sortedKeys(carried) {
		f.carried = append(f.carried, carry{row[start+carried[key]], row[start+key[0]], key[1]})
	}
	return f
}

func sortedKeys(m map[[2]int]int) [][2]int {
	keys := make([][2]int, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b [2]int) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) })
	return keys
}

// ownLeaf pairs the leaf a of repetition k with the leaf a0 of the first.
func (r *repeats) ownLeaf(own map[*graph.Node]*graph.Node, owner map[*graph.Node]int, k int, a0, a *graph.Node) bool {
	if a0.Type != a.Type || a0.Op.OpName() != a.Op.OpName() {
		return false
	}
	v0, fold0 := r.consts[a0]
	v, fold := r.consts[a]
	if fold0 || fold {
		return fold0 && fold && v0.Equal(v)
	}
	if b, ok := own[a0]; ok {
		return b == a
	}
	if o, ok := owner[a0]; ok && o != 0 {
		return false
	}
	if o, ok := owner[a]; ok && o != k {
		return false
	}
	own[a0], owner[a0], owner[a] = a, 0, k
	return true
}

// inStep reports whether operands a0, a1 and ak of repetitions 0, 1 and k are corresponding nodes of an earlier block,
// in step with it or backwards.
func (r *repeats) inStep(a0, ak, a1 *graph.Node, k int) bool {
	for _, p0 := range r.places[a0] {
		for _, p1 := range r.places[a1] {
			for _, pk := range r.places[ak] {
				if p0.block == p1.block && p0.block == pk.block && p0.offset == p1.offset && p0.offset == pk.offset {
					step := p1.repetition - p0.repetition
					if (step == 1 || step == -1) && pk.repetition == p0.repetition+k*step {
						return true
					}
				}
			}
		}
	}
	return false
}

// accept records a block.
func (r *repeats) accept(row []*graph.Node, f *found, parent *block) *block {
	b := &block{count: f.count, carried: f.carried, parent: parent, nodes: row[f.start : f.start+f.period]}
	b.last = row[f.start+(f.count-1)*f.period:][:f.period]
	for k := range f.count {
		for j, n0 := range b.nodes {
			n := row[f.start+k*f.period+j]
			r.places[n] = append(r.places[n], place{b, k, j})
			if k == 0 {
				r.in[n0] = b
			} else {
				r.first[n] = n0
			}
		}
	}
	for _, c := range b.carried {
		start := c.to.Args[c.operand]
		r.places[start] = append(r.places[start], place{b, -1, slices.Index(b.nodes, c.from)})
	}
	lastOwn := f.own[f.count-1]
	for _, n := range b.nodes {
		for _, a := range n.Args {
			if lastOwn[a] == nil || r.in[a] == b {
				continue
			}
			b.leaves, b.lastOwn = append(b.leaves, a), append(b.lastOwn, lastOwn[a])
			r.in[a] = b
			offset := -len(b.leaves) // below those of the nodes
			r.places[a] = append(r.places[a], place{b, 0, offset})
			for k := 1; k < f.count; k++ {
				leaf := f.own[k][a]
				r.first[leaf] = a
				r.places[leaf] = append(r.places[leaf], place{b, k, offset})
			}
		}
	}
	r.blocks = append(r.blocks, b)
	return b
}
