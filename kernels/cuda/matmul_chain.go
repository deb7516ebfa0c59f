package cuda

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"fusec/graph"
	"fusec/graph/body"
)

// A Link is a launch of a chain.
type Link struct {
	Launch
	// Waits says that it uses what others since the last one that waits make, or writes what they use.
	Waits bool
	// After, if not 0, says that it uses nothing else of those than result Result of link After−1, which is its argument Arg. It
	// need not wait if its body reads there what the thread has written itself.
	After, Arg, Result int
	// Free says that it uses nothing that another link makes or writes, and no other what it makes.
	Free bool
	// Values and Makes are numbers of the values of the arguments and the results: those of one value are equal.
	Values, Makes []int
}

const (
	// chainWarps is how many warps of a block multiply, and chainChunks how many chunks of 64 rows of each slice, as was fastest on
	// an H200; an exponent is that of the elements of so many.
	chainWarps, chainChunks = 16, 2
	chainOwn                = 64 * chainChunks
	chainSlice              = chainWarps * chainOwn // rows
	// leastChained is how many slots a block has at least.
	leastChained = 2
)

// A chained is a product of a chain.
type chained struct {
	*matmul
	link          Link
	number        int
	args0, makes0 int      // arguments and results of the links before it
	start         int      // the block that has its first panel
	wait          int      // how many waits come before it
	early         int      // slices of its row for which the last wait is not
	counted       int      // its panels that are counted by themselves, for such slices
	count         int      // the wait that its last panels are counted for
	same          bool     // its row is that of the product before it
	after         *chained // whose results a thread reads where it has written them
}

// Chains reports, as an error that carries the reason, that a launch is no link of a chain.
func Chains(l Launch, cfg Config) error {
	_, err := chainable(l, cfg)
	return err
}

// chainable is a product that may be one of a chain.
func chainable(l Launch, cfg Config) (*chained, error) {
	f, ok := l.Op.(graph.Fusion)
	if !ok || f.Anchor != graph.AnchorMatMul {
		return nil, fmt.Errorf("%v is no product", l.Op)
	}
	cfg.Chained = true
	m, err := newMatMul(f, l.Args, l.Results, cfg)
	if err != nil {
		return nil, err
	}
	if !m.early() {
		return nil, fmt.Errorf("%v has weights that change", l.Op)
	}
	return &chained{matmul: m}, m.checkChained()
}

// checkChained refuses what is no product of a row by weights of i4 in panels.
func (m *matmul) checkChained() error {
	switch q := m.panels; {
	case q == nil || q.dtype != graph.I4 || m.m != 1 || m.batch != 1 || m.n*m.k < leastFew || len(m.sums) > 0 || !m.cfg.hopper():
		return errors.New("no product of a row by weights of i4")
	case q.block > 0 && (q.vec == 1 || q.block%chainOwn != 0 || chainSlice%q.block != 0 && q.block%chainSlice != 0):
		return fmt.Errorf("slices of %d rows have no whole groups of %d", chainSlice, q.block)
	}
	return nil
}

// groups is how many scales of each column a slice has at most.
func (c *chained) groups() int {
	if c.panels.block == 0 {
		return 0
	}
	return max(chainSlice/c.panels.block, 1)
}

// firstCount is the wait that its first panels are counted for.
func (c *chained) firstCount() int {
	if c.counted > 0 {
		return c.count - 1
	}
	return c.count
}

// panelCount is how many panels it has.
func (c *chained) panelCount() int { return ceilDiv(c.n, graph.PanelColumns) }

// Chain makes one kernel of products of one row by weights in panels, of which some use what others make. All its blocks run at the
// same time. Arguments and results are those of all links, one after another. The error says why there is no such kernel.
func Chain(links []Link, cfg Config) (*Kernel, error) {
	list := make([]*chained, len(links))
	args, makes := 0, 0
	for i, l := range links {
		c, err := chainable(l.Launch, cfg)
		if err != nil {
			return nil, err
		}
		c.link, c.number, c.args0, c.makes0 = l, i, args, makes
		args, makes = args+len(l.Args), makes+len(l.Results)
		list[i] = c
	}
	blocks := 0
	for _, c := range list {
		blocks = min(max(blocks, c.panelCount()), cfg.Chip.SMs)
	}
	var panels []int // that are counted for each wait
	since := 0
	for i, c := range list {
		l := c.link
		if l.After > 0 && c.readsOwn(list[l.After-1], l) {
			c.after = list[l.After-1]
		} else if l.Waits || l.After > 0 {
			panels = append(panels, c.countBefore(list[since:i], blocks, len(panels))...)
			since = i
		}
		c.wait = len(panels)
	}
	if len(panels) == 0 {
		return nil, errors.New("none waits for another")
	}
	return chainKernel(inOrder(list, blocks), panels, blocks, cfg)
}

