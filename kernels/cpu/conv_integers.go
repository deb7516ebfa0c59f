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

// An integerConvolution convolves images of U8 in NHWC with filters of I8.
type integerConvolution struct {
	matrixEpilogue[float32]
	plan   *conv.Plan[float32]
	x, w   int // arguments
	layout graph.Layout

	filters      *conv.Filters[float32]
	quads        []float32
	frozen, warm bool // filters stay the same, and are packed
}

func newConvIntegers(b *body.Program, op graph.Conv2D, args, results []Operand, env *Env) (Kernel, error) {
	if err := ConvolvesIntegers(op, b.Anchor.Args[1].Type); err != nil {
		return nil, fmt.Errorf("%s: %w", b.Anchor.Where(), err)
	}
	x, w := b.Operands[0], b.Operands[1]
	k := &integerConvolution{x: x.Arg, w: w.Arg, layout: w.Layout, frozen: args[w.Arg].Frozen}
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
	filters := graph.Contiguous(s.With(2, s.At(2)/quad))
	k.quads = make([]float32, filters.Shape.Elems())
	if k.filters, err = conv.NewQuadFilters(op.Groups, filters, env.Pool); err != nil {
		return nil, err
	}
	cfg := conv.Config[float32]{Op: op, X: images, W: filters, RowStride: c.Stride[0], Filters: k.filters}
	if k.plan, err = conv.NewQuads(cfg, env.Pool, env.gemm); err != nil {
		return nil, err
	}
	k.cut(k.plan.Bands())
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

func (k *integerConvolution) Run(args, results []Memory) error {
	if !k.frozen || !k.warm {
		conv.Quads(k.quads, elems[int8](args[k.w]), k.layout)
		if err := k.filters.Update(k.quads); err != nil {
			return err
		}
		k.warm = true
	}
	y, finish, then := k.start(args, results)
	defer k.release()
	if err := k.plan.Run(elems[float32](args[k.x]), nil, y, finish, then); err != nil {
		return err
	}
	return k.complete()
}

func (k *integerConvolution) thaw() { k.warm = false }

func (k *integerConvolution) bytes() int64 {
	return k.epilogue.bytes() + k.plan.Bytes() + int64(k.filters.Bytes()) + 4*int64(len(k.quads))
}
