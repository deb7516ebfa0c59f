// Package layout chooses the layout of images in memory: NCHW, as users write it, or NHWC, in which most targets compute
// convolutions faster.
//
//	x ─► conv2d ─► relu ─► pool ─► reduce[2,3]      x ─► T ─► conv2d ─► relu ─► pool ─► reduce[1,2]
//	w ──┘                                       to  w ─► T ──┘   nhwc            nhwc
//
// An operation on images ([graph.ImageOp]) for which the target has a kernel of NHWC may change. The choice is carried
// through what can compute as well on permuted axes: elementwise work with broadcast operands, norms, reductions,
// concatenations, padding, slices, softmax, reshapes and broadcasts of the axes of space, as upsampling has them. Values of any
// rank from 3 on are images [n,c,...]. A linear layer of flattened images reads them as they are if its weights are frozen:
// their rows take the other order. Where a value is read in the other layout, a [graph.Transpose] converts it, and only there.
// Inputs, outputs, parameters and gradients stay as the user has them. The row of an elementwise operation or of one along an
// axis says how the choice is carried through it, and answers.go does for others. It stops at all that are not there.
//
// # The choice
//
// Each operation takes a time in each layout, which the target tells ([Coster]), and each conversion takes the time of moving
// its elements. A conversion of filters that follow from frozen parameters is free, since it is in the prepared part of the
// program; so is one of a value whose elements stand in the same order in both layouts. To find the least sum, all
// operations that can be in NHWC begin there. Then each takes the other layout if that makes the sum smaller, in a few
// passes over the graph. What is connected keeps the result if that takes less time than NCHW everywhere.
package layout

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/passes/rewrite"
)

// A Coster is a target that knows what layouts cost it. For a target that is none, NHWC is better wherever it is accepted.
type Coster interface {
	// ImageTime estimates the time of an operation alone: of an operation on images, a BatchNorm, a GroupNorm, a Reduce, or a
	// Transpose that moves its elements.
	ImageTime(op graph.Op, args, results []graph.Type) time.Duration
}

// A Packer is a target that keeps frozen filters in a form of its own, so that it may as well read them through a Transpose.
type Packer interface {
	// PacksFilters reports whether it does so with filters of type t for op.
	PacksFilters(op graph.ImageOp, t graph.Type) bool
}

// A PlanesReader is a target whose kernels of NHWC read images of few channels, such as pictures, as they lie in NCHW.
type PlanesReader interface {
	// ReadsPlanes reports whether that of op, in NHWC with operands of types args and frozen filters, reads images through a
	// Transpose.
	ReadsPlanes(op graph.ImageOp, args []graph.Type) bool
}

// apart is how much longer a conversion takes that keeps elementwise work out of the launch that makes its operand, as a
// multiple of the conversion's time: the value is written and read once more.
const apart = 2

// rounds bounds the passes over the graph in which operations change their layout.
const rounds = 8

// refused is the time of an operation that the target has no kernel for.
const refused = time.Hour

// Run chooses layouts, and puts in conversions.
func Run(c *rewrite.Context) error {
	if c.Target == nil || !graph.Has[graph.ImageOp](c.Graph) {
		return nil
	}
	p := &plan{c: c, uses: c.Uses(), frozen: c.FrozenNodes(),
		at: graph.NewPerNode[*choice](c.Graph), moved: graph.NewPerNode[time.Duration](c.Graph)}
	if p.cost, _ = c.Target.(Coster); p.cost == nil {
		p.cost = indifferent{}
	}
	p.find()
	p.choose()
	p.explain()
	if err := p.rewrite(); err != nil {
		return err
	}
	p.notes.tell(c)
	return nil
}

// indifferent tells that NHWC is better at the price of any number of conversions.
type indifferent struct{}

func (indifferent) ImageTime(op graph.Op, _, _ []graph.Type) time.Duration {
	if op, ok := op.(graph.ImageOp); ok && op.ImageLayout() == graph.NCHW {
		return time.Minute
	}
	return 0
}

// A choice is an operation that can be in NHWC.
type choice struct {
	n *graph.Node
	form
	nhwc  bool
	group int
}

// A plan is a choice of layouts for a graph.
type plan struct {
	c       *rewrite.Context
	cost    Coster
	uses    *graph.Uses
	frozen  graph.PerNode[bool]
	at      graph.PerNode[*choice]
	moved   graph.PerNode[time.Duration] // the times of conversions that have been asked for, and one more
	choices []*choice                    // in the order of the graph
	through map[*graph.Node]*graph.Node  // reshapes that only a choice reads, which may read their operand instead
	why     map[*graph.Node]error
	notes   notes
}

// notes are what the pass tells, once for each text.
type notes struct {
	first []*graph.Node // of a text
	texts []string
	count map[string]int
}