// countBefore says which panels of the products before c are counted, and how many for each of its waits: those that make the first
// slices of its row, where blocks have several panels, by themselves.
func (c *chained) countBefore(list []*chained, blocks, waits int) (panels []int) {
	all := 0
	var makers []*chained // of its row
	for _, x := range list {
		if !x.link.Free {
			all += x.panelCount()
		}
		if slices.Contains(x.link.Makes, c.link.Values[c.a.arg]) {
			makers = append(makers, x)
		}
	}
	if len(makers) == 1 && makers[0].makesRow(c) {
		x := makers[0]
		last := (x.panelCount() - 1) / blocks * blocks // the first of the last turn
		if c.early = last * graph.PanelColumns / chainSlice; c.early > 0 {
			x.counted = c.early * chainSlice / graph.PanelColumns
			panels = []int{x.counted}
			all -= x.counted
		}
	}
	for _, x := range list {
		x.count = waits + len(panels)
	}
	return append(panels, all)
}

// makesRow reports whether a result is the row of another product, element by element.
func (c *chained) makesRow(other *chained) bool {
	l := c.body.Stores[slices.Index(c.link.Makes, other.link.Values[other.a.arg])].Layout
	return l.Offset == 0 && l.Stride[c.column] == 1 && other.a.offset == 0 && other.a.k == 1 && other.k == c.n
}

// inOrder puts free products behind one that has the same row, so that blocks multiply while others count panels, and deals out the
// panels.
func inOrder(list []*chained, blocks int) (order []*chained) {
	for _, c := range list {
		if c.link.Free {
			continue
		}
		order = append(order, c)
		for _, f := range list {
			if f.link.Free && f.sharesRows(c) && !slices.Contains(order, f) {
				f.wait, f.early = c.wait, c.early
				order = append(order, f)
			}
		}
	}
	for _, f := range list {
		if !slices.Contains(order, f) {
			order = append(order, f)
		}
	}
	start := 0
	for i, c := range order {
		if c.after != nil {
			c.start = c.after.start
		} else {
			c.start = start
			start = (start + c.panelCount()) % blocks
		}
		c.same = i > 0 && c.wait == order[i-1].wait && c.sharesRows(order[i-1])
	}
	return order
}

// readsOwn reports whether the body reads a result of another product at the elements alone that it computes itself.
func (c *chained) readsOwn(other *chained, l Link) bool {
	late := slices.Contains(c.late(), l.Arg)
	for i := range c.body.Values {
		v := &c.body.Values[i]
		late = late && (v.Kind != body.Load || v.Arg != l.Arg || v.Layout == other.body.Stores[l.Result].Layout)
	}
	return late && c.space == other.space && c.n == other.n
}

// sharesRows reports whether a product has the same row as another.
func (c *chained) sharesRows(other *chained) bool {
	a, b, value := c.a, other.a, func(c *chained, arg int) int { return c.link.Values[arg] }
	if value(c, a.arg) != value(other, b.arg) || c.k != other.k || a.offset != b.offset || a.k != b.k || a.dtype != b.dtype ||
		(c.norm == nil) != (other.norm == nil) {
		return false
	}
	return c.norm == nil || value(c, c.norm.Arg) == value(other, other.norm.Arg) && c.norm.Layout == other.norm.Layout &&
		c.norm.Node.Op == other.norm.Node.Op
}

