package cuda

import (
	"fmt"
	"strings"

	"fusec/graph"
)

// addColumns adds a unit to column sum k: in registers if the row stays there, else in scratch memory, where each
// thread has its own columns.
func (r *rows) addColumns(k int) error {
	b, s := r.b, &r.sums[k]
	v, err := b.operand(r.p.Stores[s.result].Value)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("%sy%d[u] = join<Sum>(y%d[u], widen<W>(%s));", b.guard, k, k, v.expr)
	if !r.hold {
		text = fmt.Sprintf("add_columns<W>(y%d + e * W, widen<W>(%s), first);", k, v.expr)
	}
	b.stmts = append(b.stmts, stmt{text: text, uses: names([]value{v}), stage: b.stage})
	return nil
}

// slots is how many rows of column sums there are in scratch memory: one of each block, or of each row that a block has
// at once, if its threads add to memory.
func (r *rows) slots() int {
	if r.hold {
		return r.persist
	}
	return r.persist * (r.block / r.threads)
}

// keepPart stores a part of a reduction in scratch memory.
func (r *rows) keepPart(i int, expr, typ string) {
	n := r.p.Values[i].Node
	p := partial{i, n, r.reserve(r.parts * elemsOf(r.kept) * n.Type.DType.Size())}
	name := fmt.Sprintf("partial%d", len(r.partial))
	r.partial = append(r.partial, p)
	at := fmt.Sprintf("%s + i64(part) * %d + index", r.u.scratch(typ, name, p.at), elemsOf(r.kept))
	if r.across {
		r.after("if (writes) store<1, %d>(%s * W, %s);", min(r.w*laneBytes(typ), 16), at, expr)
	} else {
		r.after("if (writes) *(%s) = %s;", at, expr)
	}
}

// reserve gives bytes of scratch memory.
func (r *rows) reserve(bytes int) int64 {
	at := r.scratch
	r.scratch += int64(roundUp(bytes, 256))
	return at
}

