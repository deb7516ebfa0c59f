package cuda

import (
	"fmt"
	"slices"
	"strings"

	"fusec/graph"
	"fusec/graph/body"
)

// compileMoves makes the kernel of a fusion of rotations, casts and writes of parts: one step, whose blocks are divided among the
// results.
func compileMoves(f graph.Fusion, args, results []Operand, cfg Config) (*Kernel, error) {
	list, err := body.Moves(f)
	if err != nil {
		return nil, err
	}
	j := &joinedMoves{u: newUnit(args, results), list: list, typ: indexType(elemsOfAll(args, results)), late: cfg.hopper()}
	for _, m := range list {
		needs := slices.Clone(m.Angles)
		if m.Update != nil {
			needs = append(needs, m.Start)
		}
		j.late = j.late && !slices.ContainsFunc(needs, func(i int) bool { return !args[i].Given })
	}
	for i := range list {
		if err := j.add(i, cfg); err != nil {
			return nil, err
		}
	}
	if j.blocks == 0 {
		return &Kernel{}, nil
	}
	entry := "KERNEL"
	if j.late {
		entry = "LATE_KERNEL"
	}
	j.u.printf("%s(moves, %d, 1) {\n%s}\n", entry, blockThreads, j.calls.String())
	step := Step{Entry: "moves", Grid: [3]int{j.blocks, 1, 1}, Block: blockThreads}
	k := j.u.kernel(0, []Step{step}, "moves", "draws")
	if _, size := k.Steps[0].Offsets(); size > MaxParams {
		return nil, fmt.Errorf("the addresses of %d results take %d bytes, more than %d", len(results), size, MaxParams)
	}
	k.Zeroed, k.Kept = j.memory.Zeroed, j.memory.Kept
	return k, nil
}

type joinedMoves struct {
	u      *unit
	list   []body.Move
	typ    string // of indices
	late   bool   // angles and starts are known before it waits for what is before the launch
	blocks int
	calls  strings.Builder
	memory OverwriteAt
}

// A moveText is what a function does for a unit.
type moveText struct {
	before []string // what needs nothing that other launches make
	keeps  []string // what is overwritten is kept, once before is done
	load   string
	puts   []string
}

// function writes a function for units e of a target, one for each thread, and gives it its blocks.
func (j *joinedMoves) function(t *moveTarget, units int, runs []run, w int, m moveText) {
	if units == 0 {
		return
	}
	name, blocks := fmt.Sprintf("move%d", j.blocks), ceilDiv(units, blockThreads)
	lines := append(slices.Clone(t.start), m.before...)
	var keeps []string
	if t.kept != "" {
		keeps = append([]string{"if (fits) {", fmt.Sprintf("  if (block == 0 && threadIdx.x == 0) *%s = start + 1;", t.started)},
			m.keeps...)
		keeps = append(keeps, "}")
	}
	if t.own {
		lines, keeps = append(lines, keeps...), nil
	}
	if j.late {
		lines = append(lines, "late_read();")
	}
	lines = append(lines, keeps...)
	if t.start != nil {
		lines = append(lines, "if (!fits) return;")
	}
	lines = append(lines, m.load)
	if t.updates { // what is read comes at the same time as the status
		lines = append(lines, fmt.Sprintf("if (%s->code != 0) return;", j.u.status()))
	}
	text := "  " + strings.Join(append(lines, m.puts...), "\n  ") + "\n"
	j.u.printf("DEVICE void %s(const Params &p, int block) {\n  constexpr int W = %d;\n", name, w)
	j.u.printf("  const %s e = %s(block) * %d + int(threadIdx.x);\n  if (e >= %d) return;\n", j.typ, j.typ, blockThreads, units)
	j.u.printf("%s%s}\n\n", needed(split("e", j.typ, runs, w > 1, "  "), text), text)
	fmt.Fprintf(&j.calls, "  if (blockIdx.x >= %d && blockIdx.x < %d) %s(p, int(blockIdx.x) - %d);\n", j.blocks, j.blocks+blocks, name,
		j.blocks)
	j.blocks += blocks
}