// chainKernel prints the kernel. Panels are how many are counted for each wait.
func chainKernel(list []*chained, panels []int, blocks int, cfg Config) (*Kernel, error) {
	groups, slices := 0, 0 // scales of a column in a slice, and slices of a panel, at most
	for _, c := range list {
		groups, slices = max(groups, c.groups()), max(slices, ceilDiv(c.k, chainSlice))
	}
	slot := chainSlice*16 + groups*4*graph.PanelColumns
	fixed := chainWarps*slices*(4*chainOwn+16) + 2*4*chainWarps*(graph.PanelColumns+1) + 8*len(panels)
	slots := (cfg.Chip.Shared - fixed) / (slot + 16)
	if slots < leastChained {
		return nil, fmt.Errorf("%d slots for slices", slots)
	}
	step := Step{Entry: "matmul", Grid: [3]int{blocks, 1, 1}, Block: 32 * (chainWarps + 3), Shared: fixed + slots*(slot+16),
		Together: true}
	var customs []graph.CustomFn
	var text, decls, brings, multiplies, finishes strings.Builder
	fmt.Fprintf(&text, "typedef Chain<%d, %d, %d, %d, %d, %d, %d> Ring;\n\n", chainWarps, chainChunks, slots, groups, slices,
		len(panels), blocks)
	for _, c := range list {
		fmt.Fprintf(&text, "namespace product%d {\n", c.number)
		rows, weights, scales := c.rowsOf(), c.pointer(c.b), c.scales()
		step.Params = append(step.Params, c.joinedParams(&text, c.args0, c.makes0)...)
		fmt.Fprintf(&text, "%stypedef ChainLink<Problem, Ring, %d, %d, %v, %d, %d, %v, %d> Link;\n", &c.text, c.start, c.panels.block,
			c.panels.scale >= 0, c.wait, c.early, c.same, c.counted)
		fmt.Fprintf(&text, "DEVICE void bring(Ring &at, const Params &p) { chain_bring<Problem, Link>(at, %s, %s); }\n", weights,
			scales)
		fmt.Fprintf(&text, "DEVICE void multiply(Ring &at, const Params &p) { chain_multiply<Problem, Link>(at, %s); }\n", rows)
		fmt.Fprintf(&text, "DEVICE void finish(Ring &at, const Params &p, int *count) {\n  chain_finish<Problem, Body, Link>(at, "+
			"Body{p}, %s, %s, count);\n}\n}  // namespace\n\n", rows, scales)
		fmt.Fprintf(&decls, "  product%d::Params product%[1]d;\n", c.number)
		fmt.Fprintf(&brings, "    product%d::bring(at, p.product%[1]d);\n", c.number)
		count := "nullptr"
		if c.wait < len(panels) && !c.link.Free {
			count = fmt.Sprintf("p.counts + %d", c.firstCount())
		}
		fmt.Fprintf(&multiplies, "    product%d::multiply(at, p.product%[1]d);\n", c.number)
		fmt.Fprintf(&finishes, "    product%d::finish(at, p.product%[1]d, %s);\n", c.number, count)
		customs = append(customs, c.customs...)
	}
	step.Params = append(step.Params, Param{Kind: ZeroedPtr})
	if _, size := step.Offsets(); size > MaxParams {
		return nil, fmt.Errorf("the addresses of their operands take %d bytes, more than %d", size, MaxParams)
	}
	all := make([]string, len(panels))
	for i, n := range panels {
		all[i] = fmt.Sprint(n)
	}
	k := &Kernel{Steps: []Step{step}, Zeroed: int64(4 * (len(panels) + 1)), Resets: true}
	k.Source = preamble("gemm", "patches", "mma", "cluster", "hopper", "gemm_few", "gemm_chain") +
		customText(customs) + text.String() + "struct Params {\n" + decls.String() + "  int *counts;\n};\n\n" +
		fmt.Sprintf("TOGETHER_KERNEL(%s, %d) {\n  Ring at;\n  at.begin();\n  const int warp = threadIdx.x / 32;\n"+
			"  if (warp < %d) {\n%s    at.end();\n  } else if (warp == %[3]d) {\n%[5]s  } else if (warp == %[3]d + 1) {\n%[6]s  } else {\n"+
			"    const int panels[] = {%[7]s};\n    at.watch(p.counts, panels);\n  }\n}\n", step.Entry, step.Block, chainWarps,
			&multiplies, &brings, &finishes, strings.Join(all, ", "))
	return k, nil
}
