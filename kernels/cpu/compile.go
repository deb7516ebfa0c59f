package cpu

import (
	"fmt"

	"fusec/graph"
)

// Compile makes the kernel of one operation. Fusions and Copy take operands of any layout; other operations want them
// contiguous. The error says which operation cannot be computed, and why; for want of memory it is that of [Env.Fits].
func Compile(op graph.Op, args, results []Operand, env *Env) (Kernel, error) {
	k, err := compile(op, args, results, env)
	if err != nil {
		return nil, err
	}
	own := Bytes(k)
	if !env.fits(own) {
		return nil, env.refused
	}
	env.kept += own
	return &checked{k, args, results}, nil
}

func compile(op graph.Op, args, results []Operand, env *Env) (Kernel, error) {
	f, ok := op.(graph.Fusion)
	if !ok {
		return compileAlone(op, args, results, env)
	}
	switch f.Anchor {
	case graph.AnchorAttention:
		return newAttention(f, args, results, env)
	case graph.AnchorMoE:
		return newMoE(f, args, results, env)
	}
	if laneType(f.Body) == graph.F64 {
		return compileFusion[float64](f, args, results, env)
	}
	return compileFusion[float32](f, args, results, env)
}

func compileFusion[T float](f graph.Fusion, args, results []Operand, env *Env) (Kernel, error) {
	switch f.Anchor {
	case graph.AnchorNone:
		return newElementwises[T](f, args, results, env)
	case graph.AnchorRow:
		return newRow[T](f, args, results, env)
	case graph.AnchorMatMul:
		return newMatMul[T](f, args, results, env)
	case graph.AnchorConv:
		return newConv[T](f, args, results, env)
	}
	return nil, fmt.Errorf("the CPU has no kernel for a fusion of anchor %d", f.Anchor)
}

// chunks cuts n elements of work into pieces of about size, as many as are worth handing out.
func chunks(n, size int) int { return max((n+size-1)/size, 1) }