// A moveTarget is where a move writes its elements, which are numbered in row-major order.
type moveTarget struct {
	result  string
	place   string   // of element i
	start   []string // finds from where on it overwrites, and whether that is inside
	kept    string   // memory for what is overwritten, "" where nothing has to be taken back
	started string   // what says that it is there
	own     bool     // no other launch writes what is overwritten
	updates bool     // a State or Param
	inner   int      // how many elements that follow one another lie so, or a divisor of that; 0: all
	offset  int      // of the result, in its buffer
	size    int      // of an element, in bytes
}

// write is text that puts W elements from i on, and that keeps those which are there.
func (t *moveTarget) write(w int, i, value string) (put, keep string) {
	align := 16 | t.size*w | t.size*t.offset
	align &= -align
	at := fmt.Sprintf("%s + %s", t.result, strings.ReplaceAll(t.place, "$", i))
	return fmt.Sprintf("store<1, %d>(%s, %s);", align, at, value), fmt.Sprintf("  keep<W, %d>(%s + (%s), %s);", align, t.kept, i, at)
}

// add writes the functions of result i.
func (j *joinedMoves) add(i int, cfg Config) error {
	u, m := j.u, &j.list[i]
	x, y := u.args[m.From], u.results[i]
	l, ok := m.Layout(x.Layout)
	switch {
	case !ok:
		return fmt.Errorf("strides cannot express the views of operand %d", m.From)
	case x.DType.IsStored() || y.DType.IsStored() || x.DType != m.To && !(x.DType.IsReal() && m.To.IsReal()):
		return fmt.Errorf("a cast of %v to %v is a launch of its own", x.DType, m.To)
	case !y.Layout.IsContiguous() || y.Over > 0 && (m.Update == nil || y.Over != m.Into+1):
		return fmt.Errorf("result %d lies in memory of another value", i)
	}
	t := moveTarget{result: u.to(i), place: "i64($)", updates: y.Update, offset: y.Layout.Offset, size: y.DType.Size()}
	if m.Update != nil {
		j.overwrite(&t, m, i)
	}
	if m.RoPE != nil {
		return j.rotate(&t, m, l, cfg)
	}
	j.copy(&t, m, l)
	return nil
}

// overwrite makes the target of result i a part of it. Where the result does not lie over the operand, the rest is copied.
func (j *joinedMoves) overwrite(t *moveTarget, m *body.Move, i int) {
	u, y := j.u, j.u.results[i]
	axis := m.Update.Op.(graph.UpdateSlice).Axis
	update := m.Update.Args[1].Type
	_, dim, inner := y.Layout.Shape.Around(axis, 1)
	size := update.Shape.At(axis)
	t.inner = inner
	each := max(size*inner, 1)
	t.place = fmt.Sprintf("(i64(($) / %d) * %d + i64(start) * %d + ($) %% %d)", each, dim*inner, inner, each)
	t.start = []string{"i64 start;",
		fmt.Sprintf("const bool fits = slice_start(%s, %d, %s, &start);", u.at(m.Start), dim-size, u.status())}
	if y.Over > 0 {
		if y.Update { // Restore takes it back if the run fails
			kept, zeroed := j.memory.Next(OverwriteOf(m.Update.Op.(graph.UpdateSlice), y.Type(), update))
			t.started = u.field(Param{Kind: ZeroedPtr, Byte: zeroed}, "i64 *", fmt.Sprintf("started%d", i))
			t.kept = u.field(Param{Kind: KeptPtr, Byte: kept}, ctype(y.DType)+" *", fmt.Sprintf("old%d", i))
			t.own = u.args[m.Into].Own
		}
		return
	}
	at, runs := layoutText(u.args[m.Into].Layout, j.typ)
	j.function(t, y.Layout.Shape.Elems(), runs, 1, moveText{
		load: fmt.Sprintf("if (c%d >= start && c%d < start + %d) return;", axis, axis, size),
		puts: []string{fmt.Sprintf("%s[e] = %s[%s];", t.result, u.arg(m.Into), at)}})
}