// kernel writes the entries.
func (r *rows) kernel() (*Kernel, error) {
	u, b := r.u, r.b
	for i := range r.sums {
		s := &r.sums[i]
		s.at = r.reserve(r.slots() * elemsOf(r.inner) * s.node.Type.DType.Size())
		u.scratch(s.lane, fmt.Sprintf("columns%d", i), s.at)
	}
	units := elemsOf(r.kept) // that are numbered by index
	share, rowsPerBlock := "lane", max(r.block/r.threads, 1)
	if r.across {
		units /= r.w
		rowsPerBlock = r.columns
	}
	blocks := ceilDiv(units, rowsPerBlock)
	var head [2]int // where the declarations of a row's place stand
	if places := r.block / r.threads; r.hold && len(r.sums) > 0 && places > 1 {
		for _, s := range r.sums {
			r.shared = max(r.shared, places*elemsOf(r.inner)*laneBytes(s.lane))
		}
	}
	if r.frozen != nil {
		u.printf("LATE_")
	}
	u.printf("%s {\n%s", entryText("rows", r.block, max(r.atOnce, 1), r.cluster), u.clusterGuard(r.cluster))
	if r.cluster > 1 {
		r.shared = 16 + 2*16*r.threads/32 // that of ClusterReduce
	}
	if r.shared > 0 {
		u.printf("  SHARED;\n")
	}
	u.printf("  constexpr int W = %d;\n", r.w)
	if r.across {
		u.printf("  const int lane = int(threadIdx.x) / %d, place = int(threadIdx.x) %% %d;\n", r.columns, r.columns)
	} else if r.cluster > 1 {
		u.printf("  const int lane = cluster_rank() * %d + int(threadIdx.x), place = 0;\n", r.block)
	} else {
		u.printf("  const int lane = int(threadIdx.x) %% %d, place = int(threadIdx.x) / %d;\n", r.threads, r.threads)
	}
	if r.hold {
		u.printf("  constexpr int U = %d;\n", r.perRow)
	}
	r.beginColumns()
	indent := "  "
	switch {
	case r.persist > 0:
		u.printf("  for (%s base = blockIdx.x * %d; base < %d; base += %d) {\n", r.typ, rowsPerBlock, units,
			r.persist*rowsPerBlock)
		indent = "    "
		if r.threads > 32 {
			u.printf("%s__syncthreads();\n", indent)
		}
		if !r.hold {
			u.printf("%sconst bool first = base == blockIdx.x * %d;\n", indent, rowsPerBlock)
		}
		blocks = r.persist
	case r.parts > 1:
		u.printf("  const %s base = %s(blockIdx.x %% %d) * %d;\n", r.typ, r.typ, blocks, rowsPerBlock)
		u.printf("  const int part = int(blockIdx.x / %d);\n", blocks)
		blocks *= r.parts
	case r.cluster > 1:
		u.printf("  ClusterReduce<%d, %d> cluster(shared);\n", r.cluster, r.block/32)
		u.printf("  static_assert(cluster.BYTES == %d, \"shared memory\");\n", r.shared)
		u.printf("  for (%s base = blockIdx.x / %d; base < %d; base += gridDim.x / %d) {\n", r.typ, r.cluster, units, r.cluster)
		indent = "    "
		blocks = min(units, max(r.atOnce*r.cfg.Chip.SMs/r.cluster, 1)) * r.cluster
	default:
		u.printf("  const %s base = %s(blockIdx.x) * %d;\n", r.typ, r.typ, rowsPerBlock)
	}
	if r.inTurns() {
		u.printf("%sconst int turn = this_turn(lane);\n", indent)
	}
	head[0] = u.text.Len()
	if units%rowsPerBlock != 0 || r.persist > 0 {
		u.printf("%sconst bool live = base + place < %d;\n", indent, units)
		u.printf("%sconst %s index = live ? base + place : %d;\n", indent, r.typ, max(units-1, 0))
	} else {
		u.printf("%sconst bool live = true;\n%sconst %s index = base + place;\n", indent, indent, r.typ)
	}
	u.printf("%sconst bool writes = live && %s == 0;\n", indent, share)
	u.printf("%s", split("index", r.typ, r.kept, r.across, indent))
	head[1] = u.text.Len()
	kept, _ := b.kept()
	if r.hold {
		u.printf("%s", arrays(kept, indent))
	} else {
		kept = nil
	}
	fetches := false
	for stage := range b.stage + 1 {
		u.printf("%s", b.before(stage, indent))
		u.lines(r.pre, stage, indent)
		u.printf("%s", r.loop(b.unit(stage, kept, indent+"    "), indent))
		u.lines(r.post, stage, indent)
		if stage == 0 && r.frozen != nil {
			u.printf("%slate_read();\n", indent)
		}
		if stage == 1 { // the row is there
			fetches = r.fetchNext(indent)
		}
	}
	if once := b.once(b.stage, indent+"  "); once != "" {
		u.printf("%sif (writes) {\n%s%s}\n", indent, once, indent)
	}
	if r.persist > 0 || r.cluster > 1 {
		u.printf("  }\n")
	}
	r.endColumns()
	u.printf("}\n")
	u.prune(head[0], head[1])
	steps := []Step{{Entry: "rows", Grid: [3]int{blocks, 1, 1}, Block: r.block, Shared: r.shared, Rounds: r.cluster > 1}}
	if len(r.sums) > 0 {
		step, err := r.sumStep()
		if err != nil {
			return nil, err
		}
		steps = append(steps, step)
	}
	if r.parts > 1 {
		step, err := r.finishStep()
		if err != nil {
			return nil, err
		}
		steps = append(steps, step)
	}
	for i := range steps {
		steps[i].Params = u.fields
	}
	templates := []string{"rows"}
	if r.cluster > 1 || fetches {
		templates = append(templates, "cluster", "hopper", "moments", "rows_hopper")
	}
	if r.moments != nil {
		templates = append(templates, "moments")
	}
	k := &Kernel{Source: u.source(templates...), Steps: steps, Scratch: r.scratch}
	for _, s := range r.sums {
		if r.parts == 1 {
			k.Last = append(k.Last, s.result)
		}
	}
	return k, nil
}

