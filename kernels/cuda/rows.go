package cuda

import (
	"fmt"
	"slices"

	"fusec/graph"
)

// A rows kernel is a body with reductions, anchored on some axes. It runs in stages: each but the last ends with
// reductions, whose results are the same for the whole row in the stages after it.
//
// Where the innermost axis is reduced, some threads share a row, W elements side by side each. Up to what their
// registers hold they read a row once, and keep what later stages need; longer rows are read again by each stage.
// Where the innermost axis is kept, a thread has W rows side by side, and those that share them walk down the columns.
//
// If nothing leads back from the results into the rows, a row may be cut into parts, each reduced by its own block into
// scratch memory; a second step combines them in a fixed order and goes on from there.
//
// Where there are sums across the rows, as of the gradients of a norm's weights, there are no more blocks than run at
// once. Each goes over many rows, a warp or all its threads a row, with its column sums in registers; a second step adds
// those of the blocks.
type rows struct {
	u     *unit
	cfg   Config
	f     graph.Fusion // of primitives
	space graph.Shape
	axes  graph.Ints
	level map[*graph.Node]int // number of reductions in a chain before a node
	last  int                 // the highest level

	across  bool
	hold    bool // rows stay in registers
	early   bool // and are read before anything is computed
	kept    []run
	inner   []run // reduced
	w       int
	threads int // that share a row
	perRow  int // units of a thread
	block   int // threads
	columns int // across: threads side by side
	parts   int
	holding int // bytes of a row and of column sums in a thread's registers, if hold
	persist int // blocks, if each runs over several rows; else 0
	atOnce  int // of them that a multiprocessor runs at once

	b       *body
	typ     string
	shared  int
	pre     [][]string // by stage, before its loop
	post    [][]string // by stage, after its loop
	partial []partial  // of a row that is cut into parts
	scratch int64      // bytes
	sums    []sumAcross
}

// A partial is a reduction whose parts stand in scratch memory.
type partial struct {
	node *graph.Node
	at   int64
}

// A sumAcross is a sum across the rows, as [graph.Fusion.ColumnSum] has it.
type sumAcross struct {
	result int
	node   *graph.Node
	lane   string
	at     int64 // in scratch memory: [slots][row]
}

// compileRows makes the kernel of a fusion anchored on reductions.
func compileRows(f graph.Fusion, args, results []Operand, cfg Config) (*Kernel, error) {
	body, err := primitives(f.Body)
	if err != nil {
		return nil, err
	}
	f.Body = body
	anchor := f.Anchored()
	if anchor == nil {
		return nil, fmt.Errorf("a row fusion without a reduction")
	}
	r := &rows{u: newUnit(args, results), cfg: cfg, f: f, space: anchor.Args[0].Type.Shape, parts: 1}
	r.axes, _ = graph.RowAxes(anchor)
	r.typ = indexType(r.space.Elems())
	r.findLevels()
	if err := r.plan(); err != nil {
		return nil, err
	}
	if elemsOf(r.kept) == 0 && len(r.sums) == 0 {
		return &Kernel{}, nil
	}
	if err := r.write(); err != nil {
		return nil, err
	}
	return r.kernel()
}

// findLevels counts the reductions on the way to each node.
func (r *rows) findLevels() {
	r.level = map[*graph.Node]int{}
	for _, n := range r.f.Body.Nodes {
		for _, a := range n.Args {
			r.level[n] = max(r.level[n], r.level[a])
		}
		if _, ok := n.Op.(graph.Reduce); ok && !r.f.ColumnSum(n) {
			r.level[n]++
		}
		r.last = max(r.last, r.level[n])
	}
}

// reductions lists the body's reductions of a level, column sums aside.
func (r *rows) reductions(level int) []*graph.Node {
	return slices.DeleteFunc(slices.Clone(r.f.Body.Nodes), func(n *graph.Node) bool {
		_, ok := n.Op.(graph.Reduce)
		return !ok || r.f.ColumnSum(n) || r.level[n] != level
	})
}

// full reports whether a node has an element for each element of the rows.
func (r *rows) full(n *graph.Node) bool {
	reduced := r.space
	for i := range r.axes.Len() {
		reduced = reduced.With(r.axes.At(i), 1)
	}
	return n.Type.Shape == r.space && r.space != reduced
}

