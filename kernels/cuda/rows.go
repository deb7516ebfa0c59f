package cuda

import (
	"fmt"
	"slices"

	"fusec/graph"
	"fusec/graph/body"
)

// A rows kernel is a body with reductions, anchored on some axes. It runs in stages: each but the last ends with
// reductions, whose results are the same for the whole row in the stages after it.
//
// Where the innermost axis is reduced, some threads share a row, W elements side by side each. Up to what their
// registers hold they read a row once, and keep what later stages need. A longer row is shared by the blocks of a cluster,
// where the chip has clusters; there are as many of them as run at once, and each goes over rows far apart. What those
// cannot hold either is read again by each stage.
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
	p     *body.Program // of primitives
	space graph.Shape
	axes  graph.Ints

	across  bool
	hold    bool // rows stay in registers
	early   bool // and are read before anything is computed
	kept    []run
	inner   []run // reduced
	w       int
	threads int // that share a row
	perRow  int // units of a thread
	block   int // threads
	cluster int // blocks that share a row
	columns int // across: threads side by side
	parts   int
	frozen  []int // early: what is read before the launch waits for those before it
	firsts  []int // early: what is read first after that
	holding int   // bytes of a row and of column sums in a thread's registers, if hold
	persist int   // blocks, if each runs over several rows; else 0
	atOnce  int   // blocks that a multiprocessor runs at once, of those or of clusters

	b       *printer
	typ     string
	shared  int
	pre     [][]string  // by stage, before its loop
	post    [][]string  // by stage, after its loop
	partial []partial   // of a row that is cut into parts
	moments map[int]int // of columns, by the value that is the mean: the variance
	warps   map[int]int // the same, of rows of clusters, whose warps first find their own means
	scratch int64       // bytes
	sums    []sumAcross
}

// A partial is a reduction whose parts stand in scratch memory.
type partial struct {
	value int
	node  *graph.Node
	at    int64
}

// A sumAcross is a sum across the rows: a result of column sums.
type sumAcross struct {
	result int
	node   *graph.Node
	lane   string
	at     int64 // in scratch memory: [slots][row]
}

