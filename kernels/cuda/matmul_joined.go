package cuda

import (
	"errors"
	"fmt"
	"strings"

	"fusec/graph"
)

// A Launch is an operation with its operands.
type Launch struct {
	Op            graph.Op
	Args, Results []Operand
}

// joinedBlocks are the blocks of a product whose launch has other products besides: their number, and how many are before them.
type joinedBlocks struct{ first, count int }

// joinedPart begins the function of such a product.
const joinedPart = "DEVICE void product(const Params &p)"

// Join makes one kernel of products on Hopper's own instructions that use nothing of one another. Each has the part of the blocks
// that its work is of all work. Arguments and results are those of all launches, one after another. The error says why there is no
// such kernel.
func Join(launches []Launch, cfg Config) (*Kernel, error) {
	work, all := make([]int, len(launches)), 0
	for i, l := range launches {
		m, _, err := joinable(l, cfg)
		if err != nil {
			return nil, err
		}
		work[i] = m.batch * m.m * m.n * m.k
		all += work[i]
	}
	k := &Kernel{}
	step := Step{Entry: "matmul", Grid: [3]int{0, 1, 1}, Block: hopperThreads}
	var source []string
	var customs []graph.CustomFn
	var text, decls, calls strings.Builder
	args, results, fast := 0, 0, false
	for i, l := range launches {
		part := cfg
		if part.Chip.SMs = cfg.Chip.SMs * work[i] / all; part.Chip.SMs == 0 {
			return nil, errors.New("one of them is too small")
		}
		m, h, err := joinable(l, part)
		if err != nil {
			return nil, err
		}
		m.joined = joinedBlocks{step.Grid[0], min(part.Chip.SMs, m.tiles(h.tile))}
		one, c := m.steps()
		if len(one.Steps) != 1 || one.Scratch > 0 || c.cluster > 1 {
			return nil, fmt.Errorf("%v takes %d steps", l.Op, len(one.Steps))
		}
		fmt.Fprintf(&text, "namespace product%d {\n", i)
		step.Params = append(step.Params, m.joinedParams(&text, args, results)...)
		fmt.Fprintf(&text, "%s}  // namespace\n\n", &m.text)
		step.Grid[0] += m.joined.count
		step.Shared = max(step.Shared, one.Steps[0].Shared)
		fmt.Fprintf(&decls, "  product%d::Params product%[1]d;\n", i)
		if i < len(launches)-1 {
			fmt.Fprintf(&calls, "  if (blockIdx.x < %d) {\n    product%d::product(p.product%[2]d);\n  } else", step.Grid[0], i)
		} else {
			fmt.Fprintf(&calls, " {\n    product%d::product(p.product%[1]d);\n  }\n", i)
		}
		args, results = args+len(l.Args), results+len(l.Results)
		source, fast, customs = c.source, c.fast, append(customs, m.customs...)
		k.Time = max(k.Time, h.time)
	}
	k.Steps = []Step{step}
	if _, size := step.Offsets(); size > MaxParams {
		return nil, fmt.Errorf("the addresses of their operands take %d bytes, more than %d", size, MaxParams)
	}
	k.Source = preamble(append([]string{"gemm", "patches"}, source...)...) + customText(customs) + text.String() +
		"struct Params {\n" + decls.String() + "};\n\n" +
		fmt.Sprintf("LATE_KERNEL(%s, %d, 1) {\n%s}\n", step.Entry, step.Block, &calls)
	if fast {
		k.Source = fastText + k.Source
	}
	return k, nil
}

// joinable is a product that may be one of several in a launch, with its plan.
func joinable(l Launch, cfg Config) (*matmul, *hopperPlan, error) {
	f, ok := l.Op.(graph.Fusion)
	if !ok || f.Anchor != graph.AnchorMatMul || !cfg.hopper() {
		return nil, nil, fmt.Errorf("%v is no product on Hopper's own instructions", l.Op)
	}
	m, err := newMatMul(f, l.Args, l.Results, cfg)
	if err != nil {
		return nil, nil, err
	}
	_, _, few := m.few()
	h, _ := m.hopperPlans()
	if few || m.stream() != nil || m.panelStream() != nil || h == nil || m.update || len(m.sums) > 0 || h.a.pitch+h.b.pitch > 0 ||
		h.b.odd > 0 {
		return nil, nil, fmt.Errorf("%v is no product of tiles alone", l.Op)
	}
	return m, h, nil
}

// joinedParams prints the product's Params, and gives their fields with the arguments and results of the launch, of which the
// product's follow the given numbers of others. Tensor maps are first, so that the parameters of several follow one another.
func (m *matmul) joinedParams(text *strings.Builder, args, results int) (fields []Param) {
	of := func(p Param) Param {
		switch p.Kind {
		case ArgPtr:
			p.Index += args
		case ResultPtr:
			p.Index += results
		}
		return p
	}
	text.WriteString("struct Params {\n")
	for _, maps := range []bool{true, false} {
		for i, p := range m.fields {
			if (p.Kind == MapParam) != maps {
				continue
			}
			if p = of(p); maps {
				tm := *p.Map
				tm.Base = of(tm.Base)
				p.Map = &tm
			}
			fields = append(fields, p)
			fmt.Fprintf(text, "  %s\n", m.decls[i])
		}
	}
	text.WriteString("};\n\n")
	return fields
}