// leadsBack reports whether elements of rows depend on a reduction.
func (r *rows) leadsBack() bool {
	return slices.ContainsFunc(r.f.Body.Nodes, func(n *graph.Node) bool {
		return r.level[n] > 0 && graph.IsComputed(n) && !graph.IsView(n.Op) && r.full(n)
	}) || r.last > 1
}

// newBody starts a body with coordinates for the runs.
func (r *rows) newBody(wide, w int) *body {
	b := newBody(r.u, r.f.Body, all(len(r.u.args)), r.space, coordinates(r.space.Rank(), r.kept, r.inner), wide, w)
	b.reduced, b.loops, b.guard = r.axes, r.axes, "if (live) "
	b.overtake = len(r.sums) > 0
	b.again = r.again
	return b
}

// trial writes the body without loops, to see what it reads.
func (r *rows) trial() (*body, []graph.Layout, error) {
	every := axisList(r.space, graph.Ints{}, false)
	var identity []run
	for _, i := range every {
		identity = append(identity, run{r.space.At(i), i, fmt.Sprint("c", i)})
	}
	r.kept, r.inner = identity, nil
	b := r.newBody(-1, 1)
	for _, n := range r.f.Body.Nodes {
		if _, ok := n.Op.(graph.Reduce); ok {
			if _, err := b.operand(n.Args[0]); err != nil {
				return nil, nil, err
			}
			b.define(n, scalar, "r")
		}
	}
	var layouts []graph.Layout
	for i, o := range r.f.Body.Outputs {
		n, l, err := stored(o.Node, r.u.results[i].Layout)
		if err != nil {
			return nil, nil, err
		}
		if r.f.ColumnSum(n) {
			if !l.IsContiguous() {
				return nil, nil, fmt.Errorf("%s cannot be summed into memory with gaps", n.Where())
			}
			r.sums = append(r.sums, sumAcross{result: i, node: n, lane: lane(n.Type.DType)})
			l = graph.Contiguous(n.Type.Shape)
		}
		if _, err := b.operand(n); err != nil {
			return nil, nil, err
		}
		if l, err = l.Over(b.space, b.reduced); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", n.Where(), err)
		}
		layouts = append(layouts, l)
	}
	return b, layouts, nil
}

// plan decides the geometry.
func (r *rows) plan() error {
	trial, results, err := r.trial()
	if err != nil {
		return err
	}
	layouts := slices.Clone(results)
	for _, l := range trial.reads {
		layouts = append(layouts, l.layout)
	}
	if draws(r.f.Body) {
		layouts = append(layouts, graph.Contiguous(r.space))
	}
	s := r.space
	last := s.Rank() - 1
	for last > 0 && s.At(last) == 1 {
		last--
	}
	r.across = last >= 0 && s.At(last) != 1 && !r.axes.Has(last)
	r.inner = mergeAxes(s, axisList(s, r.axes, true), layouts)
	name(r.inner, "i")
	r.kept = mergeAxes(s, axisList(s, r.axes, false), layouts)
	wide, size := -1, 1
	if r.across && len(r.kept) > 0 {
		wide, size = r.kept[len(r.kept)-1].axis, r.kept[len(r.kept)-1].size
	} else if !r.across && len(r.inner) > 0 {
		wide, size = r.inner[len(r.inner)-1].axis, r.inner[len(r.inner)-1].size
	}
	r.w = 1
	if wide >= 0 && size > 0 {
		r.w = trial.vectorWidth(wide, size, results)
	}
	if draws(r.f.Body) && wide >= 0 && graph.Contiguous(s).Stride[wide] != 1 {
		r.w = 1
	}
	r.b = r.newBody(wide, r.w)
	if r.across {
		r.planAcross()
	} else {
		r.planInner(trial)
	}
	return nil
}

// planAcross gives 32 units of columns to a block, and the rest of its threads to the rows.
func (r *rows) planAcross() {
	units, count := elemsOf(r.kept)/r.w, elemsOf(r.inner)
	r.block, r.columns = blockThreads, 32
	for r.columns > 1 && r.columns >= 2*units {
		r.columns /= 2
	}
	r.threads = r.block / r.columns
	for r.threads > 1 && r.threads >= 2*count {
		r.threads /= 2
	}
	r.block = r.threads * r.columns
	if !r.leadsBack() {
		r.parts = r.cut(ceilDiv(units, r.columns), ceilDiv(count, r.threads))
	}
}