// fetchNext has a block, whose own row has come, bring a later one to the L2 cache, so that memory has work while rows are
// computed, and reports whether there is one. Rows of more threads are slower with it.
func (r *rows) fetchNext(indent string) (fetches bool) {
	if !r.hold || !r.early || r.persist > 0 || !r.cfg.hopper() || r.threads < 128 || r.threads > 512 || len(r.kept) != 1 ||
		len(r.inner) != 1 {
		return false
	}
	next := r.cfg.Chip.SMs * (1024 / r.block)
	rows := r.kept[0].size - next // that have a next
	if rows <= 0 {
		return false
	}
	for _, i := range r.firsts {
		v := &r.p.Values[i]
		if l := v.Layout; l.Stride[r.inner[0].axis] == 1 {
			bytes := r.inner[0].size * r.u.args[v.Arg].DType.Size()
			fetches = true
			r.u.printf("%sif (threadIdx.x == 0 && index < %d) row_prefetch(%s + (i64(index + %d) * %d + %d), %d);\n", indent, rows,
				r.u.arg(v.Arg), next, l.Stride[r.kept[0].axis], l.Offset, bytes)
		}
	}
	return fetches
}

func (u *unit) lines(lists [][]string, i int, indent string) {
	if i < len(lists) {
		for _, l := range lists[i] {
			u.printf("%s%s\n", indent, l)
		}
	}
}

// inTurns reports whether threads hold one row after another. Places in a row depend on the turn then, so that the compiler does
// not read what rows have in common once, into registers that it has not.
func (r *rows) inTurns() bool { return r.hold && (r.cluster > 1 || r.persist > 0) }

// loop is the text of a stage's loop over the units of a row.
func (r *rows) loop(text, indent string) string {
	if text == "" {
		return ""
	}
	units := elemsOf(r.inner)
	if !r.across {
		units /= r.w
	}
	inner := needed(split("e", r.typ, r.inner, !r.across, indent+"    "), text)
	if r.hold {
		guard := ""
		if full := units / r.threads; r.perRow > full {
			guard = fmt.Sprintf("if (u < %d || e < %d) ", full, units)
		}
		lane := "lane"
		if r.inTurns() {
			lane = "turn"
		}
		index := fmt.Sprintf("%s  const %s e = %s + u * %d;\n", indent, r.typ, lane, r.threads)
		return fmt.Sprintf("#pragma unroll\n%sfor (int u = 0; u < U; u++) {\n%s%s  %s{\n%s%s%s  }\n%s}\n", indent, index, indent,
			guard, inner, text, indent, indent)
	}
	first, end := "lane", fmt.Sprint(units)
	if r.parts > 1 {
		size := ceilDiv(units, r.parts)
		first = fmt.Sprintf("%s(part) * %d + lane", r.typ, size)
		end = fmt.Sprintf("least(%d, (part + 1) * %d)", units, size)
		if r.typ == "i64" {
			end = fmt.Sprintf("(part + 1) * %dll < %dll ? (part + 1) * %dll : %dll", size, units, size, units)
		}
	}
	unroll := 8
	if len(r.sums) > 0 && r.threads == 1024 && r.w >= 4 && len(r.p.Stores) > 3 {
		unroll = 2 // 64 registers do not hold more of so much
	}
	return fmt.Sprintf("#pragma unroll %d\n%sfor (%s e = %s, end = %s; e < end; e += %d) {\n%s%s%s}\n",
		unroll, indent, r.typ, first, end, r.threads, inner, text, indent)
}

// beginColumns declares the column sums of a block's rows; endColumns stores those that are in registers.
func (r *rows) beginColumns() {
	n := elemsOf(r.inner)
	for i, s := range r.sums {
		if r.hold {
			r.u.printf("  Vec<%s, W> y%d[U];\n#pragma unroll\n", s.lane, i)
			r.u.printf("  for (int u = 0; u < U; u++) y%d[u] = splat<W>(%s(0));\n", i, s.lane)
		} else {
			r.u.printf("  %s *const y%d = p.columns%d + (i64(blockIdx.x) * %d + place) * %d;\n", s.lane, i, i,
				r.block/r.threads, n)
		}
	}
}

func (r *rows) endColumns() {
	n := elemsOf(r.inner)
	for i, s := range r.sums {
		if r.hold {
			r.u.printf("  store_columns<%d, %d, %d, %d>(p.columns%d + i64(blockIdx.x) * %d, y%d, lane, place, %s);\n",
				r.block/r.threads, r.threads, n, r.block, i, n, i, r.columnRoom(s))
		}
	}
}

// columnRoom is the expression of shared memory in which the rows of a block add their column sums.
func (r *rows) columnRoom(s sumAcross) string {
	if r.block == r.threads || elemsOf(r.inner) == 0 {
		return fmt.Sprintf("static_cast<%s *>(nullptr)", s.lane)
	}
	return fmt.Sprintf("reinterpret_cast<%s *>(shared)", s.lane)
}

