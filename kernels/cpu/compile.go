package cpu

import (
	"fusec/graph"
	"fusec/graph/body"
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
	parts, err := body.LowerSegments(f, args, results)
	if err != nil {
		return nil, err
	}
	d := parts[0].Lane
	for _, p := range parts[1:] {
		if p.Lane == graph.F64 {
			d = p.Lane
		}
	}
	if f.Anchor.Whole() {
		d = parts[0].Anchor.Type.DType
	}
	return byFloat(d, compileProgram[float32], compileProgram[float64])(parts, args, results, env)
}

func compileProgram[T float](parts []body.Part, args, results []Operand, env *Env) (Kernel, error) {
	switch p := parts[0].Program; p.Kind {
	case graph.AnchorNone:
		return newElementwises[T](parts, env)
	case graph.AnchorRow:
		return newRow[T](p, args, results, env)
	case graph.AnchorMatMul:
		return newMatMul[T](p, args, results, env)
	case graph.AnchorConv:
		return newConv[T](p, args, results, env)
	case graph.AnchorMoE:
		return newMixture[T](p, args, env)
	default:
		return newAttend[T](p, args, env)
	}
}

// chunks cuts n elements of work into pieces of about size, as many as are worth handing out.
func chunks(n, size int) int { return max((n+size-1)/size, 1) }
