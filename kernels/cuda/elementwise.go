package cuda

import (
	"fmt"
	"slices"

	"fusec/graph"
	"fusec/graph/body"
)

// blockThreads is the number of threads of a block that does elementwise work.
const blockThreads = 256

// compileElementwise makes the kernel of a fusion without an anchor.
func compileElementwise(f graph.Fusion, args, results []Operand, cfg Config) (*Kernel, error) {
	parts, err := body.LowerSegments(f, args, results)
	if err != nil {
		return nil, err
	}
	if len(parts) != 1 {
		return compileParts(parts, cfg)
	}
	e, err := newElementwise(newUnit(args, results), parts[0].Program, cfg, true, nil)
	if err != nil {
		return nil, err
	}
	return e.kernel()
}

// An elementwise is work on a space of elements. Each thread computes some units of W elements that stand side by side,
// a block's width apart. It reads all of them before it computes the first.
type elementwise struct {
	u        *unit
	b        *printer
	typ      string // of indices
	runs     []run
	w, units int
	n        int   // elements
	whole    bool  // all blocks are full, so that what threads draw need not wait for what they read
	tile     *tile // where operands are transposed
}

// newElementwise plans the work of a body. Segments of a launch have no tiles. What is not elementwise is defined by
// anchor, if there is such.
func newElementwise(u *unit, p *body.Program, cfg Config, tiles bool, anchor func(*printer)) (*elementwise, error) {
	space := p.Space
	rank := space.Rank()
	every := axisList(space, graph.Ints{}, false)
	trial := newPrinter(u, p, coordinates(rank), rank-1, 1)
	if anchor != nil {
		anchor(trial)
	}
	for i := range p.Stores {
		if err := trial.store(i); err != nil {
			return nil, err
		}
	}
	layouts := trial.layouts()
	e := &elementwise{u: u, n: space.Elems(), typ: indexType(space.Elems()), w: 1, units: 1}
	e.runs = mergeAxes(space, every, append(layouts, graph.Contiguous(space)))
	if !p.Draws() && anchor == nil {
		e.runs = mergeAxes(space, every, layouts)
	}
	if tiles {
		e.tile = planTile(trial, layouts, e.runs, cfg)
	}
	if e.tile != nil {
		return e, e.compileTile(trial)
	}
	wide := -1
	if len(e.runs) > 0 {
		last := e.runs[len(e.runs)-1]
		wide = last.axis
		size := last.size
		if len(e.runs) == 1 {
			size = 0 // what is left over is done one by one
		}
		e.w = trial.vectorWidth(wide, size, layouts[len(trial.reads):])
	}
	e.units = unitsPerThread(len(trial.reads), e.w, e.n, p, cfg)
	e.b = newPrinter(u, p, coordinates(rank, e.runs), wide, e.w)
	e.b.draws = e.w
	e.b.loops = graph.IntsOf(every...)
	e.b.quiet = u.prefix != "p."
	if err := e.b.prefetch(trial.reads); err != nil {
		return nil, err
	}
	e.b.stage = 1
	if anchor != nil {
		anchor(e.b)
	}
	if err := e.b.stores(); err != nil {
		return nil, err
	}
	return e, nil
}

// prefetch writes loads.
func (b *printer) prefetch(loads []int) error {
	for _, i := range loads {
		if _, err := b.operand(i); err != nil {
			return err
		}
	}
	return nil
}

// stores writes the values of all outputs, and then what stores them: a result may stand over an argument.
func (b *printer) stores() error {
	for i := range b.p.Stores {
		if _, err := b.stored(i); err != nil {
			return err
		}
	}
	for i := range b.p.Stores {
		if err := b.store(i); err != nil {
			return err
		}
	}
	return nil
}

// inFlight is how many elements of its operands a thread reads before it computes the first.
const inFlight = 8

// manyBits is how many random bits for each element take no longer than what is read and stored.
const manyBits = 8

// unitsPerThread is how many units a thread computes: so many that some loads are under way at once, and at least two for which a
// warp draws many bits, if that leaves work for all multiprocessors.
func unitsPerThread(reads, w, n int, p *body.Program, cfg Config) int {
	units, most := 4, inFlight/(w*max(reads, 1))
	if slices.ContainsFunc(p.Values, func(v body.Value) bool {
		return v.Kind == body.Draw && graph.DropoutRuleOf(v.Node.Op.(graph.Dropout).P).Bits > manyBits
	}) {
		most = max(most, 2)
	}
	for units > 1 && (units > most || n/(w*units) < 2048*cfg.Chip.SMs) {
		units /= 2
	}
	return units
}

// function is the text of the function that computes units.
// The parameter is where the operands' addresses are.
func (e *elementwise) function(name, parameter string) string {
	b := e.b
	kept, _ := b.kept()
	loop := func(stage int) string {
		text := b.unit(stage, kept, "      ")
		if text == "" {
			return ""
		}
		within := "if (e < end) "
		if e.whole {
			within = ""
		}
		return fmt.Sprintf("#pragma unroll\n  for (int u = 0; u < U; u++) {\n    const %s e = first + u * %d;\n"+
			"    %s{\n%s%s    }\n  }\n", e.typ, blockThreads, within, needed(split("e", e.typ, e.runs, true, "      "), text), text)
	}
	text := fmt.Sprintf("// %s computes U units of W elements, %d apart, from unit first on, of those before end.\n"+
		"template <int W, int U> DEVICE void %s(%s, %s first, %s end) {\n%s", name, blockThreads, name,
		parameter, e.typ, e.typ, arrays(kept, "  "))
	for stage := range b.stage + 1 {
		text += b.before(stage, "  ") + loop(stage)
	}
	if once := b.once(b.stage, "    "); once != "" {
		text += "  if (first == 0) {\n" + once + "  }\n"
	}
	return text + "}\n"
}

// kernel puts the kernel of one such work together.
func (e *elementwise) kernel(templates ...string) (*Kernel, error) {
	if e.n == 0 {
		return &Kernel{}, nil
	}
	if e.tile != nil {
		return e.tileKernel(templates)
	}
	block := blockThreads * e.units
	e.whole = e.b.p.Draws() && e.n%(block*e.w) == 0
	u := e.u
	u.printf("%s\nKERNEL(elementwise, %d, 1) {\n%s", e.function("units", "const Params &p"), blockThreads, u.guard())
	u.printf("  units<%d, %d>(p, %s(blockIdx.x) * %d + int(threadIdx.x), %d);\n", e.w, e.units, e.typ, block, e.n/e.w)
	if rest := e.n % e.w; rest > 0 {
		u.printf("  if (blockIdx.x == 0) units<1, 1>(p, %d + int(threadIdx.x), %d);\n", e.n-rest, e.n)
	}
	u.printf("}\n")
	grid := [3]int{max(ceilDiv(e.n/e.w, block), 1), 1, 1}
	step := Step{Entry: "elementwise", Grid: grid, Block: blockThreads, Params: u.fields}
	return &Kernel{Source: u.source(templates...), Steps: []Step{step}}, nil
}

// guard is what an entry that writes to State or Param begins with.
func (u *unit) guard() string { return u.clusterGuard(1) }

// clusterGuard is guard for clusters of so many blocks, of which all end or none does.
func (u *unit) clusterGuard(cluster int) string {
	for _, r := range u.results {
		if !r.Update {
			continue
		}
		failed := u.status() + "->code != 0"
		if cluster > 1 {
			failed = "cluster_agrees(" + failed + ")"
		}
		return fmt.Sprintf("  if (%s) return;\n", failed)
	}
	return ""
}
