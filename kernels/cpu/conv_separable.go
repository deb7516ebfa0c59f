package cpu

import (
	"fusec/graph"
	"fusec/graph/body"
	"fusec/kernels/cpu/conv"
	"fusec/kernels/cpu/vec"
)

// A separable kernel computes a depthwise convolution between convolutions of 1×1 by strips, see [conv.Separable].
type separable[T float] struct {
	matrixEpilogue[T]
	plan              *conv.Separable[T]
	operands          []body.Operand
	expand, pointwise *conv.Filters[T] // packed; expand may be nil
	weights           conv.SeparableWeights[T]
	frozen, warm      bool // all weights are frozen; they are packed
}

// newSeparable compiles a Fusion anchored on a SeparableConv2D.
func newSeparable[T float](b *body.Program, op graph.SeparableConv2D, args, results []Operand, env *Env) (Kernel, error) {
	k := &separable[T]{operands: b.Operands, frozen: true}
	k.env = env
	for _, o := range b.Operands[1:] {
		k.frozen = k.frozen && args[o.Arg].Frozen
	}
	c, err := k.compileFinish(b, true, results)
	if err != nil {
		return nil, err
	}
	layout := func(i int) graph.Layout { return b.Operands[i].Layout }
	if k.pointwise, err = conv.NewFilters[T](1, layout(graph.SeparablePointwise), env.Pool); err != nil {
		return nil, err
	}
	if len(b.Operands) > graph.SeparableExpand {
		if k.expand, err = conv.NewFilters[T](1, layout(graph.SeparableExpand), env.Pool); err != nil {
			return nil, err
		}
		k.weights.ExpandBias = make([]T, layout(graph.SeparableExpandBias).Shape.Elems())
	}
	filters := layout(graph.SeparableDepthwise).Shape
	k.weights.Depthwise, k.weights.Bias = make([]T, filters.Elems()), make([]T, filters.At(3))
	k.plan, err = conv.NewSeparable(conv.SeparableConfig[T]{Op: op, X: layout(graph.SeparableImage),
		Kernel: [2]int{filters.At(0), filters.At(1)}, Expand: k.expand, Pointwise: k.pointwise, RowStride: c.Stride[0]},
		env.Pool, env.gemm)
	if err != nil {
		return nil, err
	}
	k.cut(k.plan.Blocks())
	return k, nil
}

// pack brings the weights into the forms in which they are read.
func (k *separable[T]) pack(args []Memory) error {
	if err := k.pointwise.Update(elems[T](args[k.operands[graph.SeparablePointwise].Arg])); err != nil {
		return err
	}
	if k.expand != nil {
		if err := k.expand.Update(elems[T](args[k.operands[graph.SeparableExpand].Arg])); err != nil {
			return err
		}
		k.vector(k.weights.ExpandBias, graph.SeparableExpandBias, 0, args)
	}
	k.vector(k.weights.Bias, graph.SeparableBias, 0, args)
	l, each := k.operands[graph.SeparableDepthwise].Layout, len(k.weights.Bias)
	for y := range l.Shape.At(0) {
		for x := range l.Shape.At(1) {
			k.vector(k.weights.Depthwise[(y*l.Shape.At(1)+x)*each:][:each], graph.SeparableDepthwise, y*l.Stride[0]+x*l.Stride[1], args)
		}
	}
	return nil
}

// vector reads elements along the last axis of an operand, from element at of it on.
func (k *separable[T]) vector(dst []T, operand, at int, args []Memory) {
	o := &k.operands[operand]
	vec.Gather(dst, elems[T](args[o.Arg])[o.Layout.Offset+at:], o.Layout.Stride[o.Layout.Shape.Rank()-1])
}

// Run implements [Kernel].
func (k *separable[T]) Run(args, results []Memory) error {
	if k.plan.Rows() == 0 {
		return nil
	}
	if !k.warm {
		if err := k.pack(args); err != nil {
			return err
		}
		k.warm = k.frozen
	}
	y, finish, then := k.start(args, results)
	defer k.release()
	if err := k.plan.Run(elems[T](args[k.operands[0].Arg]), &k.weights, y, finish, then); err != nil {
		return err
	}
	return k.complete()
}

func (k *separable[T]) thaw() { k.warm = false }

func (k *separable[T]) bytes() int64 {
	n := k.epilogue.bytes() + k.plan.Bytes() + int64(k.pointwise.Bytes())
	if k.expand != nil {
		n += int64(k.expand.Bytes())
	}
	return n + int64((len(k.weights.Depthwise)+2*len(k.weights.Bias))*dtypeOf[T]().Size())
}