// gatherGeometry is how a block combines parts of n numbers: columns side by side, and threads that share one. The more
// parts and the fewer columns of all sums there are, the more threads.
func (r *rows) gatherGeometry(n, parts int) (columns, threads int) {
	columns, threads = 1, 1
	for columns < 32 && columns < n {
		columns *= 2
	}
	all := n * max(len(r.sums), 1)
	for threads < parts && (threads*columns < blockThreads ||
		threads*columns < 1024 && 8*threads < parts && 2*threads*all <= 512*r.cfg.Chip.SMs) {
		threads *= 2
	}
	return columns, threads
}

// gather writes how the entry finds its column, and returns the start of an expression that combines parts.
func (r *rows) gather(entry, among string, n, parts int) (Step, string) {
	columns, threads := r.gatherGeometry(n, parts)
	block := columns * threads
	r.u.printf("\nKERNEL(%s, %d, 1) {\n%s  SHARED;\n  constexpr int W = 1;\n", entry, block, r.u.guard())
	r.u.printf("  const %s column = %s(%s) * %d + int(threadIdx.x) %% %d;\n", r.typ, r.typ, among, columns, columns)
	r.u.printf("  const bool live = column < %d;\n  const %s index = live ? column : 0;\n", n, r.typ)
	step := Step{Entry: entry, Grid: [3]int{max(ceilDiv(n, columns), 1), 1, 1}, Block: block, Shared: 8 * block}
	return step, fmt.Sprintf("%d, %d, %d", columns, threads, parts)
}

// sumStep adds the blocks' column sums: a row of blocks for each sum.
func (r *rows) sumStep() (Step, error) {
	u := r.u
	n := elemsOf(r.inner)
	columns, _ := r.gatherGeometry(n, r.slots())
	blocks := max(ceilDiv(n, columns), 1)
	step, shape := r.gather("sums", fmt.Sprintf("blockIdx.x %% %d", blocks), n, r.slots())
	step.Grid[0] = blocks * len(r.sums)
	for i, s := range r.sums {
		if len(r.sums) > 1 {
			u.printf("  if (blockIdx.x / %d == %d) {\n", blocks, i)
		} else {
			u.printf("  {\n")
		}
		u.printf("    const %s sum = gather_parts<Sum, %s>(p.columns%d, %d, index, live, reinterpret_cast<%s *>(shared));\n",
			s.lane, shape, i, n, s.lane)
		u.printf("    if (live && threadIdx.x < %d) %s[%d + index] = convert<%s>(sum);\n  }\n", columns,
			u.result(s.result), r.p.Stores[s.result].Layout.Offset, ctype(u.results[s.result].DType))
	}
	u.printf("}\n")
	return step, nil
}

// finishStep combines the parts of rows and computes what follows.
func (r *rows) finishStep() (Step, error) {
	u := r.u
	n := elemsOf(r.kept)
	step, shape := r.gather("finish", "blockIdx.x", n, r.parts)
	u.printf("%s", split("index", r.typ, r.kept, false, "  "))
	b := r.newPrinter(-1, 1)
	for i, p := range r.partial {
		op, typ := p.node.Op.(graph.Reduce), lane(p.node.Type.DType)
		if _, ok := r.moments[p.value]; ok {
			step.Shared = max(step.Shared, momentNumbers*laneBytes(typ)*step.Block)
			r.gatherMoments(b, i, p.value, n, shape, typ)
			continue
		}
		u.printf("  const %s r%d_ = gather_parts<%s, %s>(p.partial%d, %d, index, live, reinterpret_cast<%s *>(shared));\n",
			typ, i, reducers[op.Fn], shape, i, n, typ)
		expr := fmt.Sprintf("r%d_", i)
		if op.Fn.Info().Averages {
			expr = fmt.Sprintf("op::div(%s, %s)", expr, literal(p.node.Type.DType, float64(elemsOf(r.inner)), nil))
		}
		b.define(p.value, value{kind: scalar, expr: expr, lane: typ, fixed: true})
	}
	for i := range r.p.Stores {
		if !r.p.Stores[i].PerRow {
			continue
		}
		if err := b.store(i); err != nil {
			return step, err
		}
	}
	u.printf("  if (live && threadIdx.x < %s) {\n%s  }\n}\n", strings.Split(shape, ",")[0], b.text("    "))
	return step, nil
}