// longSum is how many numbers are added one after another, at most, where a row can be cut.
const longSum = 128

// cut decides the parts of rows: as many as give all multiprocessors work, of at least 8 units, and at most longSum.
func (r *rows) cut(blocks, units int) int {
	parts := min(ceilDiv(4*r.cfg.Chip.SMs, max(blocks, 1)), units/8)
	return max(parts, ceilDiv(units, longSum), 1)
}

// registers is how many bytes of a row a thread holds, and held how many at most: a block of 1024 threads has 64
// registers of 4 bytes for each.
const (
	registers = 64
	held      = 144
)

// roomOfSums is how many bytes of a row and of its column sums together a thread holds. Column sums want few blocks
// that run for long, so their threads may take as many registers as there are.
func roomOfSums(threads int) int {
	switch {
	case threads <= 256:
		return 640
	case threads <= 512:
		return 320
	}
	return 192
}

// planInner chooses how many threads share a row.
func (r *rows) planInner(trial *body) {
	units, count := elemsOf(r.inner)/r.w, elemsOf(r.kept)
	for _, r.early = range []bool{true, false} {
		r.hold = true
		bytes := r.heldBytes() * r.w
		for _, s := range r.sums {
			bytes += laneBytes(s.lane) * r.w
		}
		few := 512 * r.cfg.Chip.SMs
		if len(r.sums) > 0 {
			few = 64 * r.cfg.Chip.SMs // what a block has to add up costs more than a warp that waits
		}
		r.threads = 1
		for r.threads < 1024 && (r.threads < min(units, 32) || ceilDiv(units, r.threads)*bytes > r.room()) {
			r.threads *= 2
		}
		for r.threads < 1024 && count*r.threads < few && units >= 2*r.threads {
			r.threads *= 2 // few rows
		}
		r.perRow = max(ceilDiv(units, r.threads), 1)
		r.holding = r.perRow * bytes
		if r.hold = r.holding <= max(r.room(), held); r.hold {
			break
		}
	}
	r.block = blockThreads
	if r.hold && len(r.sums) > 0 {
		r.block /= 2
	}
	if r.threads > 32 {
		r.block = r.threads
	}
	if !r.leadsBack() && len(r.sums) == 0 && count*r.threads < 2048*r.cfg.Chip.SMs && units > 16*r.threads {
		r.hold = false
		r.threads = min(r.threads, blockThreads)
		r.block = max(r.threads, 32)
		r.parts = r.cut(ceilDiv(count*r.threads, r.block), ceilDiv(units, r.threads))
	}
	if len(r.sums) > 0 {
		r.planSums(count)
	}
}

// room is how many bytes a thread should hold.
func (r *rows) room() int {
	if len(r.sums) > 0 {
		return roomOfSums(r.threads)
	}
	return registers
}

// planSums gives the chip as many blocks as it runs at once, each of which goes over rows far apart: the fewer blocks,
// the fewer sums of theirs there are to add.
func (r *rows) planSums(count int) {
	r.atOnce = max(1024/r.block, 1)
	if r.hold {
		// A thread's registers, about: 48 besides what it holds. A multiprocessor has 65536.
		each := r.holding/4 + 48
		r.atOnce = max(min(65536/each, 512)/r.block, 1)
	}
	r.persist = max(min(ceilDiv(count, r.block/r.threads), r.atOnce*r.cfg.Chip.SMs), 1)
}

// heldBytes is what a row that stays in registers takes there, by element.
func (r *rows) heldBytes() int {
	b := r.b
	if err := r.write(); err != nil {
		return 8 // it will be found again
	}
	_, bytes := r.b.kept()
	r.b = r.newBody(b.wide, b.multiple)
	r.u.fields, r.u.decls = nil, nil
	clear(r.u.names)
	return max(bytes, 4)
}

// write writes the body in stages.
func (r *rows) write() error {
	b := r.b
	r.pre, r.post = nil, nil
	r.partial, r.scratch, r.shared = nil, 0, 0
	first := 0
	if r.hold && r.early { // the first stage is loads
		first = 1
		trial := r.newBody(b.wide, b.multiple)
		for _, n := range r.reductions(1) {
			if _, err := trial.operand(n.Args[0]); err != nil {
				return err
			}
		}
		for _, l := range trial.reads {
			if !r.again(l.layout) {
				b.load(l.arg, l.layout, l.node)
			}
		}
	}
	for level := range r.last + 1 {
		b.stage = first + level
		if !r.hold {
			b.forget()
		}
		if level == r.last && r.parts > 1 {
			break // of the step that combines the parts
		}
		if err := r.writeLevel(level); err != nil {
			return err
		}
		for k, v := range b.loaded {
			if !v.fixed && r.again(k.layout) {
				delete(b.loaded, k) // a later stage finds it in the cache
			}
		}
	}
	return nil
}

