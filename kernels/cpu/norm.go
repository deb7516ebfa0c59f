package cpu

import (
	"math"

	"fusec/graph"
)

// A batchNorm normalises channels in at most two passes, each a fused kernel of its own: the mean and the variance, and
// y = (x − mean)·scale + beta. In between it computes the few numbers that each channel has.
type batchNorm[T float] struct {
	op         graph.BatchNorm
	args       []Operand
	results    []Operand
	count      int    // elements per channel
	statistics Kernel // mean and variance, or nil
	apply      Kernel
	mean       []T // of the batch; in training only
	variance   []T
	scale      []T // gamma/√(variance + eps)

	in  [4]Memory // operands of the passes: x, mean, scale, beta
	out [2]Memory
}

var _ = answers.Add(floats(newBatchNorm[float32], newBatchNorm[float64]))

func newBatchNorm[T float](op graph.BatchNorm, args, results []Operand, env *Env) (Kernel, error) {
	s := args[0].Layout.Shape
	channels := s.At(1)
	k := &batchNorm[T]{op: op, args: args, results: results, scale: make([]T, channels),
		count: s.Elems() / max(channels, 1)}
	x, vector := args[0], Contiguous(graph.TypeOf(args[0].DType, channels))
	var err error
	if op.Train {
		k.mean, k.variance = make([]T, channels), make([]T, channels)
		b, in := normBody("statistics", x, 0)
		mean := b.Reduce(graph.Mean, in[0], false, notChannel(s)...)
		deviation := b.Binary(graph.Sub, in[0], toChannels(b, mean, s))
		b.Output("mean", mean)
		b.Output("variance", b.Reduce(graph.Mean, b.Unary(graph.Square, deviation), false, notChannel(s)...))
		if k.statistics, err = compileBody(b, graph.AnchorRow, args[:1], []Operand{vector, vector}, env); err != nil {
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
	for i, v := range in[1:] {
		in[1+i] = toChannels(b, v, s)
	}
	return b, in
}

// toChannels repeats a vector with one number per channel over shape s.
func toChannels(b *graph.Builder, v *graph.Node, s graph.Shape) *graph.Node {
	dims := make([]int, s.Rank()-1)
	for i := range dims {
		dims[i] = 1
	}
	dims[0] = s.At(1)
	return b.Broadcast(b.Reshape(v, dims...), s)
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
	defer func() { k.in, k.out = [4]Memory{}, [2]Memory{} }()
	k.in = [4]Memory{args[0], args[3], memoryOf(k.scale), args[2]}
	variance := oldVariance
	if k.op.Train {
		variance = k.variance
		k.in[1], k.out = memoryOf(k.mean), [2]Memory{memoryOf(k.mean), memoryOf(k.variance)}
		if err := k.statistics.Run(k.in[:1], k.out[:]); err != nil {
			return err
		}
	}
	for c, v := range variance {
		k.scale[c] = T(float64(gamma[c]) / math.Sqrt(float64(v)+k.op.Eps))
	}
	k.out[0] = results[0]
	if err := k.apply.Run(k.in[:], k.out[:1]); err != nil {
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
	if k.statistics != nil {
		n += Bytes(k.statistics)
	}
	return n
}
