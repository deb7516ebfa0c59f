package cpu

import (
	"fmt"
	"slices"

	"fusec/graph"
	"fusec/graph/body"
)

// Compile makes the kernel of one operation. Fusions and Copy take operands of any layout; other operations require
// contiguous ones. The error says which operation cannot be computed, and why; where memory is missing it is that of [Env.Fits].
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

// Strided reports whether there is a kernel of op for operands and results with strides as given.
func Strided(op graph.Op, args, results []Operand) bool {
	f, ok := op.(graph.Fusion)
	if !ok {
		if _, ok := op.(graph.Conv2D); ok && !readsQuads(args[0].DType, args[0].Layout) {
			return false
		}
		return readsStrides(op, args, results) || graph.Elementwise(op)
	}
	parts, err := body.LowerSegments(f, args, results)
	if err != nil {
		return false
	}
	if x := parts[0].Operands; f.Anchor == graph.AnchorConv && !readsQuads(x[0].Node.Type.DType, x[0].Layout) {
		return false
	}
	switch f.Anchor {
	case graph.AnchorNone, graph.AnchorConv:
		return true
	case graph.AnchorAttention: // rows of a head are contiguous
		return !slices.ContainsFunc(parts[0].Stores, func(s body.Store) bool { return !contiguousRows(s.Layout) })
	}
	return allContiguous(results)
}

// readsStrides reports whether the kernel of an operation alone reads and writes images in strides. The channels of a pixel lie
// side by side.
func readsStrides(op graph.Op, args, results []Operand) bool {
	switch op := op.(type) {
	case graph.Pool:
		return op.Layout == graph.NHWC && contiguousRows(args[0].Layout) && contiguousRows(results[0].Layout)
	case graph.Conv2D:
		return op.Layout == graph.NHWC && contiguousRows(args[0].Layout) && contiguousRows(results[0].Layout)
	case graph.SeparableConv2D:
		return contiguousRows(args[0].Layout) && contiguousRows(results[0].Layout)
	case graph.Copy, graph.Concat:
		return true
	}
	return false
}

// contiguousRows reports whether the elements of the last axis lie side by side.
func contiguousRows(l graph.Layout) bool {
	last := l.Shape.Rank() - 1
	return l.Shape.At(last) == 1 || l.Stride[last] == 1
}

func allContiguous(list []Operand) bool {
	return !slices.ContainsFunc(list, func(o Operand) bool { return !o.Layout.IsContiguous() })
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
	if parts[0].Norms() {
		return nil, fmt.Errorf("%s of an operand that is normed in the same launch", parts[0].Anchor.Where())
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
		if _, panels := p.Anchor.Op.(graph.PanelMatMul); panels {
			return newPanelMatMul(p, results, env)
		}
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