func (l *notes) add(n *graph.Node, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if l.count == nil {
		l.count = map[string]int{}
	}
	if l.count[text]++; l.count[text] == 1 {
		l.first, l.texts = append(l.first, n), append(l.texts, text)
	}
}

func (l *notes) tell(c *rewrite.Context) {
	for i, text := range l.texts {
		if more := l.count[text] - 1; more > 0 {
			text += fmt.Sprintf(" (and %d more)", more)
		}
		c.Note(l.first[i], "%s", text)
	}
}

// find finds the operations that can be in NHWC and the groups of those that are connected. Groups without an operation on
// images are left out.
func (p *plan) find() {
	p.why, p.through = map[*graph.Node]error{}, map[*graph.Node]*graph.Node{}
	for _, n := range p.c.Graph.Nodes {
		f, err := p.formOf(n)
		switch {
		case err != nil:
			p.why[n] = err
		case f != nil:
			k := &choice{n: n, form: *f}
			if k.args == nil {
				k.args = n.Args
			}
			p.at.Set(n, k)
			p.choices = append(p.choices, k)
		}
	}
	parent := make([]int, len(p.choices))
	for i, k := range p.choices {
		parent[i], k.group = i, i
	}
	find := func(i int) int {
		for parent[i] != i {
			parent[i] = parent[parent[i]]
			i = parent[i]
		}
		return i
	}
	for i, k := range p.choices {
		for j, a := range k.args {
			if x := p.at.Get(a); x != nil && x.image && k.reads[j] {
				parent[find(i)] = find(x.group)
			}
		}
	}
	seeded := map[int]bool{}
	for i, k := range p.choices {
		if _, ok := k.n.Op.(graph.ImageOp); ok {
			seeded[find(i)] = true
		}
	}
	var kept []*choice
	for i, k := range p.choices {
		if parent[i] = find(i); seeded[parent[i]] {
			kept = append(kept, k)
		} else {
			p.at.Set(k.n, nil)
		}
	}
	for _, k := range kept {
		k.group = parent[k.group]
	}
	p.choices = kept
}

// isNHWC reports whether a value is made in NHWC.
func (p *plan) isNHWC(n *graph.Node) bool {
	k := p.at.Get(n)
	return k != nil && k.nhwc && k.image
}

// choose finds the layouts.
func (p *plan) choose() {
	readers := graph.NewPerNode[[2]int](p.c.Graph) // of a value as NCHW and as NHWC
	add := func(n *graph.Node, nhwc bool, by int) {
		r := readers.Get(n)
		if nhwc {
			r[1] += by
		} else {
			r[0] += by
		}
		readers.Set(n, r)
	}
	// reads counts k, in a layout, among the readers of its operands, except those that it reads in either layout.
	reads := func(k *choice, nhwc bool, by int) {
		for i, a := range k.args {
			if asNHWC := nhwc && k.reads[i]; !asNHWC || !k.planes {
				add(a, asNHWC, by)
			}
		}
	}
	for _, k := range p.choices {
		k.nhwc = true
	}
	for _, n := range p.c.Graph.Nodes {
		switch k := p.at.Get(n); {
		case isResult(n): // it has no layout
		case k != nil:
			reads(k, k.nhwc, 1)
		case p.through[n] == nil || p.at.Get(p.through[n]) == nil:
			for _, a := range n.Args {
				add(a, false, 1)
			}
		}
	}
	for _, k := range p.choices {
		if p.uses.Escapes(k.n) {
			add(k.n, false, 1)
		}
	}
	// conversion is the time of converting a value that is made in one layout and read so often in each.
	conversion := func(n *graph.Node, nhwc bool, r [2]int) time.Duration {
		if nhwc && r[0] > 0 || !nhwc && r[1] > 0 {
			return p.conversion(n)
		}
		return 0
	}
	// change is by how much time it takes more if k changes its layout.
	change := func(k *choice) time.Duration {
		d := k.time[1] + k.own - k.time[0]
		if k.nhwc {
			d = -d
		}
		if k.image {
			r := readers.Get(k.n)
			d += conversion(k.n, !k.nhwc, r) - conversion(k.n, k.nhwc, r)
		}
		parts := 0 // how many more readers and operands are in the other layout
		count := func(x *choice) {
			switch {
			case x == nil || !x.image:
			case x.nhwc == k.nhwc:
				parts++
			default:
				parts--
			}
		}
		if k.image && graph.Elementwise(k.n.Op) {
			for _, a := range k.n.Args {
				count(p.at.Get(a))
			}
		}
		if k.image {
			for _, u := range p.uses.Readers(k.n) {
				if graph.Elementwise(u.Op) {
					count(p.at.Get(u))
				}
			}
			d += time.Duration(parts) * apart * p.conversion(k.n)
		}
		for i, a := range k.args {
			if !k.reads[i] || slices.Index(k.args, a) < i {
				continue
			}
			r, to := readers.Get(a), readers.Get(a)
			for j, b := range k.args {
				if b == a && k.reads[j] {
					by := 1 // of readers as NHWC
					if k.nhwc {
						by = -1
					}
					to[0] -= by
					if !k.planes {
						to[1] += by
					}
				}
			}
			d += conversion(a, p.isNHWC(a), to) - conversion(a, p.isNHWC(a), r)
		}
		return d
	}
	flip := func(k *choice) {
		reads(k, k.nhwc, -1)
		reads(k, !k.nhwc, 1)
		k.nhwc = !k.nhwc
	}
	for round := range rounds {
		changed := false
		visit := func(k *choice) {
			if change(k) < 0 {
				flip(k)
				changed = true
			}
		}
		if round%2 == 0 {
			for _, k := range slices.Backward(p.choices) {
				visit(k)
			}
		} else {
			for _, k := range p.choices {
				visit(k)
			}
		}
		if !changed {
			break
		}
	}
	for _, k := range p.choices {
		p.later(k, readers, conversion, flip)
	}
	p.compare(readers, conversion, flip)
}

