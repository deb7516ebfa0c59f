package cpu

import (
	"math"

	"fusec/graph"
)

// drawGrain is the number of elements of random work that is worth a work item: whole blocks of the generator, which
// cost much more than a load and a store.
const drawGrain = 1 << 12

// A dropout zeroes elements at random.
type dropout[T float] struct {
	env      *Env
	op       graph.Dropout
	args     []Operand
	result   Operand
	n        int
	seed     uint64
	src, dst []T
}

func newDropout[T float](op graph.Dropout, args, results []Operand, env *Env) (Kernel, error) {
	return &dropout[T]{env: env, op: op, args: args, result: results[0], n: results[0].Layout.Shape.Elems()}, nil
}

// Run implements [Kernel].
func (k *dropout[T]) Run(args, results []Memory) error {
	k.src, k.dst = numbers[T](&args[0], k.args[0]), numbers[T](&results[0], k.result)
	k.seed = uint64(args[1].I64[k.args[1].Layout.Offset])
	k.env.Pool.Run(chunks(k.n, drawGrain), k)
	k.src, k.dst = nil, nil
	return nil
}

// Do runs one item; see pool.Task.
func (k *dropout[T]) Do(_, item int) {
	least, scale := uint64(graph.RandomThreshold(k.op.P)), T(1/(1-k.op.P))
	for at := item * drawGrain; at < min((item+1)*drawGrain, k.n); at += 4 {
		words := philox(k.seed, uint64(at/4))
		src, dst := k.src[at:min(at+4, k.n)], k.dst[at:min(at+4, k.n)]
		for i, x := range src {
			choice := [2]T{x * scale, 0} // no branch that nothing can predict
			dst[i] = choice[(uint64(words[i&3])-least)>>63]
		}
	}
}

// A draw fills a tensor from a distribution. What [graph.RandomAt] computes for one element it computes for a block
// of the generator, in the same arithmetic.
type draw[T float] struct {
	env    *Env
	op     graph.Random
	arg    Operand
	result Operand
	n      int
	seed   uint64
	dst    []T
}

func newRandom[T float](op graph.Random, args, results []Operand, env *Env) (Kernel, error) {
	return &draw[T]{env: env, op: op, arg: args[0], result: results[0], n: results[0].Layout.Shape.Elems()}, nil
}

// Run implements [Kernel].
func (k *draw[T]) Run(args, results []Memory) error {
	k.dst = numbers[T](&results[0], k.result)
	k.seed = uint64(args[0].I64[k.arg.Layout.Offset])
	k.env.Pool.Run(chunks(k.n, drawGrain), k)
	k.dst = nil
	return nil
}

// Do runs one item; see pool.Task.
func (k *draw[T]) Do(_, item int) {
	for at := item * drawGrain; at < min((item+1)*drawGrain, k.n); at += 4 {
		block := k.block(uint64(at / 4))
		for i, v := range block[:min(4, k.n-at)] {
			k.dst[at+i] = T(v)
		}
	}
}

// block draws four elements.
func (k *draw[T]) block(counter uint64) (v [4]float64) {
	words, a, b := philox(k.seed, counter), k.op.A, k.op.B
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

// philox is [graph.Philox], written so that its state stays in registers.
func philox(seed, counter uint64) [4]uint32 {
	const (
		m0, m1 = 0xD2511F53, 0xCD9E8D57
		w0, w1 = 0x9E3779B9, 0xBB67AE85
	)
	k0, k1 := uint32(seed), uint32(seed>>32)
	c0, c1, c2, c3 := uint32(counter), uint32(counter>>32), uint32(0), uint32(0)
	for range 10 {
		p0, p1 := m0*uint64(c0), m1*uint64(c2)
		c0, c1, c2, c3 = uint32(p1>>32)^c1^k0, uint32(p1), uint32(p0>>32)^c3^k1, uint32(p0)
		k0 += w0
		k1 += w1
	}
	return [4]uint32{c0, c1, c2, c3}
}
