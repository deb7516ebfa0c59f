package cuda

import (
	"fmt"

	"fusec/graph"
)

// Compile makes the kernel of one operation. The error is a refusal: which operation has no kernel here, and why.
// Fusions and Copy take operands of any layout; other operations require contiguous ones.
func Compile(op graph.Op, args, results []Operand, cfg Config) (*Kernel, error) {
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
	}
	return nil, fmt.Errorf("CUDA has no kernel for a fusion of anchor %v", f.Anchor)
}

// ceilDiv is n ÷ d, rounded up.
func ceilDiv(n, d int) int { return (n + d - 1) / d }