// again reports whether other rows read the same through a layout.
func (r *rows) again(l graph.Layout) bool {
	return elemsOf(r.kept) > 1 && !slices.ContainsFunc(axisList(r.space, r.axes, false), func(axis int) bool {
		return l.Stride[axis] != 0 && l.Shape.At(axis) != 1
	})
}

// writeLevel writes the stage of a level: results and column sums that it can store, and the reductions that end it.
func (r *rows) writeLevel(level int) error {
	b := r.b
	for i, o := range r.f.Body.Outputs {
		n, _, err := stored(o.Node, r.u.results[i].Layout)
		if err != nil {
			return err
		}
		at := r.level[n]
		if !r.full(n) && !r.f.ColumnSum(n) {
			at = r.last // results of rows come last
		}
		if at != level {
			continue
		}
		if k := slices.IndexFunc(r.sums, func(s sumAcross) bool { return s.result == i }); k >= 0 {
			if err := r.addColumns(k); err != nil {
				return err
			}
			continue
		}
		if err := b.store(i, o.Node); err != nil {
			return err
		}
	}
	for _, n := range r.reductions(level + 1) {
		if err := r.reduce(n); err != nil {
			return err
		}
	}
	return nil
}

func reducer(fn graph.ReduceFn) string {
	return [...]string{"Sum", "Sum", "Prod", "MaxOf", "MinOf"}[fn]
}

// reduce writes a reduction: the joining of a unit, in the loop of the stage, and what comes before and after it.
func (r *rows) reduce(n *graph.Node) error {
	b := r.b
	v, err := b.operand(n.Args[0])
	if err != nil {
		return err
	}
	op := n.Op.(graph.Reduce)
	f, typ := reducer(op.Fn), lane(n.Type.DType)
	k := b.next
	b.next++
	acc := fmt.Sprintf("x%d", k)
	r.before("Vec<%s, W> %s = splat<W>(%s::identity<%s>());", typ, acc, f, typ)
	b.stmts = append(b.stmts, stmt{text: fmt.Sprintf("%s = join<%s>(%s, widen<W>(%s));", acc, f, acc, v.expr),
		uses: names([]value{v}), stage: b.stage})
	name, kind := fmt.Sprintf("r%d", k), scalar
	switch {
	case r.across:
		kind = vector
		r.shared = max(r.shared, r.block*r.w*8)
		r.after("const auto %s = column_reduce<%s, %d, %d>(%s, reinterpret_cast<Vec<%s, W> *>(shared));", name+"_", f,
			r.columns, r.threads, acc, typ)
	default:
		room := fmt.Sprintf("static_cast<%s *>(nullptr)", typ)
		if r.threads > 32 {
			room = fmt.Sprintf("reinterpret_cast<%s *>(shared + %d)", typ, r.shared)
			r.shared += 32 * 8
		}
		r.after("const auto %s = row_reduce<%s, %d>(joined<%s>(%s), %s);", name+"_", f, r.threads, f, acc, room)
	}
	if r.parts > 1 {
		r.keepPart(n, name+"_", typ)
		return nil
	}
	expr := name + "_"
	if op.Fn == graph.Mean {
		expr = fmt.Sprintf("op::div(%s, %s)", expr, literal(n.Type.DType, float64(elemsOf(r.inner)), nil))
	}
	r.after("const auto %s = %s;", name, expr)
	b.values[n] = value{kind: kind, expr: name, lane: typ, fixed: true}
	return nil
}

func (r *rows) before(format string, args ...any) { r.pre = addAt(r.pre, r.b.stage, format, args) }
func (r *rows) after(format string, args ...any)  { r.post = addAt(r.post, r.b.stage, format, args) }

func addAt(lists [][]string, i int, format string, args []any) [][]string {
	for len(lists) <= i {
		lists = append(lists, nil)
	}
	lists[i] = append(lists[i], fmt.Sprintf(format, args...))
	return lists
}
