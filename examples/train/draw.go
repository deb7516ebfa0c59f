package train

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
)

// Draw draws the first values of a learnable with at least two axes, in their order: of a matrix [in, out], and of each of a
// stack of them [n, in, out], with the standard deviation of X. Glorot and Y. Bengio ("Understanding the difficulty of training
// deep feedforward neural networks", AISTATS 2010). What has four axes or more is taken for filters [out, in, ...], and is drawn
// as [DrawFilters] does. A value depends only on the seed, the learnable's name and its shape.
func Draw(name string, shape []int, seed uint64) (next func() float64) {
	n := len(shape)
	if n < 4 {
		return draw(name, 2/float64(shape[n-2]+shape[n-1]), seed)
	}
	inputs := 1.0
	for _, d := range shape[1:] {
		inputs *= float64(d)
	}
	return DrawFilters(name, inputs, seed)
}

// DrawFilters draws the first values of a convolution's filters, over any number of axes, with the standard deviation of K. He et
// al. ("Delving Deep into Rectifiers", ICCV 2015). The inputs are those that an element of the result is the weighted sum of:
// in·d·h·w/groups for filters of d×h×w, and for a transposed convolution as many less as its strides leave out.
func DrawFilters(name string, inputs float64, seed uint64) (next func() float64) {
	return draw(name, 2/inputs, seed)
}

// draw draws from a normal distribution around 0.
func draw(name string, variance float64, seed uint64) (next func() float64) {
	h := fnv.New64a()
	h.Write([]byte(name))
	r := rand.New(rand.NewPCG(seed, h.Sum64()))
	deviation := math.Sqrt(variance)
	return func() float64 { return deviation * r.NormFloat64() }
}
