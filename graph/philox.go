package graph

import "math"

// The counter-based generator of all random operations. Element i of a tensor uses word i mod 4 of block i div 4, or
// what [DropoutRule] says, so that all targets draw the same numbers in any order.

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

// A DropoutRule is how [Dropout] decides. A block of [Philox] has a number of so many bits for each of 128÷Bits elements, the
// first in the low bits of the first word; an element is dropped if its number is less than Threshold.
type DropoutRule struct {
	Bits      int // 8, 16 or 32
	Threshold uint32
}

// DropoutRuleOf is the rule for a probability in [0,1): the fewest bits with which neither the probability nor its complement is
// rounded by more than 2 % of itself. That is 8 bits where both are 0.1 or more, and for many between 0.03 and 0.1.
func DropoutRuleOf(p float64) DropoutRule {
	for bits := 8; bits < 32; bits *= 2 {
		one := math.Ldexp(1, bits)
		t := math.Round(p * one)
		if math.Abs(t-p*one) <= min(p, 1-p)*one/50 {
			return DropoutRule{bits, uint32(t)}
		}
	}
	return DropoutRule{32, uint32(min(math.Round(p*(1<<32)), math.MaxUint32))}
}

// Keeps reports whether element i is kept.
func (r DropoutRule) Keeps(seed, i uint64) bool {
	of := uint64(32 / r.Bits) // numbers in a word
	w := Philox(seed, i/(4*of))[i/of%4]
	return w<<(32-uint64(r.Bits)*(i%of+1)) >= r.Least()
}

// Least is the least 32-bit word whose high bits are the number of an element that is kept.
func (r DropoutRule) Least() uint32 { return r.Threshold << (32 - r.Bits) }

// Kept is the probability with which an element is kept. The elements that are kept are divided by it.
func (r DropoutRule) Kept() float64 { return 1 - math.Ldexp(float64(r.Threshold), -r.Bits) }

// DropoutKeep reports whether Dropout with probability p keeps element i.
func DropoutKeep(seed, i uint64, p float64) bool { return DropoutRuleOf(p).Keeps(seed, i) }

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