// compileRows makes the kernel of a fusion anchored on reductions.
func compileRows(f graph.Fusion, args, results []Operand, cfg Config) (*Kernel, error) {
	if f.Anchored() == nil {
		return nil, fmt.Errorf("a fusion of anchor %v without one", f.Anchor)
	}
	var err error
	if f.Body, err = primitives(f.Body); err != nil {
		return nil, err
	}
	p, err := body.Lower(f, args, results)
	if err != nil {
		return nil, err
	}
	r := &rows{u: newUnit(args, results), cfg: cfg, p: p, space: p.Space, axes: p.Axes, parts: 1, cluster: 1}
	r.typ = indexType(r.space.Elems())
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

// reductions lists the reductions of a level, or of all if that is -1.
func (r *rows) reductions(level int) (l []int) {
	for i := range r.p.Values {
		if v := &r.p.Values[i]; v.Kind == body.Row && (level < 0 || v.Level == level) {
			l = append(l, i)
		}
	}
	return l
}

// newPrinter starts a text with coordinates for the runs.
func (r *rows) newPrinter(wide, w int) *printer {
	b := newPrinter(r.u, r.p, coordinates(r.space.Rank(), r.kept, r.inner), wide, w)
	b.loops, b.guard = r.axes, "if (live) "
	b.most = r.cfg.Chip.L2
	if len(r.sums) > 0 && !r.hold {
		b.again = r.again
	}
	b.divisors = map[string]string{}
	return b
}

// trial writes the body without loops, to see what it reads.
func (r *rows) trial() (*printer, []graph.Layout, error) {
	every := axisList(r.space, graph.Ints{}, false)
	var identity []run
	for _, i := range every {
		identity = append(identity, run{r.space.At(i), i, fmt.Sprint("c", i)})
	}
	r.kept, r.inner = identity, nil
	b := r.newPrinter(-1, 1)
	for _, i := range r.reductions(-1) {
		v := &r.p.Values[i]
		if _, err := b.operand(v.Args[0]); err != nil {
			return nil, nil, err
		}
		b.define(i, value{kind: scalar, expr: "r", lane: lane(v.Node.Type.DType)})
	}
	var layouts []graph.Layout
	for i := range r.p.Stores {
		s := &r.p.Stores[i]
		l := s.Layout
		if s.Sums {
			if !l.IsContiguous() {
				return nil, nil, fmt.Errorf("%s cannot be summed into memory with gaps", s.Node.Where())
			}
			r.sums = append(r.sums, sumAcross{result: i, node: s.Node, lane: lane(s.Node.Type.DType)})
			l = graph.Contiguous(l.Shape).Broadcast(r.space)
		}
		if _, err := b.operand(s.Value); err != nil {
			return nil, nil, err
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
	for _, i := range trial.reads {
		layouts = append(layouts, r.p.Values[i].Layout)
	}
	if r.p.Draws() {
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
	if r.p.Draws() && wide >= 0 && graph.Contiguous(s).Stride[wide] != 1 {
		r.w = 1
	}
	r.b = r.newPrinter(wide, r.w)
	r.findMoments()
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
	if !r.p.LeadsBack() || r.moments != nil {
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

// roomOfSums is how many bytes of a row and of its column sums together a thread holds. Column sums need few blocks
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
func (r *rows) planInner(trial *printer) {
	units, count := elemsOf(r.inner)/r.w, elemsOf(r.kept)
	most := 1024
	if r.p.Draws() || r.roomySums() {
		most = 512 // random numbers and column sums take more registers than a thread of 1024 has
	}
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
		for r.threads < min(units, most) && (r.threads < 32 || ceilDiv(units, r.threads)*bytes > r.room()) {
			r.threads *= 2
		}
		for r.threads < most && count*r.threads < few && units >= 2*r.threads {
			r.threads *= 2 // few rows
		}
		r.planCluster(units, bytes)
		r.perRow = max(ceilDiv(units, r.threads), 1)
		r.holding = r.perRow * bytes
		if r.hold = r.holding <= max(r.room(), held); r.hold {
			break
		}
	}
	if r.cluster > 1 {
		r.warps = r.p.Variances()
	}
	r.b = r.newPrinter(r.b.wide, r.b.multiple)
	r.block = blockThreads
	if r.hold && len(r.sums) > 0 {
		r.block /= 2
	}
	if r.threads > 32 {
		r.block = r.threads / r.cluster
	}
	if !r.p.LeadsBack() && len(r.sums) == 0 && count*r.threads < 2048*r.cfg.Chip.SMs && units > 16*r.threads {
		r.hold = false
		r.threads = min(r.threads, blockThreads)
		r.block = max(r.threads, 32)
		r.parts = r.cut(ceilDiv(count*r.threads, r.block), ceilDiv(units, r.threads))
	}
	if len(r.sums) > 0 {
		r.planSums(count)
	}
}

// A cluster that shares a row has four to mostBlocks blocks of clusterBlock threads: two of these run on a multiprocessor, and one
// computes while the other reads. Two would hold no more than one block of 1024. The longest rows need blocks of 1024, too.
const clusterBlock, mostBlocks = 512, 8

// planCluster shares rows that are read more than once among the blocks of a cluster, if a block cannot hold one. An element takes
// so many bytes.
func (r *rows) planCluster(units, bytes int) {
	r.cluster = 1
	fits := func(threads int) bool { return ceilDiv(units, threads)*bytes <= held }
	if !r.cfg.hopper() || !r.p.LeadsBack() || len(r.sums) > 0 || fits(r.threads) || !fits(1024*mostBlocks) {
		return
	}
	block := clusterBlock
	if !fits(block * mostBlocks) {
		block = 1024
	}
	for r.cluster = 4; !fits(block * r.cluster); r.cluster *= 2 {
	}
	r.threads, r.atOnce = block*r.cluster, 1024/block
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
	if r.roomySums() {
		r.atOnce = max(512/r.block, 1)
	}
	if r.hold {
		// A thread's registers, about: 48 besides what it holds. A multiprocessor has 65536.
		each := r.holding/4 + 48
		r.atOnce = max(min(65536/each, 512)/r.block, 1)
	}
	r.persist = max(min(ceilDiv(count, r.block/r.threads), r.atOnce*r.cfg.Chip.SMs), 1)
}

// roomySums reports whether threads have at least 128 registers because there are column sums: with 64, threads of long rows spill
// some. Rows on Hopper may have more threads.
func (r *rows) roomySums() bool { return len(r.sums) > 0 && r.cfg.Chip.Arch != 90 }

// heldBytes is what a row that stays in registers takes there, by element.
func (r *rows) heldBytes() int {
	b := r.b
	if err := r.write(); err != nil {
		return 8 // it will be found again
	}
	_, bytes := r.b.kept()
	r.b = r.newPrinter(b.wide, b.multiple)
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
	r.frozen, b.overtake = nil, r.hold || len(r.sums) > 0
	if r.hold && r.early { // the first stages are loads
		r.frozen = r.frozenLoads()
		b.overtake = r.frozen == nil // other loads may not overtake the wait
		if r.frozen != nil {
			if err := b.prefetch(r.frozen); err != nil {
				return err
			}
			first++
			b.stage = first
		}
		first++
		trial := r.newPrinter(b.wide, b.multiple)
		for _, i := range r.reductions(1) {
			if _, err := trial.operand(r.p.Values[i].Args[0]); err != nil {
				return err
			}
		}
		again := func(i int) bool { return r.again(r.p.Values[i].Layout) }
		r.firsts = slices.DeleteFunc(trial.reads, again)
		if err := b.prefetch(r.firsts); err != nil {
			return err
		}
	}
	for level := range r.levels() + 1 {
		b.stage = first + level
		if !r.hold {
			b.forget()
		}
		if level == r.levels() && r.parts > 1 {
			break // of the step that combines the parts
		}
		if err := r.writeLevel(level); err != nil {
			return err
		}
		for i, v := range b.values {
			if l := &r.p.Values[i]; l.Kind == body.Load && !v.fixed && r.again(l.Layout) && !slices.Contains(r.frozen, i) {
				b.values[i] = value{} // a later stage finds it in the cache
			}
		}
	}
	return nil
}

// frozenElems is how many elements a row has at most of which registers hold what is frozen, too.
const frozenElems = 8 << 10

// frozenLoads is what few rows read of frozen values, such as gains and biases.
func (r *rows) frozenLoads() (list []int) {
	if !r.cfg.hopper() || elemsOf(r.kept) > r.cfg.Chip.SMs || elemsOf(r.inner) > frozenElems || len(r.sums) > 0 ||
		r.u.guard() != "" {
		return nil
	}
	for i := range r.p.Values {
		if v := &r.p.Values[i]; v.Kind == body.Load && r.u.args[v.Arg].Frozen {
			list = append(list, i)
		}
	}
	return list
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
	for i := range r.p.Stores {
		if r.storeLevel(&r.p.Stores[i]) != level {
			continue
		}
		if k := slices.IndexFunc(r.sums, func(s sumAcross) bool { return s.result == i }); k >= 0 {
			if err := r.addColumns(k); err != nil {
				return err
			}
			continue
		}
		if err := b.store(i); err != nil {
			return err
		}
	}
	if level == r.levels() {
		return nil
	}
	before := slices.Clone(b.values)
	for _, i := range r.reductions(level + 1) {
		write := r.reduce
		if _, ok := r.moments[i]; ok {
			write = r.reduceMoments
		}
		if err := write(i); err != nil {
			return err
		}
	}
	if level == 1 && r.warps != nil {
		r.defineWarps(before)
	}
	return nil
}

// reducers are the types of src/rows.cuh that join elements.
var reducers = map[graph.ReduceFn]string{graph.Sum: "Sum", graph.Mean: "Sum", graph.Prod: "Prod", graph.MaxOf: "MaxOf",
	graph.MinOf: "MinOf"}

// reduce writes a reduction: the joining of a unit, in the loop of the stage, and what comes before and after it.
func (r *rows) reduce(i int) error {
	b, n := r.b, r.p.Values[i].Node
	v, err := b.operand(r.p.Values[i].Args[0])
	if err != nil {
		return err
	}
	op := n.Op.(graph.Reduce)
	f, typ := reducers[op.Fn], lane(n.Type.DType)
	k := b.next
	b.next++
	acc := fmt.Sprintf("x%d", k)
	r.before("Vec<%s, W> %s = splat<W>(%s::identity<%s>());", typ, acc, f, typ)
	b.stmts = append(b.stmts, stmt{text: fmt.Sprintf("%s = join<%s>(%s, widen<W>(%s));", acc, f, acc, v.expr),
		uses: names([]value{v}), stage: b.stage})
	name, kind := fmt.Sprintf("r%d", k), scalar
	switch {
	case r.cluster > 1:
		if r.reduceWarps(i, name, f, acc, typ) {
			return nil
		}
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
		r.keepPart(i, name+"_", typ)
		return nil
	}
	expr := name + "_"
	if op.Fn.Info().Averages {
		expr = fmt.Sprintf("op::div(%s, %s)", expr, literal(n.Type.DType, float64(elemsOf(r.inner)), nil))
	}
	r.after("const auto %s = %s;", name, expr)
	b.define(i, value{kind: kind, expr: name, lane: typ, fixed: true})
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
