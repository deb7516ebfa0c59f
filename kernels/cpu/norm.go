package cpu

import (
	"math"

	"fusec/graph"
)

// A batchNorm normalises channels in at most three passes, each a fused kernel of its own: the mean, the mean of the
// squared deviations, and y = (x − mean)·scale + beta. In between it computes the few numbers that each channel has.
type batchNorm[T float] struct {
	op       graph.BatchNorm
	args     []Operand
	results  []Operand
	count    int      // elements per channel
	passes   []Kernel // mean and variance, or none
	apply    Kernel
	mean     []T // of the batch; in training only
	variance []T
	scale    []T // gamma/√(variance + eps)

	in  [4]Memory // operands of the passes: x, mean, scale, beta
	out [1]Memory
}

func newBatchNorm[T float](op graph.BatchNorm, args, results []Operand, env *Env) (Kernel, error) {
	s := args[0].Layout.Shape
	channels := s.At(1)
	k := &batchNorm[T]{op: op, args: args, results: results, scale: make([]T, channels),
		count: s.Elems() / max(channels, 1)}
	x, vector := args[0], Contiguous(graph.TypeOf(args[0].DType, channels))
	var err error
	if op.Train {
		k.mean, k.variance = make([]T, channels), make([]T, channels)
		k.passes = make([]Kernel, 2)
		b, in := normBody("mean", x, 0)
		b.Output("y", b.Reduce(graph.Mean, in[0], false, notChannel(s)...))
		if k.passes[0], err = compileBody(b, graph.AnchorRow, args[:1], []Operand{vector}, env); err != nil {
			return nil, err
		}
		b, in = normBody("variance", x, 1)
		deviation := b.Binary(graph.Sub, in[0], in[1])
		b.Output("y", b.Reduce(graph.Mean, b.Unary(graph.Square, deviation), false, notChannel(s)...))
		if k.passes[1], err = compileBody(b, graph.AnchorRow, []Operand{x, vector}, []Operand{vector}, env); err != nil {
			return nil, err
		}
	}
	b, in := normBody("apply", x, 3)
	scaled := b.Binary(graph.Mul, b.Binary(graph.Sub, in[0], in[1]), in[2])
	b.Output("y", b.Binary(graph.Add, scaled, in[3]))
	mean := args[3]
	if op.Train {
		mean = vector
	}
	k.apply, err = compileBody(b, graph.AnchorNone, []Operand{x, mean, vector, args[2]}, results[:1], env)
	return k, err
}

// normBody starts a body on x and n vectors, one number per channel, which are returned in x's shape.
func normBody(name string, x Operand, n int) (*graph.Builder, []*graph.Node) {
	s := x.Layout.Shape
	b := graph.NewBuilder(name)
	in := []*graph.Node{b.Input("x", x.Type())}
	for i := range n {
		in = append(in, b.Input(string(rune('a'+i)), graph.TypeOf(x.DType, s.At(1))))
	}
	dims := make([]int, s.Rank()-1)
	for i := range dims {
		dims[i] = 1
	}
	dims[0] = s.At(1)
	for i, v := range in[1:] {
		in[1+i] = b.Broadcast(b.Reshape(v, dims...), s)
	}
	return b, in
}

// notChannel lists all axes but the second.
func notChannel(s graph.Shape) []int {
	var axes []int
	for i := range s.Rank() {
		if i != 1 {
			axes = append(axes, i)
		}
	}
	return axes
}

// Run implements [Kernel].
func (k *batchNorm[T]) Run(args, results []Memory) error {
	gamma := numbers[T](args[1], k.args[1])
	oldMean, oldVariance := numbers[T](args[3], k.args[3]), numbers[T](args[4], k.args[4])
	newMean, newVariance := numbers[T](results[1], k.results[1]), numbers[T](results[2], k.results[2])
	defer func() { k.in, k.out = [4]Memory{}, [1]Memory{} }()
	k.in = [4]Memory{args[0], args[3], memoryOf(k.scale), args[2]}
	variance := oldVariance
	if k.op.Train {
		k.in[1], k.out[0], variance = memoryOf(k.mean), memoryOf(k.mean), k.variance
		if err := k.passes[0].Run(k.in[:1], k.out[:]); err != nil {
			return err
		}
		k.out[0] = memoryOf(k.variance)
		if err := k.passes[1].Run(k.in[:2], k.out[:]); err != nil {
			return err
		}
	}
	for c, v := range variance {
		k.scale[c] = T(float64(gamma[c]) / math.Sqrt(float64(v)+k.op.Eps))
	}
	k.out[0] = results[0]
	if err := k.apply.Run(k.in[:], k.out[:]); err != nil {
		return err
	}
	if !k.op.Train {
		copy(newMean, oldMean)
		copy(newVariance, oldVariance)
		return nil
	}
	keep := k.op.Momentum
	unbias := float64(k.count) / max(float64(k.count)-1, 1)
	for c := range newMean {
		newMean[c] = T(keep*float64(oldMean[c]) + (1-keep)*float64(k.mean[c]))
		newVariance[c] = T(keep*float64(oldVariance[c]) + (1-keep)*unbias*float64(k.variance[c]))
	}
	return nil
}

// bytes is the memory of the statistics and of the passes.
func (k *batchNorm[T]) bytes() int64 {
	n := int64(3*len(k.scale)*dtypeOf[T]().Size()) + Bytes(k.apply)
	for _, p := range k.passes {
		n += Bytes(p)
	}
	return n
}
