package cuda

import (
	"fmt"
	"slices"

	"fusec/graph"
)

// blockThreads is the number of threads of a block that does elementwise work.
const blockThreads = 256

// compileElementwise makes the kernel of a fusion without an anchor.
func compileElementwise(f graph.Fusion, args, results []Operand, cfg Config) (*Kernel, error) {
	if segments := f.Segments(); len(segments) != 1 {
		return compileSegments(segments, args, results, cfg)
	}
	u := newUnit(args, results)
	e, err := newElementwise(u, f.Body, cfg, true, nil)
	if err != nil {
		return nil, err
	}
	return e.kernel()
}

// An elementwise is work on a space of elements. Each thread computes some units of W elements that stand side by side,
// a block's width apart. It reads all of them before it computes the first.
type elementwise struct {
	u        *unit
	b        *body
	typ      string // of indices
	runs     []run
	w, units int
	n        int // elements
	outputs  []graph.Output
	tile     *tile // where operands are transposed
}

// spaceOf is the shape of a body's elementwise work.
func spaceOf(body *graph.Graph) graph.Shape {
	var space graph.Shape
	for _, n := range body.Nodes {
		if !graph.IsStoreView(n) && graph.IsComputed(n) && n.Type.Shape.Rank() > 0 {
			space = n.Type.Shape
		}
	}
	for _, o := range body.Outputs { // of a copy
		if !graph.IsComputed(o.Node) && o.Node.Type.Shape.Rank() > 0 {
			space = o.Node.Type.Shape
		}
	}
	return space
}

// newElementwise plans the work of a body. Segments of a launch have no tiles. What is not elementwise is defined by
// anchor, if there is such.
func newElementwise(u *unit, g *graph.Graph, cfg Config, tiles bool, anchor func(*body)) (*elementwise, error) {
	space := spaceOf(g)
	rank := space.Rank()
	every := axisList(space, graph.Ints{}, false)
	trial := newBody(u, g, all(len(u.args)), space, coordinates(rank), rank-1, 1)
	if anchor != nil {
		anchor(trial)
	}
	for i, o := range g.Outputs {
		if err := trial.store(i, o.Node); err != nil {
			return nil, err
		}
	}
	layouts, err := trial.layoutsOf(g.Outputs)
	if err != nil {
		return nil, err
	}
	e := &elementwise{u: u, outputs: g.Outputs, n: space.Elems(), typ: indexType(space.Elems()), w: 1, units: 1}
	e.runs = mergeAxes(space, every, append(layouts, graph.Contiguous(space)))
	if !draws(g) && anchor == nil {
		e.runs = mergeAxes(space, every, layouts)
	}
	if tiles {
		e.tile = planTile(trial, layouts, e.runs, cfg)
	}
	if e.tile != nil {
		return e, e.compileTile(g, space, trial)
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
	e.units = unitsPerThread(len(trial.reads), e.w, e.n, cfg)
	e.b = newBody(u, g, all(len(u.args)), space, coordinates(rank, e.runs), wide, e.w)
	e.b.loops = graph.IntsOf(every...)
	e.b.quiet = u.prefix != "p."
	for _, r := range trial.reads {
		e.b.load(r.arg, r.layout, r.node)
	}
	e.b.stage = 1
	if anchor != nil {
		anchor(e.b)
	}
	if err := e.b.stores(g); err != nil {
		return nil, err
	}
	return e, nil
}

// draws reports whether a body draws by the index of an element.
func draws(g *graph.Graph) bool {
	return slices.ContainsFunc(g.Nodes, func(n *graph.Node) bool { _, ok := n.Op.(graph.Dropout); return ok })
}

// stores writes the values of all outputs, and then what stores them: a result may stand over an argument.
func (b *body) stores(g *graph.Graph) error {
	for i, o := range g.Outputs {
		n, _, err := stored(o.Node, b.u.results[i].Layout)
		if err != nil {
			return err
		}
		if _, err := b.operand(n); err != nil {
			return err
		}
	}
	for i, o := range g.Outputs {
		if err := b.store(i, o.Node); err != nil {
			return err
		}
	}
	return nil
}

// inFlight is how many elements of its operands a thread reads before it computes the first.
const inFlight = 8

// unitsPerThread is how many units a thread computes: so many that some loads are under way at once, if that leaves
// work for all multiprocessors.
func unitsPerThread(reads, w, n int, cfg Config) int {
	units := 4
	for units > 1 && (units*w*max(reads, 1) > inFlight || n/(w*units) < 2048*cfg.Chip.SMs) {
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
		return fmt.Sprintf("#pragma unroll\n  for (int u = 0; u < U; u++) {\n    const %s e = first + u * %d;\n"+
			"    if (e < end) {\n%s%s    }\n  }\n", e.typ, blockThreads, needed(split("e", e.typ, e.runs, true, "      "), text), text)
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
func (u *unit) guard() string {
	for _, r := range u.results {
		if r.Update {
			return fmt.Sprintf("  if (%s->code != 0) return;\n", u.status())
		}
	}
	return ""
}