// later brings elementwise work that follows a conversion, one operation after the other, back to NCHW if what it makes takes less
// time to convert: fewer bytes, or nothing where all that reads it takes either layout.
func (p *plan) later(k *choice, readers graph.PerNode[[2]int], conversion func(*graph.Node, bool, [2]int) time.Duration,
	flip func(*choice)) {
	// images is the only operand of an elementwise operation that is images, which nothing else reads in NHWC.
	images := func(k *choice) *graph.Node {
		if k == nil || !k.nhwc || !graph.Elementwise(k.n.Op) {
			return nil
		}
		i := slices.Index(k.reads, true)
		if i < 0 || slices.Contains(k.reads[i+1:], true) || readers.Get(k.args[i])[1] != 1 {
			return nil
		}
		return k.args[i]
	}
	first := images(k)
	if first == nil || p.isNHWC(first) {
		return
	}
	before := conversion(first, false, readers.Get(first))
	for chain := []*choice{k}; ; {
		last := chain[len(chain)-1]
		if r := readers.Get(last.n); r[0] == 0 && conversion(last.n, false, r) < before {
			for _, k := range chain {
				flip(k)
			}
			return
		}
		read := p.uses.Readers(last.n)
		if len(read) != 1 || images(p.at.Get(read[0])) != last.n {
			return
		}
		chain = append(chain, p.at.Get(read[0]))
	}
}

// compare brings the groups for which that takes less time back to NCHW.
func (p *plan) compare(readers graph.PerNode[[2]int], conversion func(*graph.Node, bool, [2]int) time.Duration,
	flip func(*choice)) {
	gain := map[int]time.Duration{} // of a group, by NHWC
	seen := map[*graph.Node]bool{}
	for _, k := range p.choices {
		if k.nhwc {
			gain[k.group] += k.time[0] - k.time[1] - k.own
		}
		for _, n := range append(slices.Clip(k.args), k.n) {
			if !seen[n] {
				seen[n] = true
				gain[k.group] -= conversion(n, p.isNHWC(n), readers.Get(n))
			}
		}
	}
	for _, k := range p.choices {
		if k.nhwc && gain[k.group] <= 0 {
			flip(k)
		}
	}
}

// explain tells which operations on images stay in NCHW, and why.
func (p *plan) explain() {
	for _, n := range p.c.Graph.Nodes {
		k := p.at.Get(n)
		_, image := n.Op.(graph.ImageOp)
		switch {
		case p.why[n] != nil:
			p.notes.add(n, "kept NCHW: %v", p.why[n])
		case image && k != nil && !k.nhwc:
			p.notes.add(n, "kept NCHW: it takes about %v, in NHWC %v and conversions", rounded(k.time[0]),
				rounded(k.time[1]+k.own))
		}
	}
}

// rounded is an estimate for people.
func rounded(d time.Duration) time.Duration { return d.Round(100 * time.Nanosecond) }

// conversion is the time of a conversion of the images n.
func (p *plan) conversion(n *graph.Node) time.Duration {
	if d := p.moved.Get(n); d > 0 {
		return d - 1
	}
	d := time.Duration(0)
	if isImage(n) && free(n) == nil && !p.frozen.Get(n) {
		d = p.moving(n.Type, toNHWC(n.Type.Shape.Rank()))
	}
	p.moved.Set(n, d+1)
	return d
}

