package cuda

import (
	"fmt"

	"fusec/graph"
	"fusec/graph/body"
)

// panels are how weights of few bits lie, and their scales; see [graph.PackWeights] and src/gemm_packed.cuh.
type panels struct {
	dtype   graph.DType
	block   int // rows of a column that share a scale; 0: all
	scale   int // argument, or −1 without scales
	offset  int // of the scales
	strideK int // of the scales
	strideN int
	vec     int // scales that lie side by side, aligned, along the columns: 4 or 1
}

// checkPanels refuses products with panels that there is no kernel for.
func checkPanels(p *body.Program, cfg Config) error {
	op, ok := p.Anchor.Op.(graph.PanelMatMul)
	switch {
	case !ok:
		return nil
	case !op.Deep:
		return fmt.Errorf("%s has panels in the order of the CPU", p.Anchor.Where())
	case cfg.Chip.Arch < LeastPanels:
		return fmt.Errorf("%s has no tensor cores for deep panels", cfg.Chip.Target())
	case !p.Operands[1].Layout.IsContiguous() || p.Operands[1].Layout.Offset != 0:
		return fmt.Errorf("the panels of %s are not contiguous", p.Anchor.Where())
	case p.SumsColumns():
		return fmt.Errorf("%s with sums of its columns", p.Anchor.Where())
	}
	if op.Block >= p.Anchor.Args[0].Type.Shape.At(p.Space.Rank()-1) {
		return nil
	}
	return CheckPanelBlock(op.Block)
}

// panelBlock is how many rows at least share a scale, and the multiple that panels have.
const panelBlock = 32

// LeastPanels is the oldest architecture that multiplies by deep panels.
const LeastPanels = 80

// PanelRows is the number of rows up to which deep panels of such weights are worth it. Weights of 16 bits, made of floating-point
// numbers, are read by gemm_stream as they lie for more rows.
func (c *Config) PanelRows(weights graph.Type) int {
	const aligned = 8 // elements, which the copy engine reads at once
	if c.hopper() && weights.DType.IsReal() && weights.Shape.At(0)%aligned == 0 && weights.Shape.At(1)%aligned == 0 {
		return halfPanelRows
	}
	return fewRows
}

// CheckPanelBlock refuses scales for blocks of rows that a kernel does not read in registers; 0 are all rows.
func CheckPanelBlock(block int) error {
	if block%panelBlock != 0 {
		return fmt.Errorf("blocks of %d rows are no multiple of %d", block, panelBlock)
	}
	return nil
}

// setPanels makes operand b the panels.
func (p *product) setPanels(op graph.PanelMatMul, b *body.Program) {
	w := b.Operands[1]
	d := b.Anchor.Args[1].Type.DType
	bytes := d.Span(graph.PanelColumns * 8) // of eight rows of a panel
	if d.Is16() {
		bytes /= 2 // its elements are the units of strides
	}
	p.b = factor{arg: w.Arg, dtype: d, k: int(bytes / 8), outer: ceilDiv(p.k, panelBlock) * 4 * int(bytes) / graph.PanelColumns,
		batch: make([]int, p.space.Rank()-2)}
	q := &panels{dtype: d, scale: -1, block: op.Block, vec: 1}
	if q.block >= p.k {
		q.block = 0
	}
	if len(b.Operands) > 2 {
		l := b.Operands[2].Layout
		q.scale, q.offset, q.strideK, q.strideN = b.Operands[2].Arg, l.Offset, l.Stride[0], l.Stride[1]
		if q.strideN == 1 && (q.offset|q.strideK|p.n)%4 == 0 {
			q.vec = 4
		}
	}
	p.panels = q
}

// write prints what the template needs of the scales.
func (q *panels) write(u *unit) {
	u.printf("  static constexpr i64 SCALE_K = %d, SCALE_N = %d;\n", q.strideK, q.strideN)
	u.printf("  static constexpr int SCALE_VEC = %d;\n", q.vec)
}

// panelBits name the types in src/gemm_packed.cuh.
var panelBits = map[graph.DType]string{graph.I4: "I4", graph.I8: "I8", graph.F8E4M3: "F8E4M3", graph.F8E5M2: "F8E5M2",
	graph.BF16: "Half", graph.F16: "Half"}

// form is how the template reads the panels: of 4 bits, 64 steps at once where they have one scale.
func (q *panels) form() *fewForm {
	deep := 1
	if q.dtype == graph.I4 && q.block%64 == 0 {
		deep = 2
	}
	name := fmt.Sprintf("Packed<Problem, %s, %d, %d, %v>", panelBits[q.dtype], deep, q.block, q.scale >= 0)
	return &fewForm{name: name, n: graph.PanelColumns, k: 32 * deep}
}

// scales is the C++ expression of where the scales begin.
func (m *matmul) scales() string {
	if m.panels == nil || m.panels.scale < 0 {
		return "(const float *)nullptr"
	}
	return fmt.Sprintf("%s + %d", m.arg(m.panels.scale), m.panels.offset)
}

// packThreads is the number of threads of a block that packs weights.
const packThreads = 256

var _ = answers.Add(checkedOp(compilePackWeights))

// compilePackWeights arranges weights in deep panels: a thread makes eight rows of a column.
func compilePackWeights(op graph.PackWeights, args, results []Operand) (*Kernel, error) {
	if !op.Deep {
		return nil, fmt.Errorf("panels that are not deep are the order of weights on the CPU")
	}
	u := newUnit(args, results)
	to := results[0]
	if !to.Layout.IsContiguous() || to.Layout.Offset != 0 {
		return nil, fmt.Errorf("panels that are not contiguous")
	}
	kernel := &Kernel{}
	bits, first := int(to.DType.Span(8)), 0 // element
	for i, w := range args {
		if !w.Layout.IsContiguous() || w.Layout.Offset != 0 {
			return nil, fmt.Errorf("weights that are not contiguous")
		}
		k, n := op.Matrix(w.Layout.Shape)
		row, col := n, 1
		if op.Trans {
			row, col = 1, k
		}
		elems := graph.DeepShape(to.DType, k, n).Elems()
		if elems == 0 {
			continue
		}
		entry := fmt.Sprintf("pack%d", i)
		u.printf("KERNEL(%s, %d, 1) {\n  pack_weights<%d, %d, %d, %d, %d>(%s, %s + %d);\n}\n", entry, packThreads, bits, k, n, row, col,
			u.arg(i), u.result(0), to.DType.Span(int64(first))/int64(to.DType.Size()))
		kernel.Steps = append(kernel.Steps, Step{Entry: entry, Grid: [3]int{ceilDiv(elems/8, packThreads), 1, 1}, Block: packThreads})
		first += elems
	}
	for i := range kernel.Steps {
		kernel.Steps[i].Params = u.fields
	}
	kernel.Source = u.source("pack")
	return kernel, nil
}
