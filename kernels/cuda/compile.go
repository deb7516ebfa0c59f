package cuda

import (
	"fmt"
	"slices"

	"fusec/graph"
)

// Compile makes the kernel of one operation. The error is a refusal: which operation has no kernel here, and why.
// Fusions and Copy take operands of any layout; other operations require contiguous ones.
func Compile(op graph.Op, args, results []Operand, cfg Config) (*Kernel, error) {
	k, err := compile(op, args, results, cfg)
	if err == nil {
		cfg.StartEarly(k)
	}
	return k, err
}

// EarlyText begins a translation unit whose entries wait first for the steps before them, leadsText one of a launch that another
// runs beside, besideText that of the other, and holdsText one whose entries do not let the next launch begin at once; see
// src/prelude.cuh.
const (
	EarlyText  = "#define FUSEC_EARLY\n"
	leadsText  = "#define FUSEC_LEADS\n"
	besideText = "#define FUSEC_BESIDE\n"
	awaitsText = "#define FUSEC_AWAITS\n"
	holdsText  = "#define FUSEC_HOLDS\n"
)

// StartEarly lets the steps of a kernel begin before those before them have ended, where the chip can: their blocks are there when
// those end, as far as there is room. The steps of a kernel with one that waits by itself are left as they are, and so are those of
// one whose blocks have a multiprocessor each, unless c says otherwise. Those do not let the next launch begin at once, whose
// blocks would crowd where a multiprocessor is idle.
func (c *Config) StartEarly(k *Kernel) {
	large := func(s Step) bool { return !s.Early && s.Shared > c.Chip.Shared*3/4 }
	late := func(s Step) bool { return s.Exchange != nil || !c.EarlyLarge && large(s) }
	if !c.hopper() || k.Source == "" || slices.ContainsFunc(k.Steps, late) {
		return
	}
	if c.Leads {
		k.Source = leadsText + k.Source
	}
	if c.Beside {
		k.Source = besideText + k.Source
	}
	if c.Awaits {
		k.Source = awaitsText + k.Source
	}
	if slices.ContainsFunc(k.Steps, func(s Step) bool { return s.Early }) {
		return
	}
	if slices.ContainsFunc(k.Steps, large) {
		k.Source = holdsText + k.Source
	}
	for i := range k.Steps {
		k.Steps[i].Early = k.Steps[i].Entry != ""
	}
	k.Source = EarlyText + k.Source
}

// MayRunBeside reports whether the kernel may run beside another, or another beside it: it is one step that waits as it is told to,
// and has no memory of its own.
func (k *Kernel) MayRunBeside() bool {
	return len(k.Steps) == 1 && k.Steps[0].Early && k.Scratch == 0 && k.Zeroed == 0 && k.Kept == 0
}

// compile is Compile for steps that begin one after another.
func compile(op graph.Op, args, results []Operand, cfg Config) (*Kernel, error) {
	f, ok := op.(graph.Fusion)
	if !ok {
		return compileAlone(op, args, results, cfg)
	}
	switch f.Anchor {
	case graph.AnchorNone:
		return compileElementwise(f, args, results, cfg)
	case graph.AnchorMatMul:
		return compileMatMul(f, args, results, cfg)
	case graph.AnchorConv:
		return compileConv(f, args, results, cfg)
	case graph.AnchorMoE:
		return compileMoE(f, args, results, cfg)
	case graph.AnchorAttention:
		return compileAttention(f, args, results, cfg)
	case graph.AnchorRow:
		return compileRows(f, args, results, cfg)
	case graph.AnchorMoves:
		return compileMoves(f, args, results, cfg)
	}
	return nil, fmt.Errorf("CUDA has no kernel for a fusion of anchor %v", f.Anchor)
}

// ceilDiv is n ÷ d, rounded up.
func ceilDiv(n, d int) int { return (n + d - 1) / d }
