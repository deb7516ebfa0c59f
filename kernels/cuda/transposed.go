package cuda

import (
	"fmt"

	"fusec/graph"
)

// A tile is a square of elements that a block computes together, where some operands stand side by side along another
// axis than the others: those go through shared memory, so that all of memory is accessed along its own axis.
type tile struct {
	row, col int            // indices of the runs: operands stand side by side along col, transposed ones along row
	turned   map[int]string // by load
	written  map[int]string // by result
	shared   int            // bytes
}

// tileSide is the side of a tile. Its rows in shared memory are an element longer, so that columns meet all banks.
const tileSide = 32

// tileBytes is the shared memory of one operand, of elements of at most 8 bytes.
const tileBytes = tileSide * (tileSide + 1) * 8

// shortRun is the length below which a run is not worth a tile.
const shortRun = 8

// planTile plans a tile, or nil where all operands that matter stand side by side along the last run.
func planTile(b *printer, layouts []graph.Layout, runs []run, cfg Config) *tile {
	if len(runs) < 2 {
		return nil
	}
	bytes := make([]int, len(runs)) // by run, of the operands that stand side by side along it
	along := func(l graph.Layout) int {
		for i, r := range runs {
			if l.Stride[r.axis] == 1 && r.size >= shortRun {
				return i
			}
		}
		return -1
	}
	size := func(i int) int {
		if i < len(b.reads) {
			return b.u.args[b.p.Values[b.reads[i]].Arg].DType.Size()
		}
		return 2 * b.u.results[i-len(b.reads)].DType.Size() // rather read than write with gaps
	}
	for i, l := range layouts {
		steps := 0
		for _, r := range runs {
			if l.Stride[r.axis] != 0 {
				steps++
			}
		}
		if k := along(l); k >= 0 && steps > 1 {
			bytes[k] += size(i)
		}
	}
	t := &tile{row: -1, col: -1, turned: map[int]string{}, written: map[int]string{}}
	for i, n := range bytes {
		switch {
		case n == 0:
		case t.col < 0 || n > bytes[t.col]:
			t.row, t.col = t.col, i
		case t.row < 0 || n > bytes[t.row]:
			t.row = i
		}
	}
	if t.row < 0 {
		return nil
	}
	for i, l := range layouts {
		if along(l) != t.row || l.Stride[runs[t.col].axis] == 0 {
			continue
		}
		name := fmt.Sprintf("tile%d", i)
		if i < len(b.reads) {
			t.turned[b.reads[i]] = name
		} else {
			t.written[i-len(b.reads)] = name
		}
		t.shared += tileBytes
	}
	if t.shared > min(cfg.Chip.Shared, 48<<10) {
		return nil
	}
	return t
}

// compileTile writes the body for tiles: a thread computes the elements of a column that are tileRows apart.
func (e *elementwise) compileTile(trial *printer) error {
	t, space := e.tile, trial.p.Space
	e.units = tileSide / tileRows
	b := newPrinter(e.u, trial.p, coordinates(space.Rank(), e.runs), -1, 1)
	b.loops = graph.IntsOf(axisList(space, graph.Ints{}, false)...)
	b.instead = func(load, result int) (string, bool) {
		name, ok := t.turned[load]
		if load < 0 {
			name, ok = t.written[result]
		}
		return fmt.Sprintf("%s[x * %d + y]", name, tileSide+1), ok
	}
	e.b = b
	if err := b.prefetch(trial.reads); err != nil {
		return err
	}
	b.stage = 1
	return b.stores()
}

// tileRows is the number of rows of a tile that a block computes at once.
const tileRows = blockThreads / tileSide

func (e *elementwise) tileKernel(templates []string) (*Kernel, error) {
	t, b, u := e.tile, e.b, e.u
	rowRun, colRun := e.runs[t.row], e.runs[t.col]
	rows, cols := ceilDiv(rowRun.size, tileSide), ceilDiv(colRun.size, tileSide)
	var others []run
	outer := 1
	for i, r := range e.runs {
		if i != t.row && i != t.col {
			others = append(others, r)
			outer *= r.size
		}
	}
	row, col := rowRun.name, colRun.name
	// where loops over the elements of a tile that a thread handles, in the order of memory or, turned, of the transposed.
	loop := func(turned bool, text string) string {
		x, y := col, row
		if turned {
			x, y = row, col
		}
		at := map[string]string{col: "col0", row: "row0"}
		return fmt.Sprintf("#pragma unroll\n  for (int u = 0; u < %d; u++) {\n    const int y = int(threadIdx.x) / %d + u * %d;\n"+
			"    const %s %s = %s + x, %s = %s + y;\n    if (%s < %d && %s < %d) {\n%s    }\n  }\n",
			e.units, tileSide, tileRows, e.typ, x, at[x], y, at[y], row, rowRun.size, col, colRun.size, text)
	}
	kept, _ := b.kept()
	fill, drain := "", ""
	decl, offset := "", 0
	declare := func(name, typ string) {
		decl += fmt.Sprintf("  %s *const %s = reinterpret_cast<%s *>(shared + %d);\n", typ, name, typ, offset)
		offset += tileBytes
	}
	for _, r := range b.reads {
		if name, ok := t.turned[r]; ok {
			v := &b.p.Values[r]
			declare(name, ctype(u.args[v.Arg].DType))
			fill += fmt.Sprintf("      %s[y * %d + x] = *(%s + %s);\n", name, tileSide+1, u.arg(v.Arg), b.offset(v.Layout))
		}
	}
	for i := range u.results {
		if name, ok := t.written[i]; ok {
			declare(name, ctype(u.results[i].DType))
			drain += fmt.Sprintf("      *(%s + %s) = %s[y * %d + x];\n", u.result(i), b.offset(b.p.Stores[i].Layout), name, tileSide+1)
		}
	}
	u.printf("KERNEL(elementwise, %d, 1) {\n%s  SHARED;\n%s  constexpr int U = %d;\n  const int x = int(threadIdx.x) %% %d;\n",
		blockThreads, u.guard(), decl, e.units, tileSide)
	u.printf("  const %s tile = blockIdx.x;\n  const %s col0 = tile %% %d * %d, row0 = tile / %d %% %d * %d;\n", e.typ, e.typ,
		cols, tileSide, cols, rows, tileSide)
	if len(others) > 0 {
		u.printf("  const %s outer = tile / %d;\n%s", e.typ, rows*cols, split("outer", e.typ, others, false, "  "))
	}
	if fill != "" {
		u.printf("%s  __syncthreads();\n", loop(true, fill))
	}
	u.printf("%s", arrays(kept, "  "))
	for stage := range b.stage + 1 {
		u.printf("%s", b.before(stage, "  "))
		if text := b.unit(stage, kept, "      "); text != "" {
			u.printf("%s", loop(false, text))
		}
	}
	if drain != "" {
		u.printf("  __syncthreads();\n%s", loop(true, drain))
	}
	u.printf("}\n")
	grid := [3]int{rows * cols * outer, 1, 1}
	step := Step{Entry: "elementwise", Grid: grid, Block: blockThreads, Shared: offset, Params: u.fields}
	return &Kernel{Source: u.source(templates...), Steps: []Step{step}}, nil
}
