package cpu

import (
	"fmt"
	"runtime"

	"fusec/graph"
	"fusec/graph/body"
	"fusec/kernels/cpu/conv"
	"fusec/kernels/cpu/gemm"
)

// ConvolvesIntegers reports, as an error that carries the reason, that there is no kernel for a convolution of images x of U8 with
// filters w of I8.
func ConvolvesIntegers(op graph.Conv2D, w graph.Type) error {
	if _, err := gemm.Quads(); err != nil {
		return err
	}
	if op.Layout != graph.NHWC {
		return fmt.Errorf("the CPU has convolutions of integers in %v only", graph.NHWC)
	}
	if c := w.Shape.At(2); c == 0 || c%quad != 0 {
		return fmt.Errorf("sums of integers are over four channels at a time, and a filter has %d", c)
	}
	return nil
}

// DotsIntegers reports whether convolutions of integers are computed by an instruction that multiplies four pairs and adds them
// to a sum, as processors with AVX512-VNNI and those of Arm have it. AVX2 takes several.
func DotsIntegers() bool {
	m, err := gemm.Quads()
	return err == nil && (runtime.GOARCH == "arm64" || m.NR >= 32)
}

// quad is the number of channels that are one element for the kernels of package conv.
const quad = 4

// newConvIntegers compiles a Fusion anchored on a convolution of images of U8 in NHWC with filters of I8.
func newConvIntegers(b *body.Program, op graph.Conv2D, args, results []Operand, env *Env) (Kernel, error) {
	if err := ConvolvesIntegers(op, b.Anchor.Args[1].Type); err != nil {
		return nil, fmt.Errorf("%s: %w", b.Anchor.Where(), err)
	}
	x, w := b.Operands[0], b.Operands[1]
	k := &convolution[float32]{x: x.Arg, w: w.Arg, frozen: args[w.Arg].Frozen}
	k.env = env
	c, err := k.compileFinish(b, true, results)
	if err != nil {
		return nil, err
	}
	images, ok := quadsOf(x.Layout)
	if !ok {
		return nil, fmt.Errorf("%s: the channels of its images are not side by side", b.Anchor.Where())
	}
	s := w.Layout.Shape
	shape := graph.Contiguous(s.With(2, s.At(2)/quad))
	quads := make([]float32, shape.Shape.Elems())
	filters, err := conv.NewQuadFilters(op.Groups, shape, env.Pool)
	if err != nil {
		return nil, err
	}
	k.packed = int64(filters.Bytes()) + 4*int64(len(quads))
	k.pack = func(m Memory) error {
		conv.Quads(quads, elems[int8](m), w.Layout)
		return filters.Update(quads)
	}
	cfg := conv.Config[float32]{Op: op, X: images, W: shape, RowStride: c.Stride[0], Filters: filters}
	plan, err := conv.NewQuads(cfg, env.Pool, env.gemm)
	if err != nil {
		return nil, err
	}
	k.plan = plan
	k.cut(plan.Bands())
	return k, nil
}

// quadsOf is the layout of images of bytes as elements of four channels.
func quadsOf(l graph.Layout) (graph.Layout, bool) {
	if l.Stride[3] != 1 || l.Offset%quad != 0 {
		return l, false
	}
	l.Shape, l.Offset = l.Shape.With(3, l.Shape.At(3)/quad), l.Offset/quad
	for i := range 3 {
		if l.Stride[i]%quad != 0 && l.Shape.At(i) > 1 {
			return l, false
		}
		l.Stride[i] /= quad
	}
	return l, true
}

// readsQuads reports whether images of a convolution are read as they lie, if they are integers.
func readsQuads(d graph.DType, l graph.Layout) bool {
	_, ok := quadsOf(l)
	return ok || d != graph.U8
}
