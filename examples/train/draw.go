package train

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
)

// Draw draws the first values of a learnable with at least two axes, in their order: of matrices with the standard deviation of
// X. Glorot and Y. Bengio ("Understanding the difficulty of training deep feedforward neural networks", AISTATS 2010), of filters
// [out, in, h, w] with that of K. He et al. ("Delving Deep into Rectifiers", ICCV 2015). A value depends only on the seed, the
// learnable's name and its shape.
func Draw(name string, shape []int, seed uint64) (next func() float64) {
	h := fnv.New64a()
	h.Write([]byte(name))
	r := rand.New(rand.NewPCG(seed, h.Sum64()))
	deviation := math.Sqrt(2 / float64(shape[len(shape)-2]+shape[len(shape)-1]))
	if len(shape) == 4 {
		deviation = math.Sqrt(2 / float64(shape[1]*shape[2]*shape[3]))
	}
	return func() float64 { return deviation * r.NormFloat64() }
}