// layoutText is where an element lies in a buffer, and the coordinates of which that is made.
func layoutText(l graph.Layout, typ string) (at string, runs []run) {
	at = fmt.Sprint(l.Offset)
	for i := range l.Shape.Rank() {
		c := fmt.Sprint("c", i)
		runs = append(runs, run{l.Shape.At(i), i, c})
		at += fmt.Sprintf(" + i64(%s) * %d", c, l.Stride[i])
	}
	return at, runs
}

// copy moves elements that lie as given.
func (j *joinedMoves) copy(t *moveTarget, m *body.Move, l graph.Layout) {
	x := j.u.args[m.From]
	at, runs := layoutText(l, j.typ)
	w, align := 1, x.DType.Size()
	if last := l.Shape.Rank() - 1; last >= 0 && l.Stride[last] == 1 {
		for w = 16 / t.size; w > 1 && (l.Shape.At(last)%w != 0 || t.inner%w != 0); {
			w /= 2
		}
		all := 16 | w*x.DType.Size() | l.Offset*x.DType.Size()
		for i := range last {
			if l.Shape.At(i) > 1 {
				all |= l.Stride[i] * x.DType.Size()
			}
		}
		align = all & -all
	}
	put, keep := t.write(w, "e * W", "x")
	j.function(t, l.Shape.Elems()/w, runs, w, moveText{keeps: []string{keep}, puts: []string{put},
		load: fmt.Sprintf("const auto x = load<%s, W, 1, %d>(%s + (%s));", lane(x.DType), align, j.u.arg(m.From), at)})
}

// rotate moves the pairs of elements that lie as given: each thread computes the angle of its pair.
func (j *joinedMoves) rotate(t *moveTarget, m *body.Move, l graph.Layout, cfg Config) error {
	op := m.RoPE.Op.(graph.RoPE)
	x, last := j.u.args[m.From], l.Shape.Rank()-1
	d, pairs := l.Shape.At(last), l.Shape.Elems()/2
	if most := cfg.ropePairs(); pairs > most {
		return fmt.Errorf("the angles of %d pairs, more than %d, are computed by a launch of their own", pairs, most)
	}
	if pairs == 0 {
		return nil
	}
	second, step := op.Pairs(d)
	table := slices.IndexFunc(j.list, func(o body.Move) bool {
		return o.RoPE != nil && o.RoPE.Op.(graph.RoPE).Base == op.Base && o.RoPE.Type.Shape.At(last) == d
	})
	angle := j.u.ropeAngle(op, m.Angles, d, fmt.Sprint("frequencies", table))
	half := l
	half.Shape, half.Stride[last] = l.Shape.With(last, d/2), l.Stride[last]*step
	at, runs := layoutText(half, j.typ)
	position := "0"
	if last > 0 {
		position = fmt.Sprintf("c%d", last-1)
	}
	typ := lane(x.DType)
	text := moveText{
		before: []string{typ + " angle[2];", angle("angle", fmt.Sprintf("c%d", last), position),
			fmt.Sprintf("const %s i = e / %d * %d + c%d * %d;", j.typ, d/2, d, last, step)},
		load: fmt.Sprintf("const auto y = rope_turned(%s + (%s), %d, angle);", j.u.arg(m.From), at, second*l.Stride[last])}
	for k, i := range []string{"i", fmt.Sprintf("(i + %d)", second)} {
		put, keep := t.write(1, i, fmt.Sprintf("splat<1>(y[%d])", k))
		text.puts, text.keeps = append(text.puts, put), append(text.keeps, keep)
	}
	j.function(t, pairs, runs, 1, text)
	return nil
}