// moving is the time of moving the elements of a value by a Transpose.
func (p *plan) moving(t graph.Type, perm graph.Ints) time.Duration {
	if inOrder(t.Shape, perm) {
		return 0
	}
	op := graph.Transpose{Perm: perm}
	return p.cost.ImageTime(op, []graph.Type{t}, []graph.Type{t.Reshaped(permuted(t.Shape, perm))})
}

// rewrite builds what has changed.
func (p *plan) rewrite() error {
	if !slices.ContainsFunc(p.choices, func(k *choice) bool { return k.nhwc }) {
		return nil
	}
	g := p.c.Graph
	w := &writer{plan: p, b: graph.Extend(g), images: map[*graph.Node]*graph.Node{}, filters: map[*graph.Node]*graph.Node{},
		plain: map[*graph.Node]*graph.Node{}, whole: map[*graph.Node]*graph.Node{}}
	nodes := slices.Clone(g.Nodes)
	for _, n := range nodes {
		first := len(g.Nodes)
		k := p.at.Get(n)
		if k != nil && k.nhwc {
			w.change(k)
			w.order = append(w.order, g.Nodes[first:]...)
			continue
		}
		for i, a := range n.Args {
			if m := w.whole[a]; m != nil && isResult(n) {
				n.Args[i] = m
			} else {
				n.Args[i] = w.asNCHW(a)
			}
		}
		w.order = append(append(w.order, g.Nodes[first:]...), n)
	}
	first := len(g.Nodes)
	for i := range g.Outputs {
		g.Outputs[i].Node = w.asNCHW(g.Outputs[i].Node)
	}
	for i := range g.Updates {
		g.Updates[i].Value = w.asNCHW(g.Updates[i].Value)
	}
	w.order = append(w.order, g.Nodes[first:]...)
	if err := w.b.Err(); err != nil {
		return err
	}
	g.Nodes = w.order
	return g.Tidy()
}

// A writer rewrites a graph in the layouts of a plan.
type writer struct {
	*plan
	b       *graph.Builder
	images  map[*graph.Node]*graph.Node // values as NHWC
	filters map[*graph.Node]*graph.Node // filters that are copied to NHWC
	plain   map[*graph.Node]*graph.Node // values as they were, of nodes that have changed
	whole   map[*graph.Node]*graph.Node // operations with further results
	order   []*graph.Node
}

// change builds k's operation in NHWC.
func (w *writer) change(k *choice) {
	n := k.n
	args := make([]*graph.Node, len(k.args))
	for i, a := range k.args {
		switch {
		case !k.reads[i]:
			args[i] = w.asNCHW(a)
		case k.planes && w.images[a] == nil && free(a) == nil:
			args[i] = w.turned(w.asNCHW(a), toNHWC(a.Type.Shape.Rank()))
		default:
			args[i] = w.asNHWC(a)
		}
	}
	m := k.build(w, args)
	if m.Name == "" {
		m.Name = n.Name
	}
	if k.image {
		w.images[n] = m
	} else {
		w.plain[n] = m
	}
	w.c.Became(n, m)
	if k.rounds {
		w.c.Match("layout", trace.Reassociated, "", m, n)
	}
}

// asNCHW is a value as it was before the pass.
func (w *writer) asNCHW(n *graph.Node) *graph.Node {
	if m := w.plain[n]; m != nil {
		return m
	}
	m := w.images[n]
	if m == nil || !w.isNHWC(n) {
		return n
	}
	k := w.turned(m, toNCHW(n.Type.Shape.Rank()))
	w.plain[n] = k
	w.converted(n, graph.NCHW)
	return k
}

// asNHWC is the images n as NHWC.
func (w *writer) asNHWC(n *graph.Node) *graph.Node {
	if m := w.images[n]; m != nil {
		return m
	}
	var m *graph.Node
	perm := toNHWC(n.Type.Shape.Rank())
	if f := free(n); f != nil {
		m = f(w, n)
	} else if m = w.turned(w.asNCHW(n), perm); graph.IsView(m.Op) && !inOrder(n.Type.Shape, perm) {
		m = w.b.From(n).Add(graph.Copy{}, m) // kernels read the channels of a pixel side by side
		w.converted(n, graph.NHWC)
	}
	w.images[n] = m
	return m
}

// converted notes that the images n are converted in each run, and what that costs.
func (w *writer) converted(n *graph.Node, to graph.ImageLayout) {
	if w.frozen.Get(n) || inOrder(n.Type.Shape, toNHWC(n.Type.Shape.Rank())) {
		return
	}
	cost := fmt.Sprintf("%.1f KiB", float64(n.Type.Bytes())/1024)
	if d := w.conversion(n); d > 0 {
		cost += fmt.Sprintf(", about %v", rounded(d))
	}
	w.notes.add(n, "converted to %s: %s", strings.ToUpper(to.String()), cost)
}
