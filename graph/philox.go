package graph

import "math"

// The counter-based generator of all random operations. Element i of a tensor uses word i mod 4 of block i div 4, so
// that all targets draw the same numbers in any order.

// Philox4x32 is Philox-4×32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011): ten rounds
// of a bijection of the counter, chosen by the key. They found that seven rounds pass TestU01's BigCrush, and recommend
// ten, which their library Random123 and cuRAND use. On the CPU, where a vector holds four or eight blocks
// (kernels/cpu/vec), three rounds less would save a sixth of the cost of dropout.
func Philox4x32(ctr [4]uint32, key [2]uint32) [4]uint32 {
	const (
		m0, m1 = 0xD2511F53, 0xCD9E8D57 // multipliers
		w0, w1 = 0x9E3779B9, 0xBB67AE85 // Weyl increments of the key: the golden ratio and √3−1
	)
	c0, c1, c2, c3 := ctr[0], ctr[1], ctr[2], ctr[3] // in registers, unlike an array
	k0, k1 := key[0], key[1]
	for range 10 {
		p0, p1 := m0*uint64(c0), m1*uint64(c2)
		c0, c1, c2, c3 = uint32(p1>>32)^c1^k0, uint32(p1), uint32(p0>>32)^c3^k1, uint32(p0)
		k0 += w0
		k1 += w1
	}
	return [4]uint32{c0, c1, c2, c3}
}

// Philox is the block of four words at counter; the seed is the key.
func Philox(seed, counter uint64) [4]uint32 {
	return Philox4x32([4]uint32{uint32(counter), uint32(counter >> 32)}, [2]uint32{uint32(seed), uint32(seed >> 32)})
}

// RandomThreshold is the number such that a uniform 32-bit word is less than it with probability p, for p in [0,1).
func RandomThreshold(p float64) uint32 { return uint32(p * (1 << 32)) }

// DropoutKeep reports whether Dropout with probability p keeps element i.
func DropoutKeep(seed, i uint64, p float64) bool {
	return Philox(seed, i/4)[i%4] >= RandomThreshold(p)
}

// RandomAt is element i of a [Random] tensor with parameters a and b.
//
// A uniform number has the 24 high bits of its word, so that float32 holds it exactly. Normal numbers come in pairs,
// elements 2j and 2j+1, by the Box–Muller transform: r·cos θ and r·sin θ, with r = √(−2 ln u), u in (0,1] from the
// word of element 2j, and θ in [0,2π) from that of element 2j+1. So no number is further than 5.8 deviations from the
// mean.
func RandomAt(dist Dist, a, b float64, seed, i uint64) float64 {
	w := Philox(seed, i/4)
	switch dist {
	case Normal:
		pair := i % 4 &^ 1
		r := math.Sqrt(-2 * math.Log(unit(w[pair])+0x1p-24))
		sin, cos := math.Sincos(2 * math.Pi * unit(w[pair+1]))
		if i%2 == 0 {
			return a + b*r*cos
		}
		return a + b*r*sin
	case Bernoulli:
		return b2f(a >= 1 || a > 0 && w[i%4] < RandomThreshold(a))
	}
	return a + (b-a)*unit(w[i%4])
}

// unit maps a word to [0,1) in steps of 2⁻²⁴.
func unit(w uint32) float64 { return float64(w>>8) * 0x1p-24 }
