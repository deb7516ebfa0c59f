package cpu

import (
	"math"

	"fusec/graph"
	"fusec/kernels/cpu/vec"
)

// drawWords is how many words of the generator are made at a time: as many as a segment has elements.
const drawWords = segment

// drawGrain is the number of random elements that is worth a work item.
const drawGrain = 4 * drawWords

// A draw fills a tensor from a distribution. What [graph.RandomAt] computes for one element it computes for a block
// of the generator, in the same arithmetic.
type draw[T float] struct {
	env    *Env
	op     graph.Random
	arg    Operand
	result Operand
	n      int
	words  [][]uint32 // of each worker
	seed   uint64
	dst    []T
}

var _ = answers.Add(own(func(op graph.Random, args, results []Operand, env *Env) (Kernel, error) {
	return byFloat(op.Type.DType, newRandom[float32], newRandom[float64])(op, args, results, env)
}))

func newRandom[T float](op graph.Random, args, results []Operand, env *Env) (Kernel, error) {
	k := &draw[T]{env: env, op: op, arg: args[0], result: results[0], n: results[0].Layout.Shape.Elems()}
	for range env.Pool.Workers() {
		k.words = append(k.words, make([]uint32, drawWords))
	}
	return k, nil
}

// Run implements [Kernel].
func (k *draw[T]) Run(args, results []Memory) error {
	k.dst = numbers[T](results[0], k.result)
	k.seed = uint64(elems[int64](args[0])[k.arg.Layout.Offset])
	k.env.Pool.Run(chunks(k.n, drawGrain), k)
	k.dst = nil
	return nil
}

// Do runs one item; see pool.Task.
func (k *draw[T]) Do(worker, item int) {
	words := k.words[worker]
	for at := item * drawGrain; at < min((item+1)*drawGrain, k.n); at += len(words) {
		vec.Words(words, k.seed, uint64(at))
		dst := k.dst[at:min(at+len(words), k.n)]
		for i := 0; i < len(dst); i += 4 {
			block := k.block([4]uint32(words[i:]))
			for j := range min(4, len(dst)-i) {
				dst[i+j] = T(block[j])
			}
		}
	}
}

// block draws four elements from the words of a block of the generator.
func (k *draw[T]) block(words [4]uint32) (v [4]float64) {
	a, b := k.op.A, k.op.B
	switch k.op.Dist {
	case graph.Normal:
		for i := 0; i < 4; i += 2 {
			r := math.Sqrt(-2 * math.Log(fraction(words[i])+0x1p-24))
			sin, cos := math.Sincos(2 * math.Pi * fraction(words[i+1]))
			v[i], v[i+1] = a+b*r*cos, a+b*r*sin
		}
	case graph.Bernoulli:
		for i, w := range words {
			if a >= 1 || a > 0 && w < graph.RandomThreshold(a) {
				v[i] = 1
			}
		}
	default:
		for i, w := range words {
			v[i] = a + (b-a)*fraction(w)
		}
	}
	return v
}

// fraction maps a word to [0,1) by its 24 high bits.
func fraction(w uint32) float64 { return float64(w>>8) * 0x1p-24 }
